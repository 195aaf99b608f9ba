"""The page of one image: whole, self-contained, with the figures of the model and the lines of the source."""

import base64
import html
import inspect
import io
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from browser import CONTRAST, UNREADABLE, Browser
from PIL import Image
from tiny import CLASSES, tiny_bundle

from vitreous.explain.attention import open_pass, read_out
from vitreous.explain.listing import code, colored
from vitreous.explain.methods import patch_map
from vitreous.explain.walk import walk
from vitreous.model.attention import attend, attention_weights
from vitreous.model.vit import Block, Pool, ViT
from vitreous.plots import overlay

VOID = {"meta", "link", "img", "br"}
MODELS = [
    {},
    {"pool": "attention", "patch_embedding": "conv_stem", "stem_channels": (4,), "registers": 2, "depth": 2},
    {"pool": "mean", "positions": "rope", "head_hidden": 5, "heads": 4},
    {"pool": "cls_mean", "depth": 2, "registers": 1},
    {"pool": "mean", "norm_after_pool": True},
    {"positions": "sincos2d", "patch_embedding": "linear", "channels": 3, "patch_size": (2, 4)},
]


class Reader(HTMLParser):
    """Checks that tags close in order, and collects text and attributes."""

    def __init__(self, text):
        super().__init__()
        self.open, self.text, self.attributes = [], "", []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.attributes += [(tag, *pair) for pair in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


@pytest.fixture
def photo(tmp_path):
    path = tmp_path / "a <b>.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (20, 30), np.uint8)).save(path)
    return path


@pytest.mark.parametrize("fields", MODELS, ids=str)
def test_the_page_is_whole_and_asks_nothing_of_the_network(photo, tmp_path, fields):
    path = walk(tiny_bundle(**fields), photo, out=tmp_path / "new" / "page.html", device="cpu")
    text = path.read_text(encoding="utf-8")
    reader = Reader(text)
    links = [value for tag, name, value in reader.attributes if name in ("src", "href", "srcset", "action")]
    icon, *pictures = links
    assert icon == "data:," and pictures and all(value.startswith("data:image/png;base64,") for value in pictures)
    assert not re.search(r"https?://|url\(|@import|<script", text)
    assert "a <b>.png" in reader.text and "a <b>.png" not in text
    assert all(value for tag, name, value in reader.attributes if name == "alt")


@pytest.mark.parametrize("fields", MODELS, ids=str)
def test_shapes_and_answers_are_those_of_the_model(photo, tmp_path, fields):
    bundle = replace(tiny_bundle(**fields), temperature=2.0)
    page = walk(bundle, photo, out=tmp_path / "page.html", device="cpu").read_text(encoding="utf-8")
    reader, config = Reader(page), bundle.model.config
    for shape in (
        (1, config.channels, 8, 8), (1, config.tokens, 16), (1, config.heads, config.tokens, config.tokens),
        (1, config.heads, config.tokens, config.head_dim), (1, 3),
    ):  # fmt: skip
        assert f"({', '.join(map(str, shape))})" in reader.text
    pixels = torch.from_numpy(np.stack([bundle.preprocess.fit_image(Image.open(photo))]))
    with torch.no_grad():
        probabilities = bundle.model(bundle.preprocess.normalise(pixels)).div(2).softmax(dim=1)[0]
    assert f"It answers {CLASSES[probabilities.argmax()]} with {probabilities.max():.1%}" in reader.text
    assert all(f"{p:.1%}" in reader.text for p in probabilities.tolist())
    assert reader.text.count("If the model ended here") == config.depth
    with torch.no_grad():
        seen = open_pass(bundle.model, bundle.preprocess.normalise(pixels))
    row, prefix = seen.pool.mean(dim=1), config.prefix
    for weights in seen.attention:
        for head, each in enumerate(weights[0], start=1):
            read = row[0] @ each
            caption = f"head {head}, at most {read[prefix:].max():.0%}"
            assert caption + (f" + {read[:prefix].sum():.0%}" if prefix else "") in reader.text
    heads = re.findall(r'<img src="data:image/png;base64,([^"]+)" alt="head', page)
    with torch.no_grad():
        lens = [read_out(bundle.model, x).div(2).softmax(dim=1)[0].numpy() for x in seen.tokens]
        maps = [heat for w in seen.attention for heat in patch_map(row[0] @ w[0], bundle.model).numpy()]
    for drawn, heat in zip(heads, maps, strict=True):
        pixels_drawn = np.asarray(Image.open(io.BytesIO(base64.b64decode(drawn)))).astype(int)
        assert np.abs(pixels_drawn - overlay(pixels[0].numpy() / 255, heat, 112)).max() <= 1
    for depth, shares in enumerate(lens):
        assert str(depth) + "".join(f"{shares[k]:.1%}" for k in np.argsort(-lens[-1])) in reader.text
        told = "".join(f"{CLASSES[k]}{shares[k]:.1%}" for k in np.argsort(-shares))
        assert depth == 0 or f"it would answer:{told}" in reader.text
    assert not np.allclose(lens[0], lens[-1], atol=2e-3)
    after = config.norm_after_pool
    assert config.pool != "mean" or ("y = LN(1/N Σi zLi)" if after else "y = 1/N Σi LN(zLi)") in reader.text
    assert ("(B, N, D) → (B, 2 D) = (1, 32)" in reader.text) == (config.pool == "cls_mean")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, None),
        ({"qk_norm": True}, "q and k are normalised, head by head, before (6)."),
        ({"layer_scale": 0.1, "mlp_conv": True}, "a learned factor for each channel scales MSA and MLP; a 3 x 3 conv"),
        ({"positions": "rope", "heads": 4, "norm": "rmsnorm"}, "LN divides by the root mean square"),
    ],
    ids=str,
)
def test_what_the_equations_leave_out_is_told(photo, tmp_path, fields, said):
    text = Reader(walk(tiny_bundle(**fields), photo, out=tmp_path / "page.html", device="cpu").read_text("utf-8")).text
    assert f"In this model {said}" in text if said else "In this model" not in text


