"""The chapters as notebooks, each a file of its own with its pictures inside: python docs/guide/notebooks.py OUT"""

import base64
import json
import os
import re
import sys
from pathlib import Path

from chapters import BLOCK, GUIDE, chapters

HOME = """import os
from pathlib import Path

import vitreous

os.chdir(Path(vitreous.__file__).parents[2])  # the checkout, whose files the chapters read"""
LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")


def notebook(chapter: Path, out: Path) -> dict:
    """One chapter in notebook format 4.5: text and code in turns, and under the code what it printed."""
    text = chapter.read_text()
    cells, end = [], 0
    for block in BLOCK.finditer(text):
        cells += [_markdown(text[end : block.start()], out), _code(block["code"], block["output"] or "")]
        end = block.end()
    cells.append(_markdown(text[end:], out))
    cells = [_code(HOME, ""), *(cell for cell in cells if cell["source"])]
    for i, cell in enumerate(cells):
        cell["id"] = f"cell-{i}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": kernel}, "cells": cells}


def _code(code: str, output: str) -> dict:
    outputs = [{"output_type": "stream", "name": "stdout", "text": output}] if output else []
    return {"cell_type": "code", "metadata": {}, "execution_count": None, "source": code.rstrip(), "outputs": outputs}


def _markdown(text: str, out: Path) -> dict:
    """Pictures go into the cell; links to chapters lead to their notebooks, others to the same file from `out`."""
    pictures = {}

    def moved(link: re.Match[str]) -> str:
        target = link["target"]
        if "://" in target:
            return link[0]
        if link["image"]:
            name = Path(target).name
            pictures[name] = {"image/png": base64.b64encode((GUIDE / target).read_bytes()).decode()}
            target = f"attachment:{name}"
        elif GUIDE / target in chapters():
            target = Path(target).with_suffix(".ipynb").name
        else:
            target = Path(os.path.relpath(GUIDE / target, out)).as_posix()
        return f"{link['image']}[{link['text']}]({target}{link['anchor'] or ''})"

    source = LINK.sub(moved, text).strip()
    return {"cell_type": "markdown", "metadata": {}, "source": source} | ({"attachments": pictures} if pictures else {})


def write(out: Path) -> list[Path]:
    """One notebook for each chapter, into the folder `out`."""
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for chapter in chapters():
        file = out / f"{chapter.stem}.ipynb"
        file.write_text(json.dumps(notebook(chapter, out.resolve()), indent=1, ensure_ascii=False) + "\n")
        written.append(file)
    return written


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("give the folder to write to: python docs/guide/notebooks.py OUT")
    for file in write(Path(sys.argv[1])):
        print(file)
