"""How sure the end of a run is: the 80% band around the seconds that are left.

Before a run the band is that of its estimate (`CostModel.total`). While it goes on, its pieces that
have ended correct the estimate (`Pace`), and what they all share (the device is faster or slower,
a factor of a pair of model and task) becomes known: of a normal prior with variance v and m
observations with the variance c of a trial's own chance there stays 1 / (1/v + m/c). Pairs of which
the run has ended nothing keep the spread of their factors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from lp_sweep.orchestrator.estimate.costmodel import FLOOR, Z80, CostModel, Pair
from lp_sweep.orchestrator.estimate.workload import Terms


def spread(
    model: CostModel, left: Mapping[tuple[Terms, Pair], float], seen: Mapping[Pair, int]
) -> float:
    """The factor, 1 or more, that the seconds of the pieces `left` are within in 80% of all cases.
    `seen`: how many pieces of each pair the run has ended."""
    total = model.total(left)
    if not total.seconds:
        return 1.0
    before = (math.log(total.high / total.seconds) / Z80) ** 2
    chance = model.chance.variance
    shared = 1 / (1 / before + sum(seen.values()) / chance)
    unseen = own = 0.0
    for (terms, pair), count in left.items():
        share = model.seconds(terms, pair) / total.seconds
        unseen += 0.0 if seen.get(pair) else count * share
        own += count * share**2 * chance
    variance = min(before, shared + unseen**2 * model.between + own + FLOOR**2)
    return math.exp(Z80 * math.sqrt(variance))
