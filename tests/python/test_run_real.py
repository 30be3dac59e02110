# Real trained models, run natively from the checkpoint: greedy tokens and text, chat, and the likelihood of 764 tokens.
import json
import os
import sys

import numpy as np
import pytest

import real_models
from transload.safetensors_file import read_tensors

ROOT = real_models.ROOT
NAMES = ("smollm2-135m", "gemma3-270m")


@pytest.fixture(scope="module")
def with_package():
    return {**os.environ, "TRANSLOAD_PYTHON": sys.executable, "PYTHONPATH": str(ROOT / "python")}


@pytest.mark.parametrize("name", NAMES)
def test_greedy_tokens_and_text_equal_the_reference(transload, with_package, name):
    reference = real_models.reference(name)
    result = transload("run", real_models.weights(name), "--prompt", reference["prompt"], "--max-new-tokens", 40, "--json",
                       env=with_package)
    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout)
    assert summary["prompt_tokens"] == reference["prompt_tokens"]
    assert summary["tokens"] == reference["greedy_tokens"]
    assert summary["text"] == reference["greedy_text"]


@pytest.mark.parametrize("name", NAMES)
def test_the_likelihood_of_a_long_text_equals_the_reference(transload, name):
    golden = ROOT / "tests" / "data" / "real" / f"{name}-long.safetensors"
    result = transload("eval", real_models.weights(name), "--ids", golden, "--json", "--quiet")
    assert result.returncode == 0, result.stderr
    found, nll = json.loads(result.stdout), read_tensors(golden)["nll"].astype(np.float64)
    assert (found["tokens"], found["predictions"], found["chunks"]) == (764, 763, 1)
    assert found["mean_nll"] == pytest.approx(nll.mean(), abs=5e-5)


def test_a_conversation_follows_the_template_of_the_gguf(transload, with_package):
    result = transload("run", real_models.weights("smollm2-135m"), "--chat", "--system", "You are terse.", "--max-new-tokens", 12,
                       "--json", env=with_package, input="What is the capital of France?\nAnd of Italy?\n")
    assert result.returncode == 0, result.stderr
    first, second = map(json.loads, result.stdout.splitlines())
    assert "Paris" in first["text"] and "Rome" in second["text"]
    # Of the second prompt only what is new was read: the end of the answer, then the message.
    assert len(second["prompt_tokens"]) < len(first["prompt_tokens"])
