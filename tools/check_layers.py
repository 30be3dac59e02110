# Checks the arrows between the rooms of src/, where third-party headers may appear, and where family names may appear.
import argparse
import pathlib
import re
import sys

# What each room may include, besides itself and the standard library. docs/architecture.md explains the order.
MAY_INCLUDE = {
    "base": set(),
    "io": {"base"},
    "weights": {"base", "io"},
    "model": {"base", "io", "weights"},
    "graph": {"base", "weights"},
    "decode": {"base", "weights", "model", "graph"},
    "targets/onnx": {"base", "io", "weights", "graph"},
    "targets/trtllm": {"base", "io", "weights", "model"},
    "runtime": {"base", "io", "weights", "model", "graph", "decode"},
    "export": {"base", "io", "weights", "model", "graph", "decode", "runtime", "targets/onnx", "targets/trtllm"},
    "cli": set(),
}

# The room each public header belongs to.
PUBLIC = {
    "version": "base", "error": "base", "dtype": "base", "progress": "base", "peak_memory": "base",
    "checkpoint": "io",
    "recipe": "weights", "block_sparse": "model",
    "decoder_model": "model",
    "step_options": "decode", "contract": "decode",
    "trtllm": "targets/trtllm",
    "tensor": "runtime", "kv_cache": "runtime",
    "export_onnx": "export", "inspect": "export", "synth": "export", "verify": "export", "decoder": "export",
    "generate": "export", "evaluate": "export", "kv_memory": "export",
    "export_trtllm": "export", "import_trtllm": "export", "verify_trtllm": "export", "tensor_warning": "export",
}
# Single public headers that more rooms may see: a target writes what the contract of the graph says.
PUBLIC_FOR = {"targets/onnx": {"step_options", "contract"}}

# Third-party headers and the places they are confined to; a place is a folder or a file of src/.
THIRD_PARTY = {
    "nlohmann/": ["io/json.cpp"],
    "CLI/": ["cli/"],
    "protozero/": ["targets/onnx/"],
    "xxhash.h": ["io/hash.cpp"],
    "hwy/": ["weights/", "runtime/"],
    "fmt/": [""],
}

# Besides families/: the table, a list of config field names ("is_llama_config"), and architecture names that a format carries.
FAMILY_PLACES = ("model/families/", "model/families.cpp", "model/families.h", "model/harmless_fields.cpp",
                 "targets/trtllm/architectures.cpp")

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
ROOMS = sorted(MAY_INCLUDE, key=len, reverse=True)


def room_of(path):
    """The room of a path relative to src/, or None."""
    return next((room for room in ROOMS if path.startswith(room + "/")), None)


def include_fault(source, room, header, quoted):
    """Why `source` of `room` may not include `header`; None when it may. Room "public" is include/transload."""
    if header.startswith("transload/"):
        name = header.removeprefix("transload/").removesuffix(".h")
        if name not in PUBLIC:
            return f"'{header}' belongs to no room: add it to tools/check_layers.py"
        owner = PUBLIC[name]
        if room in ("cli", owner) or owner in MAY_INCLUDE[room] or name in PUBLIC_FOR.get(room, ()):
            return None
        return f"room '{room}' may not include '{header}' of room '{owner}'"
    target = room_of(header)
    if target is not None and quoted:
        if source.startswith("include/"):
            return f"a public header may not include '{header}'"
        if target == room or target in MAY_INCLUDE[room]:
            return None
        return f"room '{room}' may not include '{header}' of room '{target}'"
    for prefix, places in THIRD_PARTY.items():
        if header.startswith(prefix):
            if source.startswith("include/"):
                return f"a public header may not include '{header}'"
            relative = source.removeprefix("src/")
            if any(relative == place or (place == "" or place.endswith("/")) and relative.startswith(place) for place in places):
                return None
            return f"'{header}' is allowed only in {', '.join('src/' + place for place in places)}"
    if quoted:
        return f"'{header}' is neither of a room nor public: write it as \"room/file.h\""
    if "/" in header and not header.startswith("sys/"):
        return f"'{header}' is of a library that tools/check_layers.py does not know"
    return None


def code_of(text):
    """The text with comments blanked, line by line in place."""
    return COMMENT.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)


def line_of(text, position):
    return text.count("\n", 0, position) + 1


def check(root):
    """All faults under `root`, each one line 'file:line: reason'."""
    faults = []
    families = sorted(path.stem for path in (root / "src/model/families").glob("*.cpp"))
    # "llama3" is a kind of rotary scaling, so a digit after the name makes another word.
    family_word = re.compile(r"(?<![A-Za-z])(" + "|".join(families) + r")(?![A-Za-z0-9])") if families else None
    for path in sorted([*root.glob("src/**/*"), *root.glob("include/**/*")]):
        if path.suffix not in (".h", ".cpp"):
            continue
        source = path.relative_to(root).as_posix()
        if source.startswith("include/"):
            room = PUBLIC.get(path.stem)
        else:
            room = room_of(source.removeprefix("src/"))
        if room is None:
            faults.append(f"{source}:1: belongs to no room: add it to tools/check_layers.py")
            continue
        text = code_of(path.read_text())
        for match in INCLUDE.finditer(text):
            reason = include_fault(source, room, match[2], match[1] == '"')
            if reason:
                faults.append(f"{source}:{line_of(text, match.start(2))}: {reason}")
        if family_word and not source.removeprefix("src/").startswith(FAMILY_PLACES):
            for match in family_word.finditer(text):
                faults.append(f"{source}:{line_of(text, match.start())}: family name '{match[1]}' outside src/model/families")
    return faults


def main():
    parser = argparse.ArgumentParser(description="check which room includes which")
    parser.add_argument("root", nargs="?", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    faults = check(parser.parse_args().root)
    print("\n".join(faults) if faults else "layers: every include follows the arrows")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
