"""Runs a plan on Ray Tune: joins or starts a cluster, streams the missing work, reports.

`run_sweep` is idempotent. What the store has is not done again; what was interrupted is.
"""

from __future__ import annotations

import datetime as dt
import logging
import os
import shutil
import signal
import socket
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from lp_sweep.orchestrator.estimate import Rates
from lp_sweep.orchestrator.plan import Plan, make_plan, read_known
from lp_sweep.orchestrator.progress import Reporter
from lp_sweep.orchestrator.resolve import Sweep
from lp_sweep.orchestrator.workqueue import WorkQueue
from lp_sweep.storage.errors import PreflightError
from lp_sweep.storage.store import Store

# What we measured of Tune, and what follows: no snapshots, no loggers, no new console output, and
# Ctrl-C is ours. Set before Ray is imported.
_TUNE_ENVIRONMENT = {
    "TUNE_GLOBAL_CHECKPOINT_S": "1000000000",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "TOKENIZERS_PARALLELISM": "false",
}
_MAX_SLOT_CORES = 8  # a small encoder on a CPU does not use more
_WORKER_RETRIES = 1  # a lost process gets a second try


class Options(NamedTuple):
    """Where and how, never what: nothing here changes a trial's identity."""

    cache_dir: Path
    address: str | None = None
    cpus_per_trial: float | None = None
    gpus_per_trial: float | None = None
    offline: bool = False


class Slots(NamedTuple):
    """How the cluster is cut: `number` trials at a time, each with these resources."""

    number: int
    cpus: float
    gpus: float


class Outcome(NamedTuple):
    """What a run did. `failed`: identifier -> error type."""

    plan: Plan
    done: int
    failed: dict[str, str]
    stopped_by: str | None  # SIGINT, SIGTERM or None


def run_sweep(sweep: Sweep, store: Store, options: Options, reporter: Reporter) -> Outcome:
    """Do what is missing. Raises PreflightError when no cluster can be had."""
    plan = make_plan(sweep, read_known(store))
    _publish(plan, store)
    rates = Rates(store.read_all("trials").rows.to_pylist())

    def replanned(newer: Plan) -> None:
        _publish(newer, store)
        reporter.planned(newer)

    queue = WorkQueue(plan, store, rates, replanned)
    if not queue.waiting:
        return Outcome(plan, 0, {}, None)
    reporter.planned(plan)
    stopped_by = None
    with _signals() as received, _ray(options) as slots:
        reporter.opened(queue, slots.number)
        try:
            _fit(queue, store, options, slots, reporter)
        except KeyboardInterrupt:
            stopped_by = received[0] if received else "SIGINT"
        finally:
            reporter.closed()
    after = make_plan(sweep, read_known(store))
    _publish(after, store)
    return Outcome(after, len(queue.done), queue.failed, stopped_by)


def _publish(plan: Plan, store: Store) -> None:
    """The sweep's cells, for the views; written again when a profile opens deferred cells."""
    rows = [
        {**cell.row(), "sweep": plan.sweep.name, "cell": index}
        for index, cell in enumerate(plan.cells)
    ]
    store.put("sweeps", plan.sweep.name, rows)


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


@contextmanager
def _ray(options: Options) -> Iterator[Slots]:
    """Join the cluster at `options.address` or RAY_ADDRESS, or start a local Ray of our own."""
    os.environ.update({key: os.environ.get(key, value) for key, value in _TUNE_ENVIRONMENT.items()})
    import ray

    for name in ("ray.tune", "ray.air", "ray.train"):  # failures are told by our own reporter
        logging.getLogger(name).setLevel(logging.CRITICAL)
    address = options.address or os.environ.get("RAY_ADDRESS")
    quiet: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
    try:
        if address:
            _knock(address)
            ray.init(address=address, **quiet)
        else:
            ray.init(
                address="local",
                include_dashboard=False,
                object_store_memory=200 * 2**20,  # records go to the store, not through Ray
                **quiet,
            )
    except (ConnectionError, OSError, RuntimeError, ValueError) as error:
        where = f"at {address}" if address else "on this machine"
        raise PreflightError(
            f"no Ray {where}: {str(error).splitlines()[0]} Check --address or RAY_ADDRESS; "
            "without either a Ray of this machine's own is started."
        ) from error
    try:
        yield _slots(ray.cluster_resources(), options)
    finally:
        ray.shutdown()


def _knock(address: str) -> None:
    """Raises OSError where nothing listens: Ray itself would try for minutes."""
    host, _, port = address.rpartition("://")[2].partition(":")
    if port.isdigit():
        socket.create_connection((host, int(port)), timeout=10).close()


def _slots(resources: Mapping[str, float], options: Options) -> Slots:
    """One trial per GPU; on a CPU cluster one per core group."""
    cores, devices = resources.get("CPU", 0), resources.get("GPU", 0)
    gpus = options.gpus_per_trial
    if gpus is None:
        gpus = 1.0 if devices >= 1 else 0.0
    cpus = options.cpus_per_trial
    if cpus is None:
        cpus = 1.0 if gpus else float(max(1, int(cores) // _MAX_SLOT_CORES))
    fits = [int(cores / cpus)] + ([int(devices / gpus)] if gpus else [])
    if min(fits) < 1:
        raise PreflightError(
            f"no slot: a trial asks for {cpus:g} CPU and {gpus:g} GPU, the cluster has {cores:g} "
            f"and {devices:g}. Lower resources_per_trial, or wait for the cluster's nodes."
        )
    return Slots(min(fits), cpus, gpus)


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
            except RuntimeError as error:  # tune.TuneError is one
                _give_back_live(queue, store, reporter, error)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _give_back_live(queue: WorkQueue, store: Store, reporter: Reporter, error: Exception) -> None:
    """A fit that died takes its live trials with it: they are tried once more, then have failed."""
    if not queue.live:
        raise error
    for id_ in list(queue.live):
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
