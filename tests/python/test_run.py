# `transload run` on golden checkpoints and bundles: tokens, ends, sampling, the line protocol, text, chat, and refusals.
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import conftest
import tiny_tokenizer
from golden import NAMES, Golden
from tiny_tokenizer import spelled
from transload.run import main

PYTHON = Path(__file__).resolve().parents[2] / "python"
CHAT = ("{{ bos_token }}{% for m in messages %}<{{ {'system': 9, 'user': 10, 'assistant': 12}[m.role] }}>{{ m.content }}<11>"
        "{% endfor %}"
        "{{ '<12>' if enable_thinking is defined and not enable_thinking else '<13>' }}")


def text(tokens):
    return " ".join(map(str, tokens))


@pytest.fixture(scope="module")
def llama():
    return Golden("llama")


@pytest.fixture(scope="module")
def bundle(llama, export):
    return export(llama.checkpoint, "--context", "32,64", "--q", "1,8")


@pytest.fixture(scope="module")
def talking(llama, tmp_path_factory):
    """The llama checkpoint with a tokenizer and a chat template."""
    folder = tmp_path_factory.mktemp("run") / "checkpoint"
    shutil.copytree(llama.checkpoint, folder)
    tiny_tokenizer.build(320).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHAT, "bos_token": "<0>"}))
    return folder


@pytest.fixture(scope="module")
def with_package():
    """Environment in which the command finds this Python and this package."""
    return {**os.environ, "TRANSLOAD_PYTHON": sys.executable, "PYTHONPATH": str(PYTHON)}


def parts(golden, new):
    prompt = golden.tokens[:golden.prompt].tolist()
    return prompt, golden.tokens[golden.prompt:golden.prompt + new].tolist()


@pytest.mark.parametrize("name", NAMES)
def test_checkpoint_and_bundle_give_the_golden_tokens(transload, export, name):
    golden = Golden(name)
    prompt, expected = parts(golden, 16)
    for path in (golden.checkpoint, export(golden.checkpoint, "--context", "32,64", "--q", "1,8")):
        options = ("--prompt-ids", ",".join(map(str, prompt)), "--max-new-tokens", 16, "--ignore-eos")
        result = transload("run", path, *options)
        assert (result.returncode, result.stdout, result.stderr) == (0, text(expected) + " \n", "")


def test_json_tells_tokens_speed_and_memory(transload, llama, bundle):
    prompt, expected = parts(llama, 16)
    for kind, path in (("checkpoint", llama.checkpoint), ("bundle", bundle)):
        result = transload("run", path, "--prompt-ids", text(prompt), "--max-new-tokens", 16, "--ignore-eos", "--json")
        summary = json.loads(result.stdout)
        assert result.stdout.count("\n") == 1 and result.stderr == ""
        assert (summary["prompt_tokens"], summary["tokens"], summary["finish_reason"]) == (prompt, expected, "length")
        assert (summary["kind"], summary["family"], summary["stop_token"]) == (kind, "llama", None)
        measured = ("prompt_seconds", "decode_seconds", "tokens_per_second", "prompt_tokens_per_second", "kv_bytes",
                    "weight_bytes", "peak_memory_bytes")
        assert all(summary[key] > 0 for key in measured)


def test_generation_ends_at_the_models_stop_tokens_and_at_those_asked_for(transload, llama, tmp_path):
    prompt, expected = parts(llama, 16)
    first = expected.index(expected[5])
    stopping = tmp_path / "checkpoint"
    shutil.copytree(llama.checkpoint, stopping)
    (stopping / "generation_config.json").write_text(json.dumps({"eos_token_id": [310, expected[5]]}))
    common = ("--prompt-ids", text(prompt), "--max-new-tokens", 16)
    for path, options in ((stopping, ()), (llama.checkpoint, ("--stop", f"311,{expected[5]}")),
                          (stopping, ("--ignore-eos", "--stop", expected[5]))):
        result = transload("run", path, *common, *options)
        assert result.stdout == text(expected[:first]) + " \n"
        summary = json.loads(transload("run", path, *common, *options, "--json").stdout)
        assert (summary["tokens"], summary["finish_reason"], summary["stop_token"]) == (expected[:first], "stop", expected[5])
    assert transload("run", stopping, *common, "--ignore-eos").stdout == text(expected) + " \n"


