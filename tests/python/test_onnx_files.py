# What the written ONNX files look like to other tools: checker, external data, names, sizes, no unused inputs, static shapes.
import re

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from golden import Golden
from transload.contract import Contract
from transload.embedding import Embedding

VARIANTS = {
    "spark": ("spark", "--q", "1,8"),
    "spark-slice": ("spark", "--layers", "sliding", "--no-head"),
    "spark-roll-f16": ("spark", "--q", "1,16", "--cache-layout", "roll", "--compute", "fp16"),
    "gemma3-conv": ("gemma3", "--q", "1,8", "--linear", "conv1x1", "--weights", "fp16"),
    "gemma3-matmul-23": ("gemma3", "--linear", "matmul", "--opset", "23"),
    "llama-ids-17": ("llama", "--inputs", "ids", "--opset", "17", "--logits", "last"),
    "mistral-half": ("mistral", "--rope-width", "half", "--cache-layout", "roll"),
    "shards": ("spark_3shard_fp32", "--opset", "20"),
    "phimoe-f16-17": ("phimoe", "--q", "1,8", "--compute", "fp16", "--opset", "17"),
    "phi3small": ("phi3small_unofficial", "--q", "1,8"),
}


@pytest.fixture(params=VARIANTS, scope="module")
def bundle(request, export):
    name, *options = VARIANTS[request.param]
    return export(Golden(name).checkpoint, "--context", 32, *options)


def graphs(bundle):
    return [(path, onnx.load(path, load_external_data=False)) for path in sorted(bundle.glob("*.onnx"))]


def dims(value):
    assert all(dim.HasField("dim_value") for dim in value.type.tensor_type.shape.dim), f"{value.name} is not static"
    return [dim.dim_value for dim in value.type.tensor_type.shape.dim]


def test_the_checker_accepts_them_by_path_with_full_shape_inference(bundle):
    for path, _ in graphs(bundle):
        onnx.checker.check_model(str(path), full_check=True)


def test_large_tensors_are_external_aligned_apart_and_inside_the_one_weight_file(bundle):
    size = (bundle / "weights.bin").stat().st_size
    placed = {}
    for _, model in graphs(bundle):
        for tensor in model.graph.initializer:
            if tensor.data_location != onnx.TensorProto.EXTERNAL:
                assert len(tensor.raw_data) <= 4096, tensor.name
                continue
            entry = {e.key: e.value for e in tensor.external_data}
            assert entry["location"] == "weights.bin"
            offset, length = int(entry["offset"]), int(entry["length"])
            assert offset % 4096 == 0 and offset + length <= size, tensor.name
            item = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
            count = 1
            for dim in tensor.dims:
                count *= dim
            assert length == count * item
            placed[offset] = length
    assert placed, "no external tensor at all"
    ends = sorted(placed.items())
    assert all(a + n <= b for (a, n), (b, _) in zip(ends, ends[1:])), "external tensors overlap"


def test_protobufs_are_small_and_names_are_plain(bundle):
    for path, model in graphs(bundle):
        assert path.stat().st_size < 4 << 20
        graph = model.graph
        names = [n.name for n in graph.node] + [t.name for t in graph.initializer] + [o for n in graph.node for o in n.output]
        names += [v.name for v in [*graph.input, *graph.output, *graph.value_info]] + [graph.name]
        assert not [name for name in names if not re.fullmatch("[A-Za-z0-9_]+", name)]
        assert len({n.name for n in graph.node}) == len(graph.node)


def test_every_input_and_initializer_is_used_and_every_output_is_made(bundle):
    for _, model in graphs(bundle):
        read = {name for node in model.graph.node for name in node.input}
        made = {name for node in model.graph.node for name in node.output}
        assert {v.name for v in model.graph.input} <= read
        assert {t.name for t in model.graph.initializer} <= read
        assert {v.name for v in model.graph.output} <= made


def test_all_shapes_are_static_of_rank_four_at_most_and_equal_the_contract(bundle):
    contract = Contract.load(bundle)
    assert [s.file for s in contract.steps] and {p.name for p, _ in graphs(bundle)} == {s.file for s in contract.steps}
    for path, model in graphs(bundle):
        inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
        for value in [*model.graph.input, *model.graph.output, *inferred.graph.value_info]:
            assert len(dims(value)) <= 4, value.name
        assert all(len(tensor.dims) <= 4 for tensor in model.graph.initializer)
        step = next(s for s in contract.steps if s.file == path.name)
        for values, ports in ((model.graph.input, step.inputs), (model.graph.output, step.outputs)):
            assert [(v.name, dims(v)) for v in values] == [(p.name, list(p.shape)) for p in ports]
            kinds = [onnx.helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type) for v in values]
            assert kinds == [p.dtype for p in ports]


def test_graphs_are_plain_for_converters(bundle):
    for _, model in graphs(bundle):
        assert [o.domain for o in model.opset_import] == [""]
        assert not model.graph.sparse_initializer and not model.functions
        kinds = {node.op_type for node in model.graph.node}
        banned = {
            "If", "Loop", "Scan", "Shape", "Where", "IsNaN", "NonZero", "ScatterND", "ScatterElements", "Expand", "Range",
            "Constant"
        }
        if any("_mlp_router_" in node.output[0] for node in model.graph.node):
            banned.remove("Where")  # a router's choice of experts has no other form
        assert not kinds & banned
        for node in model.graph.node:
            assert node.domain == "" and not any(a.name == "allowzero" and a.i for a in node.attribute)


def test_layer_outputs_carry_the_number_of_the_checkpoints_layer(bundle):
    contract = Contract.load(bundle)
    for _, model in graphs(bundle):
        made = {name for node in model.graph.node for name in node.output}
        expected = {f"layers_{i}_out" for i in range(contract.first_layer, contract.end_layer)}
        assert expected <= made


def test_weights_hold_the_embedding_rows_the_contract_points_at(export):
    bundle = export(Golden("spark").checkpoint, "--context", 32, "--q", "1,8")
    source = Contract.load(bundle).embedding
    assert source.file == "weights.bin" and source.offset % 4096 == 0
    path, model = graphs(bundle)[0]
    tensor = next(t for t in model.graph.initializer if {e.key: e.value
                                                         for e in t.external_data}.get("offset") == str(source.offset))
    onnx.external_data_helper.load_external_data_for_tensor(tensor, str(bundle))
    rows = numpy_helper.to_array(tensor).reshape(source.shape)
    assert np.array_equal(Embedding(bundle, source, np.dtype(np.float32)).rows([0, 5, 7]), rows[[0, 5, 7]])
