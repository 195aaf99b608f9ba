"""A model as a graph that runs without this package: ONNX, the same with int8 weights, and torch's own `pt2`.

Each `write_*` returns the file, read back from disk, as a function of uint8 images (B, C, H, W) to logits (B, K).
"""

import copy
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn

from vitreous.preprocess import Preprocess
from vitreous.weights import Bundle

Answer = Callable[[Tensor], Tensor]

ONNX, PT2 = "model.onnx", "model.pt2"
ONNX_DATA = ONNX + ".data"  # the weights of a graph that protobuf cannot hold
OPSET = 20  # the first with GELU
INPUT, OUTPUT = "images", "logits"
NEEDED = dict.fromkeys(("onnx", "int8"), ("onnx", "onnxscript", "onnxruntime"))


class PixelModel(nn.Module):
    """A model that takes pixels, uint8 (B, C, H, W), as they come from `Preprocess.fit_image`."""

    def __init__(self, bundle: Bundle):
        super().__init__()
        self.model = bundle.model
        self.preprocess = bundle.preprocess

    def forward(self, images: Tensor) -> Tensor:
        return self.model(self.preprocess.normalise(images))


def write_onnx(bundle: Bundle, folder: Path, preprocess_inside: bool) -> Answer:
    """`model.onnx`, and `model.onnx.data` if protobuf cannot hold the weights."""
    model, example = _traced(bundle, preprocess_inside)
    with _quiet():
        program = torch.onnx.export(
            model,
            (example,),
            dynamo=True,
            dynamic_shapes=({0: torch.export.Dim("batch", min=1)},),
            input_names=[INPUT],
            output_names=[OUTPUT],
            opset_version=OPSET,
            verbose=False,
        )
        for node in program.model.graph:
            node.metadata_props.clear()  # which name folders of this machine
        program.model.metadata_props.update(metadata(bundle, preprocess_inside), opset=str(OPSET))
        program.save(folder / ONNX)
    return _read_onnx(folder / ONNX, bundle.preprocess, preprocess_inside)


def write_int8(bundle: Bundle, folder: Path, preprocess_inside: bool) -> Answer:
    """`model.onnx` with int8 matrix products, for CPUs: weights quantised per output channel, tokens by their range.

    The weights have 7 bits, because two products of 8 bits overflow on processors without VNNI.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with TemporaryDirectory() as scratch, _quiet():
        write_onnx(bundle, Path(scratch), preprocess_inside)
        whole = Path(scratch, ONNX)
        proto = onnx.load(whole, load_external_data=False)
        del proto.graph.value_info[:]  # shapes of weights that the quantiser transposes
        onnx.save(proto, whole)
        quantize_dynamic(
            whole,
            folder / ONNX,
            op_types_to_quantize=["MatMul", "Gemm"],
            per_channel=True,
            reduce_range=True,
            weight_type=QuantType.QInt8,
            use_external_data_format=Path(scratch, ONNX_DATA).exists(),
        )
    return _read_onnx(folder / ONNX, bundle.preprocess, preprocess_inside)


def write_pt2(bundle: Bundle, folder: Path, preprocess_inside: bool) -> Answer:
    """`model.pt2` of `torch.export`; `torch.export.load` reads it back without this package."""
    model, example = _traced(bundle, preprocess_inside)
    said = json.dumps(metadata(bundle, preprocess_inside), indent=2)
    with _quiet():
        program = torch.export.export(model, (example,), dynamic_shapes=({0: torch.export.Dim("batch", min=1)},))
        for node in program.graph.nodes:
            node.meta.pop("stack_trace", None)  # which names folders of this machine
        whole = io.BytesIO()  # as on a full disk torch's own writer would abort the process
        torch.export.save(program, whole, extra_files={"metadata.json": said})
        (folder / PT2).write_bytes(whole.getbuffer())
        loaded = torch.export.load(folder / PT2).module()
    return lambda pixels: loaded(pixels if preprocess_inside else bundle.preprocess.normalise(pixels))


def metadata(bundle: Bundle, preprocess_inside: bool) -> dict[str, str]:
    """What a user of the graph needs to know, every value as a string."""
    preprocess = bundle.preprocess
    C, H, W = preprocess.shape
    if preprocess_inside:
        pixels = f"uint8 (batch, {C}, {H}, {W}), pixels 0..255; the graph normalises them itself"
    else:
        pixels = f"float32 (batch, {C}, {H}, {W}), (pixels / 255 - mean) / std by channel"
    resize = f"images are resized to {H} x {W} (rows x columns), {preprocess.interpolation}, antialiased"
    if preprocess.fit == "crop":
        resize += ", so that they cover it, and cut to their centre"
    else:
        resize += ", whatever their aspect ratio"
    if preprocess.crop_fraction < 1:
        resize += f", of which the {preprocess.crop_fraction:.4g} at the centre fills the model's size"
    colour = {1: "gray", 3: "RGB, in this order"}.get(C, f"{C} channels")
    deep = "16-bit gray divided by 257"
    if preprocess.white is not None:
        deep = f"gray of more than 8 bits cut off at {preprocess.white!r} and multiplied by 255 / {preprocess.white!r}"
    return {
        "producer": f"vitreous {version('vitreous')}",
        "sha256": bundle.digest(),
        "input": f"{INPUT}: {pixels}",
        "picture": f"{colour}; upright by its EXIF orientation, transparency laid on white, {deep}; "
        "embedded colour profiles are not applied",
        "resize": resize,
        "preprocess": preprocess.model_dump_json(exclude_none=True),
        "output": f"{OUTPUT}: float32 (batch, {len(bundle.class_names)}), one a class in the order of class_names; "
        "unscaled: no temperature is applied; the softmax of output / temperature is what `vitreous predict` gives",
        "temperature": repr(bundle.temperature),
        "class_names": json.dumps(bundle.class_names),
    }


def _traced(bundle: Bundle, preprocess_inside: bool) -> tuple[nn.Module, Tensor]:
    """The module to trace, and an example input: a batch of two, since one would be taken for a constant."""
    example = torch.zeros(2, *bundle.preprocess.shape, dtype=torch.uint8)
    model = copy.deepcopy(bundle.model)
    if preprocess_inside:
        return PixelModel(replace(bundle, model=model)).eval(), example
    return model, bundle.preprocess.normalise(example)


def _read_onnx(file: Path, preprocess: Preprocess, preprocess_inside: bool) -> Answer:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()  # as many as the model it is compared with
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])

    def answer(pixels: Tensor) -> Tensor:
        images = pixels if preprocess_inside else preprocess.normalise(pixels)
        return torch.from_numpy(session.run([OUTPUT], {INPUT: images.numpy()})[0])

    return answer


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporters' warnings, which concern their internals; the receipt checks the result."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(level)
