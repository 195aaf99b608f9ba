"""The benchmarks run, and compare like with like."""

import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import augment
import faithfulness
import finetune
import loading
import measure
import minutes
import numpy as np
import peers
import pytest
import recipes
import time_to_accuracy  # noqa: F401
import torch
from measure import RESULTS, declare_torchvision_operators
from scaling import exponent

from vitreous.explain import METHODS
from vitreous.model import ViT, ViTConfig
from vitreous.recipe.schema import make_recipe
from vitreous.train.run import fit

BENCHMARKS = Path(augment.__file__).parent


@pytest.fixture(scope="module", autouse=True)
def torchvision_imports():
    declare_torchvision_operators()


@pytest.mark.parametrize(
    ("kind", "amx", "bf16", "capability", "name"),
    [
        ("cpu", True, True, "AVX512", "amx"),
        ("cpu", False, True, "AVX512", "avx512-bf16"),
        ("cpu", False, False, "AVX512", "avx512"),
        ("cpu", False, False, "AVX2", "avx2"),
        ("cuda", True, True, "AVX512", "cuda"),
    ],
)
def test_results_are_named_after_what_multiplies(monkeypatch, kind, amx, bf16, capability, name):
    monkeypatch.setattr(measure, "has_amx", lambda: amx)
    monkeypatch.setattr(measure, "has_fast_bf16", lambda device: bf16)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert measure.units(torch.device(kind)) == name


def test_variants_take_turns_after_one_call_each_and_the_quartiles_are_of_a_call(monkeypatch):
    order, clock = [], 0.0

    def call(name, *seconds):
        nonlocal clock
        clock += seconds[order.count(name)]
        order.append(name)

    variants = {  # of two calls a round, after the warm-up
        "A": partial(call, "A", 99, 1, 3, 3, 3, 5, 15),
        "B": partial(call, "B", 99, *[4] * 6),
        "C": partial(call, "C", 99, 8, 8, 1, 1, 2, 2),
    }
    monkeypatch.setattr(measure, "now", lambda device: clock)
    found = measure.interleaved(variants, torch.device("cpu"), rounds=3, calls=2)
    assert "".join(order) == "ABC" + "AABBCC" + "BBCCAA" + "CCAABB"
    assert found == {
        "A": {"low": 2.5, "median": 3, "high": 6.5},  # 2, 3 and 10 s
        "B": {"low": 4, "median": 4, "high": 4},
        "C": {"low": 1.5, "median": 2, "high": 5},  # 8, 1 and 2 s
    }


def test_no_process_is_left_when_a_step_fails(monkeypatch):
    def fail(*_):
        raise RuntimeError("no memory")

    started = ThreadPoolExecutor(1)
    monkeypatch.setattr(peers, "process", lambda: started)
    monkeypatch.setattr(peers, "interleaved", fail)
    with pytest.raises(RuntimeError, match="no memory"):
        peers.timed([], "training", "float32", peers.SHAPES["small"], torch.device("cpu"), ["eager"], 1, 1)
    with pytest.raises(RuntimeError, match="after shutdown"):
        started.submit(print)


@pytest.mark.parametrize("words", ["--only probe", "--only default", "--quick"])
def test_settings_that_would_change_nothing_are_refused(monkeypatch, capsys, words):
    monkeypatch.setattr(finetune, "trained", lambda *_: pytest.fail("trained"))
    monkeypatch.setattr(sys, "argv", ["finetune.py", *words.split(), "optim.freeze=0"])
    with pytest.raises(SystemExit) as stop:
        finetune.main()
    assert stop.value.code == 2 and "optim.freeze=0: the fine-tuning alone takes settings" in capsys.readouterr().err


