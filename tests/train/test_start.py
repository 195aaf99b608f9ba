"""Training from weights: whose they are, what of them is kept, and how their images are prepared."""

import hashlib
import io
import itertools
import json
import os
import signal
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file
from tiny import CLASSES, equal, metrics_rows, stripes, tiny_bundle, tiny_recipe, tiny_set, weights_of, write_images

from vitreous.card import untested, write_shared
from vitreous.cli.asked import asked_model
from vitreous.data.images import ImageSet
from vitreous.embedding import load_features
from vitreous.export.checkpoints import write_timm
from vitreous.model.positions import resample_positions
from vitreous.recipe import make_recipe, read_recipe
from vitreous.train import choose, job, loop
from vitreous.train import state as state_module
from vitreous.train.choose import choose_recipe, start_settings
from vitreous.train.job import Job
from vitreous.train.run import fit
from vitreous.train.start import check_start, load_start
from vitreous.weights import Bundle, from_timm

OTHERS = ("x", "y", "z", "w")
STILL = {"learning_rate": 1e-60, "batch_size": 8}  # no weight moves


@pytest.fixture
def source(tmp_path):
    """A bundle of four other classes, two blocks, and preprocessing that no measuring of the stripes would give."""
    bundle = tiny_bundle(seed=3, classes=OTHERS, depth=2, drop_path=0.1)
    bundle = Bundle(bundle.model, bundle.preprocess.model_copy(update={"fit": "squash"}), OTHERS)
    bundle.save(tmp_path / "source")
    return tmp_path / "source"


@pytest.fixture
def started(tmp_path, source):
    """`fit` from the source into tmp_path/<name>, with what it prints in `said`."""

    def run(name="run", data=None, on_step=None, resume=False, weights=source, probe=False, first=False, **changes):
        fields = {"epochs": 1, "precision": "float32", "data": {"val_fraction": 0.25}, "optim": {"batch_size": 8}}
        start = {"weights": str(weights), "probe": probe, "probe_first": first}
        recipe = make_recipe(fields | {"start": start} | changes, "test")
        run.said = io.StringIO()
        options = {"console": Console(file=run.said, width=200), "pictures": False}
        data = tiny_set() if data is None else data
        return fit(recipe, data, out=tmp_path / name, on_step=on_step, resume=resume, **options)

    return run


def changed(run, source):
    """Names of the weights that are not the source's."""
    before, after = load_file(source / "model.safetensors"), weights_of(run.folder)
    assert before.keys() == after.keys()
    return sorted(name for name in before if not equal(before[name], after[name]))


def test_training_starts_at_the_weights_with_a_new_head(started, source):
    run = started(optim=STILL)
    assert changed(run, source) == ["head.bias", "head.weight"]
    assert weights_of(run.folder)["head.weight"].shape == (3, 16)
    assert run.results["val"]["loss"] == pytest.approx(torch.tensor(3.0).log().item(), abs=1e-5)  # it answers 0
    assert "new head, whose logits all start at 0" in started.said.getvalue()
    assert run.bundle.model.config.depth == 2 and run.bundle.class_names == CLASSES


def test_all_weights_are_trained(started, source):
    assert changed(started(), source) == sorted(load_file(source / "model.safetensors"))


def test_a_head_with_a_hidden_layer_is_new_and_follows_the_seed(tmp_path):
    tiny_bundle().save(tmp_path / "own")

    def hidden(seed, callers):
        torch.manual_seed(callers)
        fields = {"epochs": 1, "seed": seed, "start": {"weights": str(tmp_path / "own")}, "model": {"head_hidden": 4}}
        start = load_start(make_recipe(fields, "test"), CLASSES)
        assert start.model.config.head_hidden == 4 and start.facts["new_head"]
        return next(w for name, w in start.model.named_parameters() if name.startswith("head") and w.shape[0] == 4)

    assert torch.equal(hidden(0, 1), hidden(0, 2)) and not torch.equal(hidden(0, 1), hidden(3, 1))


