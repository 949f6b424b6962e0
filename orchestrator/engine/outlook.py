"""Tells when a run ends, from its queue and its pace: seconds, and their band.

Each announcement of the run asks for it. The band sums over all kinds of work that are left, so it
is computed every few seconds at most. Other threads call it as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from time import monotonic

from lp_sweep.orchestrator.engine.backlog import Backlog
from lp_sweep.orchestrator.estimate.estimate import Rates
from lp_sweep.orchestrator.estimate.pace import Eta, Pace
from lp_sweep.orchestrator.estimate.timings import Span
from lp_sweep.orchestrator.plan.plan import Plan, Work

_BAND_SECONDS = 5.0  # between two looks at all that is left


class Outlook:
    """`live`: the work that was handed out and has not ended."""

    def __init__(
        self,
        backlog: Backlog,
        rates: Rates,
        pace: Pace,
        live: Mapping[str, Work],
        *,
        now: Callable[[], float] = monotonic,
    ) -> None:
        self._backlog, self._rates, self._pace, self._live = backlog, rates, pace, live
        self._now = now
        self._searching = False
        self._scale: Span | None = None
        self._looked = -_BAND_SECONDS

    def follow(self, plan: Plan) -> None:
        """Follows a newer plan. While a search may ask for more, its end is the latest one."""
        self._searching = any(cell.search == "waiting" for cell in plan.cells)
        self._looked = -_BAND_SECONDS

    def started(self, work: Work) -> None:
        """A piece starts, or starts again."""
        self._pace.started(work.id)

    def ended(self, work: Work, *, done: bool) -> float:
        """Seconds since the piece started. A failure does not show how long work takes."""
        elapsed = self._pace.elapsed(work.id)
        estimated = self._rates.seconds(work) if done else None
        self._pace.ended(work.id, self._rates.kind(work), estimated)
        return elapsed

    def remaining_seconds(self) -> float:
        """Slot-seconds of all that is waiting or live, by the estimate."""
        return self._backlog.seconds() + sum(map(self._rates.seconds, [*self._live.values()]))

    def eta(self) -> Eta:
        """With its band, unless the run is later than that. Work that waits for a network or a
        profile counts as sure as work that can begin."""
        scale = self._scale_now()
        if scale is None:
            return Eta()
        expected, low, high = (self._ends(factor) for factor in scale)
        if self._searching:
            return Eta(expected, high=expected)
        return Eta(expected, low, high) if high else Eta(expected)

    def _ends(self, scale: float | None) -> float | None:
        live = [(work.id, self._rates.seconds(work)) for work in [*self._live.values()]]
        backlog = self._backlog
        waiting = backlog.seconds() - backlog.alone
        return self._pace.seconds_left(
            live, waiting, backlog.longest(), backlog.alone, 1.0 if scale is None else scale
        )

    def _scale_now(self) -> Span | None:
        now = self._now()
        if self._scale is None or now - self._looked >= _BAND_SECONDS:
            self._looked = now
            left = Counter(self._backlog.kinds())
            left.update(map(self._rates.kind, [*self._live.values()]))
            self._scale = self._pace.scale(self._rates, left)
        return self._scale
