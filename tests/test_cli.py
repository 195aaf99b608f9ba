"""The command line: what it says, where it writes, and one line with exit code 2 for whatever is wrong."""

import csv
import errno
import io
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
import warnings
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import get_type_hints

import pyarrow
import pytest
import torch
import yaml
from PIL import Image
from pyarrow import parquet
from rich.console import Console
from tiny import CLASSES, UNREADABLE, csv_rows, equal, tiny_bundle, tiny_recipe, untimed, weights_of, write_images
from torch._dynamo.exc import TorchDynamoException

from vitreous import embedding, evaluation, prediction
from vitreous.cli import app, output
from vitreous.cli.output import results_table
from vitreous.data import loaders
from vitreous.data.sources import load
from vitreous.explain.methods import integrated_gradients
from vitreous.export import export_run
from vitreous.metrics import NAMES
from vitreous.recipe import read_recipe, recipe_names
from vitreous.train.run import Run, fit
from vitreous.weights import Bundle

RECIPE = """
epochs: 2
precision: float32
model: {patch_size: 4, dim: 16, depth: 1, heads: 2}
data: {val_fraction: 0.25}
optim: {batch_size: 8, learning_rate: 3.0e-3}
"""
START = "from vitreous.cli import main; main()"


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """A folder with a recipe, images, and a finished run on them; tests work in it and leave these as they are."""
    root = tmp_path_factory.mktemp("work")
    write_images(root / "photos" / "train", 12)
    write_images(root / "photos" / "test", 4, seed=1)
    (root / "r.yaml").write_text(RECIPE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITREOUS_CACHE", str(root / "cache"))
        source = {"source": str(root / "photos"), "val_fraction": 0.25}
        fit(tiny_recipe(data=source), out=root / "run", device="cpu", pictures=False, console=Console(quiet=True))
    return root


@pytest.fixture
def vitreous(vitreous, work, monkeypatch):
    """A command in the folder."""
    monkeypatch.chdir(work)
    monkeypatch.setenv("COLUMNS", "200")
    return vitreous


def start(*arguments, folder, **options):
    """A command in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", START, *map(str, arguments)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"COLUMNS": "200"},
        **options,
    )


# --- from training to answers ---


def test_train_evaluate_predict(vitreous, work, tmp_path):
    code, out, err = vitreous("train", "photos", "--recipe", "r.yaml", "--out", tmp_path / "new", "--device", "cpu")
    assert (code, err) == (0, "")
    assert "27 training images, 9 for validation, 3 classes" in out and f"run folder: {tmp_path / 'new'}" in out
    assert f"report: {tmp_path / 'new' / 'report.html'}" in out
    results = json.loads((tmp_path / "new" / "results.json").read_text())
    shown = f"{results['test']['top1']:.2%}"
    assert shown in out
    assert untimed(results) == untimed(json.loads((work / "run" / "results.json").read_text()))
    assert equal(weights_of(tmp_path / "new"), weights_of(work / "run"))

    code, out, err = vitreous("evaluate", tmp_path / "new", "--device", "cpu")
    assert (code, err) == (0, "") and shown in out and "95% interval" in out and "calibration error" in out

    code, out, err = vitreous(
        "predict", tmp_path / "new", "photos/test/ant", "photos/test/bee/00?.png", "--device", "cpu"
    )
    assert (code, err) == (0, "")
    assert [line.partition(": ")[0] for line in out.splitlines()] == [
        f"photos/test/{name}/00{i}.png" for name in ("ant", "bee") for i in range(4)
    ]
    assert all(name in out for name in CLASSES) and out.count("%") == 24


def test_folds_are_trained_and_summed_up(vitreous, tmp_path):
    arguments = ("photos", "epochs=1", "--recipe", "r.yaml", "--folds", 2, "--out", tmp_path / "cv", "--device", "cpu")
    code, out, err = vitreous("train", *arguments)
    assert (code, err) == (0, "")
    results = json.loads((tmp_path / "cv" / "results.json").read_text())
    assert f"2 folds: top-1 {results['top1_mean']:.2%} ± {results['top1_sd']:.2%} (mean ± sd, n = 2)" in out
    assert results["count"] == [18, 18] and "fold 1 of 2:" in out
    assert f"all 36 images, each by the model that had not seen it: top-1 {results['pooled']['top1']:.2%} (95%" in out
    assert f"report: {tmp_path / 'cv' / 'report.html'}" in out and (tmp_path / "cv" / "report.html").exists()
    code, _, err = vitreous("train", "--resume", "--out", tmp_path / "cv")
    assert code == 2 and "is finished" in err
    (tmp_path / "cv" / "results.json").unlink()
    code, _, err = vitreous("train", "--resume", "--out", tmp_path / "cv")
    assert (code, err) == (0, "") and json.loads((tmp_path / "cv" / "results.json").read_text()) == results


def test_a_run_is_probed_tuned_and_asked_for_features(vitreous, work, tmp_path):
    code, out, err = vitreous("train", "photos", "--from", "run", "--recipe", "probe", "--out", tmp_path / "a")
    assert (code, err) == (0, "") and "tensors loaded, named as Vitreous does" in out
    assert json.loads((tmp_path / "a" / "results.json").read_text())["start"]["weights"] == str(work / "run")
    code, out, err = vitreous("train", "photos", "--from", tmp_path / "a", "epochs=1", "--out", tmp_path / "b")
    assert (code, err) == (0, "") and "recipe finetune, as there are weights to start from; --recipe probe" in out
    assert "layer_decay: 0.75" in (tmp_path / "b" / "recipe.yaml").read_text()

    image = work / "photos" / "test" / "bee" / "002.png"
    code, out, err = vitreous(
        "embed", "run", "photos", "--split", "test", "--out", tmp_path / "f.parquet", "--nearest", image
    )
    lines = out.splitlines()
    assert (code, err) == (0, "") and (tmp_path / "f.parquet").is_file()
    assert lines[0] == f"written to {tmp_path / 'f.parquet'}"
    assert lines[1].startswith("test: 12 images, 16 features; 5-NN ") and lines[1].endswith("neighbours from train")
    assert lines[2] == f"1.0000  bee  {image}" and len(lines) == 7
    code, out, _ = vitreous("embed", "run", "--k", 1)
    assert code == 0 and "train: 27 images" in out and "1-NN" in out and "leave-one-out" in out
    assert out.endswith("\nthe model learnt from these images: --split test says more\n")
    code, out, _ = vitreous("embed", "run", "--k", 5000, "--nearest", image)
    assert code == 0 and "; 26-NN " in out and len(out.splitlines()) == 2 + 27
    assert vitreous("embed", "run", "photos")[1].endswith(
        "\nthe model learnt from these images: --split test says more\n"
    )
    for other in (["run", "photos/test"], ["run", "--split", "val"]):
        assert "learnt" not in vitreous("embed", *other)[1]


@pytest.mark.parametrize("split", ["train", "test"])
def test_embed_tells_the_accuracy_of_as_many_neighbours_as_asked_for(vitreous, split):
    bundle, data = embedding.load_features("run"), load("photos")
    own, train = (embedding.embed_split(bundle, data, name, precision="float32") for name in (split, "train"))
    accuracies = [embedding.knn_accuracy(own, None if split == "train" else train, k) for k in (1, 3, 5)]
    assert len(set(accuracies)) > 1
    for k, accuracy in zip((1, 3, 5), accuracies, strict=True):
        out = vitreous("embed", "run", "photos", "--split", split, "--k", k)[1]
        assert f"; {k}-NN {accuracy:.2%}, " in out


def test_settings_follow_data_or_stand_alone(vitreous, work, tmp_path):
    (work / "own.yaml").write_text(RECIPE + "seed: 3\n")
    code, _, _ = vitreous(
        "train", "photos", "epochs=1", "optim.ema=0.5", "--recipe", "own.yaml", "--out", tmp_path / "a"
    )
    assert code == 0
    recipe = (tmp_path / "a" / "recipe.yaml").read_text()
    assert "epochs: 1" in recipe and "ema: 0.5" in recipe and "seed: 3" in recipe
    code, _, _ = vitreous(
        "train", "epochs=1", "data.source=photos", "--recipe", "own.yaml", "--out", tmp_path / "b", "--seed", 8
    )
    assert code == 0 and "seed: 8" in (tmp_path / "b" / "recipe.yaml").read_text()
    assert f"source: {work / 'photos'}" in (tmp_path / "b" / "recipe.yaml").read_text()


def test_a_set_without_a_recipe_gets_one_and_is_told(vitreous, tmp_path):
    code, out, _ = vitreous(
        "train", "photos", "epochs=1", "model.size=nano/4", "model.depth=1", "--out", tmp_path / "a"
    )
    assert code == 0 and "recipe small-images, chosen for 36 training images: augment.shift=1" in out
    assert json.loads((tmp_path / "a" / "results.json").read_text())["epochs"] == 1


def test_the_compilers_advice_on_precision_is_not_passed_on(vitreous, monkeypatch):
    advice = "TensorFloat32 tensor cores for float32 matrix multiplication available but not enabled. Consider"
    monkeypatch.setattr("vitreous.doctor.examine", lambda: warnings.warn(advice, stacklevel=1))
    assert vitreous("doctor") == (0, "", "")


def test_a_dry_run_tells_and_leaves_one_picture(vitreous, tmp_path):
    code, out, _ = vitreous("train", "photos", "--recipe", "r.yaml", "--out", tmp_path / "a", "--dry-run")
    assert code == 0 and "optim.learning_rate=0.003" in out and "s for 2 epochs of 3 steps" in out
    assert [path.name for path in (tmp_path / "a").rglob("*") if path.is_file()] == ["first_batch.png"]


def test_explain_draws_each_image(vitreous, tmp_path):
    out_folder = tmp_path / "maps"
    images = ["photos/test/ant", "photos/test/bee/000.png", "photos/test/bee/*0.png"]  # one of them twice
    code, out, err = vitreous("explain", "run", *images, "--out", out_folder, "--device", "cpu")
    assert (code, err) == (0, "") and len(out.splitlines()) == 5
    assert sorted(path.name for path in out_folder.glob("*.png")) == [
        "000-2.png", "000.png", "001.png", "002.png", "003.png",
    ]  # fmt: skip
    assert out.splitlines()[-1].startswith("photos/test/bee/000.png: ") and f"{out_folder / '000-2.png'}" in out
    content = json.loads((out_folder / "000-2.json").read_text())
    assert content["image"] == "photos/test/bee/000.png" and content["classes"][0] == content["target"]
    code, out, _ = vitreous(
        "explain", "run", "photos/test/ant/000.png", "--out", out_folder, "--target", "cat", "--method", "rollout",
        "--layer", 1, "--head", 2, "--curves",
    )  # fmt: skip
    content = json.loads((out_folder / "000-of-cat-by-rollout-block-1-head-2.json").read_text())
    assert code == 0 and (content["target"], content["method"], content["head"]) == ("cat", "rollout", 2)
    assert content["areas"].keys() == {"rollout", "random"} and "areas, mean of 1 image: deletion " in out
    code, out, _ = vitreous("explain", "run", "photos/test/ant", "--out", tmp_path / "tested", "--curves")
    found = [json.loads(file.read_text())["areas"] for file in (tmp_path / "tested").glob("*.json")]
    deletion, insertion, by_chance, rise = (
        statistics.mean(areas[order][curve] for areas in found)
        for order in ("integrated_gradients", "random")
        for curve in ("deletion", "insertion")
    )
    assert out.splitlines()[-1] == (
        f"areas, mean of {len(found)} images: deletion {deletion:.2f} (random orders {by_chance:.2f}; low is good), "
        f"insertion {insertion:.2f} ({rise:.2f}; high is good)"
    )
    code, out, _ = vitreous("explain", "run", "photos/test/ant/000.png", "--out", out_folder, "--against", "cat")
    assert code == 0 and re.search(rf"% against cat [\d.]+%, see {out_folder / '000-against-cat.png'}", out)
    assert json.loads((out_folder / "000.json").read_text())["against"] is None  # and nothing takes another's place


def test_explain_tells_of_maps_that_do_not_add_up(vitreous, tmp_path, monkeypatch, caplog, undrawn):
    where, told = "vitreous.explain.explanations.integrated_gradients", "maps are inexact: integrated gradients sh"
    command = "explain", "run", "photos/test/ant", "--out", tmp_path / "maps"
    monkeypatch.setattr(where, lambda *given, against: integrated_gradients(*given, steps=1000, against=against))
    assert vitreous(*command)[0] == 0 and told not in caplog.text
    assert vitreous(*command, "--method", "rollout")[0] == 0 and told not in caplog.text
    monkeypatch.setattr(where, lambda model, x, *_, against: torch.zeros(len(x), *model.grid))
    assert vitreous(*command)[0] == 0 and f"4 of 4 {told}" in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--layer", 2], "layer 2 is not there: this model has 1, give 1 to 1"),
        (["--head", 0], "head 0 is not there: this model has 2, give 1 to 2"),
        (["--method", "magic"], "unknown method 'magic': use integrated_gradients, gradient_rollout, rollout"),
        (["--target", "ants"], "unknown class 'ants': did you mean 'ant'? the model knows ant, bee, cat"),
        (["--out", "r.yaml"], "r.yaml is a file: name a folder with --out"),
    ],
)
def test_explain_refuses_in_one_line(vitreous, options, message):
    code, _, err = vitreous("explain", "run", "photos/test/ant/000.png", *options)
    assert code == 2 and err.startswith(f"vitreous: {message}") and err.count("\n") == 1


def test_explain_names_what_is_no_image(vitreous, work, tmp_path):
    bad = tmp_path / "bad.png"
    bad.write_text("x")
    code, out, err = vitreous("explain", "run", bad, "photos/test/ant/000.png", "--out", tmp_path / "maps")
    assert code == 2 and len(out.splitlines()) == 1
    assert err == f"vitreous: {bad}: {UNREADABLE}\n"
    code, _, err = vitreous("walk", "run", bad, "--out", tmp_path / "walk.html")
    assert code == 2 and err == f"vitreous: {bad}: {UNREADABLE}\n"


def test_look_draws_the_model_with_its_own_images(vitreous, tmp_path):
    code, out, err = vitreous("look", "run", "--out", tmp_path / "look", "--count", 6, "--device", "cpu")
    assert (code, err, out) == (0, "", f"pictures: {tmp_path / 'look'}\n")
    assert json.loads((tmp_path / "look" / "look.json").read_text())["images"] == 6
    code, out, _ = vitreous("look", "run", "--out", tmp_path / "other", "--data", "photos", "--device", "cpu")
    assert code == 0 and json.loads((tmp_path / "other" / "look.json").read_text())["images"] == 12


def test_looking_exporting_and_summing_up_ask_no_network(vitreous, work, tmp_path, monkeypatch):
    """Of a run on a set of the Hub that is not kept here."""
    import huggingface_hub

    asked = []

    def snapshot_download(*_, local_files_only, **__):
        asked.append(local_files_only)
        raise OSError("not in the cache")

    monkeypatch.delenv("VITREOUS_DATA", raising=False)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    run = tmp_path / "run"
    shutil.copytree(work / "run", run)
    text = (run / "recipe.yaml").read_text()
    (run / "recipe.yaml").write_text(text.replace(f"source: {work / 'photos'}", "source: mnist"))
    for command in (["look", run, "--out", tmp_path / "x"], ["export", run, "timm"], ["summary", run / "recipe.yaml"]):
        assert vitreous(*command)[0] == 0
    assert asked == [True] * 6  # each for its own parquet files, then for those that the Hub made


def test_features_and_reports_are_of_the_precision_that_the_recipe_asks_for(vitreous, tmp_path, monkeypatch):
    asked, autocast = [], prediction.autocast
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})  # where auto is bf16
    monkeypatch.setattr(prediction, "autocast", lambda where, name: asked.append(name) or autocast(where, name))
    image = "photos/test/bee/002.png"
    assert vitreous("embed", "run", "--split", "test", "--nearest", image, "--device", "cpu")[0] == 0
    assert set(asked) == {"float32"}
    code, out, _ = vitreous("evaluate", "run", "--out", tmp_path / "new", "--device", "cpu")
    assert code == 0 and out.endswith(f"report: {tmp_path / 'new' / 'report.html'}\n")
    assert '<th scope="row">precision</th><td>float32</td>' in (tmp_path / "new" / "report.html").read_text()


def test_files_of_others_are_not_replaced_by_an_evaluation(vitreous, tmp_path):
    (tmp_path / "results.json").write_text('{"test": 1}')
    code, _, err = vitreous("evaluate", "run", "--out", tmp_path)
    assert code == 2 and err == (
        f"vitreous: {tmp_path} holds another results.json, which stays as it is: name another folder with --out\n"
    )
    assert (tmp_path / "results.json").read_text() == '{"test": 1}' and not (tmp_path / "report.html").exists()
    for _ in range(2):  # its own are
        assert vitreous("evaluate", "run", "--out", tmp_path / "new")[0] == 0
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "classes.csv").touch()
    assert "own holds another classes.csv, which stays" in vitreous("evaluate", "run", "--out", tmp_path / "own")[2]
    (tmp_path / "paper").mkdir()
    shutil.copyfile("run/results.json", tmp_path / "paper" / "results.json")
    assert "paper holds another results.json" in vitreous("evaluate", "run", "--out", tmp_path / "paper")[2]


def test_a_setting_stands_against_what_from_leaves_open(vitreous):
    code, _, err = vitreous("train", "photos", "--from", "run", "start.arch=vit_b_16", "--dry-run")
    assert code == 2 and "no architecture 'vit_b_16' here" in err


def test_an_evaluation_that_is_cut_short_leaves_nothing_of_an_earlier_one(vitreous, tmp_path, monkeypatch):
    assert vitreous("evaluate", "run", "--out", tmp_path / "new")[0] == 0

    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("vitreous.report.evaluation_report", stop)
    assert vitreous("evaluate", "run", "--split", "train", "--out", tmp_path / "new")[0] == 130
    left = {file.name for file in (tmp_path / "new").iterdir()}
    assert left == {"evaluation.json", "results.json", "answers.csv", "classes.csv"}
    assert list(json.loads((tmp_path / "new" / "results.json").read_text())) == ["train"]


def test_an_evaluation_is_written_before_its_reader_may_leave(vitreous, tmp_path, monkeypatch):
    def leave(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(Console, "print", leave)
    assert vitreous("evaluate", "run", "--out", tmp_path / "new")[0] == 130
    assert (tmp_path / "new" / "report.html").is_file()


def test_calibrate_writes_a_copy_that_is_as_sure_as_it_is_right(vitreous, work, tmp_path):
    tiny_bundle().save(tmp_path / "model")
    code, out, err = vitreous("calibrate", tmp_path / "model", "photos/train", "--out", tmp_path / "new")
    before, after = Bundle.load(tmp_path / "model"), Bundle.load(tmp_path / "new")
    figures = evaluation.evaluate(after, work / "photos" / "train", device="cpu")
    assert before.temperature == 1 and after.temperature > 2 and figures["ece"] < figures["ece_unscaled"]
    assert (code, err) == (0, "") and out == (
        f"photos/train: 36 images; temperature {after.temperature:.3f} (before: 1.000), calibration error "
        f"on them {figures['ece']:.2%} ({figures['ece_unscaled']:.2%}), on others a little larger\n"
        f"{tmp_path / 'new'}: config.json, model.safetensors\n"
    )
    assert equal(before.model.state_dict(), after.model.state_dict()) and before.class_names == after.class_names
    image = "photos/test/bee/002.png"
    plain, unsure = (next(prediction.predict(bundle, [image])) for bundle in (before, after))
    assert plain.classes == unsure.classes and unsure.probabilities[0] < plain.probabilities[0]
    assert after.digest() == replace(after, calibrated_on=None).digest()  # the model is the same
    cautions = [evaluation.judge_run(tmp_path / "new", work / "photos" / name).caution for name in ("train", "test")]
    assert cautions == ["the temperature was fitted on these images: on others the calibration error is larger", ""]


def test_calibrate_says_where_images_tell_nothing(vitreous, tmp_path, caplog):
    """A copy is written all the same, which knows the run's data and precision."""
    code, out, _ = vitreous("calibrate", "run", "--split", "val", "--out", tmp_path / "new")
    own = Bundle.load("run").temperature
    assert (code, out.splitlines()[0]) == (
        0,
        f"val: 9 images tell no better temperature than {own:.3f} (too few, too often answered right, or it is fitted "
        "to them already): the copy answers as before",
    )
    assert Bundle.load(tmp_path / "new").digest() == Bundle.load("run").digest()
    assert vitreous("evaluate", tmp_path / "new")[:2] == vitreous("evaluate", "run")[:2]
    assert vitreous("evaluate", tmp_path / "new", "photos/train")[0] == 0
    assert "27 of these 36 images are among those that the model learnt from" in caplog.text
    assert prediction.own_precision(tmp_path / "new") == "float32"


@pytest.mark.parametrize(
    ("arguments", "refusal"),
    [
        (["run"], "the model stays as it is: name a folder for the calibrated copy with --out"),
        (["run", "--split", "train", "--out", "new"], "the model learnt from these images, and is surer of them than"),
        (["run", "photos", "--split", "train", "--out", "new"], "the model learnt from these images, and is surer of"),
        (["run", "--out", "run"], "run holds a run, whose files stay as they are"),
        (["run", "--out", "photos/train/new"], "photos/train/new lies within the data, of which"),
        (["run", "photos", "--out", "paper"], "paper holds another config.json, which stays as it is"),
    ],
)
def test_calibrate_leaves_what_is_there_as_it_is(vitreous, work, arguments, refusal, monkeypatch):
    (work / "paper").mkdir(exist_ok=True)
    (work / "paper" / "config.json").write_text("{}")
    code, out, err = vitreous("calibrate", *arguments)
    assert (code, out) == (2, "") and err.startswith("vitreous: ") and refusal in err and err.count("\n") == 1
    assert (work / "paper" / "config.json").read_text() == "{}" and not (work / "new").exists()
    shutil.rmtree(work / "paper")


def test_embed_keeps_to_the_memory_and_the_workers_of_the_run(vitreous, work, tmp_path, monkeypatch):
    run = shutil.copytree(work / "run", tmp_path / "run")
    text = (run / "recipe.yaml").read_text().replace("memory_budget: 4.0", "memory_budget: 3.0")
    (run / "recipe.yaml").write_text(text.replace("workers: 2", "workers: 0"))
    asked = []

    def batches(*given, **more):
        asked.append((more["memory_budget"], more["workers"]))
        return loaders.Batches(*given, **more)

    monkeypatch.setattr(evaluation, "Batches", batches)
    assert vitreous("embed", run, "--split", "test")[0] == 0
    assert asked == [(3 << 30, 0)] * 2  # of the test images, and of those among which neighbours are


def test_a_recipe_without_a_model_of_its_own_has_no_summary(vitreous):
    code, _, err = vitreous("summary", "finetune")
    said = "recipe finetune takes the model of the weights that it starts from: name a run of it, or a size"
    assert (code, err) == (2, f"vitreous: {said}\n")


def test_a_weight_file_is_no_recipe(vitreous, tmp_path):
    tiny_bundle().save(tmp_path / "model")
    code, _, err = vitreous("summary", tmp_path / "model" / "model.safetensors")
    assert code == 2 and "give a run folder, or a folder with model.safetensors" in err and "YAML" not in err


@pytest.mark.parametrize("command", ["evaluate", "embed", "calibrate"])
def test_broken_images_of_other_data_are_left_out_where_that_is_asked_for(vitreous, tmp_path, command):
    photos = write_images(tmp_path / "photos", 4, seed=5)
    (photos / "bee" / "bad.png").write_text("no picture")
    words = [command, "run", photos, *(("--out", tmp_path / "out") if command == "calibrate" else ())]
    code, _, err = vitreous(*words)
    assert code == 2 and err.startswith(f"vitreous: {photos}/bee/bad.png: not a JPEG, PNG")
    code, out, _ = vitreous(*words, "--skip-broken")
    assert code == 0 and re.search(r"\b12 images|\bimages\W+12\b", out)


def test_what_is_written_without_a_name_has_the_one_that_the_readme_gives(vitreous, work, tmp_path, monkeypatch):
    run, image = work / "run", work / "photos/test/cat/001.png"
    monkeypatch.chdir(tmp_path)
    for command in (["look", run, "--count", 2], ["walk", run, image]):
        assert vitreous(*command)[0] == 0
    assert {path.name for path in tmp_path.iterdir()} >= {"look", "walk.html"}
    assert (tmp_path / "look" / "look.json").is_file()


def test_walk_writes_one_page(vitreous, tmp_path):
    code, out, err = vitreous("walk", "run", "photos/test/cat/001.png", "--out", tmp_path / "x" / "walk.html")
    assert (code, err, out) == (0, "", f"page: {tmp_path / 'x' / 'walk.html'}\n")
    assert "001.png through run" in (tmp_path / "x" / "walk.html").read_text()


def test_a_tilde_behind_an_equals_sign_is_the_home_folder(vitreous, work, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    shutil.copytree(work / "photos" / "test" / "bee", tmp_path / "bee")
    code, _, err = vitreous("explain", "run", tmp_path / "bee" / "000.png", "--out=~/bee")
    assert code == 2 and err.startswith(f"vitreous: {tmp_path / 'bee'} holds images that are to be explained")
    shutil.copy(work / "r.yaml", tmp_path / "mine.yaml")
    assert vitreous("recipes", "~/mine.yaml")[1] == RECIPE
    hints = [get_type_hints(command.callback, include_extras=True) for command in app.registered_commands]
    places = [hint for command in hints for hint in command.values() if "pathlib" in str(hint)]
    assert len(places) == 11
    assert all(hint.__metadata__[0].parser("~/new") == tmp_path / "new" for hint in places)


def test_the_attention_of_a_patch_is_asked_for_by_row_and_column(vitreous, tmp_path):
    image = "photos/test/bee/001.png"
    assert vitreous("explain", "run", image, "--patch", "2, 1", "--out", tmp_path)[0] == 0
    assert json.loads((tmp_path / "001-patch-2-1.json").read_text())["patch"] == [2, 1]
    for wrong in ("3", "1,2,3", "a,b", "-1,2"):
        code, _, err = vitreous("explain", "run", image, f"--patch={wrong}", "--out", tmp_path)
        assert (code, err) == (2, f"vitreous: --patch is '{wrong}': give a row and a column, such as 3,5\n")


def test_images_of_the_runs_own_data_are_asked_about_by_their_row(vitreous, work, tmp_path):
    code, out, _ = vitreous("predict", "run", "photos/test/bee/001.png", "test:5")  # ant has 4
    lines = out.splitlines()
    assert code == 0 and lines[1] == lines[0].replace("photos/test/bee/001.png", "test:5")
    code, out, _ = vitreous("explain", "run", "test:5", "val:0", "--out", tmp_path / "maps")
    assert code == 0 and {path.name for path in (tmp_path / "maps").glob("*.png")} == {"test-5.png", "val-0.png"}
    code, _, _ = vitreous("walk", "run", "test:5", "--out", tmp_path / "walk.html")
    assert code == 0 and "test:5 through run" in (tmp_path / "walk.html").read_text()
    code, out, _ = vitreous("embed", "run", "--split", "test", "--nearest", "test:5", "--k", 1)
    assert code == 0 and out.splitlines()[-1].endswith("test/bee/001.png") and "1.0000  bee" in out
    code, _, err = vitreous("predict", "run", "test:12")
    assert code == 2 and err == "vitreous: test:12: test has rows 0 to 11: use one of them\n"
    code, _, err = vitreous("predict", "run", "photos/test/ant/000.png", "train:99999999999999999999")
    assert code == 2 and "train has rows 0 to 26" in err
    shutil.copy(work / "photos/test/ant/000.png", work / "test:5")  # a file of this name is meant, where there is one
    first, second = vitreous("predict", "run", "test:5", "photos/test/ant/000.png")[1].splitlines()
    (work / "test:5").unlink()
    assert second == first.replace("test:5", "photos/test/ant/000.png")


def test_others_weights_are_asked_as_a_run_is(vitreous, work, tmp_path):
    export_run(work / "run", "timm", out=tmp_path / "theirs")
    image = "photos/test/ant/000.png"
    (own,) = prediction.predict(Bundle.of(work / "run"), image)
    theirs = json.loads(vitreous("predict", tmp_path / "theirs", image, "--json")[1])
    assert tuple(theirs["classes"]) == own.classes
    assert theirs["probabilities"] == pytest.approx(own.probabilities, abs=1e-5)
    for command in ("explain", "walk"):
        out = tmp_path / ("maps" if command == "explain" else "walk.html")
        assert vitreous(command, tmp_path / "theirs", image, "--out", out)[0] == 0 and out.exists()
    code, _, _ = vitreous("look", tmp_path / "theirs", "--out", tmp_path / "look")
    assert code == 0 and (tmp_path / "look" / "filters.png").exists()
    code, out, _ = vitreous("evaluate", tmp_path / "theirs", "photos")
    assert code == 0 and re.search(r"\b12 images|\bimages\W+12\b", out)
    code, _, err = vitreous("predict", tmp_path / "theirs", "test:0")
    assert code == 2 and "does not say what it was trained on" in err


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("--arch=nothing", "which has no architecture 'nothing' here: give none"),
        ("--revision=v1", "revision 'v1' belongs to a repository of the Hub, hf:owner/name, not to '"),
    ],
)
@pytest.mark.parametrize(
    "command",
    [
        "evaluate run", "predict run photos/test/ant/000.png", "serve run --port 0", "explain run photos --out OUT",
        "look run --out OUT", "walk run photos/test/ant/000.png --out OUT.html", "embed run",
        "calibrate run photos --out OUT", "export run timm", "train photos --from run --out OUT",
    ],
)  # fmt: skip
def test_commands_pass_on_which_weights_are_meant(vitreous, tmp_path, monkeypatch, command, option, reason):
    monkeypatch.setattr("vitreous.serve.serve", lambda *_: None)  # which would not end
    code, out, err = vitreous(*command.replace("OUT", f"{tmp_path}/x").split(), option)
    assert (code, err.count("\n")) == (2, 1) and reason in err
    assert not out or command.startswith("train")  # which has told its recipe


