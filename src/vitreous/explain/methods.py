"""Which patches a prediction rests on: five ways to map them."""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.explain.attention import open_pass
from vitreous.model import ViT
from vitreous.prediction import evaluating

Method = Literal["integrated_gradients", "gradient_rollout", "rollout", "grad_cam", "attention"]
METHODS: tuple[Method, ...] = get_args(Method)
DEFAULT: Method = "integrated_gradients"
CLASSLESS = ("rollout", "attention")  # methods whose maps are the same for all classes
STEPS = 32


def explanation_maps(
    model: ViT,
    images: Tensor,
    method: Method = DEFAULT,
    target: Tensor | None = None,
    layer: int | None = None,
    head: int | None = None,
    against: Tensor | None = None,
) -> Tensor:
    """How much each patch of normalised images (B, C, H, W) matters: (B, rows, columns), >= 0, each map summing to 1.

    target: (B,), the classes to explain (default: the likeliest); `rollout` and `attention` are the same for all
    classes. layer, 1 to L: the block whose weights `attention` shows, and whose input `grad_cam` looks at (default:
    the last). head, 1 to h: for `attention` (default: the mean of all). against: (B,), classes to contrast the
    targets with, through the difference of the two logits. If nothing supports the class, its map is zero
    everywhere; but where the head reads patches, that of `gradient_rollout` then shows which, as those of the classless
    methods do.

    The default won the deletion and insertion test on models of MNIST and digits and on the last three of CIFAR-100,
    and was level with others on CIFAR-10 and on earlier ones of CIFAR-100 (`python benchmarks/faithfulness.py RUN
    DATA`, docs/measurements.md). The test removes patches to the mean colour, from which the default starts.
    """
    check_choice(model, method, layer, head, against is not None)
    if method == "integrated_gradients":
        if target is None:
            with torch.no_grad(), evaluating(model):
                target = model(images).argmax(dim=1)
        return to_share(integrated_gradients(model, images, target, against=against).clamp(min=0))
    with torch.set_grad_enabled(method not in CLASSLESS):
        seen = open_pass(model, images)
        target = seen.logits.argmax(dim=1) if target is None else target
        score = scores_of(seen.logits, target, against).sum()
    layer, prefix = layer or model.config.depth, model.config.prefix
    attention = [weights.detach() for weights in seen.attention]
    row = seen.pool.detach().mean(dim=1)  # (B, N)
    if method == "attention":
        weights = attention[layer - 1]
        relevance = propagate(row, weights.mean(dim=1) if head is None else weights[:, head - 1])
    elif method == "rollout":
        relevance = rollout(attention, row)
    elif method == "gradient_rollout":
        relevance = gradient_rollout(attention, torch.autograd.grad(score, seen.attention), row)
    else:
        tokens = seen.tokens[layer - 1]
        relevance = grad_cam(tokens.detach(), torch.autograd.grad(score, tokens)[0], prefix)
    return patch_map(relevance, model)


def patch_map(relevance: Tensor, model: ViT) -> Tensor:
    """Relevance of all tokens (..., N) -> that of the patches as a map (..., rows, columns) that sums to 1."""
    return to_share(relevance[..., model.config.prefix :].unflatten(-1, model.grid))


def scores_of(logits: Tensor, target: Tensor, against: Tensor | None = None) -> Tensor:
    """The target logits, minus those of other classes: (B, K), (B,), (B,) -> (B,).

    Images do not interact, so the gradient of their sum is each image's own.
    """
    scores = logits.gather(1, target[:, None])
    return (scores if against is None else scores - logits.gather(1, against[:, None])).squeeze(1)


