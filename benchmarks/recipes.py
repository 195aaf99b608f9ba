"""Train a shipped recipe over several seeds, and write their test figures to benchmarks/results/.

python benchmarks/recipes.py digits --seeds 5
python benchmarks/recipes.py digits --seeds 5 precision=float32

The results, and a run folder for each seed under runs/benchmarks/, are named after what multiplies there, too. A run
that is finished is not trained again, one that was interrupted goes on.
"""

import argparse
import statistics
from pathlib import Path

from measure import RESULTS, machine, save, trained, units

from vitreous.device import pick_device
from vitreous.recipe import read_recipe


def train_seeds(recipe: str, overrides: list[str], seeds: int) -> tuple[str, dict]:
    """Train seeds 0, 1, ...; returns a name for the experiment here and its figures."""
    name = "-".join([recipe, *(override.replace("=", "-") for override in overrides), units(pick_device())])
    runs = [
        trained(read_recipe(recipe, [*overrides, f"seed={seed}"]), None, Path(f"runs/benchmarks/{name}-{seed}"))
        for seed in range(seeds)
    ]
    top1 = [run["test"]["top1"] for run in runs]
    what = recipe if read_recipe(recipe).data.source == recipe else f"--recipe {recipe}"
    return name, {
        "recipe": recipe,
        "overrides": overrides,
        "time_limit": read_recipe(recipe, overrides).time_limit,
        "command": f"vitreous train {' '.join([what, *overrides])} --seed N",
        "machine": machine(pick_device()),
        "params": runs[0]["params"],
        "passes": statistics.mean(run["passes"] for run in runs),
        "precision": runs[0]["precision"],
        "test_images": runs[0]["test"]["count"],
        "n": len(runs),
        "top1_mean": statistics.mean(top1),
        "top1_sd": statistics.stdev(top1) if len(top1) > 1 else None,
        "top1": top1,
        "val_top1": [run["val"]["top1"] if run["val"] else None for run in runs],
        "train_seconds": [run["train_seconds"] for run in runs],
        "images_per_second": [run["images_per_second"] for run in runs],
    }


def in_words(figures: dict) -> str:
    sd = f" +- {figures['top1_sd']:.2%}" if figures["top1_sd"] is not None else ""
    seconds = f"{min(figures['train_seconds']):.0f} to {max(figures['train_seconds']):.0f} s"
    return f"test top-1 {figures['top1_mean']:.2%}{sd}, n = {figures['n']}, {figures['passes']:.1f} passes, {seconds}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_intermixed_args()
    name, figures = train_seeds(options.recipe, options.overrides, options.seeds)
    save(RESULTS / f"{name}.json", figures)
    print(f"{name}: {in_words(figures)}")


if __name__ == "__main__":
    main()
