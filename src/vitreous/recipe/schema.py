"""`Recipe`: all options in one strict model, and what is wrong with values that are none of them."""

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, get_args, get_origin

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    PositiveInt,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from vitreous.augment import Augment
from vitreous.device import Precision
from vitreous.messages import did_you_mean, one_line
from vitreous.model.config import Pair, ViTConfig
from vitreous.model.sizes import SIZES, size
from vitreous.recipe.options import DataOptions, DistillOptions, Duration, OptimOptions, Section, StartOptions

Tracker = Literal["tensorboard", "wandb"]


class Recipe(Section):
    """One experiment. `read_recipe` makes it from a file; `resolve` fits it to the data it will see."""

    if TYPE_CHECKING:  # by the fields' types a checker would refuse model={"dim": 64} and time_limit="10m"

        def __init__(self, **fields: Any) -> None: ...

    epochs: PositiveInt = 30
    """Passes over the training images."""
    time_limit: Duration | None = None
    """Longest time for training, such as 90s, 10m or 1h30m (a bare number: seconds), validation and checkpoints
    included. If the epochs do not fit, the whole schedule is fitted to this time, less a last validation as long as the
    longest so far."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of the starting weights, the order of the images, the augmentation and dropout."""
    precision: Precision = "auto"
    """`auto`: bf16 autocast with float32 weights where the processor multiplies bf16 faster, else float32. `float16`:
    the same in float16, with scaled gradients, for GPUs older than bf16."""
    compile: Literal[True, False, "auto", "reduce-overhead"] = "auto"
    """Compile the model's passes with `torch.compile`; `auto`: on a GPU, for a run of 5,000 steps or more.
    `reduce-overhead`: with CUDA graphs too, for one process."""
    patience: PositiveInt | None = None
    """Stop after so many epochs without a better validation result."""
    best_by: Literal["top1", "f1_macro", "recall_macro", "loss"] = "top1"
    """The validation figure by which an epoch is better, its weights are kept and `patience` starts over; of equal ones
    the loss decides. The macro figures count all classes the same, however many images they have."""
    track: Annotated[
        tuple[Tracker, ...],
        BeforeValidator(
            lambda names: (names,) if isinstance(names, str) else names,
            json_schema_input_type=Tracker | tuple[Tracker, ...],
        ),
    ] = ()
    """Experiment trackers; `metrics.csv` is always written."""
    start: StartOptions = StartOptions()
    model: ViTConfig = ViTConfig()
    data: DataOptions = DataOptions()
    augment: Augment = Augment()
    optim: OptimOptions = OptimOptions()
    distill: DistillOptions = DistillOptions()

    @field_validator("model", mode="before")
    @classmethod
    def _leave_size_to_data(cls, fields: Any, info: ValidationInfo) -> Any:
        """A model without an image size is checked with 16 patches a side, and still counts as without one.

        One that is given a size, but has the patches of the weights it starts from, is checked with patches of a pixel.
        """
        if not isinstance(fields, dict):
            return fields
        named = (size(str(fields["size"])) if "size" in fields else {}) | fields
        if "image_size" not in fields:
            try:
                P, Q = TypeAdapter(Pair).validate_python(named.get("patch_size", 16))
            except ValidationError:
                return fields  # whose patch size is refused
            stand_in = {"image_size": (16 * P, 16 * Q)}
        elif "patch_size" not in named and "start" in info.data and info.data["start"].weights is not None:
            stand_in = {"patch_size": 1}
        else:
            return fields
        model = ViTConfig.model_validate(fields | stand_in)
        return ViTConfig.model_construct(model.model_fields_set - stand_in.keys(), **dict(model))

    @model_validator(mode="after")
    def _check(self) -> "Recipe":
        for name in ("oversize", "crop_fraction"):
            value = getattr(self.data, name)
            if value != 1 and self.augment.crop_scale is None:
                raise ValueError(f"data.{name} {value:g} is for random crops: set augment.crop_scale, or data.{name}=1")
        if self.compile == "reduce-overhead" and self.optim.accumulate > 1:  # the next part overwrites the gradients
            raise ValueError(
                "compile=reduce-overhead computes a batch at once, and optim.accumulate is "
                f"{self.optim.accumulate}: use compile=true"
            )
        return self

    def resolve(self, *, image_size: tuple[int, int], channels: int, num_classes: int) -> "Recipe":
        """The recipe with what the data decides filled in, where it does not say so itself, and all of it written out.

        Raises ValueError when the recipe asks for another number of classes than the data has.
        """
        self.check_classes(num_classes)
        given = self.model.model_fields_set
        data = {"image_size": image_size, "channels": channels, "num_classes": num_classes}
        fields = {name: value for name, value in data.items() if name not in given}
        return make_recipe(self.model_dump() | {"model": self.model.model_dump() | fields}, "recipe")

    def check_classes(self, num_classes: int) -> None:
        """Raises ValueError when the recipe asks for another number of classes than the data has."""
        if "num_classes" in self.model.model_fields_set and self.model.num_classes != num_classes:
            raise ValueError(
                f"model.num_classes is {self.model.num_classes} but the data has {num_classes} classes: set it to "
                f"{num_classes}, or leave it out"
            )

    def with_options(self, section: str, **options: Any) -> "Recipe":
        """The recipe with other options in a section. Their values are not checked: `read_recipe(recipe, [...])` does.

        Raises ValueError for an unknown option.
        """
        own = getattr(self, section)
        for name in options:
            if name not in type(own).model_fields:
                raise ValueError(f"unknown key '{section}.{name}'{nearest_key(f'{section}.{name}')}")
        return self.model_copy(update={section: own.model_copy(update=options)})

    def dump(self) -> str:
        """What the recipe sets, as YAML that `read_recipe` reads back: all of it after `resolve`.

        What it leaves to the data, or to weights to start from, stays so.
        """
        return yaml.safe_dump(self.model_dump(mode="json", exclude_unset=True), sort_keys=False)


