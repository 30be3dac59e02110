# The host side of a decode step: owns the KV cache, makes masks and rotary rows, commits results all or nothing.
from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence, Tuple

import numpy as np

from transload.contract import CacheLayer, Contract, Step, shape_text
from transload.error import CacheError


def slot_positions(cache: CacheLayer, position: int) -> np.ndarray:
    """Position held by each slot when `position` tokens are stored; negative where the slot is empty."""
    slots = np.arange(cache.slots, dtype=np.int64)
    if cache.rule == "append":
        return np.where(slots < position, slots, -1)
    if cache.rule == "ring":
        return position - 1 - (position - 1 - slots) % cache.slots
    return position - cache.slots + slots


def _slots_of(cache: CacheLayer, position: int, positions: np.ndarray) -> np.ndarray:
    """Slots of stored `positions` when `position` tokens are stored."""
    if cache.rule == "append":
        return positions
    if cache.rule == "ring":
        return positions % cache.slots
    return positions - position + cache.slots


def _layers_at(contract: Contract, context: int) -> Tuple[CacheLayer, ...]:
    queries = contract.queries(context)
    if not queries:
        raise CacheError(f"no graph for this context: got {context}, expected one of "
                         f"{', '.join(map(str, contract.contexts()))}")
    return contract.step(queries[0], context).caches


def _check_array(value, name: str, dtype: np.dtype, shape: Tuple[int, ...]) -> None:
    if not isinstance(value, np.ndarray) or value.dtype != dtype:
        got = getattr(value, "dtype", type(value).__name__)
        raise CacheError(f"tensor '{name}': dtype does not match: got {got}, expected {dtype.name}")
    if value.shape != shape:
        raise CacheError(f"tensor '{name}': shape does not match: got {shape_text(value.shape)}, expected {shape_text(shape)}")
    finite = np.isfinite(value)
    if not finite.all():
        raise CacheError(f"tensor '{name}': values are not finite: got {value.size - np.count_nonzero(finite)} of {value.size}, "
                         "expected 0")


@dataclass(frozen=True)
class Snapshot:
    """A copy of a cache's state, for `KvCache.restore`."""

    contract: Contract
    context: int
    position: int
    buffers: Tuple[Tuple[np.ndarray, np.ndarray], ...]  # keys and values of each layer