def test_evaluate_writes_its_figures_beside_the_runs_own(vitreous, work, tmp_path):
    before = (work / "run" / "results.json").read_bytes()
    for split in ("test", "val", "train"):
        code, out, _ = vitreous("evaluate", "run", "--split", split, "--out", tmp_path / split)
        figures = json.loads((tmp_path / split / "results.json").read_text())
        assert code == 0 and list(figures) == [split] and f"{figures[split]['top1']:.2%}" in out
        report = (tmp_path / split / "report.html").read_text()
        assert f"{figures[split]['top1']:.2%}" in report and "vitreous evaluate run --split" in report
        rows = csv_rows(tmp_path / split / "answers.csv")
        assert [row["row"] for row in rows] == [str(i) for i in range(figures[split]["count"])]
        right = [row for row in rows if row["class"] == row["answer"]]
        classes = csv_rows(tmp_path / split / "classes.csv")
        assert {row["split"] for row in classes} == {split} and sum(int(row["right"]) for row in classes) == len(right)
        assert len(right) / len(rows) == pytest.approx(figures[split]["top1"])
        assert all(f"/{row['class']}/" in row["image"] for row in rows)
        assert all(row["probability"] == row["probability_of_class"] for row in right)
        assert all(row["probability_of_class"] == row[f"probability:{row['class']}"] for row in rows)
        assert all(
            sum(float(row[f"probability:{name}"]) for name in CLASSES) == pytest.approx(1, abs=1e-5) for row in rows
        )
        wrong = [row for row in rows if row not in right]
        assert wrong and all(float(row["probability"]) > float(row["probability_of_class"]) for row in wrong)
    assert figures["train"]["count"] == 27
    code, out, _ = vitreous("evaluate", "run", "photos/test")
    assert code == 0 and out.endswith("photos/test has only one split: all its images were judged\n")
    code, out, _ = vitreous("evaluate", "run", "photos/test", "--out", tmp_path / "given")
    assert list(json.loads((tmp_path / "given" / "results.json").read_text())) == ["given"]
    assert "judged on the 12 given images of photos/test" in (tmp_path / "given" / "report.html").read_text()
    code, out, _ = vitreous("evaluate", "run", "photos", "--split", "train", "--out", tmp_path / "all")
    assert json.loads((tmp_path / "all" / "results.json").read_text())["train"]["count"] == 36
    assert (work / "run" / "results.json").read_bytes() == before
    code, _, err = vitreous("evaluate", "run", "--out", "run")
    assert code == 2 and "run holds a run, whose files stay as they are" in err
    assert (work / "run" / "results.json").read_bytes() == before


