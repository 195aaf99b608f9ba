"""Every picture of the guide: python docs/guide/pictures.py [NAME ...] draws them anew into docs/guide/images/."""

import contextlib
import functools
import io
import sys
from collections.abc import Callable
from pathlib import Path

import chapters
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle
from PIL import Image
from sklearn.linear_model import LogisticRegression
from torch import nn

import vitreous as vt
import vitreous.augment as augmentation
from vitreous.explain import open_pass
from vitreous.model import ViT, ViTConfig
from vitreous.model.attention import attention_weights
from vitreous.model.patches import LinearPatches
from vitreous.model.positions import rotary_table, rotate, sincos_1d, sincos_2d
from vitreous.model.summary import summarise
from vitreous.recipe import OptimOptions
from vitreous.train.optim import rate_factor
from vitreous.weights import Bundle, find_bundle

IMAGES = Path(__file__).parent / "images"

# Paul Tol's "bright": told apart by colour-blind readers, too
BLUE, RED, GREEN, YELLOW, CYAN, PURPLE, GRAY = (
    "#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#777777",
)  # fmt: skip
INK = "#222222"


def figure(width: float, height: float) -> Figure:
    """An empty figure, in units of 100 pixels: 12 is the widest that fits the page."""
    return Figure(figsize=(width, height), dpi=100, layout="constrained", facecolor="white")


