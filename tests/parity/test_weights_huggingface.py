"""Hugging Face's checkpoints, as `save_pretrained` writes them, are the same function in our model, and come back."""

import json

import numpy as np
import pytest
import torch
from compare import MISTAKES, TOLERANCE, differences, outputs, peer, randomise, same_bits
from PIL import Image
from safetensors.torch import load_file
from torch import nn

from vitreous.embedding import load_features
from vitreous.explain import open_pass
from vitreous.weights import from_huggingface, load_weights

transformers = peer("transformers")
VIT = (transformers.ViTForImageClassification, transformers.ViTConfig)
DINOV2 = (transformers.Dinov2ForImageClassification, transformers.Dinov2Config)
SMALL = {
    "image_size": 32,
    "patch_size": 8,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "id2label": {i: name for i, name in enumerate("abcdefg")},
}
KINDS = {
    "vit": (*VIT, {"intermediate_size": 96}),
    "vit, rectangular": (
        *VIT,
        {"intermediate_size": 96, "image_size": (24, 40), "patch_size": (8, 4), "num_channels": 1},
    ),
    "vit, no qkv bias": (*VIT, {"intermediate_size": 64, "qkv_bias": False}),
    "vit, tanh": (*VIT, {"intermediate_size": 96, "hidden_act": "gelu_pytorch_tanh"}),
    "dinov2": (*DINOV2, {}),
    "dinov2, registers": (
        transformers.Dinov2WithRegistersForImageClassification,
        transformers.Dinov2WithRegistersConfig,
        {"num_register_tokens": 3},
    ),
}


def made(folder, model_class, config_class, changes):
    """A model of theirs with random weights, written to the folder with its preprocessing."""
    model = randomise(model_class(config_class(**(SMALL | changes))))
    model.save_pretrained(folder)
    channels = model.config.num_channels
    write_preprocessing(
        folder, transformers.ViTImageProcessor(image_mean=[0.4] * channels, image_std=[0.2] * channels), model.config
    )
    return model


def write_preprocessing(folder, processor, config=None):
    said = json.loads(processor.to_json_string())
    if config is not None:
        height, width = (config.image_size,) * 2 if isinstance(config.image_size, int) else config.image_size
        said["size"] = {"height": height, "width": width}
    (folder / "preprocessor_config.json").write_text(json.dumps(said))


def blocks_of(model):
    inner = getattr(model, model.base_model_prefix, model)
    return inner.layers if hasattr(inner, "layers") else inner.encoder.layer


def images_for(bundle):
    torch.manual_seed(1)
    return torch.randn(4, *bundle.preprocess.shape)


def test_classes_are_in_the_order_of_their_numbers():
    names = [f"class {number}" for number in range(12)]  # as text, 10 would come before 2
    config = VIT[1](**(SMALL | {"id2label": dict(enumerate(names))})).to_dict()
    config["id2label"] = {str(number): name for number, name in enumerate(names)}
    preprocessing = json.loads(transformers.ViTImageProcessor(size={"height": 32, "width": 32}).to_json_string())
    assert from_huggingface.from_config(config, preprocessing, 12).class_names == tuple(names)


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_and_logits_equal_theirs_and_return_bit_for_bit(tmp_path, kind):
    theirs = made(tmp_path, *KINDS[kind])
    bundle, report = load_weights(tmp_path)
    images = images_for(bundle)
    expected = outputs(theirs, blocks_of(theirs), images)
    assert max(differences(bundle.model, expected, images)) < TOLERANCE and expected[-1].std() > 0.1
    file = load_file(tmp_path / "model.safetensors")
    masks = {name for name in file if "mask_token" in name}
    assert set(report.left_out) == masks and set(report.loaded) == set(file) - masks
    back = from_huggingface.to_theirs(bundle.model.state_dict(), bundle.model.config)
    assert same_bits(back, {name: value for name, value in file.items() if name not in masks})
    assert bundle.class_names == tuple("abcdefg")


