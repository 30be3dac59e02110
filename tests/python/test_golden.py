# Exported graphs, stepped through ONNX Runtime by the contract, against outputs that another implementation computed.
import functools
import shutil

import numpy as np
import pytest

from golden import HALF_SOURCES, NAMES, SHORT_NAMES, Golden, run_in_pieces, worst, write_tensors
from transload.error import UsageError
from transload.runner import Runner as AnyRunner
from transload.safetensors_file import read_tensors

# Calls of (q, real tokens): one by one; q = 8 full and with padding in the middle, then one by one; padding up to the end.
ONE_BY_ONE = [(1, 1)]
EIGHTS_THEN_ONES = [(8, 8), (8, 5), (8, 8), (8, 3), (1, 1)]
EIGHTS = [(8, 3), (8, 8), (8, 1), (8, 7), (8, 8)]
SOME = ("spark", "gemma3", "mistral", "llama_gguf_q8_0")
DIALECTS = SOME + ("phimoe", "phi3small_unofficial")
BLOCK_SPARSE = ("phi3small_unofficial", )  # its even layers
Runner = functools.partial(AnyRunner, threads=1)  # these graphs are too small to share
goldens = {name: Golden(name) for name in NAMES}


def check_logits(golden, logits, tolerance=None, greedy=True):
    tolerance = golden.tolerance if tolerance is None else tolerance
    error = worst(logits, golden.logits[:len(logits)])
    assert error <= tolerance, f"logits differ by {error}"
    chosen = logits[golden.prompt - 1:].argmax(-1)
    if greedy:
        assert chosen.tolist() == golden.tokens[golden.prompt:golden.prompt + len(chosen)].tolist()


@pytest.mark.parametrize("pieces", [ONE_BY_ONE, EIGHTS_THEN_ONES, EIGHTS], ids=["q1", "q8-then-q1", "q8"])
@pytest.mark.parametrize("layout", ["auto", "ring", "roll"])
@pytest.mark.parametrize("name", NAMES)
def test_logits_greedy_tokens_and_caches_equal_the_reference(export, name, layout, pieces):
    golden = goldens[name]
    runner = Runner(export(golden.checkpoint, "--context", 64, "--q", "1,8", "--cache-layout", layout))
    check_logits(golden, run_in_pieces(runner, golden.tokens[:golden.read], pieces))
    for layer in range(golden.layers):
        first, keys, values = runner.cache.entries(layer)
        assert worst(keys, golden.keys[layer][:, first:]) <= golden.tolerance, f"keys of layer {layer}"
        assert worst(values, golden.values[layer][:, first:]) <= golden.tolerance, f"values of layer {layer}"
    caches = runner.contract.step(1, 64).caches
    sliding = "roll" if layout == "roll" else "ring"
    assert [(c.rule, c.window) for c in caches] == [("append" if w is None else sliding, w) for w in golden.windows()]


@pytest.mark.parametrize("layout", ["ring", "roll"])
@pytest.mark.parametrize("name", NAMES)
def test_f16_weights_keep_f32_accuracy_where_the_source_fits(export, name, layout):
    golden = goldens[name]
    runner = Runner(export(golden.checkpoint, "--context", 64, "--q", "1,8", "--cache-layout", layout, "--weights", "fp16"))
    exact = golden.about["stored_dtype"] in HALF_SOURCES
    # Rounding the f32 matrices of spark_3shard_fp32 to f16 moves its logits by 0.033 (the next test shows it is that rounding).
    tolerance = golden.tolerance if exact else {"spark_3shard_fp32": 4e-2}.get(name, 2e-2)
    logits = run_in_pieces(runner, golden.tokens[:golden.read], EIGHTS_THEN_ONES)
    check_logits(golden, logits, tolerance, greedy=exact or golden.margin > 2 * tolerance)


