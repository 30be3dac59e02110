# TensorRT-LLM exports killed, on a full disk, restarted rank by rank, and within their memory.
import json
import random
import subprocess
import sys
import time

import pytest

from conftest import ROOT, digests, kill_at, leftovers, limited

KILLS = 15
RESTARTS = 6
SEED = 20240612
MIB = 1 << 20
MOST_MEMORY = 64 * MIB
TP = 4

# Prints the peak memory of a command: a child of pytest would start with pytest's.
MEASURE = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[1:], stdout=subprocess.DEVNULL)
print(code, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
"""


@pytest.fixture(scope="module")
def dense(command, tmp_path_factory):
    """The dense model's real width, 2 layers deep: about 500 MB of bf16."""
    folder = tmp_path_factory.mktemp("dense")
    config = json.loads((ROOT / "tests/data/configs/phi-3-mini-4k/config.json").read_text())
    config.update(num_hidden_layers=2, vocab_size=4096, bos_token_id=1, eos_token_id=2, pad_token_id=2)
    (folder / "config.json").write_text(json.dumps(config))
    subprocess.run([command, "synth", folder / "config.json", "-o", folder / "model", "--quiet"], check=True)
    yield folder / "model"
    subprocess.run(["rm", "-rf", folder], check=True)


def arguments(command, checkpoint, destination, *more):
    return [str(command), "export", "trtllm", str(checkpoint), "-o", str(destination), "--dtype", "float16", "--tp", str(TP), "--quiet",
            *more]


def export(command, checkpoint, destination, *more, **options):
    return subprocess.run(arguments(command, checkpoint, destination, *more), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          **options)


def timed(command, checkpoint, destination, *more):
    started = time.monotonic()
    result = export(command, checkpoint, destination, *more)
    assert result.returncode == 0, result.stderr
    return time.monotonic() - started


@pytest.fixture(scope="module")
def whole(command, dense, tmp_path_factory):
    destination = tmp_path_factory.mktemp("whole") / "out"
    timed(command, dense, destination)
    yield digests(destination)
    subprocess.run(["rm", "-rf", destination], check=True)


def test_a_killed_export_leaves_nothing_half_written(command, dense, whole, tmp_path):
    destination = tmp_path / "out"
    duration = timed(command, dense, destination)
    moments = random.Random(SEED)
    killed = 0
    for index in range(KILLS):
        subprocess.run(["rm", "-rf", destination], check=True)
        # The machine's speed changes: a run that outlived its moment shortens the next ones.
        if kill_at(arguments(command, dense, destination), moments.uniform(0, duration)):
            killed += 1
        else:
            duration *= 0.8
        if destination.exists():
            assert digests(destination) == whole, f"run {index}: the destination is there but not whole"
    assert killed >= KILLS // 3, "too few kills hit a running export"
    timed(command, dense, destination, "--overwrite")
    assert digests(destination) == whole and leftovers(tmp_path, "out") == []


def complete_ranks(destination):
    """Ranks with a manifest, which says that they are complete."""
    return {rank for rank in range(TP) if (destination / f"rank{rank}.manifest.json").exists()}


def test_a_conversion_killed_again_and_again_is_finished_by_resume(command, dense, whole, tmp_path):
    destination = tmp_path / "out"
    duration = timed(command, dense, destination, "--resume")
    moments = random.Random(SEED + 1)
    finished = restarts = 0
    for index in range(RESTARTS):
        subprocess.run(["rm", "-rf", destination], check=True)
        done, limit = set(), duration
        while kill_at(arguments(command, dense, destination, "--resume"), moments.uniform(0.2, 0.8) * limit):
            restarts += 1
            limit *= 1.2  # until it comes to the end
            before, done = done, complete_ranks(destination) if destination.exists() else set()
            assert before <= done, f"run {index}: a complete rank was lost"
            for rank in done:
                assert digests(destination)[f"rank{rank}.safetensors"] == whole[f"rank{rank}.safetensors"]
        finished += complete_ranks(destination) == set(range(TP))
        result = export(command, dense, destination, "--resume", "--json")
        assert result.returncode == 0, result.stderr
        assert digests(destination) == whole, f"run {index}: the result differs, or staging is left behind"
    print(f"{restarts} kills, {finished} of {RESTARTS} conversions finished")
    assert restarts >= RESTARTS // 3


def test_two_processes_write_their_ranks_into_one_folder(command, dense, whole, tmp_path):
    destination = tmp_path / "out"
    runs = [subprocess.Popen(arguments(command, dense, destination, "--ranks", ranks), stdin=subprocess.DEVNULL,
                             stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for ranks in ("0-1", "2", "3")]
    for run in runs:
        _, stderr = run.communicate()
        assert run.returncode == 0, stderr
    assert digests(destination) == whole


@pytest.mark.parametrize("limit", [MIB, 100 * MIB])
def test_a_file_size_limit_is_an_error(command, dense, tmp_path, limit):
    result = export(command, dense, tmp_path / "out", preexec_fn=limited(limit))
    assert result.returncode == 5 and "rank0.safetensors" in result.stderr, result.stderr
    assert leftovers(tmp_path) == []


def test_a_full_disk_is_an_error(command, dense, whole, small_disk):
    destination = small_disk / "out"
    result = export(command, dense, destination)
    assert result.returncode == 5 and "rank" in result.stderr, result.stderr
    assert leftovers(small_disk) == []
    # Rank by rank: what fits stays, and the rest comes when there is room.
    subprocess.run(["mount", "-o", "remount,size=200m", small_disk], check=True)
    result = export(command, dense, destination, "--resume")
    assert result.returncode == 5 and "cannot reserve" in result.stderr, result.stderr
    done = complete_ranks(destination)
    assert done and leftovers(destination, "config.json", *(f"rank{rank}.{end}" for rank in done
                                                            for end in ("safetensors", "manifest.json"))) == []
    subprocess.run(["mount", "-o", "remount,size=2g", small_disk], check=True)
    result = export(command, dense, destination, "--resume", "--json")
    assert {rank["rank"] for rank in json.loads(result.stdout)["ranks"] if rank["kept"]} == done
    assert digests(destination) == whole


@pytest.mark.parametrize("more", [("--tp", "1"), ("--tp", "2"), ("--tp", "2", "--dtype", "float32"), ("--tp", "1", "--dtype", "bfloat16"),
                                  *(("--quant", bits, "--form", "baked", "--layout", layout, "--tp", "1")
                                    for bits in ("int8", "int4") for layout in ("plain", "transpose", "sm80", "sm90"))],
                         ids=lambda more: " ".join(more))
def test_memory_does_not_grow_with_the_model(command, dense, tmp_path, more):
    measured = subprocess.run([sys.executable, "-S", "-c", MEASURE, str(command), "export", "trtllm", str(dense), "-o", str(tmp_path / "out"),
                               "--quiet", *more], capture_output=True, text=True, check=True)
    code, peak = map(int, measured.stdout.split())
    assert code == 0, measured.stderr
    assert peak <= MOST_MEMORY, f"{peak / MIB:.1f} MiB"
    subprocess.run(["rm", "-rf", tmp_path / "out"], check=True)
