# The runner on a hand-made bundle: prompts of any length, padding, windows that wrap, other input forms, refusals.
import functools
import json

import numpy as np
import pytest

from tiny_model import HIDDEN, MAX_POSITIONS, VOCAB, TinyModel, contract_of, write_bundle
from transload.contract import Contract
from transload.error import CacheError, ContractError, UsageError
from transload.runner import Runner as AnyRunner
from transload.sampling import Sampler

Runner = functools.partial(AnyRunner, threads=1)  # these graphs are too small to share
TOKENS = np.random.default_rng(3).integers(0, VOCAB, 30).tolist()


@pytest.fixture(scope="module")
def model():
    return TinyModel()


@pytest.mark.parametrize("layout", ["ring", "roll"])
@pytest.mark.parametrize("queries", [[1] * 30, [8] * 4, [1, 8, 1, 8, 8, 8], [8, 1, 1, 8, 8, 8]])
def test_logits_equal_a_direct_pass_however_the_tokens_are_cut(model, tmp_path, layout, queries):
    runner = Runner(write_bundle(model, tmp_path / "b", layout=layout))
    expected, stored = model.forward(TOKENS)
    np.testing.assert_allclose(runner.feed(TOKENS, queries, all_rows=True), expected, atol=2e-5)
    for layer, (keys, values) in enumerate(stored):
        first, k, v = runner.cache.entries(layer)
        np.testing.assert_allclose(k, keys[:, first:], atol=1e-5)
        np.testing.assert_allclose(v, values[:, first:], atol=1e-5)


@pytest.mark.parametrize("window", [1, 2, 5, 40])
@pytest.mark.parametrize("layout", ["ring", "roll"])
def test_any_window_padding_in_the_middle_of_a_sequence(tmp_path, layout, window):
    model = TinyModel(window=window)
    runner = Runner(write_bundle(model, tmp_path / "b", layout=layout, steps=((1, 32), (8, 32), (16, 32))))
    got = [
        runner.feed(TOKENS[a:b], queries, all_rows=True)
        for a, b, queries in ((0, 3, [8]), (3, 8, [16]), (8, 9, [1]), (9, 20, [16]), (20, 30, [8, 8]))
    ]
    np.testing.assert_allclose(np.concatenate(got), model.forward(TOKENS)[0], atol=2e-5)


@pytest.mark.parametrize("options", [{"input_form": "ids"}, {"half_rope": True}, {"logits": "last"}])
@pytest.mark.parametrize("count", [1, 7, 8, 21])
def test_other_graph_forms_give_the_same_last_row(model, tmp_path, options, count):
    runner = Runner(write_bundle(model, tmp_path / "b", **options))
    np.testing.assert_allclose(runner.feed(TOKENS[:count]), model.forward(TOKENS[:count])[0][-1], atol=2e-5)


@pytest.mark.parametrize("count, plan", [(1, [(1, 1)]), (2, [(8, 2)]), (8, [(8, 8)]), (9, [(8, 8), (1, 1)]),
                                         (20, [(8, 8), (8, 8), (8, 4)])])
def test_plan_fills_large_calls_and_pads_the_last(model, tmp_path, count, plan):
    assert Runner(write_bundle(model, tmp_path / "b")).plan(count) == plan


@pytest.mark.parametrize("count, plan", [(1, [(1, 1)]), (5, [(8, 4), (1, 1)]), (8, [(8, 8)]), (10, [(8, 2), (8, 8)])])
def test_plan_of_last_row_graphs_ends_with_a_full_call(model, tmp_path, count, plan):
    assert Runner(write_bundle(model, tmp_path / "b", logits="last")).plan(count) == plan


@pytest.mark.parametrize("layout", ["ring", "roll"])
def test_moves_to_the_larger_context_when_tokens_need_it(tmp_path, layout):
    model = TinyModel(window=12)
    bundle = write_bundle(model, tmp_path / "b", layout=layout, steps=[(q, c) for q in (1, 8) for c in (6, 32)])
    runner = Runner(bundle)
    expected = model.forward(TOKENS)[0]
    np.testing.assert_allclose(runner.feed(TOKENS[:6], all_rows=True), expected[:6], atol=2e-5)
    assert runner.cache.context == 6
    np.testing.assert_allclose(runner.feed(TOKENS[6:], all_rows=True), expected[6:], atol=2e-5)
    assert runner.cache.context == 32
    with pytest.raises(UsageError, match="tokens do not fit: got 7, expected at most 6"):
        Runner(bundle, context=6).feed(TOKENS[:7])
    with pytest.raises(UsageError, match="context: got 7, expected one of 6, 32"):
        Runner(bundle, context=7)


