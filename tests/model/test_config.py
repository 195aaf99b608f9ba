import re

import pytest
from pydantic import ValidationError

from vitreous.model import ViTConfig


def test_defaults_are_vit_base_16():
    assert ViTConfig() == ViTConfig(size="B/16")
    config = ViTConfig()
    assert (config.dim, config.depth, config.heads, config.mlp_dim) == (768, 12, 12, 3072)
    assert (config.grid, config.prefix, config.tokens, config.head_dim) == ((14, 14), 1, 197, 64)


@pytest.mark.parametrize(
    ("name", "expected"),
    {
        "Ti": (192, 12, 3, 768),
        "S": (384, 12, 6, 1536),
        "B": (768, 12, 12, 3072),
        "L": (1024, 24, 16, 4096),
        "H": (1280, 32, 16, 5120),
        "nano": (64, 3, 2, 128),
        "micro": (128, 4, 4, 256),
        "mini": (256, 6, 8, 512),
    }.items(),
)
def test_sizes_are_those_of_the_paper_and_of_the_documents(name, expected):
    config = ViTConfig(size=f"{name}/14")
    assert (config.dim, config.depth, config.heads, config.mlp_dim) == expected
    assert config.patch_size == (14, 14)


def test_other_fields_override_the_size():
    config = ViTConfig(size="S/16", depth=3, patch_size=8, num_classes=5)
    assert (config.dim, config.depth, config.patch_size, config.num_classes) == (384, 3, (8, 8), 5)


@pytest.mark.parametrize("value", [32, "32", (32, 32), [32, 32]])
def test_one_number_is_a_square(value):
    assert ViTConfig(image_size=value, patch_size=4).image_size == (32, 32)


def test_counts_follow_grid_and_prefix():
    config = ViTConfig(image_size=(32, 48), patch_size=(8, 4), registers=3)
    assert config.grid == (4, 12)
    assert (config.prefix, config.tokens) == (4, 52)
    config = ViTConfig(image_size=(32, 48), patch_size=(8, 4), registers=3, pool="mean")
    assert (config.prefix, config.tokens) == (3, 51)


def test_config_survives_json():
    config = ViTConfig(size="mini/4", image_size=(32, 48), stem_channels=[64, 8], patch_embedding="conv_stem")
    assert ViTConfig.model_validate_json(config.model_dump_json()) == config


def test_config_does_not_change():
    with pytest.raises(ValidationError, match="frozen"):
        ViTConfig().dim = 4


