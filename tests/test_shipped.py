"""The models that a checkout ships: each loads, its card is made of its files, and it still is as good as they say.

What the real ones must stand, a tiny one stands too, of which more is known.
"""

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from safetensors.torch import load_file
from ship import ship
from tiny import CLASSES, equal, tiny_bundle, tiny_recipe, weights_of, write_images

from vitreous import Bundle, evaluate, predict
from vitreous.card import card
from vitreous.data.images import Split
from vitreous.data.sources import load
from vitreous.data.stores import ArrayImages
from vitreous.export.hub import push_run
from vitreous.prediction import forward
from vitreous.train.choose import choose_recipe
from vitreous.train.run import fit
from vitreous.weights import bundle as bundle_module
from vitreous.weights.bundle import read_config

REAL, TINY = ("cifar10", "cifar100", "mnist"), "tiny"
SAMPLE = 400  # test images
RIGHT = {"cifar10": 390, "cifar100": 330, "mnist": 395}  # answers of each to them, in float32 as in bf16


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A folder with data/mnist, which are stripes; a run on them; and models/mnist, made of the run."""
    root = tmp_path_factory.mktemp("tiny")
    write_images(root / "data" / "mnist" / "train", 16)
    write_images(root / "data" / "mnist" / "test", 8, seed=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITREOUS_DATA", str(root / "data"))
        patch.setenv("VITREOUS_CACHE", str(root / "cache"))
        recipe = tiny_recipe(
            epochs=16,
            model={"patch_embedding": "conv_stem", "stem_channels": (4,)},
            data={"source": "mnist"},
            augment={"shift": 1},
            optim={"learning_rate": 0.01},
        )
        run = fit(recipe, out=root / "run", device="cpu", pictures=False, console=Console(file=io.StringIO()))
        assert run.results["test"]["top1"] == 1  # far from any tie that rounding could break
        ship(root / "run", "mnist", models=root / "models", device="cpu")
    return root


@pytest.fixture
def at_home(tiny, monkeypatch):
    """The tiny model is what is shipped, and its data what is kept."""
    monkeypatch.setattr(bundle_module, "SHIPPED", tiny / "models")
    monkeypatch.setenv("VITREOUS_DATA", str(tiny / "data"))
    return tiny


@pytest.fixture(params=[TINY, *REAL])
def folder(request):
    """Each shipped folder."""
    if request.param == TINY:
        return request.getfixturevalue("at_home") / "models" / "mnist"
    return bundle_module.SHIPPED / request.param


def read(file):
    return json.loads(file.read_text())


# --- what every shipped model stands ---


def test_these_models_are_shipped_and_nothing_else():
    assert {path.name for path in bundle_module.SHIPPED.glob("*")} == set(REAL)


def test_it_loads_and_is_small(folder):
    bundle, stored = Bundle.load(folder), load_file(folder / "model.safetensors")
    assert sum(file.stat().st_size for file in folder.iterdir()) < 8_000_000
    assert {value.dtype for value in stored.values() if value.is_floating_point()} == {torch.float16}
    assert all(value.isfinite().all() for value in stored.values())
    results = read(folder / "results.json")
    assert results["params"] == sum(value.numel() for value in bundle.model.parameters())
    assert read(folder / "data.json")["classes"] == list(bundle.class_names)


def test_its_card_is_made_of_its_files(folder):
    text, results = (folder / "README.md").read_text(), read(folder / "results.json")
    assert text == card(folder)
    assert f"Test top-1: **{results['float16']['top1']:.2%}**." in text
    exact = ""
    if results["precision"] == "bf16" and "float32" in results:
        exact = f"{results['float32']['top1']:.2%} | "
    assert f"| top-1 | {results['test']['top1']:.2%} | {exact}{results['float16']['top1']:.2%} |" in text
    assert f"{results['train_seconds']:,.0f} s on " in text
    assert "/tmp" not in text and "None" not in text and "nan" not in text


def test_rounding_to_float16_cost_nothing(folder):
    results = read(folder / "results.json")
    exact = results.get("float32", results["test"])
    assert abs(exact["top1"] - results["float16"]["top1"]) < 0.001 + 1e-9
    assert results["test"]["count"] == results["float16"]["count"]


def test_it_answers_by_its_name(folder, tmp_path):
    Image.effect_noise((60, 40), 80).save(tmp_path / "photo.jpg")
    (answer,) = predict(folder.name, tmp_path / "photo.jpg", top=200, device="cpu")
    assert set(answer.classes) == set(Bundle.load(folder).class_names)
    assert sum(answer.probabilities) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize(
    ("name", "logits"),
    [
        ("cifar10", [-0.692, -0.954, 1.004, -0.253, 0.57, -0.899, 3.415, -1.073, -0.919, -1.242]),
        ("cifar100", [0.588, -1.228, 0.591, -0.939, -0.012, -0.785, 0.458, 1.325, -0.399, -0.673]),
        ("mnist", [0.189, -0.736, -0.944, -0.748, -0.46, -1.077, 1.178, -0.868, 3.84, -0.974]),
    ],
)
def test_it_is_the_same_function_in_every_version(name, logits):
    """The first ten logits of noise, as the version that shipped it had them: an option's meaning may not change."""
    bundle = Bundle.of(name)
    noise = np.random.default_rng(0).integers(0, 256, (1, *bundle.preprocess.shape), np.uint8)
    found = forward(bundle.model, torch.from_numpy(noise), bundle.preprocess, "float32")
    assert found[0, :10].tolist() == pytest.approx(logits, abs=2e-3)


