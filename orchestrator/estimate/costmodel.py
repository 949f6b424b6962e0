"""How long work takes: a sum of terms with a price each, fitted to timings, and how sure that is.

    seconds = (sum over terms of price x amount) x (factor of its model and task) x (its own chance)

In logarithms this is a regression with normal priors: the prices around a rule of thumb, with one
error that they share (the device is faster or slower) and one of each; the factors around 1. So one
timing moves all prices, many timings settle each, and a pair of model and task that was never seen
has the prices of the others and the spread of their factors. A trial's own chance has Student's t:
one beside a busy neighbour moves the prices little. That such trials come is in the chances' mean
and spread, which are those of the timings (Duan 1983, "Smearing estimate"). Solved by Gauss-Newton
steps in turn with the variances, each of which starts as a few timings' worth of the stated one
(EM: Laird and Ware 1982, "Random-effects models for longitudinal data"; for t: Lange, Little and
Taylor 1989, "Robust statistical modeling using the t distribution").

Pure arithmetic; knows no plan and no store.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lp_sweep.orchestrator.estimate.workload import Terms

Array = npt.NDArray[np.float64]
Pair = tuple[str | None, str | None]  # fingerprints of a model and of a task's data

# Standard deviations of logarithms before the first timing, and how many timings they count for.
_OF_DEVICE = 1.0  # what the prices share: a rule of thumb is right within a factor of 3.6 in 80%
_OF_PRICE = 0.5  # of each price beside that
_BETWEEN, _BETWEEN_COUNTS = 0.3, 3.0  # pairs of model and task
_WITHIN, _WITHIN_COUNTS = 0.2, 3.0  # trials of one pair
FLOOR = 0.03  # no machine is as fast every day
_FREEDOM = 4.0  # degrees of it, of Student's t
_STEPS, _LONGEST_STEP, _STILL = 60, 1.0, 1e-4
Z80 = 1.2815515655446004  # 80% of a normal distribution are within so many standard deviations


class Timing(NamedTuple):
    """A finished trial: what it asked for, whose factor it has, and what it took."""

    terms: Terms
    pair: Pair
    seconds: float


class Total(NamedTuple):
    """Seconds of many pieces of work together; in 80% of all cases within `low` to `high`."""

    seconds: float
    low: float
    high: float


class _Factor(NamedTuple):
    """Of a pair: its logarithm, how sure it is (1 / variance, were the prices known), and how it
    hangs on the prices, (terms,)."""

    log: float
    precision: float
    tie: Array


class Pull(NamedTuple):
    """A total, and the derivatives of its logarithm: by each log price, (terms,), and each log
    factor; `own`: the sum of its pieces' squared shares, which their own chances count for."""

    seconds: float
    prices: Array
    factors: dict[Pair, float]
    own: float


class Chance(NamedTuple):
    """Of a number around 1: its mean, its variance over the mean's square, and the same of the mean
    itself."""

    mean: float
    variance: float
    unsure: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CostModel:
    """Prices with their uncertainty. `between`: variance of the logarithm of a pair's factor;
    `chance`: of a trial's seconds over what its terms and factor say. `doubt`: see `fit`."""

    log_prices: Array  # (terms,), seconds a unit
    covariance: Array  # (terms, terms), of log_prices
    factors: Mapping[Pair, _Factor]
    between: float
    chance: Chance
    doubt: float
    timings: int

    def seconds(self, terms: Terms, pair: Pair) -> float:
        """Expected seconds of one piece."""
        known = self.factors.get(pair)
        factor = math.exp(known.log) if known else 1.0
        return float(np.exp(self.log_prices) @ np.array(terms)) * factor * self.chance.mean

    def total(self, pieces: Mapping[tuple[Terms, Pair], float]) -> Total:
        """Of all pieces, each with its number. The errors of prices and factors are common to
        pieces and stay in the sum; the trials' own chances mostly cancel (delta method)."""
        pull = self.pull(pieces)
        if not pull.seconds:
            return Total(0.0, 0.0, 0.0)
        error = (
            pull.own * self.chance.variance
            + self.chance.unsure
            + self.common_variance(pull.prices, pull.factors)
            + self.doubt**2
            + FLOOR**2
        )
        spread = math.exp(Z80 * math.sqrt(error))
        return Total(pull.seconds, pull.seconds / spread, pull.seconds * spread)

    def pull(self, pieces: Mapping[tuple[Terms, Pair], float]) -> Pull:
        """How the logarithm of the seconds of all pieces moves with what they hang on."""
        kinds = [(*kind, count, self.seconds(*kind)) for kind, count in pieces.items() if count]
        seconds = sum(count * each for *_, count, each in kinds)
        prices, factors, own = np.zeros_like(self.log_prices), dict[Pair, float](), 0.0
        for terms, pair, count, each in kinds:
            weight = count * each / seconds
            prices += weight * _shares(np.array([terms]), self.log_prices)[0]
            factors[pair] = factors.get(pair, 0.0) + weight
            own += weight * (each / seconds)
        return Pull(seconds, prices, factors, own)

    def common_variance(self, prices: Array, factors: Mapping[Pair, float]) -> float:
        """Variance of the logarithm of a total that moves so with the prices and the factors."""
        variance = 0.0
        for pair, weight in factors.items():
            if known := self.factors.get(pair):
                variance += weight**2 / known.precision
                prices = prices - weight * known.tie / known.precision
            else:
                variance += weight**2 * self.between
        return variance + float(prices @ self.covariance @ prices)


