# What the benchmarks that measure against cp share: running a command, the rule for cp, and a description of the machine.
#
# The rule: cp --reflink=never --sparse=never, the source in the page cache and without holes, cp and the other command in turn,
# outputs deleted and `sync` between, the median of the rounds. The time of the flush is its own column, for cp too (`sync FILE`
# after it).
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys
import time


def run(command):
    """Runs a command: (wall seconds, peak memory in bytes, its standard output). Exits with its message when it fails."""
    out_read, out_write = os.pipe()
    started = time.monotonic()
    process = subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=out_write, stderr=subprocess.PIPE)
    os.close(out_write)
    with os.fdopen(out_read) as stream:
        output = stream.read()
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit {process.returncode}\n{errors.decode(errors='replace')}")
    return seconds, usage.ru_maxrss * 1024, output


def settle(*folders):
    """Deletes outputs and lets the disk come to rest."""
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    os.sync()


def into_page_cache(files):
    for file in files:
        with open(file, "rb", buffering=0) as stream:
            while stream.read(1 << 20):
                pass


def measure_cp(files, work):
    destination = work / "copy"
    settle(destination)
    into_page_cache(files)
    destination.mkdir()
    seconds, _, _ = run(["cp", "--reflink=never", "--sparse=never", *files, destination])
    flush, _, _ = run(["sync", *(destination / file.name for file in files)])
    settle(destination)
    return {"seconds": seconds, "flush_seconds": flush}


def measure_export(command, destination, files):
    """Runs an export that prints a JSON summary. Everything but the flush counts, starting the process and planning too."""
    settle(destination)
    into_page_cache(files)
    wall, memory, output = run(command)
    return {"wall_seconds": wall, "memory_bytes": memory, "summary": output,
            "output_bytes": sum(file.stat().st_size for file in destination.iterdir())}


def median(rows, key):
    return statistics.median(row[key] for row in rows)


def in_turn(name, rounds, files, work, export):
    """cp of the files and `export()` in turn: what every row of these benchmarks says."""
    copies, exports = [], []
    for index in range(rounds):
        copies.append(measure_cp(files, work))
        exports.append(export())
        print(f"{name} {index + 1}/{rounds}: cp {copies[-1]['seconds']:.2f} s, export {exports[-1]['seconds']:.2f} s", flush=True)
    source_bytes = sum(file.stat().st_size for file in files)
    output_bytes = exports[0]["output_bytes"]
    seconds, cp_seconds = median(exports, "seconds"), median(copies, "seconds")
    return {
        "rounds": rounds, "source_bytes": source_bytes, "output_bytes": output_bytes,
        "cp_seconds": cp_seconds, "cp_flush_seconds": median(copies, "flush_seconds"),
        "export_seconds": seconds, "export_flush_seconds": median(exports, "flush_seconds"),
        # Bytes written in a second against cp's: 1 is as fast as cp.
        "speed_of_cp": (output_bytes / seconds) / (source_bytes / cp_seconds),
        "peak_memory_bytes": max(row["memory_bytes"] for row in exports),
        "cp_runs": copies, "export_runs": exports,
    }


def require_disk(folder, needed):
    free = shutil.disk_usage(folder).free
    if free < needed:
        sys.exit(f"{folder}: not enough free disk: got {free:,} bytes, expected {needed:,}")


def machine():
    processor = platform.machine()
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            processor = line.split(":", 1)[1].strip()
            break
    return {"processor": processor, "cores": os.cpu_count(), "kernel": platform.release(),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")}
