"""timm checkpoints: `vit_*` with class token or mean pooling, with and without registers, DeiT, DINOv2.

Names, arguments and preprocessing are those of timm's `vision_transformer.py` and `deit.py`, version 1.0.
"""

from collections.abc import Collection
from typing import Any

from vitreous.model import ViTConfig
from vitreous.preprocess import Preprocess
from vitreous.weights import maps
from vitreous.weights.maps import BOTH, HALF, IMAGENET, Description, Pairs, Weights, expand, read_temperature

NAME, HEAD = "timm", "head.weight"
MARKS = ("patch_embed.proj.", ".attn.qkv.")

TENSORS = [
    ("class_token", "cls_token"),
    ("registers", "reg_token"),
    ("positions", "pos_embed"),
    ("blocks.{i}.scale1.gamma", "blocks.{i}.ls1.gamma"),
    ("blocks.{i}.scale2.gamma", "blocks.{i}.ls2.gamma"),
]
LAYERS = [
    ("patches.proj", "patch_embed.proj"),
    ("blocks.{i}.norm1", "blocks.{i}.norm1"),
    ("blocks.{i}.attention.qkv", "blocks.{i}.attn.qkv"),
    ("blocks.{i}.attention.q_norm", "blocks.{i}.attn.q_norm"),
    ("blocks.{i}.attention.k_norm", "blocks.{i}.attn.k_norm"),
    ("blocks.{i}.attention.proj", "blocks.{i}.attn.proj"),
    ("blocks.{i}.norm2", "blocks.{i}.norm2"),
    ("blocks.{i}.mlp.fc1", "blocks.{i}.mlp.fc1"),
    ("blocks.{i}.mlp.fc2", "blocks.{i}.mlp.fc2"),
    ("head", "head"),
]

TINY = {"embed_dim": 192, "depth": 12, "num_heads": 3}
SMALL = {"embed_dim": 384, "depth": 12, "num_heads": 6}
BASE = {"embed_dim": 768, "depth": 12, "num_heads": 12}
LARGE = {"embed_dim": 1024, "depth": 24, "num_heads": 16}
HUGE = {"embed_dim": 1280, "depth": 32, "num_heads": 16}
GAP = {"class_token": False, "global_pool": "avg", "fc_norm": False}
MEDIUM_GAP = {"embed_dim": 512, "depth": 12, "num_heads": 8, "qkv_bias": False, "init_values": 1e-6} | GAP
BETWIXT_GAP = MEDIUM_GAP | {"embed_dim": 640, "num_heads": 10}
BASE_GAP = BASE | GAP | {"num_heads": 16}
REG_GAP = {"class_token": False, "global_pool": "avg", "no_embed_class": True, "init_values": 1e-5}
WEE = {"embed_dim": 256, "depth": 14, "num_heads": 4, "mlp_ratio": 5} | REG_GAP
LITTLE = {"embed_dim": 320, "depth": 14, "num_heads": 5, "mlp_ratio": 5.6} | REG_GAP
MEDIUM = {"embed_dim": 512, "depth": 12, "num_heads": 8} | REG_GAP
DEEP_MEDIUM = MEDIUM | {"depth": 20}
BETWIXT = {"embed_dim": 640, "depth": 12, "num_heads": 10} | REG_GAP
BASE_REG_GAP = {key: value for key, value in (BASE | REG_GAP).items() if key != "init_values"}
DINO = {"init_values": 1e-5}
DINO_REG = {"init_values": 1e-5, "reg_tokens": 4, "no_embed_class": True}

