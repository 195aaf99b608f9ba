"""Tables of images: which file, which class, which split."""

import logging
import os
import re
from pathlib import Path
from unicodedata import normalize

import numpy as np
import pytest
from image_samples import preprocess_of, write_folder

from vitreous.data.check import check, image_hashes, leaks
from vitreous.data.divide import groups_of
from vitreous.data.loaders import decode
from vitreous.data.sources import load
from vitreous.data.stores import BrokenImage
from vitreous.explain.explanations import MARK

FILES = [f"all/{i:03}.png" for i in range(4)]


@pytest.fixture
def photos(tmp_path):
    """A folder `photos` with all/000.png to all/003.png."""
    write_folder(tmp_path / "photos", {"all": 4})
    return tmp_path / "photos"


def write_table(folder, *lines, name="photos.csv", encoding="utf-8"):
    (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding=encoding)
    return folder / name


def test_a_table_gives_each_file_its_class_and_its_split(tmp_path):
    pixels = write_folder(tmp_path, {"all": 5})
    rows = ["test,all/003.png,dog", "train,all/002.png,dog", "Train,all/000.png,cat", "train,all/001.png,dog"]
    table = write_table(tmp_path, "split,file,label", *rows, "validation,all/004.png,cat")
    made = load(table)
    assert made.name == "photos" and made.source == str(table) and made.class_names == ("cat", "dog")
    labels = {name: split.labels.tolist() for name, split in made.splits.items()}
    assert labels == {"train": [0, 1, 1], "val": [0], "test": [1]}  # by file
    decoded = decode(made.train, preprocess_of())
    np.testing.assert_array_equal(decoded.images.array, pixels[[0, 1, 2]])
    again = load(write_table(tmp_path, "split,file,label", *rows[::-1], "validation,all/004.png,cat"))
    assert again.train.labels.tolist() == [0, 1, 1]  # however it was sorted when it was saved


@pytest.mark.parametrize("splits", [("train",) * 5, ("train", "train", "val", "test", "test")])
def test_a_file_that_is_listed_with_two_labels_is_named_with_its_rows(photos, splits):
    cells = zip([*FILES, FILES[1]], "ababc", splits, strict=True)
    told = r"photos\.csv: \S+/all/001\.png is 'b' in row 2 and 'c' in row 5 below the head: keep one of them$"
    with pytest.raises(ValueError, match=told):
        load(write_table(photos, "file,label,split", *map(",".join, cells)))


def test_a_file_that_is_listed_twice_is_told_as_that(photos):
    cells = zip([*FILES, FILES[1], FILES[0]], "ababba", ["train"] * 5 + ["test"], strict=True)
    made = load(write_table(photos, "file,label,split", *map(",".join, cells)))
    train, test = (decode(split, preprocess_of()) for split in (made.train, made.test))
    told = f"training images that are exact copies of others: 1, such as {photos}/{FILES[1]}, which is listed twice"
    assert told in check(made, train)
    told = f"1 of 1 test images are also in train, such as {photos}/{FILES[0]}, which is listed twice"
    assert leaks("test", test.images, train.images, image_hashes(train.images)) == told


@pytest.mark.parametrize(
    ("labels", "joined"),
    [("a b a|b b|a", "'a|b' joins others of 'label' and is read as a class of its own (2 such)"),
     ("a b a;b;a b", "'a;b;a' joins"), ('a b "a, b" b', "'a, b' joins"), ('a b "a, c" b', None), ("a| b a b|c", None),
     ('a b "a b" b', "'a b' joins"), ('a b "a c" b', None)],
)  # fmt: skip
def test_labels_that_join_others_are_told(photos, caplog, labels, joined):
    rows = [f"{file},{label}" for file, label in zip(FILES, re.findall(r'".*"|\S+', labels), strict=True)]
    assert len(load(write_table(photos, "file,label", *rows)).train) == 4
    assert (f"photos.csv: one label an image: {joined}" in caplog.text) if joined else not caplog.text


