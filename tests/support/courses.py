"""A run without an engine: what an engine would be given. Not a test."""

from __future__ import annotations

from typing import Any

from lp_sweep.orchestrator.engine.capacity import Slots
from lp_sweep.orchestrator.engine.course import Course
from lp_sweep.orchestrator.engine.progress import PlainReporter
from lp_sweep.orchestrator.engine.recorder import Recorder
from lp_sweep.orchestrator.engine.runoptions import RunOptions
from lp_sweep.orchestrator.engine.workqueue import WorkQueue
from lp_sweep.orchestrator.plan.plan import Work
from lp_sweep.storage.runs import Presence

ON_CPU = Slots(1, 1.0, 0.0)


def course_of(queue: WorkQueue, **options: Any) -> Course:
    """`options`: of a run."""
    recorder = Recorder(queue.store, part=False, command="lp-sweep run sweep.yaml")
    presence = Presence(queue.store, queue.plan.sweep.name, queue.progress)
    return Course(queue, recorder, PlainReporter(), RunOptions(**options), presence)


def taken(queue: WorkQueue) -> Work:
    """The next piece of work; there is one."""
    work = queue.take()
    assert work is not None
    return work
