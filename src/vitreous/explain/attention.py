"""A forward pass that keeps its intermediate results: attention weights, tokens and pooling, with their gradients."""

from contextlib import ExitStack
from threading import get_ident
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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

    Attention and pooling are computed as explicit products, equal to the fused ones up to rounding; plain forward
    passes, in other threads too, are not affected. Under `torch.no_grad` this is `ViT.trace` plus the pooling weights;
    otherwise gradients of the logits can be taken with respect to every tensor returned, even where the parameters are
    frozen.
    """
    tokens: list[Tensor] = []
    attention: list[Tensor] = []
    pool: list[Tensor] = []
    own = get_ident()

    def attend(module: nn.Module, arguments: tuple, _: Tensor) -> Tensor | None:
        if get_ident() != own:
            return None
        x, rotary, _ = arguments
        q, k, v = module.split(x, rotary)  # each (B, h, N, d)
        attention.append(attention_weights(q, k))
        return module.proj((attention[-1] @ v).transpose(1, 2).flatten(2))

    def read(module: Pool, arguments: tuple, _: Tensor) -> Tensor | None:
        if get_ident() != own:
            return None
        pool.append(pool_weights(module, *arguments))
        if torch.is_grad_enabled() and not pool[-1].requires_grad:
            pool[-1].requires_grad_()
        return (pool[-1] @ arguments[0]).flatten(1)  # (B, R D)

    def enter(module: nn.Module, arguments: tuple) -> None:
        if get_ident() == own:
            tokens.append(arguments[0])

    def leave(module: nn.Module, arguments: tuple, output: Tensor) -> None:
        if get_ident() == own:
            tokens.append(output)

    with evaluating(model), ExitStack() as hooks:
        hooks.enter_context(model.blocks[0].register_forward_pre_hook(enter))
        hooks.enter_context(model.pool.register_forward_hook(read))
        for block in model.blocks:
            hooks.enter_context(block.attention.register_forward_hook(attend))
            hooks.enter_context(block.register_forward_hook(leave))
        logits = model(images.detach().requires_grad_(torch.is_grad_enabled()), whole=True)
    return OpenPass(tokens, attention, pool[0], logits)


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
