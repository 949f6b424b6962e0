"""The look of the figures, and how they become files. Reads no store. Matplotlib is imported
without pyplot, and its global settings stay unchanged.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from matplotlib import colormaps, rc_context, style
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from lp_sweep.storage.printable import printable

# the Okabe-Ito colours, which colour-blind readers can tell apart; yellow is kept for the shading
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
YELLOW, GREY, LIGHT = "#F0E442", "#666666", "#DDDDDD"
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
SMALL = 8  # points: the smallest text
WIDTH = 6.9  # inches: the text of an A4 page
NARROW = 3.6  # inches: a phone, or a column of a page
MAP = "cividis"  # colour map for ordered values, which colour-blind readers can also read
FORMATS = ("svg", "png")
_DOTS_PER_INCH = 200
_LONGEST_NAME = 36
_UNNAMED = ("_child", "_container", "_nolegend_")  # labels that matplotlib gives

_SETTINGS: dict[str, Any] = {
    "text.parse_math": False,  # a model's name may have two dollars
    "svg.fonttype": "none",  # text stays text: names of any script, and they can be searched
    "svg.hashsalt": "lp-sweep",  # else identifiers are random
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.fontsize": SMALL,
    "legend.frameon": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": LIGHT,
    "grid.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
}


def name(text: object) -> str:
    """A name on one line, shortened in the middle: its two ends tell the most."""
    line = printable(str(text))
    if len(line) <= _LONGEST_NAME:
        return line
    half = _LONGEST_NAME // 2
    return f"{line[: half - 1]}…{line[-half:]}"


def colour(index: int, count: int) -> Any:
    """The colour for one of `count` ordered values."""
    if count <= len(COLOURS):
        return COLOURS[index]
    return colormaps[MAP](index / (count - 1))


def write(
    paint: Callable[[Figure], None],
    files: Mapping[str, Path | IO[bytes]],
    *,
    title: str,
    description: str,
    height: float,
    width: float = WIDTH,
) -> None:
    """Paint once, and write the figure into a file or a stream for each format, without a date."""
    # matplotlib's own defaults and ours, whatever the user's matplotlibrc says
    with warnings.catch_warnings(), style.context("default"), rc_context(_SETTINGS):
        warnings.simplefilter("ignore")  # of a letter that the font lacks, of scores that are all 0
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        paint(figure)
        text = {"Title": printable(title), "Description": printable(description)}  # XML has no \x1b
        for kind, target in files.items():
            extra = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
            figure.savefig(target, format=kind, dpi=_DOTS_PER_INCH, metadata={**text, **extra})


def caption(figure: Figure, text: str) -> None:
    """A small line above all panels that names their networks. A page has its own caption."""
    if not is_narrow(figure):
        figure.suptitle(text, x=0.01, ha="left", fontsize=SMALL, color=GREY)


def legend(figure: Figure) -> None:
    """A legend of all labels below all panels, where it covers no number."""
    entries: dict[str, Any] = {}
    for axes in figure.axes:  # not matplotlib's own list: it leaves out names such as `_mine`
        artists: list[Any] = [*axes.lines, *axes.patches, *axes.containers]
        for artist in artists:
            if not str(artist.get_label()).startswith(_UNNAMED):
                entries.setdefault(str(artist.get_label()), artist)
    if entries:
        letters = round(16 * figure.get_figwidth())
        columns = max(1, min(len(entries), letters // (max(map(len, entries)) + 8)))
        figure.legend(
            list(entries.values()), list(entries), loc="outside lower center", ncols=columns
        )


def is_narrow(figure: Figure) -> bool:
    return bool(figure.get_figwidth() < WIDTH)


def panels(figure: Figure, rows: int, columns: int = 1, **more: Any) -> list[Axes]:
    """Axes for the panels. In a narrow figure they are stacked, and the figure becomes higher."""
    if is_narrow(figure) and columns > 1:
        figure.set_figheight(0.85 * columns * figure.get_figheight())
        if "height_ratios" in more:
            more["height_ratios"] *= columns
        rows, columns, more = rows * columns, 1, more | {"sharey": bool(more.get("sharey"))}
    return list(figure.subplots(rows, columns, squeeze=False, **more).flat)


def label(axes: Axes, text: str, at: tuple[float, float]) -> None:
    """A small text next to a mark, towards the middle of the panel."""
    left = at[0] <= sum(axes.get_xlim()) / 2
    look: dict[str, Any] = {"fontsize": SMALL, "ha": "left" if left else "right"}
    axes.annotate(text, at, (4 if left else -4, 4), textcoords="offset points", **look)


def missing(axes: Axes, xs: Sequence[float], ys: Sequence[float], label: str) -> None:
    """A cross for each missing number."""
    if xs:
        look: dict[str, Any] = {"color": GREY, "zorder": 4, "label": label}
        axes.plot(xs, ys, "x", markersize=5, clip_on=False, **look)


def points_axis(axes: Axes, values: Iterable[float]) -> None:
    """Round ticks, and no room below 0 or above 100 unless a score is there."""
    known = [*values]
    axes.locator_params(axis="y", nbins=5, steps=[1, 2, 5, 10])
    low, high = axes.get_ylim()
    axes.set_ylim(
        max(low, 0) if min(known) >= 0 else low, min(high, 100) if max(known) <= 100 else high
    )