def test_answers_as_json_and_csv(vitreous, tmp_path, monkeypatch):
    sizes, forward = [], prediction.forward
    monkeypatch.setattr(prediction, "forward", lambda model, x, *rest: sizes.append(len(x)) or forward(model, x, *rest))
    code, out, _ = vitreous("predict", "run", "photos/test/ant", "--json", "--top", 2)
    objects = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and [len(o["classes"]) for o in objects] == [2] * 4
    code, out, _ = vitreous("predict", "run", "photos/test/ant", "--csv", tmp_path / "x.csv", "--batch-size", 3)
    assert sizes == [4, 3, 1]
    rows = csv_rows(tmp_path / "x.csv")
    assert code == 0 and out == "" and len(rows) == 12
    assert [row["class"] for row in rows[:2]] == objects[0]["classes"]
    assert [float(row["probability"]) for row in rows[:2]] == pytest.approx(objects[0]["probabilities"], abs=1e-5)
    monkeypatch.setattr(output, "COUNTING_SECONDS", -1)
    code, out, err = vitreous("predict", "run", "photos/test/ant", "--csv", tmp_path / "x.csv", "--batch-size", 3)
    told = [*(f"{done} of 4 images answered" for done in (1, 2, 3, 4)), f"table: {tmp_path}/x.csv"]
    assert (code, out) == (0, "") and err.splitlines() == told


