"""Chooses the next trials to find the fewest layers for each allowed loss, and when to stop.

The answer follows the rule of `min_layers`: the largest K whose mean loss, over the seeds that it
shares with K=0, is within delta, even if a smaller K loses more. A delta is decided when

- its K and the next larger one have both been run;
- the answer is off by more than half a point in at most a share `RISK` of the drawn curves; and
- no larger K that was never run could be the answer, even if it loses `DIP` points less than the
  better of the K run on either side of it.

The search first runs K=0 and three more K with one seed, about a quarter of the range apart, so not
the largest. Then, for every delta, it runs the middle between its K and the next larger K that was
run, until they are neighbours. It also runs one more seed where the draws most often show an error,
which may be at a K that was never run. Last, of the larger K that a dip could make the answer, it
runs the middle of each group of neighbours with one seed, and judges again. K=0 is run with each
seed of any other K, so that seeds stay paired. The budget is every K with every seed.

Pure: no store, no clock; the same scores give the same step.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from lp_sweep.analysis.adaptive.posterior import Draws, Pair, Scores, draw

RISK = 0.02  # of the draws
_COARSE = 4  # K of the first batch
_SLACK = 1e-9  # float noise, as in min_layers.sql


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The allowed runs and the finished ones. `ks` ascend from 0; `seeds` are in the order of use;
    `points` has the finished runs; runs in `failed` are never asked for."""

    ks: tuple[int, ...]
    seeds: tuple[int, ...]
    points: Scores
    failed: frozenset[Pair] = frozenset()


class Answer(NamedTuple):
    """The answer for one allowed loss. `credible`: the 90% set of K that can be the answer. `why`
    the search ended: the answer is decided, or every pair that could decide it was run; None while
    it goes on. `untried`: the larger K that were never run and that `credible` leaves out. The
    answer assumes that each loses at most `DIP` points less than the better of the K run on either
    side of it."""

    delta: float
    k: int
    credible: tuple[int, ...]
    risk: float
    why: Literal["decided", "budget"] | None
    untried: tuple[int, ...]


class Step(NamedTuple):
    """The pairs to run next (`ask`, empty at the end) and the answers so far. There are no answers
    while the first batch runs, nor without a K that shares a seed with K=0."""

    ask: tuple[Pair, ...]
    answers: tuple[Answer, ...]


def next_step(curve: Curve, deltas: Iterable[float]) -> Step:
    """The next runs for the allowed losses, in points."""
    pairs = _Pairs(curve)
    first = dict.fromkeys(
        pair for k in _coarse(curve.ks) if k not in pairs.losses for pair in pairs.more(k)
    )
    if first or not pairs.losses:
        return Step(tuple(first), ())
    draws = draw(curve.ks, pairs.points)
    asked: dict[Pair, None] = {}
    answers = []
    for delta in deltas:
        k = largest_within(pairs.losses, delta)
        found = verdict(draws, k, delta)
        hidden = may_dip(draws, k, delta)
        wanted = [*pairs.between(k), *pairs.raced(found)] or pairs.dips(hidden)
        asked |= dict.fromkeys(wanted)
        sure = found.risk <= RISK and not hidden
        end: Literal["decided", "budget"] = "decided" if sure else "budget"
        why = None if wanted else end
        can_be = credible(draws, k, delta)
        left_out = {*curve.ks} - {*can_be} - {*draws.run}
        untried = tuple(sorted(other for other in left_out if other > k))
        answers.append(Answer(delta, k, can_be, found.risk, why, untried))
    return Step(tuple(asked), tuple(answers))


def largest_within(losses: Mapping[int, float], delta: float) -> int:
    """The rule of `min_layers`, over mean losses by K."""
    return max(k for k, loss in losses.items() if k == 0 or loss <= delta + _SLACK)


def _coarse(ks: tuple[int, ...]) -> list[int]:
    """A few K evenly over the range, from 0. Not its end: such networks are rarely useful."""
    return [ks[round(part * len(ks) / _COARSE)] for part in range(min(_COARSE, len(ks)))]