STEM = {"patch_embedding": "conv_stem"}
REFUSED = [
    ({"image_size": 30, "patch_size": 4}, "image size 30 is not divisible by patch size 4: use 28 or 32"),
    ({"image_size": 3, "patch_size": 4}, "image size 3 is not divisible by patch size 4: use 4"),
    (
        {"image_size": (32, 30), "patch_size": (4, 8)},
        "image size 30 is not divisible by patch size 8: use 24 or 32",
    ),
    ({"image_size": (32, 32, 3)}, "at most 2 items"),
    ({"image_size": 0}, "greater than 0"),
    ({"patch_size": "big"}, "valid integer"),
    ({"dim": 100, "heads": 3}, "dim 100 is not divisible by heads 3: use dim 99 or 102"),
    ({"dim": 12, "heads": 2, "positions": "rope"}, "rope positions need dim divisible by 8, not 12: use dim 8 or 16"),
    ({"dim": 2, "heads": 3}, "dim 2 is not divisible by heads 3: use dim 3"),
    (
        {"dim": 6, "heads": 1, "positions": "sincos2d"},
        "sincos2d positions need dim divisible by 4, not 6: use dim 4 or 8",
    ),
    ({"dim": 30, "heads": 3, "positions": "sincos2d"}, "dim divisible by 4, not 30: use dim 24 or 36"),
    ({"dim": 5, "heads": 1, "positions": "sincos"}, "sincos positions need dim divisible by 2, not 5: use dim 4 or 6"),
    ({"dim": 5, "heads": 1, "positions": "sincos_learned"}, "sincos_learned positions need dim divisible by 2, not 5"),
    (
        {"norm_after_pool": True, "pool": "cls_mean"},
        "norm_after_pool normalises a vector as wide as a token, and pool cls_mean gives two of them: set "
        "norm_after_pool=false, or another pool",
    ),
    (
        {"stem_channels": (8,)},
        "patch_embedding conv has no stem of convolutions: set patch_embedding=conv_stem, or stem_channels=[]",
    ),
    (
        {"patch_embedding": "linear", "stem_strides": (2, 2), "stem_pool": True},
        "linear has no stem of convolutions: set patch_embedding=conv_stem, or stem_strides=[] stem_pool=false",
    ),
    (
        STEM | {"patch_size": 4, "stem_channels": (8, 8), "stem_strides": (2, 2)},
        "stem_strides (2, 2) do not fit: give one for each of the 3 convolutions, with the patch size as their product",
    ),
    (STEM | {"patch_size": 4, "stem_channels": (8,), "stem_strides": (1, 2)}, "stem_strides (1, 2) do not fit"),
    (
        STEM | {"patch_size": (4, 2), "image_size": 8, "stem_channels": (8,), "stem_strides": (2, 2)},
        "product, here (4, 2), or set stem_strides=[]",
    ),
    (STEM | {"patch_size": 3, "image_size": 9, "stem_strides": (3,)}, "1 or 2"),
    (
        STEM | {"patch_size": (4, 7), "stem_channels": (8, 8)},
        "conv_stem needs a patch size that is a power of two, not 7: use 4 or 8",
    ),
    (
        STEM | {"patch_size": (2, 8), "stem_channels": (8,)},
        "conv_stem needs 3 convolutions of stride 2 for patch size 8, but has 2: give 2 or more stem_channels",
    ),
    ({"dim": 4, "heads": 1, "mlp_ratio": 0.1}, "mlp_ratio 0.1 leaves no hidden unit at dim 4: use at least 0.25"),
    ({"mlp_ratio": float("inf")}, "finite"),
    ({"norm_eps": float("nan")}, "finite"),
    ({"size": "B16"}, "unknown model size 'B16': use one of Ti, S, B, L, H, nano, micro, mini"),
    ({"size": "B/0"}, "unknown model size 'B/0'"),
    ({"size": "B/²"}, "unknown model size 'B/²'"),
    ({"size": None}, "unknown model size 'None'"),
    ({"positions": "cosine"}, "'learned', 'sincos', 'sincos_learned', 'sincos2d' or 'rope'"),
    ({"pool": "max"}, "'cls', 'mean', 'attention' or 'cls_mean'"),
    ({"norm": "batchnorm"}, "'layernorm' or 'rmsnorm'"),
    ({"patch_embedding": "mlp"}, "'linear', 'conv' or 'conv_stem'"),
    ({"dropout": 1.0}, "less than 1"),
    ({"dropout": -0.1}, "greater than or equal to 0"),
    ({"drop_path": 1.0}, "less than 1"),
    ({"layer_scale": 0.0}, "greater than 0"),
    ({"norm_eps": 0.0}, "greater than 0"),
    ({"head_hidden": -1}, "greater than or equal to 0"),
    ({"registers": -1}, "greater than or equal to 0"),
    *(({field: 0}, "greater than 0") for field in ("channels", "num_classes", "dim", "depth", "heads")),
    ({"mlp_ratio": 0}, "greater than 0"),
    ({"droput": 0.1}, "droput"),
]


@pytest.mark.parametrize(("fields", "message"), REFUSED, ids=str)
def test_bad_options_are_refused_with_their_message(fields, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        ViTConfig(**({} if "size" in fields else ViTConfig().model_dump()) | fields)
