"""The searcher hands the queue's work to Ray Tune."""

from __future__ import annotations

from pathlib import Path

import pytest
from ray.tune.search import Searcher

from lp_sweep.orchestrator.engine import ray_tune
from lp_sweep.orchestrator.engine.ray_tune import PlanSearcher
from lp_sweep.orchestrator.engine.workqueue import WorkQueue
from lp_sweep.storage.store import Store
from tests.support.courses import ON_CPU, course_of, queue_of
from tests.support.sweepfiles import make_inputs, planned


@pytest.fixture
def queue(tmp_path: Path) -> WorkQueue:
    """A queue of four trials."""
    store = Store(tmp_path / "store", create=True)
    plan = planned(make_inputs(tmp_path), "task=rte")
    return queue_of(plan, store)


def test_what_was_preempted_is_handed_out_again(queue: WorkQueue) -> None:
    """At once, whatever Tune's trial was called."""
    made = PlanSearcher(course_of(queue), ON_CPU, lambda: 1)
    first = made.suggest("1")
    assert made.suggest("2") is None  # no room
    assert queue.lost(made.works["1"].id, "preempted")
    assert made.suggest("2") == first
    assert queue.failed == {}


@pytest.mark.parametrize(("room", "pieces"), [(1, 2), (3, 3)], ids=["few slots", "many"])
def test_a_tuner_takes_more_where_there_are_more_slots(
    queue: WorkQueue, monkeypatch: pytest.MonkeyPatch, room: int, pieces: int
) -> None:
    """At its end all slots wait for the longest trial."""
    monkeypatch.setattr(ray_tune, "_LEAST_A_TUNER", 2)
    monkeypatch.setattr(ray_tune, "_A_TUNER_AND_SLOT", 1)
    made = PlanSearcher(course_of(queue), ON_CPU, lambda: room)
    for number in range(pieces):
        assert "job" in made.suggest(str(number))
        [id_] = queue.live
        queue.ended(id_, None)
    assert made.suggest("one more") == Searcher.FINISHED
    assert queue.open  # for the next Tuner
