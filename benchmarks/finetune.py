"""DeiT-Tiny on 300 photographs of pizza, steak and sushi: a linear probe, and fine-tuning, tuned and as it comes.

    python benchmarks/finetune.py                     # all, and results/fine-tuning.json
    python benchmarks/finetune.py --only probe        # a minute; fine-tuning stays as it is in the file
    python benchmarks/finetune.py --only finetune optim.freeze=0  # these settings in place of SETTINGS
    python benchmarks/finetune.py --only default      # recipe finetune without any
    python benchmarks/finetune.py --quick             # digits and a model without training; writes nothing

All are judged on the original split, 225 to train on and 75 to test, and on 5 folds of all 300 images, repeated with
other folds. Each fine-tuning is a run folder under runs/benchmarks/; one that is finished is not trained again, one
that was interrupted goes on. Nothing is held out for validation: the weights after the last step are judged.
"""

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from measure import RESULTS, machine, pooled, save, trained
from PIL import Image

from vitreous.data.images import ImageSet, Split
from vitreous.data.sources import load
from vitreous.device import pick_device
from vitreous.embedding import embed_split, load_features
from vitreous.model import ViT, ViTConfig
from vitreous.preprocess import Preprocess
from vitreous.recipe import read_recipe
from vitreous.train.choose import start_settings
from vitreous.train.probe import fit_head
from vitreous.weights import Bundle

ARCH = "deit_tiny_patch16_224"
FOLDS = 5
SETTINGS = ["model.pool=cls_mean", "optim.freeze=9"]  # of recipe finetune


class Task(NamedTuple):
    """Weights, images, and where runs lie."""

    weights: Path
    arch: str | None
    data: ImageSet
    """With its original split."""
    runs: Path

    @property
    def pool(self) -> Split:
        """All images, those for training first."""
        return pooled(self.data).train


def real_task() -> Task:
    root = os.environ.get("VITREOUS_DATA")
    if not root:
        raise SystemExit("set VITREOUS_DATA to the folder with pizza_steak_sushi/ and weights/")
    weights = Path(root, "weights", f"{ARCH}.fp16.safetensors")
    return Task(weights, ARCH, load(Path(root, "pizza_steak_sushi")), Path("runs/benchmarks/fine-tuning"))


def quick_task(root: Path) -> Task:
    """Sixty digits of three classes, and a model of one block without training."""
    digits = load("digits").train
    for split, count in (("train", 15), ("test", 5)):
        for label in range(3):
            rows = np.flatnonzero(digits.labels == label)[: count + 5]
            folder = root / "digits" / split / str(label)
            folder.mkdir(parents=True)
            for row in rows[5:] if split == "train" else rows[:5]:
                Image.fromarray(digits.images.array[row, 0]).save(folder / f"{row}.png")
    config = ViTConfig(image_size=8, patch_size=2, channels=1, num_classes=2, dim=32, depth=1, heads=2)
    Bundle(ViT(config), Preprocess(image_size=8, mean=(0.3,), std=(0.4,)), ("a", "b")).save(root / "bundle")
    return Task(root / "bundle", None, load(root / "digits"), root / "runs")


def partitions(task: Task, repeats: int) -> Iterator[tuple[str, int, np.ndarray, np.ndarray]]:
    """Name, seed, rows to train on and rows to test of the original split, then of each fold of each repeat."""
    from sklearn.model_selection import StratifiedKFold

    count, labels = len(task.data.train), task.pool.labels
    yield "split", 0, np.arange(count), np.arange(count, len(labels))
    for repeat in range(repeats):
        folds = StratifiedKFold(FOLDS, shuffle=True, random_state=repeat).split(labels, labels)
        for fold, (train, test) in enumerate(folds):
            yield f"repeat{repeat}-fold{fold}", repeat, train, test


def probe(task: Task, repeats: int, pool: str) -> dict[str, float]:
    """Test top-1 of each partition; the features of all images, pooled so, are computed once."""
    bundle = load_features(task.weights, task.arch)
    model = ViT(bundle.model.config.changed(pool=pool))
    body = {name: value for name, value in bundle.model.state_dict().items() if not name.startswith("head.")}
    model.load_state_dict(model.state_dict() | body)
    bundle = replace(bundle, model=model.eval())
    parts = [embed_split(bundle, task.data, name) for name in ("train", "test")]
    features, labels = (torch.cat([getattr(part, key) for part in parts]) for key in ("features", "labels"))
    top1 = {}
    for name, seed, train, test in partitions(task, repeats):
        head = fit_head(features[train], labels[train], len(task.data.class_names), seed=seed)
        answers = (features[test] @ head.weight.T + head.bias).argmax(dim=1)
        top1[name] = (answers == labels[test]).double().mean().item()
    return top1


def finetune(task: Task, repeats: int, settings: list[str]) -> dict[str, float]:
    """Test top-1 of each partition, one run a partition."""
    top1 = {}
    for name, seed, train, test in partitions(task, repeats):
        folder = task.runs / "-".join([name, *(setting.replace("=", "-") for setting in settings)])
        start = start_settings(str(task.weights), task.arch, None)
        recipe = read_recipe("finetune", ["data.val_fraction=0", f"seed={seed}", *start, *settings])
        data = ImageSet(
            name=f"{task.data.name}-{name}",
            source=task.data.source,
            class_names=task.data.class_names,
            train=task.pool.take(train),
            test=task.pool.take(test),
        )
        top1[name] = trained(recipe, data, folder)["test"]["top1"]
        print(f"{name}: {top1[name]:.2%}", flush=True)
    return top1


def summed_up(top1: dict[str, float]) -> dict:
    """The split's figure, and mean and deviation over the folds."""
    folds = [value for name, value in top1.items() if name != "split"]
    sd = statistics.stdev(folds)
    return {"split": top1["split"], "mean": statistics.mean(folds), "sd": sd, "n": len(folds), "top1": top1}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", metavar="key=value", help="of recipe finetune")
    parser.add_argument("--only", choices=["probe", "finetune", "default"])
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_intermixed_args()
    if options.settings and (options.quick or options.only in ("probe", "default")):
        parser.error(f"{' '.join(options.settings)}: the fine-tuning alone takes settings, and not with --quick")

    file = RESULTS / "fine-tuning.json"
    with tempfile.TemporaryDirectory() as folder:
        task = quick_task(Path(folder)) if options.quick else real_task()
        repeats = 1 if options.quick else options.repeats
        least = ["epochs=1"] if options.quick else []
        settings = least or options.settings or SETTINGS
        results = json.loads(file.read_text()) if file.exists() and not options.quick else {}
        for name, measure in (
            ("probe", lambda: probe(task, repeats, "cls")),
            ("probe_cls_mean", lambda: probe(task, repeats, "cls_mean")),
            ("finetune", lambda: finetune(task, repeats, settings)),
            ("default", lambda: finetune(task, repeats, least)),
        ):
            if options.only is None or name.startswith(options.only):
                results[name] = summed_up(measure())
                results[name] |= {"settings": settings} if name == "finetune" else {}
                results[name]["machine"] = machine(pick_device())
    if not options.quick:
        save(file, results | {"weights": ARCH, "data": "pizza_steak_sushi"})
    for name in ("probe", "probe_cls_mean", "finetune", "default"):
        if name in results:
            line = "{0}: top-1 {mean:.2%} +- {sd:.2%} over {n} folds, {split:.2%} on the split"
            print(line.format(name, **results[name]))


if __name__ == "__main__":
    main()
