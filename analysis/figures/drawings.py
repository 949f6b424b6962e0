"""The figures that are files: Figures 2 to 5 of Poor Man's BERT (Sajjad et al. 2020), other figures
layer by layer, and the plots of the page.

    drawing = FIGURES["4"](catalog)
    print(why_absent("4") if drawing is None else drawing.save(folder))

A figure without numbers in the store is None, never an empty frame; `why_absent` says what it
needs.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from matplotlib.figure import Figure

from lp_sweep.analysis.figures import layernumbers, numbers, painters
from lp_sweep.analysis.rows import Row
from lp_sweep.analysis.tables import TABLES
from lp_sweep.storage.catalog import Catalog
from lp_sweep.storage.errors import SpecError

IN_PAGE = ("score", "pareto", "candidates")  # the page draws them itself, task by task


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A figure that can be written. `numbers` has all the numbers that it shows."""

    name: str
    title: str
    numbers: pa.Table
    height: float  # inches
    paint: Callable[[Figure], None] = field(repr=False)

    def save(self, folder: Path, formats: Sequence[str] = painters.FORMATS) -> list[Path]:
        """Write `figure-<name>.<format>` for each format; the same numbers give the same bytes.

        Creates the folder if it is missing. Raises SpecError for one that can't be written.
        """
        files = {kind: folder / f"figure-{self.name}.{kind}" for kind in formats}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._write(files)
        except OSError as error:
            raise SpecError(f"can't write a figure into {folder}: {error}") from error
        return list(files.values())

    def svg(self) -> bytes:
        stream = io.BytesIO()
        self._write({"svg": stream})
        return stream.getvalue()

    def _write(self, files: painters.Files) -> None:
        painters.write(self.paint, files, title=self.title, height=self.height)


class FigureDef(NamedTuple):
    title: str  # also for people who can't see it
    numbers: Callable[[Catalog], pa.Table]
    drawn_if: Callable[[Row], bool]  # of one row of its numbers
    paint: Callable[[Figure, Sequence[Row]], None]
    by: tuple[str, ...]  # columns that decide the panel of a row
    panel: float  # inches
    needs: str  # the numbers, and the setting that brings them
    columns: int = 1  # of panels

    def drawing(self, name: str, catalog: Catalog) -> Drawing | None:
        found = self.numbers(catalog)
        rows = found.to_pylist()
        if not any(self.drawn_if(row) for row in rows):
            return None
        lines = math.ceil(len(painters.groups(rows, *self.by)) / self.columns)
        return Drawing(
            name=name,
            title=self.title,
            numbers=found,
            height=0.9 + self.panel * lines,
            paint=lambda figure: self.paint(figure, rows),
        )


def why_absent(name: str) -> str:
    """One line: what a figure that is None needs, and how to get it."""
    return f"figure {name}: no {_ALL[name].needs}"


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
        numbers=partial(numbers.strategies, six=six),
        drawn_if=lambda row: row["role"] == "pruned" and row["mean"] is not None,
        paint=painters.bars,
        by=("sweep", "model"),
        panel=2.5,
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
        numbers=layernumbers.probes,
        drawn_if=_has("mean"),
        paint=painters.probes,
        by=(),
        panel=3,
        needs=_measured("probes", _WHOLE),
    ),
    "5": FigureDef(
        title="Similarity of pre-trained and fine-tuned layers, mean over tasks",
        numbers=layernumbers.similarity,
        drawn_if=_has("mean"),
        paint=painters.similarity,
        by=(),
        panel=2.5,
        needs=_measured("similarity", "a full model"),
    ),
    "score": FigureDef(
        title="Score by layers kept",
        numbers=numbers.networks,
        drawn_if=lambda row: row["k"] != 0,
        paint=painters.by_layers,
        by=numbers.TASK,
        panel=2.4,
        columns=painters.COLUMNS,
        needs=f"score with fewer layers. {_DROP}",
    ),
    "pareto": FigureDef(
        title="Score against speed, or against size where no speed is measured",
        numbers=numbers.networks,
        drawn_if=lambda row: row["k"] != 0,
        paint=painters.by_cost,
        by=(*numbers.TASK, "place"),
        panel=2.5,
        columns=painters.COLUMNS,
        needs="score with fewer layers (and a speed, if `measure: {speed: cuda}` asks for it). "
        f"{_DROP}",
    ),
    "candidates": FigureDef(
        title="Score against milliseconds and megabytes of networks as they are shipped",
        numbers=lambda catalog: TABLES["candidates"](catalog).long,
        drawn_if=_has("ms"),
        paint=painters.candidates,
        by=("model", "task", "device_name", "threads"),
        panel=3,
        needs="network that is measured as it is shipped. Add `deploy: [torch, onnx-int8]` to the "
        "sweep file, or measure one: `lp-sweep measure --task TASK`",
    ),
    "contribution": FigureDef(
        title="Mean cosine before and after each layer (high: it does little), and what a "
        "threshold keeps",
        numbers=layernumbers.contribution,
        drawn_if=lambda row: True,
        paint=painters.contribution,
        by=("profile_id",),
        panel=2.2,
        columns=painters.COLUMNS,
        needs="contribution of layers. Add `{name: contribution, threshold: [0.95, 0.925, 0.9]}` "
        f"to the strategies of {_PAPER}",
    ),
    "cka": FigureDef(
        title="Linear CKA between layers: 1 is the same up to rotation and scale",
        numbers=layernumbers.cka,
        drawn_if=_has("value"),
        paint=painters.cka,
        by=("model", "kept_layers", "with_pretrained"),
        panel=3.1,
        needs=_measured("cka", _WHOLE),
    ),
    "feed-forward": FigureDef(
        title="Score and parameters by feed-forwards removed, mean over tasks",
        numbers=numbers.feed_forwards,
        drawn_if=_has("mean"),
        paint=painters.feed_forward,
        by=("sweep", "model"),
        panel=1.8,
        needs="score, on every task and seed, of two settings of `feed_forward:` with the same "
        "strategy and K, by the procedure direct. Add `feed_forward: [none, top 3]` to "
        f"{_REDUCED}",
    ),
    "feed-forward-layers": FigureDef(
        title="Layers of networks with and without feed-forwards",
        numbers=layernumbers.feed_forward_layers,
        drawn_if=_has("mean"),
        paint=painters.feed_forward_layers,
        by=("model", "kept_layers"),
        panel=2.4,
        needs="probes or CKA of a network without some feed-forwards, by the procedure direct. Add "
        "`feed_forward: [none, top 3]` and `measure: {probes: [full, pruned], cka: pruned}` to "
        f"{_REDUCED}",
    ),
}
FIGURES: dict[str, Callable[[Catalog], Drawing | None]] = {
    name: partial(figure.drawing, name) for name, figure in _ALL.items()
}
