# The demo: exports a real trained model with the built command, verifies the written graphs against the checkpoint, generates text in
# ONNX Runtime, and compares it with the reference.
import json
import os
import pathlib
import subprocess
import sys
import time

import real_weights

ROOT = pathlib.Path(__file__).resolve().parent.parent
COMMAND = ROOT / "build/release/transload"
MODELS = {"smollm2": "smollm2-135m", "gemma3": "gemma3-270m"}
CONTEXT = 1024
PREFILL = 16


def export(checkpoint, bundle):
    """Runs the command: (its summary, wall seconds, peak memory in bytes)."""
    arguments = [str(COMMAND), "export", "onnx", str(checkpoint), "-o", str(bundle), "--context", str(CONTEXT),
                 "--q", f"1,{PREFILL}", "--overwrite", "--json"]
    print("$ " + " ".join(arguments[:1] + arguments[1:]).replace(str(ROOT) + "/", ""), flush=True)
    started = time.monotonic()
    process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"the export failed with exit code {process.returncode}")
    return json.loads(output), seconds, usage.ru_maxrss * 1024


def verify(bundle, checkpoint):
    """The report of the command; ends with its own message when a value differs."""
    arguments = [str(COMMAND), "verify", str(bundle), "--checkpoint", str(checkpoint), "--json"]
    print("$ " + " ".join(arguments).replace(str(ROOT) + "/", ""), flush=True)
    finished = subprocess.run(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    if finished.returncode != 0:
        sys.exit(f"the verification failed with exit code {finished.returncode}: {finished.stdout.decode()}")
    return json.loads(finished.stdout)


def generate(bundle, reference):
    """Greedy tokens after the reference prompt: (prompt tokens, tokens, text, tokens per second, seconds to the first)."""
    # Imported here: a child's peak memory starts at what its parent held, which must be little when the command is started.
    from transload.runner import Runner
    from transload.tokenizer import load_tokenizer

    runner = Runner(bundle)
    tokenizer = load_tokenizer(bundle)
    prompt = tokenizer.encode(reference["prompt"])
    tokens = []
    started = first = time.monotonic()
    for token in runner.generate(prompt, max_new_tokens=len(reference["greedy_tokens"])):
        if not tokens:
            first = time.monotonic()
        tokens.append(token)
    seconds = time.monotonic() - first
    # Decoded with the prompt, since some tokenizers drop the space before a first word.
    text = tokenizer.decode(prompt + tokens).removeprefix(tokenizer.decode(prompt))
    # The first token carries the prompt and the loading of the graphs.
    rate = (len(tokens) - 1) / seconds
    return prompt, tokens, text, rate, first - started


def megabytes(count):
    return f"{count / 1e6:,.1f} MB"


def main():
    name = sys.argv[1] if len(sys.argv) > 1 else "smollm2"
    if name not in MODELS:
        sys.exit(f"MODEL: got '{name}', expected one of {', '.join(MODELS)}")
    if not COMMAND.is_file():
        sys.exit(f"{COMMAND} is missing: run `make build`")
    reference_name = MODELS[name]
    reference = real_weights.reference(reference_name)
    try:
        checkpoint = real_weights.weights(reference_name)
    except (FileNotFoundError, ValueError) as error:
        sys.exit(str(error))
    bundle = ROOT / "build/demo" / reference_name

    summary, seconds, memory = export(checkpoint, bundle)
    report = verify(bundle, checkpoint)
    bundle_bytes = sum(path.stat().st_size for path in bundle.iterdir())
    prompt, tokens, text, rate, first_seconds = generate(bundle, reference)

    kv = summary["kv"][0]["bytes"]["fp32"]
    rows = [
        ("model", f"{reference_name} ({summary['family']}), {summary['tensors']} tensors, {summary['parameters'] / 1e6:,.1f} M parameters"),
        ("checkpoint", megabytes(checkpoint.stat().st_size)),
        ("bundle", f"{megabytes(bundle_bytes)} in {len(list(bundle.iterdir()))} files, fp32"),
        ("KV cache", f"{megabytes(kv['hybrid'])} at context {CONTEXT} (uniform: {megabytes(kv['uniform'])})"),
        ("export", f"{seconds:.2f} s, of it {summary['flush_seconds']:.2f} s flush"),
        ("peak memory", f"{memory / 2**20:.1f} MiB"),
        ("verified", f"{report['values_compared']:,} values over {report['tokens']} tokens in {report['seconds']:.1f} s, "
                     f"largest relative error {report['worst_relative']:.1e} (layer outputs "
                     f"{max(layer['out']['relative'] for layer in report['layers']):.1e})"),
        ("first token", f"{first_seconds:.2f} s ({len(prompt)} prompt tokens, graphs loaded)"),
        ("generation", f"{rate:.1f} tokens/s"),
    ]
    print()
    for label, value in rows:
        print(f"{label:>12}  {value}")
    print(f"\n{reference['prompt']}\033[1m{text}\033[0m\n" if sys.stdout.isatty() else f"\n{reference['prompt']}|{text}\n")

    if prompt != reference["prompt_tokens"]:
        sys.exit(f"prompt tokens differ: got {prompt}, expected {reference['prompt_tokens']}")
    if tokens != reference["greedy_tokens"] or text != reference["greedy_text"]:
        sys.exit(f"generated text differs: got {tokens} {text!r}, expected {reference['greedy_tokens']} {reference['greedy_text']!r}")
    print(f"all {len(tokens)} greedy tokens equal the reference (tests/data/real/{reference_name}.json)")


if __name__ == "__main__":
    main()
