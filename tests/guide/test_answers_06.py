"""Answers to the exercise of chapter 6, residuals and norms."""

import torch
from torch import Tensor

from vitreous.explain import open_pass
from vitreous.model import ViT
from vitreous.model.attention import RMSNorm
from vitreous.weights import Bundle, find_bundle


def additions(model: ViT, images: Tensor) -> list[Tensor]:
    """z0, and what each half of each block adds to it: 1 + 2 L times (B, N, D)."""
    z = model.embed(images)
    parts = [z]
    for block in model.blocks:
        parts.append(block.attention(block.norm1(z), model.rotary))
        z = z + parts[-1]
        parts.append(block.mlp(block.norm2(z)))
        z = z + parts[-1]
    return parts


def test_layernorm_forgets_shift_and_size_and_rmsnorm_the_size_alone():
    x = torch.randn(5, 64, dtype=torch.float64)
    layer, rms = torch.nn.LayerNorm(64, eps=1e-12).double(), RMSNorm(64, eps=1e-12).double()
    assert torch.allclose(layer(x + 7), layer(x)) and torch.allclose(layer(1000 * x), layer(x))
    assert torch.allclose(rms(1000 * x), rms(x))
    assert (rms(x + 7) - rms(x)).abs().max() > 0.5


def test_the_last_state_is_the_sum_of_all_that_was_added():
    bundle = Bundle.load(find_bundle("mnist"))
    images = bundle.preprocess.normalise(torch.rand(2, 1, 28, 28))
    with torch.no_grad():
        parts = additions(bundle.model, images)
        assert len(parts) == 1 + 2 * bundle.model.config.depth
        assert torch.allclose(torch.stack(parts).sum(dim=0), open_pass(bundle.model, images).tokens[-1], atol=1e-4)
