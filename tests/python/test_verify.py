# transload verify and export --verify as a user meets them: verdict, exit code, reports, what is refused.
import json
import re

import pytest

import mutations as m
from golden import FOLDER, Golden

SPARK = FOLDER / "spark"
golden = Golden("spark")


@pytest.fixture(scope="module")
def bundle(export):
    return export(SPARK, "--context", 48, "--q", "1,8")


def test_a_good_bundle_passes_and_the_text_states_what_was_proved(transload, bundle):
    result = transload("verify", bundle, "--checkpoint", SPARK)
    assert result.returncode == 0
    assert re.search(r"memory: about [\d.]+ MB \(checkpoint ", result.stderr)
    for part in ("weights f32, compute f32: relative error at most", "2 of 2 graphs run", "a window was crossed",
                 "verification passed: the graphs compute what the checkpoint computes"):
        assert part in result.stdout
    assert transload("verify", bundle, "--checkpoint", SPARK, "--quiet").stderr == ""


def test_without_a_checkpoint_it_says_so(transload, bundle):
    result = transload("verify", bundle, "--quiet")
    assert result.returncode == 0
    assert "digests and structure only: give --checkpoint to compare values" in result.stdout


def test_reports_are_written_whole_in_the_form_of_their_name(transload, bundle, tmp_path):
    for name in ("report.json", "report.html"):
        result = transload("verify", bundle, "--checkpoint", SPARK, "--golden", SPARK, "--report", tmp_path / name, "--quiet")
        assert result.returncode == 0, result.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["passed"] and len(report["layers"]) == 4 and report["golden_head"]["rows"] == golden.read
    page = (tmp_path / "report.html").read_text()
    assert page.startswith("<!DOCTYPE html>") and page.count("<svg viewBox=\"0 0 900 320\"") == 3
    assert not re.search(r"https?://|<script|<link|<img", page)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["report.html", "report.json"]
    result = transload("verify", bundle, "--report", tmp_path / "no" / "report.json", "--quiet")
    assert result.returncode == 5 and "report.json" in result.stderr and "verification passed" in result.stdout


@pytest.mark.parametrize("tokens", [["--prompt-ids", "5,9,200,3,3,17"], ["--tokens"], ["--prompt-length", "6"]])
def test_the_prompt_can_be_given(transload, bundle, tmp_path, tokens):
    if tokens == ["--tokens"]:
        (tmp_path / "ids.txt").write_text("5 9 200\n3, 3, 17")
        tokens = ["--tokens", tmp_path / "ids.txt"]
    result = transload("verify", bundle, "--checkpoint", SPARK, "--json", "--quiet", "--steps", 3, *tokens)
    report = json.loads(result.stdout)
    assert result.returncode == 0 and report["prompt_tokens"] == 6 and report["tokens"] >= 9


@pytest.mark.parametrize("arguments, text", [
    (["--report", "report.txt"], ".html or .json"), (["--tolerance", "0"], "above 0"), (["--tolerance", "lots"], "above 0"),
    (["--prompt-ids", "1,x"], "whole numbers"), (["--prompt-ids", "1", "--prompt-length", "2"], "excludes"),
    (["--prompt-ids", "", "--checkpoint", str(SPARK)], "whole numbers"),
    (["--steps", "100", "--checkpoint", str(SPARK)], "exceed what the bundle holds"), (["--prompt-length", "4"], "--checkpoint")
])
def test_what_cannot_be_done_is_usage(transload, bundle, arguments, text):
    result = transload("verify", bundle, *arguments, "--quiet")
    assert result.returncode == 2 and text in result.stderr and result.stdout == ""


def test_a_token_file_without_tokens_is_no_reason_to_choose_others(transload, bundle, tmp_path):
    empty = tmp_path / "empty.txt"
    empty.write_text("\n")
    result = transload("verify", bundle, "--checkpoint", SPARK, "--tokens", empty, "--quiet")
    assert result.returncode == 2 and "empty.txt" in result.stderr and "got 0 tokens" in result.stderr


def test_a_report_never_replaces_what_is_verified(transload, bundle, tmp_path):
    contract = (bundle / "contract.json").read_bytes()
    for report in (bundle / "contract.json", bundle / "new.html", SPARK / "config.json"):
        result = transload("verify", bundle, "--checkpoint", SPARK, "--report", report, "--quiet")
        assert result.returncode == 2 and "--report" in result.stderr
    assert (bundle / "contract.json").read_bytes() == contract and not (bundle / "new.html").exists()


def test_what_is_no_bundle_is_refused(transload, tmp_path):
    for path in (tmp_path, tmp_path / "nothing", SPARK / "config.json"):
        result = transload("verify", path)
        assert result.returncode == 1 and "manifest.json" in result.stderr and "no bundle" in result.stderr
        assert result.stdout == ""


def test_export_verifies_what_it_wrote(transload, tmp_path):
    result = transload("export", "onnx", SPARK, "-o", tmp_path / "out", "--context", 32, "--verify", "--quiet")
    assert result.returncode == 0 and "verification passed" in result.stdout
    result = transload("export", "onnx", SPARK, "-o", tmp_path / "json", "--context", 32, "--verify", "--quiet", "--json")
    both = json.loads(result.stdout)
    assert both["verify"]["passed"] and both["export"]["family"] == "spark"
    assert transload("export", "onnx", SPARK, "-o", tmp_path / "dry", "--verify", "--dry-run").returncode == 2


def test_export_leaves_a_bundle_that_fails_where_it_is_and_says_so(transload, tmp_path):
    out = tmp_path / "out"
    result = transload("export", "onnx", SPARK, "-o", out, "--context", 32, "--gelu", "sigmoid", "--verify", "--quiet")
    assert result.returncode == 3 and "layers_0_mlp_act" in result.stdout and "--gelu sigmoid" in result.stdout
    assert f"the bundle was left in '{out}'" in result.stderr
    assert (out / "manifest.json").is_file()


def test_a_given_tolerance_replaces_the_default(transload, bundle, tmp_path):
    broken = m.Bundle(bundle, tmp_path / "bundle")
    m.scaled_inline("layers_1_mlp_norm_weight", 1.001)(broken)
    broken.refresh_digests()
    assert transload("verify", broken.folder, "--checkpoint", SPARK, "--quiet").returncode == 3
    result = transload("verify", broken.folder, "--checkpoint", SPARK, "--quiet", "--tolerance", "0.05")
    assert result.returncode == 0 and "at most 5.0e-02" in result.stdout