@pytest.mark.parametrize("name", ["all/{}.png", "all/{}", "{}.png", "{}", "../photos/all/{}.png", "{root}/all/{}.png"])
def test_files_are_found_by_path_and_by_name(photos, name):
    rows = [f"{name.format(f'{i:03}', root=photos)},{'ab'[i % 2]}" for i in range(4)]
    made = load(write_table(photos, "id,breed", *rows))
    found = [os.path.realpath(made.train.images.describe(row)) for row in range(4)]
    assert found == [os.path.realpath(photos / file) for file in FILES]
    assert made.train.labels.tolist() == [0, 1, 0, 1]


def test_a_dot_in_a_path_begins_no_suffix(photos):
    for row, file in enumerate(FILES[:2]):
        (photos / file).rename(photos / "all" / f"1.2.{row}.png")
    made = load(write_table(photos, "file,label", "all/1.2.0,a", "all/1.2.1,b"))
    assert [Path(made.train.images.describe(row)).name for row in range(2)] == ["1.2.0.png", "1.2.1.png"]


def test_a_path_goes_before_the_same_name_elsewhere(photos):
    write_folder(photos / "all" / "deeper", {"all": 1})
    made = load(write_table(photos, "file,label", *(f"{file},{'ab'[i % 2]}" for i, file in enumerate(FILES))))
    assert made.train.images.describe(0) == str(photos / "all" / "000.png")
    with pytest.raises(ValueError, match=r"'000' is any of \S+000\.png, \S+000\.png: write its path, or move the "):
        load(write_table(photos, "file,label", "000,a", "001,a", "002,b"))


@pytest.mark.parametrize(
    ("head", "label"),
    [
        ("file,x,Label", "Label"),
        ("file,x,label", "label"),
        ("file,label,category", "label"),
        ("file,category,label", "label"),
        ("file,x,class", "class"),
        ("file,x,category", "category"),
        (",file,y", "y"),
        ("Unnamed: 0,file,y", "y"),
    ],
)
def test_the_column_of_labels_is_known_by_its_name_or_as_the_only_one(photos, head, label):
    cells = {"file": FILES, label: ["p", "p", "q", "q"]}
    columns = [cells.get(name, ["0", "1", "2", "3"]) for name in head.split(",")]
    made = load(write_table(photos, head, *(",".join(row) for row in zip(*columns, strict=True))))
    assert made.class_names == ("p", "q") and made.train.labels.tolist() == [0, 0, 1, 1]


def test_a_column_behind_a_colon_holds_the_labels(photos):
    rows = [f"{file},{'ab'[i % 2]},{'pq'[i // 2]}" for i, file in enumerate(FILES)]
    table = write_table(photos, "file,label,age", *rows)
    assert load(str(table)).class_names == ("a", "b")
    made = load(f"{table}:age")
    assert made.class_names == ("p", "q") and made.train.labels.tolist() == [0, 0, 1, 1]
    assert made.source == f"{table}:age" and load(made.source).class_names == ("p", "q")
    for wrong in ("sex", "file"):
        with pytest.raises(
            ValueError, match=rf"photos\.csv has no column '{wrong}' of labels: it has file, label, age$"
        ):
            load(f"{table}:{wrong}")
    typed = write_table(photos, "file,dx:type", *(row.rpartition(",")[0] for row in rows), name="typed.csv")
    assert load(f"{typed}:dx:type").class_names == ("a", "b")
    odd = write_table(photos, "file,label", *(row.rpartition(",")[0] for row in rows), name="a:b.csv")
    assert load(str(odd)).class_names == ("a", "b")  # a file that is there goes first


def test_classes_that_are_numbers_go_by_their_value(photos):
    made = load(write_table(photos, "file,grade", *(f"{file},{(10, 9, 10, 2)[i]}" for i, file in enumerate(FILES))))
    assert made.class_names == ("2", "9", "10") and made.train.labels.tolist() == [2, 1, 2, 0]


