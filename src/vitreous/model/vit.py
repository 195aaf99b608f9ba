"""The Vision Transformer: patches -> tokens -> blocks -> pool -> head.

Source: Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words", arXiv 2010.11929; equation numbers refer to it.
B batch, C channels, H W pixels, N tokens, D width, h heads, d head width, K classes, L blocks.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.model.attention import Attention, make_norm
from vitreous.model.config import ViTConfig
from vitreous.model.linear import Linear
from vitreous.model.patches import PATCH_EMBEDDINGS
from vitreous.model.positions import resample_positions, rotary_table, sincos_1d, sincos_2d


class DepthwiseConv(nn.Module):
    """A depthwise 3 x 3 convolution over the grid of patches: (B, N, width) -> (B, N, width).

    Class token and registers pass through unchanged. Initialised to the identity. Source: Yuan et al. 2021 (CeiT),
    arXiv 2103.11816; Li et al. 2021 (LocalViT), arXiv 2104.05707.
    """

    def __init__(self, config: ViTConfig, width: int):
        super().__init__()
        self.prefix, self.grid = config.prefix, config.grid
        self.conv = nn.Conv2d(width, width, 3, padding=1, groups=width, bias=config.bias)
        nn.init.dirac_(self.conv.weight, groups=width)
        if config.bias:
            nn.init.zeros_(self.conv.bias)

    def forward(self, x: Tensor) -> Tensor:
        grid = x[:, self.prefix :].transpose(1, 2).unflatten(2, self.grid)  # (B, width, rows, columns), channels last
        patches = self.conv(grid).flatten(2).transpose(1, 2)
        return torch.cat([x[:, : self.prefix], patches], dim=1) if self.prefix else patches


class MLP(nn.Module):
    """Two linear maps with a GELU between them, each followed by dropout: (B, N, D) -> (B, N, D)."""

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.fc1 = Linear(config.dim, config.mlp_dim, bias=config.bias)
        self.conv = DepthwiseConv(config, config.mlp_dim) if config.mlp_conv else nn.Identity()
        self.act = nn.GELU("none" if config.gelu == "exact" else "tanh")
        self.drop1 = nn.Dropout(config.dropout)
        self.fc2 = Linear(config.mlp_dim, config.dim, bias=config.bias)
        self.drop2 = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop2(self.fc2(self.drop1(self.act(self.conv(self.fc1(x))))))


class DropPath(nn.Module):
    """Stochastic depth (Huang et al. 2016): in training, drop the branch of each image with probability `rate`."""

    def __init__(self, rate: float):
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return x
        keep = torch.rand(x.shape[0], 1, 1, device=x.device) >= self.rate
        return x * (keep / (1 - self.rate)).to(x.dtype)


class LayerScale(nn.Module):
    """A learned factor for each channel (Touvron et al. 2021)."""

    def __init__(self, dim: int, start: float):
        super().__init__()
        self.gamma = nn.Parameter(torch.full((dim,), start))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class Block(nn.Module):
    """Equations 2 and 3: z' = MSA(LN(z)) + z, then z = MLP(LN(z')) + z'. Tokens (B, N, D) -> (B, N, D)."""

    def __init__(self, config: ViTConfig, drop_path: float):
        super().__init__()

        def scale() -> nn.Module:
            return nn.Identity() if config.layer_scale is None else LayerScale(config.dim, config.layer_scale)

        self.norm1 = make_norm(config, config.dim)
        self.attention = Attention(config)
        self.drop = nn.Dropout(config.dropout)
        self.scale1 = scale()
        self.norm2 = make_norm(config, config.dim)
        self.mlp = MLP(config)
        self.scale2 = scale()
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor] | None = None, wanted: int | None = None) -> Tensor:
        """wanted: compute the outputs of the first tokens only, which attend to all: -> (B, wanted, D)."""
        attended = self.attention(self.norm1(x), rotary, wanted)
        x = x[:, :wanted] + self.drop_path(self.scale1(self.drop(attended))).to(x.dtype)
        return x + self.drop_path(self.scale2(self.mlp(self.norm2(x)))).to(x.dtype)


class Pool(nn.Module):
    """Tokens (B, N, D) -> the vector that the head reads, (B, D) or, for `cls_mean`, (B, 2 D)."""

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.kind = config.pool
        self.prefix = config.prefix
        if self.kind == "attention":
            self.score = nn.Linear(config.dim, 1)

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "cls":
            return x[:, 0]
        patches = x[:, self.prefix :]
        if self.kind == "mean":
            return patches.mean(dim=1)
        if self.kind == "cls_mean":
            return torch.cat([x[:, 0], patches.mean(dim=1)], dim=1)
        weights = self.score(patches).softmax(dim=1)  # (B, N, 1)
        return (weights.transpose(1, 2) @ patches.to(weights.dtype)).squeeze(1)


