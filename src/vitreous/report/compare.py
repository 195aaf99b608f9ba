"""Compare finished runs: figures with intervals, cost, and where their recipes differ."""

import statistics
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

import numpy as np
from rich import markup
from rich.table import Column, Table

from vitreous.files import path_of
from vitreous.messages import shorten
from vitreous.metrics import NAMES, figure_text, gain_per_image, resampled_t_p, sign_flip_p, top1_interval
from vitreous.page import write_page
from vitreous.report.charts import COLORS, Line, interval_chart, line_chart
from vitreous.report.finished import Finished
from vitreous.report.layout import SPLIT_LABELS, Section, lay_out, scroll

Rows = Sequence[tuple[str, list[str]]]
"""Of a table: what a row is of, and its text for each run."""

# settings that change the pixels of the same images
FITTED = ("model.image_size", "model.channels", "data.fit", "data.crop_fraction", "data.white", "start.weights")
FITTED += ("interpolation",)  # of an evaluation, where it is not bicubic

GAINED = (  # what the rows with p-values say
    "Gained: images that only this run gets right; lost: those that only the first does. Its interval is about images "
    "drawn anew. p: how often two equally good "
    "models would differ at least as much, so a large p says that this difference may well be chance."
)
FEW = 10  # differing images, or groups of them: of fewer, an interval by Student's distribution tells too much
NEW_SEEDS = "Intervals over seeds are about new seeds on these same images."
AGAINST = "  against the first"  # the names of the rows with p-values
BY_FOLD = "  by fold, against the first"


def figures(runs: Sequence[Finished]) -> Rows:
    """The rows of the first table: the name of a figure, and its text for each run."""

    def row(name: str, text: Callable[[Finished], str | None]) -> tuple[str, list[str]]:
        return name, [text(run) or "" for run in runs]

    def of(split: str, key: str) -> Callable[[Finished], str]:
        return lambda run: figure_text(key, run.figure(split, key))

    def interval(split: str) -> Callable[[Finished], str | None]:
        ends = "{:.2%} to {:.2%}"
        return lambda run: ends.format(*top1_interval(run.results[split])) if run.results.get(split) else None

    def cost(key: str, form: str, unit: float = 1) -> Callable[[Finished], str | None]:
        return lambda run: form.format(run.results[key] / unit) if key in run.results else None

    rows = [
        row("data", lambda run: run.data["name"]),
        row("test top-1", of("test", "top1")),
        row("  95% interval", interval("test")),
        row(AGAINST, lambda run: against(runs[0], run, "test")),
        row("  its 95% interval", lambda run: gain_interval(runs[0], run, "test")),
        row("  by fold, mean ± sd", lambda run: run.results.get("by_fold")),
        row(BY_FOLD, lambda run: by_fold_against(runs[0], run)),
        row("test F1, macro", of("test", "f1_macro")),
        row("test AUROC, macro", of("test", "auroc")),
        row("test AUROC by fold, mean ± sd", lambda run: run.results.get("auroc_by_fold")),
        row("validation top-1", of("val", "top1")),
        row("  95% interval", interval("val")),
        row(AGAINST, lambda run: against(runs[0], run, "val")),
        row("  its 95% interval", lambda run: gain_interval(runs[0], run, "val")),
        row("validation F1, macro", of("val", "f1_macro")),
        row("test loss, unscaled", of("test", "loss")),
        row("test calibration error", of("test", "ece")),
        row("test images", of("test", "count")),
        row("  effective sample size", of("test", "effective_count")),
        row("parameters", cost("params", "{:,.0f}")),
        row("epochs", cost("epochs", "{:,.0f}")),
        row("seconds", cost("train_seconds", "{:,.0f}")),
        row("training images/s", cost("images_per_second", "{:,.0f}")),
        row("memory, GiB", cost("peak_memory", "{:.2f}", 2**30)),
    ]
    return [(name, texts) for name, texts in rows if any(texts)]


def against(first: Finished, run: Finished, split: str) -> str | None:
    """How much better a run does on the same images: those only it gets right against those only the first run does.

    p: how often equally good models would differ as much, by McNemar's test in its exact form, or if the images come in
    groups by a sign-flip test of their sums. None, or why not, if the images are not known to be the same.
    """
    found = _gains(first, run, split)
    if not isinstance(found, np.ndarray):
        return found
    p = sign_flip_p(found[:, 0] - found[:, 1])
    gained, lost, count = found.sum(axis=0)
    groups = f" by {len(found):,} groups" if len(found) < count else ""
    return f"{100 * (gained - lost) / count:+.2f} points ({gained} gained, {lost} lost, p = {p:.2g}{groups})"


