"""Several processes train what one does: the same losses, each image once, one folder, and one end for all."""

import faulthandler
import hashlib
import io
import math
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from accelerate import Accelerator
from rich.console import Console
from tiny import (
    CLASSES,
    equal,
    metrics_rows,
    stripes,
    tiny_bundle,
    tiny_recipe,
    tiny_vit,
    untimed,
    weights_of,
    write_images,
)
from torch import distributed

from vitreous.data.images import ImageSet
from vitreous.data.stores import FileImages
from vitreous.model import ViT
from vitreous.recipe import Recipe, make_recipe
from vitreous.train import engine, folder, folds, job
from vitreous.train.engine import Engine, shared_device
from vitreous.train.folds import fit_folds
from vitreous.train.run import fit

SERVER = multiprocessing.get_context("forkserver")  # imports everything once; each process is then a fork of it
SERVER.set_forkserver_preload(["sklearn.metrics", "sklearn.model_selection", "vitreous.train.run"])
STEPS = 10  # of a pass over 1,293 images in batches of 128
DROPOUT = {"dropout": 0.2, "drop_path": 0.3, "depth": 2}


def uneven_set(train: int = 1293, val: int = 145) -> ImageSet:
    """By default 13 images are left over in each pass, and the validation images are odd; classes differ in size."""
    pixels, labels = stripes(train)
    labels[8::9] = 0
    return ImageSet.from_arrays(
        pixels, labels, val=stripes(val, seed=2), test=stripes(9, seed=1), class_names=CLASSES, name="stripes"
    )


def recipe_with(**changes: Any) -> Recipe:
    """Two epochs with an average of the weights and augmentation, but nothing that draws by process."""
    sections = {
        "data": {"val_fraction": 0},
        "augment": {"rotation": 10, "shift": 1, "erase": 0.3},
        "optim": {"batch_size": 128, "ema": 0.9, "label_smoothing": 0.1},
    }
    for key, value in changes.items():
        sections[key] = sections.get(key, {}) | value if isinstance(value, dict) else value
    return tiny_recipe(**sections)


class Outcome(NamedTuple):
    """What a process has at the end of its run."""

    folder: Path
    results: dict | None
    printed: str
    random: bytes
    """State of its generator after the last epoch, which `fit` gives back as it was."""
    rows: list[dict]
    """Of its own `on_epoch`, without times."""
    weights: str
    """Digest of its own parameters and their average after training; "" where it trained no model."""


def digest(run: job.Job) -> str:
    models = [run.engine.unwrap(run.model), *([] if run.average is None else [run.average.module])]
    found = hashlib.blake2b(digest_size=16)
    for weight in (weight for model in models for weight in model.parameters()):
        found.update(weight.detach().numpy().tobytes())
    return found.hexdigest()


def one_of(rank: int, processes: int, port: int, recipe: Recipe, data: ImageSet | None, options: dict) -> Outcome:
    faulthandler.dump_traceback_later(300, exit=True)  # rather than wait forever for another process
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
    os.environ |= {name: str(value) for name, value in names.items()}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"  # somebody else listens there
    torch.set_num_threads(1)
    os.chdir(options.pop("folder", "."))
    os.environ["VITREOUS_CACHE"] = options.pop("cache")
    options.pop("notes", lambda: None)()
    begin = options.pop("begin", fit)
    sys.stdout = text = io.StringIO()
    random, rows, weights, whole = [b""], [], [""], job.Job.train

    def epoch_done(row):
        random.append(torch.get_rng_state().numpy().tobytes())
        rows.append(untimed(row))

    def watched(self, *hooks):
        done = whole(self, *hooks)
        weights.append(digest(self))
        return done

    job.Job.train = watched
    if begin is fit:
        options["on_epoch"] = epoch_done
    run = begin(recipe, data, device="cpu", **{"pictures": False} | options)
    return Outcome(run.folder, run.results, text.getvalue(), random[-1], rows, weights[-1])


