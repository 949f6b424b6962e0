"""Figures 2 to 5 of Poor Man's BERT (Sajjad et al. 2020) from a store, and a few beside them.

    drawing = FIGURES["4"](catalog)
    print(why_absent(catalog, "4") if drawing is None else drawing.save(folder))

The numbers are those of `numbers` and `layerwise`; this only puts them together. A figure whose
numbers are not in the store is None, never an empty frame; `absent` says why.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from lp_sweep.analysis.figures import beside, curves, layerwise, panels, reduced, text, theme
from lp_sweep.analysis.figures import numbers as figure_numbers
from lp_sweep.analysis.figures.panels import Row, groups
from lp_sweep.storage.catalog import Catalog
from lp_sweep.storage.errors import SpecError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A figure that can be written; `numbers` is all that it shows, `alt` says it in a sentence."""

    name: str
    title: str
    alt: str
    numbers: pa.Table
    height: float  # inches
    paint: Callable[[Figure], None] = field(repr=False)

    def save(self, folder: Path, formats: Sequence[str] = theme.FORMATS) -> list[Path]:
        """Write `figure-<name>.<format>` for each format; the same numbers give the same bytes.

        The folder is made where there is none. Raises SpecError for an unknown format, a folder
        that can't be written, and where matplotlib is not installed.
        """
        for kind in formats:
            if kind not in theme.FORMATS:
                raise SpecError(f"a figure as {kind!r}: choose among {', '.join(theme.FORMATS)}")
        files = {kind: folder / f"figure-{self.name}.{kind}" for kind in formats}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            theme.write(
                self.paint, files, title=self.title, description=self.alt, height=self.height
            )
        except OSError as error:
            raise SpecError(f"can't write a figure into {folder}: {error}") from error
        return list(files.values())

    def svg(self) -> str:
        """The text of the SVG file that `save` writes. Raises SpecError where matplotlib is not
        installed."""
        stream = io.BytesIO()
        into = {"svg": stream}
        theme.write(self.paint, into, title=self.title, description=self.alt, height=self.height)
        return stream.getvalue().decode()


def _drawing(
    name: str,
    title: str,
    numbers: pa.Table,
    paint: Callable[[Figure, Sequence[Row]], None],
    say: Callable[[Sequence[Row]], str],
    *,
    height: float,
) -> Drawing:
    rows = numbers.to_pylist()
    return Drawing(
        name=name,
        title=title,
        alt=say(rows),
        numbers=numbers,
        height=height,
        paint=lambda figure: paint(figure, rows),
    )


def _strategies(catalog: Catalog, name: str, *, six: bool) -> Drawing | None:
    numbers = figure_numbers.strategies(catalog, six=six)
    rows = numbers.to_pylist()
    if not any(row["role"] == "pruned" and row["mean"] is not None for row in rows):
        return None
    return _drawing(
        name,
        "Mean score over tasks by strategy and layers dropped, procedure direct",
        numbers,
        panels.bars,
        text.strategies,
        height=0.7 + 2.5 * len(groups(rows, "sweep", "model")) + 0.05 * len({r["k"] for r in rows}),
    )


def figure_2(catalog: Catalog) -> Drawing | None:
    """Mean over tasks by strategy and K, of models of other depths than 6."""
    return _strategies(catalog, "2", six=False)


def figure_3(catalog: Catalog) -> Drawing | None:
    """The same for models of 6 layers, such as DistilBERT."""
    return _strategies(catalog, "3", six=True)


def figure_4(catalog: Catalog) -> Drawing | None:
    """Score of a classifier on each layer: whole, pre-trained and pruned networks."""
    numbers = layerwise.probes(catalog)
    if not _any(numbers, "mean"):
        return None
    named = len({(row["model"], row["network"]) for row in numbers.to_pylist()})
    return _drawing(
        "4",
        "Score of a linear classifier on each layer",
        numbers,
        panels.probes,
        text.probes,
        height=3.2 + 0.2 * math.ceil(named / 2),
    )


