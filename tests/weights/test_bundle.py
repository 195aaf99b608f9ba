"""A model on disk: read back bit for bit, and each misfit of its parts told in one line."""

import json
import math
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import CLASSES, tiny_bundle, tiny_recipe, tiny_set, write_images
from torch.nn.utils import prune

from vitreous import Bundle
from vitreous.model import ViT
from vitreous.prediction import predict
from vitreous.preprocess import Preprocess
from vitreous.train.run import fit
from vitreous.weights import bundle as bundle_module
from vitreous.weights import find_bundle, load_weights
from vitreous.weights.bundle import find_record, is_shipped, read_config
from vitreous.weights.load import find_weights

OPTIONS = [
    {},
    {"patch_embedding": "conv_stem", "stem_channels": (4,), "registers": 2, "layer_scale": 0.1, "pool": "attention"},
    {"positions": "rope", "dim": 16, "norm": "rmsnorm", "qk_norm": True, "head_hidden": 8, "bias": False},
    {"positions": "sincos2d", "channels": 3},
]


@pytest.fixture
def saved(tmp_path):
    tiny_bundle().save(tmp_path / "model")
    return tmp_path / "model"


def change_config(folder, change):
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))


def refused(folder):
    with pytest.raises(ValueError) as caught:
        Bundle.load(folder)
    assert type(caught.value) is ValueError and "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "stem", "rotary", "colour"])
def test_a_round_trip_is_bit_exact(tmp_path, options):
    bundle = tiny_bundle(**options)
    bundle.save(tmp_path)
    again = Bundle.load(tmp_path)
    assert again.preprocess == bundle.preprocess and again.class_names == bundle.class_names
    assert again.model.config == bundle.model.config and not again.model.training
    expected, found = bundle.model.state_dict(), again.model.state_dict()
    assert expected.keys() == found.keys()
    for name in expected:
        assert expected[name].dtype == found[name].dtype and torch.equal(expected[name], found[name]), name
    images = torch.randn(4, bundle.model.config.channels, 8, 8)
    assert torch.equal(again.model(images), bundle.model(images))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


def test_a_model_in_the_home_folder_is_found(saved, monkeypatch):
    monkeypatch.setenv("HOME", str(saved.parent))
    (saved.parent / "recipe.yaml").write_text("epochs: 1")
    assert find_bundle("~") == find_bundle("~/model") == saved
    assert find_record("~") == saved.parent and not is_shipped("~/model")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_halves_the_file_and_loads_as_float32(tmp_path, dtype):
    bundle = tiny_bundle(patch_embedding="conv_stem", stem_channels=(4,))
    bundle.save(tmp_path / "whole")
    bundle.save(tmp_path / "half", dtype)
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("whole", "half")]
    count = sum(value.numel() for value in bundle.model.state_dict().values() if value.is_floating_point())
    assert sizes[0] - sizes[1] == pytest.approx(2 * count, abs=200)
    stored = load_file(tmp_path / "half" / "model.safetensors")
    assert {value.dtype for value in stored.values()} == {dtype, torch.int64}
    again = Bundle.load(tmp_path / "half")
    for name, value in again.model.state_dict().items():
        assert torch.equal(value, stored[name].to(value.dtype))
    assert {value.dtype for value in again.model.parameters()} == {torch.float32}
    assert next(bundle.model.parameters()).dtype == torch.float32  # the model that was saved stays as it was


def test_a_bundle_says_all_that_its_predictions_need(saved):
    config = json.loads((saved / "config.json").read_text())
    assert set(config) == {"model", "preprocess", "class_names", "temperature"}
    assert config["class_names"] == list(CLASSES) and config["preprocess"]["mean"] == [0.4]
    said = read_config(saved)
    assert (said.model.dim, said.preprocess.std, said.class_names, said.temperature) == (16, (0.2,), CLASSES, 1)
    assert said.calibrated_on is None


def test_the_temperature_is_kept_and_older_bundles_have_none(saved, tmp_path):
    replace(tiny_bundle(), temperature=1.75).save(tmp_path / "scaled")
    assert Bundle.load(tmp_path / "scaled").temperature == 1.75
    replace(Bundle.load(saved), temperature=0.5).save_config(saved)
    assert Bundle.load(saved).temperature == 0.5
    change_config(saved, lambda config: config.pop("temperature"))
    assert Bundle.load(saved).temperature == 1