def test_answers_are_counted_every_few_seconds(monkeypatch, capsys):
    clock = iter([0, 1, 6, 7, 12, 12.5, 13])
    monkeypatch.setattr(output.time, "monotonic", lambda: next(clock))
    assert "".join(output.counted(iter("abcd"), 4)) == "abcd"
    assert capsys.readouterr().err == "2 of 4 images answered\n4 of 4 images answered\n"


def test_a_table_has_a_row_for_each_of_the_five_likeliest_classes(vitreous, tmp_path):
    tiny_bundle(classes=tuple("abcdefg")).save(tmp_path / "model")
    assert vitreous("predict", tmp_path / "model", "photos/test/ant/000.png", "--csv", tmp_path / "x.csv")[0] == 0
    assert [row["rank"] for row in csv_rows(tmp_path / "x.csv")] == list("12345")


def test_a_broken_image_is_named_and_the_others_are_answered(vitreous, tmp_path):
    (tmp_path / "bad.png").write_text("no picture")
    Image.new("L", (8, 8)).save(tmp_path / "good.png")
    code, out, err = vitreous("predict", "run", tmp_path, "photos/test/ant/000.png")
    assert code == 2 and err == f"vitreous: {tmp_path}/bad.png: {UNREADABLE}\n"
    assert [line.partition(": ")[0] for line in out.splitlines()] == [f"{tmp_path}/good.png", "photos/test/ant/000.png"]


@pytest.mark.parametrize("name", ["gone.png", "gone*"])
def test_a_link_to_a_file_that_is_gone_is_named_and_the_others_are_answered(vitreous, tmp_path, name):
    (tmp_path / "gone.png").symlink_to(tmp_path / "nothing.png")
    code, out, err = vitreous("predict", "run", tmp_path / name, "photos/test/ant/000.png")
    assert code == 2 and err == f"vitreous: {tmp_path}/gone.png: No such file or directory\n"
    assert out.startswith("photos/test/ant/000.png: ") and out.count("\n") == 1


@pytest.mark.skipif(sys.platform != "linux", reason="names here are of fewer characters")
def test_what_a_terminal_would_obey_and_what_pillow_says_are_not_printed(vitreous, tmp_path, recwarn):
    exif = b"Exif\0\0II*\0\x08\0\0\0\x05\0"  # cut short
    Image.new("L", (8, 8)).save(tmp_path / "a\x1b[31m\n.jpg", exif=exif)
    (tmp_path / "b\x1b.png").touch()
    os.mkfifo(tmp_path / "c.png")
    code, out, err = vitreous("predict", "run", tmp_path)
    assert code == 2 and out.startswith(f"{tmp_path}/a\\x1b[31m\\n.jpg: ") and out.count("\n") == 1
    assert f"{tmp_path}/b\\x1b.png: not a JPEG" in err and f"{tmp_path}/c.png: a pipe: name an image file\n" in err
    assert "\x1b" not in vitreous("predict", "run", "\x1b")[2] + out + err and not recwarn.list
    write_images(tmp_path / "data", 3, classes=("a\x1b[2J", "b"))
    code, out, _ = vitreous("embed", "run", tmp_path / "data", "--nearest", "photos/test/ant/000.png")
    assert code == 0 and "a\\x1b[2J/" in out and "\x1b" not in out