def bare(axes: Axes, title: str = "") -> None:
    """No ticks and no frame: for pictures and drawings."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    axes.set_title(title, fontsize=12, color=INK)


def plain(axes: Axes, title: str, xlabel: str, ylabel: str) -> None:
    """The frame of a plot: two axes and a faint grid."""
    axes.set_title(title, fontsize=12, color=INK)
    axes.set_xlabel(xlabel, color=INK)
    axes.set_ylabel(ylabel, color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)


# Chapter 1: images and patches


def scene(side: int = 224) -> np.ndarray:
    """A painted landscape, (side, side, 3) in 0..1: sky, sun, hills and a lake, so that each patch shows something."""
    y, x = np.mgrid[0:side, 0:side] / side
    sky = np.stack([0.95 - 0.5 * (0.6 - y), 0.75 - 0.15 * (0.6 - y), 0.6 + 0.5 * (0.6 - y)], axis=-1)
    picture = sky.clip(0, 1)
    picture[(x - 0.7) ** 2 + (y - 0.24) ** 2 < 0.011] = (1.0, 0.85, 0.35)
    picture[y > 0.52 - 0.20 * np.exp(-(((x - 0.3) / 0.16) ** 2)) - 0.06 * np.sin(9 * x)] = (0.42, 0.45, 0.62)
    picture[y > 0.62 - 0.10 * np.exp(-(((x - 0.8) / 0.2) ** 2)) - 0.03 * np.sin(14 * x)] = (0.20, 0.45, 0.35)
    lake = (((x - 0.45) / 0.42) ** 2 + ((y - 0.83) / 0.09) ** 2) < 1
    picture[lake] = (0.35, 0.60, 0.78)
    picture[lake & (np.sin(160 * y + 3 * np.sin(20 * x)) > 0.6)] = (0.62, 0.80, 0.90)
    return picture


def image_to_tokens() -> Figure:
    """An image of 224 pixels, its 14 x 14 patches, and the row of tokens that they become."""
    picture, patch = scene(), 16
    chart = figure(12, 5.4)
    top, bottom = chart.subfigures(2, 1, height_ratios=[3.6, 1])
    whole, cut = top.subplots(1, 2)
    whole.imshow(picture)
    bare(whole, "an image: 224 x 224 pixels, 3 colours")
    apart = np.ones((14 * 19, 14 * 19, 3))
    for row in range(14):
        for column in range(14):
            tile = picture[row * patch : (row + 1) * patch, column * patch : (column + 1) * patch]
            apart[row * 19 : row * 19 + patch, column * 19 : column * 19 + patch] = tile
    cut.imshow(apart)
    bare(cut, "14 x 14 = 196 patches of 16 x 16 pixels")
    line = bottom.subplots()
    shown = [*range(84, 100)]  # a row of patches and a bit, through the hills
    line.add_patch(_box(0, BLUE))
    line.text(8, 8, "class", color="white", ha="center", va="center", fontsize=9)
    for place, index in enumerate(shown, start=1):
        row, column = divmod(index, 14)
        tile = picture[row * patch : (row + 1) * patch, column * patch : (column + 1) * patch]
        line.imshow(tile, extent=(place * 20, place * 20 + 16, 16, 0))
        line.text(place * 20 + 8, 22, str(index + 1), ha="center", va="center", fontsize=9, color=INK)
    line.text(8, 22, "0", ha="center", va="center", fontsize=9, color=INK)
    line.set(xlim=(-4, 17 * 20 + 4), ylim=(27, -2), aspect="equal")
    bare(line, "the sequence: one class token and 196 patches, read row by row (numbers 85 to 100 are shown)")
    return chart


def _box(left: float, color: str) -> Rectangle:
    return Rectangle((left, 0), 16, 16, color=color)


def patch_embedding() -> Figure:
    """A digit, one of its patches as a row of pixels, and that row times a matrix: one token."""
    config = vt.ViTConfig(image_size=8, patch_size=4, channels=1, num_classes=10, dim=6, depth=1, heads=1, pool="mean")
    torch.manual_seed(4)
    embedding = LinearPatches(config)
    image = torch.from_numpy(vt.load_data("digits").test.images.array[:1]) / 255
    row = image[0, 0, :4, 4:].reshape(1, 16).numpy()
    with torch.no_grad():
        embedding.proj.bias.zero_()  # it is left out of the picture
        token = embedding(image)[0, 1:2].numpy()
        weights = embedding.proj.weight.T.numpy()
    image = image.numpy()
    chart = figure(11, 3.6)
    digit, flat, matrix, result = chart.subplots(1, 4, width_ratios=[8, 11, 4, 5])
    digit.imshow(image[0, 0], cmap="gray_r", vmin=0, vmax=1)
    for line in (-0.5, 3.5, 7.5):
        digit.plot([-0.5, 7.5], [line, line], color=BLUE, lw=1.5)
        digit.plot([line, line], [-0.5, 7.5], color=BLUE, lw=1.5)
    digit.plot([3.5, 7.5, 7.5, 3.5, 3.5], [-0.5, -0.5, 3.5, 3.5, -0.5], color=RED, lw=4)
    bare(digit, "8 x 8 pixels, four patches")
    flat.imshow(row, cmap="gray_r", vmin=0, vmax=1)
    for line in np.arange(17) - 0.5:
        flat.plot([line, line], [-0.5, 0.5], color=RED, lw=0.8)
    flat.plot([-0.5, 15.5, 15.5, -0.5, -0.5], [-0.5, -0.5, 0.5, 0.5, -0.5], color=RED, lw=2)
    flat.text(16.6, 0, "x", fontsize=16, ha="center", va="center", color=INK)
    bare(flat, "$x_p$: the patch as a row of 16")
    matrix.imshow(weights, cmap="RdBu", vmin=-0.3, vmax=0.3)
    matrix.text(6.7, 7.5, "=", fontsize=16, ha="center", va="center", color=INK)
    bare(matrix, "E: 16 x 6")
    result.imshow(token, cmap="RdBu", vmin=-1.6, vmax=1.6)
    for place, value in enumerate(token[0]):
        result.text(place, 0, f"{value:.1f}", ha="center", va="center", fontsize=9, color=INK)
    bare(result, "a token: 6 numbers")
    return chart


# Chapter 2: the class token


def shipped_model_on_digits(count: int) -> tuple[Bundle, torch.Tensor]:
    """The model models/mnist, and digits as MNIST has them, uint8 (count, 1, 28, 28): 20 x 20 in the middle."""
    small = vt.load_data("digits").test.images.array[:count, 0]
    images = np.zeros((count, 1, 28, 28), np.uint8)
    for place, digit in enumerate(small):
        images[place, 0, 4:24, 4:24] = np.asarray(Image.fromarray(digit).resize((20, 20), Image.Resampling.BICUBIC))
    return Bundle.load(find_bundle("mnist")), torch.from_numpy(images)


def pooling() -> Figure:
    """How much each patch counts in the answer: alike in the mean, by its own look in a learned weighted mean."""
    bundle, images = shipped_model_on_digits(6)
    with torch.inference_mode():
        tokens = bundle.model.forward_features(bundle.preprocess.normalise(images))
        weights = bundle.model.pool.score(tokens).softmax(dim=1).squeeze(-1)  # (B, N)
    chart = figure(11, 3.8)
    grid = chart.subplots(2, 6)
    for column in range(6):
        grid[0, column].imshow(images[column, 0].numpy(), cmap="gray_r", vmin=0, vmax=255)
        shown = grid[1, column].imshow(weights[column].view(7, 7).numpy() * 100, cmap="Blues", vmin=0, vmax=8)
        for axes in grid[:, column]:
            bare(axes)
            axes.spines[:].set(visible=True, color=GRAY)
    grid[0, 0].set_ylabel("image", fontsize=12, color=INK)
    grid[1, 0].set_ylabel("weight of patches", fontsize=12, color=INK)
    bar = chart.colorbar(shown, ax=grid[1], extend="max", label="% of the answer")
    bar.ax.axhline(100 / 49, color=RED, lw=2)
    bar.ax.text(-0.4, 100 / 49, "mean", color=RED, ha="right", va="center", fontsize=10)
    return chart


# Chapter 3: positions


def position_tables() -> Figure:
    """The sine-cosine table of a sequence, and its waves one by one."""
    table = sincos_1d(49, 64).numpy()
    chart = figure(11, 3.9)
    heat, waves = chart.subplots(1, 2, width_ratios=[1.15, 1])
    shown = heat.imshow(table, cmap="RdBu", vmin=-1, vmax=1, aspect="auto", interpolation="nearest")
    heat.set(xlabel="channel", ylabel="position in the sequence")
    heat.set_title("each row is the vector of one position", fontsize=12, color=INK)
    chart.colorbar(shown, ax=heat)
    for channel, color in ((0, BLUE), (12, RED), (24, GREEN), (40, PURPLE)):
        waves.plot(table[:, channel], color=color, label=f"channel {channel}", lw=2, marker=".", ms=5)
    plain(waves, "each channel is a wave, slower and slower", "position in the sequence", "")
    waves.legend(frameon=False, ncols=4, fontsize=9, loc="lower center", bbox_to_anchor=(0.46, -0.36), columnspacing=1)
    return chart


def position_similarity() -> Figure:
    """How like each position is to the one in the middle of a 7 x 7 grid: four ways to say where a patch stands."""
    learned = Bundle.load(find_bundle("mnist")).model.positions[0].detach()
    cos, sin = rotary_table((7, 7), 64, 0)
    ones = torch.ones(1, 1, 49, 64)  # the same query and the same key everywhere: what is left is the place
    turned = rotate(ones, cos, sin)[0, 0]
    kinds = {
        "learned (models/mnist)": learned - learned.mean(dim=0),  # what all places share says nothing of place
        "sincos": sincos_1d(49, 64),
        "sincos2d": sincos_2d((7, 7), 64),
        "rope": turned,
    }
    chart = figure(11, 3.3)
    for axes, (name, table) in zip(chart.subplots(1, 4), kinds.items(), strict=True):
        similarity = torch.nn.functional.cosine_similarity(table[24:25], table).view(7, 7).numpy()
        axes.imshow(similarity, cmap="Blues")
        axes.plot(3, 3, marker="x", color="white", ms=10, mew=2.5)
        bare(axes, name)
        axes.set_xlabel(f"white {similarity.min():.2f}, dark {similarity.max():.2f}", color=INK)
    return chart


# Chapter 4: attention


def attention_step_by_step() -> Figure:
    """Four tokens: queries, keys, scores, weights, values and their weighted means, in numbers."""
    q = torch.tensor([[2.0, 0.0], [0.0, 2.0], [1.0, 1.0], [0.0, 0.0]])
    k = torch.tensor([[2.0, 0.0], [0.0, 2.0], [1.0, 0.0], [0.0, 1.0]])
    v = torch.tensor([[10.0, 0.0], [0.0, 10.0], [5.0, 5.0], [0.0, 0.0]])
    weights = attention_weights(q[None, None], k[None, None])[0, 0]
    tables = {
        "$q$": (q, "Blues", "{:.0f}"),
        "$k$": (k, "Blues", "{:.0f}"),
        "scores $q k^T / \\sqrt{d}$": (q @ k.T / 2**0.5, "Purples", "{:.2f}"),
        "weights $A$: softmax of each row": (weights, "Greens", "{:.2f}"),
        "$v$": (v, "Blues", "{:.0f}"),
        "output $A v$": (weights @ v, "Oranges", "{:.1f}"),
    }
    chart = figure(12, 2.7)
    for axes, (name, (table, colors, form)) in zip(
        chart.subplots(1, 6, width_ratios=[2, 2, 4, 4, 2, 2]), tables.items(), strict=True
    ):
        axes.imshow(table.numpy(), cmap=colors, vmin=0, vmax=1.8 * table.max().item(), aspect="auto")
        for row, column in np.ndindex(*table.shape):
            axes.text(column, row, form.format(table[row, column]), ha="center", va="center", fontsize=11, color=INK)
        bare(axes, name)
        axes.set_yticks(range(4), [f"token {i}" for i in range(4)] if name == "$q$" else [""] * 4)
        axes.tick_params(length=0)
    return chart


def heads_of_a_patch() -> Figure:
    """Where one patch of a digit looks, in each block and head of models/mnist."""
    bundle, images = shipped_model_on_digits(5)
    with torch.no_grad():
        seen = open_pass(bundle.model, bundle.preprocess.normalise(images[4:]))
    place = 17  # row 2, column 3: on the stroke
    chart = figure(12, 2.7)
    panels = chart.subplots(1, 7)
    left, top = place % 7 * 4 - 0.5, place // 7 * 4 - 0.5
    panels[0].imshow(images[4, 0].numpy(), cmap="gray_r")
    panels[0].add_patch(Rectangle((left, top), 4, 4, fill=False, color=RED, lw=3))
    bare(panels[0], "who looks")
    for panel, (block, head) in zip(panels[1:], np.ndindex(3, 2), strict=True):
        weights = seen.attention[block][0, head, place].view(7, 7).numpy()
        panel.imshow(images[4, 0].numpy(), cmap="gray_r", alpha=0.35)
        panel.imshow(weights, cmap="Blues", alpha=0.75, extent=(-0.5, 27.5, 27.5, -0.5), vmin=0)
        panel.add_patch(Rectangle((left, top), 4, 4, fill=False, color=RED, lw=2))
        bare(panel, f"block {block + 1}, head {head + 1}")
        panel.set_xlabel(f"darkest: {weights.max():.0%}", color=INK)
    for panel in panels:
        panel.spines[:].set(visible=True, color=GRAY)
    return chart


# Chapter 5: the MLP and GELU


def gelu_and_relu() -> Figure:
    """Both functions, their slopes, and how far the approximation by tanh is off."""
    x = torch.linspace(-4, 4, 401, dtype=torch.float64, requires_grad=True)
    functions = {"ReLU": (torch.relu, RED), "GELU": (torch.nn.functional.gelu, BLUE)}
    chart = figure(11, 3.5)
    values, slopes, error = chart.subplots(1, 3)
    at = x.detach().numpy()
    for name, (function, color) in functions.items():
        y = function(x)
        (slope,) = torch.autograd.grad(y.sum(), x)
        values.plot(at, y.detach().numpy(), color=color, lw=2.5, label=name)
        slopes.plot(at, slope.numpy(), color=color, lw=2.5, label=name)
    gap = torch.nn.functional.gelu(x, approximate="tanh") - torch.nn.functional.gelu(x)
    error.plot(at, gap.detach().numpy() * 1000, color=PURPLE, lw=2.5)
    plain(values, "the function", "x", "")
    plain(slopes, "its slope", "x", "")
    plain(error, "GELU by tanh, minus GELU", "x", "thousandths")
    values.legend(frameon=False, fontsize=11)
    return chart


def hidden_units() -> Figure:
    """A curve made of GELUs: the best sum of 4, 8 and 24 of them, each bent at its own place."""
    x = torch.linspace(-3, 3, 301)
    wanted = torch.sin(2 * x) + 0.4 * torch.sin(5 * x)
    chart = figure(11, 3.3)
    for axes, width in zip(chart.subplots(1, 3, sharey=True), (4, 8, 24), strict=True):
        units = gelu_units(x, width)
        weights = torch.linalg.lstsq(units.double(), wanted.double()[:, None], driver="gelsd").solution[:, 0]
        axes.plot(x.numpy(), wanted.numpy(), color=GRAY, lw=5, alpha=0.4, label="wanted")
        axes.plot(x.numpy(), (units.double() @ weights).numpy(), color=BLUE, lw=2, label="sum of GELUs")
        plain(axes, f"{width} hidden units", "x", "")
    chart.axes[0].legend(frameon=False, fontsize=9, loc="lower left")
    return chart


def gelu_units(x: torch.Tensor, width: int) -> torch.Tensor:
    """x (n,) -> (n, width + 1): hidden units GELU(a x + b) that bend at places spread over x, and a bias."""
    bends = torch.linspace(x.min(), x.max(), width + 1)[:-1]
    return torch.cat([torch.nn.functional.gelu(4 * (x[:, None] - bends)), torch.ones(len(x), 1)], dim=1)


# Chapter 6: residuals and norms


def with_and_without() -> Figure:
    """Tokens on their way through 24 fresh blocks, with and without the two helps: their differences, their lengths."""
    torch.manual_seed(0)
    config = vt.ViTConfig(size="nano/2", image_size=8, channels=1, num_classes=10, depth=24)
    model = vt.ViT(config).double()  # to follow differences far below float32
    images = torch.from_numpy(vt.load_data("digits").test.images.array[:4]) / 255.0
    ways = {
        "shortcut and norm": (lambda block, x: block(x), BLUE, "-"),
        "shortcut only": (lambda block, x: (y := x + block.attention(x)) + block.mlp(y), GREEN, "--"),
        "norm only": (lambda block, x: block.mlp(block.norm2(block.attention(block.norm1(x)))), RED, "-."),
        "neither": (lambda block, x: block.mlp(block.attention(x)), GRAY, ":"),
    }
    chart = figure(11, 3.9)
    unlike, length = chart.subplots(1, 2)
    for name, (step, color, style) in ways.items():
        with torch.no_grad():
            states = [model.embed(images.double())]
            for block in model.blocks:
                states.append(step(block, states[-1]))
        unlike.semilogy([difference(x) for x in states], color=color, ls=style, lw=2.5, label=name)
        length.semilogy([x.norm(dim=-1).mean().item() for x in states], color=color, ls=style, lw=2.5, label=name)
    plain(unlike, "how much the tokens of an image differ", "blocks passed", "1 - mean cosine, logarithmic")
    unlike.set_ylim(1e-12, 3)  # float64 rounds off what is much smaller
    plain(length, "how long they are", "blocks passed", "mean length, logarithmic")
    length.legend(frameon=False, fontsize=11, loc="lower left")
    return chart


def difference(x: torch.Tensor) -> float:
    """1 minus the mean cosine between two different tokens of the same image, for tokens x (B, N, D)."""
    N = x.shape[1]
    unit = torch.nn.functional.normalize(x, dim=-1)
    squares = (unit[:, :, None] - unit[:, None]).square().sum(dim=-1)  # of two unit vectors: 2 - 2 cosine
    return (squares.sum(dim=(1, 2)) / 2 / (N * (N - 1))).mean().item()


@functools.cache
def variables(number: str) -> dict:
    """What the code of a chapter has computed when it is done, by name."""
    (chapter,) = chapters.GUIDE.glob(f"{number}-*.md")
    namespace = {"__name__": chapter.stem}
    with contextlib.redirect_stdout(io.StringIO()):
        for block in chapters.BLOCK.finditer(chapter.read_text()):
            exec(block["code"], namespace)
    return namespace


# Chapter 7: dropout


def dropout() -> Figure:
    """Dropout blanks numbers of the tokens; stochastic depth blanks branches of images, later ones more often."""
    torch.manual_seed(269)  # with which nine images show what many would
    chart = figure(11, 4.2)
    left, right = chart.subplots(1, 2, width_ratios=[1.6, 1])
    numbers = nn.Dropout(0.25)(torch.ones(9, 24)).numpy() > 0
    left.imshow(numbers, cmap=ListedColormap(["white", BLUE]), vmin=0, vmax=1)
    _cells(left, 9, 24)
    left.set(xlabel="24 channels", ylabel="9 tokens of one image")
    left.set_title("dropout, p = 0.25: single numbers", fontsize=12, color=INK)
    config = ViTConfig(image_size=8, patch_size=4, dim=8, heads=1, depth=6, drop_path=0.5)
    branches = [block.drop_path.train()(torch.ones(9, 1, 1)).flatten() > 0 for block in ViT(config).blocks]
    right.imshow(torch.stack(branches, dim=1).numpy(), cmap=ListedColormap(["white", GREEN]), vmin=0, vmax=1)
    _cells(right, 9, 6)
    right.set_xticks(range(6), range(1, 7))
    right.set(xlabel="block, one of its two branches", ylabel="9 images of a batch")
    right.set_title("stochastic depth, p = 0 to 0.5: whole branches", fontsize=12, color=INK)
    return chart


def _cells(axes: Axes, rows: int, columns: int) -> None:
    """Lines between the cells of a table, and no ticks."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.hlines(np.arange(rows + 1) - 0.5, -0.5, columns - 0.5, color="#bbbbbb", linewidth=0.8)
    axes.vlines(np.arange(columns + 1) - 0.5, -0.5, rows - 0.5, color="#bbbbbb", linewidth=0.8)
    axes.spines[:].set_visible(False)


