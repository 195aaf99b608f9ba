"""Report sections on an evaluated split: figures, confusions, classes, calibration, and the most telling images."""

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitreous.evaluation import Judged, pooled_groups
from vitreous.explain import Method, evidence
from vitreous.messages import channels_shown
from vitreous.metrics import (
    NAMES,
    chance_error,
    class_figures,
    figure_text,
    recall_intervals,
    reliability,
    share_interval,
    top1_interval,
    wilson,
)
from vitreous.report.charts import heat_map, reliability_chart, reliability_legend, share_bar
from vitreous.report.layout import SPLIT_LABELS, Section, confidence_bar, gallery, scroll, shot, tiles
from vitreous.report.pictures import (
    cheap_method,
    confident_mistakes,
    heated,
    how_to_read,
    picture,
    uncertain_hits,
)

SHOWN = 12  # images per gallery
FEW_GROUPS = 10  # with a mistake; in simulations with fewer, intervals held in as few as 86% of cases (LOG.md)
FEW = 5  # classes up to which a confusion matrix has large squares
NUMBERED = 20  # classes up to which a confusion matrix shows numbers
HARDEST = 20  # classes that are shown at once
PAIRS = 10  # confusions that are listed
THRESHOLDS = (0.5, 0.8, 0.9, 0.95, 0.99)  # of confidence, for which answers are counted


def results_section(judged: dict[str, Judged], values: dict[str, str], chosen: str) -> Section:
    """The top-1 of the last split, large, with short `values` below it; and all figures in a table."""
    if not judged:
        note = f"{chosen} There are no test images either, so nothing was judged."
        return Section("results", "Results", f"<p>{note}</p>{tiles(values)}")
    counts = [answers.confusion for answers in judged.values()]
    return results_of({name: answers.figures for name, answers in judged.items()}, counts, values, chosen)


def results_of(
    figures: dict[str, dict[str, Any]], counts: Sequence[np.ndarray], values: dict[str, str], chosen: str
) -> Section:
    """The same from figures by split, `folds` for a cross-validation, and their confusion matrices."""
    last, judged = list(figures.items())[-1]
    low, high = top1_interval(judged)
    head = "".join(f'<th scope="col">{SPLIT_LABELS[name]}</th>' for name in figures)
    rows = []
    for key, label in NAMES.items():
        if any(split.get(key) is not None for split in figures.values()):
            cells = "".join(f"<td>{_figure(key, split)}</td>" for split in figures.values())
            if key == "loss" and any(split["ece"] != split["ece_unscaled"] for split in figures.values()):
                label += ", unscaled"
            rows.append(f'<tr><th scope="row">{label}</th>{cells}</tr>')
    table = f'<table class="wide"><thead><tr><td></td>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    absent = any(((each.sum(axis=0) > 0) & (each.sum(axis=1) == 0)).any() for each in counts)  # but answered
    unanswered = any(((each.sum(axis=1) > 0) & (each.sum(axis=0) == 0)).any() for each in counts)
    zeros = ["one without images that was answered counts as recall 0"] if absent else []
    zeros += ["one that was never answered counts as precision 0"] if unanswered else []
    macro = "Macro figures are means over the classes"
    macro += f", in which {', and '.join(zeros)}." if zeros else "."
    if absent and judged.get("auroc") is not None:
        macro += " AUROC is a mean over those with images."
    if "groups" in judged:
        macro += (
            f" The {judged['count']:,} images come in {judged['groups']:,} groups and tell as much as "
            f"{figure_text('effective_count', judged['effective_count'])} independent ones (effective sample size), "
            "by which the intervals here are widened; those of classes, and by how sure answers are, by their own "
            "groups."
        )
        if 0 < judged["wrong_groups"] < FEW_GROUPS:
            macro += (
                f" All mistakes are in {judged['wrong_groups']} of the groups: with so few, such an interval may hold "
                "in nine cases of ten rather than 19 of 20."
            )
    body = f"""<div class="hero"><div><p class="big">{judged["top1"]:.2%}</p>
<p>top-1 on {judged["count"]:,} {SPLIT_LABELS[last]} images<br><small>95% interval: {low:.2%} to {high:.2%}<br>
always answering the commonest class: {counts[-1].sum(axis=1).max() / counts[-1].sum():.2%}</small></p>
{tiles(values)}<p class="note">{chosen}</p></div>
<div>{scroll(table, "Results")}<p class="note">In small type: 95% intervals (Wilson) of the share that very many
such images would show. {macro}</p></div></div>"""
    return Section("results", "Results", body)


def _figure(key: str, figures: dict[str, Any]) -> str:
    """A figure as text, with an interval for top-1 and, if images do not come in groups, for top-5."""
    if key == "top1":
        low, high = top1_interval(figures)
    elif key == "top5" and "groups" not in figures:
        low, high = wilson(round(figures["top5"] * figures["count"]), figures["count"])
    else:
        return figure_text(key, figures.get(key))
    return f"{figures[key]:.2%}<small>{low:.2%} &ndash; {high:.2%}</small>"