def integrated_gradients(
    model: ViT, images: Tensor, target: Tensor, steps: int = STEPS, against: Tensor | None = None
) -> Tensor:
    """What each patch adds to a class's logit, (B, rows, columns), relative to an image of normalised zero.

    Gradients are averaged along the straight line from there to normalised images (B, C, H, W). Zero is the mean colour
    of the training images, or the one that the run's starting weights assume. The patches add up to the logit's
    rise along this line, up to the error of approximating the integral at `steps` points: with a model of six blocks on
    CIFAR-10, at the median (90th percentile) of 50 test images, 6% (24%) with 16 of them, 0.4% (2%) with 32. They are
    the squares of evenly spaced shares, so closer together near zero, where norms make a logit steep: evenly spaced
    themselves, 32 of them are off by 2% (18%). Source: Sundararajan et al. 2017, equation 3.
    """
    mean_gradient = torch.zeros_like(images)
    with torch.enable_grad(), evaluating(model):
        for step in range(steps):
            share = (step + 0.5) / steps
            points = (images.detach() * share**2).requires_grad_()
            score = scores_of(model(points), target, against).sum()
            mean_gradient += torch.autograd.grad(score, points)[0] * (2 * share / steps)
    by_pixel = (images.detach() * mean_gradient).sum(dim=1)  # (B, H, W)
    return F.avg_pool2d(by_pixel, model.config.patch_size, divisor_override=1)


def rollout(attention: Sequence[Tensor], row: Tensor) -> Tensor:
    """Attention rollout: how much of each input token flows into what the head reads.

    attention: L times (B, h, N, N). row: (B, N), the weight with which each token is read after the last block: for a
    class token 1 there and 0 elsewhere. Returns row (A_L + I)/2 ... (A_1 + I)/2, (B, N), which keeps the sum of row:
    A_l is the mean over heads, and I stands for the residual path. Other mixing between positions is ignored:
    `mlp_conv` mixes neighbours in each block, `conv_stem` before the first, so maps of such models are blurred by some
    patches. Source: Abnar & Zuidema 2020, section 3.
    """
    for weights in reversed(attention):
        row = (row + propagate(row, weights.mean(dim=1))) / 2
    return row


def gradient_rollout(attention: Sequence[Tensor], gradients: Sequence[Tensor], row: Tensor) -> Tensor:
    """Rollout along the attention that supports the class: row (E_L + I) ... (E_1 + I), (B, N).

    E_l is the mean over heads of the positive part of weights times their gradients, both (B, h, N, N); each of its
    rows is scaled to sum to 1. The source leaves this scaling out; without it, gradients that pooling spreads over many
    patches drown in the residual path. Source: Chefer et al. 2021, "Generic Attention-model Explainability", equations
    5 and 6.
    """
    for weights, gradient in zip(reversed(attention), reversed(gradients), strict=True):
        speaking = (weights * gradient).clamp(min=0).mean(dim=1)  # (B, N, N)
        total = speaking.sum(dim=-1, keepdim=True)
        row = row + propagate(row, speaking / total.where(total > 0, 1))
    return row


def grad_cam(tokens: Tensor, gradient: Tensor, prefix: int) -> Tensor:
    """Grad-CAM on tokens: the positive part of their sum over channels, weighted by the mean gradient, (B, N).

    tokens and gradient: (B, N, D). The mean is over the patches, which are the tokens from `prefix` on.
    Source: Selvaraju et al. 2017, equations 1 and 2, with tokens as the activations.
    """
    weights = gradient[:, prefix:].mean(dim=1, keepdim=True)  # (B, 1, D)
    return (tokens * weights).sum(dim=-1).clamp(min=0)


def propagate(row: Tensor, matrix: Tensor) -> Tensor:
    """Propagate a row of weights down one step: (..., N) times (..., N, N)."""
    return (row.unsqueeze(-2) @ matrix).squeeze(-2)


def to_share(maps: Tensor) -> Tensor:
    """Maps (B, ..., rows, columns) >= 0, each scaled to sum to 1; one that is zero everywhere stays so."""
    total = maps.sum(dim=(-2, -1), keepdim=True)
    return maps / total.where(total > 0, 1)


def check_choice(model: ViT, method: str, layer: int | None, head: int | None, contrast: bool) -> None:
    """Raises ValueError for an unknown method, layer or head, or a contrast that the method cannot make."""
    if method not in METHODS:
        raise ValueError(f"unknown method '{method}': use {', '.join(METHODS)}")
    if contrast and method in CLASSLESS:
        able = ", ".join(name for name in METHODS if name not in CLASSLESS)
        raise ValueError(f"{method} is the same for all classes, and knows none against another: use {able}")
    for name, value, count in (("layer", layer, model.config.depth), ("head", head, model.config.heads)):
        if value is not None and not 1 <= value <= count:
            raise ValueError(f"{name} {value} is not there: this model has {count}, give 1 to {count}")
