import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from vitreous.explain import open_pass
from vitreous.model import ViT, ViTConfig
from vitreous.model.positions import resample_positions, rotary_table
from vitreous.model.vit import LayerScale

SMALL = {"image_size": (8, 12), "patch_size": 4, "dim": 16, "depth": 3, "heads": 2, "num_classes": 5}
VARIANTS = [
    {},
    {"patch_embedding": "linear", "channels": 1},
    {"patch_embedding": "conv_stem", "stem_channels": (4,), "pool": "attention"},
    {"patch_embedding": "conv_stem", "stem_channels": (4, 6), "stem_strides": (2, 1, 2), "stem_pool": True},
    {"pool": "mean", "positions": "sincos2d", "norm": "rmsnorm", "bias": False},
    {"positions": "rope", "registers": 3, "qk_norm": True},
    {"positions": "sincos", "layer_scale": 0.1, "head_hidden": 6, "patch_size": (2, 6)},
    {"positions": "sincos_learned", "dropout": 0.1, "drop_path": 0.3, "zero_init": True, "channels": 5},
    {"pool": "cls_mean", "registers": 1, "gelu": "tanh", "head_hidden": 6},
    {"pool": "mean", "norm_after_pool": True, "registers": 2, "position_tokens": "all", "qkv_bias": False},
    {"position_tokens": "patches", "registers": 2},
    {"mlp_conv": True, "registers": 1, "pool": "attention"},
    {"mlp_conv": True, "pool": "mean", "bias": False},
]
every_variant = pytest.mark.parametrize("variant", VARIANTS, ids=str)


def small(**changes) -> ViT:
    return ViT(ViTConfig(**SMALL | changes))


def randomised(model: ViT) -> ViT:
    """Every parameter random, so that no zero hides a mistake."""
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    return model.eval()


def images_for(model: ViT, B: int = 2) -> torch.Tensor:
    return torch.randn(B, model.config.channels, *model.config.image_size)


# --- what the head does not read -------------------------------------------------------------------------


def through_all_tokens(model: ViT, images: torch.Tensor) -> torch.Tensor:
    """Logits, where the last block computes what the head does not read, too."""
    return model.head(model.pooled(model.forward_features(images)))


