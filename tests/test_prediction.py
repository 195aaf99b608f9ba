"""Answers: one for each image, in order, the same in any batch; what cannot be read is named."""

import csv
import gc
import io
import json
import threading
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tiny import CLASSES, UNREADABLE, stripes, tiny_bundle, tiny_recipe, tiny_set, write_images

from vitreous import prediction
from vitreous.data.images import ImageSet, Split
from vitreous.data.loaders import Batches
from vitreous.data.stores import BrokenImage, FileImages
from vitreous.explain import explain
from vitreous.model import ViTConfig
from vitreous.prediction import (
    Prediction,
    eval_batch_size,
    evaluating,
    forward,
    image_files,
    predict,
    read_image,
    split_logits,
    write_json_lines,
    write_table,
    write_text,
)

PREDICTIONS = [Prediction("a.png", ("ant", "bee"), (0.75, 0.25)), Prediction("b, c.png", ("bee", "ant"), (0.9, 0.1))]


@pytest.fixture
def bundle():
    return tiny_bundle()


@pytest.fixture
def files(tmp_path):
    return sorted(write_images(tmp_path / "photos", 5).rglob("*.png"))


def ask(bundle, images, **options):
    return list(predict(bundle, images, precision="float32", device="cpu", **options))


def expected_of(bundle, files):
    """Probabilities the long way round: (N, K)."""
    pixels = np.stack([np.asarray(Image.open(file))[None] for file in files])
    images = (torch.from_numpy(pixels).float() / 255 - 0.4) / 0.2
    with torch.no_grad():
        return bundle.model(images).softmax(1)


def test_answers_are_the_models_in_the_order_of_the_images(bundle, files):
    order = [files[i] for i in (7, 2, 11, 0, 14, 3)]
    found = ask(bundle, order)
    assert [answer.image for answer in found] == list(map(str, order))
    for answer, shares in zip(found, expected_of(bundle, order), strict=True):
        assert list(answer.probabilities) == pytest.approx(shares.sort(descending=True).values.tolist(), abs=1e-5)
        assert answer.classes == tuple(CLASSES[i] for i in shares.argsort(descending=True))
        assert sum(answer.probabilities) == pytest.approx(1, abs=1e-6)
    assert len({answer.probabilities for answer in found}) == 6  # else the order would not show


def test_of_equal_classes_the_first_is_the_answer_as_when_it_is_judged(files):
    bundle = tiny_bundle(classes=tuple(f"{k:02}" for k in range(40)))
    with torch.no_grad():
        bundle.model.head.weight.zero_()
        bundle.model.head.bias.copy_((torch.arange(40) % 7 == 3).float())  # six are alike
    (answer,) = ask(bundle, files[0], top=6)
    assert answer.classes == ("03", "10", "17", "24", "31", "38")


def test_images_without_a_name_are_numbered(bundle):
    pixels = list(stripes(4)[0][:, 0])
    broken: list[BrokenImage] = []
    found = ask(bundle, [pixels[0], pixels[1][:0], b"no image", pixels[3]], broken=broken)
    assert [answer.image for answer in found] == ["image 0", "image 3"]
    assert [str(error).partition(":")[0] for error in broken] == ["image 1", "image 2"]
    with pytest.raises(BrokenImage, match=r"^image 1: "):
        ask(bundle, [*pixels[:1], b"no image"])


def test_the_bytes_of_a_file_and_its_picture_are_answered_as_the_file(bundle, files):
    from_files = ask(bundle, files[:3])
    for asked in ([file.read_bytes() for file in files[:3]], list(map(Image.open, files[:3]))):
        assert [answer[1:] for answer in ask(bundle, asked)] == [answer[1:] for answer in from_files]
    broken = []
    assert ask(bundle, b"no image", broken=broken) == []
    assert list(map(str, broken)) == [f"the image: {UNREADABLE}"]


def test_probabilities_are_those_at_the_bundles_temperature(bundle, files):
    images = np.stack([np.asarray(Image.open(file))[None] for file in files])
    with torch.no_grad():
        logits = bundle.model((torch.from_numpy(images).float() / 255 - 0.4) / 0.2)
    plain, scaled = ask(bundle, files), ask(replace(bundle, temperature=2.0), files)
    for before, after, row in zip(plain, scaled, logits, strict=True):
        assert after.classes == before.classes
        assert after.probabilities == pytest.approx(
            (row / 2).softmax(0).sort(descending=True).values.tolist(), abs=1e-5
        )
        assert after.probabilities[0] < before.probabilities[0]


