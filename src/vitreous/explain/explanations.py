"""Explain the answers of a trained model, image by image: `vitreous explain`."""

import itertools
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitreous.data.images import Split
from vitreous.data.stores import BrokenImage, as_text
from vitreous.explain.attention import open_pass
from vitreous.explain.faithfulness import Curves, faithfulness, random_order
from vitreous.explain.methods import (
    CLASSLESS,
    DEFAULT,
    Method,
    check_choice,
    explanation_maps,
    integrated_gradients,
    patch_map,
    propagate,
    rollout,
    scores_of,
    to_share,
)
from vitreous.files import EXPLANATION, check_free, path_of, read_json, write_json
from vitreous.messages import did_you_mean, shorten
from vitreous.model import ViTConfig
from vitreous.prediction import Asked, check_asked, evaluating, read_batches
from vitreous.weights import Bundle
from vitreous.weights.bundle import Trained

TOP = 5
MARK = f'"{EXPLANATION}"'
READERS = {  # whose attention is shown: what the answer is read from
    "cls": "the class token",
    "mean": "all patches, their mean",
    "attention": "the patches, weighted as the pooling weighs them",
    "cls_mean": "class token and mean of the patches, half each",
}
LONGEST = 200  # bytes of a file name, which may have 255
BUDGET = 1 << 28  # numbers that one batch may keep, attention weights and what gradients need: 1 GiB in float32