def test_a_head_is_kept_for_a_class_whose_accent_is_a_character_of_its_own(tmp_path):
    tiny_bundle(classes=("ant", "bee", "cafe\u0301")).save(tmp_path / "own")
    recipe = make_recipe({"epochs": 1, "start": {"weights": str(tmp_path / "own")}}, "test")
    for last, new in (("caf\u00e9", False), ("cafe", True)):
        assert load_start(recipe, ("ant", "bee", last)).facts["new_head"] is new


def test_a_head_of_the_same_classes_is_kept_and_one_of_others_is_not(started, tmp_path):
    for names in (CLASSES, ("x", "y", "z")):
        bundle = tiny_bundle(seed=1, classes=names, head_hidden=4)
        bundle.save(tmp_path / names[0])
        run = started(f"run-{names[0]}", weights=tmp_path / names[0], optim=STILL)
        kept = names == CLASSES
        assert run.results["start"]["new_head"] is not kept and run.bundle.model.config.head_hidden == 4 * kept
        if kept:
            assert changed(run, tmp_path / names[0]) == []
        else:
            assert "new head in place of that for x, y, z\n" in started.said.getvalue()
            assert not weights_of(run.folder)["head.weight"].any()


@pytest.mark.parametrize("named", [True, False])
def test_a_head_whose_classes_are_only_numbered_is_not_taken_for_one_of_digits(started, tmp_path, named):
    numbers = ("0", "1", "2")
    write_timm(tiny_bundle(seed=1, classes=numbers), tmp_path)
    if not named:
        config = json.loads((tmp_path / "config.json").read_text())
        del config["label_names"]
        (tmp_path / "config.json").write_text(json.dumps(config))
    data = replace(tiny_set(), class_names=numbers)
    assert started(data=data, weights=tmp_path, optim=STILL).results["start"]["new_head"] is not named


def test_the_preprocessing_of_the_weights_is_used_and_kept(started, source):
    theirs = Bundle.load(source).preprocess
    run = started()
    assert run.bundle.preprocess == theirs and run.bundle.preprocess.fit == "squash"
    assert "fit: squash" in (run.folder / "recipe.yaml").read_text()


def test_bare_weights_start_where_their_architecture_is_given(tmp_path, monkeypatch):
    bundle, file = tiny_bundle(seed=1), tmp_path / "bare.safetensors"
    save_file(from_timm.to_theirs(bundle.model.state_dict(), bundle.model.config), file)
    size = {"embed_dim": 16, "depth": 1, "num_heads": 2, "in_chans": 1}
    monkeypatch.setitem(from_timm.ARCHITECTURES, "vit_mini", (size, 4, 8, 1.0, {"mean": (0.4,), "std": (0.2,)}))
    start = load_start(make_recipe({"start": {"weights": str(file), "arch": "vit_mini"}}, "test"), CLASSES)
    models = [start.model, asked_model(str(file), "vit_mini", None).model]
    models.append(load_features(file, "vit_mini").model)
    for model in models:
        assert torch.equal(model.blocks[0].mlp.fc1.weight, bundle.model.blocks[0].mlp.fc1.weight)


def test_gray_images_reach_a_model_of_colour(started, tmp_path):
    tiny_bundle(channels=3).save(tmp_path / "rgb")
    run = started(weights=tmp_path / "rgb")
    assert run.bundle.preprocess.channels == 3 and run.results["test"]["count"] == 12


def test_colour_that_a_model_of_gray_does_not_see_is_told(started):
    told = "these weights read gray images: colours are not seen\n"
    for channels in (1, 3):
        started(str(channels), data=tiny_set(channels=channels))
        assert (told in started.said.getvalue()) is (channels == 3)