@pytest.mark.parametrize("layout", ["ring", "roll"])
@pytest.mark.parametrize("name", SHORT_NAMES)
def test_a_context_within_the_original_length_takes_the_short_regime(export, name, layout):
    golden = Golden(name, "golden_short.safetensors")
    runner = Runner(export(golden.checkpoint, "--context", golden.read, "--q", "1,8", "--cache-layout", layout))
    check_logits(golden, run_in_pieces(runner, golden.tokens[:golden.read], EIGHTS_THEN_ONES))
    longer = Runner(export(golden.checkpoint, "--context", golden.read + 1, "--q", 1))
    assert worst(longer.feed(golden.tokens[:golden.read], all_rows=True), golden.logits) > 0.1


def test_f16_weights_are_the_matrices_rounded_to_nearest_and_nothing_else(export, tmp_path):
    golden = goldens["spark_3shard_fp32"]
    tensors = {}
    for shard in sorted(golden.checkpoint.glob("model-*.safetensors")):
        for key, value in read_tensors(shard).items():
            tensors[key] = value.astype(np.float16).astype(np.float32) if value.ndim > 1 else np.array(value)
    shutil.copy(golden.checkpoint / "config.json", tmp_path)
    write_tensors(tmp_path / "model.safetensors", tensors)
    options = ("--context", 64, "--q", 1)
    rounded, stored = (Runner(export(checkpoint, *options, *extra)).feed(golden.tokens[:golden.read], all_rows=True)
                       for checkpoint, extra in ((tmp_path, ()), (golden.checkpoint, ("--weights", "fp16"))))
    assert worst(rounded, stored) <= 1e-5
    assert worst(rounded, golden.logits) > 2e-2


@pytest.mark.parametrize("layout", ["ring", "roll"])
@pytest.mark.parametrize("name", NAMES)
def test_f16_compute_is_close(export, name, layout):
    golden = goldens[name]
    runner = Runner(export(golden.checkpoint, "--context", 64, "--q", "1,8", "--cache-layout", layout, "--compute", "fp16"))
    assert runner.contract.compute == np.float16
    logits = run_in_pieces(runner, golden.tokens[:golden.read], EIGHTS_THEN_ONES)
    assert logits.dtype == np.float16
    check_logits(golden, logits, golden.f16_tolerance, greedy=False)


@pytest.mark.parametrize("options", [
    ["--linear", "matmul"],
    ["--linear", "conv1x1"],
    ["--rope-width", "half"],
    ["--inputs", "ids"],
    *(["--opset", str(n)] for n in (17, 19, 20, 21, 22, 23)),
    ["--linear", "conv1x1", "--rope-width", "half", "--inputs", "ids", "--cache-layout", "roll", "--weights", "fp16"],
],
                         ids=" ".join)
@pytest.mark.parametrize("name", DIALECTS)
def test_every_dialect_computes_the_same(export, name, options):
    golden = goldens[name]
    runner = Runner(export(golden.checkpoint, "--context", 64, "--q", "1,8", *options))
    tolerance = 2e-2 if "fp16" in options and golden.about["stored_dtype"] not in HALF_SOURCES else None
    check_logits(golden,
                 run_in_pieces(runner, golden.tokens[:golden.read], EIGHTS_THEN_ONES),
                 tolerance,
                 greedy=tolerance is None)


@pytest.mark.parametrize("name", ["llama", "llama_tied_fp16", "spark_3shard_fp32", "llama_gguf_f16"])
@pytest.mark.parametrize("linear", ["matmul", "conv1x1"])
def test_linear_forms_of_the_other_cases(export, name, linear):
    golden = goldens[name]
    runner = Runner(export(golden.checkpoint, "--context", 64, "--q", "1,8", "--linear", linear))
    check_logits(golden, run_in_pieces(runner, golden.tokens[:golden.read], EIGHTS_THEN_ONES))


@pytest.mark.parametrize("inputs", ["rows", "ids"])
@pytest.mark.parametrize("name", SOME)
def test_logits_of_the_last_row_only(export, name, inputs):
    golden = goldens[name]
    runner = Runner(export(golden.checkpoint, "--context", 64, "--q", "1,8", "--logits", "last", "--inputs", inputs))
    assert runner.contract.step(8, 64).result.shape == (1, runner.contract.vocab_size)
    done = 0
    for count in (20, 1, 8, 3, 7):
        row = runner.feed(golden.tokens[done:done + count])
        done += count
        assert worst(row, golden.logits[done - 1]) <= golden.tolerance
    with pytest.raises(UsageError, match="logits of the last row only"):
        Runner(export(golden.checkpoint, "--context", 64, "--q", "8", "--logits", "last", "--inputs", inputs)).feed([1, 2, 3])


