"""What several commands print."""

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from vitreous.prediction import Prediction

COUNTING_SECONDS = 5  # between two lines


def counted(answers: "Iterable[Prediction]", total: int) -> "Iterator[Prediction]":
    """The answers as they come; every few seconds stderr says how many there are of the images asked about."""
    said = time.monotonic()
    for done, answer in enumerate(answers, start=1):
        yield answer
        if time.monotonic() - said > COUNTING_SECONDS:
            said = time.monotonic()
            print(f"{done:,} of {total:,} images answered", file=sys.stderr)


def report_broken(broken: list) -> None:
    """Name images that could not be read, and exit with 2 if there are any."""
    from vitreous.messages import printable

    for error in broken:
        print(f"vitreous: {printable(str(error))}", file=sys.stderr)
    if broken:
        sys.exit(2)


def results_table(results: dict) -> "Table":
    """Figures by split, as in `results.json`."""
    from rich.table import Table

    from vitreous.metrics import NAMES, figure_text, top1_interval

    splits = {name: results[name] for name in ("train", "val", "test", "given") if results.get(name)}
    table = Table("", *splits)
    scaled = any(figures["ece"] != figures["ece_unscaled"] for figures in splits.values())
    for key, label in NAMES.items():
        if key == "loss" and scaled:  # by the temperature, which is for probabilities
            label += ", unscaled"
        texts = [figure_text(key, figures.get(key)) for figures in splits.values()]
        if any(texts):
            table.add_row(label, *texts)
        if key == "top1":
            intervals = (top1_interval(figures) for figures in splits.values())
            table.add_row("  95% interval", *(f"{low:.2%} to {high:.2%}" for low, high in intervals))
    return table
