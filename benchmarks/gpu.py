"""The benchmarks of a GPU, in parts that each keep to a few minutes and go on where they stopped.

    python benchmarks/gpu.py throughput                       # images/s and share of the peak, beside timm
    python benchmarks/gpu.py sweep cifar10 compile=reduce-overhead  # short runs, judged on 5,000 validation images
    python benchmarks/gpu.py final cifar10 compile=reduce-overhead --seed 0 --minutes 8
    python benchmarks/gpu.py time-to-94 --seeds 3 --minutes 8

Every part is started again by the same command: what is finished is not done again. Runs and notes lie in --work, the
results, all of them small files, in --out. On another machine the work goes on from what OUT holds: its notes put into
WORK, and an unfinished run's NAME-unfinished put there as WORK/NAME. `--toy` proves a part on a CPU, in seconds, on the
digits. OUT's throughput.json and time-to-94.json are what tables.py reads as benchmarks/results/throughput-cuda.json
and time-to-94.json. The forms of a model are timed one after another, not in turns.
"""

import argparse
import functools
import json
import os
import re
import shutil
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from measure import interleaved, machine, now
from peers import SHAPES, Peer, config_of, flops, timm_model
from ship import ship
from torch import Tensor, nn

from vitreous.augment import augment, draw, mix, plan
from vitreous.data.images import ImageSet
from vitreous.data.sources import load
from vitreous.device import compiled, pick_device, pick_precision
from vitreous.files import read_json, replace_file, write_json
from vitreous.messages import first_line
from vitreous.model import ViT, ViTConfig
from vitreous.preprocess import Preprocess
from vitreous.recipe import Recipe, read_recipe
from vitreous.train.loop import shrunk
from vitreous.train.optim import EMA, make_optimizers
from vitreous.train.order import steps_per_epoch
from vitreous.train.run import fit
from vitreous.train.state import State

