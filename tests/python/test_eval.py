# `transload eval`: likelihoods against the golden logits, from checkpoints and bundles; forms of input, chunks, refusals.
import json
import shutil

import numpy as np
import pytest

from golden import NAMES, Golden, write_tensors


def golden_nll(golden):
    logits = golden.logits.astype(np.float64)
    peak = logits.max(1, keepdims=True)
    whole = np.log(np.exp(logits - peak).sum(1)) + peak[:, 0]
    return whole - logits[np.arange(golden.read), golden.tokens[1:golden.read + 1]]


def evaluate(transload, path, ids, *options):
    result = transload("eval", path, "--ids", ids, "--json", *options)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.fixture
def ids(tmp_path):
    path = tmp_path / "ids.txt"
    path.write_text(" ".join(map(str, Golden("llama").tokens)))
    return path


@pytest.mark.parametrize("name", NAMES)
def test_checkpoint_and_bundle_give_the_likelihood_of_the_golden_logits(transload, export, tmp_path, name):
    golden = Golden(name)
    (tmp_path / "ids.txt").write_text(" ".join(map(str, golden.tokens)))
    expected = golden_nll(golden)
    bundle = export(golden.checkpoint, "--context", "32,64", "--q", "1,8")
    for kind, path in (("checkpoint", golden.checkpoint), ("bundle", bundle)):
        found = evaluate(transload, path, tmp_path / "ids.txt")
        assert (found["tokens"], found["predictions"], found["chunks"], found["kind"]) == (40, 39, 1, kind)
        assert found["mean_nll"] == pytest.approx(expected.mean(), abs=golden.tolerance)
        assert found["perplexity"] == pytest.approx(np.exp(found["mean_nll"]))
        assert found["nll_sum"] == pytest.approx(39 * found["mean_nll"])


def test_ids_come_from_text_json_or_safetensors(transload, ids, tmp_path):
    golden = Golden("llama")
    expected = evaluate(transload, golden.checkpoint, ids)["nll_sum"]
    (tmp_path / "ids.json").write_text(json.dumps(golden.tokens.tolist()))
    write_tensors(tmp_path / "ids.safetensors", {"tokens": golden.tokens.astype(np.int32)})
    for name in ("ids.json", "ids.safetensors"):
        assert evaluate(transload, golden.checkpoint, tmp_path / name)["nll_sum"] == expected


def test_chunks_begin_from_an_empty_cache(transload, ids, tmp_path):
    golden = Golden("llama")
    found = evaluate(transload, golden.checkpoint, ids, "--chunk", 16)
    total = 0.0
    for begin in (0, 16, 32):
        (tmp_path / "piece.txt").write_text(" ".join(map(str, golden.tokens[begin:begin + 16])))
        total += evaluate(transload, golden.checkpoint, tmp_path / "piece.txt")["nll_sum"]
    assert (found["chunks"], found["predictions"]) == (3, 37)
    assert found["nll_sum"] == pytest.approx(total, abs=1e-3)
    assert evaluate(transload, golden.checkpoint, ids, "--context", 16)["nll_sum"] == pytest.approx(total, abs=1e-3)


def test_a_bundle_cuts_at_its_largest_context(transload, export, ids):
    bundle = export(Golden("llama").checkpoint, "--context", "32,64", "--q", "1,8")
    assert evaluate(transload, bundle, ids, "--context", 32)["chunks"] == 2


def test_people_are_told_perplexity_tokens_and_time(transload, ids):
    result = transload("eval", Golden("llama").checkpoint, "--ids", ids)
    words = [line.split()[0] for line in result.stdout.splitlines()]
    assert (result.returncode, words) == (0, ["perplexity", "mean", "tokens", "time"])
    assert "40 in 1 chunk, 39 predicted" in result.stdout and " tokens/s, peak memory " in result.stdout
    assert result.stderr.startswith("reading 100 % 40 of 40 tokens, ") and result.stderr.count("\n") == 1
    assert transload("eval", Golden("llama").checkpoint, "--ids", ids, "--quiet").stderr == ""


@pytest.mark.parametrize("content, options, code, message", [
    ("", (), 2, "too few tokens: got 0, expected at least 2"),
    ("5", (), 2, "too few tokens: got 1"),
    ("5 320", (), 2, "token 1: id outside the vocabulary: got 320, expected 0 to 319"),
    ("5 x", (), 1, "ids.txt@2: got 'x', expected token ids"),
    ("5 6", ("--chunk", "1"), 2, "--chunk"),
    ("5 6", ("--chunk", "257"), 2, "tokens in a chunk: got 257, expected 2 to 256"),
    ("5 6", ("--context", "257"), 2, "context: got 257, expected at most 256"),
    (None, (), 1, "ids.txt: no such file or folder"),
])
def test_what_cannot_be_evaluated_is_one_clear_line(transload, tmp_path, content, options, code, message):
    if content is not None:
        (tmp_path / "ids.txt").write_text(content)
    result = transload("eval", Golden("llama").checkpoint, "--ids", tmp_path / "ids.txt", *options)
    assert (result.returncode, result.stdout) == (code, "") and message in result.stderr, result.stderr


def test_what_is_read_is_never_replaced(transload, tmp_path):
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(Golden("llama").checkpoint, checkpoint)
    ids = tmp_path / "ids.safetensors"
    shutil.copy(checkpoint / "golden.safetensors", ids)
    (tmp_path / "link").symlink_to(checkpoint)
    (tmp_path / "ids.link").symlink_to(ids)
    before = {p: p.stat().st_ino for p in tmp_path.rglob("*")}
    for save in (ids, tmp_path / "ids.link", f"{checkpoint}/../ids.safetensors", checkpoint / "model.safetensors", tmp_path / "link" / "new.safetensors"):
        result = transload("eval", checkpoint, "--ids", ids, "--save", save)
        assert (result.returncode, result.stdout) == (2, "") and "--save is or lies in what is read" in result.stderr, result.stderr
    assert {p: p.stat().st_ino for p in tmp_path.rglob("*")} == before
    assert transload("eval", checkpoint, "--ids", ids, "--save", tmp_path / "nll.safetensors").returncode == 0
