# `verify` reads graphs that the onnx package has edited: other spellings of the same graph pass, harmful edits are refused by name.
import json
import shutil

import numpy as np
import onnx
import pytest
import xxhash
from onnx import TensorProto, helper, numpy_helper

from golden import Golden

BUNDLES = {
    "spark": ("spark", "--q", "8", "--opset", "23"),
    "gemma3-conv-f16": ("gemma3", "--linear", "conv1x1", "--weights", "fp16", "--compute", "fp16", "--opset", "17"),
    "phimoe": ("phimoe", "--q", "8", "--opset", "17"),
    "phi3small": ("phi3small_unofficial", "--q", "8"),
}


def edited_copy(bundle, to, edit):
    """The bundle with its one graph edited and the manifest's size and digest of it made to agree; the graph's path."""
    shutil.copytree(bundle, to)
    (path, ) = to.glob("*.onnx")
    model = onnx.load(path, load_external_data=False)
    edit(model)
    data = model.SerializeToString()
    path.write_bytes(data)
    manifest = json.loads((to / "manifest.json").read_text())
    entry = next(file for file in manifest["files"] if file["file"] == path.name)
    entry.update(bytes=len(data), xxh3_128=xxhash.xxh3_128_hexdigest(data))
    (to / "manifest.json").write_text(json.dumps(manifest))
    return path


def inline_tensors(model):
    return [tensor for tensor in model.graph.initializer if tensor.data_location != TensorProto.EXTERNAL]


def reorder(container, items):
    items = [type(item).FromString(item.SerializeToString()) for item in items]
    del container[:]
    container.extend(items)


# Edits that leave the graph what it is.


def unchanged(model):
    pass


def documentation_and_metadata(model):
    model.doc_string = model.graph.doc_string = "edited\nby hand"
    model.producer_name = "another tool"
    model.metadata_props.add(key="licence", value="none")
    for item in (model.graph, model.graph.node[0], model.graph.input[0], model.graph.initializer[0]):
        item.metadata_props.add(key="note", value="x")
    for item in (*model.graph.node, *model.graph.input, *model.graph.initializer):
        item.doc_string = "text"


def other_node_names(model):
    for i, node in enumerate(model.graph.node):
        node.name = "" if i % 2 else f"/model/node.{i}"


def no_intermediate_types(model):
    del model.graph.value_info[:]


def types_inferred_by_onnx(model):
    del model.graph.value_info[:]
    model.CopyFrom(onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True))


def initializers_reversed(model):
    reorder(model.graph.initializer, reversed(model.graph.initializer))


def typed_lists(model):
    for tensor in inline_tensors(model):
        values = numpy_helper.to_array(tensor)
        if tensor.data_type == TensorProto.FLOAT16:
            tensor.int32_data.extend(values.view(np.uint16).flatten().tolist())
        else:
            (tensor.float_data if tensor.data_type == TensorProto.FLOAT else tensor.int64_data).extend(values.flatten().tolist())
        tensor.ClearField("raw_data")


def constant_nodes(model):
    tensors = inline_tensors(model)
    nodes = [helper.make_node("Constant", [], [tensor.name], name=f"c{i}", value=tensor) for i, tensor in enumerate(tensors)]
    reorder(model.graph.node, [*nodes, *model.graph.node])
    reorder(model.graph.initializer, [tensor for tensor in model.graph.initializer if tensor.data_location == TensorProto.EXTERNAL])


def another_topological_order(model):
    made = {name for node in model.graph.node for name in node.output}
    waiting, done, order = list(model.graph.node), set(), []
    while waiting:  # the last node that is ready, where the file has the first
        node = next(node for node in reversed(waiting) if all(name in done or name not in made for name in node.input))
        waiting.remove(node)
        done.update(node.output)
        order.append(node)
    assert [node.output[0] for node in order] != [node.output[0] for node in model.graph.node]
    reorder(model.graph.node, order)


def negative_axes(model):
    rank = {value.name: len(value.type.tensor_type.shape.dim) for value in (*model.graph.value_info, *model.graph.input, *model.graph.output)}
    changed = 0
    for node in model.graph.node:
        for attribute in node.attribute:
            if node.op_type in ("Softmax", "Concat") and attribute.name == "axis":
                attribute.i -= rank[node.output[0]]
                changed += 1
    assert changed


def open_dimensions(model):
    shapes = {node.input[1] for node in model.graph.node if node.op_type == "Reshape"}
    for tensor in inline_tensors(model):
        if tensor.name in shapes:
            values = numpy_helper.to_array(tensor).copy()
            values[-1] = -1
            tensor.raw_data = values.tobytes()


def defaults_left_out(model):
    defaults = {"alpha", "beta", "kernel_shape", "keepdims"}
    for node in model.graph.node:
        kept = [a for a in node.attribute if a.name not in defaults]
        reorder(node.attribute, kept)


def other_domains(model):
    model.opset_import.add(domain="com.example", version=1)
    for node in model.graph.node:
        node.domain = "ai.onnx"


def unused_tensors(model):
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(3, np.float64), "left_over"))


def external_without_length(model):
    for tensor in model.graph.initializer:
        reorder(tensor.external_data, reversed([entry for entry in tensor.external_data if entry.key != "length"]))


BENIGN = [
    unchanged, documentation_and_metadata, other_node_names, no_intermediate_types, types_inferred_by_onnx, initializers_reversed, typed_lists,
    constant_nodes, another_topological_order, negative_axes, open_dimensions, defaults_left_out, other_domains, unused_tensors,
    external_without_length
]


