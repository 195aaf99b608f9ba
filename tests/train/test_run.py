"""A run: it learns, the same way each time, across interruptions, never with the test images, and leaves it all."""

import copy
import csv
import errno
import fcntl
import importlib.metadata
import io
import itertools
import json
import logging
import math
import os
import re
import shutil
import signal
import statistics
import subprocess
import weakref
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import yaml
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from PIL import Image
from rich.console import Console
from safetensors.torch import load_file
from tiny import (
    CLASSES,
    TIMES,
    Sealed,
    csv_rows,
    equal,
    metrics_rows,
    stripes,
    tiny_bundle,
    tiny_recipe,
    tiny_set,
    tiny_vit,
    untimed,
    weights_of,
    write_images,
)

from vitreous import evaluation, plots, report
from vitreous.card import origin, write_shared
from vitreous.data import loaders
from vitreous.data.images import ImageSet, Split
from vitreous.data.loaders import Batches
from vitreous.data.sources import load
from vitreous.device import NO_MPS
from vitreous.evaluation import evaluate, judge
from vitreous.explain import explain
from vitreous.explain.look import look
from vitreous.files import replace_file
from vitreous.metrics import fit_temperature, wilson
from vitreous.model import ViT
from vitreous.prediction import predict
from vitreous.preprocess import Preprocess
from vitreous.recipe import make_recipe, read_recipe
from vitreous.train import folder as folder_module
from vitreous.train import job as job_module
from vitreous.train import loop, outcome, preview, signals
from vitreous.train import run as run_module
from vitreous.train import state as state_module
from vitreous.train.engine import Engine
from vitreous.train.folder import alone, check_claim, claimed, optional
from vitreous.train.folds import fit_folds
from vitreous.train.order import epoch_order, epoch_rows
from vitreous.train.progress import show_log
from vitreous.train.run import Run, fit

STEPS = 4  # of a pass over 36 images in batches of 8


class Flipped(ViT):
    """A model that its config does not describe."""

    def forward(self, images):
        return -super().forward(images)


def with_relu(vit):
    vit.blocks[0].mlp.act = torch.nn.ReLU()
    return vit


FROZEN = {"learning_rate": 1e-60}  # no weight moves, so that all epochs are alike

# Everything that a run could forget when it is interrupted
EVERYTHING = {
    "epochs": 3,
    "model": {"patch_embedding": "conv_stem", "stem_channels": (8,), "dropout": 0.2, "drop_path": 0.3, "depth": 2},
    "augment": {
        "flip": 0.5, "alternate_flip": True, "shift": 1, "rotation": 20, "color": 0.3, "randaugment_ops": 1,
        "erase": 0.3, "mixup": 0.5, "cutmix": 0.5, "mix_until": 0.8, "shrink": 0.5,
    },
    "optim": {"name": "muon", "ema": 0.9, "accumulate": 3, "label_smoothing": 0.1},
}  # fmt: skip


@pytest.fixture
def pictures():
    return plots


