# The host contract of an exported bundle: contract.json, read and checked before anything runs.
from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import numpy as np

from transload.error import ContractError

FORMAT = "transload-contract"
VERSION = 1
DTYPES = {"f32": np.dtype("<f4"), "f16": np.dtype("<f2"), "i32": np.dtype("<i4")}
INPUT_ROLES = ("embedding_rows", "token_ids", "hidden_in", "rope_cos", "rope_sin", "mask", "k_cache", "v_cache")
OUTPUT_ROLES = ("logits", "hidden", "k_new", "v_new")
INPUT_FORMS = {"rows": "embedding_rows", "ids": "token_ids", "hidden": "hidden_in"}


def shape_text(shape) -> str:
    return "[" + ",".join(str(n) for n in shape) + "]"


class _Object:
    """A JSON object that knows its path, so that every complaint names the field."""

    def __init__(self, value: Any, path: str, file: str):
        self.path, self.file = path, file
        if not isinstance(value, dict):
            raise self.fault("wrong type", type(value).__name__, "an object")
        self.value = value

    def fault(self, what: str, got: Any, expected: Any, field: str = "") -> ContractError:
        name = ".".join(part for part in (self.path, field) if part)
        where = f"{self.file}: field '{name}': " if name else f"{self.file}: "
        return ContractError(f"{where}{what}: got {got}, expected {expected}")

    def _get(self, field: str, kind, expected: str, optional: bool = False):
        if field not in self.value:
            raise self.fault("missing field", "nothing", expected, field)
        value = self.value[field]
        if value is None and optional:
            return None
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.fault("wrong type", json.dumps(value)[:60], expected, field)
        return value

    def text(self, field: str, choices=None, optional: bool = False):
        value = self._get(field, str, "a string", optional)
        if choices is not None and value is not None and value not in choices:
            raise self.fault("unknown value", f"'{value}'", "one of " + ", ".join(f"'{c}'" for c in choices), field)
        return value

    def flag(self, field: str) -> bool:
        return self._get(field, bool, "true or false")

    def number(self, field: str) -> float:
        return float(self._get(field, (int, float), "a number"))

    def integer(self, field: str, least: int = 0, optional: bool = False):
        value = self._get(field, int, "an integer", optional)
        if value is not None and not least <= value < 1 << 63:
            raise self.fault("out of range", value, f"at least {least}", field)
        return value

    def integers(self, field: str, least: int = 0) -> Tuple[int, ...]:
        values = self._get(field, list, "a list of integers")
        if any(isinstance(v, bool) or not isinstance(v, int) or not least <= v < 1 << 63 for v in values):
            raise self.fault("wrong type", json.dumps(values)[:60], f"integers of at least {least}", field)
        return tuple(values)

    def objects(self, field: str) -> List["_Object"]:
        values = self._get(field, list, "a list of objects")
        prefix = f"{self.path}.{field}" if self.path else field
        return [_Object(v, f"{prefix}[{i}]", self.file) for i, v in enumerate(values)]

    def object(self, field: str, optional: bool = False) -> Optional["_Object"]:
        value = self._get(field, dict, "an object", optional)
        return None if value is None else _Object(value, f"{self.path}.{field}" if self.path else field, self.file)

    def plain_file(self, field: str, optional: bool = False):
        name = self.text(field, optional=optional)
        if name is not None and (not name or "/" in name or "\\" in name or name in (".", "..")):
            raise self.fault("not a plain file name", f"'{name}'", "a file of the bundle's own folder", field)
        return name


@dataclass(frozen=True)
class Port:
    """One input or output of a graph."""

    name: str
    role: str
    dtype: np.dtype
    shape: Tuple[int, ...]
    group: str = ""
    layer: int = -1


@dataclass(frozen=True)
class CacheLayer:
    layer: int
    model_layer: int
    rule: str  # append, ring or roll
    mask_group: str
    rope_group: str
    window: Optional[int]
    slots: int
    new_entries: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True)
class BlockSparse:
    """Keys that query head h sees: those of the last local_blocks blocks, and of every vertical_stride-th block."""

    heads: int
    block: int
    local_blocks: int
    vertical_stride: int
    head_step: int  # 0: one pattern for all heads