def train(processes: int, recipe: Recipe, data: ImageSet | None, **options: Any) -> list[Any]:
    """Each process's outcome of `begin`, by default `fit`, or the error it ended with. folder: where they work."""
    options.setdefault("cache", os.environ["VITREOUS_CACHE"])  # which is not that of the server that forks
    meeting = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # at a port of its own
    with ProcessPoolExecutor(processes, mp_context=SERVER) as pool:
        given = (processes, meeting.port, recipe, data, options)
        waiting = [pool.submit(one_of, rank, *given) for rank in range(processes)]
        return [process.exception() or process.result() for process in waiting]


@pytest.fixture
def alone():
    """`fit` in this process, with nothing printed or drawn."""

    def run(recipe, data, out):
        return fit(recipe, data, out=out, device="cpu", pictures=False, console=Console(file=io.StringIO()))

    return run


class Interrupt:
    """A callback by which one process alone gets a signal after a step, counted from 1 over the whole run."""

    def __init__(self, rank: int, step: int, number: int = signal.SIGINT):
        self.rank, self.step, self.number = rank, step, number

    def __call__(self, state, _):
        if state.epoch * STEPS + state.step == self.step and os.environ["RANK"] == str(self.rank):
            os.kill(os.getpid(), self.number)


class Poison:
    """A callback by which the weights of one process alone stop being numbers."""

    def __init__(self, model: ViT):
        self.model = model

    def __call__(self, state, _):
        if state.step == 2 and os.environ["RANK"] == "1":
            self.model.head.weight.data.fill_(math.nan)


class Notes:
    """What each process does of the work that the first does for all: (rank, function), in the order of the calls."""

    def __init__(self, file: Path):
        self.file = file

    def __call__(self):
        for place, name in ((FileImages, "_fit"), (job, "fit_head"), (folds, "finished")):
            setattr(place, name, self._noted(name, getattr(place, name)))

    def _noted(self, name, function):
        def noted(*given):
            with self.file.open("a") as file:
                file.write(f"{os.environ['RANK']} {name}\n")
            if name == "_fit":
                time.sleep(0.01)  # so that the others would come to images that are not decoded yet
            return function(*given)

        return noted

    def read(self) -> dict[str, int]:
        lines = self.file.read_text().splitlines()
        return {line: lines.count(line) for line in lines}


def assert_alike(outcomes: list[Outcome]) -> None:
    """Each process has trained, and has what the others have."""
    first = outcomes[0]
    assert first.rows and first.weights
    for other in outcomes[1:]:
        assert (other.rows, other.weights, other.results) == (first.rows, first.weights, first.results)


def assert_same_losses(a: Path, b: Path, within: float = 1e-5) -> None:
    """Their top-1 too, where all but nothing differs: else an image on the edge falls on either side."""
    for name in ("train_loss", "val_loss") + (("train_top1", "val_top1") if within <= 1e-5 else ()):
        first, second = ([float(row[name]) for row in metrics_rows(folder)] for folder in (a, b))
        assert first == pytest.approx(second, rel=within, abs=within), name


# --- the same training ---


@pytest.mark.parametrize(
    ("processes", "name", "batch_size", "precision", "more", "within"),
    [
        (2, "adamw", 128, "float32", {}, 1e-5),
        (3, "muon", 126, "float32", {}, 2e-4),  # Muon's bf16 enlarges any difference in rounding
        (2, "adamw", 128, "float16", {}, 1e-3),
        (2, "adamw", 128, "float32", {"balance": "weights"}, 1e-5),
        (2, "adamw", 128, "float32", {"balance": "sampling"}, 1e-5),
        (2, "adamw", 128, "float32", {"memory_budget": 1e-9, "workers": 0}, 1e-5),
    ],
    ids=["adamw", "muon", "float16", "weights", "sampling", "streamed"],
)
def test_processes_reach_the_losses_of_one(tmp_path, alone, processes, name, batch_size, precision, more, within):
    optim = {"name": name, "batch_size": batch_size, "accumulate": 3, "clip": 0.5}
    recipe, data = recipe_with(optim=optim, precision=precision, data=more), uneven_set()
    one = alone(recipe, data, tmp_path / "one").results
    outcomes = train(processes, recipe, data, out=tmp_path / "more")
    assert_same_losses(tmp_path / "one", tmp_path / "more", within)
    assert_alike(outcomes)
    results = outcomes[0].results
    assert (results["best_epoch"], results["epochs"]) == (one["best_epoch"], 2)
    for split, count in (("val", 145), ("test", 9)):
        assert results[split]["count"] == count
        assert results[split]["loss"] == pytest.approx(one[split]["loss"], rel=within)