def gradients(model: ViT, logits: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Logits, and what the parameters' gradients are, for a loss that weighs classes differently."""
    model.zero_grad()
    (logits * torch.arange(5)).sum().backward()
    return logits.detach(), {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@every_variant
def test_what_the_head_does_not_read_changes_neither_logits_nor_gradients(variant):
    model = randomised(small(**variant)).double()
    images = images_for(model, 3).double()
    logits, learned = gradients(model, model(images))
    whole, expected = gradients(model, through_all_tokens(model, images))
    torch.testing.assert_close(logits, whole)
    torch.testing.assert_close(learned, expected)


@pytest.mark.parametrize(
    ("variant", "computed"),
    [({"registers": 3}, 1), ({"registers": 3, "pool": "cls_mean"}, 10), ({"pool": "mean"}, 6), ({"mlp_conv": True}, 7)],
    ids=str,
)
def test_the_last_block_computes_the_class_token_alone_if_the_head_reads_only_that(variant, computed):
    model, tokens = small(**variant), []
    for block in model.blocks:
        block.mlp.fc1.register_forward_hook(lambda module, args, output: tokens.append(output.shape[1]))
    for run in (model, model.features):
        run(images_for(model))
        assert tokens == [model.config.tokens] * 2 + [computed]
        tokens.clear()


# --- what the paper fixes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "num_classes", "parameters"),
    [
        ("Ti/16", 1000, 5_717_416),
        ("S/16", 1000, 22_050_664),
        ("B/16", 1000, 86_567_656),
        ("B/16", 3, 85_800_963),
        ("L/16", 1000, 304_326_632),
        ("H/14", 1000, 632_045_800),
    ],
)
def test_parameter_counts_are_those_of_the_paper(size, num_classes, parameters):
    with torch.device("meta"):
        model = ViT(ViTConfig(size=size, num_classes=num_classes))
    assert sum(p.numel() for p in model.parameters()) == parameters


@every_variant
def test_shapes(variant):
    model = small(**variant)
    images = images_for(model)
    assert model.forward_features(images).shape == (2, model.config.tokens, 16)
    assert model(images).shape == (2, 5)


@every_variant
def test_every_parameter_learns(variant):
    model = randomised(small(**variant)).train()
    model(images_for(model, 8)).square().sum().backward()
    silent = {name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()}
    assert silent <= {"pool.score.bias"}  # softmax takes no notice of it


def test_class_token_is_first():
    model = randomised(small(registers=2))
    tokens = model.embed(torch.zeros(2, 3, 8, 12))
    assert tokens.shape == (2, 1 + 2 + 6, 16)
    torch.testing.assert_close(tokens[:, 0], (model.class_token + model.positions)[:, 0].expand(2, -1))
    last = []
    model.norm.register_forward_hook(lambda module, args, output: last.append(output))
    logits = model(images_for(model))
    torch.testing.assert_close(logits, model.head(last[0][:, 0]))


def test_a_block_is_equations_2_and_3():
    model = randomised(small())
    block, x = model.blocks[0], torch.randn(2, 7, 16)
    after_attention = block.attention(block.norm1(x)) + x
    torch.testing.assert_close(block(x), block.mlp(block.norm2(after_attention)) + after_attention)


def test_mlp_is_two_maps_and_the_exact_gelu():
    model = randomised(small())
    mlp, x = model.blocks[0].mlp, torch.randn(2, 7, 16)
    hidden = mlp.fc1(x)
    gelu = hidden * (1 + torch.erf(hidden / math.sqrt(2))) / 2
    assert hidden.shape == (2, 7, 64)
    torch.testing.assert_close(mlp(x), mlp.fc2(gelu))


@pytest.mark.parametrize(
    "shape", [(3, 8, 12), (1, 1, 8, 12), (1, 3, 12, 8), (1, 3, 8, 16), (1, 1, 3, 8, 12), (2, 7, 16)]
)
def test_images_of_another_shape_are_refused(shape):
    with pytest.raises(
        ValueError, match=r"images of shape \(.*\): this model reads \(B, 3, 8, 12\): bring them to that, as"
    ):
        small()(torch.zeros(shape))


# --- start -----------------------------------------------------------------------------------------------


def test_model_starts_as_documented():
    model = ViT(ViTConfig(size="S/16", num_classes=7, depth=2, registers=4, patch_embedding="linear"))
    D = 384
    assert not model.class_token.any()
    assert not model.head.weight.any() and not model.head.bias.any()
    assert model.positions.std().item() == pytest.approx(0.02, rel=0.02)
    assert model.registers.std().item() == pytest.approx(0.02, rel=0.1)
    for block in model.blocks:
        for linear, fan_in, fan_out in [
            (block.attention.qkv, D, D),  # queries, keys and values are maps of their own
            (block.attention.proj, D, D),
            (block.mlp.fc1, D, 4 * D),
            (block.mlp.fc2, 4 * D, D),
        ]:
            bound = math.sqrt(6 / (fan_in + fan_out))
            assert 0.999 * bound < linear.weight.abs().max() <= bound
            assert linear.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.01)
            assert not linear.bias.any()
        for norm in (block.norm1, block.norm2, model.norm):
            assert (norm.weight == 1).all() and not norm.bias.any()


@pytest.mark.parametrize("kind", ["linear", "conv"])
def test_patch_embedding_starts_with_variance_one_over_fan_in(kind):
    proj = ViT(ViTConfig(size="S/16", depth=1, patch_embedding=kind)).patches.proj
    std = (3 * 16 * 16) ** -0.5
    assert proj.weight.std().item() == pytest.approx(std, rel=0.01)
    assert proj.weight.abs().max() <= 2 * std / 0.8796  # cut at two standard deviations of the uncut normal
    assert not proj.bias.any()


@every_variant
def test_fresh_model_answers_zero(variant):
    model = small(**variant)
    assert torch.equal(model(images_for(model)), torch.zeros(2, 5))


