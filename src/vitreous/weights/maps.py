"""Shared by the name maps: tables of name pairs that are read in both directions, and merging and splitting q, k, v.

A map is a pure function of a dict of tensors. A table's row (our name, their name) may contain {i}, the block's number.
"""

import math
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

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
    """What a checkpoint says about itself, besides its tensors."""

    model: ViTConfig
    """As in the file; its number of classes is 1 if the file has no head."""
    preprocess: Preprocess
    class_names: tuple[str, ...] | None
    """None if not given."""
    temperature: float = 1.0
    """Divides the logits; only what we wrote has one."""
    other_head: str = ""
    """What its head is for, if not for telling which one of several classes an image is of."""
    calibrated_on: str | None = None
    """The `digest_of` the images that the temperature was fitted on; only what we wrote says it."""


TEMPERATURE_KEY = "calibration_temperature"  # in others' config.json; transformers has a "temperature" of its own


def read_temperature(config: dict[str, Any], key: str = TEMPERATURE_KEY) -> float:
    """The temperature in a config.json, 1 if not given. Raises ValueError."""
    temperature = float(config.get(key, 1.0))
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature {temperature} is not above 0 and finite: give 1 where there is none")
    return temperature


def expand(table: Iterable[tuple[str, str]], depth: int, suffixes: Iterable[tuple[str, str]] = (("", ""),)) -> Pairs:
    """One pair per tensor: every row for each suffix and, if it contains {i}, for each of the `depth` blocks."""
    return [
        (ours.format(i=i) + our_end, theirs.format(i=i) + their_end)
        for ours, theirs in table
        for i in range(depth if "{i}" in ours else 1)
        for our_end, their_end in suffixes
    ]


def to_ours(theirs: Weights, pairs: Pairs) -> Weights:
    """Tensors under our names, q, k and v merged; those in no pair are left out."""
    return merge_qkv({ours: theirs[name] for ours, name in pairs if name in theirs})


def to_theirs(ours: Weights, pairs: Pairs, layout: str) -> Weights:
    """Tensors under their names. Raises ValueError for one that the layout has no place for.

    Parts without tensors of their own, such as rotary positions or the kind of GELU, must be checked by the caller.
    """
    names = dict(pairs)
    if homeless := sorted(ours.keys() - names.keys()):
        raise ValueError(f"{layout} has no place for {shorten(homeless)}: this model cannot be written in its names")
    return {names[name]: value for name, value in ours.items()}


def merge_qkv(weights: Weights) -> Weights:
    """attention.q, .k and .v become rows of attention.qkv, in this order; incomplete sets are left as they are."""
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
