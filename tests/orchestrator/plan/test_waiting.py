"""The queue of work that needs other work: a trial that needs another one's network or answers
waits for it and fails with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lp_sweep.orchestrator.engine.course import Recorder, blocked_by
from lp_sweep.orchestrator.engine.workqueue import WorkQueue
from lp_sweep.orchestrator.plan.known import WorkHistory, failures
from lp_sweep.orchestrator.plan.plan import Plan, Work
from lp_sweep.orchestrator.plan.planning import make_plan
from lp_sweep.orchestrator.plan.selection import Selection, retry_selection, taken_on
from lp_sweep.storage.networks import CONFIG
from lp_sweep.storage.runs import Presence
from lp_sweep.storage.store import Store
from tests.support.courses import presence_of, put_failure, taken
from tests.support.stagedplans import (
    FULL,
    ONE,
    STAGED,
    cell_trial,
    failed_measurement,
    plan_of,
    the_full,
)
from tests.support.stores import trial
from tests.support.sweepfiles import CPU, PLAIN, make_inputs, planned

Told = list[tuple[str, str]]


def queue_of(
    plan: Plan, store: Store, told: Told | None = None, claims: Any = None, **settings: Any
) -> WorkQueue:
    def on_blocked(work: Work, need: str) -> None:
        if told is not None:
            told.append((work.id, need))

    queue = WorkQueue(plan, store, CPU, lambda plan: None, on_blocked=on_blocked, **settings)
    queue.claims = claims
    return queue


def record(store: Store, id_: str, *, network: bool = False) -> None:
    store.put("trials", id_, [trial(id_)])
    if network:
        store.put_text(f"weights/{id_}", CONFIG, "{}")


def drained(queue: WorkQueue, *, failing: frozenset[str] = frozenset()) -> list[str]:
    """Every piece taken one by one and ended at once; what is handed out has all that it needs, or
    only lacks what it would have been compared with, which has failed."""
    order = []
    while queue.open:
        work = taken(queue)
        there = queue.plan.known.networks | queue.done
        absent = queue.plan.needs(work.id) - there
        assert absent <= {*queue.failed, *queue.plan.known.failed} - {work.start}
        queue.ended(work.id, "diverged" if work.id in failing else None)
        order.append(work.id)
    assert queue.waiting == queue.progress().left == 0  # nothing is left behind
    return order


@contextmanager
def one_of_two(store: Store) -> Iterator[Presence]:
    """A run that has seen another on the store."""
    with presence_of(store).announced() as one, presence_of(store).announced():
        yield one


# -- in one run


@given(data=st.data())
def test_whatever_fails_nothing_is_left_behind(
    tmp_path: Path, store: Store, data: st.DataObject
) -> None:
    """Each piece ends done, failed by itself, or failed for want of what it needs."""
    plan = plan_of(
        tmp_path,
        "procedures: [direct, finetune_then_drop, finetune_then_drop frozen, iterative]\n"
        "feed_forward: [none, top 1]\nmeasure: {cka: pruned}\n"
        "distill: [none, logits, logits+hidden]",
    )
    failing = frozenset(data.draw(st.sets(st.sampled_from(sorted(plan.trials)))))
    known_failed = data.draw(st.sets(st.sampled_from(sorted(plan.trials)), max_size=3))
    plan.known = plan.known._replace(failed=dict.fromkeys(known_failed, "diverged"))
    told: Told = []
    queue = queue_of(plan, store, told)
    order = drained(queue, failing=failing)
    assert len(order) == len({*order})
    bad = failing | known_failed
    sources = {
        id_: {work.start, work.lesson.teacher if work.lesson else None}
        for id_, work in plan.trials.items()
    }
    blocked = {id_ for id_, of in sources.items() if of & bad and id_ not in known_failed}
    assert {i for i, kind in queue.failed.items() if kind == "missing_input"} == blocked
    assert {id_ for id_, _ in told} == blocked
    assert all(need in bad and need in plan.needs(id_) for id_, need in told)
    assert queue.done == set(plan.trials) - bad - blocked


def test_a_failed_need_is_named_by_the_attempt(tmp_path: Path, store: Store) -> None:
    plan = plan_of(tmp_path, STAGED)
    full, staged = the_full(plan), cell_trial(plan, procedure="finetune_then_drop", k=2)
    recorder = Recorder(store, part=False, command="")
    queue = WorkQueue(
        plan, store, CPU, lambda plan: None,
        on_blocked=lambda work, need: recorder.lost(work, blocked_by(need), final=True),
    )  # fmt: skip
    drained(queue, failing=frozenset({full}))
    [attempt] = store.read_all("attempts").rows.to_pylist()
    assert (attempt["trial_id"], attempt["error_type"]) == (staged, "missing_input")
    assert full in attempt["message"]
    assert failures(store.read_all("attempts").rows, set()) == {staged: "missing_input"}


def test_a_later_run_neither_hangs_nor_says_it_again(tmp_path: Path, store: Store) -> None:
    plan = plan_of(tmp_path, STAGED, "k=2")
    full, staged = the_full(plan), cell_trial(plan, procedure="finetune_then_drop", k=2)
    direct = cell_trial(plan, procedure="direct", k=2)
    plan.known = plan.known._replace(
        failed={full: "diverged", staged: "missing_input", direct: "diverged"}
    )
    assert taken_on(plan) == []
    told: Told = []
    queue = queue_of(plan, store, told)
    assert not queue.open
    assert queue.progress()[:3] == (0, 1, 0)
    assert queue.failed == {staged: "missing_input"}
    assert told == []


@pytest.mark.parametrize("ended", [True, False])
def test_a_network_that_is_needed_only_later(tmp_path: Path, store: Store, ended: bool) -> None:
    """The full network is trained, or in training, when a profile opens cells that go on from it:
    it is trained again, for its network, before they begin."""
    text = PLAIN.replace("name: top", "name: block-influence") + "procedures: finetune_then_drop\n"
    plan = planned(make_inputs(tmp_path, text), *ONE)
    full = the_full(plan)
    assert plan.needed_networks() == set()
    queue = queue_of(plan, store)
    profile, trial = taken(queue), taken(queue)
    assert (trial.id, queue.job(trial).network) == (full, False)
    if ended:
        queue.ended(full, None)
    layers = [{"layer": layer, "value": layer / 20} for layer in FULL]
    row = {"profile_id": profile.id, "measure": "block_influence", "layers": layers}
    store.put("profiles", profile.id, [row])
    queue.ended(profile.id, None)
    if not ended:
        assert queue.take() is None
        queue.ended(full, None)
    again = taken(queue)
    assert (again.id, queue.job(again).network) == (full, True)
    assert queue.take() is None  # the other one waits for it
    assert queue.open is False
    assert queue.progress().left == 2
    queue.ended(full, None)
    last = taken(queue)
    assert last.start == full
    queue.ended(last.id, None)
    assert not queue.open
    assert queue.progress()[:3] == (3, 0, 0)


# -- beside another run


def test_a_need_that_another_run_does_unblocks(tmp_path: Path, store: Store) -> None:
    plan = plan_of(tmp_path, STAGED, "k=2")
    full, staged = the_full(plan), cell_trial(plan, procedure="finetune_then_drop", k=2)
    with presence_of(store).announced() as one, presence_of(store).announced() as two:
        mine, others = queue_of(plan, store, claims=one), queue_of(plan, store, claims=two)
        assert taken(others).id == full
        assert [work.id for work in iter(mine.take, None)] == [
            cell_trial(plan, procedure="direct", k=2)
        ]
        assert set(mine.holding) == {full}
        assert mine.open
        assert mine.progress().left == 3
        record(store, full, network=True)
        others.ended(full, None)
        two._write()
        mine.look_elsewhere()
        assert mine.done_elsewhere == {full}
        assert taken(mine).id == staged


def test_a_need_that_another_run_did_without_its_network_is_made(
    tmp_path: Path, store: Store
) -> None:
    plan = plan_of(tmp_path, STAGED, "k=2")
    full = the_full(plan)
    with one_of_two(store) as one:
        queue = queue_of(plan, store, claims=one)
        record(store, full)
        assert taken(queue).id == full


def test_what_fails_in_another_run_before_its_turn_is_left_alone(
    tmp_path: Path, store: Store
) -> None:
    plan = plan_of(tmp_path, "", "k=0,2")
    with one_of_two(store) as one:
        queue = queue_of(plan, store, claims=one)
        held = taken(queue)
        [other] = queue.plan.trials.keys() - {held.id}
        for id_ in (held.id, other):
            put_failure(store, id_)
        assert queue.take() is None
        assert queue.failed == {other: "bug"}
        queue.lost(held.id, "worker_lost")  # the failure is our own, and no reason
        assert queue.take() == held


# -- measurements that failed


def test_a_measurement_that_failed_is_left_alone(tmp_path: Path, store: Store) -> None:
    plan, pruned, measure = failed_measurement(tmp_path)
    queue = queue_of(plan, store)
    assert not queue.open  # nor is the full network trained for it
    assert queue.progress()[:3] == (0, 0, 0)

    # also where another run recorded the trial, and its measurement failed for good meanwhile
    before = plan.known
    plan.known = WorkHistory.nothing()
    with one_of_two(store) as one:
        queue = queue_of(plan, store, claims=one)
        for id_ in plan.trials:
            record(store, id_, network=True)
        put_failure(store, measure)
        assert queue.take() is None
        assert queue.done_elsewhere == set(plan.trials)
        assert queue.failed == queue.known().failed == {measure: "bug"}
        plan.known = before  # `retry` by name tries it again
        chosen = retry_selection(None, [measure], plan)
        queue = queue_of(plan, store, claims=one, selection=chosen)
        assert [work.id for work in iter(queue.take, None)] == [pruned]


@pytest.mark.parametrize("by", ["time", "measure", "trial", "type", "beginning"])
def test_a_failed_measurement_is_tried_again(tmp_path: Path, store: Store, by: str) -> None:
    """With the full network, which nobody kept and which has not failed."""
    plan, pruned, measure = failed_measurement(tmp_path, "missing_input" if by == "time" else "bug")
    names = {"measure": [measure], "trial": [pruned], "beginning": [measure[:12]]}.get(by, [])
    selection = retry_selection("bug" if by == "type" else None, names, plan)
    queue = queue_of(plan, store, selection=Selection() if by == "time" else selection)
    assert drained(queue) == [the_full(plan), pruned]
    assert measure in {*queue.known().failed, *queue.known().profiles}


def test_what_is_named_takes_along_what_it_goes_on_from(tmp_path: Path, store: Store) -> None:
    plan = plan_of(tmp_path, STAGED, "k=2,3")
    full = the_full(plan)
    staged = cell_trial(plan, procedure="finetune_then_drop", k=3)
    plan.known = plan.known._replace(failed={full: "diverged", staged: "missing_input"})
    selection = retry_selection(None, [staged], plan)
    assert selection == Selection(True, None, frozenset({staged}))
    assert drained(queue_of(plan, store, selection=selection)) == [full, staged]


def test_a_measurement_that_fails_beside_its_trial(tmp_path: Path, store: Store) -> None:
    plan = plan_of(tmp_path, "measure: {probes: pruned, similarity: pruned}", "k=2")
    pruned, full = plan.trials
    probes, similarity = plan.measures[pruned]
    queue = queue_of(plan, store)
    assert {taken(queue).id, taken(queue).id} == {pruned, full}
    queue.ended(pruned, None, {similarity.id: "bug"})
    known = queue.known()
    assert known.trials == {pruned}
    assert set(known.profiles) == {probes.id}
    assert known.failed == {similarity.id: "bug"}
    after = make_plan(plan.sweep, known)
    assert after.failed_with(pruned) == "bug"
    assert [item.id for item in after.missing_measures(pruned)] == [similarity.id]
