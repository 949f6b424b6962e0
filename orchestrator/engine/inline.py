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
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from lp_sweep.orchestrator.engine.capacity import PerTrial, Slots, cut
from lp_sweep.orchestrator.engine.course import Course, StopSignals
from lp_sweep.orchestrator.engine.opening import open_run
from lp_sweep.orchestrator.engine.recorder import Loss
from lp_sweep.orchestrator.engine.runoptions import PATIENT_THREADS
from lp_sweep.orchestrator.inputs.checks import count_gpus
from lp_sweep.orchestrator.plan.plan import Work
from lp_sweep.storage.errors import GraphRecordingError, StoreError

# after these this process can't use the device any more
_UNFIT = ("device_error", GraphRecordingError.kind)
_LOOK_SECONDS = 1.0  # between two looks at the budget, and at the work of other runs


class Inline:
    """The engine of `--inline`: this process is the one slot."""

    def everywhere(self, function: Callable[..., Any], *arguments: Any) -> Mapping[str, Any]:
        try:
            return {"": function(*arguments)}
        except OSError:  # such as a full disk: this node does not answer
            return {}

    def run(self, course: Course, signals: StopSignals) -> None:
        for name, value in PATIENT_THREADS.items():
            os.environ.setdefault(name, value)
        per_trial = PerTrial.of(course.queue.plan.sweep.spec)
        slots = _slots(per_trial)
        open_run(course, slots, self.everywhere)
        signals.arm()
        threads = int(per_trial.cpus) if per_trial.cpus and not slots.gpus else None
        place = course.place(device="auto" if slots.gpus else "cpu", threads=threads)
        books = threading.Lock()  # whoever uses the course holds it
        with _watched(course, books), _debugger(course):
            while (work := _next(course, books)) is not None or course.queue.open:
                if work is None:  # another run holds the rest
                    time.sleep(_LOOK_SECONDS)
                    continue
                if "torch" not in sys.modules:
                    course.reporter.phase("importing torch")
                told = _execute(course.job(work, place))
                with books:
                    _report(course, work, told)


def _next(course: Course, books: threading.Lock) -> Work | None:
    with books:
        work = None if course.check() else course.take()
        if work is not None:
            course.started(work)
        return work


def _slots(per_trial: PerTrial) -> Slots:
    """One slot with the whole machine. Raises PreflightError if a trial needs more."""
    cores, gpus = float(os.cpu_count() or 1), float(count_gpus())
    asked = cut([(cores, gpus)], per_trial)
    return asked._replace(number=1, cpus=cores)


def _execute(job: dict[str, Any]) -> Mapping[str, Any] | Loss:
    """Runs a job. Its prints go to stderr, since stdout belongs to the command."""
    import torch

    from lp_sweep.trials.worker.run import execute

    job = json.loads(json.dumps(job))  # as a worker process gets it
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return execute(job)
    except StoreError as error:  # neither the store nor the spool took the record
        return {"status": "not stored", "message": str(error)}
    except GraphRecordingError as error:
        return Loss(error.kind, str(error), traceback.format_exc(), None)
    except torch.AcceleratorError as error:
        return Loss("device_error", str(error), traceback.format_exc(), None)
    except Exception as error:  # a bug of ours: `execute` reports a trial's own failures
        message = f"{type(error).__name__}: {error}"
        return Loss("bug", message, traceback.format_exc(), None)


def _report(course: Course, work: Work, told: Mapping[str, Any] | Loss) -> None:
    if not isinstance(told, Loss):
        course.ended(work, told)
        return
    course.lost(work, told)
    if told.error_type in _UNFIT:
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