def test_models_that_answer_otherwise_have_other_digests(saved):
    bundle = Bundle.load(saved)
    assert bundle.digest() == Bundle.load(saved).digest() and re.fullmatch("[0-9a-f]{64}", bundle.digest())
    others = [
        replace(bundle, temperature=bundle.temperature * 2),
        replace(bundle, class_names=bundle.class_names[::-1]),
        replace(bundle, preprocess=bundle.preprocess.model_copy(update={"fit": "squash"})),
        Bundle.load(saved),
    ]
    with torch.no_grad():
        next(others[-1].model.parameters()).view(-1)[0] += 1
    assert len({other.digest() for other in [bundle, *others]}) == 5


def test_saving_again_replaces_and_a_crash_leaves_the_old_file(saved, monkeypatch):
    before = (saved / "model.safetensors").read_bytes()

    def write_half(_, path):
        path.write_bytes(b"half a file")
        raise OSError("power cut")

    monkeypatch.setattr(bundle_module, "save_file", write_half)
    with pytest.raises(OSError, match="power cut"):
        tiny_bundle(seed=1).save(saved)
    assert (saved / "model.safetensors").read_bytes() == before
    monkeypatch.undo()
    tiny_bundle(seed=1).save(saved)
    assert (saved / "model.safetensors").read_bytes() != before
    assert torch.equal(Bundle.load(saved).model.head.weight, tiny_bundle(seed=1).model.head.weight)


# --- misfits ---


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("head.bias"), 'Missing key(s) in state_dict: "head.bias".'),
        (lambda w: w.update(extra=torch.zeros(2)), 'Unexpected key(s) in state_dict: "extra".'),
        (
            lambda w: w.update({"head.weight": torch.zeros(4, 16)}),
            "size mismatch for head.weight: copying a param with shape torch.Size([4, 16])",
        ),
        (
            lambda w: w.update({"head.weight": torch.zeros(16, 3)}),
            "size mismatch for head.weight: copying a param with shape torch.Size([16, 3])",
        ),
    ],
    ids=["missing", "unexpected", "another shape", "transposed"],
)
def test_weights_that_do_not_fit_the_config_are_named(saved, change, message):
    weights = load_file(saved / "model.safetensors")
    change(weights)
    save_file(weights, saved / "model.safetensors")
    told = refused(saved)
    assert told.startswith(f"{saved / 'model.safetensors'} does not fit its config: ") and message in told


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda c: c["class_names"].pop(),
            "2 class names for a model of 3 classes: name each of them once, in the order of its outputs",
        ),
        (
            lambda c: c["class_names"].append("dog"),
            "4 class names for a model of 3 classes: name each of them once, in the order of its outputs",
        ),
        (
            lambda c: c["preprocess"].update(image_size=[12, 12]),
            "preprocessing makes images of 1 x 12 x 12, the model reads 1 x 8 x 8: give this model's own",
        ),
        (
            lambda c: c["preprocess"].update(mean=[0.5] * 3, std=[0.5] * 3),
            "preprocessing makes images of 3 x 8 x 8, the model reads 1 x 8 x 8: give this model's own",
        ),
    ],
    ids=["a name too few", "a name too many", "another size", "other channels"],
)
def test_parts_that_do_not_fit_each_other_are_refused(saved, change, message):
    change_config(saved, change)
    assert refused(saved) == f"{saved / 'config.json'}: {message}"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.pop("model"), "it has no 'model'"),
        (lambda c: c.pop("preprocess"), "it has no 'preprocess'"),
        (lambda c: c.pop("class_names"), "it has no 'class_names'"),
        (lambda c: c["model"].update(dim=-1), "dim is -1: input should be greater than 0"),
        (lambda c: c["model"].update(colour="red"), "unknown key 'colour'"),
        (lambda c: c["model"].update(heads=3), "dim 16 is not divisible by heads 3"),
        (lambda c: c["preprocess"].update(std=[0]), "std (0.0,) is not within 0..1"),
        (lambda c: c.update(class_names=None), "class_names is null: give a list of strings"),
        (lambda c: c.update(class_names="abc"), 'class_names is "abc": give a list of strings'),
        (lambda c: c.update(class_names=["a", None, "c"]), 'class_names is ["a", null, "c"]: give a list of strings'),
        (lambda c: c.update(temperature=0), "temperature 0.0 is not above 0 and finite: give 1 where there is none"),
        (lambda c: c.update(temperature=math.nan), "temperature nan is not above 0 and finite: give 1 where"),
        (lambda c: c.update(temperature="warm"), "could not convert string to float: 'warm'"),
    ],
)
def test_a_config_that_is_no_model_is_refused(saved, change, message):
    change_config(saved, change)
    assert refused(saved).startswith(f"{saved / 'config.json'} does not describe a model: {message}")


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '"model"'])
def test_a_config_that_is_no_json_object_is_refused(saved, text):
    (saved / "config.json").write_text(text)
    assert refused(saved).startswith(f"{saved / 'config.json'} does not describe a model: ")


