"""What the README, the examples and the recipes say is run, or compared with the measured results."""

import json
import re
import runpy
import shlex
import tomllib
from importlib.util import find_spec
from pathlib import Path

import minutes
import numpy as np
import pytest
import reproduction_tables
import tables
import yaml
from PIL import Image
from tiny import tiny_bundle
from typer.main import get_command

from vitreous.cli import app
from vitreous.export import graphs
from vitreous.model.attention import products_are_faster
from vitreous.model.linear import convolution_is_faster
from vitreous.model.summary import summarise
from vitreous.recipe import RECIPES, Recipe, keys, read_recipe, recipe_names
from vitreous.weights import Bundle

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
RESULTS = ROOT / "benchmarks" / "results"
WITHOUT_RESULTS = {  # recipes measured otherwise than by several whole runs, as their headers say, or not at all
    "cifar10", "cifar10-94", "cifar10-amx", "cifar10-cpu", "cifar100", "cifar100-amx", "cifar100-cpu", "finetune",
    "photos", "pizza", "plain", "probe", "small-images",
}  # fmt: skip
AS_THEY_ARE = [content for content in tables.saved().values() if content.get("overrides") == []]  # recipes, measured


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """A working folder of its own, as a reader who copies code has."""
    monkeypatch.chdir(tmp_path)


def test_the_readmes_python_runs(outside, capsys):
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[1]
    assert len(code.splitlines()) <= 12
    exec(compile(code, "README.md", "exec"), {"__name__": "__main__"})
    assert Path("runs/digits/results.json").is_file()
    assert "('" in capsys.readouterr().out.splitlines()[-1]  # the classes of the last prediction


def test_the_python_of_the_documents_runs(outside, capsys):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text(), re.DOTALL)
    exec(compile("\n".join(blocks), "python.md", "exec"), {"__name__": "__main__"})
    said = capsys.readouterr().out.splitlines()
    assert len(blocks) == 17 and said[0].endswith(" 1437 360")
    assert float(said[-1].removeprefix("runs/own/export/pt2 ")) <= 1e-4
    assert Path("walk.html").is_file()


def test_the_first_steps_run(outside):
    runpy.run_path(str(ROOT / "examples" / "first_steps.py"), run_name="__main__")


def test_the_citation_is_of_this_version_under_this_licence():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (citation["version"], citation["license"]) == (project["version"], project["license"])
    assert {"cff-version", "title", "message", "authors"} <= citation.keys()  # what the format asks for


def anchors(page):
    """What GitHub calls the headings of a page."""
    return {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in re.findall(r"^#+ (.*)$", page, re.MULTILINE)}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if "://" not in target:
            file, _, anchor = target.partition("#")
            there = path.parent / file if file else path
            assert there.exists(), target
            assert not anchor or anchor in anchors(there.read_text()), target


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_commands_are_those_that_there_are(path):
    commands = get_command(app).commands
    shown = "\n".join(re.findall(r"```sh\n(.*?)```", path.read_text(), re.DOTALL))
    shown = shown.replace("`", "").replace("$s", "0").replace("$pool", "mean")
    for line in re.findall(r"\bvitreous ([a-z].*)", shown):
        name, *arguments = shlex.split(re.split(r"[;)]| > ", line)[0], comments=True)
        given = commands[name].make_context(name, arguments).params  # as typer reads it, without doing it
        if name == "train":
            words = [word for word in (given["data"], *(given["overrides"] or ())) if word and "=" in word]
            read_recipe(Recipe(epochs=1), words)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_settings_are_those_that_there_are(path):
    named = re.findall(r"\b((?:augment|data|distill|model|optim|start)\.[a-z]\w*)=", path.read_text())
    assert set(named) <= set(keys())


@pytest.mark.parametrize("path", [tables.README, tables.MEASUREMENTS], ids=lambda path: path.name)
def test_the_tables_are_those_of_the_results(path):
    assert tables.filled(path, tables.saved()) == path.read_text()


