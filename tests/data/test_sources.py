"""Every kind of source gives the right pixels, labels and class names, or one clear line."""

import gzip
import hashlib
import io
import os
import pickle
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pillow_heif
import pyarrow as pa
import pytest
from image_samples import (
    encoded,
    hub_features,
    hub_images,
    pixels,
    preprocess_of,
    to_image,
    write_folder,
    write_parquet,
)
from PIL import Image
from pyarrow import parquet as pq
from tiny import UNREADABLE, write_images

from vitreous.data import folders, parquet, shards, sources
from vitreous.data.folders import check_apart, check_outside
from vitreous.data.loaders import decode
from vitreous.data.parquet import ParquetImages
from vitreous.data.sources import load
from vitreous.data.stores import BrokenImage, FileImages
from vitreous.extras import pip_line
from vitreous.preprocess import Preprocess

BATCHES = [f"data_batch_{n}" for n in range(1, 6)]  # of CIFAR-10


def read(split, channels=3, size=8):
    return split.images.read(np.arange(len(split)), preprocess_of(channels, size))


def test_a_parquet_file_in_one_large_row_group_is_told(tmp_path, caplog, monkeypatch):
    files = sorted(write_images(tmp_path / "photos", 4).rglob("*.png"))
    columns = {"image": [file.read_bytes() for file in files], "label": [file.parent.name for file in files]}
    table = pa.table(columns)
    for rows, told in ((12, True), (4, False)):
        caplog.clear()
        pq.write_table(table, tmp_path / f"{rows}.parquet", row_group_size=rows)
        if told:
            size = pq.read_metadata(tmp_path / "12.parquet").row_group(0).total_byte_size
            monkeypatch.setattr(parquet, "LARGE_GROUP", size - 1)
        load(tmp_path / f"{rows}.parquet")
        assert ("in one row group, which is read whole" in caplog.text) == told


def test_importing_data_is_light():
    heavy = "{'sklearn', 'scipy', 'pyarrow', 'huggingface_hub', 'matplotlib', 'torchvision'}"
    code = f"import sys, vitreous.data.sources, vitreous.data.loaders; print(*sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == ""


def test_digits_are_built_in_with_a_fixed_test_split():
    digits = load("digits")
    assert {name: len(split) for name, split in digits.splits.items()} == {"train": 1437, "test": 360}
    assert digits.train.images.shape == (1, 8, 8) and digits.class_names == tuple("0123456789")
    assert np.bincount(digits.test.labels).min() >= 34  # stratified
    assert digits.train.images.array.max() == 255 and len(np.unique(digits.train.images.array)) == 17
    content = digits.test.images.array.tobytes() + digits.test.labels.tobytes()
    assert hashlib.sha256(content).hexdigest().startswith("99ac20baf448e93e")  # in all versions: runs are judged on it


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("cifar-10", "did you mean 'cifar10'"),
        ("minst", "did you mean 'mnist'"),
        ("no/such/folder", "not a file or folder here, nor a known set: give a path, digits, mnist, fashion-mnist"),
        ("", "nor a known set"),
        ("no/such.csv:breed", r"^'no/such\.csv:breed' is not a file or folder here, nor a known set"),
        ("s3://bucket/photos", r"^'s3://bucket/photos' is a URL, which is not taken: copy its files here or mount"),
        ("https://a.org/photos.csv:breed", r"photos\.csv:breed' is a URL, .* of the Hub, hf:owner/name$"),
    ],
)
def test_an_unknown_source_is_one_line_with_the_ways_out(name, reason):
    with pytest.raises(ValueError, match=reason) as caught:
        load(name)
    assert "\n" not in str(caught.value)


def test_a_class_folder_becomes_a_set(tmp_path):
    expected = write_folder(tmp_path / "pets", {"dog": 3, "cat": 2})
    pets = load(tmp_path / "pets")
    assert pets.name == "pets" and pets.source == str(tmp_path / "pets")
    assert pets.class_names == ("cat", "dog") and pets.val is pets.test is None
    assert pets.train.labels.tolist() == [0, 0, 1, 1, 1]
    np.testing.assert_array_equal(read(pets.train), np.concatenate([expected[3:], expected[:3]]))


ENDINGS = ("jpg", "JPEG", "jpe", "jfif", "png", "webp", "bmp", "gif", "tif", "tiff", "ppm", "pnm", "avif")
ENDINGS += ("jp2", "j2k", "j2c", "jpx", "jpf", "heic", "HEIF", "hif")


@pytest.mark.parametrize("ending", ENDINGS)
def test_image_files_have_many_endings_and_formats(tmp_path, ending):
    write_folder(tmp_path, {"ant": 0, "bee": 1})
    colour = np.full((3, 8, 8), [[[200]], [[90]], [[30]]], np.uint8)
    picture, file = Image.fromarray(colour.transpose(1, 2, 0)), tmp_path / "ant" / f"photo.{ending}"
    if ending.lower().startswith("h"):  # not by Pillow, which has not learnt HEIC yet
        pillow_heif.from_pillow(picture).save(file)
    else:
        picture.save(file)
    (tmp_path / "ant" / "photo.txt").write_text("no image")
    found = load(tmp_path).train
    assert found.labels.tolist() == [0, 1]
    shown = found.images.read([0], Preprocess(image_size=8, mean=(0.5,) * 3, std=(0.5,) * 3))[0]
    np.testing.assert_allclose(shown.astype(float), colour, atol=40 if ending == "gif" else 6)


@pytest.mark.parametrize(("ending", "mode"), [("pgm", "L"), ("pbm", "1"), ("pfm", "F")])
def test_netpbm_of_one_channel_is_gray(tmp_path, ending, mode):
    write_folder(tmp_path, {"ant": 0, "bee": 0})
    for name in ("ant", "bee"):
        Image.new(mode, (8, 8), 1).save(tmp_path / name / f"photo.{ending}")
    found = load(tmp_path).train
    assert found.images.shape == (1, 8, 8) and len(found) == 2


@pytest.mark.parametrize("validation", ["val", "valid", "validation"])
def test_split_folders_become_splits(tmp_path, validation):
    write_folder(tmp_path / "train", {"cat": 2, "dog": 3, "eel": 1})
    held = write_folder(tmp_path / validation, {"cat": 1, "dog": 1})
    test = write_folder(tmp_path / "test", {"eel": 2, "dog": 1})
    made = load(str(tmp_path))
    assert [len(split) for split in (made.train, made.val, made.test)] == [6, 2, 3]
    assert made.val.labels.tolist() == [0, 1] and made.test.labels.tolist() == [1, 2, 2]
    np.testing.assert_array_equal(read(made.val), held)
    np.testing.assert_array_equal(read(made.test), test[[2, 0, 1]])


def test_endings_of_any_case_and_nested_files_count_and_hidden_ones_do_not(tmp_path):
    write_folder(tmp_path, {"a": 1, "b": 1})
    (tmp_path / "a" / "deep" / "er").mkdir(parents=True)
    to_image(pixels(1)[0]).save(tmp_path / "a" / "deep" / "er" / "X.JPEG")
    to_image(pixels(1)[0]).save(tmp_path / "a" / ".hidden.png")
    (tmp_path / "a" / "notes.txt").write_text("no image")
    write_folder(tmp_path / ".cache", {"c": 1})
    write_parquet(tmp_path / ".cache" / "x.parquet", {"image": hub_images(pixels(2)), "label": [0, 1]})
    write_folder(tmp_path / "a" / ".thumbs", {"c": 1})
    made = load(tmp_path)
    assert made.class_names == ("a", "b") and made.train.labels.tolist() == [0, 0, 1]
    assert made.train.images.describe(1).endswith("deep/er/X.JPEG")


def test_pictures_of_a_kind_that_is_not_read_are_told(tmp_path, caplog):
    write_folder(tmp_path, {"a": 1, "b": 1})
    for name in ("a/IMG_1.DNG", "a/IMG_2.dng", "b/x.txt"):
        (tmp_path / name).touch()
    assert len(load(tmp_path).train) == 2
    said = "pictures of a kind that is not read are left out (2, such as IMG_1.DNG): convert them to JPEG or PNG"
    assert caplog.messages == [f"{tmp_path / 'a'}: {said}"]


