"""Ray Tune's events, turned into what they mean for the work: done, failed, lost, put back."""

from __future__ import annotations

import math
import time
from typing import Any

from ray.tune import Callback

from lp_sweep.orchestrator.engine.loss import Loss, loss_of
from lp_sweep.orchestrator.engine.progress import Facts, Reporter, told_of_measures
from lp_sweep.orchestrator.engine.searcher import PlanSearcher
from lp_sweep.orchestrator.plan.plan import Work
from lp_sweep.orchestrator.plan.policy import Limits
from lp_sweep.storage.errors import StoreError

_LOOK_SECONDS = 5.0  # between two looks at the nodes


class TooManyFailures(KeyboardInterrupt):
    """`--fail-fast`: ends the fit as Ctrl-C does; Tune would swallow an ordinary exception."""


class WorkCallback(Callback):  # type: ignore[misc]
    """Called in the driver's main thread."""

    def __init__(
        self, searcher: PlanSearcher, recorder: Any, reporter: Reporter, limits: Limits
    ) -> None:
        self.searcher, self.recorder, self.reporter = searcher, recorder, reporter
        self.limits = limits
        self._looked = time.monotonic()

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune pickles its callbacks, and a live display holds a lock

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        work = self.searcher.works.get(trial.trial_id)
        if work is not None:
            self.reporter.started(work)

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        work = self._live(trial)
        if work is None or "status" not in result:
            return
        queue, node = self.searcher.queue, result.get("node_id")
        if result["status"] == "failed":
            self._failed(work, str(result["error_type"]), str(result["message"]), node)
            return
        if result["status"] != "done":
            spooled = result["status"] == "spooled"
            queue.not_stored(work.id, str(result["message"]), spooled=spooled)
            self.reporter.ended(work.id, result["status"], str(result["message"]))
            return
        self.searcher.nodes.succeeded(node)
        self._keep_store_errors(lambda: queue.ended(work.id, None, result.get("measures_failed")))
        self.reporter.ended(work.id, "done", _score(result), _facts(result))

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """With the last good node gone, trials that keep away from the others would wait for ever:
        this ends the fit, and the next one takes the nodes that were set aside."""
        self.searcher.check()
        if time.monotonic() - self._looked < _LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        self.reporter.tick()
        if self.searcher.nodes.readmit():
            raise RuntimeError("the other nodes are gone, and those set aside are taken again")

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        work = self._live(trial)
        if work is not None:
            self.lost(work, loss_of(trial))

    def lost(self, work: Work, loss: Loss) -> None:
        """A worker that could not report: put the piece back while its type's budget lasts."""
        queue = self.searcher.queue
        put_back = False
        try:
            put_back = queue.lost(work.id, loss.error_type)
        except StoreError as error:  # of what waited for it
            queue.refused(str(error))
        self._keep_store_errors(lambda: self.recorder.lost(work, loss, final=not put_back))
        if put_back:
            self._blame(loss.node, work.id, loss.error_type)
            follows = "goes on elsewhere" if loss.error_type == "preempted" else "is tried again"
            told = f"{loss.error_type}; it {follows}"
            self.reporter.ended(work.id, "lost", told, Facts(error_type=loss.error_type))
            return
        self._count(work.id, loss.error_type, loss.message, loss.node)

    def _failed(self, work: Work, error_type: str, message: str, node: str | None) -> None:
        self._keep_store_errors(lambda: self.searcher.queue.ended(work.id, error_type))
        self._count(work.id, error_type, message, node)

    def _count(self, id_: str, error_type: str, message: str, node: str | None) -> None:
        """A failure for good, unless it is the node's."""
        told = f"{error_type}: {message}"
        self.reporter.ended(id_, "failed", told, Facts(error_type=error_type))
        self._blame(node, id_, error_type)
        queue = self.searcher.queue
        if not self.limits.reached(len(queue.history.failed)):
            return
        queue.stopped = queue.stopped or "failures"
        if self.limits.fail_fast:
            raise TooManyFailures

    def _blame(self, node: str | None, id_: str, error_type: str) -> None:
        known = node in self.searcher.nodes.set_aside
        again = self.searcher.nodes.failed(node, id_, error_type)
        self.searcher.queue.again(again)
        if again and node and not known:
            self.reporter.note(
                f"node {node[:8]} is set aside: {len(again)} different trials failed on it in a "
                f"row, the last with {error_type}; they are tried on other nodes"
            )

    def _live(self, trial: Any) -> Work | None:
        work = self.searcher.works.get(trial.trial_id)
        return work if work is not None and work.id in self.searcher.queue.live else None

    def _keep_store_errors(self, action: Any) -> None:
        """Tune would turn our error into one of its own."""
        try:
            action()
        except StoreError as error:
            self.searcher.queue.refused(str(error))


def _score(result: dict[str, Any]) -> str:
    lacks = told_of_measures(result.get("measures_failed") or {})
    if "last" not in result:
        return f"{result['seconds']:.0f} s"
    return f"{result['metric']} {100 * result['last']:.2f}, {result['seconds']:.0f} s{lacks}"


def _facts(result: dict[str, Any]) -> Facts:
    """A measurement has no score, nor has a trial whose metric is no number."""
    last = float(result["last"]) if result.get("last") is not None else math.nan
    score = 100 * last if math.isfinite(last) else None
    return Facts(result.get("metric"), score, result.get("seconds"))
