"""Test a map: remove what it calls important, and see whether the class becomes less likely (Petsiuk et al. 2018)."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.model import ViT
from vitreous.prediction import eval_batch_size, evaluating

STEPS = 24
ORDERS = 4  # random orders that `random_order` averages over


class Curves(NamedTuple):
    """The probability of a class, or its share in that of two, as patches of an image go or come by importance."""

    shares: Tensor
    """(S + 1,): the share of patches removed or inserted, from 0 to 1."""
    deletion: Tensor
    """(B, S + 1): from the whole image to none of it, most important patches first. A good map makes it fall."""
    insertion: Tensor
    """(B, S + 1): from a blurred image to the whole one, most important patches first. A good map makes it rise."""

    def of(self, row: int) -> "Curves":
        """The curves of one image, B = 1, on the host."""
        return Curves(*(values.cpu() for values in (self.shares, self.deletion[[row]], self.insertion[[row]])))

    @property
    def deletion_area(self) -> Tensor:
        """(B,), area under the deletion curve, 0 to 1: low is good."""
        return torch.trapezoid(self.deletion, self.shares.to(self.deletion))

    @property
    def insertion_area(self) -> Tensor:
        """(B,), area under the insertion curve, 0 to 1: high is good."""
        return torch.trapezoid(self.insertion, self.shares.to(self.insertion))


@torch.no_grad()
def faithfulness(
    model: ViT,
    images: Tensor,
    maps: Tensor,
    target: Tensor | None = None,
    temperature: float = 1.0,
    against: Tensor | None = None,
) -> Curves:
    """Deletion and insertion curves of maps (B, rows, columns) for normalised images (B, C, H, W).

    target: (B,), the classes whose probability is measured (default: the likeliest of each image); temperature: divides
    the logits. against: (B,), for maps of the target against another class: measured is the target's share in the
    probability of the two. Deleted patches are set to normalised zero, the mean colour of the training images or the
    one that the starting weights assume; insertion starts from the image blurred by a Gaussian as wide as a patch.
    Patches of equal importance are taken in a random order, the same for every call. Source: Petsiuk et al. 2018
    (RISE).
    """
    rows, columns = model.grid
    if maps.shape != (len(images), rows, columns):
        raise ValueError(f"maps of shape {tuple(maps.shape)}: give {(len(images), rows, columns)}, one for each image")
    ranks = _ranks(maps.flatten(1))  # (B, N)
    counts = torch.linspace(0, rows * columns, min(STEPS, rows * columns) + 1, device=images.device).round()
    blurred = _blur(images, model.config.patch_size)
    deletion, insertion = [], []
    at_once = max(1, eval_batch_size(model.config) // len(counts))
    with evaluating(model):
        target = model(images).argmax(dim=1) if target is None else target
        for part in torch.arange(len(images), device=images.device).split(at_once):
            important = ranks[part, None] < counts[:, None]  # (b, S + 1, N)
            pixels = important.view(len(part), -1, rows, columns).float()
            pixels = F.interpolate(pixels, size=images.shape[-2:], mode="nearest-exact")  # "nearest" errs by rounding
            pixels = pixels.bool()[:, :, None]  # (b, S + 1, 1, H, W)
            whole = images[part, None]
            for curve, mixed in (
                (deletion, torch.where(pixels, 0, whole)),
                (insertion, torch.where(pixels, whole, blurred[part, None])),
            ):
                logits = (model(mixed.flatten(0, 1)) / temperature).view(len(part), len(counts), -1)
                curve.append(_probability(logits, target[part], None if against is None else against[part]))
    return Curves(counts / (rows * columns), torch.cat(deletion), torch.cat(insertion))


def random_order(
    model: ViT,
    images: Tensor,
    target: Tensor | None = None,
    temperature: float = 1.0,
    against: Tensor | None = None,
) -> Curves:
    """The curves of uninformative maps: means over ORDERS random ones, the same for every image.

    images, target, temperature, against: as for `faithfulness`.
    """
    drawn = [
        faithfulness(model, images, order.expand(len(images), -1, -1), target, temperature, against)
        for order in random_maps(model, ORDERS).to(images.device)
    ]
    return Curves(*(torch.stack(parts).mean(dim=0) for parts in zip(*drawn, strict=True)))


def random_maps(model: ViT, count: int, seed: int = 0) -> Tensor:
    """Random maps, (count, rows, columns): the baseline any method has to beat."""
    return torch.rand(count, *model.grid, generator=torch.Generator().manual_seed(seed))


def _probability(logits: Tensor, target: Tensor, against: Tensor | None) -> Tensor:
    """Of the target, or its share in that of two classes: (b, S, K), (b,), (b,) -> (b, S)."""

    def of(classes: Tensor) -> Tensor:
        return logits.gather(2, classes[:, None, None].expand(-1, logits.shape[1], 1)).squeeze(2)

    whole = logits.logsumexp(dim=2) if against is None else torch.logaddexp(of(target), of(against))
    return (of(target) - whole).exp()


def _ranks(importance: Tensor) -> Tensor:
    """Rank of each patch by descending importance, from 0: (B, N) -> (B, N)."""
    shuffled = torch.randperm(importance.shape[1], generator=torch.Generator().manual_seed(0)).to(importance.device)
    order = shuffled[importance[:, shuffled].argsort(dim=1, descending=True, stable=True)]
    return order.argsort(dim=1)


def _blur(images: Tensor, patch_size: tuple[int, int]) -> Tensor:
    """Blur by a Gaussian, replicating borders: (B, C, H, W) -> (B, C, H, W).

    Its standard deviation is a patch's side in each direction; it is cut at two of them.
    """
    P, Q = patch_size
    rows, columns = ((-0.5 * (torch.arange(-2 * s, 2 * s + 1) / s) ** 2).exp() for s in (P, Q))
    kernel = torch.outer(rows, columns)
    kernel = (kernel / kernel.sum()).to(images).expand(images.shape[1], 1, -1, -1)  # (C, 1, 4 P + 1, 4 Q + 1)
    padded = F.pad(images, (2 * Q, 2 * Q, 2 * P, 2 * P), mode="replicate")
    return F.conv2d(padded, kernel, groups=images.shape[1])
