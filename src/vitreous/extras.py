"""Packages that only some commands need, each in an extra of its own."""

import sys
from collections.abc import Iterable
from importlib.util import find_spec


def need(what: str, packages: Iterable[str], extra: str) -> None:
    """Raise ImportError, which names the missing ones and the extra they come with, unless all of these are here."""
    if missing := [name for name in packages if find_spec(name) is None]:
        raise ImportError(f'{what} needs {", ".join(missing)}: {sys.executable} -m pip install "vitreous[{extra}]"')