# timm's arguments, patch size, image size, crop_pct, and the mean and std of its first weights of this name
ARCHITECTURES: dict[str, tuple[dict[str, Any], int, int, float, dict[str, Any]]] = {
    "vit_tiny_patch16_224": (TINY, 16, 224, 0.9, HALF),
    "vit_tiny_patch16_384": (TINY, 16, 384, 1.0, HALF),
    "vit_small_patch32_224": (SMALL, 32, 224, 0.9, HALF),
    "vit_small_patch32_384": (SMALL, 32, 384, 1.0, HALF),
    "vit_small_patch16_224": (SMALL, 16, 224, 0.9, HALF),
    "vit_small_patch16_384": (SMALL, 16, 384, 1.0, HALF),
    "vit_small_patch8_224": (SMALL, 8, 224, 0.9, IMAGENET),
    "vit_base_patch32_224": (BASE, 32, 224, 0.9, HALF),
    "vit_base_patch32_384": (BASE, 32, 384, 1.0, HALF),
    "vit_base_patch16_224": (BASE, 16, 224, 0.9, HALF),
    "vit_base_patch16_384": (BASE, 16, 384, 1.0, HALF),
    "vit_base_patch8_224": (BASE, 8, 224, 0.9, HALF),
    "vit_large_patch32_224": (LARGE, 32, 224, 0.9, HALF),
    "vit_large_patch32_384": (LARGE, 32, 384, 1.0, HALF),
    "vit_large_patch16_224": (LARGE, 16, 224, 0.9, HALF),
    "vit_large_patch16_384": (LARGE, 16, 384, 1.0, HALF),
    "vit_large_patch14_224": (LARGE, 14, 224, 0.9, HALF),
    "vit_huge_patch14_224": (HUGE, 14, 224, 0.9, HALF),
    "deit_tiny_patch16_224": (TINY, 16, 224, 0.9, IMAGENET),
    "deit_small_patch16_224": (SMALL, 16, 224, 0.9, IMAGENET),
    "deit_base_patch16_224": (BASE, 16, 224, 0.9, IMAGENET),
    "deit_base_patch16_384": (BASE, 16, 384, 1.0, IMAGENET),
    "vit_medium_patch16_gap_240": (MEDIUM_GAP, 16, 240, 0.95, HALF),
    "vit_medium_patch16_gap_256": (MEDIUM_GAP, 16, 256, 0.95, HALF),
    "vit_medium_patch16_gap_384": (MEDIUM_GAP, 16, 384, 0.95, HALF | {"fit": "squash"}),
    "vit_betwixt_patch16_gap_256": (BETWIXT_GAP, 16, 256, 0.95, HALF),
    "vit_base_patch16_gap_224": (BASE_GAP, 16, 224, 0.9, HALF),
    "vit_huge_patch14_gap_224": (HUGE | GAP, 14, 224, 0.9, IMAGENET),
    "vit_huge_patch16_gap_448": (HUGE | GAP, 16, 448, 1.0, IMAGENET),
    "vit_wee_patch16_reg1_gap_256": (WEE | {"reg_tokens": 1}, 16, 256, 0.95, HALF),
    "vit_little_patch16_reg1_gap_256": (LITTLE | {"reg_tokens": 1}, 16, 256, 0.95, HALF),
    "vit_little_patch16_reg4_gap_256": (LITTLE | {"reg_tokens": 4}, 16, 256, 0.95, HALF),
    "vit_medium_patch16_reg1_gap_256": (MEDIUM | {"reg_tokens": 1}, 16, 256, 0.95, HALF),
    "vit_medium_patch16_reg4_gap_256": (MEDIUM | {"reg_tokens": 4}, 16, 256, 0.95, HALF),
    "vit_mediumd_patch16_reg4_gap_256": (DEEP_MEDIUM | {"reg_tokens": 4}, 16, 256, 0.95, HALF),
    "vit_mediumd_patch16_reg4_gap_384": (DEEP_MEDIUM | {"reg_tokens": 4}, 16, 384, 1.0, HALF),
    "vit_betwixt_patch16_reg1_gap_256": (BETWIXT | {"reg_tokens": 1}, 16, 256, 0.95, HALF),
    "vit_betwixt_patch16_reg4_gap_256": (BETWIXT | {"reg_tokens": 4}, 16, 256, 0.95, HALF),
    "vit_betwixt_patch16_reg4_gap_384": (BETWIXT | {"reg_tokens": 4}, 16, 384, 1.0, HALF),
    "vit_base_patch16_reg4_gap_256": (BASE_REG_GAP | {"reg_tokens": 4}, 16, 256, 0.9, HALF),
    "vit_small_patch14_dinov2": (SMALL | DINO, 14, 518, 1.0, IMAGENET),
    "vit_base_patch14_dinov2": (BASE | DINO, 14, 518, 1.0, IMAGENET),
    "vit_large_patch14_dinov2": (LARGE | DINO, 14, 518, 1.0, IMAGENET),
    "vit_small_patch14_reg4_dinov2": (SMALL | DINO_REG, 14, 518, 1.0, IMAGENET),
    "vit_base_patch14_reg4_dinov2": (BASE | DINO_REG, 14, 518, 1.0, IMAGENET),
    "vit_large_patch14_reg4_dinov2": (LARGE | DINO_REG, 14, 518, 1.0, IMAGENET),
}
# arguments that do not change the function
INDIFFERENT = {"dynamic_img_size", "weight_init", "fix_init"} | {
    f"{kind}_rate" for kind in ("drop", "pos_drop", "patch_drop", "proj_drop", "attn_drop", "drop_path")
}


