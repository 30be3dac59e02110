# The text side of a bundle: its tokenizer, and text printed as tokens arrive.
from __future__ import annotations

from pathlib import Path
from typing import List, Optional, Sequence

import tokenizers

from transload.error import ContractError, UsageError
from transload.gguf_metadata import read_metadata
from transload.gguf_tokenizer import build_tokenizer


class Tokenizer:
    """Text to token ids and back, over one `tokenizers.Tokenizer`."""

    def __init__(self, inner: tokenizers.Tokenizer):
        self.inner = inner

    def encode(self, text: str, add_special_tokens: bool = True) -> List[int]:
        """Ids, with the tokens that the model wants at the start (and end) unless switched off."""
        return self.inner.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return self.inner.decode(list(ids), skip_special_tokens=skip_special_tokens)


def load_tokenizer(path, pre: Optional[str] = None) -> Tokenizer:
    """`path`: tokenizer.json, a GGUF file (with or without tensors), or a folder with tokenizer.json or tokenizer.gguf."""
    path = Path(path)
    if path.is_dir():
        found = [path / name for name in ("tokenizer.json", "tokenizer.gguf") if (path / name).is_file()]
        if not found:
            raise UsageError(f"{path}: no tokenizer: got neither tokenizer.json nor tokenizer.gguf, expected one of them")
        path = found[0]
    if path.suffix == ".gguf":
        return Tokenizer(build_tokenizer(read_metadata(path), str(path), pre))
    try:
        return Tokenizer(tokenizers.Tokenizer.from_file(str(path)))
    except Exception as error:  # the package raises bare Exception
        raise ContractError(
            f"{path}: tokenizer does not load: got {str(error).splitlines()[0]}, expected a tokenizer.json") from None


class TextStream:
    """Turns tokens into text piece by piece; holds bytes back until they make whole characters."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._tokens: List[int] = []
        self._shown = 0  # tokens whose text was returned
        self._context = 0  # tokens before these no longer change how later ones are spelled

    def push(self, token: int) -> str:
        self._tokens.append(token)
        before = self._tokenizer.decode(self._tokens[self._context:self._shown])
        text = self._tokenizer.decode(self._tokens[self._context:])
        if text.endswith("\ufffd"):
            return ""
        self._context, self._shown = self._shown, len(self._tokens)
        return text[len(before):]

    def finish(self) -> str:
        """What is still held back, incomplete characters replaced."""
        before = self._tokenizer.decode(self._tokens[self._context:self._shown])
        return self._tokenizer.decode(self._tokens[self._context:])[len(before):]
