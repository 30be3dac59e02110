# Attacks on the command that once succeeded: numbers and choices of options, destinations, files that are none, text that steers a
# terminal, closed and full standard streams.
import json
import os
import shutil
import subprocess

import pytest

from conftest import command
from golden import FOLDER

SPARK, LLAMA, GEMMA = FOLDER / "spark", FOLDER / "llama", FOLDER / "gemma3"


def copy(checkpoint, to, **changes):
    """The checkpoint without its reference outputs, with other config fields."""
    shutil.copytree(checkpoint, to, ignore=shutil.ignore_patterns("golden*"))
    config = json.loads((to / "config.json").read_text())
    config.update(changes)
    (to / "config.json").write_text(json.dumps(config))
    return to


def refused(transload, tmp_path, checkpoint, code, words=(), *options):
    out = tmp_path / "out" / "bundle"
    out.parent.mkdir(exist_ok=True)
    result = transload("export", "onnx", checkpoint, "-o", out, *([] if "--context" in options else ["--context", 32]), "--quiet", *options)
    assert result.returncode == code, (result.returncode, result.stderr)
    assert list(out.parent.iterdir()) == [] and result.stdout == ""
    assert all(word in result.stderr for word in words), result.stderr
    assert all(character.isprintable() or character == "\n" for character in result.stderr), repr(result.stderr)
    return result.stderr


@pytest.mark.parametrize("option, value", [
    ("--q", value) for value in ("", ",", "1,,2", "1,2,", ",1", " 1", "1 ", "+4", "-1", "0x10", "010", "1.0", "1e3", "1;2", "4294967297", "1,1")
] + [("--context", "-1"), ("--context", "32,"), ("--context", "4294967328"), ("--context", "2000000000"), ("--opset", "0x12"), ("--opset", "022"),
     ("--opset", "+18"), ("--opset", "99999999999"), ("--workers", "01"), ("--workers", "0x1"), ("--workers", "257"), ("--config", ""),
     ("--linear", "0"), ("--linear", "2"), ("--linear", "dense"), ("--linear", ""), ("--logits", "1"), ("--cache-layout", "0"), ("--gelu", "3"),
     ("--inputs", "1"), ("--rope-width", "1")])
def test_option_values_are_plain_words_and_plain_decimal(transload, tmp_path, option, value):
    message = refused(transload, tmp_path, SPARK, 2, (), option, value)
    assert option.strip("-") in message or "given twice" in message or "query" in message


@pytest.mark.parametrize("option, value", [("--seed", "-1"), ("--seed", "18446744073709551616"), ("--seed", "010"), ("--seed", "1e3"),
                                           ("--shards", "0"), ("--shards", "0x2"), ("--dtype", "7"), ("--dtype", "fp8")])
def test_synth_takes_plain_decimal_and_names_too(transload, tmp_path, option, value):
    result = transload("synth", SPARK, "-o", tmp_path / "out", f"{option}={value}")
    assert result.returncode == 2 and list(tmp_path.iterdir()) == []
    assert all(c.isprintable() or c == "\n" for c in result.stderr), repr(result.stderr)


def test_a_list_option_does_not_swallow_the_checkpoint(transload, tmp_path):
    result = transload("export", "onnx", "--q", "1,8", "--context", "32", SPARK, "-o", tmp_path / "bundle", "--quiet")
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "bundle" / "step_q8_c32.onnx").is_file()
    assert transload("export", "onnx", SPARK, "-o", tmp_path / "second", "--q", "1", "8").returncode == 2