def gain_interval(first: Finished, run: Finished, split: str) -> str | None:
    """The 95% interval of what `against` says, over images drawn anew, or groups of them; None if it tells nothing."""
    found = _gains(first, run, split)
    if not isinstance(found, np.ndarray):
        return None
    if np.count_nonzero(found[:, 0] - found[:, 1]) < FEW:
        return "too few differ to tell"
    interval = gain_per_image(found[:, 0] - found[:, 1], found[:, 2])
    return interval and f"{100 * interval[0]:+.2f} to {100 * interval[1]:+.2f} points"


def by_fold_against(first: Finished, run: Finished) -> str | None:
    """How much better a cross-validation does than another one on the same folds.

    p by the corrected resampled t-test of Nadeau and Bengio (2003), which allows for the training images that folds
    share. None if the folds are not the same.
    """
    same = first.is_cross and run.is_cross and isinstance(_gains(first, run, "test"), np.ndarray)
    if not same or any(first.recipe[key] != run.recipe[key] for key in ("data.folds", "data.split_seed")):
        return None
    gains = np.subtract(run.results["top1_by_fold"], first.results["top1_by_fold"])
    p = resampled_t_p(gains, max(each.data["counts"]["test"] / each.data["counts"]["train"] for each in (first, run)))
    return f"{100 * gains.mean():+.2f} points" + ("" if p is None else f" (p = {p:.2g})")


def _gains(first: Finished, run: Finished, split: str) -> np.ndarray | str | None:
    """Of each group of images (without groups: of each image), how many only `run` gets right, how many only `first`
    does, and how many there are: (n, 3).

    Images are paired by name, or by order if their pixels and labels are the same. None, or why not, if they are not
    known to be the same.
    """
    if run is first or judged_apart((first, run), (split,)):
        return None
    if first.is_cross and run.is_cross and run.recipe["data.group"] != first.recipe["data.group"]:
        return "folds cut by other groups"
    ours, theirs = first.answered.get(split), run.answered.get(split)
    if not ours or not theirs:
        return None
    if ours.keys() != theirs.keys():
        digest, other = (each.data.get("hash", {}).get(split) for each in (first, run))
        if run.is_cross or digest is None or digest != other or len(ours) != len(theirs):
            return "images of other names"
        theirs = dict(zip(ours, theirs.values(), strict=True))  # the folder was moved or is elsewhere
    by_group: dict[str, np.ndarray] = {}
    for image, (right, group) in ours.items():
        found = by_group.setdefault(group or theirs[image][1] or image[0], np.zeros(3, int))
        found += (theirs[image][0] > right, theirs[image][0] < right, 1)
    return np.array(list(by_group.values()))


def about_p(rows: Rows) -> str:
    """Sentences on the p-values among the texts of `figures`; "" where there are none."""
    found, split = {AGAINST: [], BY_FOLD: []}, ""
    for name, texts in rows:
        split = name if name[0] != " " else split
        found.get(name, []).extend(split for text in texts if "p = " in text)
    if not (values := found[AGAINST]):
        return ""
    about = "p is about these trained models on these images: another seed is another model."
    if "validation top-1" in values:
        about += " That of validation images may be too small, as they mostly chose the epochs."
    if found[BY_FOLD]:
        about += " By fold, it allows for the training images that folds share (Nadeau and Bengio 2003)."
    if len(values) > 1:
        about += f" These {len(values)} are not corrected for multiple comparisons."
    return about


def differences(runs: Sequence[Finished]) -> Rows:
    """The keys in which the recipes differ, with the value of each run; "" for one that has no such key, and for an
    evaluation, which knows no recipe."""
    recipes = [run.recipe if run.is_run else {} for run in runs]
    trained = [recipe for recipe in recipes if recipe]
    keys = dict.fromkeys(key for recipe in trained for key in recipe)
    differ = [key for key in keys if len({str(recipe.get(key, "")) for recipe in trained}) > 1]
    return [(key, [str(recipe.get(key, "")) for recipe in recipes]) for key in differ]


