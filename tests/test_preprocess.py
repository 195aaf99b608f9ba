"""Images of every kind come out upright, at the right size and with the right levels."""

import io
import math
import struct
from fractions import Fraction

import numpy as np
import pytest
import torch
from PIL import Image

from vitreous.data.stores import header_shape
from vitreous.preprocess import Preprocess, channel_statistics


def gray(size=4, **settings):
    return Preprocess(image_size=size, mean=(0.5,), std=(0.5,), **settings)


def rgb(size=4, **settings):
    return Preprocess(image_size=size, mean=(0.5,) * 3, std=(0.5,) * 3, **settings)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"image_size": 0}, "greater than 0"),
        ({"image_size": (8, -1)}, "greater than 0"),
        ({"mean": ()}, "one value per channel"),
        ({"mean": (0.5, 0.5)}, "one value per channel"),
        ({"mean": (123.7,)}, "not within 0..1"),
        ({"std": (0.0,)}, "above 0"),
        ({"std": (58.4,)}, "above 0"),
        ({"std": (math.nan,)}, "above 0"),
        ({"interpolation": "lanczos"}, "nearest"),
        ({"fit": "pad"}, "crop"),
        ({"crop_fraction": 0}, "greater than 0"),
        ({"crop_fraction": 1.1}, "less than or equal to 1"),
        ({"colour": True}, "Extra inputs"),
    ],
)
def test_bad_values_are_refused(wrong, reason):
    with pytest.raises(ValueError, match=reason):
        Preprocess(**({"image_size": 8, "mean": (0.5,), "std": (0.5,)} | wrong))


def test_it_is_written_and_read_back_equal():
    made = rgb((8, 12), fit="squash", interpolation="nearest", crop_fraction=0.875)
    assert Preprocess.model_validate_json(made.model_dump_json()) == made
    assert made.image_size == (8, 12) and made.channels == 3 and made.shape == (3, 8, 12)
    assert rgb(8).image_size == (8, 8)


def checkers():
    return Image.fromarray(np.indices((4, 4)).sum(0).astype(np.uint8) * 40)  # 0..240 in "L"


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize("fit", ["crop", "squash"])
def test_an_image_of_the_right_size_is_not_resampled(interpolation, fit):
    image = checkers()
    fitted = gray(4, interpolation=interpolation, fit=fit).fit_image(image)
    assert fitted.dtype == np.uint8 and fitted.shape == (1, 4, 4)
    np.testing.assert_array_equal(fitted[0], np.asarray(image))


def test_crop_keeps_the_centre_and_squash_keeps_everything():
    wide = np.zeros((4, 12, 3), np.uint8)
    wide[:, :4, 0], wide[:, 4:8, 1], wide[:, 8:, 2] = 255, 255, 255  # red, green and blue thirds
    image = Image.fromarray(wide)
    crop = rgb(4, interpolation="nearest").fit_image(image)
    np.testing.assert_array_equal(crop, np.broadcast_to(np.array([0, 255, 0])[:, None, None], (3, 4, 4)))
    squash = rgb((4, 3), fit="squash", interpolation="nearest").fit_image(image)
    np.testing.assert_array_equal(squash[:, 0], np.eye(3) * 255)
    tall = rgb(4, interpolation="nearest").fit_image(image.transpose(Image.Transpose.ROTATE_90))
    np.testing.assert_array_equal(tall, crop)


@pytest.mark.parametrize("fit", ["crop", "squash"])
def test_crop_fraction_cuts_out_the_centre_of_a_larger_resize(fit):
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40), np.uint8))
    resized = np.asarray(image.resize((16, 16), Image.Resampling.BICUBIC)).astype(int)
    fitted = gray(14, fit=fit, crop_fraction=0.875).fit_image(image)[0]
    assert np.abs(fitted - resized[1:15, 1:15]).max() <= 1  # one resampling rounds once
    wide = Image.fromarray(np.random.default_rng(1).integers(0, 256, (40, 80), np.uint8))
    size = (32, 16) if fit == "crop" else (16, 16)
    resized = np.asarray(wide.resize(size, Image.Resampling.BICUBIC)).astype(int)
    left = (size[0] - 14) // 2
    fitted = gray(14, fit=fit, crop_fraction=0.875).fit_image(wide)[0]
    assert np.abs(fitted - resized[1:15, left : left + 14]).max() <= 1


