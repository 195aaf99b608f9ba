"""Inspect the model itself: filters, positions, attention distances, tokens and answers by depth: `vitreous look`.

The first three views are those of Figure 7 of Dosovitskiy et al. 2021.
"""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.data.images import ImageSet
from vitreous.data.loaders import decode
from vitreous.data.sources import load
from vitreous.evaluation import own_data
from vitreous.explain.attention import OpenPass, open_pass, read_out
from vitreous.explain.explanations import explained_at_once
from vitreous.files import check_free, path_of, write_json
from vitreous.model import ViT
from vitreous.prediction import evaluating
from vitreous.weights import Bundle
from vitreous.weights.bundle import Trained

log = logging.getLogger("vitreous")

IMAGES = 128
COMPONENTS = 28  # as many as the paper shows
VIEWS = ("filters", "positions", "attention_distance", "depth_similarity", "token_norms", "early_answers")


@torch.inference_mode(False)  # in which nothing has gradients
@torch.no_grad()
def look(
    run: Trained,
    data: ImageSet | Path | str | None = None,
    *,
    out: Path | str = "look",
    count: int = IMAGES,
    device: str = "auto",
) -> dict[str, Any]:
    """Draw a model into the folder `out`, one PNG per view, and return all figures, which are also in `look.json`.

    data: images for the views that need some (default: the run's own); `count` of them are drawn evenly from the test
    images, or else from the validation or training images. If the data is unknown, these views are skipped. Earlier
    drawings of another model are removed; raises ValueError if other files have these names.
    """
    from vitreous import plots

    if count < 1:
        raise ValueError(f"count is {count}: it must be at least 1")
    out = path_of(out)
    pictures, record = {view: out / f"{view}.png" for view in VIEWS}, out / "look.json"
    check_free([*pictures.values(), record], record, '"filter_variance"')
    bundle = Bundle.of(run)
    where, model = bundle.to(device), bundle.model
    components, shares = filter_components(patch_filters(model))
    positions = position_similarity(model).cpu().double().numpy()
    images = _images(bundle, run, data, count)
    figures = {"filter_variance": shares.round(6).tolist(), "positions": positions.round(4).tolist()}
    write_json(record, {"filter_variance": figures["filter_variance"]})  # first: it marks the pictures as ours
    for picture in pictures.values():
        picture.unlink(missing_ok=True)
    title = "what the patch embedding sees: principal components"
    if model.config.patch_embedding == "conv_stem":
        title = "what the stem sees in a faint pattern on the mean colour:\nprincipal components of its gradients"
    plots.filters(components, shares, f"{title}, with their shares of the variance", pictures["filters"])
    title = f"positions ({model.config.positions}): which places are alike"
    plots.position_similarity(positions, title, pictures["positions"])
    if images is not None:
        seen = []
        for part in torch.from_numpy(images).split(explained_at_once(model.config)):
            opened = open_pass(model, bundle.preprocess.normalise(part.to(where)))
            views = attention_distance, depth_similarity, token_norms, early_answers
            seen.append([view(model, opened) for view in views])
        distances, similarities, norms, early = zip(*seen, strict=True)
        distance = torch.cat(distances).mean(dim=0).cpu().double().numpy()
        similarity = torch.cat(similarities).mean(dim=0).cpu().double().numpy()
        same = torch.cat(early).cpu().double().mean(dim=0).numpy()
        spread = {kind: _spread(torch.cat([part[kind] for part in norms])) for kind in norms[0]}
        plots.attention_distance(distance, uniform_distance(model), pictures["attention_distance"])
        what = "the class token" if model.config.pool == "cls" else "what the head reads"
        plots.depth_similarity(similarity, f"{what}, depth by depth", pictures["depth_similarity"])
        plots.token_norms(spread, pictures["token_norms"])
        plots.early_answers(same, pictures["early_answers"])
        figures |= {
            "images": len(images),
            "attention_distance": distance.round(4).tolist(),
            "attention_distance_uniform": uniform_distance(model),
            "depth_similarity": similarity.round(6).tolist(),
            "token_norms": {kind: values.round(4).tolist() for kind, values in spread.items()},
            "early_answers": same.round(4).tolist(),
        }
    write_json(record, figures, indent=None)  # the square of the patches in numbers
    return figures


