"""Answers to the exercise of chapter 9."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

CURES = json.loads((Path(__file__).parents[2] / "benchmarks" / "results" / "cures.json").read_text())


def standard_error(share: float, images: int) -> float:
    """Of a share of right answers: each is a coin that shows heads with this probability."""
    return math.sqrt(share * (1 - share) / images)


def images_to_tell(a: float, b: float) -> int:
    """So many that the difference of two shares is two standard errors of that difference, on separate images."""
    return math.ceil(4 * (a * (1 - a) + b * (1 - b)) / (a - b) ** 2)


def clear_gains(rows: dict[str, dict], n: int) -> set[str]:
    """Cures, alone, whose gain is above two of its standard errors."""
    alone = {name: row for name, row in rows.items() if not name.startswith(("plain", "combined", "rate"))}
    return {name for name, row in alone.items() if row["gain"] > 2 * row["gain_sd"] / math.sqrt(n)}


def test_a_thousand_test_images_leave_more_than_half_a_point_of_doubt():
    shares = np.random.default_rng(0).binomial(1137, 0.95, 100_000) / 1137
    assert shares.std() == pytest.approx(standard_error(0.95, 1137), rel=0.01)
    assert 0.006 < standard_error(0.95, 1137) < 0.007
    assert images_to_tell(0.95, 0.96) == 3436


def test_four_gains_are_clear_and_that_of_the_stem_is_the_largest():
    rows = CURES["rows"]
    clear = clear_gains(rows, CURES["n"])
    assert clear == {"conv stem", "Muon", "mixup", "cutmix"}
    assert max(clear, key=lambda name: rows[name]["gain"]) == "conv stem"


def test_the_file_is_what_its_runs_say():
    """Means and gains follow from the seeds' own figures, and what the chapter says about them is so."""
    rows = CURES["rows"]
    for name, row in rows.items():
        base = rows["combined" if name.startswith("combined without") else "plain"]
        assert len(row["top1"]) == CURES["n"]
        assert row["mean"] == pytest.approx(np.mean(row["top1"]))
        assert row["gain"] == pytest.approx(row["mean"] - base["mean"])
    assert rows["plain"]["train_top1"] > 0.99 and rows["plain"]["mean"] < 0.8
    assert rows["plain"]["mean"] > max(rows["rate halved"]["mean"], rows["rate doubled"]["mean"])
    assert rows["augmentation"]["gain"] < -0.1 and rows["augmentation"]["train_top1"] < 0.8
    assert (
        min((row["gain"], name) for name, row in rows.items() if "without" in name)[1] == "combined without conv stem"
    )
    alone = sorted((row["gain"], name) for name, row in rows.items() if not name.startswith(("combined", "rate")))
    assert [name for _, name in alone[-2:]] == ["Muon", "conv stem"] and rows["combined without Muon"]["gain"] < 0
    assert rows["dropout"]["gain"] < 0 and abs(rows["combined without augmentation"]["gain"]) < 0.02
    assert abs(rows["moving average of weights"]["gain"]) < 0.01
