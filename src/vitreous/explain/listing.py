"""Our own source code, as it is on disk now, as HTML."""

import inspect
import io
import keyword
import textwrap
import tokenize
from collections.abc import Callable
from html import escape
from pathlib import Path

import numpy as np

import vitreous

STRINGS = ("STRING", "FSTRING_START", "FSTRING_MIDDLE", "FSTRING_END")  # f-strings come in parts from Python 3.12 on
OPEN = 12  # up to so many lines of code are shown without a click


def code(thing: Callable | type) -> str:
    """The source of one of our functions or classes, with file and line."""
    lines, first = inspect.getsourcelines(thing)
    file = Path(inspect.getsourcefile(thing)).relative_to(Path(vitreous.__file__).parents[1])
    name = thing.__qualname__
    body = colored(textwrap.dedent("".join(lines)).rstrip())
    shown = " open" if len(lines) <= OPEN else ""
    return f"<details{shown}><summary>{escape(name)} · {file.as_posix()}:{first}</summary><pre>{body}</pre></details>"


def colored(text: str) -> str:
    """Python as HTML: keywords, comments and strings marked, everything else as it is."""
    marks = []  # (start, end, tag), as offsets into the text
    starts = np.cumsum([0, *(len(line) for line in text.splitlines(keepends=True))])
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        tag = "i" if token.type == tokenize.COMMENT else "u" if tokenize.tok_name[token.type] in STRINGS else None
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
