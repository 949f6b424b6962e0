"""The uncertainty of a mean score, from two sources of error: the seeds and the dev rows.

A mean over S seeds on one dev set of n rows differs from the mean of all seeds on all texts because

- other seeds would give other networks: variance s²/S, where s² is the sample variance of the S
  scores, with S - 1 degrees of freedom;
- other rows would give other scores. Each network's own share of that error is already in s²; the
  share common to all seeds is the mean covariance between two seeds' scores over the rows.

The error that a value exceeds with some probability is sqrt(seeds + rows) times a mean of two
quantiles of Student's t, with S - 1 and n - 1 degrees of freedom, weighted by the two shares of the
variance (Cochran and Cox, *Experimental Designs*, 2nd ed. 1957, section 4.14). `limits` turns it
into an interval that stays within what the value can be: it is the one definition of an interval of
a score, or of a difference of two. `docs/statistics.md` has its coverage. Takes arrays, returns
numbers; reads no store.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from lp_sweep.analysis.statistics.resampling import TALLY, Array, resampled_scores
from lp_sweep.trials.spec.scoring import facts_of

LEVEL = 0.95
TAIL = (1 - LEVEL) / 2
RESAMPLES = 2_000  # of the rows, for metrics other than accuracy
_SEED = 0
_SMALLEST_TAIL = 1e-12
_CORRELATIONS = ("pearson", "spearman")
_ONE_MORE = 0.1  # weight of an unseen row that moves by its whole


class Scores(NamedTuple):
    """Scores of several networks on the same dev rows, and their uncertainty from these rows."""

    points: Array  # (networks,)
    covariance: Array  # (networks, networks) points²; over other dev sets of the same size
    floor: float  # points²; see `scores_of`
    rows: int
    least: float = 0.0  # the smallest score that the metric can have, in points; the largest is 100
    parts: Array | None = None  # (rows, networks) shares, of a tally; see `_parts`


class Estimate(NamedTuple):
    """A mean over seeds, or a difference of two, in points. Variances are those of the mean."""

    mean: float
    seeds: float  # variance due to the seeds; 0 for one seed, whose spread is not known
    freedom: float  # its degrees of freedom; 0 for one seed
    rows: float  # variance due to the dev rows
    rows_freedom: float = np.inf  # its degrees of freedom
    least: float = -100.0  # the range of the value
    most: float = 100.0
    floor: float = 0.0  # points²; the smallest variance that the rows can leave


class Limits(NamedTuple):
    low: float
    high: float


def scores_of(metric: str, labels: Array, predicted: Array, points: Array) -> Scores:
    """Scores and their covariance. `labels` (rows,), `predicted` (rows, networks) or tallies (rows,
    networks, 2m), `points` (networks,).

    The variance of a score is at least that of one row (of the rarest class, if classes have equal
    weight), and that of a change at least that of two: networks that are right on every row, or
    agree on every row, may not be on other rows (compare Agresti and Coull 1998; Bonett and Price
    2012). Correlations have no such floor.
    """
    rows = len(labels)
    if metric == "accuracy":
        right = 100.0 * (predicted == labels[:, None])
        covariance = np.atleast_2d(np.cov(right, rowvar=False, ddof=0)) / max(1, rows - 1)
    else:
        if metric == "spearman":
            content = [values.astype(np.float64).tobytes() for values in (labels, *predicted.T)]
            drawn = np.hstack([_ranked(content[0], answers) for answers in content[1:]])
        else:
            drawn = _drawn(metric, labels, predicted)
        covariance = np.atleast_2d(np.cov(drawn, rowvar=False))
    parts = _parts(predicted) if metric == TALLY else None
    return Scores(points, covariance, _floor(metric, labels), rows, least_of(metric), parts)


def _drawn(metric: str, labels: Array, predicted: Array) -> Array:
    """The scores of the resamples, the same for all networks: (RESAMPLES, networks) points."""
    rng = np.random.default_rng(_SEED)
    return 100 * resampled_scores(metric, labels, predicted, RESAMPLES, rng)


@lru_cache(maxsize=512)
def _ranked(labels: bytes, predicted: bytes) -> Array:
    """`_drawn` for the ranks of one network. A report compares each network with many others:
    without the cache it would rank the same resamples again each time, for minutes."""
    return _drawn("spearman", np.frombuffer(labels), np.frombuffer(predicted)[:, None])


def least_of(metric: str) -> float:
    return -100.0 if metric in (*_CORRELATIONS, "mcc") else 0.0


def _parts(tallies: Array) -> Array:
    """(rows, networks): what each row adds to a score, in shares: a query's own score; the score is
    their mean. From (rows, networks, 2m) tallies; the linear part for a ratio of sums."""
    part, whole = tallies[..., ::2], tallies[..., 1::2]
    sums = whole.sum(axis=0)
    there = np.maximum(1, (sums > 0).sum(axis=-1))
    share = np.divide(part.sum(axis=0), sums, out=np.zeros(sums.shape), where=sums > 0)
    off = np.divide(part - share * whole, sums, out=np.zeros(whole.shape), where=sums > 0)
    return np.asarray((len(tallies) * off.sum(axis=-1) + share.sum(axis=-1)) / there)


def _row_size(parts: Array | None, weights: Array) -> float:
    """The square of how far a row moves a score or a change. A row that is right or wrong moves it
    by 1, a query's nDCG by less: by the rows that moved, and one more by 1."""
    if parts is None:
        return 1.0
    moved = parts @ weights.mean(axis=0)
    moved = np.abs(moved - np.round(moved.mean()))  # from the nearer end, or from no change
    return float(((moved @ moved + _ONE_MORE) / (moved.sum() + _ONE_MORE)) ** 2)


