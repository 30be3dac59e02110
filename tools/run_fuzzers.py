# Runs every fuzzer of a build folder for a while, some at a time; fails when one finds a crash, a leak or a hang.
import argparse
import concurrent.futures
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent


def run(fuzzer, build, seconds):
    """Returns (passed, one line to print)."""
    name = fuzzer.name.removeprefix("fuzz_")
    found = build / "found" / name
    corpus = build / "corpus" / name
    for folder in (found, corpus):
        folder.mkdir(parents=True, exist_ok=True)
    folders = [str(corpus)]
    seeds = ROOT / "fuzz" / "corpus" / name
    if seeds.is_dir():
        folders.append(str(seeds))
    log = build / f"{fuzzer.name}.log"
    started = time.monotonic()
    with open(log, "wb") as out:
        code = subprocess.run(
            [str(fuzzer), f"-max_total_time={seconds}", "-timeout=10", "-rss_limit_mb=1024", "-max_len=65536",
             f"-artifact_prefix={found}/", *folders],
            stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT).returncode
    elapsed = time.monotonic() - started
    text = log.read_text(errors="replace")
    runs = re.findall(r"^#(\d+)\s", text, re.MULTILINE)
    if code != 0:
        return False, f"{fuzzer.name}: exit {code} after {elapsed:.0f} s, see {log} and {found}\n" + text[-4000:]
    return True, f"{fuzzer.name}: {runs[-1] if runs else 0} inputs in {elapsed:.0f} s, nothing found"


def main():
    parser = argparse.ArgumentParser(description="run the fuzzers of a build folder")
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    fuzzers = sorted(path for path in arguments.build.glob("fuzz_*") if path.is_file() and path.suffix == "")
    if not fuzzers:
        sys.exit(f"no fuzzers in {arguments.build}")
    passed = 0
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for ok, line in pool.map(lambda fuzzer: run(fuzzer, arguments.build, arguments.seconds), fuzzers):
            print(line, flush=True)
            passed += ok
    print(f"fuzzers: {passed} passed, {len(fuzzers) - passed} failed")
    sys.exit(passed != len(fuzzers))


if __name__ == "__main__":
    main()
