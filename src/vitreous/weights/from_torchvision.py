"""torchvision checkpoints: vit_b_16, vit_b_32, vit_l_16, vit_l_32 and vit_h_14.

Names, sizes and preprocessing are those of torchvision's `models/vision_transformer.py`. Its files do not name their
architecture, so it must be given: `vit_b_16` means the IMAGENET1K_V1 weights; others have names of their own.
"""

from collections.abc import Collection

from vitreous.model import ViTConfig
from vitreous.preprocess import Preprocess
from vitreous.weights.maps import BOTH, IMAGENET, Description, Pairs, expand

NAME, HEAD = "torchvision", "heads.head.weight"
NEW_HEAD = "heads.weight"  # after `model.heads = nn.Linear(...)`, as those who fine-tune write it
MARKS = ("conv_proj.", "encoder.layers.encoder_layer_")

BLOCK = "encoder.layers.encoder_layer_{i}."
TENSORS = [
    ("class_token", "class_token"),
    ("positions", "encoder.pos_embedding"),
    ("blocks.{i}.attention.qkv.weight", BLOCK + "self_attention.in_proj_weight"),
    ("blocks.{i}.attention.qkv.bias", BLOCK + "self_attention.in_proj_bias"),
]
LAYERS = [
    ("patches.proj", "conv_proj"),
    ("blocks.{i}.norm1", BLOCK + "ln_1"),
    ("blocks.{i}.attention.proj", BLOCK + "self_attention.out_proj"),
    ("blocks.{i}.norm2", BLOCK + "ln_2"),
    ("norm", "encoder.ln"),
]
MLP = [("blocks.{i}.mlp.fc1", BLOCK + "mlp.0"), ("blocks.{i}.mlp.fc2", BLOCK + "mlp.3")]
OLD_MLP = [("blocks.{i}.mlp.fc1", BLOCK + "mlp.linear_1"), ("blocks.{i}.mlp.fc2", BLOCK + "mlp.linear_2")]

SWAG_END_TO_END, SWAG_LINEAR = "IMAGENET1K_SWAG_E2E_V1", "IMAGENET1K_SWAG_LINEAR_V1"
# size, image size, the size of the resized shorter side, interpolation
ARCHITECTURES: dict[str, tuple[str, int, int, str]] = {
    "vit_b_16": ("B/16", 224, 256, "bilinear"),
    "vit_b_32": ("B/32", 224, 256, "bilinear"),
    "vit_l_16": ("L/16", 224, 242, "bilinear"),
    "vit_l_32": ("L/32", 224, 256, "bilinear"),
    "vit_h_14": ("H/14", 518, 518, "bicubic"),
    f"vit_b_16.{SWAG_END_TO_END}": ("B/16", 384, 384, "bicubic"),
    f"vit_b_16.{SWAG_LINEAR}": ("B/16", 224, 224, "bicubic"),
    f"vit_l_16.{SWAG_END_TO_END}": ("L/16", 512, 512, "bicubic"),
    f"vit_l_16.{SWAG_LINEAR}": ("L/16", 224, 224, "bicubic"),
    f"vit_h_14.{SWAG_LINEAR}": ("H/14", 224, 224, "bicubic"),
}


def pairs(config: ViTConfig, names: Collection[str] = ()) -> Pairs:
    """(our name, torchvision's name) of every tensor. names: those in the file, whose MLPs may have their old names."""
    head = [("head", "heads" if NEW_HEAD in names else "heads.head")]
    mlp = OLD_MLP if any(".mlp.linear_1." in name for name in names) else MLP
    return expand(TENSORS, config.depth) + expand(LAYERS + mlp + head, config.depth, BOTH)


def from_architecture(name: str, classes: int) -> Description:
    """From a name in ARCHITECTURES."""
    size, side, resized, interpolation = ARCHITECTURES[name]
    return Description(
        ViTConfig(size=size, image_size=side, num_classes=classes or 1),
        Preprocess(image_size=side, interpolation=interpolation, crop_fraction=side / resized, **IMAGENET),
        None,
    )
