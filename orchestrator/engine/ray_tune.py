"""Runs trials on Ray Tune, which only dispatches them: nothing that Tune saves is ever read back.

Workers import this file, so modules that only the driver needs are imported where they are used.
"""

from __future__ import annotations

import json
import re
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray import cloudpickle, tune
from ray.exceptions import ActorUnavailableError, RayTaskError
from ray.tune.search import Searcher

from lp_sweep.storage.errors import GraphRecordingError, StoreError
from lp_sweep.trials.worker.job import not_stored

if TYPE_CHECKING:
    from lp_sweep.orchestrator.engine.capacity import Capacity, Slots
    from lp_sweep.orchestrator.engine.course import Course, Loss
    from lp_sweep.orchestrator.plan.plan import Work

# Tune keeps 70 kB of each trial for ever, and goes through all of them at each event, so that a new
# Tuner takes over after so many. Then all slots wait for the longest trial: more slots, more trials
_LEAST_A_TUNER, _A_TUNER_AND_SLOT = 2000, 20
_MOST_AT_A_TIME = 100_000  # without it Tune keeps one trial pending; `room` is the real limit
_LOOK_SECONDS = 5.0  # between two looks at the nodes
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_SUMMARIES = {
    "node_lost": "the node was lost",
    "worker_lost": "the worker process died: it was killed, or crashed",
    "out_of_memory": "the node ran out of memory, and Ray ended the worker",
}


class EndOfFit(KeyboardInterrupt):
    """Ends the fit like Ctrl-C; Tune would swallow an ordinary exception."""


def fit(course: Course, capacity: Capacity) -> None:
    """Runs one Tuner after another until nothing is left: each takes some thousand trials. Raises
    TuneError."""
    from lp_sweep.orchestrator.engine.raycompat import keep_credentials, keep_fit_alive

    with suppress(EndOfFit), keep_credentials(), keep_fit_alive():
        while course.queue.open:
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
                _tuner(course, capacity, scratch).fit()


def _tuner(course: Course, capacity: Capacity, scratch: str) -> tune.Tuner:
    searcher = PlanSearcher(course, capacity.slots, capacity.now)
    return tune.Tuner(
        tune.with_resources(TrialActor, tune.PlacementGroupFactory([capacity.slots.bundle()])),
        tune_config=tune.TuneConfig(
            search_alg=searcher,
            num_samples=-1,
            reuse_actors=True,
            max_concurrent_trials=_MOST_AT_A_TIME,
        ),
        run_config=tune.RunConfig(
            name=course.queue.plan.sweep.name,
            storage_path=scratch,
            verbose=0,
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            callbacks=[WorkCallback(searcher)],
        ),
    )


class PlanSearcher(Searcher):  # type: ignore[misc]
    """Gives Tune the queue's work. `suggest` returns a trial, None while there is no room or live
    work (here or in another run) may bring more, and FINISHED when nothing is left. `room`: how
    many trials the cluster takes at a time, which may change."""

    def __init__(self, course: Course, slots: Slots, room: Callable[[], int]) -> None:
        super().__init__()
        self.course, self.room = course, room
        self._place = course.place(slots)
        self.works: dict[str, Work] = {}  # Tune's trial -> our work

    def suggest(self, trial_id: str) -> Any:  # Tune keeps the argument's name
        if self.course.check():
            raise EndOfFit
        queue, room = self.course.queue, self.room()
        left = max(_LEAST_A_TUNER, _A_TUNER_AND_SLOT * room) - len(self.works)  # for this Tuner
        slots = min(room - len(queue.live), left)
        if slots <= 0:
            queue.give_back()
        elif (work := self.course.take(slots)) is not None:
            self.works[trial_id] = work
            return {"job": json.dumps(self.course.job(work, self._place))}
        if queue.live:
            return None
        return Searcher.FINISHED if left <= 0 or not queue.open else None

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Does nothing: `WorkCallback` gets the same event with more detail."""

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune pickles its searcher, and a large plan takes long

    def save(self, checkpoint_path: str) -> None:
        del checkpoint_path  # nothing of Tune's is ever restored

    def restore(self, checkpoint_path: str) -> None:
        del checkpoint_path


class WorkCallback(tune.Callback):  # type: ignore[misc]
    """Passes Tune's events on to the course of the run, in the driver's main thread."""

    def __init__(self, searcher: PlanSearcher) -> None:
        self.course, self.works = searcher.course, searcher.works
        self._looked = time.monotonic()

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune pickles its callbacks, and a live display holds a lock

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        if (work := self.works.get(trial.trial_id)) is not None:
            self.course.reporter.started(work)

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
        self._leave()
        if time.monotonic() - self._looked < _LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        self.course.tick()

    def _leave(self) -> None:
        if self.course.check():
            raise EndOfFit


class TrialActor(tune.Trainable):  # type: ignore[misc]
    """A worker, which is reused, so that each slot imports torch once. One `step` is one job.
    `execute` stores ordinary failures and returns; an exception means that the process is no longer
    usable."""

    def setup(self, config: dict[str, Any]) -> None:
        self._job = config["job"]

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self._job = new_config["job"]
        return True  # False would hang the sweep

    def step(self) -> dict[str, Any]:
        job = json.loads(self._job)
        try:
            from lp_sweep.trials.worker.run import execute

            told = execute(job)
        except StoreError as error:
            told = {"id": job["id"], **not_stored(error)}
        return {**told, "done": True}

    def get_auto_filled_metrics(self, *given: Any, **named: Any) -> dict[str, Any]:
        return {}  # Tune would send the job back, and keep it with statistics of ten numbers

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        del checkpoint_dir  # the store is the only state

    def load_checkpoint(self, checkpoint: Any) -> None:
        del checkpoint


# -- how a worker was lost: from Ray's words to our error type


def loss_of(trial: Any) -> Loss:
    """Why a Tune trial ended whose worker could not report it."""
    from lp_sweep.orchestrator.engine.course import Loss

    error, text = None, ""
    with suppress(Exception):  # not there, or can't be unpickled; its text is left
        error = cloudpickle.loads(Path(trial.pickled_error_file).read_bytes())
        text = str(error)
    if error is None:
        with suppress(OSError, TypeError):
            text = Path(trial.error_file).read_text(encoding="utf-8")
    text = _COLOURS.sub("", text).strip()
    error_type = _type(error, text)
    last_line = (text.splitlines() or ["no message"])[-1]
    return Loss(error_type, _SUMMARIES.get(error_type, last_line), text)


def _type(error: Any, text: str) -> str:
    if GraphRecordingError.__name__ in text:
        return GraphRecordingError.kind
    if "OutOfMemoryError" in text or "low on memory" in text:
        return "out_of_memory"
    preempted = getattr(error, "preempted", False) or "NodeDied" in text
    if preempted or isinstance(error, ActorUnavailableError) or "node has died" in text:
        return "node_lost"
    if "AcceleratorError" in text or "CUDA error" in text:
        return "device_error"
    # our own code raised a RayTaskError that is not about a device
    return "bug" if isinstance(error, RayTaskError) else "worker_lost"
