# transload import trtllm: what it writes, byte for byte, read with nothing but the file format.
import json
import struct

import pytest


def tensors(path):
    raw = path.read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + length])
    header.pop("__metadata__", None)
    data = raw[8 + length :]
    return {name: (t["dtype"], t["shape"], data[slice(*t["data_offsets"])]) for name, t in header.items()}


def all_tensors(folder):
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        found.update(tensors(path))
    return found


@pytest.mark.parametrize(
    "case,options",
    [
        ("phi3-medium-4k", ("--tp", "4", "--pp", "2")),
        ("phi3-small-8k", ("--tp", "8", "--format", "0.12")),
        ("phi35-moe", ("--tp", "4", "--moe-ep", "2")),
        ("phi4-mini", ("--tp", "2",)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_gives_back_the_stored_tensors(transload, data, tmp_path, case, options):
    source = data / "trtllm" / case / "input"
    result = transload("export", "trtllm", source, "-o", tmp_path / "ranks", "--dtype", "bfloat16", "--quiet", *options)
    assert result.returncode == 0, result.stderr
    result = transload("import", "trtllm", tmp_path / "ranks", "-o", tmp_path / "model", "--shards", "2", "--json", "--quiet")
    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout)
    index = json.loads((tmp_path / "model" / "model.safetensors.index.json").read_text())
    before, after = all_tensors(source), all_tensors(tmp_path / "model")
    assert set(before) == set(after) == set(index["weight_map"])
    assert summary["tensors"] == len(after) and summary["shards"] == 2
    for name, (dtype, shape, raw) in before.items():
        if name.endswith("block_sparse_moe.gate.weight"):
            # The router stays in f32: bf16 values with 16 more zero bits.
            raw = b"".join(b"\0\0" + raw[i : i + 2] for i in range(0, len(raw), 2))
            dtype = "F32"
        assert after[name] == (dtype, shape, raw), name
    noted = [warning for warning in summary["warnings"] if "sliding window and the token ids" in warning]
    assert len(noted) == (0 if case == "phi3-small-8k" else 1)  # whose class has the ids by default and no window
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["torch_dtype"] == "bfloat16"
    assert config["architectures"] == json.loads((source / "config.json").read_text())["architectures"]


def test_dry_run_destination_and_layout(transload, data, tmp_path):
    source = data / "trtllm" / "phi3-mini-4k" / "input"
    options = ("--dtype", "float16", "--quant", "int4", "--form", "baked", "--layout", "sm80", "--quiet")
    assert transload("export", "trtllm", source, "-o", tmp_path / "ranks", *options).returncode == 0
    result = transload("import", "trtllm", tmp_path / "ranks", "-o", tmp_path / "model", "--dry-run")
    assert result.returncode == 0 and "would write" in result.stdout
    assert "int4 baked sm80" in result.stderr and "warning" not in result.stdout
    assert "sliding window and the token ids" in result.stderr
    assert not (tmp_path / "model").exists()
    assert transload("import", "trtllm", tmp_path / "ranks", "-o", tmp_path / "model", "--quiet").returncode == 0
    result = transload("import", "trtllm", tmp_path / "ranks", "-o", tmp_path / "model", "--quiet")
    assert result.returncode == 2, "the folder is there"
    assert transload("import", "trtllm", tmp_path / "ranks", "-o", tmp_path / "model", "--overwrite", "--quiet").returncode == 0
    (tmp_path / "ranks" / "rank0.manifest.json").unlink()
    result = transload("import", "trtllm", tmp_path / "ranks", "-o", tmp_path / "other")
    assert result.returncode == 2 and "--layout" in result.stderr
    assert not (tmp_path / "other").exists()
    result = transload("import", "trtllm", tmp_path / "none", "-o", tmp_path / "other")
    assert result.returncode == 1 and "config.json" in result.stderr
    assert transload("import", "trtllm", tmp_path / "ranks", "-o", tmp_path / "ranks", "--overwrite", "--layout", "sm80").returncode == 2
    assert transload("import").returncode == 2
