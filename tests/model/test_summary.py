from itertools import pairwise

import pytest
import torch

from vitreous.model import SIZES, ViT, ViTConfig, attention
from vitreous.model.summary import render, summarise

MINI = {"size": "mini/4", "image_size": 32, "num_classes": 10}
VARIANTS = [
    MINI,
    MINI | {"pool": "mean", "positions": "rope"},
    MINI | {"pool": "attention", "positions": "sincos2d", "registers": 3},
    MINI | {"patch_embedding": "conv_stem", "stem_channels": (32, 64), "head_hidden": 32},
    MINI | {"qk_norm": True, "layer_scale": 0.1, "norm": "rmsnorm", "bias": False},
    MINI | {"mlp_conv": True},
    MINI | {"image_size": (32, 48), "patch_size": (4, 8), "channels": 1, "patch_embedding": "linear"},
]


def multiply_adds(config: ViTConfig) -> int:
    """Of one image: patch embedding; L times q k v, q k^T, weights v, projection and MLP; head."""
    N, D = config.tokens, config.dim
    pixels = config.channels * config.image_size[0] * config.image_size[1]
    block = 3 * N * D**2 + 2 * N**2 * D + N * D**2 + 2 * N * D * config.mlp_dim
    return pixels * D + config.depth * block + D * config.num_classes


@pytest.mark.parametrize("size", ["Ti/16", "S/16", "B/16", "B/32", "L/16", "H/14"])
def test_flops_are_two_for_each_multiply_add(size):
    config = ViTConfig(size=size)
    assert summarise(config).flops == 2 * multiply_adds(config)


def test_base_16_takes_35_gflop():
    assert summarise(ViTConfig(size="B/16")).flops == 35_127_656_448


@pytest.mark.parametrize("image_size", [32, 64, 160])  # 65, 257 and 1,601 tokens: both forms of attention
def test_flops_do_not_depend_on_the_form_of_attention(image_size):
    config = ViTConfig(**MINI | {"image_size": image_size})
    assert summarise(config).flops == 2 * multiply_adds(config)


@pytest.mark.parametrize("fields", VARIANTS, ids=str)
def test_rows_add_up_to_the_model(fields):
    config = ViTConfig(**fields)
    summary = summarise(config)
    parts = [row for row in summary.rows if row.level == 0]
    assert summary.parameters == sum(p.numel() for p in ViT(config).parameters())
    assert sum(row.parameters for row in parts) == summary.parameters
    assert sum(row.flops for row in parts) == summary.flops
    assert summary.weight_bytes == 4 * summary.parameters
    assert summary.training_bytes == 16 * summary.parameters


@pytest.mark.parametrize("fields", VARIANTS, ids=str)
def test_each_part_takes_what_the_one_before_gives(fields):
    config = ViTConfig(**fields)
    parts = [row for row in summarise(config).rows if row.level == 0]
    assert [row.name for row in parts[:2]] == ["patches", "tokens"]
    assert [row.name for row in parts[2:]] == [*(f"blocks.{i}" for i in range(6)), "norm", "pool", "head"]
    assert parts[0].input_shape == (config.channels, *config.image_size)
    for before, after in pairwise(parts):
        assert before.output_shape == after.input_shape
    assert parts[1].output_shape == (config.tokens, config.dim)
    assert parts[-1].output_shape == (config.num_classes,)


def test_a_conv_stem_that_makes_one_patch_is_counted():
    """Of one image with one patch, batch norm has no statistics."""
    config = ViTConfig(
        image_size=4, patch_size=4, patch_embedding="conv_stem", stem_channels=(8,), dim=16, depth=1, heads=2
    )
    assert summarise(config).parameters == sum(p.numel() for p in ViT(config).parameters())


def test_a_block_is_attention_mlp_and_two_norms():
    rows = {row.name: row for row in summarise(ViTConfig(**MINI)).rows}
    block, attention, mlp = (rows[name] for name in ("blocks.3", "blocks.3.attention", "blocks.3.mlp"))
    assert (attention.level, mlp.level) == (1, 1)
    assert attention.parameters == 4 * 256**2 + 4 * 256
    assert mlp.parameters == 2 * 256 * 512 + 512 + 256
    assert block.parameters == attention.parameters + mlp.parameters + 4 * 256
    assert block.flops == attention.flops + mlp.flops
    assert rows["tokens"].parameters == 256 + 65 * 256


@pytest.mark.parametrize("shape", [{}, {"image_size": (12, 20), "channels": 1}, {"patch_embedding": "linear"}])
def test_activation_bytes_are_what_a_further_image_keeps(monkeypatch, shape):
    monkeypatch.setattr(attention, "HAS_AVX512", True)  # attention as two products keeps the weights, as is counted
    config = ViTConfig(**{"size": "micro/4", "image_size": 32, "num_classes": 10} | shape)
    model = ViT(config)
    own = {t.untyped_storage().data_ptr() for t in model.parameters()}
    sizes = []
    for B in (2, 3):
        kept = {}

        def keep(tensor, kept=kept):
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            model.head(model.pooled(model.forward_features(torch.randn(B, config.channels, *config.image_size))))
        sizes.append(sum(storage.nbytes() for address, storage in kept.items() if address not in own))
    image = sizes[1] - sizes[0]
    assert image == pytest.approx(summarise(config).activation_bytes, rel=0.001)


def test_activation_bytes_count_what_dropout_leaves_out():
    without, with_it = (ViTConfig(**MINI | {"dropout": share}) for share in (0.0, 0.1))
    masks = 65 * 256 * (1 + 6 * (1 + 2 + 1))  # after the positions; after attention, in the MLP twice as wide, after it
    assert summarise(with_it).activation_bytes == summarise(without).activation_bytes + 4 * masks
    assert summarise(with_it).rows == summarise(without).rows


def test_activation_bytes_leave_parameters_and_tables_out():
    few, many = (ViTConfig(**MINI | {"positions": "rope", "num_classes": classes}) for classes in (10, 1000))
    assert summarise(few).activation_bytes == summarise(many).activation_bytes


@pytest.mark.parametrize("size", SIZES)
def test_every_size_has_a_table(size):
    summary = summarise(ViTConfig(size=size))
    table = render(summary)
    assert f"{summary.parameters:,} parameters" in table.title
    sizes = summary.weight_bytes, summary.training_bytes, summary.activation_bytes
    weights, training, activations = (f"{size / 2**20:,.1f} MiB" for size in sizes)
    assert table.caption == f"weights {weights}; in training {training} and {activations} an image"
    assert table.row_count == len([row for row in summary.rows if row.level == 0]) + 2
