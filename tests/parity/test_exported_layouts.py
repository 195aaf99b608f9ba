"""What is exported for transformers and timm is loaded by them, strictly, and is the same function there."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from compare import peer
from PIL import Image
from tiny import tiny_bundle

from vitreous import Bundle, read_recipe
from vitreous.export import export_run
from vitreous.export.checkpoints import write_huggingface
from vitreous.preprocess import Preprocess
from vitreous.weights import load_weights

MODELS = {
    "plain": {"pool": "cls"},
    "rectangular, tanh, no biases": {
        "pool": "cls",
        "image_size": (16, 24),
        "patch_size": (8, 4),
        "gelu": "tanh",
        "bias": False,
        "mlp_ratio": 2.7,
    },
    "recipe plain, narrow": read_recipe("plain", ["model.dim=48", "model.depth=2"]).model.model_dump(
        exclude_unset=True
    ),
    "linear patches, fixed positions": {"pool": "cls", "patch_embedding": "linear", "positions": "sincos2d"},
}
TIMM = MODELS | {
    "mean, registers, LayerScale": {"pool": "mean", "registers": 2, "layer_scale": 0.2, "qk_norm": True},
    "mean, norm after, registers with positions": {
        "pool": "mean",
        "norm_after_pool": True,
        "registers": 2,
        "position_tokens": "all",
    },
    "class token with registers": {"pool": "cls", "registers": 2},
}
HUGGINGFACE = MODELS | {
    "DINOv2": {"pool": "cls_mean", "layer_scale": 0.2},
    "DINOv2 with registers": {"pool": "cls_mean", "registers": 3, "position_tokens": "all"},
}


def saved(folder, fit="squash", crop_fraction=1.0, **model):
    """A colour model with random weights everywhere, saved as a bundle."""
    fields = {"image_size": 16, "patch_size": 4, "channels": 3, "depth": 2, "dim": 32} | model
    bundle = tiny_bundle(**fields)
    torch.manual_seed(1)
    for parameter in bundle.model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    bundle.model.head.weight.data *= 0.1  # logits of about 1, for which 1e-6 is a few of float32's last places
    preprocess = Preprocess(
        image_size=bundle.model.config.image_size,
        mean=(0.5, 0.4, 0.3),
        std=(0.2, 0.3, 0.25),
        interpolation="bilinear",
        fit=fit,
        crop_fraction=crop_fraction,
    )
    bundle = Bundle(bundle.model, preprocess, bundle.class_names, temperature=1.7)
    bundle.save(folder)
    return bundle


def images_for(bundle, count=7):
    torch.manual_seed(2)
    return torch.randn(count, *bundle.preprocess.shape)


@pytest.mark.parametrize("name", HUGGINGFACE)
def test_transformers_loads_every_weight_and_gives_the_same_logits(tmp_path, name):
    transformers = peer("transformers")
    bundle = saved(tmp_path, **HUGGINGFACE[name])
    folder, receipt = export_run(tmp_path, "huggingface")
    kind = json.loads((folder / "config.json").read_text())["architectures"][0]
    theirs, info = getattr(transformers, kind).from_pretrained(folder, output_loading_info=True)
    assert not any(info.values()), info
    images = images_for(bundle)
    with torch.no_grad():
        expected = bundle.model(images)
        found = theirs.eval()(images).logits
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert receipt["max_abs_difference"] <= 2e-6 and expected.std() > 0.1
    assert theirs.config.id2label == dict(enumerate(bundle.class_names))
    assert load_weights(folder)[0].temperature == 1.7  # which changes none of the logits above


@pytest.mark.parametrize(("fit", "crop_fraction"), [("squash", 1.0), ("crop", 0.8)])
def test_transformers_prepares_images_as_we_do(tmp_path, fit, crop_fraction):
    transformers = peer("transformers")
    bundle = saved(tmp_path, fit=fit, crop_fraction=crop_fraction)
    folder, _ = export_run(tmp_path, "huggingface")
    processor = transformers.AutoImageProcessor.from_pretrained(folder)
    noise = Image.fromarray(np.random.default_rng(0).integers(256, size=(6, 9), dtype=np.uint8))
    image = noise.resize((90, 60), Image.Resampling.BICUBIC).convert("RGB")
    (theirs,) = processor(image, return_tensors="pt")["pixel_values"]
    ours = bundle.preprocess.normalise(torch.from_numpy(bundle.preprocess.fit_image(image))[None])[0]
    level = 1 / 255 / 0.2
    assert theirs.shape == ours.shape
    assert (theirs - ours).abs().mean() < 2 * level and (theirs - ours).abs().max() < 12 * level


def test_transformers_reads_gray_pictures_for_a_gray_model(tmp_path):
    transformers = peer("transformers")
    bundle = tiny_bundle(pool="cls")
    bundle.save(tmp_path)
    folder, _ = export_run(tmp_path, "huggingface")
    processor = transformers.AutoImageProcessor.from_pretrained(folder)
    image = Image.effect_noise((8, 8), 90)
    (theirs,) = processor(image, return_tensors="pt")["pixel_values"]
    ours = bundle.preprocess.normalise(torch.tensor(bundle.preprocess.fit_image(image))[None])[0]
    torch.testing.assert_close(theirs, ours)
    assert len(processor(image.convert("RGB"), return_tensors="pt")["pixel_values"][0]) == 3


@pytest.mark.parametrize(("side", "aside"), [(9, 0), (10, 0), (11, 1), (12, 0), (13, 0), (15, 1)])
def test_transformers_cuts_a_pixel_aside_where_deploying_says_so(tmp_path, side, aside):
    transformers = peer("transformers")
    bundle = tiny_bundle(pool="cls")
    preprocess = bundle.preprocess.model_copy(update={"fit": "crop", "crop_fraction": 8 / side})
    write_huggingface(replace(bundle, preprocess=preprocess), tmp_path)
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path)
    image = Image.linear_gradient("L").crop((0, 0, side, side))  # a level a row
    (theirs,) = processor(image, return_tensors="pt")["pixel_values"]
    ours = preprocess.normalise(torch.tensor(preprocess.fit_image(image))[None])[0]
    torch.testing.assert_close(ours - theirs, torch.full((1, 8, 8), aside / 255 / 0.2), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", TIMM)
def test_timm_loads_every_weight_and_gives_the_same_logits(tmp_path, name):
    timm = peer("timm")
    bundle = saved(tmp_path, **TIMM[name])
    folder, receipt = export_run(tmp_path, "timm")
    theirs = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()  # strict: a key too many or few raises
    images = images_for(bundle)
    with torch.no_grad():
        expected = bundle.model(images)
        torch.testing.assert_close(theirs(images), expected, rtol=0, atol=2e-6)
    assert receipt["max_abs_difference"] <= 2e-6 and expected.std() > 0.1
    config = timm.data.resolve_model_data_config(theirs)
    said = [tuple(config[key]) for key in ("input_size", "mean", "std")]
    assert said == [bundle.preprocess.shape, bundle.preprocess.mean, bundle.preprocess.std]
    assert (config["interpolation"], config["crop_mode"], config["crop_pct"]) == ("bilinear", "squash", 1.0)
    assert theirs.pretrained_cfg["label_names"] == list(bundle.class_names)
    assert load_weights(folder)[0].temperature == 1.7