def test_a_teacher_answers_each_process_about_its_own_images(tmp_path, alone):
    tiny_bundle(seed=3).save(tmp_path / "teacher")
    recipe = recipe_with(distill={"teacher": str(tmp_path / "teacher")})
    alone(recipe, uneven_set(), tmp_path / "one")
    assert_alike(train(2, recipe, uneven_set(), out=tmp_path / "two"))
    assert_same_losses(tmp_path / "one", tmp_path / "two")


def test_small_images_come_first_in_all_processes(tmp_path, alone):
    recipe = recipe_with(model={"mlp_conv": True}, augment={"shrink": 0.5, "shrink_until": 0.6})
    alone(recipe, uneven_set(), tmp_path / "one")
    assert_alike(train(2, recipe, uneven_set(), out=tmp_path / "two"))
    assert_same_losses(tmp_path / "one", tmp_path / "two")


def test_each_process_counts_by_its_images(tmp_path, alone):
    """A set smaller than a batch: 19 images in one process and 18 in the other; and one validation image for both."""
    recipe, data = recipe_with(epochs=4, optim={"batch_size": 500}), uneven_set(37, 1)
    alone(recipe, data, tmp_path / "one")
    assert_alike(train(2, recipe, data, out=tmp_path / "two"))
    assert_same_losses(tmp_path / "one", tmp_path / "two")


def test_batch_statistics_of_the_main_process_judge_and_are_kept(tmp_path):
    """On a CPU each process normalises by its own images."""
    model = {"patch_embedding": "conv_stem", "stem_channels": (8,), "positions": "rope"}
    recipe = recipe_with(epochs=1, model=model)
    outcomes = train(2, recipe, uneven_set(), out=tmp_path / "run")
    (row,) = metrics_rows(tmp_path / "run")
    assert float(row["val_loss"]) == pytest.approx(outcomes[0].results["val"]["loss"], rel=1e-5)
    assert_alike(outcomes)


@pytest.fixture
def photos(tmp_path):
    """A folder of 39 images to train on and 9 to test."""
    write_images(tmp_path / "photos" / "train", 13)
    write_images(tmp_path / "photos" / "test", 3, seed=1)
    return tmp_path / "photos"


@pytest.fixture
def weights(tmp_path):
    """Trained ones, of two other classes."""
    tiny_bundle(seed=3, classes=("x", "y")).save(tmp_path / "weights")
    return tmp_path / "weights"


def test_a_head_that_is_fitted_first_is_that_of_all_processes(tmp_path, alone, photos, weights):
    """Files are decoded, and the head is fitted, by the first alone."""
    recipe = recipe_with(
        data={"source": str(photos), "val_fraction": 0.25},
        optim={"batch_size": 10},
        start={"weights": str(weights), "probe_first": True},
    )
    alone(recipe, None, tmp_path / "one")
    notes = Notes(tmp_path / "notes")
    outcomes = train(2, recipe, None, out=tmp_path / "two", cache=str(tmp_path / "cold"), notes=notes)
    assert_same_losses(tmp_path / "one", tmp_path / "two", 1e-4)
    assert_alike(outcomes)
    assert outcomes[0].results["test"]["count"] == 9
    assert notes.read() == {"0 _fit": 48, "0 fit_head": 1}


