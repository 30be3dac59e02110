# `transload export trtllm`: runs that may not differ, ranks one by one, restarts, warnings, and bad inputs.
import hashlib
import json
import shutil
import time

import pytest

from conftest import ROOT
from hf_checkpoint import HfCheckpoint, read_safetensors

DATA = ROOT / "tests" / "data" / "trtllm"
MINI = DATA / "phi3-mini-4k" / "input"
MOE = DATA / "phi35-moe" / "input"
BF16_HUGE = 0x7F00  # 1.7e38: infinite in float16
BF16_NAN = 0x7FC0


def digests(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def hidden(folder):
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


@pytest.fixture
def run(transload):
    def run(checkpoint, destination, *options, code=0):
        result = transload("export", "trtllm", checkpoint, "-o", destination, "--quiet", *options)
        assert result.returncode == code, (result.returncode, result.stderr)
        return result
    return run


@pytest.fixture(scope="module")
def two_ranks(transload, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "out"
    assert transload("export", "trtllm", MINI, "-o", folder, "--tp", 2, "--quiet").returncode == 0
    return folder


@pytest.mark.parametrize("options", [(), ("--tp", 4), ("--tp", 2, "--pp", 2), ("--quant", "int8", "--form", "baked", "--layout", "sm80"),
                                     ("--quant", "int4", "--form", "baked", "--tp", 2)])
@pytest.mark.parametrize("checkpoint", [MINI, MOE], ids=["mini", "moe"])
def test_the_bytes_do_not_depend_on_workers_or_runs(run, tmp_path, checkpoint, options):
    for name, workers in (("one", 1), ("five", 5), ("again", 5)):
        run(checkpoint, tmp_path / name, "--workers", workers, *options)
    assert digests(tmp_path / "one") == digests(tmp_path / "five") == digests(tmp_path / "again")
    assert hidden(tmp_path) == []


@pytest.mark.parametrize("stored, expected", [("bfloat16", "bfloat16"), ("float16", "float16"), ("float32", "float16")])
def test_dtype_auto_is_that_of_the_config(run, tmp_path, stored, expected):
    checkpoint = HfCheckpoint(MINI)
    checkpoint.config["torch_dtype"] = stored
    run(checkpoint.write(tmp_path / "in"), tmp_path / "out")
    assert json.loads((tmp_path / "out/config.json").read_text())["dtype"] == expected
    kinds = {dtype for dtype, _, _ in read_safetensors(tmp_path / "out/rank0.safetensors").values()}
    assert kinds == {{"bfloat16": "BF16", "float16": "F16"}[expected]}


@pytest.mark.parametrize("options", [("--tp", 2), ("--tp", 4, "--pp", 2), ("--quant", "int4", "--form", "baked"),
                                     ("--tp", 2, "--ranks", "1")])
def test_a_dry_run_forecasts_every_byte_and_writes_nothing(run, tmp_path, options):
    forecast = json.loads(run(MOE, tmp_path / "out", "--dry-run", "--json", *options).stdout)
    assert not (tmp_path / "out").exists()
    written = json.loads(run(MOE, tmp_path / "out", "--json", *options).stdout)
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "out").iterdir()}
    assert forecast["total_bytes"] == written["total_bytes"] == sum(sizes.values())
    for rank in forecast["ranks"]:
        assert rank["bytes"] == sizes[f"rank{rank['rank']}.safetensors"]
        assert rank["tensors"] == len(read_safetensors(tmp_path / f"out/rank{rank['rank']}.safetensors"))
    assert forecast["ranks"] == written["ranks"]


def test_a_model_of_42_billion_parameters_is_planned_in_a_second(run, transload, tmp_path):
    config = ROOT / "tests/data/configs/phi-3.5-moe/config.json"
    assert transload("synth", config, "-o", tmp_path / "in", "--sparse").returncode == 0
    started = time.monotonic()
    plan = json.loads(run(tmp_path / "in", tmp_path / "out", "--dry-run", "--json", "--tp", 8, "--moe-ep", 4, "--pp", 2).stdout)
    assert time.monotonic() - started < 1
    assert plan["parameters"] == 41_873_153_344 and plan["source_bytes"] == 2 * plan["parameters"]
    assert len(plan["ranks"]) == 16 and plan["worker_memory_bytes"] < 64 << 20
    assert [(rank["first_layer"], rank["end_layer"]) for rank in plan["ranks"]] == [(0, 16)] * 8 + [(16, 32)] * 8


