"""Runs a plan on Ray Tune: joins or starts a cluster, streams the missing work, reports.

`run_sweep` is idempotent. What the store has is not done again; what was interrupted is.
"""

from __future__ import annotations

import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import NamedTuple

from lp_sweep.orchestrator.engine.budgetstop import BudgetStop
from lp_sweep.orchestrator.engine.capacity import Capacity, Slots, crowded_note, mixed_note
from lp_sweep.orchestrator.engine.cluster import address_of, cluster
from lp_sweep.orchestrator.engine.lifeline import RayLost
from lp_sweep.orchestrator.engine.loss import Loss, blocked_by
from lp_sweep.orchestrator.engine.progress import Facts, Reporter, told_of_measures
from lp_sweep.orchestrator.engine.raycompat import keep_sigterm
from lp_sweep.orchestrator.engine.recorder import Recorder
from lp_sweep.orchestrator.engine.runoptions import Options
from lp_sweep.orchestrator.engine.shipping import look_at_store
from lp_sweep.orchestrator.engine.sources import Sources
from lp_sweep.orchestrator.engine.stopsignals import StopSignals
from lp_sweep.orchestrator.engine.workqueue import WorkQueue
from lp_sweep.orchestrator.estimate.estimate import Rates
from lp_sweep.orchestrator.plan.plan import Plan, Work
from lp_sweep.orchestrator.plan.planning import make_plan
from lp_sweep.storage.errors import PreflightError, StoreError
from lp_sweep.storage.runs import Presence
from lp_sweep.storage.store import Store
from lp_sweep.trials.job import Place

_RAYS_IN_VAIN = 3  # lost one after the other without any work finished between: the run stops


class Outcome(NamedTuple):
    """What a run did. `failed`: identifier -> error type; `spooled`: identifier -> why its record
    waits on a node for the store."""

    plan: Plan
    done: int
    done_elsewhere: int  # by other runs, meanwhile
    failed: dict[str, str]
    spooled: dict[str, str]
    stopped_by: str | None  # SIGINT, SIGTERM, failures, store, ray, max-hours, max-cost or None
    store_error: str | None = None  # what the store answered last
    ray_error: str | None = None  # how Ray was lost


def run_sweep(
    plan: Plan, rates: Rates, store: Store, options: Options, reporter: Reporter
) -> Outcome:
    """Do what is missing. Raises PreflightError when no cluster can be had, StoreError when the
    store refuses before the first trial; later that is a reason to stop."""
    recorder = Recorder(
        store, part=options.part, overrides=options.overrides, command=options.command
    )
    recorder.cells(plan)

    def replanned(newer: Plan) -> None:
        recorder.cells(newer)
        sources.hold(newer)
        reporter.planned(newer)

    def blocked(work: Work, need: str) -> None:
        recorder.lost(work, blocked_by(need), final=True)
        told = f"missing_input: it goes on from {need}, which failed"
        reporter.ended(work.id, "failed", told, Facts(error_type="missing_input"))

    queue = WorkQueue(
        plan,
        store,
        rates,
        replanned,
        selection=options.selection,
        on_blocked=blocked,
        on_idle=lambda need: sources.release([need]),
    )
    presence = Presence(store, plan.sweep.name, queue.progress)
    sources = Sources(store, presence, keep_best=options.keep == "best")
    if not queue.open:
        plan = make_plan(plan.sweep, queue.known()) if queue.history.failed else plan
        sources.release_idle(plan)
        return Outcome(plan, 0, 0, queue.history.failed, {}, None)
    reporter.planned(plan)
    if again := plan.trained_again():
        reporter.note(
            f"{len(again)} finished trials are trained again, for networks that were not kept and "
            "that others go on from or that are to be measured; their records stay"
        )
    sources.hold(plan)
    with presence.announced(), StopSignals().caught() as signals:
        queue.others.claims = presence
        for run in presence.others():
            reporter.note(
                f"another run works on this store, and this one shares it: {run.sentence()}"
            )
        _work(queue, recorder, options, reporter, signals, presence)
    history, after = queue.history, make_plan(queue.plan.sweep, queue.known())
    if queue.stopped != "store":
        try:
            recorder.cells(after)
            sources.release_idle(after)
        except StoreError as error:
            queue.refused(str(error))
    return Outcome(
        after,
        len(history.done - history.done_elsewhere),
        len(history.done_elsewhere),
        history.failed,
        history.spooled,
        queue.stopped,
        queue.store_error,
        queue.ray_error,
    )


def _work(
    queue: WorkQueue,
    recorder: Recorder,
    options: Options,
    reporter: Reporter,
    signals: StopSignals,
    presence: Presence,
) -> None:
    """On a cluster, until nothing is left or something stops it: `queue.stopped` says what. Where
    a Ray of this run's own is lost, another one is started as long as there is progress."""
    why, ended, in_vain = "", 0, 0
    try:
        keep_sigterm()
        while queue.open:
            try:
                _on_ray(queue, recorder, options, reporter, signals, presence)
                return
            except RayLost as error:
                why = str(error)
            except PreflightError as error:
                if not why:
                    raise
                why, in_vain = f"{why}; {error}", _RAYS_IN_VAIN
            in_vain = in_vain + 1 if queue.history.ended == ended else 1
            ended = queue.history.ended
            if address_of(options) or in_vain > _RAYS_IN_VAIN:
                queue.ray_lost(why)
            else:
                reporter.note(f"Ray was lost: {why}. The run goes on with another one")
                loss = Loss("node_lost", "Ray was lost with its live trials", why, None)
                _lose_live(queue, recorder, options, reporter, loss)
    except KeyboardInterrupt:  # --fail-fast's and a budget's too: their queue has stopped before
        queue.stopped = queue.stopped or (signals.received or ["SIGINT"])[0]
    finally:
        reporter.closed()


