"""Explain a model: what a prediction rests on, what the model itself looks like, and one image's way through it."""

from vitreous.explain.attention import OpenPass, open_pass, pool_weights, read_out
from vitreous.explain.explanations import Explanation, evidence, explain
from vitreous.explain.faithfulness import Curves, faithfulness, random_maps, random_order
from vitreous.explain.methods import DEFAULT, METHODS, Method, explanation_maps, integrated_gradients, rollout

__all__ = [
    "DEFAULT", "METHODS", "Curves", "Explanation", "Method", "OpenPass", "evidence", "explain", "explanation_maps",
    "faithfulness", "integrated_gradients", "open_pass", "pool_weights", "random_maps", "random_order", "read_out",
    "rollout",
]  # fmt: skip