def test_a_large_image_is_answered_and_a_larger_one_told_its_limit(vitreous, tmp_path, monkeypatch, recwarn):
    for side in (8, 10):
        Image.new("L", (side, side)).save(tmp_path / f"{side}.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 45)  # beyond it Pillow warns, beyond twice as many it refuses
    code, out, err = vitreous("predict", "run", tmp_path / "8.png", tmp_path / "10.png")
    assert code == 2 and out.startswith(f"{tmp_path}/8.png: ") and not recwarn.list
    assert err == f"vitreous: {tmp_path}/10.png: more than the 90 pixels that Pillow opens: make it smaller\n"


def test_a_broken_training_image_is_one_line_and_the_way_out_works(vitreous, work, tmp_path):
    photos = write_images(tmp_path / "photos", 12)
    (photos / "bee" / "bad.png").write_text("no picture")
    command = ["train", photos, "--recipe", work / "r.yaml", "--out", tmp_path / "run"]
    code, _, err = vitreous(*command)
    assert code == 2 and err == (
        f"vitreous: {photos}/bee/bad.png: {UNREADABLE}: "
        "repair or remove it, or skip it: data.skip_broken=true to train, else --skip-broken\n"
    )
    code, out, err = vitreous(*command, "data.skip_broken=true")
    assert (code, err) == (0, "") and "warning: left out 1 of " in out


# --- resuming ---


@pytest.fixture
def stopped(work, tmp_path, monkeypatch):
    """A run that was interrupted in its second epoch."""

    def press(state, _):
        if (state.epoch, state.step) == (1, 1):
            os.kill(os.getpid(), signal.SIGINT)

    recipe = tiny_recipe(data={"source": str(work / "photos"), "val_fraction": 0.25})
    options = {"on_step": press, "pictures": False, "console": Console(quiet=True)}
    return fit(recipe, out=tmp_path / "stopped", **options).folder


def test_a_run_is_resumed_by_its_folder_alone(vitreous, work, stopped):
    code, out, _ = vitreous("train", "--resume", "--out", stopped)
    assert code == 0 and f"run folder: {stopped}" in out
    assert equal(weights_of(stopped), weights_of(work / "run"))
    code, _, err = vitreous("train", "--resume", "--out", stopped)
    said = f"the run in {stopped} is finished: start another one, with --out and without --resume"
    assert (code, err) == (2, f"vitreous: {said}\n")


def test_a_run_is_ended_where_it_stands(vitreous, stopped):
    code, out, _ = vitreous("train", "--finish", "--out", stopped)
    assert code == 0 and "epoch 1 of 1 kept" in out and (stopped / "report.html").exists()
    code, _, err = vitreous("train", "--finish")
    assert code == 2 and err == "vitreous: --finish needs the run folder: name it with --out\n"


def test_a_cross_validation_is_ended_by_its_folds_alone(vitreous, work, tmp_path):
    recipe = tiny_recipe(data={"source": str(work / "photos"), "val_fraction": 0.25, "folds": 2})
    (tmp_path / "recipe.yaml").write_text(recipe.dump())
    code, out, err = vitreous("train", "--finish", "--out", tmp_path)
    message = f"--finish ends a single run, and {tmp_path} is a cross-validation: end one of its folds, as by --finish "
    message += f"--out {tmp_path / 'fold-1'}, or go on with all by --resume"
    assert (code, out, err) == (2, "", f"vitreous: {message}\n")
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.yaml"]


def test_a_run_is_resumed_by_the_command_that_started_it(vitreous, work, stopped):
    code, _, _ = vitreous("train", "photos", "--recipe", "r.yaml", "--resume", "--out", stopped)
    assert code == 0 and equal(weights_of(stopped), weights_of(work / "run"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["epochs=2"], None),
        (["seed=3"], "was started with seed=0, not 3: resume it as it was, or start another run with --out"),
        (["--seed", "3"], "was started with seed=0, not 3"),
        (["photos", "--recipe", "r.yaml", "optim.clip=null"], "was started with optim.clip=1.0, not None"),
    ],
)
def test_a_resumed_run_stays_what_it_was(vitreous, stopped, arguments, message):
    code, _, err = vitreous("train", "--resume", "--out", stopped, *arguments)
    if message is None:
        assert (code, err) == (0, "")
    else:
        assert code == 2 and err.startswith(f"vitreous: {stopped} {message}") and err.count("\n") == 1


def test_a_run_goes_on_where_its_images_have_moved(vitreous, work, stopped, tmp_path):
    shutil.copytree(work / "photos", tmp_path / "moved")
    recipe = (stopped / "recipe.yaml").read_text()
    (stopped / "recipe.yaml").write_text(recipe.replace(str(work / "photos"), str(tmp_path / "before")))
    code, _, err = vitreous("train", "--resume", "--out", stopped)
    assert code == 2 and err == (
        f"vitreous: {tmp_path}/before, the data of this run, is not there: if it has moved, say where it is now, as in "
        f"`vitreous train DATA --resume --out {stopped}`\n"
    )
    code, _, err = vitreous("train", tmp_path / "moved", "--resume", "--out", stopped)
    assert (code, err) == (0, "") and equal(weights_of(stopped), weights_of(work / "run"))
    assert read_recipe(str(stopped / "recipe.yaml")).data.source == str(tmp_path / "moved")


def test_a_run_that_a_broken_test_image_stopped_is_judged_once_that_is_away(vitreous, work, tmp_path):
    shutil.copytree(work / "photos", tmp_path / "photos")
    bad = tmp_path / "photos" / "test" / "ant" / "bad.png"
    bad.write_text("no picture")
    code, _, err = vitreous("train", tmp_path / "photos", "--recipe", "r.yaml", "--out", tmp_path / "run")
    assert code == 2 and err.startswith(f"vitreous: {bad}: not a JPEG, PNG")
    bad.unlink()
    code, _, err = vitreous("train", "--resume", "--out", tmp_path / "run")
    assert (code, err) == (0, "") and equal(weights_of(tmp_path / "run"), weights_of(work / "run"))
    counts = json.loads((tmp_path / "run" / "data.json").read_text())["counts"]
    assert counts == json.loads((work / "run" / "data.json").read_text())["counts"]


def test_a_run_does_not_go_on_with_other_images(vitreous, work, stopped):
    code, _, err = vitreous("train", "photos/test", "--resume", "--out", stopped)
    said = f"vitreous: the data is not what {stopped} was trained on: resume with the same images and version of Pillow"
    assert (code, err) == (2, f"{said}\n")


def test_a_hangup_that_nohup_ignores_stays_ignored(vitreous, monkeypatch):
    before, seen = signal.signal(signal.SIGHUP, signal.SIG_IGN), []
    monkeypatch.setattr(evaluation, "judge_run", lambda *_, **__: seen.append(signal.getsignal(signal.SIGHUP)) or 1 / 0)
    vitreous("evaluate", "run")
    signal.signal(signal.SIGHUP, before)
    assert seen == [signal.SIG_IGN]  # else training would stop when its terminal closes


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_images_are_decoded_leaves_nothing_half_written(vitreous, cache, tmp_path, monkeypatch, number):
    monkeypatch.setattr(loaders, "_decode_all", lambda *_: os.kill(os.getpid(), number))
    before = signal.signal(number, signal.SIG_DFL)  # however the tests were started
    code, _, err = vitreous("train", "photos", "--recipe", "r.yaml", "--out", tmp_path / "run")
    signal.signal(number, before)
    assert code == 128 + number and not list(cache.iterdir())
    assert err == "vitreous: stopped at once; what has begun to train goes on with --resume\n"


def test_resume_names_what_it_lacks(vitreous, tmp_path):
    assert vitreous("train", "photos", "--resume")[::2] == (
        2, "vitreous: --resume needs the run folder: name it with --out\n",
    )  # fmt: skip
    code, _, err = vitreous("train", "--resume", "--out", tmp_path / "none")
    assert code == 2 and err.startswith(f"vitreous: there is no run in {tmp_path / 'none'} to go on with: ")
    assert not (tmp_path / "none").exists()


def test_a_run_is_not_overwritten(vitreous, work):
    before = (work / "run" / "recipe.yaml").read_bytes()
    code, _, err = vitreous("train", "photos", "--recipe", "r.yaml", "--out", "run")
    assert code == 2 and err == (
        "vitreous: run already holds a run: go on with it by --resume (resume=True), or name another folder with "
        "--out\n"
    )
    assert (work / "run" / "recipe.yaml").read_bytes() == before


