"""Runs a plan on Ray Tune: joins or starts a cluster, streams the missing work, reports.

`run_sweep` is idempotent. What the store has is not done again; what was interrupted is.
"""

from __future__ import annotations

import datetime as dt
import shutil
import signal
import socket
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from lp_sweep.orchestrator.cluster import Options, Slots, cluster
from lp_sweep.orchestrator.estimate import Rates
from lp_sweep.orchestrator.plan import Plan, make_plan, read_known
from lp_sweep.orchestrator.progress import Reporter
from lp_sweep.orchestrator.resolve import Sweep
from lp_sweep.orchestrator.workqueue import WorkQueue
from lp_sweep.storage.store import Store

_WORKER_RETRIES = 1  # a lost process gets a second try


class Outcome(NamedTuple):
    """What a run did. `failed`: identifier -> error type."""

    plan: Plan
    done: int
    failed: dict[str, str]
    stopped_by: str | None  # SIGINT, SIGTERM or None


def run_sweep(sweep: Sweep, store: Store, options: Options, reporter: Reporter) -> Outcome:
    """Do what is missing. Raises PreflightError when no cluster can be had."""
    plan = make_plan(sweep, read_known(store))
    _publish(plan, store, options.part)
    rates = Rates(store.read_all("trials").rows.to_pylist())

    def replanned(newer: Plan) -> None:
        _publish(newer, store, options.part)
        reporter.planned(newer)

    queue = WorkQueue(plan, store, rates, replanned)
    if not queue.waiting:
        return Outcome(plan, 0, {}, None)
    reporter.planned(plan)
    stopped_by = None
    with cluster(options) as slots, _signals() as received:  # Ray sets its own handler at init
        reporter.opened(queue, slots.number)
        try:
            _fit(queue, store, options, slots, reporter)
        except KeyboardInterrupt:
            stopped_by = received[0] if received else "SIGINT"
        finally:
            reporter.closed()
    after = make_plan(sweep, read_known(store))
    _publish(after, store, options.part)
    return Outcome(after, len(queue.done), queue.failed, stopped_by)


def _publish(plan: Plan, store: Store, part: bool) -> None:
    """The sweep's cells, for the views; written again when a profile opens deferred cells.

    A run of a part of the sweep leaves the other cells listed.
    """
    name = plan.sweep.name
    cells = {_point(row): row for row in (cell.row() for cell in plan.cells)}
    listed = store.read("sweeps", name) if part and store.has("sweeps", name) else []
    merged = {_point(row): row for row in listed} | cells
    store.put(
        "sweeps",
        name,
        [{**row, "sweep": name, "cell": index} for index, row in enumerate(merged.values())],
    )


def _point(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """What was asked for; the k of a threshold is a result."""
    setting = row["k"] if row["threshold"] is None else None
    axes = ("model", "procedure", "strategy", "threshold", "task", "seed")
    return (setting, *(row[axis] for axis in axes))


@contextmanager
def _signals() -> Iterator[list[str]]:
    """SIGTERM ends a run as Ctrl-C does; the list says which one came."""
    received: list[str] = []

    def stop(number: int, frame: object) -> None:
        del frame
        received.append(signal.Signals(number).name)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield received
    finally:
        signal.signal(signal.SIGTERM, before)


def _fit(
    queue: WorkQueue, store: Store, options: Options, slots: Slots, reporter: Reporter
) -> None:
    """Tuner.fit() until nothing is waiting: Ray's memory monitor aborts a fit when it kills a
    worker, and the next goes on from the queue."""
    from ray import tune

    from lp_sweep.orchestrator.searcher import PlanSearcher
    from lp_sweep.orchestrator.tunecallback import ReportingCallback
    from lp_sweep.orchestrator.worker import TrialActor

    transport = {
        "store": str(store.root),
        "cache_dir": str(options.cache_dir),
        "offline": options.offline,
        "threads": int(slots.cpus) if not slots.gpus else None,
        "device": "auto" if slots.gpus else "cpu",  # a slot without a GPU must not share one
    }
    scratch = Path(tempfile.mkdtemp(prefix="lp-sweep-tune-"))
    try:
        while queue.waiting:
            searcher = PlanSearcher(queue, transport)
            tuner = tune.Tuner(
                tune.with_resources(TrialActor, {"cpu": slots.cpus, "gpu": slots.gpus}),
                tune_config=tune.TuneConfig(
                    search_alg=searcher,
                    num_samples=-1,
                    reuse_actors=True,
                    max_concurrent_trials=slots.number,
                ),
                run_config=tune.RunConfig(
                    name=queue.plan.sweep.name,
                    storage_path=str(scratch),
                    verbose=0,
                    failure_config=tune.FailureConfig(max_failures=_WORKER_RETRIES),
                    checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
                    callbacks=[ReportingCallback(searcher, store, reporter)],
                ),
            )
            try:
                tuner.fit()
            except (RuntimeError, tune.TuneError) as error:
                _give_back_live(queue, store, reporter, error)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _give_back_live(queue: WorkQueue, store: Store, reporter: Reporter, error: Exception) -> None:
    """A fit that died takes its live trials with it: they are tried once more, then have failed."""
    if not queue.live:
        raise error
    for id_ in list(queue.live):
        if store.has("profiles" if id_ in queue.plan.profiles else "trials", id_):
            queue.ended(id_, None)  # it had come to its end before
            reporter.ended(id_, "done", "recorded")
            continue
        reporter.ended(
            id_, "lost", "the worker was killed: the node ran out of memory, or was lost"
        )
        if not queue.lost(id_):
            record_lost(store, queue, id_, str(error))
            queue.ended(id_, "worker_lost")


def record_lost(store: Store, queue: WorkQueue, id_: str, message: str) -> None:
    """An attempt whose worker could not write one itself."""
    work = queue.live.get(id_) or queue.plan.trials.get(id_) or queue.plan.profiles[id_]
    attempt = f"{id_}.{uuid.uuid4().hex[:8]}"
    store.put(
        "attempts",
        attempt,
        [
            {
                "attempt_id": attempt,
                "trial_id": id_,
                "model": work.model.name,
                "task": work.task.name,
                "seed": getattr(work.spec, "seed", None),
                "kept_layers": getattr(work.spec, "kept_layers", None),
                "error_type": "worker_lost",
                "message": message.strip().splitlines()[-1] if message.strip() else "no message",
                "traceback": message,
                "host": socket.gethostname(),
                "ended_at": dt.datetime.now(dt.UTC),
            }
        ],
    )
