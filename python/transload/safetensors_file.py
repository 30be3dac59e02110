# Reads the tensors of a small safetensors file as read-only memory maps.
from __future__ import annotations

import json
from pathlib import Path
from typing import Dict

import numpy as np

from transload.error import ContractError

_DTYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "|i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "|u1",
    "BOOL": "|b1"
}
_MAX_HEADER_BYTES = 100_000_000


def read_tensors(path) -> Dict[str, np.ndarray]:
    """All tensors by name; bf16 comes as its uint16 bits. Nothing is copied."""
    path = Path(path)
    try:
        data = np.memmap(path, dtype=np.uint8, mode="r")
    except (FileNotFoundError, ValueError):
        raise ContractError(f"{path}: cannot be mapped: got no data, expected a safetensors file") from None
    header_bytes = int(data[:8].view("<u8")[0]) if data.size >= 8 else -1
    if not 0 <= header_bytes <= min(data.size - 8, _MAX_HEADER_BYTES):
        raise ContractError(f"{path}@0: header length past the end of the file: got {header_bytes}, "
                            f"expected at most {data.size - 8}")
    begin = 8 + header_bytes
    try:
        entries = json.loads(data[8:begin].tobytes())
        entries.pop("__metadata__", None)
        tensors = {}
        for name, entry in entries.items():
            dtype, shape = np.dtype(_DTYPES[entry["dtype"]]), tuple(int(n) for n in entry["shape"])
            first, last = (int(n) for n in entry["data_offsets"])
            count = 1
            for n in shape:
                count *= n
            if min(shape, default=0) < 0 or not 0 <= first <= last <= data.size - begin or last - first != count * dtype.itemsize:
                raise ContractError(f"{path}@{begin + first}: tensor '{name}': data does not fit: got {last - first} bytes, "
                                    f"expected {count * dtype.itemsize}")
            tensors[name] = data[begin + first:begin + last].view(dtype).reshape(shape)
        return tensors
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ContractError(f"{path}@8: malformed header: got {error!r}, expected a table of tensors") from None
