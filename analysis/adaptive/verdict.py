"""What draws of the curve say of an answer: which K can be it, and how likely it is far off."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lp_sweep.analysis.adaptive.posterior import Draws

Array = npt.NDArray[Any]

TOLERANCE = 0.5  # points: an answer that is off by less is as good
# a K can be the answer unless its own loss is too large in all but this share of the draws ...
_ITSELF = 0.04
# ... or that of a larger K is small enough in all but this share; less, since it is the best
# looking of several. Both together leave 90%: `benchmarks/adaptive.py` counts it.
_LARGER = 0.02


class Verdict(NamedTuple):
    """Of K as the answer. `risk`: the share of draws in which it is off by more than the
    tolerance; `blame`: for each K, the share in which that is where the error lies."""

    risk: float
    blame: Mapping[int, float]


def verdict(draws: Draws, answer: int, delta: float) -> Verdict:
    """The loss of the answer is above delta by more than the tolerance, or that of a larger K is
    below it by more."""
    ks = np.array(draws.ks)
    off = (draws.losses > delta + TOLERANCE) & (ks == answer)
    off |= (draws.losses < delta - TOLERANCE) & (ks > answer)
    shares = off.mean(axis=0).tolist()
    return Verdict(float(off.any(axis=1).mean()), dict(zip(draws.ks, shares, strict=True)))


def credible(draws: Draws, answer: int, allowed: float | Array) -> tuple[int, ...]:
    """The K that can be the largest within the allowed loss, ascending: the answer, and those that
    no tail of the draws rules out. `allowed`: points, one for all draws or one for each.

    A K that was not run is in the set where a dip (`posterior.DIP`) would make it the answer.

    Not the likeliest K that add up to 90%: the largest of many K that may pass is found too large
    in most draws, as in any sample, and such a set leaves the truth out too often.
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
