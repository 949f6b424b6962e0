"""The figures that are files: Figures 2 to 5 of Poor Man's BERT (Sajjad et al. 2020), other figures
layer by layer, and the plots of the page.

    drawing = FIGURES["4"](catalog)
    print(why_absent("4") if drawing is None else drawing.save(folder))

A figure without numbers in the store is None, never an empty frame; `why_absent` says what it
needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from matplotlib.figure import Figure

from lp_sweep.analysis.figures import numbers, painters
from lp_sweep.analysis.rows import Row
from lp_sweep.analysis.tables import TABLES
from lp_sweep.storage.catalog import Catalog
from lp_sweep.storage.errors import SpecError


class Drawing(NamedTuple):
    """A figure that can be written."""

    name: str
    title: str
    paint: Callable[[Figure], None]

    def save(self, folder: Path, formats: Sequence[str] = painters.FORMATS) -> list[Path]:
        """Write `figure-<name>.<format>` for each format; the same numbers give the same bytes.

        Creates the folder if it is missing. Raises SpecError for one that can't be written.
        """
        files = {kind: folder / f"figure-{self.name}.{kind}" for kind in formats}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            painters.write(self.paint, files, self.title)
        except OSError as error:
            raise SpecError(
                f"can't write a figure into {folder}: {error}. Choose another folder."
            ) from error
        return list(files.values())


class FigureDef(NamedTuple):
    title: str  # also for people who can't see it
    numbers: Callable[[Catalog], pa.Table]
    drawn_if: Callable[[Row], bool]  # of one row of its numbers
    paint: Callable[[Figure, Sequence[Row]], None]
    needs: str  # the numbers, and the setting that brings them

    def drawing(self, name: str, catalog: Catalog) -> Drawing | None:
        rows = self.numbers(catalog).to_pylist()
        if not any(self.drawn_if(row) for row in rows):
            return None
        return Drawing(name, self.title, lambda figure: self.paint(figure, rows))


def why_absent(name: str) -> str:
    """One line: what a figure that is None needs, and how to get it."""
    return f"figure {name}: no {_ALL[name].needs}"


def _selected(sql: str, **parameters: object) -> Callable[[Catalog], pa.Table]:
    return lambda catalog: catalog.query(sql, parameters)


def _has(column: str) -> Callable[[Row], bool]:
    return lambda row: row[column] is not None


_PAPER = "the sweep file, as in examples/poor-mans-bert.yaml, and run it again"
_REDUCED = "the sweep file, as in examples/undivided-attention.yaml, and run it again"
_WHOLE = "a full model, or of a pruned one by the procedure direct with all feed-forwards"
_DROP = (
    "Drop layers with the procedure direct and all feed-forwards, as examples/poor-mans-bert.yaml "
    "does"
)


def _by_strategy(models: str, *, six: bool) -> FigureDef:
    return FigureDef(
        title="Mean score over tasks, by strategy and layers dropped (procedure direct)",
        numbers=_selected(numbers.STRATEGIES, six=six),
        drawn_if=lambda row: row["role"] == "pruned" and row["mean"] is not None,
        paint=painters.strategies,
        needs=f"score on every task and seed at one K, for {models}. {_DROP}",
    )


def _measured(measure: str, networks: str) -> str:
    where = _PAPER if measure != "cka" else "the sweep file, and run it again"
    return f"{measure} of {networks}. Add `measure: {{{measure}: full}}` to {where}"


_ALL = {
    "2": _by_strategy("a model without exactly 6 layers", six=False),
    "3": _by_strategy("a model of 6 layers", six=True),
    "4": FigureDef(
        title="Score of a linear classifier on each layer, mean over tasks",
        numbers=_selected(numbers.PROBES),
        drawn_if=_has("mean"),
        paint=painters.probes,
        needs=_measured("probes", _WHOLE),
    ),
    "5": FigureDef(
        title="Similarity of pre-trained and fine-tuned layers, mean over tasks",
        numbers=_selected(numbers.SIMILARITY),
        drawn_if=_has("mean"),
        paint=painters.similarity,
        needs=_measured("similarity", "a full model"),
    ),
    "score": FigureDef(
        title="Score by layers kept",
        numbers=_selected(numbers.NETWORKS),
        drawn_if=lambda row: row["k"] != 0,
        paint=painters.by_layers,
        needs=f"score with fewer layers. {_DROP}",
    ),
    "pareto": FigureDef(
        title="Score against speed, or against size where no speed is measured",
        numbers=_selected(numbers.NETWORKS),
        drawn_if=lambda row: row["k"] != 0,
        paint=painters.by_cost,
        needs="score with fewer layers (and a speed, if `measure: {speed: cuda}` asks for it). "
        f"{_DROP}",
    ),
    "candidates": FigureDef(
        title="Score against milliseconds and megabytes of networks as they are shipped",
        numbers=lambda catalog: TABLES["candidates"](catalog).long,
        drawn_if=_has("ms"),
        paint=painters.candidates,
        needs="network that is measured as it is shipped. Add `deploy: [torch, onnx-int8]` to the "
        "sweep file, or measure one: `lp-sweep measure --task TASK`",
    ),
    "contribution": FigureDef(
        title="Mean cosine before and after each layer (high: it does little), and what a "
        "threshold keeps",
        numbers=_selected(numbers.CONTRIBUTION),
        drawn_if=lambda row: True,
        paint=painters.contribution,
        needs="contribution of layers. Add `{name: contribution, threshold: [0.95, 0.925, 0.9]}` "
        f"to the strategies of {_PAPER}",
    ),
    "cka": FigureDef(
        title="Linear CKA between layers: 1 is the same up to rotation and scale",
        numbers=_selected(numbers.CKA),
        drawn_if=_has("value"),
        paint=painters.cka,
        needs=_measured("cka", _WHOLE),
    ),
    "feed-forward": FigureDef(
        title="Score and parameters by feed-forwards removed, mean over tasks",
        numbers=_selected(numbers.FEED_FORWARDS),
        drawn_if=_has("mean"),
        paint=painters.feed_forward,
        needs="score, on every task and seed, of two settings of `feed_forward:` with the same "
        "strategy and K, by the procedure direct. Add `feed_forward: [none, top 3]` to "
        f"{_REDUCED}",
    ),
    "feed-forward-layers": FigureDef(
        title="Layers of networks with and without feed-forwards",
        numbers=_selected(numbers.FEED_FORWARD_LAYERS),
        drawn_if=_has("mean"),
        paint=painters.feed_forward_layers,
        needs="probes or CKA of a network without some feed-forwards, by the procedure direct. Add "
        "`feed_forward: [none, top 3]` and `measure: {probes: [full, pruned], cka: pruned}` to "
        f"{_REDUCED}",
    ),
}
FIGURES: dict[str, Callable[[Catalog], Drawing | None]] = {
    name: partial(figure.drawing, name) for name, figure in _ALL.items()
}


def save_all(
    catalog: Catalog, folder: Path, absent: Callable[[str], object] = lambda _: None
) -> list[Path]:
    """Writes each figure that the store has numbers for; `absent` receives what another needs.
    Raises SpecError."""
    files: list[Path] = []
    for name, make in FIGURES.items():
        if drawing := make(catalog):
            files += drawing.save(folder)
        else:
            absent(why_absent(name))
    return files
