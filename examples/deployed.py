"""Answer with an exported model, without Vitreous or torch: NumPy, Pillow and onnxruntime are enough.

    vitreous export runs/photos onnx                 # or int8, with --preprocess-inside or without
    python examples/deployed.py runs/photos/export/onnx/model.onnx cat.jpg dog.jpg
    python examples/deployed.py --check runs/photos/export/onnx   # does it still answer so, say with a new onnxruntime?

All that is needed beside the graph stands in its metadata: how an image is brought to the model's size, the classes,
and the temperature of the probabilities.
"""

import base64
import json
import math
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image, ImageOps


def pixels(image: Image.Image, how: dict) -> np.ndarray:
    """An image of 8 bits as the model was trained to see it, uint8 (C, H, W): its centre is resized in one step."""
    if image.mode.startswith(("I", "F")):
        raise ValueError(
            f"{image.mode} is more than 8 bits a pixel: multiply by 255 / white (as the metadata have it, else 65535, "
            "of floats 1) and round (docs/deploying.md)"
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


def ask(session: onnxruntime.InferenceSession, images: np.ndarray) -> np.ndarray:
    """Logits (B, K) of uint8 images (B, C, H, W)."""
    (entry,) = session.get_inputs()
    if entry.type == "tensor(float)":  # else the graph takes the pixels themselves
        how = json.loads(session.get_modelmeta().custom_metadata_map["preprocess"])
        mean, std = (np.float32(how[name]).reshape(-1, 1, 1) for name in ("mean", "std"))
        images = (images / np.float32(255) - mean) / std
    return session.run(None, {entry.name: images})[0]


def check(folder: str) -> bool:
    """Whether an exported graph answers here as its example.json says; how the picture is fitted here is told, too."""
    said = json.loads(Path(folder, "example.json").read_text())
    session = onnxruntime.InferenceSession(Path(folder, "model.onnx"))
    meta = session.get_modelmeta().custom_metadata_map
    kept = np.frombuffer(base64.b64decode(said["pixels"]), np.uint8).reshape(said["shape"])
    off = np.abs(ask(session, kept[None])[0] - said["logits"]).max()
    allowed = 0.2 if "onnx.infer" in meta else 1e-4  # int8 rounds differently on other processors
    print(f"{folder}: logits differ by {off:.2g} at most; {allowed:g} is allowed")
    if said["picture"] is not None:
        fitted = pixels(Image.open(Path(folder, said["picture"])), json.loads(meta["preprocess"]))
        levels = np.abs(fitted.astype(int) - kept)
        print(
            f"{folder}: {(levels > 1).mean():.2%} of the pixels differ by more than a level, at most by {levels.max()}"
        )
    return bool(off <= allowed)  # False for what is not a number


def main(model: str, *files: str) -> None:
    if model == "--check":
        sys.exit(not all([check(folder) for folder in files]))
    session = onnxruntime.InferenceSession(model)
    said = session.get_modelmeta().custom_metadata_map
    how, classes = json.loads(said["preprocess"]), json.loads(said["class_names"])
    for file in files:
        (logits,) = ask(session, pixels(Image.open(file), how)[None])  # a batch of one
        p = np.exp((logits - logits.max()) / float(said["temperature"]))
        print(f"{file}: {classes[p.argmax()]} {p.max() / p.sum():.1%}")


if __name__ == "__main__":
    if not sys.argv[1:] or sys.argv[1] in ("-h", "--help"):
        sys.exit(__doc__)
    main(*sys.argv[1:])
