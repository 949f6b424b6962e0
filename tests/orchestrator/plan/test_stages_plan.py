"""Plans with procedures, feed-forwards, bridges and measurements: which trials they come to, and
what is left to do of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from lp_sweep.orchestrator.estimate import MeanLengths, estimate, missing_flop
from lp_sweep.orchestrator.plan.known import WorkHistory, timing_columns
from lp_sweep.orchestrator.plan.naming import describe
from lp_sweep.orchestrator.plan.plan import Plan
from lp_sweep.orchestrator.plan.planning import make_plan
from lp_sweep.orchestrator.plan.selection import taken_on
from lp_sweep.storage.printable import short_model
from lp_sweep.trials.spec.procedures import stage_one, teacher_of
from lp_sweep.trials.spec.select import LayerScores
from tests.support.stagedplans import (
    FULL,
    ONE,
    STAGED,
    all_done,
    cell_trial,
    failed_measurement,
    plan_of,
    spec,
    the_full,
)
from tests.support.sweepfiles import CPU, PLAIN, answer_of, make_inputs, planned


def text_of(plan: Plan) -> str:
    return answer_of(plan).text()


# -- procedures


def test_stage_one_is_one_trial_or_one_for_each_frozen_set_of_layers(
    tmp_path: Path,
) -> None:
    plan = plan_of(tmp_path, "procedures: finetune_then_drop", "k=1,2,3,4")
    assert len(plan.cells) == 4 + 1
    assert len(plan.trials) == 4 + 1
    full = the_full(plan)
    assert {plan.trials[cell.trial_id or ""].start for cell in plan.cells[:4]} == {full}
    assert plan.trials[full].start is None
    assert plan.needed_networks() == {full} == plan.sources()

    plan = plan_of(tmp_path, "procedures: finetune_then_drop frozen", "k=1,2")
    starts = [plan.trials[plan.trials[cell.trial_id or ""].start or ""] for cell in plan.cells[:2]]
    assert [spec(work).recipe.freeze_layers for work in starts] == [(12,), (11, 12)]
    assert all(spec(work).kept_layers == FULL for work in starts)
    assert len(plan.trials) == 2 + 2 + 1


def test_nothing_dropped_is_the_direct_trial_of_every_procedure(tmp_path: Path) -> None:
    procedures = "[direct, finetune_then_drop, finetune_then_drop frozen, iterative, iterative 3]"
    plan = plan_of(tmp_path, f"procedures: {procedures}", "k=0")
    assert len(plan.cells) == 5
    assert {*plan.trials} == {cell.trial_id for cell in plan.cells} == {the_full(plan)}
    assert plan.needed_networks() == set()


def test_what_procedures_take(tmp_path: Path) -> None:
    lines = "procedures: [direct, finetune_then_drop, iterative, iterative 3]\nrecipe: {epochs: 3}"
    plan = plan_of(tmp_path, lines, "k=2")
    lengths = MeanLengths(timing_columns([]))
    training = {
        cell.asked.procedure.label: missing_flop(plan.trials[cell.trial_id or ""], lengths)
        for cell in plan.cells
        if cell.asked.k
    }
    full = missing_flop(plan.trials[the_full(plan)], lengths)
    layer_epochs = {name: round(36 * flops / full, 6) for name, flops in training.items()}
    assert layer_epochs == {  # of 3 x 12 of the full network
        "direct": 3 * 10,
        "finetune_then_drop": 3 * 10,  # of stage two; stage one is a trial of its own
        "iterative": 2 * 12 + 2 * 11 + 3 * 10,
        "iterative 3": 3 * 12 + 3 * 11 + 3 * 10,
    }
    seconds = sum(CPU.seconds(work) for work in plan.trials.values())
    assert estimate(plan, CPU).hours == pytest.approx(seconds / 3600)


# -- feed-forwards and bridges


def test_feed_forwards_alone_are_a_second_stage(tmp_path: Path) -> None:
    lines = "procedures: [direct, finetune_then_drop, iterative]\nfeed_forward: top 2"
    plan = plan_of(tmp_path, lines, "k=0")
    staged = cell_trial(plan, procedure="finetune_then_drop", feed_forward="top 2")
    direct = cell_trial(plan, procedure="direct", feed_forward="top 2")
    assert cell_trial(plan, procedure="iterative", feed_forward="top 2") == direct != staged
    assert plan.trials[staged].start == the_full(plan)
    assert spec(plan.trials[direct]).removed_feed_forwards == (11, 12)


def test_cells_whose_feed_forwards_have_all_gone_are_left_out(tmp_path: Path) -> None:
    lines = "feed_forward: [none, top 2, top 3, '9,11', every 3rd]"
    plan = plan_of(tmp_path, lines, "k=0,3,10")
    points = {(cell.asked.feed_forward.label, cell.asked.k) for cell in plan.cells}
    assert {k for label, k in points if label in ("none", "top 2")} == {0, 3, 10}
    assert {k for label, k in points if label in ("top 3", "every 3rd")} == {0, 3}
    assert ("9,11", 3) in points  # of the listed layers one stays
    model = "./folder/of/a/model: top leaves no network for feed_forward"
    make_plan(plan.sweep, plan.known)  # a run plans several times, and says it once
    assert plan.sweep.notes == [
        f"{model} {label!r} at K=10 (left out)" for label in ("top 3", "9,11", "every 3rd")
    ]


def test_a_measurement_may_leave_no_feed_forward_to_remove(tmp_path: Path) -> None:
    text = PLAIN.replace("name: top, k: [0, 2]", "name: block-influence, k: [10]")
    file = make_inputs(tmp_path, f"{text}feed_forward: [top 3]\n")
    before = planned(file, *ONE)
    assert [cell.state for cell in before.cells] == ["deferred", "pending"]
    found = LayerScores({layer: layer / 20 for layer in FULL})  # the ten highest go
    known = WorkHistory(frozenset(), {}, dict.fromkeys(before.profiles, found))
    plan = planned(file, *ONE, known=known)
    assert [cell.state for cell in plan.cells] == ["impossible", "pending"]
    assert "none that a removed feed-forward or a bridge needs" in text_of(plan)


def test_a_bridge_makes_trials_of_its_own_beside_the_plain_ones(tmp_path: Path) -> None:
    overrides = ("strategy=top,bottom", "k=0,2,4")
    plain = plan_of(tmp_path / "a", "", *overrides)
    both = plan_of(tmp_path / "b", "bridge: [none, linear]", *overrides)
    assert plain.trials.keys() < both.trials.keys()
    more = [work for id_, work in both.trials.items() if id_ not in plain.trials]
    assert all(spec(work).bridge == "linear" and spec(work).kept_layers[0] == 1 for work in more)
    assert all("bridge linear" in describe(work) for work in more)
    full = cell_trial(both, procedure="direct bridge linear", k=0, strategy="top")
    assert full == the_full(both) == cell_trial(both, procedure="direct", k=0, strategy="top")
    asked = {(c.asked.procedure.label, c.asked.strategy, c.asked.k) for c in both.cells}
    assert ("direct", "bottom", 2) in asked
    assert not any("bridge" in p and s == "bottom" and k for p, s, k in asked)
    [note] = [note for note in both.sweep.notes if "bridge" in note]
    assert "bottom drops layer 1" in note
    assert "K=2, 4 (left out)" in note


def test_stages_and_teachers_have_no_bridge(tmp_path: Path) -> None:
    lines = "procedures: finetune_then_drop\nbridge: linear\ndistill: logits"
    plan = plan_of(tmp_path, lines)
    name = "finetune_then_drop bridge linear distill logits"
    work = plan.trials[cell_trial(plan, procedure=name, strategy="top", k=2)]
    assert spec(work).bridge == "linear"
    first = stage_one(spec(work), 12)
    assert first is not None
    assert (first.bridge, teacher_of(spec(work), 12).bridge) == ("", "")


# -- what is missing


@pytest.mark.parametrize("kept", [False, True])
def test_stage_one_is_done(tmp_path: Path, kept: bool) -> None:
    plan = plan_of(tmp_path, STAGED)
    full = the_full(plan)
    staged = cell_trial(plan, procedure="finetune_then_drop", k=2)
    plan.known = WorkHistory(frozenset({full}), {}, {}, frozenset({full} if kept else ()))
    missing = {work.id for work in plan.missing_trials()}
    assert (full in missing) is not kept  # trained again, since its network is not there
    assert staged in missing
    assert not plan.incomplete(full)
    assert plan.needed_networks() == {full}


def test_all_done(tmp_path: Path) -> None:
    lines = STAGED + "\nmeasure: {probes: [full, pruned], cka: pruned}"
    plan = plan_of(tmp_path, lines)
    after = plan_of(tmp_path, lines, known=all_done(plan))
    assert after.missing_trials() == []
    assert after.needed_networks() == set()
    assert after.sources() == {the_full(plan)}
    totals = after.totals()
    assert totals["cells_done"] == totals["cells"] == 4
    assert totals["measures_done"] == totals["measures"] == 3 + 2


def test_a_measurement_added_to_a_finished_sweep(tmp_path: Path) -> None:
    before = plan_of(tmp_path, STAGED)
    plan = plan_of(tmp_path, STAGED + "\nmeasure: {probes: full}", known=all_done(before))
    full = the_full(plan)
    assert set(plan.trials) == set(before.trials)
    assert {cell.state for cell in plan.cells} == {"done"}
    assert [work.id for work in plan.missing_trials()] == [full]
    [measure] = plan.missing_measures(full)
    assert measure.spec.trial == full
    assert plan.job(plan.trials[full], network=False).measures[0].id == measure.id
    text = text_of(plan)
    assert "1 missing of trained networks" in text
    assert "to do              1   by `lp-sweep run`: 1 done but to train again" in text
    retrained = estimate(plan, CPU).hours
    assert retrained > CPU.seconds(plan.trials[full]) / 3600
    plan.known = plan.known._replace(networks={full})
    text = text_of(plan)
    assert "to do              1   by `lp-sweep run`: 1 done but to measure\n" in text
    assert 0 < estimate(plan, CPU).hours < retrained / 2
    totals = answer_of(plan).to_dict()["totals"]
    assert [totals[name] for name in ("to_do", "trials_pending", "measures_pending")] == [1, 0, 1]


def test_cka_needs_the_full_network_that_it_is_compared_with(tmp_path: Path) -> None:
    before = plan_of(tmp_path, "", "k=0,2")
    plan = plan_of(tmp_path, "measure: {cka: pruned}", "k=0,2", known=all_done(before))
    full, pruned = the_full(plan), cell_trial(plan, k=2)
    trained = sum(CPU.seconds(plan.trials[id_]) for id_ in (full, pruned)) / 3600
    assert estimate(plan, CPU).hours > trained
    assert {work.id for work in taken_on(plan)} == {full, pruned}
    assert "to do              2   by `lp-sweep run`: 2 done but to train again" in text_of(plan)
    plan.known = plan.known._replace(networks={full})
    assert [work.id for work in taken_on(plan)] == [pruned]

    # also one that the file leaves out
    plan = plan_of(tmp_path, "measure: {cka: pruned}", "k=2")
    full, pruned = the_full(plan), plan.cells[0].trial_id or ""
    assert set(plan.trials) == {full, pruned}
    assert plan.needs(pruned) == {full}
    [measure] = plan.measures[pruned]
    assert (measure.spec.trial, measure.spec.against) == (pruned, full)
    assert full not in plan.measures


def test_what_is_to_do_and_of_what_kinds(tmp_path: Path) -> None:
    lines = "measure: {probes: [pretrained, full, pruned]}"
    before = plan_of(tmp_path, "", "k=0,2,3,4")
    first, second, third = [cell.trial_id or "" for cell in before.cells][:3]
    known = WorkHistory({first, second}, {third: "missing_input"}, {}, {second})
    plan = plan_of(tmp_path, lines, "k=0,2,3,4", known=known)
    assert len(plan.profiles) == 1  # of the pre-trained network: nothing waits for it
    assert {cell.state for cell in plan.cells} == {"done", "failed", "pending"}
    assert (
        "to do              5   by `lp-sweep run`: 2 to fine-tune, 1 done but to train again, "
        "since their network is needed and was not kept, 1 done but to measure, 1 pre-trained "
        "to measure; 1 failed before and may work now\n"
    ) in text_of(plan)


def test_a_measurement_that_failed_for_good_is_not_to_do(tmp_path: Path) -> None:
    plan, pruned, _ = failed_measurement(tmp_path)
    assert plan.failed_with(pruned) == "bug"
    text = text_of(plan)
    assert "1 failed of trained networks" in text
    assert "to do" not in text


def test_all_layers_without_a_feed_forward_are_not_measured_as_the_full_network(
    tmp_path: Path,
) -> None:
    plan = plan_of(tmp_path, "feed_forward: [none, top 1]\nmeasure: {similarity: full}", "k=0")
    assert set(plan.measures) == {the_full(plan)}


# -- names


def test_work_is_named_with_what_is_not_usual(tmp_path: Path) -> None:
    lines = (
        "procedures: [direct, finetune_then_drop, finetune_then_drop frozen, iterative]\n"
        "feed_forward: [none, top 1]\nmeasure: {probes: pretrained}"
    )
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
        f"{name}, probes measurement, rte",
    }
    assert len(told) == len(plan.trials) + len(plan.profiles)  # no two have one name


def test_a_plan_names_its_procedures_and_counts_untrained_networks_apart(tmp_path: Path) -> None:
    lines = "procedures: [direct, iterative]\nfeed_forward: [none, top 1]"
    text = text_of(plan_of(tmp_path, lines))
    assert "  procedures direct, iterative\n" in text
    assert "  feed-forwards that go none, top 1\n" in text
    usual = text_of(plan_of(tmp_path, ""))
    assert "procedures" not in usual
    assert "feed-forwards" not in usual

    text = text_of(plan_of(tmp_path, "procedures: [finetune_then_drop, one_shot]", "k=0,2,3"))
    assert "`lp-sweep run`: 3 to fine-tune, 2 to score without training\n" in text
