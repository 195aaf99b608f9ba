"""Vitreous: train Vision Transformers from scratch on the images you have, and see through them.

The names below are imported when first used, so that `import vitreous` costs nothing. None of them is the name of a
module of the package, which would take its place.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitreous.data.images import ImageSet
    from vitreous.data.sources import load as load_data
    from vitreous.evaluation import evaluate
    from vitreous.model.config import ViTConfig
    from vitreous.model.vit import ViT
    from vitreous.prediction import predict
    from vitreous.recipe.reading import read_recipe
    from vitreous.recipe.schema import Recipe
    from vitreous.train.run import fit
    from vitreous.weights.bundle import Bundle

    __version__: str

_HOMES = {
    "load_data": ("vitreous.data.sources", "load"),
    "ImageSet": ("vitreous.data.images", "ImageSet"),
    "ViT": ("vitreous.model.vit", "ViT"),
    "ViTConfig": ("vitreous.model.config", "ViTConfig"),
    "Recipe": ("vitreous.recipe.schema", "Recipe"),
    "read_recipe": ("vitreous.recipe.reading", "read_recipe"),
    "fit": ("vitreous.train.run", "fit"),
    "evaluate": ("vitreous.evaluation", "evaluate"),
    "predict": ("vitreous.prediction", "predict"),
    "Bundle": ("vitreous.weights.bundle", "Bundle"),
}

__all__ = [
    "Bundle", "ImageSet", "Recipe", "ViT", "ViTConfig", "evaluate", "fit", "load_data", "predict", "read_recipe",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if not TYPE_CHECKING:  # a checker would take any name for one of ours

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            from importlib.metadata import version

            return version("vitreous")
        if name not in _HOMES:
            raise AttributeError(f"module 'vitreous' has no attribute '{name}'")
        module, attribute = _HOMES[name]
        return getattr(import_module(module), attribute)