def test_a_larger_image_size_resamples_the_positions(started, source):
    run = started(optim=STILL, model={"image_size": 16})
    old, new = load_file(source / "model.safetensors")["positions"], weights_of(run.folder)["positions"]
    assert run.bundle.preprocess.image_size == (16, 16) and new.shape == (1, 17, 16)
    assert torch.equal(new[:, :1], old[:, :1])
    torch.testing.assert_close(new[:, 1:], resample_positions(old[:, 1:], (4, 4), (2, 2)), rtol=0, atol=1e-6)
    assert "positions resampled from a grid of 2 x 2 to 4 x 4" in started.said.getvalue()


def test_an_image_size_is_checked_with_the_patches_of_the_weights(started, tmp_path):
    tiny_bundle(image_size=9, patch_size=3).save(tmp_path / "nine")
    assert started(weights=tmp_path / "nine", model={"image_size": 15}).bundle.model.config.grid == (5, 5)
    with pytest.raises(ValueError, match="image size 16 is not divisible by patch size 3: use 15 or 18"):
        started("b", weights=tmp_path / "nine", model={"image_size": 16})


def test_dropout_may_change_and_the_architecture_may_not(started):
    assert started(model={"drop_path": 0.3, "depth": 2}).bundle.model.config.drop_path == 0.3
    assert started("b").bundle.model.config.drop_path == 0.1
    with pytest.raises(ValueError, match=r"model.depth is 3, but that of .*source is 2: leave it out"):
        started("c", model={"depth": 3})
    with pytest.raises(ValueError, match=r"model.num_classes is 4 but the data has 3 classes"):
        started("d", model={"num_classes": 4})


def test_a_new_head_may_read_the_mean_of_the_patches_too(started, tmp_path):
    tiny_bundle(seed=1).save(tmp_path / "own")
    run = started(weights=tmp_path / "own", optim=STILL, model={"pool": "cls_mean"})
    assert changed(run, tmp_path / "own") == ["head.weight"] and run.results["start"]["new_head"]  # its bias was 0
    assert weights_of(run.folder)["head.weight"].shape == (3, 32) and not weights_of(run.folder)["head.weight"].any()
    probed = started("probed", weights=tmp_path / "own", probe=True, model={"pool": "cls_mean"})
    assert changed(probed, tmp_path / "own") == ["head.bias", "head.weight"]
    assert weights_of(probed.folder)["head.weight"].shape == (3, 32)
    with pytest.raises(ValueError, match=r"model.pool is mean, but that of .*own is cls: leave it out"):
        started("mean", weights=tmp_path / "own", model={"pool": "mean"})


def test_a_run_says_what_it_started_from(started, source):
    run = started()
    digest = hashlib.sha256((source / "model.safetensors").read_bytes()).hexdigest()
    expected = {"weights": str(source), "arch": None, "revision": None, "names": "Vitreous", "sha256": digest}
    assert json.loads((run.folder / "results.json").read_text())["start"] == expected | {"new_head": True}
    assert read_recipe(str(run.folder / "recipe.yaml")).start.weights == str(source)


def test_an_interrupted_run_goes_on_bit_for_bit(started, source, tmp_path):
    def stop(state, _):
        if (state.epoch, state.step) == (1, 2):
            os.kill(os.getpid(), signal.SIGINT)

    options = {"epochs": 2, "optim": {"batch_size": 8, "layer_decay": 0.5, "freeze": 1}, "model": {"image_size": 16}}
    whole = started("whole", **options)
    assert started("cut", on_step=stop, **options).results is None
    recipe = read_recipe(str(tmp_path / "cut" / "recipe.yaml"))  # as --resume reads it
    fit(recipe, tiny_set(), out=tmp_path / "cut", resume=True, pictures=False, console=Console(file=io.StringIO()))
    assert equal(weights_of(tmp_path / "cut"), weights_of(whole.folder))


def test_a_run_does_not_go_on_from_other_weights(started, source):
    started("cut", on_step=lambda *_: os.kill(os.getpid(), signal.SIGINT))
    weights = load_file(source / "model.safetensors")
    save_file({name: value + 1 for name, value in weights.items()}, source / "model.safetensors")
    with pytest.raises(ValueError, match=r"source is not what .*cut started from: name the weights it had"):
        started("cut", resume=True, data=tiny_set())


