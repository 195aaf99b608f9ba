"""Draw test top-1 on CIFAR against minutes of training, from benchmarks/results/*.json: python benchmarks/minutes.py"""

import itertools
import json
from argparse import ArgumentParser
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from measure import RESULTS, markdown

from reproductions.__main__ import EXPERIMENTS
from vitreous.plots.canvas import BLUE, GREEN, ROSE, SAND

PICTURE = Path(__file__).parent.parent / "docs" / "images" / "accuracy-by-minutes.png"
UNITS = {"amx": "AMX", "avx512-bf16": "AVX-512 with bf16", "avx512": "AVX-512", "avx2": "AVX2"}
COLORS = BLUE, GREEN, SAND, ROSE, "#332288"  # indigo, of the same palette
COMPACT = {"cifar10": 0.965, "cifar100": 0.809}  # CCT-7/3x1 after 300 epochs: Hassani et al. 2021, arXiv 2104.05704


class Timed(NamedTuple):
    """What a recipe reached within a time limit."""

    recipe: str
    units: str
    """What multiplies on two cores, or the name of a GPU."""
    precision: str
    params: int
    minutes: float
    top1: float
    sd: float | None
    n: int
    changes: int
    """How many settings differ from the recipe's, but for compiling and a number of epochs that the time did not
    reach."""


def timed(results: list[dict]) -> list[Timed]:
    """Of the results of recipes those that had a time limit and no teacher, whose own time would count, too."""
    found = []
    for r in results:
        others = [override for override in r["overrides"] if not override.startswith(("time_limit=", "compile="))]
        if r["time_limit"] is not None and not any(other.startswith("distill.") for other in others):
            units, minutes = UNITS.get(r["machine"]["units"], r["machine"]["device"]), r["time_limit"] / 60
            what = r["recipe"], units, r["precision"], r["params"]
            epochs = [int(other.removeprefix("epochs=")) for other in others if other.startswith("epochs=")]
            changes = len(others) - sum(r["passes"] < bound for bound in epochs)
            found.append(Timed(*what, minutes, r["top1_mean"], r["top1_sd"], r["n"], changes))
    return found


def minutes_table(found: list[Timed]) -> str:
    """A row for each recipe and processor, a column for each time limit; other settings only where there is no figure
    without them. Parameters are those of the run whose settings differ least from the recipe's. GPUs are left out."""
    reached: dict[tuple, dict[float, str]] = {}
    params: dict[tuple, str] = {}
    for run in sorted((run for run in found if run.units in UNITS.values()), key=lambda run: run.changes):
        top1 = f"{100 * run.top1:.2f}"
        if run.sd is not None:
            top1 += f" ± {100 * run.sd:.2f} (n = {run.n})"
        of = f"`{run.recipe}`", run.units, run.precision
        params.setdefault(of, f"{run.params:,}")
        reached.setdefault(of, {}).setdefault(run.minutes, top1 + " *" * (run.changes > 0))
    columns = sorted({minutes for row in reached.values() for minutes in row})
    head = ["recipe", "two cores with", "precision", "parameters", *(f"{minutes:g} min" for minutes in columns)]
    rows = [[*of, params[of], *(row.get(minutes, "") for minutes in columns)] for of, row in sorted(reached.items())]
    return markdown(head, rows)


def points(found: list[Timed]) -> dict[str, dict[str, list[list[float]]]]:
    """What is drawn: [minutes, top-1 in percent, settings that differ from the recipe's] for each set, and for each
    recipe and processor or GPU; other settings only where there is no figure without them."""
    lines: dict[str, dict[str, dict[float, list[float]]]] = {}
    compared = [run for run in found if run.recipe.partition("-")[0] in COMPACT]
    for run in sorted(compared, key=lambda run: (run.recipe, run.changes, run.minutes)):
        line = lines.setdefault(run.recipe.partition("-")[0], {}).setdefault(f"{run.recipe}, {run.units}", {})
        line.setdefault(run.minutes, [run.minutes, round(100 * run.top1, 2), run.changes])
    return {data: {name: sorted(line.values()) for name, line in by_name.items()} for data, by_name in lines.items()}


def draw(lines: dict[str, dict[str, list[list[float]]]], path: Path) -> None:
    """A panel for each set, a line for each recipe and processor or GPU, of one colour in all panels, a dashed one with
    hollow marks for other settings than the recipe's; `lines` stand in the file, too, by which a test knows it."""
    figure = Figure(figsize=(9.5, 5.6), layout="constrained")
    ticks = 3, 5, 7, 15, 30, 60, 120
    kinds = dict.fromkeys(name.removeprefix(data) for data, by_name in lines.items() for name in by_name)
    colors = dict(zip(kinds, itertools.cycle(COLORS), strict=False))
    for axes, (data, by_name) in zip(figure.subplots(1, len(lines)), lines.items(), strict=True):
        for name, line in by_name.items():
            color = colors[name.removeprefix(data)]
            axes.plot([], [], color, marker="o", label=name)  # for the legend
            for style, fill in ("o-", color), ("o--", "white"):
                some = [point[:2] for point in line if (point[2] > 0) == (fill == "white")]
                if some:
                    axes.plot(*zip(*some, strict=True), style, color=color, markerfacecolor=fill)
        reported = EXPERIMENTS[f"tigges-{data}"].reported
        axes.axhline(100 * COMPACT[data], color="gray", linestyle="--", label="Compact Transformer, 300 epochs")
        axes.axhline(100 * reported["top1"], color="gray", linestyle=":", label=f"ViT of 2022, {reported['time']}")
        axes.set(title=data.upper().replace("R", "R-"), xlabel="minutes of training", ylabel="test top-1, %")
        axes.set_xscale("log")
        axes.set_xticks(ticks, map(str, ticks))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.12), fontsize=9)
    figure.savefig(path, dpi=120, metadata={"points": json.dumps(lines)})


def saved() -> list[Timed]:
    results = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    return timed([result for result in results if "overrides" in result])


if __name__ == "__main__":
    ArgumentParser(description=__doc__).parse_args()
    draw(points(saved()), PICTURE)
