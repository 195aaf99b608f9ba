"""timm's checkpoints, as timm writes them, are the same function in our model, and come back bit for bit."""

import json

import numpy as np
import pytest
import torch
from compare import TOLERANCE, differences, outputs, peer, randomise, same_bits, wrong_epsilon
from PIL import Image
from safetensors.torch import load_file

from vitreous.model import positions
from vitreous.weights import from_timm, load, load_weights

timm = peer("timm")
SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 4, "num_classes": 7}
NO_CLASS = {"class_token": False, "global_pool": "avg"}
KINDS = {
    "class token": {},
    "rectangular": {"img_size": (24, 40), "patch_size": (8, 4), "in_chans": 1, "mlp_ratio": 2.7},
    "mean, norm before": NO_CLASS | {"fc_norm": False, "qkv_bias": False, "init_values": 0.1},
    "mean, norm after": NO_CLASS,
    "mean, registers": NO_CLASS | {"reg_tokens": 3, "no_embed_class": True, "init_values": 0.1},
    "mean, registers with positions": NO_CLASS | {"reg_tokens": 3, "fc_norm": False},
    "class token, registers": {"reg_tokens": 4, "no_embed_class": True, "init_values": 0.1},
    "class token, registers with positions": {"reg_tokens": 2},
    "class token without position": {"no_embed_class": True},
    "qk norm": {"qk_norm": True},
}


def made(folder, **changes):
    """A model of timm's with random weights, written to the folder as for the Hub."""
    model = randomise(timm.create_model("vit_tiny_patch16_224", **(SMALL | changes)))
    channels = changes.get("in_chans", 3)
    timm.models.save_for_hf(
        model,
        folder,
        model_args=SMALL | changes,
        safe_serialization=True,
        data_config={"mean": (0.4,) * channels, "std": (0.2,) * channels, "crop_pct": 0.8},
    )
    return model


def images_for(model):
    torch.manual_seed(1)
    return torch.randn(4, model.in_chans, *model.patch_embed.img_size)


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_and_logits_equal_those_of_timm_and_return_bit_for_bit(tmp_path, kind):
    theirs = made(tmp_path, **KINDS[kind])
    bundle, report = load_weights(tmp_path)
    images = images_for(theirs)
    expected = outputs(theirs, theirs.blocks, images)
    assert max(differences(bundle.model, expected, images)) < TOLERANCE and expected[-1].std() > 0.1
    file = load_file(tmp_path / "model.safetensors")
    assert set(report.loaded) == set(file) and not report.left_out and not report.new_head
    back = from_timm.to_theirs(bundle.model.state_dict(), bundle.model.config)
    assert same_bits(back, file)
    theirs.load_state_dict(back)
    wrong_epsilon(bundle.model)  # which embeddings this small show
    assert max(differences(bundle.model, expected, images)) > 10 * TOLERANCE


