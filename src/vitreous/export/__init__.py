"""Trained models for elsewhere: as graphs, in the layouts of other libraries, and on the Hub."""

from vitreous.export.deploy import FORMATS, export_run

__all__ = ["FORMATS", "export_run"]
