"""Recipes from YAML files, shipped or the user's own, with `key=value` on top."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import yaml

from vitreous.files import path_of
from vitreous.messages import did_you_mean
from vitreous.model.sizes import size
from vitreous.recipe.schema import Recipe, flat, keys, make_recipe, nearest_key, settings

RECIPES = Path(__file__).parent.parent / "recipes"


class _Loader(yaml.SafeLoader):
    """YAML in which 010, 1:30, yes and dates are text, not 8, 90 and true, for the key to make of it what it can; and
    in which no key may stand twice."""

    yaml_implicit_resolvers: ClassVar = {
        first: [(tag, pattern) for tag, pattern in known if not tag.endswith((":int", ":bool", ":timestamp"))]
        for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise yaml.YAMLError(f"'{twice}' twice in the section from line {node.start_mark.line + 1}: keep one")
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"[-+]?(0|[1-9]\d*)$"), list("-+0123456789"))
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"([Tt]rue|[Ff]alse)$"), list("tTfF"))


def recipe_names() -> list[str]:
    """The shipped recipes."""
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def recipe_file(name: str) -> Path:
    """The file of a shipped recipe or of a path. Raises ValueError when there is none."""
    if name in recipe_names():
        return RECIPES / f"{name}.yaml"
    if (file := path_of(name)).is_file():
        return file
    hint = did_you_mean(name, recipe_names())
    raise ValueError(f"no recipe '{name}': {hint}use {', '.join(recipe_names())} or a file")


def headline(name: str) -> str:
    """The first line of a shipped recipe's header."""
    return recipe_file(name).read_text(encoding="utf-8").partition("\n")[0].removeprefix("#").strip()


def read_recipe(name: Path | str | Recipe, overrides: Sequence[str] | None = None) -> Recipe:
    """A recipe from a shipped name, a YAML file or another recipe, with `section.key=value` overrides on top.

    Raises ValueError, in one line, for a file that is no recipe, an unknown key or a bad value, and TypeError for
    overrides that are one text.
    """
    if isinstance(overrides, str):
        raise TypeError(f"overrides is the text '{overrides}': give a list, ['{overrides}']")
    if isinstance(name, Recipe):
        fields, recipe = name.model_dump(mode="json", exclude_unset=True), name
    else:
        fields, recipe = _read(recipe_file(str(name)), str(name))
    for override in overrides or []:
        _apply(fields, override)
    return _make(fields, "command line") if overrides else recipe


def _read(file: Path, name: str) -> tuple[dict[str, Any], Recipe]:
    """The fields of a file, and the recipe that they are. name: what errors call it."""
    try:
        fields = yaml.load(file.read_text(encoding="utf-8"), _Loader)
        flat(fields if isinstance(fields, dict) else {})  # an anchor within itself has no end
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # no UTF-8, or a number of thousands of digits
        raise ValueError(f"{name} is not valid YAML: {' '.join(str(error).split())}") from error
    fields = {} if fields is None else fields
    if not isinstance(fields, dict):
        raise ValueError(f"{name} is not a recipe: expected keys and values, found {type(fields).__name__}")
    return fields, _make(fields, name)  # the file's own errors carry the file's name


def _apply(fields: dict[str, Any], override: str) -> None:
    """Set one `section.key=value` in place. The value is read as YAML, or taken as it is where the key takes text."""
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ValueError(f"'{override}' is not key=value: write, for example, epochs=10 or optim.learning_rate=1e-3")
    if key in Recipe.model_fields and key not in keys():
        first = next(k for k in keys() if k.startswith(f"{key}."))
        raise ValueError(f"{key} is a section: set one of its keys, such as {first}")
    if key not in keys():
        raise ValueError(f"unknown key '{key}'{nearest_key(key)}")
    if not (text := text.strip()):
        default = next(setting.default for setting in settings() if setting.key == key)
        raise ValueError(f"{key}= lacks its value: write one, such as {key}={default}")
    is_text = key != "model.size" and _annotation(key) == str | None  # such as [^_]+, which YAML takes for a list
    if is_text and text != "null" and text[0] not in "'\"":
        value = text
    else:
        try:
            value = yaml.load(text, _Loader)
        except yaml.YAMLError as error:
            way_out = f": write a list without spaces or in quotes, as in {key}=[1,2]" if text[0] == "[" else ""
            raise ValueError(f"{key}: '{text}' is not a valid value{way_out}") from error
    *path, last = key.split(".")
    for part in path:
        fields = fields.setdefault(part, {})
    if key == "model.size":
        fields.update(size(str(value)))
    else:
        fields[last] = value


def _make(fields: dict[str, Any], where: str) -> Recipe:
    """`make_recipe`, for values as someone wrote them: true and false are no numbers."""
    for key, value in flat(fields).items():
        flag = isinstance(value, bool) and key in keys() and key != "model.size"
        if flag and not re.search("bool|True", str(_annotation(key))):
            raise ValueError(f"{where}: {key} is {str(value).lower()}, but it takes a value, not true or false")
    return make_recipe(fields, where)


def _annotation(key: str) -> Any:
    """The type of a dotted key."""
    kind: Any = Recipe
    for part in key.split("."):
        kind = kind.model_fields[part].annotation
    return kind
