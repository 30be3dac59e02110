# Runs exported decode-step bundles: contract, KV cache, ONNX Runtime runner, tokenizer.
"""Import what is needed from the modules: `transload.runner.Runner`, `transload.tokenizer.load_tokenizer`, ..."""

__version__ = "0.1.0"  # equal to include/transload/version.h; a test compares them
