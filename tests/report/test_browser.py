"""Reports, and the page of `serve`, in a real browser: no complaint, no request, images, any width, the keyboard."""

import io
import os
from itertools import pairwise

import numpy as np
import pytest
from browser import CONTRAST, UNREADABLE, Browser
from PIL import Image
from rich.console import Console
from starlette.testclient import TestClient
from tiny import stripes, tiny_bundle, tiny_recipe

from vitreous.data.images import ImageSet
from vitreous.report.compare import compare_page
from vitreous.report.finished import read_run
from vitreous.serve import Service
from vitreous.train import outcome
from vitreous.train.run import fit

WIDTHS = (1280, 360)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Reports of a run on a few classes and of one on many, the comparison of both, and a page with answers."""
    root, files = tmp_path_factory.mktemp("pages"), {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITREOUS_CACHE", str(root / "cache"))
        patch.setattr(outcome, "_draw", lambda *_: None)
        for classes, channels in ((3, 1), (36, 3)):
            pixels, labels = stripes(4 * classes, channels=channels)
            labels = np.arange(4 * classes) % classes
            names = [f"a rather long name of class {i} & more" for i in range(classes)]
            data = ImageSet.from_arrays(pixels, labels, test=(pixels, labels), class_names=names, name="stripes")
            recipe = tiny_recipe(augment={"mixup": 0.5}, seed=classes)
            fit(recipe, data, out=root / str(classes), device="cpu", console=Console(file=io.StringIO()))
            files[classes] = root / str(classes) / "report.html"
    compare_page(root / "compare.html", [read_run(root / "3"), read_run(root / "36")])
    image = io.BytesIO()
    Image.fromarray(pixels[0].transpose(1, 2, 0)).save(image, "PNG")
    sent = [("images", (f"a rather long name of file {i}.png", image.getvalue())) for i in range(5)]
    page = TestClient(Service(tiny_bundle(classes=names), name="stripes", device="cpu").app).post("/", files=sent)
    (root / "served.html").write_text(page.text)
    return files | {name: root / f"{name}.html" for name in ("compare", "served")}


@pytest.fixture(params=[3, 36, "compare", "served"])
def page(request, pages):
    return pages[request.param]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_a_page_opens_without_a_complaint_or_a_request_and_is_legible(browser, page, width, dark):
    browser.open(page, width, dark=dark)
    assert browser.complaints() == []
    assert browser.requests() == [page.resolve().as_uri()]
    images = browser.ask("[...document.images].map(i => i.complete && i.naturalWidth > 0 && i.clientWidth > 20)")
    assert all(images) and (len(images) > 8 or page.name == "compare.html")
    assert browser.ask("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert browser.ask(UNREADABLE) == []
    ratio, text = browser.ask(CONTRAST)
    assert ratio >= 4.5, text
    assert browser.ask("getComputedStyle(document.body).backgroundColor != 'rgb(255, 255, 255)'")


def test_light_and_dark_are_two(browser, page):
    shades = []
    for dark in (False, True):
        browser.open(page, dark=dark)
        shades.append(browser.ask("getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).map(Number)"))
    assert min(shades[0]) > 200 and max(shades[1]) < 60


def test_the_keyboard_reaches_everything(browser, page):
    """The first key leads past the navigation; each link, field, table that scrolls and summary has its turn."""
    browser.open(page, 360)
    browser.press("Tab")
    assert browser.ask("document.activeElement.getAttribute('href')") == "#main"
    assert browser.ask("document.activeElement.getBoundingClientRect().top >= 0")  # in sight
    stops = (
        "[...document.querySelectorAll('a, summary, input, button, [tabindex=\"0\"]')].filter(e => e.checkVisibility())"
    )
    expected, seen = browser.ask(f"{stops}.length"), {0}
    assert expected > 5
    for _ in range(expected - 1):
        browser.press("Tab")
        assert browser.ask("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        seen.add(browser.ask(f"{stops}.indexOf(document.activeElement)"))
    assert seen == set(range(expected))


def test_headings_descend_without_a_gap(browser, page):
    browser.open(page)
    levels = browser.ask("[...document.querySelectorAll('h1, h2, h3, h4')].map(h => Number(h.tagName[1]))")
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(b - a <= 1 for a, b in pairwise(levels))
    assert browser.ask("document.documentElement.lang") == "en" and browser.ask("document.title")


@pytest.mark.parametrize("said", [b"", b'{"method": "Page.lo', b'{"method": "Page.loadEventFired"}\0'])
def test_a_browser_that_does_not_answer_is_not_waited_for(monkeypatch, said):
    monkeypatch.setattr("browser.SECONDS", 0.2)
    silent = object.__new__(Browser)
    silent._in, theirs = os.pipe()
    silent._buffer, silent._events = b"", []
    os.write(theirs, said)
    with pytest.raises(TimeoutError, match="the browser does not answer"):
        silent._read_until(lambda message: False)
    os.close(silent._in)
    os.close(theirs)


def test_a_page_that_asks_for_something_is_caught(browser, tmp_path):
    """The test of these tests: a request and a complaint are seen."""
    page = tmp_path / "bad.html"
    page.write_text("<img src='http://127.0.0.1:9/x.png'><script>console.error('broken')</script>")
    browser.open(page)
    assert browser.requests() == [page.resolve().as_uri(), "http://127.0.0.1:9/x.png"]
    assert any("broken" in complaint for complaint in browser.complaints())
    assert browser.ask("document.images[0].naturalWidth") == 0
