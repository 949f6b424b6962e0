"""Painters of scores: by K, by speed or size, and by strategy and K as a heat map."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lp_sweep.analysis import phrases
from lp_sweep.analysis.figures import theme
from lp_sweep.analysis.figures.numbers import FULL, PANEL
from lp_sweep.analysis.figures.panels import OF_DIRECT, groups, heading, one_sd
from lp_sweep.analysis.rows import Row, grouped
from lp_sweep.storage.printable import guess_name

SCORE_COLUMNS, PARETO_COLUMNS = 3, 2
_DRAWN = "random"  # this strategy has several draws: no line connects them
_LINES = ("-", "--", ":")
TASK = ("sweep", "model", "task")

Paint = Callable[["Axes", Sequence[Row]], None]


def score(figure: Figure, rows: Sequence[Row], among: Sequence[Row]) -> None:
    """A panel per task: a line per strategy, which starts at all layers, with a band of one sd over
    seeds; horizontal lines for the full model and for guessing."""
    names = _strategy_names(among)
    looks = {name: _look(name, place) for place, name in enumerate(names)}

    def paint(axes: Axes, panel: Sequence[Row]) -> None:
        axes.set_title(_score_title(panel, among), loc="left")
        axes.set_xlabel("layers dropped")
        axes.locator_params(axis="x", integer=True, min_n_ticks=1)  # also with only one K
        _strategies(axes, panel, looks)
        _across(axes, panel)
        theme.points_axis(axes, [row["mean"] for row in panel])

    _grid(figure, groups(rows, *TASK), SCORE_COLUMNS, paint, "points")
    theme.caption(figure, OF_DIRECT)
    theme.legend(figure)


def _strategy_names(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["strategy"] for row in rows if row["strategy"] != FULL))


def _across(axes: Axes, panel: Sequence[Row]) -> None:
    """Horizontal lines for the full model and for guessing, such as the majority class."""
    known = [row["majority"] for row in panel if row["majority"] is not None]
    for name, values, line in (
        (FULL, [row["mean"] for row in panel if row["strategy"] == FULL], "--"),
        (guess_name(panel[0]["kind"], panel[0]["metric"]), [max(known)] if known else [], ":"),
    ):
        if values and values[0] is not None:
            axes.axhline(values[0], color="black", linewidth=1.0, linestyle=line, label=name)


def grid(n: int, most: int) -> tuple[int, int]:
    """Rows and columns for n panels, with as few rows as possible: four panels in two by two."""
    lines = math.ceil(n / most)
    return lines, math.ceil(n / lines)


def _grid(
    figure: Figure, found: Sequence[Sequence[Row]], most: int, paint: Paint, value: str
) -> None:
    """At most `most` panels in a row. The first panel of each row names the value on its axis."""
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


def _strategies(axes: Axes, panel: Sequence[Row], looks: Mapping[str, Any]) -> None:
    whole = [row for row in panel if row["strategy"] == FULL]
    for line in groups([row for row in panel if row["strategy"] != FULL], "strategy"):
        name = line[0]["strategy"]
        points = line if name == _DRAWN else [*whole, *line]
        at = [row["k_mean"] for row in points]
        look = {"linewidth": 1.3, "clip_on": False, "label": theme.name(name), **looks[name]}
        axes.plot(at, [row["mean"] for row in points], **look)
        if name != _DRAWN:  # a band of one sd to each side; none for one seed
            low, high = zip(*map(one_sd, points), strict=True)
            axes.fill_between(at, low, high, color=look["color"], alpha=0.18, linewidth=0)


# -- score against speed


def pareto(figure: Figure, rows: Sequence[Row], among: Sequence[Row]) -> None:
    """A panel per task, device and batch: the front (networks that no other beats in both score and
    speed) and the other networks. Uses size where a model's speed was not measured."""

    def paint(axes: Axes, panel: Sequence[Row]) -> None:
        measured = panel[0]["speedup"] is not None
        on = _device(panel[0]) if measured else "speed not measured"
        axes.set_title(f"{_score_title(panel, among)}\n{on}", loc="left")
        axes.set_xlabel(
            "inference, times as fast as all layers"
            if measured
            else "parameters, % of the full model"
        )
        _networks(axes, panel, theme.is_narrow(figure))
        theme.points_axis(axes, [row["mean"] for row in panel])

    value = "points against all layers" if rows[0]["task"] is None else "points"
    _grid(figure, groups(rows, *PANEL), PARETO_COLUMNS, paint, value)
    theme.caption(figure, OF_DIRECT)
    theme.legend(figure)


def _networks(axes: Axes, panel: Sequence[Row], narrow: bool) -> None:
    by_size = panel[0]["speedup"] is None
    for row in () if by_size else panel:
        axes.plot([row["low"], row["high"]], [row["mean"]] * 2, color=theme.GREY, linewidth=0.8)
    if beaten := [row for row in panel if not row["front"] and row["k"]]:
        look: dict[str, Any] = {"markersize": 3.5, "label": "another is better in both"}
        axes.plot(*_places(beaten), "o", color=theme.GREY, markerfacecolor="white", **look)
    front = [row for row in panel if row["front"]]
    look = {"marker": "o", "markersize": 5, "label": "none is better in both"}
    steps = "steps-post" if by_size else "steps-pre"
    axes.plot(*_places(front), color=theme.COLOURS[0], drawstyle=steps, **look)
    if whole := [row for row in panel if row["k"] == 0]:
        axes.plot(*_places(whole), "D", color="black", markersize=5, zorder=3, label=FULL)
    smaller = [row for row in front if row["k"]]  # the legend names the full model
    for row in _labelled(smaller, *((0.6, 0.09) if narrow else (0.15, 0.06))):
        named = f"{theme.name(row['strategy'])} K={row['k']}"
        theme.label(axes, named, (_cheapness(row), row["mean"]))
    axes.margins(x=0.12, y=0.12)