def test_folds_of_a_probe_are_those_of_one_process_and_go_on(tmp_path, photos, weights):
    """The main process alone looks for finished folds, fits heads and writes."""
    fields = {"epochs": 1, "precision": "float32", "start": {"weights": str(weights), "probe": True}}
    recipe = make_recipe(fields | {"data": {"source": str(photos), "folds": 2, "val_fraction": 0.25}}, "test")
    options = {"device": "cpu", "pictures": False, "console": Console(file=io.StringIO())}
    one = fit_folds(recipe, out=tmp_path / "one", **options).results
    shutil.copytree(tmp_path / "one" / "fold-1", tmp_path / "two" / "fold-1")
    shutil.copy(tmp_path / "one" / "recipe.yaml", tmp_path / "two")
    notes = Notes(tmp_path / "notes")
    main, other = train(2, recipe, None, out=tmp_path / "two", resume=True, begin=fit_folds, notes=notes)
    assert main.results == other.results and main.results["count"] == [20, 19]
    for key in ("top1", "loss"):
        assert main.results[key] == pytest.approx(one[key], rel=1e-3)
    assert notes.read() == {"0 finished": 2, "0 fit_head": 1}
    assert main.printed.count("fold 2 of 2:") == 1 and "fold 1 of 2:" not in main.printed and other.printed == ""


def test_a_probe_takes_any_number_of_processes(tmp_path, photos, weights):
    """It has no batches to divide."""
    fields = {"epochs": 1, "precision": "float32", "start": {"weights": str(weights), "probe": True}}
    recipe = make_recipe(fields | {"data": {"source": str(photos), "val_fraction": 0.25}}, "test")
    outcomes = train(3, recipe, None, out=tmp_path / "run")
    assert recipe.optim.batch_size % 3 and [outcome.results["test"]["count"] for outcome in outcomes] == [9] * 3


# --- interrupted, and going on ---


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)])
def test_a_run_goes_on_with_another_number_of_processes(tmp_path, alone, before, after):
    """The signal reaches the last process alone, and all stop after the same step."""
    recipe, data, out = recipe_with(), uneven_set(), tmp_path / "parts"
    alone(recipe, data, tmp_path / "whole")
    stopped = train(before, recipe, data, out=out, on_step=Interrupt(before - 1, 13, signal.SIGTERM))
    assert [outcome.results for outcome in stopped] == [None] * before
    assert "stopped in epoch 2, after 3 of its 10 steps; go on with: vt.fit(vt.read_recipe(" in stopped[0].printed
    state = torch.load(out / "checkpoints" / "last.pt", weights_only=True)["state"]
    assert (state["epoch"], state["step"], state["images"]) == (1, 3, 384)
    outcomes = train(after, recipe, data, out=out, resume=True)
    assert_alike(outcomes)
    assert outcomes[0].results["epochs"] == 2
    assert_same_losses(tmp_path / "whole", out)


def test_dropout_differs_among_processes_and_goes_on_where_it_was(tmp_path):
    recipe, data = recipe_with(model=DROPOUT), uneven_set()
    whole = train(2, recipe, data, out=tmp_path / "whole")
    train(2, recipe, data, out=tmp_path / "parts", on_step=Interrupt(0, 4))
    parts = train(2, recipe, data, out=tmp_path / "parts", resume=True)
    assert_alike(whole)
    assert whole[0].random != whole[1].random
    assert [outcome.random for outcome in whole] == [outcome.random for outcome in parts]
    assert equal(weights_of(tmp_path / "whole"), weights_of(tmp_path / "parts"))


# --- one end, one folder, one voice ---


def test_a_loss_that_is_no_number_in_one_process_ends_all(tmp_path):
    vit = tiny_vit()
    errors = train(2, recipe_with(), uneven_set(), out=tmp_path / "run", model=vit, on_step=Poison(vit))
    assert [type(error) for error in errors] == [FloatingPointError] * 2
    assert all(str(error).startswith("the loss is nan at step ") for error in errors)
    assert not (tmp_path / "run" / "checkpoints").exists() and not (tmp_path / "run" / "model").exists()


def only_the_main_one_has_fast_bf16():
    job.pick_precision = lambda name, device: "bf16" if os.environ["RANK"] == "0" else "float32"


