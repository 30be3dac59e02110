# The command line `python -m transload.generate BUNDLE --prompt TEXT`: text from an exported bundle, streamed to the terminal.
from __future__ import annotations

import json
import resource
import sys
import time

from transload.arguments import Parser, add_chat, at_least, probability, require_chat, share, token_list
from transload.chat import ChatStream, start_conversation
from transload.command_line import exit_code_of
from transload.error import Error, UsageError
from transload.runner import Runner
from transload.sampling import Sampler
from transload.tokenizer import TextStream, load_tokenizer


def _arguments(argv):
    parser = Parser(prog="python -m transload.generate", description="Generates text from an exported bundle in ONNX Runtime.")
    parser.add_argument("bundle", help="folder written by 'transload export onnx', of a whole model with its head")
    prompt = parser.add_mutually_exclusive_group(required=True)
    prompt.add_argument("--prompt", metavar="TEXT", help="text to continue, as it is: no chat template is applied")
    prompt.add_argument("--chat", metavar="TEXT", help="a message to answer by the model's chat template")
    prompt.add_argument("--prompt-ids",
                        metavar="IDS",
                        type=token_list,
                        help="tokens to continue, such as 1,2,3; no tokenizer needed")
    parser.add_argument("--max-new-tokens",
                        metavar="N",
                        type=at_least(int, 1),
                        default=128,
                        help="tokens to generate (default 128)")
    parser.add_argument("--context",
                        metavar="C",
                        type=at_least(int, 1),
                        help="use the graphs of this context (default: smallest that fits)")
    parser.add_argument("--threads", metavar="N", type=at_least(int, 1), help="threads of ONNX Runtime (default: one per core)")
    parser.add_argument("--temperature",
                        metavar="T",
                        type=at_least(float, 0),
                        default=0.0,
                        help="randomness of sampling; 0 takes the best token (default)")
    parser.add_argument("--top-k",
                        metavar="K",
                        type=at_least(int, 1),
                        default=0,
                        help="sample among the K best tokens (default: all; needs a temperature above 0)")
    parser.add_argument("--top-p",
                        metavar="P",
                        type=probability,
                        default=1.0,
                        help="sample among the best tokens of total probability P (default 1; needs a temperature above 0)")
    parser.add_argument("--min-p",
                        metavar="P",
                        type=share,
                        default=0.0,
                        help="sample among tokens of at least P times the best one's probability (needs a temperature above 0)")
    parser.add_argument("--seed",
                        metavar="N",
                        type=at_least(int, 0),
                        help="makes sampling repeatable (default: different each time)")
    parser.add_argument("--ignore-eos", action="store_true", help="do not stop at the model's end-of-text tokens")
    add_chat(parser)
    parser.add_argument("--dump-inputs",
                        metavar="DIR",
                        help="write the inputs of the first step after the prompt to DIR as .npy and .raw, with input_names.txt")
    parser.add_argument("--json", action="store_true", help="print one JSON object on standard output instead of text")
    parser.add_argument("--stats", action="store_true", help="print speed and memory on standard error")
    options = parser.parse_args(argv)
    require_chat(options)
    return options


def _tokenizer(runner: Runner, options):
    name = runner.contract.tokenizer
    if name is None:
        if options.prompt_ids is None:
            flag = "--prompt" if options.chat is None else "--chat"
            raise UsageError(f"{options.bundle}: bundle has no tokenizer: got {flag}, expected --prompt-ids")
        return None
    try:
        return load_tokenizer(runner.bundle / name, options.tokenizer_pre)
    except Error as error:
        if options.prompt_ids is None:
            raise
        print(f"warning: {error}; token ids are shown instead of text", file=sys.stderr)
        return None


def _prompt(runner: Runner, tokenizer, options):
    if options.prompt_ids is not None:
        return options.prompt_ids
    if options.prompt is not None:
        return tokenizer.encode(options.prompt)
    return start_conversation(runner.bundle, tokenizer, options.system, options.thinking).ask(options.chat)[0]


def _run(options) -> None:
    started = time.perf_counter()
    runner = Runner(options.bundle, options.context, options.threads)
    tokenizer = _tokenizer(runner, options)
    prompt = _prompt(runner, tokenizer, options)
    sampler = Sampler(options.temperature, options.top_k, options.top_p, options.seed, options.min_p)
    stop = () if options.ignore_eos else runner.contract.eos_tokens

    runner.prepare(prompt, options.max_new_tokens)
    loaded = time.perf_counter()
    stream = None if tokenizer is None else TextStream(tokenizer) if options.chat is None else ChatStream(tokenizer)
    tokens, pieces, finish, prompt_done = [], [], "length", loaded
    for token in runner.generate(prompt, options.max_new_tokens, stop, sampler):
        if not tokens:
            prompt_done = time.perf_counter()
            if options.dump_inputs is not None:
                runner.dump_inputs(options.dump_inputs, [token])
                prompt_done = time.perf_counter()
        if token in stop:
            finish = "stop"
            break
        tokens.append(token)
        piece = str(token) + " " if stream is None else stream.push(token)
        pieces.append(piece)
        if not options.json:
            print(piece, end="", flush=True)
    ended = time.perf_counter()
    if finish == "length" and len(tokens) < options.max_new_tokens:
        finish = "context"
    pieces.append("" if stream is None else stream.finish())

    steps = max(0, len(tokens) - 1)  # the first token comes from the prompt's own call
    summary = {
        "prompt_tokens": list(prompt),
        "tokens": tokens,
        "text": None if stream is None else "".join(pieces),
        "finish_reason": finish,
        "context": runner.cache.context,
        "kv_bytes": runner.contract.kv_bytes(runner.cache.context),
        "load_seconds": loaded - started,
        "prompt_seconds": prompt_done - loaded,
        "prompt_tokens_per_second": len(prompt) / max(prompt_done - loaded, 1e-9),
        "decode_seconds": ended - prompt_done,
        "tokens_per_second": steps / max(ended - prompt_done, 1e-9) if steps else None,
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024),
    }
    if options.json:
        print(json.dumps(summary))
    else:
        print(pieces[-1])
    if finish == "context":
        print(f"context of {runner.cache.context} is full after {len(tokens)} new tokens", file=sys.stderr)
    if options.stats:
        rate = "-" if summary["tokens_per_second"] is None else f"{summary['tokens_per_second']:.1f}"
        print(
            f"load {summary['load_seconds']:.2f} s, "
            f"prompt {len(prompt)} tokens at {summary['prompt_tokens_per_second']:.1f} tokens/s, "
            f"generated {len(tokens)} at {rate} tokens/s, KV cache {summary['kv_bytes'] / 1e6:.2f} MB, "
            f"peak memory {summary['peak_memory_bytes'] / 1e6:.0f} MB",
            file=sys.stderr)


def main(argv=None) -> int:
    return exit_code_of(lambda: _run(_arguments(argv)))


if __name__ == "__main__":
    sys.exit(main())
