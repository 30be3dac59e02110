# The command as a user meets it: help, exit codes, a clear line for each malformed input, nothing left behind, equal bytes.
import hashlib
import json
import os
import re
import shutil
import struct
import subprocess

import numpy as np
import pytest

from conftest import command
from golden import FOLDER, write_tensors
from terminal import shown_on_terminal
from transload.safetensors_file import read_tensors

SPARK, SHARDS, LLAMA = FOLDER / "spark", FOLDER / "spark_3shard_fp32", FOLDER / "llama"
GGUF = FOLDER / "llama_gguf_q8_0" / "model.gguf"
ROOT = FOLDER.parents[2]


def copy(checkpoint, to):
    """The checkpoint without its reference outputs, which are safetensors too."""
    return shutil.copytree(checkpoint, to, ignore=shutil.ignore_patterns("golden*"))


def digests(folder):
    return {
        p.relative_to(folder).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(folder.rglob("*")) if p.is_file()
    }


def refused(transload, checkpoint, tmp_path, *options):
    """Runs an export that must fail; checks what every failure shares and returns (exit code, message)."""
    out = tmp_path / "out" / "bundle"
    out.parent.mkdir(exist_ok=True)
    result = transload("export", "onnx", checkpoint, "-o", out, "--context", 32, "--quiet", *options)
    assert result.returncode != 0, result.stdout
    assert list(out.parent.iterdir()) == [], "something was left behind"
    assert result.stdout == ""
    assert result.stderr.startswith("transload: ") and result.stderr.endswith("\n"), result.stderr
    return result.returncode, result.stderr


def test_version_is_the_one_of_the_header_and_of_the_package(transload):
    version = re.search(r'TRANSLOAD_VERSION "(.*)"', (ROOT / "include" / "transload" / "version.h").read_text())[1]
    import transload as package
    assert package.__version__ == version
    result = transload("--version")
    assert (result.returncode, result.stdout) == (0, f"transload {version}\n")


def test_help_names_every_command_option_and_exit_code(transload):
    top = transload("--help")
    assert top.returncode == 0 and all(word in top.stdout for word in ("export", "inspect", "synth", "Exit codes"))
    options = transload("export", "onnx", "--help")
    assert options.returncode == 0
    for option in ("--config", "--context", "--q", "--cache-layout", "--gelu", "--layers", "--no-head", "--logits", "--inputs",
                   "--linear", "--rope-width", "--weights", "--compute", "--opset", "--workers", "--overwrite", "--strict",
                   "--json", "--dry-run", "--explain", "-o,--output"):
        assert option in options.stdout, option
    for command in (["inspect"], ["synth"]):
        assert transload(*command, "--help").returncode == 0
    assert all(len(line) <= 160 for text in (top.stdout, options.stdout) for line in text.splitlines())


@pytest.mark.parametrize("arguments",
                         [[], ["nothing"], ["export"], ["export", "onnx"], ["export", "onnx", str(SPARK)], ["inspect"], ["synth"],
                          ["--nothing"], ["inspect", str(SPARK), "extra"]])
def test_wrong_usage_exits_with_two(transload, arguments):
    result = transload(*arguments)
    assert result.returncode == 2 and result.stdout == "" and result.stderr


@pytest.mark.parametrize("checkpoint, options, words", [
    (SPARK, ["--q", "0"], ["0"]),
    (SPARK, ["--q", "x"], ["x"]),
    (SPARK, ["--context", "0"], ["0"]),
    (SPARK, ["--opset", "16"], ["16"]),
    (SPARK, ["--opset", "24"], ["24"]),
    (SPARK, ["--cache-layout", "stack"], ["stack"]),
    (SPARK, ["--layers", "3:3"], ["3:3"]),
    (SPARK, ["--layers", "0:5"], ["5"]),
    (SPARK, ["--layers", "a:b"], ["a:b"]),
    (SPARK, ["--layers", "4:5"], ["4"]),
    (SPARK, ["--weights", "int8"], ["int8"]),
    (SPARK, ["--compute", "fp16", "--weights", "fp32"], ["f16", "f32"]),
    (SPARK, ["--workers", "0"], ["0"]),
    (LLAMA, ["--layers", "sliding"], ["sliding"]),
    (LLAMA, ["--gelu", "tanh"], ["gelu"]),
    (LLAMA, ["--context", "257"], ["257", "256"]),
    (SPARK, ["--no-head", "--logits", "last"], ["logits", "head"]),
    (SPARK, ["--layers", "1:2", "--inputs", "ids"], ["ids"]),
    (LLAMA, ["--cache-layout", "roll"], []),
])
def test_options_that_cannot_be_honoured(transload, tmp_path, checkpoint, options, words):
    out = tmp_path / "out"
    result = transload("export", "onnx", checkpoint, "-o", out, *([] if "--context" in options else ["--context", 32]), *options)
    if not words:  # a layout says how sliding layers are kept: without any it changes nothing
        assert result.returncode == 0
        return
    assert result.returncode == 2, result.stderr
    assert not out.exists() and all(word.lower() in result.stderr.lower() for word in words), result.stderr


