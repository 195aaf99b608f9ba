"""What leaves as a file is the same function, and says so; what a format cannot say is refused by its name."""

import base64
import json
import math
import os
import runpy
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from zipfile import ZipFile

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image
from rich.console import Console
from tiny import CLASSES, tiny_bundle, tiny_recipe, tiny_set, write_images

from vitreous import Bundle, extras, predict
from vitreous.card import card, write_shared
from vitreous.data.sources import load
from vitreous.data.stores import FileImages
from vitreous.explain.look import look
from vitreous.export import FORMATS, deploy, example, export_run, graphs
from vitreous.export.checkpoints import preprocessing_of, write_huggingface, write_timm
from vitreous.export.hub import push_run
from vitreous.export.receipt import BATCHES, Inputs, compare, faults, find_inputs
from vitreous.preprocess import Preprocess
from vitreous.recipe import read_recipe
from vitreous.train.run import fit
from vitreous.weights import load_weights
from vitreous.weights.bundle import SHIPPED
from vitreous.weights.from_huggingface import read_preprocessing

MISSING = [name for name in graphs.NEEDED["onnx"] if find_spec(name) is None]
needs_onnx = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")
ALL_PARTS = {
    "dim": 32,
    "mlp_conv": True,
    "patch_embedding": "conv_stem",
    "stem_channels": (4,),
    "stem_pool": True,
    "positions": "rope",
    "norm": "rmsnorm",
    "qk_norm": True,
    "pool": "attention",
    "layer_scale": 0.5,
    "registers": 2,
    "head_hidden": 8,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run on stripes."""
    root = tmp_path_factory.mktemp("run")
    write_images(root / "photos" / "train", 16)
    write_images(root / "photos" / "test", 8, seed=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITREOUS_CACHE", str(root / "cache"))
        recipe = tiny_recipe(epochs=40, data={"source": str(root / "photos")}, optim={"learning_rate": 0.01})
        finished = fit(recipe, out=root / "run", device="cpu", pictures=False, console=Console(quiet=True))
    assert finished.results["test"]["top1"] > 0.9
    return root / "run"


@pytest.fixture(scope="module")
def onnx_folder(run, tmp_path_factory):
    """The run as ONNX, and what the command says of it."""
    return export_run(run, "onnx", out=tmp_path_factory.mktemp("onnx") / "new")


@pytest.fixture(scope="module")
def deployed():
    """What `examples/deployed.py` defines."""
    return runpy.run_path(str(Path(__file__).parent.parent / "examples" / "deployed.py"))


def noise(bundle, count, seed=3):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, (count, *bundle.preprocess.shape), dtype=torch.uint8, generator=generator)


@torch.no_grad()
def logits(bundle, pixels):
    return bundle.model(bundle.preprocess.normalise(pixels))


# --- graphs ---


@needs_onnx
def test_onnx_answers_as_the_model_for_every_batch(run, onnx_folder):
    import onnxruntime

    bundle = Bundle.load(run / "model")
    session = onnxruntime.InferenceSession(onnx_folder[0] / "model.onnx")
    for count in (1, 2, 7, 32, 200):
        pixels = noise(bundle, count)
        (found,) = session.run(None, {"images": bundle.preprocess.normalise(pixels).numpy()})
        expected = logits(bundle, pixels).numpy()
        assert np.abs(found - expected).max() < 1e-4 and expected.std() > 0.1
        assert (found.argmax(1) == expected.argmax(1)).all()


@pytest.mark.parametrize("form", [pytest.param("onnx", marks=needs_onnx), "pt2"])
def test_a_graph_names_no_folder_of_this_machine(tmp_path, form):
    deploy.GRAPHS[form](tiny_bundle(), tmp_path, False)
    (file,) = tmp_path.iterdir()
    place = str(Path(graphs.__file__).parents[2]).encode()
    parts = [file.read_bytes()] if form == "onnx" else map(ZipFile(file).read, ZipFile(file).namelist())
    assert not any(place in part for part in parts)


@needs_onnx
def test_onnx_has_one_float_input_whose_batch_alone_is_dynamic_and_says_how_to_use_it(run, onnx_folder):
    import onnx

    model = onnx.load(onnx_folder[0] / "model.onnx")
    onnx.checker.check_model(model)
    (images,), (answer,) = model.graph.input, model.graph.output
    assert images.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    dims = [[d.dim_param or d.dim_value for d in part.type.tensor_type.shape.dim] for part in (images, answer)]
    assert dims == [["batch", 1, 8, 8], ["batch", 3]]
    said = {entry.key: entry.value for entry in model.metadata_props}
    assert said["opset"] == "20" == str(model.opset_import[0].version) and model.ir_version == 10
    assert Preprocess.model_validate_json(said["preprocess"]) == Bundle.load(run / "model").preprocess
    assert json.loads(said["class_names"]) == list(CLASSES)
    assert said["picture"].startswith("gray; upright")
    assert said["picture"].endswith("; embedded colour profiles are not applied")
    assert graphs.metadata(tiny_bundle(channels=3), False)["picture"].startswith("RGB, in this order; upright")
    assert "no temperature is applied" in said["output"] and "float32 (batch, 1, 8, 8)" in said["input"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"fit": "crop"}, "so that they cover it, and cut to their centre"),
        ({"fit": "squash"}, "whatever their aspect ratio"),
        (
            {"fit": "crop", "crop_fraction": 0.875},
            "so that they cover it, and cut to their centre, of which the 0.875 at the centre fills the model's size",
        ),
    ],
)
def test_a_graph_says_how_images_are_resized(options, told):
    bundle = tiny_bundle()
    bundle = replace(bundle, preprocess=bundle.preprocess.model_copy(update=options))
    said = graphs.metadata(bundle, False)["resize"]
    assert f"images are resized to 8 x 8 (rows x columns), bicubic, antialiased, {told}" in said


@needs_onnx
@pytest.mark.parametrize(
    ("channels", "how", "preprocess_inside"),
    [
        (1, {}, False),
        (3, {"fit": "squash", "crop_fraction": 0.75, "std": (0.2, 0.3, 0.25)}, False),
        (3, {"crop_fraction": 0.875, "interpolation": "bilinear", "mean": (0.2, 0.5, 0.4)}, False),
        (3, {"fit": "squash", "crop_fraction": 0.75, "std": (0.2, 0.3, 0.25)}, True),
    ],
    ids=["gray", "squash", "crop", "inside"],
)
def test_the_example_answers_by_the_metadata_alone_as_predict_does(
    tmp_path, capsys, deployed, channels, how, preprocess_inside
):
    bundle = tiny_bundle(channels=channels)
    bundle = replace(bundle, temperature=1.5, preprocess=bundle.preprocess.model_copy(update=how))
    graphs.write_onnx(bundle, tmp_path, preprocess_inside)
    files = [str(tmp_path / name) for name in ("wide.png", "high.png", "small.png", "clear.png")]
    draw, turned = np.random.default_rng(0), Image.Exif()
    turned[ExifTags.Base.Orientation] = 6
    for file, shape in zip(files, ((31, 50, 3), (61, 24, 3), (8, 8, 3), (20, 20, 4)), strict=True):
        Image.fromarray(draw.integers(256, size=shape, dtype=np.uint8)).save(file, exif=turned)
    capsys.readouterr()  # what writing the graph printed
    deployed["main"](str(tmp_path / "model.onnx"), *files)
    answers = predict(bundle, files, device="cpu", precision="float32")
    for line, answer in zip(capsys.readouterr().out.splitlines(), answers, strict=True):
        name, share = line.removeprefix(f"{answer.image}: ").split()
        assert name == answer.classes[0]
        assert float(share.removesuffix("%")) / 100 == pytest.approx(answer.probabilities[0], abs=2e-3)


def test_the_picture_of_an_example_is_as_bright_as_the_model_sees_it(tmp_path):
    Image.fromarray(np.full((8, 8), 4095, np.uint16)).save(tmp_path / "x.png")
    for white, seen in ((None, 16), (4095.0, 255)):
        assert example._write_picture(tmp_path / "y.png", FileImages([tmp_path / "x.png"]), white)
        assert np.asarray(Image.open(tmp_path / "y.png")).max() == seen


def test_the_level_that_is_white_goes_into_a_graph_and_its_example(tmp_path):
    (tmp_path / "photos" / "ant").mkdir(parents=True)
    Image.fromarray(np.full((8, 8), 4095, np.uint16)).save(tmp_path / "photos" / "ant" / "x.png")
    bundle = tiny_bundle()
    bundle = replace(bundle, preprocess=bundle.preprocess.model_copy(update={"white": 4095.0}))
    folder, _ = export_run(bundle, "pt2", out=tmp_path / "new", data=str(tmp_path / "photos"))
    said = read_example(folder)
    assert said["pixels"].min() == 255 and np.asarray(Image.open(folder / "example.png")).min() == 255
    told = graphs.metadata(bundle, False)
    assert "gray of more than 8 bits cut off at 4095.0 and multiplied by 255 / 4095.0" in told["picture"]
    assert json.loads(told["preprocess"])["white"] == 4095 and "divided by 257" not in told["picture"]


@pytest.mark.parametrize("write", [write_timm, write_huggingface])
def test_a_level_that_is_white_is_refused_by_layouts_that_would_forget_it(tmp_path, write):
    bundle = tiny_bundle(pool="cls")
    bundle = replace(bundle, preprocess=bundle.preprocess.model_copy(update={"white": 4095.0}))
    with pytest.raises(ValueError, match=r"'s ViT has no level for white \(data\.white\): export onnx or pt2"):
        write(bundle, tmp_path)


@needs_onnx
@pytest.mark.parametrize(("form", "inside"), [("onnx", False), ("onnx", True), ("int8", False), ("int8", True)])
def test_the_example_tells_whether_a_graph_still_answers_as_it_did(run, tmp_path, capsys, deployed, form, inside):
    folder, _ = export_run(run, form, out=tmp_path / "new", preprocess_inside=inside)
    shutil.copytree(folder, tmp_path / "copy")
    said, code = json.loads((folder / "example.json").read_text()), {}
    capsys.readouterr()  # what writing the graph printed
    for off in (0.0, 0.3, math.nan):
        other = said | {"logits": [said["logits"][0] + off, *said["logits"][1:]]}
        (folder / "example.json").write_text(json.dumps(other))
        with pytest.raises(SystemExit) as ended:
            deployed["main"]("--check", str(folder), str(tmp_path / "copy"))
        code[off] = ended.value.code
    told = capsys.readouterr().out.splitlines()
    assert list(code.values()) == [0, 1, 1] and told[4].startswith(f"{folder}: logits differ by 0.3 at most")
    assert len(told) == 12 and told[1] == f"{folder}: 0.00% of the pixels differ by more than a level, at most by 0"


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_the_example_says_how_it_is_called(monkeypatch, arguments):
    file = Path(__file__).parent.parent / "examples" / "deployed.py"
    monkeypatch.setattr(sys, "argv", [str(file), *arguments])
    with pytest.raises(SystemExit, match=r"python examples/deployed\.py runs/photos/export/onnx/model\.onnx cat\.jpg"):
        runpy.run_path(str(file), run_name="__main__")


@pytest.mark.parametrize("mode", ["I;16", "I", "F"])
def test_the_example_refuses_what_has_more_than_8_bits(deployed, mode):
    with pytest.raises(ValueError, match=f"^{mode} is more than 8 bits a pixel: multiply by 255 / white .*round"):
        deployed["pixels"](Image.new(mode, (8, 8)), {})


@needs_onnx
def test_the_receipt_says_what_was_compared(run, onnx_folder):
    folder, receipt = onnx_folder
    assert json.loads((folder / "parity.json").read_text()) == receipt
    assert {file.name for file in folder.iterdir()} == {"model.onnx", "parity.json", "example.json", "example.png"}
    assert receipt["inputs"] == "24 images of photos, test, repeated to 242"
    assert receipt["batches"] == [1, 2, 7, 32, 200] == list(BATCHES)
    assert receipt["max_abs_difference"] <= 1e-4 == receipt["tolerance"] and receipt["top1_agreement"] == 1
    assert receipt["top1"]["before"] == receipt["top1"]["after"] > 0.9
    assert receipt["milliseconds_per_image"].keys() == {"before", "after"}
    assert all(value > 0 for value in receipt["milliseconds_per_image"].values())


def test_the_receipt_tells_milliseconds_of_an_image_without_the_warm_up(monkeypatch):
    seconds = [0.0]

    def answer(an_image):
        def call(pixels):
            seconds[0] += an_image * len(pixels)
            return torch.zeros(len(pixels), 3)

        return call

    monkeypatch.setattr("vitreous.export.receipt.time", SimpleNamespace(perf_counter=lambda: seconds[0]))
    figures = compare(
        answer(0.25), answer(0.5), Inputs(torch.zeros(sum(BATCHES), 1, 8, 8, dtype=torch.uint8), None, "")
    )
    assert figures["milliseconds_per_image"] == {"before": 250.0, "after": 500.0}


@needs_onnx
def test_a_graph_runs_on_as_many_threads_as_the_model_that_it_is_compared_with(run, tmp_path, monkeypatch):
    import onnxruntime

    asked, session = [], onnxruntime.InferenceSession

    def open_session(file, options, **others):
        asked.append(options.intra_op_num_threads)
        return session(file, options, **others)

    monkeypatch.setattr(onnxruntime, "InferenceSession", open_session)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    export_run(run, "onnx", out=tmp_path / "again")
    assert set(asked) == {3}


@needs_onnx
def test_int8_multiplies_int8_and_keeps_top1(run, tmp_path):
    import onnx
    import onnxruntime

    folder, receipt = export_run(run, "int8", out=tmp_path / "int8")
    model = onnx.load(folder / "model.onnx")
    kinds = [node.op_type for node in model.graph.node]
    assert model.ir_version == 10
    assert kinds.count("MatMulInteger") == 5  # qkv, proj, fc1, fc2 of its one block, and the head
    weights = {w.name: onnx.numpy_helper.to_array(w) for w in model.graph.initializer if w.data_type == 3}
    assert max(abs(int(w.min())) for w in weights.values()) <= 64 and any(w.any() for w in weights.values())
    scales = [w.dims[0] for w in model.graph.initializer if w.name.endswith("_scale") and w.dims]
    assert sorted(scales) == sorted(w.shape[1] for w in weights.values() if w.ndim == 2)  # one for each output channel
    assert receipt["inputs"].startswith("24 images of ") and 0 < receipt["max_abs_difference"] < 0.5
    assert "no temperature is applied" in {e.key: e.value for e in model.metadata_props}["output"]
    said = read_example(folder)
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    (found,) = session.run(None, {"images": Bundle.load(run / "model").preprocess.normalise(said["pixels"]).numpy()})
    np.testing.assert_allclose(found[0], said["logits"], rtol=0, atol=1e-5)  # asked about alone, as it was


@needs_onnx
@pytest.mark.slow
def test_every_part_of_a_model_goes_into_a_graph_and_normalising_too(tmp_path):
    import onnxruntime

    bundle = scrambled(**ALL_PARTS)
    bundle.save(tmp_path)
    folder, receipt = export_run(tmp_path, "onnx", preprocess_inside=True)
    assert folder == tmp_path / "export" / "onnx" and receipt["inputs"] == "242 images of noise"
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    assert session.get_inputs()[0].type == "tensor(uint8)"
    pixels = noise(bundle, 7)
    (found,) = session.run(None, {"images": pixels.numpy()})
    assert np.abs(found - logits(bundle, pixels).numpy()).max() < 1e-4


@pytest.mark.parametrize(
    ("form", "off"),
    [
        pytest.param("onnx", 1e-4, marks=needs_onnx),
        pytest.param("int8", 0.2, marks=needs_onnx),
        ("pt2", 1e-4),
    ],
)
@pytest.mark.parametrize("stem_pool", [False, True])
def test_a_tiny_model_of_the_architecture_for_cifar_goes_into_every_graph(tmp_path, form, off, stem_pool):
    stem = {"patch_embedding": "conv_stem", "stem_channels": (64,), "stem_pool": stem_pool}
    bundle = scrambled(**stem, mlp_conv=True, pool="attention", positions="sincos2d")
    answer = deploy.GRAPHS[form](bundle, tmp_path, False)
    for count in (1, 7):
        pixels = noise(bundle, count)
        expected = logits(bundle, pixels)
        assert (answer(pixels) - expected).abs().max() < off * expected.std()
    if form == "onnx":
        import onnx

        graph = onnx.load(tmp_path / "model.onnx").graph
        known = {tensor.name for tensor in graph.initializer}
        assert all(node.input[1] in known for node in graph.node if node.op_type == "Conv")  # nothing to compute first


@needs_onnx
@pytest.mark.parametrize(("form", "off"), [("onnx", 1e-4), ("int8", 0.2)])
def test_weights_that_protobuf_cannot_hold_lie_beside_the_graph(tmp_path, monkeypatch, form, off):
    import onnx
    import onnxruntime

    monkeypatch.setattr("torch.onnx._internal.exporter._onnx_program._LARGE_MODEL_THRESHOLD", 0)
    bundle = tiny_bundle(dim=64)
    bundle.save(tmp_path / "model")
    folder, _ = export_run(tmp_path / "model", form, out=tmp_path / form, tolerance=1)
    assert {file.name for file in folder.iterdir()} == {"model.onnx", "model.onnx.data", "parity.json"}
    tensors = onnx.load(folder / "model.onnx", load_external_data=False).graph.initializer
    apart = [t for t in tensors if t.data_location == onnx.TensorProto.EXTERNAL]
    assert max(len(t.raw_data) for t in tensors) <= 1024 and len(apart) >= 4  # of one block
    pixels = noise(bundle, 50)
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    (found,) = session.run(None, {"images": bundle.preprocess.normalise(pixels).numpy()})
    expected = logits(bundle, pixels).numpy()
    assert np.abs(found - expected).max() < off * expected.std()


def test_pt2_answers_without_this_package(run, tmp_path):
    folder, receipt = export_run(run, "pt2", out=tmp_path, preprocess_inside=True)
    extra = {"metadata.json": ""}
    model = torch.export.load(folder / "model.pt2", extra_files=extra).module()
    bundle = Bundle.load(run / "model")
    for count in BATCHES:
        pixels = noise(bundle, count)
        torch.testing.assert_close(model(pixels), logits(bundle, pixels), rtol=0, atol=1e-5)
    assert "uint8 (batch, 1, 8, 8)" in json.loads(extra["metadata.json"])["input"]
    assert receipt["max_abs_difference"] <= 1e-5 and receipt["preprocess_inside"] is True


# --- receipts ---


@pytest.mark.parametrize("form", FORMATS)
def test_another_function_is_refused_and_what_was_there_stays(run, tmp_path, monkeypatch, form):
    def wrong(bundle, folder, *_):
        assert folder.parent in map(tmp_path.joinpath, places)  # at which a disk of its own may be mounted
        (folder / "model.bin").write_text("new")
        return lambda pixels: logits(bundle, pixels).roll(1, dims=1)

    monkeypatch.setitem(deploy.GRAPHS if form in deploy.GRAPHS else deploy.CHECKPOINTS, form, wrong)
    monkeypatch.setattr(deploy, "need", lambda *_: None)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "model.bin").write_text("old")
    places = ("out", "new", "a/new/place", "empty")
    what = "top-1 falls by" if form == "int8" else "logits differ by"
    way_out = "; name more images with --data, or allow it by" if form == "int8" else "[0-9]; allow it by"
    refused = f"^the {form} export of .* is another function and was not kept: {what} .*{way_out} --tolerance$"
    with pytest.raises(ValueError, match=refused):
        export_run(run, form, out=tmp_path / "out")
    (tmp_path / "empty").mkdir()  # the user's
    for name in places[1:]:
        with pytest.raises(ValueError, match="another function"):
            export_run(run, form, out=tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "out"]
    assert [(path.name, path.read_text()) for path in (tmp_path / "out").iterdir()] == [("model.bin", "old")]


@pytest.mark.parametrize("lost", [1, 2])
def test_one_answer_of_few_images_may_be_lost_by_rounding_and_no_more(run, tmp_path, monkeypatch, lost):
    bundle = Bundle.load(run / "model")
    inputs = find_inputs(run, bundle, 242, 242)

    def rounded(*_):
        def answer(pixels):
            answers = logits(bundle, pixels)
            wrong = torch.stack([(pixels == one).flatten(1).all(dim=1) for one in inputs.pixels[:lost]]).any(dim=0)
            return torch.where(wrong[:, None], -answers, answers)

        return answer

    monkeypatch.setitem(deploy.GRAPHS, "int8", rounded)
    monkeypatch.setattr(deploy, "need", lambda *_: None)
    if lost == 1:
        assert export_run(run, "int8", out=tmp_path / "x")[1]["tolerance"] == pytest.approx(1 / 24)
        with pytest.raises(ValueError, match=r"top-1 falls by 4\.17% on .*, beyond 0\.50%; name more images"):
            export_run(run, "int8", out=tmp_path / "y", tolerance=0.005)
    else:
        with pytest.raises(ValueError, match=r"top-1 falls by 8\.33% on .*, beyond 4\.17%; name more images"):
            export_run(run, "int8", out=tmp_path / "x")


@pytest.mark.parametrize("lost", [1, 2])
def test_of_many_images_half_a_percent_may_be_lost_by_rounding(tmp_path, monkeypatch, lost):
    bundle = tiny_bundle()
    first = find_inputs("nowhere", bundle, 242, 242).pixels[:lost]  # of 242 of noise

    def answer(pixels):
        turned = torch.stack([(pixels == one).flatten(1).all(dim=1) for one in first]).any(dim=0)
        return torch.where(turned[:, None], -logits(bundle, pixels), logits(bundle, pixels))

    monkeypatch.setitem(deploy.GRAPHS, "int8", lambda *_: answer)
    monkeypatch.setattr(deploy, "need", lambda *_: None)
    if lost == 1:
        assert export_run(bundle, "int8", out=tmp_path / "x")[1]["tolerance"] == 0.005
    else:
        with pytest.raises(ValueError, match=r"the share of other answers is 0\.83% on .*, beyond 0\.50%; name more"):
            export_run(bundle, "int8", out=tmp_path / "x")


def test_no_option_is_named_that_would_not_help(run, tmp_path, monkeypatch):
    monkeypatch.setitem(deploy.GRAPHS, "pt2", lambda bundle, *_: lambda pixels: logits(bundle, pixels) * math.nan)
    with pytest.raises(ValueError, match=r"logits differ by nan on .*, beyond 0\.0001$"):
        export_run(run, "pt2", out=tmp_path / "x")
    monkeypatch.setattr(deploy, "MANY", 24)  # as many as are compared at most
    monkeypatch.setitem(deploy.GRAPHS, "int8", lambda bundle, *_: lambda pixels: -logits(bundle, pixels))
    monkeypatch.setattr(deploy, "need", lambda *_: None)
    with pytest.raises(ValueError, match=r"top-1 falls by .*, beyond 4\.17%; allow it by --tolerance$"):
        export_run(run, "int8", out=tmp_path / "x")


def test_an_export_that_is_killed_while_it_is_put_in_its_place_can_be_made_anew(run, tmp_path, monkeypatch):
    replace, moved = Path.replace, []

    def killed(self, target):
        if target.parent == tmp_path / "x":
            if moved:
                raise KeyboardInterrupt
            moved.append(target.name)
        return replace(self, target)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "replace", killed)
        export_run(run, "pt2", out=tmp_path / "x")
    assert moved == ["parity.json"]
    export_run(run, "pt2", out=tmp_path / "x")
    moved.clear()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "replace", killed)
        export_run(run, "pt2", out=tmp_path / "x")
    assert not (tmp_path / "x" / "model.pt2").exists()  # else it would stand beside the receipt of another


def test_a_receipt_fails_beyond_its_tolerance(run):
    bundle = Bundle.load(run / "model")
    inputs = find_inputs(run, bundle, 242, 242)
    assert inputs.pixels.shape == (242, 1, 8, 8) and inputs.labels.bincount().tolist() == [8, 8, 8]

    def moved(by):
        return compare(lambda x: logits(bundle, x), lambda x: logits(bundle, x) + by, inputs)

    assert not faults(moved(0.5e-4), 1e-4, rounded=False)
    assert faults(moved(2e-4), 1e-4, rounded=False).startswith("logits differ by 0.0002 on 24 images of photos")
    assert "nan" in faults(moved(float("nan")), 1e-4, rounded=False)
    tilted = moved(torch.tensor([9.0, 0, 0]))
    assert faults(tilted, 8, rounded=False) and not faults(tilted, 10, rounded=False)
    assert faults(tilted, 0.005, rounded=True).startswith("top-1 falls by")
    assert not faults(tilted, 1, rounded=True)

    def first_lost(x):  # the first image comes eleven times, and is one of 24 all the same
        answers = logits(bundle, x)
        return torch.where((x == inputs.pixels[0]).all(dim=(1, 2, 3))[:, None], -answers, answers)

    assert compare(lambda x: logits(bundle, x), first_lost, inputs)["top1_agreement"] == pytest.approx(23 / 24)


def test_rounded_answers_without_labels_are_judged_by_their_agreement():
    bundle = tiny_bundle()
    inputs = find_inputs("nowhere", bundle, 242, 1000)
    assert inputs.labels is None and inputs.name == "242 images of noise"
    figures = compare(lambda x: logits(bundle, x), lambda x: logits(bundle, x).flip(1), inputs)
    assert "top1" not in figures and faults(figures, 0.005, rounded=True).startswith("the share of other answers is")


def test_images_may_be_named_to_check_on(run, tmp_path):
    write_images(tmp_path / "others", 5, seed=3)
    (tmp_path / "others" / "ant").rename(tmp_path / "others" / "zebra")
    with pytest.raises(ValueError, match="others has class 'zebra' that the model lacks"):
        find_inputs(run, tiny_bundle(), 242, 1000, str(tmp_path / "others"))
    shutil.rmtree(tmp_path / "others" / "zebra")
    inputs = find_inputs("nowhere", tiny_bundle(), 242, 1000, str(tmp_path / "others"))
    assert inputs.name == "10 images of others, train, repeated to 242"
    assert inputs.labels[:10].tolist() == [1] * 5 + [2] * 5  # as the model counts its classes
    own = find_inputs("nowhere", tiny_bundle(), 242, 1000, tiny_set())
    assert own.name == "12 images of stripes, test, repeated to 242"
    assert torch.equal(own.pixels[:12], torch.from_numpy(tiny_set().test.images.array))


def test_own_images_that_cannot_be_reached_are_done_without_and_why_is_told(run, monkeypatch, caplog):
    def denied(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("vitreous.export.receipt.own_data", denied)  # they lie in a colleague's home, say
    assert find_inputs(run, tiny_bundle(), 242, 1000).name == "242 images of noise"
    assert caplog.messages == ["[Errno 13] Permission denied; compared on noise"]


# --- an image to check a port by ---


def read_example(folder):
    """`example.json`, its pixels as uint8 (1, C, H, W)."""
    said = json.loads((folder / "example.json").read_text())
    pixels = np.frombuffer(base64.b64decode(said["pixels"]), np.uint8).reshape(1, *said["shape"])
    return said | {"pixels": torch.from_numpy(pixels.copy())}


def write_turned(folder, mode="RGBA"):
    """Two pictures that a camera held sideways, 31 x 50 as they are seen, transparent here and there."""
    draw, exif = np.random.default_rng(0), Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    for name in CLASSES[:2]:
        (folder / name).mkdir(parents=True)
        picture = Image.fromarray(draw.integers(256, size=(31, 50, 4), dtype=np.uint8)).convert(mode)
        picture.save(folder / name / "0.png", exif=exif)
    return folder


@needs_onnx
@pytest.mark.parametrize(
    ("channels", "mode", "how", "preprocess_inside"),
    [
        (1, "RGBA", {"fit": "squash", "crop_fraction": 0.75}, False),
        (3, "RGBA", {"crop_fraction": 0.875, "interpolation": "bilinear"}, False),
        (3, "LA", {"std": (0.2, 0.3, 0.25)}, False),
        (3, "RGBA", {"crop_fraction": 0.875, "interpolation": "bilinear"}, True),
    ],
    ids=["gray of colour", "colour", "colour of gray", "inside"],
)
def test_the_example_is_a_real_image_with_what_the_graph_says_of_it(
    tmp_path, deployed, channels, mode, how, preprocess_inside
):
    import onnxruntime

    bundle = tiny_bundle(channels=channels)
    bundle = replace(bundle, temperature=1.5, preprocess=bundle.preprocess.model_copy(update=how))
    bundle.save(tmp_path / "bundle")
    data = str(write_turned(tmp_path / "photos", mode))
    folder, _ = export_run(tmp_path / "bundle", "onnx", data=data, preprocess_inside=preprocess_inside)
    said = read_example(folder)

    original = tmp_path / "photos" / "ant" / "0.png"
    assert said["image"] == "ant/0.png" and said["picture"] == "example.png"
    picture = Image.open(folder / "example.png")
    assert picture.size == (31, 50) and picture.mode == {"RGBA": "RGB", "LA": "L"}[mode] and not picture.getexif()
    metadata = onnxruntime.InferenceSession(folder / "model.onnx").get_modelmeta().custom_metadata_map
    for source in (picture, Image.open(original)):
        assert (bundle.preprocess.fit_image(source) == said["pixels"][0].numpy()).all()
        assert (deployed["pixels"](source, json.loads(metadata["preprocess"])) == said["pixels"][0].numpy()).all()

    images = said["pixels"] if preprocess_inside else bundle.preprocess.normalise(said["pixels"])
    (found,) = onnxruntime.InferenceSession(folder / "model.onnx").run(None, {"images": images.numpy()})
    np.testing.assert_allclose(found[0], said["logits"], rtol=0, atol=1e-6)
    assert said["temperature"] == 1.5 == float(metadata["temperature"])
    p = np.exp(found[0] / 1.5)
    np.testing.assert_allclose(p / p.sum(), said["probabilities"], rtol=1e-5)
    (answer,) = predict(bundle, original, device="cpu", precision="float32")
    assert said["class"] == CLASSES[found[0].argmax()] == answer.classes[0]


def test_pt2_has_its_example_and_one_of_before_goes_where_the_inputs_are_noise(vitreous, run, tmp_path):
    folder = tmp_path / "new"
    assert "example.json and example.png: one of your images" in vitreous("export", run, "pt2", "--out", folder)[1]
    said, bundle = read_example(folder), Bundle.load(run / "model")
    model = torch.export.load(folder / "model.pt2").module()
    with torch.no_grad():
        found = model(bundle.preprocess.normalise(said["pixels"]))
    torch.testing.assert_close(found, torch.tensor([said["logits"]]), rtol=0, atol=1e-6)
    assert said["class"] == Path(said["image"]).parent.name
    assert (np.asarray(Image.open(folder / "example.png")) == said["pixels"][0, 0].numpy()).all()

    bundle.save(tmp_path / "bundle")  # which knows of no images
    code, out, _ = vitreous("export", tmp_path / "bundle", "pt2", "--out", folder)
    assert code == 0 and "no example.json to check a port by, as it was compared on noise: name images" in out
    assert {file.name for file in folder.iterdir()} == {"model.pt2", "parity.json"}
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "example.json").write_text("theirs")
    with pytest.raises(ValueError, match=r"theirs holds another example\.json, which stays as it is"):
        export_run(tmp_path / "bundle", "pt2", out=tmp_path / "theirs")
    assert (tmp_path / "theirs" / "example.json").read_text() == "theirs"


def test_a_picture_too_large_to_keep_is_named_alone(tmp_path, monkeypatch):
    bundle = tiny_bundle()
    inputs = find_inputs("nowhere", bundle, 2, 2, str(write_turned(tmp_path / "photos")))
    for limit, kept in ((31 * 50 * 3, True), (31 * 50 * 3 - 1, False)):
        folder = tmp_path / str(limit)
        folder.mkdir()
        monkeypatch.setattr(example, "LARGEST", limit)
        example.write_example(folder, bundle, lambda pixels: logits(bundle, pixels), inputs)
        assert read_example(folder)["picture"] == ("example.png" if kept else None)
        assert (folder / "example.png").exists() is kept


# --- layouts of others ---

REWORDED = {
    "as it is": {"pool": "cls"},
    "linear patches, rectangular": {
        "pool": "cls", "patch_embedding": "linear", "patch_size": (4, 2), "image_size": (8, 12), "channels": 3,
    },
    "no biases": {"pool": "cls", "bias": False},
    "no qkv biases": {"pool": "cls", "qkv_bias": False},
    "fixed positions": {"pool": "cls", "positions": "sincos"},
    "fixed positions by row and column": {"pool": "cls", "positions": "sincos2d"},
    "class token without position": {"pool": "cls", "position_tokens": "patches"},
    "norm after the class token": {"pool": "cls", "norm_after_pool": True},
    "tanh gelu, odd width of the MLP": {"pool": "cls", "gelu": "tanh", "mlp_ratio": 2.7},
}  # fmt: skip
TIMM_ONLY = {
    "mean": {"pool": "mean"},
    "mean, norm after, registers": {"pool": "mean", "norm_after_pool": True, "registers": 2},
    "registers without positions": {"pool": "cls", "registers": 2, "layer_scale": 0.3},
    "registers with positions": {"pool": "cls", "registers": 2, "position_tokens": "all", "qk_norm": True},
}
HUGGINGFACE_ONLY = {
    "DINOv2": {"pool": "cls_mean", "layer_scale": 0.3},
    "DINOv2 without LayerScale": {"pool": "cls_mean"},
    "DINOv2, registers": {"pool": "cls_mean", "layer_scale": 0.3, "registers": 3},
    "DINOv2, registers with positions": {"pool": "cls_mean", "registers": 3, "position_tokens": "all"},
    "another epsilon": {"pool": "cls", "norm_eps": 1e-3},
}
LAYOUTS = [(write_timm, name, model) for name, model in (REWORDED | TIMM_ONLY).items()]
LAYOUTS += [(write_huggingface, name, model) for name, model in (REWORDED | HUGGINGFACE_ONLY).items()]


def scrambled(**model):
    """A bundle all of whose weights are random, so that a forgotten one shows."""
    bundle = tiny_bundle(depth=2, **model)
    torch.manual_seed(5)
    for parameter in bundle.model.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    config = bundle.model.config
    fields = bundle.preprocess.model_dump() | {"image_size": config.image_size, "fit": "squash"}
    return Bundle(bundle.model, Preprocess(**fields), bundle.class_names)


@pytest.mark.parametrize(("write", "name", "model"), LAYOUTS, ids=[f"{w.__name__}: {n}" for w, n, _ in LAYOUTS])
def test_a_layout_of_others_is_the_same_function_in_other_words(tmp_path, write, name, model):
    bundle = scrambled(**model)
    answer = write(bundle, tmp_path)
    pixels = noise(bundle, 5)
    with torch.no_grad():
        torch.testing.assert_close(answer(pixels), logits(bundle, pixels), rtol=0, atol=5e-6)


@pytest.mark.parametrize(
    ("write", "model", "parts"),
    [
        (write_timm, {"positions": "rope"}, "timm's ViT has no rotary positions"),
        (write_huggingface, {"positions": "rope"}, "Hugging Face's ViT has no rotary positions"),
        (write_timm, {"norm": "rmsnorm", "pool": "attention"}, "no RMSNorm, no attention pooling"),
        (write_huggingface, {"norm": "rmsnorm"}, "no RMSNorm"),
        (write_timm, {"patch_embedding": "conv_stem", "stem_channels": (4,)}, "no convolutional stem"),
        (write_huggingface, {"patch_embedding": "conv_stem", "stem_channels": (4,)}, "no convolutional stem"),
        (write_timm, {"mlp_conv": True}, "no convolution in the MLP"),
        (write_huggingface, {"mlp_conv": True}, "no convolution in the MLP"),
        (write_huggingface, {"qk_norm": True}, "no normalised queries and keys"),
        (write_huggingface, {"pool": "mean"}, "no mean pooling"),
        (write_huggingface, {"layer_scale": 0.1, "registers": 1}, "no LayerScale, no registers"),
        (write_huggingface, {"pool": "cls_mean", "mlp_ratio": 2.5}, "no MLP 2.5 times as wide as a token"),
        (write_huggingface, {"pool": "cls_mean", "image_size": (8, 12)}, "no rectangular images with class token and"),
        (write_timm, {"norm_eps": 1e-5}, "no LayerNorm with an epsilon of 1e-05"),
        (write_timm, {"pool": "cls_mean"}, "no head that reads the class token and the mean"),
        (write_timm, {"head_hidden": 4}, "no hidden layer in the head"),
    ],
)
def test_what_a_layout_has_no_words_for_is_refused_by_its_name(tmp_path, write, model, parts):
    with pytest.raises(ValueError, match=f"{parts}.*: export onnx or pt2, which hold any model$"):
        write(tiny_bundle(**model), tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_model_of_one_class_is_refused_by_layouts_and_goes_into_a_graph(tmp_path):
    bundle = tiny_bundle(classes=("only",), pool="cls")
    for form in ("timm", "huggingface"):
        refused = (
            r"'s ViT has no head of one class \(one output is a number to it\): export onnx or pt2, which hold any"
        )
        with pytest.raises(ValueError, match=refused):
            export_run(bundle, form, out=tmp_path / "new")
    assert not (tmp_path / "new").exists()
    assert export_run(bundle, "pt2", out=tmp_path / "new")[1]["max_abs_difference"] <= 1e-4


@pytest.mark.parametrize(("form", "library"), [("timm", "timm"), ("huggingface", "transformers")])
@pytest.mark.parametrize("temperature", [1.0, 1.7])
def test_the_temperature_goes_there_and_comes_back(vitreous, tmp_path, form, library, temperature):
    bundle = replace(tiny_bundle(pool="cls"), temperature=temperature)
    bundle.save(tmp_path / "bundle")
    code, out, _ = vitreous("export", tmp_path / "bundle", form, "--out", tmp_path / "theirs")
    line = f"{library} applies no temperature: divide its logits by 1.7 for the probabilities of predict\n"
    assert code == 0 and (line in out) == (temperature != 1)
    config = json.loads((tmp_path / "theirs" / "config.json").read_text())
    assert ("calibration_temperature" in config) == (temperature != 1)
    back, _ = load_weights(tmp_path / "theirs")
    image = noise(bundle, 1)[0]
    (ours,), (theirs,) = (predict(model, image, device="cpu", precision="float32") for model in (bundle, back))
    assert ours.classes == theirs.classes and ours.probabilities == pytest.approx(theirs.probabilities, abs=1e-6)


@pytest.mark.parametrize(("channels", "named"), [(1, False), (3, True), (5, False)])
def test_timm_is_told_of_the_first_layer_where_it_may_adapt_it(tmp_path, channels, named):
    """Of other channels than three, older versions draw the layer that they are told of anew."""
    bundle = tiny_bundle(pool="cls", channels=channels)
    bundle.save(tmp_path / "model")
    export_run(tmp_path / "model", "timm", out=tmp_path / "new")
    said = json.loads((tmp_path / "new" / "config.json").read_text())["pretrained_cfg"]
    assert ("first_conv" in said) == named


@pytest.mark.parametrize(
    ("form", "channels", "told"), [("huggingface", 1, True), ("huggingface", 3, False), ("timm", 1, False)]
)
def test_the_command_says_that_transformers_turns_no_picture_gray(vitreous, tmp_path, form, channels, told):
    tiny_bundle(pool="cls", channels=channels).save(tmp_path / "bundle")
    code, out, _ = vitreous("export", tmp_path / "bundle", form)
    assert code == 0 and ("transformers turns no picture gray: give its processor images of mode L" in out) == told


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize(
    ("fit", "size", "fraction"),
    [("crop", 224, 0.875), ("crop", 8, 1.0), ("squash", (8, 12), 1.0), ("squash", 80, 0.8), ("squash", (32, 48), 0.75)],
)
def test_the_preprocessing_of_others_comes_back_as_ours(fit, size, fraction, interpolation):
    ours = Preprocess(
        image_size=size, mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6), fit=fit, crop_fraction=fraction,
        interpolation=interpolation,
    )  # fmt: skip
    assert read_preprocessing(json.loads(json.dumps(preprocessing_of(ours)))) == ours


def test_large_images_are_compared_a_few_at_a_time():
    pixels, seen = torch.zeros(2 * sum(BATCHES), 1, 2, 2, dtype=torch.uint8), []

    def answer(batch):
        seen.append(len(batch))
        return torch.ones(len(batch), 3)

    figures = compare(answer, answer, Inputs(pixels, None, "zeros"), most=5)
    assert figures["batches"][:4] == [1, 2, 5, 5] and max(seen) == 5 and sum(figures["batches"]) == len(pixels)


def test_an_export_is_compared_in_batches_that_the_model_is_evaluated_in(run, tmp_path, monkeypatch):
    monkeypatch.setattr(deploy, "eval_batch_size", lambda config: 9)
    _, receipt = export_run(run, "pt2", out=tmp_path / "pt2")
    assert receipt["batches"][:5] == [1, 2, 7, 9, 9] and max(receipt["batches"]) == 9


def test_a_rectangle_cut_out_of_what_covers_it_is_beyond_hugging_face(tmp_path):
    bundle = scrambled(image_size=(8, 12))
    cut = Bundle(bundle.model, bundle.preprocess.model_copy(update={"fit": "crop"}), CLASSES)
    with pytest.raises(ValueError, match="cannot crop to 8 x 12 what covers it: export onnx or pt2"):
        write_huggingface(cut, tmp_path)
    pixels = noise(cut, 2)
    with torch.no_grad():
        torch.testing.assert_close(write_timm(cut, tmp_path)(pixels), logits(cut, pixels), rtol=0, atol=5e-6)


# --- the command ---


def test_the_command_says_where_it_wrote_and_how_far_it_differs(vitreous, run):
    (run / "export" / "timm" / ".tmp_of_a_killed_one").mkdir(parents=True)
    code, out, err = vitreous("export", run, "timm")
    assert (code, err) == (0, "")
    assert out.startswith(f"{run / 'export' / 'timm'}: config.json, model.safetensors, parity.json\n")
    assert "logits differ by 0 at most, 100.00% of the answers are the same" in out
    receipt = json.loads((run / "export" / "timm" / "parity.json").read_text())
    assert receipt["format"] == "timm" and receipt["max_abs_difference"] == 0


def test_the_command_checks_on_the_images_that_are_named(vitreous, run, tmp_path, monkeypatch):
    write_images(tmp_path / "others", 5, seed=3)
    code, out, _ = vitreous("export", run, "timm", "--data", tmp_path / "others", "--out", tmp_path / "timm")
    assert code == 0 and "15 images of others, train, repeated to 242: logits differ" in out
    monkeypatch.setattr("vitreous.export.deploy.compare", lambda *_: pytest.fail("the DATA was looked for too late"))
    code, _, err = vitreous("export", run, "timm", "--data", tmp_path / "nowhere")
    assert code == 2 and "nowhere" in err


@needs_onnx
def test_the_command_says_that_int8_was_judged_on_noise(vitreous, tmp_path, monkeypatch):
    monkeypatch.setitem(deploy.GRAPHS, "int8", lambda bundle, *_: lambda pixels: logits(bundle, pixels))
    tiny_bundle().save(tmp_path / "model")
    told = "what rounding costs in top-1 was not measured"
    code, out, _ = vitreous("export", tmp_path / "model", "int8", "--tolerance", "1")
    assert code == 0 and "242 images of noise" in out and told in out
    write_images(tmp_path / "others", 5, seed=3)
    code, out, _ = vitreous("export", tmp_path / "model", "int8", "--tolerance", "1", "--data", tmp_path / "others")
    assert code == 0 and "images of others" in out and told not in out


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["coreml"], "unknown format 'coreml': use onnx, pt2, int8, timm, huggingface"),
        (["timm", "--preprocess-inside"], "timm holds weights and no graph to preprocess in: leave out"),
        (["timm", "--tolerance", "-1"], "tolerance is -1.0: it must be at least 0"),
    ],
)
def test_bad_requests_are_one_line(vitreous, run, arguments, error):
    code, out, err = vitreous("export", run, *arguments)
    assert (code, out) == (2, "") and err.startswith(f"vitreous: {error}") and err.count("\n") == 1


def test_a_file_is_not_overwritten_by_a_folder(vitreous, run, tmp_path):
    (tmp_path / "x").write_text("")
    code, _, err = vitreous("export", run, "timm", "--out", tmp_path / "x")
    assert code == 2 and err.endswith("x is a file: name a folder with --out\n")


def test_no_export_takes_the_place_of_a_model(tmp_path):
    tiny_bundle().save(tmp_path / "bundle")
    before = (tmp_path / "bundle" / "config.json").read_bytes()
    with pytest.raises(ValueError, match="bundle holds a trained model, whose files stay as they are"):
        export_run(tmp_path / "bundle", "timm", out=tmp_path / "bundle")
    assert (tmp_path / "bundle" / "config.json").read_bytes() == before
    for _ in range(2):  # over an export of before
        export_run(tmp_path / "bundle", "huggingface", out=tmp_path / "new")
    (tmp_path / "new" / "parity.json").unlink()  # so that it is as if it came from elsewhere
    with pytest.raises(ValueError, match=r"new holds another config\.json, which stays as it is: name another folder"):
        export_run(tmp_path / "bundle", "huggingface", out=tmp_path / "new")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_model_is_exported_as_the_model_itself(tmp_path):
    bundle = tiny_bundle()
    compiled = replace(bundle, model=torch.compile(bundle.model))
    assert export_run(compiled, "timm", out=tmp_path / "timm")[1]["sha256"] == bundle.digest()


def test_weights_beside_an_earlier_larger_graph_do_not_outlive_it(tmp_path):
    folder, _ = export_run(tiny_bundle(), "pt2", out=tmp_path / "new")
    (folder / "model.onnx.data").write_text("of before")
    export_run(tiny_bundle(), "pt2", out=folder)
    assert (folder / "model.pt2").exists() and not (folder / "model.onnx.data").exists()


def test_an_export_in_another_format_or_of_others_stays(tmp_path, monkeypatch):
    tiny_bundle().save(tmp_path / "bundle")
    export_run(tmp_path / "bundle", "timm", out=tmp_path / "new")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "config.json").write_text("theirs")
    for folder in (tmp_path / "new", tmp_path / "theirs"):
        before = {file.name: file.read_bytes() for file in folder.iterdir()}
        with monkeypatch.context() as patch:
            patch.setattr(deploy, "find_inputs", lambda *_: pytest.fail("the place was looked at too late"))
            with pytest.raises(ValueError, match=rf"{folder.name} holds another config\.json, which stays as it is"):
                export_run(tmp_path / "bundle", "huggingface", out=folder)
        assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    export_run(tmp_path / "bundle", "pt2", out=tmp_path / "theirs")  # beside which none of its files lies
    assert (tmp_path / "theirs" / "config.json").read_text() == "theirs"


def test_a_file_that_the_system_refuses_is_an_error_of_the_system(tmp_path):
    tiny_bundle().save(tmp_path / "bundle")
    code = "import resource; from vitreous.export import export_run; "
    code += "resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000)); export_run('bundle', 'pt2', out='new')"
    command = (sys.executable, "-c", code)  # which a writer of torch's own would end
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and done.stderr.endswith("OSError: [Errno 27] File too large\n")
    assert not (tmp_path / "new").exists()


def test_a_missing_package_is_named_with_its_way_in(vitreous, run, monkeypatch):
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "onnxscript" else 1)
    code, _, err = vitreous("export", run, "onnx")
    assert (code, err) == (2, f'vitreous: onnx needs onnxscript: {sys.executable} -m pip install "vitreous[export]"\n')


def test_a_shipped_model_needs_a_place_to_go(vitreous, tmp_path, monkeypatch):
    from vitreous.weights import bundle as bundle_module

    tiny_bundle().save(tmp_path / "models" / "digits")
    monkeypatch.setattr(bundle_module, "SHIPPED", tmp_path / "models")
    monkeypatch.chdir(tmp_path)
    for name in ("digits", "models/digits"):
        code, _, err = vitreous("export", name, "timm")
        assert code == 2 and f"{name} is a shipped model and has no run folder here: name a folder with --out" in err
    assert vitreous("export", "digits", "timm", "--out", "here")[0] == 0
    assert (tmp_path / "here" / "parity.json").is_file()


# --- push ---

SHARED = [
    "README.md",
    "config.json",
    "data.json",
    "environment.json",
    "model.safetensors",
    "recipe.yaml",
    "results.json",
]


@pytest.fixture
def hub(monkeypatch):
    """In place of the calls that reach the network: what was asked of them."""
    import huggingface_hub

    calls = []

    def create_repo(self, repo_id, *, private, exist_ok):
        calls.append(("create", repo_id, private, exist_ok))

    def upload_folder(self, *, repo_id, folder_path, commit_message):
        calls.append(("upload", repo_id, {file.name: file.read_bytes() for file in folder_path.iterdir()}))

    def repo_info(self, repo_id):
        files, library = there.get(repo_id, ([".gitattributes"], None))
        card_data = SimpleNamespace(library_name=library) if "README.md" in files else None
        siblings = [SimpleNamespace(rfilename=name) for name in files]
        return SimpleNamespace(private=repo_id != "me/public", siblings=siblings, card_data=card_data)

    there = {
        "me/bert": (["README.md", "config.json", "model.safetensors"], "transformers"),
        "me/bare": (["config.json"], None),
        "me/weights": (["README.md", "model.safetensors"], None),
        "me/flow": (["README.md", "saved_model.pb"], "keras"),
        "me/before": (["README.md", "config.json"], "vitreous"),
        "me/licence": (["README.md"], None),
    }

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", create_repo)
    monkeypatch.setattr(huggingface_hub.HfApi, "repo_info", repo_info)
    monkeypatch.setattr(huggingface_hub.HfApi, "upload_folder", upload_folder)
    return calls


def test_push_uploads_the_model_with_its_record_and_card(vitreous, run, hub):
    code, out, err = vitreous("push", run, "me/stripes")
    assert (code, err) == (0, "") and out.endswith("uploaded to me/stripes\n")
    assert hub[0] == ("create", "me/stripes", None, True) and hub[1][:2] == ("upload", "me/stripes") and len(hub) == 2
    files = hub[1][2]
    assert sorted(files) == SHARED
    assert files["model.safetensors"] == (run / "model" / "model.safetensors").read_bytes()
    card, results = files["README.md"].decode(), json.loads((run / "results.json").read_text())
    assert card.startswith("---\nlibrary_name: vitreous\npipeline_tag: image-classification\n")
    assert f"Test top-1: **{results['test']['top1']:.2%}**." in card and "| | as trained, in " in card
    assert f"\n| calibration error | {results['test']['ece']:.2%} |" in card
    assert "hf download me/stripes --local-dir stripes\nvitreous predict stripes photo.jpg\n" in card
    assert "vitreous train DATA --recipe stripes/recipe.yaml" in card and "- epochs: 40" in card and "## Limits" in card
    assert "None" not in card and "nan" not in card


def test_push_makes_a_private_repository_where_that_is_asked_for(vitreous, run, hub):
    assert vitreous("push", run, "me/stripes", "--private")[0] == 0
    assert [call[0] for call in hub] == ["create", "upload"] and hub[0] == ("create", "me/stripes", True, True)
    code, _, err = vitreous("push", run, "me/public", "--private")
    assert code == 2 and "me/public is there already and is public: make it private on the Hub" in err
    assert [call[0] for call in hub[2:]] == ["create"]


def test_push_takes_the_place_of_no_other_model(vitreous, run, hub):
    refused = ("me/bert", "me/bare", "me/weights", "me/flow")
    for repo in refused:
        code, out, err = vitreous("push", run, repo)
        said = f"vitreous: {repo} holds another model, which stays as it is: name another repository\n"
        assert (code, out, err) == (2, "", said)
    assert [call[0] for call in hub] == ["create"] * len(refused)
    for repo in ("me/before", "me/licence"):
        assert vitreous("push", run, repo)[0] == 0 and hub[-1][:2] == ("upload", repo)


def test_broken_images_that_the_run_left_out_are_left_out_here(tmp_path):
    write_images(tmp_path / "photos" / "train", 12)
    write_images(tmp_path / "photos" / "test", 3, seed=1)
    (tmp_path / "photos" / "test" / "ant" / "bad.png").write_text("no picture")
    recipe = tiny_recipe(epochs=1, data={"source": str(tmp_path / "photos"), "skip_broken": True})
    run = fit(recipe, out=tmp_path / "run", device="cpu", pictures=False, console=Console(quiet=True))
    inputs = find_inputs(run.folder, run.bundle, 5, 100)
    assert inputs.name == "9 images of photos, test" and len(inputs.labels) == len(inputs.pixels) == 9
    assert look(run.folder, out=tmp_path / "look", device="cpu")["images"] == 9


def test_broken_images_of_other_data_are_left_out_of_a_sample(tmp_path, caplog):
    photos = write_images(tmp_path / "photos", 4)
    (photos / "ant" / "bad.png").write_text("no picture")
    bundle = tiny_bundle()
    assert "12 images" in find_inputs(bundle, bundle, 5, 100, photos).name
    assert look(bundle, photos, out=tmp_path / "look", device="cpu")["images"] == 12
    assert caplog.text.count("ant/bad.png") == 2


def test_what_is_no_run_of_ones_own_is_not_pushed(vitreous, run, hub, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / "results.json").write_text('{"test": null}')
    code, _, err = vitreous("push", tmp_path / "run", "me/stripes")
    assert code == 2 and "run is no whole record of a run, it lacks 'val': push another run\n" in err
    code, _, err = vitreous("push", "cifar10", "me/stripes")
    assert code == 2 and err == "vitreous: cifar10 is a shipped model, and those are not pushed: name your own run\n"
    code, _, err = vitreous("push", os.path.relpath(SHIPPED / "cifar10"), "owner/name", "--dry-run")
    assert code == 2 and err.endswith("cifar10 is a shipped model, and those are not pushed: name your own run\n")
    assert not hub


def test_nothing_of_the_machine_is_pushed(vitreous, run, hub):
    vitreous("push", run, "me/stripes")
    assert not [name for name, content in hub[1][2].items() if str(run.parent).encode() in content]
    assert "command" not in json.loads(hub[1][2]["environment.json"])


def test_nothing_of_the_machine_is_pushed_of_a_run_whose_data_was_given(tmp_path):
    """Nor the name of a test image that is a copy."""
    write_images(tmp_path / "photos", 8)
    shutil.copytree(tmp_path / "photos" / "ant", tmp_path / "photos" / "test" / "ant")
    options = {"pictures": False, "console": Console(quiet=True)}
    run = fit(tiny_recipe(epochs=1), load(tmp_path / "photos"), out=tmp_path / "run", **options)
    assert str(tmp_path) in run.results["caution"]
    write_shared(run.folder, tmp_path / "shared", run.results)
    assert not [path for path in (tmp_path / "shared").iterdir() if str(tmp_path).encode() in path.read_bytes()]
    assert "trained from scratch on 18 of its images and nothing else" in (tmp_path / "shared/README.md").read_text()


def test_a_card_tells_the_column_of_labels_and_not_where_the_table_lay(tmp_path):
    files = sorted(write_images(tmp_path / "photos", 8).rglob("*.png"))
    rows = [f"{file.relative_to(tmp_path)},{file.parent.name},9" for file in files]
    (tmp_path / "animals.csv").write_text("\n".join(["file,kind,age", *rows]))
    options = {"pictures": False, "console": Console(quiet=True)}
    run = fit(tiny_recipe(epochs=1), load(f"{tmp_path / 'animals.csv'}:kind"), out=tmp_path / "run", **options)
    write_shared(run.folder, tmp_path / "shared", run.results)
    text = (tmp_path / "shared" / "README.md").read_text()
    assert "vitreous evaluate shared DATA:kind\n" in text and "vitreous train DATA:kind --recipe " in text
    assert str(tmp_path) not in text and "of animals apart" in text
    data = json.loads((run.folder / "data.json").read_text())
    (run.folder / "data.json").write_text(json.dumps(data | {"label": "of a kind"}))
    write_shared(run.folder, tmp_path / "shared", run.results)
    text = (tmp_path / "shared" / "README.md").read_text()
    assert "evaluate shared 'DATA:of a kind'\n" in text and "vitreous train 'DATA:of a kind' --recipe " in text


def test_a_card_treats_a_name_under_vitreous_data_like_a_path(tmp_path, monkeypatch):
    write_images(tmp_path / "pets", 8)
    monkeypatch.setenv("VITREOUS_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path / "pets")
    recipe = tiny_recipe(epochs=1, data={"source": "pets"})
    run = fit(recipe, out=tmp_path / "run", device="cpu", pictures=False, console=Console(quiet=True))
    write_shared(run.folder, tmp_path / "shared", run.results)
    text = (tmp_path / "shared" / "README.md").read_text()
    assert "vitreous evaluate shared DATA\n" in text and "vitreous train DATA --recipe models/shared/" in text
    assert (
        "\npets, a set of its own.\n" in text and read_recipe(str(tmp_path / "shared/recipe.yaml")).data.source is None
    )


def test_a_card_names_no_setting_of_what_was_off(run, tmp_path):
    write_shared(run, tmp_path, json.loads((run / "results.json").read_text()))
    for mixup, told in ((0.8, "- augment: mixup 0.8, mix_probability 0.5\n"), (0.0, "- augment: as by default\n")):
        augment = {"mixup": mixup, "mix_probability": 0.5}
        (tmp_path / "recipe.yaml").write_text(tiny_recipe(augment=augment).dump())
        assert told in card(tmp_path)


def test_a_card_shows_names_of_classes_as_they_are(run, tmp_path):
    results = json.loads((run / "results.json").read_text())
    write_shared(run, tmp_path, results)
    config = json.loads((tmp_path / "config.json").read_text())
    config["class_names"] = ["fire_truck (red), e.g.", "*a*\n# <b>", "_x_ [y](z) `&amp;"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    line = r"- answers with: fire_truck (red), e.g., \*a\* # \<b\>, \_x\_ \[y\](z) \`\&amp;"
    assert line in card(tmp_path).splitlines()


def test_a_card_tells_of_a_temperature_and_that_groups_widen_the_interval(run, tmp_path):
    results = json.loads((run / "results.json").read_text())
    write_shared(run, tmp_path, results)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"temperature": 1.25}))
    said = "are calibrated on the validation images alone (temperature 1.250)."
    assert said in card(tmp_path) and "No temperature is applied" not in card(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config | {"temperature": 1.0}))
    assert said not in card(tmp_path) and "No temperature is applied to its probabilities." in card(tmp_path)
    assert "by the number of test images: " in card(tmp_path)
    grouped = results | {"test": results["test"] | {"groups": 6, "wrong_groups": 0, "effective_count": 8.0}}
    (tmp_path / "results.json").write_text(json.dumps(grouped))
    assert "by the groups of test images: " in card(tmp_path)


def test_a_run_that_held_nothing_out_is_pushed_and_its_card_claims_no_figure(vitreous, tmp_path):
    recipe = tiny_recipe(epochs=1, data={"val_fraction": 0})
    fit(recipe, replace(tiny_set(), test=None), out=tmp_path / "run", pictures=False, console=Console(quiet=True))
    code, out, err = vitreous("push", tmp_path / "run", "me/stripes", "--dry-run")
    assert (code, err) == (0, "") and "top-1" not in out and "None" not in out
    assert "There were neither test nor validation images: how good it is has not been measured.\n" in out
    assert "There were no validation images: the weights are those after 1.0 passes.\n" in out


def test_a_dry_run_shows_files_and_card_and_touches_no_network(vitreous, run, hub):
    code, out, err = vitreous("push", run, "me/stripes", "--dry-run")
    assert (code, err, hub) == (0, "", [])
    assert [line.split()[-1] for line in out.splitlines()[:7]] == SHARED and "# stripes\n" in out


def test_a_failed_upload_is_one_line_with_the_way_out(vitreous, run, hub, monkeypatch):
    import huggingface_hub

    def refuse(self, **_):
        raise OSError("401 Client Error\nmore")

    monkeypatch.setattr(huggingface_hub.HfApi, "upload_folder", refuse)
    code, _, err = vitreous("push", run, "me/stripes")
    assert code == 2 and err == (
        "vitreous: cannot upload to me/stripes (401 Client Error): log in with 'hf auth login', or see the files with "
        "--dry-run\n"
    )
    code, _, err = vitreous("push", run, "stripes")
    assert (code, err) == (2, "vitreous: 'stripes' is not a repository of the Hub: write owner/name\n")
    code, _, err = vitreous("push", run / "model", "me/stripes")
    assert code == 2 and err.endswith("is not a finished run, as it has no results.json: train it to the end\n")


def test_weights_of_others_are_exported_by_their_own_name(vitreous, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_timm(scrambled(pool="cls"), tmp_path / "theirs")
    code, _, err = vitreous("export", "theirs", "huggingface")
    assert (code, err) == (2, "vitreous: the model has no run folder here: name a folder with --out\n")
    assert vitreous("export", "theirs", "huggingface", "--out", "ours")[0] == 0
    both = [load_weights(folder)[0] for folder in ("theirs", "ours")]
    assert torch.equal(*(logits(bundle, noise(bundle, 3)) for bundle in both))


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("export hf:owner/name coreml", "unknown format 'coreml': use onnx, "),
        ("walk hf:owner/name cat.jpg --out cat.jpg", "cat.jpg does not end in .html"),
    ],
)
def test_nothing_is_fetched_for_what_will_be_refused(vitreous, monkeypatch, command, said):
    monkeypatch.setattr("vitreous.weights.load.load_weights", lambda *_, **__: pytest.fail("fetched"))
    code, _, err = vitreous(*command.split())
    assert code == 2 and err.startswith(f"vitreous: {said}")


def test_a_bundle_without_a_folder_is_exported_to_one_that_is_named(tmp_path):
    bundle = tiny_bundle(dropout=0.5)
    bundle.model.train()
    folder, receipt = export_run(bundle, "pt2", out=tmp_path / "pt2")
    assert receipt["sha256"] == bundle.digest() and receipt["max_abs_difference"] < 1e-4 and bundle.model.training
    pixels, answer = noise(bundle, 3), torch.export.load(folder / "model.pt2").module()
    with torch.no_grad():
        given = bundle.model.eval()(bundle.preprocess.normalise(pixels))
        torch.testing.assert_close(answer(bundle.preprocess.normalise(pixels)), given, rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match=r"^the model has no run folder here: name a folder with --out$"):
        export_run(bundle, "timm")
    with pytest.raises(TypeError, match=r"^a Bundle has no folder: save it, bundle\.save\('FOLDER'\), and give that$"):
        push_run(bundle, "owner/name")