@dataclass(frozen=True, eq=False)
class Explanation:
    """One image's prediction and what it rests on. Maps are (rows, columns) of patches, >= 0, and sum to 1 or are 0."""

    image: str
    pixels: np.ndarray
    """uint8 (C, H, W), as the model saw them."""
    classes: tuple[str, ...]
    """The likeliest classes, in descending order."""
    probabilities: tuple[float, ...]
    target: str
    """The class being explained."""
    against: str | None
    """The class it is contrasted with, if requested."""
    target_probability: float
    against_probability: float | None
    empty_probability: float
    """The target's probability for an image of the mean colour and nothing else, from which the default method starts
    and at which deletion ends."""
    logit: float
    """The target's, less that of `against`."""
    empty_logit: float
    """The same for the empty image."""
    attributed: float | None
    """What the default method's patches add up to, those that speak against the target, too: but for its error, the
    rise from `empty_logit` to `logit`. None for other methods."""
    method: Method
    layer: int
    """The block shown in `attention`, counted from 1."""
    head: int | None
    map: np.ndarray
    """(rows, columns), by `method`."""
    rollout: np.ndarray
    """(rows, columns)."""
    patch: tuple[int, int] | None
    """The row and column, from 1, of the patch whose attention is shown, if requested."""
    reader: str
    """What the answer is read from, in words: whose attention is shown if `patch` is None."""
    attention: np.ndarray
    """(h, rows, columns): what `reader`, or `patch`, attends to in block `layer`, head by head."""
    attention_elsewhere: np.ndarray
    """(h,): the share of this attention that goes to class token and registers, and is left out of the maps."""
    curves: Curves | None
    """Deletion and insertion of this image, B = 1, if requested: of the target's probability, or, if contrasted, of its
    share in the probability of the two classes."""
    random_curves: Curves | None
    """The same for random patch orders, averaged over several."""

    @property
    def error(self) -> float | None:
        """How far `attributed` is from the rise of the logit, as a share of that rise."""
        rise = self.logit - self.empty_logit
        return None if self.attributed is None else abs(self.attributed - rise) / max(abs(rise), 1e-12)

    def to_json(self) -> dict[str, Any]:
        """The content of the JSON file next to the figure."""
        said = "image classes probabilities target target_probability against against_probability empty_probability "
        said += "logit empty_logit attributed method layer head patch reader"
        content = {key: getattr(self, key) for key in said.split()}
        maps = ("map", "rollout", "attention", "attention_elsewhere")
        content |= {key: getattr(self, key).astype(float).round(6).tolist() for key in maps}
        if self.curves is not None:
            content["areas"] = {
                name: {"deletion": curves.deletion_area.mean().item(), "insertion": curves.insertion_area.mean().item()}
                for name, curves in ((self.method, self.curves), ("random", self.random_curves))
            }
        return content

    def save(self, stem: Path | str, sha256: str | None = None, question: str = "") -> None:
        """Write a figure and a JSON file: `stem`.png and `stem`.json. sha256: of the model. question: in words. The
        JSON file has both, by which `stems` knows it again. Raises ValueError for other files of these names."""
        from vitreous.plots import explanation as draw

        stem, curves = path_of(stem), None
        picture, record = (stem.with_name(stem.name + suffix) for suffix in (".png", ".json"))
        check_free((picture, record), record, MARK)
        if self.curves is not None:
            pairs = {"deletion": (self.curves.deletion, self.random_curves.deletion)}
            pairs["insertion"] = (self.curves.insertion, self.random_curves.insertion)
            shares = self.curves.shares
            curves = {kind: [x.flatten().numpy() for x in (shares, *pair)] for kind, pair in pairs.items()}
        heads = dict(enumerate(zip(self.attention, self.attention_elsewhere, strict=True), start=1))
        bars = list(zip(self.classes, self.probabilities, strict=True))  # imported classes may share a name
        for name, probability in ((self.target, self.target_probability), (self.against, self.against_probability)):
            if name is not None and name not in self.classes:
                bars.append((name, probability))
        content = self.to_json() | ({} if sha256 is None else {"sha256": sha256, "question": question})
        write_json(record, content)  # first: it marks the picture as ours
        whose = "" if self.patch is None else f", of patch {self.patch[0]},{self.patch[1]}"
        method = self.method.replace("_", " ")
        if self.method in ("attention", "grad_cam"):
            method += f", block {self.layer}"
        if self.method == "attention":
            method += ("" if self.head is None else f", head {self.head}") + whose
        if self.method == "rollout":
            on_patches = np.maximum(1 - self.attention_elsewhere, 1e-12)  # as each head's map is scaled to sum to 1
            mean = np.average(self.attention, axis=0, weights=on_patches)
            other = {f"attention, block {self.layer}, mean of heads{whose}": mean}
        else:
            other = {"attention rollout, for any class": self.rollout}
        draw(
            self.pixels / 255,
            patch_size=tuple(
                side // patches for side, patches in zip(self.pixels.shape[1:], self.map.shape, strict=True)
            ),
            bars=bars,
            target=self.target,
            against=self.against,
            empty=self.empty_probability,
            of_class=self.method not in CLASSLESS,
            maps={method: self.map, **other},
            heads=heads if self.head is None else {self.head: heads[self.head]},
            layer=self.layer,
            patch=self.patch,
            reader=self.reader,
            curves=curves,
            path=picture,
        )

    def _repr_png_(self) -> bytes:
        """The figure, by which a notebook shows an explanation."""
        with TemporaryDirectory() as folder:
            self.save(Path(folder, "shown"))
            return Path(folder, "shown.png").read_bytes()