def _floor(metric: str, labels: Array) -> float:
    """The smallest variance of a score, in points²: that of one row. A row of a rare class moves F1
    and MCC by more. Where classes have equal weight, all count as if they were as rare."""
    if metric in _CORRELATIONS:
        return 0.0
    weighty = len(labels)
    if facts_of(metric).of_a_class:
        weighty = int((labels == 1).sum())
    elif metric not in ("accuracy", "weighted_f1"):
        counts = np.unique(labels, return_counts=True)[1]
        weighty = int(len(counts) * counts.min())
    return ((100 - least_of(metric)) / max(1, weighty)) ** 2


def combined(scores: Scores, weights: Array) -> Estimate:
    """The estimate of a mean over seeds. `weights` (seeds, networks): for each seed, how to combine
    the networks. A score has a 1 for its network; a change also has a -1 for K=0."""
    values = weights @ scores.points
    covariance = weights @ scores.covariance @ weights.T
    seeds = len(values)
    plus, minus = (float(part.sum()) / seeds for part in (weights.clip(0), -weights.clip(None, 0)))
    floor = (plus + minus) * scores.floor * _row_size(scores.parts, weights)
    least, most = plus * scores.least - 100 * minus, 100 * plus - minus * scores.least
    spread, common = 0.0, float(covariance[0, 0])
    if seeds > 1:
        common = float(covariance.sum() - np.trace(covariance)) / (seeds * (seeds - 1))
        spread = float(values.var(ddof=1)) / seeds
    rows = max(0.0, common, floor - spread)
    mean, freedom = float(values.mean()), max(1, scores.rows - 1)
    return Estimate(mean, spread, seeds - 1, rows, freedom, least, most, floor)


def limits(estimate: Estimate, tail: float = TAIL) -> Limits:
    """The two bounds that the true value is beyond with probability `tail` each. They lie within
    the range of the value."""
    error = _error(estimate, tail)
    return bounded(estimate.mean, error, estimate.least, estimate.most, _room(estimate))


def bounded(
    mean: float, error: float, least: float, most: float, room: float | None = None
) -> Limits:
    """The values that are one `error` from `mean`, within the range of the value.

    The error of a mean near an end of its range is smaller: its standard deviation is taken to
    grow with the root of the product of the distances to both ends (`room`, at the mean), as for a
    share of right answers. The bounds are the values whose own error just reaches the mean (Wilson
    1927; for one accuracy it is Wilson's interval), which is a quadratic equation.
    """
    room = (mean - least) * (most - mean) if room is None else room
    if not error:
        return Limits(mean, mean)
    if room <= 0:
        return Limits(least, most)
    k = error**2 / room
    middle = (mean + k * (least + most) / 2) / (1 + k)
    within = max(0.0, (mean - least) * (most - mean))
    half = (k * (within + k * ((most - least) / 2) ** 2)) ** 0.5 / (1 + k)  # no term cancels
    return Limits(max(least, middle - half), min(most, middle + half))  # against rounding


