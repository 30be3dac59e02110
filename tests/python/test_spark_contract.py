# The Spark-X2.5 1.7B graph at its real size: names, order and shapes of its 63 inputs and 57 outputs, and the cache bytes.
import json
import re

import numpy as np
import pytest

from transload.contract import Contract
from transload.runner import Runner

LAYERS, HIDDEN, VOCAB, KV_HEADS, HEAD_DIM = 28, 2048, 131072, 2, 256
FULL = range(3, LAYERS, 4)


def expected_ports(context, layout, q=1, hidden=HIDDEN, vocab=VOCAB):
    """Names and shapes in order, written out from the public description of the graph."""
    slots = 512 if layout == "roll" else 511
    inputs = [("x", [1, q, hidden]), ("cos_sw", [1, 1, q, 256]), ("sin_sw", [1, 1, q, 256]), ("cos_full", [1, 1, q, 64]),
              ("sin_full", [1, 1, q, 64]), ("mask_sw", [1, 1, q, 511 + q]), ("mask_full", [1, 1, q, context + q])]
    outputs = [("logits", [q, vocab])]
    for i in range(LAYERS):
        held = context if i in FULL else slots
        new = 512 if layout == "roll" and i not in FULL else q
        inputs += [(f"k_cache_{i}", [1, KV_HEADS, held, HEAD_DIM]), (f"v_cache_{i}", [1, KV_HEADS, held, HEAD_DIM])]
        outputs += [(f"k_new_{i}", [1, KV_HEADS, new, HEAD_DIM]), (f"v_new_{i}", [1, KV_HEADS, new, HEAD_DIM])]
    return inputs, outputs


@pytest.fixture(scope="module")
def sparse(transload, data, tmp_path_factory):
    """The checkpoint in real dimensions, without data on disk."""
    folder = tmp_path_factory.mktemp("sparse") / "spark"
    result = transload("synth", data / "configs" / "spark-x2.5-1.7b", "-o", folder, "--sparse", "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["tensors"] == 226
    assert sum(p.stat().st_size for p in folder.glob("*.safetensors")) > 3_400_000_000
    assert sum(p.stat().st_blocks * 512 for p in folder.glob("*.safetensors")) < 10_000_000
    return folder


@pytest.mark.parametrize("layout", ["auto", "ring", "roll"])
@pytest.mark.parametrize("context", [1024, 4096])
def test_names_order_and_shapes_at_real_size(transload, sparse, tmp_path, layout, context):
    result = transload("export", "onnx", sparse, "-o", tmp_path / "x", "--context", context, "--cache-layout", layout,
                       "--dry-run", "--explain")
    assert result.returncode == 0, result.stderr
    graph = result.stdout[result.stdout.index("graph "):]
    declared = dict(re.findall(r"^(?:\w+ )?%(\w+): \w+\[([\d,]*)\]", graph, re.MULTILINE))
    shapes = {name: [int(n) for n in dims.split(",") if n] for name, dims in declared.items()}
    inputs, outputs = expected_ports(context, layout)
    got = re.findall(r"^input %(\w+): f32\[", graph, re.MULTILINE)
    returned = re.findall(r"%(\w+)", re.search(r"^return (.*)$", graph, re.MULTILINE)[1])
    assert (len(got), len(returned)) == (63, 57)
    assert [(name, shapes[name]) for name in got] == inputs
    assert [(name, shapes[name]) for name in returned] == outputs
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("layout, hybrid", [("auto", 80_697_344), ("ring", 80_697_344), ("roll", 80_740_352)])
def test_cache_bytes_at_context_4096(transload, sparse, tmp_path, layout, hybrid):
    result = transload("export", "onnx", sparse, "-o", tmp_path / "x", "--context", 4096, "--cache-layout", layout, "--compute",
                       "fp16", "--dry-run", "--json")
    summary = json.loads(result.stdout)
    assert summary["tensors"] == 226
    assert summary["kv"][0]["bytes"]["fp16"] == {"hybrid": hybrid, "uniform": 234_881_024, "saved": 234_881_024 - hybrid}
    assert summary["kv"][0]["bytes"]["fp32"]["hybrid"] == 2 * hybrid
    assert [row["slots"] for row in summary["kv"][0]["layers"]
            ] == [4096 if i in FULL else 512 if layout == "roll" else 511 for i in range(LAYERS)]


@pytest.mark.parametrize("layout", ["auto", "roll"])
def test_a_narrow_model_of_the_same_depth_heads_and_window_is_written_and_runs(transload, data, tmp_path, layout):
    config = json.loads((data / "configs" / "spark-x2.5-1.7b" / "config.json").read_text())
    config.update(hidden_size=32, intermediate_size=48, vocab_size=64)
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert transload("synth", tmp_path / "config.json", "-o", tmp_path / "narrow", "--seed", 3).returncode == 0
    result = transload("export", "onnx", tmp_path / "narrow", "-o", tmp_path / "x", "--context", 1024, "--q", "1,128",
                       "--cache-layout", layout)
    assert result.returncode == 0, result.stderr
    contract = Contract.load(tmp_path / "x")
    for q in (1, 128):
        step = contract.step(q, 1024)
        inputs, outputs = expected_ports(1024, layout, q, hidden=32, vocab=64)
        assert [(p.name, list(p.shape)) for p in step.inputs] == inputs
        assert [(p.name, list(p.shape)) for p in step.outputs] == outputs
    assert contract.kv_bytes(1024) == 2 * (36_700_160 if layout == "roll" else 36_657_152)  # f32: twice the published f16 figure
    # Past the window of 512: cutting the tokens differently changes nothing.
    tokens = np.random.default_rng(0).integers(0, 64, 530)
    runner = Runner(tmp_path / "x", threads=1)
    whole = runner.feed(tokens, [128] * 5, all_rows=True)[-10:]
    runner.reset()
    runner.feed(tokens[:520], [128] * 6)
    single = runner.feed(tokens[520:], [1] * 10, all_rows=True)
    assert np.abs(whole - single).max() < 1e-3 < np.abs(single).max()
