"""When a run ends: its estimate, corrected by the pace of this run.

The driver's thread calls it, and another thread reads it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from lp_sweep.orchestrator.estimate.span import Span, band
from lp_sweep.storage.printable import clock

if TYPE_CHECKING:
    from lp_sweep.orchestrator.estimate.estimate import Rates
    from lp_sweep.orchestrator.plan.plan import Plan

_NEWEST = 200  # trials of a run whose pace counts


class Pending(NamedTuple):
    """Estimated slot-seconds of the work that has not begun; the longest of it takes `longest`.
    `alone`: seconds of what runs afterwards, one at a time."""

    seconds: float
    longest: float
    alone: float = 0.0


class Pace:
    """Estimates when a run ends, with a band. Without timings in `rates`, the end is unknown until
    the first trial ends."""

    def __init__(self, rates: Rates, *, now: Callable[[], float] = time.monotonic) -> None:
        self.slots = 0
        self._rates, self._now = rates, now
        self._ratios: deque[float] = deque(maxlen=_NEWEST)
        self._begun: dict[str, float] = {}
        self._searching = False

    def follow(self, plan: Plan) -> None:
        """Follows a newer plan. While a search may ask for more, the estimate is an upper bound."""
        self._searching = any(cell.search == "waiting" for cell in plan.cells)

    def started(self, id_: str) -> None:
        """Starts a trial's clock; a second start resets it."""
        self._begun[id_] = self._now()

    def elapsed(self, id_: str) -> float:
        """Seconds since the start of a running trial."""
        return self._now() - self._begun.get(id_, self._now())

    def ended(self, id_: str, estimated: float | None) -> float:
        """Returns the seconds since the start. `estimated`: None after a failure, which does not
        show how long such a trial takes."""
        elapsed = self.elapsed(id_)
        if self._begun.pop(id_, None) is not None and estimated:
            self._ratios.append(elapsed / estimated)
        return elapsed

    def scale(self) -> Span | None:
        """Actual over estimated seconds; None while unknown."""
        if ratios := [*self._ratios]:
            return band(ratios)
        return (
            self._rates.ratio.times(1 / self._rates.ratio.expected) if self._rates.trials else None
        )

    def eta(self, live: Mapping[str, float], pending: Pending) -> Eta:
        """The time left with its band, unless the run is later than that. Blocked work counts as if
        it were sure to run. `live`: running trials with their estimates."""
        scale = self.scale()
        if scale is None or not self.slots:
            return Eta()
        left = (self._seconds_left(live, pending, factor or 1.0) for factor in scale)
        expected, low, high = left
        if self._searching:
            return Eta(expected, high=expected)
        return Eta(expected, low, high) if high else Eta(expected)

    def _seconds_left(self, live: Mapping[str, float], pending: Pending, scale: float) -> float:
        """Seconds until the last trial ends."""
        left = [max(0.0, scale * seconds - self.elapsed(id_)) for id_, seconds in live.items()]
        shared = (sum(left) + scale * pending.seconds) / self.slots
        return max(shared, scale * pending.longest, *left, 0.0) + scale * pending.alone


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