# ---------------------------------------------------------------------------------------------- malformed checkpoints


def header_of(path):
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    return json.loads(data[8:8 + size]), data[8 + size:]


def write_header(path, header, body):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)


def edit_header(edit):

    def apply(folder):
        header, body = header_of(folder / "model.safetensors")
        edited = edit(header)
        write_header(folder / "model.safetensors", header if edited is None else edited, body)

    return apply


def edit_bytes(edit, name="model.safetensors"):

    def apply(folder):
        (folder / name).write_bytes(edit((folder / name).read_bytes()))

    return apply


def edit_config(**changes):

    def apply(folder):
        config = json.loads((folder / "config.json").read_text())
        for key, value in changes.items():
            config.pop(key, None) if value is ... else config.__setitem__(key, value)
        (folder / "config.json").write_text(json.dumps(config))

    return apply


def write_config(text):
    return lambda folder: (folder / "config.json").write_text(text)


def edit_index(edit):

    def apply(folder):
        index = json.loads((folder / "model.safetensors.index.json").read_text())
        edit(index)
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))

    return apply


UP = "model.layers.1.mlp.up_proj.weight"


def _offsets(first, last):

    def edit(header):
        begin, end = header[UP]["data_offsets"]
        header[UP]["data_offsets"] = [begin + first, end + last]

    return edit


def _entry(**changes):
    return edit_header(lambda header: header[UP].update(changes))


def _duplicate_name(header):
    return json.dumps(header).encode()[:-1] + b"," + json.dumps({UP: header[UP]}).encode()[1:]


def _two_shards(folder):
    first, second = (folder / f"model-0000{i}-of-00003.safetensors" for i in (1, 2))
    tensors = {name: np.array(value) for name, value in read_tensors(second).items()}
    tensors.update({name: np.array(value) for name, value in list(read_tensors(first).items())[:1]})
    write_tensors(second, tensors)


