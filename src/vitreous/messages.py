"""Helpers for messages: errors in one line, suggestions and lists of names."""

import difflib
import re
from collections.abc import Callable, Iterable

NO_MEMORY = (  # in torch's messages
    "out of memory", "not enough memory", "allocate memory", "ALLOC_FAILED", "ALLOCATION_FAILED", "Storage size",
)  # fmt: skip


def duration(seconds: float) -> str:
    """A time in words: 89 s, 89 min, 1.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def channels_shown(C: int, before: str = "") -> str:
    """Which of an image's channels a picture shows, behind `before`; "" if it shows all: gray or colour."""
    if C in (1, 3):
        return ""
    return f"{before}channel 1 of 2" if C == 2 else f"{before}channels 1-3 of {C}"


def lacks_memory(error: Exception) -> bool:
    """Whether an error says that memory has run out; one of an illegal address names memory, too."""
    text = str(error)
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and any(x in text for x in NO_MEMORY))


def first_line(error: Exception) -> str:
    """The first line of an error's message, or its type if that is empty."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def printable(text: str) -> str:
    """A text with its control characters written as \\n, \\x1b and the like, as a terminal would obey them."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", lambda found: repr(found[0])[1:-1], text)


def one_line(error: Exception, section: str = "", hint: Callable[[str], str] = lambda key: "") -> str:
    """An error's message; for a pydantic error, its first fault with key and value.

    section: a prefix for the keys. hint: text to add for an unknown key.
    """
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return str(error)
    fault = error.errors()[0]
    of_list = len(fault["loc"]) > 1 and isinstance(fault["loc"][-1], int)  # whose items have no key of their own
    key = section + ".".join(map(str, fault["loc"][:-1] if of_list else fault["loc"]))
    inner = fault.get("ctx", {}).get("error")
    if isinstance(inner, ValidationError):
        return one_line(inner, f"{key}.", hint)
    if fault["type"] == "extra_forbidden":
        return f"unknown key '{key}'{hint(key)}"
    message = fault["msg"].removeprefix("Value error, ")
    if fault["type"] == "missing" and of_list:
        message = "one number is missing"
    if fault["type"] == "model_type":
        message = "write its keys below it, or leave it out"
    if fault["type"] == "tuple_type":
        message = "write a list in brackets, as in [1,2]"
    if fault["type"] == "int_parsing" and re.fullmatch(r"\d+(\.\d*)?[eE]\+?\d", str(fault["input"])):
        message = f"write {float(fault['input']):.0f}"
    if fault["type"] == "value_error":
        return message
    return f"{key} is {fault.get('input')!r}: {message[0].lower()}{message[1:]}"


def did_you_mean(name: str, names: Iterable[str], cutoff: float = 0.6) -> str:
    """A question that suggests the closest name, or "" if none is as alike as `cutoff`, of 1."""
    near = difflib.get_close_matches(name, list(names), n=1, cutoff=cutoff)
    return f"did you mean '{near[0]}'? " if near else ""


def shorten(names: Iterable[str], most: int = 4) -> str:
    """The first `most` names, and how many more there are."""
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
