"""Figures 2 to 5 of Poor Man's BERT (Sajjad et al. 2020) and a few others, drawn from a store.

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

from lp_sweep.analysis.figures import curves, layernumbers, layers, numbers, panels, theme
from lp_sweep.analysis.figures.panels import groups
from lp_sweep.analysis.rows import Row
from lp_sweep.storage.catalog import Catalog
from lp_sweep.storage.errors import SpecError

_PAPER = "the sweep file, as in examples/poor-mans-bert.yaml, and run it again"
_REDUCED = "the sweep file, as in examples/undivided-attention.yaml, and run it again"
_DROP = (
    "Drop layers with the procedure direct and all feed-forwards, as examples/poor-mans-bert.yaml "
    "does"
)


class Panel(NamedTuple):
    height: float  # inches
    paint: Callable[[Figure], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A figure that can be written. `numbers` has all the numbers that it shows; `alt` describes it
    in words."""

    name: str
    title: str
    alt: str
    numbers: pa.Table
    height: float  # inches
    paint: Callable[[Figure], None] = field(repr=False)
    panels: Sequence[Panel] = field(repr=False)  # the same in parts, for a page that stacks them

    def save(self, folder: Path, formats: Sequence[str] = theme.FORMATS) -> list[Path]:
        """Write `figure-<name>.<format>` for each format; the same numbers give the same bytes.

        Creates the folder if it is missing. Raises SpecError for one that can't be written.
        """
        files = {kind: folder / f"figure-{self.name}.{kind}" for kind in formats}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            theme.write(
                self.paint, files, title=self.title, description=self.alt, height=self.height
            )
        except OSError as error:
            raise SpecError(f"can't write a figure into {folder}: {error}") from error
        return list(files.values())

    def svgs(self) -> list[bytes]:
        """An SVG for each panel, as wide as a phone."""
        found = []
        for height, paint in self.panels:
            stream = io.BytesIO()
            text = {"title": self.title, "description": self.alt}
            theme.write(paint, {"svg": stream}, **text, height=height, width=theme.NARROW)
            found.append(stream.getvalue())
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureDef:
    """The definition of a figure: its numbers, painter, description, and what it needs."""

    name: str
    title: str
    numbers: Callable[[Catalog], pa.Table]
    drawn_if: Callable[[Row], bool]  # of one row of its numbers
    paint: Callable[[Figure, Sequence[Row], Sequence[Row]], None]  # its rows, those of all panels
    by: tuple[str, ...]  # columns that decide the panel of a row
    alt: str  # what it shows, also for people who can't see it
    height: Callable[[Sequence[Row]], float]  # inches
    needs: str  # the numbers, and the setting that brings them

    def __call__(self, catalog: Catalog) -> Drawing | None:
        found = self.numbers(catalog)
        rows = found.to_pylist()
        if not any(self.drawn_if(row) for row in rows):
            return None
        return Drawing(
            name=self.name,
            title=self.title,
            alt=self.alt,
            numbers=found,
            height=self.height(rows),
            paint=lambda figure: self.paint(figure, rows, rows),
            panels=[
                Panel(self.height(panel), partial(self._paint, panel, rows))
                for panel in groups(rows, *self.by)
                if any(self.drawn_if(row) for row in panel)
            ],
        )

    def _paint(self, panel: Sequence[Row], rows: Sequence[Row], figure: Figure) -> None:
        self.paint(figure, panel, rows)


def why_absent(name: str) -> str:
    """One line: what a figure that is None needs, and how to get it."""
    return f"figure {name}: no {FIGURES[name].needs}"


def _has(column: str) -> Callable[[Row], bool]:
    return lambda row: row[column] is not None


def _lines(
    rest: float, line: float, by: Sequence[str], columns: int = 1
) -> Callable[[Sequence[Row]], float]:
    """The height of a figure with a panel for each value of `by`, at most `columns` in a line."""
    return lambda rows: rest + line * math.ceil(len(groups(rows, *by)) / columns)


def _by_strategy(name: str, models: str, *, six: bool) -> FigureDef:
    return FigureDef(
        name=name,
        title="Mean score over tasks, by strategy and layers dropped",
        numbers=partial(numbers.strategies, six=six),
        drawn_if=lambda row: row["role"] == "pruned" and row["mean"] is not None,
        paint=panels.bars,
        by=("sweep", "model"),
        alt=f"Each bar is the mean over tasks of one strategy.{_DIRECT}",
        height=lambda rows: (
            0.7 + 2.5 * len(groups(rows, "sweep", "model")) + 0.05 * len({r["k"] for r in rows})
        ),
        needs=f"score on every task and seed at one K, for {models}. {_DROP}",
    )


def _measured(measure: str, networks: str) -> str:
    where = _PAPER if measure != "cka" else "the sweep file, and run it again"
    return f"{measure} of {networks}. Add `measure: {{{measure}: full}}` to {where}"


_DIRECT = " The networks are pruned first, then fine-tuned (procedure direct)."
_WHOLE = "a full model, or of a pruned one by the procedure direct with all feed-forwards"