@pytest.fixture
def trained(request, tmp_path):
    """`fit` into tmp_path/<name>, with nothing printed, and drawn only in tests that ask for `pictures`."""
    drawn = {"pictures": "pictures" in request.fixturenames}  # it takes longer than these runs

    def run(recipe, data, name="run", **options):
        return fit(recipe, data, out=tmp_path / name, **{"console": Console(file=io.StringIO())} | drawn | options)

    return run


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run of four epochs, with its data, for tests that only look."""
    data = tiny_set()
    out = tmp_path_factory.mktemp("finished") / "run"
    recipe = tiny_recipe(epochs=4, seed=3, optim={"ema": 0.9, "learning_rate": 0.02})
    return fit(recipe, data, out=out, pictures=False, console=Console(quiet=True)), data


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """A whole run of EVERYTHING, to compare others with."""
    out = tmp_path_factory.mktemp("everything") / "run"
    return fit(tiny_recipe(**EVERYTHING), tiny_set(), out=out, pictures=False, console=Console(quiet=True))


def misleading_set():
    """The better the training images are learnt, the worse the validation images are answered."""
    pixels, labels = stripes(12, seed=2)
    return ImageSet.from_arrays(*stripes(36), val=(pixels, (labels + 1) % 3), class_names=CLASSES, name="stripes")


def interrupt_after(*totals):
    """A callback that presses Ctrl-C in these steps, counted from 1 over the whole run."""

    def on_step(state, _):
        if state.epoch * STEPS + state.step in totals:
            os.kill(os.getpid(), signal.SIGINT)

    return on_step


def poison(vit, epoch, step):
    """A callback by which the weights are no numbers after this step of an epoch."""

    def on_step(state, _):
        if (state.epoch + 1, state.step) == (epoch, step):
            vit.head.weight.data.fill_(math.nan)

    return on_step


def checkpoint_of(folder):
    return torch.load(folder / "checkpoints" / "last.pt", weights_only=True)


def comparable(folder):
    """All that a run leaves and that is no measured time."""
    rows = [{key: value for key, value in row.items() if key not in TIMES} for row in metrics_rows(folder)]
    checkpoint = checkpoint_of(folder)
    return {
        "weights": weights_of(folder),
        "results": untimed(json.loads((folder / "results.json").read_text())),
        "metrics": rows,
        "checkpoint": untimed(checkpoint),
        "recipe": (folder / "recipe.yaml").read_text(),
        "data": (folder / "data.json").read_text(),
        "config": (folder / "model" / "config.json").read_text(),
    }


def same_files(a, b):
    """None, or the first part in which two runs differ."""
    a, b = comparable(a), comparable(b)
    return next((name for name in a if not equal(a[name], b[name])), None)


# --- it learns ---


def test_the_loss_falls_on_a_learnable_pattern(trained):
    run = trained(tiny_recipe(epochs=20, optim={"learning_rate": 0.01}), tiny_set())
    losses = [float(row["train_loss"]) for row in metrics_rows(run.folder)]
    assert losses[0] == pytest.approx(math.log(3), abs=0.15)  # the head starts at zero
    assert losses[-1] < 0.2 * losses[0]
    assert float(metrics_rows(run.folder)[-1]["train_top1"]) > 0.6  # a wrong answer costs ln 2 at least
    assert run.results["val"]["top1"] == run.results["test"]["top1"] == 1.0


@pytest.mark.parametrize(
    ("schedule", "name"), [("cosine", "adamw"), ("linear", "muon"), ("onecycle", "adamw"), ("constant", "muon")]
)
def test_one_epoch_is_enough_for_every_schedule(trained, schedule, name):
    recipe = tiny_recipe(epochs=1, optim={"schedule": schedule, "name": name, "batch_size": 128})
    run = trained(recipe, tiny_set())
    assert run.results["epochs"] == run.results["best_epoch"] == 1
    assert len(metrics_rows(run.folder)) == 1
    assert math.isfinite(run.results["val"]["loss"])


@pytest.mark.parametrize(
    ("precision", "kind"), [("float32", torch.float32), ("bf16", torch.bfloat16), ("float16", torch.float16)]
)
def test_all_precisions_train_float32_weights(trained, monkeypatch, precision, kind):
    kinds = set()
    linear = torch.nn.functional.linear

    def spy(x, weight, bias=None):
        y = linear(x, weight, bias)
        kinds.add(y.dtype)
        return y

    monkeypatch.setattr(torch.nn.functional, "linear", spy)
    run = trained(tiny_recipe(epochs=6, precision=precision, optim={"learning_rate": 0.01}), tiny_set())
    assert run.results["precision"] == precision and kinds == {kind}
    losses = [float(row["train_loss"]) for row in metrics_rows(run.folder)]
    assert losses[-1] < 0.9 * losses[0]
    assert {value.dtype for value in weights_of(run.folder).values()} == {torch.float32}


def test_float16_leaves_out_steps_whose_gradients_overflow_and_goes_on_with_its_scale(trained, monkeypatch):
    first = 2.0**19
    monkeypatch.setattr(torch.amp, "GradScaler", partial(torch.amp.GradScaler, init_scale=first))
    recipe = tiny_recipe(precision="float16", optim={"name": "muon", "batch_size": 8})
    whole = trained(recipe, tiny_set(), "whole")
    left_out = math.log2(first / checkpoint_of(whole.folder)["scaler"]["scale"])
    assert 3 <= left_out < 6  # of eight
    trained(recipe, tiny_set(), "parts", on_step=interrupt_after(3))
    assert same_files(whole.folder, trained(recipe, tiny_set(), "parts", resume=True).folder) is None


@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize("overflow", [math.inf, math.nan])
def test_an_overflow_in_float16_leaves_the_step_of_every_optimiser_out(trained, monkeypatch, clip, overflow):
    monkeypatch.setattr(torch.amp, "GradScaler", partial(torch.amp.GradScaler, init_scale=2.0**10))
    recipe = tiny_recipe(epochs=1, precision="float16", optim={"name": "muon", "batch_size": 36, "clip": clip})
    torch.manual_seed(recipe.seed)
    model = tiny_vit()
    model.norm.weight.register_hook(lambda gradient: gradient * overflow)  # AdamW's; all of Muon's are finite
    before = copy.deepcopy(model.state_dict())
    run = trained(recipe, tiny_set(), model=model)
    assert equal(before, weights_of(run.folder)) and checkpoint_of(run.folder)["scaler"]["scale"] == 2.0**9


def test_a_run_whose_gradients_always_overflow_float16_ends(trained, monkeypatch):
    monkeypatch.setattr(torch.amp, "GradScaler", partial(torch.amp.GradScaler, init_scale=4.0))
    model = tiny_vit()
    model.norm.weight.register_hook(lambda gradient: gradient * math.nan)
    with pytest.raises(FloatingPointError, match=r"^the gradients overflow float16 at step 3 of epoch 1, however they"):
        trained(tiny_recipe(precision="float16"), tiny_set(), model=model)


@pytest.mark.parametrize("clip", [None, 0.1])
def test_gradients_of_float16_are_clipped_at_their_own_size(trained, monkeypatch, clip):
    monkeypatch.setattr(torch.amp, "GradScaler", partial(torch.amp.GradScaler, init_scale=2.0**10))
    means = []
    for precision in ("float32", "float16"):
        run = trained(tiny_recipe(epochs=1, precision=precision, optim={"clip": clip}), tiny_set(), precision)
        adamw = checkpoint_of(run.folder)["optimizers"][0]["state"]
        means.append(torch.cat([weight["exp_avg"].flatten() for weight in adamw.values()]))
    assert (means[0] - means[1]).norm() < 0.1 * means[0].norm()


def test_a_set_smaller_than_a_batch_is_one_step_of_all_its_images(trained):
    seen = []
    run = trained(
        tiny_recipe(optim={"batch_size": 500}),
        tiny_set(),
        on_step=lambda state, _: seen.append((state.step, state.images)),
    )
    assert seen == [(1, 36), (1, 36)] and run.results["epochs"] == 2


def test_only_whole_batches_are_trained_on(trained):
    seen = []
    trained(tiny_recipe(epochs=1), tiny_set(), on_step=lambda state, _: seen.append(state.images))
    assert seen == [8, 16, 24, 32]  # of 36


def test_each_epoch_sees_each_image_once_in_an_order_and_a_look_of_its_own(trained, monkeypatch):
    seen = []
    progress, augment, shrunk = [], loop.augment, loop.shrunk

    def spy(images, changes, *more):
        seen.append((images, changes.map[:, 1]))  # the sine of each image's angle
        return augment(images, changes, *more)

    monkeypatch.setattr(loop, "augment", spy)
    monkeypatch.setattr(loop, "shrunk", lambda *args: progress.append(args[-1]) or shrunk(*args))
    trained(tiny_recipe(augment={"rotation": 20}, optim={"batch_size": 9}), tiny_set())
    assert progress == [i / 8 for i in range(8)]  # of the whole training
    images = [torch.cat([batch[0] for batch in part]).flatten(1) for part in (seen[:STEPS], seen[STEPS:])]
    angles = torch.cat([angles for _, angles in seen])
    assert len(images[0].unique(dim=0)) == 36 and torch.equal(images[0].unique(dim=0), images[1].unique(dim=0))
    assert not torch.equal(*images)
    assert len(angles.unique()) == 72


def test_flips_alternate_from_one_epoch_to_the_next(trained, monkeypatch):
    seen = []
    original = loop.augment

    def spy(images, changes, *more):
        seen.append((images.flatten(1), changes.map[:, 0].sign()))
        return original(images, changes, *more)

    monkeypatch.setattr(loop, "augment", spy)
    trained(tiny_recipe(augment={"flip": 0.5, "alternate_flip": True}, optim={"batch_size": 9}), tiny_set())
    first, second = (
        {bytes(image.numpy()): int(sign) for images, signs in part for image, sign in zip(images, signs, strict=True)}
        for part in (seen[:STEPS], seen[STEPS:])
    )
    assert len(first) == 36 and {sign * second[image] for image, sign in first.items()} == {-1}


def test_the_average_counts_the_steps_of_the_whole_run(trained, monkeypatch):
    counted = []
    update = loop.EMA.update
    monkeypatch.setattr(loop.EMA, "update", lambda self, n: counted.append(n) or update(self, n))
    trained(tiny_recipe(epochs=2, optim={"ema": 0.9}), tiny_set())
    assert counted == list(range(2 * STEPS))


def test_the_average_kept_has_the_decay_of_the_recipe(trained):
    model, expected = tiny_vit(), {}

    def average(state, _):
        step = state.epoch * STEPS + state.step - 1
        decay = min(0.2, (1 + step) / (10 + step)) if step else 0.0
        for name, value in model.state_dict().items():
            expected[name] = decay * expected.get(name, 0) + (1 - decay) * value.double()

    options = {"epochs": 2, "data": {"val_fraction": 0.25}, "optim": {"ema": 0.2, "learning_rate": 0.1}}
    run = trained(tiny_recipe(**options), tiny_set(), model=model, on_step=average)
    for name, value in checkpoint_of(run.folder)["average"].items():
        torch.testing.assert_close(value.double(), expected[name], rtol=1e-5, atol=1e-6)


def test_the_average_begins_with_the_weights_after_the_first_step(trained):
    run = trained(tiny_recipe(epochs=1, optim={"ema": 0.9}), tiny_set(), on_step=interrupt_after(1))
    content = checkpoint_of(run.folder)
    assert equal(content["average"], content["model"])


def test_the_first_batch_is_drawn_as_the_first_step_sees_it(trained, pictures, monkeypatch):
    drawn, seen = [], []
    monkeypatch.setattr(pictures, "image_grid", lambda *args: drawn.append(args))
    augment = {"rotation": 20, "padding": "mean", "erase": 0.5, "mixup": 0.8, "mix_probability": 1.0}
    recipe = tiny_recipe(epochs=1, augment=augment)
    original = loop.mix
    monkeypatch.setattr(loop, "mix", lambda *args: seen.append(original(*args)) or seen[-1])
    trained(recipe, tiny_set(), on_step=interrupt_after(1))
    ((images, names, _),) = drawn
    mixed, targets = seen[0]
    np.testing.assert_allclose(images, mixed.numpy(), rtol=0, atol=1e-6)
    assert [name.split()[0] for name in names] == [CLASSES[i] for i in targets.argmax(1)]
    assert any(re.fullmatch(r"\w+ \d\d%\n\+ \w+ \d\d%", name) for name in names)


@pytest.mark.parametrize(("whiten", "given"), [(True, False), (False, False), (True, True)])
def test_a_new_stem_is_whitened_by_its_training_images_and_a_given_one_is_not(trained, monkeypatch, whiten, given):
    stem = {"patch_embedding": "conv_stem", "stem_channels": (8,)}
    recipe = tiny_recipe(epochs=1, start={"whiten": whiten}, model=stem, optim=FROZEN)
    monkeypatch.setattr(job_module, "WHITENED", 20 * 8 * 8)  # pixels of 20 images
    model = tiny_vit(**stem) if given else None
    before = model.patches.layers[0].weight.clone() if given else None
    said = io.StringIO()
    run = trained(recipe, tiny_set(), model=model, console=Console(file=said, width=200))
    told = "start.whiten does nothing here: the first convolution is that of the model given"
    assert (told in said.getvalue()) == (whiten and given)
    kernel = weights_of(run.folder)["patches.layers.0.weight"]
    pixels = tiny_set().divided(recipe.data).train.images.array[np.linspace(0, 35, 20).astype(int)]
    images = run.bundle.preprocess.normalise(torch.from_numpy(pixels))
    seen = F.conv2d(images, kernel, padding=1).transpose(0, 1).flatten(1)  # (8, places)
    white = torch.kron(torch.tensor([[1.0, -1], [-1, 1]]), torch.eye(4))  # four directions with both signs
    assert torch.allclose(seen @ seen.T / seen.shape[1], white, atol=0.01) == (whiten and not given)
    assert before is None or torch.equal(kernel, before)


def test_a_dry_run_leaves_a_given_model_as_it_is(trained):
    model = tiny_vit()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    trained(tiny_recipe(optim={"freeze": 1}), tiny_set(), model=model, dry_run=True)
    assert equal(before, dict(model.state_dict())) and all(weight.requires_grad for weight in model.parameters())


def with_a_weight(vit):
    vit.register_parameter("extra", torch.nn.Parameter(torch.zeros(1)))
    return vit


@pytest.mark.parametrize("change", [lambda vit: Flipped(vit.config), with_relu, with_a_weight, ViT.double])
def test_a_model_that_would_be_kept_as_another_is_refused(trained, tmp_path, change):
    with pytest.raises(
        ValueError, match=r"differs from vt.ViT\(model.config\) in float32, and a run would keep that one"
    ):
        trained(tiny_recipe(), tiny_set(), model=change(tiny_vit()))
    assert not (tmp_path / "run").exists()


def test_what_is_no_recipe_or_model_is_told_what_to_give(trained):
    with pytest.raises(TypeError, match=r"^recipe is a str: give a Recipe, such as vt\.read_recipe\('small-images'\)$"):
        trained("digits", tiny_set())
    with pytest.raises(TypeError, match=r"^model is a ViTConfig: give a ViT, such as vt\.ViT\("):
        trained(tiny_recipe(), tiny_set(), model=tiny_vit().config)
    with pytest.raises(TypeError, match=r"^data is a tuple: give a name, a path or an ImageSet, which vt\.ImageSet"):
        trained(tiny_recipe(), stripes())
    with pytest.raises(TypeError, match=r"^recipe is a str: give a Recipe"):
        fit_folds("digits", tiny_set())


def test_a_run_leaves_random_numbers_and_accelerate_as_they_were(trained):
    before = Accelerator(cpu=True, gradient_accumulation_steps=4)
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    trained(tiny_recipe(epochs=1), tiny_set())
    assert torch.equal(torch.rand(3), expected)
    assert (before.gradient_accumulation_steps, GradientState().num_steps) == (4, 4)
    AcceleratorState._reset_state(reset_partial_state=True)
    trained(tiny_recipe(epochs=1), tiny_set(), "other")
    Accelerator(cpu=True, mixed_precision="bf16")  # refused if another precision had been set already
    AcceleratorState._reset_state(reset_partial_state=True)


def test_a_default_dtype_or_device_of_the_caller_changes_nothing(trained):
    expected, default = trained(tiny_recipe(epochs=1), tiny_set()).results["test"]["loss"], torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")  # stands for a GPU
    try:
        run = trained(tiny_recipe(epochs=1), tiny_set(), "other")
        assert (torch.get_default_dtype(), torch.get_default_device().type) == (torch.float64, "meta")
        torch.set_default_device(None)
        assert evaluate(run, tiny_set())["loss"] == run.results["test"]["loss"] == expected
        (explained,) = explain(run, tiny_set().test[0][0], device="cpu")
        assert explained.probabilities and look(run, out=run.folder / "look")
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(default)


def test_data_may_be_named_and_a_home_folder_written_as_a_tilde(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    write_images(tmp_path / "photos", 8)
    run = fit(tiny_recipe(epochs=1), "~/photos", out="~/run", pictures=False, console=Console(quiet=True))
    assert run.folder == tmp_path / "run" and read_recipe(run.folder / "recipe.yaml").data.source == str(
        tmp_path / "photos"
    )


def test_a_run_will_do_where_its_folder_is_asked_for(trained):
    run, data = trained(tiny_recipe(), tiny_set()), tiny_set()
    assert evaluate(run, data)["top1"] == evaluate(run.folder, data)["top1"] == run.results["test"]["top1"]
    image = data.test.images.array[0]
    assert list(predict(run, [image])) == list(predict(run.folder, [image]))
    assert repr(run) == (
        f"Run('{run.folder}', val top-1 {run.results['val']['top1']:.2%}, test top-1 {run.results['test']['top1']:.2%})"
    )
    again = Run.load(run.folder)
    assert again == run and repr(again) == repr(run)
    assert Run.load("mnist").results and Run.load("mnist").bundle.class_names[3] == "3"
    with pytest.raises(ValueError, match=r"^nowhere is no run: it has no recipe\.yaml$"):
        Run.load("nowhere")
    assert [row["val_top1"] for row in again.history] == [float(row["val_top1"]) for row in metrics_rows(run.folder)]
    assert repr(data) == "ImageSet('stripes', 3 classes, images: train 48, test 12)"
    assert repr(run.bundle).startswith("Bundle(ViT of ") and repr(run.bundle).endswith("images 1 x 8 x 8, 3 classes)")


@pytest.mark.parametrize("resumed", [False, True])
def test_a_run_from_a_given_model_says_so(trained, resumed):
    model = tiny_vit()
    if resumed:
        stop = {"on_step": lambda *_: os.kill(os.getpid(), signal.SIGINT)}
        trained(tiny_recipe(epochs=1), tiny_set(), model=model, **stop)
        run = trained(tiny_recipe(epochs=1), tiny_set(), resume=True)
    else:
        run = trained(tiny_recipe(epochs=1), tiny_set(), model=model)
    assert run.results["start"] == {"weights": None}
    assert origin(read_recipe(str(run.folder / "recipe.yaml")), run.results) == "trained from a model that was given"
    with pytest.raises(ValueError, match=r"^start\.probe_first is True, but model= gives the model to start from"):
        trained(tiny_recipe(start={"probe_first": True}), tiny_set(), "other", model=model)
    model.freeze(1)
    with pytest.raises(
        ValueError, match=r"^1 blocks of the model are frozen, and optim\.freeze is 0: set optim\.freeze=1, or c"
    ):
        trained(tiny_recipe(), tiny_set(), "other", model=model)


def test_what_a_killed_process_was_writing_stands_in_nobodys_way(tmp_path):
    (tmp_path / "run" / "plots").mkdir(parents=True)
    for name in (".3f.part", "mine.part"):
        (tmp_path / "run" / "plots" / name).touch()
    with pytest.raises(ValueError, match="is not empty and holds no run"):
        check_claim(tmp_path / "run", resume=False)
    (tmp_path / "run" / "plots" / "mine.part").unlink()
    check_claim(tmp_path / "run", resume=False)


def answers_of(folder):
    return csv_rows(folder / "answers.csv")


def test_the_figures_of_each_class_are_those_of_the_answers(trained):
    run = trained(tiny_recipe(), tiny_set())
    rows = csv_rows(run.folder / "classes.csv")
    assert [(row["split"], row["class"]) for row in rows] == [(s, name) for s in ("val", "test") for name in CLASSES]
    for split in ("val", "test"):
        own, found = ([row for row in each if row["split"] == split] for each in (answers_of(run.folder), rows))
        for row in found:
            assert int(row["images"]) == sum(answer["class"] == row["class"] for answer in own)
            assert int(row["answered"]) == sum(answer["answer"] == row["class"] for answer in own)
            assert int(row["right"]) == sum(answer["class"] == answer["answer"] == row["class"] for answer in own)
            ends = wilson(int(row["right"]), int(row["images"]))
            assert (float(row["recall_low"]), float(row["recall_high"])) == pytest.approx(ends, abs=1e-5)
            assert row["groups"] == ""
        recalls = [float(row["recall"]) for row in found]
        assert sum(recalls) / 3 == pytest.approx(run.results[split]["recall_macro"], abs=1e-5)


def test_every_answer_is_written_down(trained):
    data = tiny_set()
    run = trained(tiny_recipe(), data)
    rows = answers_of(run.folder)
    assert [(row["split"], row["row"]) for row in rows] == [(s, str(i)) for s in ("val", "test") for i in range(12)]
    for split in ("val", "test"):
        own = [row for row in rows if row["split"] == split]
        assert sum(row["answer"] == row["class"] for row in own) / 12 == run.results[split]["top1"]
    assert [row["class"] for row in own] == [CLASSES[label] for label in data.test.labels]
    (third,) = predict(run.folder, [Image.fromarray(data.test.images.array[3, 0])], top=1, device="cpu")
    assert own[3]["answer"] == third.classes[0]
    assert float(own[3]["probability"]) == pytest.approx(third.probabilities[0], rel=1e-4)


def test_an_answer_names_its_row_though_others_are_left_out(tmp_path):
    write_images(tmp_path / "photos" / "train", 12)
    write_images(tmp_path / "photos" / "test", 4)
    (tmp_path / "photos" / "test" / "ant" / "000.png").write_text("broken")
    data = load(tmp_path / "photos", skip_broken=True)
    run = fit(tiny_recipe(epochs=1), data, out=tmp_path / "run", pictures=False, console=Console(quiet=True))
    rows = [row for row in answers_of(run.folder) if row["split"] == "test"]
    assert [row["row"] for row in rows] == [str(i) for i in range(1, 12)]
    told = json.loads((run.folder / "data.json").read_text())
    assert (told["counts"]["test"], told["per_class"]["test"], told["listed"]["test"]) == (11, [3, 4, 4], [4, 4, 4])
    assert all(row["image"] == data.test.images.describe(int(row["row"])) for row in rows)


def test_pictures_may_be_left_out(trained, pictures):
    folder = trained(tiny_recipe(epochs=1), tiny_set(), pictures=False).folder
    left = {path.name for path in folder.iterdir()}
    assert "results.json" in left and not left & {"plots", "report.html"}


def test_small_images_come_first_and_only_in_training(trained, monkeypatch):
    training, judging = [], []
    original = ViT.forward

    def spy(self, images):
        (training if self.training else judging).append(tuple(images.shape[2:]))
        return original(self, images)

    monkeypatch.setattr(ViT, "forward", spy)
    recipe = tiny_recipe(epochs=2, augment={"shrink": 0.5, "shrink_until": 0.3})
    trained(recipe, tiny_set())
    assert training == [(4, 4)] * 3 + [(8, 8)] * 5  # 8 steps, of which 30% are begun small
    assert set(judging) == {(8, 8)}


def test_small_images_are_the_mean_of_what_they_stand_for():
    bright = 255 * ((torch.arange(16) + 1) % 4 > 1)  # the inner two of each four columns
    images = bright.to(torch.uint8).expand(4, 1, 16, 16)
    recipe = tiny_recipe(augment={"shrink": 0.25}).resolve(image_size=(16, 16), channels=1, num_classes=3)
    (changes,) = loop.plan(torch.zeros(4, 0), recipe.augment, 0, (16, 16), 4, "cpu")
    same = loop.augment(images / 255, changes, recipe.augment, torch.zeros(1))
    small = loop.shrunk(same, recipe, 0.0)
    assert small.shape == (4, 1, 4, 4) and (small[..., 1:-1] - 0.5).abs().max() < 0.15  # neither black nor white
    least = tiny_recipe(augment={"shrink": 0.1}).resolve(image_size=(16, 16), channels=1, num_classes=3)
    assert loop.shrunk(same, least, 0.0).shape[2:] == least.model.patch_size  # one patch at least


def test_an_interrupted_model_reads_whole_images_again(trained):
    model = ViT(tiny_recipe().resolve(image_size=(8, 8), channels=3, num_classes=3).model)
    recipe = tiny_recipe(augment={"shrink": 0.5, "shrink_until": 1.0})
    trained(recipe, tiny_set(), model=model, on_step=interrupt_after(2))
    assert model.image_size == (8, 8)


def test_the_time_needed_is_told_from_whole_images(trained, monkeypatch):
    seen = []
    original = ViT.forward
    monkeypatch.setattr(ViT, "forward", lambda self, images: seen.append(images.shape[2:]) or original(self, images))
    trained(tiny_recipe(augment={"shrink": 0.5}), tiny_set(), dry_run=True)
    assert set(seen) == {(8, 8)}


def test_the_order_of_the_images_follows_from_seed_and_epoch():
    orders = {(seed, epoch): epoch_order(50, seed, epoch).tolist() for seed in (0, 1, 2) for epoch in (0, 1, 2)}
    assert all(sorted(order) == list(range(50)) for order in orders.values())
    assert len({tuple(order) for order in orders.values()}) == 9
    assert orders[1, 2] == epoch_order(50, 1, 2).tolist()


def test_smoothed_labels_bound_the_loss_from_below(trained):
    run = trained(tiny_recipe(epochs=20, optim={"learning_rate": 0.01, "label_smoothing": 0.3}), tiny_set())
    least = -(0.8 * math.log(0.8) + 0.2 * math.log(0.1))  # the entropy of targets 0.8, 0.1, 0.1
    losses = [float(row["train_loss"]) for row in metrics_rows(run.folder)]
    assert least < losses[-1] < least + 0.15
    assert run.results["val"]["top1"] == 1 and run.results["val"]["loss"] < least  # which is judged by plain labels


def test_the_whole_gradient_is_clipped_once_a_step(trained, monkeypatch):
    norms, clip = [], torch.nn.utils.clip_grad_norm_

    def spy(weights, norm):
        weights = list(weights)
        clip(weights, norm)
        norms.append(torch.stack([weight.grad.norm() for weight in weights]).norm().item())

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", spy)
    trained(tiny_recipe(optim={"clip": 0.01, "accumulate": 2}), tiny_set(), "a")
    assert norms == pytest.approx([0.01] * 2 * STEPS, rel=1e-3)
    trained(tiny_recipe(optim={"clip": None}), tiny_set(), "b")
    assert len(norms) == 2 * STEPS


def test_what_was_told_while_the_data_was_found_is_kept_and_told_once(tmp_path, caplog):
    write_images(tmp_path / "photos" / "train", 8)
    (tmp_path / "photos" / "test").mkdir()
    shutil.copy(next((tmp_path / "photos").rglob("*.png")), tmp_path / "photos" / "test" / "x.png")
    text, data = io.StringIO(), {"source": str(tmp_path / "photos")}
    recipe, told = tiny_recipe(epochs=1, data=data), "test has no class folders, so its images have no labels: left out"
    fit(recipe, out=tmp_path / "run", console=Console(file=text), on_step=interrupt_after(1))
    assert caplog.text.count(told) == 1 and told not in text.getvalue()
    run = fit(recipe, out=tmp_path / "run", resume=True, console=Console(quiet=True))
    for file in "train.log", "report.html":
        assert (run.folder / file).read_text().count(told) == 1


@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_every_step_is_taken_in_training_mode(trained, ema):
    vit = tiny_vit().eval()
    modes = []
    trained(
        tiny_recipe(optim={"ema": ema}),
        tiny_set(),
        model=vit,
        on_step=lambda *_: modes.append({module.training for module in vit.modules()}),
    )
    assert modes == [{True}] * 2 * STEPS  # though validation lies between them


def test_larger_training_images_change_neither_what_the_model_reads_nor_the_search_for_leaks(tmp_path, monkeypatch):
    pixels, labels = stripes(48, side=32)
    data = ImageSet.from_arrays(pixels, labels, val=(pixels[:6], labels[:6]))
    fields = {"model": {"image_size": 8, "patch_size": 4}, "augment": {"crop_scale": (0.5, 1)}}
    said, runs, pixels_of, alive = io.StringIO(), [], [], []

    def recorded(*given, **named):
        alive.append(sum(pixels() is not None for pixels in pixels_of))
        batches = Batches(*given, **named)
        pixels_of.append(weakref.ref(batches._pixels))
        return batches

    monkeypatch.setattr(job_module, "Batches", recorded)
    for name, times in (("larger", 4), ("plain", 1)):
        recipe = tiny_recipe(**fields, data={"oversize": times})
        runs.append(fit(recipe, data, out=tmp_path / name, pictures=False, console=Console(file=said, width=200)))
    assert alive[:3] == [0, 0, 1]  # the plain images make room for the larger ones; then validation is placed
    assert said.getvalue().count("of 6 validation images") == 2
    larger, plain = (run.bundle.preprocess for run in runs)
    assert larger == plain and larger.image_size == (8, 8)
    assert not equal(*(weights_of(run.folder) for run in runs))


def test_crops_come_from_the_whole_image_and_answers_from_its_centre(tmp_path, monkeypatch):
    """A frame of noise that training sees and the judges do not."""
    pixels, labels = stripes(48, side=32)
    framed = np.random.default_rng(0).integers(0, 255, (48, 1, 64, 64), np.uint8)
    framed[:, :, 16:48, 16:48] = pixels
    data = ImageSet.from_arrays(framed, labels, test=(framed[:12], labels[:12]), class_names=CLASSES)
    seen = []
    monkeypatch.setattr(loop, "augment", lambda images, *_: seen.append(images) or images[..., ::8, ::8].clone())
    fields = {"model": {"image_size": 8, "patch_size": 4}, "augment": {"crop_scale": (0.2, 0.3)}}
    run = fit(
        tiny_recipe(**fields, epochs=1, data={"val_fraction": 0, "oversize": 8, "crop_fraction": 0.5}),
        data,
        out=tmp_path / "run",
        pictures=False,
        console=Console(file=io.StringIO()),
    )
    assert any(torch.equal(seen[0][0], image) for image in torch.tensor(framed).float().div(255))
    preprocess = run.bundle.preprocess
    assert preprocess.crop_fraction == 0.5
    centre = Preprocess(image_size=8, mean=(0.5,), std=(0.5,)).fit_array(pixels[0])
    np.testing.assert_allclose(preprocess.fit_array(framed[0]), centre, atol=40)


def test_gray_and_colour_and_many_classes(trained):
    data = tiny_set(count=64, channels=3, classes=8)
    run = trained(tiny_recipe(epochs=1), data)
    config = run.bundle.model.config
    assert (config.channels, config.num_classes, config.image_size) == (3, 8, (8, 8))
    lines = [line for line in answers_of(run.folder) if line["split"] == "test"]
    shares = [[float(line[f"probability:{name}"]) for name in run.bundle.class_names] for line in lines]
    own = [run.bundle.class_names.index(line["class"]) for line in lines]
    better = [sum(share > each[label] for share in each) for each, label in zip(shares, own, strict=True)]
    assert run.results["test"]["top1"] == pytest.approx(np.mean([rank < 1 for rank in better]))
    assert run.results["test"]["top5"] == pytest.approx(np.mean([rank < 5 for rank in better]))


# --- it learns the same way each time ---


def test_the_same_seed_gives_bit_identical_weights_and_another_does_not(trained, everything):
    again = trained(tiny_recipe(**EVERYTHING), tiny_set(), "again")
    assert same_files(everything.folder, again.folder) is None
    other = trained(tiny_recipe(**EVERYTHING, seed=1), tiny_set(), "other")
    assert not equal(weights_of(everything.folder), weights_of(other.folder))


def test_the_random_state_before_a_run_does_not_matter(trained):
    recipe = tiny_recipe(**(EVERYTHING | {"epochs": 1}))
    torch.manual_seed(1)
    first = trained(recipe, tiny_set(), "a")
    torch.manual_seed(2)
    np.random.seed(2)
    second = trained(recipe, tiny_set(), "b")
    assert equal(weights_of(first.folder), weights_of(second.folder))


def test_mixing_stops_where_the_recipe_says(trained, monkeypatch):
    mixed, original = [], loop.mix

    def spy(*args):
        images, targets = original(*args)
        mixed.append(targets.ndim == 2)
        return images, targets

    monkeypatch.setattr(loop, "mix", spy)
    trained(tiny_recipe(augment={"cutmix": 1.0, "mix_until": 0.5}), tiny_set())
    assert mixed == [True] * STEPS + [False] * STEPS


def test_images_are_fitted_as_the_recipe_says(trained):
    pixels, labels = stripes(48, side=16)
    data = ImageSet.from_arrays(pixels[..., :8], labels, class_names=CLASSES)  # 16 x 8
    how = {"fit": "squash", "crop_fraction": 0.5, "white": 4095.0}
    recipe = tiny_recipe(epochs=1, model={"image_size": 8}, data=how, augment={"crop_scale": (0.25, 1)})
    preprocess = trained(recipe, data).bundle.preprocess
    assert (preprocess.fit, preprocess.crop_fraction, preprocess.white) == ("squash", 0.5, 4095)


def test_the_seed_is_that_of_the_order_the_looks_and_the_start_weights(trained):
    labels, found = torch.arange(36) % 3, []
    for seed in (0, 1):
        recipe = tiny_recipe(epochs=1, seed=seed, augment={"rotation": 20}, optim=FROZEN)
        order, draws = epoch_rows(labels, recipe, 0)
        looks = draws[order.argsort()]  # image by image
        found.append((order, looks, weights_of(trained(recipe, tiny_set(), str(seed)).folder)))
    (order, looks, weights), (other_order, other_looks, other_weights) = found
    assert not torch.equal(order, other_order) and not torch.equal(looks, other_looks)
    assert not equal(weights, other_weights)


def test_streaming_is_told_with_what_would_end_it(trained):
    for budget in (1e-9, 1):
        recipe = tiny_recipe(data={"val_fraction": 0.25, "memory_budget": budget, "workers": 0})
        trained(recipe, tiny_set(), f"{budget}", dry_run=True, console=Console(file=(text := io.StringIO()), width=200))
        said = "GiB of training images are streamed (data.workers=0): data.memory_budget=1 keeps them on the device"
        assert (said in text.getvalue()) is (budget < 1)


def test_a_dry_run_lists_no_setting_of_what_is_off(trained):
    for cutmix in (0.0, 1.0):
        recipe = tiny_recipe(augment={"cutmix": cutmix, "mix_until": 0.5})
        trained(recipe, tiny_set(), f"{cutmix}", dry_run=True, console=Console(file=(text := io.StringIO()), width=200))
        assert ("  augment.cutmix=1.0 augment.mix_until=0.5\n" in text.getvalue()) is (cutmix > 0)
        assert ("mix_until" in text.getvalue()) is (cutmix > 0)


@pytest.mark.parametrize("workers", [0, 2])
def test_streamed_images_give_the_weights_of_resident_ones(trained, workers, monkeypatch):
    options = EVERYTHING | {"epochs": 1}
    resident = trained(tiny_recipe(**options), tiny_set(), "a")
    data = {"val_fraction": 0.25, "memory_budget": 1e-9, "workers": workers}
    made, original = [], job_module.Batches

    def record(*given, **options):
        made.append(original(*given, **options))
        return made[-1]

    monkeypatch.setattr(job_module, "Batches", record)
    streamed = trained(tiny_recipe(**options, data=data), tiny_set(), "b")
    assert equal(weights_of(resident.folder), weights_of(streamed.folder))
    assert untimed(resident.results) == untimed(streamed.results)
    assert {(batches.resident, batches.workers) for batches in made} == {(False, workers)}


def test_two_threads_train_bit_for_bit_too(trained):
    """By images and a model that are large enough for torch to divide its work."""
    pixels = np.random.default_rng(0).integers(0, 256, (640, 3, 32, 32), np.uint8)
    data = ImageSet.from_arrays(pixels, np.arange(640) % 10, name="noise")
    model = {"image_size": 32, "channels": 3, "num_classes": 10, "dim": 64, "heads": 4, "patch_size": 4}
    model |= {"patch_embedding": "conv_stem", "stem_channels": (16, 32), "mlp_conv": True, "pool": "attention"}
    augment = {"randaugment_ops": 2, "rotation": 10, "shrink": 0.75, "shrink_until": 0.5}
    options = {"optim": {"name": "muon", "batch_size": 128}, "data": {"val_fraction": 0}, "epochs": 1}
    recipe = tiny_recipe(model=model, augment=augment, **options)
    torch.set_num_threads(2)
    try:
        runs = [trained(recipe, data, name) for name in ("a", "b")]
        assert trained(recipe, data, "cut", on_step=interrupt_after(3)).results is None
        runs.append(trained(recipe, data, "cut", resume=True))
    finally:
        torch.set_num_threads(1)
    first, *others = (weights_of(run.folder) for run in runs)
    assert all(equal(first, other) for other in others)


def test_a_batch_is_computed_in_as_many_parts_as_are_asked_for(trained, monkeypatch):
    seen, forward = [], ViT.forward

    def spy(self, images):
        if self.training:
            seen.append(len(images))
        return forward(self, images)

    monkeypatch.setattr(ViT, "forward", spy)
    trained(tiny_recipe(epochs=1, optim={"accumulate": 3}), tiny_set())
    assert seen == [3, 3, 2] * STEPS


def test_the_parts_of_a_batch_add_up_to_the_whole(trained):
    """Parts of 3, 3 and 2 images: each image counts the same."""
    losses, weights = {}, {}
    for parts in (1, 3, 8):
        seen = losses.setdefault(parts, [])
        run = trained(
            tiny_recipe(optim={"accumulate": parts, "clip": 0.1}, seed=2),
            tiny_set(),
            str(parts),
            on_step=lambda _, loss, seen=seen: seen.append(loss.item()),
        )
        weights[parts] = weights_of(run.folder)
    for parts in (3, 8):
        assert losses[parts] == pytest.approx(losses[1], rel=1e-5)
        for name, value in weights[1].items():
            torch.testing.assert_close(weights[parts][name], value, rtol=1e-3, atol=2e-5)


def test_training_accuracy_and_loss_are_means_over_the_images(trained):
    """The weights do not move, and answer each image with the second class, of which 10 of 36 images are."""
    model, losses = tiny_vit(), []
    model.head.bias.data[1] = 1  # the other weights of the head are zero
    data = ImageSet.from_arrays(stripes(36)[0], np.repeat([0, 1, 2], [6, 10, 20]), class_names=CLASSES)
    recipe = tiny_recipe(data={"val_fraction": 0}, optim=FROZEN | {"batch_size": 9, "accumulate": 2})
    run = trained(recipe, data, model=model, on_step=lambda _, loss: losses.append(loss.item()))
    expected = math.log(math.e + 2) - 10 / 36
    for row in metrics_rows(run.folder):
        assert float(row["train_top1"]) == pytest.approx(10 / 36, rel=1e-12)
        assert float(row["train_loss"]) == pytest.approx(expected, rel=1e-6)
    assert len(losses) == 8 and np.mean(losses) == pytest.approx(expected, rel=1e-6)


# --- it keeps to a time ---


class Clock:
    """A second a training step, and none for anything else."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    def tick(self, *_):
        self.now += 1