@pytest.mark.parametrize("batch_size", [1, 4, 5, 15, 64])
def test_the_batch_size_does_not_matter(bundle, files, batch_size):
    expected, found = ask(bundle, files, batch_size=7), ask(bundle, files, batch_size=batch_size)
    assert [(a.image, a.classes) for a in found] == [(a.image, a.classes) for a in expected]
    np.testing.assert_allclose([a.probabilities for a in found], [a.probabilities for a in expected], atol=1e-6)


def test_images_are_asked_in_batches_of_the_size_that_is_given(bundle, files, monkeypatch):
    asked, whole = [], prediction.forward
    monkeypatch.setattr(prediction, "forward", lambda *args: asked.append(len(args[1])) or whole(*args))
    ask(bundle, files, batch_size=7)
    assert asked == [7, 7, 1]


@pytest.mark.parametrize(("top", "count"), [(1, 1), (2, 2), (3, 3), (50, 3)])
def test_top_says_how_many_classes(bundle, files, top, count):
    whole = ask(bundle, files[:2], top=3)
    for answer, full in zip(ask(bundle, files[:2], top=top), whole, strict=True):
        assert answer.classes == full.classes[:count] and len(answer.probabilities) == count


def test_five_classes_are_told_where_nobody_says_how_many(files):
    bundle = tiny_bundle(classes=tuple("abcdefg"))
    (answer,), (whole,) = ask(bundle, files[0]), ask(bundle, files[0], top=7)
    assert answer.classes == whole.classes[:5] and len(set(answer.classes)) == 5
    (explained,) = explain(bundle, files[0], device="cpu")
    assert explained.classes == answer.classes


def test_counts_must_be_positive(bundle, files):
    for option in ("top", "batch_size"):
        with pytest.raises(ValueError, match=rf"^{option} is 0: it must be at least 1$"):
            ask(bundle, files, **{option: 0})


def test_a_broken_image_is_named_and_the_others_are_answered(bundle, files, tmp_path):
    bad, missing = tmp_path / "bad.png", tmp_path / "missing.png"
    bad.write_text("no picture")
    images = [files[0], bad, files[1], files[2], missing, files[3]]
    broken = []
    found = ask(bundle, images, batch_size=2, broken=broken)
    expected = ask(bundle, files[:4], batch_size=2)
    assert [(answer.image, answer.classes) for answer in found] == [answer[:2] for answer in expected]
    assert [type(error) for error in broken] == [BrokenImage, BrokenImage]
    assert str(broken[0]) == f"{bad}: {UNREADABLE}"
    assert str(broken[1]) == f"{missing}: No such file or directory"


def test_a_broken_image_stops_everything_where_nobody_takes_note(bundle, files, tmp_path):
    (tmp_path / "bad.png").write_text("no picture")
    with pytest.raises(BrokenImage, match=r"bad\.png: not a JPEG, PNG"):
        ask(bundle, [files[0], tmp_path / "bad.png"])


def test_only_broken_images_give_no_answers(bundle, tmp_path):
    (tmp_path / "bad.png").write_text("no picture")
    broken = []
    assert ask(bundle, [tmp_path / "bad.png"], broken=broken) == [] and len(broken) == 1


def test_pictures_in_memory_are_answered_like_their_files(bundle, files):
    by_file = ask(bundle, files)
    opened = ask(bundle, (Image.open(file) for file in files))
    assert opened == by_file  # with their names
    pasted = ask(bundle, [Image.fromarray(np.asarray(Image.open(file))) for file in files])
    assert [answer[1:] for answer in pasted] == [answer[1:] for answer in by_file]


