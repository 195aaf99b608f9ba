"""Settings that would do nothing, as what they belong to is off."""

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any

from vitreous.recipe.schema import Recipe, written

# switches, the values at which all of them are off, and the settings that do nothing then
SWITCHES = (
    (
        ("optim.name",),
        ("adamw",),
        tuple(f"optim.muon_{name}" for name in ("learning_rate", "weight_decay", "momentum", "split_qkv", "patches")),
    ),
    (("optim.schedule",), ("onecycle",), ("optim.warmup",)),
    (("optim.schedule",), ("onecycle", "constant"), ("optim.final_rate",)),
    (("model.positions",), ("rope",), ("model.position_tokens",)),
    (("model.patch_embedding",), ("linear", "conv"), ("start.whiten",)),
    (("distill.teacher",), (None,), ("distill.share", "distill.temperature")),
    (("augment.crop_scale",), (None,), ("augment.crop_ratio",)),
    (("augment.randaugment_ops",), (0,), ("augment.randaugment_magnitude", "augment.randaugment_sd")),
    (("augment.shrink",), (1.0,), ("augment.shrink_until",)),
    (("start.probe",), (True,), ("optim.batch_size",)),  # its features are computed in batches for the model
    (("optim.batch_size",), (1,), ("augment.mixup", "augment.cutmix")),  # which mix an image with another of its batch
    (("augment.mixup", "augment.cutmix"), (0.0,), ("augment.mix_probability", "augment.mix_until")),
)


def _off(recipe: Recipe) -> Iterator[tuple[dict[str, Any], tuple[str, ...]]]:
    """Switches that are off, with their values, and the settings that therefore do nothing."""
    for switches, off, settings in SWITCHES:
        now = {key: attrgetter(key)(recipe) for key in switches}
        if all(value in off for value in now.values()):
            yield now, settings


def effective(recipe: Recipe) -> dict[str, Any]:
    """The settings that differ from their defaults and have an effect, nested as in a file."""
    fields = recipe.model_dump(mode="json", exclude_defaults=True)
    for section, _, key in (setting.partition(".") for _, settings in _off(recipe) for setting in settings):
        fields.get(section, {}).pop(key, None)
    return fields


def check_not_idle(recipe: Recipe, overrides: Sequence[str]) -> None:
    """Raises ValueError if one of the overrides, `section.key=value`, does nothing in the recipe that they made."""
    given = {text.partition("=")[0] for text in overrides}
    for now, settings in _off(recipe):
        if without := [key for key in settings if key in given]:
            why = " and ".join(f"{key} is {written(value)}" for key, value in now.items())
            raise ValueError(f"{without[0]} does nothing here, as {why}: leave it out, or change that")
    if recipe.start.weights is not None and "data.crop_fraction" in given:
        raise ValueError("data.crop_fraction does nothing here, as start.weights bring their own: leave it out")