@torch.no_grad()
def test_attention_weights_equal_theirs(tmp_path):
    theirs = made(tmp_path, *KINDS["vit"])
    bundle, _ = load_weights(tmp_path)
    images = images_for(bundle)
    theirs.set_attn_implementation("eager")
    expected = theirs(images, output_attentions=True).attentions
    for mine, yours in zip(open_pass(bundle.model, images).attention, expected, strict=True):
        torch.testing.assert_close(mine, yours, rtol=0, atol=TOLERANCE)


def test_gradients_equal_theirs(tmp_path):
    theirs = made(tmp_path, *KINDS["vit"])
    bundle, _ = load_weights(tmp_path)
    images, labels = images_for(bundle), torch.tensor([0, 3, 6, 3])
    for logits in (bundle.model(images), theirs(images).logits):
        nn.functional.cross_entropy(logits, labels).backward()
    for parameter in theirs.parameters():
        parameter.data = parameter.grad
    theirs.save_pretrained(tmp_path)  # so that gradients are read as weights are
    expected = load_weights(tmp_path)[0].model.state_dict()
    for name, parameter in bundle.model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.parametrize("name", MISTAKES)
def test_comparison_notices(tmp_path, name):
    theirs = made(tmp_path, *KINDS["vit"])
    bundle, _ = load_weights(tmp_path)
    images = images_for(bundle)
    MISTAKES[name](bundle.model)
    assert max(differences(bundle.model, outputs(theirs, blocks_of(theirs), images), images)) > 10 * TOLERANCE


@pytest.mark.parametrize(
    ("changes", "task"),
    [
        ({"problem_type": "multi_label_classification"}, "multi label classification"),
        ({"id2label": {0: "age"}}, "regression"),
    ],
)
def test_a_head_that_does_not_choose_between_classes_is_not_asked(tmp_path, changes, task):
    made(tmp_path, *VIT, {"intermediate_size": 96} | changes)
    with pytest.raises(ValueError, match=f"has a head for {task}, whose answers are not one class: only `vitreous em"):
        load_weights(tmp_path)
    assert load_weights(tmp_path, num_classes=3)[1].new_head and load_features(tmp_path).model
    made(tmp_path, *VIT, {"intermediate_size": 96, "problem_type": "single_label_classification"})
    assert load_weights(tmp_path)[0].class_names == tuple("abcdefg")


@pytest.mark.parametrize(
    ("model_class", "config_class", "changes"),
    [(transformers.ViTModel, VIT[1], {"intermediate_size": 96}), (transformers.Dinov2Model, DINOV2[1], {})],
)
def test_a_model_without_head_needs_a_number_of_classes_and_gives_its_features(
    tmp_path, model_class, config_class, changes
):
    theirs = made(tmp_path, model_class, config_class, changes)
    with pytest.raises(ValueError, match=r"has no head, so that it answers nothing: `vitreous embed` and"):
        load_weights(tmp_path)
    bundle, report = load_weights(tmp_path, num_classes=3)
    images = images_for(bundle)
    with torch.no_grad():
        expected = theirs(images).last_hidden_state
        torch.testing.assert_close(bundle.model.forward_features(images), expected, rtol=0, atol=TOLERANCE)
        assert torch.equal(bundle.model(images), torch.zeros(4, 3))
    assert report.new_head == "3 classes; the file has none"
    left = {"pooler.dense.weight", "pooler.dense.bias"} if config_class is VIT[1] else {"embeddings.mask_token"}
    assert set(report.left_out) == left
    assert any("left out: " in line and ("pooler" in line or "pretraining" in line) for line in report.lines())