@pytest.fixture
def clock(monkeypatch):
    """The clock of the training loop."""
    own = Clock()
    monkeypatch.setattr(state_module, "time", own)
    return own


def test_a_run_ends_within_its_time_with_its_schedule_run_through(trained, clock, monkeypatch):
    recipe = tiny_recipe(epochs=1000, time_limit="10s", optim={"schedule": "linear", "final_rate": 0.0, "warmup": 0.0})
    rates = []
    monkeypatch.setattr(loop, "set_rates", lambda _, factor: rates.append(factor))
    run = trained(recipe, tiny_set(), on_step=clock.tick)
    assert rates == pytest.approx([1 - step / 10 for step in range(10)], abs=1e-3)
    assert (run.results["epochs"], run.results["train_seconds"]) == (3, 10)
    assert run.results["passes"] == pytest.approx(10 * 8 / 36)
    assert [row["seconds"] for row in metrics_rows(run.folder)] == ["4.0", "8.0", "10.0"]


def test_compiling_takes_of_the_time_and_not_of_the_schedule(trained, clock, monkeypatch):
    monkeypatch.setattr(loop, "compiled", lambda model, *_: lambda images: model(images))

    def slow_first(state, loss):
        clock.now += 5 if state.seen == 8 else 1

    rates = []
    monkeypatch.setattr(loop, "set_rates", lambda _, factor: rates.append(factor))
    recipe = tiny_recipe(epochs=1000, time_limit="10s", optim={"schedule": "linear", "final_rate": 0.0, "warmup": 0.0})
    assert trained(recipe, tiny_set(), on_step=slow_first).results["train_seconds"] == 10
    assert rates == pytest.approx([1, 1, 0.8, 0.6, 0.4, 0.2], abs=1e-3)

    def stop_in_the_sixth(state, loss):
        clock.now += 1
        if state.seen == 6 * 8:
            os.kill(os.getpid(), signal.SIGINT)

    recipe = recipe.model_copy(update={"seed": 1, "time_limit": 12.0})
    trained(recipe, tiny_set(), name="resumed", on_step=stop_in_the_sixth)
    rates.clear()
    trained(recipe, tiny_set(), name="resumed", on_step=clock.tick, resume=True)
    assert rates[:3] == pytest.approx([1 - 5 / 11, 1 - 5 / 10, 1 - 6 / 10], abs=1e-3)  # on without a jump