def test_zero_init_starts_blocks_as_the_identity():
    x = torch.randn(2, 7, 16)
    for pool in ("mean", "attention", "cls_mean", "cls"):
        *blocks, last = small(zero_init=True, pool=pool).blocks
        assert all(torch.equal(block(x), x) for block in blocks)
        assert torch.equal(last(x), x) == (pool != "cls"), pool
    assert not torch.allclose(small().blocks[1](x), x, atol=0.1)


@pytest.mark.parametrize("positions", ["learned", "sincos2d", "rope"])
def test_zero_init_lets_a_class_token_learn(positions):
    """Also of classes that are equally frequent in a batch, whose gradients a feature alike in all images cancels."""
    model = small(zero_init=True, pool="cls", positions=positions, num_classes=2)
    optimiser, images = torch.optim.SGD(model.parameters(), lr=0.1), images_for(model)
    for _ in range(3):  # head, then the blocks' last matrices, then what they read
        optimiser.zero_grad()
        F.cross_entropy(model(images), torch.tensor([0, 1])).backward()
        optimiser.step()
    assert all(block.attention.qkv.weight.grad.any() for block in model.blocks)


def test_layer_scale_starts_branches_small():
    model, x = small(layer_scale=1e-4), torch.randn(2, 7, 16)
    block = model.blocks[0]
    assert (block.scale1.gamma == 1e-4).all() and block.scale2.gamma.shape == (16,)
    assert 0 < (block(x) - x).abs().max() < 1e-2


def test_layer_scale_multiplies_each_branch_by_channel():
    plain, scaled = small(), small(layer_scale=1.0)
    scaled.load_state_dict(plain.state_dict(), strict=False)
    x = torch.randn(2, 7, 16)
    torch.testing.assert_close(scaled.blocks[0](x), plain.blocks[0](x))
    gamma = torch.arange(16.0)
    scaled.blocks[0].scale1.gamma.data, scaled.blocks[0].scale2.gamma.data = gamma, torch.zeros(16)
    expected = x + gamma * plain.blocks[0].attention(plain.blocks[0].norm1(x))
    torch.testing.assert_close(scaled.blocks[0](x), expected)


# --- options ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pool", ["mean", "attention"])
def test_mean_is_over_patches_only(pool):
    model = small(pool=pool, registers=2)
    tokens = torch.randn(2, 8, 16)
    torch.testing.assert_close(model.pool(tokens), tokens[:, 2:].mean(dim=1))  # attention starts as the mean
    changed = torch.cat([torch.randn(2, 2, 16), tokens[:, 2:]], dim=1)
    assert torch.equal(model.pool(changed), model.pool(tokens))


def test_cls_mean_is_class_token_and_mean_side_by_side():
    model = small(pool="cls_mean", registers=2)
    tokens = torch.randn(2, 9, 16)
    pooled = model.pooled(tokens)
    assert model.config.pooled_dim == model.head.in_features == 32
    torch.testing.assert_close(pooled, torch.cat([tokens[:, 0], tokens[:, 3:].mean(dim=1)], dim=1))


def test_the_final_norm_stands_before_the_pool_or_after_it():
    before = randomised(small(pool="mean"))
    after = small(pool="mean", norm_after_pool=True).eval()
    after.load_state_dict(before.state_dict())
    images = images_for(before)
    tokens = after.forward_features(images)  # not normalised yet
    torch.testing.assert_close(before.forward_features(images), before.norm(tokens))
    torch.testing.assert_close(before(images), before.head(before.norm(tokens).mean(dim=1)))
    torch.testing.assert_close(after(images), after.head(after.norm(tokens.mean(dim=1))))
    assert (after(images) - before(images)).abs().max() > 0.01


def test_qkv_bias_leaves_out_those_alone():
    names = set(small().state_dict()) - set(small(qkv_bias=False).state_dict())
    assert names == {f"blocks.{i}.attention.qkv.bias" for i in range(3)}


