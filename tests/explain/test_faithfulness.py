"""Deletion and insertion curves: what is taken away when, and how the area is counted."""

import importlib

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter
from small_models import small
from torch import nn

from vitreous.explain import Curves, faithfulness, random_maps, random_order
from vitreous.explain.faithfulness import ORDERS
from vitreous.model import ViTConfig
from vitreous.prediction import AT_ONCE


class Bright(nn.Module):
    """Class 0 is the more likely, the brighter the image; notes what it is asked."""

    config = ViTConfig(image_size=(4, 6), patch_size=2, channels=1, num_classes=2, dim=4, heads=1)
    grid = config.grid

    def __init__(self):
        super().__init__()
        self.asked = []

    def forward(self, images):
        self.asked.append(images)
        total = images.sum(dim=(1, 2, 3))
        return torch.stack([total, torch.zeros_like(total)], dim=1)


def maps_of(*order):
    """A map of 2 x 3 patches whose largest value is at order[0], and so on."""
    values = torch.zeros(6)
    values[list(order)] = torch.arange(6.0, 0, -1)
    return values.view(1, 2, 3)


def test_patches_go_in_the_order_of_the_map():
    model, image = Bright(), torch.arange(1.0, 7).view(1, 1, 2, 3).repeat_interleave(2, 2).repeat_interleave(2, 3)
    curves = faithfulness(model, image, maps_of(5, 0, 3, 1, 4, 2), torch.tensor([0]))
    left = model.asked[0][:, 0, ::2, ::2].flatten(1)  # the first pixel of each patch
    assert left.tolist() == [
        [1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 0], [0, 2, 3, 4, 5, 0], [0, 2, 3, 0, 5, 0], [0, 0, 3, 0, 5, 0],
        [0, 0, 3, 0, 0, 0], [0, 0, 0, 0, 0, 0],
    ]  # fmt: skip
    expected = torch.sigmoid(4 * left.sum(dim=1))
    torch.testing.assert_close(curves.deletion[0], expected)
    assert curves.shares.tolist() == pytest.approx([i / 6 for i in range(7)])


def test_insertion_starts_blurred_and_ends_with_the_image():
    model, image = Bright(), torch.randn(1, 1, 4, 6)
    faithfulness(model, image, maps_of(5, 0, 3, 1, 4, 2), torch.tensor([0]))
    first, second, *_, last = model.asked[1]
    assert torch.equal(last, image[0])
    blurred = gaussian_filter(image[0, 0].numpy(), sigma=(2, 2), mode="nearest", truncate=2)  # a patch's side
    np.testing.assert_allclose(first[0], blurred, atol=1e-5)
    changed = (second != first)[0]
    assert changed[2:, 4:].all() and changed.sum() == 4  # the first patch of the map, and nothing else


def test_blurring_keeps_a_plain_image():
    model, image = Bright(), torch.full((1, 1, 4, 6), 0.7)
    faithfulness(model, image, maps_of(0, 1, 2, 3, 4, 5), torch.tensor([0]))
    torch.testing.assert_close(model.asked[1][0], image[0])


def test_areas_are_trapezoids():
    shares = torch.tensor([0, 0.5, 1])
    curves = Curves(shares, torch.tensor([[1, 0.5, 0], [1, 0, 0]]), torch.tensor([[0, 1.0, 1], [0.5, 0.5, 0.5]]))
    assert curves.deletion_area.tolist() == pytest.approx([0.5, 0.25])
    assert curves.insertion_area.tolist() == pytest.approx([0.75, 0.5])
    assert curves.of(1).deletion_area.tolist() == pytest.approx([0.25])


def test_equal_importance_goes_in_one_random_order():
    image = torch.randn(1, 1, 4, 6)
    curves = [faithfulness(Bright(), image, torch.zeros(1, 2, 3), torch.tensor([0])).deletion for _ in range(2)]
    assert torch.equal(*curves)
    model = Bright()
    faithfulness(model, image, torch.zeros(1, 2, 3), torch.tensor([0]))
    gone = (model.asked[0][:, 0, ::2, ::2].flatten(1) == 0).sum(dim=0)  # the longer gone, the earlier it went
    assert gone.tolist() != sorted(gone.tolist(), reverse=True)


def test_curves_of_a_batch_are_those_of_its_images(model, images):
    maps = random_maps(model, 4)
    together = faithfulness(model, images, maps)
    for i in range(4):
        alone = faithfulness(model, images[i : i + 1], maps[i : i + 1])
        torch.testing.assert_close(alone.deletion, together.deletion[i : i + 1], atol=1e-5, rtol=0)
        torch.testing.assert_close(alone.insertion, together.insertion[i : i + 1], atol=1e-5, rtol=0)
    assert together.deletion[:, 0].tolist() == pytest.approx(model(images).softmax(1).amax(1).tolist(), abs=1e-5)


def test_a_random_order_is_the_mean_of_several(model, images):
    target = torch.tensor([1, 0, 2, 1])
    found = random_order(model, images, target, 2.0)
    drawn = [
        faithfulness(model, images, order.expand(4, *model.config.grid), target, 2.0)
        for order in random_maps(model, ORDERS)
    ]
    assert ORDERS > 1 and not torch.equal(drawn[0].deletion, drawn[1].deletion)
    torch.testing.assert_close(found.deletion, sum(curves.deletion for curves in drawn) / ORDERS)
    torch.testing.assert_close(found.insertion, sum(curves.insertion for curves in drawn) / ORDERS)
    assert torch.equal(found.shares, drawn[0].shares)


def test_of_a_contrast_the_share_in_the_probability_of_two_classes_is_measured(model, images, monkeypatch):
    target, against = torch.tensor([1, 0, 2, 1]), torch.tensor([0, 3, 4, 2])
    found = faithfulness(model, images, random_maps(model, 1).expand(4, -1, -1), target, 2.0, against)
    logits, rows = model(images) / 2, torch.arange(4)
    expected = torch.sigmoid(logits[rows, target] - logits[rows, against])
    torch.testing.assert_close(found.deletion[:, 0], expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(found.insertion[:, -1], expected, atol=1e-5, rtol=0)
    random = random_order(model, images, target, 2.0, against)
    torch.testing.assert_close(random.deletion[:, 0], expected, atol=1e-5, rtol=0)
    module = importlib.import_module("vitreous.explain.faithfulness")  # whose name is also that of the function
    monkeypatch.setattr(module, "eval_batch_size", lambda config: 1)
    apart = faithfulness(model, images, random_maps(model, 1).expand(4, -1, -1), target, 2.0, against)
    torch.testing.assert_close(apart.deletion, found.deletion, atol=1e-5, rtol=0)


def test_memory_is_bounded_by_small_batches():
    model = Bright()
    faithfulness(model, torch.randn(100, 1, 4, 6), torch.rand(100, 2, 3), torch.zeros(100, dtype=torch.long))
    assert max(len(asked) for asked in model.asked) <= AT_ONCE
    assert sum(len(asked) for asked in model.asked) == 2 * 7 * 100


def test_large_grids_take_24_steps():
    model = small(image_size=(32, 48))
    curves = faithfulness(model, torch.randn(1, 3, 32, 48), random_maps(model, 1))
    assert curves.deletion.shape == curves.insertion.shape == (1, 25)
    assert curves.shares[0] == 0 and curves.shares[-1] == 1


def test_maps_of_another_grid_are_refused(images):
    with pytest.raises(ValueError, match=r"maps of shape \(4, 3, 2\): give \(4, 2, 3\), one for each image"):
        faithfulness(small(), images, torch.zeros(4, 3, 2))
