"""torchvision's checkpoints are the same function in our model, and come back bit for bit."""

import json

import pytest
import torch
from compare import TOLERANCE, differences, outputs, peer, randomise, same_bits, wrong_epsilon
from torch import nn

from vitreous.model import ViTConfig
from vitreous.preprocess import Preprocess
from vitreous.weights import from_torchvision, load_weights, maps
from vitreous.weights.maps import Description

models = peer("torchvision").models
SMALL = {"image_size": 32, "patch_size": 8}
THEIRS = SMALL | {"num_layers": 2, "num_heads": 4, "hidden_dim": 48, "mlp_dim": 96, "num_classes": 7}
OURS = SMALL | {"depth": 2, "heads": 4, "dim": 48, "mlp_ratio": 2, "num_classes": 7}


def made(folder):
    """A model of theirs with random weights, as a .pth file beside a config of ours."""
    model = randomise(models.VisionTransformer(**THEIRS))
    torch.save(model.state_dict(), folder / "vit.pth")
    config = ViTConfig(**OURS)
    preprocess = Preprocess(image_size=32, mean=(0.5,) * 3, std=(0.5,) * 3)
    said = {"model": config.model_dump(mode="json"), "preprocess": preprocess.model_dump(mode="json")}
    (folder / "config.json").write_text(json.dumps(said | {"class_names": list("abcdefg")}))
    return model


def images():
    return torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def test_blocks_and_logits_equal_those_of_torchvision_and_return_bit_for_bit(tmp_path):
    theirs = made(tmp_path)
    bundle, report = load_weights(tmp_path)
    expected = outputs(theirs, theirs.encoder.layers, images())
    assert max(differences(bundle.model, expected, images())) < TOLERANCE and expected[-1].std() > 0.1
    model, state = bundle.model, theirs.state_dict()
    assert set(report.loaded) == set(state) and not report.left_out
    assert same_bits(maps.to_theirs(model.state_dict(), from_torchvision.pairs(model.config), "torchvision"), state)
    wrong_epsilon(bundle.model)  # which embeddings this small show
    assert max(differences(bundle.model, expected, images())) > 10 * TOLERANCE


def test_files_from_before_the_mlp_was_renamed_are_read(tmp_path):
    theirs = made(tmp_path)
    old = {
        name.replace("mlp.0.", "mlp.linear_1.").replace("mlp.3.", "mlp.linear_2."): value
        for name, value in theirs.state_dict().items()
    }
    torch.save(old, tmp_path / "vit.pth")
    bundle, report = load_weights(tmp_path)
    assert set(report.loaded) == set(old) and "encoder.layers.encoder_layer_0.mlp.linear_1.weight" in old
    assert max(differences(bundle.model, outputs(theirs, theirs.encoder.layers, images()), images())) < TOLERANCE


def test_a_head_that_took_the_place_of_theirs_is_read(tmp_path, monkeypatch):
    theirs = made(tmp_path)
    theirs.heads = randomise(nn.Linear(48, 3))
    torch.save(theirs.state_dict(), tmp_path / "vit.pth")
    model = ViTConfig(**OURS | {"num_classes": 3})
    said = Description(model, Preprocess(image_size=32, mean=(0.5,) * 3, std=(0.5,) * 3), None)
    monkeypatch.setattr(from_torchvision, "from_architecture", lambda name, classes: {3: said}[classes])
    bundle, report = load_weights(tmp_path / "vit.pth", arch="vit_b_16")
    assert report.loaded["heads.weight"] == "head.weight" and not report.left_out
    assert max(differences(bundle.model, outputs(theirs, theirs.encoder.layers, images()), images())) < TOLERANCE


@pytest.mark.parametrize("name", from_torchvision.ARCHITECTURES)
def test_architectures_are_those_of_torchvision(name, monkeypatch):
    monkeypatch.setattr(models.vision_transformer, "_vision_transformer", lambda **arguments: arguments)
    function, _, weights = name.partition(".")
    family = models.get_model_weights(function)
    weights = family[weights] if weights else next(iter(family))
    arguments = models.get_model_builder(function)()
    said = from_torchvision.from_architecture(name, classes=1000)
    config, side = said.model, weights.meta["min_size"][0]
    assert config.patch_size == (arguments["patch_size"],) * 2 and config.image_size == (side, side)
    assert (config.dim, config.mlp_dim) == (arguments["hidden_dim"], arguments["mlp_dim"])
    assert (config.depth, config.heads) == (arguments["num_layers"], arguments["num_heads"])
    transform, preprocess = weights.transforms(), said.preprocess
    assert preprocess.image_size == (side, side) == (transform.crop_size[0],) * 2
    assert round(side / preprocess.crop_fraction) == transform.resize_size[0] and preprocess.fit == "crop"
    assert preprocess.interpolation == transform.interpolation.value
    assert (list(preprocess.mean), list(preprocess.std)) == (transform.mean, transform.std)
