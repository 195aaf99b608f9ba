"""Trained models on disk."""

from vitreous.weights.bundle import Bundle, find_bundle

__all__ = ["Bundle", "find_bundle"]
