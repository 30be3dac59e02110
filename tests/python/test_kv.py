# transload kv: its tables, JSON and picture agree with each other and with the export's own summary; what it refuses.
import itertools
import json
import os
import re
import shutil
import xml.etree.ElementTree as ElementTree

import pytest

from conftest import command
from terminal import shown_on_terminal

DECODERS = ("spark", "gemma3", "mistral", "llama", "llama_gguf_q8_0")
LAYOUTS = ("auto", "ring", "roll", "uniform")
ELEMENT_BYTES = {"fp32": 4, "fp16": 2, "int8": 1}


def checkpoint(data, name):
    gguf = data / "decoders" / name / "model.gguf"
    return gguf if gguf.is_file() else data / "decoders" / name


def read(transload, *arguments, **options):
    result = transload("kv", *arguments, **options)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return result.stdout


@pytest.fixture(scope="module")
def spark(transload, data, tmp_path_factory):
    """The 1.7B checkpoint in real dimensions, without data on disk."""
    folder = tmp_path_factory.mktemp("kv") / "spark"
    result = transload("synth", data / "configs" / "spark-x2.5-1.7b", "-o", folder, "--sparse")
    assert result.returncode == 0, result.stderr
    return folder


def test_spark_at_context_4096(transload, spark):
    found = json.loads(read(transload, spark, "--context", 4096, "--json"))
    layouts = {entry["layout"]: entry for entry in found["contexts"][0]["layouts"]}
    assert {name: layouts[name]["bytes"] for name in LAYOUTS} == {
        "auto": 80_697_344,
        "ring": 80_697_344,
        "roll": 80_740_352,
        "uniform": 234_881_024
    }
    assert layouts["ring"]["saved_bytes"] == 234_881_024 - 80_697_344
    table = read(transload, spark, "--context", 4096)
    assert re.search(r"^  auto +58,720,256 +21,977,088 +80,697,344 +154,183,680 +65\.6$", table, re.MULTILINE)
    assert re.search(r"^  0-2, .*, \.\.\. +21 sliding +ring +511 +1,046,528 +21,977,088$", table, re.MULTILINE)
    assert re.search(r"^  3, .*, \.\.\. +7 full +append +4,096 +8,388,608 +58,720,256$", table, re.MULTILINE)


@pytest.mark.parametrize("name", DECODERS)
def test_json_agrees_with_the_summary_of_an_export(transload, data, tmp_path, name):
    path = checkpoint(data, name)
    for dtype, layout in itertools.product(ELEMENT_BYTES, LAYOUTS[:3]):
        found = json.loads(read(transload, path, "--context", "12,48", "--dtype", dtype, "--json"))
        export = transload("export", "onnx", path, "-o", tmp_path / "x", "--context", "12,48", "--cache-layout", layout,
                           "--dry-run", "--json")
        assert export.returncode == 0, export.stderr
        size = ELEMENT_BYTES[dtype]
        assert found["element_bytes"] == size
        for mine, theirs in zip(found["contexts"], json.loads(export.stdout)["kv"], strict=True):
            entry = mine["layouts"][LAYOUTS.index(layout)]
            assert (mine["context"], entry["layout"]) == (theirs["context"], layout)
            assert [(x["layer"], x["attention"], x["rule"], x["slots"], x["bytes"]) for x in entry["layers"]
                   ] == [(x["layer"], x["attention"], x["rule"], x["slots"], x["elements"] * size) for x in theirs["layers"]]
            assert entry["bytes"] == theirs["bytes"][dtype]["hybrid"]
            assert entry["saved_bytes"] == theirs["bytes"][dtype]["saved"]
            assert entry["bytes"] == sum(x["bytes"] for x in entry["layers"])
            assert entry["bytes"] == entry["sliding_bytes"] + entry["full_bytes"]
            assert mine["layouts"][3]["bytes"] == theirs["bytes"][dtype]["uniform"]


