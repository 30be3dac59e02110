# The host's KV cache without a runtime: what it refuses, what its masks open, and that ring and roll mean the same.
import numpy as np
import pytest

from tiny_model import HEAD_DIM, HEADS, HIDDEN, MAX_POSITIONS, ROPE_WIDTH, VOCAB, TinyModel, contract_of
from transload.contract import Contract
from transload.error import CacheError
from transload.kv_cache import KvCache

CLOSED = -1e9


def make(model=None, **options):
    model = model or TinyModel()
    contract = Contract.from_json(contract_of(model, **options))
    return contract, KvCache(contract, {"sw": model.inv_freq})


def run_in_numpy(model, step, inputs, rows):
    """What a graph returns, computed from its inputs alone."""
    q, half = step.q, ROPE_WIDTH // 2
    cos, sin = inputs["cos_sw"][0, 0], inputs["sin_sw"][0, 0]
    x, outputs = rows, []
    for (wq, wk, wv, wo), cache in zip(model.layers, step.caches):
        heads = [np.swapaxes((x @ w).reshape(q, HEADS, HEAD_DIM), 0, 1) for w in (wq, wk, wv)]
        turned = [h * cos + np.concatenate((-h[..., half:], h[..., :half]), -1) * sin for h in heads[:2]]
        new = [turned[1], heads[2]]
        both = [np.concatenate((inputs[f"{kind}_cache_{cache.layer}"][0], n), axis=1) for kind, n in zip("kv", new)]
        if cache.rule == "roll":
            outputs += [b[None, :, -cache.new_entries:].astype(np.float32) for b in both]
            both = [b[:, 1:] for b in both]
        else:
            outputs += [n[None].astype(np.float32) for n in new]
        scores = turned[0] @ np.swapaxes(both[0], 1, 2) / np.sqrt(HEAD_DIM) + inputs[f"mask_{cache.mask_group}"][0, 0]
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        x = x + np.swapaxes(weights / weights.sum(-1, keepdims=True) @ both[1], 0, 1).reshape(q, HIDDEN) @ wo
    return x @ model.embedding.T, outputs


def read(model, contract, cache, tokens, q):
    """One call of `q` with these tokens, padded; the logits of the real ones."""
    step = contract.step(q, cache.context)
    rows = np.zeros((q, HIDDEN), np.float32)
    rows[:len(tokens)] = model.embedding[tokens]
    logits, outputs = run_in_numpy(model, step, cache.inputs(step, cache.position, len(tokens)), rows)
    cache.commit(step, outputs, cache.position, len(tokens))
    return logits[:len(tokens)]


@pytest.mark.parametrize("seed", range(12))
def test_ring_and_roll_equal_a_direct_pass_for_random_windows_and_calls(seed):
    random = np.random.default_rng(seed)
    queries = sorted({1, int(random.integers(2, 6)), int(random.integers(6, 20))})
    contexts = [int(random.integers(20, 30)), 60]
    model = TinyModel(window=int(random.integers(1, 24)), seed=seed)
    tokens = random.integers(0, VOCAB, 60)
    expected, stored = model.forward(tokens)
    cuts, done = [], 0
    while done < len(tokens):
        q = int(random.choice(queries))
        cuts.append((q, min(int(random.integers(1, q + 1)), len(tokens) - done)))
        done += cuts[-1][1]
    for layout in ("ring", "roll"):
        contract, cache = make(model, layout=layout, steps=[(q, c) for q in queries for c in contexts])
        for q, real in cuts:
            first = cache.position
            if first + real > cache.capacity:
                cache.grow(60)
            got = read(model, contract, cache, tokens[first:first + real], q)
            np.testing.assert_allclose(got, expected[first:first + real], atol=5e-5, err_msg=f"{layout} at {first}")
            for layer, (keys, values) in enumerate(stored):
                begin, k, v = cache.entries(layer)
                assert begin == max(0, cache.position - contract.step(1, cache.context).caches[layer].slots)
                np.testing.assert_allclose(k, keys[:, begin:cache.position], atol=1e-5)
                np.testing.assert_allclose(v, values[:, begin:cache.position], atol=1e-5)


