"""Hugging Face checkpoints: ViTModel, ViTForImageClassification, and DINOv2 with and without registers.

Names and configs are those of the files on the Hub (model_type vit, dinov2 and dinov2_with_registers), which
`save_pretrained` writes. DINOv2 giant, whose MLP is gated, is not supported. At image sizes other than the config's,
transformers resamples the positions of DINOv2 without registers without antialiasing; we antialias, as for all other
models.
"""

import re
from collections.abc import Collection
from typing import Any

from vitreous.messages import one_line
from vitreous.model import ViTConfig
from vitreous.preprocess import Preprocess
from vitreous.weights import maps
from vitreous.weights.maps import BOTH, Description, Pairs, Weights, expand, read_temperature, split_qkv

NAME, HEAD = "Hugging Face", "classifier.weight"
MARKS = ("embeddings.patch_embeddings.", ".attention.attention.query.")

TENSORS = [
    ("class_token", "embeddings.cls_token"),
    ("registers", "embeddings.register_tokens"),
    ("positions", "embeddings.position_embeddings"),
]
LAYERS = [
    ("patches.proj", "embeddings.patch_embeddings.projection"),
    ("blocks.{i}.attention.q", "encoder.layer.{i}.attention.attention.query"),
    ("blocks.{i}.attention.k", "encoder.layer.{i}.attention.attention.key"),
    ("blocks.{i}.attention.v", "encoder.layer.{i}.attention.attention.value"),
    ("blocks.{i}.attention.proj", "encoder.layer.{i}.attention.output.dense"),
    ("norm", "layernorm"),
]
VIT_LAYERS = [
    ("blocks.{i}.norm1", "encoder.layer.{i}.layernorm_before"),
    ("blocks.{i}.norm2", "encoder.layer.{i}.layernorm_after"),
    ("blocks.{i}.mlp.fc1", "encoder.layer.{i}.intermediate.dense"),
    ("blocks.{i}.mlp.fc2", "encoder.layer.{i}.output.dense"),
]
DINO_TENSORS = [
    ("blocks.{i}.scale1.gamma", "encoder.layer.{i}.layer_scale1.lambda1"),
    ("blocks.{i}.scale2.gamma", "encoder.layer.{i}.layer_scale2.lambda1"),
]
DINO_LAYERS = [
    ("blocks.{i}.norm1", "encoder.layer.{i}.norm1"),
    ("blocks.{i}.norm2", "encoder.layer.{i}.norm2"),
    ("blocks.{i}.mlp.fc1", "encoder.layer.{i}.mlp.fc1"),
    ("blocks.{i}.mlp.fc2", "encoder.layer.{i}.mlp.fc2"),
]
PREFIX = re.compile(r"(vit|dinov2|dinov2_with_registers)\.")

# Tensors that our model does not use, and why they may be left out
LEFT_OUT = {
    "embeddings.mask_token": "stands for hidden patches, in pretraining only",
    "pooler.dense.weight": "ViTModel's pooler: a head reads the class token itself",
    "pooler.dense.bias": "ViTModel's pooler: a head reads the class token itself",
}
RESAMPLE = {0: "nearest", 2: "bilinear", 3: "bicubic"}  # PIL's numbers
STEPS = ("do_resize", "do_rescale", "do_normalize", "do_center_crop", "do_convert_rgb")
SHORTER_SIDE = ("Bit", "CLIP", "ChineseCLIP")  # transformers processors that read a plain size as the shorter side


def pairs(config: ViTConfig, names: Collection[str] = ()) -> Pairs:
    """(our name, their name) of every tensor, with our q, k and v separate.

    names: those in the file, which have a prefix or, for a model without a head, none.
    """
    dino = config.layer_scale is not None
    prefix = ("dinov2_with_registers." if config.registers else "dinov2.") if dino else "vit."
    if names:
        prefix = next((found.group() for found in map(PREFIX.match, names) if found), "")
    tensors, layers = (TENSORS + DINO_TENSORS, LAYERS + DINO_LAYERS) if dino else (TENSORS, LAYERS + VIT_LAYERS)
    inside = expand(tensors, config.depth) + expand(layers, config.depth, BOTH)
    return [(ours, prefix + theirs) for ours, theirs in inside] + expand([("head", "classifier")], 1, BOTH)


def to_theirs(ours: Weights, config: ViTConfig) -> Weights:
    """The inverse, with the prefix of models with a head. Raises ValueError for a part that their ViT and DINOv2
    lack."""
    return maps.to_theirs(split_qkv(ours), pairs(config), "Hugging Face's ViT")


def left_out(name: str) -> str | None:
    """Why this tensor of a file may be left out, or None."""
    return LEFT_OUT.get(PREFIX.sub("", name, count=1))


