"""Painters of bar charts: strategies side by side, and networks without some feed-forwards.

Each draws rows of `numbers` on a matplotlib figure. A missing number leaves a gap.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lp_sweep.analysis.figures import theme
from lp_sweep.analysis.rows import Row
from lp_sweep.analysis.statistics.estimates import Limits, bounded, least_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
OF_DIRECT = "Procedure direct: pruned first, then fine-tuned."
_ON_WHITE = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
_FEWEST = 14.0  # an axis is at least this many bars wide


def one_sd(row: Row) -> Limits:
    """The mean with one sd to each side, within what a score can be; NaN for one seed."""
    if row["sd"] is None:
        return Limits(math.nan, math.nan)
    # over tasks there is no metric, and one of them may go below zero
    metric = row.get("metric")
    least = least_of(metric) if metric and row["mean"] >= 0 else -100.0
    return bounded(row["mean"], row["sd"], least, 100.0)


def _errors(row: Row) -> list[list[float]] | None:
    """(2, 1): the lengths of an error bar."""
    if row["sd"] is None:
        return None
    low, high = one_sd(row)
    return [[row["mean"] - low], [high - row["mean"]]]


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


def bars(figure: Figure, rows: Sequence[Row], among: Sequence[Row] = ()) -> None:
    """A panel per model: bars by strategy and K, and lines for the full model and references."""
    found = groups(rows, "sweep", "model")
    bottom, top = _span(among or rows)
    dropped = sorted(
        {row["k"] for row in among or rows if row["role"] == "pruned" and row["k"] is not None}
    )
    colours = {k: theme.colour(index, len(dropped)) for index, k in enumerate(dropped)}
    entries: dict[str, Any] = {}
    for axes, panel in zip(theme.panels(figure, len(found)), found, strict=True):
        axes.set_title(heading(panel, among or rows), loc="left")
        axes.set_ylim(bottom, top)
        axes.set_yticks([tick for tick in axes.get_yticks() if bottom <= tick <= 100])
        axes.grid(visible=False, axis="x")
        axes.set_ylabel("mean over tasks (points)" + (f",\naxis from {bottom:g}" if bottom else ""))
        _lines_across(axes, panel, entries)
        _bars_of(axes, [row for row in panel if row["role"] == "pruned"], colours, bottom, entries)
    theme.caption(figure, OF_DIRECT)
    theme.legend(figure, dict(sorted(entries.items(), key=_k_first)))


def _k_first(entry: tuple[str, Any]) -> tuple[bool, float]:
    word = entry[0].partition(" dropped")[0]
    return (not word.isdigit(), float(word) if word.isdigit() else 0)


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


def _lines_across(axes: Axes, panel: Sequence[Row], entries: dict[str, Any]) -> None:
    styles = iter(("--", ":", "-."))
    for row in panel:
        if row["role"] == "full" and row["mean"] is not None:
            entries["all layers"] = axes.axhline(row["mean"], color="black", linewidth=1.2)
        elif row["role"] == "reference":
            label = theme.name(row["reference"])
            known = entries.get(label)
            style = known.get_linestyle() if known else next(styles, "--")
            entries[label] = axes.axhline(row["mean"], color="black", linewidth=1.2, ls=style)


def _bars_of(
    axes: Axes,
    rows: Sequence[Row],
    colours: Mapping[int, Any],
    bottom: float,
    entries: dict[str, Any],
) -> None:
    place, ticks = 0.0, {}
    for strategy in groups(rows, "strategy"):
        ticks[place + (len(strategy) - 1) / 2] = theme.name(strategy[0]["strategy"])
        for row in strategy:
            _bar(axes, place, row, colours, bottom, entries)
            place += 1
        place += 0.8
    ends = (-0.9, max(place - 0.9, 0.9))
    spare = max(0.0, _FEWEST - (ends[1] - ends[0])) / 2  # keeps a few bars narrow
    axes.set_xlim(ends[0] - spare, ends[1] + spare)
    crowded = _crowded(ticks, ends[1] - ends[0] + 2 * spare)
    axes.set_xticks(list(ticks), list(ticks.values()), rotation=30 if crowded else 0)
    for label in axes.get_xticklabels() if crowded else ():
        label.set(ha="right", rotation_mode="anchor")
    axes.tick_params(axis="x", length=0)


def _crowded(ticks: Mapping[float, str], span: float) -> bool:
    """Whether neighbouring labels would touch: a letter is about a hundredth of the axis wide."""
    return any(
        (right - left) / span < 0.0055 * (len(ticks[left]) + len(ticks[right]) + 2)
        for left, right in itertools.pairwise(ticks)
    )


def _bar(
    axes: Axes,
    place: float,
    row: Row,
    colours: Mapping[int, Any],
    bottom: float,
    entries: dict[str, Any],
) -> None:
    said = "" if row["threshold"] is None else f" t={row['threshold']:g}"
    if row["mean"] is None:
        mark: dict[str, Any] = {**theme.MISSING_MARK, "clip_on": False, "zorder": 4}
        (entries["not complete"],) = axes.plot([place], [bottom], **mark)
        height = bottom
    else:
        look: dict[str, Any] = {"color": "white", "edgecolor": theme.GREY, "hatch": "////"}
        label = "K differs by task"
        if row["k"] is not None:
            look, label = {"color": colours[row["k"]]}, f"{row['k']} dropped"
        error = {"elinewidth": 0.8, "ecolor": "black"}
        look |= {"yerr": _errors(row), "error_kw": error, "bottom": bottom, "width": 0.9}
        entries[label] = axes.bar(place, row["mean"] - bottom, **look)
        height = row["mean"] if row["sd"] is None else one_sd(row).high
        if row["k"] is None and row["k_mean"] is not None:
            said += f" K≈{row['k_mean']:.1f}"
    if said:
        _label(axes, said.strip(), place, height)


def _label(axes: Axes, text: str, place: float, height: float) -> None:
    """A label above a bar, readable over the horizontal lines."""
    look: dict[str, Any] = {"rotation": 90, "ha": "center", "va": "bottom", "zorder": 5}
    theme.label(axes, text, (place, height), (0, 3), bbox=_ON_WHITE, **look)


def feed_forward(figure: Figure, rows: Sequence[Row], among: Sequence[Row] = ()) -> None:
    """A row of panels per model: mean score and parameters of each setting, side by side."""
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
        spread = _errors(row) if column == "mean" else None
        value = row[column] / unit
        axes.barh(place, value, 0.7, color=fill, xerr=spread, error_kw={"elinewidth": 0.8})
        said = f"{value:.2f}" if value < 100 and column == "mean" else f"{value:.3g}"
        end = (value + (spread[1][0] if spread else 0), place)
        theme.label(axes, said, end, (3, 0), va="center", bbox=_ON_WHITE)
