"""The border to Ray Tune: how a worker was lost, and which work the searcher hands out."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray import cloudpickle
from ray.exceptions import ActorUnavailableError, RayActorError, RayError, RayTaskError
from ray.tune.experiment import Trial
from ray.tune.search import Searcher

from lp_sweep.orchestrator.engine import ray_tune
from lp_sweep.orchestrator.engine.connection import _TUNE_ENVIRONMENT
from lp_sweep.orchestrator.engine.course import Budget
from lp_sweep.orchestrator.engine.ray_tune import EndOfFit, PlanSearcher, loss_of
from lp_sweep.orchestrator.engine.workqueue import WorkQueue
from lp_sweep.storage.errors import GraphRecordingError
from lp_sweep.storage.store import Store
from lp_sweep.trials.worker.fetch import announce
from tests.support.courses import ON_CPU, Clock, course_of, presence_of, queue_of
from tests.support.sweepfiles import make_inputs, planned

CUT_OFF = ActorUnavailableError("connection refused", None)
GRAPH = GraphRecordingError("a CUDA graph could not be recorded")
RECORDING = RayTaskError("step", f"torch.AcceleratorError: CUDA error\n{GRAPH!r}", GRAPH)
OUT_OF_MEMORY = RayActorError(error_msg="OutOfMemoryError: the node was low on memory")
NODE_DIED = RayActorError(error_msg="The actor died because its node has died. Node Id: b1")
KILLED = RayActorError(error_msg="The actor died unexpectedly, by a signal")
BUG = RayTaskError("step", "Traceback\nValueError: no", ValueError("no"))


@pytest.mark.parametrize(
    ("error", "error_type"),
    [
        pytest.param(RayActorError(preempted=True), "node_lost", id="preempted"),
        pytest.param(CUT_OFF, "node_lost", id="cut off"),
        pytest.param(NODE_DIED, "node_lost", id="the node died"),
        pytest.param(KILLED, "worker_lost", id="the worker died"),
        pytest.param(OUT_OF_MEMORY, "out_of_memory", id="its own memory"),
        pytest.param(BUG, "bug", id="its own bug"),
        pytest.param(RECORDING, "graph_not_recorded", id="no CUDA graph"),
    ],
)
def test_what_a_loss_was(tmp_path: Path, error: RayError, error_type: str) -> None:
    path = tmp_path / "error.pkl"
    path.write_bytes(cloudpickle.dumps(error))
    assert loss_of(SimpleNamespace(pickled_error_file=str(path))).error_type == error_type


def test_tune_leaves_a_preempted_trial_to_us(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise Tune itself retries it without end, and no attempt is recorded."""
    name = "RAY_TRAIN_COUNT_PREEMPTION_AS_FAILURE"
    for value, retried in (("0", True), (_TUNE_ENVIRONMENT[name], False)):
        monkeypatch.setenv(name, value)
        trial = Trial("trainable", stub=True)
        trial._handle_ray_actor_error(RayActorError(preempted=True))
        assert trial.should_recover() == retried


# -- what the searcher hands to Tune


@pytest.fixture
def queue(tmp_path: Path) -> WorkQueue:
    """A queue of four trials."""
    store = Store(tmp_path / "store", create=True)
    plan = planned(make_inputs(tmp_path), "task=rte")
    return queue_of(plan, store)


def test_what_was_lost_is_handed_out_again(queue: WorkQueue) -> None:
    """At once, whatever Tune's trial was called."""
    made = PlanSearcher(course_of(queue), ON_CPU, lambda: 1)
    first = made.suggest("1")
    assert made.suggest("2") is None  # no room
    assert queue.lost(made.works["1"].id, "node_lost")
    assert made.suggest("2") == first
    assert queue.failed == {}


def test_claims_in_a_distant_store_leave_the_driver_time(
    queue: WorkQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Idle slots wait for each other, and are claimed for together."""
    clock, course, claims = Clock(), course_of(queue), list[float]()
    write = queue.store.put_text

    def far(*given: str) -> None:
        clock.seconds += 1
        claims.append(clock.seconds)
        write(*given)

    course.budget = Budget(now=clock)
    with presence_of(queue.store).announced() as queue.claims:
        monkeypatch.setattr(queue.store, "put_text", far)
        searcher = PlanSearcher(course, ON_CPU, lambda: 3)
        for number in "123":
            assert "job" in searcher.suggest(number)
        assert len(claims) == 1
        queue.ended(searcher.works["1"].id, None)
        assert searcher.suggest("4") is None
        clock.seconds += 3
        assert "job" in searcher.suggest("4")
        assert len(claims) == 2
        assert {*queue.claims._held} == {*queue.live}


def test_slots_are_filled_soon_after_an_outage_of_the_store(
    queue: WorkQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim that waited for ten minutes keeps no slot idle for half an hour."""
    clock, course = Clock(), course_of(queue)
    write = queue.store.put_text

    def back_after_ten_minutes(*given: str) -> None:
        clock.seconds += 600
        write(*given)

    course.budget = Budget(now=clock)
    with presence_of(queue.store).announced() as queue.claims:
        monkeypatch.setattr(queue.store, "put_text", back_after_ten_minutes)
        searcher = PlanSearcher(course, ON_CPU, lambda: 2)
        assert "job" in searcher.suggest("1")
        assert "job" in searcher.suggest("2")
        queue.ended(searcher.works["1"].id, None)
        clock.seconds += 30
        assert "job" in searcher.suggest("3")


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


def test_at_the_limit_of_hours_what_runs_has_half_a_minute(queue: WorkQueue) -> None:
    """To write a checkpoint, or to end; nothing more is handed out."""
    clock, told = Clock(), list[Any]()
    course = course_of(queue)
    course.budget, course.everywhere = Budget(1.0, now=clock), lambda *given: told.append(given)
    searcher = PlanSearcher(course, ON_CPU, lambda: 9)
    assert "job" in searcher.suggest("1")
    clock.after(1)
    for _ in range(3):
        assert searcher.suggest("2") is None
    assert told == [(announce, course.options.node_folder, 25.0)]  # once
    assert (queue.stopped, len(queue.live), queue.open) == ("max-hours", 1, False)
    assert course.budget.hours == pytest.approx(1.0)
    clock.seconds += 30
    with pytest.raises(EndOfFit):
        searcher.suggest("2")
