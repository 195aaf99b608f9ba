"""Export trained models: as graphs, in the layouts of other libraries, and to the Hub."""

from vitreous.export.deploy import FORMATS, export_run

__all__ = ["FORMATS", "export_run"]
