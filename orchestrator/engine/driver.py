"""Runs the missing work of a plan on an engine.

`run_sweep` is idempotent: it skips what the store has, and continues what was interrupted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, Protocol

from lp_sweep.orchestrator.engine.course import Budget, Course, StopSignals
from lp_sweep.orchestrator.engine.progress import Facts, Reporter
from lp_sweep.orchestrator.engine.recorder import Recorder, Sources, blocked_by
from lp_sweep.orchestrator.engine.runoptions import RunOptions
from lp_sweep.orchestrator.engine.workqueue import WorkQueue
from lp_sweep.orchestrator.estimate.estimate import Rates
from lp_sweep.orchestrator.plan.plan import Plan, Work
from lp_sweep.orchestrator.plan.planning import make_plan
from lp_sweep.orchestrator.plan.selection import Selection
from lp_sweep.orchestrator.sweepfile.load import is_part
from lp_sweep.storage import underway
from lp_sweep.storage.errors import StoreError
from lp_sweep.storage.redact import redact_command
from lp_sweep.storage.runs import Presence
from lp_sweep.storage.store import Store


class Engine(Protocol):
    """Where trials run."""

    def run(self, course: Course, signals: StopSignals) -> None:
        """Run the queue's work until nothing is left or `queue.stopped` says why it ends. Arms the
        signals once there is a clean way out. Raises PreflightError and StoreError before the
        first trial."""

    def everywhere(self, function: Callable[..., Any], *arguments: Any) -> Mapping[str, Any]:
        """Run a plain function on each node. Returns node -> its result."""


def engine_for(options: RunOptions, at_the_end: ExitStack) -> Engine:
    if options.inline:
        from lp_sweep.orchestrator.engine.inline import Inline

        return Inline()
    from lp_sweep.orchestrator.engine.connection import OnRay

    return OnRay(options.address or os.environ.get("RAY_ADDRESS"), at_the_end)


def _run(course: Course, engine: Engine) -> None:
    queue, reporter, presence = course.queue, course.reporter, course.presence
    course.everywhere = engine.everywhere
    with StopSignals().caught() as signals, presence.announced():
        queue.claims = presence
        others = presence.others()
        if not others:
            underway.forget(queue.store)
        for run in others:
            shared = f"another run uses this store, and this one shares the work: {run.sentence()}"
            course.meet(run, shared)
        try:
            engine.run(course, signals)
        except KeyboardInterrupt:
            queue.stop((signals.received or ["SIGINT"])[0])
        finally:
            reporter.closed()


def run_sweep(
    plan: Plan,
    rates: Rates,
    store: Store,
    options: RunOptions,
    reporter: Reporter,
    *,
    budget: Budget,
    at_the_end: ExitStack,
    selection: Selection | None = None,
) -> WorkQueue:
    """Run the missing work; returns its queue, with the plan of how things are. What can wait until
    the result is told, such as leaving Ray, is left to `at_the_end`. Raises PreflightError where no
    cluster can be used, and StoreError if the store refuses before the first trial; later that only
    stops the run."""
    recorder = Recorder(
        store,
        part=is_part(options.overrides),
        overrides=redact_command(options.overrides),
        command=redact_command(options.command),
    )
    recorder.cells(plan)

    def replanned(newer: Plan) -> None:
        recorder.cells(newer)
        sources.hold(newer)
        reporter.planned(newer)

    def blocked(work: Work, need: str) -> None:
        loss = blocked_by(need)
        recorder.lost(work, loss, final=True)
        told = f"{loss.error_type}: {loss.message}"
        reporter.ended(work.id, "failed", told, Facts(error_type=loss.error_type))

    queue = WorkQueue(
        plan,
        store,
        rates,
        replanned,
        selection=selection,
        on_blocked=blocked,
        on_idle=lambda need: sources.release([need]),
    )
    presence = Presence(store, plan.sweep.name, queue.progress)
    sources = Sources(store, presence, keep_best=plan.sweep.spec.keep == "best")
    if not queue.open:
        if queue.failed:
            queue.plan = make_plan(plan.sweep, queue.known())
        sources.release_idle(queue.plan)
        presence.others()
        presence.tidy()
        return queue
    reporter.planned(plan)
    if again := plan.trained_again():
        reporter.note(
            f"{len(again)} finished trials are trained again: their networks were not kept, and "
            "other trials or measurements need them. Their records stay"
        )
    sources.hold(plan)
    course = Course(queue, recorder, reporter, options, presence, budget)
    _run(course, engine_for(options, at_the_end))
    queue.plan = make_plan(queue.plan.sweep, queue.known())
    if queue.stopped != "store":
        try:
            recorder.cells(queue.plan)
            sources.release_idle(queue.plan)
        except StoreError as error:
            queue.stop("store", str(error))
    return queue