def test_heic_without_its_package_is_told_with_the_pip_line(tmp_path, caplog, monkeypatch):
    write_folder(tmp_path, {"a": 1})
    file = tmp_path / "a" / "IMG_1.HEIC"
    pillow_heif.from_pillow(to_image(pixels(1)[0])).save(file)
    monkeypatch.setitem(sys.modules, "pillow_heif", None)  # as if it were not installed
    assert runpy.run_path(folders.__file__)["files_below"](file.parent) == [str(file.parent / "000.png")]
    said = "pictures of a kind that is not read are left out (1, such as IMG_1.HEIC): convert them to JPEG or PNG"
    assert caplog.messages == [f"{file.parent}: {said}; for HEIC, {pip_line('heic')}"]
    with pytest.raises(BrokenImage) as caught:
        FileImages([file]).read([0], preprocess_of(3))
    assert str(caught.value) == f'{file}: a HEIC picture: convert it to JPEG, or pip install "vitreous[heic]"'


@pytest.mark.parametrize("brand", [b"heic", b"mif1"])
def test_heic_is_read_from_bytes_too_and_upright(tmp_path, brand):
    stored, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    bands = np.broadcast_to(np.repeat(np.uint8([40, 200, 120, 90]), 16)[:, None], (16, 64, 3))
    pillow_heif.from_pillow(Image.fromarray(bands.copy())).save(stored, exif=exif.tobytes(), quality=-1)
    content = stored.getvalue()
    assert content[8:12] == b"heic"
    content = content[:8] + brand + content[12:]
    write_parquet(tmp_path / "x.parquet", {"image": [{"bytes": content, "path": None}] * 2, "label": [0, 1]})
    (tmp_path / "x.png").write_bytes(content)
    for images in (load(tmp_path / "x.parquet").train.images, FileImages([tmp_path / "x.png"])):
        assert images.shape == (3, 64, 16)
        np.testing.assert_allclose(images.at_own_size(0).astype(float), bands.transpose(2, 1, 0), atol=4)
    (tmp_path / "x.png").write_bytes(content[:-40])
    with pytest.raises(BrokenImage, match=f"{UNREADABLE}$"):
        FileImages([tmp_path / "x.png"]).read([0], preprocess_of(3))


def test_a_class_may_be_called_train(tmp_path, caplog):
    write_folder(tmp_path, {"train": 1, "car": 1})
    (tmp_path / "train" / "000.png").rename(tmp_path / "train" / "000.PNG")
    assert load(tmp_path).class_names == ("car", "train")
    said = f"{tmp_path}: train holds images, not class folders, so it is taken for a class of this name"
    assert caplog.messages == [said]


def test_test_images_without_labels_beside_training_ones_are_left_out(tmp_path, caplog):
    write_folder(tmp_path / "train", {"ant": 2, "bee": 2})
    write_folder(tmp_path, {"test": 3})
    made = load(tmp_path)
    assert made.class_names == ("ant", "bee") and len(made.train) == 4 and made.test is None
    assert caplog.messages == [f"{tmp_path}: test has no class folders, so its images have no labels: left out"]


def test_test_images_may_be_kept_beside_the_classes(tmp_path):
    write_folder(tmp_path, {"a": 3, "b": 2})
    write_folder(tmp_path / "test", {"a": 1, "b": 2})
    made = load(tmp_path)
    assert made.class_names == ("a", "b") and (len(made.train), made.val, len(made.test)) == (5, None, 3)
    (tmp_path / "test" / ".x.jpg").touch()  # nothing to count
    assert load(tmp_path).class_names == ("a", "b")
    (tmp_path / "test" / "x.jpg").touch()
    with pytest.raises(ValueError, match=f"^{tmp_path / 'test'} has images beside folders of classes: move them$"):
        load(tmp_path)
    (tmp_path / "test" / "x.jpg").unlink()
    write_folder(tmp_path, {"testing": 1})  # a class
    assert load(tmp_path).class_names == ("a", "b", "testing")
    write_folder(tmp_path / "valid", {"b": 1})
    assert len(load(tmp_path).val) == 1
    write_folder(tmp_path / "Val", {"b": 1})
    with pytest.raises(ValueError, match="has several folders for one split: Val, test, valid: keep one of each"):
        load(tmp_path)


@pytest.mark.parametrize("names", [("Train", "Test"), ("Training", "Testing"), ("TRAIN", "valid", "test")])
def test_split_folders_go_by_many_names(tmp_path, names):
    for name in names:
        write_folder(tmp_path / name, {"a": 2, "b": 1})
    made = load(tmp_path)
    assert made.class_names == ("a", "b") and [len(split) for split in made.splits.values()] == [3] * len(names)
    write_folder(tmp_path / "training", {"a": 1, "b": 1})
    with pytest.raises(ValueError, match="has several folders for one split: "):
        load(tmp_path)


def test_classes_that_lie_a_folder_too_deep_are_said(tmp_path, caplog):
    write_folder(tmp_path / "plates", {f"plate{i}/{name}": 1 for i in (1, 2) for name in ("healthy", "sick")})
    assert load(tmp_path / "plates").class_names == ("plate1", "plate2")
    assert caplog.messages[0].endswith("plates: healthy, sick lie below each of several classes: if they are the "
                                       "classes, move them up, or give a table (.csv)")  # fmt: skip
    caplog.clear()
    write_folder(tmp_path / "toys", {f"{name}/p{i}": 1 for name in ("train_set", "test_tube", "ball") for i in (1, 2)})
    assert load(tmp_path / "toys").class_names == ("ball", "test_tube", "train_set")
    assert caplog.messages[0].startswith(f"{tmp_path / 'toys'}: p1, p2 lie below each of several classes")
    caplog.clear()
    write_folder(tmp_path / "digits", {f"{digit}/{writer}": 1 for digit in (0, 1, 2) for writer in (1, 2)})
    assert load(tmp_path / "digits").class_names == ("0", "1", "2")
    assert len(caplog.messages) == 1 and "digits: 1, 2 lie below each of several classes" in caplog.text
    caplog.clear()
    write_folder(tmp_path / "twice", {f"twice/{name}": 1 for name in ("rose", "tulip")})
    assert load(tmp_path / "twice").class_names == ("twice",)
    assert caplog.messages[0].endswith(
        f"rose, tulip lie below its only folder: if they are the classes, give {tmp_path / 'twice/twice'}"
    )
    caplog.clear()
    write_folder(tmp_path / "animals", {"cat/manx": 1, "cat/indoors": 1, "dog/indoors": 1, "dog/collie": 1})
    assert load(tmp_path / "animals").class_names == ("cat", "dog") and not caplog.messages


@pytest.mark.parametrize(
    ("folders", "reason"),
    [
        ("cat dog evaluation/cat evaluation/dog", "evaluation has no images but folders called like other classes, "
         r"cat, dog: if they are for testing, make it \S+/photos/test; if it is a class, rename them$"),
        ("train/cat train/dog train/held/held/dog test/cat", "held/held has no images but folders called like other"),
        ("a_train/a_train/cat a_train/a_train/dog a_test/a_test/cat a_test/a_test/dog", "photos: a_test, a_train hold "
         "the same folders, cat, dog, so they are splits and no classes: make these train/<class> and test/<class>$"),
        ("cat cat/test dog", r"cat/test lies below a class, so its images would be trained on: move them to "
         r"\S+/photos/test/cat, or rename the folder$"),
        ("cat/train cat/Val dog/train dog/Val", r"cat/Val lies below .*: move them to \S+/photos/Val/cat, or rename"),
        ("x/x/train/cat x/x/test/cat", r"x/x/test lies below .* trained on: give \S+/x/x$"),
    ],
)  # fmt: skip
def test_images_for_testing_do_not_become_classes_or_training_images(tmp_path, folders, reason):
    for folder in folders.split():
        (tmp_path / "photos" / folder).mkdir(parents=True, exist_ok=True)
        to_image(pixels(1)[0]).save(tmp_path / "photos" / folder / "000.png")
    with pytest.raises(ValueError, match=reason):
        load(tmp_path / "photos")


@pytest.mark.parametrize(
    "folders",
    [
        "cat/cat dog/dog",  # an archive for each
        "cat/cat/p1 cat/cat/p2 dog/dog/p3",
        "cat/p1 cat/p2 dog/p2 dog/p3",
        "vehicle/train vehicle/car animal/dog",
        "train_car/p1 test_tube/p2",
        "cat dog mixed mixed/cat mixed/dog",
        "passport/valid passport/expired ticket",
    ],
)
def test_a_class_may_have_folders_of_any_other_kind(tmp_path, caplog, folders):
    for folder in folders.split():
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        to_image(pixels(1)[0]).save(tmp_path / folder / "000.png")
    assert len(load(tmp_path).train) == len(folders.split()) and not caplog.messages


