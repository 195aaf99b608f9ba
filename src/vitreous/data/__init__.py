"""Labelled images: finding them, checking them, handing them out in batches."""

from vitreous.data.check import check, summary
from vitreous.data.images import ImageSet, Split
from vitreous.data.loaders import Batches, decode
from vitreous.data.sources import load
from vitreous.data.stores import BrokenImage

__all__ = ["Batches", "BrokenImage", "ImageSet", "Split", "check", "decode", "load", "summary"]
