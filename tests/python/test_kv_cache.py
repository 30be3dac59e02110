# The host's KV cache: what it refuses, what its masks open, that ring and roll mean the same, seeds, snapshots and its memory.
import json

import numpy as np
import pytest

from golden import Golden, run_in_pieces, worst
from tiny_model import HEAD_DIM, HEADS, HIDDEN, MAX_POSITIONS, ROPE_WIDTH, VOCAB, TinyModel, contract_of
from transload.contract import Contract
from transload.error import CacheError, ContractError
from transload.kv_cache import KvCache
from transload.runner import Runner

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


def block_sparse(value, heads=HEADS, **pattern):
    """contract.json with the full layers block-sparse."""
    pattern = {"block": 2, "local_blocks": 2, "vertical_stride": 4, "head_step": 1, **pattern}
    text = json.dumps(value).replace('"full"', '"blocksparse"').replace("mask_full", "mask_blocksparse")
    value = json.loads(text)
    value["masks"][1]["block_sparse"] = {"heads": heads, **pattern}
    for step in value["steps"]:
        for port in step["inputs"]:
            if port["name"] == "mask_blocksparse":
                port["shape"][1] = heads
    return value


@pytest.mark.parametrize("head_step", [0, 1, 3])
def test_block_sparse_masks_open_the_near_blocks_and_the_vertical_ones_of_each_head(head_step):
    model = TinyModel()
    contract = Contract.from_json(block_sparse(contract_of(model, steps=((3, 32), )), heads=4, head_step=head_step))
    cache = KvCache(contract, {"sw": model.inv_freq})
    step = contract.step(3, 32)
    for position in range(0, 28, 2):
        inputs = cache.inputs(step, position, 2)
        mask = inputs["mask_blocksparse"]
        assert mask.shape == (1, 4, 3, 35) and set(np.unique(mask)) <= {0.0, np.float32(CLOSED)}
        for head in range(4):
            for row in range(3):
                own = position + row
                expected = [
                    key for key in range(own + 1)
                    if own // 2 - key // 2 in (0, 1) or (key // 2 + head * head_step) % 4 == 3
                ]
                columns = np.flatnonzero(mask[0, head, row] == 0).tolist()
                assert [c if c < 32 else position + c - 32 for c in columns] == expected, (position, head, row)
        cache.commit(step, good_outputs(step), position, 2)
    assert cache.capacity == 32


@pytest.mark.parametrize("field, value, text", [
    ("block", 0, "block_sparse.block'"), ("local_blocks", 0, "block_sparse.local_blocks'"),
    ("vertical_stride", "3", "block_sparse.vertical_stride'"), ("head_step", -1, "block_sparse.head_step'"),
    ("heads", 3, "heads of its mask group do not match: got 3, expected a multiple of 2"),
    ("heads", 4, "tensor 'mask_blocksparse': shape does not match")])
def test_a_broken_block_sparse_pattern_is_refused(field, value, text):
    contract = block_sparse(contract_of(TinyModel()))
    contract["masks"][1]["block_sparse"][field] = value
    with pytest.raises(ContractError) as error:
        Contract.from_json(contract)
    assert text in str(error.value)
    contract = block_sparse(contract_of(TinyModel()))
    contract["masks"][1]["window"] = 9
    with pytest.raises(ContractError, match="got it with window 9, expected window null"):
        Contract.from_json(contract)


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
    "one too few": (lambda o: o[:-1], 5, 2, "cache tensors: got 3, expected 4 (keys and values of 2 layers)"),
    "one too many": (lambda o: o + o[:1], 5, 2, "cache tensors: got 5, expected 4 (keys and values of 2 layers)"),
    "none": (lambda o: [], 5, 2, "cache tensors: got 0, expected 4 (keys and values of 2 layers)"),
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
    with pytest.raises(CacheError, match="no graph for this context: got 99, expected one of 8, 16$"):
        cache.grow(99)
    assert cache.context == 16


def test_frequencies_of_the_wrong_length_are_refused():
    with pytest.raises(CacheError, match="tensor 'rope_sw_inv_freq': shape does not match: got \\[5\\], expected \\[3\\]"):
        KvCache(Contract.from_json(contract_of(TinyModel())), {"sw": np.ones(5, np.float32)})


def test_cache_bytes_count_keys_and_values_of_every_layer():
    contract, _ = make(layout="roll")
    assert contract.kv_bytes(32) == 2 * 4 * HEADS * HEAD_DIM * (5 + 32)


def tokens_of(count, seed=3):
    return np.random.default_rng(seed).integers(0, VOCAB, count)


def state_of(cache):
    return cache.position, [array for pair in cache.snapshot().buffers for array in pair]


def same_state(a, b):
    return a[0] == b[0] and all(np.array_equal(x, y) for x, y in zip(a[1], b[1]))


@pytest.mark.parametrize("count", [1, 3, 4, 5, 9, 32])
@pytest.mark.parametrize("layout", ["ring", "roll"])
def test_a_seed_equals_reading_token_by_token(layout, count):
    model = TinyModel()
    tokens = tokens_of(count)
    contract, stepped = make(model, layout=layout)
    for token in tokens:
        read(model, contract, stepped, [token], 1)
    _, seeded = make(model, layout=layout)
    seeded.seed([(k.astype(np.float32), v.astype(np.float32)) for k, v in model.forward(tokens)[1]], count)
    assert seeded.position == count
    for a, b in zip(state_of(seeded)[1], state_of(stepped)[1]):
        np.testing.assert_allclose(a, b, atol=1e-5)