def test_a_folder_within_a_class_that_is_called_like_another_class_is_told(tmp_path, caplog):
    write_folder(tmp_path, {"lemon/yellow": 1, "lemon/orange": 1, "orange": 1})
    assert load(tmp_path).class_names == ("lemon", "orange")
    assert "lemon has no images but folders called like other classes, orange: if they are for testing" in caplog.text


@pytest.mark.parametrize(("train", "free"), [("train", False), ("train/car", True)])
def test_a_place_beside_a_class_called_train_is_within_the_data(tmp_path, train, free):
    write_folder(tmp_path, {train: 1, "train/plane" if free else "car": 1})
    made = load(tmp_path)
    if free:
        check_outside(tmp_path / "runs", made)
    else:
        with pytest.raises(ValueError, match="runs lies within the data, of which it would become a part"):
            check_outside(tmp_path / "runs", made)


def test_images_that_lie_beside_the_classes_are_left_out_and_said(tmp_path, caplog):
    write_folder(tmp_path, {"a": 1, "b": 1})
    shutil.copy(tmp_path / "a" / "000.png", tmp_path)
    assert len(load(tmp_path).train) == 2
    assert caplog.messages == [f"{tmp_path}: images that lie beside its folders are left out"]


def test_an_image_beside_the_classes_of_train_is_told_where_it_lies(tmp_path):
    write_folder(tmp_path, {"train/a": 1, "train/b": 1, "test/a": 1, "test/b": 1})
    shutil.copy(tmp_path / "train" / "a" / "000.png", tmp_path / "train")
    for _ in range(2):  # alone, too
        with pytest.raises(ValueError, match="train has images beside folders of classes: move them"):
            load(tmp_path)
        shutil.rmtree(tmp_path / "test", ignore_errors=True)


def test_only_known_leftovers_are_no_classes(tmp_path):
    write_folder(tmp_path, {"a": 1, "b": 1, "__background__": 1, "a/__2023": 1, "__MACOSX": 1, "b/__MACOSX": 1})
    write_folder(tmp_path, dict.fromkeys(["a/@eaDir/000.png", "#recycle", "$Recycle.Bin", "lost+found"], 1))
    write_folder(tmp_path, {"System Volume Information": 0})
    made = load(tmp_path)
    assert made.class_names == ("__background__", "a", "b") and made.train.labels.tolist() == [0, 1, 1, 2]


def test_folders_beside_train_are_left_out_and_said(tmp_path, caplog):
    write_folder(tmp_path / "train", {"a": 1, "b": 1})
    write_folder(tmp_path / "unlabelled", {"c": 1})
    write_folder(tmp_path, {"val": 1})
    (tmp_path / "test").mkdir()
    made = load(tmp_path)
    assert made.class_names == ("a", "b") and made.val is None
    assert "beside train, these folders are left out: unlabelled\n" in caplog.text
    assert "val has no class folders, so its images have no labels: left out" in caplog.text
    assert "test has no images in class folders: left out" in caplog.text


@pytest.mark.parametrize(
    ("folders", "reason"),
    [
        ({}, "has no class folders"),
        ({"a": 2, "b": 0}, "b holds no images"),
        ({"test/a": 1, "test/b": 1}, "has test but no train/<class> folders"),
        ({"train/a": 1, "train/b": 1, "test/c": 1}, "test has class 'c' that train lacks; train has a, b"),
    ],
)
def test_a_folder_that_is_no_set_says_why(tmp_path, folders, reason):
    write_folder(tmp_path, folders)
    with pytest.raises(ValueError, match=reason):
        load(tmp_path)


@pytest.mark.parametrize(("file", "place"), [("", ""), ("train/", ""), ("test/", ""), ("full/", "full")])
def test_a_folder_of_arrow_files_is_to_be_written_as_parquet(tmp_path, file, place):
    (tmp_path / file).mkdir(exist_ok=True)
    (tmp_path / file / "data-00000-of-00001.arrow").touch()
    told = f"^{tmp_path / place} holds arrow files, as datasets' save_to_disk leaves them: write each split as parquet"
    with pytest.raises(ValueError, match=told):
        load(tmp_path)


@pytest.mark.parametrize(
    ("image", "told"),
    [
        ({"bytes": None, "path": "/photos/0.png"}, "no bytes here: only paths, as datasets' to_parquet leaves images "
         "that are files: give their folder"),
        ({"bytes": None, "path": None}, "no bytes here"),
        (None, "no bytes here"),
    ],
)  # fmt: skip
def test_parquet_files_that_hold_no_images_say_why(tmp_path, image, told):
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    pq.write_table(pa.table({"image": pa.array([image] * 2, kind), "label": [0, 1]}), tmp_path / "x.parquet")
    with pytest.raises(BrokenImage, match=f"row 1: column 'image' holds {told}$"):
        load(tmp_path / "x.parquet").train.images.read([1], preprocess_of())


@pytest.mark.parametrize("kind", [pa.dictionary(pa.int32(), pa.string()), pa.large_string()], ids=str)
def test_parquet_as_pandas_and_polars_write_it_is_read(tmp_path, kind):
    images = pa.array([encoded(x) for x in pixels(4)], pa.large_binary())
    words = pa.array(["owl", "cod", "owl", "cod"]).cast(kind)
    pq.write_table(pa.table({"picture": images, "kind": words}), tmp_path / "x.parquet")
    made = load(tmp_path / "x.parquet")
    assert made.class_names == ("cod", "owl") and made.train.labels.tolist() == [1, 0, 1, 0]
    np.testing.assert_array_equal(read(made.train), pixels(4))


