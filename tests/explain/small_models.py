"""Models whose parameters are all random, so that no zero hides a mistake, of every kind of token and pooling."""

import torch
from torch import nn

from vitreous.model import ViT, ViTConfig

VARIANTS = {
    "class token": {},
    "registers": {"registers": 2, "positions": "rope", "qk_norm": True},
    "mean": {"pool": "mean", "positions": "sincos2d", "norm": "rmsnorm", "registers": 1},
    "attention": {"pool": "attention", "patch_embedding": "conv_stem", "stem_channels": (4,), "layer_scale": 0.5},
    "token and mean": {"pool": "cls_mean", "registers": 2, "position_tokens": "all", "gelu": "tanh"},
    "convolution in the MLP": {"registers": 1, "mlp_conv": True},
    "norm after pool": {"pool": "mean", "norm_after_pool": True, "position_tokens": "patches", "qkv_bias": False},
    "hidden head": {"head_hidden": 6, "patch_embedding": "linear", "positions": "sincos", "patch_size": (2, 6)},
}


def small(**changes) -> ViT:
    """A model of 8 x 12 pixels, a grid that is no square, with random parameters of a seed."""
    torch.manual_seed(0)
    fields = {"image_size": (8, 12), "patch_size": 4, "dim": 16, "depth": 3, "heads": 2, "num_classes": 5}
    model = ViT(ViTConfig(**fields | changes))
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    return model.eval()
