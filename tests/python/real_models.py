# The real trained weights for tests: skips where their packages are not installed.
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import real_weights  # noqa: E402
from real_weights import PARTS, reference  # noqa: E402, F401


def weights(name) -> Path:
    """The GGUF file; skips the test when its packages are not installed."""
    try:
        return real_weights.weights(name)
    except FileNotFoundError as error:
        pytest.skip(str(error))
