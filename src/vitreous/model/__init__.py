"""The Vision Transformer. Read `vit.py` first."""

from vitreous.model.config import ViTConfig
from vitreous.model.sizes import SIZES
from vitreous.model.vit import ViT

__all__ = ["SIZES", "ViT", "ViTConfig"]
