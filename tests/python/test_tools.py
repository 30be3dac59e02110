# The checkers of tools/: the tree passes, and each rule refuses a file that breaks it.
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import check_layers  # noqa: E402
import check_sizes  # noqa: E402


def write(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_the_tree_follows_the_arrows():
    assert check_layers.check(ROOT) == []


def test_the_tree_keeps_the_file_rules():
    assert check_sizes.check(ROOT) == []


GOOD_TREE = {
    "include/transload/error.h": "#include <string>\n",
    "include/transload/checkpoint.h": '#include "transload/error.h"\n',
    "src/io/file.cpp": '#include "io/file.h"\n#include <fmt/format.h>\n#include <sys/stat.h>\n#include "transload/error.h"\n',
    "src/io/json.cpp": "#include <nlohmann/json.hpp>\n",
    "src/model/families.cpp": 'const char* const kNames[] = {"gemma3"};\n',
    "src/model/families/gemma3.cpp": '#include "model/families.h"\nconst char* const kName = "gemma3";\n',
    "src/model/rope.cpp": '// as gemma3 has it\nconst char* const kKind = "llama3";\n',
    "src/model/families/llama.cpp": "",
    "src/targets/onnx/writer.cpp": '#include <protozero/pbf_writer.hpp>\n#include "transload/contract.h"\n',
    "src/cli/main.cpp": '#include <CLI/CLI.hpp>\n#include "cli/progress_bar.h"\n#include "transload/checkpoint.h"\n',
}


def test_layers_accept_a_tree_that_follows_them(tmp_path):
    write(tmp_path, GOOD_TREE)
    assert check_layers.check(tmp_path) == []


@pytest.mark.parametrize("name, line, reason", [
    ("src/io/gguf.cpp", '#include "weights/plan.h"', "room 'io' may not include 'weights/plan.h' of room 'weights'"),
    ("src/base/error.cpp", '#include "transload/checkpoint.h"', "room 'base' may not include 'transload/checkpoint.h' of room 'io'"),
    ("src/targets/onnx/a.cpp", '#include "decode/attention.h"', "room 'targets/onnx' may not include 'decode/attention.h' of room 'decode'"),
    ("src/cli/a.cpp", '#include "io/file.h"', "room 'cli' may not include 'io/file.h' of room 'io'"),
    ("src/graph/a.cpp", "#include <nlohmann/json.hpp>", "'nlohmann/json.hpp' is allowed only in src/io/json.cpp"),
    ("src/io/a.cpp", "#include <xxhash.h>", "'xxhash.h' is allowed only in src/io/hash.cpp"),
    ("src/decode/a.cpp", "#include <hwy/highway.h>", "'hwy/highway.h' is allowed only in src/weights/, src/runtime/"),
    ("include/transload/recipe.h", "#include <fmt/format.h>", "a public header may not include 'fmt/format.h'"),
    ("include/transload/recipe.h", '#include "weights/plan.h"', "a public header may not include 'weights/plan.h'"),
    ("src/io/a.cpp", '#include "file.h"', "'file.h' is neither of a room nor public: write it as \"room/file.h\""),
    ("src/io/a.cpp", "#include <boost/any.hpp>", "'boost/any.hpp' is of a library that tools/check_layers.py does not know"),
    ("src/io/a.cpp", '#include "transload/novel.h"', "'transload/novel.h' belongs to no room: add it to tools/check_layers.py"),
    ("src/decode/a.cpp", 'const bool kIt = name == "gemma3";', "family name 'gemma3' outside src/model/families"),
    ("src/io/a.cpp", "const bool is_llama_file = true;", "family name 'llama' outside src/model/families"),
])
def test_layers_refuse(tmp_path, name, line, reason):
    write(tmp_path, GOOD_TREE)
    write(tmp_path, {name: f"// {line}\n{line}\n"})
    assert check_layers.check(tmp_path) == [f"{name}:2: {reason}"]


def test_layers_refuse_a_folder_that_is_no_room(tmp_path):
    write(tmp_path, {"src/extras/a.cpp": "// extra things here\n"})
    assert check_layers.check(tmp_path) == ["src/extras/a.cpp:1: belongs to no room: add it to tools/check_layers.py"]


def test_sizes_accept_a_short_file_with_a_subject(tmp_path):
    write(tmp_path, {"src/io/file.cpp": "// Files: positioned reads and writes.\n" + "int x;\n" * 599,
                     "tools/check.py": "#!/usr/bin/env python3\n# Checks this and that.\n",
                     "tests/data/made.py": "import this\n"})
    assert check_sizes.check(tmp_path) == []


@pytest.mark.parametrize("name, text, reason", [
    ("src/io/a.cpp", "// Files: reads and writes.\n" + "int x;\n" * 600, "too long: got 601 lines, expected at most 600"),
    ("src/io/a.cpp", "#include <string>\n", "the first line is not a comment that says the subject: got '#include <string>'"),
    ("src/io/a.h", "#pragma once\n", "the first line is not a comment that says the subject: got '#pragma once'"),
    ("python/a.py", "import os\n", "the first line is not a comment that says the subject: got 'import os'"),
    ("tools/a.py", "#!/usr/bin/env python3\nimport os\n", "the first line is not a comment that says the subject: got 'import os'"),
    ("cmake/a.cmake", "# ---\n", "the first line is not a comment that says the subject: got '# ---'"),
    ("src/io/a.cpp", "", "the first line is not a comment that says the subject: got ''"),
    ("src/io/file_utils.cpp", "// Things for files here.\n", "a vague name: say what is in it"),
])
def test_sizes_refuse(tmp_path, name, text, reason):
    write(tmp_path, {name: text})
    assert check_sizes.check(tmp_path) == [f"{name}: {reason}"]
