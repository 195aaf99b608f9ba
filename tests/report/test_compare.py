"""Runs beside each other: the figures of each, and only what differs in their recipes."""

import csv
import io
import itertools
import json
import re
from dataclasses import replace
from shutil import copytree

import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from scipy.stats import t as student_t
from scipy.stats import ttest_ind
from sklearn.metrics import f1_score
from tiny import csv_rows, stripes, tiny_recipe, tiny_set, write_images

from vitreous.card import write_shared
from vitreous.metrics import wilson
from vitreous.report import compare
from vitreous.report.compare import (
    NEW_SEEDS,
    about_p,
    against,
    by_fold_against,
    compare_page,
    differences,
    figures,
    gain_interval,
    judged_apart,
    over_seeds,
    render,
)
from vitreous.report.finished import read_run
from vitreous.train.folds import fit_folds
from vitreous.train.run import fit
from vitreous.weights import bundle as bundle_module


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with two runs, `a` of three epochs and `b` with another seed, one epoch and no validation."""
    root = tmp_path_factory.mktemp("runs")
    quiet = {"console": Console(file=io.StringIO()), "pictures": False}
    fit(tiny_recipe(epochs=3), tiny_set(), out=root / "a", **quiet)
    other = tiny_recipe(epochs=1, seed=5, data={"val_fraction": 0}, augment={"shift": 1})
    fit(other, tiny_set(), out=root / "b", **quiet)
    return root


def results_of(folder):
    return json.loads((folder / "results.json").read_text())


def test_the_table_holds_the_runs_own_figures(runs):
    rows = dict(figures([read_run(runs / "a"), read_run(runs / "b")]))
    a, b = results_of(runs / "a"), results_of(runs / "b")
    assert rows["test top-1"] == [f"{a['test']['top1']:.2%}", f"{b['test']['top1']:.2%}"]
    assert rows["validation top-1"] == [f"{a['val']['top1']:.2%}", ""]
    assert rows["test F1, macro"] == [f"{r['test']['f1_macro']:.2%}" for r in (a, b)]
    assert rows["validation F1, macro"] == [f"{a['val']['f1_macro']:.2%}", ""]
    assert rows["parameters"] == [f"{a['params']:,}"] * 2 and rows["epochs"] == ["3", "1"]
    assert rows["seconds"] == [f"{r['train_seconds']:,.0f}" for r in (a, b)]
    assert rows["training images/s"] == [f"{r['images_per_second']:,.0f}" for r in (a, b)]


def test_a_record_that_is_none_is_told_in_one_line(runs, tmp_path):
    for name in ("results.json", "recipe.yaml"):
        (tmp_path / name).write_bytes((runs / "a" / name).read_bytes())
    (tmp_path / "data.json").write_text("{}")
    with pytest.raises(ValueError, match=r"has a results\.json or data\.json that is not of a run: train it anew, or"):
        read_run(tmp_path)


def test_only_what_differs_is_listed(runs):
    found = dict(differences([read_run(runs / "a"), read_run(runs / "b")]))
    assert found == {
        "epochs": ["3", "1"], "seed": ["0", "5"], "data.val_fraction": ["0.25", "0.0"], "augment.shift": ["0", "1"],
    }  # fmt: skip
    assert differences([read_run(runs / "a")] * 3) == []


def test_a_run_of_before_is_read_with_what_it_has(runs, tmp_path):
    for name in ("results.json", "recipe.yaml", "data.json"):
        (tmp_path / name).write_bytes((runs / "a" / name).read_bytes())
    old = results_of(runs / "a")
    for key in ("ece", "ece_unscaled", "temperature"):
        del old["test"][key], old["val"][key]
    del old["peak_memory"]
    (tmp_path / "results.json").write_text(json.dumps(old))
    both = [read_run(tmp_path), read_run(runs / "b")]
    rows = dict(figures(both))
    assert rows["test calibration error"][0] == "" and rows["memory, GiB"][0] == ""
    compare_page(tmp_path / "c.html", both)
    assert 'aria-label="Top-1 by epoch' in (tmp_path / "c.html").read_text()  # of the run that has kept its epochs


@pytest.mark.parametrize("record", ["{}", "[]", '{"data": {"hash": {}}}'])
def test_what_another_program_calls_an_evaluation_is_refused(tmp_path, record):
    (tmp_path / "evaluation.json").write_text(record)
    (tmp_path / "results.json").write_text('{"test": {}}')
    with pytest.raises(ValueError, match=rf"^{tmp_path} has an evaluation\.json or results\.json that is not of an ev"):
        read_run(tmp_path)


def test_the_current_folder_has_its_name_in_the_heading(runs, tmp_path, monkeypatch):
    monkeypatch.chdir(runs / "a")
    compare_page(tmp_path / "c.html", [read_run("."), read_run("../b")])
    assert "<h1>a · b</h1>" in (tmp_path / "c.html").read_text()


@pytest.mark.parametrize("name", ["results.json", "recipe.yaml", "data.json"])
def test_what_is_no_finished_run_is_refused(runs, tmp_path, name):
    for file in ("results.json", "recipe.yaml", "data.json"):
        if file != name:
            (tmp_path / file).write_bytes((runs / "a" / file).read_bytes())
    with pytest.raises(ValueError, match=rf"^{tmp_path} is not a finished run, it has no {name}: train it to the end"):
        read_run(tmp_path)
    with pytest.raises(
        ValueError, match=r"^no run 'nowhere' here: give the folder of a run or an evaluation, or a shi"
    ):
        read_run("nowhere")


def test_a_cross_validation_is_judged_on_each_image_once(runs, tmp_path):
    quiet = {"console": Console(file=io.StringIO()), "pictures": False, "device": "cpu"}
    recipe = tiny_recipe(epochs=2, data={"folds": 5, "val_fraction": 0.25})  # 48 images: parts of nine and ten
    cross = fit_folds(recipe, tiny_set(), out=tmp_path / "cv", **quiet)
    table = figures([read_run(tmp_path / "cv"), read_run(runs / "a")])
    rows, intervals = dict(table), [texts for name, texts in table if "interval" in name]
    pairs = [(row["class"], row["answer"]) for row in csv_rows(tmp_path / "cv" / "answers.csv")]
    hits = sum(label == answer for label, answer in pairs)
    f1_macro = f1_score(*zip(*pairs, strict=True), average="macro")
    low, high = wilson(hits, 48)
    assert rows["test top-1"][0] == f"{hits / 48:.2%}" and rows["test images"] == ["48", "12"]
    assert intervals[0][0] == f"{low:.2%} to {high:.2%}" and intervals[1][0] == ""
    spread = f"{cross.results['top1_mean']:.2%} ± {cross.results['top1_sd']:.2%} (n = 5)"
    assert rows["  by fold, mean ± sd"] == [spread, ""]
    folds = [json.loads((tmp_path / "cv" / f"fold-{i}" / "results.json").read_text()) for i in range(1, 6)]
    areas = [fold["test"]["auroc"] for fold in folds]
    area = f"{np.mean(areas):.2%} ± {np.std(areas, ddof=1):.2%} (n = 5)"
    assert rows["test AUROC by fold, mean ± sd"] == [area, ""] and rows["test AUROC, macro"][0] == ""
    assert rows["test F1, macro"][0] == f"{cross.results['pooled']['f1_macro']:.2%}"
    assert cross.results["pooled"]["f1_macro"] == pytest.approx(f1_macro) != cross.results["f1_macro_mean"]
    assert rows["seconds"][0] == f"{sum(cross.results['train_seconds']):,.0f}"
    assert "not judged on the same test images" in judged_apart([read_run(tmp_path / "cv"), read_run(runs / "a")])
    assert judged_apart([read_run(tmp_path / "cv")] * 2) == ""
    other = recipe.model_copy(update={"seed": 1})  # which cuts other parts of the same images
    fit_folds(other, tiny_set(), out=tmp_path / "cv-1", **quiet)
    assert "points" in against(read_run(tmp_path / "cv"), read_run(tmp_path / "cv-1"), "test")
    assert by_fold_against(read_run(tmp_path / "cv"), read_run(tmp_path / "cv-1")) is None  # other folds
    gains = np.array([0.1, -0.05, 0.05, 0, 0.1])
    better = read_run(tmp_path / "cv")
    better.results["top1_by_fold"] = [top1 + gain for top1, gain in zip(cross.results["top1"], gains, strict=True)]
    t = 0.04 / (np.var(gains, ddof=1) * (1 / 5 + 10 / 28)) ** 0.5  # of 48 images 10 are tested, and 10 choose
    text = f"+4.00 points (p = {2 * student_t.sf(t, 4):.2g})"
    assert by_fold_against(read_run(tmp_path / "cv"), better) == text
    compared = figures([read_run(tmp_path / "cv"), better])
    assert dict(compared)["  by fold, against the first"] == ["", text] and "Nadeau" in about_p(compared)
    assert by_fold_against(better, replace(better)) == "+0.00 points"
    fewer = replace(better, data=better.data | {"counts": {"train": 7, "test": 10}})  # by data.train_share=0.25
    t = 0.04 / (np.var(gains, ddof=1) * (1 / 5 + 10 / 7)) ** 0.5  # more are tested than trained on
    assert by_fold_against(read_run(tmp_path / "cv"), fewer) == f"+4.00 points (p = {2 * student_t.sf(t, 4):.2g})"
    moved = read_run(tmp_path / "cv-1")  # whose images come in the order of other folds
    elsewhere = {(f"moved/{n}", "", 1): answer for n, answer in enumerate(moved.answered["test"].values())}
    moved.__dict__["answered"] = {"test": elsewhere}
    assert against(read_run(tmp_path / "cv"), moved, "test") == "images of other names"
    told = json.loads((tmp_path / "cv-1" / "fold-1" / "data.json").read_text())
    (tmp_path / "cv-1" / "fold-1" / "data.json").write_text(json.dumps(told | {"source": "/elsewhere/stripes"}))
    assert judged_apart([read_run(tmp_path / "cv"), read_run(tmp_path / "cv-1")]) == ""
    torn = read_run(tmp_path / "cv-1")
    torn = replace(torn, recipe=torn.recipe | {"data.group": "patient"})
    assert against(read_run(tmp_path / "cv"), torn, "test") == "folds cut by other groups"
    heads, by_recipe = over_seeds([read_run(tmp_path / "cv"), read_run(tmp_path / "cv-1")])
    assert len(heads) == 1 and dict(by_recipe)["runs"] == ["2"]
    compare_page(tmp_path / "c.html", [read_run(tmp_path / "cv"), read_run(runs / "a")])
    page = (tmp_path / "c.html").read_text()
    assert spread in page and area in page
    (tmp_path / "cv" / "results.json").write_text("{}")
    with pytest.raises(ValueError, match=r"cv has a results\.json that is not of a cross-validation: leave it out"):
        read_run(tmp_path / "cv")
    (tmp_path / "cv" / "results.json").unlink()
    with pytest.raises(ValueError, match=r"cv is not a finished run, it has no results\.json: train it to the end"):
        read_run(tmp_path / "cv")


def test_runs_on_the_same_images_are_compared_by_the_answers_that_differ(runs, tmp_path):
    rows = csv_rows(runs / "a" / "answers.csv")
    tests = [row for row in rows if row["split"] == "test"]
    wrong = next(name for name in ("sky", "sea") if name not in {row["class"] for row in tests})
    for run, right in {"x": 4, "y": 10}.items():  # of 12: x alone twice, y alone eight times
        copytree(runs / "a", tmp_path / run)
        copytree(runs / "a", tmp_path / f"{run}-grouped")
        for i, row in enumerate(tests):
            hit = i < right if run == "x" else i >= 12 - right + 1 or i == 0
            row["answer"] = row["class"] if hit else wrong
        with (tmp_path / run / "answers.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(tests)
        for i, row in enumerate(tests):
            row["group"] = f"plate {i // 3}"
        with (tmp_path / f"{run}-grouped" / "answers.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(tests)
        for row in tests:
            row["group"] = ""
    x, y = read_run(tmp_path / "x"), read_run(tmp_path / "y")
    right = [{image: hit for image, (hit, _) in run.answered["test"].items()} for run in (x, y)]
    only_x, only_y = (sum(a[image] and not b[image] for image in a) for a, b in (right, right[::-1]))
    assert (only_x, only_y) == (2, 8)
    assert against(x, y, "test") == "+50.00 points (8 gained, 2 lost, p = 0.11)"
    assert against(y, x, "test") == "-50.00 points (2 gained, 8 lost, p = 0.11)"  # 2 (1 + 10 + 45) / 2**10
    assert against(x, x, "test") is None and against(x, y, "val") is None
    half = 2.200985 * (7 * 12 / 11) ** 0.5 / 12  # Student's, 11 degrees of freedom; 10 - 12 (6 / 12)^2 is 7
    assert gain_interval(x, y, "test") == f"{100 * (0.5 - half):+.2f} to +100.00 points"
    assert gain_interval(x, x, "test") is gain_interval(x, y, "val") is None
    assert gain_interval(x, replace(x), "test") == "too few differ to tell"
    assert against(x, replace(x), "test") == "+0.00 points (0 gained, 0 lost, p = 1)"
    assert dict(figures([x, y]))["  against the first"] == ["", "+50.00 points (8 gained, 2 lost, p = 0.11)"]
    assert against(x, replace(y, data=y.data | {"hash": {"test": "others"}}), "test") is None
    y.__dict__["answered"] = {"test": {(f"moved/{n}", "", 1): a for n, a in enumerate(y.answered["test"].values())}}
    assert against(x, y, "test") == "+50.00 points (8 gained, 2 lost, p = 0.11)"  # in the same order
    unknown = [replace(run, data=run.data | {"hash": {}}) for run in (x, y)]
    unknown[1].__dict__["answered"] = y.answered
    assert against(*unknown, "test") == "images of other names"
    grouped = [read_run(tmp_path / f"{run}-grouped") for run in "xy"]  # -2, 2, 3, 3: 6 of 16 sums are as far from 0
    assert against(*grouped, "test") == "+50.00 points (8 gained, 2 lost, p = 0.38 by 4 groups)"
    assert gain_interval(*grouped, "test") == "too few differ to tell"
    validated = y.data | {"hash": y.data["hash"] | {"val": "others"}}  # other validation images are another matter
    assert against(x, replace(y, data=validated), "test") == "+50.00 points (8 gained, 2 lost, p = 0.11)"


def test_tables_that_a_spreadsheet_has_saved_are_read_or_refused_by_name(runs, tmp_path):
    copytree(runs / "a", tmp_path / "x")
    answers = tmp_path / "x" / "answers.csv"
    as_written = answers.read_text()
    answers.write_text("\ufeff" + as_written, encoding="utf-8")
    assert read_run(tmp_path / "x").answered == read_run(runs / "a").answered != {}
    answers.write_text(as_written.replace(",", ";"))
    said = rf"^{answers} has no column split: save it with commas between columns, as it was$"
    with pytest.raises(ValueError, match=said):
        read_run(tmp_path / "x").answered  # noqa: B018
    answers.write_text(as_written.replace("ant", "Ameisé"), encoding="cp1252")
    with pytest.raises(ValueError, match=rf"^{answers} is no table in UTF-8 \(.*\): save it as one, as it was$"):
        read_run(tmp_path / "x").answered  # noqa: B018
    history = tmp_path / "x" / "metrics.csv"
    as_written = history.read_text()
    for text, said in (
        (as_written.replace(",", ";"), "has no column epoch: save it with commas"),
        (as_written.rstrip().rpartition(",")[0], "has a row that is not of"),
        (as_written.replace("\n2,", "\n2,0,"), "has a row that is not of"),
        (as_written.replace("\n2,", "\ntwo,"), "has something else than numbers"),
    ):
        history.write_text(text)
        with pytest.raises(ValueError, match=rf"^{history} {said}"):
            read_run(tmp_path / "x")


def test_an_image_that_a_table_names_twice_counts_twice(runs, tmp_path):
    for run, answers in {"x": ("sky", "sky", "sea"), "y": ("sea", "sea", "sea")}.items():
        copytree(runs / "a", tmp_path / run)
        lines = [f"test,{row},cat.jpg,sea,{answer},0.9,0.9," for row, answer in enumerate(answers)]
        head = "split,row,image,class,answer,probability,probability_of_class,group"
        (tmp_path / run / "answers.csv").write_text("\n".join([head, *lines]) + "\n")
    x, y = read_run(tmp_path / "x"), read_run(tmp_path / "y")
    assert against(x, y, "test") == "+66.67 points (2 gained, 0 lost, p = 1 by 1 groups)"
    assert gain_interval(x, y, "test") == "too few differ to tell"


def test_runs_that_differ_in_the_seed_alone_are_summed_up(runs, tmp_path):
    x, y = read_run(runs / "a"), read_run(runs / "b")

    def seeds(run, top1):
        results = [{"test": {"top1": value, "count": 50}} for value in top1]
        return [
            replace(run, name=f"{run.name}-{i}", recipe=run.recipe | {"seed": i}, results=each)
            for i, each in enumerate(results)
        ]

    first, other = seeds(x, [0.80, 0.84, 0.82]), seeds(y, [0.90, 0.86])
    again = [replace(first[0], name="again"), replace(other[1], name="again")]  # of one seed, so that they tell nothing
    heads, rows = over_seeds([*first, *other, *again])
    assert len(heads) == 2 and "again" not in "".join(heads)
    interval = ttest_ind([0.90, 0.86], [0.80, 0.84, 0.82], equal_var=False).confidence_interval()
    low, high = (f"{100 * end:+.2f}" for end in interval)
    assert dict(rows) == {
        "runs": ["3", "2"],
        "test top-1, mean ± sd": ["82.00% ± 2.00%", "88.00% ± 2.83%"],
        "  against the first": ["", f"+6.00 points (95% interval {low} to {high})"],
    }
    assert over_seeds([first[0], other[0]]) == ([], [])
    same = over_seeds([*seeds(x, [0.5, 0.5]), *seeds(y, [0.6, 0.6])])[1]
    assert dict(same)["  against the first"] == ["", "+10.00 points"]
    page = tmp_path / "c.html"
    again = replace(x, recipe=x.recipe | {"seed": 7})
    compare_page(page, [x, again])
    assert "Over seeds" in page.read_text() and "± 0.00%" in page.read_text() and len(render([x, again])) == 3
    assert NEW_SEEDS in page.read_text() and [table.caption for table in render([x, again])] == [None, NEW_SEEDS, None]
    compare_page(page, [x, x])  # twice the same
    assert "Over seeds" not in page.read_text() and len(render([x, x])) == 1


def test_seeds_of_one_recipe_have_one_colour_beside_those_of_another(runs, tmp_path):
    a, b = read_run(runs / "a"), read_run(runs / "b")
    again = replace(a, name="again", recipe=a.recipe | {"seed": 9})
    for given, colours in (([a, again, b], "0 0 1"), ([a, again], "0 1")):
        compare_page(tmp_path / "c.html", given)
        chart = (tmp_path / "c.html").read_text().partition('aria-label="Top-1 by epoch')[2].partition("</svg>")[0]
        assert re.findall(r'<path class="line s(\d)', chart) == colours.split()


def test_the_ninth_of_many_recipes_has_the_first_ones_colour_and_a_dashed_line(runs):
    run = read_run(runs / "a")
    many = [replace(run, name=f"run {i}", recipe=run.recipe | {"epochs": i}) for i in range(1, 10)]
    chart = compare._curves(many).partition('aria-label="Top-1 by epoch')[2].partition("</svg>")[0]
    styles = re.findall(r'<path class="line ([^"]*)"', chart)
    assert styles[8] == f"{styles[0]} dash" and len(set(styles)) == 9


def test_curves_are_drawn_by_seconds_too(runs):
    run = read_run(runs / "a")
    run = replace(run, history=[row | {"seconds": 7.5 * i} for i, row in enumerate(run.history, start=1)])
    told = re.findall(r"<title>seconds (\S+): ", compare._curves([run]))
    assert told == [f"{7.5 * i:g}" for i in range(1, len(run.history) + 1)] * 2


def test_a_run_in_the_home_folder_is_compared(runs, monkeypatch):
    monkeypatch.setenv("HOME", str(runs))
    assert read_run("~/a").results == read_run(runs / "a").results


def test_a_p_value_comes_with_what_it_is_about(vitreous, runs, tmp_path):
    sentence = "p is about these trained models on these images: another seed is another model."
    several = f"{sentence} These 2 are not corrected for multiple comparisons."
    for others, told in (([runs / "b"] * 2, several), ([runs / "b"], sentence), ([], "")):  # one run alone has no p
        code, out, _ = vitreous("compare", runs / "a", *others, "--out", tmp_path / "c.html")
        said = [line for line in out.splitlines() if line.startswith("p is")]
        assert code == 0 and said == ([told] if told else [])
        page = (tmp_path / "c.html").read_text()
        assert told in page and (sentence in page) == bool(told)


def test_a_shipped_name_is_a_run(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(bundle_module, "SHIPPED", tmp_path)
    write_shared(runs / "a", tmp_path / "mine", results_of(runs / "a"))
    assert read_run("mine").results | {"caution": ""} == results_of(runs / "a")


def test_the_page_shows_both_runs(runs, tmp_path):
    compare_page(tmp_path / "c.html", [read_run(runs / "a"), read_run(runs / "b")])
    text = (tmp_path / "c.html").read_text()
    a = results_of(runs / "a")
    assert text.count(f"{a['test']['top1']:.2%}") >= 2  # in the table, and told of the dot
    assert re.search(r"Top-1 by epoch: [^\"]*/a from [^\"]*; [^\"]*/b, training from", text)
    assert "augment.shift" in text and "optim.learning_rate" not in text and "2 runs on stripes." in text


def test_runs_on_other_images_are_told_apart(vitreous, runs, tmp_path):
    run = read_run(runs / "a")
    quiet = {"console": Console(file=io.StringIO()), "pictures": False}
    other = fit(tiny_recipe(epochs=1), tiny_set(test=15), out=tmp_path / "other", **quiet).folder
    larger = fit(tiny_recipe(epochs=1, model={"image_size": 16}), tiny_set(), out=tmp_path / "larger", **quiet).folder
    assert judged_apart([run, read_run(runs / "b")]) == judged_apart([run, read_run(larger)]) == ""
    named = replace(read_run(larger), data=read_run(larger).data | {"name": "dots"})
    assert judged_apart([run, named]).startswith("They were not judged on the same test images")
    compare_page(tmp_path / "c.html", [run, read_run(other)])  # such as folds, of one name
    differ = "They were not judged on the same test images, so their figures cannot be compared."
    assert differ in (tmp_path / "c.html").read_text() and judged_apart([run, run]) == ""
    assert judged_apart([run, run, read_run(other)]).startswith("Not all were judged on the same test images, so that")
    assert vitreous("compare", runs / "a", other)[1].endswith(f"{differ}\n")


def test_models_are_compared_by_what_they_were_asked_later(vitreous, runs, tmp_path):
    photos = write_images(tmp_path / "new", 6, seed=9)
    for name in "ab":
        assert vitreous("evaluate", runs / name, photos, "--out", tmp_path / name, "--device", "cpu")[0] == 0
    a, b = read_run(tmp_path / "a"), read_run(tmp_path / "b")
    for run in (a, b):
        whole = json.loads((tmp_path / run.name / "results.json").read_text())["given"]
        assert run.results == {"test": whole, "params": read_run(runs / "a").results["params"]} and whole["count"] == 18
    hits = [sum(hit for hit, _ in run.answered["test"].values()) for run in (a, b)]
    assert hits == [round(18 * run.figure("test", "top1")) for run in (a, b)]
    assert against(a, b, "test").startswith(f"{100 * (hits[1] - hits[0]) / 18:+.2f} points (")
    assert judged_apart([a, b]) == "" and differences([a, b]) == [] and over_seeds([a, b])[0] == []
    assert judged_apart([a, read_run(runs / "a")]).startswith("They were not judged on the same test images")
    code, out, _ = vitreous("compare", tmp_path / "a", tmp_path / "b", "--out", tmp_path / "c.html")
    assert code == 0 and "against the first" in out and "2 runs on new." in (tmp_path / "c.html").read_text()
    assert "An evaluation knows no recipe." in (tmp_path / "c.html").read_text()
    assert vitreous("compare", runs / "a", "--out", tmp_path / "one.html")[0] == 0
    one = (tmp_path / "one.html").read_text()
    assert "1 run on " in one and "No setting differs." in one
    trained = [read_run(runs / name) for name in "ab"]
    assert differences([a, trained[0]]) == []
    differ = dict(differences([a, *trained]))
    assert differ["seed"] == ["", "0", "5"] and differ.keys() == dict(differences(trained)).keys()
    record = json.loads((tmp_path / "b" / "evaluation.json").read_text()) | {"caution": "3 of these are copies"}
    (tmp_path / "b" / "evaluation.json").write_text(json.dumps(record))
    said = f"{tmp_path / 'b'}: 3 of these are copies."
    assert vitreous("compare", tmp_path / "a", tmp_path / "b")[1].endswith(f"\n{said}\n")


def test_a_run_and_an_evaluation_of_its_test_images_are_on_the_same_ones(vitreous, tmp_path):
    pixels, labels = stripes(24)
    rows = [f"{i}.png,{('z', 'a', 'm')[label]},{'test' if i % 4 == 3 else 'train'}" for i, label in enumerate(labels)]
    for i, image in enumerate(pixels):
        Image.fromarray(image[0]).save(tmp_path / f"{i}.png")
    (tmp_path / "t.csv").write_text("\n".join(["file,label,split", *rows]))
    data = {"source": str(tmp_path / "t.csv"), "val_fraction": 0.25}
    quiet = {"console": Console(file=io.StringIO()), "pictures": False, "device": "cpu"}
    fit(tiny_recipe(epochs=1, data=data), out=tmp_path / "a", **quiet)
    assert vitreous("evaluate", tmp_path / "a", "--out", tmp_path / "e", "--device", "cpu")[0] == 0
    run, asked = read_run(tmp_path / "a"), read_run(tmp_path / "e")
    assert judged_apart([run, asked]) == "" and run.data["hash"]["test"] == asked.data["hash"]["test"]
    assert against(run, asked, "test") == "+0.00 points (0 gained, 0 lost, p = 1)"


@pytest.mark.parametrize("model", [{}, {"image_size": 16}], ids=["as they are", "resized"])
def test_a_cross_validation_and_an_evaluation_of_its_images_are_compared(vitreous, tmp_path, model):
    photos, others = write_images(tmp_path / "photos", 6), write_images(tmp_path / "others", 6, seed=1)
    quiet = {"console": Console(file=io.StringIO()), "pictures": False, "device": "cpu"}
    recipe = tiny_recipe(epochs=1, model=model, data={"source": str(photos), "folds": 2, "val_fraction": 0})
    fit_folds(recipe, out=tmp_path / "cv", **quiet)
    fit(tiny_recipe(epochs=1), tiny_set(), out=tmp_path / "run", **quiet)
    for name, images in {"same": photos, "other": others}.items():
        assert vitreous("evaluate", tmp_path / "run", images, "--out", tmp_path / name, "--device", "cpu")[0] == 0
    cv, same, other = (read_run(tmp_path / name) for name in ("cv", "same", "other"))
    gained, lost = (
        sum(a[0] and not b[0] for a, b in zip(*each, strict=True))
        for each in (
            [[run.answered["test"][image] for image in cv.answered["test"]] for run in pair]
            for pair in ((same, cv), (cv, same))
        )
    )
    assert against(cv, same, "test").startswith(f"{100 * (gained - lost) / 18:+.2f} points ({gained} gained, {lost} l")
    assert against(same, cv, "test").startswith(f"{100 * (lost - gained) / 18:+.2f} points ({lost} gained, {gained} l")
    apart = judged_apart([cv, other])
    assert judged_apart([cv, same]) == judged_apart([same, cv]) == judged_apart([same, cv, same]) == ""
    assert apart == judged_apart([other, cv]) and apart.startswith("They were not judged on the same test images")
    assert judged_apart([same, other, cv]).startswith("Not all were judged on the same test images")
    smaller = {"recipe": same.recipe | {"model.image_size": "9"}, "data": same.data | {"hash": {"test": "at 9 px"}}}
    assert {judged_apart(runs) for runs in itertools.permutations([cv, same, replace(same, **smaller)])} == {""}
    edited = replace(same, data=same.data | {"hash": {"test": "of other pixels in files of these names"}})
    assert judged_apart([same, edited, cv]).startswith("Not all were judged on the same test images")
    assert against(cv, other, "test") is against(other, cv, "test") is None


def test_the_command_computes_its_figures_once(vitreous, runs, tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(compare, "figures", lambda read: made.append(figures(read)) or made[-1])
    assert vitreous("compare", runs / "a", runs / "b", "--out", tmp_path / "c.html")[0] == 0
    assert len(made) == 1


def test_names_in_brackets_stand_in_the_tables(runs):
    text = io.StringIO()
    run = replace(read_run(runs / "a"), name="runs/flowers [new]")
    Console(file=text, width=80).print(render([run])[0])
    assert "runs/flowers [new]" in text.getvalue()


def test_names_between_colons_are_no_pictures(vitreous, runs, tmp_path):
    copytree(runs / "a", tmp_path / ":cat:")
    assert ":cat:" in vitreous("compare", tmp_path / ":cat:")[1].replace("\n", "")


def test_what_is_cut_from_images_is_by_the_weights_that_a_run_started_from(runs, tmp_path):
    copytree(runs / "a", tmp_path / "tuned")
    recipe = tmp_path / "tuned" / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("  weights: null", "  weights: mnist"))
    assert read_run(runs / "a").recipe["data.crop_fraction"] == 1
    assert read_run(tmp_path / "tuned").recipe["data.crop_fraction"] == "as start.weights"


def test_names_too_long_for_a_column_are_told_apart(runs):
    text = io.StringIO()
    seeds = [replace(read_run(runs / "a"), name=f"runs/mean-pooling-of-all-patches-{seed}") for seed in range(6)]
    Console(file=text, width=80).print(render(seeds)[0])
    columns = zip(
        *(re.split("[┃│]", line) for line in text.getvalue().split("┡")[0].splitlines() if "┃" in line), strict=True
    )
    assert [name for cells in columns if "runs" in (name := "".join(map(str.strip, cells)))] == [
        run.name for run in seeds
    ]


def test_the_tables_fit_a_terminal(runs):
    text = io.StringIO()
    console = Console(file=text, width=80)
    for table in render([read_run(runs / "a")] * 2):
        console.print(table)
    assert "test top-1" in text.getvalue() and max(map(len, text.getvalue().splitlines())) <= 80


def test_the_command_prints_both_tables_and_writes_the_page(vitreous, runs, tmp_path, monkeypatch):
    monkeypatch.chdir(runs)
    monkeypatch.setenv("COLUMNS", "200")
    code, out, err = vitreous("compare", "a", "b/", "--out", tmp_path / "new" / "c.html")
    assert (code, err) == (0, "") and "augment.shift" in out and "test top-1" in out
    assert f"comparison: {tmp_path / 'new' / 'c.html'}" in out and (tmp_path / "new" / "c.html").exists()
    code, _, err = vitreous("compare", "a", "nowhere")
    assert code == 2 and err.startswith("vitreous: no run 'nowhere' here: give the folder of a run or an evaluation,")
    (runs / "half").mkdir()
    code, _, err = vitreous("compare", "a", "half")
    assert code == 2 and err.startswith("vitreous: half is not a finished run, it has no results.json: train it to")
    assert err.endswith("or, for a model alone, give the folder that vitreous evaluate --out has written\n")
    code, _, err = vitreous("compare", "a", "--out", tmp_path)
    assert code == 2 and err.startswith(f"vitreous: {tmp_path} is a folder: name a file, such as")


def test_a_page_is_written_where_a_text_says(runs, tmp_path):
    compare_page(str(tmp_path / "page.html"), [read_run(runs / "a")])
    assert "<h1" in (tmp_path / "page.html").read_text()