def figure_5(catalog: Catalog) -> Drawing | None:
    """Cosine of each layer before and after fine-tuning."""
    numbers = layerwise.similarity(catalog)
    if not _any(numbers, "mean"):
        return None
    title = "Similarity of pre-trained and fine-tuned layers"
    return _drawing("5", title, numbers, panels.similarity, text.similarity, height=3.4)


def score(catalog: Catalog) -> Drawing | None:
    """Score by layers dropped, a line per strategy, a panel per task."""
    numbers = figure_numbers.curves(catalog)
    rows = numbers.to_pylist()
    if all(row["strategy"] == figure_numbers.FULL for row in rows):
        return None
    title = "Score by layers dropped, procedure direct"
    lines = curves.grid(len(curves.score_panels(rows)), curves.SCORE_COLUMNS)[0]
    return _drawing("score", title, numbers, curves.score, text.score, height=1.0 + 2.2 * lines)


def pareto(catalog: Catalog) -> Drawing | None:
    """Score against measured speed of inference, and which networks none beats in both."""
    numbers = figure_numbers.pareto(catalog)
    rows = numbers.to_pylist()
    if all(row["k"] == 0 for row in rows):
        return None
    title = "Score and measured speed of inference, procedure direct"
    lines = curves.grid(len(curves.pareto_panels(rows)), curves.PARETO_COLUMNS)[0]
    return _drawing("pareto", title, numbers, curves.pareto, text.pareto, height=0.8 + 2.8 * lines)


def contribution(catalog: Catalog) -> Drawing | None:
    """How much each layer changes the sentence token, and what each threshold keeps."""
    numbers = figure_numbers.contribution(catalog)
    if not numbers.num_rows:
        return None
    n = len(groups(numbers.to_pylist(), "profile_id"))
    return _drawing(
        "contribution",
        "Mean cosine before and after each layer, and what a threshold keeps",
        numbers,
        beside.contribution,
        text.contribution,
        height=0.5 + 2.2 * math.ceil(n / beside.CONTRIBUTION_COLUMNS),
    )


def cka(catalog: Catalog, profile: str | None = None) -> Drawing | None:
    """CKA between layers: of one profile, else means over tasks of the deepest networks."""
    numbers = layerwise.cka(catalog, profile)
    if not _any(numbers, "value"):
        return None
    n = len(groups(numbers.to_pylist(), "model", "kept_layers", "with_pretrained"))
    title = "Linear CKA between layers"
    return _drawing("cka", title, numbers, beside.cka, text.cka, height=0.3 + 3.1 * n)


def feed_forward(catalog: Catalog) -> Drawing | None:
    """Score and parameters by which feed-forwards are removed."""
    numbers = figure_numbers.feed_forwards(catalog)
    if not _any(numbers, "mean"):
        return None
    rows = numbers.to_pylist()
    return _drawing(
        "feed-forward",
        "Score and parameters by feed-forwards removed, procedure direct",
        numbers,
        beside.feed_forward,
        text.feed_forward,
        height=0.5 + 0.8 * len(groups(rows, "sweep", "model")) + 0.28 * len(rows),
    )


def feed_forward_layers(catalog: Catalog) -> Drawing | None:
    """Probes and CKA of attention outputs by layer, with and without feed-forwards."""
    numbers = layerwise.feed_forward_layers(catalog)
    if not _any(numbers, "mean"):
        return None
    rows = numbers.to_pylist()
    return _drawing(
        "feed-forward-layers",
        "Layers of networks with and without feed-forwards, procedure direct",
        numbers,
        reduced.feed_forward_layers,
        text.feed_forward_layers,
        height=0.7 + 2.4 * len(reduced.networks(rows)),
    )


def _any(numbers: pa.Table, column: str) -> bool:
    return any(value is not None for value in numbers[column].to_pylist())


FIGURES: dict[str, Callable[[Catalog], Drawing | None]] = {
    "2": figure_2,
    "3": figure_3,
    "4": figure_4,
    "5": figure_5,
    "score": score,
    "pareto": pareto,
    "contribution": contribution,
    "cka": cka,
    "feed-forward": feed_forward,
    "feed-forward-layers": feed_forward_layers,
}