@pytest.mark.parametrize("damage", [lambda b: b[:100], lambda b: b"", lambda b: b[:-5], lambda b: b"no weights" * 50])
def test_damaged_weights_are_one_clear_error(saved, damage):
    file = saved / "model.safetensors"
    file.write_bytes(damage(file.read_bytes()))
    assert refused(saved).startswith(f"{file} is damaged or not a .safetensors file: ")


def test_weights_that_are_no_numbers_are_one_clear_error(tmp_path):
    bundle, file = tiny_bundle(), tmp_path / "model" / "model.safetensors"
    bundle.model.head.weight.data[1, 2] = 1e6
    with pytest.raises(ValueError, match=r"^'head.weight' has values that float16 cannot hold: keep float32$"):
        bundle.save(tmp_path / "half", dtype=torch.float16)  # which ends at 65,504
    bundle.model.head.weight.data[1, 2] = math.inf
    bundle.save(file.parent)
    assert refused(file.parent) == f"{file} is damaged: 'head.weight' has values that are no finite numbers"


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_missing_file_is_one_clear_error(saved, name):
    (saved / name).unlink()
    assert refused(saved) == f"{saved} has no {name}: give a folder with model.safetensors and config.json"


def test_reading_a_model_leaves_random_numbers_as_they_were(saved):
    for read in (Bundle.load, load_weights):
        torch.manual_seed(1)
        expected = torch.rand(3)
        torch.manual_seed(1)
        read(saved)
        assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("read", [Bundle.load, lambda folder: load_weights(folder)[0]])
def test_a_model_read_in_inference_mode_can_still_be_trained(saved, read):
    with torch.inference_mode():
        model = read(saved).model
    model(torch.zeros(2, *Bundle.load(saved).preprocess.shape)).sum().backward()
    assert all(weight.grad is not None for weight in model.parameters())


def test_a_model_moved_in_inference_mode_can_still_be_trained(monkeypatch):
    monkeypatch.setattr(bundle_module, "pick_device", lambda name: torch.device("meta"))
    bundle = tiny_bundle()
    with torch.inference_mode():
        bundle.to("auto")
    assert not any(weight.is_inference() for weight in bundle.model.parameters())


def test_a_model_stays_on_the_gpu_that_it_is_on_unless_another_device_is_asked_for(monkeypatch):
    asked = []
    monkeypatch.setattr(bundle_module, "pick_device", lambda name: asked.append(name) or torch.device("meta"))
    bundle = tiny_bundle()
    for device in ("auto", "auto", "cpu"):  # "meta" stands for a GPU
        assert bundle.to(device) == torch.device("meta") == next(bundle.model.parameters()).device
    assert asked == ["auto", "meta", "cpu"]


def pruned(model):
    prune.l1_unstructured(model.head, "weight", 0.5)
    return model


def subclassed(model):
    class Doubled(ViT):
        def forward(self, images):
            return 2 * super().forward(images)

    return Doubled(model.config)


@pytest.mark.parametrize("change", [pruned, subclassed])
def test_a_model_that_would_be_read_as_another_is_not_saved(tmp_path, change):
    bundle = tiny_bundle()
    with pytest.raises(ValueError, match=r"^model is a \w+ that differs from vt.ViT\(model.config\), as which"):
        replace(bundle, model=change(bundle.model)).save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_model_whose_batch_norm_several_gpus_share_is_saved_as_the_model_itself(tmp_path):
    bundle = tiny_bundle(patch_embedding="conv_stem", stem_channels=(4,))
    shared = torch.nn.SyncBatchNorm.convert_sync_batchnorm(bundle.model)
    assert any(isinstance(module, torch.nn.SyncBatchNorm) for module in shared.modules())
    replace(bundle, model=shared).save(tmp_path)
    assert Bundle.load(tmp_path).digest() == bundle.digest()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_model_is_saved_as_the_model_itself(tmp_path):
    bundle = tiny_bundle()
    compiled = replace(bundle, model=torch.compile(bundle.model))
    compiled.save(tmp_path)
    assert load_file(tmp_path / "model.safetensors").keys() == bundle.model.state_dict().keys()
    assert Bundle.load(tmp_path).digest() == bundle.digest() == compiled.digest()


