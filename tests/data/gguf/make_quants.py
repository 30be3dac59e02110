# Writes quants_<type>.blocks (random GGUF blocks) and quants_<type>.f32 (their values by the Python package `gguf`), little endian.
import pathlib

import gguf
import numpy as np

BLOCKS = 20
FOLDER = pathlib.Path(__file__).parent
# Byte offsets of the f16 scales in a block; all other bytes are free.
HALF_OFFSETS = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
    "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "MXFP4": [],
}
# Largest, smallest normal, largest and smallest subnormal, both signs, both zeros.
EXTREME_HALVES = [0x7BFF, 0xFBFF, 0x0400, 0x8400, 0x03FF, 0x83FF, 0x0001, 0x8001, 0x0000, 0x8000]


def blocks_of(name, random):
    _, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    blocks = random.integers(0, 256, (BLOCKS, block_bytes), dtype=np.uint8)
    for position, offset in enumerate(HALF_OFFSETS[name]):
        halves = random.normal(0, 0.5, BLOCKS).astype(np.float16)
        extremes = np.array(EXTREME_HALVES, dtype=np.uint16).view(np.float16)
        halves[: len(extremes)] = np.roll(extremes, position)
        blocks[:, offset : offset + 2] = halves.view(np.uint8).reshape(-1, 2)
    if name == "MXFP4":
        blocks[:6, 0] = [0, 1, 2, 127, 254, 255]
    return blocks


def main():
    for seed, name in enumerate(HALF_OFFSETS):
        blocks = blocks_of(name, np.random.default_rng(seed))
        with np.errstate(over="ignore"):  # mxfp4 with the largest exponent
            values = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[name]).astype("<f4")
        (FOLDER / f"quants_{name.lower()}.blocks").write_bytes(blocks.tobytes())
        (FOLDER / f"quants_{name.lower()}.f32").write_bytes(values.tobytes())


main()