_ALL = (
    _by_strategy("2", "a model without exactly 6 layers", six=False),
    _by_strategy("3", "a model of 6 layers", six=True),
    FigureDef(
        name="4",
        title="Score of a linear classifier on each layer",
        numbers=layernumbers.probes,
        drawn_if=_has("mean"),
        paint=layers.probes,
        by=(),
        alt="A linear classifier reads each layer; its score is averaged over tasks.",
        height=lambda rows: (
            3.2 + 0.2 * math.ceil(len({(r["model"], r["network"]) for r in rows}) / 2)
        ),
        needs=_measured("probes", _WHOLE),
    ),
    FigureDef(
        name="5",
        title="Similarity of pre-trained and fine-tuned layers",
        numbers=layernumbers.similarity,
        drawn_if=_has("mean"),
        paint=layers.similarity,
        by=(),
        alt="The cosine shows how much fine-tuning has changed each layer, as a mean over tasks.",
        height=lambda rows: 3.4,
        needs=_measured("similarity", "a full model"),
    ),
    FigureDef(
        name="score",
        title="Score as layers are dropped",
        numbers=numbers.curves,
        drawn_if=lambda row: row["strategy"] != numbers.FULL,
        paint=curves.score,
        by=curves.TASK,
        alt=f"A line for each strategy; a band is one standard deviation.{_DIRECT}",
        height=_lines(1.0, 2.2, curves.TASK, curves.SCORE_COLUMNS),
        needs=f"score with fewer layers. {_DROP}",
    ),
    FigureDef(
        name="pareto",
        title="Score against speed, or against size where no speed is measured",
        numbers=numbers.pareto,
        drawn_if=lambda row: row["k"] != 0,
        paint=curves.pareto,
        by=numbers.PANEL,
        alt="A network is on the front (filled) if no other is at least as good in both the score "
        f"and the speed or size.{_DIRECT}",
        height=_lines(0.8, 2.8, numbers.PANEL, curves.PARETO_COLUMNS),
        needs="score with fewer layers on every task and seed (and a speed, if `measure: {speed: "
        f"cuda}}` asks for it). {_DROP}",
    ),
    FigureDef(
        name="embeddings",
        title="Score of embeddings by texts a second",
        numbers=numbers.embeddings,
        drawn_if=lambda row: row["k"] != 0,
        paint=curves.embeddings,
        by=numbers.PANEL,
        alt="Score by texts a second; of each number of layers the best network is named.",
        height=_lines(0.8, 2.8, numbers.PANEL, curves.PARETO_COLUMNS),
        needs="speed of an embedding network (`kind: embedding`). Add `measure: {speed: cpu, "
        "speed_batches: [1, 64]}` to the sweep file, and run it again",
    ),
    FigureDef(
        name="heat-map",
        title="Strategies by layers dropped",
        numbers=numbers.curves,
        drawn_if=lambda row: row["strategy"] != numbers.FULL,
        paint=curves.heat_map,
        by=curves.TASK,
        alt="Each square is a strategy's mean score. Darker is better, and bold is the best of its "
        f"column.{_DIRECT}",
        height=curves.heat_height,
        needs=f"score with fewer layers. {_DROP}",
    ),
    FigureDef(
        name="contribution",
        title="Mean cosine before and after each layer, and what a threshold keeps",
        numbers=layernumbers.contribution,
        drawn_if=lambda row: True,
        paint=layers.contribution,
        by=("profile_id",),
        alt="Each bar compares the sentence token before and after a layer; a high bar is a layer "
        "that does little, and a threshold drops those above it.",
        height=_lines(0.5, 2.2, ("profile_id",), layers.CONTRIBUTION_COLUMNS),
        needs="contribution of layers. Add `{name: contribution, threshold: [0.95, 0.925, 0.9]}` "
        f"to the strategies of {_PAPER}",
    ),
    FigureDef(
        name="cka",
        title="Linear CKA between layers",
        numbers=layernumbers.cka,
        drawn_if=_has("value"),
        paint=layers.cka,
        by=layers.NETWORK,
        alt="Each square compares a layer of one network with a layer of another; 1 is the same up "
        "to rotation and scale.",
        height=_lines(0.3, 3.1, layers.NETWORK),
        needs=_measured("cka", _WHOLE),
    ),
    FigureDef(
        name="feed-forward",
        title="Score and parameters by feed-forwards removed",
        numbers=numbers.feed_forwards,
        drawn_if=_has("mean"),
        paint=panels.feed_forward,
        by=("sweep", "model"),
        alt=f"Mean score over tasks without some feed-forwards.{_DIRECT}",
        height=lambda rows: 0.5 + 0.8 * len(groups(rows, "sweep", "model")) + 0.28 * len(rows),
        needs="score, on every task and seed, of two settings of `feed_forward:` with the same "
        "strategy and K, by the procedure direct. Add `feed_forward: [none, top 3]` to "
        f"{_REDUCED}",
    ),
    FigureDef(
        name="feed-forward-layers",
        title="Layers of networks with and without feed-forwards",
        numbers=layernumbers.feed_forward_layers,
        drawn_if=_has("mean"),
        paint=layers.feed_forward_layers,
        by=layers.LAYERS,
        alt="A classifier on each layer, in points, and the CKA of attention outputs with the full "
        f"model's.{_DIRECT}",
        height=_lines(0.7, 2.4, layers.LAYERS),
        needs="probes or CKA of a network without some feed-forwards, by the procedure direct. Add "
        "`feed_forward: [none, top 3]` and `measure: {probes: [full, pruned], cka: pruned}` to "
        f"{_REDUCED}",
    ),
)
FIGURES: dict[str, FigureDef] = {figure.name: figure for figure in _ALL}
