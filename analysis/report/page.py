"""The contents of a page, as plain named values. Text is unchanged: the template escapes all of it.

`gather` fills a Page from a store, `writing` lays it out. Nothing here knows HTML or SQL.
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
    """The smallest network of a task within a loss, over all that was tried."""

    loss: str  # 1 point
    layers: str  # 10, or 4–6 where missing cells leave it open
    distilled: str  # the same with distillation, where that differs: then `layers` is without
    doubt: str  # why it is open, or not known; "" where it is neither
    untaught: str  # a warning that the full model did not learn; "" if it did
    network: str  # top K=2
    kept: Sequence[bool]  # of each layer, the lowest first; () where no network is known
    change: str  # 89.20 (−0.80)
    sure: str  # likely 6, 10 or 12 layers; "" where nothing says
    facts: Sequence[Fact]  # score, interval, size, speed
    export: str  # the command that writes it as a checkpoint; ""


class Cell(NamedTuple):
    """A cell of the grid tasks x losses: neighbours that name the same network are one."""

    losses: str  # 1 point; 1, 2 or 3 points
    span: int  # losses
    choice: Choice  # of the smallest loss
    sure: Sequence[str]  # one line, or one for each loss where they differ
    facts: Sequence[Fact]  # of all its losses


class Answer(NamedTuple):
    """The answer for one task of one model: a choice per allowed loss."""

    sweep: str
    model: str
    task: str
    depth: int
    line: str  # the answer within the smallest loss, in a sentence
    said: str  # the score with all layers, and that of always guessing the most common label
    choices: Sequence[Choice]
    cells: Sequence[Cell]  # the same, merged


class Sheet(NamedTuple):
    """A table, and the command that prints the same."""

    name: str
    table: Table
    command: str
    opened: bool


class Shown(NamedTuple):
    """The drawings that there are, and of each other why it is not there."""

    drawings: Sequence[Drawing]
    absent: Sequence[str]


class Asked(NamedTuple):
    """One sweep: what it asked for, and how far it is."""

    sweep: str
    facts: Sequence[Fact]


class Gaps(NamedTuple):
    """Missing, failed and single-seed results: tables and sentences."""

    sentences: Sequence[str]
    sheets: Sequence[Sheet]
    commands: Sequence[str]  # that fix it


class Origin(NamedTuple):
    """Where the numbers come from."""

    facts: Sequence[Fact]
    sheets: Sequence[Sheet]
    sweep_files: Sequence[Fact]  # the name, and the text as it was run


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """All of a report, in the order in which it is read."""

    title: str
    asked: Sequence[Asked]
    answers: Sequence[Answer]
    banner: str  # what did not learn; "" if all did
    figures: Shown
    tables: Sequence[Sheet]
    paper: Sequence[Sheet]
    beside_paper: str  # a sentence on the comparison; "" without one
    gaps: Gaps
    origin: Origin
