"""Does one job: finds its record in the store, or makes it, or stores how it failed.

`execute` is the only function that a worker calls. Imports no Ray.
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

from lp_sweep.storage.errors import (
    GraphRecordingError,
    MissingInputError,
    NotDeterministicError,
    StoreError,
    SweepWarning,
)
from lp_sweep.storage.identity import IDENTITY_VERSION, canonical_json
from lp_sweep.storage.printable import metric_name
from lp_sweep.storage.redact import redact_text
from lp_sweep.storage.specs import MAX_HALVINGS, TEACHER
from lp_sweep.storage.spool import Outbox, Record
from lp_sweep.storage.underway import Teller
from lp_sweep.trials.data.batches import BatchSizes, whole_batch
from lp_sweep.trials.device import forget_frames, free_memory, pick_device, precision_used
from lp_sweep.trials.kinds import kind_of
from lp_sweep.trials.train.finetune import Saver
from lp_sweep.trials.worker.checkpoint import FOLDER, Checkpoints, Subject, file_name
from lp_sweep.trials.worker.job import Failure, Job, Lesson, Measure, Spec, attempt_row, placed
from lp_sweep.trials.worker.keep import Keeper, kept_network, needed_network
from lp_sweep.trials.worker.profile import Afterwards, run_profile, run_speed
from lp_sweep.trials.worker.provenance import now, where
from lp_sweep.trials.worker.resident import resident
from lp_sweep.trials.worker.trial import Try, measure_trained, run_trial

# a training that continues after one of these ends the same way
_HOPELESS = ("diverged", "out_of_memory")


class _Way(NamedTuple):
    """How a try runs, given the failures before it."""

    halvings: int  # of the micro-batch
    deterministic: bool = True
    graphs: bool = True

    def after(self, error_type: str) -> _Way:
        if error_type == NotDeterministicError.kind:
            return self._replace(deterministic=False)
        return self._replace(halvings=self.halvings + 1)


class _Tried(NamedTuple):
    """One try. `found`: the result of `run_trial`, `run_profile` or `run_speed`; `attempt`: the row
    of ATTEMPTS of a try that failed."""

    found: dict[str, Any] | None
    attempt: dict[str, Any] | None
    way: _Way
    afterwards: Afterwards


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
    outbox = Outbox(job.place.store, job.place.cache_dir, job.place.store_patience)
    table = "trials" if job.kind == "trial" else "profiles"
    keeper = Keeper(job.place.keep, outbox, needed=job.network)
    stored = outbox.find(table, job.id)
    done = stored[0] if stored and not _lost_logits(outbox, job.id, job.spec) else None
    if done is not None:
        missing = tuple(item for item in job.measures if not _measured(outbox, item))
        job = replace(job, measures=missing)
        if not missing and not keeper.lacks(job.id):
            return _finished(job, outbox, keeper, done)
    way = _Way(min(job.halvings, _most_halvings(job)), graphs=job.graphs)
    tried = _try(job, outbox, keeper, way, done)
    while tried.attempt is not None:
        _send_attempt(outbox, tried.attempt)
        if tried.attempt["final"]:
            return _failed(job, outbox, tried.attempt)
        way = tried.way.after(tried.attempt["error_type"])
        tried = _try(job, outbox, keeper, way, done)
    assert tried.found is not None
    for row in tried.afterwards.attempts:
        _send_attempt(outbox, row)
    return _publish(job, outbox, keeper, table, tried, is_new=done is None)


def _measured(outbox: Outbox, item: Measure) -> bool:
    found = outbox.find("profiles", item.id)
    return found is not None and not _lost_logits(outbox, item.id, item.spec)


def _lost_logits(outbox: Outbox, id_: str, spec: Spec) -> bool:
    """Whether a teacher's measurement is stored without its logits, as after a store's repair."""
    taught = spec.kind == "profile" and spec.measure == TEACHER
    return taught and outbox.find("teacher_logits", id_) is None


def _try(
    job: Job, outbox: Outbox, keeper: Keeper, way: _Way, done: Mapping[str, Any] | None
) -> _Tried:
    started_at = now()
    free_memory()
    with recorded() as tail:
        try:
            with (
                contextlib.closing(_saver(job, outbox)) as saver,
                contextlib.closing(Teller(outbox.store, job.id)) as tell,
            ):
                way = way._replace(halvings=saver.find(way.halvings))
                afterwards = Afterwards(job, outbox, keeper, way.halvings)
                attempt = Try(**way._asdict(), saver=saver, tell=tell, afterwards=afterwards)
                return _Tried(_run(job, outbox, attempt, done), None, way, afterwards)
        except (torch.AcceleratorError, GraphRecordingError):
            raise
        except Exception as error:
            forget_frames(error)  # before anything else asks for memory
            failure = Failure.of(error)
    if failure.error_type == "out_of_memory":
        resident().forget()
    short = failure.error_type == "out_of_memory" and way.halvings < _most_halvings(job)
    refused = failure.error_type == NotDeterministicError.kind and way.deterministic
    final = not (short or refused)
    row = attempt_row(
        job.id,
        job,
        failure,
        final=final,
        micro_batch=BatchSizes.halved(whole_batch(job.spec), way.halvings).training,
        log=tail.text(),
        **where(pick_device(job.place.device), started_at),
    )
    return _Tried(None, row, way, Afterwards(job, outbox, keeper, way.halvings))


def _run(job: Job, outbox: Outbox, attempt: Try, done: Mapping[str, Any] | None) -> dict[str, Any]:
    """`done`: the trial's stored record, which stays as it is; only measurements or the network are
    missing. The network is trained again if the store does not have it."""
    job = placed(job, outbox.store)
    if job.kind == "speed":
        return run_speed(job)
    if job.kind == "profile":
        return run_profile(job, attempt.halvings)
    if done is not None:
        with kept_network(outbox, job.id) as folder:
            if folder is not None:
                measure_trained(job, attempt, folder)
                return {"record": dict(done)}
        warnings.warn(
            f"{job.id} is trained again: its network was not kept", SweepWarning, stacklevel=2
        )
    lesson = job.lesson
    with (
        needed_network(outbox, job.start) as start,
        needed_network(outbox, lesson and lesson.watched(job.trial)) as teacher,
    ):
        logits = _logits(outbox, lesson) if lesson else ()
        found = run_trial(job, replace(attempt, start=start, teacher=teacher, logits=logits))
    return found if done is None else {"record": dict(done)}


def _logits(outbox: Outbox, lesson: Lesson) -> list[dict[str, Any]]:
    """The rows of the teacher's logits. Raises MissingInputError."""
    found = outbox.find("teacher_logits", lesson.logits)
    if found is None:
        why = outbox.refusal or (
            "Run the sweep again: it makes them. If it does not, the teacher's trial failed: see "
            f"`lp-sweep logs {lesson.source}`."
        )
        raise MissingInputError(
            f"the logits of {lesson.source}, which this one learns from, are not in the "
            f"store {outbox.location}. {why}"
        )
    return found


