"""How much faster one function is than another, from runs that take turns.

Two consecutive runs see the same load of the machine, so their ratio hardly depends on it. Only
statistics over two functions that return their times; knows no network and no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
    """How many runs. `widest`: a round with a larger interquartile range, as a share of the median,
    is followed by another one with `pairs` more, up to `rounds` and `again` seconds in all: beside
    other work no round is narrow. After `seconds` of pairs, and a sixth of that of warm-ups, only
    `fewest` are taken: a slow step is steady after few."""

    warm_ups: int = 10
    pairs: int = 20
    rounds: int = 3
    widest: float = 0.05
    seconds: float = 60.0
    again: float = 10.0
    fewest: int = 5


RULE = Rule()


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Medians of a round; `speedup` is that of the ratios full / pruned of its pairs."""

    full_ms: float
    pruned_ms: float
    full_wall_ms: float
    pruned_wall_ms: float
    speedup: float
    speedup_q25: float
    speedup_q75: float
    pairs: int
    rounds: int = 1

    @property
    def width(self) -> float:
        """The interquartile range, as a share of the median."""
        return (self.speedup_q75 - self.speedup_q25) / self.speedup


def compare(full: _Run, pruned: _Run, rule: Rule = RULE) -> Comparison:
    """The first round that is narrow enough, else the narrowest."""
    _take_turns(full, pruned, rule.warm_ups, fewest=1, seconds=rule.seconds / 6)
    best: Comparison | None = None
    left = rule.again
    for number in range(1, rule.rounds + 1):
        seconds = rule.seconds if best is None else left
        pairs = _take_turns(full, pruned, number * rule.pairs, rule.fewest, seconds)
        found = _summary(pairs)
        best = found if best is None or found.width < best.width else best
        best = replace(best, rounds=number)
        left -= _seconds(pairs)
        if best.width <= rule.widest or left <= 0:
            break
    assert best is not None  # a rule has a round
    return best


def _seconds(pairs: Sequence[_Pair]) -> float:
    return sum(took.wall_ms for pair in pairs for took in pair) / 1e3


def _take_turns(full: _Run, pruned: _Run, pairs: int, fewest: int, seconds: float) -> list[_Pair]:
    """Every other pair begins with the pruned network, so that neither
    always profits from what the first run leaves behind, such as a warm cache."""
    found: list[_Pair] = []
    for number in range(pairs):
        if number >= fewest and _seconds(found) >= seconds:
            break
        if number % 2:
            second, first = pruned(), full()
        else:
            first, second = full(), pruned()
        found.append((first, second))
    return found


def _summary(pairs: Sequence[_Pair]) -> Comparison:
    times = np.array(pairs)  # (pairs, full and pruned, by the clock and on the wall)
    medians = np.median(times, axis=0)
    low, middle, high = np.percentile(times[:, 0, 0] / times[:, 1, 0], (25, 50, 75))
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
