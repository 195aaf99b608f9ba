"""The page that reports and walks are: one document with its look and its pictures inside."""

import base64
import io
import tomllib
from pathlib import Path

import numpy as np
import pytest
from browser import Browser
from PIL import Image

import vitreous
from vitreous.page import LOOK, document, png, write_page

ROOT = Path(vitreous.__file__).parent
SHEETS = sorted(file for file in ROOT.rglob("*.css") if file != LOOK)


@pytest.mark.parametrize("sheet", SHEETS, ids=lambda sheet: sheet.stem)
def test_the_look_of_all_pages_comes_before_that_of_one_kind(tmp_path, sheet):
    write_page(tmp_path / "x.html", document(title="<a> & é", sheet=sheet, body="<p>one</p>"))
    head, body = (tmp_path / "x.html").read_text(encoding="utf-8").split("</head>")
    assert "<title>&lt;a&gt; &amp; é</title>" in head and "<p>one</p>" in body
    assert 0 < head.index(LOOK.read_text()) < head.index(sheet.read_text())
    assert "default-src 'none'" in head


def test_a_name_that_is_not_utf8_costs_no_page(tmp_path):
    write_page(tmp_path / "x.html", document(title="caf\udce9", sheet=SHEETS[0], body=""))
    assert "<title>caf\\udce9</title>" in (tmp_path / "x.html").read_text(encoding="utf-8")


def test_sheets_load_nothing_and_use_only_colours_that_have_both_shades():
    assert {sheet.stem for sheet in SHEETS} == {"layout", "walk"}
    for sheet in SHEETS:
        style = LOOK.read_text() + sheet.read_text()
        assert "url(" not in style and "@import" not in style
        for name in {part.split(")")[0] for part in style.split("var(--")[1:]} - {"s"}:  # s: a share, set by a report
            assert style.count(f"--{name}:") == 2, f"{sheet.name}: --{name} has no shade of light or of dark"


def test_names_without_a_space_stay_within_the_page(tmp_path):
    name = "n" * 200
    body = f'<p>{name}</p><p class="brand"><svg></svg>{name}</p><ul class="legend"><li><svg></svg>{name}</li></ul>'
    write_page(tmp_path / "x.html", document(title="x", sheet=ROOT / "report" / "layout.css", body=body))
    with Browser(tmp_path / "profile") as browser:
        browser.open(tmp_path / "x.html", 360)
        assert browser.ask("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_a_picture_is_whole_inside_the_page():
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
    kind, data = png(Image.fromarray(pixels)).split(",")
    assert kind == "data:image/png;base64"
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(base64.b64decode(data)))), pixels)


def test_files_that_are_no_code_are_installed():
    project = tomllib.loads((ROOT.parents[1] / "pyproject.toml").read_text())
    installed = {file for glob in project["tool"]["setuptools"]["package-data"]["vitreous"] for file in ROOT.glob(glob)}
    assert {file for file in ROOT.rglob("*") if file.is_file() and file.suffix not in (".py", ".pyc")} == installed
