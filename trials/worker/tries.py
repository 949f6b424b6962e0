"""The tries at a job, or at a measurement: in which ways it is run, and what a failed try leaves.

A try that runs out of memory is followed by one without CUDA graphs, which keep memory of their
own, and then by one with half the micro-batch, at most three times in all; the micro-batches of a
step are in `trials/train/steps.py`. A failed try leaves a row of ATTEMPTS, with the end of what it
printed.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from typing import Any, TextIO, cast

import torch

from lp_sweep.storage.errors import GraphRecordingError, NotDeterministicError
from lp_sweep.storage.redact import redact_text
from lp_sweep.trials.data.batches import BatchSizes, whole_batch
from lp_sweep.trials.device import forget_frames, free_memory, pick_device, records_graphs
from lp_sweep.trials.kinds import kind_of
from lp_sweep.trials.spec.specs import MAX_HALVINGS, SpeedSpec
from lp_sweep.trials.worker.job import Failure, Job, Spec, attempt_row
from lp_sweep.trials.worker.provenance import now, where
from lp_sweep.trials.worker.resident import resident


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How a try runs."""

    halvings: int = 0  # of the micro-batch, since the whole batch found no memory
    deterministic: bool = True  # False: an operation has no such kernel on this device
    graphs: bool = True  # False: a CUDA graph could not be recorded, or found no memory


class Tries:
    """Yields one way after another to run `spec`, while the last one failed and there is another.

    `id_`: the job, or the measurement of its network. `send` takes the row of a failed try.
    """

    def __init__(
        self, job: Job, id_: str, spec: Spec, first: Way, send: Callable[[dict[str, Any]], None]
    ) -> None:
        self._job, self._id, self._spec, self._send = job, id_, spec, send
        self._most = most_halvings(spec)
        self._next: Way | None = replace(first, halvings=min(first.halvings, self._most))
        self.failure: dict[str, Any] | None = None  # the last try's row; None if it succeeded

    def __iter__(self) -> Iterator[Way]:
        while self._next is not None:
            way, self._next = self._next, None
            yield way
            if self._next is not None:
                free_memory()

    @contextmanager
    def attempt(self, way: Way) -> Iterator[None]:
        """One try. Errors inside end it, except those that make the process unfit for more work."""
        started_at, self.failure = now(), None
        with recorded() as tail:
            try:
                yield
                return
            except (torch.AcceleratorError, GraphRecordingError):
                raise
            except Exception as error:
                forget_frames(error)  # before anything else asks for memory
                failure = Failure.of(error)
        if failure.error_type == "out_of_memory":
            resident().forget()
        self._next = self._after(way, failure.error_type)
        self.failure = attempt_row(
            self._id,
            self._job,
            failure,
            final=self._next is None,
            micro_batch=BatchSizes.halved(whole_batch(self._spec), way.halvings).training,
            log=tail.text(),
            **where(pick_device(self._job.place.device), started_at),
        )
        self._send(self.failure)

    def _after(self, way: Way, error_type: str) -> Way | None:
        """The next way after a failure; None if there is none."""
        if error_type == NotDeterministicError.kind and way.deterministic:
            return replace(way, deterministic=False)
        if error_type != "out_of_memory":
            return None
        recipe = None if isinstance(self._spec, SpeedSpec) else self._spec.recipe
        recorded = recipe is not None and recipe.compute != "reference"
        if way.graphs and recorded and records_graphs(pick_device(self._job.place.device)):
            return replace(way, graphs=False)
        return replace(way, halvings=way.halvings + 1) if way.halvings < self._most else None


def most_halvings(spec: Spec) -> int:
    """Smaller batches give the same record, unless a loss compares the rows of a batch. A speed is
    measured at its own batch size."""
    if spec.kind == "trial" and kind_of(spec.task).compares_batch(spec.loss):
        return 0
    return 0 if spec.kind == "speed" else MAX_HALVINGS


# -- the end of what is printed

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
    out, err = (cast(TextIO, _Tee(stream, tail)) for stream in (sys.stdout, sys.stderr))
    # a handler that was made earlier writes to the stderr of that moment
    handlers = [
        (handler, handler.stream)
        for logger in (logging.getLogger(), *map(logging.getLogger, _OWN_HANDLERS))
        for handler in logger.handlers
        if isinstance(handler, logging.StreamHandler) and handler.stream in (sys.stdout, sys.stderr)
    ]
    for handler, _ in handlers:
        handler.setStream(err)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            yield tail
    finally:
        for handler, stream in handlers:
            handler.setStream(stream)