@pytest.mark.parametrize(
    ("fields", "equation"),
    [
        ({}, "[xclass; x1E; …; xNE] + Epos"),
        ({"pool": "mean"}, "[x1E; …; xNE] + Epos"),
        ({"registers": 1}, "[xclass + Eposclass; r1; x1E + Epos1; …; xNE + EposN]"),
        ({"registers": 4, "position_tokens": "all"}, "[xclass; r1; …; r4; x1E; …; xNE] + Epos"),
        ({"registers": 2, "pool": "mean", "positions": "rope", "heads": 4}, "[r1; r2; x1E; …; xNE]"),
        ({"position_tokens": "patches"}, "[xclass; x1E + Epos1; …; xNE + EposN]"),
    ],
    ids=str,
)
def test_equation_1_has_every_token_and_its_position(photo, tmp_path, fields, equation):
    text = Reader(walk(tiny_bundle(**fields), photo, out=tmp_path / "page.html", device="cpu").read_text("utf-8")).text
    assert f"z0 = {equation}  (equation 1)" in text
    registers = {0: "", 1: "1 register.", 2: "2 registers.", 4: "4 registers."}[fields.get("registers", 0)]
    assert registers in text and ("Before the 4 patches, N in the equation, stand" in text) == ("z0 = [x1E" not in text)
    assert ("over the N patches" in text) == (fields.get("pool") == "mean" and "registers" in fields)


def test_a_stem_cuts_no_patches_and_pictures_say_which_channels_they_show(tmp_path):
    stem = {"patch_embedding": "conv_stem", "stem_channels": (4,), "channels": 2}
    for fields, said in ((stem, "one token for each square of 4 x 4 pixels"), ({}, "cut into patches of 4 x 4 pixels")):
        image = np.random.default_rng(0).integers(0, 255, (8, 8, fields.get("channels", 1)), np.uint8)
        text = Reader(walk(tiny_bundle(**fields), image, out=tmp_path / "p.html", device="cpu").read_text("utf-8")).text
        assert said in text and ("sees it, channel 1 of 2" in text) == ("channels" in fields)