def test_generation_ends_when_the_context_is_full(transload, llama, bundle):
    for path, options in ((bundle, ()), (llama.checkpoint, ("--context", 64))):
        result = transload("run", path, "--prompt-ids", "5 6 7", "--ignore-eos", *options)
        assert len(result.stdout.split()) == 62 and result.returncode == 0
        assert result.stderr == "context of 64 is full after 62 new tokens\n"
        assert transload("run", path, "--prompt-ids", "5 6 7", "--ignore-eos", "--quiet", *options).stderr == ""


def test_equal_seeds_give_equal_draws_for_checkpoint_and_bundle(transload, llama, bundle):

    def draw(path, *options):
        return transload("run", path, "--prompt-ids", "5", "--ignore-eos", "--max-new-tokens", 24, *options).stdout

    sampling = ("--temperature", "3", "--top-k", 40, "--top-p", "0.95", "--min-p", "0.01")
    drawn = draw(llama.checkpoint, *sampling, "--seed", 1)
    assert drawn == draw(llama.checkpoint, *sampling, "--seed", 1, "--threads", 1) == draw(bundle, *sampling, "--seed", 1)
    assert drawn != draw(llama.checkpoint, *sampling, "--seed", 2)
    greedy = draw(llama.checkpoint)
    assert draw(llama.checkpoint, "--temperature", "3", "--top-k", 1) == greedy != drawn
    assert draw(llama.checkpoint, "--temperature", "3", "--min-p", "1") == greedy


def test_lines_of_ids_continue_each_other_until_a_reset(transload, llama, bundle):
    prompt, expected = parts(llama, 8)
    # The last token of a reply is not read: the next line has to begin with it.
    lines = [text(prompt), text(expected[3:4]), "reset", text(prompt), "", text(prompt)]
    for path in (llama.checkpoint, bundle):
        result = transload("run", path, "--prompt-ids", "-", "--max-new-tokens", 4, "--ignore-eos", input="\n".join(lines))
        assert result.returncode == 0, result.stderr
        replies = [[int(token) for token in line.split()] for line in result.stdout.splitlines()]
        assert replies == [expected[:4], expected[4:8], expected[:4], expected[:4]]


