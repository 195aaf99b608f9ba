"""All plots. The only folder that imports matplotlib."""

from vitreous.plots.insight import (
    attention_distance,
    depth_similarity,
    early_answers,
    explanation,
    filters,
    heat,
    overlay,
    position_similarity,
    token_norms,
)
from vitreous.plots.run import confusion_matrix, image_grid, learning_curves

__all__ = [
    "attention_distance",
    "confusion_matrix",
    "depth_similarity",
    "early_answers",
    "explanation",
    "filters",
    "heat",
    "image_grid",
    "learning_curves",
    "overlay",
    "position_similarity",
    "token_norms",
]
