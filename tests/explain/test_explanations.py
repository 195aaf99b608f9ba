"""`explain`: answers and maps for image files, and the figure and the JSON file of each."""

import dataclasses
import io
import json

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image
from tiny import CLASSES, tiny_bundle, write_images

from vitreous import predict
from vitreous.data.images import ImageSet
from vitreous.data.stores import BrokenImage
from vitreous.explain import METHODS, evidence, explain, explanation_maps, open_pass
from vitreous.explain.explanations import class_index, explained_at_once, stems
from vitreous.explain.methods import integrated_gradients
from vitreous.model import ViTConfig
from vitreous.plots import overlay


@pytest.fixture
def files(tmp_path):
    return sorted(write_images(tmp_path / "photos", 2).rglob("*.png"))


def test_answers_are_those_of_predict(files):
    bundle = tiny_bundle()
    explained = list(explain(bundle, files, device="cpu"))
    predicted = list(predict(bundle, files, device="cpu", precision="float32"))
    assert len(explained) == 6
    for mine, theirs in zip(explained, predicted, strict=True):
        assert (mine.image, mine.classes) == (theirs.image, theirs.classes)
        assert mine.probabilities == pytest.approx(theirs.probabilities, abs=1e-5)
        assert mine.target == theirs.classes[0] and mine.target_probability == mine.probabilities[0]


@pytest.mark.parametrize("method", METHODS)
def test_inference_mode_around_it_changes_nothing(files, tmp_path, method):
    tiny_bundle().save(tmp_path / "model")
    expected = [e.to_json() for e in explain(tmp_path / "model", files, method=method, device="cpu")]
    with torch.inference_mode():  # as a service may call
        explained = []
        for each in explain(tmp_path / "model", files, method=method, device="cpu"):
            explained.append(each.to_json())
            assert torch.is_inference_mode_enabled()
    assert explained == expected


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("pool", ["cls", "mean", "attention", "cls_mean"])
def test_maps_are_those_of_the_method(files, method, pool):
    bundle = tiny_bundle(pool=pool, registers=1)
    explained = list(explain(bundle, files, method=method, target="bee", device="cpu"))
    pixels = torch.from_numpy(np.stack([e.pixels for e in explained]))
    maps = explanation_maps(bundle.model, bundle.preprocess.normalise(pixels), method, torch.ones(6, dtype=torch.long))
    np.testing.assert_allclose(np.stack([e.map for e in explained]), maps.numpy(), atol=1e-6)
    assert all(e.target == "bee" and e.attention.shape == (2, 2, 2) and e.curves is None for e in explained)
    for e in explained:
        assert e.rollout.sum() == pytest.approx(1, abs=1e-5)
        assert e.attention.sum(axis=(1, 2)).tolist() == pytest.approx([1, 1], abs=1e-5)


@pytest.mark.parametrize(
    ("options", "titles"),
    [
        ({}, ["integrated gradients", "attention rollout, for any class"]),
        ({"head": 2}, ["integrated gradients", "attention rollout, for any class"]),
        ({"method": "rollout", "head": 2}, ["rollout", "attention, block 2, mean of heads"]),
        (
            {"method": "attention", "layer": 1, "head": 2},
            ["attention, block 1, head 2", "attention rollout, for any class"],
        ),
        ({"method": "grad_cam", "layer": 1}, ["grad cam, block 1", "attention rollout, for any class"]),
    ],
)
def test_a_picture_says_what_its_maps_are_of(files, tmp_path, monkeypatch, options, titles):
    drawn = []
    monkeypatch.setattr("vitreous.plots.explanation", lambda *_, **named: drawn.append(named["maps"]))
    (found,) = explain(tiny_bundle(depth=2), files[0], device="cpu", **options)
    found.save(tmp_path / "x")
    assert list(drawn[0]) == titles and not np.array_equal(*drawn[0].values())


@pytest.mark.parametrize(
    ("pool", "reader"),
    [
        ("cls", "the class token"),
        ("mean", "all patches, their mean"),
        ("attention", "the patches, weighted as the pooling weighs them"),
        ("cls_mean", "class token and mean of the patches, half each"),
    ],
)
def test_a_picture_says_whose_attention_it_shows(files, tmp_path, monkeypatch, pool, reader):
    made = []
    monkeypatch.setattr("vitreous.plots.insight.save", lambda figure, path: made.append(figure))
    for options in ({}, {"curves": True}, {"patch": (2, 1)}):
        (found,) = explain(tiny_bundle(pool=pool), files[0], device="cpu", **options)
        found.save(tmp_path / "x")
        assert json.loads((tmp_path / "x.json").read_text())["reader"] == found.reader == reader
        heading = made[-1].subfigs[1].subfigs[-1].get_suptitle()
        whose = "patch 2,1" if "patch" in options else reader
        assert " ".join(heading.split()).startswith(f"attention in block 1, head by head, of {whose} (share of")
        assert max(map(len, heading.split("\n"))) <= (46 if "curves" in options else 92)


