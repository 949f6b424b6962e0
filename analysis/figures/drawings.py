"""Figures 2 to 5 of Poor Man's BERT (Sajjad et al. 2020) and a few others, drawn from a store.

    drawing = FIGURES["4"](catalog)
    print(why_absent(catalog, "4") if drawing is None else drawing.save(folder))

A figure without numbers in the store is None, never an empty frame; `why_absent` explains why.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from lp_sweep.analysis.figures import curves, layernumbers, layers, numbers, panels, theme
from lp_sweep.analysis.figures.panels import groups
from lp_sweep.analysis.rows import Row
from lp_sweep.storage.catalog import Catalog
from lp_sweep.storage.errors import SpecError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STATUS = "`lp-sweep status` shows the progress"
_PAPER = "the sweep file, as in examples/poor-mans-bert.yaml"
_REDUCED = "the sweep file, as in examples/undivided-attention.yaml"
_NOT_DROPPED = (
    "no sweep of this store drops layers with the procedure direct and all feed-forwards: "
    "examples/poor-mans-bert.yaml does"
)
_NO_SCORE = f"no network with fewer layers has a score yet, with the procedure direct: {_STATUS}"
_FEWER = "procedure = 'direct' AND feed_forward = 'none' AND k IS DISTINCT FROM 0"


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

        Creates the folder if it is missing. Raises SpecError for an unknown format, a folder that
        can't be written, and if matplotlib is not installed.
        """
        for kind in formats:
            if kind not in theme.FORMATS:
                raise SpecError(
                    f"unknown figure format {kind!r}. Choose one of: {', '.join(theme.FORMATS)}"
                )
        files = {kind: folder / f"figure-{self.name}.{kind}" for kind in formats}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            theme.write(
                self.paint, files, title=self.title, description=self.alt, height=self.height
            )
        except OSError as error:
            raise SpecError(f"can't write a figure into {folder}: {error}") from error
        return list(files.values())

    def svgs(self) -> list[str]:
        """An SVG for each panel, as wide as a phone. Raises SpecError if matplotlib is not
        installed."""
        found = []
        for height, paint in self.panels:
            stream = io.BytesIO()
            text = {"title": self.title, "description": self.alt}
            theme.write(paint, {"svg": stream}, **text, height=height, width=theme.NARROW)
            found.append(stream.getvalue().decode())
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureDef:
    """The definition of a figure: its numbers, painter, description, and why it may be absent."""

    name: str
    title: str
    numbers: Callable[[Catalog], pa.Table]
    needs: Callable[[Row], bool]  # drawn if this holds for one row of its numbers
    paint: Callable[[Figure, Sequence[Row], Sequence[Row]], None]  # its rows, those of all panels
    by: tuple[str, ...]  # columns that decide the panel of a row
    alt: str  # what it shows, also for people who can't see it
    height: Callable[[Sequence[Row]], float]  # inches
    asked: str  # SQL: rows that asked for it; if there are none, `not_asked` is the reason
    not_asked: str
    in_the_way: str  # the reason if there are such rows

    def __call__(self, catalog: Catalog) -> Drawing | None:
        found = self.numbers(catalog)
        rows = found.to_pylist()
        if not any(self.needs(row) for row in rows):
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
                if any(self.needs(row) for row in panel)
            ],
        )

    def _paint(self, panel: Sequence[Row], rows: Sequence[Row], figure: Figure) -> None:
        self.paint(figure, panel, rows)


def why_absent(catalog: Catalog, name: str) -> str:
    """One line: why a figure is None, and how to get its numbers."""
    figure = FIGURES[name]
    asked = catalog.query(f"SELECT count(*) AS n {figure.asked}")["n"][0].as_py()
    return f"figure {name}: {figure.in_the_way if asked else figure.not_asked}"


def _has(column: str) -> Callable[[Row], bool]:
    return lambda row: row[column] is not None


