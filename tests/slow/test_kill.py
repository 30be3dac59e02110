# An export killed at a random moment leaves either nothing or the whole bundle, and the next run succeeds and cleans up.
import random
import subprocess
import time

from conftest import digests, export_arguments, kill_at, leftovers, run_export

KILLS = 50
SEED = 20240611


def timed_export(command, checkpoint, destination, *more):
    started = time.monotonic()
    result = run_export(command, checkpoint, destination, *more)
    assert result.returncode == 0, result.stderr
    return time.monotonic() - started


def test_a_killed_export_leaves_nothing_half_written(command, checkpoint, tmp_path):
    reference = tmp_path / "reference"
    duration = timed_export(command, checkpoint, reference)
    expected = digests(reference)

    moments = random.Random(SEED)
    killed = complete = 0
    for index in range(KILLS):
        work = tmp_path / f"run{index}"
        work.mkdir()
        destination = work / "bundle"
        killed += kill_at(export_arguments(command, checkpoint, destination), moments.uniform(0, duration))
        if destination.exists():
            complete += 1
            assert digests(destination) == expected, f"run {index}: the destination is there but not whole"

        # The machine's speed changes: the next moment is drawn from what this whole run took.
        duration = timed_export(command, checkpoint, destination, "--overwrite")
        assert digests(destination) == expected
        assert leftovers(work, "bundle") == [], f"run {index}: staging folders are left behind"
        subprocess.run(["rm", "-rf", work], check=True)
    print(f"{KILLS} kills: {killed} hit a running export, {complete} bundles were complete")
    assert killed >= KILLS // 3, "too few kills hit a running export: the checkpoint is too small"


def test_a_kill_while_overwriting_keeps_one_whole_bundle(command, checkpoint, tmp_path):
    destination = tmp_path / "bundle"
    duration = timed_export(command, checkpoint, destination)
    old = digests(destination)
    other = tmp_path / "other"
    timed_export(command, checkpoint, other, "--weights", "fp16")
    new = digests(other)
    assert old != new
    subprocess.run(["rm", "-rf", other], check=True)

    moments = random.Random(SEED + 1)
    for index in range(10):
        kill_at(export_arguments(command, checkpoint, destination, "--weights", "fp16", "--overwrite"), moments.uniform(0, duration))
        assert digests(destination) in (old, new), f"run {index}: neither the old bundle nor the new one"
    timed_export(command, checkpoint, destination, "--overwrite")
    assert digests(destination) == old
    assert leftovers(tmp_path, "bundle") == []
