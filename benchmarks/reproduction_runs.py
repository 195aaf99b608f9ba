"""Train the original experiments, faithful and fixed, and our recipes beside them; a file of results for each run.

python benchmarks/reproduction_runs.py                                   # what there is, and how much of it is done
python benchmarks/reproduction_runs.py lyon-mnist lyon-cifar10           # faithful, each fix, all fixes, ours; 3 seeds
python benchmarks/reproduction_runs.py tigges-cifar10 --rows faithful all --seeds 1 --epochs 5
python benchmarks/reproduction_runs.py paper-b16-pizza --rows faithful ours

Each run that ends leaves benchmarks/results/reproductions/<run>.json; one whose file is there is not trained again, so
a list that was stopped goes on where it was. `reproduction_tables.py` then writes docs/reproductions.md.
"""

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from measure import RESULTS, pooled, trained

from reproductions.__main__ import EXPERIMENTS
from reproductions.experiment import hardware, run
from vitreous.data.sources import load
from vitreous.device import pick_device
from vitreous.files import write_json
from vitreous.model.summary import summarise
from vitreous.recipe import read_recipe

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
    variant: str = ""
    """What the overrides make of the recipe, in the names of its files."""
    folds: int | None = None
    """Cross-validate over all images, training and test, instead of judging on the test images; each seed cuts other
    parts."""
    seed: int = 0

    @property
    def name(self) -> str:
        words = [self.variant, f"{self.folds}-folds" if self.folds else "", str(self.seed)]
        return "--".join([self.experiment, "ours", self.recipe, *filter(None, words)])

    @property
    def command(self) -> str:
        if self.folds:
            return f"python benchmarks/reproduction_runs.py {self.experiment} --rows ours"
        words = ["vitreous train", EXPERIMENTS[self.experiment].source, *self.overrides, f"--recipe {self.recipe}"]
        return " ".join([*words, f"--seed {self.seed}"])

    def train(self, device: str) -> dict[str, Any]:
        data = load(EXPERIMENTS[self.experiment].source)
        folds = [f"data.folds={self.folds}"] * bool(self.folds)
        recipe = read_recipe(self.recipe, [*self.overrides, *folds, f"seed={self.seed}"])
        folder = RUNS / self.name
        results = trained(recipe, pooled(data) if self.folds else data, folder, device)
        model = read_recipe(str((folder / "fold-1" if self.folds else folder) / "recipe.yaml")).model
        return {
            "experiment": self.experiment,
            "ours": self.label,
            "command": self.command,
            "seed": self.seed,
            "multiply_adds": summarise(model).flops // 2,
            "machine": hardware(pick_device(device)),
            **{key: value for key, value in results.items() if not key.startswith("caution")},  # of images, by path
        }


# Models of ours with less than ten times (MNIST) and about three times (CIFAR-10) the original's multiply-adds.
SMALL_MNIST = (
    *("epochs=5", "model.stem_channels=[16]", "model.dim=32", "model.depth=2", "model.mlp_conv=true"),
    *("augment.shift=2", "augment.rotation=6", "augment.scale=0.1", "augment.shear=4"),
    *("optim.muon_learning_rate=0.02", "optim.label_smoothing=0"),
)
SMALL_CIFAR10 = (
    *(
        "epochs=5",
        "model.patch_size=8",
        "model.stem_channels=[16,32]",
        "model.stem_strides=[]",
        "model.dim=64",
        "model.depth=5",
        "model.heads=2",
    ),
    *("model.mlp_conv=true", "model.drop_path=0", "augment.cutmix=0", "augment.shift=2", "optim.label_smoothing=0"),
)

FIVE, QUARTER, HOUR = ("time_limit=5m",), ("time_limit=15m",), ("time_limit=60m",)
GRAPHS = "compile=reduce-overhead"
ONCE = "epochs=1", "time_limit=null"
B16 = "epochs=5", "model.size=B/16", "model.image_size=224", "optim.batch_size=32"

CIFAR100 = (  # label, recipe, overrides and variant of the rows beside each experiment on CIFAR-100
    ("`cifar100-amx`, one epoch", "cifar100-amx", ONCE, "1-epochs"),
    ("`cifar100-cpu`, a quarter of an hour", "cifar100-cpu", QUARTER, "15m"),
    ("`cifar100-amx`, an hour", "cifar100-amx", HOUR, "60m"),
    ("`cifar100`, on a GPU", "cifar100", (GRAPHS, "time_limit=360s"), "360s"),
)

# Rows of our own, beside those of the originals; `seed` is filled in.
OURS = (
    Ours("lyon-mnist", "`mnist`, smaller, as many epochs", "mnist", SMALL_MNIST, "small"),
    Ours("lyon-mnist", "`mnist`, as many epochs", "mnist", ("epochs=5",), "5-epochs"),
    Ours("lyon-cifar10", "`small-images`, smaller, as many epochs", "small-images", SMALL_CIFAR10, "small"),
    Ours("lyon-cifar10", "`small-images`, as many epochs", "small-images", ("epochs=5",), "5-epochs"),
    *(Ours(name, *row) for name in ("behery-cifar100", "behery-cifar100-gap", "tigges-cifar100") for row in CIFAR100),
    Ours("tigges-cifar10", "`cifar10-amx`, one epoch", "cifar10-amx", ONCE, "1-epochs"),
    Ours("tigges-cifar10", "`cifar10-cpu`, five minutes", "cifar10-cpu", FIVE, "5m"),
    Ours("tigges-cifar10", "`cifar10-cpu`, an hour", "cifar10-cpu", HOUR, "60m"),
    Ours("tigges-cifar10", "`cifar10-amx`, an hour", "cifar10-amx", HOUR, "60m"),
    Ours("tigges-cifar10", "`cifar10`, on a GPU", "cifar10", (GRAPHS, "time_limit=360s"), "360s"),
    Ours("paper-b16-pizza", "`plain` of the same size, as many epochs", "plain", B16, "B16"),
    Ours("paper-b16-pizza", "`pizza`, the original split", "pizza"),
    Ours("paper-b16-pizza", "`pizza`, 5 folds of all 300 images", "pizza", folds=5),
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
        listed += [replace(own, seed=seed) for own in ours]
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
