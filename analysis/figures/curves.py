"""What a network costs and gives: score by layers dropped, and score against measured speed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lp_sweep.analysis import phrases
from lp_sweep.analysis.figures import theme
from lp_sweep.analysis.figures.numbers import FULL
from lp_sweep.analysis.figures.panels import OF_DIRECT, Row, groups, heading

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SCORE_COLUMNS, PARETO_COLUMNS = 3, 2
_DRAWN = "random"  # one strategy of several draws: no line goes through them
_LINES = ("-", "--", ":")
PANEL = ("sweep", "model", "device_name", "threads", "precision", "length", "batch")

Paint = Callable[["Axes", Sequence[Row]], None]


def score_panels(rows: Sequence[Row]) -> list[list[Row]]:
    return groups(rows, "sweep", "model", "task")


def score(figure: Figure, rows: Sequence[Row]) -> None:
    """A panel per task: a line per strategy with its band of one sd over seeds, from all layers."""
    names = dict.fromkeys(row["strategy"] for row in rows if row["strategy"] != FULL)
    looks = {name: _look(name, place) for place, name in enumerate(names)}
    entries: dict[str, Any] = {}

    def paint(axes: Axes, panel: Sequence[Row]) -> None:
        axes.set_title(_score_title(panel, rows), loc="left")
        axes.set_xlabel("layers dropped")
        axes.locator_params(axis="x", integer=True)
        _strategies(axes, panel, looks, entries)

    _grid(figure, score_panels(rows), SCORE_COLUMNS, paint, "points")
    theme.caption(figure, OF_DIRECT)
    theme.legend(figure, entries)


def grid(n: int, most: int) -> tuple[int, int]:
    """Lines and columns for n panels, as few lines as can be: four in two by two, of three."""
    lines = math.ceil(n / most)
    return lines, math.ceil(n / lines)


def _grid(
    figure: Figure, found: Sequence[Sequence[Row]], most: int, paint: Paint, value: str
) -> None:
    """So many panels a line at most; the value's name stands beside the first of each."""
    lines, columns = grid(len(found), most)
    drawn = theme.panels(figure, lines, columns)
    for axes, panel in itertools.zip_longest(drawn, found):
        if panel is None:
            axes.set_axis_off()
        else:
            paint(axes, panel)
    for axes in drawn[::columns]:
        axes.set_ylabel(value)


def _look(name: str, place: int) -> dict[str, Any]:
    if name == _DRAWN:
        return {"color": theme.GREY, "marker": ".", "linestyle": "none"}
    n = len(theme.COLOURS)
    line = _LINES[place // n % len(_LINES)]
    marker = theme.MARKERS[place % n]
    return {"color": theme.COLOURS[place % n], "marker": marker, "markersize": 4, "linestyle": line}


def _score_title(panel: Sequence[Row], rows: Sequence[Row]) -> str:
    first = panel[0]
    if first["task"] is None:
        return f"{heading(panel, rows)}\nmean over tasks"
    task = phrases.heading(theme.name(first["task"]), first["metric"])
    places = {(row["sweep"], row["model"]) for row in rows}
    return task if len(places) == 1 else f"{heading(panel, rows)}\n{task}"


def _strategies(
    axes: Axes, panel: Sequence[Row], looks: Mapping[str, Any], entries: dict[str, Any]
) -> None:
    whole = [row for row in panel if row["strategy"] == FULL]
    for row in whole:
        look: dict[str, Any] = {"color": "black", "linewidth": 1.0, "linestyle": "--"}
        entries.setdefault(FULL, axes.axhline(row["mean"], **look))
    for line in groups(panel, "strategy"):
        name = line[0]["strategy"]
        if name == FULL:
            continue
        points = line if name == _DRAWN else [*whole, *line]
        at = [row["k_mean"] for row in points]
        (drawn,) = axes.plot(at, [row["mean"] for row in points], linewidth=1.3, **looks[name])
        entries.setdefault(theme.name(name), drawn)
        if name != _DRAWN:
            _band(axes, at, points, drawn.get_color())


def _band(axes: Axes, at: Sequence[float], points: Sequence[Row], colour: Any) -> None:
    """One sd to each side; nothing where there is one seed."""
    low, high = (
        [math.nan if row["sd"] is None else row["mean"] + side * row["sd"] for row in points]
        for side in (-1, 1)
    )
    axes.fill_between(at, low, high, color=colour, alpha=0.18, linewidth=0)


# -- score against speed


def pareto_panels(rows: Sequence[Row]) -> list[list[Row]]:
    return groups(rows, *PANEL)


def pareto(figure: Figure, rows: Sequence[Row]) -> None:
    """A panel per model, device and batch: the networks that none beats in both, and the others."""
    entries: dict[str, Any] = {}

    def paint(axes: Axes, panel: Sequence[Row]) -> None:
        where = f"{theme.name(phrases.device(panel[0]))}, batch {phrases.batch(panel[0])}"
        axes.set_title(f"{heading(panel, rows)}\n{where}", loc="left")
        axes.set_xlabel("inference, times as fast as all layers")
        _networks(axes, panel, entries)

    _grid(figure, pareto_panels(rows), PARETO_COLUMNS, paint, "mean over tasks (points)")
    theme.caption(figure, OF_DIRECT)
    theme.legend(figure, entries)


def _networks(axes: Axes, panel: Sequence[Row], entries: dict[str, Any]) -> None:
    for row in panel:
        axes.plot([row["low"], row["high"]], [row["mean"]] * 2, color=theme.GREY, linewidth=0.8)
    beaten = [row for row in panel if not row["front"]]
    if beaten:
        look: dict[str, Any] = {"color": theme.GREY, "marker": "o", "linestyle": "none"}
        look |= {"markersize": 3.5, "markerfacecolor": "white"}
        (entries["another is better in both"],) = axes.plot(*_places(beaten), **look)
    front = [row for row in panel if row["front"]]
    (entries["none is better in both"],) = axes.plot(
        *_places(front), color=theme.COLOURS[0], marker="o", markersize=5, drawstyle="steps-pre"
    )
    for row in _labelled(front):
        axes.annotate(
            network_label(row),
            (row["speedup"], row["mean"]),
            (4, 4),
            textcoords="offset points",
            fontsize=theme.SMALL,
        )
    axes.margins(x=0.12, y=0.12)


def _labelled(front: Sequence[Row]) -> list[Row]:
    """Those whose labels do not run into that of another: all are in the text and the table."""
    width, height = (max(at) - min(at) or 1.0 for at in _places(front))
    chosen: list[Row] = []
    for row in front:
        if all(
            abs(row["speedup"] - other["speedup"]) > 0.15 * width
            or abs(row["mean"] - other["mean"]) > 0.06 * height
            for other in chosen
        ):
            chosen.append(row)
    return chosen


def _places(rows: Sequence[Row]) -> tuple[list[float], list[float]]:
    return [row["speedup"] for row in rows], [row["mean"] for row in rows]


def network_label(row: Row) -> str:
    """`top K=6`, `all layers`."""
    return FULL if row["k"] == 0 else f"{theme.name(row['strategy'])} K={row['k']}"
