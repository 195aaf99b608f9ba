"""Every picture. The only folder that knows matplotlib."""

from vitreous.plots.insight import (
    attention_distance,
    explanation,
    filters,
    heat,
    layer_similarity,
    overlay,
    position_similarity,
    token_norms,
)
from vitreous.plots.run import confusion_matrix, image_grid, learning_curves

__all__ = [
    "attention_distance",
    "confusion_matrix",
    "explanation",
    "filters",
    "heat",
    "image_grid",
    "layer_similarity",
    "learning_curves",
    "overlay",
    "position_similarity",
    "token_norms",
]