def _shares(amounts: Array, log_prices: Array) -> Array:
    """(n, terms): which part of the seconds each term is."""
    parts = amounts * np.exp(log_prices)
    shares: Array = parts / parts.sum(axis=1, keepdims=True)
    return shares


def fit(timings: Iterable[Timing], rule: Terms, *, doubt: float = 0.0) -> CostModel:
    """Prices from timings of one kind of device. `rule`: seconds a unit by the rule of thumb;
    `doubt`: standard deviation of the logarithm of a factor that stays unknown, as where the
    timings are of another way to compute."""
    found = _Fit([item for item in timings if item.seconds > 0], rule)
    for _ in range(_STEPS):
        if not found.improve():
            break
    return found.model(doubt)


class _Fit:
    """The regression under way."""

    def __init__(self, timings: Sequence[Timing], rule: Terms) -> None:
        self.rule = np.log(np.array(rule))
        self.amounts = np.array([item.terms for item in timings], float).reshape(-1, len(rule))
        self.logs = np.log(np.array([item.seconds for item in timings], float))
        self.names = list(dict.fromkeys(item.pair for item in timings))
        numbers = {name: number for number, name in enumerate(self.names)}
        self.of = np.array([numbers[item.pair] for item in timings], int)
        common = np.full((len(rule), len(rule)), _OF_DEVICE**2)
        self.certainty = np.linalg.inv(common + _OF_PRICE**2 * np.eye(len(rule)))
        self.prices, self.factors = self.rule.copy(), np.zeros(len(self.names))
        self.between, self.scale = _BETWEEN**2, _WITHIN**2
        self.covariance = np.linalg.inv(self.certainty)
        self.precision = np.full(len(self.names), 1 / self.between)
        self.ties = np.zeros((len(self.names), len(rule)))

    def improve(self) -> bool:
        """One step of the prices and factors, then of the variances; False: nothing moved."""
        if not self.names:
            return False
        shares = _shares(self.amounts, self.prices)
        errors = self._errors()
        weights = (_FREEDOM + 1) / (_FREEDOM + errors**2 / self.scale) / self.scale  # (n,)
        target = errors + shares @ self.prices + self.factors[self.of]
        self.precision = self._by_pair(weights) + 1 / self.between
        self.ties = np.stack([self._by_pair(weights * share) for share in shares.T], axis=1)
        ours = self._by_pair(weights * target)
        inner = (shares * weights[:, None]).T @ shares - (
            self.ties.T @ (self.ties / self.precision[:, None])
        )
        aim = shares.T @ (weights * target) - self.ties.T @ (ours / self.precision)
        self.covariance = np.linalg.inv(self.certainty + inner)
        wanted = self.covariance @ (self.certainty @ self.rule + aim)
        step = np.clip(wanted - self.prices, -_LONGEST_STEP, _LONGEST_STEP)
        self.prices = self.prices + step
        self.factors = (ours - self.ties @ self.prices) / self.precision
        before = self.between, self.scale
        self._spreads(weights * self.scale, shares)
        moved = [*np.abs(step), *np.abs(np.log(before) - np.log((self.between, self.scale)))]
        return bool(max(moved) > _STILL)

    def _by_pair(self, values: Array) -> Array:
        return np.bincount(self.of, values, len(self.names)).astype(np.float64)

    def _errors(self) -> Array:
        guessed = np.log(self.amounts @ np.exp(self.prices)) + self.factors[self.of]
        errors: Array = self.logs - guessed
        return errors

    def _spreads(self, trust: Array, shares: Array) -> None:
        lean = self.ties / self.precision[:, None]
        unsure = 1 / self.precision + np.einsum("gi,ij,gj->g", lean, self.covariance, lean)
        self.between = (_BETWEEN_COUNTS * _BETWEEN**2 + float(np.sum(self.factors**2 + unsure))) / (
            _BETWEEN_COUNTS + len(self.names)
        )
        errors = self._errors() ** 2 * trust + self._unsure(shares)
        stated = _WITHIN_COUNTS * _WITHIN**2
        self.scale = (stated + float(errors.sum())) / (_WITHIN_COUNTS + len(errors))

    def _unsure(self, shares: Array) -> Array:
        """(n,): how uncertain each timing's own expectation is, as a variance."""
        lean = shares - (self.ties / self.precision[:, None])[self.of]
        found: Array = 1 / self.precision[self.of] + np.einsum(
            "ni,ij,nj->n", lean, self.covariance, lean
        )
        return found

    def model(self, doubt: float) -> CostModel:
        triples = zip(self.factors.tolist(), self.precision.tolist(), self.ties, strict=True)
        return CostModel(
            log_prices=self.prices,
            covariance=self.covariance,
            factors=dict(zip(self.names, (_Factor(*triple) for triple in triples), strict=True)),
            between=self.between,
            chance=self._chance(),
            doubt=doubt,
            timings=len(self.logs),
        )

    def _chance(self) -> Chance:
        """Of the timings, and of what was stated before them."""
        counts = _WITHIN_COUNTS + len(self.logs)
        if not self.names:
            return Chance(math.exp(_WITHIN**2 / 2), math.expm1(_WITHIN**2), 0.0)
        ratios = np.exp(self._errors())
        mean = (_WITHIN_COUNTS * math.exp(_WITHIN**2 / 2) + float(ratios.sum())) / counts
        blurred = self._unsure(_shares(self.amounts, self.prices)).sum()  # fitted ratios are tame
        squares = float(((ratios / mean - 1) ** 2).sum() + blurred)
        variance = (_WITHIN_COUNTS * math.expm1(_WITHIN**2) + squares) / counts
        return Chance(mean, variance, variance / counts)