@pytest.mark.parametrize(
    ("name", "mark", "encoding"),
    [("x.csv", ";", "utf-8"), ("x.tsv", "\t", "utf-8"), ("x.csv", ",", "utf-8-sig"), ("x.CSV", ";", "utf-8-sig")],
)
def test_the_tables_of_spreadsheets_are_read(photos, name, mark, encoding):
    rows = [f'"{file}"{mark} "é, ü"' if i % 2 else f"{file}{mark}b " for i, file in enumerate(FILES)]
    rows = [row.replace(f'{mark} "', f'{mark}"') for row in rows]
    made = load(write_table(photos, f"file{mark}label", *rows, "", name=name, encoding=encoding))
    assert made.class_names == ("b", "é, ü") and made.train.labels.tolist() == [0, 1, 0, 1]


def test_a_file_that_is_not_there_is_told_or_left_out(photos):
    table = write_table(photos, "file,label", *(f"{file},{'ab'[i % 2]}" for i, file in enumerate(FILES)), "gone.png,a")
    with pytest.raises(BrokenImage, match=r"photos/gone\.png: No such file"):
        decode(load(table).train, preprocess_of())
    assert decode(load(table).train, preprocess_of(), skip_broken=True).labels.tolist() == [0, 1, 0, 1]


def test_a_name_is_not_that_of_an_explanation(photos):
    write_folder(photos, {"explanations": 1})
    table = write_table(photos, "id,label", "000,a", "001.png,b", "002,b")
    with pytest.raises(ValueError, match=r"'000' is any of \S+/all/000\.png, \S+/explanations/000\.png: write its"):
        load(table)
    (photos / "explanations" / "000.json").write_text(f"{{{MARK}: 0.9}}")
    assert load(table).train.images.describe(0) == str(photos / FILES[0])


def test_a_missing_path_is_not_looked_for_elsewhere(photos, monkeypatch):
    monkeypatch.setattr("vitreous.data.tables.files_below", pytest.fail)
    lines = (f"{file},{'ab'[i % 2]}" for i, file in enumerate(FILES))
    assert len(load(write_table(photos, "file,label", *lines, "all/gone.png,a")).train) == len(FILES) + 1


@pytest.mark.parametrize("name", ["übung/é1.png", "é1.png", "é1", "übung/é1"])
@pytest.mark.parametrize(("stored", "listed"), [("NFD", "NFC"), ("NFC", "NFD")])
def test_a_name_is_found_in_either_form_of_its_letters(photos, name, stored, listed):
    folder = photos / normalize(stored, "übung")
    folder.mkdir()
    (photos / FILES[0]).rename(folder / normalize(stored, "é1.png"))
    made = load(write_table(photos, "file,label", f"{normalize(listed, name)},a", f"{FILES[1]},b"))
    assert made.train.images.missing() is None and made.train.labels.tolist() == [1, 0]
    assert set(groups_of(made.train.images, normalize(listed, "(übung|all)/"))) == {normalize("NFC", "übung"), "all"}


def test_a_colon_in_the_path_is_none_before_a_column(photos):
    folder = photos.rename(photos.parent / "10:30")
    table = write_table(folder, "file,label,age", *(f"{file},a,{i % 2}" for i, file in enumerate(FILES)))
    made = load(f"{table}:age")
    assert (made.class_names, made.label, made.source) == (("0", "1"), "age", f"{table}:age")


def test_images_of_another_split_are_not_opened(photos):
    """Those to test on are read once, after training, and those left out never."""
    rows = [f"{file},{'ab'[i % 2]},train" for i, file in enumerate(FILES)]
    made = load(write_table(photos, "file,label,split", *rows, "gone.png,a,test"))
    assert len(made.train.images.whole()) == 4 and len(made.test.images.whole()) == 1  # which `decode` reads all of
    with pytest.raises(BrokenImage, match=r"photos/gone\.png: No such file"):
        decode(made.test, preprocess_of())


def test_some_files_may_be_called_by_path_and_others_by_name(photos):
    (photos / "all" / "000.png").rename(photos / "top.png")
    made = load(write_table(photos, "file,label", "top.png,a", "001.png,b", "002,a", "gone.png,b"))
    found = [os.path.relpath(made.train.images.describe(row), photos) for row in range(4)]
    assert sorted(found) == ["all/001.png", "all/002.png", "gone.png", "top.png"]