def test_folders_named_like_parquet_files_are_read_as_spark_writes_them(tmp_path, caplog):
    for split, count in (("train", 4), ("test", 2)):
        columns = {"image": hub_images(pixels(count)), "label": [0, 1] * (count // 2)}
        (tmp_path / f"{split}.parquet").mkdir()
        write_parquet(tmp_path / f"{split}.parquet" / "part-0.parquet", columns)
    made = load(tmp_path)
    assert (len(made.train), len(made.test)) == (4, 2) and not caplog.messages


def test_files_of_a_split_in_several_folders_are_not_joined(tmp_path):
    columns = {"image": hub_images(pixels(2)), "label": [0, 1]}
    for name in ("big/train", "big/test", "small/test"):
        write_parquet(tmp_path / f"{name}.parquet", columns)
    with pytest.raises(ValueError, match=r"holds test files in several folders, \S+/big, \S+/small: keep those of one"):
        load(tmp_path)
    assert len(load(tmp_path / "big").test) == 2


def test_of_numbered_files_those_in_the_folder_of_a_split_are_its_own(tmp_path, caplog):
    columns = {"image": hub_images(pixels(2)), "label": [0, 1]}
    for name in ("train", "test", "test_ood"):
        write_parquet(tmp_path / name / "0000.parquet", columns)
    assert len(load(tmp_path).test) == 2
    assert caplog.messages == [f"{tmp_path}: files named only somewhat like test are left out: 0000.parquet"]


def test_a_column_of_splits_is_no_label_even_if_it_names_classes(tmp_path):
    columns = {"image": hub_images(pixels(4)), "kind": ["owl", "cod"] * 2, "split": [0, 0, 1, 1]}
    write_parquet(tmp_path / "x.parquet", columns, hub_features("train", "test", label="split"))
    assert load(tmp_path / "x.parquet").class_names == ("cod", "owl")


@pytest.mark.parametrize("name", ["split", "Split"])
def test_a_column_divides_the_rows_of_parquet_files(tmp_path, name):
    arrays, words = pixels(6), ["test", "Train", "train", "validation", "train", "test"]
    features = hub_features("cat", "dog")
    labels = [0, 1, 0, 1, 1, 1]
    for part in (slice(0, 4), slice(4, 6)):
        columns = {"image": hub_images(arrays[part]), "label": labels[part], name: words[part], "note": words[part]}
        write_parquet(tmp_path / f"part-{part.start}.parquet", columns, features)
    made = load(tmp_path)
    assert {key: split.labels.tolist() for key, split in made.splits.items()} == {
        "train": [1, 0, 1], "val": [1], "test": [0, 1]
    }  # fmt: skip
    np.testing.assert_array_equal(read(made.train), arrays[[1, 2, 4]])
    np.testing.assert_array_equal(read(made.test), arrays[[0, 5]])
    assert made.test.images.describe(1).endswith("part-4.parquet: row 1")
    assert made.train.images.column("note").tolist() == ["Train", "train", "train"]


def test_a_column_of_splits_needs_no_labels_in_rows_for_testing(tmp_path, caplog):
    columns = {"image": hub_images(pixels(4)), "kind": ["owl", None, "cod", None], "split": ["train", "test"] * 2}
    write_parquet(tmp_path / "x.parquet", columns)
    made = load(tmp_path / "x.parquet")
    assert made.class_names == ("cod", "owl") and made.train.labels.tolist() == [1, 0] and made.test is None
    assert "test has no labels: left out" in caplog.text


@pytest.mark.parametrize(
    ("column", "words", "beside", "reason"),
    [
        ("split", ["train", "test", "tset"], False, "'split' is 'tset' in some rows, which is none of train, "),
        ("split", ["train", None, "val"], False, "'split' is '' in some rows, which is none of train"),
        ("split", ["val", "test", "test"], False, "has rows of test and val, and none of train"),
        ("subset", ["train", "val", "test"], False, "'subset' tells what images are for training: call it 'split', or"),
        ("split", ["train", "train", "train"], True, None),
        ("split", ["train", "val", "val"], True, None),
        ("split", ["easy", "hard", None], False, None),
        ("subset", ["train", "val", "test"], True, None),  # the names of the files say more
        ("subset", ["train", "val", "other"], False, None),
        ("subset", ["val", "test", "test"], False, None),
    ],
)  # fmt: skip
def test_a_column_of_splits_is_refused_where_it_cannot_be_followed(tmp_path, column, words, beside, reason):
    columns = {"image": hub_images(pixels(3)), "label": [0, 1, 1]}
    write_parquet(tmp_path / "train.parquet", columns | {column: words})
    if beside:
        write_parquet(tmp_path / "test.parquet", columns)
    if reason is None:
        assert load(tmp_path).train.labels.tolist() == [0, 1, 1]
    else:
        with pytest.raises(ValueError, match=reason):
            load(tmp_path)


def test_a_column_of_splits_beside_files_of_splits_is_told(tmp_path, caplog):
    columns = {"image": hub_images(pixels(2)), "label": [0, 1]}
    for name in ("train", "test"):
        write_parquet(tmp_path / f"{name}.parquet", columns | {"split": ["train", "extra"]})
    assert len(load(tmp_path).train) == 2
    said = f"{tmp_path}: the names of its files tell the splits, and column 'split' is passed over"
    assert [message for message in caplog.messages if "split" in message] == [said]


def test_a_column_of_splits_that_a_file_lacks_is_told(tmp_path):
    columns = {"image": hub_images(pixels(2)), "label": [0, 1]}
    write_parquet(tmp_path / "a.parquet", columns)
    write_parquet(tmp_path / "b.parquet", columns | {"split": ["train", "test"]})
    with pytest.raises(ValueError, match="'split' is '' in some rows"):
        load(tmp_path)


def test_files_that_number_their_classes_differently_are_named(tmp_path):
    columns = {"image": hub_images(pixels(2)), "label": [0, 1]}
    write_parquet(tmp_path / "site0.parquet", columns, hub_features("cat", "dog", "eel"))
    write_parquet(tmp_path / "site1.parquet", columns)
    assert load(tmp_path).class_names == ("cat", "dog", "eel")
    write_parquet(tmp_path / "site2.parquet", columns, hub_features("cat", "eel"))
    told = r"site0\.parquet and \S+site2\.parquet number the classes of 'label' differently: write both with the same"
    with pytest.raises(ValueError, match=told):
        load(tmp_path)


def test_labels_that_join_others_are_told_in_parquet_files_too(tmp_path, caplog):
    write_parquet(tmp_path / "x.parquet", {"image": hub_images(pixels(3)), "label": ["a", "b", "a b"]})
    assert load(tmp_path / "x.parquet").class_names == ("a", "a b", "b")
    assert "x.parquet: one label an image: 'a b' joins others of 'label'" in caplog.text


def test_parquet_of_the_hub_is_read_by_its_metadata(tmp_path):
    arrays = pixels(12)
    features = hub_features("cat", "dog", "eel", image="img", label="fine_label") | {
        "coarse_label": {"_type": "ClassLabel", "names": ["x"]}
    }

    def write(file, rows, labels):
        columns = {"thumb": [b""] * len(labels), "coarse_label": [0] * len(labels)}
        columns |= {"img": hub_images(arrays[rows]), "fine_label": labels}
        write_parquet(tmp_path / "data" / file, columns, features, row_group_size=2)

    write("train-00000-of-00002.parquet", slice(0, 5), [2, 1, 0, 1, 2])
    write("train-00001-of-00002.parquet", slice(5, 8), [0, 1, 2])
    write("validation-00000-of-00001.parquet", slice(8, 10), [1, 0])
    write("test-00000-of-00001.parquet", slice(10, 12), [2, 2])
    made = load(tmp_path)
    assert made.class_names == ("cat", "dog", "eel")
    assert made.train.labels.tolist() == [2, 1, 0, 1, 2, 0, 1, 2]
    assert made.val.labels.tolist() == [1, 0] and made.test.labels.tolist() == [2, 2]
    np.testing.assert_array_equal(read(made.train), arrays[:8])
    np.testing.assert_array_equal(read(made.val.take(np.array([1]))), arrays[9:10])
    np.testing.assert_array_equal(read(pickle.loads(pickle.dumps(made.train))), arrays[:8])  # as workers get it
    assert made.train.images.shape == (3, 8, 8)
    assert made.train.images.describe(6).endswith("train-00001-of-00002.parquet: row 1")


@pytest.mark.parametrize(("room", "most"), [(0, 1), (2.5, 2), (9, 4)])  # in row groups
def test_the_row_groups_that_were_read_last_are_held_as_far_as_memory_is_allowed(tmp_path, monkeypatch, room, most):
    arrays, read_group, seen = pixels(12), ParquetImages._read_group, []
    monkeypatch.setattr(
        ParquetImages, "_read_group", lambda self, *which: seen.append(which) or read_group(self, *which)
    )
    write_parquet(tmp_path / "x.parquet", {"image": hub_images(arrays), "label": [0, 1] * 6}, row_group_size=3)
    images = load(tmp_path / "x.parquet").train.images
    monkeypatch.setattr(parquet, "HELD_BYTES", room * read_group(images, images.files[0], 0).nbytes)
    for row in np.random.default_rng(0).permutation(12).tolist():
        np.testing.assert_array_equal(images.read([row], preprocess_of()), arrays[[row]])
        held = [(images.files[0], group) for group in images._held]
        assert held == seen[-len(held) :] and row // 3 in images._held
        assert len(images._held) == min(len(set(seen)), most)


def test_a_parquet_file_of_plain_bytes_and_words_is_read_by_its_types(tmp_path):
    arrays = pixels(4, 1)
    columns = {"id": [9, 8, 7, 6], "picture": [encoded(x) for x in arrays], "label": ["eel", "cat", "eel", "cat"]}
    write_parquet(tmp_path / "pets.parquet", columns)
    made = load(str(tmp_path / "pets.parquet"))
    assert made.name == "pets" and made.class_names == ("cat", "eel")
    assert made.train.labels.tolist() == [1, 0, 1, 0] and made.train.images.channels == 1
    np.testing.assert_array_equal(read(made.train, 1), arrays)


def test_a_column_behind_a_colon_holds_the_labels_of_parquet_files(tmp_path):
    features = hub_features("cat", "dog") | {"size": {"_type": "ClassLabel", "names": ["big", "small"]}}
    columns = {"image": hub_images(pixels(3)), "label": [0, 1, 1], "size": [1, 0, 1], "age": [3, 9, 3]}
    for name in ("train", "test"):
        write_parquet(tmp_path / f"{name}.parquet", columns, features)
    assert load(str(tmp_path)).class_names == ("cat", "dog")
    made = load(f"{tmp_path}:size")
    assert made.class_names == ("big", "small") and made.source == f"{tmp_path}:size"
    assert made.train.labels.tolist() == made.test.labels.tolist() == [1, 0, 1]
    assert load(f"{tmp_path / 'train.parquet'}:age").class_names == ("3", "9")
    assert made.train.images.take(np.array([1, 0])).column("age").tolist() == ["9", "3"]
    assert made.train.images.column("weight") is None
    told = r"has no column 'image' of labels \(integers or words, one an image\): it has label, size, age$"
    with pytest.raises(ValueError, match=told):
        load(f"{tmp_path}:image")


@pytest.mark.parametrize("values", [[0.5, 1.5], [[0], [1]], [True, False]], ids=["floats", "lists", "truths"])
def test_a_column_of_neither_integers_nor_words_holds_no_labels(tmp_path, values):
    write_parquet(tmp_path / "x.parquet", {"image": hub_images(pixels(2)), "age": values})
    told = r"has no column 'age' of labels \(integers or words, one an image\): it has none$"
    with pytest.raises(ValueError, match=told):
        load(f"{tmp_path / 'x.parquet'}:age")


def test_shards_of_a_test_set_alone_are_read_as_one_is(tmp_path):
    for part in range(2):
        columns = {"image": hub_images(pixels(2)), "label": [0, 1]}
        write_parquet(tmp_path / f"test-0000{part}-of-00002.parquet", columns)
    made = load(tmp_path)
    assert list(made.splits) == ["train"] and len(made.train) == 4
    assert len(load(tmp_path / "test-00000-of-00002.parquet").train) == 2
    write_parquet(tmp_path / "validation.parquet", columns)
    with pytest.raises(ValueError, match="no training files among"):
        load(tmp_path)


def test_rows_of_parquet_files_are_held_out_by_group(tmp_path):
    patients = [10, 10, 11, 11, 12, 12, 13, 13]  # two of each class
    columns = {"image": hub_images(pixels(8)), "label": [0, 0, 1, 1] * 2, "patient": patients}
    write_parquet(tmp_path / "x.parquet", columns)
    kept = load(f"{tmp_path / 'x.parquet'}:label").with_validation(0.5, group="patient")
    assert len(kept.train) == len(kept.val) == 4
    sides = [set(split.images.column("patient")) for split in (kept.train, kept.val)]
    assert not sides[0] & sides[1]
    with pytest.raises(ValueError, match=f"'{tmp_path.name}' is not a column, and finds nothing in x.parquet: row 0"):
        load(f"{tmp_path / 'x.parquet'}:label").with_validation(0.5, group=tmp_path.name)
    for site in range(4):
        half = {name: values[2 * site : 2 * site + 2] for name, values in columns.items()}
        write_parquet(tmp_path / "y" / f"site{site}.parquet", half)
    assert len(load(tmp_path / "y").with_validation(0.5, group=r"^(site\d)\.").val) == 4
    named = columns | {"dose (mg": patients}  # a column, though no regular expression
    write_parquet(tmp_path / "x.parquet", named)
    assert len(load(f"{tmp_path / 'x.parquet'}:label").with_validation(0.5, group="dose (mg").val) == 4
    write_parquet(tmp_path / "x.parquet", columns | {"patient": [None, *patients[1:]]})
    with pytest.raises(ValueError, match=r"^images without 'patient', as data\.group asks for: 1; fill it in$"):
        load(f"{tmp_path / 'x.parquet'}:label").with_validation(0.5, group="patient")


def test_integers_without_names_are_their_own_names(tmp_path):
    write_parquet(tmp_path / "train.parquet", {"image": hub_images(pixels(3)), "label": [5, 10, 7]})
    write_parquet(tmp_path / "test.parquet", {"image": hub_images(pixels(2)), "label": [10, 5]})
    made = load(tmp_path)
    assert made.class_names == ("5", "7", "10")
    assert made.train.labels.tolist() == [0, 2, 1] and made.test.labels.tolist() == [2, 0]


def test_parquet_splits_are_matched_by_class_name(tmp_path):
    train = {"image": hub_images(pixels(2)), "label": [0, 1]}
    write_parquet(tmp_path / "train.parquet", train, hub_features("cat", "dog"))
    write_parquet(tmp_path / "test.parquet", train, hub_features("dog", "cat"))
    assert load(tmp_path).test.labels.tolist() == [1, 0]
    write_parquet(tmp_path / "test.parquet", train, hub_features("dog", "emu"))
    with pytest.raises(ValueError, match="test has class 'emu' that train lacks; train has cat, dog"):
        load(tmp_path)


def test_a_test_split_without_labels_is_left_out_and_said(tmp_path, caplog):
    features = hub_features("cat", "dog")
    write_parquet(tmp_path / "train.parquet", {"image": hub_images(pixels(2)), "label": [0, 1]}, features)
    write_parquet(tmp_path / "test.parquet", {"image": hub_images(pixels(2)), "label": [-1, -1]}, features)
    assert load(tmp_path).test is None and "test has no labels" in caplog.text


@pytest.mark.parametrize("features", [None, hub_features("cat", "dog")], ids=["no names", "names"])
def test_rows_without_a_label_are_refused_among_others(tmp_path, features):
    images = hub_images(pixels(2))
    write_parquet(tmp_path / "train.parquet", {"image": images, "label": [0, 1]}, features)
    for labels, told in (([1, -1], "'label' of test is -1 in some rows"), ([None, -1], "needs an integer or a string")):
        write_parquet(tmp_path / "test.parquet", {"image": images, "label": labels}, features)
        with pytest.raises(ValueError, match=told):
            load(tmp_path)
    write_parquet(tmp_path / "test.parquet", {"image": images, "label": [0, 2]}, features)
    with pytest.raises(ValueError, match=r"test labels 0\.\.2 exceed its 2 class names$" if features else "class '2'"):
        load(tmp_path)


def test_words_are_labels_whatever_they_are(tmp_path):
    for name, words in {"train": ["-1", "0", "1"], "test": ["-1"] * 3}.items():
        columns = {"image": hub_images(pixels(3)), "label": words}
        write_parquet(tmp_path / f"{name}.parquet", columns, hub_features("cat", "dog"))
    made = load(tmp_path)
    assert made.class_names == ("-1", "0", "1") and made.test.labels.tolist() == [0, 0, 0]


@pytest.mark.parametrize("said", ["null", "[]", '{"info": null}', '{"info": {"features": [1]}}'])
def test_what_another_program_says_of_a_parquet_file_is_no_obstacle(tmp_path, said):
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"image": hub_images(pixels(2)), "label": [0, 1]})
    pq.write_table(table.replace_schema_metadata({"huggingface": said}), tmp_path / "x.parquet")
    assert load(tmp_path / "x.parquet").class_names == ("0", "1")


