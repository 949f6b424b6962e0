"""How much faster one function is than another, from runs that take turns.

Two consecutive runs see the same load of the machine, so their ratio hardly depends on it. Only
statistics over two functions that return their times; knows no network and no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


class RunTime(NamedTuple):
    """One run, in milliseconds. Ratios are of `ms`."""

    ms: float
    wall_ms: float


_Run = Callable[[], RunTime]
_Pair = tuple[RunTime, RunTime]  # full, pruned


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How many runs: `pairs`, and more until the standard error of the speed-up is at most `error`
    of it, but not more than `most` or than `again` seconds: beside other work it may never be.
    After `seconds` of pairs, and a sixth of that of warm-ups, only `fewest` are taken: a slow step
    is steady after few."""

    warm_ups: int = 10
    pairs: int = 10
    most: int = 500
    error: float = 0.01
    seconds: float = 60.0
    again: float = 10.0
    fewest: int = 5


RULE = Rule()


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Medians; `speedup` is that of the ratios full / pruned of the pairs."""

    full_ms: float
    pruned_ms: float
    full_wall_ms: float
    pruned_wall_ms: float
    speedup: float
    speedup_q25: float
    speedup_q75: float
    pairs: int
    rounds: int = 1  # earlier records have up to three, of which they tell the steadiest


def compare(full: _Run, pruned: _Run, rule: Rule = RULE) -> Comparison:
    """Takes pairs until they are enough by the rule."""
    _take_turns(full, pruned, rule.warm_ups, lambda pairs: _seconds(pairs) >= rule.seconds / 6)

    def enough(pairs: Sequence[_Pair]) -> bool:
        seconds = _seconds(pairs)
        if len(pairs) < rule.pairs:
            return len(pairs) >= rule.fewest and seconds >= rule.seconds
        return seconds >= rule.again or _error(_ratios(pairs)) <= rule.error

    pairs = _take_turns(full, pruned, rule.most, enough)
    medians = np.median(np.array(pairs), axis=0)  # full and pruned, by the clock and on the wall
    low, middle, high = np.percentile(_ratios(pairs), (25, 50, 75))
    return Comparison(
        full_ms=float(medians[0, 0]),
        pruned_ms=float(medians[1, 0]),
        full_wall_ms=float(medians[0, 1]),
        pruned_wall_ms=float(medians[1, 1]),
        speedup=float(middle),
        speedup_q25=float(low),
        speedup_q75=float(high),
        pairs=len(pairs),
    )


def _ratios(pairs: Sequence[_Pair]) -> np.ndarray:
    return np.array([full.ms / pruned.ms for full, pruned in pairs])


def _error(ratios: np.ndarray) -> float:
    """The standard error of the median as a share of it, for normal ratios: 1.2533 standard
    deviations over the root of their number, and the interquartile range is 1.349 deviations."""
    low, middle, high = np.percentile(ratios, (25, 50, 75))
    return float(1.2533 / 1.349 * (high - low) / len(ratios) ** 0.5 / middle)


def _seconds(pairs: Sequence[_Pair]) -> float:
    return sum(took.wall_ms for pair in pairs for took in pair) / 1e3


def _take_turns(
    full: _Run, pruned: _Run, most: int, enough: Callable[[Sequence[_Pair]], bool]
) -> list[_Pair]:
    """Every other pair begins with the pruned network, so that neither always profits from what the
    first run leaves behind, such as a warm cache. At least one, if `most` allows it."""
    found: list[_Pair] = []
    while len(found) < most and not (found and enough(found)):
        if len(found) % 2:
            second, first = pruned(), full()
        else:
            first, second = full(), pruned()
        found.append((first, second))
    return found