def _by_strategy(name: str, depths: str, models: str, *, six: bool) -> FigureDef:
    return FigureDef(
        name=name,
        title="Mean score over tasks, by strategy and layers dropped",
        numbers=partial(numbers.strategies, six=six),
        needs=lambda row: row["role"] == "pruned" and row["mean"] is not None,
        paint=panels.bars,
        by=("sweep", "model"),
        alt=f"Each bar is the mean over tasks of one strategy.{_DIRECT}",
        height=lambda rows: (
            0.7 + 2.5 * len(groups(rows, "sweep", "model")) + 0.05 * len({r["k"] for r in rows})
        ),
        asked=f"FROM cells WHERE {depths} AND {_FEWER}",
        not_asked=f"no sweep of this store drops layers of {models} with the procedure direct and "
        "all feed-forwards: examples/poor-mans-bert.yaml does",
        in_the_way=f"no strategy has a score on every task and seed at one K, for {models} and the "
        f"procedure direct: {_STATUS}",
    )


def _setting(measure: str) -> str:
    where = "the sweep file" if measure == "cka" else _PAPER
    return f"add `measure: {{{measure}: full}}` to {where}, and run it again"


_DIRECT = " The networks are pruned first, then fine-tuned (procedure direct)."
_OTHERS = "(layers dropped by another procedure than direct, or without some feed-forwards)"

