"""Hours of a plan: which records count, on which device, and how many tokens a task has."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lp_sweep.orchestrator.estimate.estimate import Estimate, Rates, estimate
from lp_sweep.orchestrator.estimate.timings import usable
from lp_sweep.orchestrator.estimate.workload import CPU, MeanLengths, missing, recorded
from lp_sweep.orchestrator.inputs.resolve import resolve
from lp_sweep.orchestrator.plan.known import Known, timing_columns
from lp_sweep.orchestrator.plan.plan import Plan, Work
from lp_sweep.orchestrator.plan.planning import make_plan
from lp_sweep.orchestrator.sweepfile.load import load_sweep
from lp_sweep.storage.specs import Recipe
from tests.support.plain_jobs import run_trial
from tests.support.sweepfiles import answer_of
from tests.support.toyworld import save_world

NOON = dt.datetime(2026, 1, 5, 12, tzinfo=dt.UTC)


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """K = 0 and 2 of a model with 4 layers, two seeds."""
    return make_plan(resolve(load_sweep(save_world(tmp_path, seeds=[1, 2]))), Known.nothing())


def full_network(plan: Plan) -> Work:
    return next(work for work in plan.trials.values() if len(work.spec.kept_layers) == 4)


def record(work: Work, **changes: Any) -> dict[str, Any]:
    """A record of a trial with this work, with the columns that an estimate reads."""
    layers = len(work.spec.kept_layers)
    return {
        "trial_id": work.id,
        "model": work.model.name,
        "model_fingerprint": work.model.fingerprint,
        "task": work.task.name,
        "data_fingerprint": work.task.fingerprint,
        "depth": work.model.depth,
        "kept_layers": [*work.spec.kept_layers],
        "procedure": "direct",
        "epochs_per_layer": 2,
        "params_encoder": layers * (work.model.layer_parameters or 0),
        "epochs": 3,
        "batch_size": 16,
        "max_length": 32,
        "compute": "reference",
        "precision": "fp32",
        "train_examples": work.task.train_rows,
        "dev_examples": work.task.dev_rows,
        "train_tokens": 10 * work.task.train_rows,
        "dev_tokens": 10 * work.task.dev_rows,
        "resumed_from_step": 0,
        "out_of_memory_retries": 0,
        "seconds_total": 60.0,
        "ended_at": NOON,
        "device_type": "cpu",
        "device_name": "EPYC",
        "threads": 2,
    } | changes


def test_the_stores_own_timings_replace_the_rule_of_thumb(plan: Plan) -> None:
    work = full_network(plan)
    rates = Rates([record(work)] * 30, plan.sweep.recipe, gpu=False)
    assert rates.seconds(work) == pytest.approx(60, rel=0.02)
    hours = estimate(plan, rates)
    assert hours.basis == "from 30 trials of this store on EPYC with 2 threads"
    assert (hours.trials, hours.on_gpu) == (30, False)
    assert hours.low_hours < hours.hours < hours.high_hours
    assert hours.hours == pytest.approx(sum(map(rates.seconds, plan.trials.values())) / 3600)
    assert hours.tasks == {work.task.name: hours.span}
    rule = estimate(plan, Rates([], plan.sweep.recipe, gpu=False))
    assert rule.trials == 0
    assert rule.high_hours / rule.low_hours > hours.high_hours / hours.low_hours


@pytest.mark.parametrize(
    "changes",
    [
        {"resumed_from_step": 40},
        {"out_of_memory_retries": 1},
        {"seconds_total": None},
        {"train_examples": None},
        {"distill": "logits+hidden T=4"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_is_no_evidence(plan: Plan, changes: dict[str, Any]) -> None:
    work = full_network(plan)
    rates = Rates([record(work), record(work, seconds_total=6000.0) | changes], plan.sweep.recipe)
    assert rates.trials == 1


def taught(folder: Path, *distill: Any, **settings: Any) -> Plan:
    sweep = resolve(load_sweep(save_world(folder, seeds=[1], distill=[*distill], **settings)))
    return make_plan(sweep, Known.nothing())


def test_a_teachers_logits_are_a_pass_over_the_train_rows(tmp_path: Path) -> None:
    plan = taught(tmp_path, "logits", measure={"similarity": "full"})
    work, lengths = full_network(plan), MeanLengths(timing_columns())
    measures = {m.spec.measure: replace(work, spec=m.spec) for m in plan.measures[work.id]}
    a_row = 2 * 4 * (work.model.layer_parameters or 0) * lengths.of("", "", 32, work.task.name)
    found = {name: missing(measure, lengths).flop / a_row for name, measure in measures.items()}
    rows = {"teacher": work.task.train_rows, "similarity": work.task.dev_rows}
    assert found == pytest.approx(rows)
    rates = Rates(gpu=False)
    assert rates.seconds(measures["teacher"]) > rates.seconds(measures["similarity"])


def test_a_counted_sample_stands_for_a_length_until_a_record_has_it(plan: Plan) -> None:
    work = full_network(plan)
    sampled = {work.task.name: 7.0}
    assert MeanLengths(timing_columns(), sampled).of("", "", 32, work.task.name) == 7
    counted = MeanLengths(timing_columns([record(work)]), sampled)
    asked = (work.model.fingerprint, work.task.fingerprint, work.trial.recipe.max_length)
    assert counted.of(*asked, work.task.name) not in (7, 64)


def test_a_network_that_is_scored_untrained_takes_a_pass_over_the_dev_rows(tmp_path: Path) -> None:
    work, lengths = full_network(taught(tmp_path, "none")), MeanLengths(timing_columns())
    as_it_is = replace(work, spec=replace(work.trial, procedure="untrained", kept_layers=(1, 2)))
    a_row = 2 * 2 * (work.model.layer_parameters or 0) * lengths.of("", "", 32, work.task.name)
    assert missing(as_it_is, lengths).flop == pytest.approx(a_row * work.task.dev_rows)


@pytest.mark.parametrize(("kept", "watched"), [((1, 2), 1), ((1, 3), 1), ((2, 3, 4), 3)])
def test_hidden_states_take_the_teachers_lower_layers_in_each_step(
    tmp_path: Path, kept: tuple[int, ...], watched: int
) -> None:
    plan = taught(tmp_path, "none", "logits", "logits+hidden")
    work, lengths = full_network(plan), MeanLengths(timing_columns())
    learning = {item.spec.distill for item in plan.trials.values() if item.lesson}
    flop = {
        distill and distill.hidden_weight: missing(
            replace(work, spec=replace(work.trial, kept_layers=kept, distill=distill)), lengths
        ).flop
        for distill in (None, *learning)
    }
    assert flop[None] == flop[0]
    once = work.task.train_rows * 3 * lengths.of("", "", 32, work.task.name)
    assert flop[1] - flop[0] == pytest.approx(
        2 * watched * (work.model.layer_parameters or 0) * once
    )


def test_a_plan_counts_students_and_their_teachers_logits(tmp_path: Path) -> None:
    plan = taught(tmp_path, "none", "logits", "logits+hidden")
    rates = Rates(gpu=False)
    text = answer_of(plan, rates).text()
    assert re.search(r"distilled +2 .*logits.*: 1 missing\n", text)
    assert "by layer" not in text


def test_only_the_newest_trials_device_counts(plan: Plan) -> None:
    work = full_network(plan)
    later = NOON + dt.timedelta(hours=1)
    gpu = {"device_type": "cuda", "device_name": "H100", "seconds_total": 3.0, "ended_at": later}
    rows = [record(work, threads=1)] * 5 + [record(work)] * 4 + [record(work, **gpu)] * 3
    rates = Rates(rows, plan.sweep.recipe)
    assert (rates.trials, rates.device, rates.on_gpu) == (3, "H100", True)
    assert "GPU time" in answer_of(plan, rates).text()
    assert Rates(rows[:9], plan.sweep.recipe).device in (
        "EPYC with 1 thread",
        "EPYC with 2 threads",
    )


def test_another_way_to_compute_widens_the_band(plan: Plan) -> None:
    work = full_network(plan)
    rows = [record(work)] * 10
    asked, other = (
        estimate(plan, Rates(rows, recipe, gpu=False))
        for recipe in (Recipe(), Recipe(compute="fast"))
    )
    assert asked.hours == other.hours
    assert other.high_hours / other.low_hours == pytest.approx(
        4 * asked.high_hours / asked.low_hours
    )
    mixed = [*rows, record(work, compute="fast", seconds_total=6.0)]
    assert Rates(mixed, Recipe(compute="fast")).trials == 1


def test_an_older_record_says_nothing_of_tokens(plan: Plan) -> None:
    work = full_network(plan)
    older = {"train_tokens": None, "dev_tokens": None, "epochs_per_layer": None}
    records = timing_columns([record(work, **older)])
    lengths = MeanLengths(records)
    assert lengths.of("m", "d", 128, "SST-2") == 13.4
    assert lengths.of("m", "d", 128, "mood") == 64
    assert lengths.of("m", "d", 32, "rte") == 32  # truncated
    assert Rates(records, plan.sweep.recipe).seconds(work) == pytest.approx(60)


@pytest.mark.parametrize("procedure", ["direct", "iterative"])
def test_a_record_asks_for_what_its_work_asked_for(tmp_path: Path, procedure: str) -> None:
    path = save_world(tmp_path, procedures=[procedure], strategies=[{"name": "top", "k": [2]}])
    plan = make_plan(resolve(load_sweep(path)), Known.nothing())
    [work] = (work for work in plan.trials.values() if len(work.spec.kept_layers) == 2)
    row = record(work, procedure=procedure, epochs_per_layer=2)
    [found] = timing_columns([row]).to_pylist()
    rates = Rates([row], plan.sweep.recipe, gpu=False)
    stated = recorded(found, MeanLengths(timing_columns([row]))).seconds(CPU)
    assert rates.kind(work).stated == pytest.approx(stated)
    assert rates.seconds(work) == pytest.approx(60)


def test_a_trial_counts_its_tokens(plan: Plan, tmp_path: Path) -> None:
    work = full_network(plan)
    done = run_trial(
        {**work.job().to_plain(), "cache_dir": str(tmp_path / "cache"), "device": "cpu"}
    )
    row = done["record"]
    texts = (tmp_path / "train.csv").read_text(encoding="utf-8").splitlines()[1:]
    words = sum(len(line.rpartition(",")[0].split()) for line in texts)
    assert row["train_tokens"] == words + 2 * len(texts)  # [CLS] and [SEP]
    assert row["dev_tokens"] > 0
    assert len(usable(timing_columns([row]))) == 1


def test_json_and_text_say_the_band(plan: Plan) -> None:
    answer = answer_of(plan, Rates([record(full_network(plan))] * 30, plan.sweep.recipe))
    told = answer.plain()["estimate"]
    assert set(told) >= {"hours", "low_hours", "high_hours", "trials", "device", "basis"}
    [of_task] = told["tasks"].values()
    assert of_task["expected"] == told["hours"]
    assert re.search(r"estimate   about [\d.]+ min \([\d.]+ to [\d.]+\) on", answer.text())


def test_the_hours_by_the_clock_where_runs_are_at_work(plan: Plan) -> None:
    rates = Rates([record(full_network(plan), seconds_total=3600.0)] * 30, plan.sweep.recipe)
    answer = answer_of(plan, rates)
    hours = answer.estimate

    def wall_hours(slots: int, found: Estimate = hours) -> Any:
        told = answer._replace(slots=slots, estimate=found).plain()["estimate"]
        return told["wall_hours"]

    quarter = max(hours.hours / 4, hours.longest_hours)
    assert wall_hours(4) == pytest.approx(quarter)
    assert "on the 4 slots at work" in answer._replace(slots=4).text()
    assert wall_hours(4000) == pytest.approx(hours.longest_hours)
    speeds = hours._replace(hours=hours.hours + 7.0, alone_hours=7.0)  # one at a time
    assert wall_hours(4, speeds) == pytest.approx(quarter + 7)
    assert wall_hours(0) is None
    assert "slots at work" not in answer.text()
