"""The queue: what is retried, what is not, and what another run holds."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lp_sweep.orchestrator.engine.course import FullModels
from lp_sweep.orchestrator.engine.workqueue import WorkQueue
from lp_sweep.orchestrator.plan.plan import Plan
from lp_sweep.orchestrator.plan.selection import POLICIES, retry_selection
from lp_sweep.storage import runs
from lp_sweep.storage.errors import SpecError, StoreError
from lp_sweep.storage.runs import Observer, Presence, Progress
from lp_sweep.storage.store import Store
from tests.support.courses import course_of, presence_of, put_failure, queue_of, taken
from tests.support.faults import wait_for
from tests.support.kindworlds import embedding_world
from tests.support.stores import trial
from tests.support.sweepfiles import make_inputs, planned


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return planned(make_inputs(tmp_path), "task=rte")


Make = Callable[..., WorkQueue]


@pytest.fixture
def make(plan: Plan, store: Store) -> Make:
    def make(claims: Any = None, **settings: Any) -> WorkQueue:
        queue = queue_of(plan, store, **settings)
        queue.claims = claims
        return queue

    return make


def ids_of(queue: WorkQueue) -> set[str]:
    """All that the queue hands out."""
    return {work.id for work in iter(queue.take, None)}


def with_failures(plan: Plan, *types: str) -> dict[str, str]:
    """Trials of the plan that have failed, by type; the plan says so from then on."""
    failed = dict(zip(plan.trials, types, strict=False))
    plan.known = plan.known._replace(failed=failed)
    return failed


# -- notes of a run


def test_a_full_model_that_learns_with_a_later_seed_ends_the_note(
    tmp_path: Path, store: Store
) -> None:
    inputs = make_inputs(tmp_path)
    queue = queue_of(planned(inputs, "task=rte", "seed=1"), store)
    models, told = FullModels(queue), list[Any]()
    for seeds, share in (("1", 0.5), ("1,2", 0.5), ("1,2,3", 0.8), ("1,2,3,4", 0.5)):
        queue.plan = planned(inputs, "task=rte", f"seed={seeds}")  # as a search asks for more
        for id_, work in queue.plan.trials.items():
            if id_ not in queue.done and len(work.spec.kept_layers) == work.model.depth:
                row = trial(id_, share) | {"majority": 0.5}
                store.put("trials", id_, [row | {"steps": 10, "learning_rate": 1e-5}])
                queue.done.add(id_)
                told.append(models.note(work))
    first, still, end, after = told
    assert "did not learn rte" in first.text
    assert (end.ends, end.about) == (True, first.about)
    assert re.search(r"learned rte with a later seed.*80\.00", end.text)
    assert (still, after) == (None, None)


def test_a_full_model_that_diverged_did_not_learn(tmp_path: Path, store: Store) -> None:
    plan = planned(make_inputs(tmp_path), "task=rte", "seed=1,2")
    queue = queue_of(plan, store)
    first, second = (work for work in plan.trials.values() if work.is_full_model)
    models = FullModels(queue)
    queue.failed[first.id] = "diverged"
    queue.state[first.id] = queue.state[second.id] = "failed"
    assert models.note(first) is None, "the other seed has not ended"
    plan.known = plan.known._replace(failed={second.id: "diverged"})  # in an earlier run
    told = models.note(second)
    assert told is not None
    assert re.search(r"did not learn rte.*diverged.*Lower recipe\.learning_rate", told.text)
    models = FullModels(queue)
    queue.done.add(second.id)  # by `retry`: its record counts, not its failure before
    store.put("trials", second.id, [trial(second.id, 0.9) | {"majority": 0.5}])
    assert models.note(second) is None


def test_the_note_about_another_run_ends_with_it(
    make: Make, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    course = course_of(make())
    with course.presence.announced():
        with Presence(store, "glue", lambda: Progress(0, 0, 9)).announced():
            [run] = course.presence.others()
            course.meet(run, "both are slower")
            course.tick()
            assert "has ended" not in capsys.readouterr().err
        assert course.presence.others() == []
        course.tick()
        course.tick()
    assert capsys.readouterr().err.count("run has ended: sweep 'glue'") == 1


# -- retries


def test_a_lost_piece_is_retried_as_often_as_its_type_allows(make: Make) -> None:
    for error_type, policy in POLICIES.items():
        queue = make()
        work = taken(queue)
        for lost in range(1, policy.retries + 1):
            assert queue.lost(work.id, error_type)
            assert queue.failed == {}
            assert queue.take() == work  # the longest is the first again
            assert queue.job(work).halvings == lost * (error_type == "out_of_memory")
        assert not queue.lost(work.id, error_type)
        assert queue.failed == {work.id: error_type}
        assert work.id not in queue.live

    # a lost node takes no try from another type
    queue = make()
    work = taken(queue)
    for _ in range(POLICIES["node_lost"].retries):
        assert queue.lost(work.id, "node_lost")
        queue.take()
    assert queue.lost(work.id, "worker_lost")


@pytest.mark.parametrize(("error_type", "again"), [("node_lost", True), ("worker_lost", False)])
def test_lost_nodes_have_no_limit_while_other_trials_end(
    make: Make, error_type: str, again: bool
) -> None:
    queue = make()
    work = taken(queue)
    for _ in range(POLICIES[error_type].retries):
        queue.lost(work.id, error_type)
        queue.take()
    other = taken(queue)
    queue.ended(other.id, None)
    assert queue.lost(work.id, error_type) == again


def test_a_model_without_a_recording_goes_on_without_graphs(make: Make) -> None:
    queue = make()
    first, second = taken(queue), taken(queue)
    assert queue.job(second).graphs
    queue.lost(first.id, "graph_not_recorded")
    assert second.model == first.model
    assert not queue.job(second).graphs


def test_a_spooled_record_stops_the_queue(make: Make) -> None:
    queue = make()
    work = taken(queue)
    queue.not_stored(work.id, "disk full", spooled=True)
    assert queue.take() is None
    assert not queue.open
    assert (queue.stopped, queue.spooled) == ("store", {work.id: "disk full"})
    assert (queue.failed, queue.done) == ({}, set())


def test_only_fail_fast_ends_what_is_live(make: Make) -> None:
    for options, ends in (({"fail_fast": True}, True), ({"max_failures": 1}, False)):
        course = course_of(make(), **options)
        work = taken(course.queue)
        course.ended(work, {"status": "failed", "error_type": "bug", "message": "it broke"})
        assert course.queue.stopped == "failures"
        assert course.check() is ends, options


# -- what a run takes on


def test_a_run_leaves_failures_alone_and_retry_takes_nothing_else(plan: Plan, make: Make) -> None:
    for error_type, policy in POLICIES.items():
        failed = with_failures(plan, error_type)
        left = set() if policy.by_itself else set(failed)
        assert set(plan.trials) - ids_of(make()) == left, error_type

    first, second = with_failures(plan, "bug", "diverged")

    def retried(error_type: str | None, *trials: str) -> set[str]:
        return ids_of(make(selection=retry_selection(error_type, trials, plan)))

    assert retried(None) == {first, second}
    assert retried("diverged") == {second}
    assert retried(None, first[:12]) == {first}


def test_retry_says_what_can_be_tried_again(plan: Plan) -> None:
    first, *_, pending = plan.trials
    with_failures(plan, "bug")
    with pytest.raises(SpecError, match=r"unknown type of failure 'lost'. Choose: diverged"):
        retry_selection("lost", [], plan)
    assert retry_selection("oom", [], plan).error_type == "out_of_memory"
    with pytest.raises(SpecError, match="has not failed: it has not been tried yet"):
        retry_selection(None, [pending], plan)
    with pytest.raises(SpecError, match=rf"no trial 't1-ffff' in this sweep. Failed: {first}"):
        retry_selection(None, ["t1-ffff"], plan)
    plan.known = plan.known._replace(trials={pending})
    with pytest.raises(SpecError, match="has not failed: it is done"):
        retry_selection(None, [pending], plan)


# -- two runs on one store


def test_ctrl_c_at_once_leaves_no_announcement(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = presence_of(store)

    def interrupted(folder: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(store, "listing", interrupted)
        with pytest.raises(KeyboardInterrupt), one.announced():
            pass
    assert not list(store.listing("runs"))


def test_two_runs_share_the_work(make: Make, store: Store, plan: Plan) -> None:
    with presence_of(store).announced() as one, presence_of(store).announced() as two:
        first, second = make(claims=one), make(claims=two)
        while first.take() and second.take():
            assert not first.live.keys() & second.live.keys()
        assert {*first.live, *second.live} == plan.trials.keys()  # each once
        first.look_elsewhere()
        assert first.holding == second.live.keys()
        assert first.open
        # the second run records one, fails at another, and drops the third
        done, failed, *dropped = list(second.live)
        store.put("trials", done, [trial(done)])
        second.ended(done, None)
        put_failure(store, failed)
        second.ended(failed, "bug")
        for id_ in dropped:
            second.lost(id_, "node_lost")
        two._write()
        first.look_elsewhere()
        assert first.done == {done}
        assert first.failed == {failed: "bug"}
        assert ids_of(first) == set(dropped)


def test_idle_slots_claim_their_work_in_one_write(
    make: Make, store: Store, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no run holds work that it has no idle slot for, or keeps what it does not begin."""
    with presence_of(store).announced() as one, presence_of(store).announced() as two:
        first, second = make(claims=one), make(claims=two)
        writes: list[str] = []
        write = store.put_text
        with monkeypatch.context() as patch:
            patch.setattr(
                store, "put_text", lambda *given: (writes.append(given[1]), write(*given))
            )
            begun = [first.take(3) for _ in range(2)]
        assert writes == [one._file]
        assert len(one._held) == 3
        taken = ids_of(second)
        assert taken == plan.trials.keys() - one._held.keys()
        first.give_back()  # its third slot is not idle any more
        assert one._held.keys() == {work.id for work in begun if work}
        one._write()  # as its beat does
        second.look_elsewhere()
        [late] = ids_of(second)
        assert {*taken, late, *one._held} == plan.trials.keys()


