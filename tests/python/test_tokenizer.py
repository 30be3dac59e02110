# Tokenizers built from GGUF vocabularies: how text is cut, merges, byte fallback, special tokens, and malformed files.
import struct

import pytest
import tokenizers

import real_models
from transload.error import ContractError, Error, UnsupportedError, UsageError
from transload.gguf_metadata import read_metadata
from transload.tokenizer import TextStream, load_tokenizer


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def entry(key, value):
    if isinstance(value, bool):
        return text(key) + struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return text(key) + struct.pack("<II", 4, value)
    if isinstance(value, str):
        return text(key) + struct.pack("<I", 8) + text(value)
    if isinstance(value[0], str):
        return text(key) + struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))
    kind, code = (6, "f") if isinstance(value[0], float) else (5, "i")
    return text(key) + struct.pack("<IIQ", 9, kind, len(value)) + struct.pack(f"<{len(value)}{code}", *value)


def write_gguf(path, fields, version=3):
    pairs = [entry(f"tokenizer.ggml.{key}", value) for key, value in fields.items()]
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", version, 0, len(pairs)) + b"".join(pairs))
    return path


def bytes_alphabet():
    return sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())


def byte_level_fields(**changes):
    tokens = ["<|end|>", "<extra>", *bytes_alphabet(), "\u0120t", "he", "\u0120the", "12", "123", "1234"]
    fields = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": [3, 4] + [1] * (len(tokens) - 2),
        "merges": ["\u0120 t", "h e", "\u0120t he", "1 2", "12 3", "123 4"],
        "bos_token_id": 0,
        "eos_token_id": 0
    }
    fields.update(changes)
    return {key: value for key, value in fields.items() if value is not None}


def pieces(tokenizer, string):
    return [tokenizer.inner.id_to_token(i) for i in tokenizer.encode(string)]


@pytest.mark.parametrize("pre, digits", [("gpt-2", ["1234"]), ("default", ["1234"]), ("smollm", ["1", "2", "3", "4"]),
                                         ("starcoder", ["1", "2", "3", "4"]), ("llama-bpe", ["123", "4"]),
                                         ("qwen2", ["1", "2", "3", "4"]), ("gpt-4o", ["123", "4"]),
                                         ("tekken", ["1", "2", "3", "4"])])
def test_pre_decides_how_text_is_cut_before_merging(tmp_path, pre, digits):
    tokenizer = load_tokenizer(write_gguf(tmp_path / "t.gguf", byte_level_fields(pre=pre, add_bos_token=False)))
    assert pieces(tokenizer, "the the") == ["t", "he", "\u0120the"]
    assert pieces(tokenizer, "1234") == digits
    for string in ("a\n\n b  c\t'll", "h\u00e9llo \u65e5\u672c \U0001f937", "x's I'LL"):
        assert tokenizer.decode(tokenizer.encode(string)) == string


def test_special_and_user_defined_tokens_are_whole_and_only_special_ones_vanish_from_text(tmp_path):
    tokenizer = load_tokenizer(write_gguf(tmp_path / "t.gguf", byte_level_fields()))
    ids = tokenizer.encode("a<|end|><extra>b")
    assert ids[1:3] == [0, 1] and len(ids) == 4
    assert tokenizer.decode(ids) == "a<extra>b"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "a<|end|><extra>b"


@pytest.mark.parametrize("fields, start, end", [({}, False, False), ({
    "add_bos_token": True
}, True, False), ({
    "pre": "llama-bpe"
}, True, False), ({
    "pre": "llama-bpe",
    "add_bos_token": False
}, False, False), ({
    "add_bos_token": True,
    "add_eos_token": True
}, True, True)])
def test_begin_and_end_tokens_are_added_as_the_file_says(tmp_path, fields, start, end):
    tokenizer = load_tokenizer(write_gguf(tmp_path / "t.gguf", byte_level_fields(**fields)))
    ids = tokenizer.encode("a")
    assert (ids[0] == 0, ids[-1] == 0, len(ids)) == (start, end, 1 + start + end)
    assert 0 not in tokenizer.encode("a", add_special_tokens=False)


def test_an_unknown_pre_is_refused_by_name_unless_forced(tmp_path):
    path = write_gguf(tmp_path / "t.gguf", byte_level_fields(pre="brand-new"))
    with pytest.raises(UnsupportedError,
                       match="field 'tokenizer.ggml.pre': unknown way to cut text: got 'brand-new', expected one of"):
        load_tokenizer(path)
    assert pieces(load_tokenizer(path, pre="smollm"), "12") == ["1", "2"]


def sentencepiece_fields(**changes):
    byte_tokens = [f"<0x{b:02X}>" for b in range(256)]
    tokens = ["<unk>", "<s>", "</s>", *byte_tokens, "\u2581", "a", "b", "c", "ab", "bc", "abc", "\u2581a", "\u2581\u2581", "\n\n"]
    scores = {"ab": -1.0, "bc": -2.0, "abc": -3.0, "\u2581a": -4.0}
    fields = {
        "model": "llama",
        "tokens": tokens,
        "scores": [scores.get(t, -100.0) for t in tokens],
        "token_type": [2, 3, 3] + [6] * 256 + [1] * 8 + [4, 4],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0
    }
    fields.update(changes)
    return fields


@pytest.mark.parametrize(
    "string, expected",
    [
        ("ab", ["\u2581", "ab"]),  # the better score first: never "_a", "b"
        ("abc", ["\u2581", "abc"]),
        ("bc", ["\u2581", "bc"]),
        ("a", ["\u2581a"]),
        ("\u00e9", ["\u2581", "<0xC3>", "<0xA9>"]),
    ])