def test_it_knows_the_data_it_was_trained_on(at_home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert (
        evaluate("mnist", device="cpu")["count"] == read(at_home / "models" / "mnist" / "results.json")["test"]["count"]
    )


def test_it_still_scores_what_it_says(real_data, folder):
    """Within four standard errors of a share of so few images: by chance less than one sample in 10,000 is further.

    And as many as were right of these very images before, but for two, which rounding may turn.
    """
    real_data(folder.name)
    data, says = load(folder.name), read(folder / "results.json")["float16"]["top1"]
    rows = np.unique(np.linspace(0, len(data.test) - 1, SAMPLE).astype(int))
    pixels = data.test.images.read(rows, read_config(folder).preprocess)  # or all images would be decoded for a few
    sample = Split(ArrayImages(pixels), data.test.labels[rows])
    found = evaluate(folder.name, replace(data, test=sample), device="cpu")
    assert found["count"] == len(rows)
    assert abs(found["top1"] - says) <= 4 * (says * (1 - says) / len(rows)) ** 0.5
    if len(rows) == SAMPLE:  # a real one
        assert abs(found["top1"] * SAMPLE - RIGHT[folder.name]) < 2.5


# --- shipping one ---


@pytest.fixture
def run(at_home, tmp_path):
    """What shipping reads of the run, to be changed."""
    for name in ("recipe.yaml", "data.json", "environment.json", "results.json", "model/config.json"):
        (tmp_path / "run" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "run" / name).write_bytes((at_home / "run" / name).read_bytes())
    Bundle.load(at_home / "run" / "model").save(tmp_path / "run" / "model")
    return tmp_path / "run"


def change(file, old, new):
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))


def test_what_is_shipped_is_the_run_in_float16(tiny):
    before, after = weights_of(tiny / "run"), load_file(tiny / "models" / "mnist" / "model.safetensors")
    assert before.keys() == after.keys()
    for name, value in before.items():
        assert torch.equal(after[name], value.half() if value.is_floating_point() else value), name
    counts = {name: value for name, value in after.items() if not value.is_floating_point()}
    assert {name.rpartition(".")[2] for name in counts} == {"num_batches_tracked"}
    assert all(value.dtype == torch.int64 and value > 0 for value in counts.values())
    assert any(name.endswith("running_var") for name in after)


def test_a_shipped_model_is_pushed_as_it_is(tiny, monkeypatch):
    pushed = push_run(tiny / "models" / "mnist", "me/mnist", dry_run=True)
    assert pushed.files["model.safetensors"] == (tiny / "models" / "mnist" / "model.safetensors").stat().st_size
    assert "stored in float16" in pushed.card


def test_nothing_of_the_machine_is_shipped(tiny):
    folder = tiny / "models" / "mnist"
    assert {file.name for file in folder.iterdir()} == {
        "README.md", "config.json", "data.json", "environment.json", "model.safetensors", "recipe.yaml", "results.json",
    }  # fmt: skip
    assert not any(str(tiny).encode() in file.read_bytes() for file in folder.iterdir())
    assert "command" not in read(folder / "environment.json")


