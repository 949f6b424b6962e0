"""When a run ends: its estimate, corrected by the pace of this run; and how times are written.

The driver's thread calls it, and another thread reads it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, NamedTuple

from lp_sweep.orchestrator.estimate.timings import Pair, Ratios, Span, added
from lp_sweep.storage.printable import clock

if TYPE_CHECKING:
    from lp_sweep.orchestrator.estimate.estimate import Kind, Rates

_UNITS = (("h", 3600.0), ("min", 60.0), ("s", 1.0))


class Pace:
    """`measured`: whether the estimates use timings. Otherwise the end is unknown until the first
    trial ends."""

    def __init__(self, *, measured: bool, now: Callable[[], float] = time.monotonic) -> None:
        self.slots = 0
        self._measured, self._now = measured, now
        self._ratios = Ratios(known=[1.0] if measured else [])
        self._begun: dict[str, float] = {}

    def started(self, id_: str) -> None:
        """Starts a trial's clock; a second start resets it."""
        self._begun[id_] = self._now()

    def elapsed(self, id_: str) -> float:
        """Seconds since the start of a running trial."""
        return self._now() - self._begun.get(id_, self._now())

    def ended(self, id_: str, kind: Kind, estimated: float | None) -> None:
        """`estimated`: its expected seconds; None after a failure, which does not count."""
        if id_ in self._begun and estimated:
            self._ratios.add(kind.pair, self.elapsed(id_) / estimated)
        self._begun.pop(id_, None)

    def scale(self, rates: Rates, left: Mapping[Kind, float]) -> Span | None:
        """Actual over estimated seconds of the remaining work; None while unknown. The band is no
        wider than the estimate's."""
        if not (self._ratios or self._measured):
            return None
        estimated = rates.by_pair(left)
        total = added(estimated.values()).expected
        if not total:
            return Span(*self._ratios.of((None, None)))
        return added(self._corrected(*item) for item in estimated.items()).times(1 / total)

    def _corrected(self, pair: Pair, span: Span) -> Span:
        ratio = self._ratios.of(pair)
        assert span.low is not None
        assert span.high is not None
        return Span(
            span.expected * ratio.median,
            max(span.expected * ratio.low, span.low * ratio.median),
            min(span.expected * ratio.high, span.high * ratio.median),
        )

    def seconds_left(
        self,
        live: Collection[tuple[str, float]],
        waiting: float,
        longest: float,
        alone: float = 0.0,
        scale: float = 1.0,
    ) -> float | None:
        """Seconds until the last trial ends; None before the slots are known. `live`: running
        trials with their estimates; `waiting`: slot-seconds of the rest, the longest of which takes
        `longest`; `alone`: seconds of what runs afterwards, one at a time."""
        if not self.slots:
            return None
        left = [max(0.0, scale * seconds - self.elapsed(id_)) for id_, seconds in live]
        beside = max((sum(left) + scale * waiting) / self.slots, scale * longest, *left, 0.0)
        return beside + scale * alone


class Eta(NamedTuple):
    """Seconds until the end, with a band. All three are None at the start of a run without timings;
    `low` is None while a search may end earlier."""

    seconds: float | None = None
    low: float | None = None
    high: float | None = None

    def text(self) -> str:
        """`1:05:03 (50:12 to 1:24:20)`, `at most 1:05:03`, `1:05:03`, or `--`."""
        if self.low is None and self.high is not None:
            return f"at most {clock(self.high)}"
        if self.low is None or self.high is None:
            return clock(self.seconds)
        return f"{clock(self.seconds)} ({clock(self.low)} to {clock(self.high)})"


def duration(hours: Span) -> str:
    """`3 min (1 to 13)`, or `3 min` without a band."""
    seconds = hours.times(3600)
    unit, size = next((unit for unit in _UNITS if seconds.expected >= 1.5 * unit[1]), _UNITS[-1])
    expected, *ends = (None if end is None else two_digits(end / size) for end in seconds)
    return f"{expected} {unit}" + ("" if None in ends else " ({} to {})".format(*ends))


def two_digits(value: float) -> str:
    """`0.034`, `1.2`, `340`: an estimate is no better."""
    if not value:
        return "0"
    return f"{value:,.{max(0, 1 - math.floor(math.log10(value)))}f}"
