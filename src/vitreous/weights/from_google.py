"""The original .npz checkpoints of the paper's authors and of "How to train your ViT", with `pre_logits` and without.

Names and layout are those of github.com/google-research/vision_transformer (models_vit.py): kernels are (inputs,
outputs), those of attention (D, h, d) and (h, d, D), that of the patches (P, P, C, D). The shapes tell everything but
three things, which are the same in all of these files: LayerNorm's epsilon is 1e-6 and GELU is the tanh approximation,
both Flax's defaults, and images are resized bilinearly to a square and scaled to -1..1 (input_pipeline.py). There
they are resized without antialiasing, here with it, so that answers on large photographs may differ.
"""

import math
from collections.abc import Collection

from torch import Tensor

from vitreous.model import ViTConfig
from vitreous.preprocess import Preprocess
from vitreous.weights.maps import HALF, Description, Pairs, Weights, expand

NAME, HEAD = "Google", "head/kernel"
MARKS = ("embedding/kernel", "Transformer/encoderblock_")

BLOCK = "Transformer/encoderblock_{i}/"
ATTENTION = BLOCK + "MultiHeadDotProductAttention_1/"
TENSORS = [("class_token", "cls"), ("positions", "Transformer/posembed_input/pos_embedding")]
LAYERS = [
    ("patches.proj", "embedding"),
    ("blocks.{i}.attention.q", ATTENTION + "query"),
    ("blocks.{i}.attention.k", ATTENTION + "key"),
    ("blocks.{i}.attention.v", ATTENTION + "value"),
    ("blocks.{i}.attention.proj", ATTENTION + "out"),
    ("blocks.{i}.mlp.fc1", BLOCK + "MlpBlock_3/Dense_0"),
    ("blocks.{i}.mlp.fc2", BLOCK + "MlpBlock_3/Dense_1"),
]
NORMS = [
    ("blocks.{i}.norm1", BLOCK + "LayerNorm_0"),
    ("blocks.{i}.norm2", BLOCK + "LayerNorm_2"),
    ("norm", "Transformer/encoder_norm"),
]


def pairs(config: ViTConfig, names: Collection[str] = ()) -> Pairs:
    """(our name, Google's name) of every tensor, with our q, k and v separate."""
    head = [("head.0", "pre_logits"), ("head.2", "head")] if config.head_hidden else [("head", "head")]
    layers = expand(LAYERS + head, config.depth, ((".weight", "/kernel"), (".bias", "/bias")))
    norms = expand(NORMS, config.depth, ((".weight", "/scale"), (".bias", "/bias")))
    return expand(TENSORS, config.depth) + layers + norms


def to_torch(name: str, value: Tensor) -> Tensor:
    """A kernel as (outputs, inputs), a bias as a vector. A kernel of unexpected rank is left as it is."""
    layer, _, kind = name.rpartition("/")
    if kind == "bias" and layer.endswith(("/query", "/key", "/value")):
        return value.flatten()  # (h, d)
    if kind != "kernel":
        return value
    if layer == "embedding":
        return value.permute(3, 2, 0, 1).contiguous() if value.ndim == 4 else value
    if layer.endswith(("/query", "/key", "/value")) and value.ndim == 3:
        value = value.flatten(1)  # (D, h, d)
    elif layer.endswith("/out") and value.ndim == 3:
        value = value.flatten(0, 1)  # (h, d, D)
    return value.T.contiguous() if value.ndim == 2 else value


def from_weights(weights: Weights) -> Description:
    """Derive the description from the shapes. Raises ValueError if a tensor it needs is missing or of another rank."""

    def shape(name: str, rank: int) -> tuple[int, ...]:
        if name not in weights or weights[name].ndim != rank:
            found = tuple(weights[name].shape) if name in weights else "missing"
            raise ValueError(f"'{name}' is {found}: Google's layout has it with {rank} dimensions")
        return tuple(weights[name].shape)

    *patch, channels, dim = shape("embedding/kernel", 4)
    heads = shape(ATTENTION.format(i=0) + "query/kernel", 3)[1]
    hidden = shape(BLOCK.format(i=0) + "MlpBlock_3/Dense_0/kernel", 2)[1]
    places = shape("Transformer/posembed_input/pos_embedding", 3)[1] - 1
    side = math.isqrt(places)
    if side * side != places:
        raise ValueError(f"{places} positions besides the class token's are not a square grid")
    blocks = {name.split("/")[1] for name in weights if name.startswith("Transformer/encoderblock_")}
    image_size = (side * patch[0], side * patch[1])
    model = ViTConfig(
        image_size=image_size,
        patch_size=tuple(patch),
        channels=channels,
        num_classes=shape(HEAD, 2)[1] if HEAD in weights else 1,
        dim=dim,
        depth=len(blocks),
        heads=heads,
        mlp_ratio=hidden / dim,
        gelu="tanh",
        norm_eps=1e-6,
        head_hidden=shape("pre_logits/kernel", 2)[1] if "pre_logits/kernel" in weights else 0,
    )
    return Description(model, Preprocess(image_size=image_size, interpolation="bilinear", fit="squash", **HALF), None)