def _on_ray(
    queue: WorkQueue,
    recorder: Recorder,
    options: Options,
    reporter: Reporter,
    signals: StopSignals,
    presence: Presence,
) -> None:
    with cluster(options, reporter.note) as capacity:
        _look_at_nodes(queue, options, capacity, reporter)
        if not address_of(options):  # a Ray of this run's own, that knows of no other
            for run in presence.beside():
                reporter.note(crowded_note(capacity.slots, run))
        reporter.opened(queue, capacity.slots.number)
        _fit(queue, recorder, options, capacity, reporter, signals)


def _fit(
    queue: WorkQueue,
    recorder: Recorder,
    options: Options,
    capacity: Capacity,
    reporter: Reporter,
    signals: StopSignals,
) -> None:
    """Tuner.fit() until nothing is left: each takes some thousand pieces, since Tune forgets none;
    and one that dies with its live trials is followed by another."""
    from ray import tune

    from lp_sweep.orchestrator.engine.everynode import alive_nodes
    from lp_sweep.orchestrator.engine.nodes import Nodes
    from lp_sweep.orchestrator.engine.raycompat import keep_credentials, keep_fit_alive
    from lp_sweep.orchestrator.engine.searcher import MOST_AT_A_TIME, PlanSearcher, resources
    from lp_sweep.orchestrator.engine.tunecallback import WorkCallback
    from lp_sweep.orchestrator.engine.worker import TrialActor

    keep_fit_alive()
    signals.arm()
    nodes = Nodes(alive_nodes)
    stop = BudgetStop(queue, options.budget, options.cache_dir)
    scratch = Path(tempfile.mkdtemp(prefix="lp-sweep-tune-"))
    try:
        while queue.open:
            place = _place(recorder.store, options, capacity.slots)
            searcher = PlanSearcher(queue, place, nodes, capacity.now, stop.check)
            callback = WorkCallback(searcher, recorder, reporter, options.limits)
            tuner = tune.Tuner(
                tune.with_resources(TrialActor, partial(resources, capacity.slots)),
                tune_config=tune.TuneConfig(
                    search_alg=searcher,
                    num_samples=-1,
                    reuse_actors=True,
                    max_concurrent_trials=MOST_AT_A_TIME,
                ),
                run_config=tune.RunConfig(
                    name=queue.plan.sweep.name,
                    storage_path=str(scratch),
                    verbose=0,
                    checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
                    callbacks=[callback],
                ),
            )
            try:
                with keep_credentials():
                    tuner.fit()
            except (RuntimeError, tune.TuneError) as error:
                if not queue.live:
                    raise
                reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
                reporter.note(f"Ray Tune ended, and is started again: {reason}")
                message = "Ray Tune ended with its live trials"
                loss = Loss("worker_lost", message, str(error), None)
                _lose_live(queue, recorder, options, reporter, loss)
            shutil.rmtree(scratch, ignore_errors=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _look_at_nodes(
    queue: WorkQueue, options: Options, capacity: Capacity, reporter: Reporter
) -> None:
    """Before the first trial: room on the GPUs, and that all nodes work on one store. Raises
    PreflightError, StoreError."""
    from lp_sweep.orchestrator.engine.everynode import on_each_node
    from lp_sweep.orchestrator.inputs.gpumemory import check_gpus, local_gpus

    if note := mixed_note(capacity.slots, capacity.accelerators):
        reporter.note(note)
    speeds = (work.spec for work in queue.plan.missing_speeds())
    on_gpu = any(spec.kind == "speed" and spec.device_type == "cuda" for spec in speeds)
    if on_gpu and not capacity.slots.gpus:
        raise PreflightError(
            "the sweep asks for speeds on cuda (`measure: {speed: cuda}`), and trials here have no "
            "GPU. Run it where there is one, or without them: measure.speed=cpu."
        )
    if capacity.slots.gpus:
        gpus = [gpu for found in on_each_node(local_gpus).values() for gpu in found]
        for note in check_gpus(queue.plan.sweep.spec, queue.plan.inputs_needed().trials, gpus):
            reporter.note(note)
    if address_of(options):
        for note in look_at_store(queue.plan, queue.store, options.cache_dir):
            reporter.note(note)


def _place(store: Store, options: Options, slots: Slots) -> Place:
    """Tells a worker where and how to do a job."""
    return Place(
        store=store.location,
        store_patience=options.store_patience,
        cache_dir=options.cache_dir,
        offline=options.offline,
        threads=int(slots.cpus) if not slots.gpus else None,
        device="auto" if slots.gpus else "cpu",  # a slot without a GPU must not share one
        checkpoint_every=options.checkpoint_every,
        keep=options.keep,
        command=options.command,
    )


def _lose_live(
    queue: WorkQueue, recorder: Recorder, options: Options, reporter: Reporter, loss: Loss
) -> None:
    """What ran on a fit that died is put back, unless its record was written before."""
    from lp_sweep.orchestrator.engine.nodes import Nodes
    from lp_sweep.orchestrator.engine.searcher import PlanSearcher
    from lp_sweep.orchestrator.engine.tunecallback import WorkCallback

    searcher = PlanSearcher(queue, Place(), Nodes(lambda: frozenset()), lambda: 0)
    callback = WorkCallback(searcher, recorder, reporter, options.limits)
    try:
        for id_, work in list(queue.live.items()):
            measures_failed = queue.recorded(id_)
            if measures_failed is None:
                callback.lost(work, loss)
            else:
                queue.ended(id_, None, measures_failed)
                reporter.ended(id_, "done", f"recorded{told_of_measures(measures_failed)}")
    except StoreError as refusal:
        queue.refused(str(refusal))