# Chapter 8: hyperparameters

KNOBS = {
    "width D": {"dim": 512},
    "depth L": {"depth": 12},
    "MLP ratio r": {"mlp_ratio": 4.0},
    "heads h": {"heads": 16},
    "patches a side": {"patch_size": 2},
}


def knobs() -> Figure:
    """What doubling each size costs, and the four schedules."""
    chart = figure(12, 4.2)
    left, right = chart.subplots(1, 2)
    start = {"size": "mini", "image_size": 32, "patch_size": 4, "num_classes": 10}
    one = summarise(ViTConfig(**start))
    changed = [summarise(ViTConfig(**start | change)) for change in KNOBS.values()]
    places = np.arange(len(KNOBS))
    for shift, color, label, values in (
        (-0.2, BLUE, "parameters", [two.parameters / one.parameters for two in changed]),
        (0.2, RED, "FLOPs", [two.flops / one.flops for two in changed]),
    ):
        bars = left.barh(places + shift, values, 0.38, color=color, label=label)
        left.bar_label(bars, fmt="x %.2g", padding=3, fontsize=10, color=INK)
    plain(left, "one thing doubled", "times as many", "")
    left.set_yticks(places, KNOBS, fontsize=11)
    left.set_xlim(0, max(bar.get_width() for bar in left.patches) * 1.15)
    left.invert_yaxis()
    left.axvline(1, color=GRAY, linewidth=1, linestyle=":")
    left.legend(frameon=False, loc=(0.68, 0.42))
    colors = {"cosine": BLUE, "linear": RED, "onecycle": GREEN, "constant": GRAY}
    for schedule, color in colors.items():
        options = OptimOptions(schedule=schedule, warmup=0.1)
        rates = [rate_factor(options, step, 200) for step in range(200)]
        right.plot(np.arange(200) / 199, rates, color=color, linewidth=2, label=schedule)
    plain(right, "learning rate, warm-up 0.1", "share of the run", "share of the peak rate")
    right.legend(frameon=False, loc=(0.72, 0.55))
    return chart