@pytest.mark.parametrize(
    "layout, position, real_columns",
    [
        # window 4: ring has 3 slots and its mask 3 + 2 columns, roll 4 slots and also 5
        ("ring", 0, [[0, 0, 0, 1, 0], [0, 0, 0, 1, 1]]),
        ("ring", 2, [[1, 1, 0, 1, 0], [1, 1, 0, 1, 1]]),
        ("ring", 3, [[1, 1, 1, 1, 0], [0, 1, 1, 1, 1]]),
        ("ring", 4, [[1, 1, 1, 1, 0], [1, 0, 1, 1, 1]]),
        ("roll", 0, [[0, 0, 0, 1, 0], [0, 0, 0, 1, 1]]),
        ("roll", 2, [[0, 1, 1, 1, 0], [0, 1, 1, 1, 1]]),
        ("roll", 5, [[1, 1, 1, 1, 0], [0, 1, 1, 1, 1]]),
    ])
def test_masks_open_exactly_the_keys_in_the_window(layout, position, real_columns):
    model = TinyModel(window=4)
    contract, cache = make(model, layout=layout, steps=((1, 8), (2, 8)))
    for token in range(position):
        read(model, contract, cache, [token], 1)
    inputs = cache.inputs(contract.step(2, 8), position, 2)
    assert (inputs["mask_sw"][0, 0] == 0).astype(int).tolist() == real_columns
    assert set(np.unique(inputs["mask_sw"])) <= {0.0, np.float32(CLOSED)}
    full = [[1] * position + [0] * (8 - position) + tail for tail in ([1, 0], [1, 1])]
    assert (inputs["mask_full"][0, 0] == 0).astype(int).tolist() == full


@pytest.mark.parametrize("half", [False, True])
def test_rotary_rows_are_cosines_of_fp32_angles_times_the_attention_factor(half):
    model = TinyModel()
    value = contract_of(model, half_rope=half)
    value["rope"][0]["attention_factor"] = 1.25
    contract = Contract.from_json(value)
    cache = KvCache(contract, {"sw": model.inv_freq})
    inputs = cache.inputs(contract.step(8, 32), 0, 8)
    angles = np.float32(np.arange(8))[:, None] * model.inv_freq
    for name, turn in (("cos_sw", np.cos), ("sin_sw", np.sin)):
        rows = turn(angles.astype(np.float64)) * 1.25
        expected = rows if half else np.concatenate((rows, rows), axis=1)
        np.testing.assert_allclose(inputs[name][0, 0], expected, rtol=2e-7, atol=1e-12)


def good_outputs(step, value=1.0):
    return [np.full(p.shape, value, p.dtype) for p in step.outputs if p.role in ("k_new", "v_new")]


def _swap(index, array):

    def edit(outputs):
        outputs[index] = array(outputs[index])
        return outputs

    return edit


def _poison(value):

    def edit(array):
        array = array.copy()
        array.flat[-1] = value
        return array

    return edit


REFUSED = {
    "one too few": (lambda o: o[:-1], 5, 2, "cache tensor count does not match: got 3, expected 4"),
    "one too many": (lambda o: o + o[:1], 5, 2, "cache tensor count does not match: got 5, expected 4"),
    "none": (lambda o: [], 5, 2, "cache tensor count does not match: got 0, expected 4"),
    "wrong shape": (_swap(1, lambda a: a[:, :, :1]), 5, 2, "tensor 'v_new_0': shape does not match: got [1,2,"),
    "wrong rank": (_swap(2, lambda a: a[0]), 5, 2, "tensor 'k_new_1': shape does not match: got [2,2,6], expected [1,2,2,6]"),
    "wrong dtype": (_swap(0, lambda a: a.astype(np.float64)), 5, 2,
                    "tensor 'k_new_0': dtype does not match: got float64, expected float32"),
    "not an array": (_swap(3, lambda a: a.tolist()), 5, 2, "tensor 'v_new_1': dtype does not match: got list, expected float32"),
    "NaN": (_swap(3, _poison(np.nan)), 5, 2, "tensor 'v_new_1': values are not finite: got 1 of 24, expected 0"),
    "infinity": (_swap(2, _poison(np.inf)), 5, 2, "tensor 'k_new_1': values are not finite: got 1 of 24, expected 0"),
    "repeated position": (lambda o: o, 4, 2, "repeated position: got 4, expected 5"),
    "skipped position": (lambda o: o, 6, 2, "skipped position: got 6, expected 5"),
    "no real tokens": (lambda o: o, 5, 0, "count of real tokens out of range: got 0, expected 1 to 2"),
    "more than q": (lambda o: o, 5, 3, "count of real tokens out of range: got 3, expected 1 to 2"),
}


