"""The 90% confidence set of a `min_layers` answer: the numbers of dropped layers that can be it.

The answer is the largest K whose loss is within the limit. K is in the set if

- its own loss may be within the limit, by a one-sided bound at 4.5%; and
- no larger K is surely within it, at 4.5% over all larger K. First, the K surely beyond the limit
  are set aside, at 0.5% in all; each of the m others is tested at 4% / m (Romano, Shaikh and Wolf
  2014, *A practical two-step method for testing moment inequalities*). A smaller K has more K above
  it, so its test is stricter and may pass where that of a larger K does not: then the larger K is
  in the set as well, since the evidence for it is at least as good.

So the set misses the true answer in at most 9% of studies, and 1% is left for approximations. A K
without a score can be the answer, unless a larger K is surely within: also a K that was never asked
for, if the strategy has it and a larger K was asked for. A set says nothing about K above those. In
a search, a K that it did not run loses at most DIP points less than its neighbours: see `floors`.

The loss is paired by seed and row. Its variance over seeds is partly pooled over other networks, so
that one or two seeds also give a set: their scores minus a mean for each network and one for each
seed. Only networks within NEAR points of the best count. A broken network moves by tens of points,
and says nothing about a healthy one.

Pure: no store. `minimum` reads the scores of a store, `search` uses those of a search.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from lp_sweep.analysis.rows import Unit, grouped
from lp_sweep.analysis.statistics import DIP
from lp_sweep.analysis.statistics.estimates import Estimate, Scores, combined, limits

ITSELF = 0.045  # probability that the answer's own loss is called beyond the limit
_LARGER = 0.045  # probability that a larger K is called within it, of which ...
_ASIDE = 0.005  # ... this part is spent on setting aside the K surely beyond
NEAR = 5.0  # points below the best network
WEIGHT = 4  # at most this many pooled degrees of freedom are added to a network's own
OWN = "model and task"  # the source of a pool that includes the network itself
_SINGULAR = 1e-9  # share of the largest singular value
_ROUNDING = 1e-9  # points²

Beyond = Mapping[int, Estimate | None]  # how far the loss of each K is beyond the limit, in points


class SeedSpread(NamedTuple):
    """The spread of one network's score over seeds, without the part that all networks share."""

    variance: float  # points²
    freedom: int
    source: str  # model and task, task, assumed, untrained

    @property
    def sd(self) -> float:
        return float(self.variance**0.5)


class ScoredCurve(NamedTuple):
    """The scores of one curve, and the network of each K and seed."""

    scores: Scores
    places: Mapping[tuple[int, int], int]  # (K, seed) -> its place in `scores`
    ks: tuple[int, ...]  # 0 to the largest asked for, ascending, also without a score
    spread: SeedSpread
    searched: bool = False  # by a search, which assumes something about the K that it did not run


def excess(curve: ScoredCurve, delta: float, unit: Unit) -> dict[int, Estimate | None]:
    """For each K above 0: how far its loss lies beyond the limit, in points; None without a pair. A
    loss in percent of the full model's mean is within delta if (1 - delta/100) of that mean is at
    most the score."""
    factor = 1 - delta / 100 if unit == "percent" else 1.0
    limit = 0.0 if unit == "percent" else delta
    found: dict[int, Estimate | None] = {}
    for k in curve.ks[1:]:
        pairs = [
            (curve.places[0, seed], place)
            for (of, seed), place in curve.places.items()
            if of == k and (0, seed) in curve.places
        ]
        if not pairs:
            found[k] = None
            continue
        weights = np.zeros((len(pairs), len(curve.scores.points)))
        for row, (full, pruned) in enumerate(pairs):
            weights[row, full] += factor
            weights[row, pruned] -= 1
        loss = moderated(combined(curve.scores, weights), len(pairs), curve.spread)
        found[k] = lowered(loss, limit)
    return found


def lowered(loss: Estimate, by: float) -> Estimate:
    return loss._replace(mean=loss.mean - by, least=loss.least - by, most=loss.most - by)


def answer_set(beyond: Beyond, bounds: Mapping[int, Estimate] | None = None) -> list[int]:
    """The K that can be the largest within the limit, ascending; 0 is always within. `bounds`: for
    K without a pair, the least by which each may be beyond the limit, where that is known."""
    known = {k: loss for k, loss in beyond.items() if loss is not None}
    each = _ASIDE / max(1, len(known))
    aside = {k for k, loss in known.items() if limits(loss, each).low > 0}

    def none_larger_is(k: int) -> bool:
        larger = [loss for other, loss in known.items() if other > k and other not in aside]
        tail = (_LARGER - _ASIDE) / max(1, len(larger))
        return not any(limits(loss, tail).high <= 0 for loss in larger)

    ks = sorted({0, *beyond})
    least = next(k for k in ks if none_larger_is(k))
    bounded = known | dict(bounds or {})
    surely = {k for k, loss in bounded.items() if limits(loss, ITSELF).low > 0}
    return [k for k in ks if k >= least and k not in surely]


