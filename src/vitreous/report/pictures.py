"""Images of a report: which ones to show, and images as PNG inside the page."""

from collections.abc import Sequence
from html import escape

import numpy as np
from PIL import Image
from torch import Tensor

from vitreous.explain import DEFAULT, Method
from vitreous.explain.methods import STEPS
from vitreous.model import ViTConfig
from vitreous.page import png
from vitreous.recipe import Recipe, effective

LARGEST = 160  # pixels per side of a picture in the page
SMALL = 64  # pixels per side up to which a picture is enlarged with visible pixels
HEAT = np.array([255, 176, 0])
LARGE = 20e9  # tokens times weights over all passes of the default method, above which a report makes only one


def confident_mistakes(probabilities: Tensor, labels: Tensor, count: int) -> Tensor:
    """Rows of wrong answers, most confident first: probabilities (N, K), labels (N,) -> at most (count,)."""
    confidence, answers = probabilities.max(dim=1)
    wrong = (answers != labels).nonzero().flatten()
    return wrong[confidence[wrong].argsort(descending=True, stable=True)][:count]


def uncertain_hits(probabilities: Tensor, labels: Tensor, count: int) -> Tensor:
    """Rows of right answers, least confident first: probabilities (N, K), labels (N,) -> at most (count,)."""
    confidence, answers = probabilities.max(dim=1)
    right = (answers == labels).nonzero().flatten()
    return right[confidence[right].argsort(stable=True)][:count]


def training_label(recipe: Recipe) -> str:
    """What figures of the training images are of."""
    return "training, augmented" if effective(recipe).get("augment") else "training"


def target_text(target: Tensor, class_names: Sequence[str]) -> str:
    """A target, of shape () or soft (K,), in words: `cat`, or `cat 70% + dog 30%`."""
    if target.ndim == 0:
        return class_names[int(target)]
    shares, classes = target.topk(2)
    names = [class_names[k] for k in classes.tolist()]
    if shares[1] < 0.005:
        return names[0]
    return " + ".join(f"{name} {share:.0%}" for name, share in zip(names, shares.tolist(), strict=True))


def picture(pixels: np.ndarray, alt: str) -> str:
    """An <img> that holds its pixels, uint8 (C, H, W); large ones are shrunk."""
    image = Image.fromarray(pixels[0] if pixels.shape[0] < 3 else pixels[:3].transpose(1, 2, 0))
    image.thumbnail((LARGEST, LARGEST), Image.Resampling.LANCZOS)
    kind = ' class="pixels"' if max(image.size) <= SMALL else ""
    width, height = image.size
    return f'<img{kind} src="{png(image)}" width="{width}" height="{height}" alt="{escape(alt)}" decoding="async">'


def heated(pixels: np.ndarray, heat: np.ndarray) -> np.ndarray:
    """A dimmed gray copy of an image with a map >= 0 laid over it, a value a patch: (C, H, W) and (rows, columns) ->
    (3, H, W), both uint8. The largest value glows, as in `plots.overlay`, and 0 not at all."""
    high, wide = (side // patches for side, patches in zip(pixels.shape[1:], heat.shape, strict=True))
    heat = heat.repeat(high, axis=0).repeat(wide, axis=1)
    strength = heat / max(heat.max(), 1e-12)
    gray = 0.65 * pixels[:3].mean(axis=0)
    return (gray * (1 - 0.8 * strength) + 0.8 * strength * HEAT[:, None, None]).round().astype(np.uint8)


def how_to_read(method: Method, config: ViTConfig) -> str:
    """A sentence on the pictures of `heated`, by a method of `cheap_method`."""
    can_be_zero = method == DEFAULT or config.pool == "cls"
    nothing = "; where all stays gray, nothing in the image did" if can_be_zero else ""
    return f"The brighter the orange, the more{nothing}."


def cheap_method(config: ViTConfig) -> Method:
    """The explanation method of a report: the default, or for a large model one that needs a single pass."""
    weights = config.depth * (4 + 2 * config.mlp_ratio) * config.dim**2
    return DEFAULT if config.tokens * weights * STEPS < LARGE else "gradient_rollout"
