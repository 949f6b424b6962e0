"""Painters of the paper's figures, and of networks with and without feed-forwards layer by layer.

Each puts rows of `numbers` onto a matplotlib figure. A missing number stays missing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from lp_sweep.analysis.figures import theme
from lp_sweep.analysis.rows import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


FAR = 0.7  # a cosine below it is a layer that changed substantially (Figure 5 of the paper)
OF_DIRECT = "Procedure direct: pruned first, then fine-tuned."
PRUNED_OF_DIRECT = "Networks with fewer layers: of the procedure direct."
_FEWEST = 14.0  # bars' widths of an axis, at least


def groups(rows: Iterable[Row], *keys: str) -> list[list[Row]]:
    """Rows that follow each other and agree in `keys`."""
    return [
        list(group) for _, group in itertools.groupby(rows, lambda row: [row[key] for key in keys])
    ]


def heading(rows: Sequence[Row], all_rows: Sequence[Row]) -> str:
    """The model, and the sweep where there are several."""
    several = len({row.get("sweep") for row in all_rows}) > 1
    sweep = f", sweep {theme.name(rows[0]['sweep'])}" if several else ""
    return f"{theme.name(rows[0]['model'])}{sweep} ({rows[0]['depth']} layers)"


# -- figures 2 and 3


def bars(figure: Figure, rows: Sequence[Row], among: Sequence[Row] = ()) -> None:
    """A panel per model: bars by strategy and K, lines for the whole model and references."""
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
    """Limits of the axis: bars from 0 would all look alike. Labelled bars need some room."""
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
    spare = max(0.0, _FEWEST - (ends[1] - ends[0])) / 2  # few bars need not be wide
    axes.set_xlim(ends[0] - spare, ends[1] + spare)
    crowded = _crowded(ticks, ends[1] - ends[0] + 2 * spare)
    axes.set_xticks(list(ticks), list(ticks.values()), rotation=30 if crowded else 0)
    for label in axes.get_xticklabels() if crowded else ():
        label.set(ha="right", rotation_mode="anchor")
    axes.tick_params(axis="x", length=0)


def _crowded(ticks: Mapping[float, str], span: float) -> bool:
    """Whether neighbours would touch: a letter is about a hundredth of the axis."""
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
        look |= {"yerr": row["sd"], "error_kw": error, "bottom": bottom, "width": 0.9}
        entries[label] = axes.bar(place, row["mean"] - bottom, **look)
        height = row["mean"] + (row["sd"] or 0)
        if row["k"] is None and row["k_mean"] is not None:
            said += f" K≈{row['k_mean']:.1f}"
    if said:
        _label(axes, said.strip(), place, height)


def _label(axes: Axes, text: str, place: float, height: float) -> None:
    """Above a bar, readable over the lines across."""
    axes.annotate(
        text,
        (place, height),
        (0, 3),
        textcoords="offset points",
        rotation=90,
        ha="center",
        va="bottom",
        fontsize=theme.SMALL,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
        zorder=5,
    )


# -- figures 4 and 5


def probes(figure: Figure, rows: Sequence[Row], among: Sequence[Row] = ()) -> None:
    """Score by layer: whole networks with the span of their seeds, the others without."""
    (axes,) = theme.panels(figure, 1)
    axes.set_ylabel("classifier on the layer,\nmean over tasks (points)")
    if any(row["network"] == "pruned" for row in rows):
        theme.caption(figure, PRUNED_OF_DIRECT)
    theme.legend(figure, _curves(axes, rows))
    theme.points_axis(axes, [row["mean"] for row in rows if row["mean"] is not None])


def similarity(figure: Figure, rows: Sequence[Row], among: Sequence[Row] = ()) -> None:
    """Cosine by layer, of the sentence token and the per-text token mean; below FAR is shaded."""
    entries: dict[str, Any] = {}
    titles = {"sentence": "sentence token", "tokens": "per-text token mean"}
    pair = theme.panels(figure, 1, 2, sharey=True)
    for axes, (part, title) in zip(pair, titles.items(), strict=True):
        axes.set_title(title, loc="left")
        entries |= _curves(axes, [row for row in rows if row["part"] == part], among=rows)
    pair[0].set_ylabel("cosine, pre-trained and fine-tuned,\nmean over tasks")
    lows = [row[column] for row in rows for column in ("mean", "low")]
    low = min((value for value in lows if value is not None), default=0)
    pair[0].set_ylim(min(0.6, math.floor(10 * low) / 10), 1.01)
    for axes in pair:
        shade = axes.axhspan(-1, FAR, color=theme.YELLOW, alpha=0.35, linewidth=0, zorder=0)
        entries[f"below {FAR}"] = shade
    theme.legend(figure, entries)


def _curves(axes: Axes, rows: Sequence[Row], among: Sequence[Row] | None = None) -> dict[str, Any]:
    models = sorted({row["model"] for row in among or rows})
    entries: dict[str, Any] = {}
    for curve in groups(rows, "model", "network", "kept_layers"):
        first, place = curve[0], models.index(curve[0]["model"])
        whole, pruned = first["network"] == "full", first["network"] == "pruned"
        layers = [0, *(first["kept_layers"] if pruned else range(1, first["depth"] + 1))]
        at = {row["layer"]: row for row in curve}
        means = _values(at, layers, "mean")
        if all(math.isnan(value) for value in means):
            continue
        (line,) = axes.plot(
            layers,
            means,
            color=theme.colour(place, len(models)),
            marker=theme.MARKERS[place % len(theme.MARKERS)],
            markersize=4 if whole else 2.5,
            linestyle="--" if first["network"] == "pretrained" else "-",
            linewidth=1.6 if whole else 1.1 if not pruned else 0.6,
            alpha=0.55 if pruned else 1,
        )
        entries.setdefault(curve_label(first), line)
        if whole:
            low, high = _values(at, layers, "low"), _values(at, layers, "high")
            shade = {"color": line.get_color(), "alpha": 0.2, "linewidth": 0}
            axes.fill_between(layers, low, high, **shade)
    depth = max((row["depth"] for row in among or rows), default=1)
    pruned = "; pruned networks: the full one's numbers"
    only_some = any(row["network"] == "pruned" for row in rows)
    axes.set_xlabel(f"layer (0: embeddings{pruned if only_some else ''})")
    axes.set_xticks(range(0, depth + 1, max(1, math.ceil(depth / 12))))
    return entries


def _values(at: Mapping[int, Row], layers: Sequence[int], column: str) -> list[float]:
    """NaN where there is none: a line has a gap there."""
    found = (at[layer][column] if layer in at else None for layer in layers)
    return [math.nan if value is None else value for value in found]


def curve_label(row: Row) -> str:
    kind = {"full": "", "pretrained": ", pre-trained", "pruned": ", pruned"}[row["network"]]
    return f"{theme.name(row['model'])}{kind}{measured_tasks(row)}"


def measured_tasks(row: Row) -> str:
    """` (1 of 2 tasks)` where not all that the cells ask for are measured."""
    few = row["n_tasks_asked"] is not None and row["n_tasks"] < row["n_tasks_asked"]
    return f" ({row['n_tasks']} of {row['n_tasks_asked']} tasks)" if few else ""


class _Panel(NamedTuple):
    """The title of a panel and the labels of its axes."""

    title: str
    value: str
    layer: str


_PARTS = {
    "probes": _Panel("classifier on the layer", "points, mean over tasks", "layer (0: embeddings)"),
    "attention": _Panel("attention outputs", "linear CKA with the full\nnetwork's layer", "layer"),
}


def networks(rows: Sequence[Row]) -> list[list[Row]]:
    """Those of the same layers together: a line of panels."""
    return groups(rows, "model", "kept_layers")


def feed_forward_layers(figure: Figure, rows: Sequence[Row], among: Sequence[Row] = ()) -> None:
    """A line of two panels per set of kept layers, a curve per setting of the feed-forwards."""
    settings = list(dict.fromkeys(row["network"] for row in among or rows))
    colours = {name: theme.colour(i, len(settings)) for i, name in enumerate(settings)}
    found = networks(rows)
    drawn = theme.panels(figure, len(found), 2)
    entries: dict[str, Any] = {}
    for line, same_layers in enumerate(found):
        name = network_name(same_layers[0])
        for axes, (part, panel) in zip(drawn[2 * line :], _PARTS.items(), strict=False):
            axes.set_title(f"{name}\n{panel.title}", loc="left")
            axes.set_ylabel(panel.value)
            axes.set_xlabel(panel.layer)
            axes.locator_params(axis="x", integer=True)
            _setting_curves(
                axes, [row for row in same_layers if row["part"] == part], colours, entries
            )
        drawn[2 * line + 1].set_ylim(0, 1.03)
    theme.caption(figure, OF_DIRECT)
    theme.legend(figure, entries)


def network_name(row: Row) -> str:
    return f"{theme.name(row['model'])} ({len(row['kept_layers'])} of {row['depth']} layers)"


def setting_name(row: Row) -> str:
    """`none removed`, `top 3 removed (1 of 2 tasks)`."""
    return f"{theme.name(row['network'])} removed{measured_tasks(row)}"


def _setting_curves(
    axes: Axes, rows: Sequence[Row], colours: dict[str, Any], entries: dict[str, Any]
) -> None:
    if not any(row["mean"] is not None for row in rows):
        axes.set_xticks([])
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", color=theme.GREY)
    for curve in groups(rows, "network"):
        whole = curve[0]["network"] == "none"
        place = list(colours).index(curve[0]["network"])
        values = [float("nan") if row["mean"] is None else row["mean"] for row in curve]
        (line,) = axes.plot(
            [row["layer"] for row in curve],
            values,
            color=colours[curve[0]["network"]],
            marker=theme.MARKERS[place % len(theme.MARKERS)],
            markersize=3.5,
            linewidth=1.8 if whole else 1.1,
            linestyle="--" if whole else "-",
        )
        entries.setdefault(setting_name(curve[0]), line)
