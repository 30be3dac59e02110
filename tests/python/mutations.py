# Faults for verify to find: each changes a good bundle in one way, as a broken exporter or a damaged file would.
import json
import shutil

import numpy as np
import onnx
import xxhash
from onnx import TensorProto, helper, numpy_helper

NUMPY_TYPES = {TensorProto.FLOAT: np.float32, TensorProto.FLOAT16: np.float16, TensorProto.INT64: np.int64}


class Step:
    """One graph under edit."""

    def __init__(self, path):
        self.path = path
        self.model = onnx.load(path, load_external_data=False)
        self.graph = self.model.graph

    def node(self, output):
        return next(node for node in self.graph.node if node.output[0] == output)

    def initializer(self, name):
        return next((tensor for tensor in self.graph.initializer if tensor.name == name), None)

    def constant(self, name, value):
        self.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def scalar_like(self, name, other, value):
        """A constant of shape [1] in the dtype of the initializer `other`."""
        dtype = NUMPY_TYPES[self.initializer(other).data_type]
        return self.constant(name, np.array([value], dtype))

    def insert_before(self, output, kind, inputs, name, **attributes):
        index = next(i for i, node in enumerate(self.graph.node) if node.output[0] == output)
        self.graph.node.insert(index, helper.make_node(kind, inputs, [name], **attributes))
        return name

    def replace_input(self, output, old, new):
        node = self.node(output)
        inputs = list(node.input)
        assert old in inputs, (output, old)
        node.input[inputs.index(old)] = new

    def bypass(self, output, source):
        """Whoever reads `output` reads `source`."""
        for node in self.graph.node:
            for i, name in enumerate(node.input):
                if name == output:
                    node.input[i] = source

    def save(self):
        """Without nodes and constants that nothing reads."""
        outputs = {value.name for value in self.graph.output}
        while True:
            used = outputs | {name for node in self.graph.node for name in node.input}
            dead = [node for node in self.graph.node if node.output[0] not in used]
            if not dead:
                break
            for node in dead:
                self.graph.node.remove(node)
        for tensor in [tensor for tensor in self.graph.initializer if tensor.name not in used]:
            self.graph.initializer.remove(tensor)
        made = {node.output[0] for node in self.graph.node}
        for value in [value for value in self.graph.value_info if value.name not in made]:
            self.graph.value_info.remove(value)
        onnx.save_model(self.model, self.path)


class Bundle:
    """A copy of a bundle that may be changed."""

    def __init__(self, original, folder):
        self.folder = shutil.copytree(original, folder)

    def json(self, name):
        return json.loads((self.folder / name).read_text())

    def write_json(self, name, value):
        (self.folder / name).write_text(json.dumps(value, indent=1) + "\n")

    def steps(self):
        return [Step(path) for path in sorted(self.folder.glob("*.onnx"))]

    def edit_steps(self, edit):
        for step in self.steps():
            edit(step)
            step.save()

    def place(self, name):
        """(file, offset, dtype, shape) of a tensor in weights.bin, from the first graph that reads it."""
        for step in self.steps():
            tensor = step.initializer(name)
            if tensor is not None and tensor.external_data:
                entries = {entry.key: entry.value for entry in tensor.external_data}
                return self.folder / entries["location"], int(entries["offset"]), NUMPY_TYPES[tensor.data_type], tuple(tensor.dims)
        raise KeyError(name)

    def read(self, name):
        path, offset, dtype, shape = self.place(name)
        return np.fromfile(path, dtype, int(np.prod(shape)), offset=offset).reshape(shape)

    def write(self, name, values):
        path, offset, dtype, shape = self.place(name)
        assert values.shape == shape and values.dtype == dtype
        with open(path, "r+b") as file:
            file.seek(offset)
            file.write(values.tobytes())

    def edit_weight(self, name, edit):
        values = self.read(name)
        changed = edit(values.copy())
        assert changed.tobytes() != values.tobytes(), f"{name}: nothing changed"
        self.write(name, changed)

    def edit_inline(self, name, edit):
        """A constant inside the graphs."""

        def edit_step(step):
            tensor = step.initializer(name)
            values = numpy_helper.to_array(tensor)
            tensor.CopyFrom(numpy_helper.from_array(edit(values.copy()).astype(values.dtype), name))

        self.edit_steps(edit_step)

    def edit_contract(self, edit):
        contract = self.json("contract.json")
        edit(contract)
        self.write_json("contract.json", contract)

    def refresh_digests(self):
        """Sizes and digests of the manifest, made again from the files as they are."""
        manifest = self.json("manifest.json")
        first = {}
        for tensor in manifest["tensors"]:
            data = (self.folder / tensor["file"]).read_bytes()[tensor["offset"]:tensor["offset"] + tensor["bytes"]]
            tensor["xxh3_128"] = xxhash.xxh3_128_hexdigest(data)
            first[tensor["file"]] = min(first.get(tensor["file"], tensor["offset"]), tensor["offset"])
        for file in manifest["files"]:
            data = (self.folder / file["file"]).read_bytes()
            file["bytes"] = len(data)
            if "xxh3_128" in file:
                file["xxh3_128"] = xxhash.xxh3_128_hexdigest(data)
            if "header_xxh3_128" in file:
                file["header_xxh3_128"] = xxhash.xxh3_128_hexdigest(data[:first[file["file"]]])
        self.write_json("manifest.json", manifest)


