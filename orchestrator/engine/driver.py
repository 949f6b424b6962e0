"""Runs the missing work of a plan, on Ray, in this process, or in some of this machine.

`run_sweep` is idempotent: it skips what the store has, and continues what was interrupted.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import ExitStack
from functools import partial

from lp_sweep.orchestrator.engine.course import (
    Budget,
    Course,
    Recorder,
    StopSignals,
    blocked_by,
)
from lp_sweep.orchestrator.engine.progress import Reporter
from lp_sweep.orchestrator.engine.runoptions import RunOptions
from lp_sweep.orchestrator.engine.workqueue import WorkQueue
from lp_sweep.orchestrator.estimate import Rates
from lp_sweep.orchestrator.plan.plan import Plan, Work
from lp_sweep.orchestrator.plan.planning import make_plan
from lp_sweep.orchestrator.plan.selection import Selection
from lp_sweep.orchestrator.sweepfile.load import is_part
from lp_sweep.storage.errors import StoreError
from lp_sweep.storage.networks import WEIGHTS, keep_while_needed, release
from lp_sweep.storage.redact import redact_command
from lp_sweep.storage.runs import Presence
from lp_sweep.storage.store import Store


class Sources:
    """Keeps the networks in a store while other work needs them, and releases them afterwards.

    While another run uses the store nothing is released, since it may need the same network; the
    last run does it. `keep_best`: keep what `keep: best` would. All methods raise StoreError."""

    def __init__(self, store: Store, presence: Presence, *, keep_best: bool) -> None:
        self.store, self.presence, self.keep_best = store, presence, keep_best

    def hold(self, plan: Plan) -> None:
        """Protects stored networks from a `keep: best` that would delete them."""
        for id_ in sorted(plan.needed_networks() & plan.known.networks):
            keep_while_needed(self.store, id_)

    def release(self, ids: Iterable[str]) -> None:
        """Releases networks that were kept only for other work."""
        if self.presence.others():
            return
        for id_ in sorted(ids):
            if row := self.store.find("trials", id_):
                release(self.store, row[0], keep_best=self.keep_best)

    def release_idle(self, plan: Plan) -> None:
        """Releases the networks that no work of the plan needs any more."""
        if idle := plan.sources() - plan.needed_networks():
            self.release(idle & self.store.folders(WEIGHTS))


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

    presence = Presence(store, plan.sweep.name, lambda: queue.progress())
    sources = Sources(store, presence, keep_best=plan.sweep.spec.keep == "best")

    def replanned(newer: Plan) -> None:
        recorder.cells(newer)
        sources.hold(newer)
        reporter.planned(newer)

    queue = WorkQueue(
        plan,
        store,
        rates,
        replanned,
        selection=selection,
        on_blocked=partial(_blocked, recorder, reporter),
        on_idle=lambda need: sources.release([need]),
    )
    if not queue.open:
        if queue.failed:
            queue.plan = make_plan(plan.sweep, queue.known())
        sources.release_idle(queue.plan)
        presence.others()
        presence.tidy()
        return queue
    reporter.planned(plan)
    _note_repeated(plan, reporter)
    sources.hold(plan)
    course = Course(queue, recorder, reporter, options, presence, budget)
    with StopSignals(budget).caught() as signals, presence.announced():
        queue.claims = presence
        course.meet_others()
        try:
            _on_engine(course, signals, at_the_end)
        except KeyboardInterrupt:
            queue.stop((signals.received or ["SIGINT"])[0])
        finally:
            reporter.closed()
    queue.plan = make_plan(queue.plan.sweep, queue.known())
    if queue.stopped != "store":
        try:
            recorder.cells(queue.plan)
            sources.release_idle(queue.plan)
        except StoreError as error:
            queue.stop("store", str(error))
    return queue


def _on_engine(course: Course, signals: StopSignals, at_the_end: ExitStack) -> None:
    """Runs what is left: nothing, where no full model that is done has learned."""
    queue, options = course.queue, course.options
    course.judge_full_models()
    if queue.open and options.inline:
        from lp_sweep.orchestrator.engine.inline import run_inline

        run_inline(course, signals)
    elif queue.open and options.processes:
        from lp_sweep.orchestrator.engine.processes import run_processes

        run_processes(course, signals, options.processes)
    elif queue.open:
        from lp_sweep.orchestrator.engine.connection import run_on_ray

        address = options.address or os.environ.get("RAY_ADDRESS")
        run_on_ray(course, signals, address, at_the_end)
    if left_out := queue.left_out():
        queue.stop("nothing-learned", str(left_out))


def _blocked(recorder: Recorder, reporter: Reporter, work: Work, need: str) -> None:
    """A trial never began, since the trial it continues from failed."""
    loss = blocked_by(need)
    recorder.lost(work, loss, final=True)
    told = f"{loss.error_type}: {loss.message}"
    reporter.ended(work.id, "failed", told, {"type": loss.error_type})


def _note_repeated(plan: Plan, reporter: Reporter) -> None:
    if again := plan.trained_again():
        reporter.note(
            f"{len(again)} finished trials are trained again: their networks were not kept, and "
            "other trials or measurements need them. Their records stay"
        )
