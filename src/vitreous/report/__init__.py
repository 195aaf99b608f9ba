"""A run's results as one self-contained page: no scripts, no network, light and dark."""

from vitreous.report.reports import evaluation_report, folds_report, train_report

__all__ = ["evaluation_report", "folds_report", "train_report"]
