"""The reports written at the end of training and evaluation."""

import statistics
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from torch import Tensor

from vitreous.card import chosen, hardware, origin, untested
from vitreous.data.stores import even_rows
from vitreous.evaluation import Judged
from vitreous.files import read_history, read_json
from vitreous.messages import channels_shown, duration
from vitreous.metrics import NAMES, figure_text
from vitreous.page import write_page
from vitreous.preprocess import Preprocess
from vitreous.recipe import Recipe, effective, read_recipe
from vitreous.report.answers import answer_sections, fold_sections, results_of, results_section
from vitreous.report.charts import Line, line_chart
from vitreous.report.layout import SPLIT_LABELS, Section, facts, gallery, lay_out, scroll, shot
from vitreous.report.pictures import target_text, training_label
from vitreous.weights import Bundle

SAMPLES = 30  # images as the model saw them
ONCE = {"f1_micro", "ece_unscaled", "groups", "effective_count"}  # left out of the table of folds


def train_report(
    folder: Path,
    bundle: Bundle,
    judged: dict[str, Judged],
    results: dict[str, Any],
    samples: tuple[Tensor, Tensor],
) -> None:
    """Write `report.html` into the folder of a run, whose files it reads.

    judged: the kept model on `val` and `test`, as far as there are such images. results: for `results.json`. samples:
    augmented images (B, C, H, W) in 0..1 and their targets, (B,) or (B, K).
    """
    data, environment = (read_json(folder / f"{name}.json") for name in ("data", "environment"))
    recipe = read_recipe(folder / "recipe.yaml")
    config, took = bundle.model.config, duration(results["train_seconds"])
    lead = (
        f"A Vision Transformer of {results['params']:,} parameters ({config.depth} blocks of width {config.dim}), "
        f"{origin(recipe, results)} on {data['counts']['train']:,} images of {len(bundle.class_names)} classes."
    )
    untouched = " The test images chose nothing." if "test" in judged else f" {untested(results)}" if judged else ""
    if results["caution"]:
        untouched += f" {escape(results['caution'])}."
    tiles = {
        "parameters": f"{results['params']:,}",
        "epoch kept": f"{results['best_epoch']} of {results['epochs']}",
        "trained in": took,
        "images a second": f"{results['images_per_second']:,.0f}",
    }
    speeds = {
        "training and validation": f"{took} for {results['passes']:.1f} passes over the training images",
        "training": f"{results['images_per_second']:,.0f} images/s",
    }
    warnings = (folder / "train.log").read_text(encoding="utf-8") if (folder / "train.log").exists() else ""
    made = [
        _command(environment),
        f'<h3>Warnings</h3><pre class="log" tabindex="0">{escape(warnings)}</pre>' if warnings else "",
        f'<div class="grid"><div>{_data(data)}</div><div>{_environment(environment)}</div></div>',
        _resolved(recipe),
    ]
    sections = [
        results_section(judged, tiles, chosen(results, recipe.best_by) + untouched),
        Section("learning", "Learning", _learning(read_history(folder), results["best_epoch"], recipe)),
        *answer_sections(judged),
        Section("samples", "What the model saw", _training_samples(samples, bundle, recipe)),
        Section("speed", "Speed and memory", _speed(speeds, judged, results["peak_memory"], environment)),
        Section("made", "How it was made", "".join(made)),
    ]
    page = lay_out(
        kind=f"Training report of {folder.resolve().name}", heading=data["name"], lead=lead, sections=sections
    )
    write_page(folder / "report.html", page)


