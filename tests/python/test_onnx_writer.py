# Every op that the ONNX writer knows, at every opset: checked by onnx, run by ONNX Runtime, compared with NumPy.
import math
import os
import subprocess
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("TRANSLOAD_BUILD", ROOT / "build" / "release"))
OPSETS = range(17, 24)
IR_VERSIONS = {17: 8, 18: 8, 19: 9, 20: 9, 21: 10, 22: 10, 23: 11}

erf = np.vectorize(math.erf)


def softmax(x, axis):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def conv1x1(x, w):
    return np.einsum("bihw,oi->bohw", x, w[:, :, 0, 0])


def constants(x):
    w = np.arange(1, 7, dtype=np.float64).reshape(2, 3)
    return x @ w.T + np.array([0.5, -0.25]) + np.array([100, -200])


REFERENCES = {
    "add": lambda a, b: a + b,
    "add_i32": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "mul_f16": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "max": np.maximum,
    "min": np.minimum,
    "min_f16": np.minimum,
    "equal": lambda a, b: (a == b).astype(np.float64),
    "greater": lambda a, b: (a > b).astype(np.float64),
    "where": lambda a, b, c: np.where(a > 0, b, c),
    "abs": np.abs,
    "neg": lambda a: -a,
    "sqrt": np.sqrt,
    "sigmoid": lambda a: 1 / (1 + np.exp(-a)),
    "tanh": np.tanh,
    "erf": erf,
    "gelu_none": lambda a: 0.5 * a * (1 + erf(a / math.sqrt(2))),
    "gelu_tanh": gelu_tanh,
    "softmax_last": lambda a: softmax(a, 3),
    "softmax_axis_1": lambda a: softmax(a, 1),
    "reduce_mean_last": lambda a: a.mean(axis=2, keepdims=True),
    "reduce_mean_two": lambda a: a.mean(axis=(0, 2), keepdims=True),
    "reduce_max_last": lambda a: a.max(axis=2, keepdims=True),
    "reduce_max_two": lambda a: a.max(axis=(0, 2), keepdims=True),
    "argmax": lambda a: a.argmax(axis=1, keepdims=True),
    "gemm": lambda a, b: a @ b.T,
    "gemm_bias": lambda a, b, c: a @ b.T + c,
    "matmul": lambda a, b: a @ b,
    "matmul_broadcast": lambda a, b: a @ b,
    "conv1x1": conv1x1,
    "conv1x1_bias": lambda a, b, c: conv1x1(a, b) + c[None, :, None, None],
    "reshape": lambda a: a.reshape(3, 1, 4),
    "transpose": lambda a: a.transpose(2, 0, 1),
    "concat": lambda a, b, c: np.concatenate([a, b, c], axis=1),
    "slice": lambda a: a[:, 2:5],
    "gather": lambda a, b: a[b],
    "cast_f16": lambda a: a,
    "cast_f32": lambda a: a,
    "cast_i64": lambda a: a,
    "constants_inline": constants,
    "constants_external": constants,
}
FIRST_OPSET = {"gelu_none": 20, "gelu_tanh": 20}
OUTPUT_TYPES = {"argmax": np.int64, "cast_f16": np.float16, "cast_f32": np.float32, "cast_i64": np.int64, "equal": np.float32}
CASES = [(name, opset) for name in REFERENCES for opset in OPSETS if opset >= FIRST_OPSET.get(name, 0)]


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    program = BUILD / "onnx_op_samples"
    assert program.exists(), f"{program} is not built"
    directory = tmp_path_factory.mktemp("onnx_op_samples")
    subprocess.run([program, directory], check=True)
    return directory


def random_input(value, rng):
    shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
    dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
    if np.issubdtype(dtype, np.integer):
        return rng.integers(0, 9, shape).astype(dtype)
    return rng.uniform(0.25, 3, shape).astype(dtype)  # positive, for the square root and the division


def test_samples_are_the_cases_of_this_test(samples):
    names = {path.name for path in samples.glob("*.onnx")}
    assert names == {f"{name}.opset{opset}.onnx" for name, opset in CASES}


@pytest.mark.parametrize("name,opset", CASES)
def test_sample_is_valid_and_runs_like_numpy(samples, name, opset):
    path = samples / f"{name}.opset{opset}.onnx"
    onnx.checker.check_model(path, full_check=True)
    model = onnx.load(path, load_external_data=False)
    assert model.ir_version == IR_VERSIONS[opset]
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", opset)]
    assert not model.graph.initializer or not {t.name for t in model.graph.initializer} & {i.name for i in model.graph.input}

    rng = np.random.default_rng(opset)
    inputs = {value.name: random_input(value, rng) for value in model.graph.input}
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (got,) = session.run(None, inputs)

    first = next(iter(inputs.values()))
    exact = [x.astype(np.float64) if np.issubdtype(x.dtype, np.floating) else x for x in inputs.values()]
    expected = REFERENCES[name](*exact)
    assert got.dtype == OUTPUT_TYPES.get(name, first.dtype)
    assert got.shape == expected.shape
    assert list(got.shape) == [dim.dim_value for dim in model.graph.output[0].type.tensor_type.shape.dim]
    tolerance = 1e-3 if got.dtype == np.float16 else 2e-6
    np.testing.assert_allclose(got.astype(np.float64), expected, rtol=tolerance, atol=tolerance)


def test_inferred_shapes_equal_the_declared_ones(samples):
    for path in samples.glob("*.onnx"):
        declared = onnx.load(path, load_external_data=False)
        bare = onnx.ModelProto()
        bare.CopyFrom(declared)
        del bare.graph.value_info[:]
        inferred = onnx.shape_inference.infer_shapes(bare, strict_mode=True, data_prop=True)
        types = lambda model: {v.name: v.type.SerializeToString(deterministic=True) for v in model.graph.value_info}
        assert types(inferred) == types(declared), path.name


def test_bytes_equal_the_canonical_serialisation_of_onnx(samples):
    # Canonical field order means that other tools can rewrite a graph without changing it.
    for path in samples.glob("*.onnx"):
        data = path.read_bytes()
        assert onnx.load_from_string(data).SerializeToString(deterministic=True) == data, path.name


