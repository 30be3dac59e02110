# Reference, interpreter and ONNX Runtime on real models: the same tokens and the same best logits, also far past the window.
import json

import numpy as np
import pytest

import real_models
from transload.runner import Runner
from transload.safetensors_file import read_tensors

LOGITS = 5e-3  # as in test_real.py: two fp32 computations of the same dequantised weights
NEW = 64
TOP = 20
LONG = real_models.ROOT / "tests" / "data" / "real"
# Model, layout and prompt: 20 tokens inside the window, and 700 that leave Gemma's behind.
CASES = [("smollm2-135m", "auto", 20), ("gemma3-270m", "ring", 700), ("gemma3-270m", "roll", 700)]


def native(transload, model, prompt):
    """(tokens, top logits [new, TOP], their ids) of `transload run`."""
    result = transload("run", model, "--prompt-ids", ",".join(map(str, prompt)), "--max-new-tokens", NEW, "--ignore-eos",
                       "--top-logits", TOP, "--json")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    top = np.array(found["top_logits"])
    return found["tokens"], top[:, :, 1], top[:, :, 0].astype(np.int64)


def in_onnx_runtime(bundle, prompt):
    """(tokens, logits [new, vocab]) of greedy decoding."""
    runner = Runner(bundle)
    rows = [runner.feed(prompt)]
    for _ in range(NEW - 1):
        rows.append(runner.feed([int(rows[-1].argmax())]))
    logits = np.stack(rows)
    return logits.argmax(1).tolist(), logits


@pytest.mark.parametrize("name, layout, prompt_length", CASES)
def test_three_paths_agree_for_64_steps(transload, export, name, layout, prompt_length):
    weights = real_models.weights(name)
    bundle = export(weights, "--context", 1024, "--q", "1,128", "--cache-layout", layout)
    golden = read_tensors(LONG / f"{name}-long.safetensors")
    prompt = golden["tokens"][:prompt_length].tolist()
    tokens, logits = in_onnx_runtime(bundle, prompt)
    if prompt_length == 700:
        assert tokens == golden["tokens"][700:].tolist()
    for path, model in (("reference", weights), ("interpreter", bundle)):
        chosen, values, ids = native(transload, model, prompt)
        assert chosen == tokens, path
        assert np.abs(np.take_along_axis(logits, ids, 1) - values).max() <= LOGITS, path


@pytest.mark.parametrize("name", ["smollm2-135m", "gemma3-270m"])
def test_the_reference_agrees_with_another_implementation_over_all_764_positions(transload, tmp_path, name):
    golden = read_tensors(LONG / f"{name}-long.safetensors")
    saved = tmp_path / "eval.safetensors"
    result = transload("eval", real_models.weights(name), "--ids", LONG / f"{name}-long.safetensors", "--save", saved, "--top", TOP,
                       "--json")
    assert result.returncode == 0, result.stderr
    found = read_tensors(saved)
    assert len(found["top_values"]) == 764 and found["tokens"].tolist() == golden["tokens"].tolist()
    # The k-th largest of two rows differ by no more than their entries do, so order by value needs no equal ids.
    assert np.abs(found["top_values"] - golden["top_values"]).max() <= LOGITS
    assert np.abs(found["logsumexp"] - golden["logsumexp"]).max() <= LOGITS
    prompt = int(golden["prompt_length"].reshape(-1)[0])
    assert found["top_ids"][prompt - 1:-1, 0].tolist() == golden["tokens"][prompt:].tolist()
    sure = golden["top_values"][:, 0] - golden["top_values"][:, 1] > 2 * LOGITS
    assert sure.mean() > 0.9 and (found["top_ids"][:, 0] == golden["top_ids"][:, 0])[sure].all()
    assert json.loads(result.stdout)["mean_nll"] == pytest.approx(float(golden["nll"].astype(np.float64).mean()), abs=5e-5)
    assert np.abs(found["nll"] - golden["nll"]).max() <= 2 * LOGITS