def test_both_image_sizes_compile_before_the_schedule_begins(trained, clock, monkeypatch, caplog):
    sides, rates = [], []
    monkeypatch.setattr(
        loop, "compiled", lambda model, *_: lambda images: sides.append(len(images[0, 0])) or model(images)
    )
    monkeypatch.setattr(loop, "set_rates", lambda _, factor: rates.append(factor))

    def slow_first(state, loss):
        clock.now += 5 if sides.count(sides[-1]) == 1 else 1

    recipe = tiny_recipe(
        epochs=1000,
        time_limit="28s",
        augment={"shrink": 0.5, "shrink_until": 0.5},
        optim={"schedule": "linear", "final_rate": 0.0, "warmup": 0.0},
    )
    results = trained(recipe, tiny_set(), on_step=slow_first).results
    assert (results["train_seconds"], results["compile_seconds"]) == (28, 10) and sides == [8] + [4] * 10 + [8] * 9
    assert rates == pytest.approx([1, 1, *(1 - step / 18 for step in range(18))], abs=1e-3)
    assert "compiling took 10 of the 28 s of time_limit: too few may be left to train" in caplog.messages


def test_a_checkpoint_before_a_new_image_size_is_no_compiling(trained, clock, monkeypatch):
    sides, save = [], job_module.save_checkpoint
    monkeypatch.setattr(state_module, "CHECKPOINT_SECONDS", -1)  # after every step
    monkeypatch.setattr(
        loop, "compiled", lambda model, *_: lambda images: sides.append(len(images[0, 0])) or model(images)
    )
    monkeypatch.setattr(job_module, "save_checkpoint", lambda *args: [clock.tick() for _ in range(5)] and save(*args))
    recipe = tiny_recipe(epochs=2, augment={"shrink": 0.5, "shrink_until": 0.5})
    assert trained(recipe, tiny_set(), on_step=clock.tick).results["compile_seconds"] == 2
    assert sides == [8] + [4] * 3 + [8] * 4


def test_a_given_model_reads_its_own_size_again_however_training_ends(tmp_path):
    def fail(state, loss):
        sides.append(model.image_size)
        raise FloatingPointError("of the caller's own")

    recipe, model, sides = tiny_recipe(augment={"shrink": 0.5}), tiny_vit(), []
    with pytest.raises(FloatingPointError, match=r"^of the caller's own$"):  # with no word on rates
        fit(recipe, tiny_set(), model=model, out=tmp_path / "run", on_step=fail, pictures=False)
    assert sides == [(4, 4)] and model.image_size == (8, 8)


def test_a_last_validation_fits_into_the_time_as_long_as_the_longest(trained, clock, monkeypatch):
    judge, spans = loop.shared_logits, iter([3, 1, 1])

    def slow(*args):
        clock.now += next(spans)
        return judge(*args)

    monkeypatch.setattr(loop, "shared_logits", slow)
    rates = []
    monkeypatch.setattr(loop, "set_rates", lambda _, factor: rates.append(factor))
    recipe = tiny_recipe(epochs=1000, time_limit="18s", optim={"schedule": "linear", "final_rate": 0.0, "warmup": 0.0})
    run = trained(recipe, tiny_set(), on_step=clock.tick)
    rows = metrics_rows(run.folder)
    assert [row["seconds"] for row in rows] == ["7.0", "12.0", "16.0"]
    first, others = range(4), (*range(7, 11), *range(12, 15))  # seconds at which their steps begin
    assert rates == pytest.approx([1 - t / 18 for t in first] + [1 - t / 15 for t in others], abs=1e-3)
    assert {row["images_per_second"] for row in rows} == {"8.0"}  # a batch a second, validation aside


def test_a_pass_that_was_cut_short_by_the_clock_ends_with_a_row(trained, clock, monkeypatch):
    recipe = tiny_recipe(epochs=1000, time_limit="10s")

    def stop_late(state, _):
        clock.tick()
        if state.seen == 16:
            os.kill(os.getpid(), signal.SIGINT)

    save = job_module.Job.save
    monkeypatch.setattr(job_module.Job, "save", lambda self: setattr(self.state, "total_seconds", 10.5) or save(self))
    assert trained(recipe, tiny_set(), on_step=stop_late).results is None
    monkeypatch.setattr(job_module.Job, "save", save)
    run = trained(recipe, tiny_set(), on_step=clock.tick, resume=True)
    assert run.results["epochs"] == 1 and len(metrics_rows(run.folder)) == 1


def test_checkpoints_cost_time_but_are_no_training(trained, clock, monkeypatch):
    monkeypatch.setattr(state_module, "CHECKPOINT_SECONDS", 0)  # after every step
    save = job_module.save_checkpoint
    monkeypatch.setattr(job_module, "save_checkpoint", lambda *args: [clock.tick() for _ in range(5)] and save(*args))
    run = trained(tiny_recipe(epochs=2), tiny_set(), on_step=clock.tick)
    assert run.results["images_per_second"] == 8  # a batch a second
    assert run.results["train_seconds"] == 8 + 7 * 5  # all but the last one


def test_a_checkpoint_that_takes_long_is_not_written_after_every_step(trained, clock, monkeypatch):
    saved = []
    monkeypatch.setattr(state_module, "CHECKPOINT_SECONDS", 2)
    save = job_module.save_checkpoint

    def slow(*args):
        clock.now += 5
        saved.append(clock.now)
        save(*args)

    monkeypatch.setattr(job_module, "save_checkpoint", slow)
    trained(tiny_recipe(epochs=1, optim={"batch_size": 4}), tiny_set(), on_step=clock.tick)
    assert saved == [3 + 5, 7 + 10, 9 + 15]  # after the third of nine steps, the seventh and the last


def test_after_an_error_the_model_is_that_of_the_checkpoint(trained, tmp_path, monkeypatch):
    recipe = tiny_recipe(epochs=8, best_by="loss", optim={"learning_rate": 0.01})

    def crash(state, _):
        assert (tmp_path / "run" / "model").exists() is (tmp_path / "run" / "checkpoints").exists() is (state.epoch > 1)
        monkeypatch.setattr(state_module, "CHECKPOINT_SECONDS", -1 if state.epoch == 1 and state.step == 4 else 60)
        if state.epoch == 7:
            assert state.best_epoch > 2  # in memory alone
            raise MemoryError

    with pytest.raises(MemoryError):
        trained(recipe, tiny_set(), on_step=crash)
    results = trained(recipe, tiny_set(), finish=True).results
    best = metrics_rows(tmp_path / "run")[results["best_epoch"] - 1]
    assert results["best_epoch"] <= results["epochs"] == 2
    assert results["val"]["loss"] == pytest.approx(float(best["val_loss"]), abs=1e-6)


def test_epochs_shorter_than_a_minute_are_written_once(trained, monkeypatch):
    written, write = [], job_module.Job.write_model
    monkeypatch.setattr(job_module.Job, "write_model", lambda self, model: written.append(1) or write(self, model))
    run = trained(tiny_recipe(epochs=4, optim={"learning_rate": 0.01}), tiny_set())
    tops = [(float(row["val_top1"]), -float(row["val_loss"])) for row in metrics_rows(run.folder)]
    assert sum(tops[i] > max(tops[:i], default=(0, 0)) for i in range(4)) > 1 and len(written) == 1


def test_without_validation_images_the_last_weights_alone_are_kept(trained, monkeypatch):
    kept, keep = [], job_module.Job.keep
    monkeypatch.setattr(job_module.Job, "keep", lambda self, model: kept.append(self.state.epoch) or keep(self, model))
    trained(tiny_recipe(epochs=3, data={"val_fraction": 0.0}), tiny_set())
    assert kept == [3]


def test_time_that_is_not_needed_changes_nothing(trained, everything, clock):
    limited = trained(tiny_recipe(**EVERYTHING, time_limit="1h"), tiny_set(), on_step=clock.tick)
    assert equal(weights_of(everything.folder), weights_of(limited.folder))


def test_an_interruption_gives_no_extra_time(trained, clock):
    recipe = tiny_recipe(epochs=1000, time_limit=10)

    def stop_in_the_sixth(state, _):
        clock.tick()
        if clock.now == 6:
            os.kill(os.getpid(), signal.SIGINT)

    assert trained(recipe, tiny_set(), on_step=stop_in_the_sixth).results is None
    clock.now = 1000.0
    run = trained(recipe, tiny_set(), resume=True, on_step=clock.tick)
    assert (run.results["train_seconds"], clock.now) == (10, 1004)


# --- it is interrupted ---


@pytest.mark.parametrize(
    "stops", [(1,), (6,), (8,), (12,), (2, 4, 5, 11)], ids=["first step", "middle", "between", "last step", "often"]
)
def test_resume_is_bit_identical(trained, everything, stops):
    recipe, data = tiny_recipe(**EVERYTHING), tiny_set()
    run = trained(recipe, data, "parts", on_step=interrupt_after(*stops))
    for _ in stops:
        if run.results is None:
            assert not (run.folder / "results.json").exists()
            torch.manual_seed(123)  # as any process that starts anew
            run = trained(recipe, data, "parts", resume=True, on_step=interrupt_after(*stops))
    assert untimed(run.results) == untimed(everything.results)
    assert same_files(everything.folder, run.folder) is None


@pytest.mark.parametrize("streamed", [False, True], ids=["resident", "streamed"])
def test_resume_after_a_crash_goes_back_to_the_last_checkpoint(trained, monkeypatch, streamed):
    data = {"val_fraction": 0.25, "workers": 0} | ({"memory_budget": 1e-9} if streamed else {})
    recipe = tiny_recipe(**EVERYTHING, data=data)
    whole = trained(recipe, tiny_set(), "whole")
    monkeypatch.setattr(state_module, "CHECKPOINT_SECONDS", 0)  # after every step

    def crash(state, _):
        if state.epoch * STEPS + state.step == 7:
            raise MemoryError

    with pytest.raises(MemoryError):
        trained(recipe, tiny_set(), "parts", on_step=crash)
    state = checkpoint_of(whole.folder.parent / "parts")["state"]
    assert (state["epoch"], state["step"]) == (1, 2)
    run = trained(recipe, tiny_set(), "parts", resume=True)
    assert same_files(whole.folder, run.folder) is None


@pytest.mark.parametrize("device", ["auto", "cpu"])
@pytest.mark.parametrize("given", ["", "data", "model"])
def test_an_interrupted_run_says_where_and_how_to_go_on(tmp_path, given, device):
    before = signal.getsignal(signal.SIGINT)
    out, text = tmp_path / "my run", io.StringIO()
    options = {"pictures": False, "console": Console(file=text), "on_step": interrupt_after(6), "device": device}
    data = {"source": str(write_images(tmp_path / "photos", 16))}
    model = tiny_vit() if given == "model" else None
    run = fit(tiny_recipe(data=data), tiny_set() if given == "data" else None, model=model, out=out, **options)
    assert run.results is None
    model, place = "model=model, " * (given == "model"), f"out='{out}', " + "device='cpu', " * (device == "cpu")
    call = f"vt.fit(vt.read_recipe('{out}/recipe.yaml'), data, {model}{place}"
    more = " --device cpu" * (device == "cpu")
    again, judged = (
        f"{call}{how}=True)" if given else f"vitreous train --{how} --out '{out}'{more}" for how in ("resume", "finish")
    )
    assert f"stopped in epoch 2, after 2 of its 4 steps; go on with: {again}\n" in text.getvalue()
    assert f"or evaluate it as it is: {judged}\n" in text.getvalue()
    early = io.StringIO()
    fit(
        tiny_recipe(data=data),
        out=tmp_path / "e",
        pictures=False,
        console=Console(file=early),
        on_step=interrupt_after(1),
    )
    assert "go on with: " in early.getvalue() and "evaluate it" not in early.getvalue()  # nothing is to be evaluated
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("ema", [0.0, 0.9])
@pytest.mark.parametrize("val_fraction", [0, 0.25])
def test_an_interrupted_run_may_be_ended_where_it_stands(trained, val_fraction, ema):
    recipe = tiny_recipe(epochs=9, data={"val_fraction": val_fraction}, optim={"ema": ema})
    folder = trained(recipe, tiny_set(), on_step=interrupt_after(7)).folder
    average, present, state = (checkpoint_of(folder)[part] for part in ("average", "model", "state"))
    assert (state["epoch"], state["step"] > 0, bool(average)) == (1, True, bool(ema))
    kept = weights_of(folder) if val_fraction else None
    run = trained(recipe, tiny_set(), finish=True, on_step=pytest.fail)
    assert (run.results["epochs"], run.results["best_epoch"]) == (1, 1) and run.results["test"]["count"] == 12
    last = average or present
    assert equal(weights_of(folder), kept or last)  # those of the last validation; without one, of the last step
    assert run.results["passes"] == state["seen"] / (36 if val_fraction else 48)
    with pytest.raises(ValueError, match="is finished"):
        trained(recipe, tiny_set(), resume=True)


