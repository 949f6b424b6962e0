"""Runs trials in processes of this machine, without Ray: `run --processes`. One driver hands out
the work, so there is one display and one answer.

A process takes a job as a line of JSON and answers with one (`trials/worker/run.py`). One that dies
loses its trial, which is tried again in a new process; the others go on. When the driver ends,
however it does, its processes see the end of their input and end as well.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import IO, Any

from lp_sweep.orchestrator.engine.capacity import PerTrial, Slots, cut
from lp_sweep.orchestrator.engine.course import Course, Loss, StopSignals
from lp_sweep.orchestrator.engine.inline import here
from lp_sweep.orchestrator.engine.opening import open_run
from lp_sweep.orchestrator.engine.runoptions import GPUS, PATIENT_THREADS
from lp_sweep.orchestrator.inputs.checks import cores, count_gpus
from lp_sweep.orchestrator.plan.plan import Work
from lp_sweep.orchestrator.sweepfile.spec import SweepSpec
from lp_sweep.storage.errors import PreflightError

_LOOK_SECONDS = 0.5  # between two looks at the queue, while no process answers
# with the modules that the driver sees: no file of the working folder takes the place of one
_SERVE = """
import sys
sys.path[:] = {!r}
from lp_sweep.trials.worker.run import serve
serve(int(sys.argv[1]))
"""
_TAIL = 4000  # bytes of what a lost process wrote


def run_processes(course: Course, signals: StopSignals, number: str) -> None:
    """Runs the queue's work in this many processes, or one a GPU (`GPUS`). Raises PreflightError
    and StoreError before the first trial."""
    os.environ.update({**PATIENT_THREADS, **os.environ})
    course.everywhere = here
    devices = gpus()
    slots = _slots(course.queue.plan.sweep.spec, number, len(devices))
    open_run(course, slots)
    signals.arm()
    place = course.place(slots)
    with _workers(slots.number, devices) as workers, selectors.DefaultSelector() as answers:
        while (course.queue.live or course.queue.open) and not course.check():
            for worker, work in _taken(course, workers):
                if out := worker.begin(work, course.job(work, place)):
                    answers.register(out, selectors.EVENT_READ, worker)
            for key, _ in answers.select(_LOOK_SECONDS):
                _report(course, key.data)
                if key.data.is_over:
                    answers.unregister(key.fileobj)
            course.tick()


def _taken(course: Course, workers: Sequence[_Worker]) -> Iterator[tuple[_Worker, Work]]:
    """The next work for each process without any, as far as there is."""
    idle = [worker for worker in workers if worker.work is None]
    if not idle:
        course.queue.give_back()
    for left in range(len(idle), 0, -1):
        if (work := course.take(left)) is None:
            return
        course.reporter.started(work)
        yield idle[-left], work


def _report(course: Course, worker: _Worker) -> None:
    work, answer = worker.work, worker.answer()
    if work is None:  # it died while it waited for some
        return
    if isinstance(answer, Loss):
        course.lost(work, answer)
    else:
        course.ended(work, answer)


def gpus() -> list[str]:
    """The GPUs of this process, as CUDA_VISIBLE_DEVICES names them."""
    count = count_gpus()
    named = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return named[:count] or [str(index) for index in range(count)]


def _slots(spec: SweepSpec, number: str, devices: int) -> Slots:
    per_trial = PerTrial.of(spec)
    if number == GPUS and not devices:
        raise PreflightError(
            "--processes gpus: this machine has no GPU that a trial could use. Name a number, "
            f"such as --processes {max(1, cores() // 2)}, or run --inline."
        )
    slots = cut([(float(cores()), float(devices))], per_trial)  # raises where no trial fits
    if number == GPUS:
        return slots
    count, most = int(number), 4 * max(1, cores())
    if count > most:
        raise PreflightError(
            f"--processes {count}: at most {most} on this machine, 4 a core; more would only wait "
            "for each other."
        )
    share = 0.0 if per_trial.gpus == 0 else min(1.0, devices / count)
    return Slots(count, per_trial.cpus or float(max(1, cores() // count)), share)


@contextmanager
def _workers(number: int, devices: Sequence[str]) -> Iterator[list[_Worker]]:
    with ExitStack() as at_the_end:
        workers = []
        for index in range(number):
            device = devices[index % len(devices)] if devices else None
            worker = _Worker(device, at_the_end.enter_context(tempfile.TemporaryFile()))
            at_the_end.callback(worker.end)
            workers.append(worker)
        yield workers


def _signal(number: int) -> str:
    known = number in {*signal.Signals}
    return signal.Signals(number).name if known else f"signal {number}"


class _Worker:
    """A process that does one job after another; it starts with its first, and after a loss again
    with the next. `device`: the GPU that it sees; None: what this process sees. `said`: the file
    for what it writes."""

    def __init__(self, device: str | None, said: IO[bytes]) -> None:
        self.work: Work | None = None
        self._environment = {"TOKENIZERS_PARALLELISM": "false", **os.environ}
        if device is not None:
            self._environment["CUDA_VISIBLE_DEVICES"] = device
        self._process: subprocess.Popen[bytes] | None = None
        self._said = said

    @property
    def is_over(self) -> bool:
        return self._process is None

    def begin(self, work: Work, job: Mapping[str, Any]) -> IO[bytes] | None:
        """Returns where answers come from, if the process is new."""
        self.work, is_new = work, self._process is None
        if self._process is None:
            ours, theirs = os.pipe()
            self._answers = os.fdopen(ours, "rb")
            with os.fdopen(theirs, "wb"):
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-c", _SERVE.format(sys.path), str(theirs)],
                    env=self._environment,
                    stdin=subprocess.PIPE,
                    stdout=self._said,
                    stderr=self._said,
                    pass_fds=(theirs,),
                    start_new_session=True,  # Ctrl-C is for the driver
                )
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # `answer` says that it has died
            self._process.stdin.write(json.dumps(job).encode() + b"\n")
            self._process.stdin.flush()
        return self._answers if is_new else None

    def answer(self) -> Mapping[str, Any] | Loss:
        """Waits for what the process says of its work, which it then has no more."""
        self.work = None
        assert self._process is not None
        line = self._answers.readline()
        if line.endswith(b"\n"):
            told: dict[str, Any] = json.loads(line)
            if "lost" not in told:
                return told
            self.end()
            return Loss(*told["lost"])
        code = self._process.wait()
        self.end()
        how = f"killed by {_signal(-code)}" if code < 0 else f"exit code {code}"
        how += " (by the machine, if its memory was full)" * (code == -signal.SIGKILL)
        self._said.seek(max(0, self._said.seek(0, os.SEEK_END) - _TAIL))
        said = self._said.read().decode(errors="replace")
        return Loss("worker_lost", f"the worker process died: {how}", said)

    def end(self) -> None:
        """Kills the process: all that is kept is written atomically."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):  # and what it has started, which has its session
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._answers.close()
        assert self._process.stdin is not None
        with suppress(OSError):  # what is left in its buffer has no reader
            self._process.stdin.close()
        self._process = None