# Weights


def exponent_byte(name, row=3, column=5):
    """The top exponent bit of one weight, which makes it huge."""

    def mutate(bundle):

        def edit(values):
            flat = values.view(np.uint32 if values.dtype == np.float32 else np.uint16)
            flat[row, column] ^= (0x40000000 if values.dtype == np.float32 else 0x4000)
            return values

        bundle.edit_weight(name, edit)

    return mutate


def small_exponent(name, row=2, column=7):
    """An exponent bit of one weight, which makes it four times as large."""

    def mutate(bundle):

        def edit(values):
            values[row, column] *= 4
            return values

        bundle.edit_weight(name, edit)

    return mutate


def swapped_tensors(first, second):

    def mutate(bundle):
        a, b = bundle.read(first), bundle.read(second)
        bundle.write(first, b)
        bundle.write(second, a)

    return mutate


def swapped_heads(name, heads):
    """The rows of the first two heads of a projection."""

    def mutate(bundle):

        def edit(values):
            by_head = values.reshape(heads, -1, values.shape[-1])
            by_head[[0, 1]] = by_head[[1, 0]]
            return by_head.reshape(values.shape)

        bundle.edit_weight(name, edit)

    return mutate


def both(*mutations):

    def mutate(bundle):
        for one in mutations:
            one(bundle)

    return mutate


def swapped_layers(first, second, parts):
    return both(*(swapped_tensors(f"layers_{first}_{part}_weight", f"layers_{second}_{part}_weight") for part in parts))


def interleaved_rotary_rows(name, heads):
    """Rows in pairs side by side instead of half-split: the mistake of reading a GGUF as if it were safetensors."""

    def mutate(bundle):

        def edit(values):
            width = values.shape[-1]
            halves = values.reshape(heads, 2, -1, width)
            return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)

        bundle.edit_weight(name, edit)

    return mutate


def transposed(name):
    return lambda bundle: bundle.edit_weight(name, lambda values: np.ascontiguousarray(values.T))


def zeroed(name):
    return lambda bundle: bundle.edit_weight(name, np.zeros_like)


def infinite(name):

    def mutate(bundle):

        def edit(values):
            values[1, 1] = np.inf
            return values

        bundle.edit_weight(name, edit)

    return mutate


def scaled_inline(name, factor):
    return lambda bundle: bundle.edit_inline(name, lambda values: values * factor)


def scaled_row(name, row, factor):

    def mutate(bundle):

        def edit(values):
            values[row] *= factor
            return values

        bundle.edit_weight(name, edit)

    return mutate


def host_table(name, edit):
    """A tensor of host.safetensors."""

    def mutate(bundle):
        path = bundle.folder / "host.safetensors"
        data = bytearray(path.read_bytes())
        length = int.from_bytes(data[:8], "little")
        begin, end = (8 + length + offset for offset in json.loads(data[8:8 + length])[name]["data_offsets"])
        values = np.frombuffer(bytes(data[begin:end]), np.float32).copy()
        data[begin:end] = edit(values).astype(np.float32).tobytes()
        path.write_bytes(data)

    return mutate


# Graphs


def each_step(edit):
    return lambda bundle: bundle.edit_steps(edit)


def sine_sign(value):
    """The rotary embedding turns the other way in one place: no negation."""
    return each_step(lambda step: step.bypass(f"{value}_negated", f"{value}_second"))


def no_scale(prefix):
    return each_step(lambda step: step.bypass(f"{prefix}_q_scaled", f"{prefix}_q_rope"))