def test_sentencepiece_merges_by_score_with_a_space_in_front(tmp_path, string, expected):
    tokenizer = load_tokenizer(write_gguf(tmp_path / "t.gguf", sentencepiece_fields()))
    assert pieces(tokenizer, string) == ["<s>", *expected]
    assert tokenizer.decode(tokenizer.encode(string)) == string


def test_sentencepiece_without_a_space_in_front_keeps_spaces_and_user_defined_runs(tmp_path):
    tokenizer = load_tokenizer(write_gguf(tmp_path / "t.gguf", sentencepiece_fields(add_space_prefix=False, add_bos_token=False)))
    assert pieces(tokenizer, "abc  a\n\nb") == ["abc", "\u2581\u2581", "a", "\n\n", "b"]
    assert tokenizer.decode(tokenizer.encode("abc  a\n\nb")) == "abc  a\n\nb"


def test_text_stream_holds_back_incomplete_characters(tmp_path):
    tokenizer = load_tokenizer(write_gguf(tmp_path / "t.gguf", byte_level_fields()))
    ids = tokenizer.encode("a\u65e5 the")
    stream = TextStream(tokenizer)
    assert [stream.push(i) for i in ids] == ["a", "", "", "\u65e5", " the"]
    assert stream.finish() == ""
    stream = TextStream(tokenizer)
    assert [stream.push(i) for i in ids[:3]] == ["a", "", ""]
    assert stream.finish() == "\ufffd"


@pytest.mark.parametrize("fields, kind, message", [
    (byte_level_fields(model="t5"), UnsupportedError, "field 'tokenizer.ggml.model': got 't5', expected 'gpt2' or 'llama'"),
    (byte_level_fields(model=7), ContractError, "field 'tokenizer.ggml.model': got int, expected str"),
    (byte_level_fields(tokens=None), ContractError, "field 'tokenizer.ggml.tokens': got NoneType, expected list"),
    (byte_level_fields(merges=None), ContractError, "field 'tokenizer.ggml.merges': got NoneType, expected list"),
    (byte_level_fields(merges=["a"]), ContractError, "merge 0 does not fit: got 'a'"),
    (byte_level_fields(merges=["1 2", "a nothing"]), ContractError, "merge 1 does not fit: got 'a nothing'"),
    (byte_level_fields(token_type=[1, 2]), ContractError, "'tokenizer.ggml.token_type': count does not match: got 2"),
    (byte_level_fields(add_bos_token=True, bos_token_id=99999), ContractError, "'tokenizer.ggml.bos_token_id': got 99999"),
    (sentencepiece_fields(scores=[1.0]), ContractError, "'tokenizer.ggml.scores': count does not match: got 1"),
    (sentencepiece_fields(unknown_token_id=9999), ContractError, "'tokenizer.ggml.unknown_token_id': got 9999"),
])
def test_a_vocabulary_that_does_not_fit_is_refused(tmp_path, fields, kind, message):
    with pytest.raises(kind) as error:
        load_tokenizer(write_gguf(tmp_path / "t.gguf", fields))
    assert message in str(error.value) and "t.gguf" in str(error.value)


HEADER = b"GGUF" + struct.pack("<IQQ", 3, 0, 1)


@pytest.mark.parametrize("data, message", [
    (b"", "empty file"),
    (b"GGML" + bytes(20), "@0: unknown magic"),
    (b"GGUF", "data ends past the end of the file"),
    (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "unknown version: got 1"),
    (HEADER, "@24: data ends past the end of the file: got 8"),
    (HEADER + struct.pack("<Q", 1 << 60), "@32: data ends past the end of the file: got 1152921504606846976"),
    (HEADER + text("k") + struct.pack("<I", 13), "unknown value type: got 13"),
    (HEADER + text("k") + struct.pack("<IIQ", 9, 9, 1), "unknown value type: got 9"),
    (HEADER + text("k") + struct.pack("<IIQ", 9, 8, 1 << 61), "string count past the end of the file: got 2305843009213693952"),
    (HEADER + text("k") + struct.pack("<IIQ", 9, 4, 1 << 61), "data ends past the end of the file: got 9223372036854775808"),
])
def test_malformed_gguf_files_are_refused_with_their_offset(tmp_path, data, message):
    (tmp_path / "t.gguf").write_bytes(data)
    with pytest.raises(ContractError) as error:
        read_metadata(tmp_path / "t.gguf")
    assert message in str(error.value)


def test_tokenizer_json_is_preferred_and_a_folder_without_any_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no tokenizer"):
        load_tokenizer(tmp_path)
    write_gguf(tmp_path / "tokenizer.gguf", byte_level_fields())
    assert load_tokenizer(tmp_path).encode("12") == load_tokenizer(tmp_path / "tokenizer.gguf").encode("12")
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel({"12": 7, "?": 0}, "?"))
    inner.save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(tmp_path).encode("12") == [7]
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(Error, match="tokenizer.json: tokenizer does not load"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("name", real_models.PARTS)
def test_real_vocabularies_give_the_reference_tokens_and_text(name):
    tokenizer, reference = load_tokenizer(real_models.weights(name)), real_models.reference(name)
    assert tokenizer.encode(reference["prompt"]) == reference["prompt_tokens"]
    assert tokenizer.decode(reference["greedy_tokens"]) == reference["greedy_text"]
    stream = TextStream(tokenizer)
    assert "".join(stream.push(t) for t in reference["greedy_tokens"]) + stream.finish() == reference["greedy_text"]
