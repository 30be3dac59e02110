# Verify of a bundle in the size of a real phone model: time, memory, and a memory forecast that is right.
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "tests" / "data" / "configs" / "spark-x2.5-1.7b"
MOST_SECONDS = 300
MOST_BYTES = 8 << 30

# Runs a command and prints its own peak memory: a child of pytest would start with pytest's.
MEASURE = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[2:], stdout=open(sys.argv[1], "w"))
print(code, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
"""


def measured(output, *command):
    result = subprocess.run([sys.executable, "-S", "-c", MEASURE, str(output), *map(str, command)],
                            capture_output=True, text=True, check=True)
    code, peak = result.stdout.split()
    return int(code), int(peak), result.stderr


def test_a_bundle_of_1_7_billion_parameters(command, tmp_path):
    subprocess.run([command, "synth", CONFIG, "-o", tmp_path / "model", "--quiet"], check=True)
    subprocess.run([command, "export", "onnx", tmp_path / "model", "-o", tmp_path / "bundle", "--weights", "fp16", "--context", "1024",
                    "--q", "1", "--quiet"], check=True)
    code, peak, stderr = measured(tmp_path / "report.json", command, "verify", tmp_path / "bundle", "--checkpoint",
                                  tmp_path / "model", "--prompt-length", 8, "--steps", 8, "--threads", 2, "--json")
    report = json.loads((tmp_path / "report.json").read_text())
    assert code == 0, report["failure"]
    assert report["tokens"] == 16 and report["head"]["rows"] == 16
    assert report["seconds"] < MOST_SECONDS
    assert peak < MOST_BYTES
    assert abs(report["memory"]["forecast"] - peak) < 0.1 * peak, report["memory"]
    stated = re.search(r"memory: about ([\d.]+) GB", stderr)
    assert stated and abs(float(stated[1]) * 1e9 - peak) < 0.1 * peak
    assert stderr.index("memory: about") < stderr.index("comparing")
