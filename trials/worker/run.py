"""Does one job: finds its record in the store, or makes it, or stores how it failed.

`execute` is the only function that a worker calls. `fetch` brings what the job names to this node,
`trial` and `profile` make the record, `handover` stores it, beside the end of what a failed try
printed. Imports no Ray.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, TextIO, cast

import torch

from lp_sweep.storage.errors import GraphRecordingError, NotDeterministicError, SweepWarning
from lp_sweep.storage.redact import redact_text
from lp_sweep.storage.spool import Record
from lp_sweep.storage.underway import Teller
from lp_sweep.trials.data.batches import BatchSizes, whole_batch
from lp_sweep.trials.device import forget_frames, free_memory, pick_device
from lp_sweep.trials.kinds import kind_of
from lp_sweep.trials.spec.specs import MAX_HALVINGS
from lp_sweep.trials.worker.checkpoint import saver_of
from lp_sweep.trials.worker.fetch import kept_network, needed_network, placed, teacher_logits
from lp_sweep.trials.worker.handover import Handover, Result
from lp_sweep.trials.worker.job import Failure, Job, attempt_row
from lp_sweep.trials.worker.profile import measure_trained, run_profile, run_speed
from lp_sweep.trials.worker.provenance import now, where
from lp_sweep.trials.worker.resident import resident
from lp_sweep.trials.worker.trial import Try, load_trained, run_trial


class _Failed(NamedTuple):
    """A try that failed: its row of ATTEMPTS, and the next way to run the job, if there is one."""

    row: dict[str, Any]
    next: Try | None


def execute(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Does one job (`Job.to_plain`) and stores its result, or its failure.

    Returns `{"id", "status": "done" | "failed" | "spooled", ...}`. A stored record is not made
    again; a missing measurement of its network, or a missing network that other trials need, is.
    A record that the store refuses waits in this node's spool. Running out of memory halves the
    micro-batch, at most three times in all. Raises only what makes the process unfit for more work:
    torch.AcceleratorError and GraphRecordingError, and StoreError if neither the store nor the
    spool takes the record.
    """
    job = Job.from_plain(plain)
    handover = Handover(job)
    record = handover.stored()
    if record is not None:
        job = handover.unmeasured()
        if not job.measures and not handover.lacks_network():
            return handover.finished(record)
    way = Try(halvings=min(job.halvings, _most_halvings(job)), graphs=job.graphs)
    while True:
        tried = _try(job, handover, way, record)
        if isinstance(tried, Result):
            return handover.done(tried, is_new=record is None)
        handover.send_attempt(tried.row)
        if tried.next is None:
            return handover.failed(tried.row)
        way = tried.next


def _try(job: Job, handover: Handover, way: Try, record: dict[str, Any] | None) -> Result | _Failed:
    started_at, outbox = now(), handover.outbox
    free_memory()
    with recorded() as tail:
        try:
            with (
                contextlib.closing(saver_of(job, outbox)) as saver,
                contextlib.closing(Teller(outbox.store, job.id)) as tell,
            ):
                way = replace(way, halvings=saver.find(way.halvings), saver=saver, tell=tell)
                return _run(job, handover, way, record)
        except (torch.AcceleratorError, GraphRecordingError):
            raise
        except Exception as error:
            forget_frames(error)  # before anything else asks for memory
            failure = Failure.of(error)
    if failure.error_type == "out_of_memory":
        resident().forget()
    another = _after(job, way, failure.error_type)
    row = attempt_row(
        job.id,
        job,
        failure,
        final=another is None,
        micro_batch=BatchSizes.halved(whole_batch(job.spec), way.halvings).training,
        log=tail.text(),
        **where(pick_device(job.place.device), started_at),
    )
    return _Failed(row, another)


def _after(job: Job, way: Try, error_type: str) -> Try | None:
    """The next way to run the job after a failure; None if there is none."""
    if error_type == NotDeterministicError.kind and way.deterministic:
        return replace(way, deterministic=False)
    if error_type == "out_of_memory" and way.halvings < _most_halvings(job):
        return replace(way, halvings=way.halvings + 1)
    return None