def test_processes_on_unlike_machines_compute_in_one_precision(tmp_path):
    model = tiny_vit()
    bf16 = train(2, recipe_with(precision="bf16"), uneven_set(), out=tmp_path / "a", model=model)
    options = {"notes": only_the_main_one_has_fast_bf16, "out": tmp_path / "b", "model": model}
    auto = train(2, recipe_with(precision="auto"), uneven_set(), **options)
    assert_alike(auto)
    assert auto[0].weights == bf16[0].weights


def test_a_time_limit_is_one_for_all(tmp_path):
    """Each has its own clock, but the rate that follows it and the end are the same."""
    recipe = recipe_with(epochs=10_000, time_limit=0.5)
    outcomes = train(2, recipe, uneven_set(), out=tmp_path / "run", model=tiny_vit())
    assert_alike(outcomes)
    assert outcomes[0].results["passes"] < 10_000


def test_processes_share_the_next_free_folder_and_only_the_main_one_prints(tmp_path):
    main, other = train(2, recipe_with(epochs=1), uneven_set(100), folder=tmp_path, pictures=True)
    assert main.folder == other.folder == Path("runs/stripes")
    assert_alike([main, other])
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["stripes"]
    assert {"report.html", "plots"} <= {path.name for path in (tmp_path / "runs" / "stripes").iterdir()}
    assert main.printed.count("100 training images, 145 for validation") == 1 and "cpu x 2" in main.printed
    assert other.printed == ""
    errors = train(2, recipe_with(epochs=1), uneven_set(100), out=main.folder, folder=tmp_path)
    assert [str(error).partition(": ")[0] for error in errors] == ["runs/stripes already holds a run"] * 2


def test_a_folder_that_another_run_uses_is_refused_by_all(tmp_path):
    with folder.alone(tmp_path / "run"):
        errors = train(2, recipe_with(epochs=1), uneven_set(100), out=tmp_path / "run")
    assert [str(error) for error in errors] == [
        f"another process trains into {tmp_path / 'run'}: wait for it, or name another --out"
    ] * 2


@pytest.mark.parametrize(
    ("processes", "batch_size", "message"),
    [
        (2, 127, "optim.batch_size 127 does not divide among 2"),
        (4, 128, "3 training images are too few for 4"),
        (2, 126, "compile=reduce-overhead is for one process: set compile=true"),
    ],
)
def test_what_cannot_be_shared_is_refused_by_all(tmp_path, processes, batch_size, message):
    recipe = recipe_with(optim={"batch_size": batch_size}, compile="reduce-overhead" if batch_size == 126 else "auto")
    errors = train(processes, recipe, uneven_set(3), out=tmp_path / "run")
    assert [(type(error), message in str(error)) for error in errors] == [(ValueError, True)] * processes


def test_parts_of_a_batch_that_is_not_full_are_refused_by_all(tmp_path):
    errors = train(2, recipe_with(optim={"batch_size": 128, "accumulate": 3}), uneven_set(5), out=tmp_path / "run")
    assert ["do not fill a batch that is taken in parts" in str(error) for error in errors] == [True] * 2


def test_the_recipe_compiles_and_the_device_is_the_users_whatever_the_launcher_says(monkeypatch):
    asked = {}
    monkeypatch.setattr(engine, "Accelerator", lambda **options: asked.update(options) or Accelerator(**options))
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "INDUCTOR")
    one = Engine("cpu")
    linear = torch.nn.Linear(2, 2)
    model = one.prepare(linear)
    assert type(model) is type(one.unwrap(model)) is torch.nn.Linear and asked["cpu"] is True


@pytest.mark.parametrize(
    ("folder", "name", "group", "resumed"),
    [("runs/cv/fold-2", "cv-fold-2", "cv", False), ("runs/x", "x", None, True)],
)
def test_a_tracker_knows_which_run_a_fold_is_of(monkeypatch, folder, name, group, resumed):
    given = []
    one = Engine("cpu", track=("tensorboard",))
    monkeypatch.setattr(one._accelerator, "init_trackers", lambda *options: given.append(options))
    for track, project in (("tensorboard", "mine"), ("wandb", ""), ("wandb", "mine")):
        monkeypatch.setattr(one, "_track", (track,))
        monkeypatch.setenv("WANDB_PROJECT", project)
        with one.trackers(Path(folder), {}, "3f", resumed):
            pass
    assert [project for project, *_ in given] == ["vitreous", "vitreous", "mine"]
    expected = {"name": name, "group": group, "dir": folder, "id": "3f", "resume": "allow" if resumed else None}
    assert given[0][2]["wandb"] == expected


