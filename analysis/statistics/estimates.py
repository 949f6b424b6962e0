"""The uncertainty of a mean score, from two sources of error: the seeds and the dev rows.

A mean over S seeds on one dev set of n rows differs from the mean of all seeds on all texts because

- other seeds would give other networks: variance s²/S, where s² is the sample variance of the S
  scores, with S - 1 degrees of freedom;
- other rows would give other scores. Each network's own share of that error is already in s²; the
  share common to all seeds is the mean covariance between two seeds' scores over the rows.

The half-width of an interval is sqrt(seeds + rows) times a mean of two quantiles: of Student's t
(weighted by the seeds' share of the variance) and of the normal distribution (the rows' share).
See Cochran and Cox, *Experimental Designs* (2nd ed. 1957, section 4.14). `docs/statistics.md` has
its coverage. Takes arrays, returns numbers; reads no store.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lp_sweep.analysis.statistics.resampling import (
    TALLY,
    UNMERGED,
    patterns_of,
    resampled_scores,
)

Array = npt.NDArray[Any]
LEVEL = 0.95
RESAMPLES = 2_000  # of the rows, for metrics other than accuracy
_SEED = 0
_SMALLEST_TAIL = 1e-12
_CORRELATIONS = ("pearson", "spearman")


class Scores(NamedTuple):
    """Scores of several networks on the same dev rows, and their uncertainty from these rows."""

    points: Array  # (networks,)
    covariance: Array  # (networks, networks) points²; over other dev sets of the same size
    floor: float  # points²; see `scores_of`
    rows: int


class Estimate(NamedTuple):
    """A mean over seeds, or a difference of two, in points. Variances are those of the mean."""

    mean: float
    seeds: float  # variance due to the seeds; 0 for one seed, whose spread is not known
    freedom: float  # its degrees of freedom; 0 for one seed
    rows: float  # variance due to the dev rows


def scores_of(metric: str, labels: Array, predicted: Array, points: Array) -> Scores:
    """Scores and their covariance. `labels` (rows,), `predicted` (rows, networks) or tallies (rows,
    networks, 2m), `points` (networks,).

    The variance of a score is at least that of two rows (of the rarest class, if classes have equal
    weight): networks that are right on every row, or agree on every row, may not be on other rows
    (compare Agresti and Coull 1998; Bonett and Price 2012). Correlations have no such floor.
    """
    rows = len(labels)
    if metric == "accuracy":
        right = 100.0 * (predicted == labels[:, None])
        covariance = np.atleast_2d(np.cov(right, rowvar=False, ddof=0)) / max(1, rows - 1)
    else:
        if metric in UNMERGED:  # the draws do not depend on the networks
            of_labels, answers = labels.astype(np.float64).tobytes(), predicted.astype(np.float64)
            networks = (answers[:, i].tobytes() for i in range(answers.shape[1]))
            drawn = np.hstack([_drawn_alone(metric, of_labels, each) for each in networks])
        else:
            drawn = _drawn(metric, labels, predicted)
        covariance = np.atleast_2d(np.cov(drawn, rowvar=False))
    return Scores(points, covariance, _floor(metric, labels), rows)


def _drawn(metric: str, labels: Array, predicted: Array) -> Array:
    """The scores of the resamples: (RESAMPLES, networks) points."""
    patterns = patterns_of(metric, labels, predicted)
    return 100 * resampled_scores(metric, patterns, RESAMPLES, np.random.default_rng(_SEED))


@lru_cache(maxsize=512)  # each network is compared with many, and ranking is slow
def _drawn_alone(metric: str, labels: bytes, predicted: bytes) -> Array:
    """`_drawn` for one network, (RESAMPLES, 1), from (n,) and (n,) or (n, 2m) float64."""
    own = np.frombuffer(labels)
    shape = (len(own), 1, -1) if metric == TALLY else (len(own), 1)
    return _drawn(metric, own, np.frombuffer(predicted).reshape(shape))


def _floor(metric: str, labels: Array) -> float:
    """The smallest variance, in points²: that of two rows. A row of a rare class moves F1 and MCC
    by more."""
    if metric in _CORRELATIONS:
        return 0.0
    weighty = len(labels)
    if metric == "f1":
        weighty = int((labels == 1).sum())
    elif metric != "accuracy":
        weighty = int(np.unique(labels, return_counts=True)[1].min())
    return 2 * (100 / max(1, weighty)) ** 2


def combined(scores: Scores, weights: Array) -> Estimate:
    """The estimate of a mean over seeds. `weights` (seeds, networks): for each seed, how to combine
    the networks. A score has a 1 for its network; a change also has a -1 for K=0."""
    values = weights @ scores.points
    covariance = weights @ scores.covariance @ weights.T
    seeds = len(values)
    if seeds == 1:
        return Estimate(float(values[0]), 0.0, 0, max(float(covariance[0, 0]), scores.floor))
    common = (covariance.sum() - np.trace(covariance)) / (seeds * (seeds - 1))
    spread = float(values.var(ddof=1)) / seeds
    rows = max(0.0, float(common), scores.floor - spread)
    return Estimate(float(values.mean()), spread, seeds - 1, rows)


def half_width(estimate: Estimate, tail: float) -> float:
    """The distance in points that the mean's error exceeds on one side with probability `tail`."""
    return float(np.sqrt(estimate.seeds + estimate.rows)) * _quantile(estimate, tail)


def _quantile(estimate: Estimate, tail: float) -> float:
    from scipy.special import ndtri, stdtrit

    normal = -float(ndtri(tail))
    if not estimate.seeds:
        return normal
    student = -float(stdtrit(estimate.freedom, tail))
    share = estimate.seeds / (estimate.seeds + estimate.rows)
    return share * student + (1 - share) * normal


def interval(estimate: Estimate, level: float = LEVEL) -> tuple[float, float]:
    width = half_width(estimate, (1 - level) / 2)
    return estimate.mean - width, estimate.mean + width


def two_sided_p(estimate: Estimate) -> float:
    """The two-sided p of zero: one minus the level of the interval that just reaches zero. At least
    2e-12."""
    from scipy.optimize import brentq

    off = abs(estimate.mean)
    if off == 0:
        return 1.0

    def reaches(log_tail: float) -> float:
        return half_width(estimate, float(np.exp(log_tail))) - off

    smallest = float(np.log(_SMALLEST_TAIL))
    if reaches(smallest) <= 0:
        return 2 * _SMALLEST_TAIL
    return float(2 * np.exp(brentq(reaches, smallest, np.log(0.5))))


# variances of a change between two networks that score nearly alike
_APART = 0.10  # share of the rows that only one of them gets right
_ALIKE = 0.02  # variance of a row's change: the part that all seeds share
_TRAINING_SD = 0.7  # points: sd of a change over seeds, without the part from the rows
_POWER = 1.645 + 0.842  # a one-sided test at 5% finds it in four of five studies


def smallest_loss(rows: float, seeds: int) -> float:
    """The smallest loss of a pruned network, in points, that this many dev rows and seeds probably
    show. For a plan: nothing is known about the task yet. `docs/statistics.md` has the assumed
    numbers and their sources."""
    shared = 100**2 * _ALIKE / rows
    own = _TRAINING_SD**2 + 100**2 * (_APART - _ALIKE) / rows
    return float(_POWER * np.sqrt(shared + own / seeds))