def make_recipe(fields: dict[str, Any], where: str) -> Recipe:
    """Validate; on errors raise a ValueError of one line that starts with `where`."""
    try:
        return Recipe.model_validate(fields)
    except ValidationError as error:
        raise ValueError(f"{where}: {one_line(error, hint=nearest_key)}") from error


class Setting(NamedTuple):
    """A key of a recipe, and what is to be known of it."""

    key: str
    """Dotted: `optim.learning_rate`."""
    default: str
    """As one would write it."""
    choices: tuple[str, ...]
    """The words, or the few numbers, that it takes, where there are such."""
    meaning: str


OTHERS_NAMES = {  # what other programs call a setting
    "batch": "optim.batch_size",
    "clip_grad": "optim.clip",
    "crop_pct": "data.crop_fraction",
    "epoch": "epochs",
    "hidden_size": "model.dim",
    "img_size": "model.image_size",
    "lr": "optim.learning_rate",
    "min_lr": "optim.final_rate",
    "model": "model.size",
    "model_ema_decay": "optim.ema",
    "num_heads": "model.heads",
    "num_layers": "model.depth",
    "opt": "optim.name",
    "reprob": "augment.erase",
    "smoothing": "optim.label_smoothing",
    "warmup_epochs": "optim.warmup",
    "wd": "optim.weight_decay",
}
SIZE = Setting(
    "model.size", "B/16", tuple(SIZES), "Sets width, blocks, heads and MLP at once, and behind a slash the patch size."
)


def settings(section: type[BaseModel] = Recipe, prefix: str = "") -> list[Setting]:
    """All that can be set, in the order of the sections."""
    found = []
    for name, field in section.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            if kind is ViTConfig:
                found.append(SIZE)
            found += settings(kind, f"{prefix}{name}.")
        else:
            meaning = " ".join((field.description or "").split())
            found.append(Setting(prefix + name, written(field.default), _choices(kind), meaning))
    return found


def json_schema() -> dict[str, Any]:
    """What the file of a recipe may hold, as JSON schema: by it an editor completes keys and marks mistakes."""
    schema = Recipe.model_json_schema()
    names = "|".join(SIZES)
    word = {"type": "string", "pattern": rf"^({names})(/\d+)?$", "description": SIZE.meaning}
    schema["$defs"]["ViTConfig"]["properties"]["size"] = word
    return schema


def written(value: Any) -> str:
    """A value as it is given behind `key=`: without spaces, at which a shell would cut it."""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def _choices(kind: Any) -> tuple[str, ...]:
    """The words that a type, or a part of a union, allows. A plain bool lists none: its default shows what it takes."""
    if get_origin(kind) is Literal:
        return tuple(map(written, get_args(kind)))
    return tuple(word for part in get_args(kind) for word in (("true", "false") if part is bool else _choices(part)))


def keys() -> list[str]:
    """All keys of a recipe, dotted: `optim.learning_rate`."""
    return [setting.key for setting in settings()]


def flat(fields: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested fields under dotted keys; values that are no plain scalar as text."""
    values: dict[str, Any] = {}
    for key, value in fields.items():
        if isinstance(value, dict):
            values |= flat(value, f"{prefix}{key}.")
        else:
            values[f"{prefix}{key}"] = value if isinstance(value, int | float | str) else str(value)
    return values


def key_called(name: str) -> str | None:
    """The key whose last part is this name, in the first section that has one, or that other programs call so."""
    return next((key for key in keys() if key.rpartition(".")[2] == name), OTHERS_NAMES.get(name))


def nearest_key(key: str) -> str:
    """A hint: the same name in another section, else what others call so, else the nearest in this one, else a near
    one, else this one's keys."""
    known = keys()
    section, _, name = key.rpartition(".")
    if key in known:  # a dotted key in a file
        return f": in a file write {name} below {section}:"
    siblings = [k.rpartition(".")[2] for k in known if section and k.rpartition(".")[0] == section]
    names = siblings or list(Recipe.model_fields)
    if called := key_called(name):
        return f"; did you mean '{called}'?"
    near = did_you_mean(name, names)
    near = near.replace("'", f"'{section}.", 1) if siblings else near  # as one would write it
    near = near or did_you_mean(key, known, cutoff=0.8)
    return f"; {near.strip() or 'known keys: ' + ', '.join(names)}"
