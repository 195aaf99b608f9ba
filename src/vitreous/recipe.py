"""A recipe: everything that decides a training run, in one strict model that YAML files and `key=value` fill."""

import difflib
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from vitreous.augment import Augment
from vitreous.model.config import ViTConfig
from vitreous.model.sizes import size

RECIPES = Path(__file__).parent / "recipes"

Fraction = Annotated[float, Field(ge=0, lt=1)]


def _seconds(value: Any) -> Any:
    """`90`, `90s`, `10m`, `1.5h` or `1h30m` as seconds."""
    if not isinstance(value, str):
        return value
    number = r"(\d+(?:\.\d+)?)"
    parts = re.fullmatch(f"(?:{number}h)?(?:{number}m)?(?:{number}s?)?", value.strip())
    if parts is None or not any(parts.groups()):
        raise ValueError(f"'{value}' is no length of time: write it as 90s, 10m or 1h30m")
    return sum(float(part) * unit for part, unit in zip(parts.groups(), (3600, 60, 1), strict=True) if part)


Duration = Annotated[PositiveFloat, BeforeValidator(_seconds)]


class Section(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True, use_attribute_docstrings=True
    )


class StartOptions(Section):
    """Weights to start from in place of random ones. The model, and how images are prepared for it, are theirs."""

    weights: str | None = None
    """What `vitreous train` is given by --from: a run, a bundle, a shipped name, a weight file, a folder or
    hf:owner/name."""
    arch: str | None = None
    """Name of the architecture, in timm's or torchvision's words, for a file that does not say."""
    revision: str | None = None
    """Branch, tag or commit of a Hub repository."""
    probe: bool = False
    """Leave them as they are and fit a new head alone, by logistic regression on features that are computed once."""
    probe_first: bool = False
    """Train everything, from such a head: one of zeros would pull at features that are good already (Kumar et al.
    2022, arXiv 2202.10054). A head that is kept, because its classes are the data's, stays as it is."""

    @model_validator(mode="after")
    def _check(self) -> "StartOptions":
        if self.probe and self.probe_first:
            raise ValueError("start.probe trains the head alone, start.probe_first all after it: choose one of them")
        return self


