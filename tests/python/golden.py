# The golden decoders of tests/data: their reference outputs, and how an exported bundle is run against them.
import json
from pathlib import Path

import numpy as np

from transload.runner import Runner
from transload.safetensors_file import read_tensors

FOLDER = Path(__file__).resolve().parents[1] / "data" / "decoders"
NAMES = ("spark", "spark_3shard_fp32", "llama", "llama_tied_fp16", "llama_gguf_q8_0", "llama_gguf_f16", "mistral", "gemma3",
         "phi3", "phi3_longrope", "phi4_mini", "phimoe", "phi3small_unofficial")
SHORT_NAMES = ("phi3_longrope", "phi4_mini", "phimoe")  # those with a second run, in the short regime of longrope
HALF_SOURCES = ("bf16", "fp16", "F16")  # stored types whose values are f16 values as well


class Golden:

    def __init__(self, name, file="golden.safetensors"):
        self.name = name
        self.about = json.loads((FOLDER / name / "about.json").read_text())
        run = self.about["goldens"][file]
        self.tolerance = run["tolerance"]["fp32_max_abs_logits"]
        self.f16_tolerance = run["tolerance"]["fp16_graph_max_abs_logits"]
        self.prompt = run["prompt_len"]
        self.margin = run["stats"]["greedy_margin_min"]
        tensors = {key: np.array(value) for key, value in read_tensors(FOLDER / name / file).items()}
        self.tokens, self.logits, self.hidden = tensors["tokens"], tensors["logits"], tensors["hidden"]
        self.pre_norm, self.keys, self.values = tensors["pre_norm"], tensors["k"], tensors["v"]
        self.read = len(self.logits)  # positions with reference logits
        self.layers = len(self.keys)

    @property
    def checkpoint(self) -> Path:
        gguf = FOLDER / self.name / "model.gguf"
        return gguf if gguf.is_file() else FOLDER / self.name

    @property
    def config(self) -> dict:
        return json.loads((FOLDER / self.name / "config.json").read_text())

    def windows(self):
        """Window of each layer, None for full attention."""
        config = self.config
        window = config.get("sliding_window")
        kinds = config.get("layer_types") or ["sliding_attention" if window else "full_attention"] * self.layers
        return [window if kind == "sliding_attention" else None for kind in kinds]

    def after_layer(self, end):
        """Hidden states after layer end-1 at the prompt's positions, before any final norm."""
        return self.pre_norm if end == self.layers else self.hidden[end]


def run_in_pieces(runner: Runner, rows, pieces):
    """Feeds `rows` in calls of (q, real tokens), repeating the last; returns every result row."""
    results, done = [], 0
    for q, real in list(pieces) + [pieces[-1]] * len(rows):
        if done == len(rows):
            break
        real = min(real, len(rows) - done)
        results.append(runner.feed(rows[done:done + real], [q], all_rows=True))
        done += real
    return np.concatenate(results)


def worst(a, b) -> float:
    assert a.shape == b.shape, (a.shape, b.shape)
    return float(np.abs(a.astype(np.float64) - b.astype(np.float64)).max())


def write_tensors(path, tensors) -> None:
    """A safetensors file of these arrays."""
    names = {"f4": "F32", "f2": "F16", "u2": "BF16", "i4": "I32", "u1": "U8"}
    header, end = {}, 0
    for name, value in tensors.items():
        header[name] = {
            "dtype": names[value.dtype.str[1:]],
            "shape": list(value.shape),
            "data_offsets": [end, end + value.nbytes]
        }
        end += value.nbytes
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(value.tobytes() for value in tensors.values()))
