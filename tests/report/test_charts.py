"""Charts: what is drawn lies where its figures say, and is told in words too."""

import re

import numpy as np
import pytest

from vitreous.metrics import Reliability
from vitreous.report.charts import (
    Line,
    heat_map,
    interval_chart,
    line_chart,
    reliability_chart,
    share_bar,
    ticks,
)


def paths(svg, kind):
    """The points of all paths of a class: a list of (n, 2) arrays."""
    found = re.findall(rf'<path class="{kind}[^"]*" d="M([^"]*)"', svg)
    return [np.array([[float(v) for v in pair.split()] for pair in path.split("L")]) for path in found]


def test_a_curve_goes_through_its_points():
    chart = line_chart("Loss", [Line("training", "s1", [1, 2, 3], [2.0, 1.0, 0.0])], x_label="epoch")
    (points,) = paths(chart, "line")
    np.testing.assert_allclose(points, [[0, 0], [50, 50], [100, 100]])
    assert 'aria-label="Loss: training from 2 to 0"' in chart
    assert re.findall(r"<title>(.*?)</title>", chart) == [
        "epoch 1: training 2", "epoch 2: training 1", "epoch 3: training 0",
    ]  # fmt: skip


def test_curves_share_their_axes_and_the_kept_epoch_is_marked():
    lines = [Line("a", "s0", [1, 2], [0.5, 1.0]), Line("b", "s1", [1, 3], [0.0, 0.5])]
    chart = line_chart("Top-1", lines, x_label="epoch", percent=True, kept=2)
    first, second = paths(chart, "line")
    np.testing.assert_allclose(first, [[0, 50], [50, 0]])
    np.testing.assert_allclose(second, [[0, 100], [100, 50]])
    assert 'class="kept" d="M50.00 0V100"' in chart and "kept: epoch 2" in chart
    assert ">100%</span>" in chart and "a 100.00%" in chart


@pytest.mark.parametrize("values", [[0.5], [0.5, 0.5], [3.0, float("nan")], [1e-5, 2e-5], [1e6, 3e7], [-1.0, 1.0]])
def test_few_equal_tiny_and_huge_values_are_drawn(values):
    chart = line_chart("x", [Line("a", "s0", range(1, len(values) + 1), values)], x_label="epoch")
    (points,) = paths(chart, "line")
    assert len(points) == np.isfinite(values).sum()
    assert ((points >= -1e-6) & (points <= 100 + 1e-6)).all() and "nan" not in chart
    assert len(re.findall(r'class="dot', chart)) == len(points)  # so few that a line alone could not be seen


@pytest.mark.parametrize("share", [0.0, 0.9, 1.0])
def test_an_axis_of_shares_ends_at_none_and_at_all(share):
    chart = line_chart("Top-1", [Line("a", "s0", [1], [share])], x_label="epoch", percent=True)
    labels = [float(text) for text in re.findall(r'class="y"[^>]*>([-\d.]+)%<', chart)]
    assert len(labels) > 2 and min(labels) >= 0 and max(labels) == 100


def test_nothing_to_draw_is_nothing():
    empty = Line("a", "s0", [1], [float("nan")])
    assert line_chart("x", [empty], x_label="epoch") == ""
    both = line_chart("x", [empty, Line("b", "s1", [1, 2], [3, 4])], x_label="epoch")
    assert "b from 3 to 4" in both and "s0" not in both


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0.93, 0.97, [0.93, 0.94, 0.95, 0.96, 0.97]),
        (1, 300, [0, 100, 200, 300]),
        (0.02, 2.4, [0, 0.5, 1, 1.5, 2, 2.5]),
        (7, 7, [2, 4, 6, 8, 10, 12]),
    ],
)
def test_axes_are_labelled_at_round_numbers(low, high, expected):
    found = ticks(low, high)
    assert found[0] <= low and found[-1] >= high and 3 <= len(found) <= 8
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_epochs_are_labelled_by_whole_numbers():
    assert ticks(1, 2, whole=True).tolist() == [1, 2]
    assert all(float(t).is_integer() for t in ticks(1, 7, whole=True))


def test_a_reliability_diagram_shows_accuracy_and_its_distance_from_confidence():
    bins = Reliability(np.array([0, 30, 10]), np.array([0, 0.6, 0.9]), np.array([0, 0.4, 1.0]))
    chart = reliability_chart("ECE", bins)
    boxes = re.findall(r'<rect class="(\w+)" x="([\d.]+)" width="[\d.]+" y="([\d.]+)" height="([\d.]+)"', chart)
    drawn = [(kind, float(y), float(height)) for kind, _, y, height in boxes]
    assert drawn == [
        ("hits", 60, 40), ("over", 40, 20),  # 60% sure, 40% right
        ("hits", 10, 90), ("under", 0, 10),  # 90% sure, all right
        ("share", 0, 100), ("share", 66.67, 33.33),
    ]  # fmt: skip
    assert f"ECE: {(30 * 0.2 + 10 * 0.1) / 40:.2%}" in chart  # 17.50%
    assert "30 answers, 60.0% sure on average: 40.0% right" in chart


def test_a_share_has_its_interval_on_it():
    bar = share_bar(0.9, 0.85, 0.94)
    assert "width:90.00%" in bar and "left:85.00%;width:9.00%" in bar


def test_a_heat_map_has_a_square_for_each_pair_that_occurs():
    counts = np.diag([100, 100, 100, 0])
    counts[0, 2], counts[1, 0] = 1, 300
    chart = heat_map(counts, "Confusion", ["a", "<b>", "c", "d"])
    assert 'y="1" width="4" height="1"><title>&lt;b&gt;: 25.0% right</title>' in chart
    assert "<title>d: no images</title>" in chart
    assert re.findall(r'class="right l5" d="([^"]*)"', chart) == ["M0 0h1v1h-1zM2 2h1v1h-1z"]
    assert re.findall(r'class="right l(\d)" d="M1 1', chart) == ["3"]  # a quarter of its row: ceil(5 * 0.5)
    assert re.findall(r'class="wrong l(\d)" d="M(\d \d)', chart) == [("1", "2 0"), ("5", "0 1")]  # 1 in 101: seen


def test_each_place_of_a_chart_shows_the_values_of_the_nearest_point():
    chart = line_chart("Loss", [Line("training", "s1", [1, 2, 6], [2.0, 1.0, 0.0])], x_label="epoch")
    strips = re.findall(r'class="strip" x="([\d.]+)" width="([\d.]+)"', chart)
    assert strips == [("0.00", "10.00"), ("10.00", "50.00"), ("60.00", "40.00")]  # points at 0, 20 and 100


def test_dots_lie_within_their_intervals_on_one_axis():
    chart = interval_chart("Top-1", [("a <1>", 0.9, 0.8, 1.0), ("b", 0.85, 0.8, 0.9)], [2, 0])
    whiskers = re.findall(r'class="whisker s(\d)" d="M([\d.]+) 50H([\d.]+)"', chart)
    dots = re.findall(r'class="dot s(\d)" d="M([\d.]+) 50h0"', chart)
    assert whiskers == [("2", "0.00", "100.00"), ("0", "0.00", "50.00")]
    assert dots == [("2", "50.00"), ("0", "25.00")]
    assert "a &lt;1&gt;: 90.00%, 80.00% to 100.00%" in chart and ">80%</span>" in chart
