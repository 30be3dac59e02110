# What the Python tests share: the package on the path, the command, and exports made once per session.
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
sys.path.insert(0, str(Path(__file__).resolve().parent))


def command() -> Path:
    return Path(os.environ.get("TRANSLOAD", ROOT / "build" / "release" / "transload"))


@pytest.fixture(scope="session")
def data() -> Path:
    return ROOT / "tests" / "data"


@pytest.fixture(scope="session")
def transload():
    """Runs the command and returns the finished process; the exit code is the caller's to judge."""
    path = command()
    if not path.is_file():
        pytest.fail(f"{path}: no command here (build it, or set TRANSLOAD)")

    def run(*arguments, **options):
        return subprocess.run([str(path), *map(str, arguments)], capture_output=True, text=True, **options)

    return run


@pytest.fixture(scope="session")
def export(transload, tmp_path_factory):
    """export(checkpoint, *options) -> bundle folder; one export for each set of options."""
    done = {}

    def run(checkpoint, *options) -> Path:
        key = (str(checkpoint), *map(str, options))
        if key not in done:
            bundle = tmp_path_factory.mktemp("export") / "bundle"
            result = transload("export", "onnx", checkpoint, "-o", bundle, *options)
            assert result.returncode == 0, f"{' '.join(key)}: {result.stderr}"
            done[key] = bundle
        return done[key]

    yield run
    for bundle in done.values():
        shutil.rmtree(bundle)