def test_a_bundle_without_full_layers_runs_past_its_context(tmp_path):
    model = TinyModel(all_sliding=True)
    runner = Runner(write_bundle(model, tmp_path / "b", steps=((1, 8), (4, 8))))
    np.testing.assert_allclose(runner.feed(TOKENS, all_rows=True), model.forward(TOKENS)[0], atol=2e-5)
    assert runner.room() == MAX_POSITIONS - len(TOKENS)


def test_generate_is_greedy_stops_at_stop_tokens_and_at_the_end_of_the_context(model, tmp_path):
    runner = Runner(write_bundle(model, tmp_path / "b"))
    prompt, tokens = TOKENS[:5], TOKENS[:5]
    for _ in range(28):
        tokens = tokens + [int(np.argmax(model.forward(tokens)[0][-1]))]
    assert list(runner.generate(prompt, 100)) == tokens[5:5 + 28]  # 32 slots: 5 + 27 read, the 28th only produced
    runner.reset()
    assert list(runner.generate(prompt, 6)) == tokens[5:11]
    runner.reset()
    stop = tokens[7]
    assert list(runner.generate(prompt, 20, stop=[stop])) == tokens[5:tokens.index(stop, 5) + 1]


def test_sampling_is_reproducible_and_keeps_to_the_candidates():
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05]))
    draws = [[Sampler(1.0, seed=s).choose(logits) for s in range(200)] for _ in range(2)]
    assert draws[0] == draws[1] and set(draws[0]) == {0, 1, 2, 3}
    assert {Sampler(1.0, top_k=2, seed=s).choose(logits) for s in range(200)} == {0, 1}
    assert {Sampler(1.0, top_p=0.7, seed=s).choose(logits) for s in range(200)} == {0, 1}
    assert {Sampler(1.0, min_p=0.4, seed=s).choose(logits) for s in range(200)} == {0, 1}
    assert {Sampler(0.01, seed=s).choose(logits) for s in range(50)} == {0}
    share = np.mean([Sampler(1.0, seed=s).choose(logits) == 0 for s in range(2000)])
    assert abs(share - 0.5) < 0.05


def test_dumped_inputs_are_the_real_ones_in_graph_order(model, tmp_path):
    runner = Runner(write_bundle(model, tmp_path / "b"))
    runner.feed(TOKENS[:11])
    names = runner.dump_inputs(tmp_path / "dump", [TOKENS[11]])
    step = runner.contract.step(1, 32)
    assert names == [p.name for p in step.inputs] == (tmp_path / "dump" / "input_names.txt").read_text().split()
    feeds = {n: np.load(tmp_path / "dump" / f"{n}.npy") for n in names}
    for port in step.inputs:
        assert feeds[port.name].shape == port.shape
        assert feeds[port.name].tobytes() == (tmp_path / "dump" / f"{port.name}.raw").read_bytes()
    import onnxruntime
    session = onnxruntime.InferenceSession(str(tmp_path / "b" / step.file), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(["logits"], feeds)[0], model.forward(TOKENS[:12])[0][-1:], atol=2e-5)
    assert runner.position == 11  # nothing was read


@pytest.mark.parametrize("tokens, message", [([], "nothing to read"), ([0, VOCAB], f"outside the vocabulary: got {VOCAB}"),
                                             ([-1], "outside the vocabulary: got -1"), ([0.5], "not a list of ids"),
                                             ([[1]], "not a list of ids")])
def test_bad_tokens_are_refused(model, tmp_path, tokens, message):
    runner = Runner(write_bundle(model, tmp_path / "b"))
    with pytest.raises(UsageError, match=message):
        runner.feed(tokens)
    assert runner.position == 0


def test_query_lengths_must_exist_and_cover_the_tokens(model, tmp_path):
    runner = Runner(write_bundle(model, tmp_path / "b"))
    with pytest.raises(ContractError, match="no such graph in the bundle: got q 4 c 32"):
        runner.feed(TOKENS, [4] * 9)
    with pytest.raises(UsageError, match="do not cover the tokens: got 8, expected 30"):
        Runner(tmp_path / "b").feed(TOKENS, [8])


@pytest.mark.parametrize("token", [4, 5])
def test_non_finite_results_are_refused_by_name_and_nothing_is_stored(tmp_path, token):
    broken = TinyModel()
    broken.embedding[4] = np.inf  # read by the head for every token, by the layers for token 4 only
    runner = Runner(write_bundle(broken, tmp_path / "b"))
    with pytest.raises(CacheError, match="tensor 'logits': values are not finite"):
        runner.feed([token])
    assert runner.position == 0


def _change(*path, to):

    def edit(contract):
        target = contract
        for key in path[:-1]:
            target = target[key]
        target[path[-1]] = to

    return edit


def _remove(*path):

    def edit(contract):
        target = contract
        for key in path[:-1]:
            target = target[key]
        del target[path[-1]]

    return edit


