"""Which recipe a set gets when none is named, where the settings come from, and what the data adds to them."""

import numpy as np
import pytest
import torch
from PIL import Image
from tiny import tiny_bundle, tiny_recipe, tiny_set, write_images

from vitreous.data.images import ImageSet
from vitreous.data.sources import load
from vitreous.recipe import read_recipe
from vitreous.train import choose
from vitreous.train.choose import choose_recipe, fit_to_data, recipe_for, with_data
from vitreous.weights import bundle as bundle_module


def images(count, side=32):
    return ImageSet.from_arrays(np.zeros((count, side, side), np.uint8), np.arange(count) % 2)


def test_what_would_do_nothing_is_refused_where_someone_gives_it_and_not_where_it_is_chosen(tmp_path):
    folder = str(write_images(tmp_path / "photos", 4))
    with pytest.raises(
        ValueError, match=r"optim\.muon_momentum does nothing here, as optim\.name is adamw: leave it out"
    ):
        choose_recipe(folder, None, ["optim.name=adamw", "optim.muon_momentum=0.9"])
    large = write_images(tmp_path / "large", 1) / "ant" / "000.png"
    Image.new("L", (96, 80)).save(large)
    recipe, _, reason = choose_recipe(str(tmp_path / "large"), None, ["optim.name=adamw"])
    assert "optim.muon_weight_decay=0.3" in reason and recipe.optim.name == "adamw"


FINER = ["model.patch_size=2", "model.stem_strides=[1,2,1,1,1]"]


@pytest.mark.parametrize(
    ("count", "side", "name", "settings"),
    [
        (10, 8, "small-images", ["epochs=300", *FINER, "augment.shift=1"]),
        (10, 16, "small-images", ["epochs=300", *FINER, "augment.shift=2"]),
        (10, 17, "small-images", ["epochs=300", "augment.shift=2"]),
        (10_000, 8, "small-images", ["epochs=50", *FINER, "augment.shift=1"]),
        (100_000, 4, "small-images", ["epochs=20", *FINER, "augment.shift=0"]),
        (10, 64, "small-images", ["epochs=300", "augment.shift=4"]),
        (10, 65, "photos", ["epochs=300", "optim.muon_weight_decay=0.3", "best_by=loss"]),
        (999, 65, "photos", ["epochs=300", "optim.muon_weight_decay=0.3", "best_by=loss"]),
        (1_000, 65, "photos", ["epochs=300"]),
    ],
)
def test_the_size_and_number_of_the_images_choose_the_recipe(count, side, name, settings):
    assert recipe_for(images(count, side), count) == (name, settings)


@pytest.mark.parametrize(("share", "epochs"), [("1", 200), ("0.5", 300)])
def test_a_share_of_the_images_is_shown_as_often_in_all(share, epochs):
    recipe, _, reason = choose_recipe(images(2500, 96), None, [f"data.train_share={share}"])
    assert recipe.epochs == epochs and f"chosen for {2500 * float(share):,.0f} training images" in reason
    recipe, _, reason = choose_recipe(images(100, 96), None, [f"data.train_share={share}", "start.weights=x"])
    assert recipe.epochs == 10 / float(share)


def test_a_named_set_without_a_recipe_of_its_name_has_one_for_its_images(tmp_path, monkeypatch):
    write_images(tmp_path / "fashion-mnist" / "train", 8)
    monkeypatch.setenv("VITREOUS_DATA", str(tmp_path))
    assert choose_recipe("fashion-mnist", None, [])[2].startswith("recipe small-images, chosen for 24 training images")


def test_the_head_is_fitted_first_to_as_many_images_as_the_documents_say():
    assert choose.PROBED == 10_000


def test_weights_that_are_taken_back_are_none():
    _, _, reason = choose_recipe(images(100, 96), None, ["start.weights=x", "start.weights=null"])
    assert reason.startswith("recipe photos, chosen for 100")


