"""The hours of a run, by a clock that the test moves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lp_sweep.orchestrator.engine.budget import Budget, BudgetStop
from lp_sweep.orchestrator.engine.ray_tune import EndOfFit, PlanSearcher
from lp_sweep.storage.store import Store
from lp_sweep.trials.worker.job import announce
from tests.support.courses import ON_CPU, Clock, course_of, queue_of
from tests.support.sweepfiles import make_inputs, planned


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_hours_are_those_of_the_clock(clock: Clock) -> None:
    budget, endless = Budget(2.0, now=clock), Budget(now=clock)
    clock.after(1.9)
    assert not budget.spent
    clock.after(0.1)
    assert budget.spent
    assert budget.hours == pytest.approx(2.0)
    assert not endless.spent


def test_what_runs_has_half_a_minute(clock: Clock, tmp_path: Path) -> None:
    """To write a checkpoint, or to end; nothing more is handed out."""
    plan = planned(make_inputs(tmp_path), "task=rte")
    queue = queue_of(plan, Store(tmp_path / "store", create=True))
    told: list[Any] = []
    course = course_of(queue)
    course.stop = BudgetStop(
        queue,
        Budget(1.0, now=clock),
        tmp_path,
        lambda *arguments: told.append(arguments),
        now=clock,
    )
    searcher = PlanSearcher(course, ON_CPU, lambda: 9)
    assert "job" in searcher.suggest("1")
    clock.after(1)
    for _ in range(3):
        assert searcher.suggest("2") is None
    assert told == [(announce, tmp_path, 30.0)]  # once
    assert (queue.stopped, len(queue.live), queue.open) == ("max-hours", 1, False)
    clock.seconds += 30
    with pytest.raises(EndOfFit):
        searcher.suggest("2")