@pytest.mark.parametrize("size", [(48, 48), (24, 40)])
def test_positions_are_resampled_as_dinov2_with_registers_does(tmp_path, size):
    theirs = made(tmp_path, *KINDS["dinov2, registers"])
    bundle, report = load_weights(tmp_path, image_size=size)
    assert report.grids == ((4, 4), (size[0] // 8, size[1] // 8))
    images = images_for(bundle)
    expected = outputs(theirs, blocks_of(theirs), images)
    assert max(differences(bundle.model, expected, images)) < TOLERANCE


@pytest.mark.parametrize("size", [(90, 60), (61, 98), (50, 50)])  # an odd remainder they halve down, we to even
@pytest.mark.parametrize(
    "processor",
    [
        transformers.ViTImageProcessor(size={"height": 32, "width": 32}, resample=3),
        transformers.BitImageProcessor(size={"shortest_edge": 40}, crop_size={"height": 32, "width": 32}),
        transformers.DeiTImageProcessor(size={"height": 40, "width": 40}, crop_size={"height": 32, "width": 32}),
    ],
    ids=["squash", "crop", "squash and crop"],
)
def test_images_are_prepared_as_theirs_are(tmp_path, processor, size):
    write_preprocessing(tmp_path, processor)
    said = json.loads((tmp_path / "preprocessor_config.json").read_text())
    preprocess = from_huggingface.read_preprocessing(said)
    smooth = np.random.default_rng(0).integers(0, 256, (6, 9, 3), np.uint8)
    image = Image.fromarray(smooth).resize(size, Image.Resampling.BICUBIC)
    expected = processor(image, return_tensors="pt")["pixel_values"][0]
    found = preprocess.normalise(torch.from_numpy(preprocess.fit_image(image))[None])[0]
    level = 1 / 255 / min(preprocess.std)
    assert found.shape == expected.shape
    assert (found - expected).abs().mean() < level and (found - expected).abs().max() < 6 * level


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ({"size": 32}, ((32, 32), "squash", 1.0)),
        ({"size": {"height": 32, "width": 24}}, ((32, 24), "squash", 1.0)),
        ({"size": 64, "do_center_crop": True, "crop_size": 56}, ((56, 56), "squash", 0.875)),
        (
            {"size": 64, "do_center_crop": True, "crop_size": 56, "feature_extractor_type": "DeiTFeatureExtractor"},
            ((56, 56), "squash", 0.875),
        ),
        (
            {"size": 64, "do_center_crop": True, "crop_size": 56, "image_processor_type": "BitImageProcessor"},
            ((56, 56), "crop", 0.875),
        ),
        (
            {"size": {"shortest_edge": 64}, "do_center_crop": True, "crop_size": {"height": 32, "width": 32}},
            ((32, 32), "crop", 0.5),
        ),
    ],
)
def test_sizes_of_older_and_newer_preprocessing_are_read(said, found):
    preprocess = from_huggingface.read_preprocessing(said | {"image_mean": [0.5] * 3, "image_std": [0.5] * 3})
    assert (preprocess.image_size, preprocess.fit, preprocess.crop_fraction) == found
    assert preprocess.interpolation == "bilinear"


@pytest.mark.parametrize(
    ("size", "crop", "reason"),
    [
        ({"shortest_edge": 256}, (224, 160), "cuts 224 x 160 out of what a square would cover"),
        ({"shortest_edge": 224}, (256, 256), "cuts 256 x 256 out of a smaller image"),
        ({"height": 256, "width": 128}, (224, 224), "cuts 224 x 224 out of a smaller image"),
        ({"height": 256, "width": 256}, (224, 192), "cuts another share of the rows than of the columns: .*"),
    ],
)
def test_a_cut_that_ours_would_make_otherwise_is_refused(size, crop, reason):
    said = {"size": size, "crop_size": dict(zip(("height", "width"), crop, strict=True)), "do_center_crop": True}
    with pytest.raises(ValueError, match=f"^preprocessor_config.json {reason}$"):
        from_huggingface.read_preprocessing(said | {"image_mean": [0.5] * 3, "image_std": [0.5] * 3})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"do_resize": False}, "does not resize images to one size"),
        ({"size": None}, "does not resize images to one size"),
        ({"do_rescale": False}, "does not scale pixels to 0..1"),
        ({"resample": 4}, f"has resample 4, not one of {', '.join(map(str, from_huggingface.RESAMPLE))}"),
        ({"do_flip_channel_order": True}, "has a step that ours lacks: do_flip_channel_order"),
        ({"rescale_factor": 1 / 127.5}, "does not scale pixels to 0..1"),
        ({"size": {"shortest_edge": 32}}, "leaves images of different sizes: it cuts out no centre"),
        ({"do_center_crop": True}, "cuts out a centre, and does not say of what size"),
        (
            {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}, "do_center_crop": False},
            "leaves images of different sizes: it cuts out no centre",
        ),
    ],
)
def test_preprocessing_that_ours_cannot_do_is_refused(changes, reason):
    said = {"size": {"height": 32, "width": 32}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    assert from_huggingface.read_preprocessing(said).mean == (0.5,) * 3
    with pytest.raises(ValueError) as caught:
        from_huggingface.read_preprocessing(said | changes)
    assert str(caught.value) == f"preprocessor_config.json {reason}"


def test_what_to_do_about_preprocessing_that_ours_cannot_do_is_told(tmp_path):
    made(tmp_path, *KINDS["vit"])
    said = json.loads((tmp_path / "preprocessor_config.json").read_text())
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(said | {"do_resize": False}))
    with pytest.raises(ValueError) as caught:
        load_weights(tmp_path)
    way_out = "give another model, or correct that file"
    place = f"{tmp_path / 'preprocessor_config.json'} does not"
    assert str(caught.value) == f"{place} resize images to one size: {way_out}"
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({k: v for k, v in said.items() if k != "image_mean"}))
    with pytest.raises(ValueError) as caught:
        load_weights(tmp_path)
    assert str(caught.value) == f"{place} say what it should: KeyError 'image_mean': correct that file"