def over_seeds(runs: Sequence[Finished]) -> tuple[list[str], Rows]:
    """Results of recipes whose runs differ only in the seed: a heading for each, and rows as in `figures`.

    Recipes with a single seed are left out, and so are further runs of one seed, which repeat it. The interval of a
    difference of means is Welch's (1947), over newly drawn seeds.
    """
    by_recipe: dict[str, dict[int, Finished]] = {}
    for run in runs:
        if run.is_run:
            by_recipe.setdefault(run.but_for_seed, {}).setdefault(run.recipe["seed"], run)
    several = [list(found.values()) for found in by_recipe.values() if len(found) > 1]
    rows = [("runs", [str(len(found)) for found in several])]
    for split in ("test", "val"):
        for key in ("top1", "f1_macro", "loss"):
            values = [[run.figure(split, key) for run in found] for found in several]
            texts = [_mean_and_sd(key, each) for each in values]
            rows.append((f"{SPLIT_LABELS[split]} {NAMES[key]}, mean ± sd", texts))
            if key == "top1":
                rows.append((AGAINST, ["", *(_difference(values[0], each) for each in values[1:])]))
    return [shorten([run.name for run in found], 3) for found in several], [row for row in rows if any(row[1])]


def _mean_and_sd(key: str, values: Sequence[float | None]) -> str:
    if None in values:
        return ""
    return f"{figure_text(key, statistics.mean(values))} ± {figure_text(key, statistics.stdev(values))}"


def _difference(first: Sequence[float | None], other: Sequence[float | None]) -> str:
    """The difference between the means of two shares, in points, with its 95% interval."""
    if None in [*first, *other]:
        return ""
    from scipy.stats import ttest_ind

    gain = f"{100 * (statistics.mean(other) - statistics.mean(first)):+.2f} points"
    if len(set(first)) == len(set(other)) == 1:  # no information on how seeds differ
        return gain
    low, high = ttest_ind(other, first, equal_var=False).confidence_interval(0.95)
    return f"{gain} (95% interval {100 * low:+.2f} to {100 * high:+.2f})"


def judged_apart(runs: Sequence[Finished], splits: Sequence[str] = ("test", "val")) -> str:
    """A warning if runs were not judged on the same images; "" if they were, or if that is not known.

    For images that were resized or cropped differently, only the names of their datasets can tell. No digest covers the
    images of a cross-validation: beside others, their names can tell.
    """
    for split in splits:
        judged = [run for run in runs if run.figure(split, "top1") is not None]
        known = [run.answered.get(split, {}).keys() for run in judged if not run.is_cross]
        judged = [run for run in judged if not run.is_cross or run.answered.get(split, {}).keys() not in known]
        digests = [run.data.get("hash", {}).get(split) for run in judged]
        fitted: dict[tuple, set[str]] = {}
        for run, digest in zip(judged, digests, strict=True):
            if digest is not None:
                fitted.setdefault(tuple(run.recipe.get(key) for key in FITTED), set()).add(digest)
        other_set = len({run.data["name"] for run in judged}) > 1 and (None in digests or len(set(digests)) > 1)
        if other_set or any(len(found) > 1 for found in fitted.values()):
            same = f"judged on the same {SPLIT_LABELS[split]} images"
            if len(runs) == 2:
                return f"They were not {same}, so their figures cannot be compared."
            return f"Not all were {same}, so that not all figures can be compared."
    return ""


def cautions(runs: Sequence[Finished]) -> list[str]:
    """Sentences on figures that cannot be compared, or are worth less than they seem."""
    own = [f"{run.name}: {run.caution}." for run in runs if run.caution]
    apart = judged_apart(runs)
    return [*own, apart] if apart else own


def render(runs: Sequence[Finished], rows: Rows | None = None) -> list[Table]:
    """The tables for a terminal: figures, and differences where there are any. rows: of `figures`, if known."""
    names, (recipes, by_recipe) = [run.name for run in runs], over_seeds(runs)
    parts = {
        "": (names, rows or figures(runs)),
        "over seeds": (recipes, by_recipe),
        "recipe": (names, differences(runs)),
    }
    tables = []
    for title, (heads, lines) in parts.items():
        if lines:
            table = Table(title, *(Column(markup.escape(head), overflow="fold") for head in heads))
            for name, texts in lines:
                table.add_row(name, *map(markup.escape, texts))
            table.caption = NEW_SEEDS if title == "over seeds" else None
            tables.append(table)
    return tables


