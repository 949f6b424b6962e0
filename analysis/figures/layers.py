"""Painters of the layer-by-layer figures. Each draws rows of `layernumbers` on a matplotlib figure.
A missing number leaves a gap.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lp_sweep.analysis.figures import theme
from lp_sweep.analysis.figures.panels import OF_DIRECT, groups
from lp_sweep.analysis.rows import Row

FAR = 0.7  # below this cosine, a layer changed substantially (Figure 5 of the paper)
PRUNED_OF_DIRECT = "Networks with fewer layers: of the procedure direct."


# -- figures 4 and 5


def probes(figure: Figure, rows: Sequence[Row], among: Sequence[Row]) -> None:
    """Score by layer. Whole networks also show the span of their seeds."""
    (axes,) = theme.panels(figure, 1)
    axes.set_ylabel("classifier on the layer,\nmean over tasks (points)")
    if any(row["network"] == "pruned" for row in rows):
        theme.caption(figure, PRUNED_OF_DIRECT)
    _curves(axes, rows, rows)
    theme.legend(figure)
    theme.points_axis(axes, [row["mean"] for row in rows if row["mean"] is not None])


def similarity(figure: Figure, rows: Sequence[Row], among: Sequence[Row]) -> None:
    """Cosine by layer of the sentence token and the per-text token mean; shaded below FAR."""
    titles = {"sentence": "sentence token", "tokens": "per-text token mean"}
    pair = theme.panels(figure, 1, 2, sharey=True)
    for axes, (part, title) in zip(pair, titles.items(), strict=True):
        axes.set_title(title, loc="left")
        _curves(axes, [row for row in rows if row["part"] == part], rows)
        look: dict[str, Any] = {"alpha": 0.35, "linewidth": 0, "zorder": 0}
        axes.axhspan(-1, FAR, color=theme.YELLOW, label=f"below {FAR}", **look)
    pair[0].set_ylabel("cosine, pre-trained and fine-tuned,\nmean over tasks")
    lows = [row[column] for row in rows for column in ("mean", "low")]
    low = min((value for value in lows if value is not None), default=0)
    pair[0].set_ylim(min(0.6, math.floor(10 * low) / 10), 1.01)
    theme.legend(figure)


def _curves(axes: Axes, rows: Sequence[Row], among: Sequence[Row]) -> None:
    models = sorted({row["model"] for row in among})
    for curve in groups(rows, "model", "network", "kept_layers"):
        first, place = curve[0], models.index(curve[0]["model"])
        whole, pruned = first["network"] == "full", first["network"] == "pruned"
        layers = [0, *(first["kept_layers"] if pruned else range(1, first["depth"] + 1))]
        at = {row["layer"]: row for row in curve}
        if all(row["mean"] is None for row in curve):
            continue
        look: dict[str, Any] = {
            "markersize": 4 if whole else 2.5,
            "linestyle": "--" if first["network"] == "pretrained" else "-",
            "linewidth": 1.6 if whole else 1.1 if not pruned else 0.6,
            "alpha": 0.55 if pruned else 1,
            "label": curve_label(first),
        }
        _curve(axes, layers, _values(at, layers, "mean"), place, len(models), **look)
        if whole:
            low, high = _values(at, layers, "low"), _values(at, layers, "high")
            colour = theme.colour(place, len(models))
            axes.fill_between(layers, low, high, color=colour, alpha=0.2, linewidth=0)
    depth = max((row["depth"] for row in among), default=1)
    pruned = "; pruned networks: the full one's numbers"
    only_some = any(row["network"] == "pruned" for row in rows)
    axes.set_xlabel(f"layer (0: embeddings{pruned if only_some else ''})")
    axes.set_xticks(range(0, depth + 1, max(1, math.ceil(depth / 12))))


def _curve(
    axes: Axes, layers: Sequence[int], values: Sequence[float], place: int, of: int, **look: Any
) -> None:
    """Draw one line; `place` among `of` lines decides its style."""
    marker = theme.MARKERS[place % len(theme.MARKERS)]
    axes.plot(layers, values, color=theme.colour(place, of), marker=marker, **look)


def _values(at: Mapping[int, Row], layers: Sequence[int], column: str) -> list[float]:
    """The values at these layers; NaN, a gap in the line, where there is none."""
    found = (at[layer][column] if layer in at else None for layer in layers)
    return [math.nan if value is None else value for value in found]


def curve_label(row: Row) -> str:
    kind = {"full": "", "pretrained": ", pre-trained", "pruned": ", pruned"}[row["network"]]
    return f"{theme.name(row['model'])}{kind}{measured_tasks(row)}"


def measured_tasks(row: Row) -> str:
    """` (1 of 2 tasks)` if some tasks that the cells ask for are not measured."""
    few = row["n_tasks_asked"] is not None and row["n_tasks"] < row["n_tasks_asked"]
    return f" ({row['n_tasks']} of {row['n_tasks_asked']} tasks)" if few else ""


_REDUCED_PARTS = {  # title, value and layer
    "probes": ("classifier on the layer", "points, mean over tasks", "layer (0: embeddings)"),
    "attention": ("attention outputs", "linear CKA with the full\nnetwork's layer", "layer"),
}


def feed_forward_layers(figure: Figure, rows: Sequence[Row], among: Sequence[Row]) -> None:
    """A row of two panels per set of kept layers, with a curve per feed-forward setting."""
    settings = list(dict.fromkeys(row["network"] for row in among))
    found = groups(rows, *LAYERS)
    drawn = theme.panels(figure, len(found), 2)
    for line, same_layers in enumerate(found):
        first = same_layers[0]
        n = f"{len(first['kept_layers'])} of {first['depth']} layers"
        for axes, (part, names) in zip(drawn[2 * line :], _REDUCED_PARTS.items(), strict=False):
            title, value, layer = names
            axes.set_title(f"{theme.name(first['model'])} ({n})\n{title}", loc="left")
            axes.set_ylabel(value)
            axes.set_xlabel(layer)
            axes.locator_params(axis="x", integer=True)
            _setting_curves(axes, [row for row in same_layers if row["part"] == part], settings)
        drawn[2 * line + 1].set_ylim(0, 1.03)
    theme.caption(figure, OF_DIRECT)
    theme.legend(figure)


def _setting_curves(axes: Axes, rows: Sequence[Row], settings: Sequence[str]) -> None:
    """A line per setting, such as `none removed` or `top 3 removed (1 of 2 tasks)`."""
    if not any(row["mean"] is not None for row in rows):
        axes.set_xticks([])
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", color=theme.GREY)
    for curve in groups(rows, "network"):
        setting = curve[0]["network"]
        shown = [row["layer"] for row in curve]
        means = _values({row["layer"]: row for row in curve}, shown, "mean")
        look: dict[str, Any] = {"linewidth": 1.1, "markersize": 3.5}
        look |= {"linewidth": 1.8, "linestyle": "--"} if setting == "none" else {}
        look["label"] = f"{theme.name(setting)} removed{measured_tasks(curve[0])}"
        _curve(axes, shown, means, settings.index(setting), len(settings), **look)


LAYERS = ("model", "kept_layers")
NETWORK = ("model", "kept_layers", "with_pretrained")


CONTRIBUTION_COLUMNS = 3
_CKA_PARTS = {"layer": "layer outputs", "attention": "attention outputs"}


def contribution(figure: Figure, rows: Sequence[Row], among: Sequence[Row]) -> None:
    """A panel per profile: bars by layer, and below them the layers that each threshold keeps."""
    found = groups(rows, "profile_id")
    low = _floor(among)
    columns = min(CONTRIBUTION_COLUMNS, len(found))
    drawn = theme.panels(figure, math.ceil(len(found) / columns), columns)
    for axes in drawn[::columns]:
        axes.set_ylabel("mean cosine", fontsize=theme.SMALL)
    for axes, profile in itertools.zip_longest(drawn, found):
        if profile is None:
            axes.set_axis_off()
        else:
            _profile(axes, profile, low)
    theme.legend(figure)


def _floor(rows: Sequence[Row]) -> float:
    """Where the bars start."""
    values = [row["value"] for row in rows if row["value"] is not None]
    return float(math.floor(10 * min([*values, 0.9]) - 1e-9)) / 10


def _profile(axes: Axes, profile: Sequence[Row], low: float) -> None:
    title = f"{theme.name(profile[0]['model'])}\n{theme.name(profile[0]['task'])}"
    axes.set_title(title, loc="left", fontsize=theme.SMALL)
    axes.grid(visible=False)
    values = {row["layer"]: row["value"] for row in profile}
    known = {layer: value - low for layer, value in values.items() if value is not None}
    axes.bar([*known], [*known.values()], 0.8, low, color=theme.COLOURS[5])
    missing = [layer for layer in values if layer not in known]
    theme.missing(axes, missing, [low] * len(missing), "not a number")
    axes.axhline(low, color=theme.GREY, linewidth=0.8)
    step = 0.17 * (1 - low)  # height of a row of squares
    middle = round((1 + low) / 2 - 1e-9, 1)
    ticks = {low: f"{low:g}", middle: f"{middle:g}", 1.0: "1"}
    chosen_by = groups([row for row in profile if row["threshold"] is not None], "threshold")
    for line, chosen in enumerate(chosen_by, start=1):
        threshold = chosen[0]["threshold"]
        look: dict[str, Any] = {"linewidth": 0.8, "linestyle": "--", "label": "threshold"}
        axes.axhline(threshold, color="black", **look)
        ticks[low - line * step] = f"t={threshold:g}"
        _kept_set(axes, chosen, low - line * step)
    axes.set_ylim(low - (len(chosen_by) + 0.6) * step, 1)
    axes.set_yticks(list(ticks), list(ticks.values()))
    axes.set_xlabel("layer")
    axes.locator_params(axis="x", integer=True, min_n_ticks=1)  # also with only one K


def _kept_set(axes: Axes, chosen: Sequence[Row], height: float) -> None:
    """A square per layer, under its bar."""
    for word, kept, face in (("kept", True, theme.COLOURS[0]), ("dropped", False, "white")):
        at = [row["layer"] for row in chosen if row["kept"] is kept]
        look: dict[str, Any] = {"color": theme.COLOURS[0], "markerfacecolor": face, "label": word}
        axes.plot(at, [height] * len(at), "s", markersize=5, **look)


def cka(figure: Figure, rows: Sequence[Row], among: Sequence[Row]) -> None:
    """A row of two heat maps per network: layer outputs and attention outputs."""
    found = groups(rows, *NETWORK)
    drawn: list[Axes] = theme.panels(figure, len(found), 2)
    image = None
    for line, network in enumerate(found):
        for axes, (part, title) in zip(drawn[2 * line :], _CKA_PARTS.items(), strict=False):
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
    """`fine-tuned`, `pruned (6 of 12)`."""
    n = len(row["kept_layers"])
    return "fine-tuned" if n == row["depth"] else f"pruned ({n} of {row['depth']})"