# --- what is wrong is told in one line ---


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("train nowhere", "'nowhere' is not a file or folder here, nor a known set: give a path, digits"),
        ("train digit", "'digit' is not a file or folder here, nor a known set: did you mean 'digits'? give a path"),
        ("train epochs=3", "nothing to train on: give DATA"),
        (f"train {'x' * 300}=3", "nothing to train on: give DATA"),  # no name of a file, as too long
        ("train digits epoch=3", "unknown key 'epoch'; did you mean 'epochs'?"),
        ("train digits epochs", "'epochs' is not key=value"),
        ("train digits optim.leraning_rate=1", "unknown key 'optim.leraning_rate'; did you mean 'optim.learning_rate'"),
        ("train digits epochs=0", "command line: epochs is 0: input should be greater than 0"),
        ("train digits model.patch_size=3 model.patch_embedding=conv", "command line: "),
        ("train digits --recipe nope", "no recipe 'nope': use "),
        ("train digits data.source=mnist", "digits and data.source=mnist are two values of data.source: give one"),
        ("train digits seed=3 --seed 4", "4 and seed=3 are two values of seed: give one"),
        ("train digits --from a start.weights=b", "a and start.weights=b are two values of start.weights: give one"),
        ("train photos --recipe r.yaml --device cuda:99", "device 'cuda:99' is not available: "),
        ("train photos --recipe r.yaml model.num_classes=4", "model.num_classes is 4 but the data has 3 classes"),
        ("train photos --recipe r.yaml data.val_fraction=0.99", "a validation fraction of 0.99 leaves no image"),
        ("train photos --from nowhere", "no model 'nowhere' here: give a run folder"),
        ("train photos --from photos/test/ant/000.png", "photos/test/ant/000.png is not a weight file"),
        ("train photos --arch B", "--arch B describes the weights given by --from: give --from too"),
        ("train photos --recipe finetune", "start.probe_first is for trained weights: give some with --from"),
        ("train photos --recipe r.yaml --from run model.dim=32", "model.dim is 32, but that of run is 16: leave"),
        ("embed run --split holdout", "photos has no split 'holdout'"),
        ("train r.yaml", "r.yaml is no parquet file, table (.csv, .tsv) or .npz: give one, or a folder"),
        ("train photos --recipe r.yaml --out r.yaml", "r.yaml is a file: name another run folder with --out"),
        ("train photos --recipe r.yaml --out photos", "photos is not empty and holds no run"),
        ("train photos --recipe r.yaml --out photos/train/x", "photos/train/x lies within the data, of which it would"),
        ("train photos/test --recipe r.yaml --out photos/test/x", "photos/test/x lies within the data, of which"),
        ("train photos/test --folds 2 --out photos/test/x", "photos/test/x lies within the data, of which it would"),
        ("train photos --recipe r.yaml --folds 2 data.fold=1", "the recipe has data.fold=1, one of the folds: for all"),
        ("evaluate nowhere", "no model 'nowhere' here: give a run folder"),
        ("evaluate photos", "photos holds no weight file: give a folder with model.safetensors"),
        ("evaluate run nowhere", "'nowhere' is not a file or folder here"),
        ("evaluate run --split holdout", "photos has no split 'holdout': use train or val or test"),
        ("evaluate run digits", "digits: test has class '0' that the model lacks; the model has ant, bee, cat"),
        ("evaluate run --out r.yaml", "r.yaml is a file: name a folder with --out"),
        ("evaluate run photos/test --out photos/test/x", "photos/test/x lies within the data, of which it would"),
        ("evaluate run --out run/model", "run/model holds a trained model, whose files stay as they are: name another"),
        ("look run --out run/look", "run holds a run, whose files stay as they are: name another place"),
        ("look run --out photos/train/x", "photos/train/x lies within the data, of which it would"),
        ("look run --data photos/test --out photos/test/x", "photos/test/x lies within the data, of which it would"),
        ("explain run photos/test/ant --out photos/train/x", "photos/train/x lies within the data, of which"),
        ("explain run photos/test/ant --out run", "run holds a run"),
        ("explain run photos/test/ant --out photos/test/ant", "photos/test/ant holds images that are to be explained"),
        ("walk run photos/test/ant/000.png --out photos/test/ant/000.png", "photos/test/ant/000.png does not end in"),
        ("predict run photos --csv photos/test/ant/000.png", "photos/test/ant/000.png does not end in .csv"),
        ("walk run photos", "photos: a folder: name an image file in it"),
        ("compare run --out run/results.json", "run/results.json does not end in .html"),
        ("embed run --out run/results.json", "run/results.json does not end in .parquet"),
        ("embed run --out photos/x.parquet", "photos/x.parquet lies within the data, of which it would become a part"),
        ("export run timm --out run/model", "run/model holds a trained model, whose files stay as they are"),
        ("export run timm --data photos/test --out photos/test/x", "photos/test/x lies within the data, of which"),
        ("compare run --out=", "Invalid value for '--out': it is empty: name a place"),
        ("predict nowhere photos", "no model 'nowhere' here: give a run folder"),
        (
            "predict https://example.com/m x.png",
            "'https://example.com/m' is a URL, which is not taken: download the model first, and give its file "
            "or folder; others' weights are a file, a folder or hf:owner/name",
        ),
        ("predict run nothing.png", "no image 'nothing.png': give image files, folders or patterns"),
        ("predict run photos --json --csv x.csv", "--json and --csv exclude each other: use one of them"),
        *(
            (f"{command} --device abacus", "device 'abacus' is not available: use ")
            for command in (
                "predict run photos", "evaluate run", "embed run", "look run", "explain run photos/test/ant/000.png",
                "walk run photos/test/ant/000.png", "train photos --recipe r.yaml --folds 2",
                "calibrate run photos --out x",
            )
        ),
        ("summary Q/16", "no model 'Q/16'"),
        ("summary S/16 --image-size 30", "image size 30 is not divisible by patch size 16: use 16 or 32"),
        ("recipes digts", "no recipe 'digts': did you mean 'digits'? use "),
        ("settings learnig_rate", "no setting has 'learnig_rate' in its name or meaning; did you mean 'learning_rate"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_in_one_line(vitreous, work, command, message):
    before = sorted(work.rglob("*"))
    code, _, err = vitreous(*command.split())
    assert code == 2 and err.replace(f"{work}/", "").startswith(f"vitreous: {message}")
    assert err.count("\n") == 1 and err.endswith("\n") and "Traceback" not in err
    new = [path.name for path in work.rglob("*") if path not in before and "runs" not in path.parts]
    assert not new  # nothing is left behind


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("train digits --epochs 3", "No such option: --epochs: settings are given as key=value, such as epochs="),
        ("train digits --lr=3", "No such option: --lr: settings are given as key=value, such as optim.learning_rate="),
        ("train digits --batch-size 3", "No such option: --batch-size: settings are given as key=value, such as opti"),
        ("train digits --gpus 1", "No such option: --gpus: name a GPU with --device, such as --device cuda\n"),
        ("train digits --recpe x", "No such option: --recpe (Possible options: --device, --recipe, --resume)\n"),
        ("train digits --recipe", "Option '--recipe' requires an argument.\n"),
        ("train digits -e 3", "No such option: -e: settings are given as key=value, such as epochs=3\n"),
        ("evaluate run --epochs 3", "No such option: --epochs\n"),
        ("predict run", "Missing argument 'IMAGE...'"),
        ("predict run x.png --top 0", "Invalid value for '--top': Input should be greater than or equal to 1"),
        ("train digits --seed many", "Invalid value for '--seed': Input should be a valid integer"),
        ("fly", "No such command 'fly'"),
    ],
)
def test_a_command_that_is_typed_wrong_is_told_in_one_line(vitreous, command, message):
    code, out, err = vitreous(*command.split())
    assert (code, out) == (2, "") and err.startswith(f"vitreous: {message}") and err.count("\n") == 1


@pytest.mark.parametrize("command", ["", "train", "evaluate", "predict", "compare", "summary"])
def test_a_command_without_arguments_shows_its_help(vitreous, command):
    _, out, err = vitreous(*command.split())
    assert "Usage" in out + err and "Traceback" not in err


@pytest.mark.parametrize("command", [("predict", "", "photos"), ("summary", ""), ("compare", ""), ("push", "", "a/b")])
def test_a_run_without_a_name_is_not_the_current_folder(vitreous, work, monkeypatch, command):
    monkeypatch.chdir(work / "run")
    code, _, err = vitreous(*command)
    assert code == 2 and err.startswith("vitreous: the name of the run is empty: give a run, a shipped name or")


def test_explanations_may_lie_beside_folders_that_are_no_classes(vitreous, tmp_path, monkeypatch):
    write_images(tmp_path, 1)
    (tmp_path / "notes").mkdir()
    run = Path("run").resolve()
    monkeypatch.chdir(tmp_path)
    assert vitreous("explain", run, "ant/000.png")[0] == 0 and Path("explanations/000.png").is_file()
    Path("notes").rmdir()
    code, _, err = vitreous("explain", run, "ant/000.png")
    assert code == 2 and err.startswith("vitreous: explanations lies beside the folders of classes, of which it would")


def test_explanations_do_not_lie_within_the_folder_of_a_class(vitreous, tmp_path, monkeypatch):
    write_images(tmp_path, 1)
    run = Path("run").resolve()
    monkeypatch.chdir(tmp_path / "ant")
    code, _, err = vitreous("explain", run, "000.png")
    said = f"explanations lies within {tmp_path / 'ant'}, the folder of a class, of which it would become a part"
    assert code == 2 and err.startswith(f"vitreous: {said}: name another folder") and not Path("explanations").exists()


@pytest.mark.parametrize("place", ["~/photos/test", "kept"])
def test_data_is_not_written_into_whatever_it_is_called(vitreous, work, tmp_path, monkeypatch, place):
    shutil.copytree(work / "photos", tmp_path / "photos")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("VITREOUS_DATA", str(tmp_path))
    shutil.copytree(work / "photos" / "test", tmp_path / "kept")
    out = tmp_path / (place.removeprefix("~/")) / "x"
    for command in ("evaluate run", "look run --data", "train --recipe r.yaml", "embed run"):
        own = out.with_suffix(".parquet") if "embed" in command else out
        code, _, err = vitreous(*command.split(), place, "--out", own)
        assert code == 2 and err.startswith(f"vitreous: {own} lies within the data, of which it would become a part")
        assert not own.exists()


def test_empty_data_is_refused(vitreous):
    assert vitreous("train", "")[::2] == (2, "vitreous: DATA is empty: give a name, a file or a folder\n")


def test_a_class_folder_that_cannot_be_read_is_named(vitreous, tmp_path, monkeypatch):
    """As root may read anything, the refusal is the system's in name only."""
    photos = write_images(tmp_path / "photos", 3)
    closed = photos / "bee"

    def refuse(name, inside):
        call = getattr(os, name)

        def refusing(path, *more, **options):
            if closed in (Path(path).parents if inside else [Path(path)]):
                raise PermissionError(errno.EACCES, "Permission denied", os.fspath(path))
            return call(path, *more, **options)

        monkeypatch.setattr(os, name, refusing)

    refuse("stat", inside=True)
    refuse("listdir", inside=False)
    refuse("scandir", inside=False)
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != closed and access(path, mode))
    code, _, err = vitreous("train", photos, "--recipe", "r.yaml", "--out", tmp_path / "run")
    line = f"vitreous: Permission denied: {closed}: allow it, as by chmod, or name another place\n"
    assert (code, err) == (2, line)


@pytest.mark.parametrize(
    ("number", "line"),
    [
        (errno.ENOSPC, "No space left on device: make room on the disk, or write to another"),
        (errno.EROFS, "Read-only file system: name another place"),
    ],
)
def test_a_disk_that_takes_nothing_is_told_where_no_file_is_named(vitreous, monkeypatch, number, line):
    def refused(*_, **__):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(evaluation, "judge_run", refused)
    assert vitreous("evaluate", "run") == (2, "", f"vitreous: {line}\n")