def patch_filters(model: ViT) -> Tensor:
    """The pattern that each channel of the patch embedding responds to, (D, C, P, Q).

    For a linear embedding, its weights. For a convolutional stem, the gradients of its channels at an image of the mean
    colour: its linear approximation for faint patterns, as wide as its receptive field.
    """
    config = model.config
    P, Q = config.patch_size
    if config.patch_embedding != "conv_stem":
        return model.patches.proj.weight.detach().reshape(config.dim, config.channels, P, Q)
    apart = np.cumprod(config.stem_steps, axis=0)  # pixels from a place to the next one, after each convolution
    around = 3 + 2 * int(np.ceil(apart.sum(axis=0) / apart[-1]).max())  # patches, more than a token sees
    like = next(model.parameters())
    image = like.new_zeros(1, config.channels, around * P, around * Q).requires_grad_()
    with torch.enable_grad(), evaluating(model):
        token = model.patches(image)[0, around**2 // 2]  # (D,)
        each = torch.eye(config.dim).to(like)
        (gradient,) = torch.autograd.grad(token, image, each, is_grads_batched=True)
    seen = gradient[:, 0].abs().amax(dim=(0, 1)) > 0  # (around P, around Q)
    rows, columns = seen.any(dim=1).nonzero().flatten(), seen.any(dim=0).nonzero().flatten()
    return gradient[:, 0, :, rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def filter_components(filters: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Principal components of filters (D, C, P, Q), largest first: (n, C, P, Q), and their shares of the variance."""
    flat = filters.flatten(1).cpu().double()  # Apple's GPUs have no float64
    _, lengths, directions = torch.linalg.svd(flat - flat.mean(dim=0), full_matrices=False)
    shares = lengths**2 / (lengths**2).sum().clamp(min=1e-30)
    components = directions[:COMPONENTS].view(-1, *filters.shape[1:])
    return components.numpy(), shares[:COMPONENTS].numpy()


def position_similarity(model: ViT) -> Tensor:
    """Cosine similarity of the positions of any two patches, (rows, columns, rows, columns).

    For rotary positions: how well a query matches an equal key at another position, relative to one at its own, if all
    its pairs have the same length: the mean cosine of the angles between the two.
    """
    grid, prefix = model.config.grid, model.config.prefix
    if model.rotary is not None:
        table = torch.cat(model.rotary, dim=1)[prefix:]  # (patches, d): cosines, sines
    else:
        table = model.positions[0, -grid[0] * grid[1] :].detach()  # (patches, D)
    table = F.normalize(table.float(), dim=1)
    return (table @ table.T).clamp(-1, 1).view(*grid, *grid)


def attention_distance(model: ViT, seen: OpenPass) -> Tensor:
    """How far each head looks, in pixels: (B, L, h), the mean distance between patches, weighted by attention.

    Only attention between patches counts, rescaled to sum to 1 for each.
    """
    distances, prefix = _patch_distances(model), model.config.prefix
    means = []
    for weights in seen.attention:
        among = weights[:, :, prefix:, prefix:]  # (B, h, patches, patches)
        means.append((among * distances).sum(dim=-1).div(among.sum(dim=-1).clamp(min=1e-12)).mean(dim=-1))
    return torch.stack(means, dim=1)


def uniform_distance(model: ViT) -> float:
    """The attention distance, in pixels, of a head that weighs all patches equally."""
    return _patch_distances(model).mean().item()


def depth_similarity(model: ViT, seen: OpenPass) -> Tensor:
    """Cosine similarity between depths (0: the embedding) of the tokens, normed and pooled: (B, L + 1, L + 1).

    They are pooled with the weights of the last depth at all depths.
    """

    def pooled(x: Tensor) -> Tensor:  # (B, N, D) -> (B, R, D)
        return model.norm(seen.pool @ x) if model.config.norm_after_pool else seen.pool @ model.norm(x)

    rows = torch.stack([pooled(x).flatten(1) for x in seen.tokens], dim=1)  # (B, L + 1, R D)
    rows = F.normalize(rows, dim=-1)
    return rows @ rows.transpose(1, 2)


def token_norms(model: ViT, seen: OpenPass) -> dict[str, Tensor]:
    """Norms of the tokens at each depth, by kind: (tokens of all images, L + 1).

    Patch tokens much longer than the others hold no local information; registers take over that role (Darcet et al.
    2024).
    """
    lengths = torch.stack([x.norm(dim=-1) for x in seen.tokens], dim=-1)  # (B, N, L + 1)
    first, prefix = int(model.config.class_token), model.config.prefix
    parts = {"patches": lengths[:, prefix:], "class token": lengths[:, :first], "registers": lengths[:, first:prefix]}
    return {kind: part.flatten(0, 1) for kind, part in parts.items() if part.shape[1]}


def early_answers(model: ViT, seen: OpenPass) -> Tensor:
    """Whether the answer read out at each depth (0: the embedding) is the final one: (B, L + 1), bool."""
    answers = torch.stack([read_out(model, x).argmax(dim=1) for x in seen.tokens], dim=1)
    return answers == answers[:, -1:]


def _spread(lengths: Tensor) -> np.ndarray:
    """Minimum, median and maximum at each depth: (n, L + 1) -> (L + 1, 3)."""
    found = lengths.cpu().double().numpy()  # torch's median is the lower of the two in the middle
    return np.stack([found.min(axis=0), np.median(found, axis=0), found.max(axis=0)], axis=1)


def _patch_distances(model: ViT) -> Tensor:
    """Pixels between the centres of any two patches: (patches, patches)."""
    rows, columns = (
        torch.arange(n) * float(p) for n, p in zip(model.config.grid, model.config.patch_size, strict=True)
    )
    centres = torch.cartesian_prod(rows, columns)
    return torch.cdist(centres, centres).to(next(model.parameters()).device)


def _images(bundle: Bundle, run: Trained, data: ImageSet | Path | str | None, count: int) -> np.ndarray | None:
    """uint8 (n, C, H, W), drawn evenly from one split; None, with a warning that says why, if a run's own are unknown
    or cannot be read."""
    try:
        image_set = own_data(run, fetch=False) if data is None else load(data)
        chosen = decode(image_set.split(image_set.default_split).evenly(count), bundle.preprocess, skip_broken=True)
    except (ValueError, OSError) as error:
        if data is not None:
            raise
        log.warning("%s; without images there are only filters and positions", error)
        return None
    return chosen.images.read(np.arange(len(chosen)), bundle.preprocess)