@pytest.mark.parametrize("label", [{}, {"label": [None, None]}], ids=["no column", "empty"])
def test_a_test_split_whose_labels_are_kept_back_is_left_out_and_said(tmp_path, caplog, label):
    write_parquet(tmp_path / "train.parquet", {"image": hub_images(pixels(2)), "label": [0, 1]})
    write_parquet(tmp_path / "test.parquet", {"image": hub_images(pixels(2))} | label)
    made = load(tmp_path)
    assert made.test is None and made.train.labels.tolist() == [0, 1] and "test has no labels" in caplog.text


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        (
            {"image": [b"", b""], "label": [True, False], "patient": [7, 8]},
            "'label' holds bool, not an integer or a word",
        ),
        ({"image": [b"", b""], "Label": [1.0, None], "who": ["a", "b"]}, "'Label' holds double, .* DATA:COLUMN"),
        ({"label": [0, 1]}, r"image columns \[\] and label columns \['label'\]"),
        ({"image": [b"", b""]}, r"image columns \['image'\] and label columns \[\]"),
        ({"image": [b"", b""], "p": [0, 1], "q": [0, 1]}, r"label columns \['p', 'q'\]: one of each is needed"),
        ({"image": [b"", b""], "label": [0, None]}, "needs an integer or a string in every row"),
        ({"image": [b"", b""], "label": ["a", None]}, "needs an integer or a string in every row"),
        ({"image": [b"", b""], "label": ["a", ""]}, "needs an integer or a string in every row"),
        ({"image": [b"", b"", b""], "label": [0, 1, -1]}, "'label' of train is -1 in some rows, which mostly means"),
    ],
)
def test_parquet_that_is_no_set_says_why(tmp_path, columns, reason):
    write_parquet(tmp_path / "x.parquet", columns)
    with pytest.raises(ValueError, match=reason):
        load(tmp_path / "x.parquet")


def test_files_that_are_not_what_they_are_called_say_so(tmp_path):
    (tmp_path / "x.parquet").write_text("hello")
    with pytest.raises(ValueError, match=r"x\.parquet is not a parquet file"):
        load(tmp_path / "x.parquet")
    (tmp_path / "x.txt").write_text("hello")
    with pytest.raises(ValueError, match=r"x\.txt is no parquet file, table \(\.csv, \.tsv\) or \.npz: give one, or"):
        load(tmp_path / "x.txt")


