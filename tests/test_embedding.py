"""Features are what the head reads; neighbours are the nearest by cosine, and no image is its own."""

import math
from functools import partial

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from tiny import CLASSES, stripes, tiny_bundle, tiny_set, write_images

from vitreous.data.sources import load
from vitreous.embedding import (
    Features,
    embed_image,
    embed_split,
    find_nearest,
    knn_accuracy,
    load_features,
    write_parquet,
)
from vitreous.recipe import DataOptions


def features(rows, labels, classes=3):
    return Features(torch.tensor(rows), torch.tensor(labels), CLASSES[:classes], [str(i) for i in range(len(rows))])


def test_features_are_what_the_head_reads():
    bundle, pixels = tiny_bundle(), stripes(12, seed=1)[0]
    own = embed_split(bundle, tiny_set(), "test", device="cpu", precision="float32")
    with torch.inference_mode():
        logits = bundle.model(bundle.preprocess.normalise(torch.from_numpy(pixels)))
        torch.testing.assert_close(bundle.model.head(own.features), logits, rtol=0, atol=1e-5)
    assert own.features.shape == (12, 16) and own.labels.tolist() == [i % 3 for i in range(12)]


def test_runs_and_data_may_be_named_and_splits_that_there_are_not_are_told(tmp_path):
    tiny_bundle().save(tmp_path / "model")
    photos = write_images(tmp_path / "photos", 4)
    named = embed_split(tmp_path, str(photos), device="cpu", precision="float32")
    given = embed_split(tiny_bundle(), load(photos), device="cpu", precision="float32")
    assert torch.equal(named.features, given.features) and len(named.labels) == 12
    with pytest.raises(ValueError, match=r"has no split 'val': use train$"):
        embed_split(tmp_path, photos, "val")


def test_no_image_is_its_own_neighbour():
    pair = features([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]], [0, 1, 0, 1])
    assert knn_accuracy(pair, k=1) == 0.0  # each is nearest to one of the other class
    assert knn_accuracy(pair, pair, k=1) == 1.0  # among others, where it is found itself
    with pytest.raises(ValueError, match="one image has no neighbours"):
        knn_accuracy(features([[1.0]], [0]))


def test_neighbours_are_nearest_by_angle_and_vote_by_nearness():
    among = features([[9.0, 0.0], [0.0, 0.1], [0.7, 0.7], [0.6, 0.7]], [0, 1, 2, 2])
    assert [row for row, _ in find_nearest(torch.tensor([0.0, 5.0]), among, 3)] == [1, 3, 2]
    assert find_nearest(torch.tensor([0.0, 5.0]), among, 1)[0][1] == pytest.approx(1.0)
    query = features([[0.0, 5.0], [5.0, 0.0]], [1, 0])
    assert knn_accuracy(query, among, k=3) == knn_accuracy(query, among, k=99) == 1.0  # one near outvotes two far ones


def test_neighbours_vote_for_classes_by_their_names():
    own = features([[0.0, 5.0], [5.0, 0.0]], [0, 1], 2)._replace(class_names=("bee", "caf\u00e9"))
    rows = [[9.0, 0.0], [0.0, 0.1], [-1.0, 0.1]]
    among = features(rows, [2, 1, 0])._replace(class_names=("ant", "bee", "cafe\u0301"))  # one more, sorted first
    assert knn_accuracy(own, among, k=1) == knn_accuracy(own, among, k=3) == 1.0
    assert knn_accuracy(own, among._replace(class_names=("bee", "ant", "cat")), k=1) == 0.0  # none of them right


@pytest.mark.parametrize(("angle", "share"), [(0.346, 1.0), (0.283, 0.0)])
def test_a_neighbour_has_a_vote_by_a_temperature_of_0_07(angle, share):
    """Two neighbours of cosine 0.94 have 0.85 votes of one that is the image itself, two of 0.96 have 1.13."""
    away = [math.cos(angle), math.sin(angle)]
    among = features([[1.0, 0.0], away, [away[0], -away[1]]], [0, 1, 1])
    assert knn_accuracy(features([[1.0, 0.0]], [0]), among, k=3) == share


def test_images_of_one_group_are_no_neighbours():
    rows, labels = [[1.0, 0.0], [1.0, 0.01], [0.0, 1.0], [0.01, 1.0]], [0, 0, 1, 1]
    pair = features(rows, labels)
    assert knn_accuracy(pair, k=1) == 1.0  # each by the other one of its patient
    grouped = pair._replace(groups=np.array(["a", "a", "b", "b"]))
    assert knn_accuracy(grouped, k=1) == knn_accuracy(grouped, k=3) == 0.0
    mixed = pair._replace(groups=np.array(["a", "b", "b", "a"]))
    assert knn_accuracy(mixed, k=1) == 1.0
    alone = pair._replace(groups=np.array(["a"] * 4))  # class 0, the first of no votes, is no answer
    assert knn_accuracy(alone, k=1) == 0.0
    assert knn_accuracy(grouped, pair._replace(groups=np.array(["c", "c", "a", "a"])), k=1) == 1.0


def test_the_groups_of_a_run_are_those_of_its_features(tmp_path):
    data = load(write_images(tmp_path / "photos", 4))
    of = partial(embed_split, tiny_bundle(), data, device="cpu")
    assert of(options=DataOptions(group="([^/]+)/[^/]+$")).groups.tolist() == [
        name for name in CLASSES for _ in range(4)
    ]
    assert of().groups is None and of(options=DataOptions(group="nothing")).groups is None


def test_the_parts_of_a_large_set_are_compared_with_all(monkeypatch):
    torch.manual_seed(0)
    labels = torch.arange(50) % 3
    own = Features(torch.randn(50, 4) + 3 * torch.eye(4)[labels], labels, CLASSES, [""] * 50)
    whole = knn_accuracy(own)
    by_class = own._replace(groups=labels.numpy())
    monkeypatch.setattr("vitreous.embedding.PAIRS", 7 * 50)
    assert 0.6 < whole < 1 and knn_accuracy(own) == whole
    assert knn_accuracy(by_class) == 0


def test_a_file_has_a_row_an_image(tmp_path):
    data = load(write_images(tmp_path / "photos", 4))
    bundle = tiny_bundle()
    bundle.save(tmp_path / "bundle")
    own = embed_split(load_features(tmp_path / "bundle"), data, device="cpu", precision="float32")
    write_parquet(own, tmp_path / "f.parquet")
    table = pq.read_table(tmp_path / "f.parquet").to_pydict()
    assert list(table) == ["row", "image", "label", "class", "feature"] and table["row"] == list(range(12))
    assert table["image"][5] == str(tmp_path / "photos" / "bee" / "001.png") and table["class"][5] == "bee"
    assert table["label"] == own.labels.tolist()
    assert torch.equal(torch.tensor(table["feature"]), own.features)
    alone = embed_image(bundle, table["image"][5], "cpu", "float32")
    torch.testing.assert_close(alone, own.features[5], rtol=0, atol=1e-5)
    assert find_nearest(alone, own, 1)[0][0] == 5


def test_a_head_can_learn_from_the_features_of_an_image():
    bundle = tiny_bundle()
    own = embed_image(bundle, stripes(1)[0][0, 0], device="cpu", precision="float32")
    torch.nn.Linear(len(own), 2)(own).sum().backward()


def test_features_are_written_where_a_text_says(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    write_parquet(features([[1.0, 0.0]], [0]), "~/features.parquet")
    assert (tmp_path / "features.parquet").is_file()