def test_tanh_gelu_is_the_approximation():
    mlp, x = randomised(small(gelu="tanh")).blocks[0].mlp, torch.randn(2, 7, 16)
    hidden = mlp.fc1(x)
    gelu = hidden * (1 + torch.tanh(math.sqrt(2 / math.pi) * (hidden + 0.044715 * hidden**3))) / 2
    torch.testing.assert_close(mlp(x), mlp.fc2(gelu))


def test_attention_pool_weighs_patches_by_their_score():
    model = randomised(small(pool="attention"))
    tokens = torch.randn(2, 6, 16)
    weights = model.pool.score(tokens).softmax(dim=1)
    assert weights.std() > 0.01
    torch.testing.assert_close(model.pool(tokens), (weights * tokens).sum(dim=1))


def test_registers_are_read_by_the_other_tokens():
    model = randomised(small(registers=2))
    images = images_for(model)
    before = model(images)
    model.registers.data *= -1
    assert (model(images) - before).abs().max() > 1e-3


def test_rmsnorm_has_no_bias_and_does_not_centre():
    model = small(norm="rmsnorm", norm_eps=0.5)
    x = torch.randn(2, 7, 16) + 3
    assert not hasattr(model.norm, "bias")
    torch.testing.assert_close(model.norm(x), x / (x.square().mean(dim=-1, keepdim=True) + 0.5).sqrt())


def test_norm_epsilon_reaches_every_norm():
    model = small(norm_eps=0.5, qk_norm=True)
    norms = [m for m in model.modules() if isinstance(m, nn.LayerNorm)]
    assert len(norms) == 4 * 3 + 1
    assert {norm.eps for norm in norms} == {0.5}


def test_bias_option_is_about_the_maps_in_the_blocks():
    model = small(bias=False, qk_norm=True)
    linears = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    assert [name for name, linear in linears.items() if linear.bias is not None] == ["head"]
    assert model.patches.proj.bias is not None and model.blocks[0].norm1.bias is not None


def test_head_hidden_puts_a_tanh_layer_before_the_classes():
    model = randomised(small(head_hidden=6))
    x = torch.randn(2, 16)
    first, _, last = model.head
    assert first.weight.shape == (6, 16) and last.weight.shape == (5, 6)
    torch.testing.assert_close(model.head(x), last(first(x).tanh()))


# --- dropout and stochastic depth ------------------------------------------------------------------------


def test_dropout_follows_positions_and_every_map_but_q_k_v():
    model = small(dropout=0.25)
    dropouts = [name for name, m in model.named_modules() if isinstance(m, nn.Dropout) and m.p == 0.25]
    blocks = [f"blocks.{i}.{name}" for i in range(3) for name in ("drop", "mlp.drop1", "mlp.drop2")]
    assert dropouts == ["drop", *blocks]


def test_each_dropout_silences_the_map_before_it():
    model = randomised(small()).train()
    block, x = model.blocks[0], torch.randn(2, 7, 16)
    block.drop.p = 1.0  # all of it
    torch.testing.assert_close(block(x), x + block.mlp(block.norm2(x)))
    block.mlp.drop1.p = 1.0
    torch.testing.assert_close(block(x), x + block.mlp.fc2.bias)
    block.mlp.drop2.p = 1.0
    assert torch.equal(block(x), x)
    model.drop.p = 1.0
    assert not model.embed(images_for(model)).any()


def test_dropout_drops_in_training_only():
    model = randomised(small(dropout=0.5))
    images = images_for(model)
    assert torch.equal(model(images), model(images))
    model.train()
    assert not torch.equal(model(images), model(images))
    x = torch.ones(100, 7, 16)
    dropped = model.blocks[0].drop(x)
    assert set(dropped.unique().tolist()) == {0.0, 2.0}


def test_stochastic_depth_rises_linearly_from_block_to_block():
    rates = [block.drop_path.rate for block in small(drop_path=0.3, depth=4).blocks]
    assert rates == pytest.approx([0.0, 0.1, 0.2, 0.3])
    assert small(drop_path=0.3, depth=1).blocks[0].drop_path.rate == 0.0


