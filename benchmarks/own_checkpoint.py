"""What a checkpoint of ours is worth on a small folder: a probe and a fine-tuning of it, against training from scratch.

    python benchmarks/own_checkpoint.py                   # models/mnist on ten of scikit-learn's digits a class
    python benchmarks/own_checkpoint.py --checkpoint runs/cifar100 --data cifar10 --scratch cifar10-cpu augment.flip=0.5
    python benchmarks/own_checkpoint.py --quick           # a step of each; writes nothing

Every seed draws other images to train on and writes them as a folder of PNG files; all ways read the same folder, and
are judged on all test images of the set. From scratch there are two models: the checkpoint's own, trained as it was
(its recipe.yaml), and that of the recipe --scratch. Both see the folder --epochs times. Nothing is held out for
validation: the weights after the last step are judged. Each training is a run folder under runs/benchmarks/; one that
is finished is not trained again.
"""

import argparse
import statistics
import tempfile
from pathlib import Path

import numpy as np
from measure import RESULTS, machine, save, trained
from PIL import Image

from vitreous.data.images import ImageSet, Split
from vitreous.data.sources import load
from vitreous.device import pick_device
from vitreous.recipe import Recipe, read_recipe
from vitreous.train.choose import start_settings
from vitreous.weights.bundle import find_record

BATCH = "optim.batch_size=32"  # of 100 images, larger ones make too few steps
TUNING = (  # of recipe finetune: digits are no photographs, and a small model takes higher rates and more passes
    "augment.flip=0",
    "augment.color=0",
    "augment.crop_scale=[0.8,1.0]",
    "epochs=30",
    "optim.learning_rate=5e-4",
    "optim.label_smoothing=0.1",
    BATCH,
)


def write_split(split: Split, names: tuple[str, ...], folder: Path) -> None:
    """folder/<class>/<row>.png; images of the set's own size."""
    for row in range(len(split)):
        pixels, label = split[row]  # (C, H, W)
        file = folder / names[label] / f"{row:05}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)).save(file)


def small_folder(data: ImageSet, per_class: int, seed: int, folder: Path) -> ImageSet:
    """So many training images a class, drawn by the seed, and all test images, as files; what is there is kept."""
    if not (folder / "test").exists():
        rng = np.random.default_rng(seed)
        drawn = [
            rng.permutation(np.flatnonzero(data.train.labels == k))[:per_class] for k in range(len(data.class_names))
        ]
        write_split(data.train.take(np.concatenate(drawn)), data.class_names, folder / "train")
        unfinished = folder / ".test"
        write_split(data.test, data.class_names, unfinished)
        unfinished.rename(folder / "test")
    return load(folder)


def recipes(checkpoint: str, scratch: str, epochs: int, classes: int, tuning: list[str]) -> dict[str, Recipe]:
    """The ways, by name."""
    start, plain = start_settings(checkpoint, None, None), ["data.val_fraction=0"]
    own = find_record(checkpoint) / "recipe.yaml"
    once = [*plain, f"epochs={epochs}", BATCH]
    return {
        "a probe of the checkpoint": read_recipe("probe", [*plain, *start]),
        "the checkpoint, fine-tuned": read_recipe("finetune", [*plain, *start, *tuning]),
        "its model from scratch": read_recipe(str(own), [*once, f"model.num_classes={classes}", "data.source=null"]),
        f"recipe {scratch} from scratch": read_recipe(scratch, [*once, "data.source=null"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "tuning", nargs="*", metavar="key=value", help="of recipe finetune, in place of those for digits"
    )
    parser.add_argument("--checkpoint", default="mnist", help="a run with its recipe.yaml, or a shipped model")
    parser.add_argument("--data", default="digits")
    parser.add_argument("--per-class", type=int, default=10, help="training images of each class")
    parser.add_argument("--scratch", default="digits", metavar="RECIPE")
    parser.add_argument("--epochs", type=int, default=300, help="passes from scratch")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2], help="at least two")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_intermixed_args()
    if len(options.seeds) < 2:
        parser.error("--seeds names fewer than two: there is no deviation over them")
    tuning, per_class, epochs, seeds = options.tuning or list(TUNING), options.per_class, options.epochs, options.seeds
    if options.quick:
        tuning, per_class, epochs, seeds = [*tuning, "epochs=1"], 4, 1, [0, 1]

    data = load(options.data)
    ways = recipes(options.checkpoint, options.scratch, epochs, len(data.class_names), tuning)
    figures: dict[str, list[float]] = {way: [] for way in ways}
    with tempfile.TemporaryDirectory() as scratch:
        name = f"{Path(options.checkpoint).name}-{options.data}-{per_class}"
        root = Path(scratch) if options.quick else Path("runs/benchmarks/own-checkpoint") / name
        for seed in seeds:
            small = small_folder(data, per_class, seed, root / f"images-{seed}")
            for way, recipe in ways.items():
                folder = root / f"{way.replace(' ', '-').replace(',', '')}-{seed}"
                results = trained(recipe.model_copy(update={"seed": seed}), small, folder)
                figures[way].append(results["test"]["top1"])
                print(f"seed {seed}, {way}: {figures[way][-1]:.2%}", flush=True)

    rows = [
        {"way": way, "top1_mean": statistics.mean(values), "top1_sd": statistics.stdev(values), "top1": values}
        for way, values in figures.items()
    ]
    for row in rows:
        print(f"{row['way']:30} {row['top1_mean']:.2%} +- {row['top1_sd']:.2%}, n = {len(seeds)}")
    if not options.quick:
        about = {"checkpoint": options.checkpoint, "data": options.data, "per_class": per_class, "epochs": epochs}
        about |= {"tuning": tuning, "seeds": seeds, "train_images": len(small.train), "test_images": len(small.test)}
        content = about | {"machine": machine(pick_device()), "rows": rows}
        digits = (options.checkpoint, options.data) == ("mnist", "digits")
        save(RESULTS / f"own-checkpoint{'' if digits else f'-{name}'}.json", content)


if __name__ == "__main__":
    main()