def from_config(config: dict[str, Any], preprocessing: dict[str, Any] | None, classes: int) -> Description:
    """From the config.json and preprocessor_config.json next to the weights. classes: of the head, 0 without one.

    Keys that older files lack (hidden_act, num_channels, qkv_bias and those of DINOv2 alone) take transformers'
    defaults. Raises ValueError for anything our model does not support.
    """
    kind = config["model_type"]
    if kind not in ("vit", "dinov2", "dinov2_with_registers"):
        raise ValueError(f"model_type '{kind}' is not one of vit, dinov2, dinov2_with_registers: give weights of these")
    dino = kind != "vit"
    if config.get("use_swiglu_ffn"):
        raise ValueError("use_swiglu_ffn is true, and our MLP is not gated: give another size of DINOv2")
    act = config.get("hidden_act", "gelu")
    if act not in ("gelu", "gelu_new", "gelu_pytorch_tanh"):
        raise ValueError(f"hidden_act '{act}' is not one of gelu, gelu_new, gelu_pytorch_tanh: give another model")
    if preprocessing is None:
        raise ValueError("nothing says how images are normalised: put its preprocessor_config.json there, too")
    dim = config["hidden_size"]
    labels = config.get("id2label") or {}
    if classes and set(labels) != set(map(str, range(len(labels)))):
        raise ValueError(f"id2label does not number its {len(labels)} classes from 0 on: name every output")
    model = ViTConfig(
        image_size=config["image_size"],
        patch_size=config["patch_size"],
        channels=config.get("num_channels", 3),
        num_classes=(len(labels) or classes) if classes else 1,
        dim=dim,
        depth=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        mlp_ratio=int(dim * config.get("mlp_ratio", 4)) / dim if dino else config["intermediate_size"] / dim,
        qkv_bias=config.get("qkv_bias", True),
        gelu="exact" if act == "gelu" else "tanh",
        norm_eps=config["layer_norm_eps"],
        layer_scale=config.get("layerscale_value", 1.0) if dino else None,
        registers=config.get("num_register_tokens", 4) if kind == "dinov2_with_registers" else 0,
        pool="cls_mean" if dino and classes else "cls",
    )
    names = tuple(str(labels[key]) for key in sorted(labels, key=int))
    task = config.get("problem_type") or ("regression" if model.num_classes == 1 else "")
    other = "" if task == "single_label_classification" else task.replace("_", " ")
    try:
        preprocess = read_preprocessing(preprocessing, model.channels)
    except (KeyError, TypeError) as error:
        told = f"preprocessor_config.json does not say what it should: {type(error).__name__} {error}"
        raise ValueError(f"{told}: correct that file") from error
    except ValueError as error:
        raise ValueError(f"{one_line(error)}: give another model, or correct that file") from error
    named = names if classes and names else None
    return Description(model, preprocess, named, read_temperature(config), other)


def read_preprocessing(config: dict[str, Any], channels: int = 3) -> Preprocess:
    """From a preprocessor_config.json. channels: of the model, for a file that does not say mean and deviation of each.
    Raises ValueError for steps that ours does not support."""
    if others := [key for key, value in config.items() if key.startswith("do_") and value and key not in STEPS]:
        raise ValueError(f"preprocessor_config.json has a step that ours lacks: {others[0]}")
    size, crop = config.get("size"), config.get("crop_size") if config.get("do_center_crop") else None
    if config.get("do_center_crop") and not crop:
        raise ValueError("preprocessor_config.json cuts out a centre, and does not say of what size")
    if isinstance(size, int):  # older files: a number means a square or, to some, the shorter side
        kind = str(config.get("image_processor_type") or config.get("feature_extractor_type"))
        size = {"shortest_edge": size} if kind.startswith(SHORTER_SIDE) else {"height": size, "width": size}
    if isinstance(crop, int):
        crop = {"height": crop, "width": crop}
    if not config.get("do_resize", True) or not isinstance(size, dict):
        raise ValueError("preprocessor_config.json does not resize images to one size")
    if not config.get("do_rescale", True) or abs(config.get("rescale_factor", 1 / 255) * 255 - 1) > 1e-3:
        raise ValueError("preprocessor_config.json does not scale pixels to 0..1")
    if "shortest_edge" in size and crop is None:
        raise ValueError("preprocessor_config.json leaves images of different sizes: it cuts out no centre")
    if config.get("resample", 2) not in RESAMPLE:
        raise ValueError(
            f"preprocessor_config.json has resample {config['resample']}, not one of {', '.join(map(str, RESAMPLE))}"
        )
    edge = size.get("shortest_edge")
    whole = (edge, edge) if edge else (size["height"], size["width"])
    target = (crop["height"], crop["width"]) if crop else whole
    if crop and "shortest_edge" in size and target[0] != target[1]:
        raise ValueError(f"preprocessor_config.json cuts {target[0]} x {target[1]} out of what a square would cover")
    if target[0] > whole[0] or target[1] > whole[1]:
        raise ValueError(f"preprocessor_config.json cuts {target[0]} x {target[1]} out of a smaller image")
    normalised = config.get("do_normalize", True)
    mean, std = (config["image_mean"], config["image_std"]) if normalised else ((0,) * channels, (1,) * channels)
    ours = Preprocess(
        image_size=target,
        mean=mean,
        std=std,
        interpolation=RESAMPLE[config.get("resample", 2)],
        fit="crop" if "shortest_edge" in size else "squash",
        crop_fraction=min(target[0] / whole[0], target[1] / whole[1]),
    )
    if ours.whole_size != whole:  # ours cuts one share
        raise ValueError(f"preprocessor_config.json cuts another share of the rows than of the columns: {crop}")
    return ours
