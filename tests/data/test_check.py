"""Findings and the summary of a set."""

import numpy as np
import pytest
from image_samples import pixels, preprocess_of, to_image, write_folder
from PIL import Image

from vitreous.data import loaders
from vitreous.data.check import check, differs, image_hashes, leaks, summary
from vitreous.data.divide import groups_of
from vitreous.data.images import ImageSet, Split
from vitreous.data.loaders import Batches, decode
from vitreous.data.sources import load
from vitreous.data.stores import FileImages


def balanced(images, **splits):
    labels = np.arange(len(images)) % 2
    return ImageSet.from_arrays(images, labels, class_names=["cat", "dog"], **splits)


def test_a_clean_set_has_no_findings():
    made = balanced(pixels(40), test=(pixels(4, seed=1), [0, 1, 0, 1]))
    assert check(made, made.train) == []
    assert leaks("test", made.test.images, made.train.images, image_hashes(made.train.images)) == ""


def test_an_accent_of_its_own_makes_no_other_class():
    images, labels = pixels(4), [0, 1, 0, 1]
    before = ImageSet.from_arrays(images, labels, class_names=["ant", "caf\u00e9"])
    for name, other in (("cafe\u0301", False), ("cafe", True)):
        now = ImageSet.from_arrays(images, labels, class_names=["ant", name])
        assert differs(now, summary(before, before.train)) is other


def test_test_images_that_come_or_go_change_no_training():
    with_test, without = balanced(pixels(40), test=(pixels(4, seed=1), [0, 1, 0, 1])), balanced(pixels(40))
    for before, now in ((with_test, without), (without, with_test)):
        record = summary(before, before.train)
        assert differs(now, record) and not differs(now, record, test=False)
    assert differs(balanced(pixels(38)), summary(without, without.train), test=False)


def test_copies_and_conflicting_labels_are_counted():
    images = pixels(40)
    images[20] = images[4]  # cat and cat
    images[7] = images[30]  # dog and cat
    made = balanced(images)
    assert check(made, made.train) == [
        "training images that are exact copies of others: 2, such as row 20 = row 4",
        "copies of another label than their original: 1, such as row 30 ('cat') = row 7 ('dog')",
    ]


def test_leaks_from_validation_and_test_into_train_are_counted():
    images = pixels(60)
    made = balanced(images[:40], val=(images[[40, 3]], [0, 1]), test=(images[[41, 5, 9]], [0, 1, 1]))
    assert "1 of 2 validation images are also in train, such as row 1 = row 3" in check(made, made.train, made.val)
    told = leaks("test", made.test.images, made.train.images, image_hashes(made.train.images))
    assert told == "2 of 3 test images are also in train, such as row 1 = row 5"


@pytest.mark.parametrize(("count", "told"), [(29, True), (30, False)])
def test_an_epoch_chosen_by_few_images_is_told(count, told):
    images = pixels(40 + count)
    made = balanced(images[:40], val=(images[40:], np.arange(count) % 2))
    sentence = f"the epoch to keep is chosen by {count} validation images, which is largely chance: hold out more or "
    assert [finding.startswith(sentence) for finding in check(made, made.train, made.val)] == [True] * told
    assert check(made, made.train, made.val, best_by=None) == []


def test_a_class_that_does_not_validate_is_told():
    images = pixels(80)
    made = balanced(images[:40], val=(images[40:], [1] * 40))
    told = ["no validation image of class 'cat': the epoch to keep is chosen without it"]
    assert check(made, made.train, made.val) == told
    assert check(made, made.train, made.val, best_by=None) == []


