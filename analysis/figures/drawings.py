"""The figures that are files: Figures 2 to 5 of Poor Man's BERT (Sajjad et al. 2020) and two more
layer by layer; and the plots of the page, as pictures. Drawn with matplotlib, without pyplot; its
global settings stay unchanged.

A figure without numbers in the store is not drawn, never an empty frame; it says what it needs.
"""

from __future__ import annotations

import base64
import io
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lp_sweep.analysis.figures import numbers, plots
from lp_sweep.analysis.rows import Row, grouped
from lp_sweep.storage.catalog import Catalog
from lp_sweep.storage.errors import SpecError
from lp_sweep.storage.printable import printable

_DIRECT = "(procedure direct: pruned first, then fine-tuned)"
_WIDTH = 6.9  # inches: the text of an A4 page
_LONGEST_NAME = 36
_SETTINGS: dict[str, Any] = {
    "text.parse_math": False,  # a model's name may have two dollars
    "svg.fonttype": "none",  # text stays text: names of any script, and they can be searched
    "svg.hashsalt": "lp-sweep",  # else identifiers are random
    "font.size": 8,
    "figure.titlesize": "medium",
    "savefig.dpi": 200,
}
_BELOW: Any = {"loc": "outside lower center", "ncols": 2}  # a legend that covers no number


@contextmanager
def _figure() -> Iterator[Figure]:
    """With a style that colour-blind readers can read, whatever the user's matplotlibrc says."""
    styles = ["default", "petroff10", _SETTINGS]
    with warnings.catch_warnings(), style.context(styles):
        warnings.simplefilter("ignore")  # of a letter that the font lacks, of scores that are all 0
        yield Figure(layout="constrained")


def save(name: str, catalog: Catalog, folder: Path) -> list[Path]:
    """Writes `figure-<name>` as SVG and PNG; the same numbers give the same bytes. No file if the
    store has too few numbers for it.

    Creates the folder if it is missing. Raises SpecError for a file that can't be written.
    """
    files = [folder / f"figure-{name}.{kind}" for kind in ("svg", "png")]
    text = dict.fromkeys(("Title", "Description"), printable(FIGURES[name].title))
    rows = FIGURES[name].rows(catalog)
    if not rows:
        return []
    with _figure() as figure:
        FIGURES[name].paint(figure, rows)
        figure.suptitle(text["Title"], x=0.01, ha="left")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for file in files:
                svg = file.suffix == ".svg"
                extra = {"Date": None, "Creator": None} if svg else {"Software": None}
                figure.savefig(file, metadata={**text, **extra})
        except OSError as error:
            raise SpecError(
                f"can't write a figure into {folder}: {error}. Choose another folder."
            ) from error
    return files


def save_all(
    catalog: Catalog, folder: Path, absent: Callable[[str], object] = lambda _: None
) -> list[Path]:
    """Writes each figure that the store has numbers for; `absent` receives what another needs.
    Raises SpecError."""
    written: list[Path] = []
    for name, figure in FIGURES.items():
        if files := save(name, catalog, folder):
            written += files
        else:
            absent(f"figure {name}: no {figure.needs}")
    return written


def _panels(figure: Figure, rows: Sequence[Row]) -> Iterator[tuple[Axes, Sequence[Row]]]:
    """A panel for each `panel` of the rows, which is its title, and its rows: two in a line."""
    shown = grouped(rows, lambda row: str(row["panel"]))
    columns = min(2, len(shown))
    lines = math.ceil(len(shown) / columns)
    figure.set_size_inches(_WIDTH, 1 + 2.5 * lines)
    for place, (title, of_panel) in enumerate(shown.items(), 1):
        axes = figure.add_subplot(lines, columns, place)
        axes.set_title("\n".join(map(_name, title.split("\n"))), loc="left")
        yield axes, of_panel


def _name(text: str) -> str:
    """A name on one line, shortened in the middle: its two ends tell the most."""
    line, half = printable(text), _LONGEST_NAME // 2
    return line if len(line) <= _LONGEST_NAME else f"{line[: half - 1]}…{line[-half:]}"


# -- painters


