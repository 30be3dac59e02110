# A conversation: messages rendered by the chat template, and which tokens of them the model has read.
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple

from transload.error import UsageError
from transload.tokenizer import TextStream, Tokenizer

if TYPE_CHECKING:
    from transload.chat_template import ChatTemplate

_OPEN, _CLOSE = "<think>", "</think>"


def start_conversation(files, tokenizer: Tokenizer, system: Optional[str], thinking: Optional[bool]) -> "Conversation":
    """By the chat template of `files`: a GGUF, or a folder that holds one."""
    try:
        from transload.chat_template import load_chat_template  # the one module that needs jinja2
    except ModuleNotFoundError as error:
        raise UsageError(f"chat templates need a package: got no module '{error.name}', expected it installed") from None
    return Conversation(load_chat_template(files), tokenizer, system, thinking)


class Conversation:
    """`thinking`: the template's own default, or on or off for templates that read `enable_thinking`."""

    def __init__(self,
                 template: "ChatTemplate",
                 tokenizer: Tokenizer,
                 system: Optional[str] = None,
                 thinking: Optional[bool] = None):
        self._template, self._tokenizer = template, tokenizer
        self._system = [] if system is None else [{"role": "system", "content": system}]
        self._variables = {} if thinking is None else {"enable_thinking": thinking}
        self.forget()

    def forget(self) -> None:
        self._messages: List[Dict[str, Any]] = list(self._system)
        self._read: List[int] = []
        self._opened = False

    def ask(self, text: str) -> Tuple[List[int], bool]:
        """Tokens to read for this message, and whether the model has to start anew to read them."""
        messages = self._messages + [{"role": "user", "content": text}]
        prompt = self._template.render(messages, **self._variables)
        tokens = self._tokenizer.encode(prompt, add_special_tokens=False)
        if not tokens:
            raise UsageError("chat template gives an empty prompt: got 0 tokens, expected at least 1")
        self._messages = messages
        self._opened = prompt.rfind(_OPEN) > prompt.rfind(_CLOSE)
        # What was read can only be continued. An answer may be cut into other tokens when it is read as text.
        known = len(self._read)
        continues = known > 0 and known < len(tokens) and tokens[:known] == self._read
        self._read = tokens
        return (tokens[known:], False) if continues else (tokens, True)

    def answered(self, tokens: Sequence[int], stopped: bool) -> None:
        """Notes the answer. The last token chosen is not read; after a stop token, that is the stop token."""
        self._read = self._read + list(tokens if stopped else tokens[:-1])
        text = self._tokenizer.decode(tokens, skip_special_tokens=False)
        message = {"role": "assistant", "content": text}
        if _CLOSE in text or self._opened:
            thoughts, _, content = text.partition(_CLOSE)
            message = {
                "role": "assistant",
                "content": content.lstrip("\n"),
                "reasoning_content": thoughts.replace(_OPEN, "", 1).strip("\n")
            }
        self._messages.append(message)


class ChatStream:
    """Text of an answer as it arrives. Marks around thoughts are shown, also where the tokenizer hides them as special."""

    def __init__(self, tokenizer: Tokenizer):
        self._stream = TextStream(tokenizer)
        self._marks = {}
        for mark in (_OPEN, _CLOSE):
            token = tokenizer.inner.token_to_id(mark)
            if token is not None and tokenizer.decode([token]) == "":
                self._marks[token] = mark + "\n"

    def push(self, token: int) -> str:
        return self._stream.push(token) + self._marks.get(token, "")

    def finish(self) -> str:
        return self._stream.finish()
