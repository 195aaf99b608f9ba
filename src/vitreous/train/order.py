"""Which images an epoch has and in which order, and the weights of the classes."""

import numpy as np
import torch
from torch import Tensor

from vitreous.augment import draw
from vitreous.recipe import Recipe


def steps_per_epoch(images: int, batch_size: int) -> int:
    """Full batches in an epoch; a set smaller than one batch is one step."""
    return max(images // batch_size, 1)


def _generator(seed: int, epoch: int) -> np.random.Generator:
    """The generator for an order: stream 0 of an epoch, as those of `augment.draw` count from 1."""
    return np.random.default_rng((seed, epoch, 0))


def epoch_order(images: int, seed: int, epoch: int) -> Tensor:
    """The order of the training images in an epoch: (images,) row numbers, a function of seed and epoch alone."""
    return torch.from_numpy(_generator(seed, epoch).permutation(images))


def balanced_order(labels: Tensor, seed: int, epoch: int) -> Tensor:
    """As many row numbers as there are images, with all classes equally often, a function of labels, seed and epoch.

    A class uses all its images before it repeats any, in a new random order each time.
    """
    rng = _generator(seed, epoch)
    classes = labels.unique()
    share, rows = -(-len(labels) // len(classes)), []
    for label in classes:
        own = np.flatnonzero(labels == label)
        rows.append(np.concatenate([rng.permutation(own) for _ in range(-(-share // len(own)))])[:share])
    return torch.from_numpy(rng.permutation(np.concatenate(rows))[: len(labels)])


def epoch_rows(labels: Tensor, recipe: Recipe, epoch: int) -> tuple[Tensor, Tensor]:
    """The images of an epoch in order, (n,) row numbers, and the row of `augment.draw` for each, (n, columns)."""
    draws = draw(recipe.augment, len(labels), recipe.seed, epoch)
    if recipe.data.balance == "sampling":  # a repeated image is augmented differently each time
        order = balanced_order(labels, recipe.seed, epoch)
        if recipe.augment.alternate_flip:  # except for the flip of epoch 0, in column 0, which belongs to the image
            draws[:, 0] = draws[order, 0]
        return order, draws
    order = epoch_order(len(labels), recipe.seed, epoch)
    return order, draws[order]


def class_weights(labels: Tensor, num_classes: int) -> Tensor:
    """images / (classes x images of the class), (num_classes,): over the training images their mean is 1."""
    counts = labels.bincount(minlength=num_classes)
    return len(labels) / ((counts > 0).sum() * counts.clamp(min=1))
