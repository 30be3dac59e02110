# An export killed at a random moment leaves either nothing or the whole bundle, and the next run succeeds and cleans up.
import random
import signal
import subprocess
import time

from conftest import digests, export_arguments, leftovers, run_export

KILLS = 50
SEED = 20240611


def test_a_killed_export_leaves_nothing_half_written(command, checkpoint, tmp_path):
    reference = tmp_path / "reference"
    started = time.monotonic()
    first = run_export(command, checkpoint, reference)
    duration = time.monotonic() - started
    assert first.returncode == 0, first.stderr
    expected = digests(reference)

    moments = random.Random(SEED)
    killed = complete = 0
    for index in range(KILLS):
        work = tmp_path / f"run{index}"
        work.mkdir()
        destination = work / "bundle"
        process = subprocess.Popen(export_arguments(command, checkpoint, destination), stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(moments.uniform(0, duration))
        process.send_signal(signal.SIGKILL)
        killed += process.wait() == -signal.SIGKILL
        if destination.exists():
            complete += 1
            assert digests(destination) == expected, f"run {index}: the destination is there but not whole"

        again = run_export(command, checkpoint, destination, "--overwrite")
        assert again.returncode == 0, f"run {index}: {again.stderr}"
        assert digests(destination) == expected
        assert leftovers(work, "bundle") == [], f"run {index}: staging folders are left behind"
        subprocess.run(["rm", "-rf", work], check=True)
    print(f"{KILLS} kills over {duration:.2f} s: {killed} hit a running export, {complete} bundles were complete")
    assert killed >= KILLS // 2, "too few kills hit a running export: the checkpoint is too small"


def test_a_kill_while_overwriting_keeps_one_whole_bundle(command, checkpoint, tmp_path):
    destination = tmp_path / "bundle"
    started = time.monotonic()
    assert run_export(command, checkpoint, destination).returncode == 0
    duration = time.monotonic() - started
    old = digests(destination)
    other = tmp_path / "other"
    assert run_export(command, checkpoint, other, "--weights", "fp16").returncode == 0
    new = digests(other)
    assert old != new
    subprocess.run(["rm", "-rf", other], check=True)

    moments = random.Random(SEED + 1)
    for index in range(10):
        process = subprocess.Popen(export_arguments(command, checkpoint, destination, "--weights", "fp16", "--overwrite"),
                                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(moments.uniform(0, duration))
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert digests(destination) in (old, new), f"run {index}: neither the old bundle nor the new one"
    assert run_export(command, checkpoint, destination, "--overwrite").returncode == 0
    assert digests(destination) == old
    assert leftovers(tmp_path, "bundle") == []