class DataOptions(Section):
    """Which images, and how they are split and held."""

    source: str | None = None
    """What `vitreous train` is given as DATA: a name, a file or a folder."""
    val_fraction: Fraction = 0.1
    """Share of the training images held out for validation, stratified; ignored where the data has its own.
    0: train on everything and keep the last step."""
    split_seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Seed of that split: its own, so that runs of different `seed` are judged on the same images."""
    fit: Literal["crop", "squash"] = "crop"
    """Images of another shape: cut to the centre after resizing the shorter side, or squashed."""
    oversize: Annotated[float, Field(ge=1, le=8)] = 1.0
    """Keep training images at so many times the model's size, so that what `augment.crop_scale` cuts out is sharp."""
    crop_fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Side of the centre that is cut out of images to be judged, as a share of the image's. Random crops magnify: with
    the mean side of theirs, things look as large as in training (Touvron et al. 2019, arXiv 1906.06423). Weights to
    start from bring their own."""
    skip_broken: bool = False
    """Leave out files that cannot be read, each reported, instead of stopping."""
    memory_budget: PositiveFloat = 4.0
    """GiB of uint8 pixels up to which a split lives on the device; larger ones stream through workers."""
    workers: NonNegativeInt = 2
    """Processes that read a streamed set."""
    balance: Literal["none", "weights", "sampling"] = "none"
    """Classes of unequal size. `weights`: class weights in the loss, images / (classes x images of the class).
    `sampling`: a pass shows all classes equally often, the images of a small one several times."""
    folds: Annotated[int, Field(ge=2)] | None = None
    """Cross-validate: the training images in so many stratified parts, by `split_seed`; a run for each of them is
    tested on it and trained on the others."""
    fold: PositiveInt | None = None
    """The one of these runs that this is, from 1."""

    @model_validator(mode="after")
    def _check(self) -> "DataOptions":
        if self.fold is not None and self.fold > (self.folds or 0):
            raise ValueError(f"fold {self.fold} is not within the folds, which are {self.folds}: give data.folds too")
        return self


class OptimOptions(Section):
    """How the weights are found."""

    name: Literal["adamw", "muon"] = "adamw"
    """`muon`: Muon (Jordan et al. 2024) for the matrices of the blocks, AdamW for everything else."""
    learning_rate: PositiveFloat = 1e-3
    """AdamW's peak rate."""
    weight_decay: NonNegativeFloat = 0.05
    """AdamW's decoupled decay, of matrices only: norms, biases, tokens and positions have none."""
    betas: tuple[Fraction, Fraction] = (0.9, 0.999)
    """AdamW: decay, a step, of the moving averages of the gradient and of its square."""
    muon_learning_rate: PositiveFloat = 0.02
    """Muon's peak rate: the size of the singular values of a step, times the root of rows / columns where that is
    above 1."""
    muon_weight_decay: NonNegativeFloat = 0.01
    """Muon's decoupled decay: the share, times the rate, that a step takes from its matrices."""
    muon_momentum: Fraction = 0.95
    """Muon: decay, a step, of the moving average of the gradient, with Nesterov's look ahead."""
    muon_split_qkv: bool = False
    """Muon: orthogonalise the maps of queries, keys and values one by one, not as one matrix."""
    muon_patches: bool = False
    """Muon for the patch embedding too: a convolution is a matrix of one row for an output channel."""
    batch_size: PositiveInt = 128
    """Images a step, over all processes."""
    accumulate: PositiveInt = 1
    """Parts in which a batch is computed, one after the other, to save memory. The gradient is the same; only a
    convolutional stem differs a little, as its batch norm sees one part at a time."""
    schedule: Literal["cosine", "linear", "onecycle", "constant"] = "cosine"
    """The rate after warm-up. `onecycle`: up to the peak over 30% of all steps and down to nothing, both by cosine;
    it brings its own warm-up."""
    warmup: Fraction = 0.05
    """Share of all steps over which the rate rises linearly to its peak."""
    final_rate: Annotated[float, Field(ge=0, le=1)] = 0.01
    """Where cosine and linear end, as a share of the peak."""
    clip: PositiveFloat | None = 1.0
    """Largest norm of the whole gradient."""
    label_smoothing: Fraction = 0.0
    """Share of the target that is spread evenly over all classes: 0.05 asks for about 95% certainty; 0: none."""
    layer_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Factor of the peak rate from one layer to the one before it: the head has the whole rate, the last block this
    share of it, the embedding the least (Bao et al. 2022, BEiT)."""
    freeze: NonNegativeInt = 0
    """Blocks, from the first, that stay as they are, and the embedding with them; 0: all is trained."""
    ema: Fraction = 0.0
    """Decay, a step, of the moving average of the weights that is evaluated and kept; 0: none."""

    @model_validator(mode="after")
    def _check(self) -> "OptimOptions":
        if self.accumulate > self.batch_size:
            raise ValueError(f"accumulate {self.accumulate} is larger than batch_size {self.batch_size}")
        return self


class Recipe(Section):
    """One experiment. `read_recipe` makes it from a file; `resolve` fits it to the data it will see."""

    epochs: PositiveInt = 30
    """Passes over the training images."""
    time_limit: Duration | None = None
    """Most time for training and validation, such as 10m or 1h30m: where it does not suffice for all epochs, the
    schedule is run through within it, by the clock, with time left for a last validation as long as the longest."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Of the start weights, the order of the images, the augmentation and dropout."""
    precision: Literal["auto", "float32", "bf16"] = "auto"
    """`auto`: bf16 autocast with float32 weights where the processor multiplies bf16 faster, else float32."""
    compile: bool | Literal["auto", "reduce-overhead"] = "auto"
    """Compile the model's passes with `torch.compile`; `auto`: on a GPU, for a run of 5,000 steps or more.
    `reduce-overhead`: with CUDA graphs too."""
    patience: PositiveInt | None = None
    """Stop after so many epochs without a better validation result."""
    track: Annotated[
        tuple[Literal["tensorboard", "wandb"], ...],
        BeforeValidator(lambda names: (names,) if isinstance(names, str) else names),
    ] = ()
    """Experiment trackers; `metrics.csv` is always written."""
    start: StartOptions = StartOptions()
    model: ViTConfig = ViTConfig()
    data: DataOptions = DataOptions()
    augment: Augment = Augment()
    optim: OptimOptions = OptimOptions()

    @field_validator("model", mode="before")
    @classmethod
    def _leave_size_to_data(cls, fields: Any, info: ValidationInfo) -> Any:
        """A model without an image size is checked with 16 patches a side, and counts as having none given.

        So is one whose patches are those of the weights it starts from, but it keeps an image size it is given.
        """
        if not isinstance(fields, dict):
            return fields
        named = (size(str(fields["size"])) if "size" in fields else {}) | fields
        starts = "start" in info.data and info.data["start"].weights is not None
        if "image_size" in fields and not (starts and "patch_size" not in named):
            return fields
        patch, given = named.get("patch_size", 16), {"image_size"} & fields.keys()
        try:
            side = [16 * int(p) for p in (patch if isinstance(patch, list | tuple) else (patch, patch))]
        except (TypeError, ValueError, OverflowError):
            side = []
        if len(side) != 2:
            return fields  # whose patch size is refused
        model = ViTConfig.model_validate(fields | {"image_size": side})
        values = dict(model)
        if given:  # any size fits patches of one pixel, which stand in for those of the weights
            one_pixel = {"image_size": fields["image_size"], "patch_size": 1}
            alone = ViTConfig.model_validate(one_pixel)
            values |= {"image_size": alone.image_size, "patch_size": alone.patch_size}
        return ViTConfig.model_construct((model.model_fields_set - {"image_size"}) | given, **values)

    @model_validator(mode="after")
    def _check(self) -> "Recipe":
        for name in ("oversize", "crop_fraction"):
            value = getattr(self.data, name)
            if value != 1 and self.augment.crop_scale is None:
                raise ValueError(f"data.{name} {value:g} is for random crops: set augment.crop_scale, or leave it out")
        return self

    def resolve(self, *, image_size: tuple[int, int], channels: int, num_classes: int) -> "Recipe":
        """The recipe with what the data decides filled in, where it does not say so itself.

        Raises ValueError when the recipe asks for another number of classes than the data has.
        """
        self.check_classes(num_classes)
        given = self.model.model_fields_set
        data = {"image_size": image_size, "channels": channels, "num_classes": num_classes}
        fields = {name: value for name, value in data.items() if name not in given}
        model = self.model.model_dump(exclude_unset=True) | fields
        return make_recipe(self.model_dump(exclude_unset=True) | {"model": model}, "recipe")

    def check_classes(self, num_classes: int) -> None:
        """Raises ValueError when the recipe asks for another number of classes than the data has."""
        if "num_classes" in self.model.model_fields_set and self.model.num_classes != num_classes:
            raise ValueError(
                f"model.num_classes is {self.model.num_classes} but the data has {num_classes} classes: leave it out"
            )

    def dump(self) -> str:
        """The whole recipe as YAML that `read_recipe` reads back to an equal one."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)


def recipe_names() -> list[str]:
    """The shipped recipes."""
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def recipe_file(name: str) -> Path:
    """The file of a shipped recipe or of a path. Raises ValueError when there is none."""
    if name in recipe_names():
        return RECIPES / f"{name}.yaml"
    if Path(name).is_file():
        return Path(name)
    raise ValueError(f"no recipe '{name}'{_nearest(name, recipe_names())}: use {', '.join(recipe_names())} or a file")


def headline(name: str) -> str:
    """The first line of a shipped recipe's header."""
    return recipe_file(name).read_text().partition("\n")[0].removeprefix("#").strip()