_ALL = (
    _by_strategy("2", "depth <> 6", "a model without exactly 6 layers", six=False),
    _by_strategy("3", "depth = 6", "a model of 6 layers", six=True),
    FigureDef(
        name="4",
        title="Score of a linear classifier on each layer",
        numbers=layernumbers.probes,
        needs=_has("mean"),
        paint=layers.probes,
        by=(),
        alt="A linear classifier reads each layer; its score is averaged over tasks.",
        height=lambda rows: (
            3.2 + 0.2 * math.ceil(len({(r["model"], r["network"]) for r in rows}) / 2)
        ),
        asked="FROM layers WHERE measure = 'probes'",
        not_asked=f"no probes in this store: {_setting('probes')}",
        in_the_way=f"no probes of networks for this figure, only of others {_OTHERS}, or no "
        f"numbers: {_setting('probes')}",
    ),
    FigureDef(
        name="5",
        title="Similarity of pre-trained and fine-tuned layers",
        numbers=layernumbers.similarity,
        needs=_has("mean"),
        paint=layers.similarity,
        by=(),
        alt="The cosine shows how much fine-tuning has changed each layer, as a mean over tasks.",
        height=lambda rows: 3.4,
        asked="FROM layers WHERE measure = 'similarity'",
        not_asked=f"no similarity in this store: {_setting('similarity')}",
        in_the_way="no similarity of full models in this store, only of others (of pruned ones), "
        f"or no numbers: {_setting('similarity')}",
    ),
    FigureDef(
        name="score",
        title="Score as layers are dropped",
        numbers=numbers.curves,
        needs=lambda row: row["strategy"] != numbers.FULL,
        paint=curves.score,
        by=curves.TASK,
        alt=f"A line for each strategy; a band is one standard deviation.{_DIRECT}",
        height=lambda rows: 1.0 + 2.2 * curves.lines(rows, curves.TASK, curves.SCORE_COLUMNS),
        asked=f"FROM cells WHERE {_FEWER}",
        not_asked=_NOT_DROPPED,
        in_the_way=_NO_SCORE,
    ),
    FigureDef(
        name="pareto",
        title="Score against speed, or against size where no speed is measured",
        numbers=numbers.pareto,
        needs=lambda row: row["k"] != 0,
        paint=curves.pareto,
        by=numbers.PANEL,
        alt="A network is on the front (filled) if no other is at least as good in both the score "
        f"and the speed or size.{_DIRECT}",
        height=lambda rows: 0.8 + 2.8 * curves.lines(rows, numbers.PANEL, curves.PARETO_COLUMNS),
        asked=f"FROM cells WHERE {_FEWER}",
        not_asked=_NOT_DROPPED,
        in_the_way="no network with fewer layers has a score on every task and seed, with the "
        "procedure direct (and a speed, if `measure: {speed: cuda}` asks for it): "
        f"{_STATUS}",
    ),
    FigureDef(
        name="embeddings",
        title="Score of embeddings by texts a second",
        numbers=numbers.embeddings,
        needs=lambda row: row["k"] != 0,
        paint=curves.embeddings,
        by=numbers.PANEL,
        alt="Score by texts a second; of each number of layers the best network is named.",
        height=lambda rows: 0.8 + 2.8 * curves.lines(rows, numbers.PANEL, curves.PARETO_COLUMNS),
        asked="FROM trials WHERE vector_width IS NOT NULL",
        not_asked="no embeddings in this store (`kind: embedding`)",
        in_the_way="no speed of an embedding network is measured: add `measure: {speed: cpu, "
        "speed_batches: [1, 64]}` to the sweep file, and run it again",
    ),
    FigureDef(
        name="heat-map",
        title="Strategies by layers dropped",
        numbers=numbers.curves,
        needs=lambda row: row["strategy"] != numbers.FULL,
        paint=curves.heat_map,
        by=curves.TASK,
        alt="Each square is a strategy's mean score. Darker is better, and bold is the best of its "
        f"column.{_DIRECT}",
        height=curves.heat_height,
        asked=f"FROM cells WHERE {_FEWER}",
        not_asked=_NOT_DROPPED,
        in_the_way=_NO_SCORE,
    ),
    FigureDef(
        name="contribution",
        title="Mean cosine before and after each layer, and what a threshold keeps",
        numbers=layernumbers.contribution,
        needs=lambda row: True,
        paint=layers.contribution,
        by=("profile_id",),
        alt="Each bar compares the sentence token before and after a layer; a high bar is a layer "
        "that does little, and a threshold drops those above it.",
        height=lambda rows: (
            0.5 + 2.2 * math.ceil(len(groups(rows, "profile_id")) / layers.CONTRIBUTION_COLUMNS)
        ),
        asked="FROM cells WHERE strategy = 'contribution'",
        not_asked="no strategy contribution in this store: add `{name: contribution, threshold: "
        f"[0.95, 0.925, 0.9]}}` to the strategies of {_PAPER}",
        in_the_way=f"no contribution is measured yet: {_STATUS}",
    ),
    FigureDef(
        name="cka",
        title="Linear CKA between layers",
        numbers=layernumbers.cka,
        needs=_has("value"),
        paint=layers.cka,
        by=layers.NETWORK,
        alt="Each square compares a layer of one network with a layer of another; 1 is the same up "
        "to rotation and scale.",
        height=lambda rows: 0.3 + 3.1 * len(groups(rows, *layers.NETWORK)),
        asked="FROM layers WHERE measure = 'cka'",
        not_asked=f"no cka in this store: {_setting('cka')}",
        in_the_way=f"no cka of networks for this figure, only of others {_OTHERS}, or no numbers: "
        f"{_setting('cka')}",
    ),
    FigureDef(
        name="feed-forward",
        title="Score and parameters by feed-forwards removed",
        numbers=numbers.feed_forwards,
        needs=_has("mean"),
        paint=panels.feed_forward,
        by=("sweep", "model"),
        alt=f"Mean score over tasks without some feed-forwards.{_DIRECT}",
        height=lambda rows: 0.5 + 0.8 * len(groups(rows, "sweep", "model")) + 0.28 * len(rows),
        asked="FROM cells WHERE feed_forward <> 'none' AND procedure = 'direct'",
        not_asked="no network without some feed-forwards in this store, with the procedure direct: "
        f"add `feed_forward: [none, top 3]` to {_REDUCED}",
        in_the_way="no two settings of `feed_forward:` have the same strategy and K, or none has a "
        f"score on every task and seed, with the procedure direct: {_STATUS}",
    ),
    FigureDef(
        name="feed-forward-layers",
        title="Layers of networks with and without feed-forwards",
        numbers=layernumbers.feed_forward_layers,
        needs=_has("mean"),
        paint=layers.feed_forward_layers,
        by=("model", "kept_layers"),
        alt="A classifier on each layer, in points, and the CKA of attention outputs with the full "
        f"model's.{_DIRECT}",
        height=lambda rows: 0.7 + 2.4 * len(layers.networks(rows)),
        asked="FROM layers JOIN cells USING (trial_id) "
        "WHERE feed_forward <> 'none' AND measure IN ('probes', 'cka')",
        not_asked="no probes or CKA of a network without some feed-forwards in this store: add "
        "`feed_forward: [none, top 3]` and `measure: {probes: [full, pruned], cka: pruned}` to "
        f"{_REDUCED}, and run it again",
        in_the_way="no probes, and no CKA with the full model, of a network without some "
        "feed-forwards by the procedure direct, or no numbers: add the procedure direct to "
        f"{_REDUCED}",
    ),
)
FIGURES: dict[str, FigureDef] = {figure.name: figure for figure in _ALL}
