"""Multi-head self-attention, using whichever implementation is faster on the hardware."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.model.config import ViTConfig
from vitreous.model.linear import HAS_AVX512, Linear
from vitreous.model.positions import rotate


class RMSNorm(nn.RMSNorm):
    """x / rms(x) over the last dimension, times a learned factor, which is rounded to x's dtype.

    On a GPU that makes it one kernel, which sums in float32. Under autocast, torch up to 2.11 would take several for
    operands of two dtypes, and from 2.12 on copy x to float32 first (github.com/pytorch/pytorch/issues/188955).
    """

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight.to(x.dtype)
        if not x.is_cuda:  # a CPU's autocast leaves it alone
            return F.rms_norm(x, self.normalized_shape, weight, self.eps)
        with torch.autocast("cuda", enabled=False):
            return F.rms_norm(x, self.normalized_shape, weight, self.eps)


def make_norm(config: ViTConfig, width: int) -> nn.Module:
    """The configured norm over the last dimension."""
    return (nn.LayerNorm if config.norm == "layernorm" else RMSNorm)(width, eps=config.norm_eps)


def attention_weights(q: Tensor, k: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(d)), equation 6: q, k (B, h, N, d) -> (B, h, N, N), each row summing to 1."""
    scale = q.shape[-1] ** -0.5
    return ((q * scale).contiguous() @ k.contiguous().transpose(-2, -1)).softmax(dim=-1)


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Equations 6-7 for all heads at once, (B, h, N, d) -> (B, h, N, d), fused or as two matrix products."""
    if products_are_faster(q):
        return attention_weights(q, k) @ v.contiguous()
    return F.scaled_dot_product_attention(q, k, v)


def products_are_faster(q: Tensor) -> bool:
    """Whether two matrix products beat `scaled_dot_product_attention` for q (B, h, N, d).

    Milliseconds for forward and backward on two cores with AVX-512 (float32 of an Intel Xeon, bfloat16 of AMD's Zen 5)
    and on two with AVX2 alone, torch 2.13, fused and as products (`benchmarks/forms.py`):

        B, h, N, d         AVX-512: float32         bfloat16     AVX2: float32
        256, 2, 17, 32          4.1     3.6      18.9    2.4        5.2    4.4
        128, 2, 49, 32          6.7     5.9      17.2    2.7        8.2    8.5
        128, 8, 65, 32         39.5    33.5      96.7   16.7       47.5   44.4
        32, 6, 197, 64         60.8    63.6      64.5   21.1       80.8   96.0
        64, 4, 256, 64        115.3   129.5     109.9   38.6      153.7  264.1
        2, 12, 577, 64         58.7    64.9      54.7   22.3       77.5   81.9

    For the forward pass alone fused wins in float32 from 49 tokens on (10.3 against 12.2 ms at 65 tokens with AVX-512,
    12.9 against 17.2 with AVX2), and products in bfloat16 (12.0 and 5.1). Past 1,024 tokens the (N, N) weights take too
    much memory. GPUs have fused kernels for all of these.
    """
    if q.dtype == torch.bfloat16:
        most = 1024
    elif q.requires_grad:
        most = 128 if HAS_AVX512 else 32
    else:
        most = 0
    return q.device.type == "cpu" and q.shape[-2] <= most


class Attention(nn.Module):
    """Multi-head self-attention (equations 5-8): tokens (B, N, D) -> (B, N, D).

    Queries, keys and values come from one linear map, D -> 3 D; the heads' outputs go through another, D -> D.
    """

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.heads = config.heads
        self.qkv = Linear(config.dim, 3 * config.dim, bias=config.bias and config.qkv_bias)
        self.q_norm = make_norm(config, config.head_dim) if config.qk_norm else nn.Identity()
        self.k_norm = make_norm(config, config.head_dim) if config.qk_norm else nn.Identity()
        self.proj = Linear(config.dim, config.dim, bias=config.bias)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor] | None = None, wanted: int | None = None) -> Tensor:
        """wanted: compute the outputs of the first tokens only, which attend to all: -> (B, wanted, D)."""
        q, k, v = self.split(x, rotary)
        heads = attend(q[:, :, :wanted], k, v)  # (B, h, N, d)
        return self.proj(heads.transpose(1, 2).flatten(2))  # (B, N, D)

    def split(self, x: Tensor, rotary: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of each head, each (B, h, N, d)."""
        B, N, D = x.shape
        q, k, v = self.qkv(x).view(B, N, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)
        q, k = self.q_norm(q), self.k_norm(k)
        if rotary is not None:
            q, k = rotate(q, *rotary), rotate(k, *rotary)
        return q.to(v.dtype), k.to(v.dtype), v  # under autocast a norm may return float32
