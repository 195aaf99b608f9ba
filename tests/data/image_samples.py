"""Small image sets, in arrays and on disk."""

import io
import json

import numpy as np
from PIL import Image

from vitreous.preprocess import Preprocess


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
    """<root>/<class>/000.png and so on, for counts by class. Returns all pixels, class by class."""
    arrays = []
    for number, (name, count) in enumerate(per_class.items()):
        (root / name).mkdir(parents=True)
        for i, array in enumerate(pixels(count, channels, size, seed + number)):
            to_image(array).save(root / name / f"{i:03}.png")
            arrays.append(array)
    return np.array(arrays)


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