@pytest.mark.parametrize("model", [(8, 12), (12, 8)])
def test_crop_fraction_cuts_out_the_centre_for_models_that_are_not_square(model):
    rows, columns = model
    image = Image.fromarray(np.random.default_rng(2).integers(0, 256, (32, 48), np.uint8))
    resized = np.asarray(image.resize((2 * columns, 2 * rows), Image.Resampling.BICUBIC)).astype(int)
    expected = resized[rows // 2 : rows // 2 + rows, columns // 2 : columns // 2 + columns]
    assert np.abs(gray(model, fit="squash", crop_fraction=0.5).fit_image(image)[0] - expected).max() <= 1


def test_crop_fraction_cuts_images_of_the_models_size_like_any_other():
    ramps = [np.broadcast_to(np.linspace(0, 255, side).round().astype(np.uint8), (side, side)) for side in (95, 96, 97)]
    preprocess = gray(96, crop_fraction=0.75)
    fitted = [preprocess.fit_image(Image.fromarray(np.array(ramp)))[0, 0].astype(int) for ramp in ramps]
    assert np.abs(fitted[1] - fitted[0]).max() <= 2 and np.abs(fitted[1] - fitted[2]).max() <= 2
    np.testing.assert_array_equal(preprocess.fit_array(np.array(ramps[1])[None])[0, 0], fitted[1])


@pytest.mark.parametrize("model", [(32, 32), (24, 40), (40, 24)])
@pytest.mark.parametrize("size", [(37, 80), (80, 37), (64, 64), (20, 61)])
def test_crop_equals_resizing_to_cover_and_cutting_the_centre(size, model):
    noise = np.random.default_rng(0).integers(80, 176, (*size[::-1], 3), np.uint8)  # nothing clips
    image, (rows, columns) = Image.fromarray(noise), model
    scale = max(Fraction(columns, size[0]), Fraction(rows, size[1]))
    whole = image.resize([int(side * scale) for side in size], Image.Resampling.BICUBIC)
    left, top = round((whole.width - columns) / 2), round((whole.height - rows) / 2)
    expected = np.asarray(whole.crop((left, top, left + columns, top + rows))).transpose(2, 0, 1)
    assert np.abs(rgb(model).fit_image(image).astype(int) - expected).max() <= 1


def test_shrinking_is_antialiased():
    stripes = Image.fromarray(np.tile(np.array([0, 255], np.uint8), (64, 32)))
    shrunk = gray(8, interpolation="bilinear").fit_image(stripes)[0, :, 1:-1]
    assert np.abs(shrunk.astype(int) - 127.5).max() <= 5  # without it, all 0 or all 255


def one_pixel(mode, value):
    return Image.new(mode, (4, 4), value)


def palette(transparent):
    image = Image.new("P", (4, 4), 1)
    image.putpalette([0, 0, 0, 255, 0, 0])
    if transparent:
        image.info["transparency"] = 1
    return image


def deep(value, dtype):
    return Image.fromarray(np.full((4, 4), value, dtype))


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (one_pixel("RGB", (10, 20, 30)), (10, 20, 30)),
        (one_pixel("L", 77), (77, 77, 77)),
        (one_pixel("1", 1), (255, 255, 255)),
        (one_pixel("1", 0), (0, 0, 0)),
        (one_pixel("RGBA", (200, 0, 0, 0)), (255, 255, 255)),
        (one_pixel("RGBA", (200, 0, 0, 255)), (200, 0, 0)),
        (one_pixel("RGBA", (0, 0, 0, 128)), (127, 127, 127)),
        (one_pixel("LA", (0, 0)), (255, 255, 255)),
        (one_pixel("LA", (90, 255)), (90, 90, 90)),
        (one_pixel("La", (90, 255)), (90, 90, 90)),
        (one_pixel("RGBa", (90, 0, 0, 255)), (90, 0, 0)),
        (palette(False), (255, 0, 0)),
        (palette(True), (255, 255, 255)),
        (one_pixel("CMYK", (0, 255, 255, 0)), (255, 0, 0)),
        (deep(65535, np.uint16), (255, 255, 255)),
        (deep(257 * 100, np.uint16), (100, 100, 100)),
        (deep(200, np.uint16), (1, 1, 1)),
        (deep(257 * 100, np.int32), (100, 100, 100)),
        (deep(257, np.int32), (1, 1, 1)),
        (deep(0.5, np.float32), (128, 128, 128)),
        (deep(1, np.float32), (255, 255, 255)),
    ],
    ids=lambda value: value.mode if isinstance(value, Image.Image) else None,
)
def test_every_mode_gives_the_right_colour(image, expected):
    np.testing.assert_array_equal(rgb().fit_image(image)[:, 2, 1], expected)
    luma = round(np.dot(expected, (0.299, 0.587, 0.114)))
    assert abs(int(gray().fit_image(image)[0, 2, 1]) - luma) <= 1


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (-1.0, np.float32),
        (1.5, np.float32),
        (200, np.float32),
        (math.nan, np.float32),
        (-1, np.int32),
        (70000, np.int32),
    ],
)
def test_levels_outside_the_range_of_their_kind_are_refused(value, kind):
    peak = 1 if kind is np.float32 else 65535
    with pytest.raises(ValueError, match=rf"outside 0\.\.{peak}: scale all pictures by one factor"):
        gray().fit_image(deep(value, kind))


