"""The guide runs: its code, what it says the code prints, its pictures, its links, its notebooks."""

import ast
import json
import re
from pathlib import Path

import chapters
import notebooks
import numpy as np
import pictures
import pytest
from PIL import Image

CHAPTERS = chapters.chapters()
NAMES = [chapter.stem for chapter in CHAPTERS]
LINKS = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]+)(?:#[^)\s]*)?\)")


def links(path: Path) -> list[tuple[str, str, Path]]:
    """('!' for an image, text, file) of each link of a page to a file of ours."""
    found = LINKS.findall(re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.DOTALL | re.MULTILINE))
    return [(mark, text, path.parent / target) for mark, text, target in found if "://" not in target]


def defined(file: Path) -> set[str]:
    """Names of all functions, classes, assigned variables and annotated fields of a source file."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


@pytest.mark.parametrize("chapter", CHAPTERS, ids=NAMES)
def test_the_code_runs_and_prints_what_the_chapter_shows(chapter):
    assert len(chapters.BLOCK.findall(chapter.read_text())) >= 2
    assert chapters.filled(chapter) == chapter.read_text()  # otherwise: python docs/guide/chapters.py


@pytest.mark.parametrize("page", [*CHAPTERS, chapters.GUIDE / "README.md"], ids=[*NAMES, "README"])
def test_links_lead_to_files_and_to_names_in_them(page):
    for _, text, target in links(page):
        assert target.exists(), target
        name = re.fullmatch(r"`(?:\w+\.)*(\w+)`", text)
        if name and target.suffix == ".py" and text.strip("`") != target.name:
            assert name[1] in defined(target), f"{target} has no {name[1]}"


@pytest.mark.parametrize("chapter", CHAPTERS, ids=NAMES)
def test_a_chapter_has_an_equation_a_picture_and_an_exercise_with_its_answer(chapter):
    text = chapter.read_text()
    assert "$$" in text and [link for link in links(chapter) if link[0]] and "\n## Exercise" in text
    answers = Path(__file__).parent / f"test_answers_{chapter.name[:2]}.py"
    assert "\ndef test_" in answers.read_text() and answers in [path.resolve() for _, _, path in links(chapter)]


def test_chapters_are_numbered_and_listed():
    assert [name[:2] for name in NAMES] == [f"{i:02}" for i in range(1, len(NAMES) + 1)]
    listed = [path.name for _, _, path in links(chapters.GUIDE / "README.md")]
    assert [name for name in listed if re.match(r"\d\d-", name)] == [chapter.name for chapter in CHAPTERS]


def test_every_picture_is_drawn_shown_and_small():
    shown = {path.name for chapter in CHAPTERS for mark, _, path in links(chapter) if mark}
    assert shown == {f"{name}.png" for name in pictures.PICTURES} == {p.name for p in pictures.IMAGES.iterdir()}
    for path in pictures.IMAGES.iterdir():
        with Image.open(path) as image:
            assert path.stat().st_size < 120_000 and image.width <= 1200, path.name


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_a_picture_is_what_the_code_draws(name, tmp_path):
    drawn, kept = (
        Image.open(path).convert("RGB") for path in (pictures.draw(name, tmp_path), pictures.IMAGES / f"{name}.png")
    )
    assert drawn.size == kept.size
    tiles = [np.asarray(picture.reduce(16), dtype=float) for picture in (drawn, kept)]  # means of 16 x 16 pixels
    # of 255: half a pixel to the side makes it 8 in most of them, a curve up by 5% of its axis 10 to 72
    assert np.abs(tiles[0] - tiles[1]).max() < 8


def test_notebooks_hold_the_same_code_output_and_pictures(tmp_path, monkeypatch):
    for chapter, file in zip(CHAPTERS, notebooks.write(tmp_path / "notebooks"), strict=True):
        content = json.loads(file.read_text())
        assert (content["nbformat"], content["nbformat_minor"]) == (4, 5)
        cells = content["cells"]
        assert len({cell["id"] for cell in cells}) == len(cells)
        blocks = list(chapters.BLOCK.finditer(chapter.read_text()))
        first, *code = [cell for cell in cells if cell["cell_type"] == "code"]
        assert first["source"].startswith("import os\n") and first is cells[0]
        monkeypatch.chdir(file.parent)
        for _ in range(2):  # as "Run all" does it
            exec(first["source"], {})
            assert Path.cwd() == chapters.GUIDE.parent.parent  # the chapters' own paths begin there
        assert [cell["source"] + "\n" for cell in code] == [block["code"] for block in blocks]
        printed = ["".join(output["text"] for output in cell["outputs"]) for cell in code]
        assert printed == [block["output"] or "" for block in blocks]
        images = {path.name for mark, _, path in links(chapter) if mark}
        text = [cell for cell in cells if cell["cell_type"] == "markdown"]
        assert {name for cell in text for name in cell.get("attachments", {})} == images
        for cell in text:
            assert set(re.findall(r"attachment:([^)]+)", cell["source"])) == set(cell.get("attachments", {}))
            for mark, _, target in LINKS.findall(cell["source"]):
                assert mark or "://" in target or (file.parent / target).exists(), target