def test_the_chart_is_that_of_the_results(tmp_path):
    drawn = minutes.points(minutes.saved())
    assert json.loads(Image.open(minutes.PICTURE).text["points"]) == drawn
    minutes.draw(drawn, tmp_path / "chart.png")
    assert json.loads(Image.open(tmp_path / "chart.png").text["points"]) == drawn
    table, cores = minutes.minutes_table(minutes.saved()), minutes.UNITS.values()
    lines = {name: line for by_name in drawn.values() for name, line in by_name.items()}
    found = {name for name, line in lines.items() if all(f"| {top1:.2f} " in table for _, top1, _ in line)}
    assert found == {name for name in lines if name.partition(", ")[2] in cores} < lines.keys()  # the others: GPUs


def test_the_tables_of_the_reproductions_are_those_of_the_results():
    document = (ROOT / "docs" / "reproductions.md").read_text()
    assert reproduction_tables.filled(document, reproduction_tables.saved()) == document


@pytest.mark.parametrize("name", ["peers-amx", "peers-avx2"])
def test_a_library_that_one_machine_lacks_leaves_its_cell_empty_and_moves_no_other(name):
    def cells():
        lines = [line for line in tables.speed(results).splitlines() if line.startswith("|")]
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
        return next(dict(zip(rows[0], row, strict=True)) for row in rows if row[0] == tables.PEERS[name])

    results = tables.saved()
    before = cells()
    results[name]["rows"] = [row for row in results[name]["rows"] if row["name"] != "timm"]
    assert before["timm"] and cells() == before | {"timm": ""}


def test_all_other_recipes_have_results():
    assert {*recipe_names()} - {content["recipe"] for content in AS_THEY_ARE} == WITHOUT_RESULTS


@pytest.mark.parametrize("content", AS_THEY_ARE, ids=lambda content: content["recipe"])
def test_headers_state_the_measured_results(content):
    header = (RECIPES / f"{content['recipe']}.yaml").read_text().partition("\nepochs:")[0]
    assert f"{100 * content['top1_mean']:.2f} ± {100 * content['top1_sd']:.2f}%, n = {content['n']}" in header
    assert f"{min(content['train_seconds']):.0f} to {max(content['train_seconds']):.0f} s" in header
    assert f"{content['params']:,} parameters" in header


@pytest.mark.parametrize(
    ("name", "shape", "parameters", "seconds", "top1"),
    [("digits", (8, 8), None, 30, 0.983), ("mnist", (28, 28), 125_000, 360, 0.994)],
)
def test_the_first_recipes_stay_small_short_and_good(name, shape, parameters, seconds, top1):
    model = read_recipe(name).resolve(image_size=shape, channels=1, num_classes=10).model
    found = [content for content in AS_THEY_ARE if content["recipe"] == name]
    assert found and all(content["params"] == summarise(model).parameters for content in found)
    assert parameters is None or summarise(model).parameters <= parameters
    assert all(max(content["train_seconds"]) <= seconds and content["top1_mean"] >= top1 for content in found)


WITHIN_A_TIME = {  # of recipes as they are
    name: content
    for name, content in tables.saved().items()
    if "-time_limit-" in name and all(key.startswith(("time_limit=", "compile=")) for key in content["overrides"])
}


@pytest.mark.parametrize("content", list(WITHIN_A_TIME.values()), ids=list(WITHIN_A_TIME))
def test_headers_state_what_the_recipe_reaches_within_a_time(content):
    header = (RECIPES / f"{content['recipe']}.yaml").read_text().partition("\nepochs:")[0]
    (limit,) = (key.removeprefix("time_limit=") for key in content["overrides"] if key.startswith("time_limit="))
    sd = f" ± {100 * content['top1_sd']:.2f}" if content["n"] > 1 else ""
    reached = f"{limit} {100 * content['top1_mean']:.2f}{sd}% (n = {content['n']}, {content['passes']:.1f} passes)"
    words = " ".join(header.replace("\n#", " ").split())
    compiled = [key for key in content["overrides"] if key.startswith("compile=")]
    assert reached in words and all(key in words.partition(reached)[0] for key in compiled)
    assert f"{content['params']:,} parameters" in header


@pytest.mark.parametrize("name", ["probe", "finetune"])
def test_headers_of_recipes_for_trained_weights_state_the_measured_results(name):
    header = " ".join((RECIPES / f"{name}.yaml").read_text().partition("\nepochs:")[0].replace("\n#", "").split())
    r = json.loads((RESULTS / "fine-tuning.json").read_text())[name]
    assert f"{100 * r['mean']:.2f} ± {100 * r['sd']:.2f}% over {r['n'] // 5} x 5 folds (n = {r['n']})" in header
    assert f"{100 * r['split']:.2f}% of the 75 test images" in header
    assert all(setting in header for setting in r.get("settings", []))