def test_table_shows_the_layout_asked_for(transload, data):
    path = checkpoint(data, "gemma3")
    for layout, row in (("roll", r"  0-4 +5 sliding +roll +8 +"), ("uniform", r"  0-4 +5 sliding +append +64 +"),
                        ("ring", r"  0-4 +5 sliding +ring +7 +")):
        table = read(transload, path, "--context", 64, "--layout", layout)
        assert f"context 64, layout {layout}\n" in table
        assert re.search("^" + row, table, re.MULTILINE), table
    # Where every layer holds the same slots it is one row.
    assert re.search(r"^  0-3 +4 full +append +64 +8,192 +32,768$", read(transload, checkpoint(data, "llama"), "--context", 64),
                     re.MULTILINE)


def bars_of(table, full, sliding):
    """Columns of the full and the sliding part of each layout's bar, for each context."""
    found = re.findall(rf"^  ({'|'.join(LAYOUTS)}) +({full}*)({sliding}*) [\d.]+ \w+$", table, re.MULTILINE)
    return [(name, len(a), len(b)) for name, a, b in found]


def test_bars_in_plain_text_stand_for_the_bytes(transload, spark):
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}  # not a terminal: plain all the same
    bars = bars_of(read(transload, spark, "--context", "1024,4096", env=environment), "#", "=")
    longest = 56
    expected = []
    for full, window, uniform in ((14_680_064, 21_977_088, 58_720_256), (58_720_256, 21_977_088, 234_881_024)):
        ends = [(full, full + window)] * 2 + [(full, full + window + 43_008), (full, uniform)]
        for name, (inner, outer) in zip(LAYOUTS, ends):
            columns = round(inner / uniform * longest)
            expected.append((name, columns, round(outer / uniform * longest) - columns))
    assert bars == expected


@pytest.mark.parametrize("columns, locale, full, sliding", [(100, "C.UTF-8", "█", "▒"), (60, "en_US.utf8", "█", "▒"),
                                                            (60, "C", "#", "=")])
def test_bars_fit_the_terminal(transload, spark, columns, locale, full, sliding):
    text, code = shown_on_terminal([command(), "kv", spark, "--context", "4096"], columns, "stdout",
                                   env={**os.environ, "LC_ALL": locale})
    assert code == 0
    lines = text.replace("\r\n", "\n")
    bars = bars_of(lines, full, sliding)
    assert [name for name, *_ in bars] == list(LAYOUTS)
    assert bars[3][1] + bars[3][2] == columns - 24
    drawn = [line for line in lines.splitlines() if re.match(rf"  (auto|ring|roll|uniform) +[{full}{sliding}]", line)]
    assert len(drawn) == 4 and max(map(len, drawn)) < columns


SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("name, dtype", [("spark", "fp16"), ("mistral", "int8"), ("llama", "fp32")])
def test_svg_is_whole_and_its_bars_are_proportional(transload, data, tmp_path, name, dtype):
    path = checkpoint(data, name)
    output = tmp_path / "kv.svg"
    output.write_text("old")
    found = json.loads(read(transload, path, "--context", "16,64,40", "--dtype", dtype, "--svg", output, "--json"))
    assert [p.name for p in tmp_path.iterdir()] == ["kv.svg"]
    root = ElementTree.parse(output).getroot()
    assert root.tag == SVG + "svg"
    width, height = float(root.get("width")), float(root.get("height"))
    bars = [rect for rect in root.iter(SVG + "rect") if rect.get("class") == "bar"]
    by_bytes = {}
    for entry in found["contexts"]:
        for layout in entry["layouts"]:
            for kind in ("full", "sliding"):
                if layout[f"{kind}_bytes"]:
                    by_bytes[str(entry["context"]), layout["layout"], kind] = layout[f"{kind}_bytes"]
    widths = {(bar.get("data-context"), bar.get("data-layout"), bar.get("data-kind")): float(bar.get("width")) for bar in bars}
    assert len(bars) == len(widths) and widths.keys() == by_bytes.keys()
    most = max(layout["bytes"] for entry in found["contexts"] for layout in entry["layouts"])
    for key, size in by_bytes.items():
        assert widths[key] == pytest.approx(size / most * 580, abs=0.01), key
    # Everything lies on the sheet; no two bars and no two texts overlap, taking a letter as 0.62 of its size.
    boxes = [(float(b.get("x")), float(b.get("y")), float(b.get("width")), float(b.get("height"))) for b in bars]
    texts = []
    for text in root.iter(SVG + "text"):
        size = float(text.get("font-size", root.get("font-size")))
        length = 0.62 * size * len(text.text)
        x = float(text.get("x")) - {"middle": length / 2, "end": length, None: 0}[text.get("text-anchor")]
        texts.append((x, float(text.get("y")) - 0.8 * size, length, size))
    for x, y, w, h in boxes + texts:
        assert x >= 0 and y >= 0 and x + w <= width and y + h <= height
    for group in (boxes, texts):
        for (ax, ay, aw, ah), (bx, by, bw, bh) in itertools.combinations(group, 2):
            assert ax + aw <= bx + 0.01 or bx + bw <= ax + 0.01 or ay + ah <= by or by + bh <= ay
    # The axis says its unit, and its numbers are where the scale puts them.
    label = next(text.text for text in root.iter(SVG + "text") if text.text.startswith("KV cache,"))
    unit = {"B": 1, "kB": 1e3, "MB": 1e6}[re.match(r"KV cache, (\w+)", label)[1]]
    ticks = [(float(text.get("x")), float(text.text)) for text in root.iter(SVG + "text")
             if text.get("text-anchor") == "middle" and re.fullmatch(r"[\d.]+", text.text)]
    assert 3 <= len(ticks) <= 7
    for x, value in ticks:
        assert x == pytest.approx(90 + value * unit / most * 580, abs=0.02)