class KvCache:
    """Buffers of one sequence, for all graphs of a bundle at one context. Not thread-safe.

    `position` counts the stored tokens: the absolute position of row 0 of the next call. A call carries `real` tokens,
    1 <= real <= q; the rows after them are padding and are never stored.
    """

    def __init__(self, contract: Contract, inv_freq: Dict[str, np.ndarray], context: Optional[int] = None):
        """`inv_freq`: rotary frequencies of each rope group, float32 [width / 2]."""
        self._contract = contract
        self._inv_freq = {}
        for name, group in contract.rope.items():
            table = np.asarray(inv_freq[name], dtype=np.float32)
            if table.shape != (group.width // 2, ):
                raise CacheError(f"tensor '{group.inv_freq}': shape does not match: got {shape_text(table.shape)}, "
                                 f"expected [{group.width // 2}]")
            self._inv_freq[name] = table
        self.context = contract.contexts()[0] if context is None else context
        self.position = 0
        self._capacity = self.capacity_of(contract, self.context)
        self._layers = _layers_at(contract, self.context)
        self._buffers = self._allocate(self._layers)

    @property
    def capacity(self) -> int:
        """Positions that can be stored at this context."""
        return self._capacity

    @staticmethod
    def capacity_of(contract: Contract, context: int) -> int:
        """A window whose slots hold all the keys it sees never fills up; any other cache ends at the context."""
        for cache in _layers_at(contract, context):
            if cache.window is None or cache.slots < cache.window - (0 if cache.rule == "roll" else 1):
                return context
        return contract.max_positions

    def inputs(self, step: Step, position: int, real: int) -> Dict[str, np.ndarray]:
        """Every input of `step` but the tokens, by name. The cache arrays are the live buffers: valid until the next commit."""
        self._check_call(step, position, real)
        masks = {cache.mask_group: cache for cache in step.caches}
        values = {}
        for port in step.inputs:
            if port.role in ("rope_cos", "rope_sin"):
                values[port.name] = self._rope_rows(port.group, port.role, position, step.q)
            elif port.role == "mask":
                values[port.name] = self._mask(masks[port.group], position, step.q)
            elif port.role in ("k_cache", "v_cache"):
                values[port.name] = self._buffers[port.layer][0 if port.role == "k_cache" else 1]
        return values

    def commit(self, step: Step, outputs: Sequence[np.ndarray], position: int, real: int) -> None:
        """Stores the first `real` of the new entries. `outputs`: the k_new and v_new tensors in graph order.

        Throws CacheError before any buffer changes.
        """
        self._check_call(step, position, real)
        ports = [port for port in step.outputs if port.role in ("k_new", "v_new")]
        if len(outputs) != len(ports):
            raise self._count_fault(len(outputs))
        for port, value in zip(ports, outputs):
            _check_array(value, port.name, port.dtype, port.shape)
        writes: List[Tuple[np.ndarray, object, np.ndarray]] = []
        for port, value in zip(ports, outputs):
            cache = step.caches[port.layer]
            buffer = self._buffers[port.layer][0 if port.role == "k_new" else 1]
            if cache.rule != "roll":
                first = max(0, real - cache.slots)  # only the newest entries of a long call survive in a ring
                slots = _slots_of(cache, position + real, np.arange(position + first, position + real))
                writes.append((buffer, slots, value[:, :, first:real]))
            elif real == step.q:
                writes.append((buffer, slice(None), value[:, :, cache.new_entries - cache.slots:]))
            else:
                new = value[:, :, cache.new_entries - step.q:][:, :, :real]
                writes.append((buffer, slice(None), np.concatenate((buffer, new), axis=2)[:, :, -cache.slots:]))
        for buffer, slots, entries in writes:
            buffer[:, :, slots] = entries
        self.position += real

    def grow(self, context: int) -> None:
        """Moves to a larger context: full caches keep their slots, windows are laid out again by position."""
        if context < self.context:
            raise CacheError(f"context cannot shrink: got {context}, expected at least {self.context}")
        layers = _layers_at(self._contract, context)
        buffers = self._allocate(layers)
        for old, new, source, target in zip(self._layers, layers, self._buffers, buffers):
            kept = np.arange(max(0, self.position - min(old.slots, new.slots)), self.position)
            for a, b in zip(source, target):
                b[:, :, _slots_of(new, self.position, kept)] = a[:, :, _slots_of(old, self.position, kept)]
        self.context, self._layers, self._buffers = context, layers, buffers
        self._capacity = self.capacity_of(self._contract, context)

    def seed(self, layers: Sequence[Tuple[np.ndarray, np.ndarray]], count: int) -> None:
        """Fills an empty cache from a prefill done elsewhere.

        `layers`: for each layer of the slice, keys (after rotary embedding) and values [kv_heads, count, head_dim] of positions
        0 to count-1, in the compute dtype. Sliding layers keep what fits. Throws CacheError before any buffer changes.
        """
        if self.position != 0:
            raise CacheError(f"cache is not empty: got {self.position} stored tokens, expected 0")
        if not 1 <= count <= self.capacity:
            raise CacheError(f"count of seed tokens out of range: got {count}, expected 1 to {self.capacity}")
        if len(layers) != len(self._layers) or any(len(pair) != 2 for pair in layers):
            raise self._count_fault(sum(len(pair) for pair in layers))
        for index, (cache, pair) in enumerate(zip(self._layers, layers)):
            for kind, value in zip(("keys", "values"), pair):
                _check_array(value, f"{kind} of layer {index}", self._contract.compute, (cache.kv_heads, count, cache.head_dim))
        for cache, pair, buffers in zip(self._layers, layers, self._buffers):
            kept = np.arange(max(0, count - cache.slots), count)
            for value, buffer in zip(pair, buffers):
                buffer[0][:, _slots_of(cache, count, kept)] = value[:, kept]
        self.position = count

    def snapshot(self) -> Snapshot:
        return Snapshot(self._contract, self.context, self.position, tuple((k.copy(), v.copy()) for k, v in self._buffers))

    def restore(self, snapshot: Snapshot) -> None:
        """Takes back a state of this bundle and context."""
        if snapshot.contract is not self._contract:
            raise CacheError("snapshot is of another bundle: got one, expected one of this cache's bundle")
        if snapshot.context != self.context:
            raise CacheError(f"snapshot is of another context: got {snapshot.context}, expected {self.context}")
        self._buffers = [(k.copy(), v.copy()) for k, v in snapshot.buffers]
        self.position = snapshot.position

    def fork(self) -> "KvCache":
        """An independent cache of the same content, for a second continuation."""
        fork = copy.copy(self)
        fork._buffers = [(k.copy(), v.copy()) for k, v in self._buffers]
        return fork

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers: what `transload kv` says for this layout, context and dtype."""
        return sum(k.nbytes + v.nbytes for k, v in self._buffers)

    def clear(self) -> None:
        self.position = 0
        for pair in self._buffers:
            for buffer in pair:
                buffer[...] = 0

    def entries(self, layer: int) -> Tuple[int, np.ndarray, np.ndarray]:
        """What a layer holds: the first position, and keys and values [kv_heads, n, head_dim] in order of position (copies)."""
        cache = self._layers[layer]
        kept = np.arange(max(0, self.position - cache.slots), self.position)
        slots = _slots_of(cache, self.position, kept)
        keys, values = (buffer[0][:, slots].copy() for buffer in self._buffers[layer])
        return max(0, self.position - cache.slots), keys, values

    def _allocate(self, layers) -> List[Tuple[np.ndarray, np.ndarray]]:

        def zeros(cache):
            return np.zeros((1, cache.kv_heads, cache.slots, cache.head_dim), self._contract.compute)

        return [(zeros(cache), zeros(cache)) for cache in layers]

    def _count_fault(self, got: int) -> CacheError:
        layers = len(self._layers)
        return CacheError(f"cache tensors: got {got}, expected {2 * layers} (keys and values of {layers} layers)")

    def _check_call(self, step: Step, position: int, real: int) -> None:
        if step.context != self.context:
            raise CacheError(f"graph is for another context: got {step.context}, expected {self.context} (grow first)")
        if position != self.position:
            kind = "repeated" if position < self.position else "skipped"
            raise CacheError(f"{kind} position: got {position}, expected {self.position}")
        if not 1 <= real <= step.q:
            raise CacheError(f"count of real tokens out of range: got {real}, expected 1 to {step.q}")
        if position + real > self.capacity:
            raise CacheError(f"position beyond the capacity: got {position + real} tokens, expected at most {self.capacity}")

    def _rope_rows(self, group: str, role: str, position: int, q: int) -> np.ndarray:
        # Angles are fp32 products, as the models compute them; their cosine is taken exactly and rounded once.
        angles = np.arange(position, position + q).astype(np.float32)[:, None] * self._inv_freq[group]
        turn = np.cos if role == "rope_cos" else np.sin
        rope = self._contract.rope[group]
        rows = turn(angles.astype(np.float64)).astype(np.float32) * np.float32(rope.attention_factor)
        if rope.table_width == rope.width:
            rows = np.concatenate((rows, rows), axis=1)
        return rows.astype(self._contract.compute)[None, None]

    def _mask(self, cache: CacheLayer, position: int, q: int) -> np.ndarray:
        new = np.arange(position, position + q)
        keys = np.concatenate((slot_positions(cache, position), new))
        if cache.rule == "roll":
            keys = keys[1:]
        seen = (keys >= 0) & (keys <= new[:, None])
        if cache.window is not None:
            seen &= keys > new[:, None] - cache.window
        pattern = self._contract.masks[cache.mask_group].block_sparse
        if pattern is not None:
            block = keys // pattern.block
            heads = np.arange(pattern.heads)[:, None, None]
            near = new[:, None] // pattern.block - block < pattern.local_blocks
            seen = seen & (near | ((block + heads * pattern.head_step + 1) % pattern.vertical_stride == 0))
        else:
            seen = seen[None]
        return np.where(seen, 0, self._contract.mask_fill).astype(self._contract.compute)[None]