def folds_report(
    folder: Path, parts: Sequence[Judged], results: dict[str, Any], runs: Sequence[dict[str, Any]]
) -> None:
    """Write `report.html` into the folder of a finished cross-validation, whose files it reads.

    parts: each fold's model on its held-out part. results: for `results.json`. runs: those of the folds.
    """
    data, environment = (read_json(folder / "fold-1" / f"{name}.json") for name in ("data", "environment"))
    recipe = read_recipe(folder / "recipe.yaml")
    config, count = parts[0].bundle.model.config, sum(len(part.labels) for part in parts)
    lead = (
        f"Vision Transformers of {results['params']:,} parameters ({config.depth} blocks of width {config.dim}), "
        f"{origin(recipe, runs[0])} on {len(runs)} shares of {count:,} images of {len(data['classes'])} classes, each "
        "judged on the images left out of its share."
    )
    tiles = {
        "mean over folds": f"{results['top1_mean']:.2%}",
        "standard deviation": f"{results['top1_sd']:.2%}",
        "parameters": f"{results['params']:,}",
        "trained in": duration(sum(results["train_seconds"])),
    }
    note = (
        "Each image is answered by the model that had not seen it. The interval is about which images are asked, not "
        "about other training images; how much folds differ, the standard deviation tells."
    )
    note += "".join(f" {escape(caution)}." for caution in results["cautions"])
    sections = [
        results_of({"folds": results["pooled"]}, [sum(part.confusion for part in parts)], tiles, note),
        Section("folds", "By fold", _by_fold(runs)),
        *fold_sections(parts, results["pooled"]),
        Section("made", "How it was made", _command(environment) + _environment(environment) + _resolved(recipe)),
    ]
    page = lay_out(kind=f"Cross-validation {folder.resolve().name}", heading=data["name"], lead=lead, sections=sections)
    write_page(folder / "report.html", page)


def _by_fold(runs: Sequence[dict[str, Any]]) -> str:
    """One row of figures per fold, and their means."""
    names = [key for key in NAMES if None not in [run["test"].get(key) for run in runs] and key not in ONCE]
    rows = [(f"fold {fold}", run["test"]) for fold, run in enumerate(runs, start=1)]
    rows.append(("mean", {key: statistics.mean(run["test"][key] for run in runs) for key in names}))
    head = "".join(f'<th scope="col">{NAMES[key]}</th>' for key in names)
    body = "".join(
        f'<tr><th scope="row">{name}</th>{"".join(f"<td>{figure_text(key, test[key])}</td>" for key in names)}</tr>'
        for name, test in rows
    )
    table = f'<table class="wide folds"><thead><tr><td></td>{head}</tr></thead><tbody>{body}</tbody></table>'
    note = "Means of the folds' own figures; above, each figure is of all images together, so that the two may differ."
    return f'{scroll(table, "Folds")}<p class="note">{note}</p>'


def evaluation_report(
    file: Path,
    judged: Judged,
    *,
    model: str,
    data: str | None,
    environment: dict[str, Any],
) -> None:
    """Write the report of a model judged on the split `judged.name`.

    model, data: what the user called them; None: the run's own.
    """
    bundle, count = judged.bundle, judged.figures["count"]
    caution = judged.caution and escape(f"{judged.caution[0].upper()}{judged.caution[1:]}.")
    source = data or "its own data"
    tiles = {
        "parameters": f"{sum(weight.numel() for weight in bundle.model.parameters()):,}",
        "classes": f"{len(bundle.class_names):,}",
        "images a second": f"{count / max(judged.seconds, 1e-9):,.0f}",
        "temperature": f"{bundle.temperature:.3f}",
    }
    rows = even_rows(count, SAMPLES)
    names = [bundle.class_names[label] for label in judged.labels[rows].tolist()]
    pixels = judged.images.read(rows, bundle.preprocess)
    shots = [shot(image, name, escape(name)) for image, name in zip(pixels, names, strict=True)]
    seen = f"<p>Images of the split, evenly spread over it. {_fitting(bundle.preprocess)}</p>{gallery(shots, 'small')}"
    sections = [
        results_section({judged.name: judged}, tiles, caution),
        *answer_sections({judged.name: judged}, own=data is None),
        Section("samples", "What the model saw", seen),
        Section("speed", "Speed and memory", _speed({}, {judged.name: judged}, None, environment)),
        Section("made", "How it was made", _command(environment) + _environment(environment)),
    ]
    heading = f"{Path(model).resolve().name} on {Path(source).resolve().name}"
    lead = f"{model}, judged on the {count:,} {SPLIT_LABELS[judged.name]} images of {source}."
    write_page(file, lay_out(kind="Evaluation report", heading=heading, lead=lead, sections=sections))


