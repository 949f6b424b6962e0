"""What is painted beside the paper's figures: what a strategy chose by, CKA, feed-forwards."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lp_sweep.analysis.figures import theme
from lp_sweep.analysis.figures.panels import OF_DIRECT, PRUNED_OF_DIRECT, Row, groups, heading

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CONTRIBUTION_COLUMNS = 3
_PARTS = {"layer": "layer outputs", "attention": "attention outputs"}


def contribution(figure: Figure, rows: Sequence[Row]) -> None:
    """A panel per profile, bars by layer; below them what each threshold keeps."""
    found = groups(rows, "profile_id")
    low = _floor(rows)
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
    ticks = {low: f"{low:g}", (1 + low) / 2: f"{(1 + low) / 2:g}", 1.0: "1"}
    chosen_by = groups([row for row in profile if row["threshold"] is not None], "threshold")
    for line, chosen in enumerate(chosen_by, start=1):
        threshold = chosen[0]["threshold"]
        entries["threshold"] = axes.axhline(threshold, color="black", linewidth=0.8, linestyle="--")
        ticks[low - line * step] = f"t={threshold:g}"
        _kept_set(axes, chosen, low - line * step, entries)
    axes.set_ylim(low - (len(chosen_by) + 0.6) * step, 1)
    axes.set_yticks(list(ticks), list(ticks.values()))
    axes.set_xlabel("layer")
    axes.locator_params(axis="x", integer=True)


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


def cka(figure: Figure, rows: Sequence[Row]) -> None:
    """A line of two heat maps per network: layer outputs and attention outputs."""
    found = groups(rows, "model", "kept_layers", "with_pretrained")
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
    other = "pre-trained" if cells[0]["with_pretrained"] else "full network's"
    axes.set_xlabel(f"{other} layer")
    axes.set_ylabel(f"{network_name(cells[0])} layer")
    return image


def network_name(row: Row) -> str:
    """`fine-tuned`, `6 of 12 kept: its`: whose layers go up the side."""
    n = len(row["kept_layers"])
    return "fine-tuned" if n == row["depth"] else f"pruned ({n} of {row['depth']})"


def feed_forward(figure: Figure, rows: Sequence[Row]) -> None:
    """A line per model: mean score and parameters of each setting, side by side."""
    found = groups(rows, "sweep", "model")
    heights = [len(group) for group in found]
    drawn = theme.panels(figure, len(found), 2, sharey="row", height_ratios=heights)
    entries: dict[str, Any] = {}
    for line, settings in enumerate(found):
        left, right = drawn[2 * line : 2 * line + 2]
        depth = "" if settings[0]["k"] == 0 else f", {settings[0]['strategy']} K={settings[0]['k']}"
        left.set_title(heading(settings, rows) + depth, loc="left")
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
