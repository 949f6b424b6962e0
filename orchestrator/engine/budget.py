"""Counts the hours by the clock that a run has used, and stops it at its limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from lp_sweep.orchestrator.engine.workqueue import WorkQueue
from lp_sweep.trials.worker.job import announce

_GRACE_SECONDS = 30.0  # for trials to end, or to write their checkpoints


class Budget:
    """`max_hours`: None is no limit; the clock starts here."""

    def __init__(
        self, max_hours: float | None = None, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_hours, self._now, self._begun = max_hours, now, now()

    @property
    def hours(self) -> float:
        """Used until now."""
        return (self._now() - self._begun) / 3600

    @property
    def spent(self) -> bool:
        return self._max_hours is not None and self.hours >= self._max_hours


class BudgetStop:
    """Ends a run at its budget: nothing more is handed out, and live trials have half a minute.
    `everywhere(function, ...)` calls a function on each node; trials look for the announcement in
    the node's `cache_dir`."""

    def __init__(
        self,
        queue: WorkQueue,
        budget: Budget,
        cache_dir: Path,
        everywhere: Callable[..., object],
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queue, self._budget, self._cache_dir = queue, budget, cache_dir
        self._everywhere, self._now = everywhere, now
        self._end: float | None = None  # of the grace period

    def reached(self) -> bool:
        """Called often during a run: whether live trials must end."""
        if self._end is None:
            if not self._budget.spent:
                return False
            self._queue.stop("max-hours")
            if self._queue.live:
                self._everywhere(announce, self._cache_dir, _GRACE_SECONDS)
            self._end = self._now() + _GRACE_SECONDS
        return not self._queue.live or self._now() >= self._end
