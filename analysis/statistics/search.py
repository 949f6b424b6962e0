"""Chooses the next trials to find the fewest layers for each allowed loss, and when to stop.

The answer follows the rule of `min_layers`: the largest K whose mean loss, over the seeds that it
shares with K=0, is within delta, even if a smaller K loses more. A delta is decided when

- its K and the next larger one have both been run;
- its loss is surely at most delta and half a point (`TOLERANCE`); and
- no larger K is in the 90% set of delta less half a point (`statistics.answerset`). This includes
  the K that were never run: each may lose `DIP` points less than the better of the K run on either
  side of it.

The search first runs K=0 and three more K with one seed, about a quarter of the range apart, so not
the largest. Then, for every delta, it runs the middle between its K and the next larger K that was
run, until they are neighbours. It also runs one more seed of the K that is nearest to its limit
among those that leave the answer open. Last, of the larger K that a dip could make the answer, it
runs the middle of each group of neighbours with one seed, and judges again. K=0 is run with each
seed of any other K, so that seeds stay paired. The budget is every K with every seed.

Pure: no store, no clock; the same scores give the same step.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, NamedTuple

from lp_sweep.analysis.statistics.answerset import (
    ITSELF,
    Pair,
    ScoredCurve,
    answer_set,
    credible,
    curve_of_scores,
    excess,
    floors,
)
from lp_sweep.analysis.statistics.estimates import Estimate, limits

TOLERANCE = 0.5  # points: an answer that is off by less is as good
_COARSE = 4  # K of the first batch
_SLACK = 1e-9  # float noise, as in min_layers.sql


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchGrid:
    """The allowed runs and the finished ones. `ks` ascend from 0; `seeds` are in the order of use;
    `points` has the finished runs; runs in `failed` are never asked for."""

    ks: tuple[int, ...]
    seeds: tuple[int, ...]
    points: Mapping[Pair, float]
    failed: frozenset[Pair] = frozenset()


class SearchAnswer(NamedTuple):
    """The answer for one allowed loss. `credible`: the 90% set of K that can be the answer. `why`
    the search ended: the answer is decided, or every pair that could decide it was run; None while
    it goes on. `untried`: the larger K that were never run and that `credible` leaves out. The
    answer assumes that each loses at most `DIP` points less than the better of the K run on either
    side of it."""

    delta: float
    k: int
    credible: tuple[int, ...]
    why: Literal["decided", "budget"] | None
    untried: tuple[int, ...]


class Step(NamedTuple):
    """The pairs to run next (`ask`, empty at the end) and the answers so far. There are no answers
    while the first batch runs, nor without a K that shares a seed with K=0."""

    ask: tuple[Pair, ...]
    answers: tuple[SearchAnswer, ...]


def next_step(grid: SearchGrid, deltas: Iterable[float]) -> Step:
    """The next runs for the allowed losses, in points."""
    pairs = _Pairs(grid)
    first = dict.fromkeys(
        pair for k in _coarse(grid.ks) if k not in pairs.losses for pair in pairs.more(k)
    )
    if first or not pairs.losses:
        return Step(tuple(first), ())
    curve = curve_of_scores(grid.ks, pairs.points)
    asked: dict[Pair, None] = {}
    answers = []
    for delta in deltas:
        k = largest_within(pairs.losses, delta)
        doubts = _doubts(curve, k, delta)
        wanted = [*pairs.between(k), *pairs.raced(doubts)] or pairs.dips(doubts)
        asked |= dict.fromkeys(wanted)
        end: Literal["decided", "budget"] = "budget" if doubts else "decided"
        can_be = tuple(credible(curve, k, delta))
        never_run = {*grid.ks} - {*pairs.losses} - {*can_be}
        untried = tuple(sorted(other for other in never_run if other > k))
        answers.append(SearchAnswer(delta, k, can_be, None if wanted else end, untried))
    return Step(tuple(asked), tuple(answers))


def _doubts(curve: ScoredCurve, answer: int, delta: float) -> dict[int, float | None]:
    """The K that leave the answer open, each with the distance of its loss to the limit, in
    standard errors; None if it was not run."""
    larger = excess(curve, delta - TOLERANCE, "points")
    open_ = [k for k in answer_set(larger, floors(larger)) if k > answer]
    found = {k: None if (loss := larger[k]) is None else _distance(loss) for k in open_}
    own = excess(curve, delta + TOLERANCE, "points").get(answer)
    if own is not None and limits(own, ITSELF).high > 0:
        found[answer] = _distance(own)
    return found


def _distance(loss: Estimate) -> float:
    return abs(loss.mean) / loss.seeds**0.5 if loss.seeds else 0.0


def largest_within(losses: Mapping[int, float], delta: float) -> int:
    """The rule of `min_layers`, over mean losses by K."""
    return max(k for k, loss in losses.items() if k == 0 or loss <= delta + _SLACK)


def _coarse(ks: tuple[int, ...]) -> list[int]:
    """A few K evenly over the range, from 0. Not its end: such networks are rarely useful."""
    return [ks[round(part * len(ks) / _COARSE)] for part in range(min(_COARSE, len(ks)))]


class _Pairs:
    """The pairs of K and seed of a grid: which are done, and which can still be run."""

    def __init__(self, grid: SearchGrid) -> None:
        self.grid = grid
        self.points = {pair: value for pair, value in grid.points.items() if pair.k in grid.ks}
        self.losses = dict(self._losses())

    def _losses(self) -> Iterator[tuple[int, float]]:
        """The mean loss of each K that was run, over the seeds that it shares with K=0."""
        full = {seed: value for (k, seed), value in self.points.items() if k == 0}
        for k in self.grid.ks:
            losses = [
                full[seed] - value
                for (of, seed), value in self.points.items()
                if of == k and seed in full
            ]
            if losses:
                yield k, sum(losses) / len(losses)

    def more(self, k: int) -> list[Pair]:
        """One more seed for a K: the missing runs of this K and of its K=0. Empty if no seed is
        left."""
        for seed in self.grid.seeds:
            both = dict.fromkeys((Pair(0, seed), Pair(k, seed)))
            missing = [pair for pair in both if pair not in self.points]
            if missing and not both.keys() & self.grid.failed:
                return missing
        return []

    def between(self, k: int) -> list[Pair]:
        """The middle between a K and the next larger K that was run."""
        above = [other for other in self.grid.ks if other > k]
        run = next((index for index, other in enumerate(above) if other in self.losses), len(above))
        left = [more for other in above[:run] if (more := self.more(other))]
        return left[len(left) // 2] if left else []

    def raced(self, doubts: Mapping[int, float | None]) -> list[Pair]:
        """One more seed for the K nearest to its limit, of those that were run and have one."""
        run = [(distance, k) for k, distance in doubts.items() if distance is not None]
        return next((more for _, k in sorted(run) if (more := self.more(k))), [])

    def dips(self, doubts: Mapping[int, float | None]) -> list[Pair]:
        """One seed for the middle of each group of neighbouring K that were not run and may dip."""
        hidden = [k for k, distance in doubts.items() if distance is None]
        asked: dict[Pair, None] = {}
        for _, group in groupby(hidden, lambda k: bisect([*self.losses], k)):
            left = [more for other in group if (more := self.more(other))]
            asked |= dict.fromkeys(left[len(left) // 2] if left else [])
        return list(asked)
