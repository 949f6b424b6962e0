"""The search over a grid whose every score is known: what it would have asked for, and said.

For benchmarks and tests, and to see on a store's own grid what fewer trials would have answered.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from lp_sweep.analysis.adaptive.posterior import Pair, Scores
from lp_sweep.analysis.adaptive.search import Answer, Curve, next_step


class Replay(NamedTuple):
    """`trials`: the pairs in the order in which they were asked for; `rounds`: how many batches."""

    answers: tuple[Answer, ...]
    trials: tuple[Pair, ...]
    rounds: int


def replay(grid: Scores, deltas: Collection[float], *, failing: Iterable[Pair] = ()) -> Replay:
    """`grid`: (K, seed) -> points of every pair; the pairs of `failing` never give a score. Seeds
    are used in ascending order."""
    ks, seeds = (tuple(sorted({pair[part] for pair in grid})) for part in (0, 1))
    fails = {*failing}
    points: dict[Pair, float] = {}
    failed: set[Pair] = set()
    rounds = 0
    while True:
        curve = Curve(ks=ks, seeds=seeds, points=points, failed=frozenset(failed))
        step = next_step(curve, deltas)
        if not step.ask:
            return Replay(step.answers, (*points, *failed), rounds)
        rounds += 1
        failed |= fails & {*step.ask}
        points |= {pair: grid[pair] for pair in step.ask if pair not in fails}
