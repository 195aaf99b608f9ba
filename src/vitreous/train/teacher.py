"""Distillation: a trained model's answers are learnt beside the labels."""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.data.images import composed
from vitreous.device import autocast, compiled
from vitreous.messages import shorten
from vitreous.model import ViT
from vitreous.preprocess import Preprocess
from vitreous.recipe import DistillOptions, Recipe
from vitreous.weights.load import load_weights, weights_digest


class Teacher(NamedTuple):
    """A trained model that answers the images of a run."""

    model: ViT
    preprocess: Preprocess
    columns: list[int]
    """Which of its classes are those of the data, in their order."""
    sha256: str
    """Of its weight file."""


def load_teacher(recipe: Recipe, class_names: tuple[str, ...]) -> Teacher:
    """Load `recipe.distill.teacher`. Raises ValueError unless it knows these classes and reads as many channels."""
    name = recipe.distill.teacher
    bundle, report = load_weights(name)
    if not (report.named or report.imagenet):
        raise ValueError(f"teacher {name} does not name its classes: give a run on this data, or another named model")
    ours, theirs = composed(class_names), composed(bundle.class_names)
    if unknown := [name for name in ours if name not in theirs]:
        raise ValueError(
            f"teacher {name} does not know {shorten(unknown, 5)}: it answers with {shorten(bundle.class_names, 5)}; "
            "give a model of all these classes, such as a run on this data"
        )
    if bundle.preprocess.channels != recipe.model.channels:
        raise ValueError(
            f"teacher {name} reads images of {bundle.preprocess.channels} channels, and these have "
            f"{recipe.model.channels}: set model.channels={bundle.preprocess.channels}"
        )
    columns = [theirs.index(name) for name in ours]
    return Teacher(bundle.model, bundle.preprocess, columns, weights_digest(name))


def answering(
    teacher: Teacher, recipe: Recipe, device: torch.device, precision: str, steps: int
) -> Callable[[Tensor], Tensor]:
    """The teacher's logits (B, K) of augmented images (B, C, H, W) in 0..1, as a callable for `steps` steps in all.

    K are the classes of the data. Images of another size are brought to the teacher's.
    """
    call = compiled(teacher.model.to(device), recipe.compile, device, steps)
    columns = torch.tensor(teacher.columns, device=device)

    @torch.no_grad()
    def answers(images: Tensor) -> Tensor:
        if images.shape[2:] != teacher.preprocess.image_size:
            images = F.interpolate(
                images, teacher.preprocess.image_size, mode="bilinear", antialias=True, align_corners=False
            )
        with autocast(device, precision):
            return call(teacher.preprocess.normalise(images)).float()[:, columns]

    return answers


def distilled(loss: Tensor, logits: Tensor, answers: Tensor, weights: Tensor | None, options: DistillOptions) -> Tensor:
    """The loss by the labels, with `options.share` of it replaced by the divergence from the teacher's probabilities.

    logits, answers: the model's and the teacher's, (B, K). weights: (B,), of the images, if they differ. Both logits
    are divided by the temperature T, which shrinks the gradients by about its square: so the divergence is multiplied
    by that (Hinton et al. 2015, section 2).
    """
    T = options.temperature
    ours, theirs = (logits / T).log_softmax(dim=1), (answers / T).log_softmax(dim=1)
    divergence = F.kl_div(ours, theirs, reduction="none", log_target=True).sum(dim=1)  # (B,)
    if weights is not None:
        divergence = divergence * weights
    return (1 - options.share) * loss + options.share * T**2 * divergence.mean()
