"""Cross-validation: parts that are disjoint and alike, a run for each, and figures that come from them alone."""

import io
import json
import os
import re
import shutil
import signal
import statistics
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from tiny import (
    CLASSES,
    Sealed,
    csv_rows,
    equal,
    stripes,
    tiny_bundle,
    tiny_recipe,
    tiny_set,
    untimed,
    weights_of,
    write_images,
)

from vitreous import evaluation, plots
from vitreous.data.divide import groups_if_any
from vitreous.data.images import ImageSet
from vitreous.data.sources import load
from vitreous.embedding import embed_split
from vitreous.evaluation import evaluate, judge_run, own_data
from vitreous.metrics import group_figures
from vitreous.recipe import make_recipe, read_recipe
from vitreous.report.finished import read_run
from vitreous.train.folder import alone
from vitreous.train.folds import fit_folds
from vitreous.train.job import Job
from vitreous.train.run import fit


def folds_recipe(folds=3, **changes):
    data = {"val_fraction": 0.25, "folds": folds} | changes.pop("data", {})
    return tiny_recipe(**({"epochs": 1, "data": data} | changes))


def quiet(**more):
    return {"console": Console(file=io.StringIO()), "device": "cpu", "pictures": False} | more


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished cross-validation of three folds over 48 images."""
    return fit_folds(folds_recipe(), tiny_set(), out=tmp_path_factory.mktemp("folds") / "cv", **quiet())


def rows_of(image_set, split):
    """Which images of a set are in a split, by their pixels."""
    known = {image.tobytes(): row for row, image in enumerate(image_set.train.images.array)}
    return [known[image.tobytes()] for image in split.images.array]


@pytest.mark.parametrize(("more", "split"), [({}, "val"), ({"folds": 3, "fold": 1}, "test")])
def test_the_split_seed_cuts_the_parts(more, split):
    data = tiny_set()

    def rows(seed):
        options = tiny_recipe(data={"val_fraction": 0.25, "split_seed": seed} | more).data
        return rows_of(data, data.divided(options).splits[split])

    assert rows(0) == rows(0) != rows(1)


def test_every_image_is_held_out_once_and_all_parts_have_the_same_classes():
    data = tiny_set(count=51)
    held = []
    for fold in (1, 2, 3, 4):
        part = data.with_fold(fold, 4)
        rows, kept = rows_of(data, part.test), rows_of(data, part.train)
        assert sorted(rows + kept) == list(range(51))
        counts = np.bincount(part.test.labels)
        assert counts.min() >= 4 and counts.max() <= 5  # of 17 images of each class
        held += rows
    assert sorted(held) == list(range(51))


def test_the_parts_validation_images_come_from_the_other_parts():
    data = tiny_set()
    options = make_recipe({"data": {"folds": 3, "fold": 2, "val_fraction": 0.25}}, "test").data
    divided = data.divided(options)
    sizes = {name: len(split) for name, split in divided.splits.items()}
    assert sizes == {"train": 24, "val": 8, "test": 16}
    assert len({*rows_of(data, divided.train), *rows_of(data, divided.val), *rows_of(data, divided.test)}) == 48


@pytest.fixture
def animals(tmp_path):
    """Two classes of 7 and 5 animals, of each of which there are one to four pictures."""
    for label, count in {"cat": 7, "dog": 5}.items():
        (tmp_path / "animals" / label).mkdir(parents=True)
        for animal in range(count):
            for shot in range(1 + animal % 4):
                Image.effect_noise((8, 8), 80).save(tmp_path / "animals" / label / f"{label}{animal}_{shot}.png")
    return load(tmp_path / "animals")


BY_ANIMAL = r"(\w+)_\d+\.png$"


def animals_in(split):
    return {Path(split.images.describe(row)).stem.partition("_")[0] for row in range(len(split))}


def test_what_belongs_together_is_held_out_together(animals):
    options = make_recipe({"data": {"folds": 3, "val_fraction": 0.25, "group": BY_ANIMAL}}, "test").data
    tested = []
    for fold in (1, 2, 3):
        divided = animals.divided(options.model_copy(update={"fold": fold}))
        parts = [animals_in(split) for split in divided.splits.values()]
        assert len(parts) == 3 and sum(map(len, parts)) == len(set.union(*parts)) == 12
        assert all({name[:3] for name in part} == {"cat", "dog"} for part in parts)
        assert sum(map(len, divided.splits.values())) == len(animals.train)
        tested += parts[2]
    assert len(tested) == 12 == len(set(tested))
    assert all(len(animals.with_validation(0.02, seed, BY_ANIMAL).val) for seed in range(8))  # few as they are
    assert 4 <= len(animals_in(animals.with_validation(0.9, 0, BY_ANIMAL).val)) <= 8  # at most one half
    assert len({frozenset(animals_in(animals.with_validation(0.25, seed, BY_ANIMAL).val)) for seed in range(4)}) > 1


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75])
def test_a_share_of_whole_groups_is_trained_on(animals, share):
    images, kept = len(animals.train), animals.with_train_share(share, group=BY_ANIMAL).train
    files, all_files = ({split.images.describe(row) for row in range(len(split))} for split in (kept, animals.train))
    assert files == {file for file in all_files if Path(file).stem.partition("_")[0] in animals_in(kept)}
    assert {name[:3] for name in animals_in(kept)} == {"cat", "dog"}
    assert share * images - 1 <= len(kept) <= share * images + 7  # in each class less than one animal more


def grouped_set(folder, animals):
    """Classes with the given numbers of pictures of each animal; a name in several classes is one animal."""
    for label, counts in animals.items():
        (folder / label).mkdir(parents=True)
        for animal, count in counts.items():
            for shot in range(count):
                Image.effect_noise((8, 8), 80).save(folder / label / f"{animal}_{shot}.png")
    return load(folder)


@pytest.mark.parametrize("seed", range(4))
def test_groups_of_each_class_validate(tmp_path, seed):
    even = grouped_set(tmp_path / "even", {label: {f"{label}{i}": 4 for i in range(5)} for label in ("cat", "dog")})
    divided = even.with_validation(0.1, seed, BY_ANIMAL)
    assert len(divided.val) == 8 and set(divided.val.labels) == {0, 1}
    rare = {"cat": {f"c{i}": 4 for i in range(20)}, "dog": {"d0": 9, "d1": 2}, "emu": {"e": 5}, "fox": {"e": 1, "f": 3}}
    mixed = grouped_set(tmp_path / "mixed", rare)
    divided = mixed.with_validation(0.1, seed, BY_ANIMAL)
    sides = animals_in(divided.train), animals_in(divided.val)
    assert not sides[0] & sides[1] and len(divided.train) + len(divided.val) == len(mixed.train)
    assert set(divided.train.labels) == {0, 1, 2, 3} and set(divided.val.labels) == {0, 1, 3}  # emu is one animal
    assert len(divided.val) <= 0.25 * len(mixed.train)
    with pytest.raises(
        ValueError, match=r"leaves no group to hold out, .*: use another data.group, or set data.val_fraction=0$"
    ):
        even.with_validation(0.1, seed, "/")


@pytest.mark.parametrize(
    ("group", "folds", "message"),
    [
        (r"(\w+)_\d+\.jpg$", 3, r"data.group '.*' is not a column, and finds nothing in .*cat0_0.png: use another"),
        ("/", 3, "all images of class 'cat' fall into one group of data.group '/', so none can be held"),
        ("animals", 3, "data.group 'animals' is not a column, and finds nothing in cat/cat0_0.png: use another"),
        (BY_ANIMAL, 6, r"class 'dog' has 5 groups by data.group '.*', fewer than 6 folds: use at most 5 folds"),
    ],
)
def test_groups_that_do_not_allow_it_are_refused(animals, group, folds, message):
    with pytest.raises(ValueError, match=message):
        animals.with_fold(1, folds, group=group)


def test_no_fold_begins_where_a_later_one_would_lack_a_class(tmp_path):
    shots = {"cat": {"g0": 2, "g2": 1}, "dog": {"g0": 2, "g1": 2}}
    data = grouped_set(tmp_path / "photos", shots)
    recipe = folds_recipe(2, data={"group": BY_ANIMAL, "val_fraction": 0, "split_seed": 0})
    data.with_fold(1, 2, 0, group=BY_ANIMAL)
    told = "all groups of class 'cat' by data.group '.*' fall into fold 2: use another data.split_seed, or fewer folds"
    with pytest.raises(ValueError, match=told):
        fit_folds(recipe, data, out=tmp_path / "cv", **quiet())
    assert not (tmp_path / "cv").exists()


def test_what_belongs_together_is_judged_together(animals, tmp_path, monkeypatch, caplog):
    given = []
    monkeypatch.setattr(evaluation, "fit_temperature", lambda logits, labels, groups: given.append(groups) or 1.0)
    recipe = folds_recipe(data={"group": BY_ANIMAL, "val_fraction": 0.25})
    run = fit_folds(recipe, animals, out=tmp_path / "cv", **quiet())
    rows = csv_rows(run.folder / "answers.csv")
    assert all(row["group"] == Path(row["image"]).stem.partition("_")[0] for row in rows)
    right = np.array([row["class"] == row["answer"] for row in rows])
    pooled = {"count": len(rows), "top1": right.mean()} | group_figures(right, np.array([row["group"] for row in rows]))
    assert pooled.items() <= run.results["pooled"].items()
    classes = csv_rows(run.folder / "classes.csv")
    assert [(row["class"], row["groups"]) for row in classes] == [
        (name, str(len({row["group"] for row in rows if row["class"] == name}))) for name in ("cat", "dog")
    ]
    fold = json.loads((run.folder / "fold-1" / "results.json").read_text())
    for split in ("val", "test"):
        assert 1 < fold[split]["groups"] < 12 and fold[split]["effective_count"] <= fold[split]["count"]
    assert all({name[:3] for name in groups} == {"cat", "dog"} for groups in given) and len(given) == 3
    features = embed_split(run.folder / "fold-1", animals)
    assert features.groups.tolist() == [Path(place).stem.partition("_")[0] for place in features.images]
    again = evaluate(run.folder / "fold-1", animals, split="train", device="cpu")
    assert again["groups"] == 12 and read_run(run.folder).figure("test", "groups") == 12
    strangers = ImageSet.from_arrays(*stripes(6, 2), class_names=("dog", "cat"))  # which are called by no animal
    assert "groups" not in evaluate(run.folder / "fold-1", strangers, device="cpu")
    assert "no groups, so that each image counts by itself: data.group" in caplog.text


def test_the_name_of_a_column_finds_no_groups_in_paths(tmp_path, caplog):
    write_images(tmp_path / "x", 2)
    images = load(tmp_path / "x").train.images
    assert groups_if_any(images, "png") is None  # as the name of a column is in no path, or in all
    assert caplog.messages == [
        "no groups, so that each image counts by itself: data.group 'png' is not a column, and finds nothing else in "
        "any path"
    ]
    assert set(groups_if_any(images, r"\w+/")) == {f"{name}/" for name in CLASSES}
    assert set(groups_if_any(images, r"\w+$")) == {"png"}  # a group that all share is one


@pytest.mark.parametrize("key", ["start.weights", "distill.teacher"])
@pytest.mark.parametrize(
    ("changes", "refused", "same_way", "within"),
    [
        ({"folds": 2}, True, "", ""),
        ({"folds": 2, "fold": 1}, True, "", "model"),
        ({"split_seed": 3}, False, "data.split_seed=0", "model/model.safetensors"),
        ({"val_fraction": 0.5}, False, "data.val_fraction=0.25", ""),
        ({"group": r"(\d)\.png$"}, False, "data.group=null", ""),
        ({"val_fraction": 0.0}, False, "", ""),
        ({}, False, "", ""),
    ],
)
def test_what_is_held_out_should_be_new_to_the_weights(tmp_path, caplog, changes, refused, same_way, within, key):
    source = {"source": str(write_images(tmp_path / "photos", 8)), "val_fraction": 0.25}
    fit(tiny_recipe(epochs=1, data=source), out=tmp_path / "run", **quiet())
    fields = {"epochs": 1, "precision": "float32", "optim": {"batch_size": 8}, "data": source | changes}
    section, _, name = key.partition(".")
    model = {} if section == "start" else {"model": dict(tiny_recipe().model.model_dump(exclude_unset=True))}
    recipe = make_recipe(fields | model | {section: {name: str(tmp_path / "run" / within)}}, "test")
    caplog.clear()
    if refused:
        begin = fit if "fold" in changes else fit_folds
        with pytest.raises(ValueError, match=rf"{within} learnt from .*photos, of which folds are to be held out: "):
            begin(recipe, out=tmp_path / "more", **quiet())
        assert not (tmp_path / "more").exists()
    else:
        fit(recipe, out=tmp_path / "more", **quiet())
        told = "some validation images are among what it saw" in caplog.text
        assert told == bool(same_way) and (f"the same way: {same_way})" in caplog.text) == told
        assert not told or "validation images are among those that" not in caplog.text  # once is enough
        log = tmp_path / "more" / "train.log"
        assert told == (log.exists() and "some validation images are among what it saw" in log.read_text())


def test_validation_images_that_the_set_brings_are_none_that_the_weights_saw(tmp_path, caplog):
    for seed, split in enumerate(("train", "val")):
        write_images(tmp_path / "photos" / split, 8, seed=seed)
    source = {"source": str(tmp_path / "photos")}
    fit(tiny_recipe(epochs=1, data=source), out=tmp_path / "run", **quiet())
    fields = {"epochs": 1, "precision": "float32", "optim": {"batch_size": 8}, "data": source | {"split_seed": 3}}
    fit(make_recipe(fields | {"start": {"weights": str(tmp_path / "run")}}, "test"), out=tmp_path / "more", **quiet())
    assert "among what it saw" not in caplog.text


def test_images_that_the_weights_learnt_from_are_told_where_they_have_moved(tmp_path, caplog):
    photos = write_images(tmp_path / "photos", 8)
    source = {"source": str(photos), "val_fraction": 0.25}
    run = fit(tiny_recipe(epochs=1, data=source), out=tmp_path / "run", **quiet())
    learnt = Path(own_data(run.folder).train.images.describe(0))
    (photos / "test" / learnt.parent.name).mkdir(parents=True)
    moved = learnt.rename(photos / "test" / learnt.parent.name / learnt.name)
    fields = {"epochs": 1, "precision": "float32", "optim": {"batch_size": 8}, "data": source}
    fields |= {"start": {"weights": str(run.folder)}}
    caplog.clear()
    more = fit(make_recipe(fields, "test"), out=tmp_path / "more", **quiet())
    assert f"{run.folder} learnt from this data, before images came, went or moved: some validation" in caplog.text
    told = f"1 of 1 test images are among those that {run.folder} learnt from, such as {moved}: figures on them will"
    assert told in caplog.text
    caplog.clear()
    shutil.copytree(photos / "test", tmp_path / "other")
    fit(make_recipe(fields | {"start": {"weights": str(more.folder)}}, "test"), out=tmp_path / "last", **quiet())
    assert "learnt from this data" not in caplog.text and f"among those that {more.folder} learnt from" in caplog.text
    assert "the model learnt from, such as" in judge_run(tmp_path / "last", tmp_path / "other", device="cpu").caution


def test_folds_of_what_the_weights_learnt_from_are_refused_behind_a_link(tmp_path):
    photos = write_images(tmp_path / "photos", 8)
    run = fit(tiny_recipe(epochs=1, data={"source": str(photos)}), out=tmp_path / "run", **quiet())
    photos.symlink_to(photos.rename(tmp_path / "moved"))
    fields = {"epochs": 1, "data": {"source": str(photos), "folds": 2}, "start": {"weights": str(run.folder)}}
    with pytest.raises(ValueError, match=r"learnt from .*photos, of which folds are to be held out: "):
        fit_folds(make_recipe(fields, "test"), out=tmp_path / "more", **quiet())


def test_a_cross_validation_gives_no_weights_to_start_from(tmp_path):
    source = {"source": str(write_images(tmp_path / "photos", 8))}
    fit_folds(folds_recipe(2, data=source), out=tmp_path / "cv", **quiet())
    fields = {"epochs": 1, "data": source, "start": {"weights": str(tmp_path / "cv")}}
    for begin, more in ((fit, {}), (fit_folds, {"folds": 2})):
        with pytest.raises(ValueError, match=r"cv is a cross-validation, .* name one of its folds, such as .*fold-1$"):
            begin(make_recipe(fields | {"data": source | more}, "test"), out=tmp_path / "more", **quiet())


@pytest.mark.parametrize(("column", "told"), [("label", False), ("other", True)])
def test_other_labels_of_the_same_images_hold_out_others(tmp_path, caplog, column, told):
    folder = write_images(tmp_path / "photos", 8)
    files = sorted(folder.glob("*/*"))
    rows = [f"{file.relative_to(folder)},{file.parent.name},{'ab'[i % 2]}" for i, file in enumerate(files)]
    table = folder / "photos.csv"
    table.write_text("\n".join(["file,label,other", *rows]) + "\n")
    fit(tiny_recipe(epochs=1, data={"source": str(table), "val_fraction": 0.25}), out=tmp_path / "run", **quiet())
    caplog.clear()
    fields = {"epochs": 1, "precision": "float32", "optim": {"batch_size": 8}}
    data = {"source": f"{table}:{column}", "val_fraction": 0.25}
    recipe = make_recipe(fields | {"data": data, "start": {"weights": str(tmp_path / "run")}}, "test")
    fit(recipe, out=tmp_path / "more", **quiet())
    sentence = "some validation images are among what it saw, so that their figures will be too good\n"
    assert (sentence in caplog.text) is told


def test_a_class_smaller_than_the_folds_is_named():
    pixels, labels = stripes(11)
    with pytest.raises(ValueError, match="class '2' has 3 training images, fewer than 4 folds: use at most 3 folds"):
        ImageSet.from_arrays(pixels, labels).with_fold(1, 4)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"folds": 1}, "greater than or equal to 2"),
        ({"folds": 3, "fold": 4}, "data.fold is 4, but data.folds is 3: choose 1 to 3"),
        ({"fold": 1}, "data.fold is 1, but data.folds is not given: give data.folds too"),
    ],
)
def test_bad_folds_are_refused(data, reason):
    with pytest.raises(ValueError, match=reason):
        make_recipe({"data": data}, "test")


def test_a_single_run_asks_which_fold(tmp_path):
    with pytest.raises(ValueError, match=r"data\.folds=3 asks for 3 runs: use `vitreous train --folds`"):
        fit(folds_recipe(), tiny_set(), out=tmp_path / "run", **quiet())


def test_the_results_are_those_of_the_folds(finished):
    results = json.loads((finished.folder / "results.json").read_text())
    assert results == finished.results and results["n"] == results["folds"] == 3 and results["count"] == [16] * 3
    runs = [json.loads((finished.folder / f"fold-{fold}" / "results.json").read_text()) for fold in (1, 2, 3)]
    for key in ("top1", "loss", "f1_macro"):
        values = [run["test"][key] for run in runs]
        assert results[key] == values
        assert results[f"{key}_mean"] == statistics.mean(values) and results[f"{key}_sd"] == statistics.stdev(values)
    assert "top5" not in results  # of three classes


def test_every_image_has_the_answer_of_a_model_that_had_not_seen_it(finished):
    rows = csv_rows(finished.folder / "answers.csv")
    assert sorted(row["image"] for row in rows) == sorted(f"row {row}" for row in range(48))
    for fold, top1 in enumerate(finished.results["top1"], start=1):
        own = [row for row in rows if row["fold"] == str(fold)]
        assert len(own) == 16 and sum(row["answer"] == row["class"] for row in own) / 16 == top1
    counted = [
        (row["split"], row["class"], row["images"], row["right"]) for row in csv_rows(finished.folder / "classes.csv")
    ]
    right = [sum(row["class"] == row["answer"] == name for row in rows) for name in CLASSES]
    assert counted == [("test", name, "16", str(hits)) for name, hits in zip(CLASSES, right, strict=True)]
    labels = tiny_set().train.labels
    assert all(row["class"] == CLASSES[labels[int(row["image"].removeprefix("row "))]] for row in rows)
    assert not (finished.folder / "confusion.png").exists()  # nor other pictures


def test_the_answers_of_all_folds_are_counted_in_a_picture(finished, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(
        plots, "confusion_matrix", lambda *given: drawn.append((*given, (folder / "results.json").exists()))
    )
    folder = shutil.copytree(finished.folder, tmp_path / "cv")
    (folder / "results.json").unlink()
    fit_folds(folds_recipe(), tiny_set(), out=folder, resume=True, **quiet(pictures=True))
    ((counts, names, path, finished_before),) = drawn
    assert not finished_before  # else one that is stopped while it draws could not go on
    assert counts.sum(axis=1).tolist() == [16] * 3 and names == CLASSES and path == folder / "confusion.png"
    assert counts.trace() / 48 == pytest.approx(finished.results["top1_mean"])
    own = [(finished.folder / f"fold-{k}" / "answers.csv").read_text().splitlines()[1:] for k in (1, 2, 3)]
    expected = [f"{k},{line}" for k, lines in enumerate(own, start=1) for line in lines if line.startswith("test,")]
    assert (folder / "answers.csv").read_text().splitlines()[1:] == expected


def test_a_fold_is_a_run_like_any_other(finished, tmp_path):
    """Trained again by the recipe in its folder, it is the same."""
    own = finished.folder / "fold-2"
    again = fit(read_recipe(str(own / "recipe.yaml")), tiny_set(), out=tmp_path / "again", **quiet())
    assert untimed(again.results) == untimed(json.loads((own / "results.json").read_text()))


def test_a_fold_is_judged_again_on_the_part_held_out(tmp_path):
    write_images(tmp_path / "photos", 8)
    source = {"source": str(tmp_path / "photos"), "folds": 2, "val_fraction": 0.25}
    done = fit_folds(folds_recipe(data=source), out=tmp_path / "cv", **quiet())
    again = evaluate(done.folder / "fold-2", device="cpu")
    assert again["count"] == 12 and again["top1"] == done.results["top1"][1]


def test_the_sets_own_test_images_are_not_opened(sealed, tmp_path):
    done = fit_folds(folds_recipe(2), sealed, out=tmp_path / "cv", **quiet(pictures=True))
    assert Sealed.looks == 0 and done.results["count"] == [24, 24] and (done.folder / "report.html").exists()


def test_another_seed_repeats_it_with_other_parts_unless_they_are_given(tmp_path):
    def split_seed(name, **changes):
        fit_folds(folds_recipe(2, seed=5, **changes), tiny_set(), out=tmp_path / name, **quiet())
        return read_recipe(str(tmp_path / name / "fold-1" / "recipe.yaml")).data.split_seed

    assert split_seed("a") == 5 and split_seed("b", data={"split_seed": 2}) == 2


def test_an_interrupted_cross_validation_goes_on_and_gives_the_same(finished, tmp_path, monkeypatch):
    out, steps = tmp_path / "cv", []

    def interrupt(state, _):
        steps.append(state.step)
        if len(steps) == 5:  # in the second fold, of three steps each
            os.kill(os.getpid(), signal.SIGINT)

    text = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        whole = Job.train
        patch.setattr(Job, "train", lambda self, _, on_epoch: whole(self, interrupt, on_epoch))
        stopped = fit_folds(folds_recipe(), tiny_set(), out=out, **quiet(console=Console(file=text)))
    ways = [
        f"{call}(vt.read_recipe('{folder}/recipe.yaml'), data, out='{folder}', device='cpu', resume=True)\n"
        for call, folder in (("vt.fit", out / "fold-2"), ("fit_folds", out))
    ]
    assert stopped.results is None and all(way in text.getvalue() for way in ways)
    assert "finish=True" not in text.getvalue()  # no epoch is over
    assert sorted(path.name for path in out.iterdir()) == ["fold-1", "fold-2", "recipe.yaml"]
    before = (out / "fold-1" / "results.json").stat().st_mtime_ns
    done = fit_folds(read_recipe(str(out / "recipe.yaml")), tiny_set(), out=out, resume=True, **quiet())
    assert untimed(done.results) == untimed(finished.results)
    assert (out / "fold-1" / "results.json").stat().st_mtime_ns == before


def test_it_is_not_resumed_as_a_single_run(finished, tmp_path):
    out = shutil.copytree(finished.folder, tmp_path / "cv")
    (out / "results.json").unlink()
    before = (out / "recipe.yaml").read_bytes()
    with pytest.raises(ValueError, match=r"cv is a cross-validation: go on with it by --folds, or name one of its"):
        fit(tiny_recipe(), tiny_set(), out=out, resume=True, **quiet())
    assert (out / "recipe.yaml").read_bytes() == before and not (out / "model").exists()


def test_a_single_run_is_not_resumed_as_one(tmp_path):
    stop = {"on_step": lambda state, loss: os.kill(os.getpid(), signal.SIGINT)}
    run = fit(tiny_recipe(), tiny_set(), out=tmp_path / "run", **stop, **quiet())
    before = (run.folder / "recipe.yaml").read_bytes()
    with pytest.raises(ValueError, match=r"run is a single run: go on with it without folds, or give another folder$"):
        fit_folds(folds_recipe(), tiny_set(), out=run.folder, resume=True, **quiet())
    assert (run.folder / "recipe.yaml").read_bytes() == before and not (run.folder / "fold-1").exists()


def test_it_is_resumed_by_its_own_recipe_only(finished, tmp_path):
    out = tmp_path / "cv"
    shutil.copytree(finished.folder, out)
    with pytest.raises(ValueError, match="is finished: start another one"):
        fit_folds(folds_recipe(), tiny_set(), out=out, resume=True, **quiet())
    (out / "results.json").unlink()
    with pytest.raises(ValueError, match=r"was started with data\.folds=3, not 4"):
        fit_folds(folds_recipe(4), tiny_set(), out=out, resume=True, **quiet())


def test_one_that_fails_at_its_start_is_in_nobodys_way(tmp_path):
    data = load(write_images(tmp_path / "photos", 12))
    (tmp_path / "photos" / "ant" / "bad.png").write_text("no picture")
    for _ in range(2):
        with pytest.raises(ValueError, match=r"ant/bad\.png: not a JPEG, PNG"):
            fit_folds(folds_recipe(2), load(tmp_path / "photos"), out=tmp_path / "cv", **quiet())
        assert not (tmp_path / "cv").exists()
    assert fit_folds(folds_recipe(2), data, out=tmp_path / "cv", **quiet()).results["folds"] == 2


def test_before_a_fold_has_saved_anything_the_recipe_may_change(tmp_path):
    def fail(*_):
        raise MemoryError

    with pytest.raises(MemoryError):
        fit_folds(folds_recipe(2), tiny_set(), out=tmp_path / "cv", on_step=fail, **quiet())
    smaller = folds_recipe(2, optim={"batch_size": 4})
    assert fit_folds(smaller, tiny_set(), out=tmp_path / "cv", resume=True, **quiet()).results["folds"] == 2
    assert read_recipe(tmp_path / "cv" / "recipe.yaml").optim.batch_size == 4


def test_it_is_resumed_with_the_same_images_only(finished, tmp_path):
    out = tmp_path / "cv"
    shutil.copytree(finished.folder, out)
    (out / "results.json").unlink()
    with pytest.raises(
        ValueError, match=rf"^the data is not what {out / 'fold-1'} was trained on: resume with the same"
    ):
        fit_folds(folds_recipe(), tiny_set(count=51), out=out, resume=True, **quiet())


def test_a_finished_fold_is_not_judged_on_images_that_it_learnt_from(finished, tmp_path):
    out = tmp_path / "cv"
    shutil.copytree(finished.folder, out)
    (out / "results.json").unlink()
    data = tiny_set()
    same_class = np.flatnonzero(data.train.labels == 0)
    order = np.arange(len(data.train))
    order[same_class] = np.roll(same_class, 5)  # as many of each class
    other = ImageSet.from_arrays(data.train.images.array[order], data.train.labels, class_names=data.class_names)
    with pytest.raises(ValueError, match=rf"^the data is not what {out / 'fold-1'} was trained on"):
        fit_folds(folds_recipe(), other, out=out, resume=True, **quiet())
    assert fit_folds(folds_recipe(), data, out=out, resume=True, **quiet()).results["pooled"]


def test_folds_of_other_images_than_the_recipe_names_do_not_claim_them(tmp_path):
    recipe = folds_recipe(2, data={"source": "digits"})
    done = fit_folds(recipe, tiny_set(), out=tmp_path / "cv", **quiet())
    assert read_recipe(str(done.folder / "recipe.yaml")).data.source is None


def test_the_number_of_folds_must_be_given(tmp_path):
    with pytest.raises(ValueError, match=r"^data\.folds is not given: say how many parts"):
        fit_folds(tiny_recipe(), tiny_set(), out=tmp_path / "cv", **quiet())


def test_a_single_fold_is_that_of_the_whole_cross_validation(tmp_path):
    fit_folds(folds_recipe(2, seed=5), tiny_set(), out=tmp_path / "cv", **quiet())
    fit(folds_recipe(2, seed=5, data={"fold": 2}), tiny_set(), out=tmp_path / "alone", **quiet())
    whole, single = (json.loads((tmp_path / name / "data.json").read_text()) for name in ("cv/fold-2", "alone"))
    assert single["hash"] == whole["hash"]


def test_a_dry_run_tries_the_first_fold_and_leaves_the_folder_free(tmp_path):
    text = io.StringIO()
    fit_folds(folds_recipe(), tiny_set(), out=tmp_path / "cv", dry_run=True, **quiet(console=Console(file=text)))
    assert "the first of 3 folds" in text.getvalue() and "data.fold=1" in text.getvalue()
    assert fit_folds(folds_recipe(), tiny_set(), out=tmp_path / "cv", **quiet()).results["n"] == 3


def test_two_cross_validations_do_not_share_a_folder(tmp_path):
    with alone(tmp_path / "cv"), pytest.raises(ValueError, match=f"^another process trains into {tmp_path / 'cv'}: "):
        fit_folds(folds_recipe(), tiny_set(), out=tmp_path / "cv", **quiet())


def test_folds_of_a_set_whose_broken_files_are_left_out_go_on(tmp_path):
    write_images(tmp_path / "photos", 12)
    (tmp_path / "photos" / "bee" / "bad.png").write_text("no picture")
    photos = load(tmp_path / "photos", skip_broken=True)
    fit_folds(folds_recipe(folds=2), photos, out=tmp_path / "cv", **quiet())
    (tmp_path / "cv" / "results.json").unlink()
    assert fit_folds(folds_recipe(folds=2), photos, out=tmp_path / "cv", resume=True, **quiet()).results["n"] == 2


def test_folds_start_from_trained_weights_and_go_on(tmp_path):
    tiny_bundle(seed=1, classes=("x", "y"), depth=2).save(tmp_path / "source" / "model")
    fields = {"epochs": 1, "precision": "float32", "start": {"weights": str(tmp_path / "source")}}
    fields |= {"data": {"val_fraction": 0.25, "folds": 2}, "optim": {"batch_size": 8, "learning_rate": 1e-60}}
    out = tmp_path / "cv"
    fit_folds(make_recipe(fields, "test"), tiny_set(), out=out, **quiet())
    for fold in (1, 2):
        own = out / f"fold-{fold}"
        assert json.loads((own / "results.json").read_text())["start"]["new_head"]
        for name in ("positions", "patches.proj.weight", "blocks.1.mlp.fc1.weight"):
            assert equal(weights_of(own)[name], weights_of(tmp_path / "source")[name])
    (out / "results.json").unlink()
    again = read_recipe(str(out / "recipe.yaml"))
    assert fit_folds(again, tiny_set(), out=out, resume=True, **quiet()).results["n"] == 2
    (out / "results.json").unlink()
    shutil.rmtree(out / "fold-2")
    (tmp_path / "source").rename(tmp_path / "moved")
    moved = again.with_options("start", weights=str(tmp_path / "moved"))
    assert fit_folds(moved, tiny_set(), out=out, resume=True, **quiet()).results["n"] == 2
    (out / "results.json").unlink()
    tiny_bundle(seed=2, classes=("x", "y"), depth=2).save(tmp_path / "moved" / "model")
    with pytest.raises(ValueError, match=rf"moved, and {out / 'fold-1'} had another: set it as it was$"):
        fit_folds(moved, tiny_set(), out=out, resume=True, **quiet())


def test_folds_go_on_with_the_teacher_that_they_had(tmp_path):
    tiny_bundle(seed=1).save(tmp_path / "teacher")
    recipe, out = folds_recipe(folds=2, distill={"teacher": str(tmp_path / "teacher")}), tmp_path / "cv"
    fit_folds(recipe, tiny_set(), out=out, **quiet())
    (out / "results.json").unlink()
    tiny_bundle(seed=2).save(tmp_path / "teacher")
    with pytest.raises(ValueError, match=rf"teacher, and {out / 'fold-1'} had another: set it as it was$"):
        fit_folds(recipe, tiny_set(), out=out, resume=True, **quiet())


@pytest.mark.parametrize("taught", [False, True])
def test_folds_without_a_teacher_are_not_put_beside_folds_with_one(tmp_path, taught):
    place, out = str(tmp_path / "teacher"), tmp_path / "cv"
    tiny_bundle(seed=1).save(place)
    recipes = folds_recipe(folds=2), folds_recipe(folds=2, distill={"teacher": place})

    def stop(row):
        os.kill(os.getpid(), signal.SIGINT)

    assert fit_folds(recipes[taught], tiny_set(), out=out, on_epoch=stop, **quiet()).results is None  # after fold 1
    now, had = ("null", "another") if taught else (place, "none")
    told = f"distill.teacher is {now}, and {out / 'fold-1'} had {had}: set it as it was"
    with pytest.raises(ValueError, match=f"^{re.escape(told)}$"):
        fit_folds(recipes[not taught], tiny_set(), out=out, resume=True, **quiet())
    kept = read_recipe(str(out / "recipe.yaml"))
    assert fit_folds(kept, tiny_set(), out=out, resume=True, **quiet()).results["n"] == 2


def test_a_dry_run_of_one_to_go_on_with_changes_nothing(finished, tmp_path):
    out, text = tmp_path / "cv", io.StringIO()
    shutil.copytree(finished.folder, out)
    (out / "results.json").unlink()
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    options = {"out": out, "dry_run": True} | quiet(console=Console(file=text))
    assert fit_folds(folds_recipe(), tiny_set(), resume=True, **options).results is None
    assert "the first of 3 folds" in text.getvalue()
    with pytest.raises(ValueError, match="already holds a run"):
        fit_folds(folds_recipe(), tiny_set(), **options)
    assert before == {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}


def test_ctrl_c_in_the_last_epoch_of_a_fold_begins_no_other(finished, tmp_path, monkeypatch):
    whole = Job.train

    def press_at_the_end(self, on_step, on_epoch):
        return whole(self, on_step, lambda row: os.kill(os.getpid(), signal.SIGINT))

    monkeypatch.setattr(Job, "train", press_at_the_end)
    folder, said = tmp_path / "cv", io.StringIO()
    run = fit_folds(folds_recipe(), tiny_set(), out=folder, **quiet(console=Console(file=said, width=200)))
    assert run.results is None and "go on with this and the other folds with: " in said.getvalue()
    assert (folder / "fold-1" / "results.json").exists() and not (folder / "fold-2").exists()
    monkeypatch.undo()
    assert untimed(fit_folds(folds_recipe(), tiny_set(), out=folder, resume=True, **quiet()).results) == untimed(
        finished.results
    )


def test_a_cross_validation_is_not_resumed_with_other_classes(finished, tmp_path):
    shutil.copytree(finished.folder, tmp_path / "cv")
    (tmp_path / "cv" / "results.json").unlink()
    more = ImageSet.from_arrays(*stripes(48, classes=4))
    with pytest.raises(
        ValueError, match="fold-1 was trained on, whose 3 classes are ant, bee, cat: resume with the sa"
    ):
        fit_folds(folds_recipe(), more, out=tmp_path / "cv", resume=True, **quiet())


def test_copies_in_other_folds_are_told_beside_the_results(tmp_path):
    pixels, labels = (np.concatenate([part, part]) for part in stripes(24))
    data = ImageSet.from_arrays(pixels, labels, class_names=CLASSES, name="stripes")
    run = fit_folds(folds_recipe(), data, out=tmp_path / "cv", **quiet(pictures=True))
    cautions = run.results["cautions"]
    assert [caution.partition(":")[0] for caution in cautions] == ["Fold 1", "Fold 2", "Fold 3"]
    page = (run.folder / "report.html").read_text()
    assert all("test images are also in train, such as " in caution and caution in page for caution in cautions)
    assert read_run(run.folder).caution == "; ".join(cautions)


def test_each_fold_calls_back(tmp_path):
    epochs, steps = [], []
    calls = {"on_epoch": lambda row: epochs.append(row["epoch"]), "on_step": lambda state, _: steps.append(state.step)}
    fit_folds(folds_recipe(), tiny_set(), out=tmp_path / "cv", **quiet(), **calls)
    assert epochs == [1, 1, 1] and steps.count(1) == 3
