"""What the maps between names share: tables of name pairs that are read in both directions, and queries, keys and
values in one tensor or apart.

A map is a pure function of a dict of tensors. A table's row (our name, their name) may hold {i}, the block's number.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from vitreous.messages import shorten
from vitreous.model import ViTConfig
from vitreous.preprocess import Preprocess

Weights = dict[str, Tensor]
Pairs = list[tuple[str, str]]
BOTH = ((".weight", ".weight"), (".bias", ".bias"))  # our and their suffixes of a layer's two tensors

HALF = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


class Description(NamedTuple):
    """What a checkpoint says of itself, beside its tensors."""

    model: ViTConfig
    """Of the file as it is; its number of classes is 1 where the file has no head."""
    preprocess: Preprocess
    class_names: tuple[str, ...] | None
    """None where it does not say."""
    temperature: float = 1.0
    """That its answers are divided by; only ours have one."""


def expand(table: Iterable[tuple[str, str]], depth: int, suffixes: Iterable[tuple[str, str]] = (("", ""),)) -> Pairs:
    """One pair a tensor: every row for each suffix and, where it holds {i}, for each of the `depth` blocks."""
    return [
        (ours.format(i=i) + our_end, theirs.format(i=i) + their_end)
        for ours, theirs in table
        for i in range(depth if "{i}" in ours else 1)
        for our_end, their_end in suffixes
    ]


def to_ours(theirs: Weights, pairs: Pairs) -> Weights:
    """Tensors under our names; those that no pair names are left out."""
    return {ours: theirs[name] for ours, name in pairs if name in theirs}


def to_theirs(ours: Weights, pairs: Pairs, layout: str) -> Weights:
    """Tensors under their names. Raises ValueError for one that the layout has no place for.

    Parts without tensors of their own, such as rotary positions or the GELU's kind, are the caller's to check.
    """
    names = dict(pairs)
    if homeless := sorted(ours.keys() - names.keys()):
        raise ValueError(f"{layout} has no place for {shorten(homeless)}: this model cannot be written in its names")
    return {names[name]: value for name, value in ours.items()}


def merge_qkv(weights: Weights) -> Weights:
    """attention.q, .k and .v become rows of attention.qkv, in this order; incomplete ones stay as they are."""
    merged = dict(weights)
    for name in [name for name in weights if ".attention.q." in name]:
        parts = [name.replace(".attention.q.", f".attention.{part}.") for part in "qkv"]
        found = [weights[part] for part in parts if part in weights]
        if len(found) == 3 and len({value.shape for value in found}) == 1:
            merged[merged_name(name)] = torch.cat(found)
            for part in parts:
                del merged[part]
    return merged


def split_qkv(weights: Weights) -> Weights:
    """The inverse of `merge_qkv`."""
    split = {}
    for name, value in weights.items():
        if ".attention.qkv." in name:
            for part, rows in zip("qkv", value.chunk(3), strict=True):
                split[name.replace(".attention.qkv.", f".attention.{part}.")] = rows
        else:
            split[name] = value
    return split


def merged_name(name: str) -> str:
    """The name in our model of a tensor that `merge_qkv` may have merged."""
    return re.sub(r"\.attention\.[qkv]\.", ".attention.qkv.", name)
