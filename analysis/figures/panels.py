"""Painters of bar charts: strategies side by side, and networks without some feed-forwards.

Each draws rows of `numbers` on a matplotlib figure. A missing number leaves a gap.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lp_sweep.analysis.figures import theme
from lp_sweep.analysis.rows import Row
from lp_sweep.analysis.statistics.estimates import Limits, bounded, least_of

OF_DIRECT = "Procedure direct: pruned first, then fine-tuned."
_THIN = {"elinewidth": 0.8, "ecolor": "black"}  # error bars
_ABOVE: dict[str, Any] = {  # a label above a bar, readable over lines
    "padding": 3,
    "fontsize": theme.SMALL,
    "zorder": 5,
    "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 0.5},
}


def one_sd(row: Row) -> Limits:
    """The mean with one sd to each side, within what a score can be; NaN for one seed."""
    if row["sd"] is None:
        return Limits(math.nan, math.nan)
    # over tasks there is no metric, and one of them may go below zero
    metric = row.get("metric")
    least = least_of(metric) if metric and row["mean"] >= 0 else -100.0
    return bounded(row["mean"], row["sd"], least, 100.0)


def _errors(rows: Sequence[Row]) -> list[list[float]]:
    """(2, n): the lengths of error bars; 0 for one seed."""
    sides = [
        (row["mean"] - low, high - row["mean"]) if row["sd"] is not None else (0.0, 0.0)
        for row in rows
        for low, high in [one_sd(row)]
    ]
    return [list(side) for side in zip(*sides, strict=True)]


def groups(rows: Iterable[Row], *keys: str) -> list[list[Row]]:
    """Groups of consecutive rows that agree in `keys`."""
    return [
        list(group) for _, group in itertools.groupby(rows, lambda row: [row[key] for key in keys])
    ]


def heading(rows: Sequence[Row], all_rows: Sequence[Row]) -> str:
    """The model, and the sweep if there are several."""
    several = len({row.get("sweep") for row in all_rows}) > 1
    sweep = f", sweep {theme.name(rows[0]['sweep'])}" if several else ""
    return f"{theme.name(rows[0]['model'])}{sweep} ({rows[0]['depth']} layers)"


# -- figures 2 and 3


def bars(figure: Figure, rows: Sequence[Row], among: Sequence[Row]) -> None:
    """A panel per model: bars by strategy and K, and lines for the full model and references."""
    found = groups(rows, "sweep", "model")
    bottom, top = _span(among)
    dropped = sorted(
        {row["k"] for row in among if row["role"] == "pruned" and row["k"] is not None}
    )
    colours = {k: theme.colour(index, len(dropped)) for index, k in enumerate(dropped)}
    for axes, panel in zip(theme.panels(figure, len(found)), found, strict=True):
        axes.set_title(heading(panel, among), loc="left")
        axes.set_ylim(bottom, top)
        axes.set_yticks([tick for tick in axes.get_yticks() if bottom <= tick <= 100])
        axes.grid(visible=False, axis="x")
        axes.set_ylabel("mean over tasks (points)" + (f",\naxis from {bottom:g}" if bottom else ""))
        _bars_of(axes, [row for row in panel if row["role"] == "pruned"], colours, bottom)
        _lines_across(axes, panel, among)
    theme.caption(figure, OF_DIRECT)
    theme.legend(figure)


def _span(rows: Sequence[Row]) -> tuple[float, float]:
    """The limits of the axis. It does not start at 0: then all bars would look alike. Labelled bars
    need some room."""
    known = [row for row in rows if row["mean"] is not None]
    low, high = (pick(row["mean"] for row in known) for pick in (min, max))
    labelled = [row["mean"] for row in known if row["threshold"] is not None]
    spread = max(high - low, 2.0)
    bottom = 5.0 * math.floor((low - 0.15 * spread) / 5) if low > 20 else min(0.0, low)
    height = high - bottom
    return bottom, max(high + 0.1 * height, max(labelled, default=low) + 0.5 * height)


def _lines_across(axes: Axes, panel: Sequence[Row], among: Sequence[Row]) -> None:
    """Lines for the full model and for references, which look alike in all panels."""
    names = dict.fromkeys(row["reference"] for row in among if row["role"] == "reference")
    styles: dict[str | None, str] = dict(
        zip(names, itertools.cycle(("--", ":", "-.")), strict=False)
    )
    for row in panel:
        if row["mean"] is not None and row["role"] != "pruned":
            label = theme.name(row["reference"] or "all layers")
            look: dict[str, Any] = {"color": "black", "linewidth": 1.2, "label": label}
            axes.axhline(row["mean"], linestyle=styles.get(row["reference"], "-"), **look)


def _bars_of(axes: Axes, rows: Sequence[Row], colours: Mapping[int, Any], bottom: float) -> None:
    """The bars of a strategy are side by side; the colour is the number of dropped layers."""
    places, ticks, place = [], {}, 0.0
    for strategy in groups(rows, "strategy"):
        ticks[place + (len(strategy) - 1) / 2] = theme.name(strategy[0]["strategy"])
        places += [place + at for at in range(len(strategy))]
        place += len(strategy) + 0.8
    placed = [*zip(places, rows, strict=True)]
    missing = [at for at, row in placed if row["mean"] is None]
    theme.missing(axes, missing, [bottom] * len(missing), "not complete")
    for k in (*colours, None):
        look: dict[str, Any] = {"color": "white", "edgecolor": theme.GREY, "hatch": "////"}
        look["label"] = "K differs by task"
        if k is not None:
            look = {"color": colours[k], "label": f"{k} dropped"}
        same = [(at, row) for at, row in placed if row["k"] == k and row["mean"] is not None]
        if not same:
            continue
        at, known = zip(*same, strict=True)
        heights = [row["mean"] - bottom for row in known]
        drawn = axes.bar(at, heights, 0.9, bottom, yerr=_errors(known), error_kw=_THIN, **look)
        axes.bar_label(drawn, [_threshold(row) for row in known], rotation=90, **_ABOVE)
    axes.set_xlim(-0.9, max(place - 0.9, 8))  # keeps a few bars narrow
    axes.set_xticks([*ticks], [*ticks.values()], rotation=30, ha="right", rotation_mode="anchor")
    axes.tick_params(axis="x", length=0)


def _threshold(row: Row) -> str:
    """`t=0.9 K≈1.5`; "" for a bar of one K, whose colour tells it."""
    if row["threshold"] is None:
        return ""
    return f"t={row['threshold']:g}" + (f" K≈{row['k_mean']:.1f}" if row["k"] is None else "")


def feed_forward(figure: Figure, rows: Sequence[Row], among: Sequence[Row]) -> None:
    """A row of panels per model: mean score and parameters of each setting, side by side."""
    found = groups(rows, "sweep", "model")
    heights = [len(group) for group in found]
    drawn = theme.panels(figure, len(found), 2, sharey="row", height_ratios=heights)
    for line, settings in enumerate(found):
        left, right = drawn[2 * line : 2 * line + 2]
        depth = "" if settings[0]["k"] == 0 else f", {settings[0]['strategy']} K={settings[0]['k']}"
        left.set_title(heading(settings, among) + depth, loc="left")
        left.set_yticks(range(len(settings)), [theme.name(row["feed_forward"]) for row in settings])
        left.invert_yaxis()
        scores = [row["mean"] for row in settings]
        _side(left, scores, "{:.2f}", theme.COLOURS[0], xerr=_errors(settings))
        sizes = [row["parameters"] and row["parameters"] / 1e6 for row in settings]
        _side(right, sizes, "{:.3g}", theme.COLOURS[4])
        left.set_xlabel("mean over tasks (points)")
        right.set_xlabel("parameters (million)")
    figure.supylabel("feed-forwards removed", fontsize=9)
    theme.caption(figure, OF_DIRECT)
    theme.legend(figure)


def _side(
    axes: Axes, values: Sequence[float | None], form: str, fill: str, xerr: Any = None
) -> None:
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    known = [value or 0 for value in values]
    axes.set_xlim(0, 1.22 * max(known) or 1)
    drawn = axes.barh(range(len(values)), known, 0.7, color=fill, xerr=xerr, error_kw=_THIN)
    axes.bar_label(drawn, ["" if v is None else form.format(v) for v in values], **_ABOVE)
    missing = [place for place, value in enumerate(values) if value is None]
    theme.missing(axes, [0] * len(missing), missing, "not complete")