def compare_page(file: Path | str, runs: Sequence[Finished], rows: Rows | None = None) -> None:
    """Write the comparison as one HTML file. rows: as for `render`."""
    names, colors, charts = [run.name for run in runs], _colors(runs), ""
    for split in ("test", "val"):
        judged = {i: run for i, run in enumerate(runs) if run.figure(split, "top1") is not None}
        dots = [(run.name, run.figure(split, "top1"), *top1_interval(run.results[split])) for run in judged.values()]
        if dots:
            title = f"Top-1 on the {SPLIT_LABELS[split]} images, with 95% intervals"
            charts += interval_chart(title, dots, [colors[i] for i in judged])
    rows = rows or figures(runs)
    note = f'<p class="note">{GAINED} {about}</p>' if (about := about_p(rows)) else ""
    recipes, by_recipe = over_seeds(runs)
    about_seeds = f'<p class="note">{NEW_SEEDS}</p>'
    seeds = [Section("seeds", "Over seeds", _table(by_recipe, recipes, "Over seeds") + about_seeds)] if recipes else []
    sections = [
        Section("results", "Results", charts + _table(rows, names, "Results") + note),
        *seeds,
        Section("learning", "Learning", _curves(runs)),
        Section("recipes", "Recipes", _recipes(runs)),
    ]
    sets = dict.fromkeys(run.data["name"] for run in runs)
    lead = " ".join([f"{len(runs)} run{'s' if len(runs) > 1 else ''} on {', '.join(sets)}.", *cautions(runs)])
    heading = " · ".join(Path(name).resolve().name for name in names) if len(runs) <= 4 else f"{len(runs)} runs"
    write_page(path_of(file), lay_out(kind="Comparison", heading=heading, lead=lead, sections=sections))


def _colors(runs: Sequence[Finished]) -> list[int]:
    """The number of each run's colour: several seeds of one recipe have the same, beside those of another."""
    kinds = list(dict.fromkeys(run.but_for_seed for run in runs))
    return [kinds.index(run.but_for_seed) for run in runs] if len(kinds) > 1 else list(range(len(runs)))


def _curves(runs: Sequence[Finished]) -> str:
    """Validation by epoch and by seconds; training where a run has no validation."""
    charts, colors = [], _colors(runs)
    for x in ("epoch", "seconds"):
        for key, title in {"top1": "Top-1", "loss": "Loss"}.items():
            lines = []
            for i, run in enumerate(runs):
                if run.history:
                    split = "val" if f"val_{key}" in run.history[0] else "train"
                    name = run.name if split == "val" else f"{run.name}, training"
                    points = [(row[x], row[f"{split}_{key}"]) for row in run.history]
                    dashed = colors[i] // COLORS % 2
                    lines.append(Line(name, f"s{colors[i] % COLORS}{' dash' * dashed}", *zip(*points, strict=True)))
            if lines:
                charts.append(line_chart(f"{title} by {x}", lines, x_label=x, percent=key == "top1"))
    if not charts:
        return (
            "<p>No curves of these: a fold's are in its own report, and an evaluation or a shipped model has none.</p>"
        )
    note = '<p class="note">Of the validation images, where there are any. Seconds count training and validation, '
    note += "and what is written on the way.</p>"
    return f'{note}<div class="grid two">{"".join(charts)}</div>'


def _recipes(runs: Sequence[Finished]) -> str:
    rows = differences(runs)
    if not rows:
        known = all(run.is_run for run in runs)
        return f"<p>{'No setting differs' if known else 'An evaluation knows no recipe'}.</p>"
    return '<p class="note">Only what differs.</p>' + _table(rows, [run.name for run in runs], "Recipes")


def _table(rows: Rows, names: Sequence[str], label: str) -> str:
    head = "".join(f'<th scope="col" class="name">{escape(name)}</th>' for name in names)
    body = ""
    for name, texts in rows:
        kind = ' class="sub"' if name.startswith(" ") else ""
        cells = "".join(f"<td>{escape(text)}</td>" for text in texts)
        body += f'<tr><th scope="row"{kind}>{escape(name)}</th>{cells}</tr>'
    return scroll(f'<table class="runs"><thead><tr><td></td>{head}</tr></thead><tbody>{body}</tbody></table>', label)
