"""Export a model in the layouts of other libraries: timm's and Hugging Face's ViT, with their configs.

The weights go through the inverse of the maps that read such files. What a layout expresses differently is converted
without changing the function: fixed positions become learned ones, a linear map of patches a convolution, absent biases
zeros, and positions of registers part of the registers. What it cannot express is refused by name.

Each `write_*` returns the function of the files on disk, read back by those maps: uint8 (B, C, H, W) -> (B, K).
"""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from vitreous.export.graphs import Answer, PixelModel
from vitreous.files import replace_file, write_json
from vitreous.model import ViTConfig
from vitreous.preprocess import Preprocess
from vitreous.weights import Bundle, from_huggingface, from_timm, load_weights
from vitreous.weights.bundle import CONFIG, WEIGHTS
from vitreous.weights.load import PREPROCESSING
from vitreous.weights.maps import TEMPERATURE_KEY, Weights

TIMM_EPSILON = 1e-6
TIMM_BASE = "vit_base_patch16_224"  # all its arguments are given


def write_timm(bundle: Bundle, folder: Path) -> Answer:
    """`model.safetensors` and `config.json` for `timm.create_model("local-dir:FOLDER", pretrained=True)`."""
    config, preprocess = bundle.model.config, bundle.preprocess
    beyond = {
        "head that reads the class token and the mean": config.pool == "cls_mean",
        f"LayerNorm with an epsilon of {config.norm_eps:g}": config.norm_eps != TIMM_EPSILON,
    }
    _refuse(bundle, "timm", beyond)
    weights, config = reworded(bundle)
    if config.registers and config.position_tokens == "class":
        weights, config = without_placed_prefix(weights, config)

    ratio = config.mlp_dim / config.dim
    if int(config.dim * ratio) != config.mlp_dim:  # timm truncates the hidden width
        ratio = (config.mlp_dim + 0.5) / config.dim
    arguments = {
        "img_size": config.image_size,
        "patch_size": config.patch_size,
        "in_chans": config.channels,
        "embed_dim": config.dim,
        "depth": config.depth,
        "num_heads": config.heads,
        "mlp_ratio": ratio,
        "qkv_bias": True,
        "qk_norm": config.qk_norm,
        "init_values": config.layer_scale,
        "class_token": config.class_token,
        "global_pool": "token" if config.class_token else "avg",
        "fc_norm": config.norm_after_pool,
        "no_embed_class": config.position_tokens == "patches",
        "reg_tokens": config.registers,
        "act_layer": "gelu" if config.gelu == "exact" else "gelu_tanh",
    }
    said = {
        "input_size": preprocess.shape,
        "fixed_input_size": True,
        "interpolation": preprocess.interpolation,
        "crop_pct": preprocess.crop_fraction,
        "crop_mode": "center" if preprocess.fit == "crop" else "squash",
        "mean": preprocess.mean,
        "std": preprocess.std,
        "num_classes": config.num_classes,
        "classifier": "head",
    }
    if config.channels == 3:  # else older versions of timm would draw its weights anew
        said["first_conv"] = "patch_embed.proj"
    content = {
        "architecture": TIMM_BASE,
        "num_classes": config.num_classes,
        "num_features": config.dim,
        "global_pool": arguments["global_pool"],
        "label_names": bundle.class_names,
        "model_args": arguments,
        "pretrained_cfg": said,
    }
    return _write(folder, from_timm.to_theirs(weights, config), content, bundle.temperature)


