"""Samples the loss at every K, run or not, from its posterior, given the scores so far.

**Noise.** A score is the mean of its K, plus a part that all K of a seed share, plus a part of its
own. Both parts together have one unknown sd, the same for all K. Its prior is a scaled inverse
chi-square of one degree of freedom around half a point, which two or three repetitions outweigh.
The seed's share of the variance is one of a few values, weighted by marginal likelihood. The means
have a flat prior: given the noise, they are those of generalised least squares (Gelman et al.,
*Bayesian Data Analysis*, 14.2 and 14.7).

**Shape.** Dropping more layers mostly loses more, but not always. Some draws are projected onto
curves that never rise, by isotonic regression (Lin, Dunson 2014, *Bayesian monotone regression
using Gaussian process projection*): a K then borrows from the scores of its neighbours. The other
draws stay as they are; they are called free. Half of all draws are projected where the means fall
by themselves. The less likely the best falling curve is compared with the free means, the fewer are
projected: a dip that the scores show is never smoothed away.

**A dip.** No score rules out that a K that was not run loses much less than its neighbours. The
assumption: it loses at most `DIP` points less than the better of the K run on either side of it
(above the last run K, than that one). The search and its credible set use this floor for such a K.
Only the risk of an answer uses the draws described below.

**K that was not run.** Between two K that were run, a projected draw lies anywhere between their
losses, in order. A free draw lies around the straight line between them, with an sd of half a point
and a quarter of their difference. Above the last K that was run, nothing bounds the curve: each K
loses more than the one before, by a step from a quarter of a point to fifty, with each order of
magnitude equally likely. A free draw has an sd of half a point around that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lp_sweep.analysis.adaptive import DIP

Array = npt.NDArray[Any]


def falling(curves: Array, weights: Array) -> Array:
    """Isotonic regression, (curves, points): for each row, the never-rising curve with the least
    weighted squared distance to it. `weights` (points,) are above zero.

    Uses the max-min formula (Barlow et al. 1972, *Statistical Inference under Order Restrictions*,
    section 1.4). It gives the same result as pooling adjacent violators, for all rows at once."""
    points = curves.shape[1]
    total = np.concatenate([[0.0], np.cumsum(weights)])
    sums = np.zeros((len(curves), points + 1))
    np.cumsum(curves * weights, axis=1, out=sums[:, 1:])
    # each point: the min over starts up to it, of the max over ends from it on, of the mean between
    fitted = np.full_like(curves, np.inf)
    for start in range(points):
        means = (sums[:, start + 1 :] - sums[:, start : start + 1]) / (
            total[start + 1 :] - total[start]
        )
        from_here = np.maximum.accumulate(means[:, ::-1], axis=1)[:, ::-1]
        np.minimum(fitted[:, start:], from_here, out=fitted[:, start:])
    return fitted


DRAWS = 2_000
NOISE_SD = 0.5  # points: the centre of the prior for the sd over seeds
_NOISE_WEIGHT = 1.0  # degrees of freedom of that prior
_SEED_SHARES = (0.0, 0.25, 0.5, 0.75, 0.9)  # of the variance
_FALLING = 0.5  # the share of projected draws, where the means fall by themselves
_WOBBLE = 0.5  # points: sd of a K that was not run, around the line between its neighbours
_BEND = 0.25  # more sd, as a share of the difference between the neighbours
_STEPS = (0.25, 50.0)  # points: sizes of the steps from K to K above the last that was run
_SEED = 0


class Pair(NamedTuple):
    k: int
    seed: int


Scores = Mapping[Pair, float]  # points


class Draws(NamedTuple):
    """Posterior draws. `losses` (draws, K): points against the mean of K=0, in the order of `ks`.
    `floors` (draws, K): the least that each K may lose, see `DIP`. `full` (draws,): the mean of
    K=0. `run`: the K that have a score."""

    ks: tuple[int, ...]
    full: Array
    losses: Array
    floors: Array
    run: tuple[int, ...]


class _Fit(NamedTuple):
    """Draws of the means of the K that were run, given the seed's share."""

    means: Array  # (K,)
    factor: Array  # (K, K), of the covariance in units of the variance
    freedom: float
    squares: float  # freedom times the scale of the variance
    log_likelihood: float


def draw(ks: tuple[int, ...], scores: Scores, draws: int = DRAWS) -> Draws:
    """Draw from the posterior. `ks` ascend from 0. `scores` holds only these K, and K=0 at least
    once."""
    rng = np.random.default_rng(_SEED)
    run = sorted({k for k, _ in scores})
    counts = np.array([sum(k == other for other, _ in scores) for k in run], float)
    fits = [_fit(run, scores, share) for share in _SEED_SHARES]
    means = _means(fits, draws, rng)
    likeliest = max(fits, key=lambda fit: fit.log_likelihood)
    projected = round(draws * _falling_share(likeliest, counts))
    means[:projected] = falling(means[:projected], counts)
    losses = _everywhere(ks, run, means[:, :1] - means, projected, rng)
    return Draws(ks, means[:, 0], losses, _floors(ks, run, losses), tuple(run))


