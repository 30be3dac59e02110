# tools/make_golden.py: finds the golden files of tests/data again where torch is installed; elsewhere says what is missing.
import importlib.util
import json
import subprocess
import sys

import numpy as np
import pytest

import golden
from conftest import ROOT
from transload.safetensors_file import read_tensors

SCRIPT = ROOT / "tools" / "make_golden.py"
MISSING = [name for name in ("torch", "transformers", "safetensors") if importlib.util.find_spec(name) is None]
needs_torch = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")


def run(*arguments, hidden=()):
    """The script in a process of its own, without the packages named in `hidden`."""
    program = ("import runpy, sys; hidden, *sys.argv = sys.argv[1:]; "
               "sys.modules.update({name: None for name in hidden.split(',') if name}); "
               "runpy.run_path(sys.argv[0], run_name='__main__')")
    return subprocess.run([sys.executable, "-c", program, ",".join(hidden), str(SCRIPT), *map(str, arguments)],
                          capture_output=True,
                          text=True)


def folder(name):
    return golden.FOLDER / name


def test_without_torch_it_says_so_in_one_line(tmp_path):
    result = run(folder("llama"), "-o", tmp_path / "golden.safetensors", hidden=("torch", "transformers", "safetensors"))
    assert result.returncode == 2
    assert result.stdout == "" and result.stderr.count("\n") == 1
    assert "got no torch, transformers, safetensors in" in result.stderr
    assert "pip install torch transformers safetensors" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments, message", [
    (["--prompt-length", "0"], "--prompt-length: got 0, expected 1 to 4096"),
    (["--new-tokens", "5000"], "--new-tokens: got 5000, expected 1 to 4096"),
    (["--dtype", "float16"], "invalid choice: 'float16'"),
])
def test_refuses_options_before_it_looks_for_torch(tmp_path, arguments, message):
    result = run(folder("llama"), "-o", tmp_path / "golden.safetensors", *arguments, hidden=("torch", ))
    assert result.returncode == 2 and message in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_refuses_what_is_no_checkpoint_and_files_that_exist(tmp_path):
    result = run(tmp_path, "-o", tmp_path / "golden.safetensors", hidden=("torch", ))
    assert result.returncode == 2 and "got no config.json here" in result.stderr
    for name in ("golden.safetensors", "about.json"):
        (tmp_path / name).write_text("mine")
        result = run(folder("llama"), "-o", tmp_path / "golden.safetensors", hidden=("torch", ))
        assert result.returncode == 2 and f"{name}: got a file that exists, expected none" in result.stderr
        assert (tmp_path / name).read_text() == "mine"
        (tmp_path / name).unlink()


@needs_torch
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3", "llama_tied_fp16"])
def test_finds_the_golden_files_again(tmp_path, name):
    expected = golden.Golden(name)
    output = tmp_path / "golden.safetensors"
    result = run(folder(name), "-o", output, "--prompt-ids", ",".join(map(str, expected.tokens[:expected.prompt])))
    assert result.returncode == 0, result.stderr
    assert {p.name for p in tmp_path.iterdir()} == {"golden.safetensors", "about.json"}
    made = read_tensors(output)
    reference = read_tensors(folder(name) / "golden.safetensors")
    assert made.keys() == reference.keys()
    assert np.array_equal(made["tokens"], reference["tokens"])
    for key, value in reference.items():
        assert made[key].dtype == value.dtype
        assert golden.worst(np.array(made[key]), np.array(value)) <= 1e-4, key
    about = json.loads((tmp_path / "about.json").read_text())
    numbers = about["goldens"]["golden.safetensors"]
    assert (numbers["prompt_len"], numbers["new_tokens"]) == (expected.prompt, 16)
    assert 2e-4 <= numbers["tolerance"]["fp32_max_abs_logits"] <= 2e-3
    assert numbers["stats"]["greedy_margin_min"] == pytest.approx(expected.margin, abs=1e-4)
    assert about["seed"] is None and {"torch", "transformers"} <= about["versions"].keys()


@needs_torch
def test_a_seed_gives_one_prompt(tmp_path):
    tokens = []
    for i, seed in enumerate((3, 3, 4)):
        path = tmp_path / str(i) / "golden.safetensors"
        path.parent.mkdir()
        result = run(folder("llama"), "-o", path, "--prompt-length", 9, "--seed", seed, "--new-tokens", 2)
        assert result.returncode == 0, result.stderr
        tokens.append(read_tensors(path)["tokens"].tolist())
        assert len(tokens[-1]) == 11
    assert tokens[0] == tokens[1] != tokens[2]


@needs_torch
def test_refuses_checkpoints_that_it_cannot_trust_or_load(tmp_path):
    copy = tmp_path / "model"
    copy.mkdir()
    for path in folder("llama").iterdir():
        if path.name != "golden.safetensors":
            (copy / path.name).write_bytes(path.read_bytes())
    config = json.loads((copy / "config.json").read_text())
    output = tmp_path / "golden.safetensors"
    code = {"auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}, "model_type": "own_kind"}
    (copy / "own.py").write_text("raise SystemExit('the code of the checkpoint ran')\n")
    for change, arguments, message in (
        (code, [], "brings Python code of its own, which is not run"),
        ({"model_type": "own_kind"}, [], "cannot load it"),
        ({"num_hidden_layers": 5}, [], "got no tensor for model.layers.4."),
        ({}, ["--prompt-ids", "1,320"], "--prompt-ids: got 320, expected an id below the vocabulary's 320"),
        ({}, ["--prompt-ids", "1,x"], "--prompt-ids: got '1,x', expected whole numbers"),
        ({}, ["--prompt-length", "250"], "got 266 positions, expected at most 256"),
    ):
        (copy / "config.json").write_text(json.dumps({**config, **change}))
        result = run(copy, "-o", output, *arguments)
        assert result.returncode == 2, result.stdout
        assert message in result.stderr and result.stderr.count("\n") == 1, result.stderr
        assert not output.exists()
