"""A recipe: everything that decides a training run, in one strict model that YAML files and `key=value` fill."""

from vitreous.recipe.idle import check_not_idle, effective
from vitreous.recipe.options import DataOptions, DistillOptions, OptimOptions, StartOptions
from vitreous.recipe.reading import RECIPES, headline, read_recipe, recipe_file, recipe_names
from vitreous.recipe.schema import Recipe, flat, json_schema, key_called, keys, make_recipe, settings, written

__all__ = [
    "RECIPES",
    "DataOptions",
    "DistillOptions",
    "OptimOptions",
    "Recipe",
    "StartOptions",
    "check_not_idle",
    "effective",
    "flat",
    "headline",
    "json_schema",
    "key_called",
    "keys",
    "make_recipe",
    "read_recipe",
    "recipe_file",
    "recipe_names",
    "settings",
    "written",
]