@pytest.fixture
def photos(tmp_path):
    return write_images(tmp_path / "photos", 10)


def test_settings_may_fit_to_those_that_are_chosen(photos):
    recipe, *_ = choose_recipe(str(photos), None, ["model.image_size=6"])  # three of the patches chosen for 8 pixels
    assert (recipe.model.image_size, recipe.model.patch_size) == ((6, 6), (2, 2))


def test_a_set_called_like_a_recipe_gets_it():
    recipe, data, reason = choose_recipe("digits", None, ["epochs=3"])
    assert (recipe.epochs, recipe.data.source, data, reason) == (3, "digits", None, "")
    assert recipe.optim == read_recipe("digits").optim


def test_a_named_set_keeps_its_recipe_with_another_column():
    recipe, data, _ = choose_recipe("digits:style", None, [])
    assert (recipe.data.source, data) == ("digits:style", None) and recipe.optim == read_recipe("digits").optim


FULL = "as there is no CUDA GPU; --recipe digits is the one for a GPU"


@pytest.mark.parametrize(
    ("device", "amx", "name", "reason"),
    [
        ("cuda", True, "digits", "recipe digits, as there is a GPU; --recipe digits-cpu is the one for a CPU"),
        ("cpu", False, "digits-cpu", f"recipe digits-cpu, {FULL}"),
        ("mps", False, "digits-cpu", f"recipe digits-cpu, {FULL}"),
        ("cpu", True, "digits-amx", f"recipe digits-amx, for a processor with AMX or one as fast, {FULL}"),
    ],
)
def test_without_a_gpu_the_recipe_for_this_cpu_is_taken_and_said(monkeypatch, device, amx, name, reason):
    found = read_recipe("digits")
    monkeypatch.setattr(choose, "recipe_names", lambda: ["digits", "digits-amx", "digits-cpu"])
    monkeypatch.setattr(choose, "pick_device", torch.device)
    monkeypatch.setattr(choose, "has_wide_bf16", lambda: amx)
    monkeypatch.setattr(choose, "read_recipe", lambda asked, told: found if asked == name else read_recipe(asked, told))
    recipe, _, said = choose_recipe("digits", None, [], device=device)
    assert recipe.optim == found.optim and said == reason


def test_without_a_recipe_for_amx_such_a_processor_gets_the_one_for_a_cpu(monkeypatch):
    monkeypatch.setattr(choose, "recipe_names", lambda: ["digits", "digits-cpu"])
    monkeypatch.setattr(choose, "has_wide_bf16", lambda: True)
    assert choose.recipe_like("digits", "cpu") == ("digits-cpu", f"recipe digits-cpu, {FULL}")


def test_a_recipe_that_is_named_is_taken_on_any_device(monkeypatch):
    monkeypatch.setattr(choose, "recipe_names", lambda: ["digits", "digits-cpu"])
    recipe, _, said = choose_recipe("digits", "digits", [], device="cpu")
    assert recipe.optim == read_recipe("digits").optim and said == ""


def test_a_named_set_is_itself_even_beside_a_folder_of_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits").mkdir()
    recipe, _, _ = choose_recipe("digits", None, [])
    assert recipe.data.source == "digits"