@pytest.mark.parametrize("name", ["data.zip", "data.tar", "Data.TAR.gz", "data.tgz"])
def test_an_archive_is_to_be_unpacked(tmp_path, name):
    (tmp_path / name).touch()
    with pytest.raises(ValueError, match=rf"{name} is an archive: unpack it first, and give its folder$"):
        load(tmp_path / name)


def test_a_parquet_file_of_no_images_among_images_is_named(tmp_path):
    write_folder(tmp_path, {"a": 2, "b": 2})
    write_parquet(tmp_path / "features.parquet", {"label": [0, 1]})
    with pytest.raises(ValueError, match=r"; for the images in .* to be read, move features\.parquet out of it$"):
        load(tmp_path)


def test_parquet_files_whose_labels_are_not_alike_say_so(tmp_path):
    for name, labels in {"train-0": [0, 1], "train-1": ["a", "b"]}.items():
        write_parquet(tmp_path / f"{name}.parquet", {"image": hub_images(pixels(2)), "label": labels})
    with pytest.raises(ValueError, match=r"'label' holds numbers in some files and words in others: make them one$"):
        load(tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="names here are always Unicode")
def test_names_that_are_not_utf8_are_read_in_files_and_refused_in_classes(tmp_path, cache):
    expected = write_folder(tmp_path / "x", {"a": 2, "b": 2})
    odd = os.fsdecode(b"0\xff.png")  # sorts last
    (tmp_path / "x" / "a" / "001.png").rename(tmp_path / "x" / "a" / odd)
    decoded = decode(load(tmp_path / "x").train, preprocess_of(), cache=cache)
    np.testing.assert_array_equal(decoded.images.array, expected)
    assert decoded.images.describe(1) == str(tmp_path / "x" / "a" / r"0\udcff.png")
    (tmp_path / "x" / "b").rename(tmp_path / "x" / os.fsdecode(b"\xff"))
    with pytest.raises(ValueError, match=r"x/\\udcff is a name that is not UTF-8: rename it$"):
        load(tmp_path / "x")
    (tmp_path / "x").rename(tmp_path / os.fsdecode(b"\xff"))
    with pytest.raises(ValueError, match=r"/\\udcff is a name that is not UTF-8: rename it$"):
        load(tmp_path / os.fsdecode(b"\xff"))


def test_several_sets_in_one_folder_are_told_apart(tmp_path):
    columns = {"image": hub_images(pixels(2)), "label": [0, 1]}
    for name in ("big", "small"):
        write_parquet(tmp_path / name / "train.parquet", columns)
    with pytest.raises(
        ValueError, match=r"holds several sets, in .*big, .*small: give the folder of one, with all its splits$"
    ):
        load(tmp_path)
    assert len(load(tmp_path / "big").train) == 2
    files = [(tmp_path / name / "train.parquet").relative_to(tmp_path) for name in ("big", "small")]
    with pytest.raises(ValueError, match=r"^hf:a/b holds several sets, in hf:a/b/big, hf:a/b/small: give"):
        shards.read_parquet(tmp_path, files, "b", "hf:a/b")


def write_idx(folder, zipped, count=20):
    images, labels = pixels(count, 1, 5)[:, 0], (np.arange(count) % 10).astype(np.uint8)
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in {
        "train-images-idx3": images,
        "train-labels-idx1": labels,
        "t10k-images-idx3": images[:10],
        "t10k-labels-idx1": labels[:10],
    }.items():
        head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
        content = head + array.tobytes()
        file = folder / f"{name}-ubyte{'.gz' if zipped else ''}"
        file.write_bytes(gzip.compress(content) if zipped else content)
    return images, labels


@pytest.mark.parametrize("zipped", [True, False])
def test_idx_files_are_read_packed_or_not(tmp_path, zipped):
    images, labels = write_idx(tmp_path, zipped)
    made = load(tmp_path)
    np.testing.assert_array_equal(made.train.images.array[:, 0], images)
    assert made.train.labels.tolist() == labels.tolist() and len(made.test) == 10


@pytest.mark.parametrize("name", ["{0}-idx{1}/{0}-idx{1}", "{0}.idx{1}"])
def test_idx_files_are_found_as_archives_unpack_them(tmp_path, name):
    images, _ = write_idx(tmp_path, False)
    for file in list(tmp_path.iterdir()):
        unpacked = tmp_path / "mnist" / name.format(*file.name.split("-idx"))
        unpacked.parent.mkdir(parents=True, exist_ok=True)
        file.rename(unpacked)
    np.testing.assert_array_equal(load(tmp_path / "mnist").train.images.array[:, 0], images)


def test_sets_are_found_where_torchvision_puts_them_and_told_apart(tmp_path):
    images, _ = write_idx(tmp_path / "MNIST" / "raw", False)
    for folder in (tmp_path, tmp_path / "MNIST", tmp_path / "MNIST" / "raw"):
        np.testing.assert_array_equal(load(folder).train.images.array[:, 0], images)
    write_idx(tmp_path / "FashionMNIST" / "raw", False)
    both = ", ".join(str(tmp_path / name / "raw") for name in ("FashionMNIST", "MNIST"))
    with pytest.raises(ValueError, match=rf"^{tmp_path} holds several sets, {both}: name one of these folders$"):
        load(tmp_path)


def test_damaged_or_missing_idx_files_are_named(tmp_path):
    write_idx(tmp_path, True)
    file = tmp_path / "train-images-idx3-ubyte.gz"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte\.gz is not an idx file"):
        load(tmp_path)
    file.unlink()
    with pytest.raises(ValueError, match="holds 3 of the files"):
        load(tmp_path)


def cifar_rows(count, classes, seed=0):
    images = pixels(count, 3, 32, seed)
    return images, np.arange(count, dtype=np.uint8) % classes


