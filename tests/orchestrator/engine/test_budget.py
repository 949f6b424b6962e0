"""The hours of a run, by a clock that the test moves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lp_sweep.orchestrator.engine.course import Budget
from lp_sweep.orchestrator.engine.ray_tune import EndOfFit, PlanSearcher
from lp_sweep.storage.store import Store
from lp_sweep.trials.worker.job import announce
from tests.support.courses import ON_CPU, Clock, course_of, queue_of
from tests.support.sweepfiles import make_inputs, planned


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_what_runs_has_half_a_minute(clock: Clock, tmp_path: Path) -> None:
    """To write a checkpoint, or to end; nothing more is handed out."""
    plan = planned(make_inputs(tmp_path), "task=rte")
    queue = queue_of(plan, Store(tmp_path / "store", create=True))
    told: list[Any] = []
    course = course_of(queue, cache_dir=tmp_path)
    course.budget, course.everywhere = Budget(1.0, now=clock), lambda *given: told.append(given)
    searcher = PlanSearcher(course, ON_CPU, lambda: 9)
    assert "job" in searcher.suggest("1")
    clock.after(1)
    for _ in range(3):
        assert searcher.suggest("2") is None
    assert told == [(announce, tmp_path, 30.0)]  # once
    assert (queue.stopped, len(queue.live), queue.open) == ("max-hours", 1, False)
    assert course.budget.hours == pytest.approx(1.0)
    clock.seconds += 30
    with pytest.raises(EndOfFit):
        searcher.suggest("2")
