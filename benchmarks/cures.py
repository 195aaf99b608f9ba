"""What helps a Vision Transformer that has few images? Small models on 300 handwritten digits, one change at a time.

    python benchmarks/cures.py            # writes benchmarks/results/cures.json; a few minutes on one core
    python benchmarks/cures.py --quick    # seconds; writes nothing

A plain ViT is trained; then the same with one cure each; with all of COMBINED together; and with all but one of these.
Each seed draws its own 300 images, and all variants of a seed share images and seed, so that differences are taken in
pairs. They are judged on the other 1,137 training images of the built-in digits: the set's own test images stay shut.
Each run is a folder under runs/benchmarks/cures/; one that is finished is not trained again. The file is written after
each seed.
"""

import argparse
import statistics
from dataclasses import replace
from pathlib import Path

import torch
from measure import RESULTS, machine, save, trained

from vitreous.data.images import ImageSet
from vitreous.data.sources import load
from vitreous.files import read_history
from vitreous.recipe import Recipe, make_recipe
from vitreous.train.run import fit

IMAGES = 300
RUNS = Path("runs/benchmarks/cures")
PLAIN = {
    "epochs": 60,
    "precision": "float32",
    "model": {"patch_size": 2, "dim": 64, "depth": 3, "heads": 2, "mlp_ratio": 2.0},
    "data": {"val_fraction": 0.0},  # nothing is chosen: the last step's weights are judged
    "optim": {"learning_rate": 2e-3, "batch_size": 100},
}
CURES: dict[str, dict[str, dict]] = {
    "conv stem": {"model": {"patch_embedding": "conv_stem", "stem_channels": [32]}},
    "mean pooling": {"model": {"pool": "mean"}},
    "attention pooling": {"model": {"pool": "attention"}},
    "augmentation": {"augment": {"rotation": 10, "scale": 0.1, "shift": 1, "shear": 8}},
    "mixup": {"augment": {"mixup": 0.8}},
    "cutmix": {"augment": {"cutmix": 1.0}},
    "dropout": {"model": {"dropout": 0.1}},
    "stochastic depth": {"model": {"drop_path": 0.1}},
    "moving average of weights": {"optim": {"ema": 0.99}},
    "Muon": {"optim": {"name": "muon", "muon_learning_rate": 0.01}},
    "rate halved": {"optim": {"learning_rate": 1e-3}},  # no cures: is the plain one's rate a fair one?
    "rate doubled": {"optim": {"learning_rate": 4e-3}},
}
COMBINED = ("conv stem", "attention pooling", "augmentation", "stochastic depth", "moving average of weights", "Muon")


def variants() -> dict[str, tuple[str, ...]]:
    """The cures that each variant takes: none, one, COMBINED, or these but for one."""
    alone = {name: (name,) for name in CURES}
    without = {f"combined without {name}": tuple(cure for cure in COMBINED if cure != name) for name in COMBINED}
    return {"plain": (), "combined": COMBINED} | alone | without


def recipe_with(cures: tuple[str, ...], seed: int, epochs: int = PLAIN["epochs"]) -> Recipe:
    """The plain recipe with these changes."""
    fields = {key: dict(value) if isinstance(value, dict) else value for key, value in PLAIN.items()}
    for cure in cures:
        for section, changes in CURES[cure].items():
            fields[section] = fields.get(section, {}) | changes
    return make_recipe(fields | {"seed": seed, "epochs": epochs}, "cures.py")


def few_digits(seed: int) -> ImageSet:
    """300 of the digits' training images to train on, each class alike, and the rest of them to judge by."""
    digits = load("digits")
    data = digits.with_validation(1 - IMAGES / len(digits.train), seed)
    return replace(data, val=None, test=data.val)


def train(name: str, cures: tuple[str, ...], seed: int) -> dict:
    """The figures of one run, as they are or after training."""
    folder = RUNS / f"{name.replace(' ', '-')}-{seed}"
    results = trained(recipe_with(cures, seed), few_digits(seed), folder, "cpu")
    return results | {"train_top1": read_history(folder)[-1]["train_top1"]}


def figures(runs: dict[str, list[dict]]) -> dict[str, dict]:
    """By variant: top-1 by seed, and its mean on the test images and on the training images of the last pass.

    `gain` is the mean difference of top-1 to the model that the variant is compared with, seed by seed, and `gain_sd`
    its standard deviation: to the plain model, or to the combined one where a cure was left out.
    """
    rows = {}
    for name, of_name in runs.items():
        base = "combined" if name.startswith("combined without") else "plain"
        top1, others = ([run["test"]["top1"] for run in some] for some in (of_name, runs[base]))
        gains = [a - b for a, b in zip(top1, others, strict=True)]
        rows[name] = {
            "params": of_name[0]["params"],
            "train_top1": statistics.mean(run["train_top1"] for run in of_name),
            "top1": top1,
            "mean": statistics.mean(top1),
            "gain": statistics.mean(gains),
            "gain_sd": statistics.stdev(gains) if len(gains) > 1 else None,
        }
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="two epochs of two variants in a passing folder, no file")
    options = parser.parse_args()
    if options.quick:
        from tempfile import TemporaryDirectory

        for name in ("plain", "combined"):
            with TemporaryDirectory() as folder:
                run = fit(recipe_with(variants()[name], 0, epochs=2), few_digits(0), out=folder, device="cpu")
            print(f"{name}: {run.results['test']['top1']:.1%} after two passes")
        return
    runs: dict[str, list[dict]] = {name: [] for name in variants()}
    for seed in range(options.seeds):  # all variants of a seed side by side
        for name, cures in variants().items():
            runs[name].append(train(name, cures, seed))
        rows = figures(runs)
        content = {
            "images": IMAGES,
            "test_images": runs["plain"][0]["test"]["count"],
            "epochs": runs["plain"][0]["epochs"],
            "n": seed + 1,
            "machine": machine(torch.device("cpu")),
            "rows": rows,
        }
        save(RESULTS / "cures.json", content)
    for name, row in rows.items():
        print(f"{name:42} {row['mean']:.2%}, {row['gain']:+.2%}")


if __name__ == "__main__":
    main()
