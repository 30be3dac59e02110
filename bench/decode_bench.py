# Measures the reference forward pass against ONNX Runtime: decode and prefill speed of real models, two threads each.
#
# The rule: `transload run` on the GGUF, and ONNX Runtime (fp32, 2 threads of one operator, 1 between operators) on our own fp32
# export with graphs of one and of 256 tokens, last logits only. Both read the same 256 tokens and then decode, in processes of
# their own, in turn; the median of the rounds. Of ONNX Runtime only session.run counts, of the reference everything but loading.
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import real_weights  # noqa: E402
from against_cp import machine  # noqa: E402

MODELS = ("smollm2-135m", "gemma3-270m")
PROMPT = 256
CONTEXT = 512
THREADS = 2


def run(command):
    process = subprocess.run([str(part) for part in command], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if process.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit {process.returncode}\n{process.stderr}")
    return process.stdout


def prompt_ids(vocabulary):
    """Any tokens will do: the arithmetic does not depend on them."""
    return [2 + 7919 * i % (vocabulary - 2) for i in range(PROMPT)]


def export(command, checkpoint, bundle):
    run([command, "export", "onnx", checkpoint, "-o", bundle, "--weights", "fp32", "--compute", "fp32", "--context", CONTEXT,
         "--q", f"1,{PROMPT}", "--logits", "last", "--overwrite", "--quiet"])


def run_onnx(bundle, new_tokens):
    """Child process: prints the seconds of the prefill call and of the decode calls."""
    from transload.runner import Runner

    seconds = []

    class TimedSession:

        def __init__(self, session):
            self.session = session

        def run(self, names, feeds):
            started = time.perf_counter()
            values = self.session.run(names, feeds)
            seconds.append(time.perf_counter() - started)
            return values

    class TimedRunner(Runner):

        def _session(self, step):
            return TimedSession(super()._session(step))

    runner = TimedRunner(bundle, threads=THREADS)
    prompt = prompt_ids(runner.contract.vocab_size)
    # The first call of a session may set it up; it does not count.
    runner.feed(prompt)
    runner.feed(prompt[:1])
    runner.reset()
    seconds.clear()
    for _ in runner.generate(prompt, new_tokens + 1):
        pass
    print(json.dumps({"prompt_seconds": seconds[0], "decode_seconds": sum(seconds[1:]), "decoded": len(seconds) - 1}))


def measure_onnx(bundle, new_tokens):
    result = json.loads(run([sys.executable, __file__, "--run-onnx", bundle, "--new-tokens", new_tokens]))
    return {"prefill": PROMPT / result["prompt_seconds"], "decode": result["decoded"] / result["decode_seconds"]}


def measure_reference(command, checkpoint, vocabulary, new_tokens):
    ids = ",".join(map(str, prompt_ids(vocabulary)))
    result = json.loads(run([command, "run", checkpoint, "--prompt-ids", ids, "--max-new-tokens", new_tokens + 1, "--ignore-eos",
                             "--threads", THREADS, "--json", "--quiet"]))
    return {"prefill": PROMPT / result["prompt_seconds"], "decode": new_tokens / result["decode_seconds"]}


def bench(name, arguments):
    checkpoint = real_weights.weights(name)
    bundle = arguments.work / f"{name}-fp32"
    print(f"{name}: exporting", flush=True)
    export(arguments.command, checkpoint, bundle)
    vocabulary = json.loads((bundle / "contract.json").read_text())["vocab_size"]
    ours, theirs = [], []
    for index in range(arguments.rounds):
        ours.append(measure_reference(arguments.command, checkpoint, vocabulary, arguments.new_tokens))
        theirs.append(measure_onnx(bundle, arguments.new_tokens))
        print(f"{name} {index + 1}/{arguments.rounds}: " + ", ".join(
            f"{kind} {ours[-1][kind]:.1f} and {theirs[-1][kind]:.1f} tokens/s" for kind in ("decode", "prefill")), flush=True)
    row = {"model": name, "rounds": arguments.rounds, "new_tokens": arguments.new_tokens, "checkpoint_bytes":
           checkpoint.stat().st_size, "reference_runs": ours, "onnxruntime_runs": theirs}
    for kind in ("decode", "prefill"):
        row[f"{kind}_tokens_per_second"] = statistics.median(run[kind] for run in ours)
        row[f"onnxruntime_{kind}_tokens_per_second"] = statistics.median(run[kind] for run in theirs)
        row[f"{kind}_speed_of_onnxruntime"] = (row[f"{kind}_tokens_per_second"] / row[f"onnxruntime_{kind}_tokens_per_second"])
    return row


def table(rows):
    lines = ["| model | decode tokens/s | ONNX Runtime fp32 | ratio | prefill of 256 tokens/s | ONNX Runtime fp32 | ratio |",
             "| --- | --- | --- | --- | --- | --- | --- |"]
    for row in rows:
        cells = [row["model"]]
        for kind in ("decode", "prefill"):
            cells += [f"{row[f'{kind}_tokens_per_second']:.1f}", f"{row[f'onnxruntime_{kind}_tokens_per_second']:.1f}",
                      f"{row[f'{kind}_speed_of_onnxruntime']:.2f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description="measure transload run against ONNX Runtime")
    parser.add_argument("--command", type=pathlib.Path, default=ROOT / "build/release/transload")
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "build/bench", help="where the exports are put")
    parser.add_argument("--model", action="append", choices=MODELS, help="default: all")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of both in turn")
    parser.add_argument("--new-tokens", type=int, default=64, help="decode calls of a round")
    parser.add_argument("--json", type=pathlib.Path, help="also write everything measured to this file")
    parser.add_argument("--run-onnx", type=pathlib.Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run_onnx:
        return run_onnx(arguments.run_onnx, arguments.new_tokens)

    arguments.work.mkdir(parents=True, exist_ok=True)
    rows = [bench(name, arguments) for name in arguments.model or MODELS]
    import onnxruntime
    version = run([arguments.command, "--version"]).strip()
    host = machine()
    print(f"\n{version}, ONNX Runtime {onnxruntime.__version__}, {host['processor']}, {THREADS} threads; medians\n")
    print(table(rows))
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps({"version": version, "onnxruntime": onnxruntime.__version__, "machine": host,
                                              "prompt_tokens": PROMPT, "context": CONTEXT, "threads": THREADS, "rows": rows},
                                             indent=1) + "\n")


if __name__ == "__main__":
    main()