@pytest.mark.parametrize(("kind", "white"), [(np.uint16, 4095), (np.int32, 70000), (np.float32, 7.5)])
def test_the_level_that_is_white_may_be_given(kind, white):
    levels = np.array([[0, white / 5, white, 1.1 * white]]).astype(kind)
    seen = gray(size=(1, 4), white=white).fit_image(Image.fromarray(levels))
    assert seen.ravel().tolist() == [0, 51, 255, 255]  # a speck above it, too
    assert gray(size=(1, 4), white=white).fit_image(Image.fromarray(np.full((1, 4), 51, np.uint8))).max() == 51
    with pytest.raises(ValueError, match=rf"^gray levels -1\.\.1 are outside 0\.\.{white}: scale all"):
        gray(white=white).fit_image(
            Image.fromarray(np.array([[-1, 1]]).astype(kind if kind is not np.uint16 else np.int32))
        )


@pytest.mark.parametrize(("kind", "peak"), [(np.uint16, 65535), (np.float32, 1)])
@pytest.mark.parametrize("orientation", [1, 6])
def test_a_tiff_whose_white_is_zero_is_read_as_it_looks(kind, peak, orientation):
    stored, levels = io.BytesIO(), (np.array([[0.2, 0.4, 1.0]]) * peak).astype(kind)
    Image.fromarray(levels).save(stored, "TIFF", tiffinfo={262: 0, 274: orientation})
    seen = Preprocess(image_size=(1, 3) if orientation == 1 else (3, 1), mean=(0.5,), std=(0.5,)).fit_image(
        Image.open(stored)
    )
    assert seen.ravel().tolist() == [204, 153, 0]