# Chapter 9: few images


def measured_cures() -> Figure:
    """Test accuracy of each variant of benchmarks/cures.py: every seed a dot, the mean a bar."""
    measured = variables("09")["rows"]
    alone = [name for name in measured if not name.startswith(("plain", "combined", "rate"))]
    alone.sort(key=lambda name: -measured[name]["mean"])
    without = [name for name in measured if name.startswith("combined without")]
    names = ["plain", *alone, "combined", *without]
    chart = figure(10, 6.4)
    axes = chart.subplots()
    for place, name in enumerate(names):
        color = GRAY if name == "plain" else BLUE if name in alone else GREEN
        row = measured[name]
        axes.barh(place, 100 * row["mean"], 0.7, color=color, alpha=0.35 if "without" in name else 0.6)
        axes.plot([100 * top1 for top1 in row["top1"]], [place] * len(row["top1"]), "o", color=INK, markersize=4)
        axes.text(1, place, f"{100 * row['mean']:.1f}", va="center", fontsize=10, color=INK)
    for name, color in (("plain", GRAY), ("combined", GREEN)):
        axes.axvline(100 * measured[name]["mean"], color=color, linewidth=1.2, linestyle=":")
    shown = [name.replace("combined without", "... without") for name in names]
    axes.set_yticks(range(len(names)), shown, fontsize=11)
    axes.invert_yaxis()
    plain(axes, "300 digits to learn from: one change at a time, and six together", "right, of the others, %", "")
    axes.set_xlim(0, 100)
    return chart


