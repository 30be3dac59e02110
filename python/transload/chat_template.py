# Chat templates: found in a checkpoint, a bundle or a GGUF, and rendered by Jinja2 in its sandbox.
from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import jinja2
import jinja2.ext
import jinja2.sandbox

from transload.error import ContractError, UsageError
from transload.gguf_metadata import read_metadata

_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class _Refusal(jinja2.TemplateError):
    """What a template says of messages it does not take."""


class _Generation(jinja2.ext.Extension):
    """{% generation %} marks what the assistant says, for training; here it is only its content."""

    tags = {"generation"}

    def parse(self, parser):
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration", ), drop_needle=True)


def _raise_exception(message):
    raise _Refusal(str(message))


def _to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    # Jinja2's own filter escapes characters of HTML, which a prompt must not have.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _environment() -> jinja2.Environment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True,
                                                              lstrip_blocks=True,
                                                              extensions=[_Generation, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return environment


class ChatTemplate:
    """Turns messages ({"role": ..., "content": ...}) into the text of a prompt, special tokens spelled out."""

    def __init__(self, source: str, special_tokens: Optional[Dict[str, str]] = None, file: str = "chat template"):
        self._special, self._file = dict(special_tokens or {}), file
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ContractError(f"{file}: chat template does not parse: got '{error.message}' in line {error.lineno}, "
                                "expected a Jinja2 template") from None

    def render(self, messages: List[Dict[str, Any]], add_generation_prompt: bool = True, **variables) -> str:
        """`variables`: what else the template reads, such as enable_thinking."""
        try:
            return self._template.render(messages=messages,
                                         tools=None,
                                         documents=None,
                                         add_generation_prompt=add_generation_prompt,
                                         **{
                                             **self._special,
                                             **variables
                                         })
        except _Refusal as error:
            raise UsageError(f"{self._file}: chat template refuses the messages: got '{error}', "
                             "expected a conversation it takes") from None
        except Exception as error:  # a template can fail in any way an expression can
            raise ContractError(f"{self._file}: chat template fails: got {type(error).__name__}: {error}, "
                                "expected it to render the messages") from None


def load_chat_template(path) -> ChatTemplate:
    """`path`: a GGUF file, or a folder with chat_template.jinja, tokenizer_config.json or tokenizer.gguf."""
    path = Path(path)
    if path.suffix == ".gguf":
        return _from_gguf(path)
    config, config_file = _read_json(path / "tokenizer_config.json")
    special = _special_tokens(config, config_file)
    if (path / "chat_template.jinja").is_file():
        file = path / "chat_template.jinja"
        return ChatTemplate(_read_text(file), special, str(file))
    other, other_file = _read_json(path / "chat_template.json")
    for value, file in ((other.get("chat_template"), other_file), (config.get("chat_template"), config_file)):
        if value is not None:
            return ChatTemplate(_default_of(value, file), special, file)
    if (path / "tokenizer.gguf").is_file():
        return _from_gguf(path / "tokenizer.gguf")
    raise UsageError(f"{path}: no chat template: got none in tokenizer_config.json or chat_template.jinja, expected one "
                     "(--prompt takes text as it is)")


def _from_gguf(path: Path) -> ChatTemplate:
    metadata = read_metadata(path)
    source = metadata.get("tokenizer.chat_template")
    if not isinstance(source, str):
        raise UsageError(f"{path}: no chat template: got no 'tokenizer.chat_template', expected one "
                         "(--prompt takes text as it is)")
    tokens = metadata.get("tokenizer.ggml.tokens") or []
    special = {}
    for name, key in (("bos_token", "bos"), ("eos_token", "eos"), ("unk_token", "unknown"), ("pad_token", "padding")):
        index = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if isinstance(index, int) and 0 <= index < len(tokens):
            special[name] = tokens[index]
    return ChatTemplate(source, special, str(path))


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ContractError(f"{path}: malformed text: got {error.reason}, expected UTF-8") from None


def _read_json(path: Path) -> Tuple[Dict[str, Any], str]:
    if not path.is_file():
        return {}, str(path)
    try:
        value = json.loads(_read_text(path))
    except (ValueError, RecursionError) as error:
        raise ContractError(f"{path}: malformed JSON: got {error}, expected an object") from None
    if not isinstance(value, dict):
        raise ContractError(f"{path}: got {type(value).__name__}, expected an object")
    return value, str(path)


def _default_of(value, file: str) -> str:
    """One template, or the one called "default" of a list of named ones."""
    if isinstance(value, str):
        return value
    named = {}
    for entry in value if isinstance(value, list) else []:
        if isinstance(entry, dict) and isinstance(entry.get("name"), str) and isinstance(entry.get("template"), str):
            named[entry["name"]] = entry["template"]
    if "default" not in named:
        got = f"templates {', '.join(sorted(named))}" if named else type(value).__name__
        raise ContractError(f"{file}: field 'chat_template': got {got}, expected a text or a list with one called default")
    return named["default"]


def _special_tokens(config: Dict[str, Any], file: str) -> Dict[str, str]:
    """A token is a text, or an object with its text as `content`."""
    special = {}
    for name in _SPECIAL:
        value = config.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if value is None:
            continue
        if not isinstance(value, str):
            raise ContractError(f"{file}: field '{name}': got {type(value).__name__}, expected the text of a token")
        special[name] = value
    return special
