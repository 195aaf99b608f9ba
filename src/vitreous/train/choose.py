"""From what the user typed to a recipe and its data."""

from pathlib import Path

from vitreous.data.images import ImageSet
from vitreous.data.sources import HUB, load
from vitreous.recipe import Recipe, make_recipe, read_recipe, recipe_names

NAMED = ("digits", *HUB)  # these sets are meant by their names, even beside a folder that is called so
SMALL = 64  # pixels a side, up to which images are read as they are
FOLDER_PASSES = 500_000  # images that the chosen recipes let a model see, within 20 to 300 epochs


def choose_recipe(
    source: str | None, name: str | None, overrides: list[str], run: Path | None = None
) -> tuple[Recipe, ImageSet | None, str]:
    """The recipe for DATA, with its data loaded if that was needed to choose, and a line that says how it was chosen.

    source: DATA. name: a recipe's name or file. run: the folder of a run to resume, whose own recipe serves unless
    another is asked for. A recipe that is named nowhere is the one called like DATA, else one for its size.
    """
    if run is not None and not (source or name):
        return read_recipe(str(run / "recipe.yaml"), overrides), None, ""
    if name is None and source is None:
        raise ValueError("nothing to train on: give DATA, such as digits or a folder of images, or a --recipe")
    data, reason = None, ""
    if name is None and source in NAMED and source in recipe_names():
        name = source
    if name is None:
        data = load(source)
        name, settings = recipe_for(data)
        reason = f"recipe {name}, chosen for {len(data.train):,} training images: {' '.join(settings)}"
        overrides = [*settings, *overrides]
    recipe = read_recipe(name, overrides)
    source = source or recipe.data.source
    if source is None:
        raise ValueError(f"recipe {name} names no data: give DATA, such as digits or a folder of images")
    if source not in NAMED and Path(source).exists():
        source = str(Path(source).resolve())
    fields = recipe.model_dump(exclude_unset=True)
    fields["data"] = fields.get("data", {}) | {"source": source}
    return make_recipe(fields, name), data, reason


def recipe_for(data: ImageSet) -> tuple[str, list[str]]:
    """A shipped recipe for images of this size, and the settings that fit it to their number."""
    shape = data.train.images.shape
    epochs = min(max(round(FOLDER_PASSES / len(data.train)), 20), 300)
    if shape is None or max(shape[1:]) > SMALL:
        return "photos", [f"epochs={epochs}"]
    patch, shift = (2 if min(shape[1:]) <= 16 else 4), min(4, min(shape[1:]) // 8)
    return "small-images", [f"epochs={epochs}", f"model.patch_size={patch}", f"augment.shift={shift}"]