def test_stochastic_depth_drops_its_share_of_the_images_and_keeps_the_mean():
    drop_path = small(drop_path=0.3).blocks[-1].drop_path
    x = torch.ones(20_000, 2, 3)
    out = drop_path(x)
    image = out[:, 0, 0]
    assert torch.equal(out, image[:, None, None].expand_as(x))  # an image is kept whole or dropped whole
    assert image.unique().tolist() == pytest.approx([0.0, 1 / 0.7])
    assert (image == 0).float().mean().item() == pytest.approx(0.3, abs=0.015)
    assert out.mean().item() == pytest.approx(1.0, abs=0.02)


def test_stochastic_depth_is_off_in_evaluation():
    model = randomised(small(drop_path=0.9))
    plain = small()
    plain.load_state_dict(model.state_dict())
    images = images_for(model)
    assert torch.equal(model(images), plain.eval()(images))


def test_dropped_branches_leave_the_image_as_it_is():
    model = randomised(small(drop_path=0.9)).train()
    x = torch.randn(200, 7, 16)
    same = (model.blocks[-1](x) == x).all(dim=(1, 2)).float().mean().item()
    assert same == pytest.approx(0.81, abs=0.1)  # both branches dropped


# --- looking in ------------------------------------------------------------------------------------------


@every_variant
def test_the_open_pass_is_the_plain_pass(variant):
    model = randomised(small(**variant))
    images, outputs = images_for(model), []
    for block in model.blocks:
        block.register_forward_hook(lambda module, args, output: outputs.append(output))
    with torch.no_grad():
        logits = through_all_tokens(model, images)
        seen = open_pass(model, images)
    N = model.config.tokens
    torch.testing.assert_close(seen.logits, logits, rtol=0, atol=1e-5)
    torch.testing.assert_close(seen.tokens[0], model.embed(images))
    assert len(seen.tokens) - 1 == len(seen.attention) == 3
    for block, expected, weights in zip(seen.tokens[1:], outputs, seen.attention, strict=True):
        torch.testing.assert_close(block, expected, rtol=0, atol=1e-5)
        assert weights.shape == (2, 2, N, N) and weights.min() >= 0
        torch.testing.assert_close(weights.sum(dim=-1), torch.ones(2, 2, N))


# --- life ------------------------------------------------------------------------------------------------


def test_reset_head_gives_a_fresh_head_and_keeps_the_rest():
    model = randomised(small())
    before = {name: value.clone() for name, value in model.state_dict().items() if "head" not in name}
    model.reset_head(9)
    assert model.config.num_classes == 9
    assert torch.equal(model(images_for(model)), torch.zeros(2, 9))
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())
    with pytest.raises(ValueError, match="greater than 0"):
        model.reset_head(0)
    assert model.config.num_classes == 9 and model.head.out_features == 9


def test_what_is_frozen_neither_learns_nor_draws_nor_measures():
    config = {"patch_embedding": "conv_stem", "stem_channels": (4, 4), "patch_size": 4, "image_size": 16, "depth": 3}
    model = small(**config, dropout=0.5, drop_path=0.5)
    torch.nn.init.normal_(model.head.weight)
    model.freeze(2)
    model.train()
    assert model.training and model.blocks[2].training and model.norm.training and model.head.training
    before = {name: value.clone() for name, value in model.named_buffers()}
    images = images_for(model)
    x = model.embed(images)
    for block in model.blocks[:2]:
        x = block(x)
    again = model.embed(images)
    for block in model.blocks[:2]:
        again = block(again)
    assert torch.equal(x, again) and not x.requires_grad  # no dropout, no graph to keep
    model(images).sum().backward()
    assert all(torch.equal(before[name], value) for name, value in model.named_buffers())  # nor batch statistics
    learnt = {name.split(".")[0] + name.split(".")[1] for name, w in model.named_parameters() if w.grad is not None}
    assert learnt == {"blocks2", "normweight", "normbias", "headweight", "headbias"}


def test_freezing_nothing_or_too_much():
    model = small()
    model.freeze(0)
    assert all(weight.requires_grad for weight in model.parameters()) and model.train().patches.training
    with pytest.raises(ValueError, match=f"cannot freeze 9 blocks of a model of {len(model.blocks)}"):
        model.freeze(9)
    with pytest.raises(ValueError, match=f"^cannot freeze -1 blocks of a model of {len(model.blocks)}: use 0$"):
        model.freeze(-1)