def augmented_digits() -> Figure:
    """Four digits as they are, and as three kinds of augmentation make them."""
    chapter = variables("09")
    digits = chapter["digits"]
    rows = np.array([int(np.flatnonzero(digits.labels == label)[2]) for label in (2, 3, 7, 8)])
    images, labels = torch.from_numpy(digits.images.array[rows]).float() / 255, torch.from_numpy(digits.labels[rows])
    kinds = {
        "as they are": augmentation.Augment(),
        "turned, shifted, sheared": augmentation.Augment(rotation=10, scale=0.1, shift=1, shear=8),
        "mixup": augmentation.Augment(mixup=0.8),
        "cutmix": augmentation.Augment(cutmix=1.0),
    }
    chart = figure(11, 3.2)
    for part, (title, config) in zip(chart.subfigures(1, 4), kinds.items(), strict=True):
        part.suptitle(title, fontsize=12, color=INK)
        draws = augmentation.draw(config, 4, seed=412, epoch=0)  # which mixes all four visibly
        (changes,) = augmentation.plan(draws, config, 0, (8, 8), 4)
        changed = augmentation.augment(images, changes, config, torch.zeros(1))
        changed, _ = augmentation.mix(changed, labels, 10, changes, config, progress=0.0)
        for axes, image in zip(part.subplots(2, 2).flat, changed.numpy(), strict=True):
            axes.imshow(image[0], cmap="gray", vmin=0, vmax=1)
            bare(axes)
    return chart