TOY = [
    "data.source=digits", "model.dim=16", "model.depth=1", "model.heads=2", "model.stem_channels=[4,8]",
    "model.stem_strides=[]", "optim.batch_size=128", "epochs=3", "compile=false", "precision=float32",
]  # fmt: skip
PART = 15 << 20  # bytes
PROFILED = 3  # steps
RATES = [f"optim.muon_learning_rate={rate}" for rate in (0.01, 0.04)]
ARMS = [  # what a sweep changes, one run each; the first one is the recipe as it is
    [],
    ["augment.mix_probability=0.5"],
    ["augment.randaugment_ops=0"],
    ["augment.crop_scale=[0.8,1.0]", "augment.shift=0"],
    *([rate, f"optim.muon_split_qkv={split}"] for rate in RATES for split in ("false", "true")),
    ["optim.muon_split_qkv=true"],
    *(["optim.name=adamw", f"optim.learning_rate={rate}"] for rate in (1e-3, 2e-3)),
    *([f"optim.muon_weight_decay={decay}"] for decay in (0.02, 0.2)),  # acts the more, the longer a run
    *([f"optim.learning_rate={rate}"] for rate in (1e-3, 4e-3)),
    ["optim.ema=0.99"],  # higher ones act only in longer runs
    ["start.whiten=false"],
    ["optim.schedule=cosine", "optim.final_rate=0.01"],
    ["augment.shrink=1.0"],
    ["model.drop_path=0"],  # this one and what follows compile anew
    ["model.mlp_conv=false"],
    ["model.positions=rope"],
    ["model.depth=5"],
    ["optim.batch_size=256"],
    ["optim.batch_size=1024"],
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--out", type=Path, help="for results [default: WORK/out]")
    common.add_argument("--work", type=Path, help="for runs and notes [default: runs/gpu, runs/gpu-toy with --toy]")
    common.add_argument("--data", type=Path, help="folder with cifar10/ and the like [default: $VITREOUS_DATA]")
    common.add_argument("--minutes", type=float, default=8.0, help="after which nothing new is begun [default: 8]")
    common.add_argument("--device", default="auto")
    common.add_argument("--toy", action="store_true", help="on the CPU, at toy size, on the digits")
    parts = parser.add_subparsers(required=True)

    def part(function: Callable[[argparse.Namespace], None], name: str) -> argparse.ArgumentParser:
        found = parts.add_parser(name, parents=[common], help=function.__doc__.splitlines()[0].replace("%", "%%"))
        found.set_defaults(part=function)
        return found

    part(throughput, "throughput").add_argument("--peak", type=float, help="TFLOP/s of the datasheet, in bf16")
    for function, name in ((sweep, "sweep"), (final, "final")):
        chosen = part(function, name)
        chosen.add_argument("recipe")
        chosen.add_argument("overrides", nargs="*", metavar="key=value")
        chosen.add_argument("--seed", type=int, default=0)
        if function is sweep:
            chosen.add_argument("--epochs", type=int, default=15, help="of each run [default: 15]")
            chosen.add_argument("--arm", action="append", metavar="'key=value ...'", help="instead of those built in")
    chosen = part(time_to, "time-to-94")
    chosen.add_argument("overrides", nargs="*", metavar="key=value")
    chosen.add_argument("--seeds", type=int, default=3)

    options, more = parser.parse_known_args()
    if not hasattr(options, "overrides") or any(word.startswith("-") or "=" not in word for word in more):
        parser.parse_args()  # which refuses them
    else:
        options.overrides += more  # that stand behind an option
    options.device = torch.device("cpu") if options.toy else pick_device(options.device)
    options.deadline = time.monotonic() + 60 * options.minutes
    options.work = options.work or Path("runs/gpu-toy" if options.toy else "runs/gpu")
    options.out = options.out or options.work / "out"
    options.out.mkdir(parents=True, exist_ok=True)
    options.work.mkdir(parents=True, exist_ok=True)
    if options.data is not None:
        os.environ["VITREOUS_DATA"] = str(options.data.resolve())
    options.part(options)


# --- throughput ---


def throughput(options: argparse.Namespace) -> None:
    """Images a second of models, of a step's parts and of the whole loop."""
    device, precision = options.device, "float32" if options.toy else pick_precision("bf16", options.device)
    recipe = recipe_of("cifar10", [], options)
    recipe = recipe.resolve(image_size=(32, 32), channels=3, num_classes=10)
    small, large = config_of(SHAPES["small"]), config_of(SHAPES["B/16"])
    batch, large_batch, effort = recipe.optim.batch_size, 256, (7, 10)
    if options.toy:
        small, large = (ViTConfig(size="nano/16", image_size=side) for side in (32, 64))
        batch, large_batch, effort = 8, 2, (2, 1)
    file = options.work / "throughput.json"
    here = hardware(options)
    results: dict[str, Any] = read_json(file) if file.exists() else {"machine": here, "models": []}
    peak = results["peak_tflops"] = options.peak or results.get("peak_tflops")
    if results["machine"]["device"] != here["device"]:
        raise ValueError(f"{file} has figures of {results['machine']['device']}: give another --work")

    def keep() -> None:  # as far as it is: a part that fails loses nothing
        for row in results["models"]:
            row["mfu"] = row["tflops"] / peak if peak else None
        write_json(file, results)
        shutil.copyfile(file, options.out / file.name)

    results.setdefault("precision", precision)
    profile = options.out / "profile.txt"
    loop = functools.partial(time_loop, recipe, 4 * batch if options.toy else 100 * batch, device, profile)
    stages = functools.partial(time_stages, recipe, batch, effort, device)
    for name, measure in {"loop_images_per_second": loop, "stages_ms": stages}.items():
        if name in results or time.monotonic() > options.deadline:
            continue
        try:
            results[name] = measure()
            print(f"{name}: {results[name]}")
        except (RuntimeError, ValueError) as error:  # what does not compile here
            print(f"{name} is left out: {first_line(error)}")
        keep()
    for name, config, size in (("recipe", recipe.model, batch), ("B/16", large, large_batch), ("small", small, batch)):
        done = [row["form"] for row in results["models"] if row["name"] == name]
        for row in time_models(name, config, size, effort, results["precision"], done, options):
            results["models"].append(row)
            keep()
    keep()


def forward_flops(make: Callable[[ViTConfig], nn.Module], config: ViTConfig) -> int:
    """Of the products and convolutions that the model does for one image, counting a multiply-add as two."""
    with torch.device("meta"):
        model, image = make(config).eval(), torch.empty(1, config.channels, *config.image_size)
    return flops(model, image)


def time_models(
    name: str,
    config: ViTConfig,
    batch: int,
    effort: tuple[int, int],
    precision: str,
    done: list[str],
    options: argparse.Namespace,
) -> Iterator[dict[str, Any]]:
    """Training and inference of one architecture: ours and, of a plain ViT, timm's, as they are and compiled; ours with
    CUDA graphs, too.

    effort: rounds, and calls in each. done: the forms that are left out.
    """
    device = options.device
    forget_compiled(device)
    images = torch.randn(batch, config.channels, *config.image_size, device=device)
    forms = {"ours, compiled": True, "timm, compiled": True, "ours": False, "timm": False}
    forms |= {"ours, CUDA graphs": "reduce-overhead"}
    if options.toy:
        forms = {"ours": False, "timm": False}
    if name == "recipe":
        forms = {form: choice for form, choice in forms.items() if "timm" not in form}  # has the recipe's blocks alone
    for form, choice in forms.items():
        if form in done:
            continue
        if time.monotonic() > options.deadline:
            print(f"the time is over before {name} {form}")
            break
        try:
            make = timm_model if "timm" in form else ViT
            model, work = make(config).to(device), forward_flops(make, config)
            peer = Peer(model, compiled(model, choice, device, 0), images, config.num_classes)
            train = functools.partial(peer.training, precision)
            row: dict[str, Any] = {"name": name, "form": form, "batch": batch, "flops": work}
            start = now(device)
            train()
            row["first_step"] = now(device) - start
            row |= rates("training", interleaved({form: train}, device, *effort)[form], batch)
            answer = functools.partial(peer.inference, precision)
            row |= rates("inference", interleaved({form: answer}, device, *effort)[form], batch)
        except Exception as error:  # what is not installed, or does not compile here, raises anything
            print(f"{name} {form} is left out: {type(error).__name__}: {first_line(error)}")
            continue
        row["tflops"] = row["training_images_per_second"] * 3 * work / 1e12  # backward: twice the forward
        print(
            f"{name} {form}: training {row['training_images_per_second']:,.0f} images/s, {row['tflops']:.1f} TFLOP/s; "
            f"inference {row['inference_images_per_second']:,.0f} images/s; first step {row['first_step']:.1f} s"
        )
        yield row


def rates(kind: str, seconds: dict[str, float], batch: int) -> dict[str, Any]:
    """Images per second: the median and both quartiles."""
    return {
        f"{kind}_images_per_second": batch / seconds["median"],
        f"{kind}_quartiles": [batch / seconds["high"], batch / seconds["low"]],
    }


def forget_compiled(device: torch.device) -> None:
    """Reset the compiler: torch compiles only some forms of a function and runs further ones uncompiled."""
    if device.type == "cuda":
        torch.compiler.reset()
        torch.cuda.empty_cache()


def time_stages(recipe: Recipe, batch: int, effort: tuple[int, int], device: torch.device) -> dict[str, float]:
    """Milliseconds of each part of a step, and of torch's Muon, which ours replaces."""
    H, W = recipe.model.image_size
    images = torch.randint(256, (batch, 3, H, W), dtype=torch.uint8, device=device)
    floats, labels = images / 255, torch.randint(recipe.model.num_classes, (batch,), device=device)
    preprocess = Preprocess(image_size=(H, W), mean=(0.5,) * 3, std=(0.25,) * 3)
    fill = torch.tensor(preprocess.mean, device=device)
    rows = draw(recipe.augment, 16 * batch, 0, 0)
    plans = list(plan(rows, recipe.augment, 0, (H, W), batch, device))
    model = ViT(recipe.model).to(device)
    alike = recipe.optim.model_copy(update={"muon_patches": False})  # torch's Muon takes no convolution
    optimizers = make_optimizers(model, alike)
    matrices = [weight for group in optimizers[-1].param_groups for weight in group["params"]]
    average = EMA(model, 0.99)
    for weight in model.parameters():
        weight.grad = torch.randn_like(weight)

    def consume() -> None:
        for _ in plan(rows, recipe.augment, 0, (H, W), batch, device):
            pass

    stages: dict[str, Callable[[], object]] = {
        "plan of 16 batches": consume,
        "augment": lambda: augment(images.float().div_(255), plans[0], recipe.augment, fill),
        "mix, shrink, normalise": lambda: preprocess.normalise(
            shrunk(mix(floats, labels, recipe.model.num_classes, plans[0], recipe.augment, 0.0)[0], recipe, 0.0)
        ),
        "clip": lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0),
        "AdamW": optimizers[0].step,
        "Muon": optimizers[-1].step,
        "Muon, torch's": torch.optim.Muon(matrices, lr=1e-3).step,
        "average": lambda: average.update(1),
    }
    return {name: 1000 * timing["median"] for name, timing in interleaved(stages, device, *effort).items()}