def test_what_was_frozen_learns_again():
    model = small(depth=3, positions="sincos2d")
    model.freeze(3)
    model.freeze(1)
    learns = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert not any(name.startswith(("patches", "blocks.0")) for name in learns)
    assert any(name.startswith("blocks.1") for name in learns) and any(name.startswith("blocks.2") for name in learns)
    model.freeze(0)
    assert all(weight.requires_grad for weight in model.parameters()) and not model.positions.requires_grad
    assert model.train().blocks[0].training and model.frozen == 0


@pytest.mark.parametrize("hidden", [0, 6])
def test_reset_head_keeps_the_precision_of_the_model(hidden):
    model = small(head_hidden=hidden).bfloat16()
    model.reset_head(9)
    assert model(images_for(model).bfloat16()).dtype == torch.bfloat16


@every_variant
def test_weights_survive_saving_and_loading(variant, tmp_path):
    model, other = randomised(small(**variant)), small(**variant).eval()
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    other.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    images = images_for(model)
    assert torch.equal(model(images), other(images))


def test_same_seed_makes_the_same_model():
    models = []
    for _ in range(2):
        torch.manual_seed(3)
        models.append(small().state_dict())
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])


@pytest.mark.parametrize("pool", ["cls", "mean"])
@pytest.mark.parametrize("patch_embedding", ["linear", "conv", "conv_stem"])
@pytest.mark.parametrize("positions", ["learned", "sincos", "sincos_learned", "sincos2d", "rope"])
def test_residuals_are_bfloat16_under_autocast_to_it_and_float32_else(positions, patch_embedding, pool):
    stem = (4,) if patch_embedding == "conv_stem" else ()
    more = {"drop_path": 0.5, "dropout": 0.1, "depth": 2}
    model = small(positions=positions, pool=pool, patch_embedding=patch_embedding, stem_channels=stem, **more).train()
    images = images_for(model)
    for low, expected in ((torch.bfloat16, torch.bfloat16), (torch.float16, torch.float32), (None, torch.float32)):
        with torch.autocast("cpu", low or torch.bfloat16, enabled=low is not None):
            x = model.embed(images)
            assert x.dtype == expected
            for block in model.blocks:
                x = block(x, model.rotary)
                assert x.dtype == expected


@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16])
def test_what_a_block_of_a_small_layer_scale_adds_is_not_rounded_away(low):
    model = randomised(small(layer_scale=1e-4, depth=2))
    for scale in (module for module in model.modules() if isinstance(module, LayerScale)):
        torch.nn.init.constant_(scale.gamma, 1e-4)  # as it starts: `randomised` has changed it
    images = images_for(model)
    before = model.embed(images)
    exact = model.blocks[0](before, model.rotary) - before
    with torch.autocast("cpu", low):
        before = model.embed(images)
        added = model.blocks[0](before, model.rotary) - before
    assert (added - exact).norm() < 0.05 * exact.norm()


def test_a_small_layer_scale_is_not_rounded_in_float16():
    scale = LayerScale(4, 1.01e-6)  # of which float16 has multiples of 6e-8 only
    with torch.autocast("cpu", torch.float16):
        assert scale(torch.ones(1, 1, 4, dtype=torch.float16)).tolist() == [[pytest.approx([1.01e-6] * 4, rel=1e-3)]]


@every_variant
def test_autocast_logits_stay_close_to_float32(variant):
    model = randomised(small(**variant))
    images = images_for(model)
    with torch.autocast("cpu", torch.bfloat16):
        low = model(images).float()
    torch.testing.assert_close(low, model(images), rtol=0, atol=0.1)


# --- the convolution in the MLP --------------------------------------------------------------------------