def _saver(job: Job, outbox: Outbox) -> Saver:
    every = job.place.checkpoint_every
    if not every or job.kind != "trial":
        return Saver()
    spec, device = job.trial, pick_device(job.place.device)
    subject = Subject(
        job.id,
        IDENTITY_VERSION,
        canonical_json(spec),
        precision_used(spec.recipe.precision, device),
        device.type,
    )
    return Checkpoints(
        outbox.location,
        outbox.cache_dir,
        subject,
        every=every,
        batch_size=spec.recipe.batch_size,
        patience=outbox.patience,
    )


def _most_halvings(job: Job) -> int:
    """Smaller batches give the same record, unless a loss compares the rows of a batch. A speed is
    measured at its own batch size."""
    if job.kind == "trial" and kind_of(job.trial.task).compares_batch(job.trial.loss):
        return 0
    return 0 if job.kind == "speed" else MAX_HALVINGS


def _send_attempt(outbox: Outbox, row: dict[str, Any]) -> None:
    try:
        outbox.send(Record("attempts", row["attempt_id"], [row]))
    except StoreError as error:  # the driver hears of the failure anyway
        warnings.warn(str(error), SweepWarning, stacklevel=2)


def _failed(job: Job, outbox: Outbox, row: Mapping[str, Any]) -> dict[str, Any]:
    if row["error_type"] in _HOPELESS:
        outbox.delete(FOLDER, file_name(job.id))
    told = {name: row[name] for name in ("error_type", "message")}
    return {"id": job.id, "status": "failed", **told}


def _publish(
    job: Job, outbox: Outbox, keeper: Keeper, table: str, tried: _Tried, *, is_new: bool
) -> dict[str, Any]:
    found = tried.found or {}
    records = [*found.get("records", ()), *tried.afterwards.records]
    if is_new and "predictions" in found:
        records.insert(0, Record("predictions", job.id, found["predictions"]))
    if is_new or outbox.spool.find(table, job.id):  # what is in the store is never rewritten
        records.append(Record(table, job.id, [found["record"]]))
    outbox.send(*records, network=job.id)  # the job's own record last: its presence means done
    failed = {
        row["trial_id"]: row["error_type"] for row in tried.afterwards.attempts if row["final"]
    }
    told = _finished(job, outbox, keeper, found["record"])
    return told | {"measures_failed": failed} if failed else told


def _finished(job: Job, outbox: Outbox, keeper: Keeper, record: dict[str, Any]) -> dict[str, Any]:
    """Reports a record and deletes what it replaces, also when an earlier worker was lost right
    after storing it."""
    told = {"id": job.id, "status": "done", "seconds": record["seconds_total"]}
    told["unkept"] = keeper.unkept
    if job.kind == "trial":
        told |= {
            "last": record["last"],
            "metric": metric_name(record["metric"], record.get("positive")),
        }
    if outbox.refusal is not None:
        return told | {"status": "spooled", "message": outbox.refusal}
    if job.kind == "trial":
        keeper.settle(record)
        outbox.delete(FOLDER, file_name(job.id))
    return told


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
