"""What the README, the examples and the recipes say is run, or compared with the measured results."""

import json
import re
import runpy
from pathlib import Path

import pytest
import reproduction_tables
import tables

from vitreous.recipe import RECIPES, recipe_names

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"


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
    assert len(blocks) == 11 and said[0].endswith(" 1437 360") and said[-1] == "runs/own/export/pt2 0.0"
    assert Path("walk.html").is_file()


def test_the_first_steps_run(outside):
    runpy.run_path(str(ROOT / "examples" / "first_steps.py"), run_name="__main__")


@pytest.mark.parametrize("path", [tables.README, tables.MEASUREMENTS], ids=lambda path: path.name)
def test_the_tables_are_those_of_the_results(path):
    assert tables.filled(path, tables.saved()) == path.read_text()


def test_the_tables_of_the_reproductions_are_those_of_the_results():
    document = (ROOT / "docs" / "reproductions.md").read_text()
    assert reproduction_tables.filled(document, reproduction_tables.saved()) == document


@pytest.mark.parametrize("name", recipe_names())
def test_headers_state_the_measured_results(name):
    header = (RECIPES / f"{name}.yaml").read_text().partition("\nepochs:")[0]
    file = RESULTS / f"{name}.json"
    if not file.exists():
        pytest.skip(f"no results/{name}.json: its header states a single run")
    content = json.loads(file.read_text())
    assert f"{100 * content['top1_mean']:.2f} ± {100 * content['top1_sd']:.2f}%, n = {content['n']}" in header
    assert f"{min(content['train_seconds']):.0f} to {max(content['train_seconds']):.0f} s" in header
    assert f"{content['params']:,} parameters" in header


@pytest.mark.parametrize("file", sorted(RESULTS.glob("*-time_limit-*.json")), ids=lambda file: file.stem)
def test_headers_state_what_was_reached_within_a_time(file):
    content = json.loads(file.read_text())
    header = (RECIPES / f"{content['recipe']}.yaml").read_text().partition("\nepochs:")[0]
    (limit,) = (key.removeprefix("time_limit=") for key in content["overrides"] if key.startswith("time_limit="))
    sd = f" ± {100 * content['top1_sd']:.2f}" if content["n"] > 1 else ""
    reached = f"{limit} {100 * content['top1_mean']:.2f}{sd}% (n = {content['n']}, {content['passes']:.1f} passes)"
    words = " ".join(header.replace("\n#", " ").split())
    assert reached in words
    others = [
        key for key in content["overrides"] if not key.startswith(("time_limit=", "epochs="))
    ]  # a bound of passes
    assert all(other in words.partition(reached)[0] for other in others)
    assert f"{content['params']:,} parameters" in header


@pytest.mark.parametrize("name", ["probe", "finetune"])
def test_headers_of_recipes_for_trained_weights_state_the_measured_results(name):
    header = " ".join((RECIPES / f"{name}.yaml").read_text().partition("\nepochs:")[0].replace("\n#", "").split())
    r = json.loads((RESULTS / "fine-tuning.json").read_text())[name]
    assert f"{100 * r['mean']:.2f} ± {100 * r['sd']:.2f}% over {r['n'] // 5} x 5 folds (n = {r['n']})" in header
    assert f"{100 * r['split']:.2f}% of the 75 test images" in header
    assert all(setting in header for setting in r.get("settings", []))
