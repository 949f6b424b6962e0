"""Runs trials one after another in this process: for debuggers, tests, and machines without Ray.

Imports nothing of Ray. Trials share the driver's process, so a device error ends the run, and
Ctrl-C interrupts a training where it is.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from lp_sweep.orchestrator.engine.capacity import MOST_CORES, PerTrial, Slots, cut
from lp_sweep.orchestrator.engine.course import Course, Loss, StopSignals
from lp_sweep.orchestrator.engine.opening import open_run
from lp_sweep.orchestrator.engine.runoptions import PATIENT_THREADS
from lp_sweep.orchestrator.inputs.checks import cores, count_gpus
from lp_sweep.orchestrator.plan.plan import Work
from lp_sweep.orchestrator.sweepfile.spec import SweepSpec
from lp_sweep.storage.errors import GraphRecordingError, StoreError
from lp_sweep.trials.worker.job import not_stored

# after these this process can't use the device any more
_UNFIT = ("device_error", GraphRecordingError.kind)
_LOOK_SECONDS = 1.0  # between two looks at the budget, and at the work of other runs


def here(function: Callable[..., Any], *arguments: Any) -> Mapping[str, Any]:
    """The result of a function on this machine, as if it were a node of a cluster."""
    try:
        return {"": function(*arguments)}
    except OSError:  # such as a full disk: this node does not answer
        return {}


def run_inline(course: Course, signals: StopSignals) -> None:
    """Runs the queue's work: this process is the one slot. Raises PreflightError and StoreError
    before the first trial."""
    os.environ.update({**PATIENT_THREADS, **os.environ})
    course.everywhere = here
    slots = _slots(course.queue.plan.sweep.spec)
    open_run(course, slots)
    signals.arm()
    place = course.place(slots)
    books = threading.Lock()  # whoever uses the course holds it
    with _watched(course, books), _debugger(course):
        while (work := _next(course, books)) is not None or course.queue.open:
            if work is None:  # another run holds the rest
                time.sleep(_LOOK_SECONDS)
                continue
            if "torch" not in sys.modules:
                course.reporter.phase("importing torch")
            from lp_sweep.trials.worker.run import execute, lost

            job = json.loads(json.dumps(course.job(work, place)))  # as a worker process gets it
            answer: Mapping[str, Any] | Loss
            try:
                with contextlib.redirect_stdout(sys.stderr):  # stdout belongs to the command
                    answer = execute(job)
            except StoreError as error:
                answer = not_stored(error)
            except Exception as error:  # `execute` reports a trial's own failures
                answer = Loss(*lost(error))
            with books:
                _report(course, work, answer)


def _next(course: Course, books: threading.Lock) -> Work | None:
    with books:
        work = None if course.check() else course.take()
        if work is not None:
            course.reporter.started(work)
        return work


def slots_here(per_trial: PerTrial) -> Slots:
    """How this machine is cut. Raises PreflightError if no trial fits."""
    return cut([(float(cores()), float(count_gpus()))], per_trial)


def _slots(spec: SweepSpec) -> Slots:
    """One slot with the whole machine, but not with more threads than a small batch can use. Raises
    PreflightError if a trial needs more."""
    per_trial = PerTrial.of(spec)
    slots = slots_here(per_trial)
    own = "OMP_NUM_THREADS" in os.environ
    most = 0.0 if own else float(min(cores(), MOST_CORES))
    return slots._replace(number=1, cpus=per_trial.cpus or most)


def _report(course: Course, work: Work, answer: Mapping[str, Any] | Loss) -> None:
    if not isinstance(answer, Loss):
        course.ended(work, answer)
        return
    course.lost(work, answer)
    if answer.error_type in _UNFIT:
        course.queue.stop("device")


@contextlib.contextmanager
def _watched(course: Course, books: threading.Lock) -> Iterator[None]:
    """Starts a thread that keeps the display alive during a trial, and interrupts the trial when
    the budget is used up."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_LOOK_SECONDS):
            with books:
                if over.is_set():
                    return
                course.tick()
                if course.check():
                    main = threading.main_thread().ident or 0
                    signal.pthread_kill(main, signal.SIGTERM)  # `signals` interrupts the trial
                    return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        try:
            with books:  # waits for the thread's last look
                over.set()
        finally:
            over.set()


@contextlib.contextmanager
def _debugger(course: Course) -> Iterator[None]:
    """Closes the live display at a `breakpoint()`: it would draw over the debugger's prompt."""
    before = sys.breakpointhook

    def hook(*arguments: Any, **named: Any) -> Any:
        course.reporter.closed()
        return before(*arguments, **named)

    sys.breakpointhook = hook
    try:
        yield
    finally:
        sys.breakpointhook = before