def test_probabilities_are_at_the_bundles_temperature(files):
    hot = dataclasses.replace(tiny_bundle(), temperature=3.0)
    (mine,) = explain(hot, files[0], curves=True, device="cpu")
    (theirs,) = predict(hot, files[0], device="cpu", precision="float32")
    assert mine.probabilities == pytest.approx(theirs.probabilities, abs=1e-5)
    for curves in (mine.curves, mine.random_curves):
        assert curves.deletion[0, 0].item() == pytest.approx(mine.target_probability, abs=1e-5)


@pytest.mark.parametrize("method", ["integrated_gradients", "gradient_rollout"])
def test_evidence_gives_each_patch_its_value(files, monkeypatch, method):
    bundle = tiny_bundle()
    pixels = torch.from_numpy(np.stack([e.pixels for e in explain(bundle, files, device="cpu")]))
    target, against = torch.tensor([0, 1, 2, 0, 1, 2]), torch.tensor([1, 2, 0, 2, 0, 1])
    maps = explanation_maps(bundle.model, bundle.preprocess.normalise(pixels), method, target, against=against)
    monkeypatch.setattr("vitreous.explain.explanations.BUDGET", 1)
    found = evidence(bundle, pixels, target, method, against)
    assert found.shape == (6, 2, 2)
    torch.testing.assert_close(found, maps, atol=1e-5, rtol=0)


def test_head_attention_is_that_of_the_class_token(files):
    bundle = tiny_bundle(depth=2)
    (explained,) = explain(bundle, files[0], layer=1, device="cpu")
    with torch.no_grad():
        seen = open_pass(bundle.model, bundle.preprocess.normalise(torch.from_numpy(explained.pixels[None])))
    row = seen.attention[0][0, :, 0, 1:]
    np.testing.assert_allclose(explained.attention, (row / row.sum(1, keepdim=True)).view(2, 2, 2), atol=1e-5)
    assert explained.layer == 1
    elsewhere = seen.attention[0][0, :, 0, 0]  # the class token's attention to itself
    np.testing.assert_allclose(explained.attention_elsewhere, elsewhere, atol=1e-5)


@pytest.mark.parametrize("pool", ["cls", "mean"])
def test_the_attention_of_one_patch_is_shown(files, tmp_path, monkeypatch, pool):
    bundle = tiny_bundle(pool=pool, depth=2)
    rows, columns = bundle.model.grid
    (e,) = explain(bundle, files[:1], patch=(2, 1), method="attention", layer=1, head=2, device="cpu")
    with torch.no_grad():
        weights = open_pass(bundle.model, bundle.preprocess.normalise(torch.from_numpy(e.pixels)[None])).attention[0][0]
    prefix = bundle.model.config.prefix
    seen = weights[:, prefix + columns, prefix:]  # of the patch in the second row, first column
    np.testing.assert_allclose(e.attention.reshape(2, -1), seen / seen.sum(dim=1, keepdim=True), atol=1e-6)
    np.testing.assert_allclose(e.attention_elsewhere, weights[:, prefix + columns, :prefix].sum(dim=1), atol=1e-6)
    np.testing.assert_allclose(e.map, e.attention[1], atol=1e-6)
    outlined, plot = [], Axes.plot
    monkeypatch.setattr(Axes, "plot", lambda self, *given, **more: outlined.append(given) or plot(self, *given, **more))
    e.save(tmp_path / "x")
    assert json.loads((tmp_path / "x.json").read_text())["patch"] == [2, 1]
    P, Q = bundle.model.config.patch_size
    corners = ([-0.5, Q - 0.5, Q - 0.5, -0.5, -0.5], [P - 0.5, P - 0.5, 2 * P - 0.5, 2 * P - 0.5, P - 0.5])
    assert outlined == [corners] * 2  # in the image, and in the map of the one head that is asked for
    with pytest.raises(
        ValueError, match=rf"^patch 2,{columns + 1} is not there: give a row of 1 to {rows}, a column of"
    ):
        explain(bundle, files[:1], patch=(2, columns + 1), device="cpu")