class ViT(nn.Module):
    """A Vision Transformer: images (B, C, H, W), normalised -> logits (B, K).

    The sequence is [class token if the head reads it, registers, patches by row]. Initialised as in the paper's code
    (github.com/google-research/vision_transformer): class token 0, positions normal(0, 0.02), patch embedding LeCun
    normal, block matrices Xavier uniform, head 0, biases 0 (the MLP's are normal(0, 1e-6) there); registers
    normal(0, 0.02). With `zero_init` and `pool` cls the last block's attention does not start at zero: else the class
    token would not depend on its image until other weights had moved or, without a position of its own, ever.
    """

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.config = config
        self.frozen = 0  # blocks, see `freeze`
        self.image_size = config.image_size  # see `set_image_size`
        self.patches = PATCH_EMBEDDINGS[config.patch_embedding](config)
        self.class_token = nn.Parameter(torch.zeros(1, 1, config.dim)) if config.class_token else None
        self.registers = nn.Parameter(torch.zeros(1, config.registers, config.dim)) if config.registers else None
        self._make_positions()
        self.drop = nn.Dropout(config.dropout)
        last = max(config.depth - 1, 1)
        self.blocks = nn.ModuleList(Block(config, config.drop_path * i / last) for i in range(config.depth))
        self.norm = make_norm(config, config.dim)
        self.pool = Pool(config)
        self._init_weights()
        self.reset_head(config.num_classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images))

    def features(self, images: Tensor) -> Tensor:
        """The head's input, (B, pooled_dim).

        Where the head reads the class token alone, the last block computes no other token's output.
        """
        alone = self.config.pool == "cls" and not self.config.mlp_conv  # whose convolution needs the patches
        return self.pooled(self.forward_features(images, 1 if alone else None))

    def forward_features(self, images: Tensor, wanted: int | None = None) -> Tensor:
        """The tokens after the last block and, unless it follows the pool, the final norm: -> (B, N, D).

        wanted: compute only the first tokens of the last block's output: -> (B, wanted, D).
        """
        x = self.embed(images)
        *first, last = self.blocks
        for block in first:
            x = block(x, self.rotary)
        x = last(x, self.rotary, wanted)
        return x if self.config.norm_after_pool else self.norm(x)

    def pooled(self, features: Tensor) -> Tensor:
        """The head's input, pooled from the tokens of `forward_features`: (B, N, D) -> (B, pooled_dim)."""
        x = self.pool(features)
        return self.norm(x) if self.config.norm_after_pool else x

    def embed(self, images: Tensor) -> Tensor:
        """Equation 1: z0 = [x_class; x_1 E; ...; x_N E] + E_pos. (B, C, H, W) -> (B, N, D).

        Under autocast to bfloat16, tokens are bfloat16 from here on; float16 could overflow, so there they are float32.
        """
        self._check_images(images)
        patches = self.patches(images)
        x = patches.to(self.norm.weight.dtype)
        placed = self.config.placed_prefix
        if self.positions is not None:
            grid = self.positions[:, placed:]
            if self.image_size != self.config.image_size:
                grid = resample_positions(grid, self.grid, self.config.grid)
            x = x + grid
        if tokens := [token for token in (self.class_token, self.registers) if token is not None]:
            prefix = torch.cat(tokens, dim=1)  # (1, P, D)
            if self.positions is not None and placed:
                prefix = prefix + F.pad(self.positions[:, :placed], (0, 0, 0, prefix.shape[1] - placed))
            x = torch.cat([prefix.expand(x.shape[0], -1, -1), x], dim=1)
        x = self.drop(x)
        fine = self.config.layer_scale is not None  # what a small factor adds would be rounded away
        return x.to(patches.dtype) if patches.dtype == torch.bfloat16 and not fine else x

    @property
    def rotary(self) -> tuple[Tensor, Tensor] | None:
        """Cosines and sines for the blocks' queries and keys, each (N, d / 2), or None."""
        if self.config.positions != "rope":
            return None
        if self.image_size == self.config.image_size:
            return self.rotary_cos, self.rotary_sin
        return self.resized_rotary

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches at the current image size."""
        (H, W), (P, Q) = self.image_size, self.config.patch_size
        return H // P, W // Q

    def set_image_size(self, image_size: tuple[int, int]) -> None:
        """Accept images of this height and width from now on, with positions resampled; weights do not change.

        Meant for part of training: what is saved is the model at `config.image_size`. Raises ValueError when patches do
        not fit. Source: Howard 2018, "progressive resizing"; Tan and Le 2021, arXiv 2104.00298.
        """
        if image_size == self.image_size:
            return
        self.image_size = self.config.changed(image_size=image_size).image_size
        if self.config.positions == "rope" and image_size != self.config.image_size:
            cos, sin = rotary_table(self.grid, self.config.head_dim, self.config.prefix, old=self.config.grid)
            self.resized_rotary = cos.to(self.rotary_cos), sin.to(self.rotary_sin)
        for module in self.modules():
            if isinstance(module, DepthwiseConv):
                module.grid = self.grid

    def reset_head(self, num_classes: int) -> None:
        """Replace the head with a new one for `num_classes` classes, whose logits are all 0."""
        self.config = config = self.config.changed(num_classes=num_classes)
        like = {"device": self.norm.weight.device, "dtype": self.norm.weight.dtype}
        last = nn.Linear(config.head_hidden or config.pooled_dim, num_classes, **like)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        if config.head_hidden:
            hidden = nn.Linear(config.pooled_dim, config.head_hidden, **like)
            _lecun_normal(hidden)
            self.head = nn.Sequential(hidden, nn.Tanh(), last)
        else:
            self.head = last

    def freeze(self, blocks: int) -> None:
        """Freeze the embedding and the first `blocks` blocks, including their dropout and batch statistics.

        0 freezes nothing, not even the embedding. Parts frozen earlier are unfrozen. Raises ValueError for more blocks
        than there are, or fewer than 0.
        """
        L = len(self.blocks)
        if not 0 <= blocks <= L:
            raise ValueError(f"cannot freeze {blocks} blocks of a model of {L}: use {L if blocks > L else 0}")
        tokens = (self.class_token, self.registers, self.positions)
        embedding = [*(token for token in tokens if isinstance(token, nn.Parameter)), *self.patches.parameters()]
        for count, learns in ((self.frozen, True), (blocks, False)):
            if count:  # with 0 not even the embedding
                for weight in (*embedding, *self.blocks[:count].parameters()):
                    weight.requires_grad_(learns)
        self.frozen = blocks
        self.train(self.training)

    def train(self, mode: bool = True) -> "ViT":
        """Like `nn.Module.train`, but frozen parts stay in evaluation mode."""
        super().train(mode)
        if self.frozen:
            for module in (self.patches, self.drop, *self.blocks[: self.frozen]):
                module.eval()
        return self

    def _make_positions(self) -> None:
        """Set `positions`, a row per token that has one, in token order, (1, <= N, D), or None; or rotary tables."""
        config = self.config
        if config.positions == "rope":
            self.positions = None
            cos, sin = rotary_table(config.grid, config.head_dim, config.prefix)
            self.register_buffer("rotary_cos", cos, persistent=False)
            self.register_buffer("rotary_sin", sin, persistent=False)
            return
        length = config.placed_prefix + math.prod(config.grid)
        if config.positions == "learned":
            table = torch.randn(length, config.dim) * 0.02
        elif config.positions == "sincos2d":
            table = F.pad(sincos_2d(config.grid, config.dim), (0, 0, config.placed_prefix, 0))
        else:
            table = sincos_1d(length, config.dim)
        if config.positions in ("learned", "sincos_learned"):
            self.positions = nn.Parameter(table[None])
        else:
            self.register_buffer("positions", table[None], persistent=False)

    def _init_weights(self) -> None:
        for module in self.patches.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                _lecun_normal(module)
        for block in self.blocks:
            for linear in (block.attention.qkv, block.attention.proj, block.mlp.fc1, block.mlp.fc2):
                D_out = self.config.dim if linear is block.attention.qkv else linear.weight.shape[0]  # q, k, v apart
                bound = math.sqrt(6 / (linear.weight.shape[1] + D_out))
                nn.init.uniform_(linear.weight, -bound, bound)
                if linear.bias is not None:
                    nn.init.zeros_(linear.bias)
            if self.config.zero_init:
                nn.init.zeros_(block.mlp.fc2.weight)
                if self.config.pool != "cls" or block is not self.blocks[-1]:
                    nn.init.zeros_(block.attention.proj.weight)
        if self.registers is not None:
            nn.init.normal_(self.registers, std=0.02)
        if self.config.pool == "attention":
            nn.init.zeros_(self.pool.score.weight)
            nn.init.zeros_(self.pool.score.bias)

    def _check_images(self, images: Tensor) -> None:
        expected = (self.config.channels, *self.image_size)
        if images.ndim != 4 or tuple(images.shape[1:]) != expected:
            raise ValueError(
                f"images of shape {tuple(images.shape)}: this model reads (B, {', '.join(map(str, expected))}): bring "
                "them to that, as `Preprocess` does"
            )


def _lecun_normal(module: nn.Linear | nn.Conv2d) -> None:
    """Normal truncated at two standard deviations, with variance 1 / fan in; bias 0."""
    std = module.weight[0].numel() ** -0.5 / 0.87962566  # std of a unit normal truncated at 2
    nn.init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)
    if module.bias is not None:
        nn.init.zeros_(module.bias)