@pytest.mark.parametrize("layout", ["ring", "roll"])
@pytest.mark.parametrize("name", NAMES)
def test_without_head_the_hidden_states_come_before_the_final_norm(export, name, layout):
    golden = goldens[name]
    runner = Runner(export(golden.checkpoint, "--context", 64, "--q", "1,8", "--cache-layout", layout, "--no-head"))
    assert not runner.contract.head and runner.contract.step(1, 64).result.name == "hidden"
    hidden = run_in_pieces(runner, golden.tokens[:golden.prompt], EIGHTS_THEN_ONES)
    assert worst(hidden, golden.pre_norm) <= golden.tolerance
    with pytest.raises(UsageError, match="cannot generate"):
        next(runner.generate([1], 1))


@pytest.mark.parametrize("layout", ["ring", "roll"])
@pytest.mark.parametrize("name", NAMES)
def test_slices_of_layers_take_and_give_the_hidden_states_of_the_reference(export, name, layout):
    golden = goldens[name]
    last = golden.layers
    for begin, end in {(0, 1), (1, 2), (1, last), (last - 1, last), (0, 2)}:
        runner = Runner(
            export(golden.checkpoint, "--context", 32, "--q", "1,8", "--cache-layout", layout, "--no-head", "--layers",
                   f"{begin}:{end}"))
        assert (runner.contract.first_layer, runner.contract.end_layer) == (begin, end)
        assert runner.contract.input_form == ("hidden" if begin else "rows")
        caches = runner.contract.step(1, 32).caches
        assert [(c.layer, c.model_layer) for c in caches] == [(i, begin + i) for i in range(end - begin)]
        rows = golden.hidden[begin] if begin else golden.tokens[:golden.prompt]
        error = worst(run_in_pieces(runner, rows, EIGHTS_THEN_ONES), golden.after_layer(end))
        assert error <= golden.tolerance, f"layers {begin}:{end} differ by {error}"
        for i in range(end - begin):
            first, keys, values = runner.cache.entries(i)
            assert worst(keys, golden.keys[begin + i][:, first:golden.prompt]) <= golden.tolerance
            assert worst(values, golden.values[begin + i][:, first:golden.prompt]) <= golden.tolerance


@pytest.mark.parametrize("name", NAMES)
def test_a_slice_keeps_the_head_unless_told_otherwise(export, name):
    golden = goldens[name]
    runner = Runner(export(golden.checkpoint, "--context", 32, "--q", "1,8", "--layers", f"1:{golden.layers}"))
    logits = run_in_pieces(runner, golden.hidden[1], EIGHTS_THEN_ONES)
    assert worst(logits, golden.logits[:golden.prompt]) <= golden.tolerance


@pytest.mark.parametrize("kind", ["sliding", "full"])
@pytest.mark.parametrize("name", NAMES)
def test_first_sliding_or_full_layer(export, transload, tmp_path, name, kind):
    golden = goldens[name]
    layers = [i for i, window in enumerate(golden.windows()) if (window is None) == (kind == "full")]
    if not layers:
        result = transload("export", "onnx", golden.checkpoint, "-o", tmp_path / "x", "--context", 32, "--layers", kind)
        assert result.returncode == 2 and kind in result.stderr and not (tmp_path / "x").exists()
        return
    runner = Runner(export(golden.checkpoint, "--context", 32, "--layers", kind, "--no-head"))
    assert [c.model_layer for c in runner.contract.step(1, 32).caches] == layers[:1]
    roles = {port.role for port in runner.contract.step(1, 32).inputs}
    mask = "sw" if kind == "sliding" else "blocksparse" if name in BLOCK_SPARSE else "full"
    assert {p.group for p in runner.contract.step(1, 32).inputs if p.role == "mask"} == {mask}
    assert roles >= {"mask", "k_cache", "v_cache"}
    rows = golden.hidden[layers[0]] if layers[0] else golden.tokens[:golden.prompt]
    assert worst(run_in_pieces(runner, rows, ONE_BY_ONE), golden.after_layer(layers[0] + 1)) <= golden.tolerance


