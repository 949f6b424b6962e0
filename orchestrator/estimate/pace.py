"""When a run ends: its estimate, corrected by the pace of this run; and how times are written.

The driver's thread calls it, and another thread reads it.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from lp_sweep.orchestrator.estimate.timings import Pair, Ratios, Span, added
from lp_sweep.storage.printable import clock

if TYPE_CHECKING:
    from lp_sweep.orchestrator.estimate.estimate import Kind, Rates
    from lp_sweep.orchestrator.plan.plan import Plan

_UNITS = (("h", 3600.0), ("min", 60.0), ("s", 1.0))
_BAND_SECONDS = 5.0  # between two computations of the band


class Pending(NamedTuple):
    """Estimated slot-seconds of the work that has not begun; the longest of it takes `longest`.
    `alone`: seconds of what runs afterwards, one at a time."""

    seconds: float
    longest: float
    alone: float = 0.0


class Pace:
    """Estimates when a run ends, with a band. Without timings in `rates`, the end is unknown until
    the first trial ends. The band sums over all kinds of pending work, so it is computed every few
    seconds at most."""

    def __init__(self, rates: Rates, *, now: Callable[[], float] = time.monotonic) -> None:
        self.slots = 0
        self._rates, self._now = rates, now
        self._ratios = Ratios(known=[1.0] if rates.trials else [])
        self._begun: dict[str, float] = {}
        self._searching = False
        self._scale: Span | None = None
        self._looked = -_BAND_SECONDS

    def follow(self, plan: Plan) -> None:
        """Follows a newer plan. While a search may ask for more, the estimate is an upper bound."""
        self._searching = any(cell.search == "waiting" for cell in plan.cells)
        self._looked = -_BAND_SECONDS

    def started(self, id_: str) -> None:
        """Starts a trial's clock; a second start resets it."""
        self._begun[id_] = self._now()

    def elapsed(self, id_: str) -> float:
        """Seconds since the start of a running trial."""
        return self._now() - self._begun.get(id_, self._now())

    def ended(self, id_: str, kind: Kind | None) -> float:
        """Returns the seconds since the start. `kind`: None after a failure, which does not show
        how long such a trial takes."""
        elapsed = self.elapsed(id_)
        estimated = self._rates.seconds_of(kind) if kind else 0.0
        if self._begun.pop(id_, None) is not None and kind and estimated:
            self._ratios.add(kind.pair, elapsed / estimated)
        return elapsed

    def eta(
        self, live: Mapping[str, Kind], pending: Pending, kinds: Callable[[], Mapping[Kind, int]]
    ) -> Eta:
        """The time left with its band, unless the run is later than that. Blocked work counts as if
        it were sure to run. `live`: running trials; `kinds`: how much work of each kind waits."""
        if self._scale is None or self._now() - self._looked >= _BAND_SECONDS:
            self._looked = self._now()
            self._scale = self.scale(Counter(live.values()) + Counter(kinds()))
        if self._scale is None:
            return Eta()
        running = {id_: self._rates.seconds_of(kind) for id_, kind in live.items()}
        expected, low, high = (
            self.seconds_left(running, pending, 1.0 if factor is None else factor)
            for factor in self._scale
        )
        if self._searching:
            return Eta(expected, high=expected)
        return Eta(expected, low, high) if high else Eta(expected)

    def scale(self, left: Mapping[Kind, float]) -> Span | None:
        """Actual over estimated seconds of the remaining work; None while unknown. The band is no
        wider than the estimate's."""
        if not (self._ratios or self._rates.trials):
            return None
        estimated = self._rates.by_pair(left)
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
        self, live: Mapping[str, float], pending: Pending, scale: float = 1.0
    ) -> float | None:
        """Seconds until the last trial ends; None before the slots are known. `live`: running
        trials with their estimates."""
        if not self.slots:
            return None
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
