"""Our own source code, as it is on disk now, as HTML."""

import inspect
import keyword
import re
import textwrap
from collections.abc import Callable
from html import escape
from pathlib import Path

import vitreous

STRING = r'[bfr]*(?:""".*?"""|"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\')'
PARTS = re.compile(rf"(?P<i>#[^\n]*)|(?P<u>{STRING})|\b(?P<b>{'|'.join(keyword.kwlist)})\b", re.DOTALL)
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
    return PARTS.sub(lambda part: f"<{part.lastgroup}>{part[0]}</{part.lastgroup}>", escape(text, quote=False))
