"""The plots of a task: score by layers, and by milliseconds, megabytes or speed.

Each shows the networks near the answer, and counts those that it leaves out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator

from lp_sweep.analysis import phrases, shipping
from lp_sweep.analysis.figures.numbers import FULL
from lp_sweep.analysis.rows import Row, grouped
from lp_sweep.storage.printable import printable, ranges

_SHOWN = 1.6  # times the largest allowed loss: the scores that are shown below the full model
_SPEED = "speed (all layers: 1)"


class Mark(NamedTuple):
    """A network that was trained or measured."""

    x: float
    y: float
    tip: str  # all its values, shown when the pointer is on it
    label: str = ""  # next to the answer's own network


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    x_label: str
    task: str
    metric: str
    device: str = ""  # where a speed was measured
    series: Mapping[str, Sequence[Mark]]  # by name
    is_cost: bool = False  # x: a line joins those that none beats; else it joins each series
    full: float = 0  # the score that a loss is allowed against
    losses: Sequence[float] = ()
    below: int = 0  # networks with a lower score

    @property
    def marks(self) -> list[Mark]:
        return list(dict.fromkeys(mark for marks in self.series.values() for mark in marks))


def paint(axes: Axes, plot: Plot) -> None:
    """Draws the plot without a title, and names the series for a legend."""
    for loss in plot.losses:
        within = f"loses at most {loss:g}"
        axes.axhspan(plot.full - loss, plot.full, color="green", alpha=0.08, label=within)
    for name, marks in plot.series.items():
        dots = "o" if plot.is_cost or name == "random" else "o-"
        black: Any = {"color": "black", "zorder": 3} if name == FULL else {}
        axes.plot(*_sides(marks), dots, label=printable(name), **black)
    if plot.is_cost:
        axes.plot(*_sides(front(plot)), "--", color="grey", zorder=1)
        xs = [mark.x for mark in plot.marks]
        if plot.x_label != _SPEED and max(xs) > 5 * min(xs) > 0:
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.xaxis.set_major_formatter("{x:g}")
            axes.minorticks_off()
    else:
        axes.locator_params(axis="x", integer=True)
    for mark in plot.marks:
        if mark.label:
            axes.plot(mark.x, mark.y, "o", markersize=10, markerfacecolor="none", color="black")
            axes.annotate(mark.label, mark[:2], (6, -12), textcoords="offset points")
    if plot.below:
        axes.plot([], [], " ", label=f"{plot.below} lower, not shown")
    axes.margins(0.08)
    axes.set(xlabel=plot.x_label, ylabel=plot.metric)


def _sides(marks: Sequence[Mark]) -> tuple[list[float], list[float]]:
    return [mark.x for mark in marks], [mark.y for mark in marks]


def front(plot: Plot) -> list[Mark]:
    """The marks that no other beats in score and in x: a cost, or how fast they are."""
    sign = -1 if plot.x_label == _SPEED else 1
    found: list[Mark] = []
    for mark in sorted(plot.marks, key=lambda mark: (sign * mark.x, -mark.y)):
        if not found or mark.y > found[-1].y:
            found.append(mark)
    return found


# -- from rows of `numbers.NETWORKS`, of one task


def by_layers(rows: Sequence[Row]) -> list[Plot]:
    """Score by layers that are kept, if there are fewer: a line for each strategy and procedure,
    which starts at the full model; the draws of `random` are dots alone."""
    if not any(row["k"] for row in rows):
        return []
    return [_of_networks(rows, "n_kept", "layers kept")]


def by_speed(rows: Sequence[Row]) -> list[Plot]:
    """Score by measured speed, if that of the answers is measured."""
    known = [row for row in rows if row["speedup"]]
    missing = any(row["within"] and not row["speedup"] for row in rows)
    if missing or not any(row["k"] for row in known):
        return []
    return [_of_networks(known, "speedup", _SPEED)]


def _of_networks(rows: Sequence[Row], column: str, x_label: str) -> Plot:
    """The networks near the allowed losses; at least the best one with fewer layers."""
    full, losses = rows[0]["score_full"], rows[0]["losses"]
    low = -math.inf if full is None else _lowest(full, losses)
    smaller = max((row["mean"] for row in rows if row["k"]), default=math.inf)
    low = min([low, smaller, *(row["mean"] for row in rows if row["within"])])
    shown = [row for row in rows if row["mean"] >= low]
    whole = {row["procedure"]: row for row in shown if row["k"] == 0}
    is_cost, series = column != "n_kept", dict[str, list[Mark]]()
    for name, line in grouped(shown, line_of).items():
        start = [] if is_cost or len(line) == 1 else [whole.get(line[0]["procedure"])]
        marks = {
            Mark(
                x=row[column],
                y=round(row["mean"], 6),  # means of the same scores differ in the last bit
                tip=network_tip(row),
                label=f"{phrases.kept_of(row)} ({phrases.signed(row['change'])})"
                * bool(row["within"] and row["k"]),
            )
            for row in (*line, *filter(None, start))
        }
        series[name] = sorted(marks)
    return Plot(
        x_label=x_label,
        task=rows[0]["task"],
        metric=rows[0]["metric"],
        device=phrases.device(rows[0]) if x_label == _SPEED else "",
        series=series,
        is_cost=is_cost,
        full=full or 0,
        losses=() if full is None else losses,
        below=len(rows) - len(shown),
    )


def of_candidates(rows: Sequence[Row]) -> list[Plot]:
    """Score by milliseconds and by megabytes of networks as they are shipped. `rows`: of
    `candidates`, of one task and device."""
    able = [row for row in rows if not row["error"] and row["ms"] and row["score"] is not None]
    if not able:
        return []
    losses = sorted({d for row in rows for d in (*row["chosen_within"], *row["nearest_within"])})
    full = max(row["score"] - row["change"] for row in able)
    chosen = [row["score"] for row in able if row["chosen_within"]]
    shown = [row for row in able if row["score"] >= min([_lowest(full, losses), *chosen])]

    def plot(column: str, x_label: str) -> Plot:
        series = {
            name: [
                Mark(
                    x=row[column],
                    y=row["score"],
                    tip=shipping.shipped(row),
                    label=f"layers {ranges(row['kept_layers'])}" * bool(row["chosen_within"]),
                )
                for row in of_form
            ]
            for name, of_form in grouped(shown, shipping.form).items()
        }
        return Plot(
            x_label=x_label,
            task=able[0]["task"],
            metric=able[0]["metric"],
            device=shipping.served_by(able[0]) if column == "ms" else "",
            series=series,
            is_cost=True,
            full=full,
            losses=losses,
            below=len(able) - len(shown),
        )

    return [plot("ms", "ms for one text"), plot("mb", "MB on disk")]


def by_epoch(rows: Sequence[Row]) -> list[Plot]:
    """Learning curves, if a trial has two epochs. `rows`: of `numbers.EPOCHS`, of one task."""
    if all(row["epoch"] == 1 for row in rows):
        return []
    tip = "{line}, epoch {epoch}: {score:.2f}".format_map
    series = {
        line: [Mark(row["epoch"], row["score"], tip(row)) for row in of]
        for line, of in grouped(rows, lambda row: row["line"]).items()
    }
    task, metric = rows[0]["task"], rows[0]["metric"]
    return [Plot(x_label="epoch", task=task, metric=metric, series=series)]


def network_tip(row: Row) -> str:
    """`layers 1-4, top, direct: 88.10 (−0.55), 3 seeds; 12.1 M parameters, ×1.42`"""
    change = "" if row["k"] == 0 else f" ({phrases.signed(row['change'])})"
    parts = [f"{row['mean']:.2f}{change}", phrases.seeds(row["n_seeds"], row["n_asked"])]
    if row["params_total"]:
        parts.append(f"{phrases.parameters(row['params_total'])} parameters")
    if row["speedup"]:
        parts.append(f"{row['speedup']:.2f} times as fast")
    return f"{phrases.layers(row['kept_layers'])}, {line_of(row)}: {', '.join(parts)}"


def line_of(row: Row) -> str:
    if row["k"] == 0:
        return FULL
    own = "" if row["procedure"] == "direct" else f", {row['procedure']}"
    return f"{row['line']}{own}"


def _lowest(full: float, losses: Sequence[float]) -> float:
    return full - _SHOWN * max(losses, default=1)
