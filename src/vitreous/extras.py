"""Optional packages, in extras: what only some commands need, or some pictures."""

import sys
from collections.abc import Iterable
from importlib.util import find_spec


def need(what: str, packages: Iterable[str], extra: str) -> None:
    """Raises ImportError if any of the packages is missing, naming the missing ones and the extra to install."""
    if missing := [name for name in packages if find_spec(name) is None]:
        raise ImportError(f"{what} needs {', '.join(missing)}: {pip_line(extra)}")


def pip_line(extra: str) -> str:
    """The command that installs an extra into this environment."""
    return f'{sys.executable} -m pip install "vitreous[{extra}]"'