# Chapter 10: pretraining and scratch


def probe() -> Figure:
    """Linear probes of a model pretrained on MNIST, of an untrained one, and of pixels, on the built-in digits."""
    chapter = variables("10")
    labels = chapter["labels"]
    chart = figure(8, 4.4)
    axes = chart.subplots()
    counts = (20, 50, 100, 200, 300)
    for (name, z), color, marker in zip(chapter["vectors"].items(), (BLUE, RED, GREEN), "os^", strict=True):
        z = z.astype(float) / z.std()
        # to the very end, so that no answer depends on rounding
        fitted = [LogisticRegression(tol=1e-8, max_iter=3000).fit(z[:n], labels[:n]) for n in counts]
        scores = [100 * classifier.score(z[300:], labels[300:]) for classifier in fitted]
        axes.plot(counts, scores, color=color, marker=marker, linewidth=2, label=name)
    plain(axes, "a linear classifier on frozen features", "labelled digits", "right, of 200 others, %")
    axes.set_xscale("log")
    axes.set_xticks(counts, [str(n) for n in counts])
    axes.minorticks_off()
    axes.legend(frameon=False, loc="lower right")
    return chart


# Chapter 11: the training loop

STATIONS = {
    "order": "shuffle by\nseed and epoch",
    "augment": "turn, shift,\nmix",
    "normalise": "mean 0,\nspread 1",
    "model": "images to\nlogits",
    "loss": "cross-\nentropy",
    "backward": "gradients,\nclipped",
    "step": "AdamW or\nMuon",
    "average": "of weights,\nis judged",
}


