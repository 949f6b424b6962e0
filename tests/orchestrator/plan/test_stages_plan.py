"""Plans with procedures, feed-forwards and measurements, and the order of their queue: a trial that
needs another trial's network waits for it, and fails with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lp_sweep.orchestrator.engine.recorder import Recorder, blocked_by
from lp_sweep.orchestrator.engine.workqueue import WorkQueue
from lp_sweep.orchestrator.estimate.estimate import estimate
from lp_sweep.orchestrator.estimate.workload import MeanLengths, missing
from lp_sweep.orchestrator.plan.known import Known, failures, timing_columns
from lp_sweep.orchestrator.plan.naming import describe, short_model
from lp_sweep.orchestrator.plan.plan import Plan, Work
from lp_sweep.orchestrator.plan.planning import make_plan
from lp_sweep.orchestrator.plan.selection import Selection, retry_selection, taken_on
from lp_sweep.storage.networks import CONFIG
from lp_sweep.storage.runs import Presence
from lp_sweep.storage.select import Measured, held_out_rows
from lp_sweep.storage.store import Store
from tests.support.courses import presence_of, put_failure, taken
from tests.support.stagedplans import FULL, ONE, STAGED, cell_trial, plan_of, spec, the_full
from tests.support.sweepfiles import CPU, PLAIN, answer_of, make_inputs, planned

LENGTHS = MeanLengths(timing_columns([]))


def done(plan: Plan, *, measures: bool = True, networks: tuple[str, ...] = ()) -> Known:
    """All of the plan, as a store has it later."""
    items = [item.id for found in plan.measures.values() for item in found] if measures else []
    return Known(
        frozenset(plan.trials),
        {},
        dict.fromkeys([*items, *plan.profiles], Measured({})),
        frozenset(networks),
    )


# -- stages


def test_stage_one_is_one_trial_for_every_k(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "procedures: finetune_then_drop", "k=1,2,3,4")
    assert len(plan.cells) == 4
    assert len(plan.trials) == 4 + 1
    full = the_full(plan)
    assert {plan.trials[cell.trial_id or ""].start for cell in plan.cells} == {full}
    assert plan.trials[full].start is None
    assert plan.needed_networks() == {full} == plan.sources()


def test_a_frozen_stage_is_one_for_each_set_of_dropped_layers(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "procedures: finetune_then_drop frozen", "k=1,2,3,4")
    starts = [plan.trials[plan.trials[cell.trial_id or ""].start or ""] for cell in plan.cells]
    assert [spec(work).recipe.freeze_layers for work in starts] == [
        (12,), (11, 12), (10, 11, 12), (9, 10, 11, 12)
    ]  # fmt: skip
    assert all(spec(work).kept_layers == FULL for work in starts)
    assert len(plan.trials) == 4 + 4


def test_nothing_dropped_is_the_direct_trial_of_every_procedure(tmp_path: Path) -> None:
    procedures = "[direct, finetune_then_drop, finetune_then_drop frozen, iterative, iterative 3]"
    plan = plan_of(tmp_path, f"procedures: {procedures}", "k=0")
    assert len(plan.cells) == 5
    assert {*plan.trials} == {cell.trial_id for cell in plan.cells} == {the_full(plan)}
    assert plan.needed_networks() == set()


def test_feed_forwards_alone_are_a_second_stage(tmp_path: Path) -> None:
    lines = "procedures: [direct, finetune_then_drop, iterative]\nfeed_forward: top 2"
    plan = plan_of(tmp_path, lines, "k=0")
    staged = cell_trial(plan, procedure="finetune_then_drop")
    direct = cell_trial(plan, procedure="direct")
    assert cell_trial(plan, procedure="iterative") == direct != staged
    assert plan.trials[staged].start == the_full(plan)
    assert spec(plan.trials[direct]).removed_feed_forwards == (11, 12)


def test_cells_whose_feed_forwards_have_all_gone_are_left_out(tmp_path: Path) -> None:
    lines = "feed_forward: [none, top 2, top 3, '9,11', every 3rd]"
    plan = plan_of(tmp_path, lines, "k=0,3,10")
    points = {(cell.asked.feed_forward, cell.asked.k) for cell in plan.cells}
    assert {k for label, k in points if label in ("none", "top 2")} == {0, 3, 10}
    assert {k for label, k in points if label in ("top 3", "every 3rd")} == {0, 3}
    assert ("9,11", 3) in points  # of the listed layers one stays
    model = "./folder/of/a/model: top leaves no network for feed_forward"
    make_plan(plan.sweep, plan.known)  # a run plans several times, and says it once
    assert plan.sweep.notes == [
        f"{model} {label!r} at K=10 (left out)" for label in ("top 3", "9,11", "every 3rd")
    ]


@pytest.mark.parametrize("label", ["top 3", "11,12"])
def test_a_measurement_may_leave_no_feed_forward_to_remove(tmp_path: Path, label: str) -> None:
    text = PLAIN.replace("name: top, k: [0, 2]", "name: block-influence, k: [10]")
    file = make_inputs(tmp_path, f"{text}feed_forward: [{label!r}]\n")
    before = planned(file, *ONE)
    assert [cell.state for cell in before.cells] == ["deferred"]
    found = Measured({layer: layer / 20 for layer in FULL})  # the ten highest go
    known = Known(frozenset(), {}, dict.fromkeys(before.profiles, found))
    plan = planned(file, *ONE, known=known)
    assert [cell.state for cell in plan.cells] == ["impossible"]
    text = answer_of(plan).text()
    assert "no layer would stay whose feed-forward" in text


# -- what is missing


@pytest.mark.parametrize("kept", [False, True])
def test_stage_one_is_done(tmp_path: Path, kept: bool) -> None:
    plan = plan_of(tmp_path, STAGED)
    full = the_full(plan)
    staged = cell_trial(plan, procedure="finetune_then_drop", k=2)
    plan.known = Known(frozenset({full}), {}, {}, frozenset({full} if kept else ()))
    missing = {work.id for work in plan.missing_trials()}
    assert (full in missing) is not kept  # trained again, since its network is not there
    assert staged in missing
    assert not plan.incomplete(full)
    assert plan.needed_networks() == {full}


def test_all_done(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, STAGED + "\nmeasure: {probes: [full, pruned], cka: pruned}")
    after = plan_of(
        tmp_path,
        STAGED + "\nmeasure: {probes: [full, pruned], cka: pruned}",
        known=done(plan),
    )
    assert after.missing_trials() == []
    assert after.needed_networks() == set()
    assert after.sources() == {the_full(plan)}
    totals = after.totals()
    assert totals["cells_done"] == totals["cells"] == 4
    assert totals["measures_done"] == totals["measures"] == 3 + 2


def test_a_measurement_added_to_a_finished_sweep(tmp_path: Path) -> None:
    before = plan_of(tmp_path, STAGED)
    plan = plan_of(tmp_path, STAGED + "\nmeasure: {probes: full}", known=done(before))
    full = the_full(plan)
    assert set(plan.trials) == set(before.trials)
    assert {cell.state for cell in plan.cells} == {"done"}
    assert [work.id for work in plan.missing_trials()] == [full]
    [measure] = plan.missing_measures(full)
    assert measure.spec.trial == full
    assert plan.job(plan.trials[full], network=False).measures[0].id == measure.id
    text = answer_of(plan).text()
    assert "measures           1   of trained networks, by layer: 1 missing\n" in text
    assert (
        "to do              1   by `lp-sweep run`: 1 done but to train again, since their network "
        "is needed and was not kept\n"
    ) in text
    retrained = estimate(plan, CPU).hours
    assert retrained > CPU.seconds(plan.trials[full]) / 3600
    plan.known = plan.known._replace(networks={full})
    text = answer_of(plan).text()
    assert "to do              1   by `lp-sweep run`: 1 done but to measure\n" in text
    assert "longest trial" not in text
    assert 0 < estimate(plan, CPU).hours < retrained / 2
    assert answer_of(plan).plain()["totals"] | {
        "to_do": 1, "trials_pending": 0, "measures_done": 0, "measures_pending": 1,
    } == answer_of(plan).plain()["totals"]  # fmt: skip


def test_a_measurement_has_the_network_trained_again_that_it_is_compared_with(
    tmp_path: Path, store: Store
) -> None:
    before = plan_of(tmp_path, "", "k=0,2")
    plan = plan_of(tmp_path, "measure: {cka: pruned}", "k=0,2", known=done(before))
    full, pruned = the_full(plan), cell_trial(plan, k=2)
    trained = sum(CPU.seconds(plan.trials[id_]) for id_ in (full, pruned)) / 3600
    assert estimate(plan, CPU).hours > trained
    assert {work.id for work in taken_on(plan)} == {full, pruned}
    assert queue_of(plan, store).waiting == 2  # a run does what the plan says
    text = answer_of(plan).text()
    assert "to do              2   by `lp-sweep run`: 2 done but to train again, since" in text
    plan.known = plan.known._replace(networks={full})
    assert [work.id for work in taken_on(plan)] == [pruned]


def test_what_is_to_do_and_of_what_kinds(tmp_path: Path) -> None:
    lines = "measure: {probes: [pretrained, full, pruned]}"
    before = plan_of(tmp_path, "", "k=0,2,3,4")
    first, second, third = [cell.trial_id or "" for cell in before.cells][:3]
    known = Known({first, second}, {third: "missing_input"}, {}, {second})
    plan = plan_of(tmp_path, lines, "k=0,2,3,4", known=known)
    assert (
        "to do              5   by `lp-sweep run`: 2 to fine-tune, 1 done but to train again, "
        "since their network is needed and was not kept, 1 done but to measure, 1 pre-trained "
        "to measure; 1 failed before and may work now\n"
    ) in answer_of(plan).text()


def test_networks_that_are_not_trained_are_counted_apart(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "procedures: [finetune_then_drop, one_shot]", "k=0,2,3")
    text = answer_of(plan).text()
    assert "networks (3 to fine-tune, 2 to score untrained); cells" in text
    assert "`lp-sweep run`: 3 to fine-tune, 2 to score untrained\n" in text


def test_a_measurement_that_failed_for_good_is_not_to_do(tmp_path: Path) -> None:
    plan, *_ = measured(tmp_path)
    text = answer_of(plan).text()
    assert "measures           1   of trained networks, by layer: 1 failed" in text
    assert "to do" not in text


def test_cka_of_the_pruned_needs_the_full_network_that_no_cell_asks_for(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "measure: {cka: pruned}", "k=2")
    assert len(plan.cells) == 1
    full, pruned = the_full(plan), plan.cells[0].trial_id or ""
    assert set(plan.trials) == {full, pruned}
    assert plan.needs(pruned) == {full}
    [measure] = plan.measures[pruned]
    assert (measure.spec.trial, measure.spec.against) == (pruned, full)
    assert full not in plan.measures
    plan.known = Known(frozenset({full, pruned}), {}, {})  # only the measurement is missing
    assert {work.id for work in plan.missing_trials()} == {full, pruned}


def test_what_a_network_without_feed_forwards_is_measured_as(tmp_path: Path) -> None:
    """As a pruned one: it has all layers, but is not the full network."""
    plan = plan_of(tmp_path, "feed_forward: [none, top 1]\nmeasure: {similarity: full}", "k=0")
    assert set(plan.measures) == {the_full(plan)}


def test_pretrained_probes_are_profiles_that_nothing_waits_for(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "measure: {probes: pretrained}")
    assert len(plan.profiles) == 1
    assert {cell.state for cell in plan.cells} == {"pending"}


# -- the queue


Told = list[tuple[str, str]]


def queue_of(
    plan: Plan,
    store: Store,
    told: Told | None = None,
    claims: Any = None,
    **settings: Any,
) -> WorkQueue:
    def on_blocked(work: Work, need: str) -> None:
        if told is not None:
            told.append((work.id, need))

    queue = WorkQueue(plan, store, CPU, lambda plan: None, on_blocked=on_blocked, **settings)
    queue.others.claims = claims
    return queue


def record(store: Store, id_: str, *, network: bool = False) -> None:
    store.put("trials", id_, [{"trial_id": id_}])
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


ALL = (
    "procedures: [direct, finetune_then_drop, finetune_then_drop frozen, iterative]\n"
    "feed_forward: [none, top 1]\nmeasure: {cka: pruned}"
)


@given(data=st.data())
def test_whatever_fails_nothing_is_left_behind(
    tmp_path: Path, store: Store, data: st.DataObject
) -> None:
    """Each piece ends done, failed by itself, or failed for want of what it needs."""
    plan = plan_of(tmp_path, ALL)
    failing = frozenset(data.draw(st.sets(st.sampled_from(sorted(plan.trials)))))
    known_failed = data.draw(st.sets(st.sampled_from(sorted(plan.trials)), max_size=3))
    plan.known = plan.known._replace(failed=dict.fromkeys(known_failed, "diverged"))
    told: Told = []
    queue = queue_of(plan, store, told)
    order = drained(queue, failing=failing)
    assert len(order) == len({*order})
    bad = failing | known_failed
    blocked = {i for i in plan.trials if plan.trials[i].start in bad and i not in known_failed}
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
    full, staged = the_full(plan), cell_trial(plan, procedure="finetune_then_drop")
    direct = cell_trial(plan, procedure="direct")
    plan.known = plan.known._replace(
        failed={full: "diverged", staged: "missing_input", direct: "diverged"}
    )
    told: Told = []
    queue = queue_of(plan, store, told)
    assert not queue.open
    assert queue.progress()[:3] == (0, 1, 0)
    assert queue.failed == {staged: "missing_input"}
    assert told == []


def test_what_failed_with_a_bad_node_brings_back_what_waited_for_it(
    tmp_path: Path, store: Store
) -> None:
    plan = plan_of(tmp_path, STAGED, "k=2")
    full, staged = the_full(plan), cell_trial(plan, procedure="finetune_then_drop")
    queue = queue_of(plan, store)
    assert taken(queue).id == full
    queue.ended(full, "bug")
    assert queue.failed == {full: "bug", staged: "missing_input"}
    queue.again([full])
    assert queue.failed == {}
    assert drained(queue)[0] == full
    assert staged in queue.done


def test_a_need_that_another_run_does_unblocks(tmp_path: Path, store: Store) -> None:
    plan = plan_of(tmp_path, STAGED, "k=2")
    full, staged = the_full(plan), cell_trial(plan, procedure="finetune_then_drop")

    with presence_of(store).announced() as one, presence_of(store).announced() as two:
        mine, others = queue_of(plan, store, claims=one), queue_of(plan, store, claims=two)
        assert taken(others).id == full
        assert [work.id for work in iter(mine.take, None)] == [cell_trial(plan, procedure="direct")]
        assert set(mine.others.holding) == {full}
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


@pytest.mark.parametrize("ended", [True, False])
def test_a_network_that_is_needed_only_later(tmp_path: Path, store: Store, ended: bool) -> None:
    """The full network is trained, or in training, when a profile opens cells that go on from it:
    it is trained again, for its network, before they begin."""
    text = PLAIN.replace(
        "  - {name: top, k: [0, 2]}\n", "  - {name: block-influence, k: [0, 2]}\n"
    ) + "procedures: finetune_then_drop\n"  # fmt: skip
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


# -- failed measurements


def measured(folder: Path, kind: str = "bug") -> tuple[Plan, str, str]:
    """A finished sweep, one of whose measurements has failed: of which trial, and which."""
    plan = plan_of(folder, "measure: {cka: pruned}", "k=2")
    pruned = plan.cells[0].trial_id or ""
    [item] = plan.measures[pruned]
    plan.known = Known(frozenset(plan.trials), {item.id: kind}, {})
    return plan, pruned, item.id


def test_a_failed_measurement_is_left_alone_by_a_run(tmp_path: Path, store: Store) -> None:
    plan, pruned, _ = measured(tmp_path)
    assert plan.failed_with(pruned) == "bug"
    queue = queue_of(plan, store)
    assert not queue.open  # nor is the full network trained for it
    assert queue.progress()[:3] == (0, 0, 0)


def test_a_measurement_that_failed_in_another_run_is_left_alone(
    tmp_path: Path, store: Store
) -> None:
    """The other run recorded the trial, and its measurement failed for good meanwhile."""
    plan, _, measure = measured(tmp_path)
    plan.known = Known(frozenset(), {}, {})

    with one_of_two(store) as one:
        queue = queue_of(plan, store, claims=one)
        for id_ in plan.trials:
            record(store, id_, network=True)
        put_failure(store, measure)
        assert queue.take() is None
        assert queue.done_elsewhere == set(plan.trials)
        assert queue.failed == {measure: "bug"}
        assert queue.known().failed == {measure: "bug"}


def test_a_retry_by_name_tries_it_again_beside_another_run(tmp_path: Path, store: Store) -> None:
    plan, pruned, measure = measured(tmp_path)
    for id_ in plan.trials:
        record(store, id_, network=True)
    put_failure(store, measure)
    with one_of_two(store) as one:
        chosen = retry_selection(None, [measure], plan)
        queue = queue_of(plan, store, claims=one, selection=chosen)
        assert [work.id for work in iter(queue.take, None)] == [pruned]


def test_what_fails_in_another_run_before_its_turn_is_left_alone(
    tmp_path: Path, store: Store
) -> None:
    plan = plan_of(tmp_path, "", "k=0,2")
    with one_of_two(store) as one:
        queue = queue_of(plan, store, claims=one)
        mine, theirs = (work.id for work in queue.plan.trials.values())
        held = taken(queue)
        other = ({mine, theirs} - {held.id}).pop()
        for id_ in (held.id, other):
            put_failure(store, id_)
        assert queue.take() is None
        assert queue.failed == {other: "bug"}
        queue.ended(held.id, "bug")
        queue.again([held.id])  # the node was at fault: the failure is our own, and no reason
        assert queue.take() == held


@contextmanager
def one_of_two(store: Store) -> Iterator[Presence]:
    """A run that has seen another on the store."""
    with presence_of(store).announced() as one, presence_of(store).announced():
        yield one


def test_a_measurement_that_time_may_mend_is_tried_again(tmp_path: Path, store: Store) -> None:
    plan, pruned, _ = measured(tmp_path, "missing_input")
    assert drained(queue_of(plan, store)) == [the_full(plan), pruned]


@pytest.mark.parametrize("by", ["measure", "trial", "type", "all", "beginning"])
def test_a_failed_measurement_is_tried_again(tmp_path: Path, store: Store, by: str) -> None:
    """With the full network, which nobody kept and which has not failed."""
    plan, pruned, measure = measured(tmp_path)
    names = {"measure": [measure], "trial": [pruned], "beginning": [measure[:12]]}.get(by, [])
    selection = retry_selection("bug" if by == "type" else None, names, plan)
    queue = queue_of(plan, store, selection=selection)
    assert drained(queue) == [the_full(plan), pruned]
    assert queue.known().failed == {measure: "bug"} or measure in queue.known().profiles


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
    [pruned] = plan.trials
    probes, similarity = plan.measures[pruned]
    queue = queue_of(plan, store)
    assert queue.take()
    queue.ended(pruned, None, {similarity.id: "bug"})
    known = queue.known()
    assert known.trials == {pruned}
    assert set(known.profiles) == {probes.id}
    assert known.failed == {similarity.id: "bug"}
    after = make_plan(plan.sweep, known)
    assert after.failed_with(pruned) == "bug"
    assert [item.id for item in after.missing_measures(pruned)] == [similarity.id]


# -- words and hours


def test_work_is_named_with_what_is_not_usual(tmp_path: Path) -> None:
    lines = ALL.replace("{cka: pruned}", "{probes: pretrained}")
    plan = plan_of(tmp_path, lines, "k=0,2")
    told = {describe(work) for work in [*plan.trials.values(), *plan.profiles.values()]}
    name = short_model(plan.sweep.models[0].name)
    assert told >= {
        f"{name}, all 12 layers, rte, seed 42",
        f"{name}, all 12 layers, with 11-12 frozen, rte, seed 42",
        f"{name}, all 12 layers, without feed-forward 12, rte, seed 42",
        f"{name}, layers 1-10 of 12, iterative, rte, seed 42",
        f"{name}, layers 1-10 of 12, finetune_then_drop frozen, "
        "without feed-forward 10, rte, seed 42",
        f"{name}, probes profile, rte",
    }
    assert len(told) == len(plan.trials) + len(plan.profiles)  # no two have one name


def test_a_plan_names_its_procedures_and_feed_forwards(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "procedures: [direct, iterative]\nfeed_forward: [none, top 1]")
    text = answer_of(plan).text()
    assert "  procedures direct, iterative\n" in text
    assert "  feed-forwards that go none, top 1\n" in text
    assert "top K=0 = top K=0 iterative" in text
    assert "top K=2 = top K=2 iterative" not in text
    usual = plan_of(tmp_path, "")
    text = answer_of(usual).text()
    assert "procedures" not in text
    assert "feed-forwards" not in text


def test_what_procedures_take(tmp_path: Path) -> None:
    lines = "procedures: [direct, finetune_then_drop, iterative, iterative 3]\nrecipe: {epochs: 3}"
    plan = plan_of(tmp_path, lines, "k=2")
    training = {
        cell.asked.procedure: missing(plan.trials[cell.trial_id or ""], LENGTHS).flop
        for cell in plan.cells
    }
    full = missing(plan.trials[the_full(plan)], LENGTHS).flop
    layer_epochs = {name: round(36 * flops / full, 6) for name, flops in training.items()}
    assert layer_epochs == {  # of 3 x 12 of the full network
        "direct": 3 * 10,
        "finetune_then_drop": 3 * 10,  # of stage two; stage one is a trial of its own
        "iterative": 2 * 12 + 2 * 11 + 3 * 10,
        "iterative 3": 3 * 12 + 3 * 11 + 3 * 10,
    }
    seconds = sum(CPU.seconds(work) for work in plan.trials.values())
    assert estimate(plan, CPU).hours == pytest.approx(seconds / 3600)


@pytest.mark.parametrize(
    ("train_rows", "held_out"), [(0, 0), (1, 1), (9, 1), (100, 10), (20_000, 2000), (10**6, 2000)]
)
def test_a_greedy_selection_holds_out_a_tenth(train_rows: int, held_out: int) -> None:
    assert held_out_rows(train_rows) == held_out