def time_loop(recipe: Recipe, images: int, device: torch.device, profile: Path) -> float:
    """Images a second of `fit` on random images, the median of its passes from the third on: compiled and warm.

    profile: a file for torch's profile of some steps of one more pass, by the time on the device.
    """
    forget_compiled(device)
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (images, 3, *recipe.model.image_size), np.uint8)
    data = ImageSet.from_arrays(pixels, np.arange(images) % recipe.model.num_classes, name="noise")
    choice = recipe.compile if recipe.compile != "auto" else device.type == "cuda"
    recipe = recipe.with_options("data", val_fraction=0.0)
    recipe = recipe.with_options("augment", mix_until=1.0, shrink=1.0)  # in the last pass as in the first
    recipe = recipe.model_copy(update={"epochs": 8, "compile": choice})
    steps = steps_per_epoch(images, recipe.optim.batch_size)
    rows: list[dict[str, float]] = []
    profiler = torch.profiler.profile()

    def on_epoch(row: dict[str, float]) -> None:
        rows.append(row)
        if len(rows) == 7:
            profiler.start()

    def on_step(state: State, loss: Tensor) -> None:
        if (state.epoch, state.step) == (7, min(PROFILED, steps)):
            now(device)
            profiler.stop()

    with TemporaryDirectory() as scratch:
        fit(recipe, data, out=scratch, device=str(device), pictures=False, on_step=on_step, on_epoch=on_epoch)
    by = f"self_{'cpu' if device.type == 'cpu' else 'cuda'}_time_total"
    profile.write_text(profiler.key_averages().table(sort_by=by, row_limit=80, max_name_column_width=90))
    return images / statistics.median(np.diff([row["seconds"] for row in rows[:7]])[1:])