class _Pairs:
    """The pairs of K and seed of a curve: which are done, and which can still be run."""

    def __init__(self, curve: Curve) -> None:
        self.curve = curve
        self.points = {pair: value for pair, value in curve.points.items() if pair.k in curve.ks}
        self.losses = dict(self._losses())

    def _losses(self) -> Iterator[tuple[int, float]]:
        """The mean loss of each K that was run, over the seeds that it shares with K=0."""
        full = {seed: value for (k, seed), value in self.points.items() if k == 0}
        for k in self.curve.ks:
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
        for seed in self.curve.seeds:
            both = dict.fromkeys((Pair(0, seed), Pair(k, seed)))
            missing = [pair for pair in both if pair not in self.points]
            if missing and not both.keys() & self.curve.failed:
                return missing
        return []

    def between(self, k: int) -> list[Pair]:
        """The middle between a K and the next larger K that was run."""
        above = [other for other in self.curve.ks if other > k]
        run = next((index for index, other in enumerate(above) if other in self.losses), len(above))
        left = [more for other in above[:run] if (more := self.more(other))]
        return left[len(left) // 2] if left else []

    def raced(self, found: Verdict) -> list[Pair]:
        """One more seed for the K where an error most likely lies; empty if the error of all
        remaining K is too small to matter."""
        if found.risk <= RISK:
            return []
        for k, blame in sorted(found.blame.items(), key=lambda item: -item[1]):
            if blame * len(found.blame) > RISK and (more := self.more(k)):
                return more
        return []

    def dips(self, hidden: list[int]) -> list[Pair]:
        """One seed for the middle of each group of neighbouring K that were not run and may dip."""
        asked: dict[Pair, None] = {}
        for _, group in groupby(hidden, lambda k: bisect([*self.losses], k)):
            left = [more for other in group if (more := self.more(other))]
            asked |= dict.fromkeys(left[len(left) // 2] if left else [])
        return list(asked)


Array = npt.NDArray[Any]

TOLERANCE = 0.5  # points: an answer that is off by less is as good
# a K can be the answer unless its own loss is too large in all but this share of the draws ...
_ITSELF = 0.04
# ... or a larger K's loss is small enough in all but this share. This share is smaller, because
# that K is the best of several. Both together leave 90%: `benchmarks/adaptive.py` measures it.
_LARGER = 0.02


class Verdict(NamedTuple):
    """How likely an answer is wrong. `risk`: the share of draws in which it is off by more than the
    tolerance. `blame`: for each K, the share of draws in which this K shows the error."""

    risk: float
    blame: Mapping[int, float]


def verdict(draws: Draws, answer: int, delta: float) -> Verdict:
    """An answer is wrong in a draw if its loss is above delta by more than the tolerance, or if a
    larger K's loss is below delta by more than it."""
    ks = np.array(draws.ks)
    off = (draws.losses > delta + TOLERANCE) & (ks == answer)
    off |= (draws.losses < delta - TOLERANCE) & (ks > answer)
    shares = off.mean(axis=0).tolist()
    return Verdict(float(off.any(axis=1).mean()), dict(zip(draws.ks, shares, strict=True)))


def credible(draws: Draws, answer: int, allowed: float | Array) -> tuple[int, ...]:
    """The K that can be the largest within the allowed loss, ascending: the answer, and the K that
    the draws do not rule out. `allowed`: points, one for all draws or one for each.

    A K that was not run is in the set if a dip (`posterior.DIP`) would make it the answer.

    The set is not the likeliest K that add up to 90%: in most draws some K passes by luck, so the
    largest K that passes is too large, and such a set misses the truth too often.
    """
    limit = np.reshape(allowed, (-1, 1))
    holds = (draws.losses <= limit).mean(axis=0)
    holds[0] = 1.0  # K=0 loses nothing
    # a K that was not run rules out no smaller one
    by_scores = np.where(np.isin(draws.ks, draws.run), holds, 0.0)
    larger = np.append(np.maximum.accumulate(by_scores[:0:-1])[::-1], 0.0)
    possible = (draws.floors <= limit).mean(axis=0) >= _ITSELF
    possible[0] = True
    can_be = possible & (larger <= 1 - _LARGER)
    return tuple(k for k, can in zip(draws.ks, can_be, strict=True) if can or k == answer)


def may_dip(draws: Draws, answer: int, delta: float) -> list[int]:
    """The K above the answer that were not run and could be it, ascending."""
    shares = (draws.floors <= delta).mean(axis=0)
    return [
        k
        for k, share in zip(draws.ks, shares, strict=True)
        if k > answer and k not in draws.run and share >= _ITSELF
    ]