def test_svg_that_cannot_be_written_leaves_nothing(transload, data, tmp_path):
    result = transload("kv", checkpoint(data, "spark"), "--context", 16, "--svg", tmp_path / "absent" / "kv.svg")
    assert result.returncode == 5 and "kv.svg: cannot create: No such file" in result.stderr
    assert result.stdout == "" and list(tmp_path.iterdir()) == []
    result = transload("kv", checkpoint(data, "spark"), "--context", 16, "--svg", tmp_path)
    assert result.returncode == 5 and "got a folder" in result.stderr


def test_svg_never_replaces_what_is_read(transload, data, tmp_path):
    folder = shutil.copytree(checkpoint(data, "spark"), tmp_path / "checkpoint")
    config = shutil.copy(folder / "config.json", tmp_path / "other.json")
    for svg in (folder / "model.safetensors", folder / "kv.svg", config):
        result = transload("kv", folder, "--config", config, "--context", 16, "--svg", svg)
        assert (result.returncode, result.stdout) == (2, "") and "--svg is or lies in what is read" in result.stderr
    assert sorted(p.name for p in folder.iterdir()) == sorted(p.name for p in checkpoint(data, "spark").iterdir())


@pytest.mark.parametrize("arguments, message", [
    (["--context", "0"], "context must be positive: got 0, expected at least 1"),
    (["--context", "16,0"], "context must be positive: got 0, expected at least 1"),
    (["--context", "16,257"], "context exceeds what the model was made for: got 257, expected at most 256"),
    (["--context", "-1"], "--context: "),
    (["--context", "16,"], "--context: got '16,', expected whole numbers"),
    (["--context", "010"], "--context: got '010', expected whole numbers"),
    (["--context", "9999999999"], "--context: got '9999999999', expected whole numbers"),
    ([], "--context is required"),
    (["--context", "16", "--dtype", "bf16"], "--dtype: bf16 not in {fp16,fp32,int8}"),
    (["--context", "16", "--layout", "linear"], "--layout: linear not in {auto,ring,roll,uniform}"),
    (["--context", "16", "--svg", ""], "--svg: got an empty path, expected a file"),
])
def test_refusals_are_usage(transload, data, arguments, message):
    result = transload("kv", checkpoint(data, "llama"), *arguments)
    assert result.returncode == 2, result.stdout
    assert result.stdout == "" and message in result.stderr


def test_a_checkpoint_that_cannot_be_opened(transload, tmp_path):
    result = transload("kv", tmp_path / "absent", "--context", 16)
    assert result.returncode == 1 and "absent" in result.stderr