@pytest.mark.parametrize("edit, message", [
    (_change("format", to="other"), "field 'format': unknown format: got 'other', expected 'transload-contract'"),
    (_change("version", to=2), "field 'version': unknown version: got 2, expected 1"),
    (_change("hidden_size", to="x"), "field 'hidden_size': wrong type"),
    (_change("hidden_size", to=True), "field 'hidden_size': wrong type"),
    (_change("hidden_size", to=0), "field 'hidden_size': out of range"),
    (_remove("steps"), "field 'steps': missing field"),
    (_change("steps", to=[]), "field 'steps': no graphs"),
    (_change("steps", 0, "file", to="../x.onnx"), "field 'steps[0].file': not a plain file name: got '../x.onnx'"),
    (_change("steps", 0, "file", to="gone.onnx"), "missing file: got no 'gone.onnx'"),
    (_change("steps", 0, "inputs", 1, "role", to="other"), "field 'steps[0].inputs[1].role': unknown value: got 'other'"),
    (_change("steps", 0, "inputs", 1, "shape", to=[1, 1, 1, 99
                                                   ]), "tensor 'cos_sw': shape does not match: got [1,1,1,99], expected"),
    (_change("steps", 0, "inputs", 1, "dtype", to="f16"), "tensor 'cos_sw': dtype does not match: got float16, expected float32"),
    (_change("steps", 0, "inputs", 1, "group", to="full"), "tensor 'cos_sw': unexpected or repeated role: got 'rope_cos'"),
    (_change("steps", 0, "inputs", 1, "name", to="x"), "repeated tensor name: got x"),
    (_remove("steps", 0, "inputs", 1), "missing tensor: got no 'rope_cos'"),
    (_remove("steps", 0, "outputs", 2), "missing tensor: got no 'v_new'"),
    (_change("steps", 0, "caches", 0, "slots", to=9), "cache 0: slots do not match: got 9, expected 4"),
    (_change("steps", 0, "caches", 0, "rule", to="stack"), "field 'steps[0].caches[0].rule': unknown value: got 'stack'"),
    (_change("steps", 0, "caches", 0, "rule", to="append"), "cache 0: rule does not match: got 'append'"),
    (_change("steps", 0, "caches", 1, "layer", to=5), "cache layers out of order: got 5, expected 1"),
    (_change("steps", 0, "caches", 0, "mask_group", to="full"), "cache 0: mask group does not match: got 'full'"),
    (_change("steps", 0, "caches", 1, "model_layer", to=9), "cache 1: layer of the model does not match: got 9, expected 1"),
    (_change("steps", 1, "caches", 0, "kv_heads", to=3),
     "cache 0: kv_heads differs from that of 'step_q1_c32.onnx': got 3, expected 2"),
    (_change("layers", "end", to=1), "number of caches does not match: got 2, expected 1"),
    (_change("embedding", to=None), "field 'embedding': missing rows"),
    (_change("embedding", "shape", to=[3, 4]), "field 'embedding.shape': shape does not match: got [3,4]"),
    (_change("embedding", "offset", to=1 << 40), "embedding ends past the end of the file"),
    (_change("rope", 0, "inv_freq", to="nothing"), "tensor 'nothing': missing"),
    (_change("mask_fill", to=0.5), "field 'mask_fill': out of range"),
])
def test_a_malformed_contract_is_refused_by_the_name_of_the_field(model, tmp_path, edit, message):
    bundle = write_bundle(model, tmp_path / "b")
    contract = contract_of(model)
    edit(contract)
    (bundle / "contract.json").write_text(json.dumps(contract))
    with pytest.raises(ContractError) as error:
        Runner(bundle)
    assert message in str(error.value) and str(bundle) in str(error.value) and "\n" not in str(error.value)


def test_files_that_are_not_a_bundle_are_refused(model, tmp_path):
    with pytest.raises(ContractError, match="not a bundle"):
        Contract.load(tmp_path)
    for text, message in (("{", "malformed JSON"), ("[]", "wrong type"), ("[" * 100000, "malformed JSON")):
        (tmp_path / "contract.json").write_text(text)
        with pytest.raises(ContractError, match=message):
            Contract.load(tmp_path)
    bundle = write_bundle(model, tmp_path / "b")
    (bundle / "step_q1_c32.onnx").write_bytes(b"not a graph")
    with pytest.raises(ContractError, match="graph does not load"):
        Runner(bundle).feed([1])
    (bundle / "host.safetensors").write_bytes((1 << 60).to_bytes(8, "little"))
    with pytest.raises(ContractError, match="header length past the end"):
        Runner(bundle)


def test_a_graph_whose_inputs_differ_from_the_contract_is_refused(model, tmp_path):
    bundle = write_bundle(model, tmp_path / "b")
    (bundle / "step_q1_c32.onnx").write_bytes(
        (write_bundle(model, tmp_path / "c", input_form="ids") / "step_q1_c32.onnx").read_bytes())
    with pytest.raises(ContractError, match="input names do not match contract.json: got ids"):
        Runner(bundle).feed([1])
