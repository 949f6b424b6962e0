"""When a run ends: its estimate, corrected by the pace of this run; and times with their bands.

The driver's thread calls `Pace`, and another thread reads it.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import NamedTuple

import numpy as np

from lp_sweep.storage.printable import clock

_UNITS = (("h", 3600.0), ("min", 60.0), ("s", 1.0))
_BAND = (0.1, 0.9)  # quantiles
_STATED = (0.5, 2.0)  # two more ratios, times the median, so that few timings give a wide band
_LEAST = 1.1  # the band is at least this factor on either side
_NEWEST = 200  # trials of a run whose pace counts


class Span(NamedTuple):
    """An expected value and its band. Without a band it is an upper limit."""

    expected: float
    low: float | None = None
    high: float | None = None

    def times(self, factor: float) -> Span:
        return Span(*(None if end is None else factor * end for end in self))  # type: ignore[arg-type]


def band(ratios: Sequence[float]) -> Span:
    """The median of ratios of actual to expected seconds, and its band."""
    median = float(np.median(ratios))
    low, high = np.quantile([*ratios, *(median * stated for stated in _STATED)], _BAND)
    return Span(median, min(float(low), median / _LEAST), max(float(high), median * _LEAST))


def duration(hours: Span) -> str:
    """`3 min (1 to 13)`, or `3 min` without a band."""
    seconds = hours.times(3600)
    unit, size = next((unit for unit in _UNITS if seconds.expected >= 1.5 * unit[1]), _UNITS[-1])
    expected, *ends = (None if end is None else _two_digits(end / size) for end in seconds)
    return f"{expected} {unit}" + ("" if None in ends else " ({} to {})".format(*ends))


def _two_digits(value: float) -> str:
    """`0.034`, `1.2`, `340`: an estimate is no better."""
    if not value:
        return "0"
    return f"{value:,.{max(0, 1 - math.floor(math.log10(value)))}f}"


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


class Pace:
    """Estimates when a run ends, with a band. `ratio`: of the store's timings. Without it the end
    is unknown until the first trial ends."""

    def __init__(self, ratio: Span | None, *, now: Callable[[], float] = time.monotonic) -> None:
        self.slots = 0
        self.searching = False  # a search may ask for more: the estimate is an upper bound
        self._ratio, self._now = ratio, now
        self._ratios: deque[float] = deque(maxlen=_NEWEST)
        self._used = 0.0  # slot-seconds of ended work
        self.running: dict[str, tuple[int, float]] = {}  # work -> its slot, and when it began

    def started(self, id_: str) -> int:
        """Starts the clock of work; returns its slot. Work that starts again keeps both."""
        taken = {slot for slot, _ in self.running.values()}
        free = next(slot for slot in count() if slot not in taken)
        return self.running.setdefault(id_, (free, self._now()))[0]

    def elapsed(self, id_: str) -> float:
        """Seconds since the start of running work."""
        now = self._now()
        return now - self.running.get(id_, (0, now))[1]

    def ended(self, id_: str, estimated: float | None) -> bool:
        """Returns whether the work had started. `estimated`: None after a failure, which does not
        show how long such a trial takes."""
        elapsed = self.elapsed(id_)
        self._used += elapsed
        if started := self.running.pop(id_, None):
            self._ratios += [elapsed / estimated] if estimated else []
        return started is not None

    def slot_hours(self) -> float:
        """Used until now, by live work as well."""
        return (self._used + sum(map(self.elapsed, [*self.running]))) / 3600

    def scale(self) -> Span | None:
        """Actual over estimated seconds; None while unknown."""
        if ratios := [*self._ratios]:
            return band(ratios)
        return self._ratio and self._ratio.times(1 / self._ratio.expected)

    def eta(
        self, live: Mapping[str, float], seconds: float, longest: float, alone: float = 0.0
    ) -> Eta:
        """The time left with its band, unless the run is later than that. Blocked work counts as if
        it were sure to run. All in estimated slot-seconds: `live`, of running trials; `seconds`, of
        the work that has not begun, the longest of which takes `longest`; `alone`, of what runs
        afterwards, one at a time."""
        scale = self.scale()
        if scale is None or not self.slots:
            return Eta()

        def left(factor: float) -> float:
            running = [max(0.0, factor * took - self.elapsed(id_)) for id_, took in live.items()]
            shared = (sum(running) + factor * seconds) / self.slots
            return max(shared, factor * longest, *running, 0.0) + factor * alone

        expected, low, high = (left(factor or 1.0) for factor in scale)
        if self.searching:
            return Eta(expected, high=expected)
        return Eta(expected, low, high) if high else Eta(expected)
