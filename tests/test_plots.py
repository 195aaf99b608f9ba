"""Every picture is written, for the plainest and the largest run, and shows the figures that it was given."""

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image

from vitreous.plots import canvas, confusion_matrix, image_grid, insight, learning_curves, run


def history(epochs, val=True):
    rows = [{"epoch": i + 1, "train_loss": 1 / (i + 1), "train_top1": i / epochs} for i in range(epochs)]
    return [row | {"val_loss": 2 / row["epoch"], "val_top1": 0.5} for row in rows] if val else rows


def checked(path):
    """The pixels of a written picture, which must not be blank."""
    pixels = np.asarray(Image.open(path).convert("L"))
    assert pixels.min() < 128 < pixels.max()
    return pixels


@pytest.fixture
def figures(monkeypatch):
    """Figures that are looked at instead of written."""
    made = []
    monkeypatch.setattr(run, "save", lambda figure, path: made.append(figure))
    return made


@pytest.mark.parametrize("epochs", [1, 2, 300])
@pytest.mark.parametrize("val", [True, False])
def test_learning_curves_are_written(tmp_path, epochs, val):
    learning_curves(history(epochs, val), 1, tmp_path / "new" / "x.png")
    assert checked(tmp_path / "new" / "x.png").shape == (480, 1200)


def test_learning_curves_show_the_history(figures):
    learning_curves(history(5), 3, None)
    loss, top1 = figures[0].axes
    curves = {line.get_label(): line.get_ydata() for line in loss.lines}
    assert list(curves["training"]) == [1, 1 / 2, 1 / 3, 1 / 4, 1 / 5]
    assert list(curves["validation"]) == [2, 1, 2 / 3, 2 / 4, 2 / 5]
    assert list(loss.lines[0].get_xdata()) == [1, 2, 3, 4, 5]
    assert list(loss.lines[-1].get_xdata()) == [3, 3] and "kept: epoch 3" in curves
    assert list(top1.lines[1].get_ydata()) == [0.5] * 5


def test_training_figures_are_called_what_they_are(figures):
    learning_curves(history(5), 3, None, training="training, augmented")
    assert figures[0].axes[0].lines[0].get_label() == "training, augmented"


def test_the_title_of_few_filters_stays_within_the_picture(monkeypatch):
    made = []
    monkeypatch.setattr(insight, "save", lambda figure, path: made.append(figure))
    title = "what the patch embedding sees: principal components, with their shares of the variance"
    insight.filters(np.random.default_rng(0).standard_normal((1, 1, 2, 2)), np.ones(1), title, None)
    figure, (words,) = made[0], made[0].texts
    FigureCanvasAgg(figure).draw()
    box = words.get_window_extent()
    assert box.x0 >= 0 and box.x1 <= figure.bbox.width


def test_what_chose_the_epoch_has_a_curve_of_its_own(figures):
    rows = [row | {"val_f1_macro": row["epoch"] / 9} for row in history(3)]
    learning_curves(rows, 3, None, chosen_by=("f1_macro", "F1, macro"))
    *_, chosen = figures[0].axes
    assert chosen.get_ylabel() == "F1, macro" and len(figures[0].axes) == 3
    assert [list(line.get_ydata()) for line in chosen.lines[:-1]] == [[1 / 9, 2 / 9, 3 / 9]]  # training has none
    learning_curves(history(3), 3, None, chosen_by=("loss", "loss"))
    assert len(figures[1].axes) == 2


def test_one_epoch_is_a_visible_point(figures):
    learning_curves(history(1), 1, None)
    assert figures[0].axes[0].lines[0].get_marker() == "o"


def test_without_validation_there_is_no_curve_of_it(figures):
    learning_curves(history(3, val=False), 3, None)
    assert [len(axes.lines) for axes in figures[0].axes] == [2, 2]  # training, and the epoch that was kept


@pytest.mark.parametrize("classes", [2, 10, 40, 100])
def test_confusion_matrices_are_written(tmp_path, classes):
    counts = np.random.default_rng(0).integers(0, 9, (classes, classes))
    confusion_matrix(counts, [f"class {i}" for i in range(classes)], tmp_path / "x.png")
    checked(tmp_path / "x.png")


