"""Answer with an exported model, without Vitreous or torch: NumPy, Pillow and onnxruntime are enough.

    vitreous export runs/photos onnx                 # or int8, with --preprocess-inside or without
    python examples/deployed.py runs/photos/export/onnx/model.onnx cat.jpg dog.jpg

All that is needed beside the graph stands in its metadata: how an image is brought to the model's size, the classes,
and the temperature of the probabilities.
"""

import json
import math
import sys

import numpy as np
import onnxruntime
from PIL import Image, ImageOps


def pixels(image: Image.Image, how: dict) -> np.ndarray:
    """An image of 8 bits as the model was trained to see it, uint8 (C, H, W): its centre is resized in one step."""
    if image.mode.startswith(("I", "F")):
        raise ValueError(
            f"{image.mode} is more than 8 bits a pixel: divide 16-bit gray by 257, multiply floats by 255, and round "
            "(docs/deploying.md)"
        )
    rows, columns = how["image_size"]
    image = ImageOps.exif_transpose(image)
    if image.has_transparency_data:  # it lies on white
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    image = image.convert("RGB").convert("L" if len(how["mean"]) == 1 else "RGB")
    width, height = image.size
    wide, high = (math.floor(side / how["crop_fraction"] + 1e-6) for side in (columns, rows))  # of the whole image
    if how["fit"] == "crop":  # which keeps its shape and covers these; "squash" does not keep it
        if width * high > height * wide:
            wide = width * high // height
        else:
            high = height * wide // width
    left, top = round((wide - columns) / 2), round((high - rows) / 2)
    across, down = width / wide, height / high
    box = (left * across, top * down, (left + columns) * across, (top + rows) * down)
    resized = image.resize((columns, rows), Image.Resampling[how["interpolation"].upper()], box=box)
    return np.asarray(resized).reshape(rows, columns, -1).transpose(2, 0, 1)


def main(model: str, *files: str) -> None:
    session = onnxruntime.InferenceSession(model)
    said = session.get_modelmeta().custom_metadata_map
    how, classes = json.loads(said["preprocess"]), json.loads(said["class_names"])
    (entry,) = session.get_inputs()
    for file in files:
        images = pixels(Image.open(file), how)[None]  # a batch of one
        if entry.type == "tensor(float)":  # else the graph takes the pixels themselves
            mean, std = (np.float32(how[name]).reshape(-1, 1, 1) for name in ("mean", "std"))
            images = (images / np.float32(255) - mean) / std
        (logits,) = session.run(None, {entry.name: images})
        p = np.exp((logits[0] - logits[0].max()) / float(said["temperature"]))
        print(f"{file}: {classes[p.argmax()]} {p.max() / p.sum():.1%}")


if __name__ == "__main__":
    main(*sys.argv[1:])