def test_names_of_which_few_count_series_suggest_none(tmp_path):
    names = [tmp_path / "ab"[i % 2] / f"slide{i // 4:02}_field{i}.tif" for i in range(24)]
    for more, told in ((8, True), (48, False)):
        all_names = names + [tmp_path / "ab"[i % 2] / f"{i}a{i}.tif" for i in range(100, 100 + more)]
        split = Split(FileImages(all_names, root=tmp_path), np.arange(len(all_names)) % 2)
        made = ImageSet("x", "x", ("a", "b"), split)
        assert any("the names count" in finding for finding in check(made, made.train)) is told


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("slide{slide:02}_field{i}.tif", True),
        ("{slide}-2/x{i:03}.png", False),  # a folder's number
        ("n0144{label}_{i}.png", False),  # one series a class
        ("{i:05}.png", False),
        ("{i}a{i}.png", False),  # each its own
    ],
)
def test_names_that_count_series_suggest_groups(tmp_path, name, told):
    names, labels = [], []
    for i in range(48):  # slides of four images each, with both classes on them
        names.append(tmp_path / "ab"[i % 2] / name.format(slide=i // 4, label=i % 2, i=i))
        labels.append(i % 2)
    made = ImageSet("x", "x", ("a", "b"), Split(FileImages(names, root=tmp_path), np.array(labels)))
    findings = check(made, made.train)[:-1]  # the last one: nothing is decoded here
    assert len(findings) == told
    if told:
        assert findings[0].startswith("the names count 12 series, such as slide00_field (4 images): if each shows one")
        pattern = findings[0].partition("data.group='")[2].partition("'")[0]
        assert groups_of(made.train.images, pattern).tolist() == [f"slide{i // 4:02}_field" for i in range(48)]
        assert len(check(made, made.train, group=pattern)) == 1
        columns = {"lab": list("ab") * 24, "the slide": [str(i // 4) for i in range(48)]}
        named = ImageSet("x", "x", ("a", "b"), Split(FileImages(names, columns, tmp_path), np.array(labels)))
        assert "by data.group='the slide', or" in check(named, named.train)[0]
        columns["the slide"][0] = "1"  # which no longer divides as the names do
        assert "the slide" not in check(named, named.train)[0]


def test_series_are_told_where_images_held_out_tore_them(tmp_path):
    """What is left of two images of a patient is one."""
    names = [tmp_path / f"p{i // 2:03}_{i % 2}.jpg" for i in range(80)]
    images, labels = FileImages(names, root=tmp_path), np.arange(80) // 2 % 2
    kept = np.arange(0, 80, 2)
    made = ImageSet("x", "x", ("a", "b"), Split(images.take(kept), labels[kept]))
    assert check(made, made.train)[0].startswith("the names count 40 series, such as p000_ (2 images)")


def test_imbalance_and_rare_classes_are_named():
    made = ImageSet.from_arrays(pixels(40), [0] * 31 + [1] * 9, class_names=["cat", "dog"])
    assert check(made, made.train, balance="weights") == [
        "classes are unbalanced: 31 training images of 'cat', 9 of 'dog'",
        "1 class has fewer than 10 training images: 'dog' (9)",
    ]
    even = ImageSet.from_arrays(pixels(40), [0] * 30 + [1] * 10)
    assert check(even, even.train) == []


@pytest.mark.parametrize(("balance", "told"), [("none", True), ("weights", False), ("sampling", False)])
def test_imbalance_is_told_with_a_way_out_where_none_was_taken(balance, told):
    made = ImageSet.from_arrays(pixels(80), [0] * 68 + [1] * 12, class_names=["cat", "dog"])
    (finding,) = check(made, made.train, balance=balance)
    assert finding.endswith("12 of 'dog'; data.balance=weights makes them count the same") == told


@pytest.mark.parametrize("best_by", ["top1", "loss", "recall_macro", "f1_macro", None])
def test_an_epoch_chosen_by_what_balancing_leaves_alone_is_told(best_by):
    images = pixels(140)
    made = ImageSet.from_arrays(
        images[:80], [0] * 68 + [1] * 12, val=(images[80:], [0] * 50 + [1] * 10), class_names=["cat", "dog"]
    )
    found = check(made, made.train, made.val, best_by=best_by, balance="sampling")
    told = f"best_by={best_by} chooses the epoch to keep by a figure in which small classes hardly count: best_by=recal"
    assert [finding.startswith(told) for finding in found[1:]] == [True] * (best_by in ("top1", "loss"))
    assert len(check(made, made.train, made.val, best_by=best_by)) == 1
    assert len(check(made, made.train, best_by=best_by, balance="sampling")) == 1  # the last step is kept


def test_groups_that_a_set_brings_on_both_sides_are_named(tmp_path):
    for place in ("train/cat/p1_0", "train/cat/p2_0", "train/dog/p3_0", "test/cat/p2_1", "test/dog/x"):
        file = tmp_path / f"{place}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((8, 8), 80).save(file)
    made = load(tmp_path)
    assert not [finding for finding in check(made, made.train, group="(p.*)_") if "groups" in finding]  # x has none
    (tmp_path / "test" / "dog" / "x.png").rename(tmp_path / "test" / "dog" / "p5_0.png")
    made = load(tmp_path)
    (finding,) = [finding for finding in check(made, made.train, group="(p.*)_") if "groups" in finding]
    assert finding.startswith("groups of data.group '(p.*)_' with images in train and in test: 1, such as p2;")
    assert not [finding for finding in check(made, made.train) if "groups" in finding]


def test_a_group_that_some_paths_match_otherwise_is_refused(tmp_path):
    for name in ("patient1_a", "patient1_b", "control2_a", "control2_b"):
        file = tmp_path / name[-1] / f"{name}.png"
        file.parent.mkdir(exist_ok=True)
        Image.effect_noise((8, 8), 80).save(file)
    images = load(tmp_path).train.images
    assert set(groups_of(images, r"((?:patient|control)\d+)")) == {"patient1", "control2"}
    with pytest.raises(
        ValueError, match=r"finds something in \S+control2_a\.png, but not by its first pair of brackets"
    ):
        groups_of(images, r"patient(\d+)|control(\d+)")
    with pytest.raises(ValueError, match=r"^data\.group '\(' is neither a column nor a regular expression: missing \)"):
        groups_of(images, "(")


def test_classes_that_read_alike_are_named():
    names = ["Cat", "cat", "caf\u00e9", "cafe\u0301", "dog", "dog house"]
    made = ImageSet.from_arrays(pixels(60), np.arange(60) % 6, class_names=names)
    assert check(made, made.train) == [
        "'Cat' and 'cat' are two classes: if they are one, give them one name",
        "'caf\u00e9' and 'cafe\u0301' are two classes: if they are one, give them one name",
    ]


def test_levels_of_twelve_bits_in_files_of_sixteen_are_noticed(tmp_path):
    levels = np.random.default_rng(0).integers(0, 4096, (20, 8, 8), np.uint16)
    levels[3, 0, 0] = 65535 // 5  # a speck, that nothing hides behind
    for factor, told in {1: True, 4: True, 5: False}.items():  # 12 bits, 14 bits, and stretched somewhat
        for i, image in enumerate(levels * factor):
            file = tmp_path / str(factor) / "ab"[i % 2] / f"{i}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(file)
        image_set = load(tmp_path / str(factor))
        findings = check(image_set, Batches(image_set.train, preprocess_of(channels=1), batch_size=8))
        brightest = round(np.median(np.rint(levels.max(axis=(1, 2)) * (factor / 257))))
        assert (f"in half of 20 images no pixel is brighter than {brightest} of 255" in "".join(findings)) == told
        if told:
            white = preprocess_of(channels=1, white=4095 * factor)
            assert "brighter than" not in "".join(check(image_set, Batches(image_set.train, white, batch_size=8)))
            assert findings[-1].endswith("give their white, data.white=4095 or 16383")
            dark = Batches(image_set.train, preprocess_of(channels=1), batch_size=8)
            assert check(image_set, dark, white=65535.0)[-1].endswith("so few gray levels are left")


@pytest.mark.parametrize("white", [None, 4095.0])
def test_the_way_out_for_dark_images_is_one_for_their_channels(tmp_path, white):
    for name, mode in (("gray", "L"), ("colour", "RGB")):
        for i in range(20):
            file = tmp_path / name / "ab"[i % 2] / f"{i}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.effect_noise((8, 8), 80).point(lambda level: level // 16).convert(mode).save(file)
    for name, said in {"gray": ", data.white=4095 or 16383", "colour": ", scale them to 8 bits before"}.items():
        image_set = load(tmp_path / name)
        (finding,) = check(image_set, Batches(image_set.train, preprocess_of(), batch_size=8), white=white)
        assert finding.endswith("gray levels are left" if white and name == "gray" else said)


def test_findings_name_the_files(tmp_path):
    write_folder(tmp_path, {"a": 20, "b": 20})
    (tmp_path / "b" / "x.png").write_bytes((tmp_path / "a" / "003.png").read_bytes())
    image_set = load(tmp_path)
    findings = check(image_set, Batches(image_set.train, preprocess_of(), batch_size=8))
    assert findings[0].endswith(f"such as {tmp_path / 'b' / 'x.png'} = {tmp_path / 'a' / '003.png'}")


def test_files_of_several_pages_are_named(tmp_path):
    folder = tmp_path / "photos"
    write_folder(folder, {"a": 20, "b": 20})
    pages = [to_image(array) for array in pixels(3, seed=9)]
    pages[0].save(folder / "b" / "stack.tif", save_all=True, append_images=pages[1:])
    image_set = load(folder)
    findings = check(image_set, Batches(image_set.train, preprocess_of(), batch_size=8))
    stack = folder / "b" / "stack.tif"
    assert findings == [f"only the first page of multi-page files is read, such as {stack}"]
    stack.unlink()
    pages[0].save(folder / "b" / "camera.jpg", "MPO", save_all=True, append_images=pages[1:])  # with a preview
    image_set = load(folder)
    assert check(image_set, Batches(image_set.train, preprocess_of(), batch_size=8)) == []


def test_images_that_are_decoded_batch_by_batch_are_not_searched_for_copies_and_it_is_said(tmp_path, monkeypatch):
    write_folder(tmp_path, {"a": 9, "b": 20})
    monkeypatch.setattr(loaders, "IN_MEMORY", 0)
    monkeypatch.setattr(loaders, "_cache_file", lambda *_: None)
    image_set = load(tmp_path).with_validation(0.1)
    options = {"batch_size": 8, "memory_budget": 0}
    train, val = (Batches(part, preprocess_of(), **options) for part in (image_set.train, image_set.val))
    assert check(image_set, train, val) == [
        "1 class has fewer than 10 training images: 'a' (8)",
        "the epoch to keep is chosen by 3 validation images, which is largely chance: hold out more or none "
        "(data.val_fraction), or cross-validate (--folds)",
        "copies were not looked for, as the decoded images are not kept",
    ]


def test_groups_of_one_image_each_are_told(tmp_path):
    write_folder(tmp_path, {"a": 20, "b": 20})
    image_set = load(tmp_path)
    batches = Batches(image_set.train, preprocess_of(), batch_size=8)
    assert check(image_set, batches, group=r"(\d)\d\.png$") == []
    told = [r"data.group '\w+/\d+\.png' makes a group of each image, and so keeps none together"]
    assert check(image_set, batches, group=r"\w+/\d+\.png") == told


def test_the_test_split_is_not_read_unless_given(tmp_path, monkeypatch):
    write_folder(tmp_path / "train", {"a": 10, "b": 10})
    write_folder(tmp_path / "test", {"a": 2, "b": 2})
    image_set = load(tmp_path)
    decoded = decode(image_set.train, preprocess_of())
    monkeypatch.setattr(type(image_set.test.images), "read", None)
    assert check(image_set, decoded) == []
    assert set(summary(image_set, decoded)["hash"]) == {"train"}


def test_the_summary_counts_and_hashes():
    made = balanced(pixels(40), test=(pixels(3), [0, 1, 1]))
    facts = summary(made, made.train)
    assert facts["counts"] == {"train": 40, "test": 3} and facts["classes"] == ["cat", "dog"]
    assert facts["per_class"] == {"train": [20, 20], "test": [1, 2]} and facts["source"] == "arrays"
    assert len(facts["hash"]["train"]) == 64 and summary(made, made.train) == facts
    other = pixels(40)
    other[39, 2, 7, 7] ^= 1
    changed = balanced(other)
    assert summary(changed, changed.train)["hash"] != facts["hash"]
    swapped = ImageSet.from_arrays(pixels(40), 1 - made.train.labels)
    assert summary(swapped, swapped.train)["hash"] != facts["hash"]


def test_a_batches_object_is_checked_as_its_split_is():
    images = pixels(40)
    images[20] = images[4]
    made = balanced(images)
    batches = Batches(made.train, preprocess_of(), batch_size=8)
    assert check(made, batches) == check(made, made.train) != []
    assert summary(made, batches) == summary(made, made.train)
