"""Painters of the other figures: scores by K and by speed, contributions, CKA, feed-forwards."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lp_sweep.analysis import phrases
from lp_sweep.analysis.figures import theme
from lp_sweep.analysis.figures.numbers import FULL, PANEL
from lp_sweep.analysis.figures.panels import OF_DIRECT, PRUNED_OF_DIRECT, groups, heading
from lp_sweep.analysis.rows import Row, grouped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


SCORE_COLUMNS, PARETO_COLUMNS = 3, 2
_DRAWN = "random"  # one strategy of several draws: no line goes through them
_LINES = ("-", "--", ":")
TASK = ("sweep", "model", "task")
NETWORK = ("model", "kept_layers", "with_pretrained")

Paint = Callable[["Axes", Sequence[Row]], None]


def score(figure: Figure, rows: Sequence[Row], among: Sequence[Row] = ()) -> None:
    """A panel per task: a line per strategy with its band of one sd over seeds, from all layers,
    and lines across for the full model and the majority class."""
    names = _strategy_names(among or rows)
    looks = {name: _look(name, place) for place, name in enumerate(names)}
    entries: dict[str, Any] = {}

    def paint(axes: Axes, panel: Sequence[Row]) -> None:
        axes.set_title(_score_title(panel, among or rows), loc="left")
        axes.set_xlabel("layers dropped")
        axes.locator_params(axis="x", integer=True, min_n_ticks=1)  # one K so far
        _strategies(axes, panel, looks, entries)
        _across(axes, panel, entries)
        theme.points_axis(axes, [row["mean"] for row in panel])

    _grid(figure, groups(rows, *TASK), SCORE_COLUMNS, paint, "points")
    theme.caption(figure, OF_DIRECT)
    theme.legend(figure, entries)


def _strategy_names(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["strategy"] for row in rows if row["strategy"] != FULL))


def _across(axes: Axes, panel: Sequence[Row], entries: dict[str, Any]) -> None:
    """Lines for the full model and for the majority class."""
    for name, values, line in (
        (FULL, [row["mean"] for row in panel if row["strategy"] == FULL], "--"),
        ("majority class", [row["majority"] for row in panel], ":"),
    ):
        if values and values[0] is not None:
            look: dict[str, Any] = {"color": "black", "linewidth": 1.0, "linestyle": line}
            entries.setdefault(name, axes.axhline(values[0], **look))


def grid(n: int, most: int) -> tuple[int, int]:
    """Lines and columns for n panels, as few lines as can be: four in two by two, of three."""
    lines = math.ceil(n / most)
    return lines, math.ceil(n / lines)


def lines(rows: Sequence[Row], keys: Sequence[str], most: int) -> int:
    """The lines of a figure with a panel for each value of `keys`, at most so many in a line."""
    return grid(len(groups(rows, *keys)), most)[0]


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
    for line in groups(panel, "strategy"):
        name = line[0]["strategy"]
        if name == FULL:
            continue
        points = line if name == _DRAWN else [*whole, *line]
        at = [row["k_mean"] for row in points]
        look = {"linewidth": 1.3, "clip_on": False, **looks[name]}
        (drawn,) = axes.plot(at, [row["mean"] for row in points], **look)
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


def pareto(figure: Figure, rows: Sequence[Row], among: Sequence[Row] = ()) -> None:
    """A panel per task, device and batch: the networks that none beats in both, and the others.
    By size where a model's speed was not measured."""
    entries: dict[str, Any] = {}

    def paint(axes: Axes, panel: Sequence[Row]) -> None:
        title = f"{_score_title(panel, among or rows)}\n{measured_on(panel[0])}"
        axes.set_title(title, loc="left")
        axes.set_xlabel(
            "parameters, % of the full model"
            if panel[0]["speedup"] is None
            else "inference, times as fast as all layers"
        )
        _networks(axes, panel, entries, theme.is_narrow(figure))
        theme.points_axis(axes, [row["mean"] for row in panel])

    value = "points against all layers" if rows[0]["task"] is None else "points"
    _grid(figure, groups(rows, *PANEL), PARETO_COLUMNS, paint, value)
    theme.caption(figure, OF_DIRECT)
    theme.legend(figure, entries)


