# Runs every sh, python and cpp block of the README, in order, in a folder that looks like the root of the project.
import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
RELEASE = ROOT / "build/release"
README = (ROOT / "README.md").read_text()
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# The order of the page: later blocks use what earlier ones wrote.
BLOCKS = [(match[1], match[2], README.count("\n", 0, match.start()) + 1) for match in BLOCK.finditer(README)]
RUN = [block for block in BLOCKS if block[0] in ("sh", "python", "cpp")]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    assert (RELEASE / "transload").is_file(), "the command is missing: run `make build`"
    folder = tmp_path_factory.mktemp("readme")
    for name in ("build", "tests", "python", "include"):
        (folder / name).symlink_to(ROOT / name)
    return folder


def run(root, *command, text=None):
    environment = dict(os.environ, PYTHONPATH=str(ROOT / "python"))
    result = subprocess.run(command, cwd=root, input=text or "", capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.parametrize("language, text, line", RUN, ids=[f"line-{line}-{language}" for language, _, line in RUN])
def test_block(root, language, text, line):
    if language == "sh":
        run(root, "bash", "-euo", "pipefail", text=text)
    elif language == "python":
        assert run(root, sys.executable, "-", text=text).strip()
    else:
        source = root / f"line{line}.cpp"
        source.write_text(text)
        program = root / f"line{line}"
        run(root, "g++", "-std=c++20", "-Iinclude", str(source), "-o", str(program), "build/release/libtransload.a",
            "-lfmt", "-lhwy", "-pthread")
        assert run(root, str(program)).strip()


def test_the_example_host_runs_a_bundle_through_the_cache(root, tmp_path):
    program, bundle = tmp_path / "host", tmp_path / "bundle"
    run(root, "g++", "-std=c++20", "-Wall", "-Wextra", "-Werror", "-Iinclude", str(ROOT / "examples/host.cpp"), "-o", str(program),
        "build/release/libtransload.a", "-lfmt", "-lhwy", "-pthread")
    for inputs in ("rows", "ids"):
        run(root, "build/release/transload", "export", "onnx", "tests/data/decoders/spark", "-o", str(bundle), "--context", "64",
            "--inputs", inputs, "--overwrite", "--quiet")
        # 3 windows of 7 slots and a cache of 64, keys and values, 2 heads of 32, fp32
        assert run(root, str(program), str(bundle)) == f"11 tokens in {(3 * 7 + 64) * 2 * 2 * 32 * 4} bytes of KV cache\n"


def test_every_block_is_run_or_shown_as_a_console():
    assert {language for language, _, _ in BLOCKS} <= {"sh", "python", "cpp", "console"}
    assert {language for language, _, _ in RUN} == {"sh", "python", "cpp"}
    assert README.count("\n```") == 2 * len(BLOCKS)


def test_every_make_target_it_names_exists():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z][\w-]*)", "\n".join(re.findall(r"`make [^`]*`|^\$ make .*", README, re.MULTILINE))))
    assert named and named <= targets


def test_every_option_it_names_exists():
    table = README.split("### Options, against", 1)[1].split("###", 1)[0]
    first_column = "\n".join(row.split(" | ")[0] for row in table.splitlines() if row.startswith("| `"))
    named = set(re.findall(r"--[a-z][\w-]*", first_column))
    offered = subprocess.run([RELEASE / "transload", "export", "onnx", "--help"], capture_output=True, text=True, check=True).stdout
    missing = {option for option in named if option not in offered}
    assert len(named) >= 18 and not missing


def test_every_link_leads_somewhere():
    for target in re.findall(r"\]\(([^)]+)\)", README):
        assert (ROOT / target).exists(), target
