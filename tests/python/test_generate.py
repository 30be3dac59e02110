# The generate command line on a hand-made bundle: output, exit codes, and one clear line for each error.
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tiny_model import VOCAB, TinyModel, contract_of, write_bundle
from transload.generate import main

PROMPT = [5, 17, 3]


@pytest.fixture(scope="module")
def model():
    return TinyModel()


@pytest.fixture(scope="module")
def bundle(model, tmp_path_factory):
    return write_bundle(model, tmp_path_factory.mktemp("generate") / "bundle")


def greedy(model, count):
    tokens = list(PROMPT)
    for _ in range(count):
        tokens.append(int(np.argmax(model.forward(tokens)[0][-1])))
    return tokens[len(PROMPT):]


def run(capsys, *arguments):
    code = main([str(a) for a in arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_tokens_without_a_tokenizer(bundle, model, capsys):
    code, out, err = run(capsys, bundle, "--prompt-ids", "5,17,3", "--max-new-tokens", 6, "--ignore-eos", "--threads", 1)
    assert (code, out.split(), err) == (0, [str(t) for t in greedy(model, 6)], "")


def test_json_summary(bundle, model, capsys):
    code, out, _ = run(capsys, bundle, "--prompt-ids", "5, 17, 3", "--max-new-tokens", 6, "--ignore-eos", "--json")
    summary = json.loads(out)
    assert code == 0 and out.count("\n") == 1
    assert (summary["prompt_tokens"], summary["tokens"], summary["text"]) == (PROMPT, greedy(model, 6), None)
    assert (summary["finish_reason"], summary["context"]) == ("length", 32)
    assert all(summary[key] > 0
               for key in ("load_seconds", "prompt_seconds", "tokens_per_second", "peak_memory_bytes", "kv_bytes"))


def test_generation_ends_at_a_stop_token_and_when_the_context_is_full(bundle, model, tmp_path, capsys):
    expected = greedy(model, 30)
    contract = json.loads((bundle / "contract.json").read_text())
    stopping = write_bundle(model, tmp_path / "b")
    contract["eos_tokens"] = [expected[4]]
    (stopping / "contract.json").write_text(json.dumps(contract))
    code, out, _ = run(capsys, stopping, "--prompt-ids", "5,17,3", "--json")
    summary = json.loads(out)
    assert (code, summary["finish_reason"], summary["tokens"]) == (0, "stop", expected[:expected.index(expected[4])])
    code, out, err = run(capsys, bundle, "--prompt-ids", "5,17,3", "--ignore-eos", "--json")
    assert (code, json.loads(out)["finish_reason"], json.loads(out)["tokens"]) == (0, "context", expected)
    assert err == "context of 32 is full after 30 new tokens\n"


def test_sampling_with_a_seed_repeats(bundle, capsys):
    options = [
        bundle, "--prompt-ids", "1", "--max-new-tokens", 12, "--temperature", 40, "--top-k", 9, "--top-p", 0.95, "--ignore-eos"
    ]
    runs = [run(capsys, *options, "--seed", seed)[1] for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


def test_inputs_of_the_first_step_after_the_prompt_are_dumped(bundle, model, tmp_path, capsys):
    code, _, _ = run(capsys, bundle, "--prompt-ids", "5,17,3", "--max-new-tokens", 1, "--dump-inputs", tmp_path / "dump")
    assert code == 0
    assert (tmp_path / "dump" / "input_names.txt").read_text().split()[0] == "x"
    x = np.load(tmp_path / "dump" / "x.npy")
    assert np.array_equal(x[0, 0], model.embedding[greedy(model, 1)[0]])
    mask = np.fromfile(tmp_path / "dump" / "mask_full.raw", np.float32)
    assert (mask == 0).sum() == len(PROMPT) + 1


@pytest.mark.parametrize("arguments, code, message", [
    (["BUNDLE"], 2, "--prompt"),
    (["BUNDLE", "--prompt", "a", "--prompt-ids", "1"], 2, "not allowed with"),
    (["BUNDLE", "--prompt", "a"], 2, "bundle has no tokenizer: got --prompt, expected --prompt-ids"),
    (["BUNDLE", "--prompt-ids", "a"], 2, "not a list of token ids: got 'a'"),
    (["BUNDLE", "--prompt-ids", "1,,2"], 2, "not a list of token ids"),
    (["BUNDLE", "--prompt-ids", str(VOCAB)], 2, f"token id outside the vocabulary: got {VOCAB}, expected 0 to {VOCAB - 1}"),
    (["BUNDLE", "--prompt-ids", "1", "--max-new-tokens", "0"], 2, "got '0', expected a number of at least 1"),
    (["BUNDLE", "--prompt-ids", "1", "--context", "33"], 2, "no graph for this context: got 33, expected one of 32"),
    (["BUNDLE", "--prompt-ids", ",".join(["1"] * 33)], 2, "tokens do not fit: got 33, expected at most 32"),
    (["BUNDLE", "--prompt-ids", "1", "--temperature", "-1"], 2, "got '-1', expected a number of at least 0"),
    (["BUNDLE", "--prompt-ids", "1", "--temperature", "nan"], 2, "got 'nan'"),
    (["BUNDLE", "--prompt-ids", "1", "--top-p", "1.5"], 2, "got '1.5', expected more than 0 and at most 1"),
    (["BUNDLE", "--prompt-ids", "1", "--nothing"], 2, "unrecognized arguments: --nothing"),
    (["/nowhere", "--prompt-ids", "1"], 1, "/nowhere/contract.json: not a bundle"),
    (["BUNDLE", "--prompt-ids", "1", "--dump-inputs", "/proc/nothing"], 5, "/proc/nothing"),
])
def test_errors_are_one_line_with_the_right_exit_code(bundle, capsys, arguments, code, message):
    got, out, err = run(capsys, *[bundle if a == "BUNDLE" else a for a in arguments])
    assert (got, out) == (code, ""), err
    assert err.startswith("error: ") and err.count("\n") == 1 and message in err


@pytest.mark.parametrize("change, message",
                         [(lambda c: c.update(version=9), "unknown version: got 9"),
                          (lambda c: c["steps"][0].update(file="gone.onnx"), "missing file"),
                          (lambda c: c.update(tokenizer="tokenizer.json"), "missing file: got no 'tokenizer.json'")])
def test_a_malformed_bundle_exits_with_one(model, tmp_path, capsys, change, message):
    bundle = write_bundle(model, tmp_path / "b")
    contract = contract_of(model)
    change(contract)
    (bundle / "contract.json").write_text(json.dumps(contract))
    code, out, err = run(capsys, bundle, "--prompt-ids", "1")
    assert (code, out) == (1, "") and message in err and err.count("\n") == 1


def test_the_module_runs_as_a_command(bundle):
    python = Path(__file__).resolve().parents[2] / "python"
    command = [sys.executable, "-m", "transload.generate"]
    shown = subprocess.run([*command, "--help"], cwd=python, capture_output=True, text=True)
    assert shown.returncode == 0 and "--prompt-ids" in shown.stdout and "--dump-inputs" in shown.stdout
    failed = subprocess.run([*command, "/nowhere", "--prompt-ids", "1"], cwd=python, capture_output=True, text=True)
    assert failed.returncode == 1 and failed.stderr.startswith("error: ") and "Traceback" not in failed.stderr
