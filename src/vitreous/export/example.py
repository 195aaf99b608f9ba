"""A real image and an exported graph's output for it, to check a port to another language against."""

import base64
from pathlib import Path
from typing import Any

from PIL import Image

from vitreous.data.stores import Images
from vitreous.export.graphs import Answer
from vitreous.export.receipt import Inputs
from vitreous.files import write_json
from vitreous.weights import Bundle

EXAMPLE, PICTURE = "example.json", "example.png"
LARGEST = 6 << 20  # bytes of pixels up to which a picture is kept: 1920 x 1080 in RGB are fewer


def write_example(folder: Path, bundle: Bundle, graph: Answer, inputs: Inputs) -> None:
    """Write `example.json` for the first input, run on its own, and `example.png` if the picture is not too large.

    Nothing is written if the inputs are noise.
    """
    if inputs.first is None:
        return
    pixels = inputs.pixels[:1]  # (1, C, H, W)
    (logits,) = graph(pixels)  # (K,)
    content: dict[str, Any] = {
        "image": "/".join(Path(inputs.first.describe(0)).parts[-2:]),  # the folders above may name people
        "picture": PICTURE if _write_picture(folder / PICTURE, inputs.first, bundle.preprocess.white) else None,
        "shape": bundle.preprocess.shape,
        "pixels": base64.b64encode(pixels.numpy().tobytes()).decode(),
        "logits": logits.tolist(),
        "temperature": bundle.temperature,
        "probabilities": (logits / bundle.temperature).softmax(dim=0).tolist(),
        "class": bundle.class_names[int(logits.argmax())],
    }
    write_json(folder / EXAMPLE, content)


def _write_picture(path: Path, image: Images, white: float | None) -> bool:
    """Save an image before resizing, but upright, opaque and 8-bit; returns whether it could be kept."""
    C, H, W = image.shape
    if C not in (1, 3) or C * H * W > LARGEST:
        return False
    planes = image.at_own_size(0, white)  # (C, H, W)
    Image.fromarray(planes[0] if C == 1 else planes.transpose(1, 2, 0)).save(path)
    return True
