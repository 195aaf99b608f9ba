"""Start a recipe and a model from trained weights."""

import shlex
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import torch
from pydantic import ValidationError

from vitreous.data.check import differs
from vitreous.data.images import ImageSet, composed
from vitreous.data.sources import absolute, split_source
from vitreous.evaluation import learnt_hashes, record_of
from vitreous.files import read_json
from vitreous.messages import one_line, shorten
from vitreous.model import ViT
from vitreous.preprocess import Preprocess, same_channels
from vitreous.recipe import DataOptions, Recipe, flat, written
from vitreous.weights.bundle import find_bundle, find_record, is_plain, read_config
from vitreous.weights.load import in_head, load_weights, weights_digest

FREE = ("image_size", "num_classes", "head_hidden", "dropout", "drop_path")  # what a recipe may change in a model
HEAD = ("head_hidden", "pool")  # changing one of these needs a new head
NEED_WEIGHTS = ("start.arch", "start.revision", "start.probe", "start.probe_first", "optim.freeze", "optim.layer_decay")
PROBE_READS = ("start.", "data.", "model.", "seed", "precision", "track", "optim.batch_size")
DIVIDED = {"val_fraction", "split_seed", "group", "folds", "fold"}  # settings that decide which images are held out
EXAMPLE = "vt.ViT(vt.ViTConfig(size='nano/4', image_size=32, num_classes=10))"
POOLS = {"cls", "cls_mean"}  # both read the class token and have no weights, so `pool` may change between them


class Start(NamedTuple):
    """What a run starts from."""

    recipe: Recipe
    """With the architecture of the weights, and the way they expect images to be fitted."""
    model: ViT
    preprocess: Preprocess
    facts: dict[str, Any]
    """For `results.json`."""
    lines: list[str]
    """How the weights were used, for the user to read."""
    seen: np.ndarray
    """`image_hashes` of the images that they learnt from, uint64 (N,), as far as is known."""


def check_unseen(recipe: Recipe, data: ImageSet) -> dict[str, str]:
    """Warnings, by the name of the weights that a run starts from or of its teacher, about those that may have learnt
    from its validation images.

    data: undivided. They are not new to a run that divided the same data differently, or had it when it was another.
    Raises ValueError for folds then.
    """
    sources = filter(None, (recipe.start.weights, recipe.distill.teacher))
    return {weights: warning for weights in sources if (warning := _seen_by(weights, recipe, data))}


def _seen_by(weights: str, recipe: Recipe, data: ImageSet) -> str:
    """The warning about these weights; "" if there is none."""
    folder, theirs, ours = None, None, recipe.data
    with suppress(ValueError):  # foreign weights may come with a recipe.yaml of another kind
        folder, theirs = record_of(weights)
    if folder is None or not (folder / "data.json").is_file():  # as of a cross-validation, which `load_start` refuses
        return ""
    if not (theirs.source and ours.source):
        return ""
    place, other = (split_source(absolute(source))[0] for source in (ours.source, theirs.source))  # behind any link
    if place != other:
        return ""
    changes = {name: value for name in sorted(DIVIDED) if (value := getattr(theirs, name)) != getattr(ours, name)}
    record = read_json(folder / "data.json")
    other_labels = composed(record["classes"]) != composed(data.class_names)  # the split is stratified
    if not changes and not other_labels and not _has_changed(data, theirs, record):
        return ""
    if ours.folds is not None:
        raise ValueError(
            f"{weights} learnt from {theirs.source}, of which folds are to be held out: give weights that never saw "
            "them"
        )
    if data.val is not None or not ours.val_fraction:
        return ""
    same_way = " ".join(shlex.quote(f"data.{name}={written(value)}") for name, value in changes.items())
    how = "divided otherwise" if changes or other_labels else "before images came, went or moved"
    return (
        f"{weights} learnt from this data, {how}: some validation images are among what it "
        "saw, so that their figures will be too good"
        + (f" (divide it the same way: {same_way})" if changes and not other_labels else "")
    )


def _has_changed(data: ImageSet, options: DataOptions, record: dict[str, Any]) -> bool:
    """Whether a set, divided by these options, is another than it was for the run with this `data.json`."""
    try:
        return differs(data.divided(options), record, test=False)
    except ValueError:  # it can no longer be divided so
        return True