def test_the_other_dense_model_in_real_size_is_planned(run, transload, tmp_path):
    config = ROOT / "tests/data/configs/phi-3-mini-4k/config.json"
    assert transload("synth", config, "-o", tmp_path / "in", "--sparse").returncode == 0
    plan = json.loads(run(tmp_path / "in", tmp_path / "out", "--dry-run", "--json", "--dtype", "float16").stdout)
    assert plan["ranks"][0]["bytes"] == 7_642_181_832  # as the handed data states for this size


# Ranks one by one.

def test_ranks_in_two_runs_equal_the_whole(run, tmp_path):
    run(MOE, tmp_path / "whole", "--tp", 4)
    run(MOE, tmp_path / "parts", "--tp", 4, "--ranks", "3,0-1")
    assert sorted(digests(tmp_path / "parts")) == ["config.json"] + sorted(
        f"rank{rank}.{end}" for rank in (0, 1, 3) for end in ("manifest.json", "safetensors"))
    run(MOE, tmp_path / "parts", "--tp", 4, "--ranks", "2")
    assert digests(tmp_path / "parts") == digests(tmp_path / "whole")


def test_ranks_that_are_there_are_not_replaced_unasked(run, tmp_path, two_ranks):
    out = shutil.copytree(two_ranks, tmp_path / "out")
    result = run(MINI, out, "--tp", 2, "--ranks", "1", code=2)
    assert "rank1.safetensors, rank1.manifest.json" in result.stderr and "--overwrite" in result.stderr
    (out / "rank1.safetensors").write_bytes(b"")
    run(MINI, out, "--tp", 2, "--ranks", "1", "--overwrite")
    assert digests(out) == digests(two_ranks)


def test_a_rank_beyond_the_last_is_refused(run, tmp_path):
    result = run(MINI, tmp_path / "out", "--tp", 2, "--ranks", "0-2", code=2)
    assert "rank: got 2, expected at most 1" in result.stderr and not (tmp_path / "out").exists()


def kept(result):
    return [rank["rank"] for rank in json.loads(result.stdout)["ranks"] if rank["kept"]]


def test_resume_keeps_what_is_right(run, tmp_path, two_ranks):
    out = shutil.copytree(two_ranks, tmp_path / "out")
    before = (out / "rank0.safetensors").stat().st_mtime_ns
    result = run(MINI, out, "--tp", 2, "--resume", "--json")
    assert kept(result) == [0, 1] and (out / "rank0.safetensors").stat().st_mtime_ns == before


@pytest.mark.parametrize("mode", [(), ("--dry-run", )], ids=["write", "dry run"])
def test_a_resumed_run_counts_only_what_it_does(run, tmp_path, two_ranks, mode):
    out = shutil.copytree(two_ranks, tmp_path / "out")
    text = run(MINI, out, "--tp", 2, "--resume", *mode).stdout
    assert text.startswith("nothing to do: all 2 rank files are complete\n") and text.count("  kept\n") == 2
    one = run(MINI, out, "--tp", 2, "--resume", "--ranks", "1", *mode).stdout
    assert one.startswith("nothing to do: the rank file is complete\n")
    summary = json.loads(run(MINI, out, "--tp", 2, "--resume", "--json", *mode).stdout)
    assert (summary["tensors"], summary["source_bytes"], summary["total_bytes"]) == (0, 0, 0)
    (out / "rank1.safetensors").unlink()
    sizes = [(two_ranks / f"rank1.{end}").stat().st_size for end in ("manifest.json", "safetensors")]
    result = run(MINI, out, "--tp", 2, "--resume", *mode)
    assert result.stdout.count("  kept\n") == 1 and "nothing to do" not in result.stdout
    assert f"{'would write' if mode else 'wrote'} {out} ({sum(sizes):,} bytes)" in result.stdout
    assert (out / "rank1.safetensors").exists() == (not mode)