def test_benchmarks_that_code_and_makefile_name_are_there():
    root = BENCHMARKS.parent
    files = [
        root / "Makefile",
        *(root / "src").rglob("*.py"),
        *(root / "src").rglob("*.yaml"),
        *BENCHMARKS.glob("*.py"),
    ]
    named = {name for path in files for name in re.findall(r"benchmarks/(\w+\.py)", path.read_text())}
    assert "forms.py" in named and named <= {path.name for path in BENCHMARKS.glob("*.py")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "last"),
    [
        ("forms", "a step of cifar10, 8 images"),
        ("deployment", "batch 32        int8"),
        ("augment", "kornia draws the two RandAugment operations for the whole batch"),
        ("cures", "after two passes"),
        ("loading", "ours, later epochs, streamed"),
        ("peers", "in the same precision"),
        ("reproduction_speed", "faster by"),
        ("scaling", "peak memory, MB"),
        ("finetune", "on the split"),
        ("own_checkpoint", "recipe digits from scratch"),
        ("time_to_accuracy digits", "4s: test top-1"),
    ],
)
def test_quick_runs_print_a_table_and_write_nothing(name, last):
    before = {path: path.stat().st_mtime_ns for path in RESULTS.iterdir()}
    name, *words = name.split()
    command = [sys.executable, "-W", "error", BENCHMARKS / f"{name}.py", *words, "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"COLUMNS": "120"}, timeout=600)
    assert done.returncode == 0 and last in done.stdout, done.stderr
    assert {path: path.stat().st_mtime_ns for path in RESULTS.iterdir()} == before


@pytest.mark.parametrize("policy", augment.POLICIES)
def test_all_peers_give_the_same_kind_of_batch(policy):
    torch.manual_seed(0)
    pixels = torch.randint(100, 200, (64, 3, 32, 32), dtype=torch.uint8)
    calls, missing = augment.make_peers(policy, pixels, torch.arange(64) % augment.CLASSES)
    absent = {name for name in augment.PEERS if find_spec(name.partition(",")[0]) is None}
    assert missing.keys() == absent, missing
    if absent:
        pytest.skip(f"not installed: {', '.join(sorted(absent))}")
    means = {}
    for name, call in calls.items():
        images, _ = call()
        assert images.dtype == torch.float32 and images.shape == pixels.shape
        assert images.min() < -0.1, name  # normalised: raw pixels are never below 0
        means[name] = images.mean().item()
    assert len(means) == 4 and max(means.values()) - min(means.values()) < (0.1 if policy == "light" else 0.6), means


def test_ours_does_all_that_the_strong_policy_says(monkeypatch):
    labels = torch.arange(256) % augment.CLASSES
    gray, ramp = (
        values.to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 32, 32) for values in (150 + 0 * labels, labels)
    )
    plain = augment.Preprocess(image_size=32, mean=augment.MEAN, std=augment.STD).normalise(gray / 255)
    with monkeypatch.context() as patch:
        patch.setattr(augment, "mix", lambda images, labels, *_: (images, labels))
        images, _ = augment.ours("strong", gray, labels)()
    erased = (images.abs().amax(1) < 1e-4).flatten(1).any(1)  # boxes of the mean colour
    altered = ((images - plain).abs() > 1e-3).flatten(1).any(1)[~erased]
    monkeypatch.setattr(augment, "augment", lambda images, *_: images)
    images, targets = augment.ours("strong", ramp, labels)()
    cut = (images.amax((2, 3)) - images.amin((2, 3)) > 1e-4).any(1)
    assert 0.2 < erased.float().mean() < 0.32 and 0.4 < cut.float().mean() < 0.6
    assert 0.45 < altered.float().mean() < 0.65  # by one operation of RandAugment 0.32, by three 0.68
    assert ((targets > 0).sum(1) == 2).all()


def test_the_loaders_read_the_same_pixels(tmp_path):
    loading.write_folder(tmp_path / "photographs", 4)
    split = loading.load(tmp_path / "photographs").train
    preprocess = loading.Preprocess(image_size=loading.SIDE, mean=loading.MEAN, std=loading.STD)
    batches = loading.Batches(split, preprocess, batch_size=4)
    (ours,) = (preprocess.normalise(batch.images) for batch in batches.epoch(torch.arange(4)))
    dataset = loading.torchvision_dataset(tmp_path / "photographs")
    theirs = torch.stack([dataset[row][0] for row in range(4)])
    levels = 255 * (ours - theirs).abs() * torch.tensor(loading.STD).view(-1, 1, 1)
    assert levels.max() < 1.5 and levels.mean() < 0.05


@pytest.mark.parametrize("power", [0.0, 1.0, 1.7])
def test_the_exponent_of_a_power_law_is_its_power(power):
    x = np.array([1e3, 1e4, 1e6])
    assert exponent(x, 3 * x**power) == pytest.approx(power, abs=1e-12)


def test_a_run_that_was_interrupted_ends_the_list_goes_on_next_time_and_is_then_kept(
    recipe, image_set, tmp_path, monkeypatch
):
    seen = []

    def interrupt(state, loss):
        seen.append((state.epoch, state.step))
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(measure, "fit", partial(fit, on_step=interrupt, pictures=False))
    with pytest.raises(KeyboardInterrupt):
        measure.trained(recipe, image_set, tmp_path / "run", "cpu")
    assert len(seen) == 1

    def count(state, loss):
        seen.append((state.epoch, state.step))

    monkeypatch.setattr(measure, "fit", partial(fit, on_step=count, pictures=False))
    results = measure.trained(recipe, image_set, tmp_path / "run", "cpu")
    assert results["epochs"] == 2 and len(set(seen)) == len(seen) > 2

    monkeypatch.setattr(measure, "fit", lambda *_, **__: pytest.fail("trained again"))
    assert measure.trained(recipe, image_set, tmp_path / "run", "cpu") == results
    own = recipe.optim.learning_rate
    without = recipe.model_dump(exclude_unset=True)
    del without["optim"]["learning_rate"]  # what a recipe no longer sets is another value, too
    for other in (recipe.with_options("optim", learning_rate=0.5), make_recipe(without, "")):
        with pytest.raises(ValueError, match=rf"run is a run with optim\.learning_rate={own}: move it away, or measu"):
            measure.trained(other, image_set, tmp_path / "run", "cpu")
    (tmp_path / "run.json").unlink()
    with pytest.raises(ValueError, match=r"run is of a recipe that no run\.json beside it tells: move it away"):
        measure.trained(recipe, image_set, tmp_path / "run", "cpu")