def test_preprocessing_that_does_not_normalise_leaves_pixels_in_0_to_1():
    said = {"size": 32, "image_mean": [0.4] * 3, "image_std": [0.2] * 3, "do_normalize": False}
    preprocess = from_huggingface.read_preprocessing(said)
    assert (preprocess.mean, preprocess.std) == ((0,) * 3, (1,) * 3)
    gray = from_huggingface.read_preprocessing({"size": 32, "do_normalize": False}, channels=1)
    assert (gray.mean, gray.std) == ((0,), (1,))


def test_pixels_of_a_gray_model_that_are_not_normalised_are_of_one_channel(tmp_path):
    made(tmp_path, *VIT, {"num_channels": 1})
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"size": 32, "do_normalize": False}))
    preprocess = load_weights(tmp_path)[0].preprocess
    assert (preprocess.mean, preprocess.std) == ((0,), (1,))


def test_the_image_size_is_that_of_the_preprocessing(tmp_path):
    made(tmp_path, *KINDS["dinov2, registers"])
    processor = transformers.BitImageProcessor(size={"shortest_edge": 20}, crop_size={"height": 16, "width": 16})
    write_preprocessing(tmp_path, processor)
    bundle, report = load_weights(tmp_path)
    assert bundle.model.config.image_size == bundle.preprocess.image_size == (16, 16)
    assert report.grids == ((4, 4), (2, 2))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"use_swiglu_ffn": True}, "use_swiglu_ffn is true, and our MLP is not gated: give another size of DINOv2"),
        ({"id2label": {"0": "ant", "2": "bee"}}, "id2label does not number its 2 classes from 0 on: name every output"),
        (
            {"hidden_act": "relu"},
            "hidden_act 'relu' is not one of gelu, gelu_new, gelu_pytorch_tanh: give another model",
        ),
        (
            {"model_type": "swin"},
            "model_type 'swin' is not one of vit, dinov2, dinov2_with_registers: give weights of these",
        ),
        ({"num_attention_heads": 5}, "dim 48 is not divisible by heads 5: use dim 45 or 50"),
    ],
)
def test_what_our_model_cannot_be_is_refused_by_its_part(tmp_path, changes, reason):
    made(tmp_path, *KINDS["dinov2"])
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(ValueError) as caught:
        load_weights(tmp_path)
    assert str(caught.value) == f"{tmp_path / 'config.json'}: {reason}"


def test_a_config_that_does_not_say_how_images_are_normalised_is_not_enough(tmp_path):
    made(tmp_path, *KINDS["vit"])
    (tmp_path / "preprocessor_config.json").unlink()
    with pytest.raises(ValueError, match="nothing says how images are normalised"):
        load_weights(tmp_path)
