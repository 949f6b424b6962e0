"""Draws the figures with matplotlib, without pyplot; its global settings stay unchanged.

A painter takes a figure and rows of `numbers` or `layernumbers`. A missing number leaves a gap.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from matplotlib import colormaps, rc_context, style
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from lp_sweep.analysis.figures import plots
from lp_sweep.analysis.figures.numbers import FULL
from lp_sweep.analysis.figures.plots import COLOURS, Plot
from lp_sweep.analysis.rows import TASK, Row
from lp_sweep.analysis.statistics.estimates import Limits, bounded, least_of
from lp_sweep.storage.printable import printable

FORMATS = ("svg", "png")
OF_DIRECT = "Networks with fewer layers: procedure direct (pruned first, then fine-tuned)."
_COLUMNS = 3
_Shown = TypeVar("_Shown")
_WIDTH = 6.9  # inches: the text of an A4 page
_DOTS_PER_INCH = 200
_LONGEST_NAME = 36
_SMALL, _GREY, _YELLOW = 8, "#666666", "#F0E442"
_SETTINGS: dict[str, Any] = {
    "text.parse_math": False,  # a model's name may have two dollars
    "svg.fonttype": "none",  # text stays text: names of any script, and they can be searched
    "svg.hashsalt": "lp-sweep",  # else identifiers are random
    "font.size": _SMALL,
    "axes.titlesize": _SMALL,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#DDDDDD",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "lines.markersize": 4,
    "lines.linewidth": 1.2,
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
    """Groups of consecutive rows that agree in `keys`."""
    return [
        list(group) for _, group in itertools.groupby(rows, lambda row: [row[key] for key in keys])
    ]


def name(text: object) -> str:
    """A name on one line, shortened in the middle: its two ends tell the most."""
    line = printable(str(text))
    half = _LONGEST_NAME // 2
    return line if len(line) <= _LONGEST_NAME else f"{line[: half - 1]}…{line[-half:]}"


def _colour(place: int, of: int) -> Any:
    """The colour of one of several; of many, ordered ones, which colour-blind readers can read."""
    return COLOURS[1 + place] if of < len(COLOURS) else colormaps["cividis"](place / (of - 1))


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
    figure.suptitle(text, x=0.01, ha="left", fontsize=_SMALL, color=_GREY)


def _legend(figure: Figure) -> None:
    """A legend of all labels below all panels, where it covers no number."""
    found: dict[str, Any] = {}
    for axes in figure.axes:  # not matplotlib's own list: it leaves out names such as `_mine`
        artists: list[Any] = [*axes.lines, *axes.patches, *axes.containers]
        for artist in artists:
            label = str(artist.get_label())
            if not label.startswith(("_child", "_container", "_nolegend_")):
                found.setdefault(label, artist)
    if found:
        columns = max(1, min(len(found), 110 // (max(map(len, found)) + 8)))
        figure.legend([*found.values()], [*found], loc="outside lower center", ncols=columns)


def _missing(axes: Axes, xs: Sequence[float], ys: Sequence[float], label: str) -> None:
    """A cross for each missing number."""
    if xs:
        axes.plot(xs, ys, "x", color=_GREY, clip_on=False, label=label)


def _model(rows: Sequence[Row], among: Sequence[Row]) -> str:
    """The model, and the sweep if there are several."""
    several = len({row.get("sweep") for row in among}) > 1
    sweep = f", sweep {name(rows[0]['sweep'])}" if several else ""
    return f"{name(rows[0]['model'])}{sweep} ({rows[0]['depth']} layers)"


# -- the plots of a task, which the page has as well


def by_layers(figure: Figure, rows: Sequence[Row]) -> None:
    """A panel for each task."""
    shown = [row for row in rows if row["place"] == 1]
    _plots(figure, [(of, plots.by_layers(of)) for of in groups(shown, *TASK)], rows, 2.4)


def by_cost(figure: Figure, rows: Sequence[Row]) -> None:
    """A panel for each task, device and batch; of sizes where no speed is measured."""
    made = [(of, plots.by_cost(of)) for of in groups(rows, *TASK, "place")]
    _plots(figure, [(of, plot) for of, plot in made if plot], rows, 2.5)


def candidates(figure: Figure, rows: Sequence[Row]) -> None:
    """Two panels for each task and device: milliseconds and megabytes."""
    found = groups(rows, "model", "task", "device_name", "threads")
    made = [(of, plot) for of in found for plot in plots.of_candidates(of)]
    _plots(figure, made, rows, 3, columns=2)


def _plots(
    figure: Figure,
    made: Sequence[tuple[Sequence[Row], Plot]],
    among: Sequence[Row],
    height: float,
    columns: int = _COLUMNS,
) -> None:
    for axes, (rows, plot) in _panels(figure, made, columns, height=height):
        titles = [_model(rows, among), f"{name(plot.task)} {plot.metric}", name(plot.device)]
        axes.set_title("\n".join(filter(None, titles)), loc="left")
        _plot(axes, plot)


def _plot(axes: Axes, plot: Plot) -> None:
    across, up = plot.spans
    if plot.is_log:
        axes.set_xscale("log")
        axes.minorticks_off()
    axes.set_xticks(plot.x_ticks(), [f"{tick:g}" for tick in plot.x_ticks()])
    axes.set(xlim=across, ylim=up, xlabel=plots.X_LABELS[plot.name])
    for loss in plot.losses:
        axes.axhspan(
            (plot.full or 0) - loss, plot.full or 0, color=COLOURS[3], alpha=0.08, linewidth=0
        )
    for line in plot.lines:
        axes.plot(
            *zip(*line.points, strict=True), "--" if line.dashed else "-", c=COLOURS[line.look]
        )
    for mark in plot.marks:
        fill: dict[str, Any] = {"markerfacecolor": "white"} if mark.hollow else {}
        size = 7 if mark.label else 4
        axes.plot(mark.x, mark.y, "o", color=COLOURS[mark.look], markersize=size, **fill)
        if mark.label:
            axes.annotate(mark.label, (mark.x, mark.y), (4, -10), textcoords="offset points")
    for look, label in plot.legend:
        axes.plot([], [], "o", color=COLOURS[look], label=name(label))
    axes.legend(fontsize=6, loc="best")


# -- figures 2 and 3: strategies side by side; networks without some feed-forwards


def one_sd(row: Row) -> Limits:
    """One sd to each side of the mean, within what a score can be; the mean for one seed."""
    if row["sd"] is None:
        return Limits(row["mean"], row["mean"])
    # over tasks there is no metric, and one of them may go below zero
    metric = row.get("metric")
    least = least_of(metric) if metric and row["mean"] >= 0 else -100.0
    return bounded(row["mean"], row["sd"], least, 100.0)


def bars(figure: Figure, rows: Sequence[Row]) -> None:
    """A panel per model: bars by strategy and K, and lines for the full model and references."""
    known = [row for row in rows if row["mean"] is not None]
    low, high = (pick(row["mean"] for row in known) for pick in (min, max))
    # it does not start at 0: then all bars would look alike
    bottom = 5.0 * math.floor((low - 0.15 * max(high - low, 2.0)) / 5) if low > 20 else min(0, low)
    ks = sorted({row["k"] for row in rows if row["role"] == "pruned" and row["k"] is not None})
    looks: dict[Any, dict[str, Any]] = {
        k: {"color": _colour(place, len(ks)), "label": f"{k} dropped"} for place, k in enumerate(ks)
    }
    looks[None] = {
        "color": "white",
        "edgecolor": _GREY,
        "hatch": "////",
        "label": "K differs by task",
    }
    for axes, panel in _panels(figure, groups(rows, "sweep", "model"), height=2.5):
        axes.set_title(_model(panel, rows), loc="left")
        axes.set_ylabel("mean over tasks (points)" + (f",\naxis from {bottom:g}" if bottom else ""))
        axes.set_ylim(bottom, high + 0.35 * (high - bottom))
        axes.grid(visible=False, axis="x")
        _bars(axes, [row for row in panel if row["role"] == "pruned"], looks, bottom)
        dashes = itertools.cycle(("--", ":", "-."))
        for row in panel:
            if row["mean"] is not None and row["role"] != "pruned":
                line = next(dashes) if row["reference"] else "-"
                label = name(row["reference"] or FULL)
                axes.axhline(row["mean"], color="black", linestyle=line, label=label)
    _caption(figure, OF_DIRECT)
    _legend(figure)


def _bars(axes: Axes, rows: Sequence[Row], looks: Mapping[Any, Any], bottom: float) -> None:
    """The bars of a strategy are side by side; the colour is the number of dropped layers."""
    place, ticks = 0.0, {}
    for strategy in groups(rows, "strategy"):
        ticks[place + (len(strategy) - 1) / 2] = name(strategy[0]["strategy"])
        for row in strategy:
            if row["mean"] is None:
                _missing(axes, [place], [bottom], "not complete")
            else:
                mean, (low, high) = row["mean"], one_sd(row)
                look = looks[row["k"]] | {"error_kw": {"elinewidth": 0.8}}
                yerr = [[mean - low], [high - mean]]
                bar = axes.bar(place, mean - bottom, 0.9, bottom, yerr=yerr, **look)
                axes.bar_label(bar, [_threshold(row)], rotation=90, padding=3)
            place += 1
        place += 0.8
    axes.set_xlim(-0.9, max(place - 0.9, 8))  # keeps a few bars narrow
    axes.set_xticks([*ticks], [*ticks.values()], rotation=30, ha="right", rotation_mode="anchor")


def _threshold(row: Row) -> str:
    """`t=0.9 K≈1.5`; "" for a bar of one K, whose colour tells it."""
    if row["threshold"] is None:
        return ""
    return f"t={row['threshold']:g}" + (f" K≈{row['k_mean']:.1f}" if row["k"] is None else "")


def feed_forward(figure: Figure, rows: Sequence[Row]) -> None:
    """A row of panels per model: mean score and parameters of each setting, side by side."""
    found = groups(rows, "sweep", "model")
    sides = (
        ("mean", 1, "{:.2f}", "mean over tasks (points)"),
        ("parameters", 1e6, "{:.3g}", "parameters (million)"),
    )
    shape: dict[str, Any] = {"sharey": "row", "height_ratios": [*map(len, found)]}
    panels = _panels(figure, itertools.product(found, sides), 2, height=1.8, **shape)
    for axes, (settings, (column, unit, form, label)) in panels:
        values = [row[column] for row in settings]
        if column == "mean":
            of = "" if settings[0]["k"] == 0 else ", {strategy} K={k}".format_map(settings[0])
            axes.set_title(_model(settings, rows) + of, loc="left")
            axes.set_yticks(range(len(settings)), [name(row["feed_forward"]) for row in settings])
            axes.invert_yaxis()
        drawn = axes.barh(
            range(len(values)), [(v or 0) / unit for v in values], 0.7, color=COLOURS[1]
        )
        axes.bar_label(drawn, ["" if v is None else form.format(v / unit) for v in values])
        axes.margins(x=0.2)
        missing = [place for place, value in enumerate(values) if value is None]
        _missing(axes, [0] * len(missing), missing, "not complete")
        axes.set_xlabel(label)
    figure.supylabel("feed-forwards removed")
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
    """Cosine by layer of the sentence token and the per-text token mean. Below 0.7, shaded, a layer
    changed substantially (Figure 5 of the paper)."""
    titles = {"sentence": "sentence token", "tokens": "per-text token mean"}
    for axes, (part, title) in _panels(figure, titles.items(), 2, height=2.5, sharey=True):
        axes.set_title(title, loc="left")
        _curves(axes, [row for row in rows if row["part"] == part], rows)
        low = min(0.6, axes.get_ylim()[0])
        axes.axhspan(-1, 0.7, color=_YELLOW, alpha=0.35, zorder=0, label="below 0.7")
        axes.set_ylim(low, 1.01)
    figure.supylabel("cosine, pre-trained and fine-tuned")
    _legend(figure)


def _curves(axes: Axes, rows: Sequence[Row], among: Sequence[Row]) -> None:
    models = sorted({row["model"] for row in among})
    for curve in groups(rows, "model", "network", "kept_layers"):
        first, place = curve[0], models.index(curve[0]["model"])
        if all(row["mean"] is None for row in curve):
            continue
        pruned = first["network"] == "pruned"
        layers = [0, *(first["kept_layers"] if pruned else range(1, first["depth"] + 1))]
        look: dict[str, Any] = {"color": _colour(place, len(models)), "label": curve_label(first)}
        look |= {"alpha": 0.55, "linewidth": 0.6} if pruned else {}
        line = "--" if first["network"] == "pretrained" else "-"
        axes.plot(layers, _values(curve, layers, "mean"), line, marker="o", **look)
        if first["network"] == "full":
            low, high = _values(curve, layers, "low"), _values(curve, layers, "high")
            axes.fill_between(layers, low, high, color=look["color"], alpha=0.2, linewidth=0)
    axes.set_xlabel("layer (0: embeddings)")
    axes.locator_params(axis="x", integer=True)


def _values(curve: Sequence[Row], layers: Sequence[int], column: str) -> list[float]:
    """The values at these layers; NaN, a gap in the line, where there is none."""
    at = {row["layer"]: row[column] for row in curve}
    return [math.nan if at.get(layer) is None else at[layer] for layer in layers]


def curve_label(row: Row) -> str:
    kind = {"full": "", "pretrained": ", pre-trained", "pruned": ", pruned"}[row["network"]]
    return f"{name(row['model'])}{kind}{_measured_tasks(row)}"


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
            place, shown = settings.index(curve[0]["network"]), [row["layer"] for row in curve]
            said = f"{name(curve[0]['network'])} removed{_measured_tasks(curve[0])}"
            look: dict[str, Any] = {"color": _colour(place, len(settings)), "label": said}
            axes.plot(shown, _values(curve, shown, "mean"), marker="o", **look)
    _caption(figure, OF_DIRECT)
    _legend(figure)


def contribution(figure: Figure, rows: Sequence[Row]) -> None:
    """A panel per profile: bars by layer, and below them the layers that each threshold keeps."""
    low = math.floor(10 * min([row["value"] for row in rows if row["value"]] + [0.9]) - 1e-9) / 10
    for axes, profile in _panels(figure, groups(rows, "profile_id"), _COLUMNS, height=2.2):
        axes.set_title(f"{name(profile[0]['model'])}\n{name(profile[0]['task'])}", loc="left")
        axes.set(xlabel="layer", ylabel="mean cosine")
        axes.grid(visible=False)
        values = {row["layer"]: row["value"] for row in profile}
        known = {layer: value - low for layer, value in values.items() if value is not None}
        axes.bar([*known], [*known.values()], 0.8, low, color=COLOURS[6])
        missing = [layer for layer in values if layer not in known]
        _missing(axes, missing, [low] * len(missing), "not a number")
        _thresholds(axes, profile, low)
        axes.locator_params(axis="x", integer=True, min_n_ticks=1)
    _legend(figure)


def _thresholds(axes: Axes, profile: Sequence[Row], low: float) -> None:
    """A dashed line for each, and below the bars a square per layer."""
    step = 0.17 * (1 - low)
    ticks = {low: f"{low:g}", 1.0: "1"}
    chosen_by = groups([row for row in profile if row["threshold"] is not None], "threshold")
    for line, chosen in enumerate(chosen_by, start=1):
        threshold, height = chosen[0]["threshold"], low - line * step
        axes.axhline(threshold, color="black", linewidth=0.8, linestyle="--", label="threshold")
        ticks[height] = f"t={threshold:g}"
        for word, kept, face in (("kept", True, COLOURS[1]), ("dropped", False, "white")):
            at = [row["layer"] for row in chosen if row["kept"] is kept]
            look: dict[str, Any] = {"color": COLOURS[1], "markerfacecolor": face, "label": word}
            axes.plot(at, [height] * len(at), "s", **look)
    axes.set_ylim(low - (len(chosen_by) + 0.6) * step, 1)
    axes.set_yticks([*ticks], [*ticks.values()])


def cka(figure: Figure, rows: Sequence[Row]) -> None:
    """A row of two heat maps per network: layer outputs and attention outputs."""
    networks = groups(rows, "model", "kept_layers", "with_pretrained")
    panels = itertools.product(networks, ("layer", "attention"))
    image: Any = None
    for axes, (network, part) in _panels(figure, panels, 2, height=3.1):
        cells = [row for row in network if row["part"] == part]
        axes.set_title(f"{name(network[0]['model'])}\n{part} outputs", loc="left")
        axes.grid(visible=False)
        axes.patch.set(hatch="////", edgecolor=_GREY)
        if cells:
            image = _heat(axes, cells)
    if any(len(row["kept_layers"]) < row["depth"] for row in rows):
        _caption(figure, OF_DIRECT)
    if image is not None:
        figure.colorbar(
            image, ax=figure.axes, label="linear CKA (hatched: not a number)", shrink=0.7
        )


def _heat(axes: Axes, cells: Sequence[Row]) -> Any:
    here, there = (sorted({row[side] for row in cells}) for side in ("layer", "other"))
    matrix = np.full((len(here), len(there)), np.nan)
    for row in cells:
        if row["value"] is not None:
            matrix[here.index(row["layer"]), there.index(row["other"])] = row["value"]
    image = axes.imshow(
        np.ma.masked_invalid(matrix), origin="lower", vmin=0, vmax=1, cmap="cividis"
    )
    every = max(1, math.ceil(max(len(here), len(there)) / 13))
    axes.set_xticks(range(0, len(there), every), [str(layer) for layer in there[::every]])
    axes.set_yticks(range(0, len(here), every), [str(layer) for layer in here[::every]])
    n, depth = len(cells[0]["kept_layers"]), cells[0]["depth"]
    axes.set_xlabel(f"{'pre-trained' if cells[0]['with_pretrained'] else 'full model'}'s layer")
    axes.set_ylabel("fine-tuned layer" if n == depth else f"layer of {n} of {depth}")
    return image
