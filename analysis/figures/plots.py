"""The plots of a task: score by layers, and by milliseconds, megabytes or speed.

Each shows the networks near the answer, and counts those that it leaves out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator

from lp_sweep.analysis import phrases, shipping
from lp_sweep.analysis.figures.numbers import FULL
from lp_sweep.analysis.rows import Row, grouped
from lp_sweep.storage.printable import layers, printable

_SHOWN = 1.6  # times the largest allowed loss: the scores that are shown below the full model


class Mark(NamedTuple):
    """A network that was trained or measured."""

    name: str  # of its series
    x: float
    y: float
    tip: str  # shown when the pointer is on it
    label: str = ""  # next to the answer's own network


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    x_label: str
    metric: str
    marks: Sequence[Mark]
    is_joined: bool = True  # a line joins each series
    full: float = 0  # the score that a loss is allowed against
    losses: Sequence[float] = ()
    below: int = 0  # networks with a lower score


def paint(axes: Axes, plot: Plot) -> None:
    """Draws the plot without a title, and names the series for a legend. A line starts at the full
    model; a lone network and the draws of `random` are dots."""
    for loss in plot.losses:
        within = f"loses at most {loss:g}"
        axes.axhspan(plot.full - loss, plot.full, color="green", alpha=0.08, label=within)
    series = grouped(plot.marks, lambda mark: mark.name)
    for name, marks in series.items():
        dots = "o-" if plot.is_joined and name != "random" else "o"
        start = series.get(FULL, [])[:1] if plot.is_joined and marks[1:] else []
        black: Any = {"color": "black", "zorder": 3} if name == FULL else {}
        sides = zip(*sorted((mark.x, mark.y) for mark in (*start, *marks)), strict=True)
        axes.plot(*sides, dots, label=printable(name), **black)
    xs = [mark.x for mark in plot.marks]
    if plot.is_joined:
        axes.locator_params(axis="x", integer=True)
    elif max(xs) > 5 * min(xs) > 0:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
    for mark in plot.marks:
        if mark.label:
            axes.plot(mark.x, mark.y, "o", markersize=10, markerfacecolor="none", color="black")
            axes.annotate(mark.label, (mark.x, mark.y), (6, -12), textcoords="offset points")
    if plot.below:
        axes.plot([], [], " ", label=f"{plot.below} lower, not shown")
    axes.margins(0.08)
    axes.set(xlabel=plot.x_label, ylabel=plot.metric)


def _zoomed(
    marks: Sequence[Mark], full: float | None, losses: Sequence[float], **more: Any
) -> Plot:
    """The networks near the allowed losses; all answers, and the best one that is not full.
    `full`: the score of the full model, if it has one."""
    low = -math.inf if full is None else full - _SHOWN * max(losses, default=1)
    best = max(mark.y for mark in marks if mark.name != FULL)
    low = min(low, best, *(mark.y for mark in marks if mark.label))
    return Plot(
        marks=[mark for mark in dict.fromkeys(marks) if mark.y >= low],
        full=full or 0,
        losses=() if full is None else losses,
        below=sum(mark.y < low for mark in marks),
        **more,
    )


# -- from rows of `numbers.NETWORKS`, of one task


def by_layers(rows: Sequence[Row]) -> list[Plot]:
    """Score by layers that are kept, if there are fewer: a series for each strategy and
    procedure."""
    if not any(row["k"] for row in rows):
        return []
    return [_of_networks(rows, "n_kept", x_label="layers kept")]


def by_speed(rows: Sequence[Row]) -> list[Plot]:
    """Score by measured speed, if that of the answers is measured."""
    known = [row for row in rows if row["speedup"]]
    missing = any(row["within"] and not row["speedup"] for row in rows)
    if missing or not any(row["k"] for row in known):
        return []
    return [_of_networks(known, "speedup", x_label="speed (all layers: 1)", is_joined=False)]


def _of_networks(rows: Sequence[Row], column: str, **more: Any) -> Plot:
    marks = [
        Mark(
            line_of(row),
            row[column],
            round(row["mean"], 6),  # means of the same scores differ in the last bit
            network_tip(row),
            f"{phrases.kept_of(row)} ({phrases.signed(row['change'])})"
            * bool(row["within"] and row["k"]),
        )
        for row in rows
    ]
    first = rows[0]
    return _zoomed(marks, first["score_full"], first["losses"], metric=first["metric"], **more)


def of_candidates(rows: Sequence[Row]) -> list[Plot]:
    """Score by milliseconds and by megabytes of networks as they are shipped. `rows`: of
    `candidates`, of one task and device."""
    able = [row for row in rows if not row["error"] and row["ms"] and row["score"] is not None]
    if not able:
        return []
    losses = sorted({d for row in rows for d in (*row["chosen_within"], *row["nearest_within"])})
    full = max(row["score"] - row["change"] for row in able)
    found, metric = [], able[0]["metric"]
    for column, x_label in (("ms", "ms for one text"), ("mb", "MB on disk")):
        marks = [
            Mark(
                shipping.form(row),
                row[column],
                row["score"],
                shipping.shipped(row),
                layers(row["kept_layers"]) * bool(row["chosen_within"]),
            )
            for row in able
        ]
        found.append(_zoomed(marks, full, losses, metric=metric, x_label=x_label, is_joined=False))
    return found


def by_epoch(rows: Sequence[Row]) -> list[Plot]:
    """Learning curves, if a trial has two epochs. `rows`: of `numbers.EPOCHS`, of one task."""
    if all(row["epoch"] == 1 for row in rows):
        return []
    tip = "{line}, epoch {epoch}: {score:.2f}".format_map
    marks = [Mark(row["line"], row["epoch"], row["score"], tip(row)) for row in rows]
    return [Plot(x_label="epoch", metric=rows[0]["metric"], marks=marks)]


def network_tip(row: Row) -> str:
    """`layers 1-4, top, iterative: 88.10 (−0.55), 3 seeds`"""
    change = "" if row["k"] == 0 else f" ({phrases.signed(row['change'])})"
    seeds = phrases.seeds(row["n_seeds"], row["n_asked"])
    kept = layers(row["kept_layers"])
    return f"{kept}, {line_of(row)}: {row['mean']:.2f}{change}, {seeds}"


def line_of(row: Row) -> str:
    if row["k"] == 0:
        return FULL
    own = "" if row["procedure"] == "direct" else f", {row['procedure']}"
    return f"{row['line']}{own}"
