"""Figures of a model on a split: the right images with the right labels, by class name."""

import csv
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from tiny import CLASSES, stripes, tiny_bundle, tiny_recipe, tiny_set, write_images

from vitreous import evaluation
from vitreous.data.images import ImageSet
from vitreous.data.loaders import Batches
from vitreous.data.sources import load
from vitreous.evaluation import (
    calibrated,
    evaluate,
    judge,
    judge_run,
    own_data,
    record_evaluation,
    write_answers,
    write_classes,
)
from vitreous.metrics import classification_metrics, confusion, wilson
from vitreous.train.run import fit

EXACT = {"precision": "float32", "device": "cpu"}


@pytest.fixture
def bundle():
    return tiny_bundle()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run on a folder of images, named in its recipe."""
    root = tmp_path_factory.mktemp("data")
    write_images(root / "photos" / "train", 12)
    write_images(root / "photos" / "test", 4, seed=1)
    options = {"val_fraction": 0.25, "split_seed": 5, "workers": 0, "memory_budget": 3}
    recipe = tiny_recipe(data=options | {"source": str(root / "photos")})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITREOUS_CACHE", str(root / "cache"))
        return fit(recipe, out=root / "run", device="cpu", pictures=False, console=Console(quiet=True))


def test_the_seconds_are_those_of_the_answers(bundle, monkeypatch):
    monkeypatch.setattr(evaluation, "time", SimpleNamespace(monotonic=iter([2.0, 5.0]).__next__))
    assert judge(bundle, tiny_set().test, device=torch.device("cpu"), precision="float32").seconds == 3.0


def figures_of(bundle, pixels, labels):
    """The long way round."""
    with torch.no_grad():
        logits = bundle.model((torch.from_numpy(pixels).float() / 255 - 0.4) / 0.2)
    return classification_metrics(logits, torch.from_numpy(labels))


def close_to(figures):
    return {name: value if value is None else pytest.approx(value, rel=1e-5) for name, value in figures.items()}


def test_figures_are_those_of_the_split(bundle):
    data = tiny_set().with_validation(0.25)
    for name, split in data.splits.items():
        found, expected = (
            evaluate(bundle, data, split=name, **EXACT),
            figures_of(bundle, split.images.array, split.labels),
        )
        assert found == close_to(expected), name
        assert found["count"] == len(split)


def test_test_is_the_split_unless_another_is_named(bundle):
    data = tiny_set()
    assert evaluate(bundle, data, **EXACT) == evaluate(bundle, data, split="test", **EXACT)


def test_without_test_images_those_for_validation_are_judged_else_all(bundle):
    data = replace(tiny_set(), val=tiny_set().test, test=None)
    assert data.default_split == "val" and evaluate(bundle, data, **EXACT)["count"] == 12
    data = replace(data, val=None)
    assert data.default_split == "train" and judge_run(bundle, data, **EXACT).name == "given"
    assert tiny_set().default_split == "test"


def test_logits_and_labels_come_with_the_figures(bundle):
    split = tiny_set().test
    found = judge(bundle, split, device=torch.device("cpu"), precision="float32")
    assert found.logits.shape == (12, 3) and found.labels.tolist() == split.labels.tolist()
    assert classification_metrics(found.logits, found.labels) == found.figures
    np.testing.assert_array_equal(found.images.read(range(12), bundle.preprocess), split.images.array)


@pytest.mark.parametrize("before", [1.0, 90.0])
def test_a_calibrated_model_is_as_sure_as_it_is_right(bundle, before):
    """From whatever temperature it had, the loss becomes the least that a temperature can make it."""
    judged = judge_run(replace(bundle, temperature=before), tiny_set(), split="train", **EXACT)
    found = calibrated(judged)

    def loss(temperature):
        return torch.nn.functional.cross_entropy(judged.logits.double() / temperature, judged.labels).item()

    best = found.temperature
    assert loss(best) < min(loss(0.99 * best), loss(1.01 * best), loss(before))
    assert found.model is bundle.model and judged.bundle.temperature == before


def test_few_images_leave_a_temperature_as_it_is(bundle):
    """Not at 1, but at what it was; and groups count, not their images."""
    judged = judge_run(replace(bundle, temperature=1.5), tiny_set(), split="train", **EXACT)
    assert calibrated(judged).temperature > 2
    assert calibrated(replace(judged, groups=np.arange(48) % 3)).temperature == 1.5


def test_no_more_images_are_judged_at_once_than_memory_is_bounded_for(bundle, monkeypatch):
    asked = []
    forward = type(bundle.model).forward
    monkeypatch.setattr(
        type(bundle.model), "forward", lambda self, images: asked.append(len(images)) or forward(self, images)
    )
    monkeypatch.setattr(evaluation, "eval_batch_size", lambda config: 5)
    judge(bundle, tiny_set().test, device=torch.device("cpu"), precision="float32")
    assert asked == [5, 5, 2]


@pytest.mark.parametrize("order", [(1, 2, 0), (2, 1, 0)])
def test_labels_are_matched_by_class_name(bundle, order):
    """The same images with their classes numbered otherwise."""
    pixels, labels = stripes(24)
    names = tuple(CLASSES[i] for i in order)
    renumbered = np.array([names.index(CLASSES[label]) for label in labels])
    data = ImageSet.from_arrays(pixels, renumbered, test=(pixels, renumbered), class_names=names)
    expected = figures_of(bundle, pixels, labels)
    assert figures_of(bundle, pixels, renumbered) != close_to(expected)
    assert evaluate(bundle, data, **EXACT) == close_to(expected)


def test_data_may_have_some_of_the_classes(bundle):
    pixels, labels = stripes(24)
    few = labels > 0
    data = ImageSet.from_arrays(pixels[few], labels[few] - 1, class_names=CLASSES[1:])
    expected = figures_of(bundle, pixels[few], labels[few])
    assert evaluate(bundle, data, split="train", **EXACT) == close_to(expected)


def test_a_class_that_the_model_lacks_is_refused(bundle):
    pixels, labels = stripes(12)
    data = ImageSet.from_arrays(pixels, labels, test=(pixels, labels), class_names=("ant", "bee", "dog"), name="zoo")
    with pytest.raises(
        ValueError, match=r"^zoo: test has class 'dog' that the model lacks; the model has ant, bee, cat: rename it"
    ):
        evaluate(bundle, data, **EXACT)


def test_a_class_whose_name_the_model_has_twice_is_refused(bundle):
    twice = replace(bundle, class_names=("ant", "bee", "ant"))
    pixels, labels = stripes(12)
    data = ImageSet.from_arrays(pixels, labels % 2, class_names=("ant", "bee"), name="zoo")
    with pytest.raises(ValueError, match="the model has 2 classes 'ant': rename all but one of them"):
        evaluate(twice, data, **EXACT)


def test_a_class_that_does_not_occur_in_the_split_may_be_unknown(bundle):
    pixels, labels = stripes(12)
    few = labels < 2
    names = ("ant", "bee", "dog")
    data = ImageSet.from_arrays(pixels, labels, test=(pixels[few], labels[few]), class_names=names)
    assert evaluate(bundle, data, **EXACT)["count"] == 8


def test_a_split_that_is_not_there_is_refused_with_those_that_are(bundle):
    with pytest.raises(ValueError, match=r"^stripes has no split 'val': use train or test$"):
        evaluate(bundle, tiny_set(), split="val", **EXACT)


def test_images_of_another_size_are_fitted(bundle):
    assert evaluate(bundle, tiny_set(side=16, channels=3), **EXACT)["count"] == 12


# --- a run's own data ---


def test_a_run_is_judged_on_its_own_data_split_as_it_was(run):
    for split in ("val", "test"):
        assert evaluate(run.folder, split=split, **EXACT) == run.results[split]
    assert evaluate(run.folder, split="train", **EXACT)["count"] == 27
    data = own_data(run.folder)
    assert {name: len(split) for name, split in data.splits.items()} == {"train": 27, "val": 9, "test": 12}


def test_a_run_is_judged_in_the_precision_that_its_recipe_asks_for(run, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})  # where auto is bf16
    assert run.results["precision"] == "float32"
    assert evaluate(run.folder, device="cpu") == run.results["test"]
    assert evaluate(run.folder, device="cpu", precision="bf16") != run.results["test"]


def test_a_run_is_judged_with_the_memory_and_the_workers_that_its_recipe_allows(run, monkeypatch):
    asked = {}
    monkeypatch.setattr(evaluation, "Batches", lambda *given, **more: asked.update(more) or Batches(*given, **more))
    evaluate(run.folder, device="cpu")
    assert (asked["memory_budget"], asked["workers"]) == (3 << 30, 0)


@pytest.mark.parametrize("skip_broken", [False, True])
def test_a_run_whose_data_has_changed_is_not_judged_on_it(tmp_path, skip_broken):
    folder = write_images(tmp_path / "photos", 10)
    if skip_broken:
        (folder / "ant" / "bad.png").write_text("no picture")
    recipe = tiny_recipe(epochs=1, data={"source": str(folder), "val_fraction": 0.1, "skip_broken": skip_broken})
    run = fit(recipe, out=tmp_path / "run", device="cpu", pictures=False, console=Console(quiet=True))
    counts = {name: len(split) for name, split in own_data(run.folder).splits.items()}
    if skip_broken:
        (folder / "ant" / "bad.png").unlink()
    else:
        first = next(folder.rglob("*.png"))
        first.with_name("another.png").write_bytes(first.read_bytes())
        assert len(load(folder).divided(recipe.data).train) == counts["train"]  # as many as before
    with pytest.raises(ValueError, match=rf"^{folder} has changed since {run.folder} was trained on it"):
        evaluate(run.folder, split="val", **EXACT)


def test_a_run_whose_images_have_moved_is_judged_by_a_link_to_them(tmp_path):
    folder = write_images(tmp_path / "photos", 10)
    recipe = tiny_recipe(epochs=1, data={"source": str(folder), "val_fraction": 0.25})
    run = fit(recipe, out=tmp_path / "run", device="cpu", pictures=False, console=Console(quiet=True))
    moved = folder.rename(tmp_path / "moved")
    with pytest.raises(ValueError, match=rf"^{folder}, the images of {run.folder}, are not there: put them or a link"):
        evaluate(run.folder, split="val", **EXACT)
    folder.symlink_to(moved)
    assert evaluate(run.folder, split="val", **EXACT) == run.results["val"]


def test_a_run_whose_images_were_renamed_or_repainted_warns(tmp_path, caplog):
    folder = write_images(tmp_path / "photos", 10)
    recipe = tiny_recipe(epochs=1, data={"source": str(folder), "val_fraction": 0.25})
    run = fit(recipe, out=tmp_path / "run", device="cpu", pictures=False, console=Console(quiet=True))

    def warned(split):
        caplog.clear()
        evaluate(run.folder, split=split, **EXACT)
        return [text.partition(" of the run, or in another order")[0] for text in caplog.messages]

    assert warned("train") == warned("val") == []
    file = Path(own_data(run.folder).val.images.describe(0))
    original = file.read_bytes()
    Image.open(file).transpose(Image.Transpose.FLIP_TOP_BOTTOM).save(file)
    assert (warned("train"), warned("val")) == ([], ["these are not the val images"])
    file.write_bytes(original)
    assert warned("val") == []
    (folder / "bee" / "000.png").rename(folder / "bee" / "zzz.png")  # all of the class move up
    assert (warned("train"), warned("val")) == (["these are not the train images"], ["these are not the val images"])


def test_other_data_may_be_named(run, tmp_path):
    other = write_images(tmp_path / "other", 3, seed=9)
    assert evaluate(run.folder, other, split="train", **EXACT)["count"] == 9
    assert evaluate(str(run.folder), str(other), split="train", **EXACT)["count"] == 9


def test_data_that_is_not_split_is_judged_whole(run, tmp_path):
    other = write_images(tmp_path / "other", 3, seed=9)
    assert evaluate(run.folder, other, **EXACT) == evaluate(run.folder, other, split="train", **EXACT)
    assert judge_run(run.folder, other, **EXACT).name == "given"
    assert judge_run(run.folder, other, split="train", **EXACT).name == "train"


def test_images_of_one_class_are_judged(run, tmp_path):
    other = write_images(tmp_path / "other", 3, seed=9)
    for name in CLASSES[1:]:
        shutil.rmtree(other / name)
    figures = evaluate(run.folder, other, **EXACT)
    assert figures["count"] == 3 and 0 <= figures["top1"] <= 1


def test_whose_groups_are_not_found_elsewhere_is_told(tmp_path):
    folder = write_images(tmp_path / "photos", 10)
    recipe = tiny_recipe(epochs=1, data={"source": str(folder), "val_fraction": 0.2, "group": r"/(\d+)\.png"})
    run = fit(recipe, out=tmp_path / "run", device="cpu", pictures=False, console=Console(quiet=True))
    told = "no groups were found, so intervals take each image for itself"
    other = write_images(tmp_path / "other", 3, seed=9)
    assert judge_run(run.folder, other, **EXACT).caution == ""
    for file in other.rglob("*.png"):
        file.rename(file.with_stem(f"x{file.stem}"))
    assert judge_run(run.folder, other, **EXACT).caution == told
    assert told not in judge_run(run.folder, **EXACT).caution


def test_only_the_first_page_of_files_given_is_told(bundle, tmp_path, caplog):
    folder = write_images(tmp_path / "photos", 3)
    pages = [Image.new("L", (8, 8), level) for level in (0, 90)]
    pages[0].save(folder / "ant" / "stack.tif", save_all=True, append_images=pages[1:])
    evaluate(bundle, folder, **EXACT)
    told = f"only the first page of multi-page files is read, such as {folder / 'ant' / 'stack.tif'}"
    assert caplog.messages == [told]


def test_who_judges_a_run_on_what_it_learnt_from_is_warned(tmp_path, caplog):
    folder = write_images(tmp_path / "photos", 10)
    recipe = tiny_recipe(epochs=1, data={"source": str(folder), "val_fraction": 0.1})
    run = fit(recipe, out=tmp_path / "run", device="cpu", pictures=False, console=Console(quiet=True))
    caplog.clear()
    evaluate(run.folder, write_images(tmp_path / "other", 3, seed=9), **EXACT)
    evaluate(run.folder, **EXACT)
    assert not caplog.messages
    evaluate(run.folder, folder, **EXACT)
    evaluate(run.folder, folder, split="train", **EXACT)
    assert caplog.messages == 2 * [f"{folder} is what the model learnt from: its figures will be too good"]


def test_images_that_a_run_learnt_from_are_known_under_other_names(tmp_path, caplog):
    folder = write_images(tmp_path / "photos", 10)
    recipe = tiny_recipe(epochs=1, data={"source": str(folder), "val_fraction": 0.1})
    run = fit(recipe, out=tmp_path / "run", device="cpu", pictures=False, console=Console(quiet=True))
    caplog.clear()
    other = write_images(tmp_path / "other", 3, seed=9)
    assert judge_run(run.folder, other, **EXACT).caution == ""
    assert judge_run(run.folder, **EXACT).caution.startswith("the run had these validation images")
    divided, copy = own_data(run.folder), (other / CLASSES[0] / "renamed.png").resolve()
    shutil.copy(divided.train.images.describe(0), copy)
    shutil.copy(divided.val.images.describe(0), copy.with_name("validation.png"))
    told = (
        f"1 of these 11 images are among those that the model learnt from, such as {copy}: figures on them will be too "
        "good"
    )
    assert judge_run(run.folder, other, **EXACT).caution == told
    assert caplog.messages == [told]


def test_a_run_on_other_images_than_its_recipe_names_does_not_claim_them(tmp_path):
    recipe = tiny_recipe(epochs=1, data={"source": "digits"})
    run = fit(recipe, tiny_set(), out=tmp_path / "run", device="cpu", pictures=False, console=Console(quiet=True))
    with pytest.raises(ValueError, match="run does not say what it was trained on, as of data given in Python or a"):
        evaluate(run.folder)


def test_evaluating_leaves_the_run_as_it_is(run):
    before = {path: path.read_bytes() for path in run.folder.rglob("*") if path.is_file()}
    evaluate(run.folder, **EXACT)
    assert before == {path: path.read_bytes() for path in run.folder.rglob("*") if path.is_file()}


def test_data_that_nobody_named_must_be_given(bundle, tmp_path):
    with pytest.raises(ValueError, match=r"what it was trained on: name DATA or image files, or the run's folder$"):
        evaluate(bundle, **EXACT)
    bundle.save(tmp_path / "model")
    with pytest.raises(ValueError, match=r"model does not say what it was trained on"):
        evaluate(tmp_path / "model", **EXACT)
    run = fit(tiny_recipe(epochs=1), tiny_set(), out=tmp_path / "run", pictures=False, console=Console(quiet=True))
    with pytest.raises(ValueError, match=r"run does not say what it was trained on"):
        evaluate(run.folder, **EXACT)


def test_broken_images_are_left_out_where_that_is_asked_for(bundle, tmp_path):
    photos = write_images(tmp_path / "photos", 4)
    (photos / "ant" / "bad.png").write_text("no picture")
    with pytest.raises(ValueError, match=r"bad\.png: not a JPEG, PNG"):
        evaluate(bundle, photos, split="train", **EXACT)
    assert evaluate(bundle, photos, split="train", skip_broken=True, **EXACT)["count"] == 12
    assert evaluate(bundle, load(photos, skip_broken=True), split="train", **EXACT)["count"] == 12
    told = "1 of 13 images could not be read, and are left out"
    assert judge_run(bundle, photos, split="train", skip_broken=True, **EXACT).caution == told


def test_a_run_that_left_out_broken_images_is_judged_without_them_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_images(tmp_path / "photos" / "train", 12)
    write_images(tmp_path / "photos" / "test", 4, seed=1)
    (tmp_path / "photos" / "test" / "bee" / "bad.png").write_text("no picture")
    recipe = tiny_recipe(epochs=1, data={"source": "photos", "skip_broken": True, "val_fraction": 0.25})
    run = fit(recipe, out=tmp_path / "run", device="cpu", pictures=False, console=Console(quiet=True))
    assert evaluate(run.folder, **EXACT) == run.results["test"] and run.results["test"]["count"] == 12


def test_figures_of_images_that_a_run_has_used_say_so(run):
    told = "these are the images that the model learnt from: figures on them are too good"
    assert judge_run(run.folder, split="train", **EXACT).caution == told
    told = "the run had these validation images, which may have helped to choose the model: figures may be too good"
    judged = judge_run(run.folder, split="val", **EXACT)
    assert judged.caution == told and judged.calibrated_here
    assert not judge_run(run.folder, **EXACT).calibrated_here


def test_a_runs_images_are_known_by_its_splits_too_and_by_the_name_of_its_data(tmp_path):
    write_images(tmp_path / "photos" / "train", 8)
    for split, seed in (("val", 1), ("test", 2)):
        write_images(tmp_path / "photos" / split, 3, seed=seed)
    copied = tmp_path / "photos" / "test" / CLASSES[0] / "copy.png"
    shutil.copy(next((tmp_path / "photos" / "train" / CLASSES[0]).iterdir()), copied)
    recipe = tiny_recipe(epochs=1, data={"source": str(tmp_path / "photos")})
    run = fit(recipe, out=tmp_path / "run", device="cpu", pictures=False, console=Console(quiet=True))
    for data in (None, tmp_path / "photos"):
        assert judge_run(run.folder, data, split="val", **EXACT).caution.startswith("the run had these validation im")
        told = f"1 of these 10 images are among those that the model learnt from, such as {copied.resolve()}: figures"
        assert judge_run(run.folder, data, **EXACT).caution.startswith(told)


def test_an_evaluation_knows_the_same_images_by_any_order_of_classes(tmp_path):
    photos = write_images(tmp_path / "photos", 2)
    records = []
    for classes in (CLASSES, CLASSES[::-1], ("aphid", *CLASSES)):
        judged = judge_run(tiny_bundle(classes=classes), photos, **EXACT)
        records.append(record_evaluation(judged))
    assert records[0]["data"] == records[1]["data"] == records[2]["data"]
    assert records[0]["recipe"] == records[2]["recipe"] and records[0]["sha256"] != records[1]["sha256"]
    assert "interpolation" not in records[0]["recipe"] and records[0]["caution"] == ""


@pytest.mark.parametrize(("classes", "more"), [(20, 20), (21, 0)])
def test_of_many_classes_the_probability_of_each_is_left_out(tmp_path, classes, more):
    bundle = tiny_bundle(classes=tuple(map(str, range(classes))))
    judged = judge(bundle, ImageSet.from_arrays(*stripes(6)).train, device=torch.device("cpu"), precision="float32")
    write_answers([judged], bundle.class_names, tmp_path / "answers.csv")
    with (tmp_path / "answers.csv").open() as file:
        head, *lines = csv.reader(file)
    assert len(lines) == 6 and {len(line) for line in (head, *lines)} == {8 + more}
    assert head[8:] == [f"probability:{k}" for k in range(more)]


def test_a_share_of_nothing_is_left_empty(tmp_path):
    def part(answers, groups):
        labels, logits = torch.zeros(len(answers), dtype=torch.long), torch.eye(2)[answers]
        return SimpleNamespace(labels=labels, logits=logits, groups=groups, confusion=confusion(logits, labels))

    splits = {"val": [part([0], None), part([0, 1], None)], "test": [part([0, 1], np.array(["p", "p"]))]}
    write_classes(splits, ("a", "b,c"), tmp_path / "x")
    (low, high), (least, most) = wilson(2, 3), wilson(0.5, 1)  # one group counts as one image
    assert (tmp_path / "x").read_text().splitlines() == [
        "split,class,images,answered,right,recall,precision,f1,recall_low,recall_high,groups",
        f"val,a,3,2,2,0.666667,1,0.8,{low:.6g},{high:.6g},",
        'val,"b,c",0,1,0,,0,0,,,',
        f"test,a,2,1,1,0.5,1,0.666667,{least:.6g},{most:.6g},1",
        'test,"b,c",0,1,0,,0,0,,,0',
    ]


def test_a_temperature_is_not_fitted_on_what_a_run_learnt_from_wherever_it_lies(tmp_path):
    own = ImageSet.from_arrays(*stripes(48), class_names=CLASSES)
    quiet = {"device": "cpu", "pictures": False, "console": Console(quiet=True)}
    trained = fit(tiny_recipe(data={"val_fraction": 0}), own, out=tmp_path / "run", **quiet)
    elsewhere = ImageSet.from_arrays(*stripes(48), class_names=CLASSES, name="moved")
    for data in (own, elsewhere):
        judged = judge_run(trained, data, **EXACT)
        assert judged.learnt and judged.caution.startswith("48 of these 48 images are among those that the model")
        with pytest.raises(ValueError, match=r"^the model learnt from these images"):
            calibrated(judged)
    assert not judge_run(trained, ImageSet.from_arrays(*stripes(12, seed=1), class_names=CLASSES), **EXACT).learnt
    (pixels, labels), (others, truths) = stripes(48), stripes(12, seed=1)
    for known, learnt in ((4, False), (8, True)):  # most of them
        parts = ((pixels[:known], others[known:]), (labels[:known], truths[known:]))
        judged = judge_run(trained, ImageSet.from_arrays(*map(np.concatenate, parts), class_names=CLASSES), **EXACT)
        assert judged.learnt is learnt and judged.caution.startswith(f"{known} of these 12 images are among those")