def answer_sections(judged: dict[str, Judged], own: bool = True) -> list[Section]:
    """Where the model errs, how sure it is, and pictures of both: on the test images, else on validation.

    own: whether the images are the model's own data, so that `explain RUN test:7` finds an image labelled so here.
    """
    if not judged:
        return []
    split, answers = list(judged.items())[-1]
    where = f"Of the {answers.figures['count']:,} {SPLIT_LABELS[split]} images."
    return _sections([answers], answers.figures, where, _temperature(answers), own)


def fold_sections(parts: Sequence[Judged], pooled: dict[str, Any]) -> list[Section]:
    """The same for a cross-validation. pooled: its `pooled_figures`."""
    text = "The logits of each fold are divided by its own temperature, fitted on its validation images if it has any."
    where = f"Of all {sum(len(part.labels) for part in parts):,} images, by the model that had not seen the image."
    return _sections(parts, pooled, where, text, own=True)


def _sections(
    parts: Sequence[Judged], figures: dict[str, Any], where: str, about_temperature: str, own: bool
) -> list[Section]:
    """figures: of all parts. where, about_temperature: sentences."""
    names = parts[0].bundle.class_names
    logits, labels = torch.cat([part.logits for part in parts]), torch.cat([part.labels for part in parts])
    scaled, counts = torch.cat([part.scaled for part in parts]), sum(part.confusion for part in parts)
    temperatures = ", ".join(f"{part.bundle.temperature:.3g}" for part in parts)
    right, groups, shares = (logits.argmax(dim=1) == labels).numpy(), pooled_groups(parts), scaled.softmax(dim=1)
    charts = [reliability_chart("ECE as trained", reliability(logits, labels))]
    if not torch.equal(logits.double(), scaled):
        charts.append(reliability_chart(f"ECE at temperature {temperatures}", reliability(scaled, labels)))
        if figures["ece"] > figures["ece_unscaled"]:
            about_temperature += " On the images here, the error is larger with it than without."
    sure = _calibration(charts, scaled, figures.get("effective_count"), about_temperature)
    sure += _coverage(shares.amax(dim=1).numpy(), right, groups)
    return [
        Section("confusion", "Confusion", f'<p class="note">{where}</p>{_confusion(counts, names)}'),
        Section("classes", "Classes", _classes(counts, names, right, labels.numpy(), groups)),
        Section("calibration", "Calibration", sure),
        Section("gallery", "Mistakes and doubts", _pictures(parts, shares, labels, own)),
    ]


def _confusion(counts: np.ndarray, names: Sequence[str]) -> str:
    """The matrix, with numbers if they fit, next to the pairs confused most."""
    if len(names) <= NUMBERED:
        matrix = scroll(_matrix(counts, names), "Confusion matrix")
    else:
        label = f"Confusion matrix of {len(names)} classes: rows the true class, columns the answer"
        matrix = (
            f"{heat_map(counts, label, names)}<p><small>rows: true class; columns: answer, both as in classes.csv; "
            "blue: right; orange: wrong; the stronger, the larger its share of the row</small></p>"
        )
    return f'<div class="grid"><div>{matrix}</div><div><h3>Confused most</h3>{_pairs(counts, names)}</div></div>'


