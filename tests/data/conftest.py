"""Where tests find real sets, and where decoded images go."""

import os
from pathlib import Path

import pytest


@pytest.fixture
def real_data():
    """A folder of a named set under $VITREOUS_DATA."""

    def find(name: str) -> Path:
        root = os.environ.get("VITREOUS_DATA")
        if not root or not Path(root, name).is_dir():
            pytest.skip(f"$VITREOUS_DATA/{name} is not there")
        return Path(root, name)

    return find