def test_a_run_goes_on_where_its_weights_have_moved_and_not_without_them(started, source, tmp_path):
    started("cut", on_step=lambda *_: os.kill(os.getpid(), signal.SIGINT))
    recipe = read_recipe(str(tmp_path / "cut" / "recipe.yaml"))
    moved = source.rename(tmp_path / "moved")
    again = {"out": tmp_path / "cut", "resume": True, "pictures": False, "console": Console(file=io.StringIO())}
    with pytest.raises(ValueError, match=r"^no model '.*source' here"):
        fit(recipe, tiny_set(), **again)
    with pytest.raises(
        ValueError, match=r"^start.weights None is not what .*cut started from: name the weights it had"
    ):
        fit(recipe.with_options("start", weights=None), tiny_set(), **again)
    run = fit(recipe.with_options("start", weights=str(moved)), tiny_set(), **again)
    assert run.results["start"]["weights"] == str(moved)
    assert read_recipe(str(tmp_path / "cut" / "recipe.yaml")).start.weights == str(moved)


def test_frozen_blocks_and_the_embedding_stay_and_the_rest_learns(started, source):
    run = started(optim={"batch_size": 8, "freeze": 1, "weight_decay": 0.5}, epochs=2)
    names = load_file(source / "model.safetensors")
    frozen = {n for n in names if n.startswith(("patches.", "blocks.0.")) or n in ("class_token", "positions")}
    assert len(frozen) == 16 and changed(run, source) == sorted(names.keys() - frozen)
    with pytest.raises(ValueError, match="cannot freeze 3 blocks of a model of 2: use 2"):
        started("b", optim={"freeze": 3})


# --- a probe ---


def test_a_probe_learns_a_head_and_leaves_the_rest(started, source, tmp_path):
    run = started(probe=True)
    assert changed(run, source) == ["head.bias", "head.weight"]
    assert run.results["test"]["top1"] > 0.6  # by features without training, of three classes
    assert run.results["probe"]["C"] > 0 and run.results["probe"]["chosen_by"] == "5-fold cross-validation"
    (row,) = metrics_rows(run.folder)
    write_shared(run.folder, tmp_path / "shared", run.results)
    card = (tmp_path / "shared" / "README.md").read_text()
    assert "with a new head on the frozen features of source" in card
    assert "validation images, which did not choose the head." in untested(run.results)
    assert "regularisation was chosen by 5-fold cross-validation" in card and "--from path/to/source" in card
    assert not [file for file in (tmp_path / "shared").iterdir() if str(tmp_path).encode() in file.read_bytes()]
    recipe = (run.folder / "recipe.yaml").read_text()
    (run.folder / "recipe.yaml").write_text(recipe.replace("arch: null", "arch: vit_b_16"))
    write_shared(run.folder, tmp_path / "again", run.results)
    assert "--from path/to/source --arch vit_b_16\n" in (tmp_path / "again" / "README.md").read_text()
    assert read_recipe(tmp_path / "again" / "recipe.yaml").start.weights == "path/to/source"
    (run.folder / "recipe.yaml").write_text(recipe.replace(str(source), "mnist"))  # which ships, unlike a run/mnist
    write_shared(run.folder, tmp_path / "shipped", run.results)
    assert read_recipe(tmp_path / "shipped" / "recipe.yaml").start.weights == "mnist"
    assert "--from" not in (tmp_path / "shipped" / "README.md").read_text()
    assert float(row["val_loss"]) == pytest.approx(run.results["val"]["loss"], abs=1e-5)
    assert float(row["train_top1"]) > 0.6 and "learning_rate" not in row


def test_a_probe_calls_back_once(source, tmp_path):
    rows, recipe = [], read_recipe("probe", start_settings(str(source), None, None))
    quiet = {"pictures": False, "console": Console(quiet=True)}
    run = fit(recipe, tiny_set(), out=tmp_path / "run", on_epoch=rows.append, **quiet)
    assert rows == [pytest.approx(row) for row in run.history] and rows[0]["epoch"] == 1