def _networks(axes: Axes, panel: Sequence[Row], entries: dict[str, Any], narrow: bool) -> None:
    by_size = panel[0]["speedup"] is None
    for row in () if by_size else panel:
        axes.plot([row["low"], row["high"]], [row["mean"]] * 2, color=theme.GREY, linewidth=0.8)
    beaten = [row for row in panel if not row["front"] and row["k"]]
    if beaten:
        look: dict[str, Any] = {"color": theme.GREY, "marker": "o", "linestyle": "none"}
        look |= {"markersize": 3.5, "markerfacecolor": "white"}
        (entries["another is better in both"],) = axes.plot(*_places(beaten), **look)
    front = [row for row in panel if row["front"]]
    (entries["none is better in both"],) = axes.plot(
        *_places(front),
        color=theme.COLOURS[0],
        marker="o",
        markersize=5,
        drawstyle="steps-post" if by_size else "steps-pre",
    )
    if whole := [row for row in panel if row["k"] == 0]:
        look = {"color": "black", "marker": "D", "linestyle": "none", "zorder": 3}
        (entries[FULL],) = axes.plot(*_places(whole), markersize=5, **look)
        front = [row for row in front if row["k"]]  # the legend names it
    middle = sum(axes.get_xlim()) / 2  # a label points to it, and stays in the panel
    for row in _labelled(front, *((0.6, 0.09) if narrow else (0.15, 0.06))):
        side = "right" if _cheapness(row) > middle else "left"
        axes.annotate(
            network_label(row),
            (_cheapness(row), row["mean"]),
            (4 if side == "left" else -4, 4),
            textcoords="offset points",
            ha=side,
            fontsize=theme.SMALL,
        )
    axes.margins(x=0.12, y=0.12)


def _labelled(front: Sequence[Row], wide: float, high: float) -> list[Row]:
    """Those whose labels do not run into that of another: all are in the text and the table.
    `wide`, `high`: shares of the panel that a label takes."""
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
    """The speed where it was measured, else the size in percent."""
    return float(row["size"] if row["speedup"] is None else row["speedup"])


def measured_on(row: Row) -> str:
    if row["speedup"] is None:
        return "speed not measured"
    return _device(row)


def _device(row: Row) -> str:
    return f"{theme.name(phrases.device(row))}, batch {phrases.batch(row)}"


def network_label(row: Row) -> str:
    """`top K=6`, `all layers`."""
    return FULL if row["k"] == 0 else f"{theme.name(row['strategy'])} K={row['k']}"


def embeddings(figure: Figure, rows: Sequence[Row], among: Sequence[Row] = ()) -> None:
    """A panel per task, device and batch: score by texts a second, a marker per procedure, and the
    layers of the best network of each depth."""
    every = among or rows
    names = dict.fromkeys(row["procedure"] for row in every if row["k"])
    looks = {name: _look(name, place) for place, name in enumerate(names)}
    looks[FULL] = {"color": "black", "marker": "D", "markersize": 5}
    entries: dict[str, Any] = {}

    def paint(axes: Axes, panel: Sequence[Row]) -> None:
        axes.set_title(f"{_score_title(panel, every)}\n{_device(panel[0])}", loc="left")
        axes.set_xlabel("texts a second")
        for name in (*names, FULL):
            of_it = [row for row in panel if name == (row["procedure"] if row["k"] else FULL)]
            (drawn,) = axes.plot(*_rates(of_it), **looks[name] | {"linestyle": "none"})
            entries.setdefault(theme.name(name), drawn)
        middle = sum(axes.get_xlim()) / 2  # a label points to it, and stays in the panel
        for row in best_of_depths(panel):
            (at,), (height,) = _rates([row])
            axes.annotate(
                phrases.layers(row["kept_layers"]),
                (at, height),
                (6 if at < middle else -6, 2),
                textcoords="offset points",
                ha="left" if at < middle else "right",
                fontsize=theme.SMALL,
            )
        axes.margins(x=0.15, y=0.12)
        theme.points_axis(axes, [row["mean"] for row in panel])

    _grid(figure, groups(rows, *PANEL), PARETO_COLUMNS, paint, "points")
    theme.legend(figure, entries)


def best_of_depths(panel: Sequence[Row]) -> list[Row]:
    """Without the full model; the fewest dropped first."""
    best = {row["k"]: row for row in sorted(panel, key=lambda row: row["mean"]) if row["k"]}
    return [best[k] for k in sorted(best)]


def _rates(rows: Sequence[Row]) -> tuple[list[float], list[float]]:
    return [row["texts_per_second"] for row in rows], [row["mean"] for row in rows]


# -- strategies by layers dropped


def heat_height(rows: Sequence[Row]) -> float:
    count = len(_heat_panels(rows))
    return grid(count, PARETO_COLUMNS)[0] * (0.9 + 0.3 * len(_strategy_names(rows)))


def _heat_panels(rows: Sequence[Row]) -> list[list[Row]]:
    """Tasks with a score at some K; early in a sweep some have only that of all layers."""
    return [panel for panel in groups(rows, *TASK) if _strategy_names(panel)]


