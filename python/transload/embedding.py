# Embedding rows for the host side of a step: read from the file that holds them, one row at a time.
from __future__ import annotations

from pathlib import Path

import numpy as np

from transload.contract import EmbeddingSource
from transload.error import ContractError, UsageError

_STORED = {"f32": "<f4", "f16": "<f2", "bf16": "<u2"}


class Embedding:
    """Raw rows, memory-mapped: only the rows asked for are read. A family's embedding factor is inside the graph."""

    def __init__(self, bundle, source: EmbeddingSource, dtype: np.dtype):
        path = Path(bundle) / source.file
        stored = np.dtype(_STORED[source.dtype])
        needed = source.offset + source.shape[0] * source.shape[1] * stored.itemsize
        if path.stat().st_size < needed:
            raise ContractError(
                f"{path}: embedding ends past the end of the file: got {path.stat().st_size} bytes, expected {needed}")
        self._rows = np.memmap(path, dtype=stored, mode="r", offset=source.offset, shape=source.shape)
        self._bf16 = source.dtype == "bf16"
        self._dtype = dtype

    def rows(self, tokens) -> np.ndarray:
        """[n, H] in the compute dtype."""
        rows = self._rows[check_tokens(tokens, self._rows.shape[0])]
        if self._bf16:
            rows = (rows.astype(np.uint32) << 16).view(np.float32)
        return rows.astype(self._dtype)


def check_tokens(tokens, vocab_size: int) -> np.ndarray:
    """Token ids as int32 [n]; refuses ids outside the vocabulary."""
    ids = np.asarray(tokens if len(tokens) else np.zeros(0, np.int32))
    if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
        raise UsageError(f"tokens are not a list of ids: got {ids.ndim} axes of {ids.dtype}, expected 1 of integers")
    outside = ids[(ids < 0) | (ids >= vocab_size)]
    if outside.size:
        raise UsageError(f"token id outside the vocabulary: got {outside[0]}, expected 0 to {vocab_size - 1}")
    return ids.astype(np.int32)