def test_each_reply_is_out_before_the_next_line_is_read(llama):
    command = [conftest.command(), "run", llama.checkpoint, "--prompt-ids", "-", "--max-new-tokens", "3", "--json"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        for line in ("5 6 7", "8"):
            process.stdin.write(line + "\n")
            process.stdin.flush()
            tokens = process.stdout.readline().split()
            summary = json.loads(process.stdout.readline())
            assert [int(token) for token in tokens] == summary["tokens"]
            assert summary["prompt_tokens"] == [int(token) for token in line.split()]
        process.stdin.close()
        assert process.stdout.read() == "" and process.wait() == 0


def test_speed_is_told_on_standard_error(transload, llama):
    result = transload("run", llama.checkpoint, "--prompt-ids", "5 6", "--max-new-tokens", 3, "--ignore-eos", "--stats")
    assert re.fullmatch(
        r"load \d+\.\d\d s, prompt 2 tokens at [\d.]+ tokens/s, generated 3 at [\d.]+ tokens/s, KV cache .+, "
        r"weights .+B, peak memory .+B\n", result.stderr), result.stderr


IDS = ("--prompt-ids", "1")
REFUSALS = [
    ((), 2, "prompt: got 0 of --prompt-ids, --prompt and --chat, expected one"),
    (("--prompt-ids", "1", "--prompt", "a"), 2, "prompt: got 2 of"),
    (("--prompt-ids", "1,x"), 2, "token ids: got 'x', expected numbers such as 1,2,3"),
    (("--prompt-ids", "-5"), 2, "token ids: got '-5'"),
    (("--prompt-ids", ""), 2, "prompt is empty: got 0 tokens, expected at least 1"),
    (("--prompt-ids", " ,"), 2, "prompt is empty"),
    (("--prompt-ids", "320"), 2, "token id outside the vocabulary: got 320, expected 0 to 319"),
    (("--prompt-ids", "99999999999"), 2, "token ids: got '99999999999'"),
    (("--prompt-ids", " ".join(["1"] * 65), "--context", "64"), 2, "tokens do not fit: got 65, expected at most 64"),
    ((*IDS, "--temperature", "-1"), 2, "sampling option 'temperature': got -1, expected a number of at least 0"),
    ((*IDS, "--temperature", "nan"), 2, "'temperature': got nan"),
    ((*IDS, "--top-p", "0"), 2, "'top_p': got 0, expected more than 0 and at most 1"),
    ((*IDS, "--min-p", "1.5"), 2, "'min_p': got 1.5, expected 0 to 1"),
    ((*IDS, "--top-k", "0"), 2, "--top-k"),
    ((*IDS, "--max-new-tokens", "0"), 2, "--max-new-tokens"),
    ((*IDS, "--seed", "-1"), 2, "got '-1', expected a whole number"),
    ((*IDS, "--stop", "a"), 2, "token ids: got 'a'"),
    ((*IDS, "--system", "a"), 2, "--system applies to --chat"),
    ((*IDS, "--tokenizer", "a"), 2, "--tokenizer applies to --prompt and --chat"),
    (("--prompt", "a", "--no-thinking"), 2, "--no-thinking applies to --chat"),
    ((*IDS, "--temperature", "hot"), 2, "--temperature: got 'hot', expected a number"),
    ((*IDS, "--top-p", "0.5x"), 2, "--top-p: got '0.5x', expected a number"),
    ((*IDS, "--min-p", ""), 2, "--min-p: got '', expected a number"),
    ((*IDS, "--top-logits", "2"), 2, "--top-logits applies to --prompt-ids with --json"),
    (("--prompt", "a", "--json", "--top-logits", "2"), 2, "--top-logits applies to --prompt-ids with --json"),
]


@pytest.mark.parametrize("options, code, message", REFUSALS)
def test_what_cannot_be_done_is_one_clear_line(transload, llama, options, code, message):
    result = transload("run", llama.checkpoint, *options)
    assert (result.returncode, result.stdout) == (code, "")
    said = result.stderr.replace("Run 'transload run --help' for more information.\n", "")
    assert message in said and said.count("\n") == 1


@pytest.mark.parametrize("options, message", [
    (("--context", "48"), "48"),
    (("--config", "config.json"), "config of a bundle"),
    (("--prompt-ids", text([1] * 65)), "tokens do not fit: got 65, expected at most 64"),
])
def test_a_bundle_refuses_what_it_has_no_graph_for(transload, bundle, options, message):
    options = options if "--prompt-ids" in options else (*IDS, *options)
    result = transload("run", bundle, *options)
    assert (result.returncode, result.stdout) == (2, "") and message in result.stderr


@pytest.mark.parametrize("words", [("inspect", ), ("kv", "--context", 16), ("export", "onnx", "-o", "never-written")])
def test_a_bundle_where_a_checkpoint_is_wanted_is_one_clear_line(transload, bundle, words):
    result = transload(*words, bundle)
    assert (result.returncode, result.stdout) == (1, "")
    assert f"{bundle}: an exported bundle, no checkpoint: got 'contract.json'" in result.stderr and result.stderr.count("\n") == 1


@pytest.mark.parametrize("line, code, message", [
    (b"\x1b[2Jx\xff\n", 2, "token ids: got '\\x1b[2Jx\\xff', expected numbers"),
    (b"\0" * 99, 2, "token ids: got '" + "\\x00" * 40 + "...', expected numbers"),
    (b"1 " * ((32 << 20) + 1), 2, "line of standard input: got no end, expected one within 67108864 bytes"),
])
def test_lines_that_are_no_prompt_are_refused_in_plain_characters(llama, line, code, message):
    result = subprocess.run([conftest.command(), "run", llama.checkpoint, "--prompt-ids", "-"], input=line, capture_output=True)
    assert (result.returncode, result.stdout) == (code, b"")
    assert message in result.stderr.decode() and result.stderr.count(b"\n") == 1


# Several times, since with many threads two may meet the lost page at once: still one line.
@pytest.mark.parametrize("attempt", range(8))
@pytest.mark.parametrize("kind, file", [("checkpoint", "model.safetensors"), ("bundle", "weights.bin")])
def test_a_file_that_shrinks_while_it_is_mapped_is_one_clear_line(llama, bundle, tmp_path, kind, file, attempt):
    path = shutil.copytree(bundle if kind == "bundle" else llama.checkpoint, tmp_path / kind)
    command = [
        conftest.command(), "run", path, "--prompt-ids", "-", "--max-new-tokens", "2", "--ignore-eos", "--threads", "8"
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdin.write(b"5\n")
        process.stdin.flush()
        assert process.stdout.readline()
        os.truncate(path / file, 0)
        _, errors = process.communicate(b"6\n", timeout=60)
    assert (process.returncode, errors) == (5, b"transload: cannot read a mapped file: it shrank while it was read, or its disk failed\n")


def test_standard_input_that_cannot_be_read_is_an_error_of_the_system(llama, tmp_path):
    folder = os.open(tmp_path, os.O_RDONLY)
    result = subprocess.run([conftest.command(), "run", llama.checkpoint, "--prompt-ids", "-"], stdin=folder, capture_output=True, text=True)
    os.close(folder)
    assert (result.returncode, result.stderr) == (5, "transload: cannot read standard input\n")


def test_a_slice_and_a_missing_path_are_refused(transload, llama, export):
    result = transload("run", export(llama.checkpoint, "--context", 16, "--layers", "0:1"), *IDS)
    assert result.returncode == 2 and "expected the whole model" in result.stderr
    result = transload("run", "/nowhere/at/all", *IDS)
    assert result.returncode == 1 and "/nowhere/at/all" in result.stderr and result.stderr.count("\n") == 1


def test_a_bad_line_ends_the_command_after_the_replies_before_it(transload, llama):
    result = transload("run", llama.checkpoint, "--prompt-ids", "-", "--max-new-tokens", 2, "--ignore-eos", input="5\nfive\n6\n")
    assert (result.returncode, result.stdout.count("\n")) == (2, 1) and "got 'five'" in result.stderr


# Text.


def native(transload, checkpoint, prompt, *options):
    return json.loads(transload("run", checkpoint, "--prompt-ids", text(prompt), "--json", *options).stdout)["tokens"]


LIMITS = ("--max-new-tokens", 5, "--ignore-eos")


def test_text_is_tokenised_continued_and_spelled_as_it_arrives(transload, talking, with_package):
    expected = spelled(token for token in native(transload, talking, [20, 21, 22], *LIMITS) if token > 2)
    result = transload("run", talking, "--prompt", "<20><21><22>", *LIMITS, env=with_package)
    assert (result.returncode, result.stdout, result.stderr) == (0, expected + "\n", "")
    result = transload("run", talking, "--prompt", "<20><21><22>", *LIMITS, "--json", "--stats", env=with_package)
    summary = json.loads(result.stdout)
    assert (summary["text"], summary["prompt_tokens"], summary["kind"]) == (expected, [20, 21, 22], "checkpoint")
    speed = r"prompt 3 tokens at [\d.]+ tokens/s, generated 5 at [\d.]+ tokens/s, .+, peak memory \d+ MB\n"
    assert re.fullmatch(speed, result.stderr), result.stderr
    full = transload("run", talking, "--prompt", "<20>", "--context", 8, "--ignore-eos", env=with_package)
    assert full.stderr == "context is full after 8 new tokens\n"


def test_a_bundle_brings_its_tokenizer_and_template(transload, talking, export, with_package):
    bundle = export(talking, "--context", 64, "--q", "1,8")
    for options in (("--prompt", "<20><21>"), ("--chat", "<20>", "--system=<21>")):
        runs = [transload("run", path, *options, *LIMITS, "--json", env=with_package) for path in (talking, bundle)]
        of_checkpoint, of_bundle = (json.loads(run.stdout) for run in runs)
        assert of_checkpoint["tokens"] == of_bundle["tokens"] and of_checkpoint["text"] == of_bundle["text"]
        assert of_checkpoint["prompt_tokens"] == of_bundle["prompt_tokens"] and of_bundle["kind"] == "bundle"


@pytest.mark.parametrize("options, prompt", [
    (("--chat", "<20>"), [0, 10, 20, 11, 13]),
    (("--chat=<20>", "--no-thinking"), [0, 10, 20, 11, 12]),
    (("--chat", "<20>", "--thinking", "--system", "<21><22>"), [0, 9, 21, 22, 11, 10, 20, 11, 13]),
])
def test_a_message_is_answered_by_the_chat_template(transload, talking, with_package, options, prompt):
    result = transload("run", talking, *options, *LIMITS, "--json", env=with_package)
    summary = json.loads(result.stdout)
    assert summary["prompt_tokens"] == prompt
    assert summary["tokens"] == native(transload, talking, prompt, *LIMITS)


def test_a_conversation_keeps_what_was_read_and_answers_as_if_all_were_read_anew(transload, talking, with_package):
    result = transload("run", talking, "--chat", *LIMITS, "--json", env=with_package, input="<20>\n\n<21>\n/reset\n<20>\n")
    first, second, third = map(json.loads, result.stdout.splitlines())
    assert result.stderr == ""
    turn = [0, 10, 20, 11, 13]
    assert first["prompt_tokens"] == third["prompt_tokens"] == turn and first["tokens"] == third["tokens"]
    # The answer is closed by the template, which writes <12> before it where the prompt ended in <13>.
    whole = [0, 10, 20, 11, 12, *first["tokens"], 11, 10, 21, 11, 13]
    assert second["prompt_tokens"] == whole and second["tokens"] == native(transload, talking, whole, *LIMITS)
    quick = transload("run", talking, "--chat", "--no-thinking", *LIMITS, "--json", env=with_package, input="<20>\n<21>\n")
    first, second = map(json.loads, quick.stdout.splitlines())
    assert second["prompt_tokens"] == [first["tokens"][-1], 11, 10, 21, 11, 12]  # only what is new
    whole = [0, 10, 20, 11, 12, *first["tokens"], 11, 10, 21, 11, 12]
    assert second["tokens"] == native(transload, talking, whole, *LIMITS)


def run_module(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize("options, code, message", [
    ((), 2, "one of the arguments --prompt --chat is required"),
    (("--prompt", "a", "--chat"), 2, "not allowed with"),
    (("--prompt", "a", "--system", "b"), 2, "--system applies to --chat"),
    (("--prompt", ""), 2, "prompt is empty"),
    (("--chat", "a", "--tokenizer", "/nowhere"), 1, "/nowhere: tokenizer does not load"),
    (("--prompt", "<1>", "--command", "/nowhere"), 2, "/nowhere: no command here: got --command"),
])
def test_the_module_refuses_in_one_line(talking, capsys, monkeypatch, options, code, message):
    monkeypatch.setenv("TRANSLOAD", str(conftest.command()))
    got, out, err = run_module(capsys, talking, *options)
    assert (got, out) == (code, "") and err.startswith("error: ") and message in err and err.count("\n") == 1


def test_without_tokenizer_or_template_text_is_refused(llama, talking, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TRANSLOAD", str(conftest.command()))
    code, _, err = run_module(capsys, llama.checkpoint, "--prompt", "a")
    assert code == 2 and "no tokenizer: got neither tokenizer.json nor tokenizer.gguf" in err
    shutil.copytree(talking, tmp_path / "c")
    (tmp_path / "c" / "tokenizer_config.json").unlink()
    code, _, err = run_module(capsys, tmp_path / "c", "--chat", "a")
    assert code == 2 and "no chat template" in err
    code, _, err = run_module(capsys, "/nowhere", "--prompt", "a")
    assert code == 1 and "/nowhere: no such file or folder" in err  # as the native command says of ids


def test_errors_of_the_command_keep_their_exit_code(talking, capfd, monkeypatch):
    monkeypatch.setenv("TRANSLOAD", str(conftest.command()))
    code = main([str(talking), "--prompt", "<20>", "--temperature=-1"])
    out, err = capfd.readouterr()
    assert (code, out) == (2, "") and err == "transload: sampling option 'temperature': got -1, expected a number of at least 0\n"


def test_a_python_without_the_package_is_explained_in_one_line(transload, talking, tmp_path):
    empty = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    missing = transload("run", talking, "--prompt", "a", env={**empty, "TRANSLOAD_PYTHON": str(tmp_path / "python")})
    assert missing.returncode == 5 and missing.stderr.count("\n") == 1
    assert f"cannot start '{tmp_path / 'python'}': No such file or directory" in missing.stderr
    wrapper = tmp_path / "bare"
    wrapper.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    wrapper.chmod(0o755)
    bare = transload("run", talking, "--prompt", "a", env={**empty, "TRANSLOAD_PYTHON": str(wrapper)}, cwd=PYTHON)
    assert bare.returncode == 5 and bare.stderr.count("\n") == 1
    assert "text needs the Python package: got no module 'transload'" in bare.stderr


def test_generate_answers_a_message_too(talking, export, capsys, transload):
    from transload.generate import main as generate
    bundle = export(talking, "--context", 64, "--q", "1,8")
    assert generate([str(bundle), "--chat", "<20>", "--no-thinking", "--max-new-tokens", "5", "--ignore-eos", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["prompt_tokens"] == [0, 10, 20, 11, 12]
    assert summary["tokens"] == native(transload, talking, summary["prompt_tokens"], *LIMITS)
    assert generate([str(bundle), "--prompt", "<20>", "--system", "a"]) == 2
    assert "--system applies to --chat" in capsys.readouterr().err
