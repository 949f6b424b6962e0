"""The picture of a sweep as it is now: the one model behind every live view.

A run makes it from its queue (`reporters`), any other process from the store (`follower`). This
module has the picture, the counts by state, and the curves, which add a score in constant time.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lp_sweep.orchestrator.estimate.pace import Eta
from lp_sweep.storage.underway import Underway
from lp_sweep.trials.model.feedforward_rules import NONE
from lp_sweep.trials.train.procedures import DIRECT

SCHEMA = 1  # of the JSON; a later one only adds keys


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The scores at one K, in points (0..100; a correlation -100..100)."""

    k: int
    n: int  # seeds with a score
    asked: int  # seeds asked for
    mean: float | None  # None without any
    sd: float | None  # of the sample; None of fewer than two


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Score against K of one strategy on one task. `strategy`: see `line_name`."""

    model: str
    task: str
    strategy: str
    points: tuple[Point, ...]  # K ascending


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """The work of one slot."""

    place: str  # the slot's number in a run's own display, else the run's host
    work: str  # "" when it is idle
    seconds: float | None  # since it began; None: not known
    underway: Underway | None = None  # of a trial that takes long


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """The number of pieces of work that have not begun."""

    model: str
    task: str
    pieces: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """`done`, `failed` and `left` count a store's trials; in a run's own display the run's pieces
    of work, including profiles and measurements. `left` includes what is running."""

    sweep: str
    at: dt.datetime  # UTC
    done: int
    failed: int
    left: int
    slots: tuple[Slot, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    failures: Mapping[str, int] = field(default_factory=dict)  # by type
    slot_hours: float = 0.0  # used by the sweep so far: finished, failed and running work
    elapsed: float | None = None  # seconds since the oldest active run began; None: no active run
    eta: Eta = field(default_factory=Eta)
    curves: tuple[Curve, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)  # as `status --json` has them
    unread: int = 0  # records whose scores are still to be read
    notes: tuple[str, ...] = ()
    sweeps: tuple[str, ...] = ()  # all sweeps of the store

    @property
    def total(self) -> int:
        return self.done + self.failed + self.left

    @property
    def running(self) -> tuple[Slot, ...]:
        return tuple(slot for slot in self.slots if slot.work)


def picture_json(picture: Picture) -> dict[str, Any]:
    """The JSON of `status --watch --json`."""
    plain = dataclasses.asdict(picture)
    for slot in plain["slots"]:
        slot["underway"] = slot["underway"] and slot["underway"]._asdict()
    at = picture.at.isoformat(timespec="seconds")
    return {"schema": SCHEMA, **plain, "at": at, "eta": picture.eta._asdict()}


STATE_COLUMNS = ("trial_id", "kept_layers", "search")  # of the cells
IDLE = ("waiting", "not_needed")  # cells of a search that are not asked for


def state_counts(cells: pa.Table, done: Set[str], failed: Set[str]) -> dict[str, int]:
    """Counts cells and trials by state. `cells`: rows of the table `sweeps`, with STATE_COLUMNS;
    `done`, `failed`: identifiers of trials."""
    ended = pc.is_in(cells["trial_id"], pa.array(done | failed, pa.string()))
    idle = pc.and_(pc.is_in(cells["search"], pa.array(IDLE)), pc.invert(ended))
    resting = cells.filter(idle)["search"]
    not_needed, searched = _among(resting, {"not_needed"}), _among(resting, {"waiting"})
    cells_asked = cells.filter(pc.invert(idle))
    asked = cells_asked["trial_id"]
    by_cell = _counts(asked, done, failed)
    by_trial = _counts(asked.unique(), done, failed)
    open_cells = cells_asked.filter(pc.is_null(asked))
    empty = pc.equal(pc.list_value_length(open_cells["kept_layers"]), 0)
    impossible = int(pc.sum(empty).as_py() or 0)
    return {
        "cells": len(cells),
        "trials": sum(by_trial.values()),
        **{f"trials_{key}": count for key, count in by_trial.items()},
        **{f"cells_{key}": count for key, count in by_cell.items()},
        "cells_deferred": len(open_cells) - impossible + searched,
        "cells_impossible": impossible,
        "cells_not_needed": not_needed,
    }


def _counts(trials: Any, done: Set[str], failed: Set[str]) -> dict[str, int]:
    """Counts identifiers, without nulls."""
    number = {
        "done": _among(trials, done),
        "failed": _among(trials, failed - done),
    }
    return number | {"pending": len(trials) - trials.null_count - sum(number.values())}


def _among(trials: Any, names: Set[str]) -> int:
    return int(pc.sum(pc.is_in(trials, pa.array(names, pa.string()))).as_py() or 0)


def waiting_trials(cells: pa.Table, begun: Set[str]) -> tuple[Waiting, ...]:
    """The trials of each model and task that have not begun, in the order of the cells.

    cells: with STATE_COLUMNS, `model` and `task`. begun: trials that have ended or are running."""
    resting = pc.is_in(cells["search"], pa.array(IDLE))
    settled = pc.is_in(cells["trial_id"], pa.array(begun, pa.string()))
    waits = pc.and_(pc.is_valid(cells["trial_id"]), pc.invert(pc.or_(resting, settled)))
    groups = cells.filter(waits).group_by(["model", "task"], use_threads=False)
    rows = groups.aggregate([("trial_id", "count_distinct")]).to_pylist()
    return tuple(
        Waiting(model=row["model"], task=row["task"], pieces=row["trial_id_count_distinct"])
        for row in rows
    )


class _Place:
    """One K of a line: the trials asked for, and the scores by now, in points."""

    def __init__(self) -> None:
        self.asked: set[str] = set()
        self.scores: list[float] = []

    def point(self, k: int) -> Point | None:
        """None if there is no score and none is asked for."""
        scores = [*self.scores]  # another thread may add one
        n = len(scores)
        if not n and not self.asked:
            return None
        mean = sum(scores) / n if n else None
        squares = sum((score - mean) ** 2 for score in scores) if mean is not None else 0.0
        sd = math.sqrt(squares / (n - 1)) if n > 1 else None
        return Point(k=k, n=n, asked=max(n, len(self.asked)), mean=mean, sd=sd)


class Curves:
    """The curves of a sweep. `cells`: rows of the table `sweeps`, or of a plan's cells, in order.
    Cells whose layers are not known yet are in no curve."""

    def __init__(self, cells: Iterable[Mapping[str, Any]]) -> None:
        self._of_trial: dict[str, list[_Place]] = {}
        # model, task and strategy -> by K
        self._lines: dict[tuple[str, str, str], dict[int, _Place]] = {}
        self._added: set[str] = set()
        self._made: tuple[Curve, ...] | None = None
        for cell in cells:
            if cell["trial_id"] is not None:
                self._list(cell["trial_id"], cell)

    def _list(self, trial: str, row: Mapping[str, Any]) -> None:
        line = (row["model"], row["task"], line_name(row))
        k = row["depth"] - len(row["kept_layers"])
        place = self._lines.setdefault(line, {}).setdefault(k, _Place())
        if row["search"] not in IDLE:
            place.asked.add(trial)
        places = self._of_trial.setdefault(trial, [])
        if place not in places:  # two thresholds may lead to the same network
            places.append(place)

    def add(self, trial: str, points: float | None) -> None:
        """Adds the score of a finished trial; None or NaN: no score. Ignores repeats and trials of
        other sweeps."""
        if trial in self._added or points is None or math.isnan(points):
            return
        self._added.add(trial)
        for place in self._of_trial.get(trial, ()):
            place.scores.append(points)
            self._made = None

    def curves(self) -> tuple[Curve, ...]:
        """The curves in the order of the cells. Other threads may call it."""
        made = self._made
        if made is None:
            made = self._made = tuple(
                Curve(model=model, task=task, strategy=strategy, points=points)
                for (model, task, strategy), places in self._lines.items()
                if (points := tuple(p for k in sorted(places) if (p := places[k].point(k))))
            )
        return made


def line_name(row: Mapping[str, Any]) -> str:
    """`top`, `top, iterative`, `top, feed-forward top 3`."""
    words = [row["strategy"]]
    if row["procedure"] not in (None, DIRECT):
        words.append(row["procedure"])
    if row["feed_forward"] not in (None, NONE):
        words.append(f"feed-forward {row['feed_forward']}")
    return ", ".join(words)
