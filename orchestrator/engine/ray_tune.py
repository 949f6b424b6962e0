"""Trials on Ray Tune, in the processes of this machine or of a cluster. Tune is the dispatcher; the
store is the truth, and nothing that Tune remembers is read back.

Workers import this file: what only the driver needs is imported where it is used.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray import tune
from ray.tune.search import Searcher

if TYPE_CHECKING:
    from lp_sweep.orchestrator.engine.capacity import Capacity, Slots
    from lp_sweep.orchestrator.engine.course import Course
    from lp_sweep.orchestrator.engine.raycompat import Fate
    from lp_sweep.orchestrator.engine.recorder import Loss
    from lp_sweep.orchestrator.plan.plan import Work

# Tune keeps 50 kB of each piece for ever, and goes through all of them at each event: after so many
# a new one goes on. Then all slots wait for the longest trial, so there are more where slots are.
_LEAST_A_TUNER, _A_TUNER_AND_SLOT = 2000, 20
_MOST_AT_A_TIME = 100_000  # Tune without it keeps one trial pending; `room` decides
_LOOK_SECONDS = 5.0  # between two looks at the nodes
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_ACTOR = re.compile(r"actor_id[=:]\s*([0-9a-f]{32})")
_SUMMARIES = {
    "preempted": "the node was taken away, as it had announced",
    "node_lost": "the node was lost",
    "worker_lost": "the worker process died: it was killed, or crashed",
    "out_of_memory": "the node ran out of memory, and Ray ended the worker",
}


class EndOfFit(KeyboardInterrupt):
    """Ends the fit as Ctrl-C does; Tune would swallow an ordinary exception."""


def fit(course: Course, capacity: Capacity) -> None:
    """Tuner.fit() until nothing is left: each takes some thousand pieces, since Tune forgets
    none; and one that dies with its live trials is followed by another."""
    from lp_sweep.orchestrator.engine.course import Nodes
    from lp_sweep.orchestrator.engine.everynode import alive_nodes
    from lp_sweep.orchestrator.engine.raycompat import keep_credentials, keep_fit_alive
    from lp_sweep.orchestrator.engine.recorder import Loss

    keep_fit_alive()
    course.nodes = Nodes(alive_nodes)
    scratch = Path(tempfile.mkdtemp(prefix="lp-sweep-tune-"))
    try:
        while course.queue.open:
            try:
                with keep_credentials():
                    _tuner(course, capacity, scratch).fit()
            except EndOfFit:
                return
            except (RuntimeError, tune.TuneError) as error:
                if not course.queue.live:
                    raise
                reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
                course.reporter.note(f"Ray Tune ended and is restarted: {reason}")
                message = "Ray Tune ended with its live trials"
                course.lost_all(Loss("worker_lost", message, str(error), None))
            shutil.rmtree(scratch, ignore_errors=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _tuner(course: Course, capacity: Capacity, scratch: Path) -> tune.Tuner:
    searcher = PlanSearcher(course, capacity.slots, capacity.now)
    return tune.Tuner(
        tune.with_resources(TrialActor, partial(resources, capacity.slots)),
        tune_config=tune.TuneConfig(
            search_alg=searcher,
            num_samples=-1,
            reuse_actors=True,
            max_concurrent_trials=_MOST_AT_A_TIME,
        ),
        run_config=tune.RunConfig(
            name=course.queue.plan.sweep.name,
            storage_path=str(scratch),
            verbose=0,
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            callbacks=[WorkCallback(searcher)],
        ),
    )


class PlanSearcher(Searcher):  # type: ignore[misc]
    """`suggest` gives the longest missing piece, None while there is no room for another or
    something that runs (here, or in another run) may bring more, and FINISHED when nothing is
    left. `room`: how many pieces the cluster takes at a time, which may change."""

    def __init__(self, course: Course, slots: Slots, room: Callable[[], int]) -> None:
        super().__init__()
        self.course, self.room = course, room
        device = "auto" if slots.gpus else "cpu"  # without a GPU it must not share one
        self._place = course.place(
            device=device, threads=int(slots.cpus) if not slots.gpus else None
        )
        self.works: dict[str, Work] = {}  # Tune's trial -> ours; kept for the events that follow

    def suggest(self, trial_id: str) -> Any:  # Tune keeps the argument's name
        if self.course.check():
            raise EndOfFit
        queue = self.course.queue
        if len(queue.live) >= self.room():
            return None
        if not self._full() and (work := self.course.take()) is not None:
            self.works[trial_id] = work
            job = self.course.job(work, self._place)
            return {"job": json.dumps(job), "avoid": sorted(self.course.nodes.set_aside)}
        if queue.live:
            return None
        return Searcher.FINISHED if self._full() or not queue.open else None

    def _full(self) -> bool:
        return len(self.works) >= max(_LEAST_A_TUNER, _A_TUNER_AND_SLOT * self.room())

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Nothing: `WorkCallback` hears the same with more detail."""

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune pickles what it could restore; a plan of 100,000 cells is not for that

    def save(self, checkpoint_path: str) -> None:
        del checkpoint_path  # nothing of Tune's is ever restored

    def restore(self, checkpoint_path: str) -> None:
        del checkpoint_path


