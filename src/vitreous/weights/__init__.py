"""Trained models on disk: our own, and those of other libraries."""

from vitreous.weights.bundle import Bundle, find_bundle
from vitreous.weights.load import Report, load_weights

__all__ = ["Bundle", "Report", "find_bundle", "load_weights"]
