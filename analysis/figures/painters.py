"""Draws the figures with matplotlib, without pyplot; its global settings stay unchanged.

A painter takes a figure and rows of `numbers`. A missing number leaves a gap.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from matplotlib import rc_context, style
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from lp_sweep.analysis.figures.numbers import FULL
from lp_sweep.analysis.figures.plots import COLOURS, Plot
from lp_sweep.analysis.rows import TASK, Row, grouped, picked
from lp_sweep.storage.printable import printable

FORMATS = ("svg", "png")
OF_DIRECT = "Networks with fewer layers: procedure direct (pruned first, then fine-tuned)."
_Shown = TypeVar("_Shown")
_WIDTH = 6.9  # inches: the text of an A4 page
_DOTS_PER_INCH = 200
_LONGEST_NAME = 36
_SMALL = 8  # points
_SETTINGS: dict[str, Any] = {
    "text.parse_math": False,  # a model's name may have two dollars
    "svg.fonttype": "none",  # text stays text: names of any script, and they can be searched
    "svg.hashsalt": "lp-sweep",  # else identifiers are random
    "font.size": _SMALL,
    "axes.titlesize": _SMALL,
    "figure.labelsize": _SMALL,
    "axes.grid": True,
    "axes.axisbelow": True,
}


def write(paint: Callable[[Figure], None], files: Mapping[str, Path], title: str) -> None:
    """Paint once, and write the figure into a file for each format, without a date."""
    # matplotlib's own defaults and ours, whatever the user's matplotlibrc says
    with warnings.catch_warnings(), style.context("default"), rc_context(_SETTINGS):
        warnings.simplefilter("ignore")  # of a letter that the font lacks, of scores that are all 0
        figure = Figure(layout="constrained")
        FigureCanvasAgg(figure)
        paint(figure)
        text = dict.fromkeys(("Title", "Description"), printable(title))  # XML has no \x1b
        for kind, target in files.items():
            extra = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
            figure.savefig(target, format=kind, dpi=_DOTS_PER_INCH, metadata={**text, **extra})


def groups(rows: Iterable[Row], *keys: str) -> list[list[Row]]:
    """Groups of rows that agree in `keys`."""
    return [*grouped(rows, lambda row: str(picked(row, keys))).values()]  # also lists of layers


def name(text: object) -> str:
    """A name on one line, shortened in the middle: its two ends tell the most."""
    line = printable(str(text))
    half = _LONGEST_NAME // 2
    return line if len(line) <= _LONGEST_NAME else f"{line[: half - 1]}…{line[-half:]}"


def _panels(
    figure: Figure, shown: Iterable[_Shown], columns: int = 1, *, height: float, **more: Any
) -> list[tuple[Axes, _Shown]]:
    """A panel of this height in inches for each of what is shown, row by row."""
    of = [*shown]
    columns = min(columns, len(of))
    lines = math.ceil(len(of) / columns)
    figure.set_size_inches(_WIDTH, 0.9 + height * lines)
    drawn = [*figure.subplots(lines, columns, squeeze=False, **more).flat]
    for axes in drawn[len(of) :]:
        axes.set_axis_off()
    return [*zip(drawn, of, strict=False)]


def _caption(figure: Figure, text: str) -> None:
    figure.suptitle(text, x=0.01, ha="left", fontsize=_SMALL)


def _legend(figure: Figure) -> None:
    """One legend of all panels, below them, where it covers no number."""
    found = {
        label: handle
        for axes in figure.axes
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend([*found.values()], [*found], loc="outside lower center", ncols=2)


def _model(rows: Sequence[Row], among: Sequence[Row]) -> str:
    """The model, and the sweep if there are several."""
    several = len({row.get("sweep") for row in among}) > 1
    sweep = f", sweep {name(rows[0]['sweep'])}" if several else ""
    return f"{name(rows[0]['model'])}{sweep} ({rows[0]['depth']} layers)"


# -- the plots of a task, which the page has as well


def of_tasks(
    figure: Figure,
    rows: Sequence[Row],
    *,
    make: Callable[[Sequence[Row]], Sequence[Plot]],
    keys: Sequence[str] = TASK,
    columns: int = 3,
) -> None:
    """A panel for each plot that `make` makes of the rows of a task."""
    made = [(of, plot) for of in groups(rows, *keys) for plot in make(of)]
    for axes, (of, plot) in _panels(figure, made, columns, height=2.5):
        titles = [_model(of, rows), f"{name(plot.task)} {plot.metric}", name(plot.device)]
        axes.set_title("\n".join(filter(None, titles)), loc="left")
        _plot(axes, plot)


def _plot(axes: Axes, plot: Plot) -> None:
    across, up = plot.spans
    if plot.is_log:
        axes.set_xscale("log")
        axes.set_xticks(plot.x_ticks(), [f"{tick:g}" for tick in plot.x_ticks()])
        axes.minorticks_off()
    else:
        axes.locator_params(axis="x", integer=plot.is_counted)
    axes.set(xlim=across, ylim=up, xlabel=plot.x_label)
    for loss in plot.losses:
        axes.axhspan((plot.full or 0) - loss, plot.full or 0, color=COLOURS[3], alpha=0.08)
    for line in plot.lines:
        points = zip(*line.points, strict=True)
        axes.plot(*points, "--" if line.dashed else "-", color=COLOURS[line.look])
    for mark in plot.marks:
        fill: dict[str, Any] = {"markerfacecolor": "white"} if mark.hollow else {}
        size = 7 if mark.label else 4
        axes.plot(mark.x, mark.y, "o", color=COLOURS[mark.look], markersize=size, **fill)
        axes.annotate(mark.label, (mark.x, mark.y), (4, -10), textcoords="offset points")
    for look, label in plot.legend:
        axes.plot([], [], "o", color=COLOURS[look], label=name(label))
    axes.legend(fontsize="x-small")


# -- figures 2 and 3: strategies side by side


def strategies(figure: Figure, rows: Sequence[Row]) -> None:
    """A panel per model: a line per strategy, with the standard deviation over seeds."""
    for axes, panel in _panels(figure, groups(rows, "sweep", "model"), height=3):
        axes.set_title(_model(panel, rows), loc="left")
        axes.set(xlabel="layers dropped, mean over tasks", ylabel="mean over tasks (points)")
        axes.locator_params(axis="x", integer=True)
        for curve in groups([row for row in panel if row["mean"] is not None], "strategy"):
            dropped, means = ([row[column] for row in curve] for column in ("k_mean", "mean"))
            spread, strategy = [row["sd"] or 0.0 for row in curve], curve[0]["strategy"]
            if strategy == FULL:
                axes.axhline(means[0], color="black", label=FULL)
            else:
                axes.errorbar(dropped, means, spread, fmt="o-", label=name(strategy))
    _caption(figure, OF_DIRECT)
    _legend(figure)


# -- figures 4 and 5: layer by layer


def probes(figure: Figure, rows: Sequence[Row]) -> None:
    """Score by layer. Whole networks also show the span of their seeds."""
    [(axes, _)] = _panels(figure, [rows], height=3)
    axes.set_ylabel("classifier on the layer,\nmean over tasks (points)")
    if any(row["network"] == "pruned" for row in rows):
        _caption(figure, OF_DIRECT)
    _curves(axes, rows, rows)
    _legend(figure)


def similarity(figure: Figure, rows: Sequence[Row]) -> None:
    """Cosine by layer of the sentence token and the per-text token mean. Below 0.7 a layer changed
    substantially (Figure 5 of the paper)."""
    titles = {"sentence": "sentence token", "tokens": "per-text token mean"}
    for axes, (part, title) in _panels(figure, titles.items(), 2, height=2.5, sharey=True):
        axes.set_title(title, loc="left")
        _curves(axes, [row for row in rows if row["part"] == part], rows)
        axes.axhline(0.7, color="black", linestyle="--", label="0.7")
    figure.supylabel("cosine, pre-trained and fine-tuned")
    _legend(figure)


def _curves(axes: Axes, rows: Sequence[Row], among: Sequence[Row]) -> None:
    models = sorted({row["model"] for row in among})
    for curve in groups(rows, "model", "network", "kept_layers"):
        first, kind = curve[0], curve[0]["network"]
        layers = first["kept_layers"] if kind == "pruned" else range(1, first["depth"] + 1)
        look: dict[str, Any] = {"color": f"C{models.index(first['model'])}", "marker": "o"}
        look |= {"alpha": 0.55, "linewidth": 0.6} if kind == "pruned" else {}
        line = "--" if kind == "pretrained" else "-"
        values = _values(curve, [0, *layers], "mean")
        axes.plot([0, *layers], values, line, label=curve_label(first), **look)
        if kind == "full":
            low, high = (_values(curve, [0, *layers], side) for side in ("low", "high"))
            axes.fill_between([0, *layers], low, high, color=look["color"], alpha=0.2)
    axes.set_xlabel("layer (0: embeddings)")
    axes.locator_params(axis="x", integer=True)


def _values(curve: Sequence[Row], layers: Sequence[int], column: str) -> list[float]:
    """The values at these layers; NaN, a gap in the line, where there is none."""
    at = {row["layer"]: row[column] for row in curve}
    return [math.nan if at.get(layer) is None else at[layer] for layer in layers]


def curve_label(row: Row) -> str:
    """The kind first: matplotlib's legends leave out a label that begins with `_`."""
    kind = {"full": FULL, "pretrained": "pre-trained", "pruned": "pruned"}[row["network"]]
    return f"{kind}: {name(row['model'])}{_measured_tasks(row)}"


