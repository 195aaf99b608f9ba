"""Images as features, the input of a model's head, and their nearest neighbours."""

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.data.divide import groups_if_any
from vitreous.data.images import ImageSet, composed
from vitreous.data.sources import load
from vitreous.evaluation import batches_of, record_of
from vitreous.files import path_of, replace_file
from vitreous.prediction import Asked, forward, precision_for, read_image, split_logits
from vitreous.recipe import DataOptions
from vitreous.weights import Bundle
from vitreous.weights.bundle import Trained
from vitreous.weights.load import load_weights

MADE_BY = "vitreous embed"  # marks its files
TEMPERATURE = 0.07  # a neighbour's vote counts exp(similarity / TEMPERATURE), as in Wu et al. 2018, arXiv 1805.01978
PAIRS = 1 << 26  # of images compared at a time: 256 MiB of similarities


class Features(NamedTuple):
    """The features of a split, in its order."""

    features: Tensor
    """(N, D) float32."""
    labels: Tensor
    """(N,) int64."""
    class_names: tuple[str, ...]
    images: list[str]
    """The location of each image: its path, or its row."""
    groups: np.ndarray | None = None
    """(N,), what `data.group` finds for each image; None if it finds nothing."""


def load_features(source: os.PathLike[str] | str, arch: str | None = None, revision: str | None = None) -> Bundle:
    """Load a model for its features, not its head, from any source that `load_weights` reads."""
    return load_weights(source, arch=arch, revision=revision, num_classes=1)[0]


def embed_split(
    run: Trained,
    data: ImageSet | Path | str,
    split: str = "train",
    *,
    device: str = "auto",
    precision: str = "auto",
    options: DataOptions | None = None,
    skip_broken: bool = False,
) -> Features:
    """Features of a split, preprocessed as in training and prediction.

    run, device and precision: as for `predict`. options: as for `judge`, by default the run's own. Raises ValueError
    for a split that there is not.
    """
    bundle, options = Bundle.of(run), options or record_of(run)[1]
    where = bundle.to(device)
    data = load(data, skip_broken=skip_broken)
    options = options.model_copy(update={"skip_broken": data.skip_broken})
    batches = batches_of(data.split(split), bundle, where, options)
    features = split_logits(
        bundle.model, batches, bundle.preprocess, precision_for(run, precision, where), features=True
    )
    names = [batches.images.describe(row) for row in range(len(batches))]
    return Features(features, batches.labels, data.class_names, names, groups_if_any(batches.images, options.group))


def embed_image(run: Trained, image: Asked, device: str = "auto", precision: str = "auto") -> Tensor:
    """Features (D,) of one image; the rest as for `predict`. Raises BrokenImage, a ValueError."""
    bundle = Bundle.of(run)
    where = bundle.to(device)
    pixels = torch.from_numpy(read_image(image, bundle.preprocess))[None].to(where)
    precision = precision_for(run, precision, where)
    features = forward(bundle.model, pixels, bundle.preprocess, precision, features=True)[0]
    return features.cpu().clone()  # outside of inference mode, so that a head can learn from it


def voters(own: Features, among: Features | None = None, k: int = 5) -> int:
    """How many neighbours vote where `knn_accuracy` is asked for k. Raises ValueError if there are none."""
    most = len(own.labels) - 1 if among is None else len(among.labels)
    if k < 1:
        raise ValueError(f"k is {k}: at least one neighbour votes, give 1 or more")
    if most < 1:
        raise ValueError("one image has no neighbours: give more")
    return min(k, most)


def knn_accuracy(own: Features, among: Features | None = None, k: int = 5) -> float:
    """Accuracy of a k-nearest-neighbour classifier by cosine similarity.

    among: where neighbours are looked for; None: among the images themselves, leaving each one out. Classes of the two
    are the same by their names. Images of one group are not neighbours of each other: a patient's other images would
    give the answer away. An image without neighbours counts as wrong.
    """
    others = own if among is None else among
    names = [composed(features.class_names) for features in (own, others)]
    number = {name: k for k, name in enumerate(dict.fromkeys(names[0] + names[1]))}  # as each numbers its own from 0
    labels = torch.tensor([number[name] for name in names[0]])[own.labels]
    their_labels = torch.tensor([number[name] for name in names[1]])[others.labels]
    k = voters(own, among, k)
    grouped = own.groups is not None and others.groups is not None
    if grouped:  # by numbers, as comparing texts takes many times as long
        _, numbers = np.unique(np.concatenate([own.groups, others.groups]), return_inverse=True)
        groups, near_groups = torch.from_numpy(numbers).split([len(own.groups), len(others.groups)])
    keys, hits = F.normalize(others.features, dim=1), 0
    part = max(PAIRS // len(keys), 1)
    for start in range(0, len(own.labels), part):
        queries = F.normalize(own.features[start : start + part], dim=1)
        similarity = queries @ keys.T  # (n, N)
        if among is None:
            similarity[torch.arange(len(queries)), torch.arange(start, start + len(queries))] = -torch.inf
        if grouped:
            similarity[groups[start : start + part, None] == near_groups] = -torch.inf
        near, rows = similarity.topk(k, dim=1)
        votes = torch.zeros(len(queries), len(number), dtype=torch.float64)
        votes.scatter_add_(1, their_labels[rows], ((near - 1) / TEMPERATURE).double().exp())
        most, answers = votes.max(dim=1)
        hits += ((answers == labels[start : start + part]) & (most > 0)).sum().item()
    return hits / len(own.labels)


def find_nearest(query: Tensor, among: Features, k: int = 5) -> list[tuple[int, float]]:
    """Rows of the images with features most similar to `query` (D,), and their cosine similarities, nearest first."""
    similarity = F.cosine_similarity(query[None], among.features)
    values, rows = similarity.topk(min(k, len(similarity)))
    return list(zip(rows.tolist(), values.tolist(), strict=True))


def write_parquet(features: Features, path: Path | str) -> None:
    """One row per image: row, image (its location), label, class, feature (a list of D float32)."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    N, D = features.features.shape
    flat = pa.array(features.features.reshape(-1).numpy())
    table = pa.table(
        {
            "row": pa.array(range(N), pa.int64()),
            "image": pa.array(features.images, pa.string()),
            "label": pa.array(features.labels.numpy()),
            "class": pa.array([features.class_names[label] for label in features.labels.tolist()], pa.string()),
            "feature": pa.FixedSizeListArray.from_arrays(flat, D),
        },
        metadata={"made_by": MADE_BY},
    )
    replace_file(path_of(path), lambda part: pq.write_table(table, part))
