# A full disk or a file limit: exit code 5, a message that names the file, nothing left, and the next run succeeds.
import subprocess

import pytest

from conftest import leftovers, limited, run_export

MIB = 1 << 20


def assert_refused(result, work):
    assert result.returncode == 5, (result.returncode, result.stderr)
    assert "weights.bin" in result.stderr
    assert result.stdout == ""
    assert leftovers(work) == []


@pytest.mark.parametrize("limit", [MIB, 64 * MIB, 200 * MIB])
def test_a_file_size_limit_is_an_error(command, checkpoint, tmp_path, limit):
    destination = tmp_path / "bundle"
    assert_refused(run_export(command, checkpoint, destination, preexec_fn=limited(limit)), tmp_path)
    again = run_export(command, checkpoint, destination)
    assert again.returncode == 0, again.stderr
    assert leftovers(tmp_path, "bundle") == []


def test_a_file_size_limit_keeps_the_old_bundle(command, checkpoint, tmp_path):
    destination = tmp_path / "bundle"
    assert run_export(command, checkpoint, destination).returncode == 0
    before = {path.name: (path.stat().st_size, path.stat().st_mtime_ns) for path in destination.iterdir()}
    result = run_export(command, checkpoint, destination, "--overwrite", preexec_fn=limited(64 * MIB))
    assert result.returncode == 5, result.stderr
    assert {path.name: (path.stat().st_size, path.stat().st_mtime_ns) for path in destination.iterdir()} == before
    assert leftovers(tmp_path, "bundle") == []


def test_a_full_disk_is_an_error(command, checkpoint, small_disk):
    destination = small_disk / "bundle"
    assert_refused(run_export(command, checkpoint, destination), small_disk)
    subprocess.run(["mount", "-o", "remount,size=1g", small_disk], check=True)
    again = run_export(command, checkpoint, destination)
    assert again.returncode == 0, again.stderr
    assert leftovers(small_disk, "bundle") == []


def test_synth_on_a_full_disk_is_an_error(command, checkpoint, small_disk):
    result = subprocess.run([command, "synth", checkpoint / "config.json", "-o", small_disk / "model", "--seed", "1"],
                            stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert result.returncode == 5, (result.returncode, result.stderr)
    assert leftovers(small_disk) == []
