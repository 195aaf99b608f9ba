"""The report of a run and of an evaluation: whole, well formed, self-contained, and with the run's own figures."""

import html.parser
import io
import itertools
import json
import re
from dataclasses import replace
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest
import torch
from rich.console import Console
from tiny import csv_rows, stripes, tiny_bundle, tiny_recipe, tiny_set

from vitreous import evaluation, report
from vitreous.card import untested
from vitreous.data.images import ImageSet, Split
from vitreous.data.stores import ArrayImages
from vitreous.evaluation import Judged, judge
from vitreous.metrics import NAMES, chance_error, share_interval
from vitreous.model import ViTConfig
from vitreous.recipe import make_recipe, read_recipe
from vitreous.report import answers, evaluation_report, train_report
from vitreous.report.answers import _coverage, _figure, answer_sections, results_section
from vitreous.report.pictures import cheap_method, heated, how_to_read, picture
from vitreous.train import outcome
from vitreous.train.folds import fit_folds
from vitreous.train.run import fit

EMPTY = {"img", "meta", "link", "br"}


class Page(html.parser.HTMLParser):
    """A page that has been read: its ids, links, images, texts, and whether its tags close."""

    def __init__(self, file: Path):
        super().__init__()
        self.open, self.ids, self.links, self.images, self.loaded, self.texts = [], [], [], [], [], []
        self.feed(file.read_text())
        assert self.open == [], f"left open: {self.open}"

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.ids += [values["id"]] if "id" in values else []
        self.links += [values["href"]] if tag == "a" else []
        self.images += [values] if tag == "img" else []
        self.loaded += [v for k, v in values.items() if k in ("src", "href", "srcset", "data") and tag != "a"]
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in EMPTY:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data):
        if not {"style", "title"} & set(self.open):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on stripes of which some validation and test images carry a wrong label, so that there are mistakes."""
    pixels, labels = stripes(24, seed=2)
    labels = np.where(np.arange(24) % 8 == 0, (labels + 1) % 3, labels)
    names = ("ant", "<b>&\"bee'$x", "cat")
    data = ImageSet.from_arrays(
        *stripes(48), val=(pixels, labels), test=(pixels, labels), class_names=names, name="stripes"
    )
    recipe = tiny_recipe(epochs=6, augment={"shift": 1, "mixup": 0.5}, optim={"learning_rate": 0.01})
    out = tmp_path_factory.mktemp("report") / "run"
    return fit(recipe, data, out=out, device="cpu", console=Console(file=io.StringIO()))


def written(tmp_path, data, recipe=None):
    """The page of a fresh run."""
    run = fit(recipe or tiny_recipe(epochs=1), data, out=tmp_path / "run", console=Console(file=io.StringIO()))
    return Page(run.folder / "report.html"), run


@pytest.fixture(autouse=True)
def no_plots(monkeypatch):
    monkeypatch.setattr(outcome, "_draw", lambda *_: None)


def test_the_page_is_whole_and_loads_nothing(trained):
    page = Page(trained.folder / "report.html")
    assert {link.removeprefix("#") for link in page.links} == set(page.ids) and len(set(page.ids)) == len(page.ids)
    assert all(url.startswith("data:") for url in page.loaded) and len(page.loaded) > 20
    text = (trained.folder / "report.html").read_text()
    assert "<script" not in text and "http://" not in text and "https://" not in text and "@import" not in text
    assert "default-src 'none'" in text and "prefers-color-scheme: dark" in text
    assert all(image["alt"] for image in page.images)


def test_it_shows_the_figures_of_the_results(trained):
    text, results = Page(trained.folder / "report.html").text, trained.results
    for split in ("val", "test"):
        for name in ("top1", "precision_macro", "f1_micro", "ece", "ece_unscaled"):
            assert f"{results[split][name]:.2%}" in text
        assert f"{results[split]['loss']:.4f}" in text
    assert f"{results['test']['temperature']:.3f}" in text and results["test"]["temperature"] != 1
    assert f"{results['params']:,}" in text and f"{results['best_epoch']} of 6" in text
    assert f"{results['images_per_second']:,.0f} images/s" in text
    assert f"{results['peak_memory'] / 2**30:.2f} GiB" in text


def test_it_shows_command_environment_recipe_and_data(trained):
    text = Page(trained.folder / "report.html").text
    environment = json.loads((trained.folder / "environment.json").read_text())
    assert " ".join(environment["command"].split()) in text and environment["platform"] in text
    assert f"torch {environment['packages']['torch']}" in text
    assert "learning_rate: 0.01" in text and "48 (16 to 16 a class)" in text
    assert "shift 1, mixup 0.5" in text and "pixels in 0..1, less the mean (" in text


def test_class_names_are_shown_as_they_are(trained):
    page, text = Page(trained.folder / "report.html"), (trained.folder / "report.html").read_text()
    assert "<b>&\"bee'$x" in page.text and "<b>&" not in text
    assert any("<b>&\"bee'$x" in image["alt"] for image in page.images)


def test_mistakes_and_hits_are_those_of_the_model(trained):
    page = Page(trained.folder / "report.html")
    asked = [image["alt"] for image in page.images if ", answered " in image["alt"]]
    wrong = [alt for alt in asked if (pair := alt.split(" with ")[0].split(", answered "))[0] != pair[1]]
    count, top1 = trained.results["test"]["count"], trained.results["test"]["top1"]
    assert len(wrong) == round(count * (1 - top1)) in range(3, 13) and len(asked) - len(wrong) == 12
    shares = [float(alt.rpartition(" ")[2].rstrip("%")) for alt in asked]
    assert shares == [*sorted(shares[: len(wrong)], reverse=True), *sorted(shares[len(wrong) :])]
    rows = [
        row
        for row in csv_rows(trained.folder / "answers.csv")
        if row["split"] == "test" and row["class"] != row["answer"]
    ]
    named = re.findall(r"test:(\d+)", page.text)[: len(wrong)]
    assert sorted(named, key=int) == [row["row"] for row in rows]
    bars = re.findall(
        r'<div class="sure( wrong)?"><i style="width:([\d.]+)%"', (trained.folder / "report.html").read_text()
    )
    assert [(bool(kind), float(width)) for kind, width in bars] == [(i < len(wrong), p) for i, p in enumerate(shares)]


def test_the_samples_carry_the_targets_that_were_trained_on(trained):
    alts = [image["alt"] for image in Page(trained.folder / "report.html").images if not of_an_answer(image["alt"])]
    assert len(alts) == 8  # a batch
    mixed = [re.fullmatch(r"(.+) (\d+)% \+ (.+) (\d+)%", alt) for alt in alts]
    shares = [(int(m[2]), int(m[4])) for m in mixed if m]
    assert shares and all(a >= b and a + b in (99, 100, 101) for a, b in shares)


def test_a_sample_stands_above_its_target(trained, tmp_path):
    copytree(trained.folder, tmp_path / "run")
    images, targets = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0])
    train_report(tmp_path / "run", trained.bundle, {}, trained.results, (images, targets))
    pixels, names = (images * 255).round().byte().numpy(), trained.bundle.class_names
    expected = [(sources(picture(each, ""))[0], names[k]) for each, k in zip(pixels, targets, strict=True)]
    assert [(image["src"], image["alt"]) for image in Page(tmp_path / "run" / "report.html").images] == expected


def sources(markup: str) -> list[str]:
    return re.findall(r'src="([^"]*)"', markup)


def test_maps_stand_beside_the_images_they_explain(trained, monkeypatch):
    def speaks(bundle, pixels, classes, method, others):
        assert pixels.dtype == torch.uint8 and pixels.shape[1:] == (1, 8, 8) and method == "integrated_gradients"
        asked.extend(zip(classes.tolist(), others.tolist(), strict=True))
        return pixels.float().mean(dim=1)  # (B, H, W)

    asked = []
    monkeypatch.setattr(answers, "evidence", speaks)
    judged = judge(trained.bundle, tiny_set().test, device=torch.device("cpu"), precision="float32")
    body = answer_sections({"test": judged})[-1].body
    assert body.count("<img") == 2 * body.count("what speaks for") == 2 * len(asked) > 0
    expected, right = [], set()
    for row in order_of(judged):
        answer, second = judged.logits[row].topk(2).indices.tolist()
        truth = int(judged.labels[row])
        expected.append((answer, second if answer == truth else truth))
        right.add(answer == truth)
    assert asked == expected and right == {True, False}
    shown = judged.images.read(np.array(order_of(judged)), judged.bundle.preprocess)
    maps = torch.from_numpy(shown).float().mean(dim=1).numpy()  # what `speaks` returns
    both = ((picture(image, ""), picture(heated(image, heat), "")) for image, heat in zip(shown, maps, strict=True))
    assert sources(body) == sources("".join(itertools.chain(*both)))


def test_a_large_model_is_explained_in_one_pass():
    assert cheap_method(ViTConfig(size="mini/4", image_size=32)) == "integrated_gradients"
    assert cheap_method(ViTConfig(size="B/16")) == "gradient_rollout"


@pytest.mark.parametrize(
    ("method", "pool", "told"),
    [("integrated_gradients", "mean", True), ("gradient_rollout", "cls", True), ("gradient_rollout", "mean", False)],
)
def test_gray_maps_are_explained_where_there_can_be_any(method, pool, told):
    assert ("where all stays gray" in how_to_read(method, ViTConfig(size="B/16", pool=pool))) == told


def of_an_answer(alt):
    return ", answered" in alt or alt.startswith("what speaks for")


def order_of(judged):
    shares = (judged.logits.double() / judged.bundle.temperature).softmax(1)
    confidence, right = shares.max(1).values, judged.logits.argmax(1) == judged.labels
    rows = sorted((~right).nonzero().flatten().tolist(), key=lambda row: -confidence[row])[:12]
    return rows + sorted(right.nonzero().flatten().tolist(), key=lambda row: confidence[row])[:12]


# --- runs of every kind ---


def test_without_validation_the_page_says_so(tmp_path):
    page, run = written(tmp_path, tiny_set(), tiny_recipe(epochs=1, data={"val_fraction": 0}))
    assert "There were no validation images: the weights are those after 1.0 passes." in page.text
    assert "The temperature is 1: none was fitted" in page.text
    assert f"{run.results['test']['top1']:.2%}" in page.text and "ECE at temperature" not in page.text


def test_without_test_images_validation_is_shown(tmp_path):
    data = replace(tiny_set(), test=None)
    page, run = written(tmp_path, data)
    assert f"{run.results['val']['top1']:.2%} top-1 on 12 validation images" in page.text
    assert untested(run.results) in page.text and "which helped to choose" in page.text


def test_without_either_there_is_a_page_all_the_same(tmp_path):
    data = replace(tiny_set(), test=None)
    page, _ = written(tmp_path, data, tiny_recipe(epochs=1, data={"val_fraction": 0}))
    assert "nothing was judged" in page.text and "samples" in page.ids and "confusion" not in page.ids


@pytest.mark.parametrize(
    ("probe", "words"), [(False, "fine-tuned from"), (True, "with a new head on the frozen features of")]
)
def test_trained_weights_are_named_as_the_start(tmp_path, probe, words):
    tiny_bundle().save(tmp_path / "source")
    fields = {"epochs": 1, "precision": "float32", "data": {"val_fraction": 0.25}, "optim": {"batch_size": 8}}
    start = {"weights": str(tmp_path / "source"), "probe": probe}
    page, _ = written(tmp_path, tiny_set(), make_recipe(fields | {"start": start}, "test"))
    assert f"{words} source on 36 images of 3 classes." in page.text and "from scratch" not in page.text
    assert ("The head was fitted in one go" in page.text) == probe


def test_the_confusion_table_has_a_row_a_class():
    counts = np.array([[3, 1, 0], [0, 4, 0], [2, 0, 0]])
    table = answers._matrix(counts, ("ant", "bee", "cat"))
    rows = re.findall(r'<tr><th scope="row"[^>]*>(\w+)</th>(.*?)</tr>', table)
    cells = [
        re.findall(r'<td class="(\w+)"(?: style="--s:([\d.]+)")? title="([^"]*)">(\d+)</td>', cells)
        for _, cells in rows
    ]
    assert [name for name, _ in rows] == ["ant", "bee", "cat"]
    assert [[int(count) for *_, count in row] for row in cells] == counts.tolist()
    assert cells[0][0][:2] == ("right", "0.75")
    assert cells[0][1][:3] == ("wrong", "0.50", "ant, answered bee: 25.0%") and cells[1][0][0] == "none"


def test_classes_pairs_and_curves_are_those_that_were_counted(trained):
    counts, names = np.array([[3, 1, 0], [0, 4, 0], [2, 0, 0]]), ("ant", "bee", "cat")
    cells = (
        r'class="name">(\w+)</th>.*?<td>([\d.]+%)</td><td><small>.*?</small></td><td>(.*?)</td><td>(.*?)</td><td>(\d)'
    )
    labels, right = np.repeat([0, 1, 2], [4, 4, 2]), np.repeat([True, False, True, False], [3, 1, 4, 2])
    assert re.findall(cells, answers._classes(counts, names, right, labels, None)) == [
        ("cat", "0.0%", "&ndash;", "0.0%", "2"),
        ("ant", "75.0%", "60.0%", "66.7%", "4"),
        ("bee", "100.0%", "80.0%", "88.9%", "4"),
    ]
    pair = 'class="name">cat</th><td class="name left">ant</td><td>2</td><td>100.0%</td>'
    assert pair in answers._pairs(counts, names)
    losses = [float(row["val_loss"]) for row in csv_rows(trained.folder / "metrics.csv")]
    page = (trained.folder / "report.html").read_text()
    assert f"validation from {losses[0]:.4g} to {losses[-1]:.4g}" in page


@pytest.mark.parametrize("classes", [2, 21, 40])
def test_few_and_many_classes(tmp_path, classes):
    pixels = np.random.default_rng(0).integers(0, 256, (4 * classes, 3, 8, 8), np.uint8)
    labels = np.arange(4 * classes) % classes
    data = ImageSet.from_arrays(pixels, labels, test=(pixels[: classes - 1], labels[: classes - 1]))  # one never occurs
    page, _ = written(tmp_path, data)
    text = (tmp_path / "run" / "report.html").read_text()
    assert ('class="heat"' in text) == (classes > 20) and ('class="confusion' in text) == (classes <= 20)
    assert "no images" in page.text
    assert ("The other 20 classes" in page.text) == (classes == 40)


def test_a_perfect_model_has_no_mistakes_to_show(tmp_path):
    page, run = written(tmp_path, tiny_set(), tiny_recipe(epochs=20, optim={"learning_rate": 0.01}))
    assert run.results["test"]["top1"] == 1
    assert "Not one image was taken for another class." in page.text and "There are none." in page.text


def test_what_chose_the_epoch_has_a_chart_of_its_own(tmp_path):
    page, _ = written(tmp_path, tiny_set(), tiny_recipe(epochs=2, best_by="f1_macro"))
    titles = [title for title in ("Loss", "Top-1", "F1, macro", "Learning rate") if title in page.text]
    assert titles == ["Loss", "Top-1", "F1, macro", "Learning rate"]


@pytest.mark.parametrize(
    ("augment", "told"),
    [
        ({"crop_scale": (0.5, 1), "shrink_until": 0.3}, "Augmented on the way: crop_scale 0.5 to 1.0. "),
        ({}, "Nothing was augmented. "),
    ],
)
def test_augmentation_that_had_an_effect_is_told(tmp_path, augment, told):
    page, _ = written(tmp_path, tiny_set(), tiny_recipe(epochs=1, augment=augment))
    assert told in page.text and ("training, augmented" in page.text) is bool(augment)


def test_what_was_logged_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(outcome, "_draw", lambda *_: outcome.log.warning("the <ink> is low"))
    page, _ = written(tmp_path, tiny_set())
    assert "Warnings" in page.text and "the <ink> is low" in page.text


def test_images_that_are_streamed_are_shown_too(tmp_path):
    page, _ = written(tmp_path, tiny_set(), tiny_recipe(epochs=1, data={"memory_budget": 1e-9, "workers": 0}))
    assert len(page.images) > 12


# --- cross-validations ---


@pytest.fixture(scope="module")
def folds(tmp_path_factory):
    """Three folds of stripes, of which some carry a wrong label, so that there are mistakes; and two temperatures."""
    recipe = tiny_recipe(epochs=4, data={"val_fraction": 0.25, "folds": 3}, optim={"learning_rate": 0.01})
    out = tmp_path_factory.mktemp("folds") / "cv"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outcome, "_draw", lambda *_: None)
        patch.setattr(evaluation, "fit_temperature", lambda logits, *_: 0.5 + logits[0, 0].item() % 1)
        return fit_folds(recipe, mislabelled(), out=out, device="cpu", console=Console(file=io.StringIO()))


def mislabelled():
    """50 stripes, so that folds are of 17, 17 and 16."""
    pixels, labels = stripes(50, seed=2)
    return ImageSet.from_arrays(pixels, np.where(np.arange(50) % 7 == 0, (labels + 1) % 3, labels), name="stripes")


def test_the_page_of_a_cross_validation_has_the_figures_of_all_folds(folds):
    page, results = Page(folds.folder / "report.html"), folds.results
    assert {link.removeprefix("#") for link in page.links} == set(page.ids)
    assert all(url.startswith("data:") for url in page.loaded) and all(image["alt"] for image in page.images)
    rows = csv_rows(folds.folder / "answers.csv")
    right = np.array([row["class"] == row["answer"] for row in rows])
    assert f"{right.mean():.2%} top-1 on 50 held-out images" in page.text
    sure = np.array([float(row["probability"]) for row in rows])
    ece = np.abs(np.bincount(np.ceil(15 * sure).astype(int), weights=sure - right)).sum() / 50
    assert results["pooled"]["ece"] == pytest.approx(ece, abs=1e-5) and f"{ece:.2%}" in page.text
    assert abs(ece - results["pooled"]["ece_unscaled"]) > 1e-3
    assert f"mean over folds {results['top1_mean']:.2%} standard deviation {results['top1_sd']:.2%}" in page.text
    tests = [json.loads((folds.folder / f"fold-{k}" / "results.json").read_text())["test"] for k in (1, 2, 3)]
    shown = re.search(r"images fold 1 (.*?) fold 2 (.*?) fold 3 (.*?) mean (\S+ \S+)", page.text).groups()
    for test, row in zip(tests, shown, strict=False):
        assert row.startswith(f"{test['top1']:.2%} {test['loss']:.4f} ") and f" {test['auroc']:.2%} " in row
    assert shown[3] == f"{results['top1_mean']:.2%} {results['loss_mean']:.4f}"
    temperatures = ", ".join(f"{test['temperature']:.3g}" for test in tests)
    assert len({test["temperature"] for test in tests}) == 3 and f"ECE at temperature {temperatures}" in page.text


def test_each_image_is_shown_with_what_its_own_fold_said(folds):
    page = Page(folds.folder / "report.html")
    rows = csv_rows(folds.folder / "answers.csv")
    wrong = sorted((r for r in rows if r["class"] != r["answer"]), key=lambda r: -float(r["probability"]))
    sure = sorted((r for r in rows if r["class"] == r["answer"]), key=lambda r: float(r["probability"]))
    shown = [image["alt"] for image in page.images if ", answered" in image["alt"]]
    expected = [
        f"{row['class']}, answered {row['answer']} with {float(row['probability']):.1%}"
        for row in wrong[:12] + sure[:12]
    ]
    assert len(wrong) > 3 and shown == expected
    assert f"fold-{wrong[0]['fold']} test:{wrong[0]['row']}" in page.text


def test_a_report_of_folds_that_fails_loses_nothing(folds, tmp_path, monkeypatch):
    copytree(folds.folder, tmp_path / "cv")
    (tmp_path / "cv" / "results.json").unlink()
    monkeypatch.setattr(report, "folds_report", lambda *_: 1 / 0)
    recipe = read_recipe(str(tmp_path / "cv" / "recipe.yaml"))
    quiet = {"device": "cpu", "console": Console(file=io.StringIO())}
    again = fit_folds(recipe, mislabelled(), out=tmp_path / "cv", resume=True, **quiet)
    assert again.results == folds.results
    assert "could not write" in (tmp_path / "cv" / "train.log").read_text()


# --- evaluations ---


ENVIRONMENT = {
    "command": "vitreous evaluate run 'x & y'", "packages": {"torch": "2"}, "device": "cpu", "threads": 1,
    "processes": 1, "processor": "a processor", "precision": "float32",
}  # fmt: skip


def test_an_evaluation_has_its_report(tmp_path):
    bundle = replace(tiny_bundle(), temperature=1.5)
    judged = judge(bundle, tiny_set().test, device=torch.device("cpu"), precision="float32", name="test")
    evaluation_report(tmp_path / "report.html", judged, model="runs/x", data="photos", environment=ENVIRONMENT)
    page = Page(tmp_path / "report.html")
    assert "runs/x, judged on the 12 test images of photos." in page.text and "x on photos" in page.text
    assert f"{judged.figures['top1']:.2%}" in page.text and "vitreous evaluate run 'x & y'" in page.text
    mean, most = chance_error(judged.logits.double() / 1.5)
    said = f"as this one is at its temperature, would show {mean:.2%} on 12 images, and up to {most:.2%} in 19 of 20"
    assert said in page.text and "always answering the commonest class: 33.33%" in page.text
    assert "ECE at temperature 1.5" in page.text and "learning" not in page.ids
    assert re.search(r"\brow \d", page.text) and "test:" not in page.text  # by which one asks about own images
    assert all(url.startswith("data:") for url in page.loaded)
    assert sum(not of_an_answer(image["alt"]) for image in page.images) == 12


def test_a_temperature_fitted_on_the_images_judged_is_told(tmp_path):
    judged = judge(tiny_bundle(), tiny_set().test, device=torch.device("cpu"), precision="float32", name="test")
    for here in (True, False):
        own = replace(judged, bundle=replace(judged.bundle, temperature=1.5), calibrated_here=here)
        evaluation_report(tmp_path / "r.html", own, model="m", data="photos", environment=ENVIRONMENT)
        assert ("Fitted on these very images" in Page(tmp_path / "r.html").text) == here


def test_what_was_warned_of_stands_in_the_report(tmp_path):
    judged = judge(tiny_bundle(), tiny_set().test, device=torch.device("cpu"), precision="float32", name="val")
    warned = replace(judged, caution="1 image, <b>.png, is one that the model learnt from")
    for data in (None, "photos"):
        evaluation_report(tmp_path / "r.html", warned, model="m", data=data, environment=ENVIRONMENT)
        text = Page(tmp_path / "r.html").text
        assert "1 image, <b>.png, is one that the model learnt from." in text and "helped to choose" not in text


@pytest.mark.parametrize(("temperature", "larger"), [(1.0, False), (2.0, True), (0.5, False)])
def test_a_temperature_that_makes_the_error_larger_is_told(temperature, larger):
    judged = judge(tiny_bundle(), tiny_set().test, device=torch.device("cpu"), precision="float32")
    bundle = replace(judged.bundle, temperature=temperature)
    right = replace(judged, bundle=bundle, labels=judged.logits.argmax(dim=1))  # so that less sure is worse
    body = answer_sections({"test": right})[2].body
    assert ("On the images here, the error is larger with it than without." in body) == larger
    assert "Fitted on these" not in body


def test_answers_are_counted_from_how_sure_they_are_on():
    bundle = replace(tiny_bundle(), temperature=2.0)
    judged = judge(bundle, tiny_set().test, device=torch.device("cpu"), precision="float32")
    shares = torch.tensor([0.98, 0.96, 0.96, 0.6] * 3, dtype=torch.float64)  # of the first class, at the temperature
    others = (1 - shares).div(2).log()
    logits = 2 * torch.stack([shares.log(), others, others], dim=1)
    labels = torch.tensor([0, 0, 0, 1, 0, 1, 0, 1, 0, 0, 0, 0])
    body = answer_sections({"test": replace(judged, logits=logits, labels=labels)})[2].body
    row = r'row">(\d+%)</th><td>(\d+)</td><td>([\d.]+%)</td><td>(.*?)</td><td><small>(.*?)</small></td><td>(\d+)'
    assert re.findall(row, body) == [
        ("50%", "12", "100.0%", "75.0%", "46.8% &ndash; 91.1%", "3"),
        *((t, "9", "75.0%", "88.9%", "56.5% &ndash; 98.0%", "1") for t in ("80%", "90%", "95%")),
        ("99%", "0", "0.0%", "", "", "0"),
    ]


def test_macro_figures_tell_of_classes_that_were_never_answered_or_are_not_there():
    judged = judge(tiny_bundle(), tiny_set().test, device=torch.device("cpu"), precision="float32")
    without, unanswered = "one without images that was answered counts as recall 0", "never answered counts as"
    area = "AUROC is a mean over those with images"
    for labels, answered, said in (
        ([0, 1, 1, 2], [0, 1, 2, 2], set()),
        ([0, 1, 1, 1], [0, 1, 2, 2], {without, area}),
        ([0, 1, 1, 2], [0, 1, 1, 1], {unanswered}),
        ([0, 0, 0, 0], [1, 1, 1, 1], {without, unanswered}),
    ):
        logits = torch.eye(3)[answered]
        body = results_section({"test": replace(judged, logits=logits, labels=torch.tensor(labels))}, {}, "").body
        assert {text for text in (without, unanswered, area) if text in body} == said


@pytest.mark.parametrize(("temperature", "label"), [(1.0, "loss"), (2.0, "loss, unscaled")])
def test_the_loss_is_said_to_be_that_of_unscaled_logits(temperature, label):
    bundle = replace(tiny_bundle(), temperature=temperature)
    judged = judge(bundle, tiny_set().test, device=torch.device("cpu"), precision="float32")
    assert f'<th scope="row">{label}</th>' in results_section({"test": judged}, {}, "").body


@pytest.mark.parametrize(("groups", "wrong", "told"), [(4, 4, True), (60, 9, True), (60, 10, False), (60, 0, False)])
def test_intervals_of_mistakes_in_a_few_groups_are_qualified(tmp_path, groups, wrong, told):
    judged = judge(tiny_bundle(), tiny_set(test=60).test, device=torch.device("cpu"), precision="float32", name="test")
    names = np.array([f"patient {i % groups}" for i in range(60)])
    labels = judged.logits.argmax(dim=1)
    labels[:wrong] = (labels[:wrong] + 1) % 3
    grouped = replace(judged, groups=names, labels=labels)
    evaluation_report(tmp_path / "r.html", grouped, model="m", data=None, environment=ENVIRONMENT)
    text = Page(tmp_path / "r.html").text
    assert f"come in {groups} groups" in text
    _, most = chance_error(grouped.scaled, grouped.figures["effective_count"])
    assert f"up to {most:.2%} in 19 of 20 cases, by their effective sample size." in text
    assert (f"All mistakes are in {wrong} of the groups: with so few" in text) == told
    right = (judged.logits.argmax(dim=1) == labels).numpy()
    for k in labels.unique():
        low, high = share_interval(right[labels == k], names[labels == k])
        assert f"{low:.1%} \N{EN DASH} {high:.1%}" in text


@pytest.mark.parametrize("groups", [None, np.arange(5) // 2])
def test_answers_are_counted_by_how_sure_they_are(groups):
    sure, right = np.array([0.55, 0.8, 0.9, 0.97, 0.95]), np.array([True, False, True, True, False])
    rows = re.findall(r"<tr><th scope=\"row\">.*?</tr>", _coverage(sure, right, groups))
    cells = [re.sub(r"<[^>]+>", " ", row).replace("&ndash;", "to").split() for row in rows]
    assert [row[:4] + row[-1:] for row in cells] == [
        ["50%", "5", "100.0%", "60.0%", "2"],
        ["80%", "4", "80.0%", "50.0%", "2"],
        ["90%", "3", "60.0%", "66.7%", "1"],
        ["95%", "2", "40.0%", "50.0%", "1"],
        ["99%", "0", "0.0%", "0", "0"],  # of none, no share and no interval
    ]
    for row, kept in zip(cells, (sure >= 0.5, sure >= 0.8, sure >= 0.9, sure >= 0.95), strict=False):
        low, high = share_interval(right[kept], None if groups is None else groups[kept])
        assert row[4:7] == [f"{low:.1%}", "to", f"{high:.1%}"]


@pytest.mark.parametrize(("grouped", "intervals"), [(False, 2), (True, 1)])
def test_top5_of_images_in_groups_has_no_interval(grouped, intervals):
    """How alike the images of a group are is known for top-1 alone."""
    figures = {"top1": 0.5, "top5": 0.75, "loss": 1.0, "count": 40}
    figures |= {"groups": 10, "wrong_groups": 9, "effective_count": 20.0} if grouped else {}
    assert sum("&ndash;" in _figure(key, figures) for key in figures) == intervals


@pytest.mark.parametrize(("channels", "said"), [(3, False), (5, True)])
def test_pictures_that_lack_channels_are_said_to(tmp_path, channels, said):
    data = ImageSet.from_arrays(np.random.default_rng(0).random((6, 8, 8, channels)), [0, 1, 2] * 2)
    bundle = tiny_bundle(channels=channels)
    judged = judge(bundle, data.train, device=torch.device("cpu"), precision="float32", name="train")
    evaluation_report(tmp_path / "r.html", judged, model="m", data="d", environment=ENVIRONMENT)
    assert Page(tmp_path / "r.html").text.count("pictures show channels 1-3 of 5") == 2 * said


def test_a_split_of_one_image_is_enough(tmp_path):
    split = tiny_set().test
    judged = judge(
        tiny_bundle(), Split(split.images.take([3]), split.labels[[3]]), device=torch.device("cpu"), precision="float32"
    )
    judged = replace(judged, name="val")
    evaluation_report(tmp_path / "r.html", judged, model="m", data=None, environment=ENVIRONMENT)
    assert "judged on the 1 validation images of its own data." in Page(tmp_path / "r.html").text


def test_a_model_of_one_class_has_its_report(tmp_path):
    pixels, _ = stripes(4)
    split = ImageSet.from_arrays(pixels, np.zeros(4, int), class_names=("only",)).train
    judged = judge(tiny_bundle(classes=("only",)), split, device=torch.device("cpu"), precision="float32", name="test")
    evaluation_report(tmp_path / "r.html", judged, model="m", data="d", environment=ENVIRONMENT)
    page = Page(tmp_path / "r.html")
    hints = [image["alt"] for image in page.images if image["alt"].startswith("what speaks for")]
    assert hints == ["what speaks for only"] * 4 and "or only" not in page.text


def test_a_report_is_written_again_from_the_folder_alone(trained, tmp_path):
    copytree(trained.folder, tmp_path / "run")
    samples = torch.zeros(4, 1, 8, 8), torch.tensor([0, 1, 2, 0])
    train_report(tmp_path / "run", trained.bundle, {}, trained.results, samples)
    assert "nothing was judged" in (tmp_path / "run" / "report.html").read_text()


def test_of_equal_classes_the_first_is_shown_as_the_answer():
    bundle = tiny_bundle(classes=tuple(f"{k:02}" for k in range(40)))
    labels = torch.full((4,), 3)
    logits = (torch.arange(40) % 7 == 3).float().expand(4, -1)  # six are alike
    images = ArrayImages(stripes(4)[0])
    judged = Judged(bundle, logits, labels, images, np.arange(4), 0.0, "test")
    shown = answers._answered(judged, torch.arange(4), logits.softmax(dim=1), "gradient_rollout", True)
    assert all("<strong>03</strong>" in item and "<small>or 10 (" in item for item in shown)


def test_a_figure_of_one_split_alone_is_shown():
    plain = {name: 0.5 for name in NAMES if name not in ("groups", "effective_count")} | {"count": 40}
    grouped = {"groups": 9, "effective_count": 20.0, "wrong_groups": 9}
    figures = {"val": plain | grouped, "test": plain | {"auroc": None}}
    body = answers.results_of(figures, [np.eye(2, dtype=int)] * 2, {}, "").body
    assert f'<tr><th scope="row">{NAMES["groups"]}</th><td>9</td><td></td></tr>' in body
    assert f'<tr><th scope="row">{NAMES["auroc"]}</th><td>' in body
