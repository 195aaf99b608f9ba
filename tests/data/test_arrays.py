"""Image sets in .npz files."""

import numpy as np
import pytest
from image_samples import pixels

from vitreous.data.sources import load

GRAY = pixels(6, 1)[:, 0]  # (6, 8, 8)
NUMBERS = np.array([0, 1, 2, 0, 1, 2])
WORDS = np.array(["cod", "ant", "bee", "cod", "ant", "bee"])


@pytest.mark.parametrize(
    ("images", "labels"), [("{}_images", "{}_labels"), ("x_{}", "y_{}"), ("X{}", "Y{}"), ("data {}", "targets {}")]
)
def test_names_of_arrays_tell_their_split_and_kind(tmp_path, images, labels):
    splits = ("train", "val", "test")
    if images == "X{}":
        splits = ("",)  # for training
    arrays = {images.format(split): GRAY + n for n, split in enumerate(splits)}
    arrays |= {labels.format(split): NUMBERS[:, None] for split in splits}  # a column, as MedMNIST has them
    np.savez_compressed(tmp_path / "organs.npz", **arrays)
    made = load(tmp_path / "organs.npz")
    assert (made.name, made.source) == ("organs", str(tmp_path / "organs.npz"))
    assert made.class_names == ("0", "1", "2") and len(made.splits) == len(splits)
    for n, split in enumerate(made.splits.values()):
        np.testing.assert_array_equal(split.images.array[:, 0], GRAY + n)
        assert split.labels.tolist() == NUMBERS.tolist()


@pytest.mark.parametrize("kind", ["U", "S"])
def test_labels_may_be_words(tmp_path, kind):
    np.savez(tmp_path / "x.npz", x_train=GRAY, y_train=WORDS.astype(kind), x_test=GRAY[:2], y_test=WORDS[1:3])
    made = load(tmp_path / "x.npz")
    assert made.class_names == ("ant", "bee", "cod")
    assert made.train.labels.tolist() == [2, 0, 1, 2, 0, 1] and made.test.labels.tolist() == [0, 1]


def test_other_arrays_are_left_out_and_told(tmp_path, caplog):
    np.savez(tmp_path / "x.npz", images=GRAY, labels=NUMBERS, ages=NUMBERS, image_labels=NUMBERS)
    assert len(load(tmp_path / "x.npz").train) == 6
    said = "is left out: its name does not say that it is images, or labels"
    assert caplog.messages == [f"{tmp_path / 'x.npz'}: array '{key}' {said}" for key in ("ages", "image_labels")]


def test_test_images_without_labels_are_left_out(tmp_path, caplog):
    np.savez(tmp_path / "x.npz", x_train=GRAY, y_train=NUMBERS, x_test=GRAY, y_test=np.full(6, -1))
    assert load(tmp_path / "x.npz").test is None
    assert caplog.messages == [f"{tmp_path / 'x.npz'}: test has no labels: left out"]


def test_class_names_may_be_the_bytes_of_utf_8(tmp_path):
    words = np.where(WORDS == "cod", "caf\u00e9", WORDS)
    np.savez(tmp_path / "x.npz", images=GRAY, labels=np.char.encode(words, "utf-8"))
    made = load(tmp_path / "x.npz")
    assert [made.class_names[label] for label in made.train.labels] == words.tolist()
    np.savez(tmp_path / "x.npz", images=GRAY, labels=np.char.encode(words, "latin-1"))
    with pytest.raises(ValueError, match=r"x\.npz: train has class names that are not UTF-8: save them as text$"):
        load(tmp_path / "x.npz")


def test_volumes_are_told_to_be_read_as_images_of_many_channels(tmp_path, caplog):
    np.savez(tmp_path / "x.npz", images=np.zeros((6, 8, 8, 8), np.uint8), labels=NUMBERS)
    assert load(tmp_path / "x.npz").train.images.channels == 8
    assert caplog.messages == [f"{tmp_path / 'x.npz'}: volumes of 8 x 8 x 8 are read as images of 8 channels"]
    caplog.clear()
    np.savez(tmp_path / "x.npz", images=np.zeros((6, 8, 9, 8), np.uint8), labels=NUMBERS)
    assert load(tmp_path / "x.npz").train.images.channels == 8 and not caplog.messages


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"a": GRAY, "b": NUMBERS}, "holds a, b: name its arrays train_images and train_labels, and those for val and"),
        ({"x_test": GRAY, "y_test": NUMBERS}, "holds x_test, y_test: name its arrays train_images"),
        ({"x_train": GRAY}, "has no labels beside 'x_train': add an array train_labels"),
        ({"x": GRAY, "y": NUMBERS, "y_val": NUMBERS}, "has no images beside 'y_val': add an array val_images"),
        ({"x": GRAY, "train_images": GRAY, "y": NUMBERS}, "'x' and 'train_images' are both train images: keep one"),
        ({"x": GRAY * 1.0, "y": NUMBERS}, "give uint8, or floats in 0..1"),
        ({"x": GRAY, "y": np.eye(3)[NUMBERS]}, "train labels are float64 (6, 3): give one integer an image"),
        ({"x": GRAY, "y": WORDS.astype(object)}, "is no npz file of plain arrays, or a damaged one: Object arrays"),
    ],
)
def test_arrays_that_make_no_set_are_named(tmp_path, arrays, said):
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(ValueError) as caught:
        load(tmp_path / "x.npz")
    assert said in str(caught.value)


def test_damaged_and_other_files_are_told(tmp_path):
    np.savez_compressed(tmp_path / "x.npz", images=GRAY, labels=NUMBERS)
    content = (tmp_path / "x.npz").read_bytes()
    np.save(tmp_path / "x.npy", GRAY)
    changed, unknown = bytearray(content), bytearray(content)
    changed[90:110] = bytes(20)
    unknown[content.index(b"PK\1\2") + 10] = 99  # another method of compression
    for damaged in (b"", b"hello", content[:100], changed, unknown, (tmp_path / "x.npy").read_bytes()):
        (tmp_path / "x.npz").write_bytes(damaged)
        with pytest.raises(ValueError, match=r"x\.npz is no npz file of plain arrays, or a damaged one: "):
            load(tmp_path / "x.npz")
    np.savez(tmp_path / "x.npz", images=GRAY, labels=NUMBERS)
    with pytest.raises(ValueError, match="has no columns"):
        load(f"{tmp_path / 'x.npz'}:labels")