def flip_last_byte(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def cut(path):
    path.write_bytes(path.read_bytes()[:-8])


DAMAGE = {
    "a flipped byte": (lambda out: flip_last_byte(out / "rank1.safetensors"), "digest"),
    "a truncated file": (lambda out: cut(out / "rank1.safetensors"), "size"),
    "no manifest": (lambda out: (out / "rank1.manifest.json").unlink(), "'rank1.manifest.json' is missing"),
    "no rank file": (lambda out: (out / "rank1.safetensors").unlink(), "'rank1.safetensors' is missing"),
    "a manifest that is none": (lambda out: (out / "rank1.manifest.json").write_text("{"), "rank1.manifest.json"),
    "numbers that are none": (lambda out: (out / "rank1.manifest.json").write_text(
        (out / "rank1.manifest.json").read_text().replace('"numeric_faults": 0', '"numeric_faults": 2')), "numeric_faults"),
    "an empty list of tensors": (lambda out: (out / "rank1.manifest.json").write_text(
        json.dumps(json.loads((out / "rank1.manifest.json").read_text()) | {"tensors": []})), "of another conversion"),
    "the manifest of another rank": (lambda out: shutil.copy(out / "rank0.manifest.json", out / "rank1.manifest.json"),
                                     "of another conversion"),
    "a header that differs": (lambda out: (out / "rank1.safetensors").write_bytes(
        (out / "rank1.safetensors").read_bytes().replace(b"lm_head", b"lm_haed", 1)), "digest of the header"),
    "another version of the tool": (lambda out: (out / "rank1.manifest.json").write_text(
        (out / "rank1.manifest.json").read_text().replace('"tool_version": "', '"tool_version": "9')), "of another conversion"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_resume_writes_again_what_is_not_right(run, tmp_path, two_ranks, name):
    damage, reason = DAMAGE[name]
    out = shutil.copytree(two_ranks, tmp_path / "out")
    damage(out)
    result = run(MINI, out, "--tp", 2, "--resume", "--json")
    assert kept(result) == [0]
    assert "'rank1.safetensors' was there and is written again: " in result.stderr and reason in result.stderr
    assert digests(out) == digests(two_ranks)


def test_resume_restores_a_lost_config_and_keeps_the_ranks(run, tmp_path, two_ranks):
    out = shutil.copytree(two_ranks, tmp_path / "out")
    (out / "config.json").unlink()
    result = run(MINI, out, "--tp", 2, "--resume", "--json")
    assert kept(result) == [0, 1] and "written again" not in result.stderr
    assert json.loads(result.stdout)["total_bytes"] == (two_ranks / "config.json").stat().st_size
    assert digests(out) == digests(two_ranks)


def test_a_folder_in_the_place_of_a_file_is_an_error(run, tmp_path, two_ranks):
    out = shutil.copytree(two_ranks, tmp_path / "out")
    (out / "rank1.safetensors").unlink()
    (out / "rank1.safetensors").mkdir()
    result = run(MINI, out, "--tp", 2, "--resume", code=5)
    assert "rank1.safetensors: cannot rename" in result.stderr and hidden(out) == []


def test_resume_writes_what_is_not_there_without_a_word(run, tmp_path, two_ranks):
    result = run(MINI, tmp_path / "out", "--tp", 2, "--resume", "--json")
    assert kept(result) == [] and "written again" not in result.stderr
    assert digests(tmp_path / "out") == digests(two_ranks)


def test_resume_sees_that_the_source_is_another(run, tmp_path, two_ranks):
    checkpoint = HfCheckpoint(MINI)
    checkpoint.zeros("model.layers.0.self_attn.rotary_emb.inv_freq", "F32", [8])
    out = shutil.copytree(two_ranks, tmp_path / "out")
    result = run(checkpoint.write(tmp_path / "in"), out, "--tp", 2, "--resume", "--json")
    assert kept(result) == [] and result.stderr.count("of another conversion: field 'sources[0].") == 2


@pytest.mark.parametrize("options, line", [(("--tp", 2, "--dtype", "float32"), "'dtype': got \"bfloat16\", expected \"float32\""),
                                           (("--tp", 1), "'mapping.world_size': got 2, expected 1")])
@pytest.mark.parametrize("mode", [("--resume",), ("--ranks", "0"), ("--ranks", "0", "--overwrite")], ids=lambda mode: "".join(mode))
def test_a_foreign_config_is_refused_and_nothing_changes(run, tmp_path, two_ranks, options, line, mode):
    out = shutil.copytree(two_ranks, tmp_path / "out")
    result = run(MINI, out, *options, *mode, code=2)
    assert f"config.json: of another conversion: field {line}" in result.stderr
    assert digests(out) == digests(two_ranks)


def test_a_config_with_more_in_it_is_refused_by_its_line(run, tmp_path, two_ranks):
    out = shutil.copytree(two_ranks, tmp_path / "out")
    text = (out / "config.json").read_text()
    (out / "config.json").write_text(text.replace('    "rotary_scaling"', '    "by_hand": 1,\n    "rotary_scaling"'))
    result = run(MINI, out, "--tp", 2, "--resume", code=2)
    assert "line 3: got '\"by_hand\": 1,', expected '\"rotary_scaling\": null,'" in result.stderr


def test_quantisation_that_the_config_does_not_show_is_seen(run, tmp_path):
    baked = ("--quant", "int8", "--form", "baked")
    run(MINI, tmp_path / "out", *baked, "--layout", "plain")
    result = run(MINI, tmp_path / "out", *baked, "--layout", "sm80", "--resume", "--json")
    assert kept(result) == []
    assert "is of another conversion: field 'options.quant.layout': got \"plain\", expected \"sm80\"" in result.stderr
    run(MINI, tmp_path / "other", *baked, "--layout", "sm80")
    assert digests(tmp_path / "out") == digests(tmp_path / "other")


def other_source(tmp_path):
    checkpoint = HfCheckpoint(MINI)
    checkpoint.zeros("model.layers.0.self_attn.rotary_emb.inv_freq", "F32", [8])
    return checkpoint.write(tmp_path / "other")


@pytest.mark.parametrize("extra", [(), ("--overwrite", ), ("--resume", ), ("--dry-run", )], ids=lambda extra: "".join(extra))
def test_ranks_of_two_conversions_do_not_come_together(run, tmp_path, extra):
    baked = ("--tp", 2, "--quant", "int8", "--form", "baked")
    out = tmp_path / "out"
    run(MINI, out, *baked, "--layout", "sm90", "--ranks", "0")
    before = digests(out)
    result = run(MINI, out, *baked, "--layout", "sm80", "--ranks", "1", *extra, code=2)
    assert (f"{out}/rank0.manifest.json: a rank of another conversion is there: field 'options.quant.layout': got \"sm90\", "
            "expected \"sm80\"") in result.stderr and result.stderr.count("\n") == 1
    result = run(other_source(tmp_path), out, *baked, "--layout", "sm90", "--ranks", "1", *extra, code=2)
    assert "rank0.manifest.json" in result.stderr and "'sources[0].bytes'" in result.stderr
    assert digests(out) == before
    (out / "rank0.manifest.json").write_text("{")  # says nothing
    run(MINI, out, *baked, "--layout", "sm80", "--ranks", "1", *extra)


@pytest.mark.parametrize("short, long", [("fp16", "float16"), ("bf16", "bfloat16"), ("fp32", "float32")])
def test_types_have_the_names_of_other_commands_too(run, tmp_path, short, long):
    run(MINI, tmp_path / "short", "--dtype", short)
    run(MINI, tmp_path / "long", "--dtype", long)
    assert digests(tmp_path / "short") == digests(tmp_path / "long")


# What numbers may not be.

@pytest.fixture
def faulty(tmp_path):
    """float16 cannot hold one value, and another is no number."""
    checkpoint = HfCheckpoint(MINI)
    checkpoint.set_value("model.layers.0.mlp.gate_up_proj.weight", 0, BF16_HUGE)
    checkpoint.set_value("model.layers.1.input_layernorm.weight", 5, BF16_NAN)
    return checkpoint.write(tmp_path / "in")


def test_overflow_and_nan_are_counted_and_named(run, tmp_path, faulty):
    result = run(faulty, tmp_path / "out", "--dtype", "float16", "--tp", 2, "--json")
    counted = {(row["file"], row["tensor"], row["overflow_count"], row["nan_count"])
               for row in json.loads(result.stdout)["numeric_warnings"]}
    norm = "transformer.layers.1.input_layernorm.weight"
    assert counted == {("rank0.safetensors", "transformer.layers.0.mlp.fc.weight", 1, 0),
                       ("rank0.safetensors", norm, 0, 1), ("rank1.safetensors", norm, 0, 1)}
    assert ("rank0.safetensors: tensor 'transformer.layers.0.mlp.fc.weight' (from 'model.layers.0.mlp.gate_up_proj.weight'): "
            "1 values overflow f16, 0 NaN") in result.stderr


@pytest.mark.parametrize("mode", [(), ("--resume",), ("--ranks", "0")], ids=lambda mode: "".join(mode) or "whole")
def test_strict_refuses_them(run, tmp_path, faulty, mode):
    result = run(faulty, tmp_path / "out", "--dtype", "float16", "--tp", 2, "--strict", *mode, code=1)
    assert "transformer.layers.0.mlp.fc.weight" in result.stderr and "input_layernorm" in result.stderr
    if mode:
        assert [path.name for path in (tmp_path / "out").iterdir()] == ["config.json"]
    else:
        assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


def test_strict_does_not_resume_over_them(run, tmp_path, faulty):
    arguments = (faulty, tmp_path / "out", "--dtype", "float16")
    run(*arguments)
    assert "was kept; some of its values overflow f16 or are NaN" in run(*arguments, "--resume").stderr
    assert "1 values overflow f16" in run(*arguments, "--resume", "--strict", code=1).stderr


# Reports.

def test_the_report_names_the_worst_tensor_first(run, tmp_path):
    baked = ("--quant", "int4", "--form", "baked", "--report")
    table = run(MINI, tmp_path / "table", "--tp", 2, *baked).stdout
    summary = json.loads(run(MINI, tmp_path / "json", "--tp", 2, *baked, "--json").stdout)
    assert len(summary["quant_errors"]) == 2 * 2 * 4
    worst = min(summary["quant_errors"], key=lambda row: row["sqnr_db"])
    lines = table.splitlines()
    first = lines[lines.index("quantisation errors, worst first") + 2].split()
    assert first[:2] == [worst["tensor"], str(worst["rank"])] and first[3] == f"{worst['sqnr_db']:.2f}"
    assert [row["kind"] for row in summary["quant_kinds"]] and {row["tensors"] for row in summary["quant_kinds"]} == {4}
    assert {row["kind"] for row in summary["quant_kinds"]} == {f"{part}.weight" for part in ("attention.qkv", "attention.dense", "mlp.fc",
                                                                                        "mlp.proj")}
    assert all(5 < row["sqnr_db"] < 60 for row in summary["quant_errors"])


@pytest.mark.parametrize("options", [(), ("--tp", 2, "--quant", "int8", "--form", "baked", "--layout", "sm90")])
def test_verify_follows_the_export(run, tmp_path, options):
    result = json.loads(run(MOE, tmp_path / "out", "--verify", "--json", *options).stdout)
    assert result["verify"]["failure"] is None and result["verify"]["tensors_compared"] > 50
    assert result["export"]["ranks"]


def test_the_newer_layout_of_the_config_equals_the_older(run, tmp_path):
    source = DATA / "phi3-mini-128k" / "input"
    checkpoint = HfCheckpoint(source)
    config = checkpoint.config
    rope = {"rope_theta": config.pop("rope_theta"), **config.pop("rope_scaling")}
    rope["rope_type"] = rope.pop("type")
    config["rope_parameters"] = rope
    config["dtype"] = config.pop("torch_dtype")
    run(source, tmp_path / "older", "--tp", 2)
    run(checkpoint.write(tmp_path / "in"), tmp_path / "newer", "--tp", 2)
    for name in ("config.json", "rank0.safetensors", "rank1.safetensors"):
        assert (tmp_path / "newer" / name).read_bytes() == (tmp_path / "older" / name).read_bytes()


# Bad inputs.

def set_field(name, value):
    return lambda checkpoint: checkpoint.config.__setitem__(name, value)


def set_rope(name, value):
    return lambda checkpoint: checkpoint.config["rope_scaling"].__setitem__(name, value)


def drop(name):
    return lambda checkpoint: checkpoint.tensors.pop(name)


def reshaped(name, shape):
    return lambda checkpoint: checkpoint.tensors.__setitem__(name, (checkpoint.tensors[name][0], shape, checkpoint.tensors[name][2]))


def of_type(name, dtype):
    return lambda checkpoint: checkpoint.zeros(name, dtype, checkpoint.tensors[name][1])


LONG = "phi3-mini-128k"
QKV = "model.layers.0.self_attn.qkv_proj.weight"
BAD = {
    "another architecture": ("phi3-mini-4k", set_field("architectures", ["LlamaForCausalLM"]), 4, "'LlamaForCausalLM'"),
    "no architecture": ("phi3-mini-4k", lambda checkpoint: checkpoint.config.pop("architectures"), 1, "'architectures'"),
    "heads that do not divide the width": ("phi3-mini-4k", set_field("num_attention_heads", 48), 1, "num_attention_heads"),
    "KV heads that do not divide the heads": ("phi3-mini-4k", set_field("num_key_value_heads", 3), 1, "num_key_value_heads"),
    "short factors of the wrong length": (LONG, set_rope("short_factor", [1.0] * 23), 1, "short_factor"),
    "long factors of the wrong length": (LONG, set_rope("long_factor", [1.0] * 25), 1, "long_factor"),
    "an unknown rope type": (LONG, set_rope("type", "spiral"), 4, "spiral"),
    "a rope type the format has no field for": ("phi3-mini-4k", set_field("rope_scaling", {"type": "linear", "factor": 2.0}), 4,
                                                "field 'rope_scaling.type': config.json of TensorRT-LLM has no field"),
    "the same in the newer layout": ("phi3-mini-4k", set_field("rope_parameters", {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}), 4,
                                     "field 'rope_parameters.rope_type': config.json of TensorRT-LLM has no field"),
    "a missing tensor": ("phi3-mini-4k", drop("model.norm.weight"), 1, "model.norm.weight"),
    "a missing expert": ("phi35-moe", drop("model.layers.1.block_sparse_moe.experts.3.w2.weight"), 1, "experts.3.w2"),
    "a wrong shape": ("phi3-mini-4k", reshaped(QKV, [128, 384]), 1, QKV),
    "a quantised source": ("phi3-mini-4k", set_field("quantization_config", {"quant_method": "awq", "bits": 4}), 4, "quantization_config"),
    "weights in 8 bits": ("phi3-mini-4k", of_type(QKV, "F8_E4M3"), 4, QKV),
    "weights in 64 bits": ("phi3-mini-4k", of_type(QKV, "F64"), 4, QKV),
    "fields that only remote code reads": ("phi3-mini-4k", set_field("residual_twist", 2), 4, "residual_twist"),
    "a type that nobody stores": ("phi3-mini-4k", set_field("torch_dtype", "float8_e4m3fn"), 4, "float8_e4m3fn"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_clear_line(run, tmp_path, name):
    case, damage, code, word = BAD[name]
    checkpoint = HfCheckpoint(DATA / case / "input")
    damage(checkpoint)
    result = run(checkpoint.write(tmp_path / "in"), tmp_path / "out", code=code)
    assert word in result.stderr and result.stderr.startswith("transload: ") and result.stderr.count("\n") == 1, result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


def test_a_damaged_file_is_named(run, tmp_path):
    folder = HfCheckpoint(MINI).write(tmp_path / "in")
    cut(folder / "model.safetensors")
    result = run(folder, tmp_path / "out", code=1)
    assert "model.safetensors" in result.stderr and result.stderr.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


def test_stray_tensors_are_left_out_with_a_warning(run, tmp_path):
    checkpoint = HfCheckpoint(MINI)
    checkpoint.zeros("model.layers.0.self_attn.rotary_emb.inv_freq", "F32", [8])
    checkpoint.zeros("base.tower.weight", "I8", [3, 3])
    result = run(checkpoint.write(tmp_path / "in"), tmp_path / "out")
    assert "base.tower.weight" in result.stderr
    run(MINI, tmp_path / "plain")
    assert (tmp_path / "out/rank0.safetensors").read_bytes() == (tmp_path / "plain/rank0.safetensors").read_bytes()


def test_a_gguf_is_refused_by_name(run, tmp_path, data):
    path = sorted((data / "decoders").glob("*/*.gguf"))[0]
    result = run(path, tmp_path / "out", code=4)
    assert path.name in result.stderr and "GGUF" in result.stderr and result.stderr.count("\n") == 1


def test_the_destination_may_not_be_the_source(run, tmp_path):
    folder = HfCheckpoint(MINI).write(tmp_path / "in")
    before = digests(folder)
    for mode in (("--overwrite",), ("--resume",), ("--ranks", "0")):
        assert "the destination holds what is read" in run(folder, folder, *mode, code=2).stderr
    assert digests(folder) == before


def test_pipeline_stages_come_with_a_warning(run, tmp_path):
    assert "upstream" in run(MINI, tmp_path / "out", "--pp", 2).stderr


@pytest.mark.parametrize("checkpoint, options, message", [
    (MINI, ("--tp", 3), "cannot split 8 attention heads, 8 key/value heads and intermediate size 256: got --tp 3, expected one of 1, 2, 4, 8"),
    (MINI, ("--moe-ep", 2), "--moe-ep of a model without experts: got 2, expected 1"),
    (MOE, ("--tp", 2, "--moe-ep", 3), "--moe-ep does not divide --tp 2 and "),
    (MINI, ("--pp", 3), "--pp of a model of 2 layers: got 3, expected at most 2"),
])
def test_a_split_that_cannot_be_is_one_line_with_its_options(run, tmp_path, checkpoint, options, message):
    result = run(checkpoint, tmp_path / "out", *options, code=4)
    assert result.stderr.startswith(f"transload: {message}") and result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


USAGE = [
    (("--form", "baked"), "--quant"),
    (("--layout", "sm80"), "--quant"),
    (("--quant", "int8", "--layout", "sm80"), "--form baked"),
    (("--quant", "int8", "--form", "deferred", "--layout", "sm80"), "--form baked"),
    (("--quant", "int8", "--report"), "--form baked"),
    (("--report",), "--form baked"),
    (("--quant", "int2"), "int2"),
    (("--ranks", "2-1"), "2-1"),
    (("--ranks", ""), "--ranks"),
    (("--ranks", "0-1-2"), "0-1-2"),
    (("--ranks", "x"), "'x'"),
    (("--ranks", "0,"), "--ranks"),
    (("--ranks", "0-4000000000"), "--ranks"),
    (("--tp", 0), "--tp"),
    (("--resume", "--overwrite"), "--overwrite"),
    (("--dtype", "int8"), "int8"),
    (("--format", "2"), "--format"),
    (("--dry-run", "--verify"), "--verify"),
    (("--ranks", "0", "--verify"), "--verify"),
]


@pytest.mark.parametrize("options, word", USAGE, ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "")
def test_options_that_do_not_apply_are_usage_errors(run, tmp_path, options, word):
    result = run(MINI, tmp_path / "out", *options, code=2)
    assert word in result.stderr and list(tmp_path.iterdir()) == []
