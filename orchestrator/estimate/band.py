"""How sure the end of a run is: the 80% band around the seconds that are left.

Before a run the band is that of its estimate (`CostModel.total`). While it goes on, its pace, which
is what ended pieces took over what they were estimated to take, corrects the estimate of the rest
(`Pace`). What both share is right then, however wrong the estimate was; what stays unsure is what
they do not share: other prices weigh in the rest than in what has ended, other pairs of model and
task, and the chance of the trials of either (delta method).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from lp_sweep.orchestrator.estimate.costmodel import FLOOR, Z80, CostModel, Pair
from lp_sweep.orchestrator.estimate.workload import Terms

Pieces = Mapping[tuple[Terms, Pair], float]  # of each kind, how many


def spread(model: CostModel, left: Pieces, ended: Pieces) -> float:
    """The factor, 1 or more, that the seconds of the pieces `left` are within in 80% of all cases,
    after the run has seen others end."""
    total = model.total(left)
    if not total.seconds:
        return 1.0
    before = total.high / total.seconds
    if not ended:
        return before
    ours, theirs = model.pull(left), model.pull(ended)
    factors = {
        pair: ours.factors.get(pair, 0.0) - theirs.factors.get(pair, 0.0)
        for pair in ours.factors.keys() | theirs.factors.keys()
    }
    variance = (
        model.common_variance(ours.prices - theirs.prices, factors)
        + model.chance.variance * (ours.own + theirs.own)
        + FLOOR**2
    )
    return min(before, math.exp(Z80 * math.sqrt(variance)))
