"""Charts as inline SVG, stretched to fit by the page, with text outside the SVG so that its size never changes.

Everything is drawn in a box of 100 x 100 and coloured by classes of `layout.css`, which handles light and dark.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from html import escape
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from vitreous.metrics import Reliability, calibration_error

COLORS = 8  # classes s0..s7
STRIPS = 400  # points up to which a chart has tooltips


class Line(NamedTuple):
    """A curve of a chart. style: classes, such as `s1 dash`."""

    name: str
    style: str
    x: Sequence[float]
    y: Sequence[float]


def line_chart(
    title: str, lines: Sequence[Line], *, x_label: str, percent: bool = False, kept: float | None = None
) -> str:
    """Curves over a common axis; kept: where a vertical line marks the kept epoch."""
    lines = [line for line in map(_finite, lines) if len(line.x)]
    if not lines:
        return ""
    x, y = np.concatenate([line.x for line in lines]), np.concatenate([line.y for line in lines])
    x_ticks, y_ticks = ticks(x.min(), x.max(), whole=x_label == "epoch"), ticks(y.min(), y.max())
    if percent:
        y_ticks = y_ticks[(y_ticks > -1e-9) & (y_ticks < 1 + 1e-9)]
    (left, right), (low, high) = (x.min(), x.max()), (y_ticks[0], y_ticks[-1])
    if left == right:
        left, right = left - 1, right + 1
    across, down = partial(_along, low=left, high=right), partial(_along, low=high, high=low)
    text = _percents(y_ticks) if percent else _numbers(y_ticks)

    parts = [_gridlines(down(y_ticks))]
    if kept is not None:
        parts.append(f'<path class="kept" d="M{across(kept):.2f} 0V100"/>')
    for line in lines:
        points = list(zip(across(line.x), down(line.y), strict=True))
        path = "L".join(f"{a:.2f} {b:.2f}" for a, b in points)
        parts.append(f'<path class="line {line.style}" d="M{path}"/>')
        if len(points) < 3:
            parts += [f'<path class="dot {line.style.partition(" ")[0]}" d="M{a:.2f} {b:.2f}h0"/>' for a, b in points]
    parts.append(_strips(lines, across, x_label, percent))
    spans = [f'<span class="y" style="top:{t:.2f}%">{s}</span>' for t, s in zip(down(y_ticks), text, strict=True)]
    spans += [
        f'<span class="x" style="left:{p:.2f}%">{s}</span>'
        for p, s in zip(across(x_ticks), _numbers(x_ticks), strict=True)
        if -0.1 <= p <= 100.1
    ]
    spans.append(f'<span class="of">{escape(x_label)}</span>')
    told = "; ".join(
        f"{line.name} from {_value(line.y[0], percent)} to {_value(line.y[-1], percent)}" for line in lines
    )
    keys = [(f'<line class="line {line.style}" x1="0" y1="5" x2="24" y2="5"/>', line.name) for line in lines]
    if kept is not None:
        keys.append(('<line class="kept" x1="0" y1="5" x2="24" y2="5"/>', f"kept: {x_label} {kept:g}"))
    return f"""<figure class="chart"><h3>{escape(title)}</h3>{_legend(keys)}
