# transload verify on TensorRT-LLM checkpoints: exit codes, options, reports, and faults made with nothing but the file format.
import json
import re
import struct

import pytest

CASES = ["phi3-mini-4k", "phi3-small-8k", "phi35-moe"]


@pytest.fixture(scope="module")
def folder(transload, data, tmp_path_factory):
    """folder(case, *options) -> exported ranks; one export for each set of options. Tests that edit make a copy."""
    done = {}

    def run(case, *options):
        if (case, *options) not in done:
            out = tmp_path_factory.mktemp("trtllm") / "ranks"
            result = transload("export", "trtllm", data / "trtllm" / case / "input", "-o", out, "--quiet", *options)
            assert result.returncode == 0, result.stderr
            done[(case, *options)] = out
        return done[(case, *options)]

    return run


def copy_of(folder, tmp_path, manifests=False):
    for file in folder.iterdir():
        if manifests or ".manifest." not in file.name:
            (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def place(path, name):
    raw = path.read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    begin, end = json.loads(raw[8 : 8 + length])[name]["data_offsets"]
    return raw, 8 + length + begin, 8 + length + end


def edit(path, name, change):
    raw, begin, end = place(path, name)
    path.write_bytes(raw[:begin] + change(raw[begin:end]) + raw[end:])


def test_passes_and_reports_what_was_compared(transload, data, folder):
    for case in CASES:
        ranks = folder(case, "--tp", "2", "--dtype", "float16")
        result = transload("verify", ranks, "--checkpoint", data / "trtllm" / case / "input", "--json", "--quiet")
        assert result.returncode == 0, result.stdout
        report = json.loads(result.stdout)
        assert report["passed"] and report["failure"] is None
        assert report["mapping"] == {"tp": 2, "pp": 1, "moe_ep": 1}
        assert report["tensors_compared"] > 0 and report["digests_checked"] > 0
        middle = "experts" if case == "phi35-moe" else "mlp"
        blocks = [(block["block"], block["layer"]) for block in report["blocks"]]
        assert blocks == [("attention", 0), (middle, 0), ("attention", 1), (middle, 1), ("lm_head", None)]
        assert all(block["relative"] <= block["allowed"] == 1e-5 for block in report["blocks"])


def test_without_a_checkpoint_only_digests_and_structure_are_verified(transload, folder, tmp_path):
    ranks = folder("phi3-mini-4k", "--tp", "2", "--dtype", "float16")
    result = transload("verify", ranks, "--quiet")
    assert result.returncode == 0
    assert "give --checkpoint" in result.stdout
    bad = copy_of(ranks, tmp_path, manifests=True)
    edit(bad / "rank1.safetensors", "lm_head.weight", lambda raw: bytes([raw[0] ^ 1]) + raw[1:])
    result = transload("verify", bad, "--quiet")
    assert result.returncode == 3
    _, begin, _ = place(bad / "rank1.safetensors", "lm_head.weight")
    assert f"verification failed: rank1.safetensors@{begin}: tensor 'lm_head.weight': digest: got" in result.stdout


def test_a_difference_is_exit_code_3_and_names_file_offset_and_values(transload, data, folder, tmp_path):
    checkpoint = data / "trtllm" / "phi3-mini-4k" / "input"
    (tmp_path / "ranks").mkdir()
    bad = copy_of(folder("phi3-mini-4k", "--tp", "2", "--dtype", "float16"), tmp_path / "ranks")
    name = "transformer.layers.1.mlp.fc.weight"
    edit(bad / "rank1.safetensors", name, lambda raw: raw[: 2 * 300] + struct.pack("<e", 0.75) + raw[2 * 301 :])
    _, begin, _ = place(bad / "rank1.safetensors", name)
    report = tmp_path / "report.json"
    result = transload("verify", bad, "--checkpoint", checkpoint, "--quiet", "--report", report)
    assert result.returncode == 3
    assert f"rank1.safetensors@{begin + 600}: tensor '{name}': element [2,44]: got 0.75, expected" in result.stdout
    assert json.loads(report.read_text())["failure"] in result.stdout


def test_another_checkpoint_is_found_by_its_config(transload, data, folder):
    ranks = folder("phi3-mini-4k", "--tp", "2", "--dtype", "float16")
    result = transload("verify", ranks, "--checkpoint", data / "trtllm" / "phi3-medium-4k" / "input", "--quiet")
    assert result.returncode == 3
    assert "config.json" in result.stdout and "field 'num_key_value_heads': got 8, expected 2" in result.stdout


def test_malformed_folders_are_exit_code_1_or_4(transload, folder, tmp_path):
    ranks = copy_of(folder("phi3-mini-4k", "--tp", "2", "--dtype", "float16"), tmp_path)
    config = json.loads((ranks / "config.json").read_text())
    (ranks / "rank1.safetensors").rename(ranks / "kept")
    result = transload("verify", ranks)
    assert result.returncode == 1 and "'rank1.safetensors' of 2" in result.stderr
    (ranks / "kept").rename(ranks / "rank1.safetensors")
    config["mapping"]["cp_size"] = 2
    (ranks / "config.json").write_text(json.dumps(config))
    result = transload("verify", ranks)
    assert result.returncode == 4 and "mapping.cp_size" in result.stderr


@pytest.mark.parametrize(
    "option",
    [("--steps", "2"), ("--tolerance", "0.1"), ("--prompt-ids", "1,2"), ("--prompt-length", "3"), ("--golden", "x")],
    ids=lambda option: option[0],
)
def test_options_of_graphs_are_usage_errors(transload, folder, option):
    ranks = folder("phi3-mini-4k", "--tp", "2", "--dtype", "float16")
    result = transload("verify", ranks, *option)
    assert result.returncode == 2
    assert option[0] in result.stderr


def test_layout_comes_from_the_manifest_or_the_option(transload, data, folder, tmp_path):
    checkpoint = data / "trtllm" / "phi3-mini-4k" / "input"
    ranks = folder("phi3-mini-4k", "--dtype", "float16", "--quant", "int8", "--form", "baked", "--layout", "sm80")
    result = transload("verify", ranks, "--checkpoint", checkpoint, "--json", "--quiet")
    report = json.loads(result.stdout)
    assert report["quantisation"] == "int8 baked sm80"
    assert 0.5 < report["worst_steps"] <= 1
    assert all(block["quantisation"] > block["relative"] for block in report["blocks"] if block["block"] != "lm_head")
    bare = copy_of(ranks, tmp_path)
    result = transload("verify", bare, "--checkpoint", checkpoint)
    assert result.returncode == 2 and "--layout" in result.stderr
    assert transload("verify", bare, "--checkpoint", checkpoint, "--layout", "sm80", "--quiet").returncode == 0
    assert transload("verify", bare, "--checkpoint", checkpoint, "--layout", "plain", "--quiet").returncode == 3


def test_a_report_that_is_no_json_is_a_sentence(transload, folder):
    result = transload("verify", folder("phi3-mini-4k", "--tp", "2", "--dtype", "float16"), "--report", "x.html")
    assert result.returncode == 2
    assert "a report of a TensorRT-LLM checkpoint is JSON: got 'x.html', expected a file that ends in .json" in result.stderr


def test_progress_stays_within_its_total(transload, data, folder):
    ranks = folder("phi3-mini-4k", "--tp", "2", "--dtype", "float16", "--quant", "int8", "--form", "baked", "--layout", "sm80")
    result = transload("verify", ranks, "--checkpoint", data / "trtllm" / "phi3-mini-4k" / "input")
    assert result.returncode == 0
    percents = [int(percent) for percent in re.findall(r"comparing +(\d+) %", result.stderr)]
    assert percents and max(percents) == percents[-1] == 100


def test_ranks_of_different_layouts_are_refused(transload, data, tmp_path):
    baked = ("--tp", "2", "--dtype", "float16", "--quant", "int8", "--form", "baked", "--quiet")
    for rank, layout in enumerate(["sm80", "sm90"]):
        out = tmp_path / "ranks" if rank == 0 else tmp_path / "other"
        source = data / "trtllm" / "phi3-mini-4k" / "input"
        assert transload("export", "trtllm", source, "-o", out, *baked, "--layout", layout, "--ranks", str(rank)).returncode == 0
    for file in (tmp_path / "other").glob("rank1.*"):
        file.rename(tmp_path / "ranks" / file.name)
    result = transload("verify", tmp_path / "ranks", "--quiet")
    assert result.returncode == 3
    for text in ("rank0.manifest.json", "rank1.manifest.json", "options.quant.layout"):
        assert text in result.stdout
    result = transload("import", "trtllm", tmp_path / "ranks", "-o", tmp_path / "model", "--quiet")
    assert result.returncode == 1 and "options.quant.layout" in result.stderr
    assert not (tmp_path / "model").exists()


def test_other_folders_are_told_apart(transload, data, tmp_path):
    source = data / "trtllm" / "phi3-mini-4k" / "input"
    result = transload("import", "trtllm", source, "-o", tmp_path / "model")
    assert result.returncode == 1
    assert len(result.stderr.strip().splitlines()) == 1 and "no TensorRT-LLM checkpoint" in result.stderr
    result = transload("verify", source)
    assert result.returncode == 1
    assert "no bundle" in result.stderr and "TensorRT-LLM" in result.stderr
