"""The layout of all reports: `layout.html` filled with sections, and the pieces of HTML they share."""

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import NamedTuple

import numpy as np

from vitreous.page import document
from vitreous.report.pictures import picture

LAYOUT = Path(__file__).with_suffix(".html")
SHEET = Path(__file__).with_suffix(".css")
FOOT = "Written by Vitreous. This page is one file: it loads nothing and sends nothing."
SPLIT_LABELS = {"train": "training", "val": "validation", "test": "test", "given": "given", "folds": "held-out"}


class Section(NamedTuple):
    """A section of the page. anchor: the fragment of links to it."""

    anchor: str
    title: str
    body: str


def lay_out(*, kind: str, heading: str, lead: str, sections: Sequence[Section], foot: str = FOOT) -> str:
    """A page of sections. kind, heading, lead, foot: plain text; the sections' bodies are HTML."""
    parts = (
        f'<section aria-labelledby="{s.anchor}"><h2 id="{s.anchor}">{escape(s.title)}</h2>{s.body}</section>'
        for s in sections
    )
    body = Template(LAYOUT.read_text(encoding="utf-8").strip()).substitute(
        kind=escape(f"Vitreous · {kind}"),
        heading=escape(heading),
        lead=escape(lead),
        links="".join(f'<li><a href="#{s.anchor}">{escape(s.title)}</a></li>' for s in sections),
        sections="\n".join(parts),
        foot=escape(foot),
    )
    return document(title=f"{heading} · {kind}", sheet=SHEET, body=body)


def tiles(values: dict[str, str]) -> str:
    """A few short figures, each under its name."""
    pairs = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in values.items())
    return f'<dl class="tiles">{pairs}</dl>'


def facts(values: dict[str, str]) -> str:
    """A table of names and values."""
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>' for name, value in values.items()
    )
    return f'<table class="facts"><tbody>{rows}</tbody></table>'


def scroll(table: str, label: str) -> str:
    """A table that scrolls on its own, by keyboard too."""
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}">{table}</div>'


def gallery(shots: Iterable[str], kind: str) -> str:
    """Images in a grid. kind: `small`, or `pairs` if each has a map next to it."""
    return f'<ul class="gallery {kind}">{"".join(shots)}</ul>'


def shot(pixels: np.ndarray, alt: str, text: str, more: Sequence[str] = ()) -> str:
    """One image of a gallery, uint8 (C, H, W). text: HTML below it. more: pictures beside it."""
    return f'<li><div class="shots">{picture(pixels, alt)}{"".join(more)}</div>{text}</li>'


def confidence_bar(share: float, wrong: bool = False) -> str:
    """The confidence of a prediction, as a bar below it."""
    return f'<div class="sure{" wrong" if wrong else ""}"><i style="width:{share:.1%}"></i></div>'