def test_arrays_are_answered_like_pictures_of_them(bundle, files):
    pixels = np.stack([np.asarray(Image.open(file)) for file in files])  # (N, H, W)
    answers = [answer[1:] for answer in ask(bundle, files)]
    colored = tiny_bundle(channels=3)
    in_color = [answer[1:] for answer in ask(colored, files)]
    channels = np.stack([pixels] * 3, axis=1)
    for layout in (list(pixels), pixels[..., None], pixels[:, None], torch.from_numpy(pixels)[:, None] / 255):
        assert [answer[1:] for answer in ask(bundle, layout)] == answers
    for layout in (pixels[:, None], channels, np.moveaxis(channels, 1, 3)):
        assert [answer[1:] for answer in ask(colored, layout)] == in_color
    for one in (pixels[2], pixels[2][None], torch.from_numpy(pixels[2])):
        assert [answer[1:] for answer in ask(bundle, one)] == [answer[1:] for answer in ask(bundle, files[2])]
    assert ask(bundle, pixels[0])[0].image == ask(bundle, Image.fromarray(pixels[0]))[0].image == "the image"
    assert ask(bundle, Image.open(files[0]))[0].image == str(files[0])
    assert ask(bundle, np.array([str(file) for file in files])) == ask(bundle, files)  # as a column of a table is
    assert ask(bundle, np.array(files, dtype=object)) == ask(bundle, files)
    broken = []
    assert len(ask(bundle, [pixels[0], np.full((8, 8), np.nan), pixels[1]], broken=broken)) == 2
    assert "images are float64 in nan..nan: give uint8, or floats in 0..1" in str(broken[0])
    frozen = np.ascontiguousarray(pixels[0])
    frozen.setflags(write=False)
    for view in (pixels[0][:, ::-1], frozen):
        torch.from_numpy(read_image(view, bundle.preprocess)).add_(1)  # its own memory, as torch wants it


def test_images_of_five_channels_are_asked_about_as_arrays():
    bundle, pixels = tiny_bundle(channels=5), np.random.default_rng(0).integers(0, 256, (2, 8, 8, 5), np.uint8)
    images = (torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255 - 0.4) / 0.2
    for answer, expected in zip(ask(bundle, pixels, top=3), bundle.model(images).softmax(1), strict=True):
        assert answer.probabilities == pytest.approx(expected.sort(descending=True).values.tolist(), abs=1e-6)
    with pytest.raises(BrokenImage, match="a picture has 1 or 3 channels, and the model reads 5: in Python"):
        ask(bundle, Image.new("RGB", (8, 8)))
    with pytest.raises(BrokenImage, match="the images have 3 channels, the model takes 5"):
        ask(bundle, pixels[..., :3])
    with pytest.raises(TypeError, match="an image is a path, bytes, a PIL image or an array, not int"):
        ask(bundle, [7])
    for given in (io.BytesIO(b"..."), None, ImageSet.from_arrays(pixels, [0, 1])):  # a file would give its lines
        with pytest.raises(TypeError, match=f"images is a {type(given).__name__}: give paths, bytes .* data.test"):
            ask(bundle, given)


def test_a_broken_picture_in_memory_is_a_broken_image(bundle):
    stream = io.BytesIO()
    Image.fromarray(stripes(1, side=64)[0][0, 0]).save(stream, "PNG")
    picture, broken = Image.open(io.BytesIO(stream.getvalue()[:200])), []
    assert len(ask(bundle, [picture, Image.new("L", (8, 8))], broken=broken)) == 1
    assert "truncated" in str(broken[0])
    with pytest.raises(BrokenImage, match="truncated"):
        ask(bundle, [Image.open(io.BytesIO(stream.getvalue()[:200]))])


def test_files_are_read_by_several_threads_and_pictures_by_this_one(bundle, files, monkeypatch):
    read, together = prediction.read_image, threading.Barrier(2)
    monkeypatch.setattr(prediction, "cores", lambda: 2)
    readers = []

    def record(image, preprocess, row):
        readers.append(threading.get_ident())
        if isinstance(image, bytes | Path | prediction.StoredImage):
            together.wait(timeout=60)  # for another one
        return read(image, preprocess, row)

    monkeypatch.setattr(prediction, "read_image", record)
    expected = ask(bundle, files[:2])
    assert len(set(readers)) == 2 and threading.get_ident() not in readers
    readers.clear()
    split = Split(FileImages(files[:2]), np.zeros(2, np.int64))
    assert ask(bundle, split) == expected and threading.get_ident() not in readers
    content = [file.read_bytes() for file in files[:2]]
    assert [answer[1:] for answer in ask(bundle, content)] == [answer[1:] for answer in expected]
    expected = ask(bundle, [files[i] for i in (0, 0, 0, 1)])  # rounding depends on how many are asked about at once
    readers.clear()
    picture = Image.open(files[0])
    asked = [picture, files[0], picture, files[1]]
    assert [answer[1:] for answer in ask(bundle, asked)] == [answer[1:] for answer in expected]
    assert readers.count(threading.get_ident()) == 2 and len(readers) == 4


