"""Images of a report: the right ones, pixel for pixel, and maps where they belong."""

import base64
import io
import re

import numpy as np
import pytest
import torch
from PIL import Image

from vitreous.report.pictures import LARGEST, confident_mistakes, heated, picture, uncertain_hits

SHARES = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.45, 0.55], [0.3, 0.7]])
LABELS = torch.tensor([0, 1, 0, 1, 1])


def pixels_of(html):
    """What an <img> shows, as an array."""
    (data,) = re.findall(r'src="data:image/png;base64,([^"]*)"', html)
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))


def test_mistakes_come_surest_first_and_hits_least_sure_first():
    assert confident_mistakes(SHARES, LABELS, 5).tolist() == [2, 1]
    assert uncertain_hits(SHARES, LABELS, 5).tolist() == [3, 4, 0]
    assert confident_mistakes(SHARES, LABELS, 1).tolist() == [2]
    assert confident_mistakes(SHARES, SHARES.argmax(1), 5).tolist() == []


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_a_picture_holds_its_pixels(channels):
    pixels = np.random.default_rng(0).integers(0, 256, (channels, 6, 9), np.uint8)
    html = picture(pixels, 'a "cat" & more')
    expected = pixels[0] if channels < 3 else pixels[:3].transpose(1, 2, 0)
    np.testing.assert_array_equal(pixels_of(html), expected)
    assert 'alt="a &quot;cat&quot; &amp; more"' in html and 'width="9" height="6"' in html
    assert 'class="pixels"' in html  # small: enlarged without smoothing


def test_large_pictures_are_made_smaller_and_are_smoothed():
    html = picture(np.zeros((3, 224, 448), np.uint8), "x")
    assert pixels_of(html).shape == (LARGEST // 2, LARGEST, 3) and "pixels" not in html


def test_a_map_glows_where_it_is_largest():
    pixels = np.full((3, 4, 4), 200, np.uint8)
    heat = np.zeros((2, 4))
    heat[0, 2] = 5.0
    shown = heated(pixels, heat)
    assert shown.shape == (3, 4, 4) and shown.dtype == np.uint8
    assert shown[:, 0, 0].tolist() == [130] * 3  # a dimmed gray
    red, green, blue = shown[:, 1, 2].tolist()
    assert red > green > blue and red > 200
    assert (shown[:, 0, 2] == shown[:, 1, 2]).all() and shown[:, 2, 2].tolist() == [130] * 3  # a patch is of two rows
    assert (heated(pixels, np.zeros((4, 4))) == 130).all()  # nothing speaks for anything


def test_a_map_that_is_nearly_even_looks_so():
    pixels, heat = np.full((3, 4, 4), 200, np.uint8), np.array([[1.0, 0.9], [1.0, 0.9]])
    shown = heated(pixels, heat).astype(int)
    assert (abs(shown[:, 0, 0] - shown[:, 0, 2]) <= 21).all() and (shown[0] > 200).all()
    assert (heated(pixels, np.ones((2, 2))) == heated(pixels, heat)[:, :1, :1]).all()