def no_head_gate(prefix):

    def edit(step):
        heads = next(name for name in step.node(f"{prefix}_heads_gated").input if not name.endswith("_factor"))
        shape = step.insert_before(f"{prefix}_heads_gated", "Sub", [heads, heads], f"{prefix}_nothing")
        step.node(f"{prefix}_heads_gated").CopyFrom(helper.make_node("Add", [heads, shape], [f"{prefix}_heads_gated"]))

    return each_step(edit)


def gelu_node(name, kind):
    """The opset-20 operator with the other approximation."""

    def edit(step):
        node = step.node(name)
        assert node.op_type == "Gelu"
        del node.attribute[:]
        node.attribute.append(helper.make_attribute("approximate", kind))

    return each_step(edit)


def erf_to_tanh(name):

    def edit(step):
        step.node(f"{name}_erf").op_type = "Tanh"

    return each_step(edit)


def no_cubic_term(name):
    """The tanh form of GELU without its cubic term."""

    def edit(step):
        factor = next(operand for operand in step.node(f"{name}_cubic").input if operand.startswith("scalar_"))
        step.replace_input(f"{name}_cubic", factor, step.scalar_like(f"{name}_zero", factor, 0.0))

    return each_step(edit)


def rotated(step, before, value, axis, length, name):
    """`value` with its first entry of `axis` moved to the end, made just before the node of `before`."""
    zero, one, end, axes = (step.constant(f"{name}_{what}", np.array([number]))
                            for what, number in (("zero", 0), ("one", 1), ("end", length), ("axis", axis)))
    head = step.insert_before(before, "Slice", [value, zero, one, axes, one], f"{name}_head")
    tail = step.insert_before(before, "Slice", [value, one, end, axes, one], f"{name}_tail")
    return step.insert_before(before, "Concat", [tail, head], name, axis=axis)


def length_of(step, name, axis):
    value = next(value for value in step.graph.input if value.name == name)
    return value.type.tensor_type.shape.dim[axis].dim_value


def mask_off_by_one(group, prefix):

    def edit(step):
        before = f"{prefix}_scores_masked"
        mask = rotated(step, before, f"mask_{group}", 3, length_of(step, f"mask_{group}", 3), f"{prefix}_mask_rotated")
        step.replace_input(before, f"mask_{group}", mask)

    return each_step(edit)


def slots_off_by_one(layer, prefix, kinds="kv"):

    def edit(step):
        for kind in kinds:
            cache, before = f"{kind}_cache_{layer}", f"{prefix}_{kind}_all"
            step.replace_input(before, cache,
                               rotated(step, before, cache, 2, length_of(step, cache, 2), f"{prefix}_{kind}_rotated"))

    return each_step(edit)


def swapped_caches(prefix, layer):
    """Keys are scored against the values' cache and the other way round."""

    def edit(step):
        for kind, other in ("kv", "vk"):
            step.node(f"{prefix}_{kind}_all").input[0] = f"{other}_cache_{layer}"

    return each_step(edit)


def no_residual(value, branch_only):
    """The residual addition gives the branch alone."""

    def edit(step):
        node = step.node(value)
        node.input[[i for i, name in enumerate(node.input) if name != branch_only][0]] = branch_only

    return each_step(edit)


def no_final_norm(source):
    return each_step(lambda step: step.bypass("final_norm", source))


def external_offset(name, move):

    def edit(step):
        for entry in step.initializer(name).external_data:
            if entry.key == "offset":
                entry.value = str(int(entry.value) + move)

    return each_step(edit)


def returned_window_off_by_one(name):
    """A roll that returns the window without its newest entry."""

    def edit(step):
        node = step.node(name)
        begin, end = (int(numpy_helper.to_array(step.initializer(node.input[i]))[0]) for i in (1, 2))
        if begin == 0:
            return
        node.input[1] = step.constant(f"{name}_begin", np.array([begin - 1]))
        node.input[2] = step.constant(f"{name}_end", np.array([end - 1]))

    return each_step(edit)


def swapped_experts(layer, first, second):
    return both(*(swapped_tensors(f"layers_{layer}_mlp_expert_{first}_{part}_weight",
                                  f"layers_{layer}_mlp_expert_{second}_{part}_weight") for part in ("gate", "up", "down")))


# Contract


def contract(edit):
    return lambda bundle: bundle.edit_contract(edit)


def windows_off_by_one(value):
    for mask in value["masks"]:
        mask["window"] = mask["window"] and mask["window"] + 1
    for step in value["steps"]:
        for cache in step["caches"]:
            cache["window"] = cache["window"] and cache["window"] + 1
