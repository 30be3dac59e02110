# Builds a tokenizer from the vocabulary that a GGUF file carries: byte-level BPE ("gpt2") or SentencePiece BPE ("llama").
from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from transload.error import ContractError, UnsupportedError

_CONTROL, _USER_DEFINED = 3, 4
_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"


def _words(digits: str) -> str:
    return (_CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|" + digits + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def _cased_words(suffix: str, digits: str) -> str:
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    lead = r"[^\r\n\p{L}\p{N}]?"
    return (f"{lead}{upper}*{lower}+{suffix}|{lead}{upper}+{lower}*{suffix}|" + digits +
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


# How text is cut before the merges, by the value of tokenizer.ggml.pre: a regular expression, "gpt2" (the expression that
# byte-level BPE brings along), or "digits" (each digit alone, then "gpt2").
_SPLITS = {
    "default": "gpt2",
    "gpt-2": "gpt2",
    "phi-2": "gpt2",
    "smollm": "digits",
    "starcoder": "digits",
    "refact": "digits",
    "command-r": "digits",
    "llama-bpe": _words(r"\p{N}{1,3}"),
    "llama3": _words(r"\p{N}{1,3}"),
    "llama-v3": _words(r"\p{N}{1,3}"),
    "qwen2": _words(r"\p{N}"),
    "deepseek-r1-qwen": _words(r"\p{N}"),
    "gpt-4o": _cased_words(_CONTRACTIONS + "?", r"\p{N}{1,3}"),
    "tekken": _cased_words("", r"\p{N}"),
}
# Whole words of the vocabulary are taken before any merge.
_IGNORE_MERGES = {"llama-bpe", "llama3", "llama-v3", "tekken"}
_ADD_BOS = {"llama-bpe", "llama3", "llama-v3", "tekken"}
_NFC = {"qwen2", "deepseek-r1-qwen"}


def build_tokenizer(metadata: Dict[str, Any], file: str, pre: Optional[str] = None) -> Tokenizer:
    """`pre` forces the way text is cut, where the file names one that is not known."""

    def field(name, kind, optional=False):
        value = metadata.get(f"tokenizer.ggml.{name}")
        if value is None and optional:
            return None
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
            raise ContractError(f"{file}: field 'tokenizer.ggml.{name}': got {type(value).__name__}, expected {kind.__name__}")
        return value

    model = field("model", str)
    tokens: List[str] = field("tokens", list)
    types = field("token_type", list, optional=True) or [1] * len(tokens)
    if len(types) != len(tokens):
        raise ContractError(
            f"{file}: field 'tokenizer.ggml.token_type': count does not match: got {len(types)}, expected {len(tokens)}")
    if model == "gpt2":
        name = pre or field("pre", str, optional=True) or "default"
        if name not in _SPLITS:
            raise UnsupportedError(f"{file}: field 'tokenizer.ggml.pre': unknown way to cut text: got '{name}', "
                                   f"expected one of {', '.join(sorted(_SPLITS))}")
        tokenizer = _byte_level(tokens, field("merges", list), name, file)
        add_bos = name in _ADD_BOS
    elif model == "llama":
        prefix = field("add_space_prefix", bool, optional=True)
        tokenizer = _sentencepiece(tokens, field("scores", list), field("unknown_token_id", int, optional=True), prefix is None
                                   or prefix, file)
        add_bos = True
    else:
        raise UnsupportedError(f"{file}: field 'tokenizer.ggml.model': got '{model}', expected 'gpt2' or 'llama'")

    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t, k in zip(tokens, types) if k == _CONTROL])
    # SentencePiece looks for these in the normalised text, where a space is already U+2581.
    tokenizer.add_tokens([AddedToken(t, normalized=model == "llama") for t, k in zip(tokens, types) if k == _USER_DEFINED])
    template, specials = ["$A"], []
    for end, default in (("bos", add_bos), ("eos", False)):
        wanted = field(f"add_{end}_token", bool, optional=True)
        token = field(f"{end}_token_id", int, optional=True)
        if (default if wanted is None else wanted) and token is not None:
            if not 0 <= token < len(tokens):
                raise ContractError(
                    f"{file}: field 'tokenizer.ggml.{end}_token_id': got {token}, expected 0 to {len(tokens) - 1}")
            specials.append((tokens[token], token))
            template.insert(0 if end == "bos" else len(template), tokens[token])
    if specials:
        tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=specials)
    return tokenizer


def _byte_level(tokens: List[str], merges: List[str], pre: str, file: str) -> Tokenizer:
    pairs = [tuple(merge.split(" ")) for merge in merges]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    for i, pair in enumerate(pairs):
        if len(pair) != 2 or pair[0] not in vocabulary or pair[1] not in vocabulary or "".join(pair) not in vocabulary:
            raise ContractError(f"{file}: field 'tokenizer.ggml.merges': merge {i} does not fit: got '{merges[i]}', "
                                "expected two tokens of the vocabulary that join to a third")
    tokenizer = Tokenizer(BPE(vocabulary, pairs, ignore_merges=pre in _IGNORE_MERGES))
    split = _SPLITS[pre]
    if split in ("gpt2", "digits"):
        cut = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        if split == "digits":
            cut = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), cut])
    else:
        cut = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(split), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        ])
    tokenizer.pre_tokenizer = cut
    if pre in _NFC:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _merges_by_score(vocabulary: Dict[str, int], scores: List[float]) -> List[Tuple[str, str]]:
    """SentencePiece stores no merges: any two pieces that join to a third may merge, the best score of the third first."""
    ranked = []
    for piece, index in vocabulary.items():
        splits = []
        for cut in range(1, len(piece)):
            left = vocabulary.get(piece[:cut])
            if left is not None:
                right = vocabulary.get(piece[cut:])
                if right is not None:
                    splits.append((left, right, piece[:cut], piece[cut:]))
        splits.sort()
        score = -scores[index]
        ranked.extend((score, index, order, left, right) for order, (_, _, left, right) in enumerate(splits))
    ranked.sort()
    return [(left, right) for _, _, _, left, right in ranked]


def _sentencepiece(tokens: List[str], scores: List[float], unknown: Optional[int], space_prefix: bool, file: str) -> Tokenizer:
    if len(scores) != len(tokens):
        raise ContractError(
            f"{file}: field 'tokenizer.ggml.scores': count does not match: got {len(scores)}, expected {len(tokens)}")
    if unknown is not None and not 0 <= unknown < len(tokens):
        raise ContractError(f"{file}: field 'tokenizer.ggml.unknown_token_id': got {unknown}, expected 0 to {len(tokens) - 1}")
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(
        BPE(vocabulary,
            _merges_by_score(vocabulary, scores),
            byte_fallback=True,
            fuse_unk=True,
            unk_token=None if unknown is None else tokens[unknown]))
    spaces = normalizers.Replace(" ", "\u2581")
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    if space_prefix:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), spaces])
        steps.append(decoders.Strip(" ", 1, 0))
    else:
        tokenizer.normalizer = spaces
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer
