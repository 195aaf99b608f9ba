"""`look`: the figures of a model itself, by hand where they can be counted."""

import importlib
import json
import logging
import math

import numpy as np
import pytest
import torch
from PIL import Image
from small_models import small
from tiny import tiny_bundle, tiny_set
from torch import nn

from vitreous import plots
from vitreous.explain.attention import OpenPass, open_pass, read_out
from vitreous.explain.explanations import explained_at_once
from vitreous.explain.look import (
    attention_distance,
    depth_similarity,
    early_answers,
    filter_components,
    look,
    patch_filters,
    position_similarity,
    token_norms,
    uniform_distance,
)

ALWAYS = {"filters.png", "positions.png", "look.json"}
WITH_IMAGES = {"attention_distance.png", "depth_similarity.png", "token_norms.png", "early_answers.png"}


@pytest.mark.parametrize("kind", ["linear", "conv"])
def test_filters_of_a_linear_embedding_are_its_weights(kind):
    model = small(patch_embedding=kind)
    filters = patch_filters(model)
    assert filters.shape == (16, 3, 4, 4)
    image = torch.zeros(1, 3, 8, 12)
    image[0, 1, 2, 3] = 1  # one pixel of the first patch: channel, row, column
    change = model.patches(image)[0, 0] - model.patches(torch.zeros_like(image))[0, 0]
    torch.testing.assert_close(filters[:, 1, 2, 3], change, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("stem", "field"), [((4,), 7), ((4, 6), 9), ((4, 6, 8), 11)])
def test_filters_of_a_stem_are_what_its_tokens_change_by(stem, field):
    model = small(patch_embedding="conv_stem", stem_channels=stem, image_size=20)
    for parameter in model.patches.parameters():
        nn.init.normal_(parameter)
    filters = patch_filters(model)
    assert filters.shape == (16, 3, field, field)  # the receptive field
    image = torch.zeros(1, 3, 20, 20, dtype=torch.double)
    model.double()
    step = 1e-4 * torch.randn_like(image)
    change = (model.patches(image + step) - model.patches(image - step))[0, 12] / 2  # of the patch in the middle
    start = 8 - (field - 1) // 2  # the field of the patch that begins at row and column 8
    window = step[:, :, start : start + field, start : start + field]
    torch.testing.assert_close((window * filters).sum(dim=(1, 2, 3)), change, atol=1e-7, rtol=1e-3)


def test_looking_in_inference_mode_changes_nothing(tmp_path):
    bundle = tiny_bundle(patch_embedding="conv_stem", stem_channels=(4,))
    expected = look(bundle, out=tmp_path / "out")
    with torch.inference_mode():
        assert look(bundle, out=tmp_path / "inside") == expected


@pytest.mark.parametrize(("strides", "field"), [((1, 2, 2), 12), ((2, 1, 2), 14), ((2, 2, 1), 18)])
def test_filters_of_a_stem_that_pools_are_as_wide_as_it_sees(strides, field):
    stem = {"stem_channels": (4, 6), "stem_strides": strides, "stem_pool": True}
    model = small(patch_embedding="conv_stem", image_size=28, **stem)
    for parameter in model.patches.parameters():
        nn.init.normal_(parameter)
    assert patch_filters(model).shape == (16, 3, field, field)


def test_looking_at_a_model_in_training_leaves_its_batch_statistics_alone():
    model = small(patch_embedding="conv_stem", stem_channels=(4,))
    expected = patch_filters(model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.testing.assert_close(patch_filters(model.train()), expected)
    assert model.training and all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(("patch", "field"), [(1, (11, 11)), ((4, 2), (13, 11))])
def test_filters_of_a_stem_are_as_wide_as_it_sees_however_small_its_patches(patch, field):
    model = small(patch_embedding="conv_stem", stem_channels=(4, 4, 4, 4), patch_size=patch, image_size=8)
    assert patch_filters(model).shape == (16, 3, *field)


def test_components_are_orthonormal_and_ordered():
    filters = torch.randn(16, 1, 2, 3) * torch.tensor([[[[5.0, 1, 1], [1, 1, 1]]]])
    components, shares = filter_components(filters)
    assert components.shape == (6, 1, 2, 3)
    np.testing.assert_allclose(components.reshape(6, 6) @ components.reshape(6, 6).T, np.eye(6), atol=1e-9)
    assert shares.sum() == pytest.approx(1) and (np.diff(shares) <= 0).all()
    assert abs(components[0, 0, 0, 0]) > 0.9  # where most of the variance was put


def test_positions_are_alike_by_the_cosine_of_their_vectors():
    model = small(registers=1)
    similarity = position_similarity(model)
    assert similarity.shape == (2, 3, 2, 3)
    a, b = model.positions[0, 1 + 1], model.positions[0, 1 + 3]  # after the class token: patches (0, 1) and (1, 0)
    assert similarity[0, 1, 1, 0].item() == pytest.approx(nn.functional.cosine_similarity(a, b, dim=0).item(), abs=1e-5)
    assert similarity[1, 2, 1, 2].item() == pytest.approx(1, abs=1e-5)


def test_no_positions_are_more_alike_than_the_same():
    similarity = position_similarity(small(image_size=(64, 64)))  # of 256 patches, some are by rounding
    assert similarity.max() <= 1 < similarity.max() + 1e-6


def test_rotary_positions_are_alike_by_the_cosines_of_their_angles():
    """Head width 8: two pairs turn with the row and two with the column, by 1 and 100^(-1/2) a step."""
    similarity = position_similarity(small(positions="rope"))
    assert similarity[0, 0, 0, 1].item() == pytest.approx((2 + math.cos(1) + math.cos(0.1)) / 4, abs=1e-5)
    assert similarity[0, 0, 1, 2].item() == pytest.approx(
        (math.cos(1) + math.cos(0.1) + math.cos(2) + math.cos(0.2)) / 4, abs=1e-5
    )
    assert similarity[1, 1, 1, 1].item() == pytest.approx(1)


def test_attention_distance_is_counted_in_pixels():
    """A grid of 2 x 3 patches of 4 pixels: one head looks at the patch itself, one at the next column, or back."""
    model = small(registers=1)
    own = torch.eye(8)
    beside = torch.zeros(8, 8)
    beside[:, 0] = 0.5  # half of the attention goes to the class token, and does not count
    for i, j in ((2, 3), (3, 4), (4, 3), (5, 6), (6, 7), (7, 6)):
        beside[i, j] = 0.5
    seen = OpenPass([], [torch.stack([own, beside])[None]], torch.zeros(1, 1, 8), torch.zeros(1, 5))
    assert attention_distance(model, seen)[0].tolist() == [pytest.approx([0, 4])]
    steps = [0, 0, 0, 0, 0, 0] + [4] * 8 + [8] * 4 + [4] * 6 + [math.hypot(4, 4)] * 8 + [math.hypot(4, 8)] * 4
    assert uniform_distance(model) == pytest.approx(sum(steps) / 36)


@torch.no_grad()
def test_the_read_vector_is_compared_between_depths(model, images):
    seen = open_pass(model, images)
    similarity = depth_similarity(model, seen)
    assert similarity.shape == (4, 4, 4)
    np.testing.assert_allclose(similarity.diagonal(dim1=1, dim2=2), 1, atol=1e-5)
    if model.config.pool != "attention":  # whose weights are those of the last depth
        after = model.config.norm_after_pool
        read = [model.pooled(x if after else model.norm(x)) for x in seen.tokens]
        expected = nn.functional.cosine_similarity(read[1], read[3])
        torch.testing.assert_close(similarity[:, 1, 3], expected, atol=1e-5, rtol=1e-5)


def test_token_norms_are_told_apart_by_kind(images):
    model = small(registers=2)
    seen = open_pass(model, images)
    norms = token_norms(model, seen)
    assert {kind: tuple(values.shape) for kind, values in norms.items()} == {
        "patches": (24, 4), "class token": (4, 4), "registers": (8, 4),
    }  # fmt: skip
    assert norms["class token"][2, 3].item() == pytest.approx(seen.tokens[3][2, 0].norm().item())
    assert norms["registers"][1, 0].item() == pytest.approx(model.registers[0, 1].norm().item(), rel=1e-5)
    assert norms["patches"][7, 1].item() == pytest.approx(seen.tokens[1][1, 3 + 1].norm().item())
    assert set(token_norms(small(pool="mean"), open_pass(small(pool="mean"), images))) == {"patches"}


@pytest.mark.parametrize(
    ("pool", "positions"),
    [("cls", "learned"), ("cls", "rope"), ("mean", "sincos2d"), ("attention", "rope"), ("cls_mean", "learned")],
)
def test_every_view_is_written(tmp_path, pool, positions):
    bundle = tiny_bundle(pool=pool, positions=positions, registers=2, depth=2)
    figures = look(bundle, tiny_set(), out=tmp_path / "new", count=5, device="cpu")
    assert {path.name for path in (tmp_path / "new").iterdir()} == ALWAYS | WITH_IMAGES
    for name in ALWAYS | WITH_IMAGES - {"look.json"}:
        if name.endswith(".png"):
            pixels = np.asarray(Image.open(tmp_path / "new" / name).convert("L"))
            assert pixels.min() < 128 < pixels.max()
    assert json.loads((tmp_path / "new" / "look.json").read_text()) == figures
    assert figures["images"] == 5 and np.shape(figures["attention_distance"]) == (2, 2)
    assert np.shape(figures["depth_similarity"]) == (3, 3)
    assert {np.shape(v) for v in figures["token_norms"].values()} == {(3, 3)}
    assert np.shape(figures["early_answers"]) == (3,) and figures["early_answers"][-1] == 1


def test_the_figures_are_written_without_a_line_for_each_number(tmp_path):
    look(tiny_bundle(), tiny_set(), out=tmp_path, count=2, device="cpu")
    assert len((tmp_path / "look.json").read_text().splitlines()) == 1


@pytest.mark.parametrize(("grid", "height"), [((40, 1), 18.7), ((1, 40), 3.7), ((4, 5), 5.5)])
def test_the_picture_of_positions_is_no_strip(monkeypatch, grid, height):
    made = []
    monkeypatch.setattr("vitreous.plots.insight.save", lambda figure, path: made.append(figure))
    plots.position_similarity(np.ones((*grid, *grid)), "", None)
    assert made[0].get_size_inches().tolist() == pytest.approx([7, height])


def test_the_pictures_show_the_figures(monkeypatch):
    made, alike = [], np.random.default_rng(0).random((2, 3, 2, 3))
    monkeypatch.setattr("vitreous.plots.insight.save", lambda figure, path: made.append(figure.axes[0]))
    plots.token_norms({"patches": np.array([[1.0, 2, 9], [3, 4, 8]])}, None)
    assert list(made[-1].lines[0].get_ydata()) == [2, 4]  # the medians
    plots.attention_distance(np.array([[0.0, 4], [1, 7]]), 3.0, None)
    assert list(made[-1].lines[-1].get_ydata()) == [2, 4]  # the means
    plots.position_similarity(alike, "", None)
    tiles = made[-1].images[0].get_array()
    for row, column in np.ndindex(2, 3):
        np.testing.assert_array_equal(tiles[3 * row : 3 * row + 2, 4 * column : 4 * column + 3], alike[row, column])


def test_the_answer_is_read_out_at_every_depth(model, images):
    seen = open_pass(model, images)
    early = early_answers(model, seen)
    assert early.shape == (4, 4) and early[:, -1].all()
    for depth, tokens in enumerate(seen.tokens):
        answers = read_out(model, tokens).argmax(dim=1)
        assert early[:, depth].tolist() == (answers == seen.logits.argmax(dim=1)).tolist()


@pytest.mark.parametrize(
    ("fields", "title"),
    [
        ({}, "what the patch embedding sees: principal components, with their shares of the variance"),
        (
            {"patch_embedding": "conv_stem", "stem_channels": (4,), "channels": 5},
            "what the stem sees in a faint pattern on the mean colour:\nprincipal components of its gradients, with "
            "their shares of the variance\nchannels 1-3 of 5",
        ),
    ],
)
def test_the_title_says_what_the_filters_are(tmp_path, monkeypatch, caplog, fields, title):
    made = []
    monkeypatch.setattr("vitreous.plots.insight.save", lambda figure, path: made.append(figure))
    look(tiny_bundle(**fields), out=tmp_path, device="cpu")
    assert made[0].get_suptitle() == title


@torch.no_grad()
def test_figures_are_of_all_images_however_many_are_passed_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr("vitreous.explain.explanations.BUDGET", 1)
    bundle, data = tiny_bundle(registers=2, depth=2, seed=1), tiny_set()  # whose early answers differ
    figures = look(bundle, data, out=tmp_path, count=5, device="cpu")
    pixels = data.test.evenly(5).images.read(np.arange(5), bundle.preprocess)
    seen = open_pass(bundle.model, bundle.preprocess.normalise(torch.from_numpy(pixels)))
    assert explained_at_once(bundle.model.config) == 1
    distance, similarity = attention_distance(bundle.model, seen), depth_similarity(bundle.model, seen)
    np.testing.assert_allclose(figures["attention_distance"], distance.mean(dim=0), atol=1e-3)
    np.testing.assert_allclose(figures["depth_similarity"], similarity.mean(dim=0), atol=1e-4)
    early = early_answers(bundle.model, seen).double().mean(dim=0)
    np.testing.assert_allclose(figures["early_answers"], early, atol=1e-4)
    norms = token_norms(bundle.model, seen)
    assert figures["token_norms"].keys() == norms.keys() == {"patches", "class token", "registers"}
    for kind, spread in figures["token_norms"].items():
        np.testing.assert_allclose(spread, norms[kind].quantile(torch.tensor([0, 0.5, 1]), dim=0).T, atol=1e-4)


def test_a_model_without_known_data_shows_what_needs_no_images(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        figures = look(tiny_bundle(), out=tmp_path, device="cpu")
    assert {path.name for path in tmp_path.iterdir()} == ALWAYS and "images" not in figures
    assert "does not say what it was trained on" in caplog.text


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), ValueError("nobody knows")])
def test_own_images_that_cannot_be_reached_are_done_without(tmp_path, caplog, monkeypatch, error):
    monkeypatch.setattr(importlib.import_module("vitreous.explain.look"), "own_data", lambda *_, **__: raise_(error))
    with caplog.at_level(logging.WARNING):
        look(tiny_bundle(), out=tmp_path, device="cpu")
    assert {path.name for path in tmp_path.iterdir()} == ALWAYS
    assert "without images there are only filters" in caplog.text


def raise_(error):
    raise error


def test_pictures_of_another_model_go_and_foreign_ones_stay(tmp_path):
    look(tiny_bundle(), tiny_set(), out=tmp_path / "look", count=2, device="cpu")
    look(tiny_bundle(seed=1), out=tmp_path / "look", device="cpu")
    assert {path.name for path in (tmp_path / "look").iterdir()} == ALWAYS
    (tmp_path / "positions.png").write_text("mine")
    with pytest.raises(ValueError, match=r"holds another positions\.png, which stays as it is: name another folder"):
        look(tiny_bundle(), out=tmp_path, device="cpu")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["look", "positions.png"]


def test_data_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ValueError, match="'nowhere' is not a file or folder here"):
        look(tiny_bundle(), "nowhere", out=tmp_path, device="cpu")
    with pytest.raises(ValueError, match="count is 0: it must be at least 1"):
        look(tiny_bundle(), count=0, out=tmp_path)