@pytest.mark.parametrize("classes", [10, 100])
def test_binary_cifar_is_read(tmp_path, classes):
    images, labels = cifar_rows(200, classes)
    coarse = [labels[:, None] // 5] if classes == 100 else []
    rows = np.concatenate([*coarse, labels[:, None], images.reshape(200, -1)], axis=1).astype(np.uint8)
    names = [f"{name}.bin" for name in BATCHES] if classes == 10 else ["train.bin"]
    for name, part in zip(names, np.split(rows, len(names)), strict=True):
        part.tofile(tmp_path / name)
    rows[:100].tofile(tmp_path / ("test_batch.bin" if classes == 10 else "test.bin"))
    meta = "batches.meta.txt" if classes == 10 else "fine_label_names.txt"
    (tmp_path / meta).write_text("\n".join(f"class{i}" for i in range(classes)) + "\n\n")
    made = load(tmp_path)
    np.testing.assert_array_equal(made.train.images.array, images)
    assert made.train.labels.tolist() == labels.tolist() and len(made.test) == 100
    assert made.class_names[3] == "class3" and len(made.class_names) == classes


@pytest.mark.parametrize(
    ("names", "missing"),
    [
        ([*(f"{name}.bin" for name in BATCHES[:3]), "test_batch.bin"], "data_batch_4.bin, data_batch_5.bin"),
        ([f"{name}.bin" for name in BATCHES], "test_batch.bin"),
        (["train.bin"], "test.bin"),
        ([*BATCHES, "batches.meta"], "test_batch"),
        ([*BATCHES[:4], "test_batch", "batches.meta"], "data_batch_5"),
        ([*BATCHES, "test_batch"], "batches.meta"),
        (["train", "meta"], "test"),
    ],
)  # fmt: skip
def test_cifar_that_lacks_a_file_is_refused(tmp_path, names, missing):
    for name in names:
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(ValueError, match=rf"lacks {missing} of the original files: add what is missing"):
        load(tmp_path)


@pytest.mark.parametrize("classes", [10, 100])
def test_pickled_cifar_is_read(tmp_path, classes):
    images, labels = cifar_rows(200, classes)
    names = [f"class{i}".encode() for i in range(classes)]
    key = b"labels" if classes == 10 else b"fine_labels"

    def batch(rows):
        return {b"data": images[rows].reshape(len(images[rows]), -1), key: labels[rows].tolist()}

    files = {"train": batch(slice(None)), "test": batch(slice(0, 100)), "meta": {b"fine_label_names": names}}
    if classes == 10:
        files = {name: batch(slice(40 * n, 40 * n + 40)) for n, name in enumerate(BATCHES)}
        files |= {"test_batch": batch(slice(0, 100)), "batches.meta": {b"label_names": names}}
    (tmp_path / "cifar-py").mkdir()
    for name, content in files.items():
        (tmp_path / "cifar-py" / name).write_bytes(pickle.dumps(content))
    made = load(tmp_path)
    np.testing.assert_array_equal(made.train.images.array, images)
    assert made.train.labels.tolist() == labels.tolist() and made.class_names[3] == "class3"


def dtype(text):  # called like a part of numpy that is allowed
    print(text)


class Calls:
    def __init__(self, function):
        self.function = function

    def __reduce__(self):
        return self.function, ("this must never be run",)


@pytest.mark.parametrize("function", [print, dtype])
def test_a_pickle_that_calls_anything_is_refused_and_not_run(tmp_path, capsys, function):
    for name in (*BATCHES, "test_batch", "batches.meta"):
        (tmp_path / name).write_bytes(pickle.dumps({b"data": Calls(function)}))
    name = f"{function.__module__}.{function.__name__}"
    with pytest.raises(ValueError, match=rf"data_batch_1 is not an original CIFAR file: it calls {name}"):
        load(tmp_path)
    assert capsys.readouterr().out == ""


def test_a_pickle_imports_no_other_module_of_numpy(tmp_path):
    for name in (*BATCHES, "test_batch", "batches.meta"):
        (tmp_path / name).write_bytes(b"cnumpy.f2py.__main__\ndtype\n.")  # which would run as a program
    with pytest.raises(ValueError, match=r"it calls numpy\.f2py\.__main__\.dtype, which no data needs"):
        load(tmp_path)
    assert "numpy.f2py.__main__" not in sys.modules


@pytest.mark.parametrize(("content", "reason"), [({"x": 1}, "it has no b'data'"), ([1], "list indices"), ("a", "str")])
def test_a_pickle_of_something_else_is_named(tmp_path, content, reason):
    for name in (*BATCHES, "test_batch", "batches.meta"):
        (tmp_path / name).write_bytes(pickle.dumps(content))
    with pytest.raises(ValueError, match=rf"data_batch_1 is not an original CIFAR file: .*{reason}.*: fetch it again"):
        load(tmp_path)


def test_a_named_set_is_taken_from_the_users_folder(tmp_path, monkeypatch):
    images, _ = write_idx(tmp_path / "fashion-mnist", True)
    monkeypatch.setenv("VITREOUS_DATA", str(tmp_path))
    monkeypatch.setattr(sources, "_download", None)
    made = load("fashion-mnist", skip_broken=True)
    np.testing.assert_array_equal(made.train.images.array[:, 0], images)
    assert made.name == made.source == "fashion-mnist" and made.skip_broken


def test_a_folder_with_the_name_of_a_known_set_is_told_to_be_another(tmp_path, monkeypatch, caplog):
    write_images(tmp_path / "digits", 4)
    monkeypatch.chdir(tmp_path)
    assert len(load("digits").class_names) == 10
    assert caplog.messages == ["digits is the set of that name; for the folder here give ./digits"]
    caplog.clear()
    assert len(load("./digits").class_names) == 3
    monkeypatch.setenv("VITREOUS_DATA", str(tmp_path))
    assert load("digits").warnings  # which are built in all the same
    assert not sources.lies_within(tmp_path / "digits" / "x", "digits")
    caplog.clear()
    write_idx(tmp_path / "mnist", True)
    assert load("mnist").name == "mnist" and not caplog.messages  # the folder is the set


def test_a_tilde_in_the_place_of_the_users_sets_is_the_home_folder(tmp_path, monkeypatch):
    write_images(tmp_path / "sets" / "stripes", 4)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("VITREOUS_DATA", "~/sets")
    assert load("stripes").source == "stripes"


def test_a_folder_is_found_among_the_users_sets_by_its_name_unless_one_is_here(tmp_path, monkeypatch):
    write_images(tmp_path / "sets" / "stripes", 4)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("VITREOUS_DATA", str(tmp_path / "sets"))
    made = load("stripes")
    assert made.name == made.source == "stripes" and len(made.train) == 12
    for name in ("sets/stripes", "../stripes", "spots"):
        with pytest.raises(ValueError, match="not a file or folder here, nor a known set"):
            load(name)
    write_images(tmp_path / "here" / "stripes", 2)
    assert len(load("stripes").train) == 6


@pytest.mark.parametrize(
    ("source", "repo", "pattern", "inside", "name"),
    [
        ("cifar10", "uoft-cs/cifar10", "*.parquet", "plain_text", "cifar10"),
        ("hf:some/birds", "some/birds", "*.parquet", "data", "birds"),
        ("hf:some/birds/small", "some/birds", "small/*.parquet", "small", "small"),
    ],
)
def test_hub_sets_are_downloaded_once_and_read(tmp_path, monkeypatch, source, repo, pattern, inside, name):
    import huggingface_hub

    def snapshot_download(*args, **kwargs):
        asked = {"repo_type": "dataset", "allow_patterns": [pattern], "local_files_only": False, "revision": None}
        assert args == (repo,) and kwargs == asked
        columns = {"img": hub_images(pixels(2)), "label": [1, 0]}
        features = hub_features("cat", "dog", image="img")
        write_parquet(tmp_path / inside / "train-00000-of-00001.parquet", columns, features)
        return str(tmp_path)

    monkeypatch.delenv("VITREOUS_DATA", raising=False)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    made = load(source)
    assert made.name == name and made.source == source and made.train.labels.tolist() == [1, 0]


@pytest.mark.parametrize("source", ["cifar100", "hf:some/birds"])
def test_a_column_behind_a_colon_holds_the_labels_of_a_downloaded_set(tmp_path, monkeypatch, source):
    features = hub_features("cod", "owl", "ray", image="img", label="fine_label")
    features |= {"coarse_label": {"_type": "ClassLabel", "names": ["fish", "bird"]}}
    columns = {"img": hub_images(pixels(4)), "fine_label": [1, 0, 2, 1], "coarse_label": [1, 0, 0, 1]}
    write_parquet(tmp_path / "data" / "train.parquet", columns, features)
    monkeypatch.delenv("VITREOUS_DATA", raising=False)
    monkeypatch.setattr(sources, "_download", lambda *_: tmp_path / "data")
    for column, names, labels in (
        ("", ("cod", "owl", "ray"), [1, 0, 2, 1]),
        (":fine_label", ("cod", "owl", "ray"), [1, 0, 2, 1]),
        (":coarse_label", ("fish", "bird"), [1, 0, 0, 1]),
    ):
        made = load(source + column)
        assert (made.class_names, made.train.labels.tolist()) == (names, labels)
        assert made.source == source + column and made.label == (column[1:] or None)


def test_class_names_of_the_hub_may_be_numbers(tmp_path):
    write_parquet(tmp_path / "train.parquet", {"image": hub_images(pixels(2)), "label": [1, 0]}, hub_features(2, 7))
    assert load(tmp_path / "train.parquet").class_names == ("2", "7")


def test_a_set_is_not_fetched_where_that_is_not_asked_for(monkeypatch):
    import huggingface_hub

    def snapshot_download(*args, local_files_only=False, **kwargs):
        raise OSError("not in the cache" if local_files_only else "the network was asked")

    monkeypatch.delenv("VITREOUS_DATA", raising=False)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    for source in ("mnist", "hf:some/birds"):
        with pytest.raises(ValueError, match="not in the cache"):
            load(source, fetch=False)


def hub_of_other_files(monkeypatch, converted):
    """A Hub whose sets have no parquet files of their own; converted: the folder of those that it made, or an error."""
    import huggingface_hub

    def snapshot_download(*_, revision, **__):
        if revision is None:
            return "/nowhere"
        assert revision == "refs/convert/parquet"
        if isinstance(converted, Exception):
            raise converted
        return str(converted)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)


def test_a_hub_set_without_parquet_files_says_so(monkeypatch):
    from huggingface_hub.errors import RevisionNotFoundError

    not_found = RevisionNotFoundError("no such branch", response=SimpleNamespace(headers={}, request=None))
    hub_of_other_files(monkeypatch, not_found)
    with pytest.raises(
        ValueError, match=r"the dataset some/birds has no parquet files, nor has the Hub made any of its"
    ):
        load("hf:some/birds")
    hub_of_other_files(monkeypatch, OSError("the line went dead"))
    with pytest.raises(ValueError, match=r"cannot download the dataset some/birds \(the line went dead\)"):
        load("hf:some/birds")