@pytest.mark.parametrize("bits", [8, 16])
def test_a_tiff_of_16_bit_planes_which_pillow_misreads_is_refused(bits):
    """Three planes of one row, each a strip of its own, one after the other, and the tags that say so."""
    planes = (np.array([[0, 1, 2], [250, 251, 252], [100, 101, 102]]) << (bits - 8)).astype(f"<u{bits // 8}")
    strip = 3 * bits // 8
    tags = {256: 3, 257: 1, 258: (bits, bits, bits), 259: 1, 262: 2, 273: (8, 8 + strip, 8 + 2 * strip), 277: 3,
            278: 1, 279: (strip, strip, strip), 284: 2}  # fmt: skip
    stored = b"II*\0" + struct.pack("<I", 8 + 4 * strip) + planes.tobytes().ljust(4 * strip, b"\0")
    lists = len(stored) + 2 + 12 * len(tags) + 4  # where values of several numbers begin
    entries, behind = b"", b""
    for tag, value in tags.items():
        if isinstance(value, tuple):
            entries += struct.pack("<HHII", tag, 3, 3, lists + len(behind))
            behind += struct.pack("<3H", *value)
        else:
            entries += struct.pack("<HHIHH", tag, 3, 1, value, 0)
    image = Image.open(io.BytesIO(stored + struct.pack("<H", len(tags)) + entries + bytes(4) + behind))
    whole = Preprocess(image_size=(1, 3), mean=(0.5,) * 3, std=(0.5,) * 3)
    if bits == 8:
        assert whole.fit_image(image)[:, 0].tolist() == planes.tolist()
    else:
        with pytest.raises(ValueError, match=r"16-bit planes, which Pillow misreads: save its channels interleaved$"):
            whole.fit_image(image)


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_cameras_orientation_is_applied(orientation, kind, monkeypatch):
    upright = np.zeros((4, 6), np.uint8)
    upright[0, 0], upright[0, 5], upright[3, 0] = 250, 150, 50  # corners tell every turn and flip apart
    undo = {  # from upright to how the camera stored it
        1: lambda a: a,
        2: np.fliplr,
        3: lambda a: np.rot90(a, 2),
        4: np.flipud,
        5: np.transpose,
        6: lambda a: np.rot90(a, 1),
        7: lambda a: np.rot90(a, 2).T,
        8: lambda a: np.rot90(a, 3),
    }
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(undo[orientation](upright))).save(stored, kind, exif=exif)
    with Image.open(stored) as image:
        assert header_shape(image) == (1, 4, 6)
    if kind == "PNG":  # what else is in the metadata is not written again, which may fail
        monkeypatch.setattr(Image.Exif, "tobytes", None)
    with Image.open(stored) as image:
        np.testing.assert_array_equal(gray((4, 6)).fit_image(image)[0], upright)


@pytest.mark.parametrize("orientation", [0, 9, (6, 6), "six"])
def test_an_orientation_that_is_none_leaves_the_image_as_stored(orientation):
    image = Image.fromarray(np.arange(24, dtype=np.uint8).reshape(4, 6))
    image.getexif()[0x0112] = orientation
    assert header_shape(image) == (1, 4, 6)
    np.testing.assert_array_equal(gray((4, 6)).fit_image(image)[0], np.asarray(image))


def test_damaged_exif_does_not_lose_the_image():
    image = checkers()
    image.info["exif"] = b"Exif\0\0 nothing of the kind"
    np.testing.assert_array_equal(gray().fit_image(image)[0], np.asarray(checkers()))


def test_a_picture_of_other_than_1_or_3_channels_is_refused():
    four = Preprocess(image_size=4, mean=(0.5,) * 4, std=(0.5,) * 4)
    with pytest.raises(ValueError, match="1 or 3 channels, and the model reads 4"):
        four.fit_image(checkers())


def test_an_array_that_fits_is_returned_itself():
    array = np.zeros((3, 4, 4), np.uint8)
    assert rgb().fit_array(array) is array