# --- runs ---


def hardware(options: argparse.Namespace) -> dict[str, Any]:
    """The machine, with its rates where they do not take longer than all the rest."""
    return {"device": "cpu", "toy": True} if options.toy else machine(options.device)


def recipe_of(name: str, overrides: list[str], options: argparse.Namespace) -> Recipe:
    return read_recipe(name, [*overrides, *TOY] if options.toy else overrides)


def read_lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def note(file: Path, line: dict[str, Any], out: Path) -> None:
    """Append one JSON line to a file, and copy the file to `out`."""
    with file.open("a") as stream:
        stream.write(json.dumps(line) + "\n")
    shutil.copyfile(file, out / file.name)


def sweep(options: argparse.Namespace) -> None:
    """Short runs by a recipe with one change each, judged on validation images; the test images are left out."""
    file = options.work / "sweep.jsonl"
    arms = [arm.split() for arm in options.arm] if options.arm else ARMS
    arms = arms[:3] if options.toy and not options.arm else arms
    data: dict[str, ImageSet] = {}
    latest, before = 0.0, None
    for arm in arms:
        changes = [
            *options.overrides,
            f"epochs={options.epochs}",
            f"seed={options.seed}",
            "data.val_fraction=0.1",
            *arm,
        ]
        key = {"recipe": options.recipe, "changes": changes}
        if any(line["recipe"] == options.recipe and line["changes"] == changes for line in read_lines(file)):
            continue
        if time.monotonic() + latest > options.deadline:
            print(f"the time is over before {' '.join(arm)}: go on by the same command")
            break
        start = time.monotonic()
        try:
            recipe = recipe_of(options.recipe, changes, options)
        except ValueError as error:  # a change that this recipe does not allow
            note(file, key | {"error": first_line(error)}, options.out)
            print(f"left out  {' '.join(arm)}: {first_line(error)}")
            continue
        source = recipe.data.source or options.recipe
        if source not in data:
            data[source] = replace(load(source), test=None)
        if before != (recipe.model, recipe.optim.batch_size):
            forget_compiled(options.device)  # else what is compiled serves on
        before = (recipe.model, recipe.optim.batch_size)
        with TemporaryDirectory(dir=options.work) as scratch:
            try:
                run = fit(recipe, data[source], out=scratch, device=str(options.device), pictures=False)
            except (FloatingPointError, RuntimeError) as error:  # no memory, or does not compile: as it would again
                note(file, key | {"error": first_line(error)}, options.out)
                print(f"fails   {' '.join(arm)}: {first_line(error)}")
                if isinstance(error, torch.AcceleratorError):  # after which this process can do no more
                    raise
                continue
            if run.results is None:  # Ctrl-C
                break
            line = key | {name: run.results[name] for name in ("params", "train_seconds", "compile_seconds")}
            line |= {"val_top1": run.results["val"]["top1"], "val_loss": run.results["val"]["loss"]}
        note(file, line, options.out)
        latest = time.monotonic() - start
        print(f"{line['val_top1']:.2%}  {' '.join(arm) or 'the recipe'}  {line['train_seconds']:.0f} s")
    else:
        print(f"all {len(arms)} runs are done: {file}")
    if file.exists():
        shutil.copyfile(file, options.out / file.name)


