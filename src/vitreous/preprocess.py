"""What happens to an image before the model sees it, defined once and saved with the weights.

`fit_image` and `fit_array` run on the host and give uint8 pixels of the model's size;
`normalise` runs on the device, on whole batches. Training, evaluation and serving all use these three.
"""

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import torch
from PIL import ExifTags, Image
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PositiveInt, model_validator
from torch import Tensor

# (rows, columns); one number means a square
Pair = Annotated[tuple[PositiveInt, PositiveInt], BeforeValidator(lambda v: (v, v) if isinstance(v, int | str) else v)]

UPRIGHT = {  # what turns a picture of each EXIF orientation upright; 1 already is
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class Preprocess(BaseModel):
    """Image size, how images are brought to it, and the statistics that normalise them."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    if TYPE_CHECKING:  # by the fields' types a checker would refuse image_size=32

        def __init__(self, **fields: Any) -> None: ...

    image_size: Pair
    """(rows, columns), in pixels; one number means a square."""
    mean: tuple[float, ...]
    """Mean of pixels scaled to 0..1, one value per channel; its length is the number of channels."""
    std: tuple[float, ...]
    """Standard deviation of pixels scaled to 0..1, one value per channel."""
    interpolation: Literal["nearest", "bilinear", "bicubic"] = "bicubic"
    fit: Literal["crop", "squash"] = "crop"
    """`crop` resizes the shorter side and cuts out the centre; `squash` ignores the aspect ratio."""
    crop_fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Side of the centre that is cut out, as a share of the resized side: 0.875 resizes to 256 to cut out 224."""
    white: Annotated[float, Field(gt=0)] | None = None
    """The level that is white, as all above it, in gray pictures of more than 8 bits: by default 65535, of floats 1,
    and none may be above it."""

    @model_validator(mode="after")
    def _check_statistics(self) -> "Preprocess":
        if not self.mean or len(self.mean) != len(self.std):
            raise ValueError(f"mean {self.mean} and std {self.std} must hold one value per channel each")
        if not all(0 <= value <= 1 for value in self.mean):
            raise ValueError(f"mean {self.mean} is not within 0..1: give it for pixels scaled to 0..1")
        if not all(0 < value <= 1 for value in self.std):
            raise ValueError(f"std {self.std} is not within 0..1, above 0: give it for pixels scaled to 0..1")
        return self

    @property
    def channels(self) -> int:
        return len(self.mean)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of every fitted image."""
        return (self.channels, *self.image_size)

    @property
    def whole_size(self) -> tuple[int, int]:
        """(rows, columns) to resize a whole image to before its centre is cut out; `crop` lengthens one of them."""
        return tuple(math.floor(side / self.crop_fraction + 1e-6) for side in self.image_size)

    def fit_image(self, image: Image.Image) -> np.ndarray:
        """Bring a picture to the model's size: uint8 (C, H, W)."""
        if self.channels not in (1, 3):
            raise ValueError(
                f"a picture has 1 or 3 channels, and the model reads {self.channels}: in Python, give uint8 arrays"
            )
        pixels = np.asarray(self._resize(_plain(image, "L" if self.channels == 1 else "RGB", self.white)))
        return np.ascontiguousarray(pixels.reshape(*self.image_size, -1).transpose(2, 0, 1))  # (C, H, W)

    def fit_array(self, array: np.ndarray) -> np.ndarray:
        """The same for decoded pixels, uint8 (C, H, W); returned unchanged if they already fit."""
        if array.dtype != np.uint8 or array.ndim != 3:
            raise ValueError(f"expected uint8 pixels (C, H, W), got {array.dtype} {array.shape}")
        if array.shape == self.shape and self.crop_fraction == 1:
            return array
        channels = array.shape[0]
        if not same_channels(channels, self.channels):
            raise ValueError(
                f"the images have {channels} channels, the model takes {self.channels}: give images of so many"
            )
        if channels == 3:
            return self.fit_image(Image.fromarray(np.ascontiguousarray(array.transpose(1, 2, 0))))
        planes = np.stack([np.asarray(self._resize(Image.fromarray(plane))) for plane in array])
        return np.repeat(planes, 3, axis=0) if channels == 1 and self.channels == 3 else planes

    def normalise(self, images: Tensor) -> Tensor:
        """(pixels - mean) / std, on the images' device. images: (B, C, H, W), uint8 or float in 0..1."""
        if images.ndim != 4 or images.shape[1] != self.channels:
            raise ValueError(f"expected images (B, {self.channels}, H, W), got {tuple(images.shape)}")
        if images.dtype != torch.uint8 and not images.is_floating_point():
            raise ValueError(f"images must be uint8, or float in 0..1, not {images.dtype}")
        affine = _affine.__wrapped__ if torch.compiler.is_compiling() else _affine  # a graph keeps constants of its own
        scale, shift = affine(self.mean, self.std, 255 if images.dtype == torch.uint8 else 1, images.device)
        return (images.float() * scale).add_(shift)

    def _resize(self, image: Image.Image) -> Image.Image:
        """Resample to the model's size, with antialiasing; unchanged if the whole image already has it."""
        rows, columns = self.image_size
        width, height = image.size
        if (width, height) == (columns, rows) and self.crop_fraction == 1:
            return image
        high, wide = self.whole_size  # this resizing and the centre crop are done in one resampling
        if self.fit == "crop":  # scale by the side that needs more, so that both are covered
            if width * high > height * wide:
                wide = width * high // height
            else:
                high = height * wide // width
        left, top = round((wide - columns) / 2), round((high - rows) / 2)
        across, down = width / wide, height / high
        box = (left * across, top * down, (left + columns) * across, (top + rows) * down)
        return image.resize((columns, rows), Image.Resampling[self.interpolation.upper()], box=box)


def same_channels(a: int, b: int) -> bool:
    """Whether images of `a` channels can be read as those of `b`: gray and RGB are converted to each other."""
    return a == b or {a, b} == {1, 3}


@lru_cache
def _affine(mean: tuple, std: tuple, peak: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Scale and shift, (C, 1, 1) each, so that pixels * scale + shift is (pixels / peak - mean) / std.

    Kept per device, because a copy to a GPU at every step would make the step wait.
    """
    with torch.inference_mode(False):  # so that autograd can use them, even if cached in inference mode
        mean, std = torch.tensor([mean, std], dtype=torch.float64)[..., None, None]
        return (1 / (peak * std)).float().to(device), (-mean / std).float().to(device)


def channel_statistics(parts: Iterable[np.ndarray]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Exact mean and std of pixels / 255 by channel, of arrays uint8 (n, C, H, W). A constant channel gets std 1."""
    counts = 0
    for images in parts:
        if images.dtype != np.uint8 or images.ndim != 4 or not images.size:
            raise ValueError(f"expected uint8 images (N, C, H, W), got {images.dtype} {images.shape}")
        counts = counts + np.stack([np.bincount(planes.ravel(), minlength=256) for planes in images.swapaxes(0, 1)])
    share = counts / counts.sum(axis=1, keepdims=True)  # (C, 256)
    levels = np.arange(256) / 255
    mean = share @ levels
    std = np.sqrt((share * (levels - mean[:, None]) ** 2).sum(axis=1))
    return tuple(mean.tolist()), tuple(np.where((counts > 0).sum(axis=1) == 1, 1.0, std).tolist())


def _plain(image: Image.Image, mode: str, white: float | None) -> Image.Image:
    """Convert any picture to an upright "L" or "RGB" one, with transparency composited on white.

    white: the level that is white in one of more than 8 bits, as `Preprocess` has it.
    """
    image.load()
    _check_planes(image)
    tag = ExifTags.Base.PhotometricInterpretation
    negative = image.format == "TIFF" and image.tag_v2.get(tag) == 0  # white is 0: Pillow inverts 8 bits alone
    if (turn := UPRIGHT.get(orientation(image))) is not None:
        image = image.transpose(turn)
    if image.mode == "F" or image.mode.startswith("I"):
        levels = _to_bytes(image, white)
        return Image.fromarray(255 - levels if negative else levels).convert(mode)
    if image.has_transparency_data:
        if image.mode == "La":
            image = image.convert("LA")
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    if image.mode not in ("1", "L"):
        image = image.convert("RGB")
    return image.convert(mode)


def _check_planes(image: Image.Image) -> None:
    """Raises ValueError for a TIFF of uncompressed 16-bit colour planes: Pillow 13 reads noise from it, silently."""
    tags, tag = getattr(image, "tag_v2", {}), ExifTags.Base
    apart = (tags.get(tag.PlanarConfiguration), tags.get(tag.Compression)) == (2, 1)
    if apart and len(bits := tags.get(tag.BitsPerSample, ())) > 1 and max(bits) > 8:
        raise ValueError("a TIFF of uncompressed 16-bit planes, which Pillow misreads: save its channels interleaved")


def orientation(image: Image.Image) -> int:
    """The EXIF orientation, 1 to 8: 1 is as stored, also where the metadata say none of these; 5 and above swap rows
    and columns."""
    try:
        found = image.getexif().get(ExifTags.Base.Orientation)
        return found if found in UPRIGHT else 1
    except Exception:  # damaged metadata; the pixels may still be readable
        return 1


def _to_bytes(image: Image.Image, white: float | None) -> np.ndarray:
    """Scale a high bit depth gray picture to uint8.

    The scale does not depend on the content, or a dark picture would become as bright as others.
    """
    levels, peak = np.asarray(image).astype(np.float64), white or (1 if image.mode == "F" else 65535)
    if white is not None:
        np.minimum(levels, white, out=levels)
    low, high = levels.min(), levels.max()
    if not (low >= 0 and high <= peak):  # also when not a number
        raise ValueError(
            f"gray levels {low:g}..{high:g} are outside 0..{peak:g}: scale all pictures by one factor, or train with "
            "data.white, the level that is white"
        )
    levels *= 255 / peak  # in place, as pictures may be large
    return np.rint(levels, out=levels).astype(np.uint8)