def read_recipe(name: str, overrides: list[str] | None = None) -> Recipe:
    """A recipe from a shipped name or a YAML file, with `section.key=value` overrides on top.

    Raises ValueError, in one line, for a file that is no recipe, an unknown key or a bad value.
    """
    file = recipe_file(name)
    try:
        fields = yaml.safe_load(file.read_text()) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{file.name} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(fields, dict):
        raise ValueError(f"{file.name} is not a recipe: expected keys and values, found {type(fields).__name__}")
    make_recipe(fields, file.name)  # the file's own errors carry the file's name
    for override in overrides or []:
        _apply(fields, override)
    return make_recipe(fields, "command line") if overrides else make_recipe(fields, file.name)


def make_recipe(fields: dict[str, Any], where: str) -> Recipe:
    """Validate; on errors raise a ValueError of one line that starts with `where`."""
    try:
        return Recipe.model_validate(fields)
    except ValidationError as error:
        raise ValueError(f"{where}: {one_line(error)}") from error


def one_line(error: ValidationError, section: str = "") -> str:
    """The first fault of a validation error: its key, what is wrong, and the nearest name for an unknown key."""
    fault = error.errors()[0]
    key = section + ".".join(str(part) for part in fault["loc"])
    inner = fault.get("ctx", {}).get("error")
    if isinstance(inner, ValidationError):
        return one_line(inner, f"{key}.")
    if fault["type"] == "extra_forbidden":
        return f"unknown key '{key}'{_nearest_key(key)}"
    message = fault["msg"].removeprefix("Value error, ")
    if fault["type"] == "missing" and isinstance(fault["loc"][-1], int):  # of a pair
        key, message = key.rpartition(".")[0], "one number is missing"
    if fault["type"] == "int_parsing" and re.fullmatch(r"\d+(\.\d*)?[eE]\+?\d", str(fault["input"])):
        message = f"write {float(fault['input']):.0f}"
    if fault["type"] == "value_error":
        return message
    return f"{key} is {fault.get('input')!r}: {message[0].lower()}{message[1:]}"