def test_a_picture_is_let_go_once_it_is_read(bundle, files):
    given = []

    def pictures():
        for file in files[:6]:
            picture = Image.open(io.BytesIO(file.read_bytes()))
            given.append(weakref.ref(picture))
            yield picture
            del picture
            gc.collect()
            assert sum(picture() is not None for picture in given) <= 1  # the one just read

    assert len(ask(bundle, pictures(), batch_size=6)) == 6


def test_a_split_is_asked_about_image_by_image(bundle):
    test = tiny_set().test
    answers = ask(bundle, test)
    assert [answer.image for answer in answers] == [f"row {row}" for row in range(12)]
    assert [answer[1:] for answer in answers] == [answer[1:] for answer in ask(bundle, test.images.array)]


def test_answers_come_as_the_images_do(bundle, files):
    asked = []

    def images():
        for file in files:
            asked.append(file)
            yield file

    answers = predict(bundle, images(), batch_size=2, device="cpu")
    assert not asked
    next(answers)
    assert len(asked) == 2


def test_a_run_is_found_by_its_folder(bundle, files, tmp_path):
    bundle.save(tmp_path / "run" / "model")
    assert ask(tmp_path / "run", files) == ask(str(tmp_path / "run" / "model"), files) == ask(bundle, files)
    with pytest.raises(ValueError, match=r"^no model 'nowhere' here: give a run folder"):
        ask("nowhere", files)


def test_a_run_answers_in_the_precision_of_its_recipe(bundle, files, tmp_path, monkeypatch):
    bundle.save(tmp_path / "model")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(tiny_recipe(precision="bf16").dump())
    asked = []
    forward = prediction.forward
    monkeypatch.setattr(prediction, "forward", lambda *args: asked.append(args[-1]) or forward(*args))
    list(predict(tmp_path, files, device="cpu"))
    list(predict(tmp_path, files, device="cpu", precision="float32"))
    recipe.write_text(tiny_recipe(precision="float16").dump())  # which is for training on some GPUs
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    list(predict(tmp_path, files, device="cpu"))
    for other in (b"precision: 16-mixed", b"precision: \xff", b"[" * 5_000):  # of another program
        recipe.write_bytes(other)
        list(predict(tmp_path, files, device="cpu"))
    assert asked == ["bf16", *["float32"] * 5]


def test_a_whole_split_goes_through_in_batches_of_bounded_size():
    small, large = ViTConfig(image_size=32, patch_size=4), ViTConfig(size="B/16", image_size=384)
    narrow = ViTConfig(image_size=384, patch_size=16, dim=192, depth=1, heads=3)
    assert [eval_batch_size(config) for config in (small, narrow, large)] == [256, 113, 37]
    assert eval_batch_size(ViTConfig(image_size=2048, patch_size=4)) == 1


def test_a_model_in_training_mode_answers_as_in_evaluation_and_stays_as_it_was(files):
    bundle = tiny_bundle(dropout=0.5, drop_path=0.5, depth=2)
    expected = ask(bundle, files)
    bundle.model.train()
    bundle.model.blocks[0].eval()
    modes = [module.training for module in bundle.model.modules()]
    assert ask(bundle, files) == expected
    assert [module.training for module in bundle.model.modules()] == modes and len(set(modes)) == 2


def test_threads_that_ask_at_once_leave_the_model_as_it_was(bundle):
    model, first, second = bundle.model.train(), evaluating(bundle.model), evaluating(bundle.model)
    model.patches.eval()
    modes = [module.training for module in model.modules()]
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not any(module.training for module in model.modules())  # the second still asks
    second.__exit__(None, None, None)
    assert [module.training for module in model.modules()] == modes


def test_a_split_is_answered_in_its_own_order(bundle, monkeypatch):
    monkeypatch.setattr(prediction, "HELD", 2)  # of five batches
    pixels, labels = stripes(30)
    data = ImageSet.from_arrays(pixels, labels)
    logits = split_logits(
        bundle.model, Batches(data.train, bundle.preprocess, batch_size=7), bundle.preprocess, "float32"
    )
    images = (torch.from_numpy(pixels).float() / 255 - 0.4) / 0.2
    torch.testing.assert_close(logits, bundle.model(images).detach(), rtol=1e-5, atol=1e-5)
    assert logits.shape == (30, 3) and logits.dtype == torch.float32


def test_bf16_answers_are_near_and_float32(bundle):
    images = torch.from_numpy(stripes(6)[0])
    exact = forward(bundle.model, images, bundle.preprocess, "float32")
    rough = forward(bundle.model, images, bundle.preprocess, "bf16")
    assert rough.dtype == torch.float32 and not torch.equal(exact, rough)
    torch.testing.assert_close(rough, exact, rtol=0.05, atol=0.1)


