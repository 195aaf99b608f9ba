"""The sections of a recipe and their options, each with its unit under it."""

import re
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

Fraction = Annotated[float, Field(ge=0, lt=1)]


def _seconds(value: Any) -> Any:
    """`90`, `90s`, `10m`, `1.5h` or `1h30m` as seconds."""
    if not isinstance(value, str):
        return value
    number = r"(\d+(?:\.\d+)?)"
    parts = re.fullmatch(f"(?:{number}h)?(?:{number}m)?(?:{number}s)?|{number}", value.strip())
    if parts is None or not any(parts.groups()):
        raise ValueError(f"time_limit '{value}' is not a duration: write it as 90s, 10m or 1h30m")
    return sum(float(part) * unit for part, unit in zip(parts.groups(), (3600, 60, 1, 1), strict=True) if part)


Duration = Annotated[PositiveFloat, BeforeValidator(_seconds, json_schema_input_type=PositiveFloat | str)]


class Section(BaseModel):
    """A section of a recipe: fixed once made, and closed to keys that it does not know."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True, use_attribute_docstrings=True
    )


class StartOptions(Section):
    """What a run starts from. Where there are `weights`, the model, and how images are prepared for it, are theirs."""

    weights: str | None = None
    """What `vitreous train` is given by --from: a run, a bundle, a shipped name, a weight file, a folder or
    hf:owner/name."""
    arch: str | None = None
    """Name of the architecture, in timm's or torchvision's words, for a file that does not say."""
    revision: str | None = None
    """Branch, tag or commit of a Hub repository."""
    probe: bool = False
    """Leave the starting weights as they are and fit only a new head, by logistic regression on features that are
    computed once."""
    probe_first: bool = False
    """Fit the head first, as `start.probe` does, then train everything: a head of zeros would distort features that
    are already good (Kumar et al. 2022, arXiv 2202.10054). A head that is kept, because its classes are the data's,
    stays as it is."""
    whiten: bool = False
    """Start the first convolution of a new `conv_stem` from the training images, as a whitening of their 3 x 3
    neighbourhoods (`ConvStem.whiten`)."""

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
    """Share of the training images held out for validation, stratified, with at least one image of each class that has
    two; ignored where the data has a validation split of its own. 0: train on everything and keep the last step."""
    train_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the training images that are trained on, stratified, once validation and test images are held out, which
    stay the same. A larger share has all images of a smaller one: so it shows what more images are worth."""
    split_seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Seed of the validation split and of `train_share`, separate from `seed` so that runs with other seeds are judged
    on the same images. Cross-validation uses `seed`, unless this is given."""
    group: str | None = None
    """Images that belong together, as those of one patient or one burst do, and are held out together: a column of a
    table or of parquet files, in which they have the same value; or a regular expression that finds the same text in
    their paths below the data's folder (its first group, where it has one). `([^/]+)_\\d+\\.jpg$` finds cat in
    cat_7.jpg. For validation one of round(1 / `val_fraction`) parts of equal size is held out (at most half), and a
    group more for each class that it lacks; a class of one group is only trained on. Intervals of what is judged go by
    groups, too."""
    fit: Literal["crop", "squash"] = "crop"
    """Images of another shape: cut to the centre after resizing the shorter side, or squashed."""
    oversize: Annotated[float, Field(ge=1, le=8)] = 1.0
    """Keep training images at so many times the model's size, so that what `augment.crop_scale` cuts out is sharp. A
    crop of more than twice the model's side aliases fine patterns."""
    crop_fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Side of the centre that is cut out of images to be judged, as a share of the image's side. Random crops magnify:
    with their mean side here, things look as large as in training (Touvron et al. 2019, arXiv 1906.06423). Weights to
    start from bring their own fraction, and random crops are cut from that centre then."""
    white: Annotated[float, Field(gt=0)] | None = None
    """The level that is white, as all above it, in gray images of more than 8 bits, such as 4095 of a 12-bit camera; by
    default 65535, of floats 1. Weights to start from bring their own, unless this is given."""
    skip_broken: bool = False
    """Leave out files that cannot be read, each reported, instead of stopping."""
    memory_budget: Annotated[float, Field(gt=0, le=1 << 20)] = 4.0
    """GiB of uint8 pixels up to which a split lives on the device; larger ones stream through workers."""
    workers: NonNegativeInt = 2
    """Processes that read a streamed set; 0: the training process itself."""
    balance: Literal["none", "weights", "sampling"] = "none"
    """Classes of unequal size. `weights`: class weights in the loss, images / (classes x images of the class).
    `sampling`: a pass shows all classes equally often, the images of a small one several times. A head that is fitted
    first, or alone, has the weights either way."""
    folds: Annotated[int, Field(ge=2)] | None = None
    """Cross-validate: the training images in so many stratified parts, by `split_seed`; a run for each of them is
    tested on it and trained on the others."""
    fold: PositiveInt | None = None
    """Which fold of `data.folds` this run holds out for testing, from 1."""

    @property
    def resident_bytes(self) -> int:
        """`memory_budget` in bytes."""
        return int(self.memory_budget * 2**30)

    @model_validator(mode="after")
    def _check(self) -> "DataOptions":
        if self.fold is not None and self.folds is None:
            raise ValueError(f"data.fold is {self.fold}, but data.folds is not given: give data.folds too")
        if self.fold is not None and self.fold > self.folds:
            raise ValueError(f"data.fold is {self.fold}, but data.folds is {self.folds}: choose 1 to {self.folds}")
        return self


class DistillOptions(Section):
    """Distillation: a trained model, the teacher, answers each augmented image, and the model learns these answers
    beside the labels (Hinton et al. 2015, arXiv 1503.02531; of the same views: Beyer et al. 2022, arXiv 2106.05237)."""

    teacher: str | None = None
    """A trained model that knows all classes of the data: a run, a bundle, a shipped name, a weight file, a folder or
    hf:owner/name. Views of another size are brought to its own."""
    share: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Share of the loss that is the divergence from the teacher's probabilities; the rest is by the labels."""
    temperature: PositiveFloat = 2.0
    """What the logits of both are divided by for that: more brings out what the teacher thinks of unlikely classes."""


