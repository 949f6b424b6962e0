"""Scores against K as they come in: mean and spread of each strategy on each task.

A score costs a look into a dictionary and a step of two sums, however many there are already.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from lp_sweep.orchestrator.watch.counts import IDLE
from lp_sweep.orchestrator.watch.picture import Curve, Point
from lp_sweep.trials.feedforward_rules import NONE
from lp_sweep.trials.procedures import DIRECT


class Line(NamedTuple):
    """Whose scores one curve has."""

    model: str
    task: str
    strategy: str


class _Place:
    """One K of a line: its seeds by now (Welford 1962, "Note on a Method for Calculating Corrected
    Sums of Squares and Products")."""

    def __init__(self) -> None:
        self.asked: set[str] = set()  # trials
        self._n, self._mean, self._squares = 0, 0.0, 0.0

    def add(self, points: float) -> None:
        self._n += 1
        off = points - self._mean
        self._mean += off / self._n
        self._squares += off * (points - self._mean)

    def point(self, k: int) -> Point | None:
        """None where there is nothing, and nobody is asked for any."""
        n = self._n
        if not n and not self.asked:
            return None
        return Point(
            k=k,
            n=n,
            asked=max(n, len(self.asked)),
            mean=self._mean if n else None,
            sd=math.sqrt(self._squares / (n - 1)) if n > 1 else None,
        )


class Curves:
    """`cells`: rows of the table `sweeps`, or of a plan's cells, in their order. Those whose layers
    are not known yet are in no curve."""

    def __init__(self, cells: Iterable[Mapping[str, Any]]) -> None:
        self._of_trial: dict[str, list[_Place]] = {}
        self._lines: dict[Line, dict[int, _Place]] = {}  # by K
        self._added: set[str] = set()
        self._made: tuple[Curve, ...] | None = None
        for cell in cells:
            if cell["trial_id"] is not None:
                self._list(cell["trial_id"], cell)

    def _list(self, trial: str, row: Mapping[str, Any]) -> None:
        line = Line(row["model"], row["task"], line_name(row))
        k = row["depth"] - len(row["kept_layers"])
        place = self._lines.setdefault(line, {}).setdefault(k, _Place())
        if row["search"] not in IDLE:
            place.asked.add(trial)
        places = self._of_trial.setdefault(trial, [])
        if place not in places:  # two thresholds may come to one network
            places.append(place)

    def add(self, trial: str, points: float | None) -> None:
        """A trial is done; None or NaN: without a score. Twice is harmless, and so is a trial of
        another sweep."""
        if trial in self._added or points is None or math.isnan(points):
            return
        self._added.add(trial)
        for place in self._of_trial.get(trial, ()):
            place.add(points)
            self._made = None

    def curves(self) -> tuple[Curve, ...]:
        """In the order of the cells. Called by another thread too."""
        made = self._made
        if made is None:
            made = self._made = tuple(
                Curve(model=line.model, task=line.task, strategy=line.strategy, points=points)
                for line, places in self._lines.items()
                if (points := _points(places))
            )
        return made


def _points(places: Mapping[int, _Place]) -> tuple[Point, ...]:
    found = (places[k].point(k) for k in sorted(places))
    return tuple(point for point in found if point is not None)


def line_name(row: Mapping[str, Any]) -> str:
    """`top`, `top, iterative`, `top, feed-forward top 3`."""
    words = [row["strategy"]]
    if row["procedure"] not in (None, DIRECT):
        words.append(row["procedure"])
    if row["feed_forward"] not in (None, NONE):
        words.append(f"feed-forward {row['feed_forward']}")
    return ", ".join(words)