def _error(estimate: Estimate, tail: float) -> float:
    spread = (estimate.seeds, estimate.freedom, estimate.rows, estimate.rows_freedom)
    return float(_errors(*spread, tail))


def _errors(seeds: Any, freedom: float, rows: Any, rows_freedom: float, tail: float = TAIL) -> Any:
    """The size that a mean's error exceeds with probability `tail`. Variances may be arrays."""
    from scipy.special import stdtrit

    of_seeds = -stdtrit(freedom, tail) if freedom else 0.0
    variance = seeds + rows
    share = np.divide(seeds, variance, out=np.zeros(np.shape(variance)), where=variance > 0)
    return np.sqrt(variance) * (share * of_seeds - (1 - share) * stdtrit(rows_freedom, tail))


def _room(estimate: Estimate) -> float:
    """The product of the distances to both ends of the range. A mean at an end, where no row was
    seen to differ, counts as one row away."""
    row = min(float(estimate.floor**0.5), (estimate.most - estimate.least) / 2)
    mean = min(max(estimate.mean, estimate.least + row), estimate.most - row)
    return (mean - estimate.least) * (estimate.most - mean)


def two_sided_p(estimate: Estimate) -> float:
    """The two-sided p of zero: one minus the level of the interval that just reaches zero. At least
    2e-12."""
    from scipy.optimize import brentq

    if estimate.mean == 0:
        return 1.0
    off: float = abs(estimate.mean) * (_room(estimate) / -(estimate.least * estimate.most)) ** 0.5

    def reaches(log_tail: float) -> float:
        return _error(estimate, float(np.exp(log_tail))) - off

    smallest = float(np.log(_SMALLEST_TAIL))
    if reaches(smallest) <= 0:
        return 2 * _SMALLEST_TAIL
    return float(2 * np.exp(brentq(reaches, smallest, np.log(0.5))))


# what a plan assumes of a change, as nothing is known about the task yet
_APART = 0.10  # share of the rows that only one of two networks gets right, beside the loss
_ALIKE = 0.2  # part of a row's variance that all seeds share
_TRAINING_SD = 0.7  # points: sd of a change over seeds, without the part from the rows
_POWER = 0.82  # 80%, and a margin for the approximations
_STUDIES = 4_000
_LARGEST = 90.0  # points


def smallest_loss(rows: float, seeds: int) -> float | None:
    """The smallest loss of a pruned network, in points, that `table significance` calls different
    from zero (p < 5%) in four of five studies with this many dev rows and seeds; None if it would
    have to be larger than `_LARGEST`. `docs/statistics.md` has the sources of what is assumed, and
    the power in simulated studies."""
    tenths = bisect_left(
        range(int(10 * _LARGEST)), _POWER, key=lambda tenth: _power(tenth / 10, rows, seeds)
    )
    return tenths / 10 if tenths < 10 * _LARGEST else None


def _power(loss: float, rows: float, seeds: int) -> float:
    """The share of studies in which the change's interval leaves out 0. The same draws for every
    loss."""
    rng = np.random.default_rng(_SEED)
    noise, spread = rng.standard_normal(_STUDIES), rng.chisquare(max(1, seeds - 1), _STUDIES)
    share = loss / 100
    of_row = 100**2 * (_APART + share - share**2) / rows
    common, own = _ALIKE * of_row, (_TRAINING_SD**2 + (1 - _ALIKE) * of_row) / seeds
    seen = loss + noise * (common + own) ** 0.5
    freedom = max(1.0, rows - 1)
    if seeds == 1:  # McNemar's test: rows are whole
        errors = _errors(0.0, 0, of_row, freedom) + 100 / rows
    else:
        of_seeds = own * spread / (seeds - 1)
        of_rows = np.maximum(common, 2 * (100 / rows) ** 2 - of_seeds)
        errors = _errors(of_seeds, seeds - 1, of_rows, freedom)
    return float((seen * (1 - (seen / 100).clip(-0.95, 0.95) ** 2) ** 0.5 > errors).mean())
