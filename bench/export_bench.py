# Measures an ONNX export against cp of the checkpoint (as many bytes as the fp16 bundle holds), by the rule of against_cp.py:
# seconds to the last write, flush seconds and peak memory, on synthesised checkpoints.
import argparse
import json
import pathlib

from against_cp import in_turn, machine, measure_export, require_disk, run, settle

ROOT = pathlib.Path(__file__).resolve().parent.parent
CONFIGS = ROOT / "tests/data/configs"
LINEAR_FORMS = ("gemm", "matmul")


def export_once(command, checkpoint, files, work, linear, arguments):
    destination = work / "bundle"
    measured = measure_export([command, "export", "onnx", checkpoint, "-o", destination, "--weights", "fp16", "--linear", linear,
                               "--context", arguments.context, "--json",
                               *(["--workers", arguments.workers] if arguments.workers else [])], destination, files)
    summary = json.loads(measured.pop("summary"))
    settle(destination)
    return {"seconds": measured.pop("wall_seconds") - summary["flush_seconds"], "flush_seconds": summary["flush_seconds"],
            "write_seconds": summary["write_seconds"], **measured}


def bench(config, rounds, arguments):
    """Synthesises the checkpoint of a config and measures both linear forms. Returns rows for the table."""
    name = config.parent.name
    work = arguments.work
    checkpoint = work / name
    settle(checkpoint)
    print(f"{name}: synthesising", flush=True)
    run([arguments.command, "synth", config, "-o", checkpoint, "--seed", "1", "--shards", "2"])
    files = sorted(checkpoint.glob("*.safetensors"))
    rows = []
    try:
        for linear in LINEAR_FORMS:
            row = in_turn(f"{name} {linear}", rounds, files, work,
                          lambda: export_once(arguments.command, checkpoint, files, work, linear, arguments))
            rows.append({"checkpoint": name, "linear": linear, **row})
    finally:
        settle(checkpoint, work / "copy", work / "bundle")
    return rows


def table(rows):
    lines = ["| checkpoint | linear | bytes written | cp s | export s | speed, cp = 1 | cp flush s | export flush s | peak memory MiB |",
             "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
    for row in rows:
        lines.append(f"| {row['checkpoint']} | {row['linear']} | {row['output_bytes']:,} | {row['cp_seconds']:.2f} | "
                     f"{row['export_seconds']:.2f} | {row['speed_of_cp']:.2f} | {row['cp_flush_seconds']:.2f} | "
                     f"{row['export_flush_seconds']:.2f} | {row['peak_memory_bytes'] / 2**20:.1f} |")
    return "\n".join(lines)


def parameter_bytes(config):
    """A rough size of the bf16 checkpoint of a Spark config, for the check of free disk."""
    fields = json.loads(config.read_text())
    hidden, heads, kv = fields["hidden_size"], fields["num_attention_heads"], fields["num_key_value_heads"]
    width = fields["head_dim"]
    layer = hidden * (2 * heads + 2 * kv) * width + 3 * hidden * fields["intermediate_size"] + hidden * heads
    return 2 * (fields["num_hidden_layers"] * layer + hidden * fields["vocab_size"])


def main():
    parser = argparse.ArgumentParser(description="measure transload export onnx against cp")
    parser.add_argument("--command", type=pathlib.Path, default=ROOT / "build/release/transload")
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "build/bench", help="where checkpoints and outputs are put")
    parser.add_argument("--config", type=pathlib.Path, action="append", help="a config.json; default: Spark-X2.5 1.7B and 4B")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of cp and export in turn")
    parser.add_argument("--memory-rounds", type=int, default=1, help="rounds for 4B, where only memory matters; 0 leaves it out")
    parser.add_argument("--context", default="1024")
    parser.add_argument("--workers", default="")
    parser.add_argument("--json", type=pathlib.Path, help="also write everything measured to this file")
    arguments = parser.parse_args()

    if arguments.config:
        jobs = [(config, arguments.rounds) for config in arguments.config]
    else:
        jobs = [(CONFIGS / "spark-x2.5-1.7b/config.json", arguments.rounds)]
        if arguments.memory_rounds:
            jobs.append((CONFIGS / "spark-x2.5-4b/config.json", arguments.memory_rounds))
    arguments.work.mkdir(parents=True, exist_ok=True)
    # Source and one output at a time, and a tenth more.
    needed = max(parameter_bytes(config) for config, _ in jobs) * 22 // 10
    require_disk(arguments.work, needed)

    _, _, version = run([arguments.command, "--version"])
    rows = []
    for config, rounds in jobs:
        rows += bench(config, rounds, arguments)
    host = machine()
    print(f"\n{version.strip()}, {host['processor']}, {host['cores']} cores; medians\n")
    print(table(rows))
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps({"version": version.strip(), "machine": host, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