def _labelled(front: Sequence[Row], wide: float, high: float) -> list[Row]:
    """The networks whose labels do not overlap another label. The text and the table name them all.
    `wide`, `high`: the size of a label as a share of the panel."""
    width, height = (max(at, default=0) - min(at, default=0) or 1.0 for at in _places(front))
    chosen: list[Row] = []
    for row in sorted(front, key=lambda row: -row["mean"]):
        if all(
            abs(_cheapness(row) - _cheapness(other)) > wide * width
            or abs(row["mean"] - other["mean"]) > high * height
            for other in chosen
        ):
            chosen.append(row)
    return chosen


def _places(rows: Sequence[Row]) -> tuple[list[float], list[float]]:
    return [_cheapness(row) for row in rows], [row["mean"] for row in rows]


def _cheapness(row: Row) -> float:
    """The speed if it was measured, else the size in percent."""
    return float(row["size"] if row["speedup"] is None else row["speedup"])


def _device(row: Row) -> str:
    return f"{theme.name(phrases.device(row))}, batch {phrases.batch(row)}"


def embeddings(figure: Figure, rows: Sequence[Row], among: Sequence[Row]) -> None:
    """A panel per task, device and batch: score by texts a second, a marker per procedure. The best
    network of each depth is labelled with its layers."""
    names = dict.fromkeys(row["procedure"] for row in among if row["k"])
    looks = {name: _look(name, place) for place, name in enumerate(names)}
    looks[FULL] = {"color": "black", "marker": "D", "markersize": 5}

    def paint(axes: Axes, panel: Sequence[Row]) -> None:
        axes.set_title(f"{_score_title(panel, among)}\n{_device(panel[0])}", loc="left")
        axes.set_xlabel("texts a second")
        for name in (*names, FULL):
            of_it = [row for row in panel if name == (row["procedure"] if row["k"] else FULL)]
            at = [row["texts_per_second"] for row in of_it]
            look = looks[name] | {"linestyle": "none", "label": theme.name(name)}
            axes.plot(at, [row["mean"] for row in of_it], **look)
        best = {row["k"]: row for row in sorted(panel, key=lambda row: row["mean"]) if row["k"]}
        for row in best.values():
            at_it = (row["texts_per_second"], row["mean"])
            theme.label(axes, phrases.layers(row["kept_layers"]), at_it)
        axes.margins(x=0.15, y=0.12)
        theme.points_axis(axes, [row["mean"] for row in panel])

    _grid(figure, groups(rows, *PANEL), PARETO_COLUMNS, paint, "points")
    theme.legend(figure)


# -- strategies by layers dropped


def heat_height(rows: Sequence[Row]) -> float:
    count = len(_heat_panels(rows))
    return grid(count, PARETO_COLUMNS)[0] * (0.9 + 0.3 * len(_strategy_names(rows)))


def _heat_panels(rows: Sequence[Row]) -> list[list[Row]]:
    """The tasks with a score of a smaller network; early in a sweep some have only K=0."""
    return [panel for panel in groups(rows, *TASK) if _strategy_names(panel)]


def heat_map(figure: Figure, rows: Sequence[Row], among: Sequence[Row]) -> None:
    """A panel per task: a row per strategy, a column per K. Darker is better, and bold is the best
    of its column."""

    def paint(axes: Axes, panel: Sequence[Row]) -> None:
        whole = [f", all layers {row['mean']:.2f}" for row in panel if row["strategy"] == FULL]
        axes.set_title(_score_title(panel, among) + "".join(whole), loc="left")
        axes.set_xlabel("layers dropped")
        axes.grid(visible=False)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        _heat_cells(axes, panel)

    _grid(figure, _heat_panels(rows), PARETO_COLUMNS, paint, "")
    theme.caption(figure, OF_DIRECT)


def _heat_cells(axes: Axes, panel: Sequence[Row]) -> None:
    names = _strategy_names(panel)
    pruned = grouped(
        (row for row in panel if row["strategy"] != FULL),
        lambda row: (row["strategy"], row["k_mean"]),
    )
    means = {at: sum(row["mean"] for row in rows) / len(rows) for at, rows in pruned.items()}
    ks = sorted({k for _, k in means})
    low, high = min(means.values()), max(row["mean"] for row in panel)
    matrix = [[means.get((name, k), math.nan) for k in ks] for name in names]
    span = {"vmin": low - 0.1 * (high - low), "vmax": low + 2 * (high - low or 1)}  # never too dark
    axes.imshow(matrix, cmap="Blues", aspect="auto", **span)
    for (name, k), mean in means.items():
        best = mean == max(other for (_, at), other in means.items() if at == k)
        look: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": theme.SMALL}
        look["fontweight"] = "bold" if best else "normal"
        axes.text(ks.index(k), names.index(name), f"{mean:.1f}", **look)
    axes.set_xticks(range(len(ks)), [f"{k:.3g}" for k in ks])
    axes.set_yticks(range(len(names)), [theme.name(name) for name in names])