def _lines(x_label: str, y_label: str, figure: Figure, rows: Sequence[Row]) -> None:
    """A panel for each `panel` of the rows, with a line for each `line`."""
    looks = dict[str, dict[str, Any]]()  # one entry of the legend for the lines of all panels
    for axes, panel in _panels(figure, rows):
        for label, line in grouped(panel, lambda row: row["line"]).items():
            x, y, low, high = (
                np.array([row[name] for row in line], float)  # None becomes NaN, a gap
                for name in ("x", "y", "low", "high")
            )
            look = looks.get(label, {"color": f"C{len(looks)}", "label": printable(label)})
            looks[label] = look | {"label": None}
            if np.isnan(x).all():
                axes.axhline(y[0], linestyle="--", **look)
            else:
                axes.errorbar(x, y, (y - low, high - y), fmt="o-", **look)
        axes.locator_params(axis="x", integer=True)
        axes.set(xlabel=x_label, ylabel=y_label)
    figure.legend(**_BELOW)


def _heat_maps(figure: Figure, rows: Sequence[Row]) -> None:
    for axes, cells in _panels(figure, rows):
        x, y = (sorted({row[side] for row in cells}) for side in ("x", "y"))
        matrix = np.full((len(y), len(x)), np.nan)
        for row in cells:
            matrix[y.index(row["y"]), x.index(row["x"])] = row["value"]
        image = axes.pcolormesh(x, y, matrix, vmin=0, vmax=1, cmap="cividis")
        axes.locator_params(integer=True)
        axes.set(xlabel="layer", ylabel="fine-tuned layer")
    figure.colorbar(image, ax=figure.axes, label="linear CKA (white: no number)", shrink=0.7)


class FigureDef(NamedTuple):
    title: str  # also for people who can't see it
    sql: str
    paint: Callable[[Figure, Sequence[Row]], None]
    needs: str  # the numbers, and the setting that brings them

    def rows(self, catalog: Catalog) -> list[Row]:
        """Its numbers; [] if no point has one."""
        rows = catalog.query(self.sql).to_pylist()
        known = (None not in (row["x"], row["y"], row.get("value", 0)) for row in rows)
        return rows if any(known) else []


FIGURES = {
    "2-3": FigureDef(
        f"Mean score over tasks, by strategy {_DIRECT}",
        numbers.STRATEGIES,
        partial(_lines, "layers dropped", "points"),
        "score on every task at one K: see examples/poor-mans-bert.yaml",
    ),
    "4": FigureDef(
        "Score of a linear classifier on each layer, mean over tasks",
        numbers.PROBES,
        partial(_lines, "layer (0: embeddings)", "points"),
        "probes. Add `measure: {probes: full}`, as in examples/poor-mans-bert.yaml",
    ),
    "5": FigureDef(
        "Similarity of pre-trained and fine-tuned layers, mean over tasks",
        numbers.SIMILARITY,
        partial(_lines, "layer (0: embeddings)", "cosine"),
        "similarity. Add `measure: {similarity: full}`, as in examples/poor-mans-bert.yaml",
    ),
    "cka": FigureDef(
        f"Linear CKA between layers: 1 is the same up to rotation and scale {_DIRECT}",
        numbers.CKA,
        _heat_maps,
        "CKA. Add `measure: {cka: full}`",
    ),
    "feed-forward-layers": FigureDef(
        f"Layers of networks with and without feed-forwards {_DIRECT}",
        numbers.FEED_FORWARD_LAYERS,
        partial(_lines, "layer", ""),
        "probes or CKA without some feed-forwards. Add `feed_forward: [none, top 3]` and "
        "`measure: {probes: [full, pruned], cka: pruned}`, as in examples/undivided-attention.yaml",
    ),
}


# -- a plot of the page


def picture(plot: plots.Plot) -> dict[str, Any]:
    """A plot as an SVG of its own, and its spots: x and y from the upper left corner, and tip."""
    with _figure() as figure:
        axes = figure.subplots()
        axes.spines[["top", "right"]].set_visible(False)
        plots.paint(axes, plot)
        figure.set_size_inches(4.5, 2.8 + 0.08 * len(axes.get_legend_handles_labels()[1]))
        figure.legend(**_BELOW)
        drawn, now = io.BytesIO(), {"Date": None, "Creator": None}
        figure.savefig(drawn, format="svg", transparent=True, metadata=now)
        width, height = figure.bbox.size
        places = axes.transData.transform([(mark.x, mark.y) for mark in plot.marks]).round(1)
    return dict(
        width=width,
        height=height,
        source=f"data:image/svg+xml;base64,{base64.b64encode(drawn.getvalue()).decode()}",
        spots=[
            (x, round(height - y, 1), mark.tip)
            for (x, y), mark in zip(places.tolist(), plot.marks, strict=True)
        ],
    )