def test_the_figures_of_a_recipe_and_their_file_name_the_device_that_fit_takes(monkeypatch):
    judged = {"top1": 0.5, "count": 2}
    run = {"params": 1, "passes": 1.0, "precision": "float32", "test": judged, "val": judged}
    run |= {"train_seconds": 1.0, "images_per_second": 1.0}
    monkeypatch.setattr(recipes, "trained", lambda *_: run)
    monkeypatch.setattr(recipes, "pick_device", lambda: torch.device("meta"))
    monkeypatch.setattr(recipes, "machine", lambda device: device.type)
    name, figures = recipes.train_seeds("digits", ["epochs=2"], 1)
    assert name == "digits-epochs-2-meta" and figures["machine"] == "meta"


def test_a_figure_stands_under_its_time_limit_and_processor_wherever_these_come_from(monkeypatch):
    figures = {"recipe": "cifar10-cpu", "params": 1, "precision": "bf16", "top1_mean": 0.5, "top1_sd": None, "n": 1}
    figures |= {"passes": 1.0, "machine": {"units": "avx2", "device": "cpu"}}
    runs = [figures | {"overrides": [], "time_limit": 3600.0}]  # by the recipe itself
    runs.append(figures | {"overrides": ["time_limit=90s", "optim.ema=0"], "time_limit": 90.0})
    runs.append(figures | {"overrides": ["time_limit=null"], "time_limit": None})
    quick = ["compile=reduce-overhead", "time_limit=225s"]
    runs.append(figures | {"machine": {"units": "cuda", "device": "H100"}, "overrides": quick, "time_limit": 225.0})
    found = minutes.timed(runs)
    assert [(run.units, run.minutes, run.changes) for run in found] == [
        ("AVX2", 60, 0),
        ("AVX2", 1.5, 1),
        ("H100", 3.75, 0),
    ]
    assert "H100" not in minutes.minutes_table(found)
    other = minutes.timed([figures | {"recipe": "mnist", "overrides": [], "time_limit": 300.0}])  # no set of the chart
    assert minutes.points(found + other) == minutes.points(found)


def test_shuffled_weights_are_the_same_numbers_elsewhere():
    model = ViT(ViTConfig(size="nano/2", image_size=8, num_classes=3))
    before = {name: weights.clone() for name, weights in model.named_parameters()}
    other = dict(faithfulness.shuffled(model).named_parameters())
    assert all(torch.equal(weights, before[name]) for name, weights in model.named_parameters())
    assert all(torch.equal(other[name].flatten().sort()[0], before[name].flatten().sort()[0]) for name in before)
    assert not torch.equal(other["positions"], before["positions"])


def test_maps_are_alike_whose_patches_have_the_same_order():
    rising = torch.arange(4.0).view(2, 2)
    maps = torch.stack([rising, rising, rising, torch.zeros(2, 2)])
    others = torch.stack([rising**3, -rising, rising.flatten()[[1, 0, 3, 2]].view(2, 2), rising])
    assert faithfulness.rank_correlations(maps, others).tolist() == pytest.approx([1, -1, 0.6, 0])


@pytest.mark.parametrize("other", ["itself", "shuffled"])
def test_explanations_are_measured_with_each_method(monkeypatch, recipe, image_set, tmp_path, other):
    run, saved = fit(recipe, image_set, out=tmp_path / "run"), {}
    monkeypatch.setattr(faithfulness, "load", lambda _: image_set)
    if other == "itself":
        monkeypatch.setattr(faithfulness, "shuffled", lambda model: model)
    monkeypatch.setattr(faithfulness, "save", lambda file, content: saved.update({file.name: content}))
    monkeypatch.setattr(sys, "argv", ["faithfulness.py", str(run.folder), "these", "--images", "3"])
    faithfulness.main()
    (found,) = saved.values()
    assert list(saved) == ["faithfulness-run.json"] and found["images"] == 3
    assert found["areas"].keys() == {*METHODS, "contrast", "random"}
    alike = {name: figure["mean"] for name, figure in found["shuffled"].items()}
    if other == "itself":
        assert alike == pytest.approx(dict.fromkeys(METHODS, 1))
    else:
        assert alike.keys() == set(METHODS) and max(alike.values()) < 0.9
