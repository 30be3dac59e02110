# Weight-only vectors of other implementations through the command: the matrix stands as down_proj in a checkpoint of one layer.
import hashlib
import json

import numpy as np
import pytest

from conftest import ROOT
from hf_checkpoint import HfCheckpoint, read_safetensors

DATA = ROOT / "tests" / "data" / "trtllm"
PROJ = "transformer.layers.0.mlp.proj."

# SHA-256 over the fp16 scales and the stored bytes of w[k][n] = (((37k + 101n) mod 255) - 127) / 64 * 2^-(n mod 5) in fp16, K = 128,
# N = 64: section 7.4 of the format's description, computed there by an implementation of its own.
PIPELINE = {
    "int8": {"scales": "9f8b30cf05af9f48ceda04773fbce2a4ddbd9dfde1931eb18f1c56c7df826bd6",
             "sm80": "b9d367054c430bcabfb7a01e9367acee7bbd107690e12827427e16136ab5438c",
             "sm90": "4d7e29de7adf1ed565c853bb2459c252396ee428556ad80c77fc64d85a307563",
             "transpose": "2396aa33b380cf7ddfbef70c90b673bc97e68c1961a221ba55b5b4d2225eea99"},
    "int4": {"scales": "1088163a91a6a16681bb2671f3f4c29af52689e140892a3d53eac7907fb60789",
             "sm80": "76167b59600d1a3181744506e4499ecb6f63971ccf02e0872a9a984670068a8b",
             "sm90": "a6604cfdfc22b8be00686e15b92a12b2732fe1bb716ad9072cda8108304a7c80",
             "transpose": "6e0bed94d54153197f84b5f30ecf7d3acf69b1f1044803b4c3d033edb2ac60b5"},
}
LAYOUT_ROWS = json.loads((DATA / "vectors.json").read_text())["layout"]
TILE = 64  # inputs


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def quantised(transload, folder, weight, *options):
    """Scales and bytes of an fp16 weight [out, in] after an export."""
    hidden, inner = weight.shape
    checkpoint = HfCheckpoint(DATA / "phi3-mini-4k" / "input")
    checkpoint.config.update(hidden_size=hidden, intermediate_size=inner, num_hidden_layers=1, num_attention_heads=2,
                             num_key_value_heads=2, vocab_size=32, torch_dtype="float16")
    layer = "model.layers.0."
    shapes = {"model.embed_tokens.weight": (32, hidden), "lm_head.weight": (32, hidden), "model.norm.weight": (hidden, ),
              layer + "input_layernorm.weight": (hidden, ), layer + "post_attention_layernorm.weight": (hidden, ),
              layer + "self_attn.qkv_proj.weight": (3 * hidden, hidden), layer + "self_attn.o_proj.weight": (hidden, hidden),
              layer + "mlp.gate_up_proj.weight": (2 * inner, hidden)}
    checkpoint.tensors = {name: ("F16", list(shape), np.ones(shape, np.float16).tobytes()) for name, shape in shapes.items()}
    checkpoint.tensors[layer + "mlp.down_proj.weight"] = ("F16", [hidden, inner], weight.tobytes())
    result = transload("export", "trtllm", checkpoint.write(folder / "in"), "-o", folder / "out", "--quiet", "--form", "baked", *options)
    assert result.returncode == 0, result.stderr
    tensors = read_safetensors(folder / "out/rank0.safetensors")
    return tensors[PROJ + "per_channel_scale"][2], tensors[PROJ + "weight"][2]


@pytest.mark.parametrize("layout", ["sm80", "sm90", "transpose"])
@pytest.mark.parametrize("bits", ["int8", "int4"])
def test_a_weight_goes_through_scales_rounding_and_layout(transload, tmp_path, bits, layout):
    n, k = np.meshgrid(np.arange(64), np.arange(128), indexing="ij")
    weight = ((((37 * k + 101 * n) % 255) - 127) / 64 * 2.0**-(n % 5)).astype(np.float16)
    assert sha256(weight.tobytes()) == "2b24ba62760ca04547f0962b1d01534e49a2a690ddfceaecc44a9c434cfe9df5"
    scales, stored = quantised(transload, tmp_path, weight, "--quant", bits, "--layout", layout)
    assert sha256(scales) == PIPELINE[bits]["scales"]
    assert sha256(stored) == PIPELINE[bits][layout]


# Channels hold their least value, so that their scale is 1 and quantising integers gives them back: those of 4 bits by
# themselves, those of 8 bits in a tile of further inputs, whose bytes are taken out of what was stored.
@pytest.mark.parametrize("row", LAYOUT_ROWS, ids=lambda row: f"int{row['bits']}-{row['layout']}-{row['K']}x{row['N']}")
def test_integers_lie_in_the_layout(transload, tmp_path, row):
    bits, inputs, channels = row["bits"], row["K"], row["N"]
    least = -(1 << (bits - 1))
    n, k = np.meshgrid(np.arange(channels), np.arange(inputs), indexing="ij")
    weight = ((5 * k + 3 * n) % (1 << bits) + least).astype(np.float16)
    if bits == 8:
        weight = np.concatenate([weight, np.full((channels, TILE), least, np.float16)], axis=1)
    scales, stored = quantised(transload, tmp_path, weight, "--quant", f"int{bits}", "--layout", row["layout"])
    assert scales == np.ones(channels, np.float16).tobytes()
    if bits == 8:
        stored = np.frombuffer(stored, np.uint8)
        if row["layout"] == "plain":
            stored = stored[:inputs * channels]
        else:
            together = 2 if row["layout"] == "sm80" else 1  # channels whose tiles alternate
            stored = stored.reshape(channels // together, -1)[:, :together * inputs]
        stored = stored.tobytes()
    assert stored[:32].hex() == row["first_32_bytes"]
    assert sha256(stored) == row["sha256"]