def _fit(run: list[int], scores: Scores, share: float) -> _Fit:
    pairs = sorted(scores)
    values = np.array([scores[pair] for pair in pairs])
    design = np.array([[k == other for other in run] for k, _ in pairs], float)
    seeds = np.array([seed for _, seed in pairs])
    variance = np.where(seeds[:, None] == seeds, share, 0.0) + (1 - share) * np.eye(len(pairs))
    inverse = np.linalg.inv(variance)
    precision = design.T @ inverse @ design
    covariance = np.linalg.inv(precision)
    means = covariance @ design.T @ inverse @ values
    rest = values - design @ means
    freedom = _NOISE_WEIGHT + len(pairs) - len(run)
    squares = _NOISE_WEIGHT * NOISE_SD**2 + float(rest @ inverse @ rest)
    determinants = np.linalg.slogdet(variance)[1] + np.linalg.slogdet(precision)[1]
    likelihood = -0.5 * float(determinants) - 0.5 * freedom * np.log(squares)
    return _Fit(means, np.linalg.cholesky(covariance), freedom, squares, likelihood)


def _means(fits: list[_Fit], draws: int, rng: np.random.Generator) -> Array:
    """Draw means (draws, K) from the fits, each in proportion to its likelihood."""
    log_weights = np.array([fit.log_likelihood for fit in fits])
    weights = np.exp(log_weights - log_weights.max())
    chosen = rng.choice(len(fits), draws, p=weights / weights.sum())
    normal = rng.standard_normal((draws, len(fits[0].means)))
    means = np.empty_like(normal)
    for index, fit in enumerate(fits):
        mine = chosen == index
        variance = fit.squares / rng.chisquare(fit.freedom, mine.sum())
        means[mine] = fit.means + np.sqrt(variance)[:, None] * (normal[mine] @ fit.factor.T)
    return means


def _falling_share(fit: _Fit, counts: Array) -> float:
    """The share of falling draws. It compares the likelihood of the best falling curve with that of
    the free means, which is never smaller. The variance is integrated out."""
    nearest = falling(fit.means[None], counts)[0]
    distance = float((counts * (fit.means - nearest) ** 2).sum())
    ratio = float((1 + distance / fit.squares) ** (-fit.freedom / 2))
    return _FALLING * ratio / (_FALLING * ratio + 1 - _FALLING)


def _everywhere(
    ks: tuple[int, ...], run: list[int], losses: Array, projected: int, rng: np.random.Generator
) -> Array:
    """Extend the losses at the K that were run to all K: (draws, ks)."""
    every = np.empty((len(losses), len(ks)))
    places = [ks.index(k) for k in run]
    every[:, places] = losses
    for lower, upper in zip(places, [*places[1:], len(ks)], strict=True):
        gap = slice(lower + 1, upper)
        if gap.start == gap.stop:
            continue
        low = every[:, [lower]]
        if upper == len(ks):
            every[:, gap] = low + _rise(len(low), upper - lower - 1, rng)
            every[projected:, gap] += rng.normal(0, _WOBBLE, every[projected:, gap].shape)
            continue
        rise = every[:, [upper]] - low
        shares = rng.random((projected, upper - lower - 1))
        every[:projected, gap] = low[:projected] + np.sort(shares) * rise[:projected]
        line = (np.array(ks[gap]) - ks[lower]) / (ks[upper] - ks[lower])
        spread = _WOBBLE + _BEND * np.abs(rise[projected:])
        noise = rng.standard_normal((len(low) - projected, len(line)))
        every[projected:, gap] = low[projected:] + line * rise[projected:] + spread * noise
    return every


def _floors(ks: tuple[int, ...], run: list[int], losses: Array) -> Array:
    """(draws, ks): the loss of a K that was run; for others, `DIP` less than their neighbours."""
    places = np.searchsorted(ks, run)
    below = np.searchsorted(run, ks, side="right") - 1
    above = np.minimum(np.searchsorted(run, ks), len(run) - 1)
    floors = np.minimum(losses[:, places[below]], losses[:, places[above]])
    floors[:, ~np.isin(ks, run)] -= DIP
    return floors


def _rise(draws: int, points: int, rng: np.random.Generator) -> Array:
    """(draws, points): how much more each K beyond the last that was run loses, ascending. All K of
    a draw share one step size: a curve that has become steep stays steep."""
    smallest, largest = np.log(_STEPS)
    sizes = np.exp(rng.uniform(smallest, largest, (draws, 1)))
    return np.cumsum(np.abs(rng.standard_normal((draws, points))) * sizes, axis=1)
