"""Ends a run that has used what it may: nothing more is handed out, and trials have half a minute
to end, or to write their checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lp_sweep.orchestrator.engine.budget import Budget
from lp_sweep.orchestrator.engine.everynode import on_each_node
from lp_sweep.orchestrator.engine.workqueue import WorkQueue
from lp_sweep.trials.job import announce

_GRACE_SECONDS = 30.0


class BudgetUsed(KeyboardInterrupt):
    """Ends the fit as Ctrl-C does; Tune would swallow an ordinary exception."""


class BudgetStop:
    """`cache_dir`: of each node, where trials look for the announcement."""

    def __init__(
        self,
        queue: WorkQueue,
        budget: Budget | None,
        cache_dir: Path,
        *,
        on_nodes: Callable[..., Any] = on_each_node,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queue, self._budget, self._cache_dir = queue, budget, cache_dir
        self._on_nodes, self._now = on_nodes, now
        self._end: float | None = None  # of the grace

    def check(self) -> None:
        """Asked often, while the run goes on. Raises BudgetUsed at the end of the grace."""
        if self._end is None:
            if self._budget is None or not (limit := self._budget.reached()):
                return
            self._queue.stopped = self._queue.stopped or limit
            if self._queue.live:
                self._on_nodes(announce, self._cache_dir, _GRACE_SECONDS)
            self._end = self._now() + _GRACE_SECONDS  # from when they know
        if not self._queue.live or self._now() >= self._end:
            raise BudgetUsed