def test_a_card_says_how_the_weights_were_chosen(run):
    folder = ship(run, "mnist", models=run.parent / "models", device="cpu")
    best = read(folder / "results.json")["best_epoch"]
    text = f"The weights are those of epoch {best} of 16, chosen by 12 validation images (top-1 100.00%)."
    assert text in card(folder) and "- epochs: 16\n" in card(folder)
    loss = read(folder / "results.json")["val"]["loss"]
    change(folder / "recipe.yaml", "best_by: top1", "best_by: loss")
    assert f"chosen by 12 validation images (loss {loss:.4f})." in card(folder)
    (folder / "results.json").write_text(json.dumps(read(folder / "results.json") | {"val": None}))
    assert "There were no validation images: the weights are those after 14.2 passes." in card(folder)
    change(folder / "recipe.yaml", "time_limit: null", "time_limit: 90")
    assert "- epochs: 16, or what 90 s suffice for\n" in card(folder)


def test_a_shipped_name_is_all_that_the_commands_need(vitreous, at_home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Image.effect_noise((8, 8), 80).save("photo.jpg")
    code, out, _ = vitreous("predict", "mnist", "photo.jpg", "--device", "cpu")
    assert code == 0 and vitreous("evaluate", "mnist", "mnist", "--out", "figures", "--device", "cpu")[0] == 0
    assert out.startswith("photo.jpg: ") and all(name in out for name in CLASSES)
    assert read(Path("figures/results.json"))["test"] == read(at_home / "models/mnist/results.json")["float16"]


def test_a_record_is_that_of_the_model_that_answers(at_home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mnist").mkdir()
    assert bundle_module.find_record("mnist") == at_home / "models" / "mnist"
    (tmp_path / "mnist" / "recipe.yaml").write_text("of a run without a model")
    with pytest.raises(ValueError, match=r"^mnist holds no trained model"):
        bundle_module.find_bundle("mnist")
    monkeypatch.setenv("HOME", str(at_home))
    assert bundle_module.find_record("~/models/mnist") == at_home / "models" / "mnist"
    (tmp_path / "mnist" / "recipe.yaml").unlink()
    tiny_bundle().save(tmp_path / "mnist")
    assert bundle_module.find_record("mnist") is None


def test_the_cards_command_trains_the_model_again(at_home, tmp_path):
    command = "vitreous train --recipe models/mnist/recipe.yaml"
    assert command in (at_home / "models" / "mnist" / "README.md").read_text()
    recipe, _, _ = choose_recipe(None, str(at_home / "models" / "mnist" / "recipe.yaml"), [])
    again = fit(recipe, out=tmp_path / "again", device="cpu", pictures=False, console=Console(file=io.StringIO()))
    assert equal(weights_of(again.folder), weights_of(at_home / "run"))


def refused(run):
    with pytest.raises(ValueError) as caught:
        ship(run, "mnist", models=run.parent / "models", device="cpu")
    assert not (run.parent / "models").exists()
    return str(caught.value)


def test_another_top1_in_float16_is_refused(run, monkeypatch):
    def judged(whole):
        tops, asked = iter([whole, 1.0]), []

        def evaluate(*_, **how):
            asked.append(how)
            return figures | {"top1": next(tops)}

        monkeypatch.setitem(ship.__globals__, "evaluate", evaluate)
        return asked

    figures = read(run / "results.json")["test"]
    judged(0.9985)
    assert refused(run).startswith(
        "test top-1 is 99.85% with the run's weights and 100.00% in float16, and may differ by 0.10%"
    )
    asked = judged(0.999)
    assert ship(run, "mnist", models=run.parent / "models", device="cpu").is_dir()
    assert [how["precision"] for how in asked] == ["float32"] * 2


def test_weights_beyond_float16_are_refused(run):
    bundle = Bundle.load(run / "model")
    with torch.no_grad():
        bundle.model.head.weight.mul_(1e6)
    bundle.save(run / "model")
    assert refused(run) == "'head.weight' has values that float16 cannot hold: keep float32"


def test_too_large_a_model_is_refused(run, monkeypatch):
    monkeypatch.setitem(ship.__globals__, "LARGEST", 1000)
    assert "bytes of float16 weights: at most 1,000 are shipped" in refused(run)


def test_a_run_without_the_figures_is_refused(run):
    results = read(run / "results.json")
    (run / "results.json").write_text(json.dumps(results | {"test": None}))
    assert refused(run).endswith("has no test figures: train on data with test images")
    (run / "results.json").unlink()
    assert refused(run).endswith("is not a finished run, as it has no results.json: train it to the end")


def test_a_run_on_a_folder_of_ones_own_is_refused(run):
    change(run / "recipe.yaml", "source: mnist", "source: photos")
    assert refused(run).endswith("was trained on photos: only models of digits, mnist, cifar10, cifar100 are shipped")