def test_a_folder_gets_the_recipe_of_its_images_and_says_so(photos, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe, data, reason = choose_recipe("photos", None, ["optim.batch_size=16"])
    settings = f"epochs=300 {' '.join(FINER)} augment.shift=1"
    assert reason == f"recipe small-images, chosen for 30 training images: {settings}"
    assert len(data.train) == 30 and recipe.data.source == str(photos)  # wherever the run is resumed
    assert (recipe.epochs, recipe.model.patch_size, recipe.augment.shift) == (300, (2, 2), 1)
    assert recipe.optim.batch_size == 16
    assert recipe.optim.name == read_recipe("small-images").optim.name
    _, _, reason = choose_recipe("photos", None, ["epochs=2"])
    assert reason.endswith(f"training images: {' '.join(FINER)} augment.shift=1")  # without what is not so


def test_a_folder_of_images_of_many_sizes_gets_the_recipe_for_photos(photos):
    Image.new("L", (20, 10)).save(photos / "ant" / "x.png")
    recipe, data, reason = choose_recipe(str(photos), None, [])
    settings = "epochs=300 optim.muon_weight_decay=0.3"
    assert reason == f"recipe photos, chosen for 31 training images: {settings} best_by=loss"
    assert data.train.images.shape is None and recipe.optim == read_recipe("pizza").optim
    assert recipe.best_by == "loss"
    fitted = fit_to_data(recipe, data.divided(recipe.data))
    assert fitted.model.image_size == read_recipe("photos").model.image_size
    recipe, data, reason = choose_recipe(str(photos), None, ["data.val_fraction=0"])  # no validation loss to choose by
    assert reason.endswith(settings) and fit_to_data(recipe, data).best_by == "top1"


def test_what_is_asked_for_wins_over_what_is_chosen(photos):
    recipe, _, _ = choose_recipe(str(photos), None, ["epochs=2", "model.patch_size=4"])
    assert recipe.epochs == 2 and recipe.model.patch_size == (4, 4)


@pytest.mark.parametrize(
    ("asked", "patch", "strides"),
    [
        ("model.patch_size=2", 2, (1, 2, 1, 1, 1)),
        ("model.patch_size=4", 4, (1, 2, 1, 2, 1)),
        ("model.patch_size=8", 8, (1, 2, 1, 2, 2)),
        ("model.patch_size=16", 16, ()),
        ("model.size=nano/8", 8, (1, 2, 1, 2, 2)),
        ("model.size=nano", 2, (1, 2, 1, 1, 1)),
        ("model.stem_channels=[8,16]", 2, ()),
    ],
)
def test_a_chosen_stem_halves_as_often_as_the_patch_size_asked_for_needs(photos, asked, patch, strides):
    model = choose_recipe(str(photos), None, [asked])[0].model
    assert (model.patch_size, model.stem_strides) == ((patch, patch), strides)


def test_a_named_recipe_is_taken_for_any_data(photos):
    recipe, data, reason = choose_recipe(str(photos), "digits", [])
    assert recipe.data.source == str(photos) and data is None and reason == ""
    assert recipe.augment == read_recipe("digits").augment


def test_data_left_out_is_that_of_the_recipe():
    assert choose_recipe(None, "digits", [])[0].data.source == "digits"


def test_data_may_be_given_as_the_setting_that_it_is(photos):
    settings = [f'data.source="{photos}"']
    (recipe, *_), (other, *_) = choose_recipe(None, None, settings), choose_recipe(str(photos), None, [])
    assert recipe == other


def test_a_recipe_without_data_needs_some():
    with pytest.raises(ValueError, match=r"^recipe small-images names no data: give DATA"):
        choose_recipe(None, "small-images", [])
    with pytest.raises(ValueError, match=r"^nothing to train on: give DATA"):
        choose_recipe(None, None, [])


def test_the_image_size_is_still_the_datas():
    recipe, _, _ = choose_recipe("digits", None, ["model.depth=1"])
    assert recipe.resolve(image_size=(8, 8), channels=1, num_classes=10).model.image_size == (8, 8)


def test_a_resumed_run_has_its_own_recipe_with_what_is_asked_for_on_top(tmp_path):
    saved = tiny_recipe(seed=4).resolve(image_size=(8, 8), channels=1, num_classes=3)
    (tmp_path / "recipe.yaml").write_text(saved.dump())
    assert choose_recipe(None, None, [], tmp_path) == (saved, None, "")
    assert choose_recipe(None, None, ["seed=5"], tmp_path)[0].seed == 5
    moved, _, _ = choose_recipe("digits", None, [], tmp_path)
    assert moved.data.source == "digits" and moved.with_options("data", source=None) == saved


# --- what the data adds ---


@pytest.mark.parametrize(("side", "expected"), [(8, 8), (9, 8), (10, 8), (11, 12), (1, 4)])
def test_the_image_size_is_rounded_to_whole_patches(side, expected):
    assert fit_to_data(tiny_recipe(), images(6, side)).model.image_size == (expected, expected)  # patches of 4


def test_channels_and_classes_are_the_datas():
    model = fit_to_data(tiny_recipe(), tiny_set(channels=3, classes=8)).model
    assert (model.channels, model.num_classes, model.image_size) == (3, 8, (8, 8))


def test_what_the_recipe_says_stays():
    model = fit_to_data(tiny_recipe(model={"image_size": 12, "channels": 3, "num_classes": 3}), tiny_set()).model
    assert (model.image_size, model.channels, model.num_classes) == ((12, 12), 3, 3)  # gray images become colour


@pytest.mark.parametrize(("field", "value"), [("num_classes", 4), ("channels", 2)])
def test_what_the_data_does_not_have_is_refused(field, value):
    with pytest.raises(ValueError, match=rf"^model\.{field} is {value} but .*leave it out$"):
        fit_to_data(tiny_recipe(model={field: value}), tiny_set())


def test_images_of_many_sizes_need_an_image_size(photos):
    Image.new("L", (20, 10)).save(photos / "ant" / "x.png")
    with pytest.raises(ValueError, match=r"images are of many sizes: .*, for example model.image_size=64"):
        fit_to_data(tiny_recipe(), load(photos))
    assert fit_to_data(tiny_recipe(model={"image_size": 8}), load(photos)).model.image_size == (8, 8)


@pytest.mark.parametrize(("name", "value"), [("patience", 2), ("best_by", "loss")])
def test_what_watches_validation_images_is_refused_where_there_are_none(name, value):
    recipe = tiny_recipe(**{name: value})
    with pytest.raises(
        ValueError, match=rf"{name} needs validation images, .*: add data\.val_fraction=0\.1, or leave it at {name}="
    ):
        fit_to_data(recipe, tiny_set())
    assert getattr(fit_to_data(recipe, tiny_set().with_validation(0.25)), name) == value


def test_one_class_is_nothing_to_learn():
    data = ImageSet.from_arrays(np.zeros((4, 8, 8), np.uint8), [0] * 4, class_names=["cat"])
    with pytest.raises(ValueError, match="arrays has one class, 'cat': training needs two at least"):
        with_data(tiny_recipe(), data)


def test_a_relative_source_becomes_absolute_so_that_it_holds_anywhere(photos, monkeypatch):
    monkeypatch.chdir(photos.parent)
    recipe = tiny_recipe(data={"source": "photos"})
    for data in (None, load("photos")):
        assert with_data(recipe, data)[0].data.source == str(photos)
    names = [f"{file.parent.name}/{file.name}" for file in sorted(photos.rglob("*.png"))]
    rows = [f"{name},{name.partition('/')[0]}" for name in names]
    (photos / "list.csv").write_text("\n".join(["file,kind", *rows]))
    recipe = tiny_recipe(data={"source": "photos/list.csv:kind"})
    for data in (None, load("photos/list.csv:kind")):
        assert with_data(recipe, data)[0].data.source == f"{photos}/list.csv:kind"
    assert with_data(recipe, tiny_set())[0].data.source is None
    assert with_data(tiny_recipe(data={"source": "digits"}), None)[0].data.source == "digits"


def test_weights_are_named_so_that_any_folder_finds_them(tmp_path, monkeypatch):
    tiny_bundle().save(tmp_path / "models" / "stripes")
    monkeypatch.setattr(bundle_module, "SHIPPED", tmp_path / "models")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stripes").mkdir()  # of images, say
    assert choose.lasting("stripes") == "stripes"
    assert choose.lasting("models/stripes") == str(tmp_path / "models" / "stripes")