def _matrix(counts: np.ndarray, names: Sequence[str]) -> str:
    """counts (K, K) as a table, coloured by shares of the row; mistakes by their square roots, so that few show,
    too."""
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    upright = " class=upright" if max(map(len, names)) > 2 else ""
    titles = [f'title="{escape(name)}"' for name in names]
    head = "".join(
        f'<th scope="col" {title}><span{upright}>{escape(name)}</span></th>'
        for name, title in zip(names, titles, strict=True)
    )
    rows = []
    for row, name in enumerate(names):
        cells = ""
        for column, answer in enumerate(names):
            share, hint = shares[row, column], escape(f"{name}, answered {answer}: {shares[row, column]:.1%}")
            kind, strength = ("right", share) if row == column else ("wrong", share**0.5)
            style = f'class="{kind}" style="--s:{strength:.2f}"' if share else 'class="none"'
            cells += f'<td {style} title="{hint}">{counts[row, column]}</td>'
        rows.append(f'<tr><th scope="row" {titles[row]}>{escape(name)}</th>{cells}</tr>')
    kind = "confusion few" if len(names) <= FEW else "confusion"
    return (
        f'<table class="{kind}"><caption><small>rows: true class; columns: answer</small></caption>'
        f"<thead><tr><td></td>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    )


def _pairs(counts: np.ndarray, names: Sequence[str]) -> str:
    """The pairs of classes confused most."""
    K, images = len(names), np.maximum(counts.sum(axis=1), 1)
    wrong = np.where(np.eye(K, dtype=bool), 0, counts)
    order = np.argsort(-wrong, axis=None, kind="stable")[:PAIRS]
    rows = [
        f'<tr><th scope="row" class="name">{escape(names[a])}</th><td class="name left">{escape(names[b])}</td>'
        f"<td>{counts[a, b]:,}</td><td>{counts[a, b] / images[a]:.1%}</td></tr>"
        for a, b in (divmod(int(place), K) for place in order)
        if wrong[a, b]
    ]
    if not rows:
        return "<p>Not one image was taken for another class.</p>"
    head = _head("true", "answered", "images", "of the class", text=2)
    return scroll(f"<table>{head}<tbody>{''.join(rows)}</tbody></table>", "Confused most")


def _classes(
    counts: np.ndarray, names: Sequence[str], right: np.ndarray, labels: np.ndarray, groups: np.ndarray | None
) -> str:
    """Per class: images, recall with its interval, precision and F1; the hardest first.

    counts: the confusion matrix of answers that are right, bool (N,), to images of these labels and groups.
    """
    figures, rows = class_figures(counts), []
    spread = recall_intervals(right, labels, groups, len(names))
    for k in sorted(range(len(names)), key=lambda k: (figures[k].recall is None, figures[k].recall, k)):
        images, recall, precision, f1 = figures[k].images, figures[k].recall, figures[k].precision, figures[k].f1
        bar, found, interval = "", "no images", ""
        low, high, several = spread[k]
        if images:
            bar, found, interval = share_bar(recall, low, high), f"{recall:.1%}", f"{low:.1%} &ndash; {high:.1%}"
        several = "" if several is None else f"<td>{several:,}</td>"
        precision = "&ndash;" if precision is None else f"{precision:.1%}"
        f1 = "" if f1 is None else f"{f1:.1%}"
        rows.append(
            f'<tr><th scope="row" class="name">{escape(names[k])}</th><td class="fill">{bar}</td><td>{found}</td>'
            f"<td><small>{interval}</small></td><td>{precision}</td><td>{f1}</td><td>{images:,}</td>{several}</tr>"
        )
    grouped = () if groups is None else ("groups",)
    head = _head("class", "", "found (recall)", "95% interval", "precision", "F1", "images", *grouped)

    def table(some: Iterable[str]) -> str:
        return scroll(f'<table class="wide">{head}<tbody>{"".join(some)}</tbody></table>', "Classes")

    text = '<p class="note">Hardest first; the line on a bar is the 95% interval of the share that was found.</p>'
    if len(rows) > 1.5 * HARDEST:
        rest = f"<details><summary>The other {len(rows) - HARDEST} classes</summary>{table(rows[HARDEST:])}</details>"
        return text + table(rows[:HARDEST]) + rest
    return text + table(rows)


def _head(*names: str, text: int = 1) -> str:
    """The head of a table whose first `text` columns hold text, the others numbers."""
    cells = (f'<th scope="col"{" class=left" if i < text else ""}>{name}</th>' for i, name in enumerate(names))
    return f"<thead><tr>{''.join(cells)}</tr></thead>"


def _temperature(answers: Judged) -> str:
    """Describe the bundle's temperature."""
    temperature = answers.bundle.temperature
    if temperature == 1:
        return "The temperature is 1: none was fitted, or the images held out for it could not tell it from 1."
    more = " Fitted on these very images: on others the error will be larger." if answers.calibrated_here else ""
    return (
        f"Logits are divided by {temperature:.3f}, which was fitted on held-out images (Guo et al. 2017), is "
        f"kept with the model and used by <code>vitreous predict</code>. No answer changes by it.{more}"
    )


def _calibration(charts: Sequence[str], scaled: Tensor, worth: float | None, text: str) -> str:
    """Reliability charts and how to read them. scaled: logits (N, K) over a temperature. worth: the effective sample
    size of images in groups. text: about that temperature."""
    meaning = (
        "A model is calibrated when it is right as often as it says: of answers given with 80%, 80% should be right. "
        "The calibration error (ECE) is the mean distance from that, over all answers. "
        "Across: its confidence, how sure the model is; up: its accuracy, how often it is right."
    )
    mean, most = chance_error(scaled, worth)
    after = " is at its temperature" if len(charts) > 1 else ""
    by_groups = "" if worth is None else ", by their effective sample size"
    chance = (
        f"By chance a perfectly calibrated model, as sure as this one{after}, would show {mean:.2%} on "
        f"{len(scaled):,} images, and up to {most:.2%} in 19 of 20 cases{by_groups}."
    )
    shown = f'{reliability_legend()}<div class="grid">{"".join(charts)}</div>'
    return f'<p>{meaning} {text}</p>{shown}<p class="note">{chance}</p>'


def _coverage(confidence: np.ndarray, right: np.ndarray, groups: np.ndarray | None) -> str:
    """Accuracy among the answers above each confidence threshold, one row per threshold.

    confidence, right (bool), groups: of each answer, (N,).
    """
    rows = []
    for threshold in THRESHOLDS:
        sure = confidence >= threshold
        share = interval = ""
        if sure.any():
            low, high = share_interval(right[sure], None if groups is None else groups[sure])
            share, interval = f"{right[sure].mean():.1%}", f"{low:.1%} &ndash; {high:.1%}"
        rows.append(
            f'<tr><th scope="row">{threshold:.0%}</th><td>{sure.sum():,}</td><td>{sure.mean():.1%}</td><td>{share}</td>'
            f"<td><small>{interval}</small></td><td>{(sure & ~right).sum():,}</td></tr>"
        )
    head = _head("confidence at least", "answers", "of all", "right among them", "95% interval", "mistakes left")
    table = f'<table class="wide">{head}<tbody>{"".join(rows)}</tbody></table>'
    note = '<p class="note">A threshold chosen here should be checked on other images.</p>'
    return f"<h3>How sure must it be to be trusted?</h3>{scroll(table, 'Answers by confidence')}{note}"


def _pictures(parts: Sequence[Judged], shares: Tensor, labels: Tensor, own: bool) -> str:
    """The most confident mistakes and the least confident hits, each next to its evidence map. shares: (N, K)."""
    galleries = {
        "The most confident mistakes": confident_mistakes(shares, labels, SHOWN),
        "The least confident right answers": uncertain_hits(shares, labels, SHOWN),
    }
    config = parts[0].bundle.model.config
    method, shown = cheap_method(config), channels_shown(config.channels, "; pictures show ")
    body = '<p class="note">On the right of each image: what spoke for the answer rather than the class below it, '
    body += f"by {method.replace('_', ' ')}{shown}. {how_to_read(method, config)}</p>"
    for title, rows in galleries.items():
        body += f"<h3>{title}</h3>"
        if len(rows):
            body += gallery(_answered_by_part(parts, rows, shares, method, own), "pairs")
        else:
            body += "<p>There are none.</p>"
    return body


def _answered_by_part(parts: Sequence[Judged], rows: Tensor, shares: Tensor, method: Method, own: bool) -> list[str]:
    """`_answered` for rows (n,) of all parts concatenated, each by its own model."""
    items, first = {}, 0
    for part in parts:
        last = first + len(part.labels)
        mine = rows[(rows >= first) & (rows < last)]
        if len(mine):
            items |= zip(mine.tolist(), _answered(part, mine - first, shares[first:last], method, own), strict=True)
        first = last
    return [items[row] for row in rows.tolist()]


def _answered(answers: Judged, rows: Tensor, shares: Tensor, method: Method, own: bool) -> list[str]:
    """One figure per image: what it is, what was predicted, and how confidently."""
    bundle = answers.bundle
    names, pixels = bundle.class_names, answers.images.read(rows.numpy(), bundle.preprocess)
    where = next(bundle.model.parameters()).device
    truths = answers.labels[rows]
    order = shares[rows].argsort(dim=1, descending=True, stable=True)
    answered, second = order[:, 0], order[:, min(1, len(names) - 1)]
    others = second.where(answered == truths, truths)  # the class that the answer is contrasted with, if there is one
    against = others.to(where) if len(names) > 1 else None
    asked = (torch.from_numpy(pixels).to(where), answered.to(where), method, against)
    maps = evidence(bundle, *asked).cpu().numpy()
    items = []
    for i, row in enumerate(rows.tolist()):
        answer, truth, other = int(answered[i]), int(truths[i]), int(others[i])
        right = answer == truth
        file = answers.images.describe(row)
        text = f"<strong>{escape(names[answer])}</strong> {shares[row, answer]:.1%}"
        text += confidence_bar(shares[row, answer], wrong=not right)
        if against is not None:
            text += f"<small>{'or' if right else 'is'} {escape(names[other])} ({shares[row, other]:.1%})</small>"
        place = file.rpartition(": ")[2] if ": row " in file else "/".join(Path(file).parts[-2:])
        if own and place.startswith("row "):  # as `explain` takes it; that of a fold follows the fold's name
            place = f"{answers.name}:{answers.rows[row]}"
        text += f'<small class="file" title="{escape(file)}">{escape(place)}</small>'
        alt = f"{names[truth]}, answered {names[answer]} with {shares[row, answer]:.1%}"
        hint = f"what speaks for {names[answer]}" + (f" rather than {names[other]}" if against is not None else "")
        items.append(shot(pixels[i], alt, text, [picture(heated(pixels[i], maps[i]), hint)]))
    return items