def test_a_run_stopped_while_it_draws_is_drawn_when_it_goes_on(trained, pictures, tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(outcome, "_draw", stop)
        trained(tiny_recipe(epochs=1), tiny_set())
    weights = weights_of(tmp_path / "run")
    run = trained(tiny_recipe(epochs=1), tiny_set(), resume=True, on_step=pytest.fail)
    assert (run.folder / "report.html").exists() and (run.folder / "plots" / "learning_curves.png").exists()
    assert run.results["epochs"] == 1 and equal(weights_of(run.folder), weights)


def test_a_missing_test_image_is_told_before_training_and_a_broken_one_loses_nothing(trained, tmp_path):
    write_images(tmp_path / "photos" / "train", 12)
    write_images(tmp_path / "photos" / "test", 4)
    data, recipe = load(tmp_path / "photos"), tiny_recipe(epochs=1, data={"source": str(tmp_path / "photos")})
    first = tmp_path / "photos" / "test" / "ant" / "000.png"
    first.unlink()
    with pytest.raises(ValueError, match=rf"^{first}, a test image, is not there: put it there, or leave it out by"):
        trained(recipe, data, on_step=pytest.fail)
    first.write_text("broken")
    again = f"training is done and kept: then end the run by vitreous train --resume --out {tmp_path / 'run'}"
    with pytest.raises(ValueError, match=rf"^{first}: not a JPEG, PNG.*{again}$"):
        trained(recipe, None)
    left_out = recipe.with_options("data", skip_broken=True)
    assert trained(left_out, None, resume=True, on_step=pytest.fail).results["test"]["count"] == 11
    longer = recipe.model_copy(update={"epochs": 9})
    trained(longer, None, "other", on_step=interrupt_after(7))
    with pytest.raises(ValueError, match=rf"then end the run by vitreous train --finish --out {tmp_path / 'other'}$"):
        trained(longer, None, "other", finish=True)


def test_a_missing_test_image_of_a_table_may_be_left_out(trained, tmp_path):
    splits = {"train": 12, "test": 4}
    files = [(file, split) for split, n in splits.items() for file in write_images(tmp_path / split, n).rglob("*.png")]
    rows = [f"{file.relative_to(tmp_path)},{file.parent.name},{split}" for file, split in files]
    (tmp_path / "x.csv").write_text("\n".join(["image,label,split", *rows, "gone.png,ant,test"]))
    recipe = tiny_recipe(epochs=1, data={"source": str(tmp_path / "x.csv")})
    with pytest.raises(ValueError, match=r"gone\.png, a test image, is not there: put it there, or leave it out by"):
        trained(recipe, None, on_step=pytest.fail)
    assert trained(recipe.with_options("data", skip_broken=True), None).results["test"]["count"] == 12


@pytest.mark.parametrize("error", [RuntimeError("CUDA out of memory. Tried to allocate"), ValueError("do not fit")])
def test_memory_that_runs_out_when_the_model_is_judged_loses_nothing(trained, tmp_path, monkeypatch, error):
    if isinstance(error, ValueError):  # of images
        error.__cause__ = RuntimeError("DefaultCPUAllocator: can't allocate memory")
    recipe, judge = tiny_recipe(epochs=1), outcome.judge
    monkeypatch.setattr(outcome, "judge", lambda *_, **__: (_ for _ in ()).throw(error))
    said = (
        r"^not enough memory to judge the model; training is done and kept: then end the run by vt\.fit\(.*resume=True"
    )
    with pytest.raises(ValueError, match=rf"{said}\), with data\.memory_budget=0\.1 or on the CPU$"):
        trained(recipe, tiny_set())
    monkeypatch.setattr(outcome, "judge", judge)
    less = recipe.with_options("data", memory_budget=0.1)
    assert trained(less, tiny_set(), resume=True, on_step=pytest.fail).results["epochs"] == 1


def test_a_run_goes_on_with_a_class_whose_accent_is_a_character_of_its_own(trained):
    before, now = (replace(tiny_set(), class_names=("ant", "bee", name)) for name in ("caf\u00e9", "cafe\u0301"))
    trained(tiny_recipe(), before, on_step=interrupt_after(6))
    assert trained(tiny_recipe(), now, resume=True).results["epochs"] == tiny_recipe().epochs


def test_a_run_goes_on_with_its_own_classes_only(trained):
    trained(tiny_recipe(), tiny_set(), on_step=interrupt_after(6))
    other = replace(tiny_set(), class_names=("ant", "bee", "wasp"))
    with pytest.raises(ValueError, match=r"is not what .*run was trained on, whose 3 classes are ant, bee, cat:"):
        trained(tiny_recipe(), other, resume=True)


def test_a_run_of_which_nothing_was_saved_says_that_it_begins_anew(trained):
    run, text = trained(tiny_recipe(), tiny_set(), on_step=interrupt_after(6)), io.StringIO()
    (run.folder / "checkpoints" / "last.pt").unlink()
    fit(tiny_recipe(), tiny_set(), out=run.folder, resume=True, pictures=False, console=Console(file=text))
    assert "nothing of this run has been saved yet, so that it begins anew\n" in text.getvalue()


def test_a_full_disk_prints_no_traceback_of_the_log(tmp_path, capsys, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(logging.FileHandler, "flush", full)
    with show_log(tmp_path / "run", Console(quiet=True)):
        logging.getLogger("vitreous").warning("a finding")
    assert capsys.readouterr().err == ""


def test_a_run_without_a_whole_pass_has_nothing_to_end(trained):
    trained(tiny_recipe(), tiny_set(), on_step=interrupt_after(2))
    with pytest.raises(ValueError, match=r"no complete epoch of the run in .*run is saved: go on with it by --resume"):
        trained(tiny_recipe(), tiny_set(), finish=True)
    assert trained(tiny_recipe(), tiny_set(), resume=True).results["epochs"] == 2


@pytest.fixture
def press_twice(monkeypatch):
    """Ctrl-C, and once more so many seconds later."""

    def pressed(pause):
        clock = itertools.count(0, pause)
        monkeypatch.setattr(signals, "time", SimpleNamespace(monotonic=lambda: next(clock)))

        def on_step(state, _):
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

        return on_step

    return pressed


def test_ctrl_c_in_the_very_last_step_lets_the_run_finish(trained):
    assert trained(tiny_recipe(), tiny_set(), on_step=interrupt_after(2 * STEPS)).results["epochs"] == 2


def test_one_ctrl_c_that_arrives_twice_is_one(trained, press_twice):
    """A terminal signals all its processes, and a parent passes it on."""
    run = trained(tiny_recipe(), tiny_set(), on_step=press_twice(0))
    assert run.results is None and checkpoint_of(run.folder)["state"]["step"] == 1


def test_a_second_ctrl_c_stops_at_once(trained, press_twice, tmp_path):
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        trained(tiny_recipe(), tiny_set(), on_step=press_twice(0.6))
    assert not (tmp_path / "run" / "checkpoints").exists()
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("begun", ["bf16", "float32"])
def test_a_run_that_goes_on_in_another_precision_says_so(trained, monkeypatch, caplog, begun):
    recipe = tiny_recipe(precision="auto")
    monkeypatch.setattr(job_module, "pick_precision", lambda *_: begun)
    trained(recipe, tiny_set(), on_step=interrupt_after(2))
    monkeypatch.setattr(job_module, "pick_precision", lambda *_: "float32")
    run = trained(recipe, tiny_set(), resume=True)
    told = "begun in bf16, and goes on in float32, as this machine does"
    assert (told in caplog.messages) == (begun == "bf16") and run.results["precision"] == "float32"


@pytest.mark.parametrize("early", [False, True], ids=["all epochs", "stopped early"])
def test_a_run_that_could_not_be_judged_is_not_trained_again(trained, monkeypatch, early):
    options = {"patience": 1, "epochs": 9, "optim": FROZEN} if early else {}
    recipe, steps = tiny_recipe(**options), []
    whole = trained(recipe, tiny_set(), "whole")

    def fail(*_, **__):
        raise OSError("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(outcome, "judge", fail)
        said = r"^the disk is gone: put that right; training is done and kept: then end the run by vt\.fit\("
        with pytest.raises(ValueError, match=said):
            trained(recipe, tiny_set(), "parts")
    run = trained(recipe, tiny_set(), "parts", resume=True, on_step=lambda *_: steps.append(1))
    assert not steps and untimed(run.results) == untimed(whole.results)


def test_a_damaged_checkpoint_is_one_clear_error(trained):
    run = trained(tiny_recipe(), tiny_set(), on_step=interrupt_after(2))
    file = run.folder / "checkpoints" / "last.pt"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"last\.pt is damaged .*: remove it to start the run again"):
        trained(tiny_recipe(), tiny_set(), resume=True)


# --- what is refused ---


def test_resume_needs_a_run(trained, tmp_path):
    for name in ("nowhere", "empty"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        with pytest.raises(ValueError, match=rf"^there is no run in {tmp_path / name} to go on with: name its"):
            trained(tiny_recipe(), tiny_set(), name, resume=True)
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 7}, "seed=0, not 7"),
        ({"epochs": 3}, "epochs=2, not 3"),
        ({"optim": {"learning_rate": 0.5}}, "optim.learning_rate=0.003, not 0.5"),
        ({"optim": {"clip": None}}, "optim.clip=1.0, not None"),
        ({"model": {"depth": 2}}, "model.depth=1, not 2"),
        ({"augment": {"flip": 0.5}}, "augment.flip=0.0, not 0.5"),
        ({"precision": "bf16"}, "precision=float32, not bf16"),
        ({"optim": {"betas": (0.5, 0.9)}}, r"optim.betas=\[0.9, 0.999\], not \[0.5, 0.9\]"),
    ],
)
def test_resume_refuses_another_recipe_by_its_first_difference(trained, changes, message):
    run = trained(tiny_recipe(), tiny_set(), on_step=interrupt_after(2))
    before = (run.folder / "recipe.yaml").read_bytes()
    with pytest.raises(ValueError, match=rf"^{run.folder} was started with {message}: resume it as it was, or start"):
        trained(tiny_recipe(**changes), tiny_set(), resume=True)
    assert (run.folder / "recipe.yaml").read_bytes() == before


def test_what_changes_no_weight_may_change_on_the_way(trained, everything):
    pytest.importorskip("tensorboard")
    trained(tiny_recipe(**EVERYTHING), tiny_set(), "parts", on_step=interrupt_after(6))
    data = {"val_fraction": 0.25, "memory_budget": 1e-9, "workers": 0, "skip_broken": True}
    changed = tiny_recipe(**EVERYTHING, data=data, compile=False, track=["tensorboard"])
    run = trained(changed, tiny_set(), "parts", resume=True)
    assert equal(weights_of(everything.folder), weights_of(run.folder))


def test_a_run_from_before_a_key_was_known_goes_on(trained):
    run = trained(tiny_recipe(), tiny_set(), on_step=interrupt_after(2))
    content = checkpoint_of(run.folder)
    del content["recipe"]["patience"], content["recipe"]["optim"]["muon_split_qkv"]
    torch.save(content, run.folder / "checkpoints" / "last.pt")
    with pytest.raises(ValueError, match="was started with patience=None, not 3: "):
        trained(tiny_recipe(patience=3), tiny_set(), resume=True)
    assert trained(tiny_recipe(), tiny_set(), resume=True).results


def test_a_run_without_a_checkpoint_may_change_its_recipe(trained):
    def crash(*_):
        raise MemoryError

    with pytest.raises(MemoryError):
        trained(tiny_recipe(optim={"batch_size": 16}), tiny_set(), on_step=crash)
    run = trained(tiny_recipe(), tiny_set(), resume=True)
    assert same_files(trained(tiny_recipe(), tiny_set(), "other").folder, run.folder) is None


def change_pixel(pixels, labels):
    pixels[5] += 1


def swap_labels(pixels, labels):
    labels[[0, 1]] = labels[[1, 0]]


def reverse(pixels, labels):
    pixels[:], labels[:] = pixels[::-1].copy(), labels[::-1].copy()


def test_images_may_be_decoded_before_an_interruption_and_not_after_it(trained, tmp_path, monkeypatch):
    data = load(write_images(tmp_path / "photos", 12))
    run = trained(tiny_recipe(), data, on_step=interrupt_after(2))
    monkeypatch.setattr(loaders, "IN_MEMORY", -1)
    (tmp_path / "full").touch()
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "full" / "cache"))
    streamed = tiny_recipe(data={"val_fraction": 0.25, "memory_budget": 1e-9, "workers": 0})
    swapped = replace(data, train=Split(data.train.images, data.train.labels[::-1].copy()))
    with pytest.raises(ValueError, match="resume with the same images"):
        trained(streamed, swapped, resume=True)
    run = trained(streamed, data, resume=True)
    assert json.loads((run.folder / "data.json").read_text())["hash"] == {}
    write_shared(run.folder, tmp_path / "shared", run.results)
    assert "SHA-256 of" not in (tmp_path / "shared" / "README.md").read_text()


@pytest.mark.parametrize("change", [change_pixel, swap_labels, reverse])
def test_resume_refuses_other_data(trained, change):
    run = trained(tiny_recipe(), tiny_set(), on_step=interrupt_after(2))
    pixels, labels = stripes()
    change(pixels, labels)
    other = ImageSet.from_arrays(pixels, labels, test=stripes(12, seed=1), class_names=CLASSES, name="stripes")
    with pytest.raises(ValueError, match=rf"^the data is not what {run.folder} was trained on: resume with the same"):
        trained(tiny_recipe(), other, resume=True)
    assert trained(tiny_recipe(), tiny_set(), resume=True).results


def test_one_process_at_a_time_trains_into_a_folder(trained, tmp_path):
    """Two that begin at once: neither sees a run of the other there yet."""

    refused = []

    def begin_another(state, _):
        if state.step == 2:
            said = f"another process trains into {tmp_path / 'run'}: wait for it"
            with pytest.raises(ValueError, match=said), alone(tmp_path / "run"):
                pytest.fail("two at once")
            refused.append(True)

    run = trained(tiny_recipe(epochs=1), tiny_set(), on_step=begin_another)
    assert refused == [True]
    with alone(run.folder):
        pass


def test_a_file_system_without_locks_takes_runs(tmp_path, monkeypatch):
    def none(*_):
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", none)
    with alone(tmp_path / "run") as folder:
        assert folder.is_dir()


def test_a_finished_run_is_left_alone(finished):
    run, data = finished
    before = {path: path.read_bytes() for path in run.folder.rglob("*") if path.is_file()}
    recipe = read_recipe(str(run.folder / "recipe.yaml"))
    with pytest.raises(ValueError, match=r"is finished: start another one, with --out and without --resume$"):
        fit(recipe, data, out=run.folder, resume=True)
    with pytest.raises(ValueError, match=r"already holds a run: go on with it by --resume \(resume=True\), or name an"):
        fit(recipe, data, out=run.folder)
    with pytest.raises(ValueError, match=r"already holds a run"):
        fit(recipe, data, out=run.folder, dry_run=True)
    assert before == {path: path.read_bytes() for path in run.folder.rglob("*") if path.is_file()}