@pytest.mark.parametrize("layout", ["ring", "roll"])
@pytest.mark.parametrize("name", SOME)
def test_one_bundle_with_several_contexts_moves_to_the_larger_in_the_middle(export, name, layout):
    golden = goldens[name]
    small = 12
    bundle = export(golden.checkpoint, "--context", f"{small},40", "--q", "1,8", "--cache-layout", layout)
    assert sorted(p.name for p in bundle.glob("*.onnx")) == [f"step_q{q}_c{c}.onnx" for q in (1, 8) for c in (small, 40)]
    runner = Runner(bundle)
    first = run_in_pieces(runner, golden.tokens[:small - 1], [(8, 5), (1, 1)])
    assert runner.cache.context == small
    runner.cache.grow(40)
    rest = run_in_pieces(runner, golden.tokens[small - 1:golden.read], EIGHTS_THEN_ONES)
    check_logits(golden, np.concatenate((first, rest)))


@pytest.mark.parametrize("layout", ["ring", "roll"])
@pytest.mark.parametrize("name", SOME)
def test_a_context_smaller_than_the_window_and_a_move_past_it(export, name, layout):
    golden = goldens[name]
    bundle = export(golden.checkpoint, "--context", "5,6,7,48", "--q", "1,3,5", "--cache-layout", layout)
    for context in (5, 6, 7):
        runner = Runner(bundle, context=context)
        logits = run_in_pieces(runner, golden.tokens[:context], [(3, 2), (1, 1), (5, 5)])
        check_logits(golden, logits)
    runner = Runner(bundle)
    check_logits(golden, run_in_pieces(runner, golden.tokens[:golden.read], [(3, 2), (1, 1), (5, 3), (3, 3), (5, 5)]))


@pytest.mark.parametrize("pieces", [[(16, 16), (16, 16), (16, 7)], [(16, 3), (16, 11), (1, 1), (16, 16), (16, 2), (1, 1)]])
@pytest.mark.parametrize("layout", ["ring", "roll"])
@pytest.mark.parametrize("name", NAMES)
def test_more_tokens_in_a_call_than_the_window_holds(export, name, layout, pieces):
    golden = goldens[name]
    runner = Runner(export(golden.checkpoint, "--context", 40, "--q", "1,16", "--cache-layout", layout))
    check_logits(golden, run_in_pieces(runner, golden.tokens[:golden.read], pieces))
    for layer in range(golden.layers):
        first, keys, _ = runner.cache.entries(layer)
        assert worst(keys, golden.keys[layer][:, first:]) <= golden.tolerance


@pytest.mark.parametrize("name", [name for name in NAMES if (goldens[name].checkpoint / "config_v4.json").is_file()])
def test_both_spellings_of_a_config_give_the_same_bytes(export, name):
    golden = goldens[name]
    plain = export(golden.checkpoint, "--context", 64, "--q", "1,8")
    other = export(golden.checkpoint, "--context", 64, "--q", "1,8", "--config", golden.checkpoint / "config_v4.json")
    for file in ("weights.bin", "step_q1_c64.onnx", "step_q8_c64.onnx", "host.safetensors"):
        assert (plain / file).read_bytes() == (other / file).read_bytes(), file
    check_logits(golden, run_in_pieces(Runner(other), golden.tokens[:golden.read], EIGHTS_THEN_ONES))


@pytest.mark.parametrize("form, least, most", [("exact", 0, 4e-4), ("model", 0, 4e-4), ("tanh", 1e-6, 5e-2),
                                               ("sigmoid", 1e-3, 2.0)])
def test_gelu_forms_change_spark_by_as_much_as_they_should(export, form, least, most):
    golden = goldens["spark"]
    runner = Runner(export(golden.checkpoint, "--context", 64, "--gelu", form))
    error = worst(run_in_pieces(runner, golden.tokens[:golden.read], ONE_BY_ONE), golden.logits)
    assert least <= error <= most
