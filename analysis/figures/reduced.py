"""Networks with and without their feed-forwards, layer by layer: probes, CKA with the full one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from lp_sweep.analysis.figures import theme
from lp_sweep.analysis.figures.panels import OF_DIRECT, Row, groups, measured_tasks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class _Panel(NamedTuple):
    """What stands above a panel, and beside and below its axes."""

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


def feed_forward_layers(figure: Figure, rows: Sequence[Row]) -> None:
    """A line of two panels per set of kept layers, a curve per setting of the feed-forwards."""
    settings = list(dict.fromkeys(row["network"] for row in rows))
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
            _curves(axes, [row for row in same_layers if row["part"] == part], colours, entries)
        drawn[2 * line + 1].set_ylim(0, 1.03)
    theme.caption(figure, OF_DIRECT)
    theme.legend(figure, entries)


def network_name(row: Row) -> str:
    return f"{theme.name(row['model'])} ({len(row['kept_layers'])} of {row['depth']} layers)"


def setting_name(row: Row) -> str:
    """`none removed`, `top 3 removed (1 of 2 tasks)`."""
    return f"{theme.name(row['network'])} removed{measured_tasks(row)}"


def _curves(
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
