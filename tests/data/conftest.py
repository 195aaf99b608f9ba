"""Small image sets on disk, and the real ones where $VITREOUS_DATA has them."""

import io
import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitreous.preprocess import Preprocess


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Decoded images are kept where the test can see them, and nowhere else."""
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def real_data():
    """A folder of a named set under $VITREOUS_DATA."""

    def find(name: str) -> Path:
        root = os.environ.get("VITREOUS_DATA")
        if not root or not Path(root, name).is_dir():
            pytest.skip(f"$VITREOUS_DATA/{name} is not there")
        return Path(root, name)

    return find


def pixels(count=12, channels=3, size=8, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, channels, size, size), np.uint8)


def preprocess_of(channels=3, size=8, **settings):
    return Preprocess(image_size=size, mean=(0.5,) * channels, std=(0.5,) * channels, **settings)


def to_image(array):
    return Image.fromarray(array[0] if len(array) == 1 else array.transpose(1, 2, 0))


def encoded(array, kind="PNG"):
    stream = io.BytesIO()
    to_image(array).save(stream, kind)
    return stream.getvalue()


def write_folder(root, per_class, seed=0, channels=3, size=8):
    """<root>/<class>/<i>.png for counts by class. Returns all pixels, class by class."""
    arrays = []
    for number, (name, count) in enumerate(per_class.items()):
        (root / name).mkdir(parents=True)
        for i, array in enumerate(pixels(count, channels, size, seed + number)):
            to_image(array).save(root / name / f"{i}.png")
            arrays.append(array)
    return np.stack(arrays)


def write_parquet(file, columns, features=None, row_group_size=5):
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table(columns)
    if features:
        metadata = {"huggingface": json.dumps({"info": {"features": features}})}
        table = table.replace_schema_metadata(metadata)
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, file, row_group_size=row_group_size)


def hub_images(arrays):
    return [{"bytes": encoded(array), "path": None} for array in arrays]


def hub_features(*names, image="image", label="label"):
    return {image: {"_type": "Image"}, label: {"_type": "ClassLabel", "names": list(names)}}