def test_a_run_that_stops_keeps_only_what_it_has_begun(make: Make, store: Store) -> None:
    with presence_of(store).announced() as one:
        queue = make(claims=one)
        work = queue.take(4)
        assert work is not None
        queue.stop("failures")
        assert [*one._held] == [work.id]


def test_two_runs_that_claim_at_the_same_time_lose_nothing(
    make: Make, store: Store, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has written before the other reads: both leave what both want."""
    with presence_of(store).announced() as one, presence_of(store).announced() as two:
        first, second = make(claims=one), make(claims=two)
        one.others()
        two.others()
        look, met = two.others, list[str]()

        def first_claims_as_well() -> list[Any]:
            if not met:
                met.append("")
                first.take(3)
            return look()

        monkeypatch.setattr(two, "others", first_claims_as_well)
        second.take(3)
        for _ in range(len(plan.trials)):
            for queue in (first, second):
                queue.take()
                queue.look_elsewhere()
            assert not first.live.keys() & second.live.keys()
        assert {*first.live, *second.live} == plan.trials.keys()


def test_a_store_that_goes_away_while_work_is_taken_leaves_nothing_live(
    make: Make, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with presence_of(store).announced() as one, presence_of(store).announced():
        queue = make(claims=one)
        waiting = queue.waiting

        def away(table: str, name: str) -> None:
            raise StoreError("away")

        with monkeypatch.context() as patch:
            patch.setattr(store, "find", away)
            with pytest.raises(StoreError, match="away"):
                queue.take()
        assert (queue.live, queue.waiting) == ({}, waiting)
        assert not one._held
        assert queue.take() is not None


def test_an_outage_does_not_make_other_runs_look_dead(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the store is away nobody's beat can be seen; only time spent looking counts."""
    now = [1000.0]
    monkeypatch.setattr(runs.time, "monotonic", lambda: now[0])
    far = presence_of(store)
    far._me = far._me._replace(machine="another machine")
    far._write()
    observer = Observer(store)
    assert len(observer.living()) == 1
    now[0] += 300  # nobody looked, or nobody could
    assert len(observer.living()) == 1
    for _ in range(8):
        now[0] += 5
        assert len(observer.living()) == 1
    now[0] += 5
    assert observer.living() == []
    far._write()
    assert len(observer.living()) == 1


def test_a_long_trial_does_not_delay_the_end_of_a_dead_run(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody asks for work meanwhile, yet the run looks at the others."""
    monkeypatch.setattr(runs, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(runs, "_STALE_SECONDS", 0.3)
    far = presence_of(store)
    far._me = far._me._replace(machine="another machine")
    far._write()
    with presence_of(store).announced() as run:
        assert run.alive == {far._me.run_id}
        wait_for(lambda: not run.alive, "the end of the other run", 10)


def test_a_process_that_this_machine_hides_is_judged_by_its_file(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of another user, where /proc is mounted with hidepid."""
    other, read = presence_of(store), runs.Path.read_text
    other._me = other._me._replace(pid=os.getppid(), process=runs._process(os.getppid()) or "")
    other._write()

    def hides(path: Path, *given: Any, **named: Any) -> str:
        if path == Path(f"/proc/{os.getppid()}/stat"):
            raise FileNotFoundError(path)
        return read(path, *given, **named)

    monkeypatch.setattr(runs.Path, "read_text", hides)
    assert len(Observer(store).living()) == 1


def test_a_run_deletes_what_killed_ones_left_once_it_knows(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of another machine only at its end, after it has not changed for a minute."""
    now = [1000.0]
    monkeypatch.setattr(runs.time, "monotonic", lambda: now[0])
    here, far = presence_of(store), presence_of(store)
    here._me = here._me._replace(pid=2**22 + 1)  # no such process
    far._me = far._me._replace(machine="another machine")
    here._write()
    far._write()
    with presence_of(store).announced() as run:
        names = {info.name for info in store.listing("runs")}
        assert names == {f"{each._me.run_id}.json" for each in (run, far)}
        for _ in range(13):
            now[0] += 5
            run.others()
    assert not store.listing("runs")


def test_the_work_of_a_killed_run_is_taken_over(make: Make, store: Store, plan: Plan) -> None:
    with presence_of(store).announced() as one:
        dead = presence_of(store)
        dead._me = dead._me._replace(pid=2**22 + 1)  # no such process
        queue = make(claims=dead)
        taken(queue)
        mine = make(claims=one)
        assert ids_of(mine) == set(plan.trials)


def test_networks_that_nobody_trains_come_first_then_the_longest(
    tmp_path: Path, store: Store
) -> None:
    """So that a run that is cut short has an answer."""
    world = embedding_world(tmp_path / "pairs", strategies=[{"name": "top", "k": [1, 2]}])
    queue = queue_of(planned(world), store)
    turns = {
        (work.trial.procedure, len(work.trial.kept_layers)): queue._turn(id_)
        for id_, work in queue.plan.trials.items()
    }
    assert turns["untrained", 2] < turns["direct", 3] < turns["direct", 2]