def final(options: argparse.Namespace) -> None:
    """A whole run, stopped and saved when the time is over; at its end its model in float16, with its figures."""
    overrides = [*options.overrides, f"seed={options.seed}"]
    folder = options.work / re.sub(r"[^\w.-]+", "-", "-".join([options.recipe, *options.overrides, str(options.seed)]))
    unfinished = options.out / f"{folder.name}-unfinished"
    recipe = recipe_of(options.recipe, overrides, options)

    def stop_in_time(state: State, loss: Tensor) -> None:
        if time.monotonic() > options.deadline:
            os.kill(os.getpid(), signal.SIGINT)  # as Ctrl-C: the run saves and ends

    if not (folder / "results.json").exists():
        resume = (folder / "recipe.yaml").exists()
        checkpoint = folder / "checkpoints" / "last.pt"
        parts = sorted(checkpoint.parent.glob("last.pt.*"))
        if parts and parts[0].name == "last.pt.0000":  # it came from another machine
            content = b"".join(part.read_bytes() for part in parts)
            replace_file(checkpoint, lambda whole: whole.write_bytes(content))
            for part in parts:  # the first one first, without which the others are not read
                part.unlink()
        run = fit(recipe, out=folder, device=str(options.device), resume=resume, pictures=False, on_step=stop_in_time)
        if run.results is None:
            bring_unfinished(folder, unfinished)
            print(f"the time is over: go on by the same command, or on another machine with {unfinished}")
            return
    shutil.rmtree(unfinished, ignore_errors=True)
    home = options.out / folder.name
    home.mkdir(parents=True, exist_ok=True)
    for name in ("metrics.csv", "results.json"):
        shutil.copyfile(folder / name, home / name)
    try:
        ship(folder, folder.name, models=options.out, device=str(options.device))
    except ValueError as error:  # its weights are not lost for that
        shutil.copytree(folder / "model", home / "model", dirs_exist_ok=True)
        print(f"{home}: its model stays in float32: {error}")
        return
    results = read_json(home / "results.json")
    print(f"{home}: test top-1 {results['test']['top1']:.2%}, in float16 {results['float16']['top1']:.2%}")