def pairs(config: ViTConfig, names: Collection[str] = ()) -> Pairs:
    """(our name, timm's name) of every tensor that a model of this config may have."""
    norm = [("norm", "fc_norm" if config.norm_after_pool else "norm")]
    return expand(TENSORS, config.depth) + expand(LAYERS + norm, config.depth, BOTH)


def to_theirs(ours: Weights, config: ViTConfig) -> Weights:
    """The inverse. Raises ValueError for a part that timm's ViT does not have."""
    return maps.to_theirs(ours, pairs(config), "timm's ViT")


def from_architecture(name: str, classes: int) -> Description:
    """From a name in ARCHITECTURES."""
    return from_config({"architecture": name}, classes)


def from_config(config: dict[str, Any], classes: int) -> Description:
    """From the config.json that timm puts next to its weights. Raises ValueError for anything our model does not
    support."""
    name = config["architecture"]
    if name not in ARCHITECTURES:
        raise ValueError(f"timm's '{name}' is not one of the models that can be read: {', '.join(ARCHITECTURES)}")
    arguments, patch, side, crop, rest = ARCHITECTURES[name]
    said = config.get("pretrained_cfg", config)
    mode = said.get("crop_mode") or rest.get("fit", "center")
    if mode not in ("center", "squash"):
        raise ValueError(f"crop_mode '{mode}' is not one of center, squash: give another model")
    channels, *side = said.get("input_size") or (3, side, side)
    given = config.get("model_args", {})
    model = translate(
        {"patch_size": patch, "img_size": side, "in_chans": channels, "num_classes": config.get("num_classes", classes)}
        | arguments
        | ({"global_pool": config["global_pool"]} if "global_pool" in config else {})
        | given
    )
    preprocess = Preprocess(
        image_size=model.image_size,
        mean=said.get("mean") or rest["mean"],
        std=said.get("std") or rest["std"],
        interpolation=said.get("interpolation") or "bicubic",
        crop_fraction=said.get("crop_pct") or crop,
        fit="squash" if mode == "squash" else "crop",
    )
    labels = config.get("label_names") or said.get("label_names")
    names = tuple(map(str, labels)) if isinstance(labels, list | tuple) else None
    return Description(model, preprocess, names, read_temperature(config))


def translate(arguments: dict[str, Any]) -> ViTConfig:
    """timm's VisionTransformer arguments -> our config. Raises ValueError for anything our model does not support."""
    left = dict(arguments)
    take = left.pop
    class_token, pool, norm_after_pool = take("class_token", True), take("global_pool", "token"), take("fc_norm", None)
    no_embed_class, registers = take("no_embed_class", False), take("reg_tokens", 0)
    act = take("act_layer", "gelu")
    dim = take("embed_dim", 768)
    model = ViTConfig(
        image_size=take("img_size", 224),
        patch_size=take("patch_size", 16),
        channels=take("in_chans", 3),
        num_classes=take("num_classes", 1000) or 1,
        dim=dim,
        depth=take("depth", 12),
        heads=take("num_heads", 12),
        mlp_ratio=int(dim * take("mlp_ratio", 4.0)) / dim,  # timm truncates the hidden width, we round it
        qkv_bias=take("qkv_bias", True),
        qk_norm=take("qk_norm", False),
        gelu="tanh" if act == "gelu_tanh" else "exact",
        layer_scale=take("init_values", None) or None,
        registers=registers,
        position_tokens="patches" if no_embed_class else "all" if registers else "class",
        pool="cls" if pool == "token" else "mean",
        norm_after_pool=pool == "avg" if norm_after_pool is None else norm_after_pool,
    )
    if act not in ("gelu", "gelu_tanh"):
        raise ValueError(f"act_layer '{act}' is not one of gelu, gelu_tanh: give another model")
    if pool not in ("token", "avg"):
        raise ValueError(f"global_pool '{pool}' is not one of token, avg: give another model")
    if class_token != (pool == "token"):
        raise ValueError(
            f"class_token {class_token} with global_pool '{pool}', but the head must read the class token: give "
            "another model"
        )
    if unknown := [f"{name}={value}" for name, value in left.items() if name not in INDIFFERENT]:
        raise ValueError(f"our ViT has nothing for timm's {', '.join(unknown)}: give another model")
    return model
