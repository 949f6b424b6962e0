"""The plots of a task: score by layers, by milliseconds, megabytes or speed, and by epoch.

A plot is values and words. The report's template draws it as SVG, `painters.plot` with matplotlib.
It is zoomed to where the answer is, and counts what it leaves out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from lp_sweep.analysis import phrases, shipping
from lp_sweep.analysis.figures.numbers import FULL
from lp_sweep.analysis.rows import Row, grouped
from lp_sweep.storage.printable import ranges

# the Okabe-Ito colours, which colour-blind readers can tell apart; the first is of the full model
COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#777777")
OTHER = len(COLOURS) - 1
_X_LABELS = {
    "score": "layers kept",
    "ms": "ms for one text",
    "mb": "MB on disk",
    "speed": "speed (all layers: 1)",
    "size": "million parameters",
    "epochs": "epoch",
}
_SHOWN = 1.6  # times the largest allowed loss: the scores that are shown below the full model

PlotName = Literal["score", "ms", "mb", "speed", "size", "epochs"]


class Mark(NamedTuple):
    """A network that was trained or measured."""

    x: float
    y: float
    look: int  # an index of COLOURS
    tip: str  # all its values, shown when the pointer is on it
    label: str = ""  # next to the answer's own network
    hollow: bool = False


class Line(NamedTuple):
    look: int
    points: Sequence[tuple[float, float]]
    dashed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    name: PlotName
    task: str
    metric: str
    device: str = ""  # where a speed was measured
    marks: Sequence[Mark]
    lines: Sequence[Line]
    legend: Sequence[tuple[int, str]]
    full: float | None = None  # the score that a loss is allowed against
    losses: Sequence[float] = ()
    low: float  # the lowest score that is shown
    below: int = 0  # networks with a lower score

    @property
    def x_label(self) -> str:
        return _X_LABELS[self.name]

    @property
    def is_counted(self) -> bool:
        return self.name in ("score", "epochs")

    @property
    def is_log(self) -> bool:
        xs = [mark.x for mark in self.marks]
        return self.name in ("ms", "mb") and min(xs) > 0 and max(xs) > 5 * min(xs)

    @property
    def spans(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """The limits of both axes, with room around the outermost marks."""
        xs = [mark.x for mark in self.marks]
        if self.is_log:
            room = (max(xs) / min(xs)) ** 0.08
            across = (min(xs) / room, max(xs) * room)
        else:
            room = 0.08 * (max(xs) - min(xs)) or 0.5
            across = (min(xs) - room, max(xs) + room)
        high = max([mark.y for mark in self.marks] + [self.full or self.low])
        room = 0.08 * (high - self.low) or 0.5
        return across, (self.low - 1.5 * room, high + room)  # a label is below its mark

    # -- as SVG

    width: ClassVar[int] = 420
    height: ClassVar[int] = 280
    left: ClassVar[int] = 44
    right: ClassVar[int] = 408
    top: ClassVar[int] = 14
    bottom: ClassVar[int] = 238

    def x(self, value: float) -> float:
        low, high = self.spans[0]
        if self.is_log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return round(self.left + (value - low) / (high - low) * (self.right - self.left), 1)

    def y(self, value: float) -> float:
        low, high = self.spans[1]
        return round(self.bottom - (value - low) / (high - low) * (self.bottom - self.top), 1)

    def path(self, line: Line) -> str:
        return " ".join(f"{self.x(x)},{self.y(y)}" for x, y in line.points)

    def x_ticks(self) -> list[float]:
        low, high = self.spans[0]
        if self.is_log:
            tens = range(math.floor(math.log10(low)), math.ceil(math.log10(high)))
            ticks = [n * 10.0**ten for ten in tens for n in (1, 2, 5)]
            return [tick for tick in ticks if low <= tick <= high]
        return _ticks(low, high, whole=self.is_counted)

    def y_ticks(self) -> list[float]:
        return _ticks(*self.spans[1])


def _ticks(low: float, high: float, *, whole: bool = False) -> list[float]:
    """About five round numbers."""
    rough = (high - low) / 5
    base = 10.0 ** math.floor(math.log10(rough))
    step = next(n * base for n in (1, 2, 5, 10) if n * base >= rough)
    step = max(step, 1) if whole else step
    return [n * step for n in range(math.ceil(low / step), math.floor(high / step) + 1)]


# -- from rows of `numbers.networks`, of one task


def by_layers(rows: Sequence[Row]) -> list[Plot]:
    """Score by layers that are kept, if there are fewer: a line for each strategy and procedure,
    which starts at the full model; the draws of `random` and strategies with a single network are
    dots alone."""
    if not any(row["k"] for row in rows):
        return []
    looks = _looks(rows)
    lines = []
    for name, line in grouped(rows, line_of).items():
        whole = [row for row in rows if row["k"] == 0 and row["procedure"] == line[0]["procedure"]]
        points = {row["n_kept"]: row["mean"] for row in (*line, *whole)}
        several = len({row["n_kept"] for row in line}) > 1
        if several and name != FULL and line[0]["line"] != "random":
            dashed = line[0]["procedure"] != rows[0]["procedure"]
            lines.append(Line(looks.get(name, OTHER), sorted(points.items()), dashed))
    return [_plot("score", rows, "n_kept", looks, lines)]


def by_cost(rows: Sequence[Row]) -> list[Plot]:
    """Score by measured speed, or by size where the answers have no speed; none without either."""
    costs: dict[PlotName, str] = {"speed": "speedup", "size": "params_millions"}
    if not all(row["speedup"] for row in rows if row["within"]):
        del costs["speed"]
    for name, column in costs.items():
        known = [row for row in rows if row[column] is not None]
        if any(row["k"] for row in known):
            line = _front(((row[column], row["mean"]) for row in known), fast=name == "speed")
            return [_plot(name, known, column, _looks(known), [line])]
    return []


def of_candidates(rows: Sequence[Row]) -> list[Plot]:
    """Score by milliseconds and by megabytes of networks as they are shipped. `rows`: of
    `candidates`, of one task and device."""
    able = [row for row in rows if not row["error"] and row["ms"] and row["score"] is not None]
    if not able:
        return []
    looks = {name: look for look, name in enumerate(dict.fromkeys(r["format"] for r in able), 1)}
    losses = sorted({d for row in rows for d in (*row["chosen_within"], *row["nearest_within"])})
    full = max(row["score"] - row["change"] for row in able)
    low = _lowest(full, losses)
    low = min([low, *(row["score"] for row in able if row["chosen_within"])])
    shown = [row for row in able if row["score"] >= low]

    def plot(name: PlotName) -> Plot:
        marks = [
            Mark(
                x=row[name],
                y=row["score"],
                look=looks[row["format"]],
                tip=shipping.shipped(row),
                label=f"{ranges(row['kept_layers'])} {row['artefact']}"
                * bool(row["chosen_within"]),
                hollow=row["vocabulary"] != "full",
            )
            for row in shown
        ]
        return Plot(
            name=name,
            task=able[0]["task"],
            metric=able[0]["metric"],
            device=shipping.served_by(able[0]) if name == "ms" else "",
            marks=marks,
            lines=[_front((mark.x, mark.y) for mark in marks)],
            legend=[(look, form) for form, look in looks.items()],
            full=full,
            losses=losses,
            low=min([low + 0.5 * max(losses, default=1), *(mark.y for mark in marks)]),
            below=len(able) - len(shown),
        )

    return [plot("ms"), plot("mb")]


def by_epoch(rows: Sequence[Row]) -> Plot | None:
    """Learning curves: score after each epoch, a line for each trial. `rows`: of `numbers.epochs`,
    of one task; None if no trial has two epochs."""
    if len({row["epoch"] for row in rows}) < 2:
        return None
    legend = [*enumerate(dict.fromkeys(row["network"] for row in rows))]
    looks = {name: look for look, name in legend}
    tip = "{network}, seed {seed}, epoch {epoch}: {score:.2f}".format_map
    return Plot(
        name="epochs",
        task=rows[0]["task"],
        metric=rows[0]["metric"],
        marks=[Mark(row["epoch"], row["score"], looks[row["network"]], tip(row)) for row in rows],
        lines=[
            Line(looks[of[0]["network"]], [(row["epoch"], row["score"]) for row in of])
            for of in grouped(rows, lambda row: row["trial_id"]).values()
        ],
        legend=legend,
        low=min(row["score"] for row in rows),
    )


def _plot(
    name: PlotName,
    rows: Sequence[Row],
    x: str,  # a column
    looks: Mapping[str, int],
    lines: Sequence[Line],
) -> Plot:
    shown = _shown(rows)
    marks = [
        Mark(
            x=row[x],
            y=round(row["mean"], 6),  # means of the same scores differ in the last bit
            look=looks.get(line_of(row), OTHER),
            tip=network_tip(row),
            label=_label(row),
        )
        for row in sorted(shown, key=lambda row: (bool(row["within"]), row["k"] == 0))
    ]
    used = {mark.look for mark in marks}
    legend = [(look, label) for label, look in looks.items() if look in used]
    return Plot(
        name=name,
        task=rows[0]["task"],
        metric=rows[0]["metric"],
        device=phrases.device(rows[0]) if name == "speed" else "",
        marks=[*dict.fromkeys(marks)],  # all layers are one network, whatever the procedure
        lines=lines,
        legend=[*legend, *([(OTHER, "other strategies")] if OTHER in used else [])],
        full=rows[0]["score_full"],
        losses=() if rows[0]["score_full"] is None else rows[0]["losses"],
        low=min(mark.y for mark in marks),
        below=len(rows) - len(shown),
    )


def _shown(rows: Sequence[Row]) -> list[Row]:
    """The networks near the allowed losses; at least the best one with fewer layers."""
    full = rows[0]["score_full"]
    low = -math.inf if full is None else _lowest(full, rows[0]["losses"])
    smaller = max((row["mean"] for row in rows if row["k"]), default=math.inf)
    low = min([low, smaller, *(row["mean"] for row in rows if row["within"])])
    return [row for row in rows if row["mean"] >= low]


def network_tip(row: Row) -> str:
    """`layers 1-4, top, direct: 88.10 (−0.55), 3 seeds; 12.1 M parameters, ×1.42`"""
    change = "" if row["k"] == 0 else f" ({phrases.signed(row['change'])})"
    parts = [f"{row['mean']:.2f}{change}", phrases.seeds(row["n_seeds"], row["n_asked"])]
    if row["params_total"]:
        parts.append(f"{phrases.parameters(row['params_total'])} parameters")
    if row["speedup"]:
        parts.append(f"{row['speedup']:.2f} times as fast")
    return f"{phrases.layers(row['kept_layers'])}, {line_of(row)}: {', '.join(parts)}"


def _label(row: Row) -> str:
    if not row["within"] or not row["k"]:
        return ""
    return f"{phrases.kept_of(row)} ({phrases.signed(row['change'])})"


def line_of(row: Row) -> str:
    if row["k"] == 0:
        return FULL
    own = "" if row["procedure"] == "direct" else f", {row['procedure']}"
    return f"{row['line']}{own}"


def _looks(rows: Sequence[Row]) -> dict[str, int]:
    """A colour for each line: first the answers', then those with most networks that are shown;
    the rest are grey."""
    lines = grouped((row for row in _shown(rows) if row["k"]), line_of)
    order = sorted(lines, key=lambda n: (-any(r["within"] for r in lines[n]), -len(lines[n])))
    return {FULL: 0} | {name: look for look, name in enumerate(order[: OTHER - 1], 1)}


def _lowest(full: float, losses: Sequence[float]) -> float:
    return full - _SHOWN * max(losses, default=1)


def _front(points: Iterable[tuple[float, float]], *, fast: bool = False) -> Line:
    """Those that no other beats in score and in x: a cost, or how fast they are."""
    front: list[tuple[float, float]] = []
    for x, y in sorted(points, key=lambda point: (-point[0] if fast else point[0], -point[1])):
        if not front or y > front[-1][1]:
            front.append((x, y))
    return Line(OTHER, sorted(front), dashed=True)