def test_a_table_that_is_called_tsv_is_cut_at_tabs(photos):
    rows = [f"{file}\t{'ab'[i % 2]}" for i, file in enumerate(FILES)]
    table = write_table(photos, "file\tlabel (a, or b, or both)", *rows).rename(photos / "photos.tsv")
    assert load(f"{table}:label (a, or b, or both)").class_names == ("a", "b")


def test_a_split_without_labels_is_left_out(photos, caplog):
    rows = [
        f"{file},{label},{'test' if i == 3 else 'train'}"
        for i, (file, label) in enumerate(zip(FILES, "aab", strict=False))
    ]
    with caplog.at_level(logging.WARNING, "vitreous"):
        made = load(write_table(photos, "file,label,split", *rows, "all/003.png,,test"))
    assert made.test is None and len(made.train) == 3 and "test has no labels: left out" in caplog.text


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([], "has no rows below a first line that names its columns, such as file,label$"),
        (["file,label"], "has no rows below a first line that names its columns, such as file,label$"),
        (["all/000.png,a", "all/001.png,b"], r"which of all/000\.png, a is the file of an image\?"),
        (["file,label", "x/0.png,a", "x/1.png,b"], r"no 'file' is found, such as x/0\.png: write paths from "),
        (["file,p,q", "000,1,2", "001,1,2"], r"which of p, q is the label of an image\? name it, as in photos\.csv:p$"),
        (["file,MEL,NV", "000,1.0,0.0", "001,0.0,1.0"], r"has columns of 0 and 1, MEL, NV: if each is a class, give "
         r"one column .*; if one column alone is the label, name it, as in photos\.csv:MEL$"),
        (["file", "000", "001"], "has no column of labels beside 'file': add one$"),
        (["file,label", "000,a", "001,", "002,b"], r"\S+001\.png has no 'label': add it, or leave the row out$"),
        (["file,label", "000,a,3", "001,a"], "has 2 columns, but 3 in the row of 000: mend the row"),
        (["file,label", "000,a", "001,a", ",b"], "1 rows have no 'file': add it, or leave the rows out$"),
        (["file,label,Label", "000,a,b"], "has several columns 'label': rename all but one of them$"),
        (["file,label", '000,"a', "001,b"], "unexpected end of data in line 3: mend its quotes$"),
        (["a,b,label", "000,001,x", "002,003,y"], r"which of a, b, label is the file of an image\? call one of "),
        (["file,label,split", "000,a,tset", "001,a,train"], r"split 'tset' of \S+000\.png is none of train, "),
        (["file,label,split", "000,a,test", "001,a,val"], "has rows of test and val, and none of train"),
    ],
)  # fmt: skip
def test_a_table_that_is_no_set_says_why(photos, lines, reason):
    with pytest.raises(ValueError, match=rf"photos\.csv:? {reason}"):
        load(write_table(photos, *lines))


def test_a_table_that_is_not_utf8_says_so(photos):
    with pytest.raises(ValueError, match=r"photos\.csv is not UTF-8: save it as that$"):
        load(write_table(photos, "file,label", "000,é", "001,b", encoding="latin-1"))


@pytest.mark.parametrize(
    ("head", "rows"),
    [
        ("mask_path,image_path,label", "all/003.png,all/{i:03}.png,{c}"),
        ("row,Image_ID,label", "{j:03},{i:03}.png,{c}"),
        ("label,id", "{c},{i:03}"),
        ("path,label", "all/{i:03}.png,{c}"),
        ("image,label", "{i:03},{c}"),
        ("id,file,label", "{j:03},{i:03},{c}"),
        ("Image,File name,Fine Label", "{j:03},{i:03},{c}"),
        ("sep=;\nfile;label", "{i:03};{c}"),
        ("sep=|\nfile|label", "{i:03}|{c}"),
        ("\n\nfile;label", "{i:03};{c}"),
    ],
)
def test_the_column_of_files_is_known_by_its_name(photos, head, rows):
    lines = [rows.format(i=i, j=3 - i, c="ab"[i % 2]) for i in range(4)]
    made = load(write_table(photos, head, *lines))
    assert [made.train.images.describe(row) for row in range(4)] == [str(photos / file) for file in FILES]
    assert made.train.labels.tolist() == [0, 1, 0, 1]


