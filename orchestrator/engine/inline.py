"""Trials one after another in this process: for a debugger, for a machine without Ray, for tests.

Imports nothing of Ray. What a process of its own would give a trial, it has not: a device that
fails ends the run, and Ctrl-C interrupts a training where it is.
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
from lp_sweep.orchestrator.engine.course import Course
from lp_sweep.orchestrator.engine.driver import StopSignals
from lp_sweep.orchestrator.engine.opening import open_run
from lp_sweep.orchestrator.engine.recorder import Loss
from lp_sweep.orchestrator.inputs.gpumemory import local_gpus
from lp_sweep.orchestrator.plan.plan import Work
from lp_sweep.storage.errors import StoreError

_LOOK_SECONDS = 1.0  # between two looks at the budget, and at what other runs hold


class Inline:
    """The engine of `--inline`: this process is the one slot."""

    def everywhere(self, function: Callable[..., Any], *arguments: Any) -> Mapping[str, Any]:
        try:
            return {"": function(*arguments)}
        except OSError:  # a full disk, say: this node does not answer
            return {}

    def run(self, course: Course, signals: StopSignals) -> None:
        per_trial = PerTrial.of(course.queue.plan.sweep.spec)
        slots = _slots(per_trial)
        open_run(course, slots, self.everywhere)
        signals.arm()
        threads = int(per_trial.cpus) if per_trial.cpus and not slots.gpus else None
        place = course.place(device="auto" if slots.gpus else "cpu", threads=threads)
        books = threading.Lock()  # held by who uses the course
        with _watched(course, books), _debugger(course):
            while (work := _next(course, books)) is not None or course.queue.open:
                if work is None:  # the rest is in the hands of another run
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
    """One, of the whole machine. Raises PreflightError where a trial asks for more than that."""
    cores, gpus = float(os.cpu_count() or 1), float(len(local_gpus()))
    asked = cut([(cores, gpus)], per_trial)
    return asked._replace(number=1, cpus=cores)


def _execute(job: dict[str, Any]) -> Mapping[str, Any] | Loss:
    """Runs a job. Its prints go to stderr: stdout is the command's own."""
    import torch

    from lp_sweep.trials.worker.run import execute

    job = json.loads(json.dumps(job))  # as a worker of its own would get it
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return execute(job, job["store"])
    except StoreError as error:  # neither the store nor this machine's disk took the record
        return {"status": "not stored", "message": str(error)}
    except torch.AcceleratorError as error:
        return Loss("device_error", str(error), traceback.format_exc(), None)
    except Exception as error:  # ours: a trial's own is a failure that `execute` gives
        message = f"{type(error).__name__}: {error}"
        return Loss("bug", message, traceback.format_exc(), None)


def _report(course: Course, work: Work, told: Mapping[str, Any] | Loss) -> None:
    if not isinstance(told, Loss):
        course.ended(work, told)
        return
    course.lost(work, told)
    if told.error_type == "device_error":  # nothing else can use the device in this process
        course.queue.stopped = course.queue.stopped or "device"


@contextlib.contextmanager
def _watched(course: Course, books: threading.Lock) -> Iterator[None]:
    """While a trial runs, a thread keeps the display alive and looks at the budget; where that is
    used up, it interrupts the trial."""
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
            with books:  # the thread has ended its look, and begins no other
                over.set()
        finally:
            over.set()


@contextlib.contextmanager
def _debugger(course: Course) -> Iterator[None]:
    """`breakpoint()` in a trial: the live display would draw over the debugger's prompt."""
    before = sys.breakpointhook

    def hook(*arguments: Any, **named: Any) -> Any:
        course.reporter.closed()
        return before(*arguments, **named)

    sys.breakpointhook = hook
    try:
        yield
    finally:
        sys.breakpointhook = before