def explain(
    run: Trained,
    images: Iterable[Asked] | Asked | Split,
    *,
    method: Method = DEFAULT,
    target: str | None = None,
    against: str | None = None,
    layer: int | None = None,
    head: int | None = None,
    patch: tuple[int, int] | None = None,
    curves: bool = False,
    device: str = "auto",
    broken: list[BrokenImage] | None = None,
) -> Iterator[Explanation]:
    """Explain each image, in order and in float32, in batches limited to 1 GiB of attention weights and activations.

    run, images and broken: as for `predict`. target: the name of the class to explain (default: the likeliest of each
    image, other than `against`). against: the name of a class to contrast the target with. layer and head, counted from
    1: as for `explanation_maps`; layer also selects the block whose attention is shown. patch: row and column, from 1,
    of the patch whose attention is shown, in place of what is read for the answer. curves: measure deletion and
    insertion. Raises ValueError for an unknown method, class, layer, head or patch.
    """
    check_asked(images)
    bundle = Bundle.of(run)
    where, (rows, columns) = bundle.to(device), bundle.model.grid
    check_choice(bundle.model, method, layer, head, against is not None)
    if patch is not None and not (1 <= patch[0] <= rows and 1 <= patch[1] <= columns):
        raise ValueError(
            f"patch {patch[0]},{patch[1]} is not there: give a row of 1 to {rows}, a column of 1 to {columns}"
        )
    chosen, other = (None if name is None else class_index(name, bundle.class_names) for name in (target, against))
    if other is not None and (chosen == other or len(bundle.class_names) == 1):
        raise ValueError(f"'{against}' cannot be explained against itself: name another class")

    @torch.inference_mode(False)  # a service may call in inference mode, in which nothing has gradients
    def answers() -> Iterator[Explanation]:
        model, config = bundle.model, bundle.model.config
        shown = layer or config.depth
        with torch.no_grad(), evaluating(model):
            nothing = model(torch.zeros(1, *bundle.preprocess.shape, dtype=torch.float32, device=where))  # (1, K)
        empty = (nothing / bundle.temperature).softmax(dim=1)[0]  # (K,)
        for names, pixels in read_batches(images, bundle.preprocess, broken, explained_at_once(config)):
            x = bundle.preprocess.normalise(torch.from_numpy(pixels).to(where))
            with torch.no_grad():
                seen = open_pass(model, x)
            row = seen.pool.mean(dim=1)  # (B, N)
            probabilities = (seen.logits / bundle.temperature).softmax(dim=1)
            shares, classes = probabilities.sort(dim=1, descending=True, stable=True)
            targets = classes[:, 0] if chosen is None else torch.full_like(classes[:, 0], chosen)
            others = None if other is None else torch.full_like(targets, other)
            if chosen is None and others is not None:
                targets = torch.where(targets == others, classes[:, 1], targets)
            from_here = row
            if patch is not None:
                from_here = torch.zeros_like(row)
                from_here[:, config.prefix + (patch[0] - 1) * columns + patch[1] - 1] = 1
            heads = propagate(from_here[:, None], seen.attention[shown - 1])  # (B, h, N)
            elsewhere = heads[..., : config.prefix].sum(dim=-1).cpu().numpy()  # (B, h)
            flow = rollout(seen.attention, row)
            scores = scores_of(seen.logits, targets, others)  # (B,)
            scores_of_nothing = scores_of(nothing.expand_as(seen.logits), targets, others)
            del seen  # its attention weights make room for those of another pass
            attributed = None
            if method == "attention":
                maps = patch_map(heads.mean(dim=1) if head is None else heads[:, head - 1], model)
            elif method == "integrated_gradients":
                signed = integrated_gradients(model, x, targets, against=others)
                maps, attributed = to_share(signed.clamp(min=0)), signed.sum(dim=(1, 2))
            elif method == "rollout":
                maps = patch_map(flow, model)
            else:
                maps = explanation_maps(model, x, method, targets, layer, against=others)

            shown_maps = patch_map(heads, model), patch_map(flow, model), maps
            heads, flow, host_maps = (each.cpu().numpy() for each in shown_maps)
            measured = random = None
            if curves:
                measured = faithfulness(model, x, maps, targets, bundle.temperature, others)
                random = random_order(model, x, targets, bundle.temperature, others)
            for i, name in enumerate(names):
                yield Explanation(
                    image=name,
                    pixels=pixels[i],
                    classes=tuple(bundle.class_names[k] for k in classes[i, :TOP].tolist()),
                    probabilities=tuple(shares[i, :TOP].tolist()),
                    target=bundle.class_names[int(targets[i])],
                    against=None if other is None else bundle.class_names[other],
                    target_probability=probabilities[i, targets[i]].item(),
                    against_probability=None if other is None else probabilities[i, other].item(),
                    empty_probability=empty[targets[i]].item(),
                    logit=scores[i].item(),
                    empty_logit=scores_of_nothing[i].item(),
                    attributed=None if attributed is None else attributed[i].item(),
                    method=method,
                    layer=shown,
                    head=head,
                    patch=patch,
                    reader=READERS[config.pool],
                    map=host_maps[i],
                    rollout=flow[i],
                    attention=heads[i],
                    attention_elsewhere=elsewhere[i],
                    curves=measured.of(i) if measured else None,
                    random_curves=random.of(i) if random else None,
                )

    return answers()