def training_step() -> Figure:
    """The stations of a step, in two rows that close to a ring, in the colours of data, model and weights."""
    chart = figure(11, 3.9)
    axes = chart.subplots()
    colors = [GREEN] * 3 + [BLUE] * 3 + [PURPLE] * 2
    places = [(x, 1) for x in range(4)] + [(x, 0) for x in (3, 2, 1, 0)]
    for (name, text), color, (x, y) in zip(STATIONS.items(), colors, places, strict=True):
        box = FancyBboxPatch((x - 0.34, y - 0.24), 0.68, 0.48, boxstyle="round,pad=0.02", color=color)
        axes.add_patch(box)
        axes.text(x, y + 0.12, name, color="white", ha="center", va="center", fontsize=14, weight="bold")
        axes.text(x, y - 0.1, text, color="white", ha="center", va="center", fontsize=11)
    for (x, y), (to_x, to_y) in zip(places, [*places[1:], places[0]], strict=True):
        along, up = np.sign(to_x - x), np.sign(to_y - y)
        start = (x + 0.37 * along, y + 0.27 * up)
        end = (to_x - 0.37 * along, to_y - 0.27 * up)
        arrow = {"arrowstyle": "-|>", "color": INK, "linewidth": 1.6, "mutation_scale": 18}
        axes.annotate("", xy=end, xytext=start, arrowprops=arrow | {"shrinkA": 0, "shrinkB": 0})
    axes.set(xlim=(-0.5, 3.5), ylim=(-0.35, 1.35))
    bare(axes, "one step: data (green), model (blue), weights (purple)")
    return chart


