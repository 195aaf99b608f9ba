"""Turn what the user typed into a recipe and its data, and fit the recipe to the data."""

import json
from collections.abc import Sequence
from pathlib import Path

from vitreous.data.images import ImageSet
from vitreous.data.sources import NAMED, absolute, load, split_source
from vitreous.device import has_wide_bf16, pick_device
from vitreous.files import full_path, path_of
from vitreous.preprocess import same_channels
from vitreous.recipe import Recipe, check_not_idle, read_recipe, recipe_names, written
from vitreous.weights.bundle import find_bundle, is_shipped

SMALL = 64  # largest side, in pixels, of images for recipe small-images
FEW = 1_000  # photographs below which recipe photos takes the weight decay of recipe pizza, measured on 300
CHOOSE_BY_LOSS = "best_by=loss"  # as few images hold out too few to tell epochs apart by top-1
STRIDES = {"2": "[1,2,1,1,1]", "8": "[1,2,1,2,2]"}  # of small-images' stem, for other patches than its own of 4 x 4
FOLDER_SEEN = 500_000  # images that a model sees in all by a chosen recipe, within 20 to 300 epochs
TUNING_SEEN = 1_000  # the same for fine-tuning, within 3 to 30 epochs
WITHOUT_VALIDATION = {"patience": None, "best_by": "top1"}  # what needs validation images, as it is without them
PROBED = 10_000  # training images up to which fine-tuning fits the head first: beyond, it is slow and matters less


def start_settings(weights: str | None, arch: str | None, revision: str | None, resume: bool = False) -> list[str]:
    """--from, --arch and --revision as settings. What is not given is cleared, as it belonged to a recipe's weights.

    resume: --from only says where the same weights are now, so that their architecture stays, and on the Hub their
    revision.
    """
    if weights is None:
        for name, value in {"--arch": arch, "--revision": revision}.items():
            if value is not None:
                raise ValueError(f"{name} {value} describes the weights given by --from: give --from too")
        return []
    if not weights:
        raise ValueError("--from is empty: give a run, weights, or hf:owner/name")
    given: dict[str, str | None] = {"weights": weights}
    if arch is not None or not resume:
        given["arch"] = arch
    if revision is not None or not (resume and weights.startswith("hf:")):
        given["revision"] = revision
    return [f"start.{key}={json.dumps(value, ensure_ascii=False)}" for key, value in given.items()]


def lasting(weights: str) -> str:
    """A name of weights that means the same from any folder: a path is made absolute."""
    path = path_of(weights)
    other = is_shipped(weights) and find_bundle(weights) != path  # which a folder of its name does not hide
    return str(full_path(path)) if path.exists() and not other else weights


def choose_recipe(
    source: str | ImageSet | None,
    name: str | None,
    overrides: list[str],
    run: Path | None = None,
    device: str = "auto",
) -> tuple[Recipe, ImageSet | None, str]:
    """The recipe for DATA, the data if choosing required loading it, and a line that explains the choice.

    source: DATA, or a set from Python, which the recipe then does not name. name: a recipe's name or file. run: the
    folder of a run to resume; its own recipe is used unless another is given, and DATA says where its images are now.
    Without a name, the recipe is finetune if there are weights to start from, else the one named after DATA (without a
    CUDA GPU, DATA-amx or DATA-cpu if it exists), else one for the size of the images. Raises ValueError for an override
    that would do nothing.
    """
    if run is not None and not (source or name):
        return read_recipe(run / "recipe.yaml", overrides), None, ""
    if run is not None and name is None:
        name = str(run / "recipe.yaml")
    data, reason, settings = None, "", []
    if name is None:
        told = ("data.source=", "data.train_share=", "start.weights=")
        asked = read_recipe(Recipe(epochs=1), [text for text in overrides if text.startswith(told)])
        source = asked.data.source if source is None else source
        if not source:
            raise ValueError("nothing to train on: give DATA, such as digits or a folder of images, or a --recipe")
        place = None if isinstance(source, ImageSet) else split_source(source)[0]
        if asked.start.weights is not None:
            data, name = load(source), "finetune"
            count = _count(data, asked)
            settings = [f"epochs={min(max(round(TUNING_SEEN / count), 3), 30)}"]
            settings += ["start.probe_first=false"] if count > PROBED else []
            reason = f"recipe finetune, as there are weights to start from{_listed(settings, overrides)}; --recipe "
            reason += "probe fits a head alone, in seconds"
        elif place in NAMED and place in recipe_names():
            name, reason = recipe_like(place, device)
        else:
            data = load(source)
            count = _count(data, asked)
            name, settings = recipe_for(data, count, overrides)
            if data.val is None and not read_recipe(name, [*settings, *overrides]).data.val_fraction:
                settings = [setting for setting in settings if setting != CHOOSE_BY_LOSS]  # nothing is held out
            reason = f"recipe {name}, chosen for {count:,} training images{_listed(settings, overrides)}"
    recipe = read_recipe(name, [*settings, *overrides])
    check_not_idle(recipe, overrides)
    source = source or recipe.data.source
    if source is None:
        raise ValueError(f"recipe {name} names no data: give DATA, such as digits or a folder of images")
    if isinstance(source, ImageSet):
        return recipe.with_options("data", source=None), source, reason
    return recipe.with_options("data", source=absolute(source)), data, reason