@pytest.mark.parametrize("name", BUNDLES)
@pytest.mark.parametrize("edit", BENIGN, ids=lambda edit: edit.__name__)
def test_other_spellings_of_a_graph_pass(transload, export, tmp_path, name, edit):
    checkpoint, *options = BUNDLES[name]
    bundle = export(Golden(checkpoint).checkpoint, "--context", 32, *options)
    edited_copy(bundle, tmp_path / "bundle", edit)
    result = transload("verify", tmp_path / "bundle")
    assert result.returncode == 0, result.stderr + result.stdout


# Edits that make it another graph, or none; what the message must say.


def first(model, op_type):
    return next(node for node in model.graph.node if node.op_type == op_type)


def set_attribute(op_type, name, value):

    def edit(model):
        node = first(model, op_type)
        reorder(node.attribute, [*(a for a in node.attribute if a.name != name), helper.make_attribute(name, value)])

    return edit


def external_entry(key, value):

    def edit(model):
        tensor = next(t for t in model.graph.initializer if t.data_location == TensorProto.EXTERNAL)
        next(entry for entry in tensor.external_data if entry.key == key).value = value

    return edit


HARMFUL = {
    "operator": (lambda m: setattr(first(m, "Sigmoid"), "op_type", "HardSigmoid"), "HardSigmoid"),
    "domain": (lambda m: setattr(first(m, "Softmax"), "domain", "com.microsoft"), "com.microsoft"),
    "unknown attribute": (set_attribute("Neg", "axis", 1), "attribute of Neg"),
    "alpha": (set_attribute("Gemm", "alpha", 0.5), "attribute 'alpha' of Gemm"),
    "beta": (set_attribute("Gemm", "beta", 2.0), "attribute 'beta' of Gemm"),
    "transposed rows": (set_attribute("Gemm", "transA", 1), "attribute 'transA' of Gemm"),
    "untransposed weight": (set_attribute("Gemm", "transB", 0), "attribute 'transB' of Gemm"),
    "softmax of another axis type": (set_attribute("Softmax", "axis", 1.5), "type of attribute 'axis' of Softmax"),
    "concat axis": (set_attribute("Concat", "axis", 9), "axis of Concat"),
    "permutation": (set_attribute("Transpose", "perm", [0, 0, 1, 2]), "perm"),
    "mean without its dimension": (set_attribute("ReduceMean", "keepdims", 0), "attribute 'keepdims' of ReduceMean"),
    "mean of nothing": (set_attribute("ReduceMean", "noop_with_empty_axes", 1), "noop_with_empty_axes"),
    "order": (lambda m: reorder(m.graph.node, reversed(m.graph.node)), "expected a value made before it"),
    "node left out": (lambda m: m.graph.node.remove(first(m, "Softmax")), "which nothing makes"),
    "output left out": (lambda m: m.graph.output.pop(), "number of outputs"),
    "name": (lambda m: setattr(m.graph.initializer[0], "name", "model.layers.0/weight"), "'model.layers.0/weight'"),
    "tensor twice": (lambda m: m.graph.initializer.append(m.graph.initializer[0]), "twice"),
    "tensor dimensions": (lambda m: m.graph.initializer[0].dims.insert(0, 2), "expected"),
    "tensor type": (lambda m: setattr(m.graph.initializer[0], "data_type", TensorProto.BFLOAT16), "data_type: got 16"),
    "location elsewhere": (external_entry("location", "../weights.bin"), "'../weights.bin'"),
    "absolute location": (external_entry("location", "/etc/hostname"), "'/etc/hostname'"),
    "location missing": (external_entry("location", "gone.bin"), "gone.bin"),
    "offset outside": (external_entry("offset", str(1 << 40)), "past the end"),
    "offset of another tensor": (external_entry("offset", "4"), "external data"),
    "length": (external_entry("length", "4"), "length of external data"),
    "declared shape": (lambda m: setattr(m.graph.value_info[0].type.tensor_type.shape.dim[-1], "dim_value", 77), "as inferred"),
    "declared type": (lambda m: setattr(m.graph.value_info[0].type.tensor_type, "elem_type", TensorProto.FLOAT16), "as inferred"),
    "open dimension": (lambda m: setattr(m.graph.input[0].type.tensor_type.shape.dim[1], "dim_param", "n"), "expected a number"),
    "opset": (lambda m: setattr(m.opset_import[0], "version", 24), "opset: got 24"),
    "functions": (lambda m: m.functions.add(name="f"), "field of ModelProto: got number 25"),
    "sparse tensors": (lambda m: m.graph.sparse_initializer.add(), "field of GraphProto: got number 15"),
    "text list": (set_attribute("Neg", "names", ["a", "b"]), "field of AttributeProto: got number 9"),
}


@pytest.mark.parametrize("case", HARMFUL)
def test_harmful_edits_are_refused_by_name(transload, export, tmp_path, case):
    bundle = export(Golden("spark").checkpoint, "--context", 32, *BUNDLES["spark"][1:])
    edit, words = HARMFUL[case]
    path = edited_copy(bundle, tmp_path / "bundle", edit)
    result = transload("verify", tmp_path / "bundle")
    assert result.returncode in (1, 3, 4), (result.returncode, result.stderr)
    message = result.stderr + result.stdout
    assert words in message and (path.name in message or "gone.bin" in message or "weights.bin" in message), message
