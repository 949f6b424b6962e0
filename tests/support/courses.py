"""A run without an engine, its queue and other runs: what an engine would be given. Not a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lp_sweep.orchestrator.engine.capacity import Slots
from lp_sweep.orchestrator.engine.course import Budget, Course, Recorder
from lp_sweep.orchestrator.engine.progress import PlainReporter
from lp_sweep.orchestrator.engine.runoptions import RunOptions
from lp_sweep.orchestrator.engine.workqueue import WorkQueue
from lp_sweep.orchestrator.inputs.resolve import resolve
from lp_sweep.orchestrator.plan.known import WorkHistory
from lp_sweep.orchestrator.plan.plan import Plan, Work
from lp_sweep.orchestrator.plan.planning import make_plan
from lp_sweep.orchestrator.sweepfile.load import load_sweep
from lp_sweep.storage.runs import Presence, Progress
from lp_sweep.storage.store import Store
from tests.support.sweepfiles import CPU
from tests.support.toyworld import save_world

ON_CPU = Slots(1, 1.0, 0.0)


def course_of(queue: WorkQueue, **options: Any) -> Course:
    """`options`: of a run."""
    recorder = Recorder(queue.store, part=False, command="lp-sweep run sweep.yaml")
    presence = Presence(queue.store, queue.plan.sweep.name, queue.progress)
    return Course(queue, recorder, PlainReporter(), RunOptions(**options), presence, Budget())


def taken(queue: WorkQueue) -> Work:
    """The next piece of work; there is one."""
    work = queue.take()
    assert work is not None
    return work


def queue_of(plan: Plan, store: Store, **settings: Any) -> WorkQueue:
    """A queue whose plan may grow unseen."""
    return WorkQueue(plan, store, CPU, lambda plan: None, **settings)


def new_queue(folder: Path) -> WorkQueue:
    """A queue of five pieces of work: four trials and a profile, over a world in `folder`."""
    path = save_world(
        folder,
        seeds=[1, 2],
        strategies=[{"name": "top", "k": [0, 2]}, {"name": "contribution", "threshold": 0.5}],
    )
    plan = make_plan(resolve(load_sweep(path)), WorkHistory.nothing())
    return queue_of(plan, Store(folder / "s", create=True))


def presence_of(store: Store) -> Presence:
    """A run that nothing is known of but that it is there."""
    return Presence(store, "plain", lambda: Progress(0, 0, 1))


def put_failure(store: Store, id_: str, error_type: str = "bug") -> None:
    """The record of a last try at a piece of work."""
    row = {"attempt_id": f"{id_}.1", "trial_id": id_, "error_type": error_type, "final": True}
    store.put("attempts", f"{id_}.1", [row])


class Clock:
    """Seconds, which the test moves."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds

    def after(self, hours: float) -> None:
        self.seconds += 3600 * hours
