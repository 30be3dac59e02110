# Checks that every source file stays short, begins with a comment that says its subject, and has a telling name.
import argparse
import pathlib
import re
import sys

MAX_LINES = 600
FOLDERS = ("include", "src", "tests", "bench", "examples", "fuzz", "tools", "python", "cmake")
# The comment marker of each kind of file.
MARKERS = {".h": "//", ".cpp": "//", ".py": "#", ".sh": "#", ".cmake": "#"}
VAGUE = re.compile(r"(^|_)(utils?|helpers?|common|manager|misc|tmp)(_|$)")


def fault_of(path, text):
    lines = text.splitlines()
    if len(lines) > MAX_LINES:
        return f"too long: got {len(lines)} lines, expected at most {MAX_LINES}"
    if VAGUE.search(path.stem):
        return "a vague name: say what is in it"
    marker = MARKERS[path.suffix]
    if lines and lines[0].startswith("#!"):
        lines = lines[1:]
    # Three words at least, so that an empty banner does not pass for a subject.
    first = lines[0] if lines else ""
    if not first.startswith(marker + " ") or len(first.removeprefix(marker).split()) < 3:
        return f"the first line is not a comment that says the subject: got '{first[:60]}'"
    return None


def check(root):
    """All faults under `root`, each one line 'file: reason'."""
    faults = []
    for folder in FOLDERS:
        for path in sorted((root / folder).glob("**/*")):
            relative = path.relative_to(root)
            if path.suffix not in MARKERS or relative.parts[:2] == ("tests", "data") or not path.is_file():
                continue
            reason = fault_of(path, path.read_text())
            if reason:
                faults.append(f"{relative.as_posix()}: {reason}")
    return faults


def main():
    parser = argparse.ArgumentParser(description="check size, first line and name of every source file")
    parser.add_argument("root", nargs="?", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    faults = check(parser.parse_args().root)
    print("\n".join(faults) if faults else "sizes: every file is short and says its subject")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