@pytest.mark.parametrize("kind", ["class token", "mean, norm after", "class token, registers with positions"])
@pytest.mark.parametrize("size", [(48, 48), (16, 56)])
def test_positions_are_resampled_as_timm_does(tmp_path, kind, size):
    smaller = made(tmp_path, **KINDS[kind])
    theirs = timm.create_model("vit_tiny_patch16_224", **(SMALL | KINDS[kind] | {"img_size": size})).eval()
    theirs.load_state_dict(timm.models.vision_transformer.checkpoint_filter_fn(smaller.state_dict(), theirs))
    bundle, report = load_weights(tmp_path, image_size=size)
    assert report.grids == ((4, 4), (size[0] // 8, size[1] // 8)) and bundle.preprocess.image_size == size
    images = images_for(theirs)
    assert max(differences(bundle.model, outputs(theirs, theirs.blocks, images), images)) < TOLERANCE


def test_positions_resampled_with_the_class_token_in_are_noticed(tmp_path, monkeypatch):
    smaller = made(tmp_path, img_size=24)  # 3 x 3 patches
    theirs = timm.create_model("vit_tiny_patch16_224", **(SMALL | {"img_size": 32})).eval()
    theirs.load_state_dict(timm.models.vision_transformer.checkpoint_filter_fn(smaller.state_dict(), theirs))

    def with_class_token(patches, grid, old):
        table = torch.cat([smaller.pos_embed.data[:, :1], patches], dim=1)[:, :-1]  # shifted by one place
        return positions.resample_positions(table, grid, old)

    images = images_for(theirs)
    expected = outputs(theirs, theirs.blocks, images)
    assert max(differences(load_weights(tmp_path, image_size=32)[0].model, expected, images)) < TOLERANCE
    monkeypatch.setattr(load, "resample_positions", with_class_token)
    wrong = load_weights(tmp_path, image_size=32)[0].model
    assert max(differences(wrong, expected, images)) > 10 * TOLERANCE


@pytest.mark.parametrize("name", from_timm.ARCHITECTURES)
def test_architectures_are_those_of_timm(name, monkeypatch):
    for module, function in (("vision_transformer", "_create_vision_transformer"), ("deit", "_create_deit")):
        monkeypatch.setattr(f"timm.models.{module}.{function}", lambda variant, pretrained, **arguments: arguments)
    arguments, patch = from_timm.ARCHITECTURES[name][:2]
    assert arguments | {"patch_size": patch} == timm.models.model_entrypoint(name)()
    said = from_timm.from_architecture(name, classes=5)
    config, preprocess = timm.get_pretrained_cfg(name), said.preprocess
    assert (preprocess.shape, preprocess.crop_fraction) == (config.input_size, config.crop_pct)
    assert (preprocess.mean, preprocess.std) == (config.mean, config.std)
    assert (preprocess.interpolation, preprocess.fit == "squash") == (
        config.interpolation,
        config.crop_mode == "squash",
    )


def test_the_config_of_timm_brings_preprocessing_and_class_names(tmp_path):
    theirs = made(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["pretrained_cfg"] |= {"interpolation": "bilinear", "crop_mode": "squash"}
    (tmp_path / "config.json").write_text(json.dumps(config | {"label_names": list("abcdefg")}))
    bundle, _ = load_weights(tmp_path)
    assert bundle.class_names == tuple("abcdefg") and bundle.model.config.num_classes == theirs.num_classes
    preprocess = bundle.preprocess
    assert (preprocess.mean, preprocess.std, preprocess.crop_fraction) == ((0.4,) * 3, (0.2,) * 3, 0.8)
    assert (preprocess.interpolation, preprocess.fit, preprocess.image_size) == ("bilinear", "squash", (32, 32))


@pytest.mark.parametrize("size", [(90, 60), (61, 97), (50, 50)])
def test_images_are_prepared_as_timm_prepares_them(size):
    name = "deit_tiny_patch16_224"
    config, preprocess = timm.get_pretrained_cfg(name), from_timm.from_architecture(name, 5).preprocess
    transform = timm.data.create_transform(
        config.input_size, mean=config.mean, std=config.std, interpolation="bicubic", crop_pct=config.crop_pct
    )
    smooth = np.random.default_rng(0).integers(0, 256, (6, 9, 3), np.uint8)
    image = Image.fromarray(smooth).resize(size, Image.Resampling.BICUBIC)
    expected = transform(image)
    found = preprocess.normalise(torch.from_numpy(preprocess.fit_image(image))[None])[0]
    level = 1 / 255 / 0.225
    assert (found - expected).abs().mean() < level and (found - expected).abs().max() < 6 * level


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"global_pool": "avg"}, "class_token True with global_pool 'avg', but the head must read the class token"),
        ({"global_pool": "map"}, "global_pool 'map' is not one of token, avg"),
        ({"pre_norm": True}, "our ViT has nothing for timm's pre_norm=True"),
        ({"act_layer": "relu"}, "act_layer 'relu' is not one of gelu, gelu_tanh"),
    ],
)
def test_what_our_model_cannot_be_is_refused_by_its_part(tmp_path, changes, reason):
    made(tmp_path, **changes)
    with pytest.raises(ValueError) as caught:
        load_weights(tmp_path)
    assert str(caught.value) == f"{tmp_path / 'config.json'}: {reason}: give another model"


def test_a_cut_that_ours_cannot_make_is_refused(tmp_path):
    made(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["pretrained_cfg"]["crop_mode"] = "border"
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        ValueError, match=r"config\.json: crop_mode 'border' is not one of center, squash: give another model$"
    ):
        load_weights(tmp_path)


def test_a_distillation_token_is_refused_by_name(tmp_path):
    model = timm.create_model("deit_tiny_distilled_patch16_224", **(SMALL | {"embed_dim": 192, "num_heads": 3}))
    torch.save(model.state_dict(), tmp_path / "deit.pth")
    with pytest.raises(ValueError, match=r"unexpected dist_token, head_dist.weight, head_dist.bias"):
        load_weights(tmp_path / "deit.pth", arch="deit_tiny_patch16_224")