def test_a_folder_with_other_things_is_refused(trained, tmp_path):
    (tmp_path / "run" / "plots").mkdir(parents=True)
    (tmp_path / "run" / "plots" / "mine.png").write_text("")
    with pytest.raises(ValueError, match=r"run is not empty and holds no run: name another folder with --out$"):
        trained(tiny_recipe(), tiny_set())
    assert [path.name for path in (tmp_path / "run" / "plots").iterdir()] == ["mine.png"]
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"file is a file: name another run folder with --out$"):
        trained(tiny_recipe(), tiny_set(), "file")


def test_an_empty_folder_is_taken(trained, tmp_path):
    (tmp_path / "run").mkdir()
    assert trained(tiny_recipe(epochs=1), tiny_set()).results["epochs"] == 1


def test_a_start_that_failed_is_in_nobodys_way(trained, tmp_path):
    data = load(write_images(tmp_path / "photos", 12))
    (tmp_path / "photos" / "ant" / "bad.png").write_text("no picture")
    broken = load(tmp_path / "photos")
    with pytest.raises(ValueError, match=r"ant/bad\.png: not a JPEG, PNG"):
        trained(tiny_recipe(epochs=1), broken)
    assert trained(tiny_recipe(epochs=1), data).results["test"] is None


def test_the_next_free_folder_is_taken_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = {"pictures": False, "console": Console(quiet=True)}
    folders = [fit(tiny_recipe(epochs=1), tiny_set(), **options).folder.as_posix() for _ in range(3)]
    assert folders == ["runs/stripes", "runs/stripes-2", "runs/stripes-3"]


def test_a_place_for_runs_that_is_none_is_an_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").symlink_to(tmp_path / "unmounted")
    with pytest.raises(FileExistsError, match="runs"):
        claimed(None, "photos", False)


def test_runs_that_begin_at_once_have_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert claimed(None, "photos", False) != claimed(None, "photos", False)
    with pytest.raises(ValueError, match="resume needs the run folder"):
        claimed(None, "photos", True)


def test_a_dry_run_and_a_failed_start_leave_the_name_free(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data, quiet = load(write_images(tmp_path / "photos", 12)), {"pictures": False, "console": Console(quiet=True)}
    for _ in range(2):
        assert fit(tiny_recipe(), data, dry_run=True, **quiet).folder.as_posix() == "runs/photos-dry-run"
    (tmp_path / "photos" / "ant" / "bad.png").write_text("no picture")
    with pytest.raises(ValueError, match=r"ant/bad\.png"):
        fit(tiny_recipe(), load(tmp_path / "photos"), **quiet)
    assert fit(tiny_recipe(epochs=1), data, **quiet).folder.as_posix() == "runs/photos"


def test_copies_of_training_images_among_the_test_images_are_told_after_training(trained):
    pixels, labels = stripes(48)
    data = ImageSet.from_arrays(pixels, labels, test=(pixels[:5], labels[:5]), class_names=CLASSES, name="stripes")
    recipe = tiny_recipe(epochs=1, data={"val_fraction": 0})
    run = trained(recipe, data)
    assert "5 of 5 test images are also in train" in (run.folder / "train.log").read_text()
    assert run.results["caution"].startswith("5 of 5 test images are also in train")


def test_copies_of_validation_images_among_the_test_images_are_told_after_training(trained):
    pixels, labels = stripes(12, seed=1)
    held = {"val": (pixels, labels), "test": (pixels[:5], labels[:5])}
    run = trained(tiny_recipe(epochs=1), ImageSet.from_arrays(*stripes(48), **held, class_names=CLASSES))
    told = "5 of 5 test images are also in validation, such as row 0 = row 0"
    assert run.results["caution"] == told and told in (run.folder / "train.log").read_text()


def test_what_was_found_in_the_data_stays_in_the_log(trained):
    pixels, labels = stripes(48)
    data = ImageSet.from_arrays(pixels, labels, val=(pixels[:5], labels[:5]), class_names=CLASSES, name="stripes")
    stopped = []
    options = {"on_step": lambda state, loss: stopped or (stopped.append(1), signal.raise_signal(signal.SIGINT))}
    folder = trained(tiny_recipe(epochs=1), data, **options).folder
    assert not (folder / "results.json").exists()
    trained(tiny_recipe(epochs=1), data, resume=True)
    assert (folder / "results.json").exists()
    found = "WARNING 5 of 5 validation images are also in train"
    assert (folder / "train.log").read_text().count(found) == 1


def test_the_log_is_of_the_run_and_not_of_a_start_that_failed(trained):
    pixels, labels = stripes(48)
    copies = ImageSet.from_arrays(pixels, labels, val=(pixels[:5], labels[:5]), class_names=CLASSES, name="stripes")
    for _ in range(2):
        with pytest.raises(ValueError, match="shift 99 is too far"):
            trained(tiny_recipe(epochs=1, augment={"shift": 99}), copies, pictures=True)
    run = trained(tiny_recipe(epochs=1), tiny_set())
    assert "also in train" not in (run.folder / "train.log").read_text()


def test_a_log_that_was_there_stays_when_a_start_fails(trained, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "train.log").write_text("what tee writes\n")
    with pytest.raises(ValueError, match="shift 99 is too far"):
        trained(tiny_recipe(epochs=1, augment={"shift": 99}), tiny_set(), pictures=True)
    assert (tmp_path / "run" / "train.log").read_text().startswith("what tee writes\n")


def test_what_a_callback_does_to_its_row_stays_with_it(trained):
    def use_up(row):
        row["when"] = row.pop("epoch")
        row["kept"] = np.float64(row["seconds"])

    run = trained(tiny_recipe(epochs=2), tiny_set(), on_epoch=use_up)
    assert [row["epoch"] for row in run.history] == [1, 2] and "kept" not in run.history[0]
    assert [row["epoch"] for row in checkpoint_of(run.folder)["state"]["history"]] == [1, 2]


def test_another_number_of_classes_is_refused(trained, tmp_path):
    with pytest.raises(ValueError, match=r"model\.num_classes is 4 but the data has 3 classes"):
        trained(tiny_recipe(model={"num_classes": 4}), tiny_set())
    assert not (tmp_path / "run").exists()


# --- the test images choose nothing ---


def test_test_pixels_are_read_only_after_the_last_training_step(trained, sealed, pictures):
    def unseal(row):
        assert Sealed.looks == 0
        Sealed.open = row["epoch"] == 2

    run = trained(tiny_recipe(), sealed, on_epoch=unseal)
    assert run.results["test"]["count"] == 12 and Sealed.looks > 0
    assert untimed(run.results) == untimed(trained(tiny_recipe(), tiny_set(), "open").results)


def test_neither_a_dry_run_nor_an_interrupted_one_reads_test_pixels(trained, sealed, pictures):
    trained(tiny_recipe(), sealed, "dry", dry_run=True)
    trained(tiny_recipe(), sealed, on_step=interrupt_after(6))
    trained(tiny_recipe(), sealed, resume=True, on_step=interrupt_after(7))
    assert Sealed.looks == 0


def test_early_stopping_reads_no_test_pixels(trained, sealed):
    def unseal(row):
        assert Sealed.looks == 0
        Sealed.open = row["epoch"] == 2

    recipe = tiny_recipe(epochs=9, patience=1, optim=FROZEN)
    assert trained(recipe, sealed, on_epoch=unseal).results["epochs"] == 2


def test_test_labels_and_images_change_no_weight_and_no_choice(trained):
    recipe = tiny_recipe(epochs=6, patience=3, optim={"learning_rate": 0.02})
    runs = []
    pixels, labels = stripes(12, seed=1)
    others = [(pixels, labels), (pixels, np.roll(labels, 1)), (255 - pixels, labels), (pixels[:3], labels[:3])]
    for i, test in enumerate(others):
        data = ImageSet.from_arrays(*stripes(), test=test, class_names=CLASSES, name="stripes")
        runs.append(trained(recipe, data, str(i)))
    figures = [run.results["test"] for run in runs]
    assert all(figures[0] != other for other in figures[1:])
    for run in runs[1:]:
        assert equal(weights_of(run.folder), weights_of(runs[0].folder))
        same = ("best_epoch", "epochs", "val")
        assert [run.results[key] for key in same] == [runs[0].results[key] for key in same]


def test_validation_images_are_never_trained_on(trained):
    """Other validation pixels may choose another epoch, but train the same weights."""
    weights = []
    for shift in (0, 50):
        pixels, labels = stripes(12, seed=2)
        data = ImageSet.from_arrays(*stripes(36), val=(pixels + np.uint8(shift), labels), class_names=CLASSES)
        run = trained(tiny_recipe(), data, str(shift))
        weights.append(checkpoint_of(run.folder)["model"])
    assert equal(*weights)


# --- which weights are kept ---


def test_the_best_epoch_is_kept_with_its_averaged_weights(trained):
    options = {"epochs": 12, "optim": {"ema": 0.8, "learning_rate": 0.01}}
    run = trained(tiny_recipe(**options), misleading_set())
    rows = metrics_rows(run.folder)
    ranks = [(float(row["val_top1"]), -float(row["val_loss"])) for row in rows]
    best = run.results["best_epoch"]
    assert ranks.index(max(ranks)) + 1 == best < 12
    assert run.results["val"]["top1"] == ranks[best - 1][0]
    assert run.results["val"]["loss"] == pytest.approx(-ranks[best - 1][1], rel=1e-6)
    # the same run, stopped right after that epoch, has these weights as its average
    part = trained(tiny_recipe(**options), misleading_set(), "part", on_step=interrupt_after(best * STEPS))
    checkpoint = checkpoint_of(part.folder)
    assert equal(weights_of(run.folder), checkpoint["average"])
    assert not equal(weights_of(run.folder), checkpoint["model"])


FIGURES = [  # by epoch: val_loss, val_top1, val_f1_macro, val_recall_macro
    (1.0, 0.50, 0.90, 0.40),
    (0.8, 0.75, 0.60, 0.80),
    (0.5, 0.25, 0.50, 0.30),
    (0.7, 0.75, 0.40, 0.50),  # the second top-1 of its height, with a lower loss
    (0.9, 0.50, 0.30, 0.80),  # the second recall, with a higher loss
    (0.5, 0.50, 0.90, 0.70),  # the second F1, with a lower loss, and the second loss
]


@pytest.fixture
def scripted(monkeypatch):
    """Validation figures by epoch, in place of those that the model has."""
    names, rows = ("val_loss", "val_top1", "val_f1_macro", "val_recall_macro"), iter(FIGURES)
    monkeypatch.setattr(loop, "watched", lambda *_: dict(zip(names, next(rows), strict=True)))


@pytest.mark.parametrize(("name", "best"), [("top1", 4), ("f1_macro", 6), ("recall_macro", 2), ("loss", 3)])
def test_a_figure_says_which_epoch_is_best_and_of_equal_ones_the_loss(trained, scripted, name, best):
    vit, weights = tiny_vit(), []
    run = trained(
        tiny_recipe(epochs=6, best_by=name),
        tiny_set(),
        model=vit,
        on_epoch=lambda _: weights.append(copy.deepcopy(vit.state_dict())),
    )
    assert run.results["best_epoch"] == best
    assert [equal(weights_of(run.folder), dict(own)) for own in weights] == [epoch == best for epoch in range(1, 7)]


def test_equal_results_keep_the_first_epoch(trained):
    run = trained(tiny_recipe(epochs=3, optim=FROZEN), tiny_set())
    assert run.results["best_epoch"] == 1 and run.results["epochs"] == 3


@pytest.mark.parametrize(("name", "patience", "best", "epochs"), [("top1", 2, 4, 6), ("recall_macro", 3, 2, 5)])
def test_early_stopping_counts_from_the_best_epoch(trained, scripted, name, patience, best, epochs):
    run = trained(tiny_recipe(epochs=50, best_by=name, patience=patience), tiny_set())
    assert (run.results["best_epoch"], run.results["epochs"]) == (best, epochs)


def test_the_command_is_kept_as_a_shell_takes_it(trained, monkeypatch):
    monkeypatch.setattr("sys.argv", ["/bin/vitreous/__main__.py", "train", "my photos", r"data.group=(slide\d+)"])
    monkeypatch.setattr(folder_module, "commit", lambda: "3f-dirty")
    environment = json.loads((trained(tiny_recipe(epochs=1), tiny_set()).folder / "environment.json").read_text())
    assert environment["command"] == r"vitreous train 'my photos' 'data.group=(slide\d+)'"
    assert environment["commit"] == "3f-dirty"


def test_the_commit_of_the_code_is_kept(tmp_path, monkeypatch):
    code = tmp_path / "src" / "vitreous" / "train" / "folder.py"
    code.parent.mkdir(parents=True)
    code.write_text("")
    monkeypatch.setattr(folder_module, "__file__", str(code))
    for name in [name for name in os.environ if name.startswith("GIT_")]:  # as of a hook, whose repository is another
        monkeypatch.delenv(name)
    for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"):
        monkeypatch.setenv(name, os.devnull)
    assert folder_module.commit() is None

    def git(*words):
        config = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        return subprocess.run(("git", "-C", tmp_path, *config, *words), check=True, capture_output=True, text=True)

    git("init")
    assert folder_module.commit() is None  # nothing is committed yet
    git("add", ".")
    git("commit", "-m", "first")
    short = git("rev-parse", "--short", "HEAD").stdout.strip()
    assert folder_module.commit() == short
    code.write_text("changed")
    assert folder_module.commit() == f"{short}-dirty"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert folder_module.commit() is None  # without git


def test_what_a_run_began_with_stays_its_environment(trained):
    run = trained(tiny_recipe(), tiny_set(), on_step=interrupt_after(2))
    file = run.folder / "environment.json"
    began = json.loads(file.read_text()) | {"device": "a GPU"}
    file.write_text(json.dumps(began))
    trained(tiny_recipe(), tiny_set(), resume=True)
    assert json.loads(file.read_text()) == began


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"epochs": 50, "patience": 2}, "ended after epoch 3 of 50: 2 epochs without a better top-1"),
        (
            {"epochs": 50, "patience": 2, "best_by": "f1_macro"},
            "ended after epoch 3 of 50: 2 epochs without a better F1, macro",
        ),
        ({"epochs": 50, "patience": 9, "time_limit": 4}, "ended after epoch 1 of 50: the time limit of 4 s"),
        ({"epochs": 3, "patience": 2}, None),
    ],
)
def test_a_run_says_why_it_ended_early(tmp_path, clock, settings, told):
    text = io.StringIO()
    recipe = tiny_recipe(**settings, optim=FROZEN)
    options = {"pictures": False, "on_step": clock.tick, "console": Console(file=text)}
    fit(recipe, tiny_set(), out=tmp_path / "run", **options)
    assert [line for line in text.getvalue().splitlines() if line.startswith("ended")] == ([told] if told else [])
    assert ("at most 4 s, into which the schedule is fitted" in text.getvalue()) == ("time_limit" in settings)


