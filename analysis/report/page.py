"""The contents of a page, as plain named values. Text is not escaped: the template does that.

`gather` fills a Page from a store, `writing` lays it out. No HTML and no SQL here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lp_sweep.analysis.figures.drawings import Drawing
from lp_sweep.analysis.tabledef import Table


class Fact(NamedTuple):
    """A line of a list: `tasks`, `sst2, rte`."""

    name: str
    text: str


class Choice(NamedTuple):
    """The smallest network of a task within a loss, over all networks that were tried."""

    loss: str  # 1 point
    layers: str  # 10, or 4–6 if missing cells leave it open
    distilled: str  # the same with distillation; "" unless it differs from `layers`, without it
    doubt: str  # why it is open or not known; "" if it is known
    untaught: str  # a warning that the full model did not learn; "" if it did
    network: str  # top K=2
    kept: Sequence[bool]  # for each layer, the lowest first; () if no network is known
    change: str  # 89.20 (−0.80)
    sure: str  # likely 6, 10 or 12 layers; "" if it was not computed
    facts: Sequence[Fact]  # score, interval, size, speed
    export: str  # the command that writes it as a checkpoint; "" if there is none


class Cell(NamedTuple):
    """A cell of the grid tasks x losses; neighbours with the same network are merged."""

    losses: str  # 1 point; 1, 2 or 3 points
    span: int  # number of losses
    choice: Choice  # for the smallest loss
    sure: Sequence[str]  # one line, or one for each loss if they differ
    facts: Sequence[Fact]  # for all its losses


class Answer(NamedTuple):
    """The answer for one task of one model: a choice per allowed loss."""

    sweep: str
    model: str
    task: str
    depth: int
    line: str  # the answer for the smallest loss, in a sentence
    said: str  # the score with all layers, and that of always guessing the most common label
    choices: Sequence[Choice]
    cells: Sequence[Cell]  # the same, merged


class Sheet(NamedTuple):
    """A table, and the command that prints it."""

    name: str
    table: Table
    command: str
    opened: bool


class Shown(NamedTuple):
    """The figures that could be drawn, and for each other figure why it could not."""

    drawings: Sequence[Drawing]
    absent: Sequence[str]


class Asked(NamedTuple):
    """One sweep: what it asked for, and how much of it is done."""

    sweep: str
    facts: Sequence[Fact]


class Gaps(NamedTuple):
    """Missing, failed and single-seed results: tables and sentences."""

    sentences: Sequence[str]
    sheets: Sequence[Sheet]
    commands: Sequence[str]  # to get the missing results


class Origin(NamedTuple):
    """Where the numbers come from."""

    facts: Sequence[Fact]
    sheets: Sequence[Sheet]
    sweep_files: Sequence[Fact]  # the name, and the text of the file as it was run


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A whole report, in reading order."""

    title: str
    asked: Sequence[Asked]
    answers: Sequence[Answer]
    banner: str  # names the tasks that did not learn; "" if all learned
    figures: Shown
    tables: Sequence[Sheet]
    paper: Sequence[Sheet]
    beside_paper: str  # a sentence about the comparison; "" without one
    gaps: Gaps
    origin: Origin
