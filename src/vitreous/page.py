"""A self-contained HTML page: one file with its styles and images that needs no network."""

import base64
import io
from html import escape
from pathlib import Path

from PIL import Image

from vitreous.files import replace_file

LOOK = Path(__file__).with_suffix(".css")
MARK = '<meta name="generator" content="Vitreous">'
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def document(*, title: str, sheet: Path, body: str) -> str:
    """A whole HTML document, in light and dark.

    title: plain text. sheet: the CSS file for this kind of page, added after `page.css`, which all pages share. body:
    HTML. The empty icon is one that browsers would request otherwise.
    """
    style = LOOK.read_text(encoding="utf-8") + sheet.read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"{MARK}\n"
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def write_page(file: Path, page: str) -> None:
    """Write a `document`, atomically."""
    replace_file(file, lambda part: part.write_text(page, encoding="utf-8", errors="backslashreplace"))


def png(image: Image.Image) -> str:
    """An image as a data URL, for the `src` of an <img>."""
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