def keys(section: type[BaseModel] = Recipe, prefix: str = "") -> list[str]:
    """All keys of a recipe, dotted: `optim.learning_rate`."""
    names = []
    for name, field in section.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            names += keys(kind, f"{prefix}{name}.")
        else:
            names.append(prefix + name)
    return names


def flat(fields: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested fields under dotted keys; values that are no plain scalar as text."""
    values: dict[str, Any] = {}
    for key, value in fields.items():
        if isinstance(value, dict):
            values |= flat(value, f"{prefix}{key}.")
        else:
            values[prefix + key] = value if isinstance(value, int | float | str) else str(value)
    return values


def _apply(fields: dict[str, Any], override: str) -> None:
    """Set one `section.key=value`, the value read as YAML, in place."""
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ValueError(f"'{override}' is not key=value: write, for example, epochs=10 or optim.learning_rate=1e-3")
    if key in Recipe.model_fields and key not in keys():
        first = next(k for k in keys() if k.startswith(f"{key}."))
        raise ValueError(f"{key} is a section: set one of its keys, such as {first}")
    if key != "model.size" and key not in keys():
        raise ValueError(f"unknown key '{key}'{_nearest_key(key)}")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"{key}: '{text}' is not a valid value") from error
    *path, last = key.split(".")
    if isinstance(value, bool) and "bool" not in str(_annotation(key)):
        raise ValueError(f"{key} is {text}: it is nothing to switch on or off, write a value")
    if isinstance(value, int | float) and re.match(r"[-+]?0\d|.*:", text):
        plain = "90s, 10m or 1h30m" if key == "time_limit" else "it as a plain number"
        raise ValueError(f"{key} is {text}, which YAML reads as {value}: write {plain}")
    for part in path:
        fields = fields.setdefault(part, {})
    if key == "model.size":
        fields.update(size(str(value)))
    else:
        fields[last] = value


def _annotation(key: str) -> Any:
    """The type of a dotted key."""
    kind: Any = Recipe
    for part in key.split("."):
        kind = kind.model_fields[part].annotation if key != "model.size" else str
    return kind


def _nearest_key(key: str) -> str:
    """A hint: the same name in another section, else the nearest in this one, else a near one, else this one's keys."""
    known = [*keys(), "model.size"]
    section, _, name = key.rpartition(".")
    siblings = [k.rpartition(".")[2] for k in known if section and k.rpartition(".")[0] == section]
    siblings = siblings or list(Recipe.model_fields)
    for namesake in known:
        if namesake.rpartition(".")[2] == name:
            return f"; did you mean '{namesake}'?"
    return _nearest(name, siblings) or _nearest(key, known, 0.8) or f"; known are {', '.join(siblings)}"


def _nearest(name: str, names: list[str], cutoff: float = 0.6) -> str:
    near = difflib.get_close_matches(name, names, n=1, cutoff=cutoff)
    return f"; did you mean '{near[0]}'?" if near else ""
