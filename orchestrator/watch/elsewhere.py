"""Scores of the trials that other runs have brought to the store meanwhile, for a run's display."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping

from lp_sweep.orchestrator.engine.workqueue import WorkQueue
from lp_sweep.orchestrator.plan.known import points_of
from lp_sweep.storage.errors import StoreError

_LOOK_SECONDS = 5.0  # between two looks


class Elsewhere:
    """Called by the painter's thread, which a store that is away must not keep."""

    def __init__(self) -> None:
        self._read: set[str] = set()
        self._looked = 0.0

    def scores(self, queue: WorkQueue) -> Mapping[str, float]:
        """Of trials that were not told before, in points."""
        new = queue.history.done_elsewhere - self._read
        if not new or time.monotonic() - self._looked < _LOOK_SECONDS:
            return {}
        self._looked = time.monotonic()
        store = copy.copy(queue.store)
        store.patience = 0
        try:
            rows = store.read_all("trials", new, ("trial_id", "last")).rows
        except StoreError:
            return {}
        self._read |= new
        return points_of(rows)