def resources(slots: Slots, config: Mapping[str, Any]) -> Any:
    """The request of Tune to Ray: one slot, on a node that is not set aside."""
    bundle = slots.bundle()
    avoid = config.get("avoid")
    if not avoid:
        return tune.PlacementGroupFactory([bundle])
    label = {"ray.io/node-id": f"!in({','.join(avoid)})"}
    return tune.PlacementGroupFactory([bundle], bundle_label_selector=[label])


class WorkCallback(tune.Callback):  # type: ignore[misc]
    """Tells the course of a run what Tune's events mean for its work. Called in the driver's main
    thread."""

    def __init__(self, searcher: PlanSearcher) -> None:
        self.course, self.works = searcher.course, searcher.works
        self._looked = time.monotonic()

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune pickles its callbacks, and a live display holds a lock

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        if (work := self.works.get(trial.trial_id)) is not None:
            self.course.started(work)

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        work = self.works.get(trial.trial_id)
        if work is not None and "status" in result:
            self.course.ended(work, result)
            self._leave()

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        work = self.works.get(trial.trial_id)
        if work is not None and work.id in self.course.queue.live:
            self.course.lost(work, loss_of(trial))
            self._leave()

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """With the last good node gone, trials that keep away from the others would wait for ever:
        this ends the fit, and the next one takes the nodes that were set aside."""
        self._leave()
        if time.monotonic() - self._looked < _LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        self.course.tick()
        if self.course.nodes.readmit():
            raise RuntimeError("the other nodes are gone, and those set aside are taken again")

    def _leave(self) -> None:
        if self.course.check():
            raise EndOfFit


class TrialActor(tune.Trainable):  # type: ignore[misc]
    """A worker, which stays: torch is imported once per slot. One `step` is one whole job. Ordinary
    failures are stored by `execute` and end the step normally; what is raised means that the
    process itself is spent."""

    def setup(self, config: dict[str, Any]) -> None:
        self._job = config["job"]

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self._job = new_config["job"]
        return True  # False would hang the sweep

    def step(self) -> dict[str, Any]:
        import ray

        from lp_sweep.storage.errors import StoreError
        from lp_sweep.trials.worker.run import execute

        job = json.loads(self._job)
        node = ray.get_runtime_context().get_node_id()
        try:
            told = execute(job, job["store"])
        except StoreError as error:  # neither the store nor this node's disk took the record
            told = {"id": job["id"], "status": "not stored", "message": str(error)}
        return {**told, "node_id": node, "done": True}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        del checkpoint_dir  # the store is the only state

    def load_checkpoint(self, checkpoint: Any) -> None:
        del checkpoint


# -- how a worker was lost: from what Ray tells to the type of a failure


def loss_of(trial: Any) -> Loss:
    """Finds why a Tune trial ended whose worker could not report it."""
    from lp_sweep.orchestrator.engine.everynode import answers
    from lp_sweep.orchestrator.engine.raycompat import fate_of
    from lp_sweep.orchestrator.engine.recorder import Loss

    error = _error(trial)
    text = _COLOURS.sub("", str(error) if error is not None else _error_text(trial)).strip()
    fate = fate_of(_actor_id(error, text))
    error_type = _type(error, text, fate)
    if error_type == "worker_lost" and "is unavailable" in text and not answers(fate.node):
        error_type = "node_lost"  # only the connection broke: Ray itself needs a minute to be sure
    last_line = (text.splitlines() or ["no message"])[-1]
    return Loss(error_type, _SUMMARIES.get(error_type, last_line), text, fate.node)


def _error(trial: Any) -> Any:
    """The exception that Tune kept in its scratch folder: written by this very process."""
    from ray import cloudpickle

    try:
        with Path(trial.pickled_error_file).open("rb") as stream:
            return cloudpickle.load(stream)
    except Exception:  # not there, or not to be unpickled: the text remains
        return None


def _error_text(trial: Any) -> str:
    try:
        return Path(trial.error_file).read_text(encoding="utf-8")
    except (OSError, TypeError):
        return ""


def _actor_id(error: Any, text: str) -> str | None:
    """An error of our own code names its worker in the text only."""
    actor = getattr(error, "actor_id", None)
    if isinstance(actor, bytes):
        return actor.hex()
    named = _ACTOR.search(text)
    return actor or (named[1] if named else None)


def _type(error: Any, text: str, fate: Fate) -> str:
    if getattr(error, "preempted", False) or "preempt" in fate.cause.lower():
        return "preempted"
    if "OutOfMemoryError" in text or "low on memory" in text:
        return "out_of_memory"
    if fate.announced and not _is_task_error(error):
        return "preempted"  # a machine that is cut off says nothing more; it was said before
    if "NODE_DIED" in fate.cause or "node has died" in text or "NodeDiedError" in text:
        return "node_lost"
    if "AcceleratorError" in text or "CUDA error" in text:
        return "device_error"
    # a RayTaskError that is none of a device's: our own code raised it
    return "bug" if _is_task_error(error) else "worker_lost"


def _is_task_error(error: Any) -> bool:
    from ray.exceptions import RayTaskError

    return isinstance(error, RayTaskError)