def test_a_picture_has_at_most_two_pixels_to_each_that_is_shown(photo, tmp_path):
    page = walk(tiny_bundle(image_size=(480, 240), patch_size=120), photo, out=tmp_path / "page.html", device="cpu")
    text, sizes = page.read_text(encoding="utf-8"), set()
    for data, width in re.findall(r'<img src="data:image/png;base64,([^"]+)" alt="[^"]+" width="(\d+)"', text):
        sizes.add((Image.open(io.BytesIO(base64.b64decode(data))).size, int(width)))
    assert ((224, 448), 112) in sizes and all(size[0] <= 2 * width for size, width in sizes)


def test_the_code_is_that_of_the_source(photo, tmp_path):
    bundle = tiny_bundle()
    text = Reader(walk(bundle, photo, out=tmp_path / "page.html", device="cpu").read_text(encoding="utf-8")).text
    steps = Block.forward, attention_weights, attend, Pool.forward, ViT.embed, ViT.forward, ViT.features, ViT.pooled
    for thing in (*steps, type(bundle.model.patches)):
        lines, first = inspect.getsourcelines(thing)
        assert inspect.cleandoc(lines[0]) in text and lines[-1].strip() in text
        assert f"{thing.__qualname__} · vitreous/" in text and f".py:{first}" in text


@pytest.mark.parametrize("fields", [{}, {"mlp_conv": True}, {"layer_scale": 0.1}], ids=str)
def test_parts_that_a_model_may_have_are_shown_where_it_has_them(photo, tmp_path, fields):
    text = Reader(walk(tiny_bundle(**fields), photo, out=tmp_path / "page.html", device="cpu").read_text("utf-8")).text
    assert ("DepthwiseConv.forward · vitreous/" in text) == ("mlp_conv" in fields)
    assert ("LayerScale.forward · vitreous/" in text) == ("layer_scale" in fields)


def test_the_page_takes_the_place_of_a_page_alone(photo, tmp_path):
    page = tmp_path / "page.html"
    page.write_text("mine")
    with pytest.raises(ValueError, match=r"page\.html holds something else, which stays as it is: name another file"):
        walk(tiny_bundle(), photo, out=page, device="cpu")
    with pytest.raises(ValueError, match=r"does not end in \.html"):
        walk(tiny_bundle(), photo, out=photo, device="cpu")
    assert page.read_text() == "mine"
    page.unlink()
    for _ in range(2):
        walk(tiny_bundle(), photo, out=page, device="cpu")


def test_colouring_changes_no_letter_of_the_code():
    source = inspect.getsource(ViT)
    text = colored(source)
    assert html.unescape(re.sub(r"</?[biu]>", "", text)) == source
    marked = colored('def f(x):  # why\n    return "<"\n')
    assert marked == '<b>def</b> f(x):  <i># why</i>\n    <b>return</b> <u>"&lt;"</u>\n'


def test_short_code_is_open_and_long_code_waits_for_a_click():
    assert code(attention_weights).startswith("<details open>") and code(ViT).startswith("<details><summary>")


def test_what_is_no_image_is_one_line(tmp_path):
    bad = tmp_path / "x.png"
    bad.write_text("x")
    with pytest.raises(ValueError, match=r"x\.png: not a JPEG, PNG"):
        walk(tiny_bundle(), bad, out=tmp_path / "page.html", device="cpu")
    assert not (tmp_path / "page.html").exists()


def test_the_page_is_legible_at_both_widths_and_in_both_themes(photo, tmp_path):
    page = walk(tiny_bundle(depth=2), photo, out=tmp_path / "page.html", device="cpu")
    with Browser(tmp_path / "profile") as browser:
        for dark in (False, True):
            for width in (1280, 360):
                browser.open(page, width, dark=dark)
                assert browser.complaints() == [] and browser.requests() == [page.resolve().as_uri()]
                assert browser.ask("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
                assert browser.ask(UNREADABLE) == []
                ratio, text = browser.ask(CONTRAST)
                assert ratio >= 4.5, text
            shade = browser.ask("getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).map(Number)")
            assert max(shade) < 60 if dark else min(shade) > 200