def test_a_column_of_splits_that_is_called_otherwise_is_not_passed_over(photos):
    rows = [f"{file},{'ab'[i % 2]},{'train' if i < 2 else 'valid'}" for i, file in enumerate(FILES)]
    with pytest.raises(
        ValueError, match=r"photos\.csv: 'data set' tells what images are for training: call it 'split'"
    ):
        load(write_table(photos, "file,labels,data set", *rows))
    made = load(write_table(photos, "file,labels,Split,data set", *(f"{row},train" for row in rows)))
    assert len(made.train) == len(made.val) == 2 and made.test is None
    assert (
        len(load(write_table(photos, "file,label,split", *(f"{file},a{file[-5]},test" for file in FILES))).train) == 4
    )


def test_what_says_nothing_cannot_be_held_out_together(photos):
    rows = [f"{file},{'ab'[i % 2]},{'p' * (i > 0)}" for i, file in enumerate(FILES)]
    made = load(f"{write_table(photos, 'file,breed,patient', *rows)}:breed")
    with pytest.raises(ValueError, match=r"^images without 'patient', as data.group asks for: 1; fill it in$"):
        made.with_validation(0.3, group="patient")


def test_a_linked_table_speaks_of_what_lies_beside_the_link(photos, tmp_path):
    rows = [f"{file},{'ab'[i % 2]}" for i, file in enumerate(FILES)]
    (tmp_path / "cache").mkdir()
    (photos / "labels.csv").symlink_to(write_table(tmp_path / "cache", "file,label", *rows, name="3f"))
    made = load(photos / "labels.csv")
    assert len(made.train) == 4 and made.source == str(photos / "labels.csv") and made.name == "photos"


def test_a_column_may_say_what_belongs_together(photos):
    write_folder(photos / "more", {"some": 8}, seed=9)
    files = [*FILES, *(f"more/some/{i:03}.png" for i in range(8))]
    rows = [f"{file},{'ab'[i % 2]},p{i // 4}{'ab'[i % 2]},v{i}" for i, file in enumerate(files)]  # six patients of two
    made = load(f"{write_table(photos, 'file,breed,patient,visit', *rows)}:breed")
    kept = made.with_validation(0.3, group="patient")
    sides = [set(split.images.column("patient")) for split in (kept.train, kept.val)]
    assert len(sides[0]) == 4 and len(sides[1]) == 2 and not sides[0] & sides[1]
    few = made.with_validation(0.1, group="visit")  # ten parts are more than a class has images
    assert len(few.val) == 2 and len(few.train) == 10
    assert made.train.images.column("doctor") is None
    decoded = decode(made.train, preprocess_of()).images
    np.testing.assert_array_equal(decoded.column("patient"), made.train.images.column("patient"))
    assert decoded.column("doctor") is None


def test_a_column_of_folds_is_kept_as_it_is_if_they_are_taken_for_groups(photos):
    write_folder(photos / "more", {"some": 36}, seed=9)
    files = [f"more/some/{i:03}.png" for i in range(36)]
    rows = [f"{file},{'aab'[i % 3]},{(i // 3) ** 2 % 5}" for i, file in enumerate(files)]  # 0, 1 and 4, of unequal size
    made = load(write_table(photos, "file,label,fold", *rows))
    held = [made.with_fold(k, 3, seed, "fold").test.images.column("fold") for seed in (0, 1) for k in (1, 2, 3)]
    assert [len(set(fold)) for fold in held] == [1] * 6 and {fold[0] for fold in held[:3]} == {"0", "1", "4"}


def test_a_column_is_refused_where_there_are_none(photos):
    with pytest.raises(
        ValueError, match=r"^digits has no columns, as parquet files and tables do: leave out ':label'$"
    ):
        load("digits:label")
    write_folder(photos / "sorted", {"a": 1, "b": 1})
    with pytest.raises(ValueError, match=r"sorted has no columns, as parquet files and tables do: leave out ':label'$"):
        load(f"{photos / 'sorted'}:label")
