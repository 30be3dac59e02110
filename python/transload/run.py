# The command line `python -m transload.run CHECKPOINT|BUNDLE --prompt|--chat TEXT`: text through the native command.
from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Iterator, List, Optional

from transload.arguments import Parser, add_chat, require_chat
from transload.chat import ChatStream, start_conversation
from transload.command_line import exit_code_of
from transload.error import Error
from transload.native_command import NativeRunner, find_command
from transload.tokenizer import TextStream, Tokenizer, load_tokenizer

# Options that the native command reads, and checks.
_VALUES = ("max-new-tokens", "temperature", "top-k", "top-p", "min-p", "seed", "stop", "context", "threads", "config")
_FLAGS = ("ignore-eos", )


def _arguments(argv):
    parser = Parser(prog="python -m transload.run",
                    description="Generates text from a checkpoint or a bundle with the native command 'transload run'.")
    parser.add_argument("path", metavar="CHECKPOINT|BUNDLE", help="what 'transload run' takes")
    prompt = parser.add_mutually_exclusive_group(required=True)
    prompt.add_argument("--prompt", metavar="TEXT", help="text to continue, as it is")
    prompt.add_argument("--chat",
                        metavar="TEXT",
                        nargs="?",
                        const="",
                        help="a message to answer by the model's chat template; alone: a conversation, line by line")
    add_chat(parser)
    parser.add_argument("--tokenizer", metavar="FILE", help="tokenizer.json or .gguf to use instead of the model's own")
    parser.add_argument("--command", metavar="FILE", help="the native command (default: $TRANSLOAD, the build, or the path's)")
    parser.add_argument("--json", action="store_true", help="print one JSON object for each prompt instead of text")
    parser.add_argument("--stats", action="store_true", help="print speed and memory on standard error")
    parser.add_argument("--quiet", action="store_true", help="no messages on standard error but errors and --stats")
    native = parser.add_argument_group("options of 'transload run', which explains them")
    for name in _VALUES:
        native.add_argument(f"--{name}", metavar="VALUE", dest=name)
    for name in _FLAGS:
        native.add_argument(f"--{name}", action="store_true", dest=name)
    options = parser.parse_args(argv)
    require_chat(options)
    return options


def _native_arguments(options) -> List[str]:
    """Quiet: what it says would come between pieces of text that are still on their way."""
    given = vars(options)
    return [
        str(options.path), "--quiet", *(f"--{name}={given[name]}" for name in _VALUES if given[name] is not None),
        *(f"--{name}" for name in _FLAGS if given[name])
    ]


def _text_files(path: Path) -> Path:
    """Where tokenizer and template are: beside the weights, or in the one GGUF of a folder."""
    if not path.exists():
        raise Error(f"{path}: no such file or folder: got nothing at this path, expected a checkpoint or a bundle")
    if path.is_dir():
        ggufs = sorted(path.glob("*.gguf"))
        return ggufs[0] if len(ggufs) == 1 and not (path / "tokenizer.json").is_file() else path
    return path if path.suffix == ".gguf" else path.parent


def _lines() -> Iterator[str]:
    """Messages of a conversation, a line each."""
    if not sys.stdin.isatty():
        yield from (line.rstrip("\n") for line in sys.stdin)
        return
    try:
        import readline  # noqa: F401  gives input() editing and history
    except ImportError:
        pass
    print("a message a line; /reset forgets, the end of input (Ctrl-D) ends", file=sys.stderr)
    while True:
        try:
            yield input("> ")
        except EOFError:
            print(file=sys.stderr)
            return


def _speed(tokens_per_second) -> str:
    return "-" if tokens_per_second is None else f"{tokens_per_second:.1f}"


def _print_stats(summary) -> None:
    print(
        f"prompt {len(summary['prompt_tokens'])} tokens at {_speed(summary['prompt_tokens_per_second'])} tokens/s, "
        f"generated {len(summary['tokens'])} at {_speed(summary['tokens_per_second'])} tokens/s, "
        f"KV cache {summary['kv_bytes'] / 1e6:.2f} MB, weights {summary['weight_bytes'] / 1e6:.0f} MB, "
        f"peak memory {summary['peak_memory_bytes'] / 1e6:.0f} MB",
        file=sys.stderr)


def _answer(runner: NativeRunner, prompt: List[int], stream, options) -> List[int]:
    """Streams one reply; returns its tokens."""
    tokens, pieces = [], []

    def show(piece: str) -> None:
        pieces.append(piece)
        if not options.json:
            print(piece, end="", flush=True)

    for token in runner.reply(prompt):
        tokens.append(token)
        show(stream.push(token))
    show(stream.finish())
    if options.json:
        print(json.dumps({**runner.summary, "text": "".join(pieces)}), flush=True)
    else:
        print(flush=True)
    if runner.summary["finish_reason"] == "context" and not options.quiet:
        print(f"context is full after {len(tokens)} new tokens", file=sys.stderr)
    if options.stats:
        _print_stats(runner.summary)
    return tokens


def _chat(runner: NativeRunner, tokenizer: Tokenizer, options, files: Path) -> None:
    conversation = start_conversation(files, tokenizer, options.system, options.thinking)
    for line in _lines() if options.chat == "" else [options.chat]:
        if line.strip() == "/reset":
            conversation.forget()
            continue
        if not line.strip():
            continue
        prompt, anew = conversation.ask(line)
        if anew:
            runner.reset()
        tokens = _answer(runner, prompt, ChatStream(tokenizer), options)
        conversation.answered(tokens, runner.summary["finish_reason"] == "stop")


def _run(options) -> None:
    files = _text_files(Path(options.path))
    tokenizer_file = files if options.tokenizer is None else Path(options.tokenizer)
    with NativeRunner(find_command(options.command), _native_arguments(options)) as runner:
        tokenizer = load_tokenizer(tokenizer_file, options.tokenizer_pre)  # while the command opens the model
        if options.chat is not None:
            _chat(runner, tokenizer, options, files)
        else:
            _answer(runner, tokenizer.encode(options.prompt), TextStream(tokenizer), options)


def main(argv: Optional[List[str]] = None) -> int:
    try:
        return exit_code_of(lambda: _run(_arguments(argv)))
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