def load_start(recipe: Recipe, class_names: tuple[str, ...]) -> Start:
    """Load `recipe.start.weights`. The head is kept if its classes are `class_names`, and replaced otherwise.

    The recipe may change the image size, to which learned positions are resampled, the head, dropout, stochastic depth,
    and whether the head reads the mean of the patches along with the class token. Raises ValueError for any other
    change of the model, and for weights that do not load.
    """
    options, given = recipe.start, recipe.model.model_dump(include=recipe.model.model_fields_set)
    recipe.check_classes(len(class_names))
    bundle, report = load_weights(
        options.weights,
        arch=options.arch,
        image_size=given.get("image_size"),
        num_classes=len(class_names),
        revision=options.revision,
    )
    theirs = bundle.model.config
    for key, value in given.items():
        free = key in FREE or (key == "pool" and {value, theirs.pool} <= POOLS)
        if not free and value != getattr(theirs, key):
            raise ValueError(
                f"model.{key} is {value}, but that of {options.weights} is {getattr(theirs, key)}: leave it out, or "
                "take --recipe finetune"
            )
    lines = report.lines()
    own_head = report.named and composed(bundle.class_names) == composed(class_names) and not options.probe
    if not own_head or any(given.get(key, getattr(theirs, key)) != getattr(theirs, key) for key in HEAD):
        given = {"head_hidden": 0} | given
        if not report.new_head:
            lines.append(f"new head in place of that for {shorten(bundle.class_names)}")
        own_head = False
    try:
        config = theirs.changed(**given)
    except ValidationError as error:
        raise ValueError(one_line(error, "model.")) from error
    if config.head_hidden and not own_head and (options.probe or options.probe_first):
        raise ValueError(f"model.head_hidden is {config.head_hidden}, but a probe's head is linear: leave it out")
    with torch.random.fork_rng([]):  # for a new head with a hidden layer
        torch.default_generator.manual_seed(recipe.seed)
        model = ViT(config)
    state = bundle.model.state_dict()
    kept = {name: value for name, value in state.items() if own_head or not in_head(name)}
    model.load_state_dict(model.state_dict() | kept)

    crop, own_crop = recipe.data.crop_fraction, bundle.preprocess.crop_fraction
    if crop not in (1, own_crop):  # 1: not given
        lines.append(f"images are cut as these weights read them, to {own_crop:g}, not by data.crop_fraction={crop:g}")
    if options.whiten:
        lines.append("start.whiten does nothing here: the first convolution is that of these weights")
    fit = recipe.data.fit if "fit" in recipe.data.model_fields_set else bundle.preprocess.fit
    if fit != bundle.preprocess.fit:
        lines.append(f"images are fitted by {fit}, as data.fit says")
    facts = {"weights": options.weights, "arch": options.arch, "revision": options.revision}
    digest = weights_digest(options.weights, options.revision)
    facts |= {"names": report.layout, "sha256": digest, "new_head": not own_head}
    white = bundle.preprocess.white if recipe.data.white is None else recipe.data.white
    fitted = recipe.with_options("data", fit=fit, crop_fraction=1.0, white=white).model_copy(update={"model": config})
    preprocess = bundle.preprocess.model_copy(update={"fit": fit, "white": white})
    seen = learnt_hashes(options.weights)
    if len(seen) and preprocess != read_config(find_bundle(find_record(options.weights))).preprocess:
        lines.append("images are fitted otherwise than these weights' own, so copies of those cannot be found")
        seen = seen[:0]
    return Start(fitted, model, preprocess, facts, lines, seen)


def check_recipe(recipe: Recipe) -> None:
    """Raises TypeError for what is no recipe, such as the name of one."""
    if not isinstance(recipe, Recipe):
        raise TypeError(f"recipe is a {type(recipe).__name__}: give a Recipe, such as vt.read_recipe('small-images')")


def check_model(model: ViT, recipe: Recipe) -> None:
    """Raises TypeError or ValueError for a model that a recipe cannot train.

    It has to be a plain ViT in float32, as a run keeps nothing but its config and weights; the only weights to start
    from; and frozen as far as `optim.freeze` says.
    """
    if not isinstance(model, ViT):
        raise TypeError(f"model is a {type(model).__name__}: give a ViT, such as {EXAMPLE}")
    if not is_plain(model) or any(weight.dtype != torch.float32 for weight in model.parameters()):
        raise ValueError(
            f"model is a {type(model).__name__} that differs from vt.ViT(model.config) in float32, and a run would "
            "keep that one: give a plain ViT, and train others in a loop of your own"
        )
    for key, value in recipe.start:
        if value and key != "whiten":
            raise ValueError(f"start.{key} is {value}, but model= gives the model to start from: leave one of them out")
    if model.frozen not in (0, recipe.optim.freeze):
        raise ValueError(
            f"{model.frozen} blocks of the model are frozen, and optim.freeze is {recipe.optim.freeze}: set "
            f"optim.freeze={model.frozen}, or call model.freeze(0)"
        )


def check_suits(model: ViT, data: ImageSet) -> None:
    """Raises ValueError for a model of another number of classes than the data's, or of other channels."""
    config, classes, channels = model.config, len(data.class_names), data.train.images.channels
    if config.num_classes != classes:
        raise ValueError(
            f"the model has {config.num_classes} classes and the data {classes}: call model.reset_head({classes})"
        )
    if not same_channels(config.channels, channels):
        raise ValueError(f"the model reads {config.channels} channels, and the images have {channels}: give them alike")


def check_start(recipe: Recipe, has_weights: bool) -> None:
    """Raises ValueError for settings that need trained weights if there are none, or that a probe would ignore."""
    usual = Recipe(epochs=1)  # as of recipe probe, which makes one pass
    asked, plain = (flat(each.model_dump(mode="json")) for each in (recipe, usual))
    changes = {key: value for key, value in asked.items() if value != plain[key]}
    if not has_weights and (lacking := [key for key in NEED_WEIGHTS if key in changes]):
        raise ValueError(f"{lacking[0]} is for trained weights: give some with --from, or as start.weights")
    if recipe.start.probe:
        for key, value in changes.items():
            if (key, value) == ("data.balance", "sampling") or not key.startswith(PROBE_READS):
                raise ValueError(f"{key} is {value}, but a probe sees each image once and as it is: leave it out")
