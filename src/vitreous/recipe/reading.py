"""Recipes from YAML files, shipped or the user's own, with `key=value` on top."""

import re
from pathlib import Path
from typing import Any

import yaml

from vitreous.model.sizes import size
from vitreous.recipe.schema import Recipe, keys, make_recipe, nearest, nearest_key

RECIPES = Path(__file__).parent.parent / "recipes"


def recipe_names() -> list[str]:
    """The shipped recipes."""
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def recipe_file(name: str) -> Path:
    """The file of a shipped recipe or of a path. Raises ValueError when there is none."""
    if name in recipe_names():
        return RECIPES / f"{name}.yaml"
    if Path(name).is_file():
        return Path(name)
    raise ValueError(f"no recipe '{name}'{nearest(name, recipe_names())}: use {', '.join(recipe_names())} or a file")


def headline(name: str) -> str:
    """The first line of a shipped recipe's header."""
    return recipe_file(name).read_text().partition("\n")[0].removeprefix("#").strip()


def read_recipe(name: str, overrides: list[str] | None = None) -> Recipe:
    """A recipe from a shipped name or a YAML file, with `section.key=value` overrides on top.

    Raises ValueError, in one line, for a file that is no recipe, an unknown key or a bad value.
    """
    file = recipe_file(name)
    try:
        fields = yaml.safe_load(file.read_text()) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{file.name} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(fields, dict):
        raise ValueError(f"{file.name} is not a recipe: expected keys and values, found {type(fields).__name__}")
    make_recipe(fields, file.name)  # the file's own errors carry the file's name
    for override in overrides or []:
        _apply(fields, override)
    return make_recipe(fields, "command line") if overrides else make_recipe(fields, file.name)


def _apply(fields: dict[str, Any], override: str) -> None:
    """Set one `section.key=value`, the value read as YAML, in place."""
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ValueError(f"'{override}' is not key=value: write, for example, epochs=10 or optim.learning_rate=1e-3")
    if key in Recipe.model_fields and key not in keys():
        first = next(k for k in keys() if k.startswith(f"{key}."))
        raise ValueError(f"{key} is a section: set one of its keys, such as {first}")
    if key != "model.size" and key not in keys():
        raise ValueError(f"unknown key '{key}'{nearest_key(key)}")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"{key}: '{text}' is not a valid value") from error
    *path, last = key.split(".")
    if isinstance(value, bool) and "bool" not in str(_annotation(key)):
        raise ValueError(f"{key} is {text}: it is nothing to switch on or off, write a value")
    if isinstance(value, int | float) and re.match(r"[-+]?0\d|.*:", text):
        plain = "90s, 10m or 1h30m" if key == "time_limit" else "it as a plain number"
        raise ValueError(f"{key} is {text}, which YAML reads as {value}: write {plain}")
    for part in path:
        fields = fields.setdefault(part, {})
    if key == "model.size":
        fields.update(size(str(value)))
    else:
        fields[last] = value


def _annotation(key: str) -> Any:
    """The type of a dotted key."""
    kind: Any = Recipe
    for part in key.split("."):
        kind = kind.model_fields[part].annotation if key != "model.size" else str
    return kind