def test_the_last_epoch_is_shown_wherever_the_run_ends(tmp_path):
    text = io.StringIO()
    recipe = tiny_recipe(epochs=90, patience=3, optim=FROZEN)  # of so many, every third is shown
    fit(recipe, tiny_set(), out=tmp_path / "run", pictures=False, console=Console(file=text))
    shown = [line.split()[1] for line in text.getvalue().splitlines() if line.startswith("epoch")]
    assert shown == ["3/90", "4/90"]


def test_the_figure_that_chooses_the_epoch_is_shown_by_epoch(tmp_path):
    text = io.StringIO()
    recipe = tiny_recipe(epochs=1, best_by="recall_macro")
    run = fit(recipe, tiny_set(), out=tmp_path / "run", pictures=False, console=Console(file=text))
    (row,) = metrics_rows(run.folder)
    figures = f" top-1 {float(row['val_top1']):.2%} recall, macro {float(row['val_recall_macro']):.2%} *"
    assert figures in text.getvalue()


def test_early_stopping_counts_across_a_resume(trained):
    recipe = tiny_recipe(epochs=50, patience=3, optim=FROZEN)
    trained(recipe, tiny_set(), on_step=interrupt_after(2 * STEPS + 1))
    assert trained(recipe, tiny_set(), resume=True).results["epochs"] == 4


@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_without_validation_images_the_last_step_is_kept(trained, ema):
    run = trained(tiny_recipe(epochs=3, data={"val_fraction": 0}, optim={"ema": ema}), tiny_set())
    assert run.results["val"] is None and run.results["best_epoch"] == run.results["epochs"] == 3
    checkpoint = checkpoint_of(run.folder)
    last = checkpoint["average"]
    assert bool(last) == bool(ema) and equal(weights_of(run.folder), last or checkpoint["model"])
    assert "val_loss" not in metrics_rows(run.folder)[0]


def test_without_test_images_there_are_no_test_figures(trained):
    run = trained(tiny_recipe(epochs=1), ImageSet.from_arrays(*stripes(), name="stripes"))
    assert run.results["test"] is None and run.results["val"]["count"] == 12


def test_the_figures_are_those_of_the_kept_weights(finished):
    run, data = finished
    data = data.with_validation(0.25)
    for split in ("val", "test"):
        assert evaluate(run.folder, data, split=split, precision="float32") == run.results[split]
        assert evaluate(run.bundle, data, split=split, precision="float32") == run.results[split]


def test_a_notebook_shows_figures_and_plots(finished, tmp_path):
    run, _ = finished
    shutil.copytree(run.folder, tmp_path / "run")
    (tmp_path / "run" / "plots").mkdir(exist_ok=True)
    Image.new("RGB", (40, 30), "red").save(tmp_path / "run" / "plots" / "confusion_test.png")
    html = Run.load(tmp_path / "run")._repr_html_()
    assert f'<th scope="row">test top-1</th><td>{run.results["test"]["top1"]:.2%}</td>' in html
    assert "validation loss" in html and html.count("<img src=") == 1 and 'width="20"' in html
    pooled = Run(tmp_path / "cv", {"folds": 3, "pooled": {"top1": 0.5}})._repr_html_()
    assert '<th scope="row">held-out top-1</th><td>50.00%</td>' in pooled and "<img" not in pooled
    assert Run(tmp_path / "cut")._repr_html_().count("<tr>") == 1


# --- it fails ---


@pytest.mark.parametrize("fraction", [0.25, 0])
def test_a_loss_that_is_no_number_stops_the_run_and_names_the_step(trained, tmp_path, fraction):
    recipe = tiny_recipe(optim={"learning_rate": 1e30, "clip": None}, data={"val_fraction": fraction})
    with pytest.raises(FloatingPointError, match=r"^the loss is nan at step [2-6] of epoch 1: .*optim\.clip$"):
        trained(recipe, tiny_set())
    assert not (tmp_path / "run" / "model").exists() and not (tmp_path / "run" / "results.json").exists()


@pytest.mark.parametrize("step", [2, STEPS], ids=["in the pass", "by its last update"])
def test_a_loss_that_is_no_number_overwrites_nothing(trained, tmp_path, monkeypatch, step):
    monkeypatch.setattr(state_module, "CHECKPOINT_SECONDS", 0)  # after every step
    vit = tiny_vit()
    kept, keep = [], job_module.Job.keep

    def copied(job, model):
        kept.append({name: value.clone() for name, value in model.state_dict().items()})
        keep(job, model)

    monkeypatch.setattr(job_module.Job, "keep", copied)
    said = r"^the (last step broke the weights|loss is nan at step [34] of epoch 2: ).* by --finish \(f"
    with pytest.raises(FloatingPointError, match=said):
        trained(tiny_recipe(epochs=3), tiny_set(), model=vit, on_step=poison(vit, epoch=2, step=step))
    assert len(kept) == 1 and equal(weights_of(tmp_path / "run"), kept[0])
    assert not (tmp_path / "run" / "results.json").exists()
    assert len(metrics_rows(tmp_path / "run")) == 1


def test_weights_that_the_last_step_broke_are_not_kept(trained, tmp_path):
    vit, recipe = tiny_vit(), tiny_recipe(epochs=1, data={"val_fraction": 0.0})
    with pytest.raises(FloatingPointError, match=r"^the last step broke the weights, of which 'head\.weight' is not "):
        trained(recipe, tiny_set(36), model=vit, on_step=poison(vit, epoch=1, step=STEPS))
    assert not (tmp_path / "run" / "model").exists()


def test_a_loss_that_is_no_number_is_not_saved(trained, tmp_path, monkeypatch):
    vit = tiny_vit()
    poisoned = poison(vit, epoch=1, step=2)

    def on_step(state, loss):
        poisoned(state, loss)
        monkeypatch.setattr(state_module, "CHECKPOINT_SECONDS", 60 if state.step == 2 else 0)  # after every other step

    with pytest.raises(FloatingPointError, match=r"^the loss is nan at step 3 of epoch 1: .*optim\.clip$"):
        trained(tiny_recipe(), tiny_set(), model=vit, on_step=on_step)
    assert checkpoint_of(tmp_path / "run")["state"]["step"] == 1


@pytest.mark.parametrize("fraction", [0.25, 0])
def test_weights_that_an_update_broke_are_not_saved(trained, tmp_path, monkeypatch, fraction):
    monkeypatch.setattr(state_module, "CHECKPOINT_SECONDS", 0)  # after every step
    vit, recipe = tiny_vit(), tiny_recipe(epochs=3, data={"val_fraction": fraction})
    said = r"^the last step broke the weights, of which 'head\.weight' is not finite: .* by --finish \(finish=True\)$"
    with pytest.raises(FloatingPointError, match=said):
        trained(recipe, tiny_set(), model=vit, on_step=poison(vit, epoch=2, step=2))
    saved = checkpoint_of(tmp_path / "run")
    assert (saved["state"]["epoch"], saved["state"]["step"]) == (1, 1)
    assert trained(recipe, tiny_set(), model=tiny_vit(), finish=True).results["epochs"] == 1


def test_a_run_without_test_images_reports_that_its_temperature_was_fitted_on_those_it_is_judged_on(
    trained, pictures, monkeypatch
):
    monkeypatch.setattr(evaluation, "fit_temperature", lambda *_: 3.0)
    for name, data in {"with": tiny_set(), "without": replace(tiny_set(), test=None)}.items():
        run = trained(tiny_recipe(epochs=1), data, name)
        page = (run.folder / "report.html").read_text()
        assert "divided by 3.000" in page and ("Fitted on these very images" in page) == (name == "without")


def test_the_surest_mistakes_are_drawn_with_their_class_and_the_answer(trained, pictures, monkeypatch):
    drawn = {}
    monkeypatch.setattr(
        pictures, "image_grid", lambda images, titles, path: drawn.update({path.stem: (images, titles)})
    )
    monkeypatch.setattr(evaluation, "fit_temperature", lambda *_: 3.0)
    data = tiny_set()
    run = trained(tiny_recipe(epochs=1, optim={"learning_rate": 1e-3}), data)
    rows = [row for row in answers_of(run.folder) if row["split"] == "test" and row["class"] != row["answer"]]
    rows.sort(key=lambda row: -float(row["probability"]))
    images, titles = drawn["mistakes_test"]
    assert len(rows) > 1 and titles == [f"{row['class']},\nsaid {row['answer']}" for row in rows]
    np.testing.assert_allclose(images, data.test.images.array[[int(row["row"]) for row in rows]] / 255, atol=1e-6)


@pytest.mark.parametrize(
    ("module", "name", "file"),
    [(plots, "learning_curves", "plots/learning_curves.png"), (report, "train_report", "report.html")],
)
def test_a_picture_that_fails_warns_and_loses_nothing(trained, pictures, monkeypatch, caplog, module, name, file):
    def fail(*_, **__):
        raise RuntimeError("no ink")

    monkeypatch.setattr(module, name, fail)
    with caplog.at_level(logging.WARNING):
        run = trained(tiny_recipe(), tiny_set())
    failed = [r.message for r in caplog.records if "chosen by 12 validation images" not in r.message]
    assert failed == [f"could not write {run.folder}/{file}: no ink"] and not (run.folder / file).exists()
    assert run.results["test"]["count"] == 12 and (run.folder / "results.json").exists()
    assert (run.folder / "plots" / "confusion_test.png").exists()
    assert "WARNING could not write" in (run.folder / "train.log").read_text()


def test_a_picture_without_room_is_named_once(tmp_path, caplog):
    with optional(tmp_path / "curves.png") as file:
        replace_file(file, lambda part: Path("/dev/full").write_bytes(b"ink"))
    assert caplog.messages == [f"could not write {file}: No space left on device"]


# --- how sure it is ---


def test_the_temperature_is_fitted_on_validation_and_kept_with_the_model(trained):
    pixels, labels = stripes(48, seed=2)
    labels = np.where(np.arange(48) % 6 == 0, (labels + 1) % 3, labels)  # a sixth is wrong, and the model very sure
    data = ImageSet.from_arrays(*stripes(36), val=(pixels, labels), class_names=CLASSES, name="stripes")
    run = trained(tiny_recipe(epochs=15, optim={"learning_rate": 0.01}), data)
    found = judge(run.bundle, data.val, device=torch.device("cpu"), precision="float32")
    temperature = fit_temperature(found.logits, found.labels)
    assert run.bundle.temperature == temperature != 1
    assert run.results["val"] == found.figures and found.figures["temperature"] == temperature
    before = weights_of(run.folder)
    replace(run.bundle, temperature=1.0).save(run.folder / "model")
    assert equal(weights_of(run.folder), before)  # the weights know nothing of it


def test_without_validation_the_temperature_is_one(trained):
    run = trained(tiny_recipe(epochs=1, data={"val_fraction": 0}), tiny_set())
    assert run.bundle.temperature == 1 == run.results["test"]["temperature"]
    assert run.results["test"]["ece"] == run.results["test"]["ece_unscaled"]


# --- what it leaves ---


def test_the_run_folder_holds_everything(trained, pictures):
    run = trained(tiny_recipe(), tiny_set())
    assert {path.relative_to(run.folder).as_posix() for path in run.folder.rglob("*") if path.is_file()} == {
        "recipe.yaml",
        "environment.json",
        "data.json",
        "metrics.csv",
        "answers.csv",
        "classes.csv",
        "results.json",
        "report.html",
        "train_hashes.bin",
        "train.log",  # 12 validation images are few
        "model/model.safetensors",
        "model/config.json",
        "checkpoints/last.pt",
        "plots/first_batch.png",
        "plots/learning_curves.png",
        "plots/confusion_val.png",
        "plots/confusion_test.png",
        "plots/mistakes_val.png",
        "plots/mistakes_test.png",
    }
    assert all(path.stat().st_size > 0 for path in run.folder.rglob("*") if path.is_file())


def test_results_have_their_keys(finished):
    run, _ = finished
    results = json.loads((run.folder / "results.json").read_text())
    assert results == run.results
    assert set(results) >= {
        "params", "epochs", "passes", "precision", "train_seconds", "compile_seconds", "images_per_second",
        "best_epoch", "val", "test", "seed", "peak_memory",
    }  # fmt: skip
    names = {f"{name}_{average}" for name in ("precision", "recall", "f1") for average in ("macro", "micro")}
    for split in ("val", "test"):
        assert set(results[split]) == names | {
            "loss", "top1", "top5", "count", "ece", "ece_unscaled", "temperature", "auroc",
        }  # fmt: skip
        assert results[split]["top5"] is None and results[split]["count"] == 12
    assert results["params"] == sum(value.numel() for value in weights_of(run.folder).values())
    assert (results["epochs"], results["seed"], results["precision"]) == (4, 3, "float32")
    assert results["train_seconds"] > 0 and results["images_per_second"] > 0


def test_metrics_have_a_row_an_epoch(finished):
    run, _ = finished
    with (run.folder / "metrics.csv").open() as file:
        rows = list(csv.reader(file))
    assert rows[0] == [
        "epoch", "train_loss", "train_top1", "learning_rate", "val_loss", "val_top1", "val_precision_macro",
        "val_recall_macro", "val_f1_macro", "images_per_second", "seconds",
    ]  # fmt: skip
    assert [row[0] for row in rows[1:]] == ["1", "2", "3", "4"]
    assert float(rows[-1][3]) == pytest.approx(0.02 * 0.01)  # the cosine's end


def test_the_recipe_in_the_folder_is_resolved_and_gives_the_same_run(finished, tmp_path):
    run, data = finished
    fields = yaml.safe_load((run.folder / "recipe.yaml").read_text())
    assert fields["model"]["image_size"] == [8, 8] and fields["model"]["num_classes"] == 3
    recipe, options = read_recipe(str(run.folder / "recipe.yaml")), {"pictures": False, "console": Console(quiet=True)}
    again = fit(recipe, data, out=tmp_path / "again", **options)
    assert equal(weights_of(run.folder), weights_of(again.folder))


def test_data_and_environment_are_described(finished):
    run, _ = finished
    content = json.loads((run.folder / "data.json").read_text())
    assert content["counts"] == {"train": 36, "val": 12, "test": 12} and content["classes"] == list(CLASSES)
    assert content["per_class"] == {"train": [12] * 3, "val": [4] * 3, "test": [4] * 3}
    assert set(content["hash"]) == {"train", "val", "test"} and len(set(content["hash"].values())) == 3
    content = json.loads((run.folder / "environment.json").read_text())
    assert content["packages"]["torch"] == importlib.metadata.version("torch")
    assert (content["device"], content["precision"]) == ("cpu", "float32")