def test_a_tracker_that_cannot_start_says_so_in_a_line(monkeypatch):
    def refuse(*_):
        raise RuntimeError("no login\nand a trace")

    one = Engine("cpu")
    one._track, one._accelerator.trackers = ("wandb",), [SimpleNamespace(name="wandb")]  # as accelerate leaves it
    monkeypatch.setattr(one._accelerator, "init_trackers", refuse)
    said = r"^cannot start the tracker: no login; leave track out$"
    with pytest.raises(ValueError, match=said), one.trackers(Path("x"), {}, "3f", resumed=False):
        pass


def test_a_tracker_is_told_whether_the_run_failed():
    one, codes = Engine("cpu"), []
    finish = SimpleNamespace(finish=lambda exit_code: codes.append(exit_code))
    one._accelerator.trackers = [SimpleNamespace(name="wandb", run=finish)]
    with one.trackers(Path("x"), {}, "3f", resumed=False):
        pass
    with pytest.raises(KeyError), one.trackers(Path("x"), {}, "3f", resumed=False):
        raise KeyError
    assert codes == [0, 1]


@pytest.mark.parametrize("name", ["SLURM_STEP_NUM_TASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"])
def test_srun_and_mpirun_are_no_launchers(monkeypatch, name):
    monkeypatch.setenv(name, "4")
    with pytest.raises(ValueError, match=r"^started 4 times by srun or mpirun: start torchrun, once on each machine"):
        Engine("cpu")
    monkeypatch.setenv(name, "1")
    Engine("cpu")


def test_gpus_that_cannot_reach_each_other_are_told_before_anything_begins(monkeypatch):
    def refuse(**_):
        raise NotImplementedError("Using RTX 4000 series doesn't support faster communication via P2P or IB. Set NCCL_")

    monkeypatch.setattr(engine, "Accelerator", refuse)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match=r"^these GPUs cannot reach each other directly: set NCCL_P2P_DISABLE=1"):
        Engine("cpu")


@pytest.mark.parametrize("device", ["cuda:1", "mps"])
def test_several_processes_take_no_device_that_is_one(monkeypatch, device):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match=f"^device '{device}' is not for several processes: use cpu or cuda"):
        Engine(device)


@pytest.mark.parametrize(("gpus", "chosen"), [(0, "cpu"), (2, "cuda")])
def test_each_process_needs_a_gpu_of_its_own(monkeypatch, gpus, chosen):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert shared_device("auto") == chosen and shared_device("cpu") == "cpu"
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    if gpus:
        with pytest.raises(ValueError, match=r"^3 processes for 2 GPUs: start one for each"):
            shared_device("auto")


def test_the_launcher_stops_all_of_them_and_the_run_goes_on(tmp_path, ends):
    """From the command line, as a cluster ends a job."""
    (tmp_path / "r.yaml").write_text("epochs: 5000\nmodel: {patch_size: 4, dim: 16, depth: 1, heads: 2}\n")
    command = "-m torch.distributed.run --standalone --nproc_per_node 2 -m vitreous train digits --recipe r.yaml"
    launcher = ends(
        subprocess.Popen(
            [sys.executable, *command.split(), "--device", "cpu", "--out", "run"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"GLOO_SOCKET_IFNAME": "lo"},
        )
    )
    deadline = time.monotonic() + 300
    while launcher.poll() is None and not (tmp_path / "run" / "metrics.csv").exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    launcher.send_signal(signal.SIGTERM)
    text, _ = launcher.communicate(timeout=300)
    assert text.count("1,293 training images, 144 for validation") == text.count("warning: stopping") == 1, text
    assert text.count("go on with: vitreous train --resume --out run") == 1
    assert (tmp_path / "run" / "checkpoints" / "last.pt").exists()
