"""Shared by all plots: colours, drawing images, and saving. Figures are made without matplotlib's global state."""

import logging
import warnings
from functools import cache
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, fontManager, get_font
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator

from vitreous.files import replace_file
from vitreous.messages import shorten

log = logging.getLogger("vitreous")

FONTS = (  # how names of fonts begin that have letters which matplotlib's own lacks
    "Noto Sans CJK JP", "Noto Sans", "Source Han Sans", "WenQuanYi", "Hiragino Sans", "PingFang", "Apple SD Gothic Neo",
    "Arial Unicode MS", "Yu Gothic", "Microsoft YaHei", "Malgun Gothic", "Nirmala UI", "Leelawadee UI",
)  # fmt: skip
_told: set[str] = set()  # letters that no font has

BLUE, ROSE, GREEN, SAND = "#4477aa", "#cc6677", "#117733", "#ddaa33"  # colour-blind safe (Paul Tol's)


def save(figure: Figure, path: Path) -> None:
    """Write a figure, creating its folder if needed. Letters that no font has become boxes, which is told once."""
    texts = figure.findobj(Text)
    families = _families({letter for text in texts for letter in text.get_text() if not letter.isspace()})
    for text in texts:
        text.set_fontfamily(families)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        replace_file(path, lambda part: figure.savefig(part, dpi=120, format="png"))


def _families(letters: set[str]) -> list[str]:
    """Fonts that have these letters between them: the usual one and, where it lacks some, any of FONTS that help."""
    families = list(matplotlib.rcParams["font.family"])
    missing = letters.difference(*map(_letters_of, families))
    for name in _more_fonts() if missing else ():
        if missing & _letters_of(name):
            families.append(name)
            missing -= _letters_of(name)
        if not missing:
            break
    if missing and not _told:
        log.warning(
            "no font here has %s: pictures show boxes instead; install one that has, such as Noto Sans CJK, and remove "
            "%s/fontlist-*.json, where matplotlib notes the fonts it knows",
            shorten(map(repr, sorted(missing))), matplotlib.get_cachedir(),
        )  # fmt: skip
    _told.update(missing)
    return families


@cache
def _more_fonts() -> list[str]:
    installed = sorted({font.name for font in fontManager.ttflist})
    return [name for start in FONTS for name in installed if name.startswith(start)]


@cache
def _letters_of(family: str) -> set[str]:
    return set(map(chr, get_font(findfont(FontProperties(family=[family]))).get_charmap()))


def show(axes: Axes, image: np.ndarray) -> None:
    """An image (C, H, W) in 0..1, each pixel as it is; gray unless it has three colours."""
    pixels = image[0] if image.shape[0] < 3 else image[:3].transpose(1, 2, 0)
    axes.imshow(pixels, cmap="gray", vmin=0, vmax=1, interpolation="nearest")


def short(name: str) -> str:
    """A class name, cut to 24 letters."""
    return name if len(name) <= 24 else name[:23] + "…"


def plain(axes: Axes) -> None:
    """Light lines behind the data, no box around it, whole numbers below."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