<div class="plot" role="img" aria-label="{escape(f"{title}: {told}")}">{_svg(parts)}{"".join(spans)}</div>
</figure>"""


def reliability_chart(title: str, bins: Reliability) -> str:
    """Accuracy by confidence, and how many predictions fall into each bin."""
    width, error = 100 / len(bins.count), calibration_error(bins)
    parts = [_gridlines(np.array([0, 50, 100]))]
    counts, told = [], []
    for i, (count, sure, right) in enumerate(zip(*bins, strict=True)):
        if not count:
            continue
        left, kind = i * width, "over" if sure > right else "under"
        low, high = sorted((100 * sure, 100 * right))
        hint = f"<title>{count:,} answers, {sure:.1%} sure on average: {right:.1%} right</title>"
        box = f'x="{left + 0.4:.2f}" width="{width - 0.8:.2f}"'
        parts.append(f'<g>{hint}<rect class="hits" {box} y="{100 - low:.2f}" height="{low:.2f}"/>')
        parts.append(f'<rect class="{kind}" {box} y="{100 - high:.2f}" height="{high - low:.2f}"/></g>')
        share = 100 * count / bins.count.max()
        counts.append(f'<g>{hint}<rect class="share" {box} y="{100 - share:.2f}" height="{share:.2f}"/></g>')
        told.append(f"{sure:.0%} sure, {right:.0%} right")
    parts.append('<path class="diagonal" d="M0 100L100 0"/>')
    spans = [f'<span class="y" style="top:{100 - t}%">{t}%</span>' for t in (0, 50, 100)]
    below = [f'<span class="x" style="left:{t}%">{t}%</span>' for t in (0, 50, 100)]
    below.append('<span class="of">confidence: how sure the model is</span>')
    label = f"{title}: calibration error {error:.2%}; {'; '.join(told)}"
    return f"""<figure class="chart"><h3>{escape(title)}: {error:.2%}</h3>
<div class="plot square" role="img" aria-label="{escape(label)}">{_svg(parts)}{"".join(spans)}</div>
<div class="plot counts" aria-hidden="true">{_svg(counts)}{"".join(below)}</div></figure>"""


def reliability_legend() -> str:
    """What the colours of a reliability diagram mean."""
    keys = {
        "hits": "accuracy, as far as the confidence reaches",
        "over": "overconfident: surer than right",
        "under": "underconfident: right more often than sure",
        "share": "how many answers",
    }
    squares = [(f'<rect class="{kind}" x="7" width="10" height="10"/>', text) for kind, text in keys.items()]
    return _legend([*squares, ('<line class="diagonal" x1="0" y1="5" x2="24" y2="5"/>', "perfectly calibrated")])


def share_bar(value: float, low: float, high: float) -> str:
    """A share of 1 as a bar, with its interval."""
    return (
        f'<span class="bar" aria-hidden="true"><i style="width:{value:.2%}"></i>'
        f'<b style="left:{low:.2%};width:{high - low:.2%}"></b></span>'
    )


def heat_map(counts: np.ndarray, title: str, names: Sequence[str]) -> str:
    """A confusion matrix of many classes: one small square per pair, stronger for a larger share of the row, whose
    class is told where one points at it."""
    K = len(counts)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    levels = np.ceil(5 * np.sqrt(shares)).astype(int)  # so that few differ from none
    parts = []
    for kind, where in {"wrong": ~np.eye(K, dtype=bool), "right": np.eye(K, dtype=bool)}.items():
        for level in range(1, 6):
            cells = np.argwhere(where & (levels == level))
            path = "".join(f"M{column} {row}h1v1h-1z" for row, column in cells)
            parts += [f'<path class="{kind} l{level}" d="{path}"/>'] if path else []
    for row, (name, share) in enumerate(zip(names, shares.diagonal(), strict=True)):
        hint = f"<title>{escape(name)}: {f'{share:.1%} right' if counts[row].any() else 'no images'}</title>"
        parts.append(f'<rect class="strip" y="{row}" width="{K}" height="1">{hint}</rect>')
    return f'<svg class="heat" viewBox="0 0 {K} {K}" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'


def interval_chart(title: str, rows: Sequence[tuple[str, float, float, float]], colors: Sequence[int]) -> str:
    """One dot with its interval per row: (name, value, low, high), shares of 1, over a common axis.

    colors: the number of each row's colour.
    """
    scale = ticks(min(row[2] for row in rows), max(row[3] for row in rows))
    low, high = scale[0], scale[-1]
    along = partial(_along, low=low, high=high)
    parts = "".join(f'<path class="gridline" d="M{at:.2f} 0V100"/>' for at in along(scale))
    body = []
    for color, (name, value, lower, upper) in zip(colors, rows, strict=True):
        a, b, c = along([lower, value, upper])
        style = f"s{color % COLORS}"
        marks = f'<path class="whisker {style}" d="M{a:.2f} 50H{c:.2f}"/><path class="dot {style}" d="M{b:.2f} 50h0"/>'
        label = f"{name}: {value:.2%}, {lower:.2%} to {upper:.2%}"
        body.append(
            f'<li><span class="name">{escape(name)}</span><div class="plot row" role="img" '
            f'aria-label="{escape(label)}">{_svg([parts, marks])}</div></li>'
        )
    spans = "".join(
        f'<span class="x" style="left:{at:.2f}%">{text}</span>'
        for at, text in zip(along(scale), _percents(scale), strict=True)
    )
    return f"""<figure class="chart"><h3>{escape(title)}</h3><ul class="intervals">{"".join(body)}