@dataclass(frozen=True)
class MaskGroup:
    """Layers that share a mask: full attention when both fields are None."""

    window: Optional[int] = None
    block_sparse: Optional[BlockSparse] = None

    @property
    def heads(self) -> int:
        """Second axis of the mask."""
        return 1 if self.block_sparse is None else self.block_sparse.heads


@dataclass(frozen=True)
class RopeGroup:
    group: str
    width: int
    table_width: int
    inv_freq: str  # name of the table in host.safetensors
    attention_factor: float


@dataclass(frozen=True)
class EmbeddingSource:
    file: str
    offset: int
    dtype: str
    shape: Tuple[int, int]


@dataclass(frozen=True)
class Step:
    """One graph: q tokens a call, full-attention capacity `context`."""

    file: str
    q: int
    context: int
    inputs: Tuple[Port, ...]
    outputs: Tuple[Port, ...]
    caches: Tuple[CacheLayer, ...]

    @property
    def token_input(self) -> Port:
        return next(p for p in self.inputs if p.role in INPUT_FORMS.values())

    @property
    def result(self) -> Port:
        return next(p for p in self.outputs if p.role in ("logits", "hidden"))


@dataclass(frozen=True)
class Contract:
    family: str
    hidden_size: int
    vocab_size: int
    max_positions: int
    first_layer: int
    end_layer: int
    head: bool
    logits: str
    cache_layout: str
    compute: np.dtype
    weights: str
    mask_fill: float
    input_form: str
    embedding: Optional[EmbeddingSource]
    bos_token: Optional[int]
    eos_tokens: Tuple[int, ...]
    tokenizer: Optional[str]
    rope: Dict[str, RopeGroup]
    masks: Dict[str, MaskGroup]
    steps: Tuple[Step, ...]

    def contexts(self) -> List[int]:
        return sorted({step.context for step in self.steps})

    def queries(self, context: int) -> List[int]:
        return sorted(step.q for step in self.steps if step.context == context)

    def step(self, q: int, context: int) -> Step:
        for step in self.steps:
            if (step.q, step.context) == (q, context):
                return step
        have = ", ".join(f"q {s.q} c {s.context}" for s in self.steps)
        raise ContractError(f"no such graph in the bundle: got q {q} c {context}, expected one of {have}")

    def kv_bytes(self, context: int) -> int:
        """Bytes of all caches at `context`, keys and values."""
        caches = self.step(self.queries(context)[0], context).caches
        return sum(2 * c.kv_heads * c.slots * c.head_dim * self.compute.itemsize for c in caches)

    @staticmethod
    def load(bundle) -> "Contract":
        path = Path(bundle) / "contract.json"
        try:
            text = path.read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            raise ContractError(f"{path}: not a bundle: got no contract.json, expected an exported folder") from None
        except UnicodeDecodeError as error:
            raise ContractError(f"{path}: malformed text: got {error.reason}, expected UTF-8") from None
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ContractError(f"{path}: malformed JSON: got {error}, expected an object") from None
        contract = Contract.from_json(value, str(path))
        named = [step.file for step in contract.steps] + [contract.tokenizer]
        if contract.embedding is not None:
            named.append(contract.embedding.file)
        for name in named:
            if name is not None and not (path.parent / name).is_file():
                raise ContractError(f"{path}: missing file: got no '{name}', expected it in the bundle")
        return contract

    @staticmethod
    def from_json(value: Any, file: str = "contract.json") -> "Contract":
        root = _Object(value, "", file)
        if root.text("format") != FORMAT:
            raise root.fault("unknown format", f"'{root.text('format')}'", f"'{FORMAT}'", "format")
        if root.integer("version") != VERSION:
            raise root.fault("unknown version", root.integer("version"), VERSION, "version")
        layers = root.object("layers")
        rope = {}
        for o in root.objects("rope"):
            group = RopeGroup(o.text("group"), o.integer("width", 2), o.integer("table_width", 1), o.text("inv_freq"),
                              o.number("attention_factor"))
            if group.width % 2 or group.table_width not in (group.width, group.width // 2):
                raise o.fault("bad table width", group.table_width, f"width {group.width} or half of it", "table_width")
            rope[group.group] = group
        steps = [_read_step(o) for o in root.objects("steps")]
        source = root.object("embedding", optional=True)
        contract = Contract(family=root.text("family"),
                            hidden_size=root.integer("hidden_size", 1),
                            vocab_size=root.integer("vocab_size", 1),
                            max_positions=root.integer("max_positions", 1),
                            first_layer=layers.integer("first"),
                            end_layer=layers.integer("end", 1),
                            head=root.flag("head"),
                            logits=root.text("logits", ("all", "last")),
                            cache_layout=root.text("cache_layout", ("auto", "ring", "roll")),
                            compute=DTYPES[root.text("compute", ("f32", "f16"))],
                            weights=root.text("weights", ("f32", "f16")),
                            mask_fill=root.number("mask_fill"),
                            input_form=root.text("input_form", tuple(INPUT_FORMS)),
                            embedding=None if source is None else _read_embedding(source),
                            bos_token=root.integer("bos_token", optional=True),
                            eos_tokens=root.integers("eos_tokens"),
                            tokenizer=root.plain_file("tokenizer", optional=True),
                            rope=rope,
                            masks={o.text("group"): _read_mask(o)
                                   for o in root.objects("masks")},
                            steps=tuple(steps))
        if not steps:
            raise root.fault("no graphs", 0, "at least one", "steps")
        if contract.mask_fill >= 0:
            raise root.fault("out of range", contract.mask_fill, "a negative number", "mask_fill")
        if len({(s.q, s.context) for s in steps}) != len(steps):
            raise root.fault("repeated graph", "two of one q and context", "one of each", "steps")
        if contract.embedding is not None and contract.embedding.shape != (contract.vocab_size, contract.hidden_size):
            raise root.fault("shape does not match", shape_text(contract.embedding.shape),
                             shape_text((contract.vocab_size, contract.hidden_size)), "embedding.shape")
        if contract.input_form == "rows" and contract.embedding is None:
            raise root.fault("missing rows", "null", "an object, as input_form is 'rows'", "embedding")
        for step in steps:
            _check_step(contract, step, root)
        return contract


def _read_embedding(o: _Object) -> EmbeddingSource:
    shape = o.integers("shape", 1)
    if len(shape) != 2:
        raise o.fault("wrong rank", len(shape), 2, "shape")
    return EmbeddingSource(o.plain_file("file"), o.integer("offset"), o.text("dtype", ("f32", "f16", "bf16")), shape)


def _read_mask(o: _Object) -> MaskGroup:
    window = o.integer("window", 1, optional=True)
    if "block_sparse" not in o.value:
        return MaskGroup(window)
    if window is not None:
        raise o.fault("does not match", f"it with window {window}", "window null", "block_sparse")
    b = o.object("block_sparse")
    return MaskGroup(None, BlockSparse(b.integer("heads", 1), b.integer("block", 1), b.integer("local_blocks", 1),
                                       b.integer("vertical_stride", 1), b.integer("head_step")))


def _read_port(o: _Object, roles) -> Port:
    group = o.text("group") if "group" in o.value else ""
    layer = o.integer("layer") if "layer" in o.value else -1
    dtype = DTYPES[o.text("dtype", tuple(DTYPES))]
    return Port(o.text("name"), o.text("role", roles), dtype, o.integers("shape", 1), group, layer)


def _read_step(o: _Object) -> Step:
    caches = [
        CacheLayer(c.integer("layer"), c.integer("model_layer"), c.text("rule", ("append", "ring", "roll")), c.text("mask_group"),
                   c.text("rope_group"), c.integer("window", 1, optional=True), c.integer("slots", 1),
                   c.integer("new_entries", 1), c.integer("kv_heads", 1), c.integer("head_dim", 1)) for c in o.objects("caches")
    ]
    return Step(o.plain_file("file"), o.integer("q", 1), o.integer("context", 1),
                tuple(_read_port(p, INPUT_ROLES) for p in o.objects("inputs")),
                tuple(_read_port(p, OUTPUT_ROLES) for p in o.objects("outputs")), tuple(caches))


def _expected_slots(cache: CacheLayer, context: int) -> int:
    if cache.rule == "append" or cache.window is None:
        return context
    return min(context, cache.window) if cache.rule == "roll" else min(context, max(cache.window - 1, 1))


def mask_columns(cache: CacheLayer, q: int) -> int:
    return cache.slots + q - (1 if cache.rule == "roll" else 0)


def _check_step(contract: Contract, step: Step, root: _Object) -> None:
    """Every port has the dtype and shape that its role, q and the caches imply, and nothing is missing or twice."""

    def fault(what, got, expected):
        return root.fault(f"'{step.file}': {what}", got, expected, "steps")

    names = [p.name for p in step.inputs + step.outputs]
    if len(set(names)) != len(names):
        raise fault("repeated tensor name", next(n for n in names if names.count(n) > 1), "each name once")
    q, width = step.q, contract.compute
    expected: Dict[Tuple[str, Any], Tuple[np.dtype, Tuple[int, ...]]] = {}
    role = INPUT_FORMS[contract.input_form]
    expected[role, ""] = (DTYPES["i32"], (1, q)) if role == "token_ids" else (width, (1, q, contract.hidden_size))
    if contract.head:
        expected["logits", ""] = (width, (q if contract.logits == "all" else 1, contract.vocab_size))
    else:
        expected["hidden", ""] = (width, (1, q, contract.hidden_size))
    layers = contract.end_layer - contract.first_layer
    if len(step.caches) != layers:
        raise fault("number of caches does not match", len(step.caches), layers)
    for index, cache in enumerate(step.caches):
        if cache.layer != index:
            raise fault("cache layers out of order", cache.layer, index)
        if cache.model_layer != contract.first_layer + index:
            raise fault(f"cache {index}: layer of the model does not match", cache.model_layer, contract.first_layer + index)
        group = contract.masks.get(cache.mask_group)
        if group is None or group.window != cache.window:
            raise fault(f"cache {index}: mask group does not match", f"'{cache.mask_group}'", f"a group of window {cache.window}")
        if group.block_sparse is not None and group.heads % cache.kv_heads != 0:
            raise fault(f"cache {index}: heads of its mask group do not match", group.heads, f"a multiple of {cache.kv_heads}")
        if cache.rope_group and cache.rope_group not in contract.rope:
            raise fault(f"cache {index}: unknown rope group", f"'{cache.rope_group}'", "one listed in 'rope'")
        if (cache.rule == "append") != (cache.window is None):
            raise fault(f"cache {index}: rule does not match", f"'{cache.rule}'", f"one for window {cache.window}")
        if cache.slots != _expected_slots(cache, step.context):
            raise fault(f"cache {index}: slots do not match", cache.slots, _expected_slots(cache, step.context))
        entries = max(cache.slots, q) if cache.rule == "roll" else q
        if cache.new_entries != entries:
            raise fault(f"cache {index}: new entries do not match", cache.new_entries, entries)
        first = contract.steps[0].caches[index]  # graphs of a bundle share the caches: q and context change nothing else
        for field in ("rule", "mask_group", "rope_group", "window", "kv_heads", "head_dim"):
            if getattr(cache, field) != getattr(first, field):
                raise fault(f"cache {index}: {field} differs from that of '{contract.steps[0].file}'", getattr(cache, field),
                            getattr(first, field))
        stored = (width, (1, cache.kv_heads, cache.slots, cache.head_dim))
        new = (width, (1, cache.kv_heads, entries, cache.head_dim))
        expected["k_cache", index] = expected["v_cache", index] = stored
        expected["k_new", index] = expected["v_new", index] = new
        mask = (width, (1, group.heads, q, mask_columns(cache, q)))
        if expected.setdefault(("mask", cache.mask_group), mask) != mask:
            raise fault(f"cache {index}: another width in mask group '{cache.mask_group}'", mask[1][3], "one width in a group")
        if cache.rope_group:
            table = (width, (1, 1, q, contract.rope[cache.rope_group].table_width))
            expected["rope_cos", cache.rope_group] = expected["rope_sin", cache.rope_group] = table
    for port in step.inputs + step.outputs:
        key = (port.role, port.layer if port.role in ("k_cache", "v_cache", "k_new", "v_new") else port.group)
        if key not in expected:
            raise fault(f"tensor '{port.name}': unexpected or repeated role", f"'{port.role}'", "a role that a layer uses, once")
        dtype, shape = expected.pop(key)
        if port.dtype != dtype:
            raise fault(f"tensor '{port.name}': dtype does not match", port.dtype.name, dtype.name)
        if port.shape != shape:
            raise fault(f"tensor '{port.name}': shape does not match", shape_text(port.shape), shape_text(shape))
    if expected:
        raise fault("missing tensor", f"no '{next(iter(expected))[0]}'", "one for every use")
