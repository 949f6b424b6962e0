"""Ray Tune's events, told to our reporter; a worker that died becomes a failed attempt."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from ray.tune import Callback

from lp_sweep.orchestrator.driver import record_lost
from lp_sweep.orchestrator.progress import Reporter
from lp_sweep.orchestrator.searcher import PlanSearcher
from lp_sweep.storage.store import Store


class ReportingCallback(Callback):  # type: ignore[misc]
    """Called in the driver's main thread, before the searcher hears of the same event."""

    def __init__(self, searcher: PlanSearcher, store: Store, reporter: Reporter) -> None:
        self.searcher, self.store, self.reporter = searcher, store, reporter

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune pickles its callbacks, and a live display holds a lock

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        work = self.searcher.works.get(trial.trial_id)
        if work is not None:
            self.reporter.started(work)

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        if "status" in result and trial.trial_id in self.searcher.works:
            failed = result["status"] == "failed"
            detail = str(result["message"]) if failed else _score(result)
            self.reporter.ended(result["id"], result["status"], detail)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        work = self.searcher.works.get(trial.trial_id)
        if work is None:
            return
        message = "the worker process was lost"
        with contextlib.suppress(OSError, TypeError):
            message = Path(trial.error_file).read_text(encoding="utf-8")
        record_lost(self.store, self.searcher.queue, work.id, message)
        self.reporter.ended(work.id, "failed", "the worker process was lost")


def _score(result: dict[str, Any]) -> str:
    if "last" not in result:
        return f"{result['seconds']:.0f} s"
    return f"{result['metric']} {100 * result['last']:.2f}, {result['seconds']:.0f} s"