# --- image files ---


@pytest.fixture
def tree(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in (
        "b/2.png",
        "b/1.JPG",
        "b/deep/3.webp",
        "b/notes.txt",
        "a.png",
        "odd[1].png",
        "empty/x.txt",
        "b/._2.png",
        ".kept/4.png",
    ):
        file = tmp_path / "in" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    return tmp_path


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["in/a.png"], ["in/a.png"]),
        (["in/b"], ["in/b/1.JPG", "in/b/2.png", "in/b/deep/3.webp"]),
        (["in/b/*.png"], ["in/b/2.png"]),
        (["in/**/*.png"], ["in/a.png", "in/b/2.png", "in/odd[1].png"]),
        (["in/?.png"], ["in/a.png"]),
        (["in/odd[1].png"], ["in/odd[1].png"]),
        (["in/.*/*.png", "in/b/._*"], ["in/.kept/4.png", "in/b/._2.png"]),  # who names the dot means it
        (["in/b/../b/*.png"], ["in/b/../b/2.png"]),
        (["in/b/notes.txt"], ["in/b/notes.txt"]),  # who names a file means it
        (["in/b/2.png", "in/a.png"], ["in/b/2.png", "in/a.png"]),
    ],
)
def test_files_folders_and_patterns_are_found(tree, patterns, expected):
    assert [path.as_posix() for path in image_files(patterns)] == expected
    absolute = [str(tree / pattern) for pattern in patterns]
    assert image_files(absolute) == [tree / path for path in expected]


def test_a_tilde_is_the_home_folder(tree, monkeypatch):
    monkeypatch.setenv("HOME", str(tree))
    assert image_files(["~/in/b/*.png"]) == [tree / "in" / "b" / "2.png"]
    Image.new("L", (8, 8)).save(tree / "real.png")
    assert [p.image for p in predict(tiny_bundle(), "~/real.png", device="cpu")] == ["~/real.png"]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("in/none.png", "no image 'in/none.png': give image files, folders or patterns such as 'photos/*.jpg'"),
        ("in/*.gif", "no image 'in/*.gif': give image files"),
        ("in/empty", "no images in folder 'in/empty': give image files"),
        ("///nowhere/none.png", "no image '///nowhere/none.png': give image files"),
    ],
)
def test_a_pattern_that_matches_nothing_is_named(tree, pattern, message):
    with pytest.raises(ValueError) as caught:
        image_files(["in/a.png", pattern])
    assert str(caught.value).startswith(message)


# --- what is written ---


def test_text_is_a_line_an_image_whatever_its_classes_are_called():
    file = io.StringIO()
    write_text([Prediction("a.png", ("ant\n or\tso", "bee"), (0.75, 0.25))], file)
    assert file.getvalue() == "a.png: ant or so 75.0%  bee 25.0%\n"


def test_text_is_a_line_an_image():
    file = io.StringIO()
    write_text(PREDICTIONS, file)
    assert file.getvalue() == "a.png: ant 75.0%  bee 25.0%\nb, c.png: bee 90.0%  ant 10.0%\n"


def test_json_is_an_object_a_line():
    file = io.StringIO()
    write_json_lines(PREDICTIONS, file)
    assert [json.loads(line) for line in file.getvalue().splitlines()] == [
        {"image": "a.png", "classes": ["ant", "bee"], "probabilities": [0.75, 0.25]},
        {"image": "b, c.png", "classes": ["bee", "ant"], "probabilities": [0.9, 0.1]},
    ]


def test_csv_has_a_row_for_each_image_and_class(tmp_path):
    write_table(PREDICTIONS, tmp_path / "x.csv")
    with (tmp_path / "x.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [
            ["image", "rank", "class", "probability"],
            ["a.png", "1", "ant", "0.750000"],
            ["a.png", "2", "bee", "0.250000"],
            ["b, c.png", "1", "bee", "0.900000"],
            ["b, c.png", "2", "ant", "0.100000"],
        ]


def test_predictions_that_fail_overwrite_no_csv(tmp_path):
    def fails():
        yield PREDICTIONS[0]
        raise BrokenImage("x.png: gone")

    (tmp_path / "x.csv").write_text("mine")
    with pytest.raises(BrokenImage):
        write_table(fails(), tmp_path / "x.csv")
    assert (tmp_path / "x.csv").read_text() == "mine"