<li aria-hidden="true"><span></span><div class="plot row axis">{spans}</div></li></ul></figure>"""


def ticks(low: float, high: float, whole: bool = False) -> np.ndarray:
    """Round numbers, about five of them, from at or below `low` to at or above `high`."""
    if low == high:
        half = abs(low) / 2 or 1
        low, high = low - half, high + half
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    if whole:
        step = max(math.ceil(step), 1)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return step * np.arange(first, last + 1)


def _finite(line: Line) -> Line:
    """The line without its non-finite points."""
    x, y = np.asarray(line.x, float), np.asarray(line.y, float)
    good = np.isfinite(x) & np.isfinite(y)
    return line._replace(x=x[good], y=y[good])


def _along(values: float | Sequence[float] | np.ndarray, low: float, high: float) -> np.ndarray:
    """Values scaled so that low is at 0 and high at 100."""
    return 100 * (np.asarray(values, float) - low) / (high - low)


def _strips(lines: Sequence[Line], across: Callable[[float], np.ndarray], x_label: str, percent: bool) -> str:
    """Invisible strips, one per point, whose tooltips show the values."""
    at = sorted({float(x) for line in lines for x in line.x})
    if len(at) > STRIPS:
        return ""
    values = [dict(zip(map(float, line.x), line.y, strict=True)) for line in lines]
    places = [float(across(x)) for x in at]
    edges, parts = [0, *((a + b) / 2 for a, b in pairwise(places)), 100], []
    for x, (left, right) in zip(at, pairwise(edges), strict=True):
        told = [f"{line.name} {_value(v[x], percent)}" for line, v in zip(lines, values, strict=True) if x in v]
        hint = escape(f"{x_label} {x:g}: {', '.join(told)}")
        parts.append(
            f'<rect class="strip" x="{left:.2f}" width="{right - left:.2f}" height="100"><title>{hint}</title></rect>'
        )
    return "".join(parts)


def _svg(parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 100 100" preserveAspectRatio="none">{"".join(parts)}</svg>'


def _gridlines(tops: np.ndarray) -> str:
    return "".join(f'<path class="gridline" d="M0 {top:.2f}H100"/>' for top in tops)


def _legend(keys: Sequence[tuple[str, str]]) -> str:
    items = (f'<li><svg viewBox="0 0 24 10" aria-hidden="true">{key}</svg>{escape(name)}</li>' for key, name in keys)
    return f'<ul class="legend">{"".join(items)}</ul>'


def _value(value: float, percent: bool) -> str:
    return f"{value:.2%}" if percent else f"{value:.4g}"


def _numbers(values: np.ndarray) -> list[str]:
    """Formatted with just enough decimals to tell them apart."""
    step = abs(values[1] - values[0]) if len(values) > 1 else 1.0
    if 0 < step < 1e-5 or max(abs(values)) >= 1e6:
        return [f"{v:.3g}".replace("e-0", "e-").replace("e+0", "e") for v in values]
    decimals = next(d for d in range(7) if abs(round(step, d) - step) < 1e-9 * max(step, 1))
    return [f"{v:,.{decimals}f}" for v in values]


def _percents(values: np.ndarray) -> list[str]:
    return [f"{text}%" for text in _numbers(100 * values)]
