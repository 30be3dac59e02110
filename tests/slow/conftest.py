# What the slow tests share: the built command, a checkpoint large enough to be interrupted, and running the command.
import hashlib
import json
import os
import pathlib
import resource
import signal
import subprocess
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
COMMAND = pathlib.Path(os.environ.get("TRANSLOAD", ROOT / "build/release/transload"))

# Spark's shape, narrow: about 210 MB of bf16, whose export to f32 takes some tenths of a second.
LAYERS = 8
CONFIG = {
    "architectures": ["Spark2_5ForCausalLM"],
    "model_type": "spark2_5",
    "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": LAYERS,
    "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256,
    "vocab_size": 8192, "max_position_embeddings": 32768,
    "sliding_window": 512,
    "layer_types": ["full_attention" if i % 4 == 3 else "sliding_attention" for i in range(LAYERS)],
    "rope_parameters": {
        "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 5000000},
        "sliding_attention": {"partial_rotary_factor": 1.0, "rope_theta": 10000},
    },
    "hidden_act": "gelu", "headwise_attn_output_gate": True, "gate_attn_act_mode": "sigmoid",
    "attention_bias": False, "mlp_bias": False, "attention_dropout": 0.0,
    "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
    "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2,
}


@pytest.fixture(scope="session")
def command():
    assert COMMAND.is_file(), f"{COMMAND} is missing: run `make build`"
    return COMMAND


@pytest.fixture(scope="session")
def checkpoint(command, tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint")
    config = folder / "config.json"
    config.write_text(json.dumps(CONFIG))
    destination = folder / "model"
    subprocess.run([command, "synth", config, "-o", destination, "--seed", "1"], check=True, stdin=subprocess.DEVNULL,
                   capture_output=True)
    yield destination


def export_arguments(command, checkpoint, destination, *more):
    return [str(command), "export", "onnx", str(checkpoint), "-o", str(destination), "--context", "1024", *more]


def run_export(command, checkpoint, destination, *more, **options):
    return subprocess.run(export_arguments(command, checkpoint, destination, *more), stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, **options)


def digests(folder):
    """Name and content of every file of a bundle, for comparing two."""
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(folder.rglob("*")) if path.is_file()}


def leftovers(folder, *expected):
    """What lies in `folder` besides the expected names: staging folders that should be gone."""
    return sorted(path.name for path in folder.iterdir() if path.name not in expected)


def kill_at(arguments, seconds):
    """Starts a command and kills it after some seconds; true when it was still running."""
    process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(seconds)
    process.send_signal(signal.SIGKILL)
    return process.wait() == -signal.SIGKILL


def limited(bytes_):
    """Sets the file size limit in the child. The signal is left at its default: ignoring it is the command's duty."""
    def apply():
        resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_, bytes_))
    return apply


@pytest.fixture
def small_disk(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("mounting a tmpfs needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", disk], capture_output=True, text=True)
    if mount.returncode != 0:
        pytest.skip(f"mounting a tmpfs was refused: {mount.stderr.strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)
