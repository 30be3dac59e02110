# Every conversion of the handed TensorRT-LLM data through the command, in both formats: the same bytes, or the same refusal.
import hashlib
import json
import shutil
import struct
from concurrent.futures import ThreadPoolExecutor

import pytest

from conftest import ROOT

DATA = ROOT / "tests" / "data" / "trtllm"
CASES = sorted(path.parent.name for path in DATA.glob("*/case.json"))
FORMATS = {"0.12": "seed", "1.x": "modern"}
CONVERSIONS = 492


def arguments_of(options, style):
    arguments = ["--dtype", options["dtype"], "--format", style]
    for flag, field in (("--tp", "tp_size"), ("--pp", "pp_size"), ("--moe-ep", "moe_ep_size")):
        arguments += [flag, options[field]]
    for flag, field in (("--quant", "weight_only"), ("--form", "form"), ("--layout", "layout")):
        if options[field] is not None:
            arguments += [flag, options[field]]
    return arguments


def check_rank(path, expected):
    content = path.read_bytes()
    assert len(content) == expected["bytes"]
    (length,) = struct.unpack("<Q", content[:8])
    data = memoryview(content)[8 + length:]
    tensors = {name: [row["dtype"], row["shape"], hashlib.sha256(data[slice(*row["data_offsets"])]).hexdigest()]
               for name, row in json.loads(content[8:8 + length]).items()}
    assert tensors == {name: list(row) for name, row in expected["tensors"].items()}
    # The order of the tensors, too.
    assert hashlib.sha256(content).hexdigest() == expected["sha256"]


class Case:
    def __init__(self, name):
        self.input = DATA / name / "input"
        described = json.loads((DATA / name / "case.json").read_text())
        self.configs = described["configs"]
        self.conversions = described["conversions"]
        self.ranks = {each["id"]: each.get("ranks") for each in self.conversions}

    def check(self, transload, work, conversion, style):
        destination = work / f"{conversion['id']}-{style}"
        result = transload("export", "trtllm", self.input, "-o", destination, "--quiet", "--workers", 1,
                           *arguments_of(conversion["options"], style))
        config = (conversion.get("config") or {}).get(FORMATS[style])
        if conversion["expect"] == "refuse" or config is None:
            assert result.returncode == 4, result.stderr
            first, *more = result.stderr.splitlines()
            assert first.startswith("transload: ") and all(line.startswith("  ") for line in more), result.stderr
            assert result.stdout == "" and not destination.exists()
            return
        assert result.returncode == 0, result.stderr
        ranks = self.ranks[conversion.get("same_tensors_as") or conversion["id"]]
        names = {f"rank{i}.{end}" for i in range(len(ranks)) for end in ("safetensors", "manifest.json")} | {"config.json"}
        assert {path.name for path in destination.iterdir()} == names
        assert (destination / "config.json").read_bytes().decode() == self.configs[config]
        for index, expected in enumerate(ranks):
            check_rank(destination / f"rank{index}.safetensors", expected)
        shutil.rmtree(destination)


def test_all_conversions_are_there():
    assert sum(len(Case(name).conversions) for name in CASES) == CONVERSIONS


@pytest.mark.parametrize("style", FORMATS)
@pytest.mark.parametrize("name", CASES)
def test_every_conversion_of_the_case(transload, tmp_path, name, style):
    case = Case(name)
    failed = []

    def check(conversion):
        try:
            case.check(transload, tmp_path, conversion, style)
        except AssertionError as fault:
            failed.append(f"{conversion['id']}: {str(fault)[:300]}")

    # More threads than cores: a run mostly waits for the disk.
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(check, case.conversions))
    assert not failed, f"{len(failed)} of {len(case.conversions)} differ:\n" + "\n".join(sorted(failed)[:20])
    assert list(tmp_path.iterdir()) == []