def credible(
    curve: ScoredCurve, answer: int | None, delta: float, unit: Unit = "points"
) -> list[int]:
    """The 90% set of K that can be the largest within delta, ascending. It has the `answer`, if
    that is known."""
    beyond = excess(curve, delta, unit)
    found = answer_set(beyond, floors(beyond) if curve.searched else None)
    return sorted({*found} if answer is None else {answer, *found})


def floors(beyond: Beyond) -> dict[int, Estimate]:
    """For each K that was not run, the better of its neighbours that were, less `DIP` points. K=0
    loses nothing, so it bounds no other K."""
    run = {k: loss for k, loss in beyond.items() if loss is not None}
    known = [*run]
    least = {}
    for k in beyond.keys() - run.keys():
        place = bisect_left(known, k)
        sides = [run[other] for other in known[max(place - 1, 0) : place + 1]]
        if place and sides:
            least[k] = lowered(min(sides, key=lambda loss: limits(loss, ITSELF).low), DIP)
    return least


class Squares(NamedTuple):
    total: float
    freedom: int


def spread_of(found: Iterable[Squares], source: str) -> SeedSpread | None:
    """The pooled spread. None if it would be zero: equal scores are a coincidence of few rows."""
    total, freedom = (sum(part) for part in zip((0.0, 0), *found, strict=True))
    if not freedom or total <= _ROUNDING:
        return None
    return SeedSpread(float(total / freedom), int(freedom), source)


_Scores = Mapping[tuple[Any, int], float]  # network and seed -> points


def near(scores: _Scores) -> dict[tuple[Any, int], float]:
    """The scores of networks within NEAR points of the best mean."""
    by_network = grouped(scores, lambda key: key[0])
    means = {name: fmean(scores[key] for key in keys) for name, keys in by_network.items()}
    least = max(means.values(), default=0.0) - NEAR
    return {key: score for key, score in scores.items() if means[key[0]] >= least}


def left_over(scores: _Scores) -> Squares:
    """The squared residuals of a least-squares fit of one mean per network and one per seed. The
    larger group, which may have thousands of means, is eliminated from the normal equations."""
    if not scores:
        return Squares(0.0, 0)
    columns = zip(*scores, strict=True)
    few, many = sorted((np.unique(c, return_inverse=True)[1] for c in columns), key=max)
    points = np.array(list(scores.values()))
    counts = np.zeros((max(few) + 1, max(many) + 1))
    counts[few, many] = 1  # a network has one score per seed
    of_each = counts.sum(axis=0)

    def centred(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        means = np.bincount(many, values) / of_each
        return np.asarray(values - means[many])

    matrix = np.diag(counts.sum(axis=1)) - (counts / of_each) @ counts.T
    right = np.bincount(few, centred(points))
    means, _, rank, _ = np.linalg.lstsq(matrix, right, rcond=_SINGULAR)
    rest = centred(points) - centred(means[few])
    return Squares(float(rest @ rest), len(points) - len(of_each) - int(rank))


def moderated(change: Estimate, seeds: int, spread: SeedSpread) -> Estimate:
    """A change against the full model, with a variance over seeds that combines its own with the
    pooled one (twice that of one network). The pool counts as up to WEIGHT more seeds. This is the
    posterior mean of the variance in Smyth 2004, *Linear models and empirical Bayes methods*,
    section 3. The change's own part of the pool does not count twice."""
    own = seeds - 1
    others = spread.freedom - own if spread.source == OWN else spread.freedom
    extra = min(max(others, 0), WEIGHT)
    variance = own * change.seeds * seeds + extra * 2 * spread.variance
    return change._replace(seeds=variance / (own + extra) / seeds, freedom=own + extra)


# -- a search: its scores alone


class Pair(NamedTuple):
    k: int
    seed: int


_ASSUMED = Squares(0.5**2, 1)  # points²: what a search assumes at first of the spread over seeds


def curve_of_scores(ks: tuple[int, ...], points: Mapping[Pair, float]) -> ScoredCurve:
    """The curve of a search, from its scores alone: nothing is known about the dev rows."""
    named = {(k, seed): score for (k, seed), score in points.items()}
    spread = spread_of([left_over(near(named)), _ASSUMED], OWN)
    assert spread is not None  # what is assumed is not zero
    scores = Scores(np.array(list(points.values())), np.zeros((len(points),) * 2), 0.0, 0)
    places = {(k, seed): place for place, (k, seed) in enumerate(points)}
    return ScoredCurve(scores, places, ks, spread, searched=True)
