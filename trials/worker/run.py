"""Does one job: finds its record in the store, or makes it, or stores how it failed.

`execute` is the only function that a worker calls; `serve` is a worker process without Ray. Imports
no Ray.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import threading
import traceback
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import torch

from lp_sweep.storage.errors import GraphRecordingError, StoreError
from lp_sweep.trials.device import free_memory
from lp_sweep.trials.worker.checkpoint import saver_of
from lp_sweep.trials.worker.fetch import supplies
from lp_sweep.trials.worker.handover import Handover
from lp_sweep.trials.worker.job import Job, Result, not_stored
from lp_sweep.trials.worker.profile import measure_trained, run_profile, run_speed
from lp_sweep.trials.worker.trial import load_trained, run_trial
from lp_sweep.trials.worker.tries import Tries, Way


def execute(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Does one job (`Job.to_plain`) and stores its result, or its failure.

    Returns `{"id", "status": "done" | "failed" | "spooled", ...}`. Raises only what makes the
    process unfit for more work: torch.AcceleratorError and GraphRecordingError, and StoreError if
    neither the store nor this node's spool takes the record.
    """
    job = Job.from_plain(plain)
    handover = Handover(job)

    # A stored record is never made again. Yet a measurement of its network may be missing, or the
    # network itself, which other trials start from.
    stored = handover.stored()
    if stored is not None:
        job = handover.unmeasured()
        if not job.measures and not handover.lacks_network():
            return handover.finished(stored)

    free_memory()
    with closing(saver_of(job)) as saver:
        # All steps of a record use one micro-batch: that of the checkpoint, if there is one.
        first = Way(halvings=max(job.halvings, saver.halvings), graphs=job.graphs)
        # The full micro-batch, then halved ones while memory runs out. A try that fails is stored
        # as an attempt at once; `tries` has its row, and decides whether there is another way. What
        # can't be fetched fails a try as well, so `attempt` is around `supplies`, whose copies of
        # other networks are deleted when the try ends.
        tries = Tries(job, job.id, job.spec, first, handover.send_attempt)
        for way in tries:
            with tries.attempt(way), supplies(job, handover.outbox, stored) as given:
                if job.kind == "speed":
                    result = run_speed(given.job)
                elif job.kind == "profile":
                    result = run_profile(given.job, way)
                elif stored is not None and given.own is not None:
                    network = load_trained(given.job, given.own, way.halvings)
                    result = Result(stored, measure_trained(given.job, network, way, handover))
                else:  # also where a record is stored, but its network was not kept
                    saver.begin(way.halvings)
                    with handover.telling() as tell:
                        trained = run_trial(given, way, saver, tell)
                    # The network goes to the spool first: a measurement may end the process.
                    handover.keep(trained.network, trained.record)
                    made = measure_trained(given.job, trained.network, way, handover)
                    made += trained.other_records if stored is None else []
                    result = Result(stored or trained.record, made)
    if tries.failure is not None:
        return handover.failed(tries.failure)
    return handover.done(result, is_new=stored is None)


def lost(error: Exception) -> tuple[str, str, str]:
    """The type, the sentence and the traceback of what makes a process unfit for more work."""
    error_type, message = "bug", f"{type(error).__name__}: {error}"
    if isinstance(error, GraphRecordingError):
        error_type, message = error.kind, str(error)
    elif isinstance(error, torch.AcceleratorError):
        error_type, message = "device_error", str(error)
    return error_type, message, "".join(traceback.format_exception(error))


def serve(answering: int) -> None:
    """Does jobs, each a line of JSON on standard input, and writes an answer to each to the file
    descriptor `answering`; the last one is `{"lost": [type, sentence, traceback]}`. Ends at once
    with its input, also within a job, and with all that it has started."""
    _leave_signals_to_the_driver()
    os.set_inheritable(answering, False)
    os.register_at_fork(after_in_child=lambda: os.close(answering))  # must not hide our end
    answers = os.fdopen(answering, "w", encoding="utf-8")
    given = os.fdopen(os.dup(0), encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # a job is not for what reads standard input
    jobs: queue.SimpleQueue[str] = queue.SimpleQueue()

    def read() -> None:
        for line in given:
            jobs.put(line)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=read, daemon=True).start()
    while True:
        job, told = json.loads(jobs.get()), {}
        try:
            told = execute(job)
        except StoreError as error:
            told = {"id": job["id"], **not_stored(error)}
        except Exception as error:
            told = {"lost": lost(error)}
        print(json.dumps(told), file=answers, flush=True)


def _leave_signals_to_the_driver() -> None:
    """It stops its processes itself. A handler, since what is ignored stays so in programs that a
    trial starts."""
    own = os.getpid()

    def stop(number: int, frame: object) -> None:
        del frame
        if os.getpid() != own:  # a fork, which its parent may end
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, stop)