def evidence(
    bundle: Bundle, pixels: Tensor, target: Tensor, method: Method = DEFAULT, against: Tensor | None = None
) -> Tensor:
    """How much each patch supports a class, for galleries: (B, rows, columns).

    pixels: uint8 (B, C, H, W), on the model's device, at the model's size. target, against: (B,), as for
    `explanation_maps`. The default method takes `methods.STEPS` forward and backward passes per image.
    """
    maps = []
    for rows in torch.arange(len(pixels), device=pixels.device).split(explained_at_once(bundle.model.config)):
        images, other = bundle.preprocess.normalise(pixels[rows]), None if against is None else against[rows]
        maps.append(explanation_maps(bundle.model, images, method, target[rows], against=other))
    return torch.cat(maps)


def explained_at_once(config: ViTConfig) -> int:
    """A batch size that bounds memory for any model: 7 for ViT-B/16, 64 for small models.

    Of each token a block keeps its attention weights and, for gradients, about 16 D activations.
    """
    kept = config.depth * config.tokens * (config.heads * config.tokens + 16 * config.dim)  # of one image
    return max(1, min(64, BUDGET // kept))


def class_index(name: str, class_names: Sequence[str]) -> int:
    """The index of a class, by name, or by one of its words: "pizza" for "pizza, pizza pie" if no other has that.

    Raises ValueError for an unknown or ambiguous name, TypeError for a number.
    """
    if not isinstance(name, str):
        raise TypeError(f"a class is named, not numbered: give one of {shorten(class_names, 10)}, not {name!r}")
    if (times := class_names.count(name)) > 1:
        raise ValueError(f"the model has {times} classes named '{name}', which a name cannot tell apart")
    if name in class_names:
        return class_names.index(name)
    having = [k for k, words in enumerate(class_names) if name in words.split(", ")]
    if len(having) == 1:
        return having[0]
    hint = did_you_mean(name, class_names)
    raise ValueError(f"unknown class '{name}': {hint}the model knows {shorten(class_names, 10)}")


def stems(names: Sequence[str], folder: Path, question: str = "", sha256: str = "") -> list[Path]:
    """A file name without suffix for each image; images with the same name are numbered: 1, 1-2, 1-3.

    question: such as `-against-dog`; it follows the image's name, with a dash for what a file name should not have.
    sha256: of the model. A file with the explanation of another image, by another model, or to another question, keeps
    its name. Raises ValueError where a picture or JSON file of that name exists and is not an explanation.
    """
    given: set[str] = set()
    result = []
    ending = re.sub(r"[^\w.-]+", "-", question)
    for name in names:
        plain = (Path(name).stem or "image").replace(":", "-") + ending
        if len(os.fsencode(plain)) > LONGEST:
            plain = os.fsencode(plain)[:LONGEST].decode(errors="ignore")
        own = {"image": as_text(name), "sha256": sha256, "question": question}
        for number in itertools.count(1):
            stem = plain if number == 1 else f"{plain}-{number}"
            figures = folder / f"{stem}.json"
            if stem.casefold() not in given and not _is_other(figures, own):  # some systems know no case
                break
        given.add(stem.casefold())
        check_free((folder / f"{stem}.png", figures), figures, MARK)
        result.append(folder / stem)
    return result


def _is_other(file: Path, own: dict[str, str]) -> bool:
    """Whether a file is an explanation that differs from `own` in what that names."""
    try:
        told = read_json(file)
    except (OSError, ValueError):
        return False
    ours = isinstance(told, dict) and EXPLANATION in told
    return ours and any(told.get(key, "") != value for key, value in own.items())