def _most_halvings(job: Job) -> int:
    """Smaller batches give the same record, unless a loss compares the rows of a batch. A speed is
    measured at its own batch size."""
    if job.kind == "trial" and kind_of(job.trial.task).compares_batch(job.trial.loss):
        return 0
    return 0 if job.kind == "speed" else MAX_HALVINGS


def _run(job: Job, handover: Handover, way: Try, record: dict[str, Any] | None) -> Result:
    """`record`: the trial's stored record, which stays as it is; only measurements or the network
    are missing. The network is trained again if the store does not have it."""
    outbox = handover.outbox
    job = placed(job, outbox.store)
    if job.kind == "speed":
        return Result(**run_speed(job))
    if job.kind == "profile":
        return Result(**run_profile(job, way.halvings))
    if record is not None:
        with kept_network(outbox, job.id) as folder:
            if folder is not None:
                kept = load_trained(job, folder, way.halvings)
                return Result(record, *measure_trained(job, kept, outbox, way.halvings))
        warnings.warn(
            f"{job.id} is trained again: its network was not kept", SweepWarning, stacklevel=2
        )
    lesson = job.lesson
    with (
        needed_network(outbox, job.start) as start,
        needed_network(outbox, lesson and lesson.watched(job.trial)) as teacher,
    ):
        logits = teacher_logits(outbox, lesson) if lesson else ()
        done = run_trial(job, replace(way, start=start, teacher=teacher, logits=logits))
    handover.keep(done.network, done.record)
    records, attempts = measure_trained(job, done.network, outbox, way.halvings)
    if record is None and done.predictions:
        records.insert(0, Record("predictions", job.id, done.predictions))
    return Result(done.record if record is None else record, records, attempts)


LOG_BYTES = 16 * 1024
_OWN_HANDLERS = ("transformers", "datasets", "huggingface_hub")  # not the root logger's
_KEPT = 2 * LOG_BYTES  # characters; removing secrets shortens them


class Tail:
    """The end of the text that was added, without secrets."""

    def __init__(self) -> None:
        self._end, self._cut = "", False

    def add(self, text: str) -> None:
        self._cut |= len(self._end) + len(text) > _KEPT
        self._end = (self._end + text)[-_KEPT:]

    def text(self) -> str:
        """At most 16 kB of UTF-8."""
        whole = self._end
        if self._cut:  # half a line may begin with half a secret
            whole = whole.partition("\n")[2] or whole[LOG_BYTES:]
        content = redact_text(whole).encode("utf-8", "replace")
        return content[-LOG_BYTES:].decode("utf-8", "ignore")


class _Tee:
    """A stream that also feeds a tail. It prints no secrets: Ray stores what a worker prints."""

    def __init__(self, stream: TextIO, tail: Tail) -> None:
        self._stream, self._tail = stream, tail

    def write(self, text: str) -> int:
        self._tail.add(text)
        self._stream.write(redact_text(text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def recorded() -> Iterator[Tail]:
    """Copies everything that is printed inside into a tail."""
    tail = Tail()
    out, err = sys.stdout, sys.stderr
    tees = cast(TextIO, _Tee(out, tail)), cast(TextIO, _Tee(err, tail))
    sys.stdout, sys.stderr = tees
    # a handler that was made earlier writes to the stderr of that moment
    handlers = [
        handler
        for logger in (logging.getLogger(), *map(logging.getLogger, _OWN_HANDLERS))
        for handler in logger.handlers
        if isinstance(handler, logging.StreamHandler) and handler.stream in (out, err)
    ]
    streams = [handler.stream for handler in handlers]
    for handler in handlers:
        handler.setStream(tees[1])
    try:
        yield tail
    finally:
        for handler, stream in zip(handlers, streams, strict=True):
            handler.setStream(stream)
        if sys.stdout is tees[0]:
            sys.stdout = out
        if sys.stderr is tees[1]:
            sys.stderr = err