@pytest.mark.parametrize("layout", ["ring", "roll"])
@pytest.mark.parametrize("case", REFUSED)
def test_a_refused_commit_names_the_fault_and_leaves_every_buffer(layout, case):
    edit, position, real, message = REFUSED[case]
    model = TinyModel()
    contract, cache = make(model, layout=layout, steps=((1, 8), (2, 8)))
    for token in range(5):
        read(model, contract, cache, [token], 1)
    step = contract.step(2, 8)
    before = {k: v.copy() for k, v in cache.inputs(step, 5, 2).items()}
    with pytest.raises(CacheError) as error:
        cache.commit(step, edit(good_outputs(step)), position, real)
    assert message in str(error.value)
    assert cache.position == 5
    after = cache.inputs(step, 5, 2)
    assert all(np.array_equal(before[name], after[name]) for name in before)
    cache.commit(step, good_outputs(step), 5, 2)
    assert cache.position == 7


def test_positions_beyond_the_capacity_are_refused_and_padding_may_reach_past_it():
    model = TinyModel()
    contract, cache = make(model, steps=((1, 8), (4, 8)))
    wide, one = contract.step(4, 8), contract.step(1, 8)
    cache.commit(wide, good_outputs(wide), 0, 4)
    cache.commit(wide, good_outputs(wide), 4, 3)
    cache.commit(wide, good_outputs(wide), 7, 1)
    for call in (lambda: cache.inputs(one, 8, 1), lambda: cache.commit(one, good_outputs(one), 8, 1)):
        with pytest.raises(CacheError, match="position beyond the capacity: got 9 tokens, expected at most 8"):
            call()
    cache.clear()
    assert cache.position == 0 and not any(value.any() for name, value in cache.inputs(one, 0, 1).items() if "cache" in name)


@pytest.mark.parametrize("layout", ["ring", "roll"])
def test_capacity_ends_at_the_context_unless_every_window_fits_its_slots(layout):
    fits = 4 if layout == "ring" else 5
    for context in (fits - 1, fits):
        _, cache = make(TinyModel(window=5, all_sliding=True), layout=layout, steps=((1, context), ))
        assert cache.capacity == (MAX_POSITIONS if context == fits else context)


def test_a_graph_of_another_context_is_refused_and_contexts_only_grow():
    contract, cache = make(steps=((1, 8), (1, 16)))
    with pytest.raises(CacheError, match="graph is for another context: got 16, expected 8"):
        cache.inputs(contract.step(1, 16), 0, 1)
    cache.grow(16)
    with pytest.raises(CacheError, match="context cannot shrink: got 8, expected at least 16"):
        cache.grow(8)
    with pytest.raises(CacheError, match="no graph for this context: got 99, expected one of"):
        cache.grow(99)
    assert cache.context == 16


def test_frequencies_of_the_wrong_length_are_refused():
    with pytest.raises(CacheError, match="tensor 'rope_sw_inv_freq': shape does not match: got \\[5\\], expected \\[3\\]"):
        KvCache(Contract.from_json(contract_of(TinyModel())), {"sw": np.ones(5, np.float32)})


def test_cache_bytes_count_keys_and_values_of_every_layer():
    contract, _ = make(layout="roll")
    assert contract.kv_bytes(32) == 2 * 4 * HEADS * HEAD_DIM * (5 + 32)
