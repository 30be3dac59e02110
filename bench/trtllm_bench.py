# Measures the export of a Phi-3-mini-shaped bf16 checkpoint to TensorRT-LLM against cp, by the rule of against_cp.py: fp16 over
# one and two ranks by bytes written in a second, weight-only int8 and int4 by the time that cp takes for the source.
import argparse
import json
import pathlib

from against_cp import in_turn, machine, measure_export, require_disk, run, settle

ROOT = pathlib.Path(__file__).resolve().parent.parent
CONFIG = ROOT / "tests/data/configs/phi-3-mini-4k/config.json"
SOURCE_BYTES = 7_642_181_832  # of the real dimensions in bf16

# Name, options, and what is asked for: at least cp's rate ("rate"), or at most that many times cp's time for the source.
JOBS = (
    ("float16 tp 1", (), "rate"),
    ("float16 tp 2", ("--tp", "2"), "rate"),
    ("int8 deferred", ("--quant", "int8"), 1.5),
    ("int4 deferred", ("--quant", "int4"), 1.5),
    ("int8 baked sm80", ("--quant", "int8", "--form", "baked", "--layout", "sm80"), 1.5),
    ("int4 baked sm80", ("--quant", "int4", "--form", "baked", "--layout", "sm80"), 1.5),
    ("int8 baked plain", ("--quant", "int8", "--form", "baked", "--layout", "plain"), 1.5),
    ("int8 baked sm80 tp 2", ("--tp", "2", "--quant", "int8", "--form", "baked", "--layout", "sm80"), 1.5),
)


def export_once(arguments, options, checkpoint, files):
    destination = arguments.work / "engine-checkpoint"
    row = measure_export([arguments.command, "export", "trtllm", checkpoint, "-o", destination, "--dtype", "float16", *options,
                          "--json", "--quiet", *(["--workers", arguments.workers] if arguments.workers else [])], destination, files)
    summary = json.loads(row.pop("summary"))
    settle(destination)
    return {"seconds": row.pop("wall_seconds") - summary["flush_seconds"], "flush_seconds": summary["flush_seconds"], **row}


def bench(arguments):
    checkpoint = arguments.work / "phi3-mini"
    settle(checkpoint)
    print("synthesising", flush=True)
    run([arguments.command, "synth", arguments.config, "-o", checkpoint, "--seed", "1", "--shards", "2", "--quiet"])
    files = sorted(checkpoint.glob("*.safetensors"))
    rows = []
    try:
        for name, options, asked in JOBS:
            if arguments.job and not any(part in name for part in arguments.job):
                continue
            row = in_turn(name, arguments.rounds, files, arguments.work,
                          lambda: export_once(arguments, options, checkpoint, files))
            times = row["export_seconds"] / row["cp_seconds"]
            rows.append({
                "job": name, **row,
                "times_of_cp": times,  # seconds against cp's for the source
                "asked": "speed >= 1" if asked == "rate" else f"time <= {asked}",
                "met": row["speed_of_cp"] >= 1 if asked == "rate" else times <= asked,
            })
    finally:
        settle(checkpoint, arguments.work / "copy", arguments.work / "engine-checkpoint")
    return rows


def table(rows):
    lines = ["| job | bytes written | cp s | export s | speed, cp = 1 | time, cp of the source = 1 | asked | met | peak memory MiB |",
             "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
    for row in rows:
        lines.append(f"| {row['job']} | {row['output_bytes']:,} | {row['cp_seconds']:.2f} | {row['export_seconds']:.2f} | "
                     f"{row['speed_of_cp']:.2f} | {row['times_of_cp']:.2f} | {row['asked']} | {'yes' if row['met'] else 'no'} | "
                     f"{row['peak_memory_bytes'] / 2**20:.1f} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description="measure transload export trtllm against cp")
    parser.add_argument("--command", type=pathlib.Path, default=ROOT / "build/release/transload")
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "build/bench", help="where the checkpoint and outputs are put")
    parser.add_argument("--config", type=pathlib.Path, default=CONFIG)
    parser.add_argument("--rounds", type=int, default=5, help="rounds of cp and export in turn")
    parser.add_argument("--job", action="append", help="only jobs whose name holds this text; may be repeated")
    parser.add_argument("--workers", default="")
    parser.add_argument("--json", type=pathlib.Path, help="also write everything measured to this file")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    if arguments.config == CONFIG:
        require_disk(arguments.work, SOURCE_BYTES * 22 // 10)  # source and one output at a time, and a tenth more

    _, _, version = run([arguments.command, "--version"])
    rows = bench(arguments)
    host = machine()
    print(f"\n{version.strip()}, {host['processor']}, {host['cores']} cores; medians\n")
    print(table(rows))
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps({"version": version.strip(), "machine": host, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