DEPLOYING = ROOT / "docs" / "deploying.md"
MISSING = [name for name in graphs.NEEDED["onnx"] if find_spec(name) is None]


def metadata_table():
    """Key -> (where it is found, example) of the document."""
    part = re.search(r"<!-- metadata -->\n(.*)<!-- end of metadata -->", DEPLOYING.read_text(), re.DOTALL)[1]
    rows = [[cell.strip().strip("`") for cell in line.strip("|").split(" | ")] for line in part.splitlines()[2:]]
    return {key: (where, example) for key, where, example in rows}


@pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")
@pytest.mark.parametrize("form", ["onnx", "int8", "pt2"])
def test_the_metadata_that_the_document_lists_is_that_of_a_graph(tmp_path, form):
    import onnx
    import torch

    bundle, write = tiny_bundle(), {"onnx": graphs.write_onnx, "int8": graphs.write_int8, "pt2": graphs.write_pt2}
    write[form](bundle, tmp_path, False)
    if form == "pt2":
        extra = {"metadata.json": ""}
        torch.export.load(tmp_path / graphs.PT2, extra_files=extra)
        found = json.loads(extra["metadata.json"])
    else:
        found = {entry.key: entry.value for entry in onnx.load(tmp_path / graphs.ONNX).metadata_props}
    listed = {key: example for key, (where, example) in metadata_table().items() if where == "all" or form in where}
    assert listed.keys() == found.keys()
    found |= graphs.metadata(Bundle.load(ROOT / "models" / "cifar10"), False)
    for key, example in listed.items():
        assert re.fullmatch(re.escape(example).replace(re.escape("..."), ".*"), found[key]), key


def test_the_resampling_that_the_document_writes_down_is_pillows():
    (code,) = re.findall(r"```python\n(.*?)```", DEPLOYING.read_text(), re.DOTALL)
    exec(compile(code, DEPLOYING.name, "exec"), written := {})
    draw = np.random.default_rng(0)
    for H, W, rows, columns in ((60, 90, 24, 16), (90, 60, 24, 16), (9, 20, 30, 31)):
        pixels = draw.integers(256, size=(H, W, 3), dtype=np.uint8)
        box = (0.03 * W, 0.1 * H, 0.97 * W, 0.95 * H)
        for name in ("bilinear", "bicubic"):
            theirs = np.asarray(Image.fromarray(pixels).resize((columns, rows), Image.Resampling[name.upper()], box))
            ours = written["resized"](pixels, box, rows, columns, name)
            turned = box[1], box[0], box[3], box[2]  # rows first, as some versions do
            other = written["resized"](pixels.swapaxes(0, 1), turned, columns, rows, name).swapaxes(0, 1)
            differ = min((np.abs(theirs.astype(int) - found) for found in (ours, other)), key=np.sum)
            assert differ.max() <= 1 and (differ > 0).mean() < 0.02


@pytest.mark.parametrize(
    ("told", "subject", "columns"),
    [
        (
            products_are_faster,
            "attention",
            {"avx512": ("float32",), "avx512-bf16": ("bf16",), "avx2": ("float32",)},
        ),
        (convolution_is_faster, "linear", {"avx512-bf16": ("float32", "bf16")}),
    ],
)
def test_the_times_beside_a_choice_of_form_are_those_measured(told, subject, columns):
    measured: dict[str, list[str]] = {}
    for units, precisions in columns.items():
        rows = json.loads((RESULTS / f"{subject}-{units}.json").read_text())["rows"]
        for row in rows:
            if row["pass"] == "forward and backward" and row["dtype"] in precisions:
                shape = ", ".join(map(str, row["shape"]))
                measured.setdefault(shape, []).append(f"{1000 * row['seconds']['median']:.1f}")
    lines = re.findall(r"^ +(\d+(?:, \d+){3})  +([\d. ]+)$", told.__doc__, re.MULTILINE)
    assert len(lines) > 5 and all(measured[shape] == said.split() for shape, said in lines)