def heat_map(figure: Figure, rows: Sequence[Row], among: Sequence[Row] = ()) -> None:
    """A panel per task: a line per strategy, a column per K; darker is better, bold the best of its
    column."""

    def paint(axes: Axes, panel: Sequence[Row]) -> None:
        whole = [f", all layers {row['mean']:.2f}" for row in panel if row["strategy"] == FULL]
        axes.set_title(_score_title(panel, among or rows) + "".join(whole), loc="left")
        axes.set_xlabel("layers dropped")
        axes.grid(visible=False)
        axes.tick_params(length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
        _heat_cells(axes, panel)

    _grid(figure, _heat_panels(rows), PARETO_COLUMNS, paint, "")
    theme.caption(figure, OF_DIRECT)


def _square(row: Row) -> tuple[float, str]:
    return row["k_mean"], row["strategy"]


def _heat_cells(axes: Axes, panel: Sequence[Row]) -> None:
    names = [*reversed(_strategy_names(panel))]
    pruned = grouped((row for row in panel if row["strategy"] != FULL), _square)
    means = {at: sum(row["mean"] for row in rows) / len(rows) for at, rows in pruned.items()}
    ks = sorted({k for k, _ in means})
    low, high = min(means.values()), max(row["mean"] for row in panel)
    best = {k: max(mean for (at, _), mean in means.items() if at == k) for k in ks}
    for (k, name), mean in means.items():
        x, y = ks.index(k), names.index(name)
        shade = 0.06 + 0.44 * (mean - low) / ((high - low) or 1)
        axes.bar(x, 0.94, 0.96, y - 0.47, color=theme.COLOURS[0], alpha=shade, linewidth=0)
        weight = "bold" if mean == best[k] else "normal"
        look: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": theme.SMALL}
        axes.text(x, y, f"{mean:.1f}", fontweight=weight, **look)
    axes.set_xlim(-0.5, len(ks) - 0.5)
    axes.set_ylim(-0.5, len(names) - 0.5)
    axes.set_xticks(range(len(ks)), [f"{k:.3g}" for k in ks])
    axes.set_yticks(range(len(names)), [theme.name(name) for name in names])


CONTRIBUTION_COLUMNS = 3
_PARTS = {"layer": "layer outputs", "attention": "attention outputs"}


def contribution(figure: Figure, rows: Sequence[Row], among: Sequence[Row] = ()) -> None:
    """A panel per profile, bars by layer; below them what each threshold keeps."""
    found = groups(rows, "profile_id")
    low = _floor(among or rows)
    columns = min(CONTRIBUTION_COLUMNS, len(found))
    drawn = theme.panels(figure, math.ceil(len(found) / columns), columns)
    entries: dict[str, Any] = {}
    for axes in drawn[::columns]:
        axes.set_ylabel("mean cosine", fontsize=theme.SMALL)
    for axes, profile in itertools.zip_longest(drawn, found):
        if profile is None:
            axes.set_axis_off()
        else:
            _profile(axes, profile, low, entries)
    theme.legend(figure, entries)


def _floor(rows: Sequence[Row]) -> float:
    """Where the bars start."""
    values = [row["value"] for row in rows if row["value"] is not None]
    return float(math.floor(10 * min([*values, 0.9]) - 1e-9)) / 10


def _profile(axes: Axes, profile: Sequence[Row], low: float, entries: dict[str, Any]) -> None:
    title = f"{theme.name(profile[0]['model'])}\n{theme.name(profile[0]['task'])}"
    axes.set_title(title, loc="left", fontsize=theme.SMALL)
    axes.grid(visible=False)
    for layer, value in {row["layer"]: row["value"] for row in profile}.items():
        if value is None:
            look: dict[str, Any] = {**theme.MISSING_MARK, "zorder": 4}
            (entries["not a number"],) = axes.plot([layer], [low], **look)
        else:
            axes.bar(layer, value - low, 0.8, low, color=theme.COLOURS[5])
    axes.axhline(low, color=theme.GREY, linewidth=0.8)
    step = 0.17 * (1 - low)  # of a line of squares
    middle = round((1 + low) / 2 - 1e-9, 1)
    ticks = {low: f"{low:g}", middle: f"{middle:g}", 1.0: "1"}
    chosen_by = groups([row for row in profile if row["threshold"] is not None], "threshold")
    for line, chosen in enumerate(chosen_by, start=1):
        threshold = chosen[0]["threshold"]
        entries["threshold"] = axes.axhline(threshold, color="black", linewidth=0.8, linestyle="--")
        ticks[low - line * step] = f"t={threshold:g}"
        _kept_set(axes, chosen, low - line * step, entries)
    axes.set_ylim(low - (len(chosen_by) + 0.6) * step, 1)
    axes.set_yticks(list(ticks), list(ticks.values()))
    axes.set_xlabel("layer")
    axes.locator_params(axis="x", integer=True, min_n_ticks=1)  # one K so far


def _kept_set(axes: Axes, chosen: Sequence[Row], height: float, entries: dict[str, Any]) -> None:
    """A square per layer, under its bar."""
    for word, kept, face in (("kept", True, theme.COLOURS[0]), ("dropped", False, "white")):
        at = [row["layer"] for row in chosen if row["kept"] is kept]
        look: dict[str, Any] = {
            "marker": "s",
            "linestyle": "none",
            "color": theme.COLOURS[0],
            "markersize": 5,
        }
        (mark,) = axes.plot(at, [height] * len(at), markerfacecolor=face, **look)
        entries[word] = mark


def cka(figure: Figure, rows: Sequence[Row], among: Sequence[Row] = ()) -> None:
    """A line of two heat maps per network: layer outputs and attention outputs."""
    found = groups(rows, *NETWORK)
    drawn: list[Axes] = theme.panels(figure, len(found), 2)
    image = None
    for line, network in enumerate(found):
        for axes, (part, title) in zip(drawn[2 * line :], _PARTS.items(), strict=False):
            cells = [row for row in network if row["part"] == part]
            axes.set_title(f"{theme.name(network[0]['model'])}\n{title}", loc="left")
            axes.grid(visible=False)
            axes.patch.set(hatch="////", edgecolor=theme.GREY)
            if cells:
                image = _heat(axes, cells)
    if any(len(row["kept_layers"]) < row["depth"] for row in rows):
        theme.caption(figure, PRUNED_OF_DIRECT)
    if image is not None:
        figure.colorbar(image, ax=drawn, label="linear CKA (hatched: not a number)", shrink=0.7)


def _heat(axes: Axes, cells: Sequence[Row]) -> Any:
    import numpy as np

    here, there = (sorted({row[name] for row in cells}) for name in ("layer", "other"))
    matrix = np.full((len(here), len(there)), np.nan)
    for row in cells:
        if row["value"] is not None:
            matrix[here.index(row["layer"]), there.index(row["other"])] = row["value"]
    image = axes.imshow(
        np.ma.masked_invalid(matrix), origin="lower", vmin=0, vmax=1, cmap=theme.MAP
    )
    every = max(1, math.ceil(max(len(here), len(there)) / 13))
    axes.set_xticks(range(0, len(there), every), [str(layer) for layer in there[::every]])
    axes.set_yticks(range(0, len(here), every), [str(layer) for layer in here[::every]])
    other = "pre-trained" if cells[0]["with_pretrained"] else "full model's"
    axes.set_xlabel(f"{other} layer")
    axes.set_ylabel(f"{network_name(cells[0])} layer")
    return image


def network_name(row: Row) -> str:
    """`fine-tuned`, `6 of 12 kept: its`: whose layers go up the side."""
    n = len(row["kept_layers"])
    return "fine-tuned" if n == row["depth"] else f"pruned ({n} of {row['depth']})"


def feed_forward(figure: Figure, rows: Sequence[Row], among: Sequence[Row] = ()) -> None:
    """A line per model: mean score and parameters of each setting, side by side."""
    found = groups(rows, "sweep", "model")
    heights = [len(group) for group in found]
    drawn = theme.panels(figure, len(found), 2, sharey="row", height_ratios=heights)
    entries: dict[str, Any] = {}
    for line, settings in enumerate(found):
        left, right = drawn[2 * line : 2 * line + 2]
        depth = "" if settings[0]["k"] == 0 else f", {settings[0]['strategy']} K={settings[0]['k']}"
        left.set_title(heading(settings, among or rows) + depth, loc="left")
        left.set_yticks(range(len(settings)), [theme.name(row["feed_forward"]) for row in settings])
        left.invert_yaxis()
        _side(left, settings, "mean", 1, entries)
        _side(right, settings, "parameters", 1e6, entries)
        left.set_xlabel("mean over tasks (points)")
        right.set_xlabel("parameters (million)")
    figure.supylabel("feed-forwards removed", fontsize=9)
    theme.caption(figure, OF_DIRECT)
    theme.legend(figure, entries)


def _side(
    axes: Axes, rows: Sequence[Row], column: str, unit: float, entries: dict[str, Any]
) -> None:
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    fill = theme.COLOURS[0] if column == "mean" else theme.COLOURS[4]
    largest = max((row[column] or 0 for row in rows), default=0) / unit
    axes.set_xlim(0, 1.22 * largest or 1)
    for place, row in enumerate(rows):
        if row[column] is None:
            (entries["not complete"],) = axes.plot(
                [0], [place], clip_on=False, **theme.MISSING_MARK
            )
            continue
        spread = row["sd"] if column == "mean" else None
        value = row[column] / unit
        axes.barh(place, value, 0.7, color=fill, xerr=spread, error_kw={"elinewidth": 0.8})
        axes.annotate(
            f"{value:.2f}" if value < 100 and column == "mean" else f"{value:.3g}",
            (value + (spread or 0), place),
            (3, 0),
            textcoords="offset points",
            va="center",
            fontsize=theme.SMALL,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
        )
