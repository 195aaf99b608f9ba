"""Labelled images: finding them, checking them, handing them out in batches."""
