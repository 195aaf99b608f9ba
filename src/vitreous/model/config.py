"""What a Vision Transformer is made of: `ViTConfig`, the one schema of a model."""

import math
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from vitreous.model.sizes import size

# (rows, columns); one number means a square
Pair = Annotated[
    tuple[PositiveInt, PositiveInt],
    BeforeValidator(
        lambda v: (v, v) if isinstance(v, int | str) else v,
        json_schema_input_type=PositiveInt | tuple[PositiveInt, PositiveInt],
    ),
]
Rate = Annotated[float, Field(ge=0, lt=1)]


def _around(value: int, step: int) -> str:
    """The multiples of `step` next to a value that is none."""
    below = value // step * step
    return f"{below} or {below + step}" if below else str(step)


class ViTConfig(BaseModel):
    """Every choice of a model, checked when made: a bad one raises ValueError.

    The defaults are ViT-B/16 of the paper. `ViTConfig(size="S/16", num_classes=3)` starts from a named size.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True, use_attribute_docstrings=True
    )

    if TYPE_CHECKING:  # by the fields' types a checker would refuse size="nano/4" and image_size=32

        def __init__(self, **fields: Any) -> None: ...

    image_size: Pair = (224, 224)
    """Height and width, in pixels; a recipe that does not say takes those of the data."""
    patch_size: Pair = (16, 16)
    """Height and width of a patch, in pixels."""
    channels: PositiveInt = 3
    """Colour channels of an image: 1 gray, 3 RGB; a recipe that does not say takes those of the data."""
    num_classes: Annotated[int, Field(gt=0, le=1 << 24)] = 1000
    """Outputs K of the head; a recipe that does not say takes the classes of the data."""

    dim: PositiveInt = 768
    """Width D of a token."""
    depth: Annotated[int, Field(gt=0, le=1024)] = 12
    """Number of blocks L."""
    heads: PositiveInt = 12
    """Attention heads h of each block; each is D / h wide."""
    mlp_ratio: Annotated[float, Field(gt=0, le=1024)] = 4.0
    """Hidden width of a block's MLP, in multiples of D."""
    mlp_conv: bool = False
    """A depthwise 3 x 3 convolution over the grid of patches, between the MLP's linear maps: it knows neighbours from
    the start, which attention learns from data (Yuan et al. 2021; Li et al. 2021)."""

    patch_embedding: Literal["linear", "conv", "conv_stem"] = "conv"
    """`linear` on flattened patches; `conv`, the same map as a strided convolution; `conv_stem`, overlapping 3 x 3
    convolutions, which learn from few images (Xiao et al. 2021; Hassani et al. 2021)."""
    stem_channels: tuple[PositiveInt, ...] = ()
    """`conv_stem`: channels between its convolutions, the last of which have stride 2, as many as the patch size asks
    for: patch size 4 with (32, 64) is 3x3 /1, 3x3 /2, 3x3 /2."""
    stem_strides: tuple[Literal[1, 2], ...] = ()
    """`conv_stem`: the stride of each of its convolutions, one more than `stem_channels`, where it is not the last ones
    that have stride 2."""
    stem_pool: bool = False
    """`conv_stem`: halve by the mean of 2 x 2 neighbours after a convolution, not by its stride, which computes only
    every second of them and so depends on where things lie (after Zhang 2019)."""
    positions: Literal["learned", "sincos", "sincos_learned", "sincos2d", "rope"] = "learned"
    """`learned`; `sincos`, fixed, over the sequence; `sincos_learned`, started as `sincos` and trained; `sincos2d`,
    fixed, half of the width for rows and half for columns; `rope`, queries and keys rotated by row and column."""
    position_tokens: Literal["class", "patches", "all"] = "class"
    """Which tokens besides the patches have a position: `class`, the class token; `patches`, none; `all`, the registers
    too."""
    pool: Literal["cls", "mean", "attention", "cls_mean"] = "cls"
    """What the head reads: the class token, the mean of the patch tokens, their learned weighted mean (sequence
    pooling, Hassani et al. 2021), or class token and mean side by side, 2 D wide (DINOv2, Oquab et al. 2024)."""
    norm_after_pool: bool = False
    """Apply the final norm to the pooled vector and not to each token; for a mean the two differ."""
    head_hidden: NonNegativeInt = 0
    """Width of the head's hidden tanh layer; 0: a linear head."""
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    """Norm before each branch of a block and after the last block (RMSNorm: Zhang and Sennrich 2019)."""
    norm_eps: PositiveFloat = 1e-6
    """What a norm adds to the variance before the root is taken."""
    qk_norm: bool = False
    """Normalise each head's queries and keys (Dehghani et al. 2023)."""
    layer_scale: PositiveFloat | None = None
    """Start value of a learned factor for each channel of what a branch of a block adds (Touvron et al. 2021)."""
    registers: NonNegativeInt = 0
    """Extra learned tokens that take part in attention and that no head reads (Darcet et al. 2024)."""
    bias: bool = True
    """Biases of the linear maps in the blocks."""
    qkv_bias: bool = True
    """Biases of the maps to queries, keys and values; False leaves only these out."""
    gelu: Literal["exact", "tanh"] = "exact"
    """The MLP's GELU, or its approximation by tanh, which Flax and so the paper's code take for it."""
    zero_init: bool = False
    """Start both output projections of each block at zero, so that the blocks start as the identity; with `pool` cls
    not that of the last block's attention, else the class token would not see the image at first."""

    dropout: Rate = 0.0
    """Dropout after the positions and after every linear map but those to q, k and v (paper, appendix B.1)."""
    drop_path: Rate = 0.0
    """Stochastic depth: share of images that skip a branch of the last block; rises linearly from 0 at the first (of a
    single block: 0)."""

    @model_validator(mode="before")
    @classmethod
    def _expand_size(cls, fields: Any) -> Any:
        if isinstance(fields, dict) and "size" in fields:
            fields = dict(fields)
            return size(str(fields.pop("size"))) | fields
        return fields

    @model_validator(mode="after")
    def _check(self) -> "ViTConfig":
        for side, patch in zip(self.image_size, self.patch_size, strict=True):
            if side % patch:
                raise ValueError(
                    f"image size {side} is not divisible by patch size {patch}: use {_around(side, patch)}"
                )
        dim, heads = self.dim, self.heads
        if dim % heads:
            raise ValueError(f"dim {dim} is not divisible by heads {heads}: use dim {_around(dim, heads)}")
        step = {"rope": 4 * heads, "sincos2d": 4, "sincos": 2, "sincos_learned": 2}.get(self.positions, 1)
        if dim % step:
            near = _around(dim, math.lcm(step, heads))
            raise ValueError(f"{self.positions} positions need dim divisible by {step}, not {dim}: use dim {near}")
        if self.norm_after_pool and self.pool == "cls_mean":
            raise ValueError(
                "norm_after_pool normalises a vector as wide as a token, and pool cls_mean gives two of them: set "
                "norm_after_pool=false, or another pool"
            )
        if self.patch_embedding == "conv_stem":
            self._check_stem()
        else:
            unset = {"stem_channels": "[]", "stem_strides": "[]", "stem_pool": "false"}
            if given := [f"{name}={none}" for name, none in unset.items() if getattr(self, name)]:
                raise ValueError(
                    f"patch_embedding {self.patch_embedding} has no stem of convolutions: set "
                    f"patch_embedding=conv_stem, or {' '.join(given)}"
                )
        if not self.mlp_dim:
            raise ValueError(
                f"mlp_ratio {self.mlp_ratio} leaves no hidden unit at dim {dim}: use at least {1 / dim:.2g}"
            )
        return self

    def _check_stem(self) -> None:
        for patch in self.patch_size:
            if patch & (patch - 1):
                below = 1 << (patch.bit_length() - 1)
                raise ValueError(
                    f"conv_stem needs a patch size that is a power of two, not {patch}: use {below} or {2 * below}"
                )
        count, halvings = len(self.stem_channels) + 1, max(self.patch_size).bit_length() - 1
        if count < halvings:
            raise ValueError(
                f"conv_stem needs {halvings} convolutions of stride 2 for patch size {max(self.patch_size)}, but has "
                f"{count}: give {halvings - 1} or more stem_channels"
            )
        fits = len(self.stem_strides) == count and {math.prod(self.stem_strides)} == set(self.patch_size)
        if self.stem_strides and not fits:
            raise ValueError(
                f"stem_strides {self.stem_strides} do not fit: give one for each of the {count} convolutions, with the "
                f"patch size as their product, here {self.patch_size}, or set stem_strides=[]"
            )

    @property
    def stem_steps(self) -> list[tuple[int, int]]:
        """By how much each convolution of a `conv_stem`, or the pool after it, reduces rows and columns."""
        if self.stem_strides:
            return [(stride, stride) for stride in self.stem_strides]
        left = range(len(self.stem_channels), -1, -1)  # convolutions still to come
        P, Q = (patch.bit_length() - 1 for patch in self.patch_size)
        return [(1 + (n < P), 1 + (n < Q)) for n in left]

    def changed(self, **fields: Any) -> "ViTConfig":
        """The same with other fields, checked. Raises pydantic's ValidationError, a ValueError."""
        return ViTConfig.model_validate(self.model_dump() | fields)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return self.image_size[0] // self.patch_size[0], self.image_size[1] // self.patch_size[1]

    @property
    def class_token(self) -> bool:
        """Whether there is one: where the head reads it."""
        return self.pool in ("cls", "cls_mean")

    @property
    def prefix(self) -> int:
        """Tokens before the patches: class token and registers."""
        return self.class_token + self.registers

    @property
    def placed_prefix(self) -> int:
        """How many of them, from the first, have a position."""
        return {"class": int(self.class_token), "patches": 0, "all": self.prefix}[self.position_tokens]

    @property
    def tokens(self) -> int:
        """Length N of the sequence that the blocks see."""
        return self.prefix + self.grid[0] * self.grid[1]

    @property
    def pooled_dim(self) -> int:
        """Width of the vector that the head reads."""
        return self.dim * (2 if self.pool == "cls_mean" else 1)

    @property
    def head_dim(self) -> int:
        """Width d of an attention head."""
        return self.dim // self.heads

    @property
    def mlp_dim(self) -> int:
        """Hidden width of a block's MLP."""
        return round(self.dim * self.mlp_ratio)
