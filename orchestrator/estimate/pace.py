"""When a run ends: its estimate, corrected by what the run has seen so far.

The clock that the queue has not. Called by the driver's thread, read by another.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import NamedTuple

_WORTH = 1.0  # ended pieces that the estimate counts for, where it stands on the store's timings


class Pace:
    """`measured`: whether estimates stand on timings; else nothing is told before a first piece
    has ended."""

    def __init__(self, *, measured: bool, now: Callable[[], float] = time.monotonic) -> None:
        self.slots = 0
        self._measured, self._now = measured, now
        self._begun: dict[str, float] = {}
        self._ended, self._estimated, self._actual = 0, 0.0, 0.0

    def started(self, id_: str) -> None:
        """A piece that starts again counts from then."""
        self._begun[id_] = self._now()

    def elapsed(self, id_: str) -> float:
        """Seconds since a live piece started."""
        return self._now() - self._begun.get(id_, self._now())

    def ended(self, id_: str, estimated: float | None) -> None:
        """`estimated`: seconds that were expected; None for a failure, which says nothing."""
        if id_ in self._begun and estimated is not None:
            self._ended += 1
            self._estimated += estimated
            self._actual += self.elapsed(id_)
        self._begun.pop(id_, None)

    @property
    def factor(self) -> float | None:
        """Actual seconds over estimated ones."""
        if not self._estimated:
            return 1.0 if self._measured else None
        prior = self._estimated / self._ended * _WORTH if self._measured else 0.0
        return (self._actual + prior) / (self._estimated + prior)

    def seconds_left(
        self,
        live: Collection[tuple[str, float]],
        waiting: float,
        longest: float,
        alone: float = 0.0,
        scale: float = 1.0,
    ) -> float | None:
        """Until the last piece ends; None while that can't be said. `live`: identifiers with their
        estimates; `waiting`: slot-seconds of the rest, whose longest piece takes `longest`;
        `alone`: seconds of what runs after all that, one at a time; `scale`: were everything to
        take so many times as long."""
        if self.factor is None or not self.slots:
            return None
        factor = scale * self.factor
        left = [max(0.0, factor * seconds - self.elapsed(id_)) for id_, seconds in live]
        beside = max((sum(left) + factor * waiting) / self.slots, factor * longest, *left, 0.0)
        return beside + factor * alone


def clock(seconds: float | None) -> str:
    """`1:02:03`, `2:03`, or `--` when unknown."""
    if seconds is None:
        return "--"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Eta(NamedTuple):
    """Seconds until the end; in 80% of all cases from `low` to `high`. None while nobody can say:
    all three at the start of a run without timings, the band while a search may ask for more."""

    seconds: float | None = None
    low: float | None = None
    high: float | None = None

    def text(self) -> str:
        """`1:05:03 (80%: 50:12 to 1:24:20)`, `1:05:03`, or `--`."""
        if self.low is None or self.high is None:
            return clock(self.seconds)
        return f"{clock(self.seconds)} (80%: {clock(self.low)} to {clock(self.high)})"