def test_a_probe_keeps_groups_whole(source, tmp_path):
    write_images(tmp_path / "photos", 24)  # 000.png to 023.png: three groups, one of which is for validation
    options = {"source": str(tmp_path / "photos"), "group": r"(\d\d)\d\.png", "val_fraction": 1 / 3}
    start = {"weights": str(source), "probe": True}
    recipe = make_recipe({"epochs": 1, "precision": "float32", "data": options, "start": start}, "test")
    run = fit(recipe, out=tmp_path / "run", console=Console(file=io.StringIO()), pictures=False)
    assert run.results["probe"]["chosen_by"] == "2-fold cross-validation of whole groups"


def test_a_probe_replaces_a_head_of_its_own_classes(started, tmp_path):
    tiny_bundle(head_hidden=4).save(tmp_path / "own")
    run = started(probe=True, weights=tmp_path / "own")
    assert run.bundle.model.config.head_hidden == 0 and run.results["test"]["top1"] > 0.6


def test_a_dry_probe_trains_nothing(source, tmp_path):
    said = io.StringIO()
    recipe = read_recipe("probe", start_settings(str(source), None, None))
    options = {"dry_run": True, "pictures": False, "console": Console(file=said)}
    assert fit(recipe, tiny_set(), out=tmp_path / "dry", **options).results is None
    assert "s for 1 epoch of 1 step" in said.getvalue() and not (tmp_path / "dry" / "recipe.yaml").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 3}, "epochs is 3, but a probe"),
        ({"time_limit": "90s"}, "^time_limit is 90.0, but a probe"),
        ({"patience": 2}, "^patience is 2, but a probe"),
        ({"best_by": "loss"}, "best_by is loss, but a probe"),
        ({"compile": True}, "compile is True, but a probe"),
        ({"augment": {"flip": 0.5}}, "augment.flip is 0.5, but a probe"),
        ({"optim": {"learning_rate": 1.0}}, "optim.learning_rate is 1.0, but a probe"),
        ({"distill": {"teacher": "mnist"}}, "distill.teacher is mnist, but a probe"),
    ],
)
def test_a_probe_refuses_what_it_would_ignore(started, changes, message):
    with pytest.raises(ValueError, match=message):
        started(probe=True, **changes)


def test_a_probe_shows_no_image_twice(source):
    weights, sampling = (
        read_recipe("probe", [*start_settings(str(source), None, None), f"data.balance={way}"])
        for way in ("weights", "sampling")
    )
    check_start(weights, True)
    with pytest.raises(ValueError, match=r"data\.balance is sampling, but a probe"):
        check_start(sampling, True)


def test_training_may_start_from_the_head_of_a_probe(started):
    probed, tuned = started("a", probe=True), started("b", first=True, optim=STILL)
    assert equal(weights_of(probed.folder), weights_of(tuned.folder))
    assert "head fitted to the features first, by 5-fold cross-validation" in started.said.getvalue()


