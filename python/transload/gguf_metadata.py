# Reads the metadata of a GGUF v2/v3 file (with or without tensors), vocabulary arrays included.
from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any, Dict

from transload.error import ContractError

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_LENGTH = struct.Struct("<Q")


class _Reader:
    """Reads forward; every length is checked against the file before it is used."""

    def __init__(self, data, path):
        self.data, self.path, self.at = data, path, 0

    def fault(self, what, got, expected) -> ContractError:
        return ContractError(f"{self.path}@{self.at}: {what}: got {got}, expected {expected}")

    def need(self, size: int) -> int:
        """Moves past `size` bytes and returns where they begin."""
        begin = self.at
        if size > len(self.data) - begin:
            raise self.fault("data ends past the end of the file", size, f"at most {len(self.data) - begin} bytes")
        self.at = begin + size
        return begin

    def scalars(self, kind: int, count: int):
        item = struct.calcsize("<" + _SCALARS[kind])
        return list(struct.unpack_from(f"<{count}{_SCALARS[kind]}", self.data, self.need(item * count)))

    def string(self) -> str:
        length = _LENGTH.unpack_from(self.data, self.need(8))[0]
        begin = self.need(length)
        return str(self.data[begin:begin + length], "utf-8", "replace")

    def strings(self, count: int):
        if count * 8 > len(self.data) - self.at:
            raise self.fault("string count past the end of the file", count, f"at most {(len(self.data) - self.at) // 8}")
        return [self.string() for _ in range(count)]

    def value(self) -> Any:
        kind = self.scalars(4, 1)[0]
        count = 1
        if kind == _ARRAY:
            kind, = self.scalars(4, 1)
            count, = self.scalars(10, 1)
            if kind == _STRING:
                return self.strings(count)
            if kind in _SCALARS:
                return self.scalars(kind, count)
        elif kind == _STRING:
            return self.string()
        elif kind in _SCALARS:
            return self.scalars(kind, 1)[0]
        raise self.fault("unknown value type", kind, "0 to 12, no nested arrays")


def read_metadata(path) -> Dict[str, Any]:
    """All key-value pairs. Tensor infos are not read."""
    path = Path(path)
    with open(path, "rb") as file:
        try:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise ContractError(f"{path}@0: empty file: got 0 bytes, expected a GGUF header") from None
    with data:
        reader = _Reader(data, path)
        if data[:4] != b"GGUF":
            raise reader.fault("unknown magic", bytes(data[:4]), b"GGUF")
        reader.need(4)
        version, = reader.scalars(4, 1)
        if version not in (2, 3):
            raise reader.fault("unknown version", version, "2 or 3")
        _, pairs = reader.scalars(10, 2)
        metadata = {}
        for _ in range(pairs):
            key = reader.string()
            metadata[key] = reader.value()
        return metadata
