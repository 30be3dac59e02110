# A two-layer decoder made by hand, independent of the exporter: its weights, a direct forward pass, and its bundle.
import json

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HIDDEN, HEADS, HEAD_DIM, VOCAB, MAX_POSITIONS = 12, 2, 6, 23, 500
ROPE_WIDTH = HEAD_DIM


class TinyModel:
    """Layer 0 slides over `window` keys (None: full), layer 1 is full unless `all_sliding`."""

    def __init__(self, window=5, all_sliding=False, seed=7):
        random = np.random.default_rng(seed)
        self.windows = [window, window if all_sliding else None]
        self.embedding = random.normal(size=(VOCAB, HIDDEN)).astype(np.float32)
        self.layers = [[random.normal(size=(HIDDEN, HIDDEN)).astype(np.float32) * 0.3 for _ in range(4)] for _ in self.windows]
        self.inv_freq = (1.0 / 100.0**(np.arange(ROPE_WIDTH // 2) / 3)).astype(np.float32)

    def turn(self, x, positions):
        """Rotary embedding of [heads, n, head_dim]."""
        angle = positions.astype(np.float32)[:, None] * self.inv_freq
        c, s = np.cos(angle), np.sin(angle)
        a, b = x[..., :ROPE_WIDTH // 2], x[..., ROPE_WIDTH // 2:]
        return np.concatenate((a * c - b * s, b * c + a * s), axis=-1)

    def forward(self, tokens):
        """Logits of every position, and keys and values of each layer, in one causal pass."""
        x = self.embedding[np.asarray(tokens)]
        n = len(x)
        positions = np.arange(n)
        stored = []
        for (wq, wk, wv, wo), window in zip(self.layers, self.windows):
            q, k, v = (np.swapaxes((x @ w).reshape(n, HEADS, HEAD_DIM), 0, 1) for w in (wq, wk, wv))
            q, k = self.turn(q, positions), self.turn(k, positions)
            scores = q @ np.swapaxes(k, 1, 2) / np.sqrt(HEAD_DIM)
            distance = positions[:, None] - positions
            closed = (distance < 0) | (distance >= (n if window is None else window))
            scores = np.where(closed, -np.inf, scores)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
            x = x + np.swapaxes(weights @ v, 0, 1).reshape(n, HIDDEN) @ wo
            stored.append((k, v))
        return x @ self.embedding.T, stored


def contract_of(model, layout="ring", steps=((1, 32), (8, 32)), input_form="rows", logits="all", half_rope=False):
    """contract.json of the model's bundle."""
    table_width = ROPE_WIDTH // 2 if half_rope else ROPE_WIDTH
    masks = {"full" if w is None else "sw": w for w in model.windows}
    return {
        "format": "transload-contract",
        "version": 1,
        "family": "tiny",
        "hidden_size": HIDDEN,
        "vocab_size": VOCAB,
        "max_positions": MAX_POSITIONS,
        "layers": {
            "first": 0,
            "end": 2,
            "of": 2
        },
        "head": True,
        "logits": logits,
        "cache_layout": layout,
        "compute": "f32",
        "weights": "f32",
        "mask_fill": -1e9,
        "input_form": input_form,
        "embedding": {
            "file": "weights.bin",
            "offset": 0,
            "dtype": "f32",
            "shape": [VOCAB, HIDDEN]
        } if input_form == "rows" else None,
        "bos_token": None,
        "eos_tokens": [1],
        "tokenizer": None,
        "rope": [{
            "group": "sw",
            "width": ROPE_WIDTH,
            "table_width": table_width,
            "inv_freq": "rope_sw_inv_freq",
            "attention_factor": 1.0
        }],
        "masks": [{
            "group": g,
            "window": w
        } for g, w in masks.items()],
        "steps": [_step(model, layout, q, c, input_form, logits, table_width, masks) for q, c in steps],
    }


def _step(model, layout, q, context, input_form, logits, table_width, masks):

    def port(name, role, shape, group=None, layer=None, dtype="f32"):
        value = {"name": name, "role": role, "dtype": dtype, "shape": list(shape)}
        if group is not None:
            value["group"] = group
        if layer is not None:
            value["layer"] = layer
        return value

    caches = []
    for i, window in enumerate(model.windows):
        rule = "append" if window is None else "roll" if layout == "roll" else "ring"
        slots = context if window is None else min(context, window if rule == "roll" else max(window - 1, 1))
        caches.append({
            "layer": i,
            "model_layer": i,
            "rule": rule,
            "mask_group": "full" if window is None else "sw",
            "rope_group": "sw",
            "window": window,
            "slots": slots,
            "new_entries": max(slots, q) if rule == "roll" else q,
            "kv_heads": HEADS,
            "head_dim": HEAD_DIM
        })
    inputs = [
        port("ids", "token_ids", (1, q), dtype="i32") if input_form == "ids" else port("x", "embedding_rows", (1, q, HIDDEN))
    ]
    inputs += [port(f"{kind}_sw", f"rope_{kind}", (1, 1, q, table_width), "sw") for kind in ("cos", "sin")]
    for group in masks:
        cache = next(c for c in caches if c["mask_group"] == group)
        inputs.append(port(f"mask_{group}", "mask", (1, 1, q, cache["slots"] + q - (cache["rule"] == "roll")), group))
    outputs = [port("logits", "logits", (q if logits == "all" else 1, VOCAB))]
    for c in caches:
        inputs += [
            port(f"{k}_cache_{c['layer']}", f"{k}_cache", (1, HEADS, c["slots"], HEAD_DIM), layer=c["layer"]) for k in "kv"
        ]
        outputs += [
            port(f"{k}_new_{c['layer']}", f"{k}_new", (1, HEADS, c["new_entries"], HEAD_DIM), layer=c["layer"]) for k in "kv"
        ]
    return {
        "file": f"step_q{q}_c{context}.onnx",
        "q": q,
        "context": context,
        "inputs": inputs,
        "outputs": outputs,
        "caches": caches
    }


def write_bundle(model, directory, **options):
    """The bundle of `contract_of` with working graphs."""
    contract = contract_of(model, **options)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "contract.json").write_text(json.dumps(contract))
    model.embedding.tofile(directory / "weights.bin")
    header = json.dumps({
        "rope_sw_inv_freq": {
            "dtype": "F32",
            "shape": [ROPE_WIDTH // 2],
            "data_offsets": [0, 2 * ROPE_WIDTH]
        }
    }).encode()
    (directory / "host.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + model.inv_freq.tobytes())
    for step in contract["steps"]:
        onnx.save(_graph(model, contract, step), directory / step["file"])
    return directory


def _graph(model, contract, step):
    q, nodes, constants = step["q"], [], []

    def constant(name, value):
        constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def node(kind, *inputs, name, **attributes):
        nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    half = ROPE_WIDTH // 2
    rotate = np.zeros((HEAD_DIM, HEAD_DIM), np.float32)  # x @ rotate = (-x2, x1)
    rotate[np.arange(half) + half, np.arange(half)] = -1
    rotate[np.arange(half), np.arange(half) + half] = 1
    constant("rotate", rotate), constant("heads", np.array([1, q, HEADS, HEAD_DIM]))
    constant("flat", np.array([1, q, HIDDEN])), constant("rows",
                                                         np.array([q, HIDDEN])), constant("scale", np.float32(HEAD_DIM**-0.5))
    constant("embedding_t", model.embedding.T.copy()), constant("axis2", np.array([2])), constant("end", np.array([1 << 30]))
    cos, sin = "cos_sw", "sin_sw"
    if contract["rope"][0]["table_width"] == half:
        cos, sin = (node("Concat", t, t, name=t + "_both", axis=3) for t in (cos, sin))
    x = "x"
    if contract["input_form"] == "ids":
        x = node("Gather", constant("embedding", model.embedding), "ids", name="rows_of_ids")
    for i, (weights, cache) in enumerate(zip(model.layers, step["caches"])):
        heads = []
        for kind, weight in zip("qkv", weights):
            flat = node("MatMul", x, constant(f"w{kind}{i}", weight), name=f"{kind}{i}_flat")
            split = node("Reshape", flat, "heads", name=f"{kind}{i}_split")
            value = node("Transpose", split, name=f"{kind}{i}_heads", perm=[0, 2, 1, 3])
            if kind != "v":
                turned = node("Mul", node("MatMul", value, "rotate", name=f"{kind}{i}_half"), sin, name=f"{kind}{i}_sin")
                value = node("Add", node("Mul", value, cos, name=f"{kind}{i}_cos"), turned, name=f"{kind}{i}_turned")
            heads.append(value)
        joined = []
        for kind, value in zip("kv", heads[1:]):
            both = node("Concat", f"{kind}_cache_{i}", value, name=f"{kind}{i}_both", axis=2)
            if cache["rule"] == "roll":
                first = constant(f"{kind}{i}_first", np.array([cache["slots"] + q - cache["new_entries"]]))
                node("Slice", both, first, "end", "axis2", name=f"{kind}_new_{i}")
                both = node("Slice", both, constant(f"{kind}{i}_one", np.array([1])), "end", "axis2", name=f"{kind}{i}_seen")
            else:
                node("Identity", value, name=f"{kind}_new_{i}")
            joined.append(both)
        scores = node("MatMul", heads[0], node("Transpose", joined[0], name=f"kt{i}", perm=[0, 1, 3, 2]), name=f"scores{i}")
        masked = node("Add", node("Mul", scores, "scale", name=f"scaled{i}"), f"mask_{cache['mask_group']}", name=f"masked{i}")
        mixed = node("MatMul", node("Softmax", masked, name=f"weights{i}", axis=-1), joined[1], name=f"mixed{i}")
        back = node("Reshape", node("Transpose", mixed, name=f"back{i}", perm=[0, 2, 1, 3]), "flat", name=f"flat{i}")
        x = node("Add", x, node("MatMul", back, constant(f"wo{i}", weights[3]), name=f"out{i}"), name=f"x{i}")
    rows = node("Reshape", x, "rows", name="final_rows")
    if contract["logits"] == "last":
        constant("last", np.array([q - 1])), constant("axis0", np.array([0]))
        rows = node("Slice", rows, "last", "end", "axis0", name="last_row")
    node("MatMul", rows, "embedding_t", name="logits")
    kinds = {"f32": TensorProto.FLOAT, "i32": TensorProto.INT32}
    values = [[helper.make_tensor_value_info(p["name"], kinds[p["dtype"]], p["shape"]) for p in step[side]]
              for side in ("inputs", "outputs")]
    graph = helper.make_graph(nodes, "tiny", *values, initializer=constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