def test_empty_paths_are_usage_errors(transload, tmp_path):
    for arguments in (["export", "onnx", "", "-o", tmp_path / "x"], ["export", "onnx", SPARK, "-o", ""], ["inspect", ""]):
        result = transload(*arguments, cwd=tmp_path)
        assert result.returncode == 2 and "empty" in result.stderr, result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_current_folder_that_is_gone_is_an_error_of_the_system(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    script = f'cd "{gone}" && rmdir "{gone}" && exec "{command()}" export onnx "{SPARK}" -o x --context 32 --quiet'
    result = subprocess.run(["sh", "-c", script], capture_output=True, text=True)
    assert result.returncode == 5 and "internal" not in result.stderr, result.stderr


def test_what_a_run_reads_is_never_replaced(transload, tmp_path):
    blobs = copy(SPARK, tmp_path / "blobs")
    linked = tmp_path / "snapshot"
    linked.mkdir()
    for file in blobs.iterdir():
        (linked / file.name).symlink_to(file)
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(SPARK / "config.json", other)
    before = {p: p.lstat().st_ino for p in tmp_path.rglob("*")}
    for arguments in (["export", "onnx", linked, "-o", linked, "--context", 32], ["synth", blobs, "-o", blobs], ["synth", linked, "-o", linked],
                      ["export", "onnx", blobs, "-o", other, "--context", 32, "--config", other / "config.json"]):
        result = transload(*arguments, "--overwrite", "--quiet")
        assert result.returncode == 2, (arguments, result.stderr)
    assert {p: p.lstat().st_ino for p in tmp_path.rglob("*")} == before


@pytest.mark.parametrize("base, change, words", [
    (LLAMA, {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2, "mscale": 1e308, "mscale_all_dim": 1e-308}}, ["attention factor"]),
    (LLAMA, {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4, "factor": 2, "short_factor": [1e-300] * 8, "long_factor": [1] * 8}},
     ["frequency"]),
    (GEMMA, {"query_pre_attn_scalar": 1e-320}, ["query_pre_attn_scalar"]),
    (LLAMA, {"rope_parameters": {"rope_theta": 0}}, ["rope_theta", "got 0,"]),
])
def test_config_numbers_that_give_infinities_are_refused_once(transload, tmp_path, base, change, words):
    message = refused(transload, tmp_path, copy(base, tmp_path / "checkpoint", **change), 1, ["config.json", *words])
    assert message.count("\n") == 1


@pytest.mark.parametrize("text, words", [('{"a": 1e400}', ["config.json@", "number"]), ('{"a": [' + "1," * 5_000_000 + "1]}", ["config.json@", "values"])])
def test_config_text_beyond_the_limits(transload, tmp_path, text, words):
    folder = copy(SPARK, tmp_path / "checkpoint")
    (folder / "config.json").write_text(text)
    message = refused(transload, tmp_path, folder, 1, words)
    assert "json.exception" not in message


def test_side_files_that_are_there_but_no_files_are_not_passed_over(transload, tmp_path):
    folder = copy(SPARK, tmp_path / "checkpoint")
    (folder / "tokenizer.json").symlink_to("gone")
    refused(transload, tmp_path, folder, 1, ["tokenizer.json", "no such file"])
    (folder / "tokenizer.json").unlink()
    os.mkfifo(folder / "tokenizer.json")
    refused(transload, tmp_path, folder, 5, ["tokenizer.json", "a pipe"])
    (folder / "tokenizer.json").unlink()
    (folder / "generation_config.json").write_text("[]")
    refused(transload, tmp_path, folder, 1, ["generation_config.json", "array"])


def test_names_cannot_steer_the_terminal(transload, tmp_path):
    folder = copy(SPARK, tmp_path / "checkpoint", **{"\x1b[2Jevil\u009b31m\u202e\nfield": 1})
    refused(transload, tmp_path, folder, 4, ["\\x1b[2Jevil"])
    shown = transload("inspect", folder)
    assert shown.returncode == 0 and all(c.isprintable() or c == "\n" for c in shown.stdout)
    assert "unknown field   \\x1b[2Jevil" in shown.stdout


def test_a_lack_of_descriptors_leaves_nothing_behind(tmp_path):
    succeeded = 0
    for limit in range(5, 24):
        script = f'ulimit -n {limit}; exec "{command()}" export onnx "{SPARK}" -o "{tmp_path / str(limit)}" --context 32 --quiet'
        result = subprocess.run(["sh", "-c", script], capture_output=True, text=True)
        assert result.returncode in (0, 5), result.stderr
        succeeded += result.returncode == 0
        assert os.listdir(tmp_path) == ([str(limit)] if result.returncode == 0 else []), (limit, result.stderr)
        shutil.rmtree(tmp_path / str(limit), ignore_errors=True)
    assert 0 < succeeded < 19


def test_full_and_closed_standard_streams(tmp_path):
    def run(arguments, redirections):
        return subprocess.run(["sh", "-c", f'exec "{command()}" {arguments} {redirections}'], capture_output=True, text=True)

    full = run(f'inspect "{SPARK}"', "> /dev/full")
    assert full.returncode == 5 and "standard output" in full.stderr
    assert run("--help", "> /dev/full").returncode == 5
    export = f'export onnx "{SPARK}" --context 32'
    assert run(f'{export} -o "{tmp_path / "a"}"', "2> /dev/full").returncode == 0  # progress is no reason to fail
    assert run(f'{export} -o "{tmp_path / "b"}"', "0<&- 1>&- 2>&-").returncode == 0
    assert run(f'{export} -o "{tmp_path / "c"}"', "").returncode == 0
    for name in os.listdir(tmp_path / "c"):
        content = (tmp_path / "c" / name).read_bytes()
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes() == content, name