def test_the_time_of_fitting_the_head_first_counts(started, monkeypatch):
    clock = itertools.count(step=50)
    monkeypatch.setattr(job, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    run = started(first=True, optim=STILL, time_limit=40)
    assert 50 <= run.results["train_seconds"] < 60 and run.results["passes"] < 1


def test_fitting_the_head_first_takes_of_the_time_and_not_of_the_schedule(started, monkeypatch):
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(job, "time", clock)
    monkeypatch.setattr(state_module, "time", clock)
    rates, fit_head = [], job.fit_head

    def take(seconds):
        clock.now += seconds

    def stop_in_the_second(state, _):
        take(1)
        if state.seen == 2 * 8:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(job, "fit_head", lambda *args: take(6) or fit_head(*args))
    monkeypatch.setattr(loop, "set_rates", lambda _, factor: rates.append(factor))
    linear = {"schedule": "linear", "final_rate": 0.0, "warmup": 0.0, "batch_size": 8}
    changes = {"time_limit": 10, "epochs": 1000, "optim": linear}
    started(first=True, on_step=stop_in_the_second, **changes)
    run = started(first=True, on_step=lambda *_: take(1), resume=True, **changes)
    assert rates == pytest.approx([1, 0.75, 0.5, 0.25], abs=1e-3) and run.results["train_seconds"] == 10


def test_a_head_that_is_kept_is_not_fitted(started, tmp_path):
    tiny_bundle(seed=1, head_hidden=4).save(tmp_path / "own")
    run = started(first=True, weights=tmp_path / "own", optim=STILL)
    assert changed(run, tmp_path / "own") == [] and "head fitted" not in started.said.getvalue()


def test_a_run_from_the_head_of_a_probe_goes_on_bit_for_bit(started):
    def stop(state, _):
        if state.step == 2:
            os.kill(os.getpid(), signal.SIGINT)

    whole = started("whole", first=True)
    assert started("cut", first=True, on_step=stop).results is None
    assert equal(weights_of(started("cut", first=True, resume=True).folder), weights_of(whole.folder))


def test_a_run_that_is_killed_while_its_head_is_fitted_first_begins_anew(started, monkeypatch):
    whole = started("whole", first=True)
    with monkeypatch.context() as patch:
        patch.setattr(Job, "probe_first", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            started("cut", first=True)
    assert equal(weights_of(started("cut", first=True, resume=True).folder), weights_of(whole.folder))


def test_weights_behind_a_link_keep_their_name_and_what_lies_beside_them(started, source, tmp_path):
    (tmp_path / "blobs").mkdir()
    stored = (source / "model.safetensors").rename(tmp_path / "blobs" / "ab12")
    (source / "model.safetensors").symlink_to(stored)
    run = started(weights=source / "model.safetensors", optim=STILL)
    assert read_recipe(run.folder / "recipe.yaml").start.weights == str(source / "model.safetensors")
    assert len(changed(run, source)) == 2


def test_a_head_is_not_fitted_for_a_run_that_cannot_be_ended(tmp_path, source, monkeypatch):
    """As where a process was killed before its first checkpoint."""
    monkeypatch.setattr(Job, "probe_first", pytest.fail)
    fields = {"start": {"weights": str(source), "probe_first": True}, "data": {"val_fraction": 0.25}}
    recipe, options = make_recipe(fields, "test"), {"console": Console(quiet=True), "pictures": False}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.yaml").write_text(recipe.dump())
    with pytest.raises(ValueError, match=r"no complete epoch of the run in .* is saved"):
        fit(recipe, tiny_set(), out=tmp_path / "run", finish=True, **options)


def test_the_head_of_a_probe_is_linear(started):
    for how in ("probe", "first"):
        with pytest.raises(ValueError, match=r"model\.head_hidden is 4, but a probe's head is linear: leave it out"):
            started(how, **{how: True}, model={"head_hidden": 4})
    with pytest.raises(ValueError, match=r"start\.probe_first all after it: choose one of them"):
        started("both", probe=True, first=True)


def test_the_weights_say_how_much_of_an_image_is_read(source):
    changes = {"data": {"crop_fraction": 0.75}, "augment": {"crop_scale": (0.5, 1.0)}}
    start = load_start(make_recipe({"start": {"weights": str(source)}} | changes, "test"), CLASSES)
    assert start.lines[-1] == "images are cut as these weights read them, to 1, not by data.crop_fraction=0.75"
    assert start.recipe.data.crop_fraction == start.preprocess.crop_fraction == 1


@pytest.mark.parametrize("whiten", [True, False])
def test_whitening_beside_weights_is_said_to_do_nothing(source, whiten):
    start = load_start(make_recipe({"start": {"weights": str(source), "whiten": whiten}}, "test"), CLASSES)
    idle = "start.whiten does nothing here: the first convolution is that of these weights"
    assert (idle in start.lines) is whiten


@pytest.mark.parametrize(("data", "fit"), [({}, "squash"), ({"fit": "squash"}, "squash"), ({"fit": "crop"}, "crop")])
def test_images_are_fitted_as_the_weights_say_unless_the_recipe_does(source, data, fit):
    start = load_start(make_recipe({"start": {"weights": str(source)}, "data": data}, "test"), CLASSES)
    assert start.preprocess.fit == start.recipe.data.fit == fit
    assert ("images are fitted by crop, as data.fit says" in start.lines) is (fit == "crop")


def test_random_crops_come_from_what_the_weights_read_of_an_image(started, tmp_path, monkeypatch):
    bundle, seen, data = tiny_bundle(seed=1), [], tiny_set(side=16)
    preprocess = bundle.preprocess.model_copy(update={"crop_fraction": 0.5})
    Bundle(bundle.model, preprocess, OTHERS[:3]).save(tmp_path / "half")
    monkeypatch.setattr(loop, "augment", lambda images, *_: seen.append(images) or images)
    run = started(weights=tmp_path / "half", data=data, augment={"crop_scale": (0.5, 1.0)})
    shown = torch.cat(seen).mul(255).round().byte().numpy()
    centres = {preprocess.fit_array(image).tobytes() for image in data.train.images.array}
    assert len(shown) == 32 and {image.tobytes() for image in shown} <= centres
    assert run.bundle.preprocess == preprocess


@pytest.mark.parametrize(("data", "white"), [({}, 4095), ({"white": 255.0}, 255)])
def test_the_weights_bring_the_level_that_is_white(tmp_path, data, white):
    bundle = tiny_bundle()
    replace(bundle, preprocess=bundle.preprocess.model_copy(update={"white": 4095.0})).save(tmp_path)
    start = load_start(make_recipe({"start": {"weights": str(tmp_path)}, "data": data}, "test"), CLASSES)
    assert start.preprocess.white == start.recipe.data.white == white


@pytest.mark.parametrize("key", ["start.probe", "start.probe_first", "optim.freeze", "optim.layer_decay"])
def test_what_needs_trained_weights_is_refused_without(key):
    section, name = key.split(".")
    recipe = tiny_recipe(**{section: {name: {"freeze": 1, "layer_decay": 0.5}.get(name, True)}})
    with pytest.raises(ValueError, match=f"{key} is for trained weights: give some with --from"):
        fit(recipe, tiny_set(), console=Console(file=io.StringIO()))


# --- the choice ---


def test_weights_choose_fine_tuning_and_it_is_said(source):
    recipe, data, reason = choose_recipe("digits", None, start_settings(str(source), None, None))
    assert reason.startswith("recipe finetune, as there are weights to start from: epochs=3; --recipe probe")
    assert recipe.optim == read_recipe("finetune").optim and recipe.epochs == 3 and len(data.train) == 1437
    assert recipe.start.probe_first
    assert recipe.optim.layer_decay < 1 and recipe.start.weights == str(source)


@pytest.mark.parametrize(("count", "epochs"), [(10, 30), (100, 10), (250, 4), (2000, 3)])
def test_the_fewer_the_images_the_more_epochs_tune(source, monkeypatch, count, epochs):
    few = ImageSet.from_arrays(np.zeros((count, 8, 8), np.uint8), np.arange(count) % 2)
    monkeypatch.setattr(choose, "load", lambda _: few)
    recipe, *_ = choose_recipe("photos", None, start_settings(str(source), None, None))
    assert recipe.epochs == epochs


def test_a_head_is_not_fitted_first_to_many_images(source, monkeypatch):
    monkeypatch.setattr(choose, "PROBED", 1436)
    recipe, _, reason = choose_recipe("digits", None, start_settings(str(source), None, None))
    assert "epochs=3 start.probe_first=false; --recipe" in reason and not recipe.start.probe_first


def test_a_path_is_kept_whole_and_a_name_as_it_is(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert start_settings("source", None, None, resume=True) == ['start.weights="source"', "start.revision=null"]
    assert start_settings("hf:owner/name", None, None, resume=True) == ['start.weights="hf:owner/name"']
    settings = start_settings("hf:owner/name", "deit", "0123")
    recipe, _, _ = choose_recipe("digits", "probe", settings)
    kept = {"weights": "hf:owner/name", "arch": "deit", "revision": "0123", "probe": True, "probe_first": False}
    assert recipe.start.model_dump() == kept | {"whiten": False}
    (tmp_path / "mnist").mkdir()  # of images
    (tmp_path / "📷").mkdir()
    recipe = read_recipe("probe", [*start_settings("📷", None, None), 'distill.teacher="mnist"'])
    kept, _ = choose.with_data(recipe, tiny_set())
    assert (kept.start.weights, kept.distill.teacher) == (str(tmp_path / "📷"), "mnist")
    with pytest.raises(ValueError, match="--arch deit describes the weights given by --from"):
        start_settings(None, "deit", None)


def test_bare_weights_need_their_architecture(started, source, tmp_path):
    save_file(load_file(source / "model.safetensors"), tmp_path / "bare.safetensors")
    with pytest.raises(ValueError, match=r"bare.safetensors does not say its number of heads"):
        started(weights=tmp_path / "bare.safetensors")
    assert not (tmp_path / "run").exists()


def test_a_head_in_another_order_of_classes_is_a_new_one(started, tmp_path):
    tiny_bundle(classes=CLASSES[::-1]).save(tmp_path / "turned")
    pixels, labels = stripes(24)
    data = ImageSet.from_arrays(pixels, labels, class_names=CLASSES)
    assert started(weights=tmp_path / "turned", data=data).results["start"]["new_head"] is True


def test_training_goes_on_from_a_run_whose_own_weights_had_an_architecture(started, tmp_path):
    run = started(start={"weights": str(tmp_path / "source")}, optim=STILL)
    recipe = (run.folder / "recipe.yaml").read_text()
    begun = recipe.replace("arch: null", "arch: vit_b_16").replace("revision: null", "revision: main")
    assert begun.count("vit_b_16") == begun.count(": main") == 1
    (tmp_path / "begun.yaml").write_text(begun)
    settings = start_settings(str(run.folder), None, None)
    chosen, *_ = choose_recipe(None, str(tmp_path / "begun.yaml"), [*settings, "data.source=digits"])
    assert (chosen.start.weights, chosen.start.arch, chosen.start.revision) == (str(run.folder), None, None)


def test_validation_images_that_the_weights_learnt_from_are_told_of_arrays_too(tmp_path, caplog):
    own = ImageSet.from_arrays(*stripes(48), class_names=CLASSES)
    quiet = {"console": Console(quiet=True), "pictures": False}
    fit(tiny_recipe(), own, out=tmp_path / "first", **quiet)
    caplog.clear()
    fit(read_recipe(tiny_recipe(), [f"start.weights={tmp_path / 'first'}"]), own, out=tmp_path / "same", **quiet)
    assert "learnt from" not in caplog.text
    other = read_recipe(tiny_recipe(), [f"start.weights={tmp_path / 'first'}", "data.split_seed=1"])
    fit(other, own, out=tmp_path / "other", **quiet)
    assert f"of 12 validation images are among those that {tmp_path / 'first'} learnt from" in caplog.text
    larger = load_start(read_recipe(other, ["model.image_size=16"]), CLASSES)
    assert "images are fitted otherwise than these weights' own, so copies of those cannot be found" in larger.lines
    assert not len(larger.seen) and len(load_start(other, CLASSES).seen) == 36


def test_a_recipe_for_a_set_from_python_is_chosen_like_any_other():
    own = ImageSet.from_arrays(*stripes(48, side=16), class_names=CLASSES)
    recipe, data, reason = choose_recipe(own, None, [])
    assert data is own and recipe.data.source is None
    assert reason.startswith("recipe small-images, chosen for 48 training images: epochs=300 model.patch_size=2")
    assert recipe.epochs == 300