def _learning(history: Sequence[dict[str, float]], kept: int, recipe: Recipe) -> str:
    """Loss, top-1, the metric that chose the epoch and learning rate, by epoch; a probe, without epochs, has none."""
    if "learning_rate" not in history[0]:
        return "<p>The head was fitted in one go, to features that were computed once.</p>"
    epochs = [row["epoch"] for row in history]
    charts = []
    for key in dict.fromkeys(("loss", "top1", recipe.best_by)):
        title = NAMES[key][0].upper() + NAMES[key][1:]
        lines = []
        if f"train_{key}" in history[0]:
            figures = [row[f"train_{key}"] for row in history]
            lines.append(Line(training_label(recipe), "s1 dash", epochs, figures))
        if f"val_{key}" in history[0]:
            lines.append(Line("validation", "s0", epochs, [row[f"val_{key}"] for row in history]))
        charts.append(line_chart(title, lines, x_label="epoch", percent=key != "loss", kept=kept))
    rates = Line("at the end of the epoch", "s2", epochs, [row["learning_rate"] for row in history])
    charts.append(line_chart("Learning rate", [rates], x_label="epoch"))
    note = (
        "Training figures are means over an epoch, of augmented, perhaps mixed, images and changing weights, and their "
        "loss is the one that was minimised (of smoothed labels, say); validation, of plain images and the weights at "
        "its end, is often the better of the two."
    )
    return f'<p class="note">{note}</p><div class="grid">{"".join(charts)}</div>'


def _training_samples(samples: tuple[Tensor, Tensor], bundle: Bundle, recipe: Recipe) -> str:
    """The first batch, augmented, with the targets that it was trained on."""
    images, targets = samples[0][:SAMPLES].cpu(), samples[1][:SAMPLES].cpu()
    pixels = (images.clamp(0, 1) * 255).round().byte().numpy()
    shots = []
    for image, target in zip(pixels, targets, strict=True):
        text = target_text(target, bundle.class_names)
        shots.append(shot(image, text, escape(text)))
    settings = [f"{key} {_plain(value)}" for key, value in effective(recipe).get("augment", {}).items()]
    how = f"Augmented on the way: {escape(', '.join(settings))}." if settings else "Nothing was augmented."
    text = f"<p>The first images of the first epoch, as they reached the model. {how} {_fitting(bundle.preprocess)}</p>"
    return text + gallery(shots, "small")


def _fitting(preprocess: Preprocess) -> str:
    """What happens to each image before the model sees it."""
    C, H, W = preprocess.shape
    mean, std = (", ".join(f"{v:.3f}" for v in values) for values in (preprocess.mean, preprocess.std))
    return (
        f"The model reads {C} &times; {H} &times; {W} values: pixels in 0..1, less the mean ({mean}), divided by the "
        f"standard deviation ({std}), which is undone here{channels_shown(C, '; pictures show ')}."
    )


def _plain(value: Any) -> str:
    return " to ".join(map(str, value)) if isinstance(value, list) else str(value).lower()


def _speed(speeds: dict[str, str], judged: dict[str, Judged], memory: int | None, environment: dict[str, Any]) -> str:
    """speeds: of training. memory: bytes."""
    rows = dict(speeds)
    for name, answers in judged.items():
        rate = len(answers.labels) / max(answers.seconds, 1e-9)
        rows[f"answering, {SPLIT_LABELS[name]} images"] = f"{rate:,.0f} images/s"
    if memory is not None:
        on_gpu = environment["device"] not in ("cpu", "mps")
        where = "on the GPU" if on_gpu else "of RAM, in this process"
        rows["memory, at most"] = f"{memory / 2**30:.2f} GiB {where}"
    rows["computed on"] = f"{hardware(environment)}, {environment['precision']}"
    return facts(rows)


def _resolved(recipe: Recipe) -> str:
    return f'<details><summary>The recipe, resolved</summary><pre tabindex="0">{escape(recipe.dump())}</pre></details>'


def _command(environment: dict[str, Any]) -> str:
    return f'<h3>Command</h3><pre tabindex="0">{escape(environment["command"])}</pre>'


def _environment(environment: dict[str, Any]) -> str:
    packages = ", ".join(f"{name} {version}" for name, version in environment["packages"].items() if version)
    rows = {key: str(value) for key, value in environment.items() if key not in ("command", "packages") and value}
    return f"<h3>Environment</h3>{facts(rows | {'packages': packages})}"


def _data(data: dict[str, Any]) -> str:
    rows = {"source": data["source"]}
    for name, count in data["counts"].items():
        per_class = data["per_class"][name]
        rows[f"{SPLIT_LABELS[name]} images"] = f"{count:,} ({min(per_class):,} to {max(per_class):,} a class)"
    rows |= {f"sha256, {SPLIT_LABELS[name]}": f"{digest[:16]}..." for name, digest in data["hash"].items()}
    return f"<h3>Data</h3>{facts(rows)}"
