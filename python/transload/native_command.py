# Drives `transload run --prompt-ids -`: token ids go in, token ids come out as they are chosen.
from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence

from transload.error import Error, UsageError


class CommandFailed(Error):
    """The command has said on standard error what was wrong; only its exit code is left to pass on."""

    said = True

    def __init__(self, exit_code: int):
        super().__init__(f"the native command ended: got exit code {exit_code}, expected it to reply")
        self.exit_code = exit_code if exit_code > 0 else 70


def find_command(given: Optional[str] = None) -> str:
    """`given`, $TRANSLOAD, the build beside this package, or what is called transload on the path."""
    for name, place in ((given, "--command"), (os.environ.get("TRANSLOAD"), "TRANSLOAD")):
        if name:
            found = shutil.which(name)
            if found is None:
                raise UsageError(f"{name}: no command here: got {place}, expected the transload command")
            return found
    built = Path(__file__).resolve().parents[2] / "build" / "release" / "transload"
    found = str(built) if os.access(built, os.X_OK) else shutil.which("transload")
    if found is None:
        raise UsageError("no native command: got none on the path, expected 'transload' there, or its place in TRANSLOAD")
    return found


class NativeRunner:
    """One process that keeps its KV cache between prompts. `summary` is what it said of the last reply."""

    def __init__(self, command: str, arguments: Sequence[str]):
        self.summary: Dict[str, Any] = {}
        self._process = subprocess.Popen([command, "run", *arguments, "--prompt-ids", "-", "--json"],
                                         stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE)

    def __enter__(self) -> "NativeRunner":
        return self

    def __exit__(self, *unused) -> None:
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass
        self._process.stdout.close()
        self._process.wait()

    def reset(self) -> None:
        self._send("reset")

    def reply(self, prompt: Sequence[int]) -> Iterator[int]:
        """Tokens after `prompt`, which continues what was read, without the stop token."""
        if len(prompt) == 0:
            raise UsageError("prompt is empty: got 0 tokens, expected at least 1")
        self._send(" ".join(str(token) for token in prompt))
        word: List[bytes] = []
        while True:
            byte = self._process.stdout.read(1)
            if byte == b"":
                raise CommandFailed(self._process.wait())
            if byte not in b" \n":
                word.append(byte)
                continue
            if word:
                yield int(b"".join(word))
                word = []
            if byte == b"\n":
                break
        line = self._process.stdout.readline()
        if not line.endswith(b"\n"):
            raise CommandFailed(self._process.wait())
        self.summary = json.loads(line)

    def _send(self, line: str) -> None:
        try:
            self._process.stdin.write(line.encode("ascii") + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise CommandFailed(self._process.wait()) from None
