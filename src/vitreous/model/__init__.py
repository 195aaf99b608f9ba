"""The Vision Transformer. Read `vit.py` first."""

from vitreous.model.config import ViTConfig
from vitreous.model.sizes import SIZES
from vitreous.model.vit import Trace, ViT

__all__ = ["SIZES", "Trace", "ViT", "ViTConfig"]