def _measured_tasks(row: Row) -> str:
    """` (1 of 2 tasks)` if some tasks that the cells ask for are not measured."""
    few = row["n_tasks_asked"] is not None and row["n_tasks"] < row["n_tasks_asked"]
    return f" ({row['n_tasks']} of {row['n_tasks_asked']} tasks)" if few else ""


def feed_forward_layers(figure: Figure, rows: Sequence[Row]) -> None:
    """A row of two panels per set of kept layers, with a curve per feed-forward setting."""
    settings = list(dict.fromkeys(row["network"] for row in rows))
    labels = {
        "probes": "classifier on the layer,\nmean over tasks (points)",
        "attention": "attention outputs: linear CKA\nwith the full network's layer",
    }
    panels = itertools.product(groups(rows, "model", "kept_layers"), labels.items())
    for axes, (of, (part, label)) in _panels(figure, panels, 2, height=2.4):
        kept = f"{len(of[0]['kept_layers'])} of {of[0]['depth']} layers"
        axes.set_title(f"{name(of[0]['model'])} ({kept})", loc="left")
        axes.set(ylabel=label, xlabel="layer")
        for curve in groups([row for row in of if row["part"] == part], "network"):
            first, shown = curve[0], [row["layer"] for row in curve]
            look: dict[str, Any] = {"color": f"C{settings.index(first['network'])}", "marker": "o"}
            said = f"{name(first['network'])} removed{_measured_tasks(first)}"
            axes.plot(shown, _values(curve, shown, "mean"), label=said, **look)
    _caption(figure, OF_DIRECT)
    _legend(figure)