def test_the_model_in_the_folder_stands_alone(finished):
    run, data = finished
    bundle = run.bundle
    assert bundle.class_names == CLASSES and bundle.preprocess.image_size == (8, 8)
    pixels = data.with_validation(0.25).train.images.array / 255
    assert bundle.preprocess.mean == pytest.approx([pixels.mean()], abs=1e-6)  # of the training images alone
    assert bundle.preprocess.std == pytest.approx([pixels.std()], abs=1e-6)
    assert not bundle.model.training


def test_callbacks_are_called_once_a_step_and_once_an_epoch(trained):
    steps, rows = [], []
    run = trained(
        tiny_recipe(),
        tiny_set(),
        on_step=lambda state, loss: steps.append((state.epoch, state.step, loss.shape, loss.requires_grad)),
        on_epoch=rows.append,
    )
    assert steps == [(epoch, step, (), False) for epoch in (0, 1) for step in (1, 2, 3, 4)]
    assert [{key: str(value) for key, value in row.items()} for row in rows] == metrics_rows(run.folder)


# --- trying it, and the user's own model ---


def test_a_dry_run_leaves_one_picture_and_a_later_run_its_folder(trained, tmp_path, pictures):
    text = io.StringIO()
    run = fit(tiny_recipe(), tiny_set(), out=tmp_path / "run", dry_run=True, console=Console(file=text))
    assert run.results is None
    assert [p.relative_to(run.folder).as_posix() for p in run.folder.rglob("*") if p.is_file()] == [
        "plots/first_batch.png"
    ]
    said = text.getvalue()
    assert "optim.learning_rate=0.003" in said and "36 training images" in said and "12 test images" in said
    assert "drop_path" not in said  # as it is by default
    assert "s for 2 epochs of 4 steps" in text.getvalue()
    again = trained(tiny_recipe(), tiny_set())
    other = trained(tiny_recipe(), tiny_set(), "other")
    assert same_files(again.folder, other.folder) is None


@pytest.mark.parametrize(
    ("epochs", "limit", "told"),
    [
        (2, None, "about 8 s for 2 epochs of 4 steps"),
        (2, 6, "about 6 s for 1.5 epochs of 4 steps"),
        (2, 1, "about 1 s for 0.25 epochs of 4 steps"),
        (60, None, "about 4 min for 60 epochs of 4 steps"),
        (1, None, "about 9 s for 1 epoch of 1 step"),
        (20, None, "about 20 s for 20 epochs of 1 step"),
    ],
)
def test_a_dry_run_tells_the_time_needed_or_what_the_limit_suffices_for(tmp_path, monkeypatch, epochs, limit, told):
    ticks, text = itertools.chain([0], itertools.count(9)), io.StringIO()  # a second a step after the first
    monkeypatch.setattr(preview, "time", SimpleNamespace(monotonic=lambda: next(ticks)))
    options = {"dry_run": True, "pictures": False, "console": Console(file=text)}
    batch = {"optim": {"batch_size": 36}} if told.endswith(" 1 step") else {}
    fit(tiny_recipe(epochs=epochs, time_limit=limit, **batch), tiny_set(), out=tmp_path / "run", **options)
    assert told in text.getvalue()


@pytest.mark.parametrize(
    ("batch", "seconds", "told"),
    [
        (4, [7, 1, 1, 1, 50, 1, 1, 1], "about 18 s for 2 epochs of 9 steps"),  # a slow step counts for nothing
        (9, [7, 1, 1, 1, 8, 1, 1, 1], "about 16 s for 2 epochs of 4 steps"),  # one in four has a validation before it
    ],
)
def test_a_dry_run_tells_validations_from_a_slow_step(tmp_path, monkeypatch, batch, seconds, told):
    ticks, text = itertools.accumulate([0, *seconds]), io.StringIO()
    monkeypatch.setattr(preview, "time", SimpleNamespace(monotonic=lambda: next(ticks)))
    options = {"dry_run": True, "pictures": False, "console": Console(file=text)}
    fit(tiny_recipe(epochs=2, optim={"batch_size": batch}), tiny_set(), out=tmp_path / "run", **options)
    assert told in text.getvalue()


def test_images_that_are_judged_come_in_batches_for_the_model_not_the_optimiser(trained, monkeypatch):
    monkeypatch.setattr(job_module, "eval_batch_size", lambda config: 5)
    vit, sizes = tiny_vit(), {True: set(), False: set()}
    vit.register_forward_hook(lambda module, _, logits: sizes[module.training].add(len(logits)))
    trained(tiny_recipe(), tiny_set(), model=vit)
    assert sizes == {True: {8}, False: {5, 2}}


def test_a_users_model_is_trained_from_its_present_weights(trained):
    torch.manual_seed(77)
    vit = tiny_vit(dim=32, depth=2)
    torch.nn.init.normal_(vit.head.weight)
    before = {name: value.clone() for name, value in vit.state_dict().items()}
    run = trained(tiny_recipe(epochs=1, optim={"learning_rate": 1e-9, "weight_decay": 0}), tiny_set(), model=vit)
    kept = weights_of(run.folder)
    assert kept.keys() == before.keys() and run.bundle.model.config.dim == 32
    for name, value in before.items():
        torch.testing.assert_close(kept[name], value, rtol=0, atol=1e-6)
    run = trained(tiny_recipe(epochs=1, optim={"learning_rate": 0.01}), tiny_set(), "b", model=vit)
    assert not torch.allclose(weights_of(run.folder)["head.weight"], before["head.weight"], atol=1e-3)


def test_a_users_model_of_another_size_gets_fitted_images(trained):
    vit = tiny_vit(image_size=12, channels=3)
    run = trained(tiny_recipe(epochs=1), tiny_set(), model=vit)
    assert run.bundle.preprocess.shape == (3, 12, 12)


def test_a_users_model_of_other_classes_is_refused(trained):
    vit = tiny_vit(num_classes=5)
    with pytest.raises(ValueError, match=r"^the model has 5 classes and the data 3: call model\.reset_head\(3\)$"):
        trained(tiny_recipe(), tiny_set(), model=vit)
    vit.reset_head(3)
    assert trained(tiny_recipe(epochs=1), tiny_set(), model=vit).results
    with pytest.raises(ValueError, match=r"^the model reads 5 channels, and the images have 1: give them alike$"):
        trained(tiny_recipe(), tiny_set(), "other", model=tiny_vit(channels=5))


def test_broken_files_are_left_out_where_that_is_asked_for(tmp_path):
    write_images(tmp_path / "photos", 12)
    (tmp_path / "photos" / "bee" / "bad.png").write_text("no picture")
    text = io.StringIO()
    recipe = tiny_recipe(epochs=1, data={"skip_broken": True})
    options = {"pictures": False, "console": Console(file=text)}
    run = fit(recipe, load(tmp_path / "photos"), out=tmp_path / "run", **options)
    assert "warning: left out 1 of " in text.getvalue() and "bee/bad.png: not a JPEG, PNG" in text.getvalue()
    counts = json.loads((run.folder / "data.json").read_text())["counts"]
    assert counts["train"] + counts["val"] == 36
    assert "bee/bad.png" in (run.folder / "train.log").read_text()


def test_tracked_figures_are_written(trained):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = trained(tiny_recipe(track=["tensorboard"]), tiny_set())
    (events,) = {path.parent for path in run.folder.rglob("events*") if path.parent.name == "vitreous"}
    scalars = EventAccumulator(str(events))
    scalars.Reload()
    found = [(event.step, event.value) for event in scalars.Scalars("val_loss")]
    expected = [(int(row["epoch"]), float(row["val_loss"])) for row in metrics_rows(run.folder)]
    assert [step for step, _ in found] == [1, 2]
    assert [value for _, value in found] == pytest.approx([value for _, value in expected], rel=1e-6)
    for name, value in (("final_test_top1", "top1"), ("final_test_f1_macro", "f1_macro")):
        (event,) = scalars.Scalars(name)
        assert (event.step, event.value) == (3, pytest.approx(run.results["test"][value], rel=1e-6))


def test_figures_go_to_wandb_without_a_network(trained, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    run = trained(tiny_recipe(track=["wandb"]), tiny_set())
    wandb.teardown()  # the process beside, that writes the log, may be at it when a run has finished
    written = b"".join(log.read_bytes() for log in run.folder.glob("wandb/offline-run-*/run-*.wandb"))
    for words in ("val_top1", "final_test_f1_macro", "optim.learning_rate", "vitreous"):
        assert words.encode() in written


def test_figures_of_a_probe_are_tracked_too(trained, tmp_path):
    pytest.importorskip("tensorboard")
    tiny_bundle().save(tmp_path / "weights")
    start = {"weights": str(tmp_path / "weights"), "probe": True}
    recipe = make_recipe({"epochs": 1, "start": start, "track": ["tensorboard"]}, "test")
    assert next(trained(recipe, tiny_set()).folder.rglob("events*"), None)


def test_a_tracker_is_told_that_a_run_goes_on(tmp_path, monkeypatch):
    given = []

    def start(self, folder, config, tracker_id, resumed):
        given.append((tracker_id, resumed, config))

    monkeypatch.setattr(Engine, "_start_trackers", start)
    options = {"out": tmp_path / "run", "pictures": False, "console": Console(quiet=True)}
    fit(tiny_recipe(), tiny_set(), on_step=interrupt_after(3), **options)
    fit(tiny_recipe(), tiny_set(), resume=True, **options)
    fit(tiny_recipe(), tiny_set(), **options | {"out": tmp_path / "other"})
    assert [resumed for _, resumed, _ in given] == [False, True, False]
    assert given[0][0] == given[1][0] != given[2][0]
    assert given[0][2]["optim.learning_rate"] == 0.003 and given[0][2]["model.image_size"] == "[8, 8]"


def test_a_run_that_fails_leaves_no_tracker_to_the_next(trained, monkeypatch):
    pytest.importorskip("tensorboard")
    ended = []
    monkeypatch.setattr("accelerate.tracking.TensorBoardTracker.finish", lambda self: ended.append(True))

    def fail(row):
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        trained(tiny_recipe(track=["tensorboard"]), tiny_set(), on_epoch=fail)
    assert ended == [True]


def test_a_run_ended_early_tells_of_the_passes_that_it_kept(tmp_path):
    """A process may be killed after a pass and before its checkpoint, which is not written after each."""
    folder, options = tmp_path / "run", {"pictures": False, "console": Console(quiet=True)}
    fit(tiny_recipe(epochs=9), tiny_set(), out=folder, on_step=interrupt_after(2 * STEPS + 1), **options)
    with (folder / "metrics.csv").open("a") as file:
        file.write((folder / "metrics.csv").read_text().splitlines()[-1].replace("2", "3", 1) + "\n")
    run = fit(tiny_recipe(epochs=9), tiny_set(), out=folder, finish=True, **options)
    assert run.results["epochs"] == 2 and [row["epoch"] for row in metrics_rows(folder)] == ["1", "2"]


def test_classes_are_followed_by_epoch(trained):
    pixels, labels = stripes(36, seed=2)
    data = ImageSet.from_arrays(*stripes(36), val=(pixels[labels < 2], labels[labels < 2]), class_names=CLASSES)
    run = trained(tiny_recipe(epochs=3, optim={"learning_rate": 0.01}), data)
    rows = metrics_rows(run.folder)
    best = rows[run.results["best_epoch"] - 1]
    for name in ("loss", "top1", "precision_macro", "recall_macro", "f1_macro"):
        assert float(best[f"val_{name}"]) == pytest.approx(run.results["val"][name], rel=1e-6), name
    assert "val_top5" not in best  # of three classes
    many = trained(tiny_recipe(epochs=1), tiny_set(classes=7), "many")
    assert float(metrics_rows(many.folder)[0]["val_top5"]) == many.results["val"]["top5"]


def test_twice_a_second_it_tells_the_figures_of_the_epoch_so_far(trained, clock, monkeypatch):
    told, losses = [], []
    monkeypatch.setattr(
        job_module.Display, "step", lambda _, state, *figures: told.append((state.epoch, state.step, *figures))
    )

    def step(state, loss):
        clock.now += 0.3
        losses.append(loss.item())

    run = trained(tiny_recipe(epochs=2), tiny_set(), on_step=step)
    assert [row[:2] for row in told] == [(0, 2), (0, 4), (1, 2), (1, 4)]
    assert told[0][2] == pytest.approx(statistics.mean(losses[:2]))
    assert [row[2:] for row in told[1::2]] == [(row["train_loss"], row["train_top1"]) for row in run.history]


def test_the_number_of_channels_is_told_where_it_is_unusual(tmp_path):
    for channels, said in ((3, "36 training images, 12"), (5, "36 training images of 5 channels, 12")):
        text = io.StringIO()
        options = {"pictures": False, "console": Console(file=text, width=200)}
        fit(tiny_recipe(epochs=1), tiny_set(channels=channels), out=tmp_path / str(channels), **options)
        assert f"stripes: {said} for validation" in text.getvalue()


def test_the_terminal_shows_every_epoch(tmp_path):
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=200)
    fit(tiny_recipe(), tiny_set(), out=tmp_path / "run", pictures=False, console=console)
    assert "stripes: 36 training images, 12 for validation, 3 classes" in text.getvalue()
    assert "epoch 1/2" in text.getvalue() and "epoch 2/2 step 4/4" in text.getvalue() and "RAM" in text.getvalue()
    assert load_file(tmp_path / "run" / "model" / "model.safetensors")


@pytest.mark.slow
def test_digits_are_learnt_by_the_shipped_recipe(tmp_path):
    recipe = read_recipe("digits", ["epochs=10", "precision=float32"])
    run = fit(recipe, out=tmp_path / "run", console=Console(file=io.StringIO()))
    assert run.results["test"]["count"] == 360 and run.results["test"]["top1"] > 0.9


def test_on_apples_gpu_a_warning_says_what_is_not_known(tmp_path, monkeypatch, caplog):
    whole = run_module.describe

    def on_apples(job, *given, **named):
        with monkeypatch.context() as patch:
            patch.setattr(job.engine, "device", torch.device("mps"))
            whole(job, *given, **named)

    monkeypatch.setattr(run_module, "describe", on_apples)
    fit(tiny_recipe(epochs=1), tiny_set(), out=tmp_path / "run", console=Console(quiet=True), pictures=False)
    assert NO_MPS in caplog.messages and NO_MPS in (tmp_path / "run" / "train.log").read_text()