@pytest.mark.parametrize("prefix", ["", "partial-"])
def test_a_hub_set_of_other_files_is_read_as_the_hub_converted_it(tmp_path, monkeypatch, caplog, prefix):
    columns, features = {"image": hub_images(pixels(4)), "label": [1, 0, 1, 1]}, hub_features("cat", "dog")
    write_parquet(tmp_path / "default" / f"{prefix}train" / "0000.parquet", columns, features)
    write_parquet(tmp_path / "default" / f"{prefix}train" / "0001.parquet", columns, features)
    write_parquet(tmp_path / "default" / "test" / "0000.parquet", columns, features)
    hub_of_other_files(monkeypatch, tmp_path)
    made = load("hf:some/birds")
    assert made.train.labels.tolist() == [1, 0, 1, 1] * 2 and made.test.labels.tolist() == [1, 0, 1, 1]
    told = ["hf:some/birds: the Hub's conversion stops after some GB, so not all its images are here"]
    assert caplog.messages == (told if prefix else [])
    write_parquet(tmp_path / "small" / "train" / "0000.parquet", columns, features)
    several = "hf:some/birds holds several sets, in hf:some/birds/default, hf:some/birds/small: give the folder of one"
    with pytest.raises(ValueError, match=f"^{several}"):
        load("hf:some/birds")
    assert len(load("hf:some/birds/small").train) == 4


def test_files_of_no_known_split_are_left_out_beside_those_of_train(tmp_path, caplog):
    columns = {"image": hub_images(pixels(2)), "label": [0, 1]}
    for name in ("first", "second"):
        write_parquet(tmp_path / "plain" / f"{name}.parquet", columns)
    assert len(load(tmp_path / "plain").train) == 4  # none says what it is for
    for name in ("train", "dev", "contrast"):
        write_parquet(tmp_path / "named" / f"{name}-00000-of-00001.parquet", columns)
    made = load(tmp_path / "named")
    assert len(made.train) == 2 and len(made.val) == 2
    assert "files of no known split are left out: contrast-00000-of-00001.parquet" in caplog.text


def test_files_that_count_themselves_must_all_be_there(tmp_path):
    columns = {"image": hub_images(pixels(2)), "label": [0, 1]}
    for number in (0, 2):
        write_parquet(tmp_path / f"train-0000{number}-of-00003-ab12.parquet", columns)
    with pytest.raises(ValueError, match=r"of the 3 files train-\*-of-00003, 1 are missing: add them, or give"):
        load(tmp_path)
    assert len(load(tmp_path / "train-00002-of-00003-ab12.parquet").train) == 2
    write_parquet(tmp_path / "train-00001-of-00003-ab12.parquet", columns)
    assert len(load(tmp_path).train) == 6


def test_columns_of_lists_are_no_obstacle(tmp_path):
    features = hub_features("cat", "dog") | {"tags": [{"dtype": "string", "_type": "Value"}]}
    columns = {"image": hub_images(pixels(2)), "label": [0, 1], "tags": [["a"], []]}
    write_parquet(tmp_path / "train.parquet", columns, features)
    assert load(tmp_path).class_names == ("cat", "dog")


def test_a_failed_download_names_both_ways_out(monkeypatch):
    import huggingface_hub

    def snapshot_download(*args, **kwargs):
        raise OSError("Name or service not known\nmore")

    monkeypatch.delenv("VITREOUS_DATA", raising=False)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(ValueError, match=r"cannot download .*network.*VITREOUS_DATA") as caught:
        load("mnist")
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="write hf:owner/name"):
        load("hf:birds")


def test_real_mnist_is_read(real_data):
    mnist = load(real_data("mnist"))
    assert (len(mnist.train), len(mnist.test)) == (60_000, 10_000)
    assert mnist.train.labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert abs(mnist.train.images.array.mean() / 255 - 0.1307) < 1e-4


def test_real_cifar100_is_read_with_fine_labels(real_data):
    cifar = load(real_data("cifar100"))
    assert (len(cifar.train), len(cifar.test), len(cifar.class_names)) == (50_000, 10_000, 100)
    assert np.bincount(cifar.train.labels).tolist() == [500] * 100
    assert cifar.class_names[cifar.train.labels[0]] == "cattle" and cifar.train.images.shape == (3, 32, 32)


def test_real_photos_are_read(real_data):
    photos = load(real_data("pizza_steak_sushi"))
    assert photos.class_names == ("pizza", "steak", "sushi") and photos.train.images.shape is None
    assert np.bincount(photos.train.labels).tolist() == [78, 75, 72]
    assert np.bincount(photos.test.labels).tolist() == [25, 19, 31]
    assert read(photos.test.take(np.arange(2)), 3, 64).shape == (2, 3, 64, 64)


def test_linked_folders_are_read_once(tmp_path):
    write_folder(tmp_path / "x", {"a": 2, "b": 2})
    write_folder(tmp_path / "more", {"c": 3})
    for name, there in {"more": "more", "again": "more", "loop": "x/a"}.items():
        (tmp_path / "x" / "a" / name).symlink_to(tmp_path / there)
    assert load(tmp_path / "x").train.labels.tolist() == [0] * 5 + [1] * 2


def test_a_folder_that_cannot_be_listed_is_not_taken_for_empty(tmp_path, monkeypatch):
    """As root may list anything, the refusal is the system's in name only."""
    folder, scandir = write_images(tmp_path / "photos", 3), os.scandir

    def refuse(path):
        if os.fspath(path).endswith("bee"):
            raise PermissionError(13, "Permission denied", os.fspath(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(PermissionError, match="bee"):
        load(folder)


def test_files_of_a_split_are_not_joined_with_those_of_a_similar_name(tmp_path, caplog):
    for name in ("train-00000-of-00002-1f2e", "train-00001-of-00002-3d4c", "train_noisy-00000-of-00001", "test"):
        write_parquet(tmp_path / f"{name}.parquet", {"image": hub_images(pixels(4)), "label": [0, 1] * 2})
    found = load(tmp_path)
    assert (len(found.train), len(found.test)) == (8, 4)
    assert "files named only somewhat like train are left out: train_noisy-00000-of-00001.parquet" in caplog.text


def test_a_parquet_file_that_is_sorted_by_class_is_sampled_in_all_its_parts(tmp_path):
    """Gray images of the first class make no gray set."""
    gray, colour = pixels(6, 1), pixels(18, 3)
    columns = {"image": hub_images([*gray, *colour]), "label": [0] * 6 + [1] * 18}
    write_parquet(tmp_path / "x.parquet", columns, row_group_size=6)
    assert load(tmp_path / "x.parquet").train.images.shape == (3, 8, 8)


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n"


@pytest.mark.parametrize("within", [False, True])
def test_a_program_in_the_guise_of_a_picture_is_not_run(tmp_path, monkeypatch, within):
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *_, **__: pytest.fail("it was run"))
    fields = {(3, 20): b"\x00\x08", (3, 30): b"\x00\x08", (3, 60): b"\x01\x00", (3, 120): b"\x05"}
    fields |= {(8, 10): EPS}  # a picture within another
    wrapped = b"".join(b"\x1c" + bytes(key) + len(value).to_bytes(2, "big") + value for key, value in fields.items())
    assert Image.open(io.BytesIO(wrapped)).format == "IPTC"
    (tmp_path / "x.jpg").write_bytes(wrapped if within else EPS)
    images = FileImages([tmp_path / "x.jpg"])
    for ask in (lambda: images.read([0], Preprocess(image_size=8, mean=(0.5,), std=(0.5,))), lambda: images.shape):
        with pytest.raises(BrokenImage, match="not a JPEG, PNG"):
            ask()


@pytest.mark.parametrize("closed", ["bee", "."])
def test_folders_that_may_not_be_read_are_no_classes(tmp_path, monkeypatch, closed):
    """As root may read anything, the refusal is the system's in name only."""
    write_images(tmp_path, 1)
    asked = tmp_path / "ant" / "explanations", [tmp_path / "ant" / "000.png"]
    with pytest.raises(ValueError, match=r"lies within .*ant, the folder of a class"):
        check_apart(*asked)
    iterdir = Path.iterdir

    def refusing(path):
        if path == tmp_path / closed:
            raise PermissionError
        return iterdir(path)

    monkeypatch.setattr(Path, "iterdir", refusing)
    check_apart(*asked)