def test_a_second_ctrl_c_ends_with_code_130_and_says_what_is_lost(vitreous, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(evaluation, "judge_run", interrupted)
    assert vitreous("evaluate", "run") == (130, "", "vitreous: stopped at once\n")
    monkeypatch.setattr("vitreous.train.run.fit", interrupted)
    line = "vitreous: stopped at once; what has begun to train goes on with --resume\n"
    code, _, err = vitreous("train", "photos", "--recipe", "r.yaml")
    assert (code, err) == (130, line)


def test_a_reader_who_has_enough_sees_no_error(work):
    process = start("predict", "run", *["photos"] * 200, "--batch-size", 1, folder=work)
    assert process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == "" and process.wait(timeout=100) == 0
    process.stderr.close()


def test_a_run_without_test_images_says_so(vitreous, work, tmp_path):
    (tmp_path / "photos").symlink_to(work / "photos" / "train")
    code, out, _ = vitreous("train", tmp_path / "photos", "epochs=1", "--recipe", "r.yaml", "--out", tmp_path / "run")
    assert code == 0 and "There were no test images: the figures are of the validation images" in out
    told = "there are no test images: judged on val\n"
    assert told in vitreous("evaluate", tmp_path / "run")[1]
    assert told not in vitreous("evaluate", tmp_path / "run", "--split", "val")[1]


def test_a_run_with_nothing_to_judge_says_so(vitreous, work, tmp_path):
    (tmp_path / "photos").symlink_to(work / "photos" / "train")
    fields = ["data.val_fraction=0", "epochs=1", "--recipe", "r.yaml", "--out", tmp_path / "run"]
    code, out, _ = vitreous("train", tmp_path / "photos", *fields)
    assert code == 0 and "there are neither validation nor test images: nothing was judged" in out
    assert "top-1 " not in out.partition("nothing was judged")[2]


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("one thing\n  and\tanother"), "one thing and another"),
        (FileNotFoundError(2, "No such file", "x.png"), "No such file: x.png"),
        (FloatingPointError("the loss is nan"), "the loss is nan"),
        (ImportError("vitreous x needs y"), "vitreous x needs y"),
        (OSError(), "OSError"),
        (RuntimeError("CUDA out of memory. Tried"), "not enough memory: use --device cpu, or a machine with more"),
        (MemoryError(), "not enough memory: use --device cpu, or a machine with more"),
        (RuntimeError("DataLoader worker (pid 7) is killed by signal"), "a process that reads images has died, often "),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "not enough memory: use --device cpu, or a "),
        (
            TorchDynamoException("ld: cannot find -lcuda\nmore"),
            "the model does not compile here (ld: cannot find -lc",
        ),
    ],
)
def test_any_error_of_the_users_becomes_one_line(vitreous, monkeypatch, error, line):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(evaluation, "judge_run", fail)
    code, out, err = vitreous("evaluate", "run")
    assert (code, out) == (2, "") and err.startswith(f"vitreous: {line}") and err.count("\n") == 1


@pytest.mark.parametrize("text", ["[gloo/pair.cc:5] Connection closed by peer, memory", "NCCL error: remote exited"])
def test_a_process_that_is_gone_is_told_by_the_others(vitreous, monkeypatch, text):
    def fail(*_, **__):
        raise RuntimeError(text)

    monkeypatch.setattr(evaluation, "judge_run", fail)
    with pytest.raises(RuntimeError):  # alone, it is an error of another kind
        vitreous("evaluate", "run")
    monkeypatch.setenv("WORLD_SIZE", "2")
    code, _, err = vitreous("evaluate", "run")
    assert code == 2 and err.startswith("vitreous: another process of this run has failed; training goes on from its ")


TOO_LARGE = type("NoTritonConfigsError", (RuntimeError,), {"__module__": "torch._inductor.runtime.runtime_utils"})


@pytest.mark.parametrize(
    ("command", "asked", "error", "way_out"),
    [
        ("train photos --recipe r.yaml", "vitreous.train.run.fit", MemoryError(), "choose a smaller model or image, "),
        ("predict run photos", "vitreous.prediction.predict", MemoryError(), "lower --batch-size\n"),
        ("train photos --recipe r.yaml", "vitreous.train.run.fit", RuntimeError("shared memory"), "data.workers=0\n"),
        ("train photos --recipe r.yaml", "vitreous.train.run.fit", TOO_LARGE("shared memory"), "set compile=false\n"),
    ],
)
def test_lack_of_memory_names_the_way_out_of_the_command(vitreous, monkeypatch, command, asked, error, way_out):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(asked, fail)
    code, _, err = vitreous(*command.split())
    assert code == 2 and way_out in err and err.count("\n") == 1


def test_a_mistake_of_ours_is_shown_whole(vitreous, monkeypatch):
    monkeypatch.setattr(evaluation, "judge_run", lambda *_, **__: {}["loss"])
    with pytest.raises(KeyError):
        vitreous("evaluate", "run")
    monkeypatch.setattr(evaluation, "judge_run", lambda *_, **__: torch.ones(2) @ torch.ones(3))
    with pytest.raises(RuntimeError):
        vitreous("evaluate", "run")
    faulty = RuntimeError("CUDA error: an illegal memory access was encountered")
    monkeypatch.setattr(evaluation, "judge_run", lambda *_, **__: (_ for _ in ()).throw(faulty))
    with pytest.raises(RuntimeError, match="illegal"):
        vitreous("evaluate", "run")


def test_a_fault_can_be_traced(vitreous, monkeypatch):
    monkeypatch.setenv("VITREOUS_DEBUG", "1")
    with pytest.raises(ValueError, match="no model 'nowhere'"):
        vitreous("evaluate", "nowhere")


def test_a_process_ends_with_code_2_and_one_line(work):
    process = start("evaluate", "nowhere", folder=work)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("vitreous: no model 'nowhere'")


def test_a_training_that_was_stopped_ends_with_code_130(vitreous, monkeypatch, tmp_path):
    monkeypatch.setattr("vitreous.train.run.fit", lambda *_, **__: Run(tmp_path))
    command = ["train", "photos", "--recipe", "r.yaml"]
    assert vitreous(*command)[::2] == (130, "") and vitreous(*command, "--dry-run")[0] == 0


@pytest.mark.slow
def test_ctrl_c_saves_and_ends_with_code_130(work, tmp_path, ends):
    command = ["train", "photos", "epochs=100000", "--recipe", "r.yaml", "--out", tmp_path / "run"]
    process = ends(start(*command, folder=work))
    deadline = time.monotonic() + 100
    while not (tmp_path / "run" / "metrics.csv").exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=100)
    assert process.returncode == 130 and "Traceback" not in err
    assert f"go on with: vitreous train --resume --out {tmp_path / 'run'}" in out
    assert (tmp_path / "run" / "checkpoints" / "last.pt").exists()


def test_a_reader_who_has_enough_of_a_short_answer_sees_no_error(work):
    process = start("recipes", folder=work)
    process.stdout.close()
    assert process.stderr.read() == "" and process.wait(timeout=100) == 0
    process.stderr.close()


def test_that_only_the_first_page_is_read_is_told_who_asks(vitreous, tmp_path):
    pages = [Image.new("L", (8, 8), level) for level in (0, 90)]
    pages[0].save(tmp_path / "stack.tif", save_all=True, append_images=pages[1:])
    code, _, err = vitreous("predict", "run", tmp_path / "stack.tif")
    said = f"vitreous: only the first page of multi-page files is read, such as {tmp_path / 'stack.tif'}\n"
    assert (code, err) == (0, said)


@pytest.mark.skipif(sys.platform != "linux", reason="names here are always Unicode")
def test_a_name_that_is_not_utf8_costs_no_answer(vitreous, tmp_path):
    for name in (b"b\xff.png", b"ok.png"):
        Image.new("L", (8, 8)).save(tmp_path / os.fsdecode(name))
    code, out, err = vitreous("predict", "run", tmp_path)
    names = [f"{tmp_path}/{name}" for name in (r"b\udcff.png", "ok.png")]
    assert (code, err) == (0, "") and [line.partition(": ")[0] for line in out.splitlines()] == names
    code, _, err = vitreous("predict", "run", tmp_path, "--csv", tmp_path / "x.csv", "--top", 1)
    with (tmp_path / "x.csv").open(encoding="utf-8") as file:
        assert (code, err) == (0, f"table: {tmp_path}/x.csv\n") and [
            row["image"] for row in csv.DictReader(file)
        ] == names
    code, out, err = vitreous("explain", "run", tmp_path, "--out", tmp_path / "maps", "--method", "rollout")
    assert (code, err) == (0, "") and (tmp_path / "maps" / os.fsdecode(b"b\xff-by-rollout.json")).is_file()


# --- looking around ---


