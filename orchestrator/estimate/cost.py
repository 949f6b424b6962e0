"""What the missing work takes on a cluster: wall time, and money at the prices in its file.

It counts every worker that may come, from the start of the run to its end. Pure arithmetic: nothing
is looked up, and no boot and no idle time is in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from lp_sweep.orchestrator.cluster.clusterfile import ClusterFile, Kind
from lp_sweep.orchestrator.estimate.estimate import Estimate


class Band(NamedTuple):
    """An expected value; in 80% of all cases it is from `low` to `high`. Both are None where
    `expected` is the most that it can be."""

    expected: float
    low: float | None
    high: float | None

    def times(self, factor: float) -> Band:
        return Band(
            factor * self.expected,
            None if self.low is None else factor * self.low,
            None if self.high is None else factor * self.high,
        )


class Cost(NamedTuple):
    """On a cluster at its largest. `machines`: kind -> how many, with the head; `hours` of wall
    time; `per_hour`: what all machines cost, in the currency of the file; None, as is `price`,
    where the file lacks the prices of the kinds in `unpriced`."""

    file: ClusterFile
    slots: int
    machines: dict[str, int]
    same_device: bool  # as the estimate is of: both GPUs, or both CPUs
    hours: Band
    per_hour: float | None
    unpriced: tuple[str, ...]

    @property
    def price(self) -> Band | None:
        return None if self.per_hour is None else self.hours.times(self.per_hour)


def cost(
    estimate: Estimate,
    file: ClusterFile,
    workers: Sequence[Kind],
    *,
    slots: int,
    on_gpu: bool,
) -> Cost:
    """`workers`: a kind for each machine, as often as there are such; `slots` of them and the head
    together, on GPUs or not."""
    machines = [*(kind for kind in file.kinds if kind.head), *workers]
    prices = [kind.price for kind in machines if kind.price is not None]
    unpriced = tuple(dict.fromkeys(kind.name for kind in machines if kind.price is None))
    return Cost(
        file,
        slots,
        dict(Counter(kind.name for kind in machines)),
        on_gpu == estimate.on_gpu,
        _wall(estimate, slots),
        None if unpriced else sum(prices),
        unpriced,
    )


def _wall(estimate: Estimate, slots: int) -> Band:
    if not estimate.hours:
        return Band(0.0, 0.0, 0.0)
    whole = Band(estimate.hours, estimate.low_hours, estimate.high_hours)
    return whole.times(estimate.wall_hours(slots) / estimate.hours)