class OptimOptions(Section):
    """How the weights are found."""

    name: Literal["adamw", "muon"] = "adamw"
    """`muon`: Muon (Jordan et al. 2024) for the matrices of the blocks, AdamW for everything else."""
    learning_rate: PositiveFloat = 1e-3
    """AdamW's peak rate."""
    weight_decay: NonNegativeFloat = 0.05
    """AdamW's decoupled decay, of matrices only: norms, biases, tokens and positions have none."""
    betas: tuple[Fraction, Fraction] = (0.9, 0.999)
    """AdamW: decay per step of the moving averages of the gradient and of its square."""
    muon_learning_rate: PositiveFloat = 0.02
    """Muon's peak rate: the size of the singular values of a step, times the root of rows / columns where that is
    above 1."""
    muon_weight_decay: NonNegativeFloat = 0.01
    """Muon's decoupled decay: the share, times the rate, that a step takes from its matrices."""
    muon_momentum: Fraction = 0.95
    """Muon: decay per step of the moving average of the gradient, with Nesterov's look ahead."""
    muon_split_qkv: bool = False
    """Muon: orthogonalise the maps of queries, keys and values one by one, not as one matrix."""
    muon_patches: bool = False
    """Muon for the patch embedding too: a convolution is a matrix of one row for an output channel."""
    batch_size: PositiveInt = 128
    """Images a step, over all processes."""
    accumulate: PositiveInt = 1
    """Parts in which a batch is computed, one after the other, to save memory. The gradient is the same; only a
    convolutional stem differs, little while a part has eight images or more, as its batch norm sees one part at a
    time."""
    schedule: Literal["cosine", "linear", "onecycle", "constant"] = "cosine"
    """The rate after warm-up. `onecycle`: up to the peak over 30% of all steps and down to nothing, both by cosine;
    it brings its own warm-up."""
    warmup: Fraction = 0.05
    """Share of all steps over which the rate rises linearly to its peak."""
    final_rate: Annotated[float, Field(ge=0, le=1)] = 0.01
    """Rate at the end of the cosine and linear schedules, as a share of the peak."""
    clip: PositiveFloat | None = 1.0
    """Largest norm of the whole gradient, to which a larger one is scaled down; null: no limit."""
    label_smoothing: Fraction = 0.0
    """Share of the target that is spread evenly over all classes: 0.05 asks for about 95% certainty; 0: none."""
    layer_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Factor of the peak rate from one layer to the one before it: the head has the whole rate, the last block this
    share of it, the embedding the least (Bao et al. 2022, BEiT)."""
    freeze: NonNegativeInt = 0
    """Blocks, from the first, that stay as they are, and the embedding with them; 0: all is trained."""
    ema: Fraction = 0.0
    """Decay per step of the moving average of the weights that is evaluated and kept; 0: none."""

    @model_validator(mode="after")
    def _check(self) -> "OptimOptions":
        if self.accumulate > self.batch_size:
            raise ValueError(
                f"accumulate {self.accumulate} is larger than batch_size {self.batch_size}: set at most that"
            )
        return self