def contribution(figure: Figure, rows: Sequence[Row]) -> None:
    """A panel per profile: a dot per layer, and a line per threshold, which keeps the layers that
    are not above it."""
    for axes, profile in _panels(figure, groups(rows, "profile_id"), 3, height=2.2):
        axes.set_title(f"{name(profile[0]['model'])}\n{name(profile[0]['task'])}", loc="left")
        axes.set(xlabel="layer", ylabel="mean cosine")
        known = {row["layer"]: row["value"] for row in profile if row["value"] is not None}
        axes.plot([*known], [*known.values()], "o", label="layer")
        for place, threshold in enumerate(dict.fromkeys(row["threshold"] for row in profile), 1):
            if threshold is not None:
                axes.axhline(threshold, color=f"C{place}", ls="--", label=f"t={threshold:g}")
        axes.locator_params(axis="x", integer=True, min_n_ticks=1)
    _legend(figure)


def cka(figure: Figure, rows: Sequence[Row]) -> None:
    """A row of two heat maps per network: layer outputs and attention outputs."""
    networks = groups(rows, "model", "kept_layers", "with_pretrained")
    panels = itertools.product(networks, ("layer", "attention"))
    image: Any = None
    for axes, (network, part) in _panels(figure, panels, 2, height=3.1):
        cells = [row for row in network if row["part"] == part]
        axes.set_title(f"{name(network[0]['model'])}\n{part} outputs", loc="left")
        axes.grid(visible=False)
        axes.patch.set(hatch="////")
        image = _heat(axes, cells) if cells else image
    if any(len(row["kept_layers"]) < row["depth"] for row in rows):
        _caption(figure, OF_DIRECT)
    if image is not None:
        figure.colorbar(image, ax=figure.axes, label="linear CKA (hatched: no number)", shrink=0.7)


def _heat(axes: Axes, cells: Sequence[Row]) -> Any:
    here, there = (sorted({row[side] for row in cells}) for side in ("layer", "other"))
    matrix = np.full((len(here), len(there)), np.nan)
    for row in cells:
        if row["value"] is not None:
            matrix[here.index(row["layer"]), there.index(row["other"])] = row["value"]
    image = axes.pcolormesh(there, here, matrix, vmin=0, vmax=1, cmap="cividis")
    axes.locator_params(integer=True)
    n, depth = len(cells[0]["kept_layers"]), cells[0]["depth"]
    axes.set_xlabel(f"{'pre-trained' if cells[0]['with_pretrained'] else 'full model'}'s layer")
    axes.set_ylabel("fine-tuned layer" if n == depth else f"layer of {n} of {depth}")
    return image
