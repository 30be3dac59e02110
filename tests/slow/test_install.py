# The installed package: a project outside the tree finds it, compiles every public header alone, and exports a model.
import os
import pathlib
import subprocess

from conftest import ROOT

# A tool of the system is preferred to a wrapper that some Python environment puts on the path.
CMAKE = "/usr/bin/cmake" if os.path.exists("/usr/bin/cmake") else "cmake"


def run(*command):
    result = subprocess.run([str(part) for part in command], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_an_outside_project_builds_and_exports(tmp_path):
    prefix = tmp_path / "prefix"
    run(CMAKE, "--install", ROOT / "build/release", "--prefix", prefix)
    installed = {path.relative_to(prefix).as_posix() for path in prefix.rglob("*") if path.is_file()}
    public = {f"include/transload/{path.name}" for path in (ROOT / "include/transload").glob("*.h")}
    assert {path for path in installed if path.startswith("include/")} == public
    assert run(prefix / "bin/transload", "--version").strip()

    build = tmp_path / "build"
    run(CMAKE, "-S", ROOT / "tests/install", "-B", build, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}",
        "-DCMAKE_BUILD_TYPE=Release")
    run(CMAKE, "--build", build)
    bundle = tmp_path / "bundle"
    printed = run(build / "consumer", ROOT / "tests/data/decoders/spark", bundle)
    assert printed.startswith("transload 0.1.0: spark, ")
    assert (bundle / "contract.json").is_file()
    assert [path.name for path in pathlib.Path(bundle).glob("*.onnx")] == ["step_q1_c32.onnx"]