def test_a_confusion_matrix_shows_shares_of_true_classes_and_counts(figures):
    confusion_matrix(np.array([[3, 1, 0], [0, 0, 0], [0, 2, 2]]), ["ant", "bee", "cat"], None)
    axes = figures[0].axes[0]
    shown = axes.images[0].get_array()
    assert shown.tolist() == [[0.75, 0.25, 0], [0, 0, 0], [0, 0.5, 0.5]]  # no images of a class: a row of zeros
    assert {(t.get_position(), t.get_text()) for t in axes.texts} == {
        ((0, 0), "3"), ((1, 0), "1"), ((1, 2), "2"), ((2, 2), "2"),
    }  # fmt: skip
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("answered", "true")
    assert [label.get_text() for label in axes.get_yticklabels()] == ["ant", "bee", "cat"]


def test_long_class_names_leave_room_for_a_confusion_matrix(figures):
    confusion_matrix(np.eye(2, dtype=int), ["n" * 200, "bee"], None)
    axes = figures[0].axes[0]
    for labels in (axes.get_xticklabels(), axes.get_yticklabels()):
        assert [label.get_text() for label in labels] == ["n" * 23 + "…", "bee"]


def test_a_hundred_classes_are_drawn_without_names_and_numbers(figures):
    confusion_matrix(np.eye(100, dtype=int), [f"class {i}" for i in range(100)], None)
    axes = figures[0].axes[0]
    assert not axes.texts and "class 0" not in [label.get_text() for label in axes.get_yticklabels()]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("count", [1, 8, 32])
def test_image_grids_are_written(tmp_path, channels, count):
    images = np.random.default_rng(0).random((count, channels, 8, 8))
    image_grid(images, ["x" * 50] * count, tmp_path / "x.png")
    checked(tmp_path / "x.png")


def test_an_image_grid_shows_the_images_in_order(figures):
    gray, colour = np.random.default_rng(0).random((10, 1, 8, 6)), np.random.default_rng(1).random((3, 3, 8, 6))
    image_grid(gray, list("abcdefghij"), None)
    image_grid(colour, list("xyz"), None)
    shown = [axes for axes in figures[0].axes if axes.images]
    assert [axes.get_title() for axes in shown] == list("abcdefghij")
    np.testing.assert_array_equal(shown[9].images[0].get_array(), gray[9, 0])
    assert shown[0].images[0].get_clim() == (0, 1)  # a dark image stays dark
    np.testing.assert_array_equal(figures[1].axes[2].images[0].get_array(), colour[2].transpose(1, 2, 0))


@pytest.mark.parametrize(("channels", "said"), [(1, ""), (2, "channel 1 of 2"), (3, ""), (5, "channels 1-3 of 5")])
def test_an_image_grid_says_which_channels_it_shows(figures, channels, said):
    image_grid(np.zeros((2, channels, 8, 6)), "ab", None)
    assert figures[0].get_suptitle() == said


@pytest.mark.parametrize("name", ["$x^$", "$5 and $6", "a_b", r"\frac", "{", "<b>", ""])
def test_class_names_are_drawn_as_they_are(tmp_path, name):
    confusion_matrix(np.eye(2, dtype=int), [name, "other"], tmp_path / "x.png")
    image_grid(np.zeros((1, 1, 8, 8)), [name], tmp_path / "y.png")
    assert (tmp_path / "x.png").stat().st_size > 1000 and (tmp_path / "y.png").stat().st_size > 500


def test_letters_that_no_font_has_are_told_once(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(canvas, "_told", set())
    monkeypatch.setattr(canvas, "_more_fonts", list)
    for names in (["猫", "犬"], ["猫\n鳥", "ok"]):
        confusion_matrix(np.eye(2, dtype=int), names, tmp_path / "x.png")
        image_grid(np.zeros((2, 1, 8, 8)), names, tmp_path / "y.png")
    assert [record.message.partition(";")[0] for record in caplog.records] == [
        "no font here has '犬', '猫': pictures show boxes instead"
    ]


def test_letters_are_drawn_in_a_font_that_has_them(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(canvas, "_told", set())
    monkeypatch.setattr(canvas, "_more_fonts", lambda: ["DejaVu Sans Mono", "DejaVu Serif"])  # of matplotlib itself
    letter = "\u02ef"  # which the last of them has alone
    drawn = []
    monkeypatch.setattr(canvas.Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    monkeypatch.setattr(canvas, "replace_file", lambda path, write: write(path))
    for name in ("a", letter):
        confusion_matrix(np.eye(2, dtype=int), [name, "other"], tmp_path / "x.png")
    families = [{tuple(text.get_fontfamily()) for text in figure.findobj(canvas.Text)} for figure in drawn]
    assert families == [{("sans-serif",)}, {("sans-serif", "DejaVu Serif")}] and not caplog.records
