# Command-line arguments that the modules of the package share.
from __future__ import annotations

import argparse

from transload.error import UsageError


class Parser(argparse.ArgumentParser):
    """Wrong usage is an error like any other: one line, exit code 2."""

    def __init__(self, **options):
        super().__init__(allow_abbrev=False, **options)

    def error(self, message):
        raise UsageError(f"{message} (see --help)")


def token_list(text: str):
    try:
        return [int(part) for part in text.replace(" ", "").split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"not a list of token ids: got '{text}', expected numbers such as 1,2,3") from None


def at_least(kind, least):

    def parse(text):
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not value >= least:
            raise argparse.ArgumentTypeError(f"got '{text}', expected a number of at least {least}")
        return value

    return parse


def probability(text: str) -> float:
    value = at_least(float, 0)(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"got '{text}', expected more than 0 and at most 1")
    return value


def share(text: str) -> float:
    value = at_least(float, 0)(text)
    if not value <= 1:
        raise argparse.ArgumentTypeError(f"got '{text}', expected 0 to 1")
    return value


def add_chat(parser: argparse.ArgumentParser) -> None:
    """What a chat template is given besides the message."""
    parser.add_argument("--system", metavar="TEXT", help="system message of the conversation")
    thinking = parser.add_mutually_exclusive_group()
    thinking.add_argument("--thinking",
                          action="store_true",
                          default=None,
                          dest="thinking",
                          help="let a model that can think before it answers")
    thinking.add_argument("--no-thinking", action="store_false", default=None, dest="thinking", help="answer at once")
    parser.add_argument("--tokenizer-pre",
                        metavar="NAME",
                        help="how a GGUF vocabulary cuts text, where its own name for it is unknown")


def require_chat(options) -> None:
    """Refuses what only a chat template reads, where there is none."""
    if options.chat is None:
        for flag, value in (("--system", options.system), ("--thinking or --no-thinking", options.thinking)):
            if value is not None:
                raise UsageError(f"{flag} applies to --chat: got no --chat, expected one")