def test_arrays_fit_as_pictures_do():
    array = np.random.default_rng(0).integers(0, 256, (3, 9, 14), np.uint8)
    picture = Image.fromarray(array.transpose(1, 2, 0))
    np.testing.assert_array_equal(rgb(6).fit_array(array), rgb(6).fit_image(picture))
    np.testing.assert_array_equal(gray(6).fit_array(array), gray(6).fit_image(picture))
    wide = rgb(6).fit_array(array[:1])
    assert wide.shape == (3, 6, 6)
    np.testing.assert_array_equal(wide, np.repeat(gray(6).fit_array(array[:1]), 3, axis=0))


def test_arrays_of_many_channels_fit_channel_by_channel():
    array = np.random.default_rng(0).integers(0, 256, (5, 9, 9), np.uint8)
    five = Preprocess(image_size=6, mean=(0.5,) * 5, std=(0.5,) * 5)
    np.testing.assert_array_equal(five.fit_array(array)[3:4], gray(6).fit_array(array[3:4]))
    with pytest.raises(ValueError, match="have 5 channels, the model takes 3"):
        rgb(6).fit_array(array)
    with pytest.raises(ValueError, match="expected uint8"):
        rgb(6).fit_array(array.astype(np.float32))


def test_normalise_is_the_formula_for_bytes_and_for_floats():
    preprocess = Preprocess(image_size=4, mean=(0.1, 0.4, 0.7), std=(0.2, 0.3, 0.4))
    images = torch.randint(0, 256, (2, 3, 4, 4), dtype=torch.uint8)
    mean, std = (torch.tensor(v, dtype=torch.float64).view(3, 1, 1) for v in (preprocess.mean, preprocess.std))
    expected = (images.double() / 255 - mean) / std
    for given in (images, images.float() / 255, images.double() / 255):
        before = given.clone()
        normalised = preprocess.normalise(given)
        assert normalised.dtype == torch.float32
        torch.testing.assert_close(normalised.double(), expected, rtol=0, atol=1e-6)
        assert torch.equal(given, before)


def test_normalise_refuses_other_channels_and_kinds():
    with pytest.raises(ValueError, match=r"expected images \(B, 3, H, W\), got \(2, 1, 4, 4\)"):
        rgb().normalise(torch.zeros(2, 1, 4, 4))
    with pytest.raises(ValueError, match=r"not torch\.int64"):
        rgb().normalise(torch.zeros(2, 3, 4, 4, dtype=torch.int64))


def test_gradients_pass_normalise_even_after_inference_mode():
    preprocess = Preprocess(image_size=4, mean=(0.25,), std=(0.125,))
    with torch.inference_mode():
        preprocess.normalise(torch.zeros(1, 1, 4, 4))
    images = torch.rand(1, 1, 4, 4, requires_grad=True)
    preprocess.normalise(images).sum().backward()
    torch.testing.assert_close(images.grad, torch.full((1, 1, 4, 4), 8.0))


def test_normalise_can_be_exported_and_used_afterwards():
    preprocess = Preprocess(image_size=4, mean=(0.3,), std=(0.6,))

    class Normalise(torch.nn.Module):
        def forward(self, images):
            return preprocess.normalise(images)

    images = torch.randint(0, 256, (2, 1, 4, 4), dtype=torch.uint8)
    exported = torch.export.export(Normalise(), (images,)).module()
    after = preprocess.normalise(images)
    assert type(after) is torch.Tensor
    torch.testing.assert_close(exported(images), after)


def test_measured_statistics_are_exact():
    images = np.random.default_rng(0).integers(0, 256, (5000, 3, 4, 6), np.uint8)
    images[:, 2] = 51  # a constant channel
    mean, std = channel_statistics([images[:3], images[3:]])
    scaled = images.astype(np.float64) / 255
    np.testing.assert_allclose(mean, scaled.mean((0, 2, 3)), rtol=0, atol=1e-12)
    np.testing.assert_allclose(std[:2], scaled.std((0, 2, 3))[:2], rtol=0, atol=1e-12)
    assert std[2] == 1.0
    with pytest.raises(ValueError, match="expected uint8 images"):
        channel_statistics([scaled])
