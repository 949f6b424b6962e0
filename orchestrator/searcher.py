"""Streams missing work into Ray Tune. Tune is the dispatcher; the store is the truth."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ray.tune.search import Searcher

from lp_sweep.orchestrator.plan import Work
from lp_sweep.orchestrator.workqueue import WorkQueue


class PlanSearcher(Searcher):  # type: ignore[misc]
    """`suggest` gives the longest missing piece, None while deferred cells hang on a running one,
    and FINISHED when nothing is left. Tune keeps the argument's name `trial_id`."""

    def __init__(self, queue: WorkQueue, transport: Mapping[str, Any]) -> None:
        super().__init__()
        self.queue = queue
        self.transport = dict(transport)  # store, cache folder, threads: not identity
        self.works: dict[str, Work] = {}  # Tune's trial -> ours; kept for the events that follow

    def suggest(self, trial_id: str) -> Any:
        work = self.queue.take()
        if work is not None:
            self.works[trial_id] = work
            return {"job": json.dumps({**work.job(), **self.transport})}
        # None with nothing live would block for ever
        return None if self.queue.live else Searcher.FINISHED

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        work = self.works.get(trial_id)
        if work is None or work.id not in self.queue.live:
            return
        if error or not result or "status" not in result:
            self.queue.ended(work.id, "worker_lost")
        else:
            failed = result["status"] == "failed"
            self.queue.ended(work.id, str(result["error_type"]) if failed else None)

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune pickles what it could restore; a plan of 100,000 cells is not for that

    def save(self, checkpoint_path: str) -> None:
        del checkpoint_path  # nothing of Tune's is ever restored

    def restore(self, checkpoint_path: str) -> None:
        del checkpoint_path