# Chapter 12: reading attention


def maps() -> Figure:
    """Four digits with the maps of chapter 12: bright is important."""
    chapter = variables("12")
    chart = figure(9, 8.4)
    grid = chart.subplots(4, 4)
    for row, (image, axes) in enumerate(zip(chapter["pixels"].numpy(), grid, strict=False)):
        axes[0].imshow(image[0], cmap="gray")
        bare(axes[0], "" if row else "the image")
        for place, name in zip(axes[1:], ("pooling", "rollout", "occlusion"), strict=True):
            scores = chapter["maps"][name][row].view(7, 7).clamp(min=0).numpy()
            place.imshow(image[0], cmap="gray")
            place.imshow(scores, cmap="inferno", alpha=0.75, extent=(-0.5, 27.5, 27.5, -0.5), vmin=0)
            bare(place, "" if row else name)
    return chart


def deletion() -> Figure:
    """Deletion curves of the maps of chapter 12."""
    chapter = variables("12")
    chart = figure(8, 4.4)
    axes = chart.subplots()
    styles = {"pooling": (RED, "s"), "rollout": (BLUE, "o"), "occlusion": (GREEN, "^"), "ink": (PURPLE, "D")}
    for name, curve in chapter["curves"].items():
        color, marker = styles.get(name, (GRAY, "."))
        line = ":" if name == "random" else "-"
        axes.plot(
            np.linspace(0, 1, len(curve)), curve.numpy(), line, color=color, marker=marker, linewidth=2, label=name
        )
    plain(axes, "take away what a map calls important", "share of patches made black", "confidence in the answer")
    axes.legend(frameon=False)
    return chart


# File name without .png -> the function that draws it
PICTURES: dict[str, Callable[[], Figure]] = {
    "01-image-to-tokens": image_to_tokens,
    "01-patch-embedding": patch_embedding,
    "02-pooling": pooling,
    "03-tables": position_tables,
    "03-similarity": position_similarity,
    "04-attention": attention_step_by_step,
    "04-heads": heads_of_a_patch,
    "05-gelu": gelu_and_relu,
    "05-hidden-units": hidden_units,
    "06-with-and-without": with_and_without,
    "07-dropout": dropout,
    "08-knobs": knobs,
    "09-cures": measured_cures,
    "09-augment": augmented_digits,
    "10-probe": probe,
    "11-step": training_step,
    "12-maps": maps,
    "12-deletion": deletion,
}


def draw(name: str, folder: Path) -> Path:
    """Draw one picture: folder/NAME.png."""
    file = folder / f"{name}.png"
    PICTURES[name]().savefig(file, metadata={"Software": None})
    return file


if __name__ == "__main__":
    for name in sys.argv[1:] or PICTURES:
        print(draw(name, IMAGES))