@pytest.mark.parametrize(
    ("command", "default"),
    [
        ("train", "the next free runs/NAME"),
        ("evaluate", "the run's own"),
        ("evaluate", "the first of these that there is"),
        ("calibrate", "the run's own"),
        ("embed", "the run's own"),
        ("look", "the run's own"),
        ("explain", "last"),
        ("export", "RUN/export/FORMAT"),
    ],
)
def test_help_shows_defaults(vitreous, command, default):
    code, out, _ = vitreous(command, "--help")
    assert code == 0 and f"[default: {default}]" in " ".join(out.replace("│", "").split())


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["predict", "-h"]])
def test_help_imports_neither_torch_nor_matplotlib(arguments):
    code = (
        f"import sys; sys.argv = ['vitreous', *{arguments!r}]\n"
        "from vitreous.cli import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print('loaded', *({'torch', 'matplotlib', 'numpy', 'sklearn', 'accelerate', 'PIL'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout
    assert "Usage" in out and out.splitlines()[-1] == "loaded"


def test_the_version_is_told(vitreous):
    assert vitreous("--version") == (0, f"vitreous {metadata.version('vitreous')}\n", "")


def test_importing_the_package_costs_nothing():
    code = "import sys, vitreous; dir(vitreous); print({'torch', 'pydantic', 'typer', 'numpy'} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout
    assert out == "set()\n"


@pytest.mark.parametrize(
    ("command", "loaded", "kept_out"),
    [
        ("predict run photos/test/ant/000.png", "vitreous.prediction", {"rich", "vitreous.train", "vitreous.recipe"}),
        ("summary S/16", "vitreous.model.summary", {"vitreous.train.run", "vitreous.train.loop"}),
        ("recipes", "vitreous.recipe", {"rich", "vitreous.train"}),
    ],
)
def test_commands_load_only_what_they_use(work, command, loaded, kept_out):
    """What a command imports decides how long its first answer takes."""
    heavy = {"accelerate", "matplotlib", "sklearn", "scipy", "pandas", "pyarrow", "huggingface_hub", "psutil"}
    code = f"import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); {START}"
    process = subprocess.run(
        [sys.executable, "-c", code, *command.split()], cwd=work, capture_output=True, text=True, timeout=120
    )
    modules = set(process.stderr.splitlines()[-1].split())
    assert process.returncode == 0 and process.stdout and loaded in modules
    assert not modules & (heavy | kept_out)


def test_a_current_folder_that_is_gone_is_told(tmp_path):
    code = f"import os; os.rmdir(os.getcwd()); {START}"
    command = (sys.executable, "-c", code, "recipes")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    line = "vitreous: the current folder is gone: go to one that is there, as by cd\n"
    assert (done.returncode, done.stderr) == (2, line)


def test_a_closed_output_is_no_error():
    command = f"{sys.executable} -c '{START}' recipes >&-"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("command", "file"),
    [("predict run photos/test --csv", "x.csv"), ("embed run --out", "x.parquet"), ("compare run --out", "x.html")],
)
def test_a_file_of_somebody_elses_stays_and_an_own_one_is_written_anew(vitreous, work, tmp_path, command, file):
    code, _, err = vitreous(*command.split(), tmp_path / file)
    assert (code, err) == (0, f"table: {tmp_path}/x.csv\n" if file == "x.csv" else "")
    before = (tmp_path / file).read_bytes()
    (tmp_path / file).write_bytes(before[:-1] + b" " if file == "x.html" else before)
    assert vitreous(*command.split(), tmp_path / file)[0] == 0 and (tmp_path / file).read_bytes() == before
    (tmp_path / file).write_text("file,label,class\n1.png,ant\n")
    code, _, err = vitreous(*command.split(), tmp_path / file)
    assert code == 2 and err.startswith(f"vitreous: {tmp_path / file} holds something else, which stays as it is")
    assert (tmp_path / file).read_text() == "file,label,class\n1.png,ant\n"


def test_a_run_may_lie_beside_the_splits_of_its_data(vitreous, work, tmp_path, monkeypatch):
    shutil.copytree(work / "photos", tmp_path / "photos")
    monkeypatch.chdir(tmp_path / "photos")
    code, _, err = vitreous("train", ".", "--recipe", work / "r.yaml", "epochs=1")
    assert (code, err) == (0, "") and (tmp_path / "photos" / "runs" / "photos" / "results.json").exists()
    monkeypatch.chdir(tmp_path / "photos" / "train")
    code, _, err = vitreous("train", ".", "--recipe", work / "r.yaml", "epochs=1")
    assert code == 2 and "train/runs lies within the data, of which it would become a part: name another folder" in err
    assert not (tmp_path / "photos" / "train" / "runs").exists()


def test_features_do_not_take_the_place_of_the_images(vitreous, work, tmp_path):
    files = sorted((work / "photos" / "train").rglob("*.png"))
    columns = {"image": [file.read_bytes() for file in files], "kind": [file.parent.name for file in files]}
    parquet.write_table(pyarrow.table(columns | {"age": columns["kind"]}), tmp_path / "x.parquet")
    before = (tmp_path / "x.parquet").read_bytes()
    code, _, err = vitreous("embed", "run", f"{tmp_path}/x.parquet:kind", "--out", tmp_path / "x.parquet")
    assert code == 2 and "x.parquet holds something else, which stays as it is: name another file" in err
    assert (tmp_path / "x.parquet").read_bytes() == before
    assert vitreous("embed", "run", f"{tmp_path}/x.parquet:kind", "--out", tmp_path / "y.parquet")[0] == 0


def test_settings_are_listed_by_a_part_of_their_name_or_else_of_their_meaning(vitreous):
    code, out, _ = vitreous("settings", "schedule")
    assert (code, out.splitlines()[0]) == (0, "optim.schedule=cosine   (cosine, linear, onecycle, constant)")
    assert out.splitlines()[1].startswith("    The rate after warm-up.") and "optim.warmup" not in out
    assert vitreous("settings", "Overlapping")[1].startswith("model.patch_embedding=")  # a word of its meaning
    assert vitreous("settings", "lr")[1].startswith("optim.learning_rate=")  # as others call it, and no "already"
    assert vitreous("settings", "LR") == vitreous("settings", "lr")
    assert "\nmodel.dim=" in vitreous("settings", "model")[1]
    _, out, _ = vitreous("settings")
    assert out.startswith("epochs=") and "\noptim.warmup=" in out


def test_settings_are_a_schema_for_editors(vitreous):
    code, out, _ = vitreous("settings", "--schema")
    assert code == 0 and json.loads(out)["$defs"]["OptimOptions"]["properties"]["schedule"]["default"] == "cosine"
    code, _, err = vitreous("settings", "optim", "--schema")
    assert code == 2 and "a schema is of all settings, not of 'optim': leave it out" in err


def test_recipes_are_listed_and_shown_as_they_are_written(vitreous):
    code, out, _ = vitreous("recipes")
    assert code == 0 and [line.split()[0] for line in out.splitlines()] == recipe_names()
    code, out, _ = vitreous("recipes", "digits")
    assert code == 0 and "source: digits" in out


@pytest.mark.parametrize("model", ["S/16", "digits", "run", "r.yaml"])
def test_a_model_is_summed_up_by_size_recipe_or_run(vitreous, model):
    code, out, _ = vitreous("summary", model)
    assert code == 0 and "parameters" in out.lower()


def test_a_summary_of_a_name_of_two_says_which_it_is(vitreous, tmp_path, monkeypatch):
    from vitreous.weights import bundle

    tiny_bundle().save(tmp_path / "digits")
    monkeypatch.setattr(bundle, "SHIPPED", tmp_path)
    said = f"showing the recipe digits; for the trained model: vitreous summary {tmp_path}/digits\n"
    assert vitreous("summary", "digits")[1].startswith(said)
    assert "showing the recipe" not in vitreous("summary", tmp_path / "digits")[1]


def test_a_summary_says_what_are_stand_ins(vitreous):
    _, out, _ = vitreous("summary", "r.yaml", "--channels", 1)
    line = (
        "r.yaml takes these from its data, which is not here; stand-ins are used below: give --image-size, --classes\n"
    )
    assert out.startswith(line)
    for arguments in (["digits"], ["S/16"], ["r.yaml", "--image-size", 8, "--channels", 1, "--classes", 3]):
        assert "stand-ins" not in vitreous("summary", *arguments)[1]


def test_a_summary_has_the_shapes_of_data_that_is_there(vitreous, work, tmp_path):
    """Also where the recipe asks for what a set has only once it is divided, and where one size is left open."""
    fields = yaml.safe_load(RECIPE) | {"patience": 3, "data": {"source": str(work / "photos")}}
    (tmp_path / "x.yaml").write_text(yaml.safe_dump(fields))
    code, out, _ = vitreous("summary", tmp_path / "x.yaml", "--channels", 1)
    assert code == 0 and "stand-ins" not in out and "of 1 x 8 x 8" in out, out
    code, _, err = vitreous("summary", tmp_path / "x.yaml", "--classes", 7)
    assert code == 2 and "model.num_classes is 7 but the data has 3 classes" in err


def test_a_summary_counts_the_papers_parameters(vitreous):
    code, out, _ = vitreous("summary", "B/16")
    assert code == 0 and "86,567,656" in out
    code, out, _ = vitreous("summary", "B/16", "--image-size", 32, "--channels", 1, "--classes", 10)
    expected = 86_567_656 - 768 * (16 * 16 * 2) - 768 * (196 - 4) - 769 * 990
    assert code == 0 and f"{expected:,}" in out


def test_the_doctor_examines_the_machine(vitreous, monkeypatch):
    from vitreous import doctor

    monkeypatch.setattr(doctor, "SIDE", 64)
    code, out, _ = vitreous("doctor")
    assert code == 0 and "Python 3." in out and "GFLOP/s" in out


@pytest.mark.slow
def test_a_real_folder_of_photos_is_trained_on(vitreous, real_data, tmp_path):
    photos, out = real_data("pizza_steak_sushi"), tmp_path / "run"
    code, text, err = vitreous("train", photos, "epochs=2", "model.dim=32", "model.depth=1", "--out", out)
    assert code == 0 and "recipe photos, chosen for 225 training images: optim." in text and err == ""
    results = json.loads((out / "results.json").read_text())
    assert results["test"]["count"] == 75 and results["val"]["count"] == 23
    code, text, _ = vitreous("predict", out, photos / "test" / "sushi", "--top", 1)
    files = [path for path in (photos / "test" / "sushi").iterdir() if path.suffix == ".jpg"]
    assert code == 0 and len(text.splitlines()) == len(files)


def test_a_figure_of_one_split_alone_is_shown():
    plain = {name: 0.5 for name in NAMES if name not in ("groups", "effective_count")} | {"count": 40}
    table = results_table({"val": plain | {"groups": 9, "effective_count": 20.0}, "test": plain})
    console = Console(file=io.StringIO(), width=200)
    console.print(table)
    assert re.search(rf"{NAMES['groups']}\W+9\b", console.file.getvalue())


def test_a_recipe_that_starts_from_no_weights_is_summarised(vitreous, tmp_path):
    model = "{patch_size: 4, patch_embedding: conv_stem, stem_channels: [8]}"
    (tmp_path / "own.yaml").write_text(f"start: {{whiten: true}}\nmodel: {model}")
    code, _, err = vitreous("summary", tmp_path / "own.yaml", "--image-size", "32", "--channels", "3", "--classes", "4")
    assert (code, err) == (0, "")
