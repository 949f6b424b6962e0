"""Draws of the loss at every K, run or not, given the scores so far.

**Noise.** A score is the mean of its K, plus a part that all K of a seed share, plus a part of its
own. The sd of both together is one for all K, and unknown: its prior is a scaled inverse chi-square
of one degree of freedom around half a point, which two or three repetitions outweigh. The share of
the seed is one of a few values, by its marginal likelihood. The means have a flat prior, so that
given the noise they are those of generalised least squares (Gelman et al., *Bayesian Data
Analysis*, 14.2 and 14.7).

**Shape.** Dropping more layers mostly loses more, and not always. Some draws are projected onto
the curves that never rise, by isotonic regression (Lin, Dunson 2014, *Bayesian monotone regression
using Gaussian process projection*), which lends a K the scores of its neighbours. The others are
left as they are. The projected ones are half of all where the means fall by themselves, and fewer
the less likely the best falling curve is beside the free means: a dip that the scores show is never
smoothed away.

**A dip.** Nothing in the scores rules out that one K that was not run loses much less than its
neighbours. It may lose `DIP` points less than the better of the K run on either side of it (above
the last one, than the last one), and no more than that: this is assumed. The search and its set
take that floor for what such a K may lose; only the risk of an answer goes by the draws below.

**K that was not run.** Between two that were: in a projected draw anywhere between their losses, in
order; in a free one around the straight line, with an sd of half a point and a quarter of their
difference. Above the last that was run nothing holds the curve: each K loses more than the one
before by a step of any size from a quarter of a point to fifty, each order of magnitude as likely;
a free draw has an sd of half a point around that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lp_sweep.analysis.adaptive import DIP

Array = npt.NDArray[Any]


def falling(curves: Array, weights: Array) -> Array:
    """Isotonic regression, (curves, points): for each row the curve that never rises and has the
    least weighted squared distance to it. `weights` (points,) are above zero.

    By the max-min formula (Barlow et al. 1972, *Statistical Inference under Order Restrictions*,
    section 1.4), which gives what pooling adjacent violators gives, for all rows in one go."""
    points = curves.shape[1]
    total = np.concatenate([[0.0], np.cumsum(weights)])
    sums = np.zeros((len(curves), points + 1))
    np.cumsum(curves * weights, axis=1, out=sums[:, 1:])
    # min over starts up to a point, of max over ends from it on, of the mean in between
    fitted = np.full_like(curves, np.inf)
    for start in range(points):
        means = (sums[:, start + 1 :] - sums[:, start : start + 1]) / (
            total[start + 1 :] - total[start]
        )
        from_here = np.maximum.accumulate(means[:, ::-1], axis=1)[:, ::-1]
        np.minimum(fitted[:, start:], from_here, out=fitted[:, start:])
    return fitted


DRAWS = 2_000
NOISE_SD = 0.5  # points: around which the prior of the sd of seeds lies
_NOISE_WEIGHT = 1.0  # of that prior, in degrees of freedom
_SEED_SHARES = (0.0, 0.25, 0.5, 0.75, 0.9)  # of the variance
_FALLING = 0.5  # the share of projected draws, where the means fall by themselves
_WOBBLE = 0.5  # points: sd of a K that was not run, around the line between its neighbours
_BEND = 0.25  # more of it, as a share of what lies between the neighbours
_STEPS = (0.25, 50.0)  # points: sizes of the steps from K to K above the last that was run
_SEED = 0


class Pair(NamedTuple):
    k: int
    seed: int


Scores = Mapping[Pair, float]  # points


class Draws(NamedTuple):
    """Posterior draws. `losses` (draws, K): points against the mean of K=0, in the order of `ks`;
    `floors` likewise: the least that each K may lose, see `DIP`. `full` (draws,): the mean of
    K=0; `run`: the K that have a score."""

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
    """`ks` ascending from 0; of these `scores` must have K=0 at least once, and only these."""
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
    """(draws, K), from the fits by their likelihood."""
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
    """The share of falling draws, by the likelihood of the best falling curve against that of the
    free means, which is never the smaller one. The variance is integrated out."""
    nearest = falling(fit.means[None], counts)[0]
    distance = float((counts * (fit.means - nearest) ** 2).sum())
    ratio = float((1 + distance / fit.squares) ** (-fit.freedom / 2))
    return _FALLING * ratio / (_FALLING * ratio + 1 - _FALLING)


def _everywhere(
    ks: tuple[int, ...], run: list[int], losses: Array, projected: int, rng: np.random.Generator
) -> Array:
    """(draws, ks), of the losses at the K that were run."""
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
    """(draws, ks): of a K that was run its loss, of others `DIP` less than their neighbours'."""
    places = np.searchsorted(ks, run)
    below = np.searchsorted(run, ks, side="right") - 1
    above = np.minimum(np.searchsorted(run, ks), len(run) - 1)
    floors = np.minimum(losses[:, places[below]], losses[:, places[above]])
    floors[:, ~np.isin(ks, run)] -= DIP
    return floors


def _rise(draws: int, points: int, rng: np.random.Generator) -> Array:
    """(draws, points): how much more each K beyond the last that was run loses, ascending. One size
    of step for all K of a draw: a curve that has turned steep stays so."""
    smallest, largest = np.log(_STEPS)
    sizes = np.exp(rng.uniform(smallest, largest, (draws, 1)))
    return np.cumsum(np.abs(rng.standard_normal((draws, points))) * sizes, axis=1)
