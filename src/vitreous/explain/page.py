"""Parts of a page that opens from disk and asks nothing of the network: pictures, code, and the look of it."""

import base64
import inspect
import io
import keyword
import textwrap
import tokenize
from collections.abc import Callable
from html import escape
from pathlib import Path

import numpy as np
from PIL import Image

import vitreous

STYLE = """
:root { color-scheme: light dark; --text: #1b1f24; --soft: #57606a; --paper: #ffffff; --card: #f4f6f8; --line: #d5dae0;
  --bar: #4477aa; --mark: #cc6677; --word: #8a2b5b; --string: #1d6b35 }
@media (prefers-color-scheme: dark) { :root { --text: #e4e8ec; --soft: #9aa5b1; --paper: #14181d; --card: #1d232a;
  --line: #39424c; --bar: #77aadd; --mark: #ee99aa; --word: #f0a5cc; --string: #8fd3a0 } }
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 60rem; padding: 1.5rem 1rem 4rem; background: var(--paper); color: var(--text);
  font: 1rem/1.6 system-ui, sans-serif }
h1 { line-height: 1.2 } h2 { margin: 2.5rem 0 .2rem } h3 { margin: 1.5rem 0 .2rem }
.shape { color: var(--soft); font-family: ui-monospace, monospace; font-size: .9rem }
.equation { margin: .8rem 0; padding: .7rem 1rem; background: var(--card); border-left: 4px solid var(--bar);
  font: 1.1rem/1.7 "STIX Two Math", "Cambria Math", Georgia, serif; overflow-x: auto }
details { margin: .6rem 0; border: 1px solid var(--line); border-radius: 6px }
summary { padding: .4rem .8rem; cursor: pointer; font-family: ui-monospace, monospace; font-size: .85rem }
pre { margin: 0; padding: .8rem; overflow-x: auto; background: var(--card); font-size: .8rem; line-height: 1.5 }
pre b { color: var(--word); font-weight: 600 } pre i { color: var(--soft) } pre u { color: var(--string);
  text-decoration: none }
.row { display: flex; flex-wrap: wrap; gap: .8rem; align-items: flex-start }
figure { margin: .4rem 0 } figcaption { color: var(--soft); font-size: .8rem }
img { display: block; image-rendering: pixelated; max-width: 100%; height: auto; border-radius: 3px }
table { border-collapse: collapse; width: 100%; font-size: .9rem } th, td { padding: .25rem .5rem; text-align: left }
.scroll { overflow-x: auto }
.bar { display: block; height: .5rem; min-width: 1px; background: var(--bar); border-radius: 2px }
.answers { max-width: 30rem } .answers td { width: 50% }
.answers tr:first-child { font-weight: 600 } .answers tr:first-child .bar { background: var(--mark) }
"""


OPEN = 12  # lines of code that are shown without a click


def page(title: str, body: str) -> str:
    """A whole HTML document."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def picture(pixels: np.ndarray, caption: str, width: int | None = None) -> str:
    """uint8 (h, w, 3) as an image inside the page, `width` CSS pixels wide, with its caption."""
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(buffer, "PNG", optimize=True)
    data = base64.b64encode(buffer.getvalue()).decode()
    size = f' width="{width}"' if width else ""
    image = f'<img src="data:image/png;base64,{data}" alt="{escape(caption)}"{size}>'
    return f"<figure>{image}<figcaption>{escape(caption)}</figcaption></figure>"


def code(thing: Callable | type) -> str:
    """The lines that define a function or class of ours as they are on disk now, with file and line."""
    lines, first = inspect.getsourcelines(thing)
    file = Path(inspect.getsourcefile(thing)).relative_to(Path(vitreous.__file__).parents[1])
    name = thing.__qualname__
    body = colored(textwrap.dedent("".join(lines)).rstrip())
    shown = " open" if len(lines) <= OPEN else ""
    return f"<details{shown}><summary>{escape(name)} · {file.as_posix()}:{first}</summary><pre>{body}</pre></details>"


def colored(text: str) -> str:
    """Python as HTML: keywords, comments and strings marked, everything else as it is."""
    marks = []  # (start, end, tag), as places in the text
    starts = np.cumsum([0, *(len(line) for line in text.splitlines(keepends=True))])
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        tag = {tokenize.COMMENT: "i", tokenize.STRING: "u"}.get(token.type)
        if token.type == tokenize.NAME and keyword.iskeyword(token.string):
            tag = "b"
        if tag:
            (row, column), (end_row, end_column) = token.start, token.end
            marks.append((starts[row - 1] + column, starts[end_row - 1] + end_column, tag))
    parts, at = [], 0
    for start, end, tag in marks:
        parts += [escape(text[at:start]), f"<{tag}>{escape(text[start:end])}</{tag}>"]
        at = end
    return "".join(parts) + escape(text[at:])
