"""Our own weights: a bundle's names are those of our model."""

from collections.abc import Collection

import torch

from vitreous.model import ViT, ViTConfig
from vitreous.weights.maps import Pairs

NAME, HEAD = "Vitreous", "head.weight"
MARKS = ("patches.",)


def pairs(config: ViTConfig, names: Collection[str] = ()) -> Pairs:
    """Each tensor name of a model of this config, paired with itself."""
    with torch.device("meta"):
        return [(name, name) for name in ViT(config).state_dict()]
