"""What may be done to training images: the `augment:` section of a recipe."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, model_validator

Share = Annotated[float, Field(ge=0, le=1)]
Area = Annotated[float, Field(gt=0, le=1)]
Ratio = Annotated[float, Field(gt=0)]


class Augment(BaseModel):
    """The `augment:` section of a recipe; everything is off by default.

    The geometry of an image (crop, flips, rotation, scale, shear, shift, RandAugment's, in this order) is one
    map, so that pixels are interpolated once. Then come color, RandAugment's colours, erasing and mixing.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True, use_attribute_docstrings=True
    )

    flip: Share = 0.0
    """Probability of a horizontal flip."""
    alternate_flip: bool = False
    """Flip by probability in epoch 0 only, then each image turns over every epoch (Jordan 2024, airbench)."""
    vertical_flip: Share = 0.0
    """Probability of a vertical flip, for images without an up and a down, such as those of a microscope."""
    shift: NonNegativeInt = 0
    """Largest move across and down, in whole pixels."""
    crop_scale: tuple[Area, Area] | None = None
    """Random resized crop: smallest and largest area, as a share of the image."""
    crop_ratio: tuple[Ratio, Ratio] = (3 / 4, 4 / 3)
    """Random resized crop: smallest and largest width / height."""
    rotation: Annotated[float, Field(ge=0, le=180)] = 0.0
    """Largest rotation either way, in degrees."""
    scale: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Largest zoom: 0.2 magnifies by 0.8 to 1.2."""
    shear: Annotated[float, Field(ge=0, lt=90)] = 0.0
    """Largest horizontal shear either way, in degrees."""
    padding: Literal["zeros", "mean", "border", "reflection"] = "zeros"
    """What lies beyond the image: black, the mean colour, its outermost pixels, or its mirror image."""
    color: Share = 0.0
    """Largest change of brightness, contrast and saturation: 0.4 multiplies each by 0.6 to 1.4."""
    randaugment_ops: NonNegativeInt = 0
    """RandAugment: operations drawn for each image; each is then done half the time, as in timm."""
    randaugment_magnitude: Annotated[float, Field(ge=0, le=10)] = 9.0
    """RandAugment: mean strength, of 10."""
    randaugment_sd: NonNegativeFloat = 0.5
    """RandAugment: standard deviation of the strength, of 10."""
    erase: Share = 0.0
    """Probability that a box of 2 to 33% of the area becomes the mean colour (Zhong et al. 2020)."""
    shrink: Area = 1.0
    """Side of the images in the first part of the training, as a share of the model's, to whole patches: fewer tokens,
    and so more passes in the same time (Howard 2018, progressive resizing; Tan and Le 2021)."""
    shrink_until: Share = 0.5
    """Share of the training after which images that `augment.shrink` made smaller have the model's size."""
    mixup: NonNegativeFloat = 0.0
    """Alpha of the Beta(alpha, alpha) of mixup weights (Zhang et al. 2018)."""
    cutmix: NonNegativeFloat = 0.0
    """Alpha of the Beta(alpha, alpha) of cutmix areas (Yun et al. 2019). With mixup: half and half."""
    mix_probability: Share = 1.0
    """Share of the images that mixup or cutmix mixes."""
    mix_until: Share = 1.0
    """Share of the training after which mixup and cutmix mix no images."""

    @model_validator(mode="after")
    def _check(self) -> "Augment":
        for name in ("crop_scale", "crop_ratio"):
            pair = getattr(self, name)
            if pair and pair[0] > pair[1]:
                high, low = (f"{value:g}" for value in pair)
                raise ValueError(f"{name} [{high},{low}] runs from large to small: write it as [{low},{high}]")
        if self.alternate_flip and not self.flip:
            raise ValueError("alternate_flip needs flip, which is 0: set alternate_flip=false, or flip=0.5")
        return self