def bring_unfinished(folder: Path, home: Path) -> None:
    """What an unfinished run needs to go on, or to be ended, on another machine: its checkpoint in parts of PART bytes.

    `final` puts them together there; for `vitreous train --resume` or `--finish`: `cat checkpoints/last.pt.* >
    checkpoints/last.pt`.
    """
    shutil.rmtree(home, ignore_errors=True)
    (home / "checkpoints").mkdir(parents=True)
    for name in ("recipe.yaml", "data.json", "environment.json", "metrics.csv"):
        if (folder / name).exists():
            shutil.copyfile(folder / name, home / name)
    if (folder / "model").exists():  # of the best epoch so far, where there are validation images
        shutil.copytree(folder / "model", home / "model")
    content = (folder / "checkpoints" / "last.pt").read_bytes()
    for number, start in enumerate(range(0, len(content), PART)):
        (home / "checkpoints" / f"last.pt.{number:04}").write_bytes(content[start : start + PART])


def time_to(options: argparse.Namespace) -> None:
    """Seconds that the recipe cifar10-94 takes to the end, over several seeds, and whether their mean is 94%."""
    file = options.work / "time-to-94.jsonl"
    here, latest = hardware(options), 0.0
    forget_compiled(options.device)
    for seed in range(options.seeds):
        key = {"device": here["device"], "changes": options.overrides, "seed": seed}
        if any({name: line.get(name) for name in key} == key for line in read_lines(file)):
            continue
        if time.monotonic() + latest > options.deadline:
            print(f"the time is over before seed {seed}: go on by the same command")
            break
        recipe, start = recipe_of("cifar10-94", [*options.overrides, f"seed={seed}"], options), time.monotonic()
        with TemporaryDirectory(dir=options.work) as scratch:
            run = fit(recipe, out=scratch, device=str(options.device), pictures=False)
            if run.results is None:  # Ctrl-C
                break
            compiling = run.results["compile_seconds"]
            line = key | {"top1": run.results["test"]["top1"], "epochs": run.results["epochs"]}
            line |= {"seconds": run.results["train_seconds"] - compiling, "compile_seconds": compiling}
        note(file, line, options.out)
        latest = time.monotonic() - start
    lines = [line for line in read_lines(file) if line.get("device") == here["device"]]
    lines = [line for line in lines if line["changes"] == options.overrides]
    if lines:
        top1, seconds = ([line[name] for line in lines] for name in ("top1", "seconds"))
        results = {
            "machine": here,
            "recipe": "cifar10-94",
            "changes": options.overrides,
            "n": len(lines),
            "mean_top1": statistics.mean(top1),
            "sd_top1": statistics.stdev(top1) if len(top1) > 1 else None,
            "reached": statistics.mean(top1) >= 0.94,
            "mean_seconds": statistics.mean(seconds),
            "seconds": seconds,
            "compile_seconds": [line["compile_seconds"] for line in lines],
            "top1": top1,
        }
        write_json(options.out / "time-to-94.json", results)
        print(
            f"test top-1 {results['mean_top1']:.2%}, n = {len(lines)}, in {results['mean_seconds']:.1f} s beside "
            f"{max(results['compile_seconds']):.1f} s or less for the first steps, which compile"
        )


if __name__ == "__main__":
    main()
