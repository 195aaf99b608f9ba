"""A forward pass that keeps its intermediate results: attention weights, tokens and pooling, with their gradients."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.model.attention import attention_weights
from vitreous.model.vit import Pool, ViT
from vitreous.prediction import evaluating


class OpenPass(NamedTuple):
    """What `open_pass` returns. Sequence N: class token if the head reads it, registers, patches by row."""

    tokens: list[Tensor]
    """The input of each block and the output of the last: L + 1 times (B, N, D)."""
    attention: list[Tensor]
    """Attention weights of each block, L times (B, h, N, N), each row summing to 1."""
    pool: Tensor
    """The pooling weights over tokens, (B, R, N): R rows side by side, each summing to 1."""
    logits: Tensor
    """(B, K)."""


def open_pass(model: ViT, images: Tensor) -> OpenPass:
    """Run normalised images (B, C, H, W) through the model, keeping all intermediate results in the graph.

    Attention and pooling are computed as explicit products, equal to the fused ones up to rounding. Unless under
    `torch.no_grad`, gradients of the logits can be taken with respect to every tensor returned, even where the
    parameters are frozen.
    """
    with evaluating(model):
        x = model.embed(images.detach().requires_grad_(torch.is_grad_enabled()))
        tokens, attention = [x], []
        for block in model.blocks:
            q, k, v = block.attention.split(block.norm1(x), model.rotary)  # each (B, h, N, d)
            attention.append(attention_weights(q, k))
            x = x + block.scale1(block.attention.proj((attention[-1] @ v).transpose(1, 2).flatten(2)))
            x = x + block.scale2(block.mlp(block.norm2(x)))
            tokens.append(x)
        features = x if model.config.norm_after_pool else model.norm(x)
        pool = pool_weights(model.pool, features)
        if torch.is_grad_enabled() and not pool.requires_grad:
            pool.requires_grad_()
        y = (pool @ features).flatten(1)  # (B, R D)
        logits = model.head(model.norm(y) if model.config.norm_after_pool else y)
    return OpenPass(tokens, attention, pool, logits)


def pool_weights(pool: Pool, x: Tensor) -> Tensor:
    """The weights of a `Pool` for tokens x (B, N, D): (B, R, N), so that pool(x) is their product with x.

    The class token alone, all patches equally, both of these side by side (R = 2), or the patches weighted by the
    learned score.
    """
    B, N, _ = x.shape
    if pool.kind == "attention":
        weights = pool.score(x[:, pool.prefix :]).softmax(dim=1).transpose(1, 2)  # (B, 1, patches)
        return F.pad(weights, (pool.prefix, 0))
    token, mean = x.new_zeros(2, B, 1, N)
    token[..., 0] = 1
    mean[..., pool.prefix :] = 1 / (N - pool.prefix)
    return {"cls": token, "mean": mean, "cls_mean": torch.cat([token, mean], dim=1)}[pool.kind]


def read_out(model: ViT, x: Tensor) -> Tensor:
    """Apply final norm, pooling and head to the tokens of any depth: (B, N, D) -> logits (B, K).

    For the tokens after the last block these are the model's logits; for earlier ones, the "logit lens" (nostalgebraist
    2020): what the model could already answer there.
    """
    return model.head(model.pooled(x if model.config.norm_after_pool else model.norm(x)))