# case: (base folder, what breaks it, exit code, words of the message)
MALFORMED = {
    "empty file": (SPARK, edit_bytes(lambda b: b""), 1, ["model.safetensors"]),
    "five bytes": (SPARK, edit_bytes(lambda b: b[:5]), 1, ["model.safetensors", "5"]),
    "header length past the end": (SPARK, edit_bytes(lambda b: struct.pack("<Q", len(b)) + b[8:]), 1,
                                   ["model.safetensors@0", "header"]),
    "header length near 2^64": (SPARK, edit_bytes(lambda b: b"\xff" * 8 + b[8:]), 1,
                                ["model.safetensors@0", "18446744073709551615"]),
    "truncated data": (SPARK, edit_bytes(lambda b: b[:-100]), 1, ["model.safetensors@", "tensor '", "end"]),
    "trailing bytes": (SPARK, edit_bytes(lambda b: b + bytes(10)), 1, ["model.safetensors@"]),
    "header is not JSON": (SPARK, edit_header(lambda h: b"{" * 20), 1, ["model.safetensors@"]),
    "header is not UTF-8": (SPARK, edit_header(lambda h: b'{"\xff": 1}'), 1, ["model.safetensors@"]),
    "header nested too deep": (SPARK, edit_header(lambda h: b'{"a":' * 100000), 1, ["model.safetensors@", "nest"]),
    "duplicate tensor name": (SPARK, edit_header(_duplicate_name), 1, ["model.safetensors@", UP]),
    "overlapping offsets": (SPARK, edit_header(_offsets(-64, -64)), 1, ["model.safetensors@", "tensor '"]),
    "hole between tensors": (SPARK, edit_header(_offsets(2, 2)), 1, ["model.safetensors@", "tensor '"]),
    "negative offset": (SPARK, _entry(data_offsets=[-8, 8]), 1, ["model.safetensors@", UP, "-8"]),
    "offsets out of order": (SPARK, _entry(data_offsets=[200, 100]), 1, ["model.safetensors@", UP]),
    "offset past 2^64": (SPARK, _entry(data_offsets=[0, 10**30]), 1, ["model.safetensors@", UP]),
    "offset is text": (SPARK, _entry(data_offsets=["0", "8"]), 1, ["model.safetensors@", UP]),
    "shape times dtype past 2^64": (SPARK, _entry(shape=[1 << 40, 1 << 40]), 1, ["model.safetensors@", UP]),
    "negative dimension": (SPARK, _entry(shape=[-1, 64]), 1, ["model.safetensors@", UP, "-1"]),
    "shape that does not fit the bytes": (SPARK, _entry(shape=[144, 63]), 1, ["model.safetensors@", UP, "18144", "18432"]),
    "unknown dtype": (SPARK, _entry(dtype="F3"), 4, ["model.safetensors@", UP, "F3"]),
    "no shape": (SPARK, edit_header(lambda h: h[UP].pop("shape") and None), 1, ["model.safetensors@", UP, "shape"]),
    "missing tensor": (SPARK, edit_header(lambda h: json.dumps({
        k + ("x" if k == UP else ""): v
        for k, v in h.items()
    }).encode()), 1, [UP]),
    "transposed tensor": (SPARK, _entry(shape=[64, 144]), 1, [UP, "[64,144]", "[144,64]"]),
    "no weights": (SPARK, lambda f: (f / "model.safetensors").unlink(), 1, ["safetensors"]),
    "no config": (SPARK, lambda f: (f / "config.json").unlink(), 1, ["config.json"]),
    "config is not JSON": (SPARK, write_config("{"), 1, ["config.json@"]),
    "config is a list": (SPARK, write_config("[]"), 1, ["config.json"]),
    "config with duplicate keys": (SPARK, write_config('{"hidden_size": 64, "hidden_size": 32}'), 1,
                                   ["config.json@", "hidden_size"]),
    "config nested too deep": (SPARK, write_config('{"a":' * 5000), 1, ["config.json@", "nest"]),
    "config without a field": (SPARK, edit_config(intermediate_size=...), 1, ["config.json", "intermediate_size"]),
    "config field of another type": (SPARK, edit_config(hidden_size="64"), 1, ["config.json", "hidden_size", "64"]),
    "negative size": (SPARK, edit_config(hidden_size=-64), 1, ["config.json", "hidden_size", "-64"]),
    "absurd size": (SPARK, edit_config(intermediate_size=10**12), 1, ["config.json", "intermediate_size", "1000000000000"]),
    "heads that do not divide": (SPARK, edit_config(num_key_value_heads=5), 1, ["config.json", "num_key_value_heads", "5", "8"]),
    "layer types too short": (SPARK, edit_config(layer_types=["full_attention"]), 1, ["config.json", "layer_types"]),
    "unknown layer type": (SPARK, edit_config(layer_types=["linear_attention"] * 4), 4, ["config.json", "linear_attention"]),
    "window of zero": (SPARK, edit_config(sliding_window=0), 1, ["config.json", "sliding_window"]),
    "unknown field": (SPARK, edit_config(attention_temperature=2.0), 4, ["config.json", "attention_temperature"]),
    "unknown activation": (SPARK, edit_config(hidden_act="relu6"), 4, ["config.json", "hidden_act", "relu6"]),
    "unknown model": (SPARK, edit_config(model_type="nobody", architectures=["NobodyForCausalLM"]), 4, ["nobody"]),
    "dynamic rope": (LLAMA, edit_config(rope_parameters={
        "rope_type": "dynamic",
        "factor": 2.0,
        "rope_theta": 1e4
    }), 4, ["dynamic"]),
    "untied without a head": (SPARK, edit_config(tie_word_embeddings=False), 1, ["lm_head.weight"]),
    "index names a missing file": (SHARDS, edit_index(lambda i: i["weight_map"].update({UP: "gone.safetensors"})), 1,
                                   ["gone.safetensors"]),
    "index leaves the folder": (SHARDS, edit_index(lambda i: i["weight_map"].update({UP: "../x"})), 1, ["index.json", "../x"]),
    "index names an absolute path": (SHARDS, edit_index(lambda i: i["weight_map"].update({UP: "/etc/passwd"})), 1,
                                     ["/etc/passwd"]),
    "index is not an object": (SHARDS, lambda f: (f / "model.safetensors.index.json").write_text("[]"), 1, ["index.json"]),
    "index names a tensor its file lacks": (
        SHARDS, edit_index(lambda i: i["weight_map"].update({"ghost": "model-00001-of-00003.safetensors"})), 1, ["ghost"]),
    "tensor in two shards": (SHARDS, _two_shards, 1, ["tensor '", "model-0000"]),
    "missing shard": (SHARDS, lambda f:
                      (f / "model-00002-of-00003.safetensors").unlink(), 1, ["model-00002-of-00003.safetensors"]),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_checkpoints_give_one_clear_line(transload, tmp_path, case):
    base, breaks, code, words = MALFORMED[case]
    folder = copy(base, tmp_path / "checkpoint")
    breaks(folder)
    got, message = refused(transload, folder, tmp_path)
    assert got == code, message
    lines = [line for line in message.splitlines() if not line.startswith("  while ")]  # context may follow on its own lines
    assert len(lines) == 1 and len(message) < 1500, message
    for word in words:
        assert word in message, message


def gguf(version=3, tensors=0, pairs=0, body=b""):
    return b"GGUF" + struct.pack("<IQQ", version, tensors, pairs) + body


def _text(value):
    return struct.pack("<Q", len(value)) + value


def _replace(old, new):

    def edit(data):
        assert data.count(old) >= 1 and len(old) == len(new)
        return data.replace(old, new, 1)

    return edit


MALFORMED_GGUF = {
    "wrong magic": (lambda b: b"GGML" + b[4:], 1, ["@0"]),
    "version 1": (lambda b: gguf(version=1) + b[24:], 4, ["1"]),
    "version 99": (lambda b: gguf(version=99) + b[24:], 4, ["99"]),
    "big-endian version": (lambda b: b[:4] + struct.pack(">I", 3) + b[8:], 4, []),
    "absurd tensor count": (lambda b: gguf(tensors=1 << 60), 1, ["@", str(1 << 60)]),
    "absurd pair count": (lambda b: gguf(pairs=1 << 60), 1, ["@", str(1 << 60)]),
    "absurd string length": (lambda b: gguf(pairs=1, body=struct.pack("<Q", 1 << 60) + bytes(64)), 1, ["@24", str(1 << 60)]),
    "absurd array length": (lambda b: gguf(pairs=1, body=_text(b"a.b") + struct.pack("<IIQ", 9, 4, 1 << 60) + bytes(64)), 1,
                            ["@", str(1 << 60)]),
    "unknown value type": (lambda b: gguf(pairs=1, body=_text(b"a.b") + struct.pack("<I", 77)), 1, ["@", "77"]),
    "truncated in the header": (lambda b: b[:100], 1, ["@"]),
    "truncated data": (lambda b: b[:-1000], 1, ["@", "tensor '"]),
    "duplicate key": (lambda b: gguf(pairs=2, body=(_text(b"a.b") + struct.pack("<II", 4, 1)) * 2), 1, ["a.b"]),
    "no architecture": (lambda b: gguf(), 1, ["general.architecture"]),
    "unknown architecture": (
        lambda b: gguf(pairs=1, body=_text(b"general.architecture") + struct.pack("<I", 8) + _text(b"nobody")), 4, ["nobody"]),
    "missing key": (_replace(b"llama.block_count", b"llama.block_cOunt"), (1, 4), ["block_count"]),
}


@pytest.mark.parametrize("case", MALFORMED_GGUF)
def test_malformed_gguf_files_give_one_clear_line(transload, tmp_path, case):
    edit, code, words = MALFORMED_GGUF[case]
    path = tmp_path / "model.gguf"
    path.write_bytes(edit(GGUF.read_bytes()))
    got, message = refused(transload, path, tmp_path)
    assert got in (code if isinstance(code, tuple) else (code, )), message
    assert "model.gguf" in message and len(message) < 1500, message
    for word in words:
        assert word in message, message


def test_a_path_that_is_not_there_or_not_a_checkpoint(transload, tmp_path):
    for path in (tmp_path / "gone", tmp_path / "gone.gguf"):
        code, message = refused(transload, path, tmp_path)
        assert code == 1 and "gone" in message and message.count("\n") == 1
    (tmp_path / "x.txt").write_text("hello")
    code, message = refused(transload, tmp_path / "x.txt", tmp_path)
    assert code == 1 and "x.txt" in message and message.count("\n") == 1


# ------------------------------------------------------------------------------------------------- numbers in weights


def spoil(tmp_path, value, dtype=np.float32):
    """The three-shard checkpoint with one bad element in one matrix."""
    folder = copy(SHARDS, tmp_path / "spoilt")
    for shard in folder.glob("model-*.safetensors"):
        tensors = {name: np.array(tensor) for name, tensor in read_tensors(shard).items()}
        if UP in tensors:
            tensors[UP].flat[17] = value
            write_tensors(shard, tensors)
    return folder


@pytest.mark.parametrize("value, options, kind", [(np.nan, [], "NaN"), (np.nan, ["--weights", "fp16"], "NaN"),
                                                  (70000.0, ["--weights", "fp16"], "overflow"),
                                                  (-1e30, ["--compute", "fp16"], "overflow")])
def test_bad_numbers_are_a_warning_by_name_and_an_error_with_strict(transload, tmp_path, value, options, kind):
    folder = spoil(tmp_path, value)
    result = transload("export", "onnx", folder, "-o", tmp_path / "bundle", "--context", 32, "--json", *options)
    assert result.returncode == 0
    warnings = json.loads(result.stdout)["numeric_warnings"]
    assert len(warnings) == 1
    assert (warnings[0]["nan_count"], warnings[0]["overflow_count"]) == ((1, 0) if kind == "NaN" else (0, 1))
    assert "layers_1_mlp_up" in warnings[0]["tensor"] or UP in warnings[0]["tensor"]
    assert "warning:" in result.stderr and kind in result.stderr
    code, message = refused(transload, folder, tmp_path, "--strict", *options)
    assert code == 1 and kind in message and warnings[0]["tensor"] in message


def test_infinity_of_the_source_and_large_f32_values_are_not_an_overflow_in_f32(transload, tmp_path):
    result = transload("export", "onnx", spoil(tmp_path, 70000.0), "-o", tmp_path / "bundle", "--context", 32, "--strict",
                       "--json")
    assert result.returncode == 0 and json.loads(result.stdout)["numeric_warnings"] == []


# ---------------------------------------------------------------------------------------------------- files on disk


@pytest.mark.parametrize(
    "options", [[], ["--linear", "matmul", "--weights", "fp16", "--q", "1,8"], ["--compute", "fp16", "--cache-layout", "roll"]])
@pytest.mark.parametrize("checkpoint", [SPARK, SHARDS, GGUF, FOLDER / "gemma3"],
                         ids=lambda p: p.parent.name if p.is_file() else p.name)
def test_bytes_do_not_depend_on_the_number_of_workers_or_the_run(transload, tmp_path, checkpoint, options):
    for name, workers in (("a", 1), ("b", 4), ("c", 4)):
        assert transload("export", "onnx", checkpoint, "-o", tmp_path / name, "--context", 32, "--workers", workers,
                         *options).returncode == 0
    first = digests(tmp_path / "a")
    assert len(first) >= 5 and first == digests(tmp_path / "b") == digests(tmp_path / "c")


@pytest.mark.parametrize("options", [[], ["--q", "1,8", "--context", "16,64", "--weights", "fp16"],
                                     ["--inputs", "ids", "--no-head"], ["--layers", "1:3", "--linear", "conv1x1"]])
@pytest.mark.parametrize("checkpoint", [SPARK, SHARDS, GGUF, FOLDER / "gemma3"],
                         ids=lambda p: p.parent.name if p.is_file() else p.name)
def test_a_dry_run_writes_nothing_and_knows_every_byte(transload, tmp_path, checkpoint, options):
    arguments = [
        "export", "onnx", checkpoint, "-o", tmp_path / "bundle", *([] if "--context" in options else ["--context", 32]), *options,
        "--json"
    ]
    dry = transload(*arguments, "--dry-run")
    assert dry.returncode == 0 and list(tmp_path.iterdir()) == []
    real = transload(*arguments)
    planned, written = json.loads(dry.stdout), json.loads(real.stdout)
    sizes = {p.name: p.stat().st_size for p in (tmp_path / "bundle").iterdir()}
    assert {f["file"]: f["bytes"] for f in planned["files"]} == sizes == {f["file"]: f["bytes"] for f in written["files"]}
    assert planned["total_bytes"] == sum(sizes.values())
    assert planned["kv"] == written["kv"]


def test_an_existing_destination_is_refused_unless_overwritten_and_a_failure_leaves_it(transload, tmp_path):
    out = tmp_path / "deep" / "er" / "bundle"
    assert transload("export", "onnx", SPARK, "-o", out, "--context", 32).returncode == 0
    before = digests(out)
    again = transload("export", "onnx", SPARK, "-o", out, "--context", 64)
    assert again.returncode == 2 and str(out) in again.stderr and digests(out) == before
    broken = copy(SPARK, tmp_path / "broken")
    edit_bytes(lambda b: b[:-100])(broken)
    assert transload("export", "onnx", broken, "-o", out, "--overwrite").returncode == 1 and digests(out) == before
    assert transload("export", "onnx", spoil(tmp_path, np.nan), "-o", out, "--overwrite", "--strict", "--context",
                     32).returncode == 1
    assert digests(out) == before
    assert transload("export", "onnx", SPARK, "-o", out, "--context", 64, "--overwrite").returncode == 0
    assert "step_q1_c64.onnx" in digests(out) and "step_q1_c32.onnx" not in digests(out)
    assert os.listdir(out.parent) == ["bundle"]
    empty = tmp_path / "empty"
    empty.mkdir()
    assert transload("export", "onnx", SPARK, "-o", empty, "--context", 32).returncode == 0


def test_the_checkpoint_itself_is_never_overwritten(transload, tmp_path):
    folder = copy(SPARK, tmp_path / "checkpoint")
    before = digests(folder)
    for out in (folder, tmp_path):
        assert transload("export", "onnx", folder, "-o", out, "--overwrite", "--context", 32).returncode == 2
    assert digests(folder) == before


def test_an_unwritable_destination_is_an_error_of_the_system(transload, tmp_path):
    (tmp_path / "file").write_text("x")
    result = transload("export", "onnx", SPARK, "-o", tmp_path / "file" / "bundle", "--context", 32)
    assert result.returncode == 5 and result.stderr.count("\n") == 1 and "file" in result.stderr


def test_single_file_and_symbolic_links_open_like_the_folder(transload, tmp_path):
    cache = copy(SPARK, tmp_path / "blobs")
    linked = tmp_path / "snapshot"
    linked.mkdir()
    for file in cache.iterdir():
        (linked / file.name).symlink_to(file)
    for name, checkpoint in (("a", SPARK), ("b", SPARK / "model.safetensors"), ("c", linked)):
        assert transload("export", "onnx", checkpoint, "-o", tmp_path / name, "--context", 32).returncode == 0
    assert (tmp_path / "a" / "weights.bin").read_bytes() == (tmp_path / "b" / "weights.bin").read_bytes()
    assert (tmp_path / "a" / "weights.bin").read_bytes() == (tmp_path / "c" / "weights.bin").read_bytes()


def test_shards_need_no_index(transload, tmp_path):
    folder = copy(SHARDS, tmp_path / "checkpoint")
    (folder / "model.safetensors.index.json").unlink()
    for name, checkpoint in (("a", SHARDS), ("b", folder)):
        assert transload("export", "onnx", checkpoint, "-o", tmp_path / name, "--context", 32).returncode == 0
    assert (tmp_path / "a" / "weights.bin").read_bytes() == (tmp_path / "b" / "weights.bin").read_bytes()


@pytest.mark.parametrize("checkpoint, family", [(SPARK, "spark"), (SHARDS, "spark"), (GGUF, "llama"),
                                                (FOLDER / "mistral", "mistral"), (FOLDER / "gemma3", "gemma3")])
def test_inspect_says_what_a_checkpoint_is(transload, checkpoint, family):
    result = transload("inspect", checkpoint, "--json")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["family"] == family and found["problem"] is None and found["unknown_fields"] == []
    assert found["model"]["hidden_size"] > 0 and found["tensors"] > 10
    text = transload("inspect", checkpoint)
    assert text.returncode == 0 and family in text.stdout


def test_synth_writes_the_checkpoint_of_a_config_reproducibly(transload, tmp_path):
    for name, workers in (("a", 1), ("b", 4)):
        result = transload("synth", SPARK / "config.json", "-o", tmp_path / name, "--seed", 5, "--shards", 2, "--workers",
                           workers)
        assert result.returncode == 0, result.stderr
    assert digests(tmp_path / "a") == digests(tmp_path / "b")
    assert transload("synth", SPARK, "-o", tmp_path / "c", "--seed", 6, "--shards", 2).returncode == 0
    assert digests(tmp_path / "c") != digests(tmp_path / "a")
    shapes = [{
        name: value.shape
        for path in sorted(folder.glob("model*.safetensors"))
        for name, value in read_tensors(path).items()
    } for folder in (tmp_path / "a", SPARK)]
    assert shapes[0] == shapes[1]
    assert transload("export", "onnx", tmp_path / "a", "-o", tmp_path / "bundle", "--context", 32, "--strict").returncode == 0


@pytest.mark.parametrize(
    "arguments, text",
    [
        (["export", "tflite", "x", "-o", "y"], "unknown command 'tflite'"),
        (["export", "onnx", "x", "-o", "y", "--contxt", "64"], "unknown option '--contxt'"),
        (["export", "onnx", "x", "--ouput", "y"], "'--ouput'"),
        ([], "no command: expected one of export"),
    ],
)
def test_usage_errors_name_the_word_that_is_wrong(transload, arguments, text):
    result = transload(*arguments)
    assert result.returncode == 2
    assert text in result.stderr


def test_progress_lines_fit_the_terminal(tmp_path):
    # A pseudo-terminal of 40 columns: no line of the bar may reach the last column, where terminals wrap.
    words = [command(), "export", "onnx", SPARK, "-o", tmp_path / "out", "--context", "64"]
    shown, code = shown_on_terminal(words, 40, "stderr")
    assert code == 0
    lines = [line for line in re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", shown)) if line]
    assert lines and lines[-1].startswith("writing")
    assert max(map(len, lines)) < 40


@pytest.fixture(scope="module")
def trtllm_folder(transload, tmp_path_factory):
    out = tmp_path_factory.mktemp("trtllm") / "ranks"
    source = ROOT / "tests" / "data" / "trtllm" / "phi3-mini-4k" / "input"
    assert transload("export", "trtllm", source, "-o", out, "--tp", 2, "--quiet").returncode == 0
    return out


@pytest.mark.parametrize("part", ["", "rank1.safetensors"], ids=["folder", "file"])
@pytest.mark.parametrize("words", [("inspect", "IN"), ("kv", "IN", "--context", 32), ("run", "IN", "--prompt-ids", "1,2"),
                                   ("export", "onnx", "IN", "-o", "OUT", "--context", 32), ("export", "trtllm", "IN", "-o", "OUT")],
                         ids=lambda words: " ".join(map(str, words[:2])))
def test_a_tensorrt_llm_checkpoint_is_named_as_one(transload, tmp_path, trtllm_folder, words, part):
    path = trtllm_folder / part
    result = transload(*({"IN": path, "OUT": tmp_path / "out"}.get(word, word) for word in words))
    rank = part or "rank0.safetensors"
    assert result.stderr == (f"transload: {trtllm_folder}{'/' + part if part else ''}: a TensorRT-LLM checkpoint: got '{rank}', expected a "
                             "Hugging Face checkpoint or a GGUF file (use 'transload import trtllm' or 'transload verify')\n")
    assert (result.returncode, result.stdout, list(tmp_path.iterdir())) == (1, "", [])
