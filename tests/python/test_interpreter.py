# The interpreter against ONNX Runtime: the same graph and the same inputs, op by op, in f32 and f16, operands as inputs and as
# constants.
import os
import subprocess
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("TRANSLOAD_BUILD", ROOT / "build" / "release"))
OPS = {
    "Abs", "Add", "ArgMax", "Cast", "Concat", "Conv", "Div", "Equal", "Erf", "Gather", "Gelu", "Gemm", "Greater", "MatMul", "Max",
    "Min", "Mul", "Neg", "ReduceMax", "ReduceMean", "Reshape", "Sigmoid", "Slice", "Softmax", "Sqrt", "Sub", "Tanh", "Transpose",
    "Where",
}


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    program = BUILD / "interpreter_samples"
    assert program.exists(), f"{program} is not built"
    directory = tmp_path_factory.mktemp("interpreter_samples")
    subprocess.run([program, directory], check=True)
    return sorted(directory.glob("*.onnx"))


def stored(path, value):
    shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
    dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
    return np.fromfile(path.with_suffix(f".{value.name}.bin"), dtype).reshape(shape)


def difference(path):
    """The greatest difference from ONNX Runtime, relative to values above 1 and absolute below."""
    model = onnx.load(path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {value.name: stored(path, value) for value in model.graph.input})
    got = stored(path, model.graph.output[0])
    assert got.dtype == expected.dtype and got.shape == expected.shape, path.name
    error = np.abs(got.astype(np.float64) - expected.astype(np.float64))
    return float((error / np.maximum(1, np.abs(expected.astype(np.float64)))).max()), expected.dtype


def test_every_operator_has_a_sample(samples):
    assert {node.op_type for path in samples for node in onnx.load(path).graph.node} == OPS


def test_interpreter_gives_what_onnx_runtime_gives(samples):
    tolerances = {np.dtype(np.float32): 1e-5, np.dtype(np.float16): 2e-3}
    wrong = {}
    for path in samples:
        error, dtype = difference(path)
        if not error <= tolerances.get(dtype, 0):
            wrong[path.name] = error
    assert len(samples) > 150
    assert not wrong