def write_huggingface(bundle: Bundle, folder: Path) -> Answer:
    """What transformers' `from_pretrained` reads: its ViT or, for class token and mean together, its DINOv2."""
    config = bundle.model.config
    dino = config.pool == "cls_mean"
    beyond = {
        "mean pooling": config.pool == "mean",
        "normalised queries and keys": config.qk_norm,
        "LayerScale": not dino and config.layer_scale is not None,
        "registers": not dino and config.registers > 0,
        "rectangular images with class token and mean": dino and config.image_size[0] != config.image_size[1],
        f"MLP {config.mlp_dim / config.dim:g} times as wide as a token": dino and config.mlp_dim % config.dim > 0,
    }
    _refuse(bundle, "Hugging Face", beyond)
    preparation = preprocessing_of(bundle.preprocess)
    weights, config = reworded(bundle)
    if config.placed_prefix != 1:
        weights, config = without_placed_prefix(weights, config)
        nothing = torch.zeros_like(weights["positions"][:, :1])
        weights["positions"] = torch.cat([nothing, weights["positions"]], dim=1)
        config = config.changed(position_tokens="class")
    if dino and config.layer_scale is None:
        for i in range(config.depth):
            for scale in ("scale1", "scale2"):
                weights[f"blocks.{i}.{scale}.gamma"] = torch.ones(config.dim)
        config = config.changed(layer_scale=1.0)

    kind = ("dinov2_with_registers" if config.registers else "dinov2") if dino else "vit"
    model_class = {"vit": "ViT", "dinov2": "Dinov2", "dinov2_with_registers": "Dinov2WithRegisters"}[kind]
    content = {
        "architectures": [f"{model_class}ForImageClassification"],
        "model_type": kind,
        "image_size": _one_if_square(config.image_size),
        "patch_size": _one_if_square(config.patch_size),
        "num_channels": config.channels,
        "hidden_size": config.dim,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
        "hidden_act": "gelu" if config.gelu == "exact" else "gelu_pytorch_tanh",
        "layer_norm_eps": config.norm_eps,
        "qkv_bias": True,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "id2label": {str(i): name for i, name in enumerate(bundle.class_names)},
        "label2id": {name: i for i, name in enumerate(bundle.class_names)},
    }
    if dino:
        content |= {"mlp_ratio": config.mlp_dim // config.dim, "layerscale_value": config.layer_scale}
        content |= {"num_register_tokens": config.registers} if config.registers else {}
    else:
        content["intermediate_size"] = config.mlp_dim
    write_json(folder / PREPROCESSING, preparation)
    theirs = from_huggingface.to_theirs(weights, config)
    if dino:  # used in pretraining only, but transformers warns without it
        theirs[f"{kind}.embeddings.mask_token"] = torch.zeros(1, config.dim)
    return _write(folder, theirs, content, bundle.temperature)


def preprocessing_of(preprocess: Preprocess) -> dict[str, Any]:
    """The inverse of `from_huggingface.read_preprocessing`: a preprocessor_config.json. Raises ValueError."""
    rows, columns = preprocess.image_size
    if preprocess.fit == "crop" and rows != columns:
        raise ValueError(
            f"Hugging Face's image processors cannot crop to {rows} x {columns} what covers it: export onnx or pt2, or "
            "train with data.fit=squash"
        )
    high, wide = preprocess.whole_size
    cut = preprocess.fit == "crop" or preprocess.crop_fraction < 1
    content = {
        "image_processor_type": "BitImageProcessor" if cut else "ViTImageProcessor",
        "do_resize": True,
        "size": {"shortest_edge": high} if preprocess.fit == "crop" else {"height": high, "width": wide},
        "resample": {name: number for number, name in from_huggingface.RESAMPLE.items()}[preprocess.interpolation],
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": preprocess.mean,
        "image_std": preprocess.std,
        "do_convert_rgb": preprocess.channels == 3,
    }
    return content | ({"do_center_crop": True, "crop_size": {"height": rows, "width": columns}} if cut else {})


def reworded(bundle: Bundle) -> tuple[Weights, ViTConfig]:
    """The weights and config of the same function, in the form that other libraries can express."""
    model, config = bundle.model, bundle.model.config
    weights = {name: value.detach().clone() for name, value in model.state_dict().items()}
    if config.patch_embedding == "linear":
        proj = weights["patches.proj.weight"]
        weights["patches.proj.weight"] = proj.view(len(proj), config.channels, *config.patch_size)
    weights["positions"] = model.positions.detach().clone()
    for name in [name for name in weights if name.startswith("blocks.") and weights[name].ndim == 2]:
        weights.setdefault(name.replace(".weight", ".bias"), torch.zeros(len(weights[name])))
    after = config.norm_after_pool and config.pool != "cls"  # equivalent for a single token
    return weights, config.changed(
        patch_embedding="conv", positions="learned", bias=True, qkv_bias=True, norm_after_pool=after
    )


def without_placed_prefix(weights: Weights, config: ViTConfig) -> tuple[Weights, ViTConfig]:
    """Add the positions of class token and registers to those tokens, leaving positions for the patches only."""
    weights, first = dict(weights), int(config.class_token)
    placed, weights["positions"] = weights["positions"].tensor_split([config.placed_prefix], dim=1)
    for name, own in {"class_token": placed[:, :first], "registers": placed[:, first:]}.items():
        if own.shape[1]:
            weights[name] = weights[name] + own
    return weights, config.changed(position_tokens="patches")


def _refuse(bundle: Bundle, library: str, beyond: dict[str, bool]) -> None:
    """Raises ValueError for a model with parts that neither library's ViT has, or that are `beyond` this one's."""
    config = bundle.model.config
    parts = {
        "convolutional stem": config.patch_embedding == "conv_stem",
        "rotary positions": config.positions == "rope",
        "RMSNorm": config.norm == "rmsnorm",
        "attention pooling": config.pool == "attention",
        "convolution in the MLP": config.mlp_conv,
        "hidden layer in the head": config.head_hidden > 0,
        "level for white (data.white)": bundle.preprocess.white is not None,
        "head of one class (one output is a number to it)": config.num_classes == 1,
    }
    if lacks := [part for part, there in (parts | beyond).items() if there]:
        raise ValueError(f"{library}'s ViT has no {', no '.join(lacks)}: export onnx or pt2, which hold any model")


def _one_if_square(pair: tuple[int, int]) -> int | tuple[int, int]:
    return pair[0] if pair[0] == pair[1] else pair


def _write(folder: Path, weights: Weights, content: dict[str, Any], temperature: float) -> Answer:
    if temperature != 1:  # which `load_weights` reads, and the libraries do not
        content = content | {TEMPERATURE_KEY: temperature}
    apart = {name: value.clone(memory_format=torch.contiguous_format) for name, value in weights.items()}
    replace_file(folder / WEIGHTS, lambda part: save_file(apart, part, metadata={"format": "pt"}))
    write_json(folder / CONFIG, content)
    return PixelModel(load_weights(folder)[0])
