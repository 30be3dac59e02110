# Real trained models: greedy text equals the reference, also 764 tokens far past the window.
import json
import subprocess
import sys

import numpy as np
import pytest

import real_models
from transload.runner import Runner
from transload.safetensors_file import read_tensors
from transload.tokenizer import load_tokenizer

ROOT = real_models.ROOT
LOGITS = 5e-3  # the weights are dequantised to f32 on both sides
LAYOUTS = {"smollm2-135m": ("auto", ), "gemma3-270m": ("ring", "roll")}
CASES = [(name, layout) for name, layouts in LAYOUTS.items() for layout in layouts]


@pytest.fixture(scope="module")
def bundles(export):

    def get(name, layout):
        return export(real_models.weights(name), "--context", 1024, "--q", "1,128", "--cache-layout", layout)

    return get


@pytest.mark.parametrize("name, layout", CASES)
def test_greedy_text_and_a_long_run_past_the_window_equal_the_reference(bundles, name, layout):
    runner = Runner(bundles(name, layout))
    check_greedy_text(runner, load_tokenizer(bundles(name, layout)), real_models.reference(name))
    runner.reset()
    check_long_run(runner, read_tensors(ROOT / "tests" / "data" / "real" / f"{name}-long.safetensors"))


def check_greedy_text(runner, tokenizer, reference):
    prompt = tokenizer.encode(reference["prompt"])
    assert prompt == reference["prompt_tokens"]
    logits = runner.feed(prompt)
    best = np.argsort(-logits)[:10]
    assert best.tolist() == [token for token, _ in reference["logits_after_prompt_top10"]]
    assert np.abs(logits[best] - [value for _, value in reference["logits_after_prompt_top10"]]).max() <= LOGITS
    runner.reset()
    tokens = list(runner.generate(prompt, 40))
    assert tokens == reference["greedy_tokens"]
    assert tokenizer.decode(tokens) == reference["greedy_text"]


def check_long_run(runner, golden):
    tokens, ids, values = golden["tokens"], golden["top_ids"].astype(np.int64), golden["top_values"]
    prompt = int(golden["prompt_length"].reshape(-1)[0])
    chosen = []

    def check(first, logits):
        at = np.arange(first, first + len(logits))
        assert np.abs(np.take_along_axis(logits, ids[at], 1) - values[at]).max() <= LOGITS, f"from position {first}"
        peak = logits.max(1)
        whole = np.log(np.exp(logits - peak[:, None]).sum(1)) + peak  # every logit of the row counts here
        assert np.abs(whole - golden["logsumexp"][at]).max() <= LOGITS, f"from position {first}"
        chosen.append(int(logits[-1].argmax()))

    # Chunk by chunk: all logits of a large vocabulary at once would take gigabytes. Calls of 100 in 128 carry padding.
    for first in range(0, prompt, 100):
        check(first, runner.feed(tokens[first:min(first + 100, prompt)], [128], all_rows=True))
    for position in range(prompt, len(ids)):
        check(position, runner.feed(tokens[position:position + 1], [1], all_rows=True))
    # The end of the prompt gives the first greedy token; the last token's own logits point past the end of the reference.
    assert chosen[-len(tokens) + prompt - 1:-1] == tokens[prompt:].tolist()


@pytest.mark.parametrize("name", ["smollm2-135m"])
def test_the_command_line_streams_the_reference_text(bundles, name, tmp_path):
    reference = real_models.reference(name)
    run = [
        sys.executable, "-m", "transload.generate",
        str(bundles(name, "auto")), "--prompt", reference["prompt"], "--max-new-tokens", "40"
    ]
    plain = subprocess.run([*run, "--stats", "--dump-inputs", str(tmp_path / "dump")],
                           capture_output=True,
                           text=True,
                           cwd=ROOT / "python")
    assert (plain.returncode, plain.stdout) == (0, reference["greedy_text"] + "\n"), plain.stderr
    assert "tokens/s" in plain.stderr and "peak memory" in plain.stderr and plain.stderr.count("\n") == 1
    assert (tmp_path / "dump" / "input_names.txt").read_text().split()[:2] == ["x", "cos_full"]
    summary = json.loads(
        subprocess.run([*run[:-1], "9", "--json"], capture_output=True, text=True, cwd=ROOT / "python", check=True).stdout)
    assert summary["tokens"] == reference["greedy_tokens"][:9] and reference["greedy_text"].startswith(summary["text"])
    assert summary["finish_reason"] == "length" and summary["tokens_per_second"] > 0 and summary["peak_memory_bytes"] > 1 << 20