@pytest.mark.parametrize("more", [{}, {"registers": 2}, {"pool": "mean"}])
def test_the_mlps_convolution_starts_as_the_identity(more):
    with_it, without = small(mlp_conv=True, **more), small(**more)
    missing = with_it.load_state_dict(without.state_dict(), strict=False).missing_keys
    assert len(missing) == 2 * SMALL["depth"]  # a kernel and a bias a block
    nn.init.normal_(with_it.head.weight)
    without.head.load_state_dict(with_it.head.state_dict())
    images = images_for(without)
    torch.testing.assert_close(with_it(images), without(images))


def test_the_mlps_convolution_sees_the_neighbours_in_the_grid_and_no_other_tokens():
    mlp = randomised(small(image_size=(12, 16), registers=2, mlp_conv=True)).blocks[0].mlp  # 3 + 3 x 4 tokens
    x = torch.randn(1, 15, 16)
    changed = x.clone()
    changed[:, 3 + 4] += 1  # the patch of row 1, column 0
    moved = (mlp(changed) - mlp(x)).abs().sum(dim=2)[0] > 1e-6
    assert moved[:3].sum() == 0
    assert moved[3:].view(3, 4).tolist() == [[True, True, False, False]] * 3
    changed = x.clone()
    changed[:, 1] += 1  # a register
    moved = (mlp(changed) - mlp(x)).abs().sum(dim=2)[0] > 1e-6
    assert moved.nonzero().flatten().tolist() == [1]


def test_the_mlps_convolution_comes_before_its_activation():
    mlp = randomised(small(image_size=(12, 16), pool="mean", mlp_conv=True)).blocks[0].mlp
    x = torch.randn(2, 12, 16)
    conv = mlp.conv.conv
    grid = mlp.fc1(x).mT.unflatten(2, (3, 4))
    hidden = F.conv2d(grid, conv.weight, conv.bias, padding=1, groups=grid.shape[1]).flatten(2).mT
    torch.testing.assert_close(mlp(x), mlp.fc2(F.gelu(hidden)))


def test_the_mlps_convolution_is_not_muons():
    from vitreous.recipe import OptimOptions
    from vitreous.train.optim import make_optimizers

    model = small(mlp_conv=True)
    adamw, muon = make_optimizers(model, OptimOptions(name="muon"))
    kernel = model.blocks[0].mlp.conv.conv.weight
    assert any(kernel is weight for group in adamw.param_groups for weight in group["params"])
    assert not any(kernel is weight for group in muon.param_groups for weight in group["params"])


# --- images of another size ------------------------------------------------------------------------------


@every_variant
def test_a_model_reads_another_size_and_goes_back_unchanged(variant):
    model = randomised(small(**variant))
    images = images_for(model)
    before, weights = model(images), {name: value.clone() for name, value in model.state_dict().items()}
    (H, W), (P, Q) = model.config.image_size, model.config.patch_size
    model.set_image_size((H + P, W - Q))
    other = torch.randn(2, model.config.channels, H + P, W - Q)
    assert model(other).shape == (2, 5) and model.grid == (H // P + 1, W // Q - 1)
    with pytest.raises(ValueError, match="this model reads"):
        model(images)
    model.set_image_size((H, W))
    assert torch.equal(model(images), before)
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


def test_another_size_is_read_as_a_model_of_that_size_with_resampled_positions_does():
    large = randomised(small(image_size=16, pool="mean", mlp_conv=True))
    other = randomised(small(image_size=(12, 8), pool="mean", mlp_conv=True))
    weights = large.state_dict() | {"positions": resample_positions(large.positions.detach(), (3, 2))}
    other.load_state_dict(weights)
    large.set_image_size((12, 8))
    images = torch.randn(2, 3, 12, 8)
    torch.testing.assert_close(large(images), other(images))
    large(images).sum().backward()
    assert large.positions.grad.abs().min() > 0  # all places learn


def test_rotary_positions_of_another_size_are_resampled():
    model = small(positions="rope", registers=2)
    model.set_image_size((16, 24))
    torch.testing.assert_close(model.rotary, rotary_table((4, 6), 8, 3, old=(2, 3)))


def test_a_size_that_patches_do_not_fit_is_refused():
    model = small()
    with pytest.raises(ValueError, match="10 is not divisible by patch size 4"):
        model.set_image_size((10, 12))
    assert model.image_size == (8, 12)