# --- finding one ---


def test_a_bundle_is_loaded_from_its_run_too(saved, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    Bundle.load("~").save("~/again")
    assert Bundle.load(tmp_path / "again").digest() == Bundle.load(saved).digest()
    with pytest.raises(TypeError, match=r"^run is a ViT: give a run, its folder or a Bundle$"):
        Bundle.of(tiny_bundle().model)


def test_a_run_a_bundle_and_a_shipped_name_are_found(saved, tmp_path, monkeypatch):
    assert find_bundle(tmp_path) == find_bundle(str(saved)) == saved
    tiny_bundle().save(tmp_path / "shipped" / "stripes")
    monkeypatch.setattr(bundle_module, "SHIPPED", tmp_path / "shipped")
    assert find_bundle("stripes") == tmp_path / "shipped" / "stripes"
    with pytest.raises(ValueError, match=r"^no model 'strips' here: give a run folder, .*, or one of stripes$"):
        find_bundle("strips")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stripes").mkdir()  # of images, maybe
    assert is_shipped("stripes")
    for ours in ("recipe.yaml", "evaluation.json", "fold-1"):
        (tmp_path / "stripes" / ours).mkdir()
        assert not is_shipped("stripes")
        (tmp_path / "stripes" / ours).rmdir()


def test_the_record_of_a_run_is_found_from_its_model_and_anothers_is_not(saved, tmp_path, monkeypatch):
    run = tmp_path / "home" / "run"
    shutil.copytree(saved, run / "model")
    asked = (run / "model", run / "model" / "model.safetensors")
    (run / "recipe.yaml").write_text("trainer: {}")  # of another program, whose model stands beside it
    assert [find_record(place) for place in (run, *asked)] == [run, None, None]
    (run / "data.json").write_text("{}")
    assert [find_record(place) for place in (run, *asked)] == [run] * 3
    monkeypatch.chdir(run / "model")
    assert find_record(".") == find_record("model.safetensors") == run


def test_a_run_that_has_no_model_yet_is_named(tmp_path):
    (tmp_path / "folds" / "fold-1").mkdir(parents=True)
    (tmp_path / "folds" / "recipe.yaml").touch()
    with pytest.raises(ValueError, match=r"folds is a cross-validation, whose models are for judging"):
        find_weights(tmp_path / "folds")
    with pytest.raises(
        ValueError, match=r"folds is a cross-validation, .*or name one of its folds, such as .*/folds/fold-1$"
    ):
        find_bundle(tmp_path / "folds")
    with pytest.raises(ValueError, match=rf"^{re.escape(str(tmp_path))} holds no trained model \(model/model\.safe"):
        find_bundle(tmp_path)


def test_a_bundle_moved_elsewhere_answers_alike(tmp_path):
    run = fit(tiny_recipe(epochs=1), tiny_set(), out=tmp_path / "run", pictures=False)
    images = sorted(write_images(tmp_path / "photos", 2).rglob("*.png"))
    before = list(predict(run.folder, images, precision="float32"))
    (run.folder / "model").rename(tmp_path / "elsewhere")
    assert list(predict(tmp_path / "elsewhere", images, precision="float32")) == before


def test_preprocessing_travels_with_the_weights(tmp_path):
    bundle = tiny_bundle()
    preprocess = Preprocess(image_size=8, mean=(0.1,), std=(0.9,), interpolation="nearest", fit="squash")
    Bundle(bundle.model, preprocess, CLASSES).save(tmp_path)
    assert Bundle.load(tmp_path).preprocess == preprocess


def test_class_names_are_texts_whatever_holds_them(tmp_path):
    whole = tiny_bundle()
    made = Bundle(whole.model, whole.preprocess, np.array([3, 5, 7]))
    assert made.class_names == ("3", "5", "7")
    made.save(tmp_path)
    assert Bundle.load(tmp_path).class_names == made.class_names
    for given in ("abc", {"a", "b", "c"}):
        with pytest.raises(ValueError, match=r"^class_names is a (str|set): give a list of names, in"):
            Bundle(whole.model, whole.preprocess, given)


def test_weights_of_the_hub_are_no_run_and_the_way_to_them_is_told():
    with pytest.raises(ValueError, match=r"^hf:o/n is of another library: in Python, give vitreous\.weights\."):
        predict("hf:o/n", [])
