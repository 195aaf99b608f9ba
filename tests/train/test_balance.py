"""Classes of unequal size: none is left behind, by weights in the loss or by what a pass shows."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from rich.console import Console
from tiny import tiny_bundle, tiny_recipe

from vitreous.data.images import ImageSet
from vitreous.recipe import make_recipe
from vitreous.train import loop
from vitreous.train.order import balanced_order, class_weights, epoch_rows
from vitreous.train.run import fit

QUIET = {"device": "cpu", "pictures": False, "console": Console(quiet=True)}
LABELS = torch.tensor([0] * 40 + [1] * 8 + [2] * 3)


def unbalanced_set():
    """Images that say nothing of their class: 102, 12 and 6 of them. All that can be learnt is how often each comes."""
    labels = np.repeat([0, 1, 2], [102, 12, 6])
    return ImageSet.from_arrays(np.full((120, 8, 8), 100, np.uint8), labels)


def recipe_of(balance, **changes):
    return tiny_recipe(**({"data": {"val_fraction": 0, "balance": balance}} | changes))


def test_balanced_sampling_shows_all_classes_equally_often():
    order = balanced_order(LABELS, seed=0, epoch=0)
    counts = LABELS[order].bincount()
    assert len(order) == len(LABELS) == 51 and counts.tolist() == [17, 17, 17]
    seen = order.bincount(minlength=51)
    assert seen[:40].max() == 1  # a large class is not repeated
    assert seen[40:48].tolist().count(2) == 7 and seen[40:48].min() >= 2  # 17 = 2 * 8 + 1, so one comes three times
    assert sorted(seen[48:].tolist()) == [5, 6, 6]


def test_balanced_sampling_is_a_function_of_labels_seed_and_epoch():
    orders = {key: balanced_order(LABELS, *key).tolist() for key in [(0, 0), (0, 1), (1, 0)]}
    assert orders[0, 0] == balanced_order(LABELS, 0, 0).tolist()
    assert len({tuple(order) for order in orders.values()}) == 3


def test_a_balanced_set_is_seen_once_each():
    assert sorted(balanced_order(torch.arange(30) % 3, 0, 0).tolist()) == list(range(30))


def test_copies_of_an_image_look_different_within_a_pass():
    recipe = recipe_of("sampling", augment={"rotation": 20})
    order, draws = epoch_rows(LABELS, recipe, 0)
    looks = draws[order == order.bincount().argmax()]
    assert len(looks) == 6 and len(looks.unique(dim=0)) == 6
    order, draws = epoch_rows(LABELS, recipe_of("none", augment={"rotation": 20}), 0)
    again, others = epoch_rows(LABELS, recipe_of("weights", augment={"rotation": 20}), 0)
    assert torch.equal(order, again) and torch.equal(draws, others)


@pytest.mark.parametrize("balance", ["none", "sampling"])
def test_order_and_looks_share_no_random_numbers(balance, monkeypatch):
    asked, default_rng = [], np.random.default_rng
    monkeypatch.setattr(np.random, "default_rng", lambda seed: asked.append(seed) or default_rng(seed))
    augment = {"flip": 0.5, "rotation": 20, "cutmix": 1.0}
    epoch_rows(LABELS, recipe_of(balance, augment=augment), 0)
    assert len(asked) == len(set(asked)) == 6  # the order; flip, rotation, whether, how much and where to mix


def test_class_weights_make_all_classes_count_the_same():
    weights = class_weights(LABELS, 4)
    totals = weights * LABELS.bincount(minlength=4)
    assert totals.tolist() == pytest.approx([17, 17, 17, 0]) and weights[LABELS].mean().item() == pytest.approx(1)


def test_the_weighted_loss_is_a_mean_over_images_in_whatever_parts():
    torch.manual_seed(0)
    logits, labels, weights = torch.randn(8, 3), torch.arange(8) % 3, torch.tensor([0.5, 1.0, 4.0])
    whole = loop.mean_loss(logits, labels, weights, 0.0)
    assert whole.item() == pytest.approx((weights[labels] * F.cross_entropy(logits, labels, reduction="none")).mean())
    parts = [loop.mean_loss(logits[i], labels[i], weights, 0.0) * len(labels[i]) for i in (slice(3), slice(3, 8))]
    assert (sum(parts) / 8).item() == pytest.approx(whole.item())
    soft = loop.mean_loss(logits, F.one_hot(labels, 3).float(), weights, 0.0)
    assert soft.item() == pytest.approx(whole.item())
    assert loop.mean_loss(logits, labels, None, 0.1) == F.cross_entropy(logits, labels, label_smoothing=0.1)


def test_a_mixed_image_weighs_what_its_classes_do_by_their_shares():
    logits, weights, smoothing = torch.randn(2, 3), (0.5, 1.0, 4.0), 0.1
    targets, by_hand = [[0.7, 0.3, 0.0], [0.0, 0.4, 0.6]], 0.0
    for row, shares in enumerate(targets):
        sure = logits[row].log_softmax(dim=0).tolist()
        for share, weight, log in zip(shares, weights, sure, strict=True):
            by_hand -= share * weight * ((1 - smoothing) * log + smoothing * sum(sure) / 3)
    found = loop.mean_loss(logits, torch.tensor(targets), torch.tensor(weights), smoothing)
    assert found.item() == pytest.approx(by_hand / 2, rel=1e-5)


@pytest.mark.parametrize("soft", [False, True])
def test_smoothing_does_not_turn_a_common_image_into_a_rare_one(soft):
    labels, weights = torch.zeros(4, dtype=torch.long), torch.tensor([0.51, 51.0, 51.0])  # 100 to 1
    targets = F.one_hot(labels, 3).float() if soft else labels
    logits = torch.zeros(4, 3, requires_grad=True)
    optimizer = torch.optim.Adam([logits], 0.1)
    for _ in range(200):
        optimizer.zero_grad()
        loop.mean_loss(logits, targets, weights, 0.1).backward()
        optimizer.step()
    assert logits.softmax(dim=1)[0].tolist() == pytest.approx([0.9 + 0.1 / 3, 0.1 / 3, 0.1 / 3], abs=1e-3)
    even = loop.mean_loss(logits, targets, torch.ones(3), 0.1)
    assert even.item() == pytest.approx(F.cross_entropy(logits, targets, label_smoothing=0.1).item())


def test_images_turn_over_every_pass_in_whichever_order_they_come():
    flipped = []
    for epoch in range(2):
        order, draws = epoch_rows(LABELS, recipe_of("sampling", augment={"flip": 0.5, "alternate_flip": True}), epoch)
        coins = dict(zip(order.tolist(), draws[:, 0].tolist(), strict=True))
        flipped.append([coins.get(image) for image in range(51)])
    same = [a == b for a, b in zip(*flipped, strict=True) if None not in (a, b)]
    assert len(same) > 15 and all(same)  # the coin of epoch 0, which counts the other way round in every second pass


def test_both_ways_leave_no_class_behind(tmp_path):
    answers = {}
    for balance in ("none", "weights", "sampling"):
        recipe = recipe_of(balance, epochs=5)
        run = fit(recipe, unbalanced_set(), out=tmp_path / balance, **QUIET)
        told = "data.balance=weights makes them count the same" in (run.folder / "train.log").read_text()
        assert told == (balance == "none")
        images = run.bundle.preprocess.normalise(torch.full((1, 1, 8, 8), 100, dtype=torch.uint8))
        answers[balance] = run.bundle.model(images).softmax(dim=1)[0].tolist()
    assert answers["none"] == pytest.approx([0.85, 0.1, 0.05], abs=0.07)
    assert answers["weights"] == pytest.approx([1 / 3] * 3, abs=0.12)
    assert answers["sampling"] == pytest.approx([1 / 3] * 3, abs=0.07)


@pytest.mark.parametrize("how", ["probe", "probe_first"])
def test_a_fitted_head_leaves_no_class_behind(tmp_path, how):
    tiny_bundle(seed=3, classes=("x", "y", "z")).save(tmp_path / "source")
    fields = {"epochs": 1, "start": {"weights": str(tmp_path / "source"), how: True}}
    fields |= {"optim": {"learning_rate": 1e-60}} if how == "probe_first" else {}  # no weight moves
    for balance, expected in {"none": [0.85, 0.1, 0.05], "weights": [1 / 3] * 3}.items():
        data = {"val_fraction": 0, "balance": balance}
        run = fit(make_recipe(fields | {"data": data}, "test"), unbalanced_set(), out=tmp_path / balance, **QUIET)
        images = run.bundle.preprocess.normalise(torch.full((1, 1, 8, 8), 100, dtype=torch.uint8))
        assert run.bundle.model(images).softmax(dim=1)[0].tolist() == pytest.approx(expected, abs=0.01)
