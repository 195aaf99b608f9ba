"""Train the original experiments, faithful and fixed, and our recipes beside them; a file of results for each run.

python benchmarks/reproduction_runs.py                                   # what there is, and how much of it is done
python benchmarks/reproduction_runs.py lyon-mnist lyon-cifar10           # faithful, each fix, all fixes, ours; 3 seeds
python benchmarks/reproduction_runs.py tigges-cifar10 --rows faithful all --seeds 1 --epochs 5
python benchmarks/reproduction_runs.py paper-b16-pizza --rows faithful ours

Each run that ends leaves benchmarks/results/reproductions/<run>.json; one whose file is there is not trained again, so
a list that was stopped goes on where it was. `reproduction_tables.py` then writes docs/reproductions.md.
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from measure import RESULTS

from reproductions.__main__ import EXPERIMENTS
from reproductions.experiment import find, hardware, run
from vitreous.files import write_json
from vitreous.model.summary import summarise
from vitreous.recipe import read_recipe
from vitreous.train.folds import fit_folds
from vitreous.train.run import fit

FOLDER = RESULTS / "reproductions"
RUNS = Path("runs/reproductions")
ROWS = ("faithful", "fixes", "all", "ours")


@dataclass(frozen=True)
class Original:
    """One run of an original, with some of its mistakes fixed."""

    experiment: str
    fixes: tuple[str, ...]
    seed: int
    epochs: int | None

    @property
    def name(self) -> str:
        passes = f"-{self.epochs}-epochs" if self.epochs else ""
        return f"{self.experiment}{passes}--{'+'.join(self.fixes) or 'faithful'}--{self.seed}"

    def train(self, device: str) -> dict[str, Any]:
        experiment = EXPERIMENTS[self.experiment]
        return run(experiment, experiment.named(self.fixes), seed=self.seed, epochs=self.epochs, device=device)


@dataclass(frozen=True)
class Ours:
    """One run of a recipe of ours on the data of an original."""

    experiment: str
    label: str
    """Its row in the table."""
    recipe: str
    overrides: tuple[str, ...] = ()
    folds: int | None = None
    """Cross-validate instead of judging on the test images; each seed cuts other parts."""
    seed: int = 0

    @property
    def name(self) -> str:
        words = [self.recipe, *(override.replace("=", "-") for override in self.overrides)]
        return "--".join(
            [self.experiment, "ours", *words, *([f"{self.folds}-folds"] * bool(self.folds)), str(self.seed)]
        )

    @property
    def command(self) -> str:
        source = EXPERIMENTS[self.experiment].source
        words = ["vitreous train", source, *self.overrides, f"--recipe {self.recipe}"]
        return " ".join([*words, *([f"--folds {self.folds}"] * bool(self.folds)), f"--seed {self.seed}"])

    def train(self, device: str) -> dict[str, Any]:
        data = find(EXPERIMENTS[self.experiment].source)
        folds = [f"data.folds={self.folds}"] * bool(self.folds)
        recipe = read_recipe(self.recipe, [*self.overrides, *folds, f"seed={self.seed}"])
        folder = RUNS / self.name
        finished, begun = folder / "results.json", (folder / "recipe.yaml").exists()
        if not finished.exists():
            (fit_folds if self.folds else fit)(recipe, data, out=folder, device=device, resume=begun)
        if not finished.exists():
            raise KeyboardInterrupt
        results = json.loads(finished.read_text())
        model = read_recipe(str((folder / "fold-1" if self.folds else folder) / "recipe.yaml")).model
        return {
            "experiment": self.experiment,
            "ours": self.label,
            "command": self.command,
            "seed": self.seed,
            "multiply_adds": summarise(model).flops // 2,
            "machine": hardware(torch.device(device) if device != "auto" else None),
            **results,
        }


# Rows of our own, beside those of the originals; `seed` is filled in.
OURS = (
    Ours("lyon-mnist", "our recipe `mnist`, as many epochs", "mnist", ("epochs=5",)),
    Ours("lyon-cifar10", "our recipe `small-images`, as many epochs", "small-images", ("epochs=5",)),
    Ours("behery-cifar100", "our recipe `cifar100-cpu`", "cifar100-cpu"),
    Ours("tigges-cifar100", "our recipe `cifar100-cpu`", "cifar100-cpu"),
    Ours("tigges-cifar10", "our recipe `cifar10-cpu`", "cifar10-cpu"),
    Ours("paper-b16-pizza", "our recipe `photos`, the original split", "photos"),
    Ours("paper-b16-pizza", "our recipe `photos`, 5 folds", "photos", (), 5),
)


def jobs(experiment: str, rows: list[str], seeds: int, epochs: int | None) -> list[Original | Ours]:
    """The runs of one table, all of the first seed before the next, so that a stopped list has a figure in each row."""
    fixes: list[tuple[str, ...]] = [()] * ("faithful" in rows)
    fixes += [(fix,) for fix in EXPERIMENTS[experiment].fixes] * ("fixes" in rows)
    fixes += [("all",)] * ("all" in rows)
    ours = [own for own in OURS if own.experiment == experiment and "ours" in rows]
    listed: list[Original | Ours] = []
    for seed in range(seeds):
        listed += [Original(experiment, names, seed, epochs) for names in fixes]
        listed += [Ours(own.experiment, own.label, own.recipe, own.overrides, own.folds, seed) for own in ours]
    return listed


def file_of(job: Original | Ours) -> Path:
    return FOLDER / f"{job.name}.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiments", nargs="*", choices=[*EXPERIMENTS, []], metavar="NAME")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, help="of the originals, other than the author's")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()

    listed = [
        job
        for experiment in options.experiments or EXPERIMENTS
        for job in jobs(experiment, options.rows, options.seeds, options.epochs)
    ]
    if not options.experiments:
        for job in listed:
            print(f"{'done' if file_of(job).exists() else '    '} {job.name}")
        return
    for number, job in enumerate(listed, start=1):
        if file_of(job).exists():
            continue
        print(f"{number} of {len(listed)}: {job.name}", flush=True)
        write_json(file_of(job), job.train(options.device))


if __name__ == "__main__":
    main()