def test_an_empty_image_is_asked_about_at_the_bundles_temperature(files):
    hot = dataclasses.replace(tiny_bundle(), temperature=3.0)
    (found,) = explain(hot, files[0], target="bee", device="cpu")
    with torch.no_grad():
        logits = hot.model(torch.zeros(1, 1, 8, 8))
    assert found.empty_probability == pytest.approx((logits / 3).softmax(dim=1)[0, 1].item(), abs=1e-5)


def test_a_figure_shows_the_numbers_it_was_given(files, tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr("vitreous.plots.insight.save", lambda figure, path: made.append(figure))
    (found,) = explain(tiny_bundle(), files[0], curves=True, device="cpu")
    found = dataclasses.replace(
        found, classes=("ant",), probabilities=(0.7,), target="bee", target_probability=0.2, against="cat",
        against_probability=0.1, empty_probability=0.33,
    )  # fmt: skip
    found.save(tmp_path / "x")
    by_title = {axes.get_title(): axes for axes in made[0].get_axes() if axes.get_title()}
    answer = by_title["the model's answer\n(to an empty image, bee: 33.0%)"]
    assert [label.get_text() for label in answer.get_yticklabels()] == ["ant", "bee", "cat"]
    assert [patch.get_width() for patch in answer.patches] == [0.7, 0.2, 0.1]
    curves = by_title[
        "probability of bee, of the two classes, as patches go\n(mean colour) or come (into a blurred image)"
    ]
    drawn = [line.get_ydata() for line in curves.lines]
    expected = (found.curves.deletion, found.random_curves.deletion, found.curves.insertion)
    for line, values in zip(drawn, (*expected, found.random_curves.insertion), strict=True):
        np.testing.assert_allclose(line, values[0])
    labels = [line.get_label() for line in curves.lines]
    assert labels[0] == f"deletion, area {found.curves.deletion_area.item():.2f}"
    assert labels[2] == f"insertion, area {found.curves.insertion_area.item():.2f}"
    for head in (0, 1):
        peak, rest = found.attention[head].max(), found.attention_elsewhere[head]
        (shown,) = by_title[f"{head + 1}: {peak * (1 - rest):.0%} + {rest:.0%}"].images
        np.testing.assert_array_equal(shown.get_array(), overlay(found.pixels / 255, found.attention[head]))


def test_classes_of_one_name_each_have_their_bar(files, tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr("vitreous.plots.insight.save", lambda figure, path: made.append(figure))
    (found,) = explain(tiny_bundle(), files[0], device="cpu")
    names, shares = ("crane", "stork", "crane"), (0.6, 0.3, 0.1)
    found = dataclasses.replace(found, classes=names, probabilities=shares, target="crane", target_probability=0.6)
    found.save(tmp_path / "x")
    (answer,) = (axes for axes in made[0].get_axes() if axes.get_title().startswith("the model's answer"))
    assert [label.get_text() for label in answer.get_yticklabels()] == list(names)
    assert [patch.get_width() for patch in answer.patches] == list(shares)
    assert made[0].get_suptitle() == "What speaks for crane (60.0%)"


@pytest.mark.parametrize(
    ("fields", "whole", "channels"),
    [
        ({}, "of what falls on patches", ""),
        ({"pool": "mean"}, "of the whole", ""),
        ({"channels": 4}, "of what falls on patches", "\nchannels 1-3 of 4"),
    ],
)
def test_a_figure_says_what_it_does_not_show(tmp_path, monkeypatch, fields, whole, channels):
    made = []
    monkeypatch.setattr("vitreous.plots.insight.save", lambda figure, path: made.append(figure))
    bundle = tiny_bundle(**fields)
    pixels = np.random.default_rng(0).integers(0, 256, (1, bundle.model.config.channels, 8, 8), np.uint8)
    (found,) = explain(bundle, ImageSet.from_arrays(pixels, [0]).train, device="cpu")
    found.save(tmp_path / "x")
    titles = [axes.get_title() for axes in made[0].get_axes()]
    assert titles[0] == f"8 x 8 pixels, patches 4 x 4{channels}"
    assert all(title.endswith(f"% {whole}") for title in titles[1:3])


def test_the_brightest_patch_is_where_the_map_is_largest():
    shown = overlay(np.zeros((1, 4, 6)), np.array([[0, 0, 0], [0, 0, 1.0]]), side=6)
    bright = shown.sum(axis=2) > 300
    assert shown.shape == (4, 6, 3) and bright[2:, 4:].all() and bright.sum() == 4


def test_batches_are_bounded_by_the_attention_weights_and_activations_they_keep():
    assert [explained_at_once(ViTConfig(size="B/16", image_size=side)) for side in (224, 384, 1024)] == [7, 2, 1]
    assert explained_at_once(ViTConfig(image_size=28, patch_size=4, dim=64, depth=3, heads=2)) == 64
    wide = ViTConfig(image_size=32, patch_size=8, dim=1024, depth=24, heads=16, pool="mean")  # 16 tokens
    assert explained_at_once(wide) == 2**28 // (24 * 16 * (16 * 16 + 16 * 1024)) == 42


def test_batches_change_nothing(files, monkeypatch):
    bundle = tiny_bundle()
    together = list(explain(bundle, files, curves=True, device="cpu"))
    monkeypatch.setattr("vitreous.explain.explanations.BUDGET", 1)
    alone = list(explain(bundle, files, curves=True, device="cpu"))
    assert len(together) == len(alone) == len(files) > 1
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_allclose(one.map, other.map, atol=1e-5)
        for first, second in ((one.curves, other.curves), (one.random_curves, other.random_curves)):
            torch.testing.assert_close(first.deletion, second.deletion, atol=1e-5, rtol=0)
            torch.testing.assert_close(first.insertion, second.insertion, atol=1e-5, rtol=0)


def test_an_answer_is_explained_against_another_class(files, tmp_path):
    bundle = tiny_bundle()
    plain = next(explain(bundle, files[0], device="cpu"))
    likeliest, second = plain.classes[:2]
    found = next(explain(bundle, files[0], against=second, device="cpu"))
    assert (found.target, found.against, plain.against) == (likeliest, second, None)
    pixels = torch.from_numpy(found.pixels)[None]
    rows = [torch.tensor([bundle.class_names.index(name)]) for name in (likeliest, second)]
    np.testing.assert_allclose(found.map, evidence(bundle, pixels, rows[0], against=rows[1])[0], atol=1e-6)
    assert not np.allclose(found.map, plain.map, atol=1e-3)
    assert found.against_probability == found.probabilities[1] and plain.against_probability is None
    (contrast,) = explain(bundle, files[0], against=second, curves=True, device="cpu")
    share = found.probabilities[0] / sum(found.probabilities[:2])
    assert contrast.curves.deletion[0, 0].item() == pytest.approx(share, abs=1e-5)
    assert contrast.random_curves.insertion[0, -1].item() == pytest.approx(share, abs=1e-5)
    turned = next(explain(bundle, files[0], against=likeliest, device="cpu"))
    assert turned.target == second  # the likeliest of the others
    found.save(tmp_path / "x")
    assert json.loads((tmp_path / "x.json").read_text())["against"] == second
    for asked, reason in (
        ({"target": "ant", "against": "ant"}, "'ant' cannot be explained against itself: name another class"),
        ({"against": "wasp"}, "unknown class 'wasp'"),
        ({"against": "ant", "method": "rollout"}, "rollout is the same for all classes"),
    ):
        with pytest.raises(ValueError, match=reason):
            explain(bundle, files[0], **asked)


@pytest.mark.parametrize("against", [None, "cat"])
def test_what_the_patches_add_up_to_stands_beside_the_rise_of_the_logit(files, against):
    bundle = tiny_bundle()
    (found,) = explain(bundle, files[0], target="bee", against=against, device="cpu")
    x = bundle.preprocess.normalise(torch.from_numpy(found.pixels)[None])
    with torch.no_grad():
        of = [bundle.model(image)[0] for image in (x, torch.zeros_like(x))]
    logits = [(each[1] - (each[2] if against else 0)).item() for each in of]
    assert [found.logit, found.empty_logit] == pytest.approx(logits, abs=1e-5)
    other = None if against is None else torch.tensor([2])
    signed = integrated_gradients(bundle.model, x, torch.tensor([1]), against=other)
    content = found.to_json()
    assert content["attributed"] == pytest.approx(signed.sum().item(), abs=1e-5) and content["logit"] == found.logit
    assert found.error == pytest.approx(abs(found.attributed / (logits[0] - logits[1]) - 1), rel=1e-2)
    (flow,) = explain(bundle, files[0], target="bee", method="rollout", device="cpu")
    assert flow.attributed is None and flow.error is None


@pytest.mark.parametrize("curves", [False, True])
def test_a_figure_and_a_json_file_are_written(files, tmp_path, curves):
    bundle = tiny_bundle()
    (e,) = explain(bundle, files[0], curves=curves, device="cpu")
    e.save(tmp_path / "new" / "v1.5")
    picture = np.asarray(Image.open(tmp_path / "new" / "v1.5.png").convert("L"))
    assert picture.shape == (864, 1152) and picture.min() < 50 < 250 < picture.max()
    shown = np.asarray(Image.open(io.BytesIO(e._repr_png_())).convert("L"))  # as a notebook does
    np.testing.assert_array_equal(shown, picture)
    content = json.loads((tmp_path / "new" / "v1.5.json").read_text())
    assert content["image"] == str(files[0]) and content["classes"] == list(e.classes)
    assert content["method"] == "integrated_gradients" and content["layer"] == 1 and content["head"] is None
    np.testing.assert_allclose(content["map"], e.map, atol=1e-6)
    assert content["map"] == [[round(value, 6) for value in row] for row in content["map"]]
    assert ("areas" in content) == curves
    if curves:
        assert content["areas"]["integrated_gradients"]["deletion"] == pytest.approx(e.curves.deletion_area.item())
        assert content["areas"]["random"]["insertion"] == pytest.approx(e.random_curves.insertion_area.item())


def test_colour_and_pictures_in_memory_are_explained(tmp_path):
    bundle = tiny_bundle(channels=3, patch_size=(2, 4), positions="rope", depth=2)
    (e,) = explain(bundle, Image.new("RGB", (30, 20), "red"), head=2, method="attention", device="cpu")
    assert e.map.shape == (4, 2) and e.pixels.shape == (3, 8, 8)
    np.testing.assert_allclose(e.map, e.attention[1], atol=1e-6)
    e.save(tmp_path / "x")
    assert (tmp_path / "x.png").stat().st_size > 5000


def test_broken_images_are_noted_or_raised(files, tmp_path):
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"no image")
    broken = []
    assert len(list(explain(tiny_bundle(), [files[0], bad, files[1]], device="cpu", broken=broken))) == 2
    assert len(broken) == 1 and "bad.png" in str(broken[0])
    with pytest.raises(BrokenImage, match=r"bad\.png: not a JPEG, PNG"):
        list(explain(tiny_bundle(), bad, device="cpu"))


def test_what_is_no_image_is_refused_as_by_predict():
    for given in (io.BytesIO(b"..."), None):  # a file would give its lines
        with pytest.raises(TypeError, match=f"^images is a {type(given).__name__}: give paths, bytes .* data.test$"):
            explain(tiny_bundle(), given)


@pytest.mark.parametrize(
    ("method", "title"),
    [("grad_cam", "What speaks for bee ("), ("rollout", "What the model looks at, for any class")],
)
def test_a_figure_names_the_class_only_where_the_method_asks_for_one(files, tmp_path, monkeypatch, method, title):
    titles = []
    whole = Figure.suptitle
    monkeypatch.setattr(Figure, "suptitle", lambda self, text, **more: titles.append(text) or whole(self, text, **more))
    (explained,) = explain(tiny_bundle(), files[:1], method=method, target="bee", device="cpu")
    explained.save(tmp_path / "x")
    assert len(titles) == 1 and titles[0].startswith(title)


def test_a_class_that_is_not_there_is_one_line():
    assert class_index("bee", CLASSES) == 1
    birds = ("crane (bird)", "kite, hawk", "ant, emmet", "kite")
    assert (class_index("hawk", birds), class_index("kite", birds), class_index("ant, emmet", birds)) == (1, 3, 2)
    with pytest.raises(ValueError, match="unknown class 'kite'"):
        class_index("kite", ("kite, hawk", "kite, toy"))
    with pytest.raises(ValueError, match=r"unknown class 'beee': did you mean 'bee'\? the model knows ant, bee, cat"):
        class_index("beee", CLASSES)
    with pytest.raises(ValueError, match="unknown class '': the model knows ant, bee, cat"):
        explain(tiny_bundle(), [], target="")
    with pytest.raises(ValueError, match="the model has 2 classes named 'crane', which a name cannot tell apart"):
        class_index("crane", ("crane", "bee", "crane"))
    with pytest.raises(TypeError, match=r"^a class is named, not numbered: give one of ant, bee, cat, not 1$"):
        explain(tiny_bundle(), [], target=1)


def test_images_of_one_name_get_numbers(tmp_path):
    names = ["a/x.png", "b/x.jpg", "x.2.png", "c/x.png", "x-2.png", "X.png"]
    assert [stem.name for stem in stems(names, tmp_path)] == ["x", "x-2", "x.2", "x-3", "x-2-2", "X-4"]
    assert stems(["a/x.png"], tmp_path) == [tmp_path / "x"]
    assert stems(["test:7", "y.png"], tmp_path, "-of-a/b c") == [tmp_path / "test-7-of-a-b-c", tmp_path / "y-of-a-b-c"]
    (long,) = stems(["鶴" * 83 + ".jpg"], tmp_path)
    long.with_name(f"{long.name}.json").touch()  # of at most 255 bytes


def test_no_explanation_takes_the_place_of_a_picture(tmp_path):
    (tmp_path / "a.png").write_text("a picture")
    with pytest.raises(ValueError, match=r"holds another a\.png, which stays as it is: name another folder with --out"):
        stems(["photos/a.jpg"], tmp_path)
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(ValueError, match=r"holds another a\.json"):
        stems(["photos/a.jpg"], tmp_path)
    for content in ('{"boxes": []}', "3", "null"):
        (tmp_path / "b.json").write_text(content)
        with pytest.raises(ValueError, match=r"holds another b\.json, which stays as it is"):
            stems(["photos/b.jpg"], tmp_path)


def test_saving_an_explanation_takes_the_place_of_an_explanation_alone(files, tmp_path, undrawn):
    (found,) = explain(tiny_bundle(), files[0], device="cpu")
    for suffix in (".png", ".json"):
        theirs = tmp_path / f"mine{suffix}"
        theirs.write_text("mine")
        with pytest.raises(
            ValueError, match=rf"holds another mine\{suffix}, which stays as it is: name another folder"
        ):
            found.save(tmp_path / "mine")
        assert [path.name for path in tmp_path.glob("mine*")] == [theirs.name] and theirs.read_text() == "mine"
        theirs.unlink()
    for _ in range(2):
        found.save(tmp_path / "mine")


def test_rollout_is_computed_once(files, monkeypatch):
    monkeypatch.setattr("vitreous.explain.explanations.explanation_maps", lambda *_: pytest.fail("anew"))
    (found,) = explain(tiny_bundle(), files[0], method="rollout", device="cpu")
    np.testing.assert_array_equal(found.map, found.rollout)


def test_an_explanation_of_before_is_replaced(tmp_path, undrawn):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    one, other = tiny_bundle(), tiny_bundle(seed=1)
    for bundle, name in [(one, "a"), (other, "a-2"), (one, "a"), (other, "a-2")]:
        (found,) = explain(bundle, tmp_path / "a.png", device="cpu")
        (stem,) = stems([found.image], tmp_path / "out", sha256=bundle.digest())
        assert stem.name == name  # that of another model stays
        found.save(stem, bundle.digest())
    (stem,) = stems([str(tmp_path / "b" / "a.png")], tmp_path / "out", sha256=one.digest())  # and of another image
    assert stem.name == "a-3" and len(list((tmp_path / "out").iterdir())) == 4


def test_questions_that_look_alike_as_file_names_are_told_apart(tmp_path, undrawn):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    bundle = tiny_bundle()
    (found,) = explain(bundle, tmp_path / "a.png", device="cpu")
    for question, name in [("-of-+", "a-of--"), ("-of-x", "a-of-x"), ("-of-#", "a-of---2"), ("-of-+", "a-of--")]:
        (stem,) = stems([found.image], tmp_path / "out", question, bundle.digest())
        assert stem.name == name
        found.save(stem, bundle.digest(), question)
    assert len(list((tmp_path / "out").iterdir())) == 6


def test_the_mean_of_heads_beside_rollout_is_that_of_attention(files, tmp_path, monkeypatch):
    bundle, drawn = tiny_bundle(registers=1), []
    monkeypatch.setattr("vitreous.plots.explanation", lambda *_, **named: drawn.append(named["maps"]))
    (flow,) = explain(bundle, files[0], method="rollout", device="cpu")
    flow.save(tmp_path / "flow")
    (attention,) = explain(bundle, files[0], method="attention", device="cpu")
    assert attention.attention_elsewhere.std() > 1e-4  # heads differ in what they leave for the patches
    np.testing.assert_allclose(list(drawn[0].values())[1], attention.map, rtol=1e-4)