def _count(data: ImageSet, asked: Recipe) -> int:
    """How many images there are to train on, validation images among them."""
    return max(round(asked.data.train_share * len(data.train)), 1)


def _listed(settings: list[str], overrides: list[str]) -> str:
    """`: key=value ...` of the settings that are not overridden."""
    given = {override.partition("=")[0] for override in overrides}
    kept = [setting for setting in settings if setting.partition("=")[0] not in given]
    return f": {' '.join(kept)}" if kept else ""


def recipe_like(source: str, device: str) -> tuple[str, str]:
    """The recipe of a named set for a device, and a line that explains the choice if there are several."""
    small, fast = f"{source}-cpu", f"{source}-amx"
    if small not in recipe_names():
        return source, ""
    if pick_device(device).type == "cuda":
        return source, f"recipe {source}, as there is a GPU; --recipe {small} is the one for a CPU"
    full = f"as there is no CUDA GPU; --recipe {source} is the one for a GPU"
    if fast in recipe_names() and has_wide_bf16():
        return fast, f"recipe {fast}, for a processor with AMX or one as fast, {full}"
    return small, f"recipe {small}, {full}"


def recipe_for(data: ImageSet, count: int, overrides: Sequence[str] = ()) -> tuple[str, list[str]]:
    """A shipped recipe for images of this size, and the settings that fit it to so many of them, and to those given."""
    shape = data.train.images.shape
    epochs = min(max(round(FOLDER_SEEN / count), 20), 300)
    if shape is None or max(shape[1:]) > SMALL:
        few = count < FEW
        return "photos", [f"epochs={epochs}", *(["optim.muon_weight_decay=0.3", CHOOSE_BY_LOSS] if few else [])]
    patch, own_stem = "2" if min(shape[1:]) <= 16 else "4", True
    for key, _, value in (override.partition("=") for override in overrides):
        if key == "model.patch_size" or (key == "model.size" and "/" in value):
            patch = value.rpartition("/")[2]
        elif key == "model.stem_channels":
            own_stem = False
    other = [f"model.patch_size={patch}"] if patch != "4" else []
    if other or not own_stem:  # []: as a stem has them by default
        other.append(f"model.stem_strides={STRIDES.get(patch, '[]') if own_stem else '[]'}")
    return "small-images", [f"epochs={epochs}", *other, f"augment.shift={min(4, min(shape[1:]) // 8)}"]


def data_of(recipe: Recipe, *, fetch: bool = True) -> ImageSet:
    """Load the data that a recipe names. fetch: as for `load`. Raises ValueError if it names none."""
    if not recipe.data.source:
        raise ValueError("the recipe names no data: give data, or set data.source")
    return load(recipe.data.source, skip_broken=recipe.data.skip_broken, fetch=fetch)


def with_data(recipe: Recipe, data: ImageSet | Path | str | None) -> tuple[Recipe, ImageSet]:
    """The recipe with the data it names, or with `data` if given: then the recipe does not name any other.

    Paths that it names are made absolute, so that the run can be resumed from any folder.

    `skip_broken` is set in both if it is set in either. Folds are drawn with `seed` unless `split_seed` is given, for
    all folds as for a single one. Raises ValueError for data with one class, TypeError for what is no data.
    """
    own = recipe.data.source
    foreign = isinstance(data, ImageSet) and (own is None or data.source not in (own, absolute(own)))
    data = data_of(recipe) if data is None else load(data, skip_broken=recipe.data.skip_broken)
    if len(data.class_names) < 2:
        raise ValueError(f"{data.source} has one class, '{data.class_names[0]}': training needs two at least")
    source = None if foreign else data.source  # absolute, so valid from any folder; None: not what the model will see
    recipe = recipe.with_options("data", source=source, skip_broken=data.skip_broken)
    for section, key in (("start", "weights"), ("distill", "teacher")):
        if (name := getattr(getattr(recipe, section), key)) is not None:
            recipe = recipe.with_options(section, **{key: lasting(name)})
    if recipe.data.folds is not None and "split_seed" not in recipe.data.model_fields_set:
        recipe = recipe.with_options("data", split_seed=recipe.seed % 2**32)
    return recipe, data


def fit_to_data(recipe: Recipe, data: ImageSet) -> Recipe:
    """The recipe with image size, channels and classes taken from the data where it sets none itself.

    The images' own size is rounded to whole patches. Raises ValueError for images of many sizes if the recipe sets
    none, and for settings that need something the data lacks.
    """
    size = recipe.model.image_size
    if "image_size" not in recipe.model.model_fields_set:
        if data.train.images.shape is None:
            raise ValueError("the images are of many sizes: say which the model reads, for example model.image_size=64")
        sides = zip(data.train.images.shape[1:], recipe.model.patch_size, strict=True)
        size = tuple(max(round(side / patch), 1) * patch for side, patch in sides)
    for name, usual in WITHOUT_VALIDATION.items():
        if data.val is None and getattr(recipe, name) != usual:
            raise ValueError(
                f"{name} needs validation images, and none are held out: add data.val_fraction=0.1, or leave it at "
                f"{name}={written(usual)}"
            )
    channels = data.train.images.channels
    fitted = recipe.resolve(image_size=size, channels=channels, num_classes=len(data.class_names))
    if not same_channels(fitted.model.channels, channels):
        raise ValueError(f"model.channels is {fitted.model.channels} but the images have {channels}: leave it out")
    return fitted