def _seed_layers(count, dtype=np.float32):
    return [tuple(np.ones((HEADS, count, HEAD_DIM), dtype) for _ in range(2)) for _ in range(2)]


def _with_infinity(layers):
    layers[1][1][0, 0, 0] = np.inf
    return layers


SEEDS_REFUSED = {
    "empty": (_seed_layers(0), 0, "count of seed tokens out of range: got 0, expected 1 to 32"),
    "too long": (_seed_layers(33), 33, "count of seed tokens out of range: got 33, expected 1 to 32"),
    "wrong length": (_seed_layers(9), 8, "tensor 'keys of layer 0': shape does not match: got [2,9,6], expected [2,8,6]"),
    "one layer": (_seed_layers(9)[:1], 9, "cache tensors: got 2, expected 4 (keys and values of 2 layers)"),
    "keys alone": ([pair[:1] for pair in _seed_layers(9)], 9, "cache tensors: got 2, expected 4 (keys and values of 2 layers)"),
    "wrong dtype": (_seed_layers(9, np.float16), 9,
                    "tensor 'keys of layer 0': dtype does not match: got float16, expected float32"),
    "infinity": (_with_infinity(_seed_layers(9)), 9,
                 "tensor 'values of layer 1': values are not finite: got 1 of 108, expected 0"),
}


@pytest.mark.parametrize("case", SEEDS_REFUSED)
def test_a_refused_seed_changes_nothing(case):
    layers, count, message = SEEDS_REFUSED[case]
    _, cache = make()
    before = state_of(cache)
    with pytest.raises(CacheError) as error:
        cache.seed(layers, count)
    assert message in str(error.value)
    assert same_state(state_of(cache), before)


def test_a_second_seed_is_refused():
    _, cache = make()
    cache.seed(_seed_layers(9), 9)
    before = state_of(cache)
    with pytest.raises(CacheError, match="cache is not empty: got 9 stored tokens, expected 0"):
        cache.seed(_seed_layers(9), 9)
    assert same_state(state_of(cache), before)


@pytest.mark.parametrize("layout", ["ring", "roll"])
def test_snapshots_and_forks_continue_on_their_own(layout):
    model = TinyModel()
    shared, first, second = tokens_of(9), tokens_of(8, seed=4), tokens_of(8, seed=5)
    contract, cache = make(model, layout=layout)
    for token in shared:
        read(model, contract, cache, [token], 1)
    snapshot, fork = cache.snapshot(), cache.fork()
    for kept, tokens in ((cache, first), (fork, second)):
        got = read(model, contract, kept, tokens, 8)
        np.testing.assert_allclose(got, model.forward(np.concatenate((shared, tokens)))[0][9:], atol=5e-5)
    cache.restore(snapshot)
    assert cache.position == 9
    got = read(model, contract, cache, second, 8)
    np.testing.assert_allclose(got, model.forward(np.concatenate((shared, second)))[0][9:], atol=5e-5)
    assert same_state(state_of(cache), state_of(fork))


def test_a_snapshot_of_another_bundle_or_context_is_refused():
    contract, cache = make(steps=((1, 8), (1, 16)))
    snapshot = cache.snapshot()
    _, stranger = make(steps=((1, 8), (1, 16)))
    with pytest.raises(CacheError, match="snapshot is of another bundle"):
        stranger.restore(snapshot)
    cache.grow(16)
    with pytest.raises(CacheError, match="snapshot is of another context: got 8, expected 16"):
        cache.restore(snapshot)


@pytest.mark.parametrize("layout", ["ring", "roll"])
@pytest.mark.parametrize("name", ["spark", "gemma3"])
def test_decoding_continues_from_a_prefill_of_another_graph(export, name, layout):
    golden = Golden(name)
    count = golden.prompt
    prefill = Runner(export(golden.checkpoint, "--context", 40, "--q", count), threads=1)
    step, inputs = prefill.step_inputs(golden.tokens[:count])
    outputs = dict(zip((p.name for p in step.outputs), prefill._session(step).run(None, inputs)))
    new = [tuple(outputs[f"{kind}_new_{layer}"][0] for kind in "kv") for layer in range(golden.layers)]
    runner = Runner(export(golden.checkpoint, "--context", 64, "--q", "1,8", "--cache-layout", layout), threads=1)
    runner.cache.seed(new, count)
    logits = run_in_pieces(runner, golden.tokens[count:golden.read], [(1, 1), (8, 5), (1, 1)])
    assert worst(logits, golden.logits[count:]) <= golden.tolerance


@pytest.mark.parametrize("compute", ["fp32", "fp16"])
@pytest.mark.parametrize("layout", ["auto", "ring", "roll"])
@pytest.mark.parametrize("name", ["spark", "gemma3", "llama"])
def test_buffers_take_exactly_the_memory_that_transload_kv_says(export, transload, name, layout, compute):
    golden = Golden(name)
    result = transload("kv", golden.checkpoint, "--context", "12,64", "--dtype", compute, "--json")
    assert result.returncode == 0, result.stderr
    runner = Runner(export(golden.checkpoint, "--context", "12,64", "--cache-layout", layout, "--compute", compute), threads=1)
    for said in json.loads(result.stdout)["contexts"]:
        runner.cache.grow(said["context"])
        memory = next(entry for entry in said["layouts"] if entry["layout"] == layout)
        assert runner.cache.nbytes == memory["bytes"] == runner.contract.kv_bytes(said["context"])
        buffers = runner.cache.snapshot().buffers
        assert [k.nbytes + v.nbytes for k, v in buffers] == [layer["bytes"] for layer in memory["layers"]]
