"""Hours of a plan: which records count, on which device, and how many tokens a task has."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lp_sweep.orchestrator.estimate.estimate import Rates, estimate
from lp_sweep.orchestrator.estimate.workload import (
    CPU,
    MeanLengths,
    missing_flop,
    recorded_flop,
)
from lp_sweep.orchestrator.inputs.resolve import resolve
from lp_sweep.orchestrator.plan.known import Known, timing_columns
from lp_sweep.orchestrator.plan.plan import Plan, Work
from lp_sweep.orchestrator.plan.planning import make_plan
from lp_sweep.orchestrator.sweepfile.load import load_sweep
from lp_sweep.trials.spec.specs import Recipe
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
    assert hours.span.low < hours.hours < hours.span.high
    assert hours.hours == pytest.approx(sum(map(rates.seconds, plan.trials.values())) / 3600)
    assert hours.tasks == {work.task.name: hours.span}
    rule = estimate(plan, Rates([], plan.sweep.recipe, gpu=False))
    assert rule.trials == 0
    assert rule.span.high / rule.span.low > hours.span.high / hours.span.low


@pytest.mark.parametrize(
    "changes",
    [
        {"resumed_from_step": 40},
        {"out_of_memory_retries": 1},
        {"seconds_total": None},
        {"train_examples": None},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_is_no_evidence(plan: Plan, changes: dict[str, Any]) -> None:
    work = full_network(plan)
    rates = Rates([record(work), record(work, seconds_total=6000.0) | changes], plan.sweep.recipe)
    assert rates.trials == 1


def test_passes_that_are_no_training(tmp_path: Path) -> None:
    file = save_world(tmp_path, seeds=[1], distill=["logits"], measure={"similarity": "full"})
    plan = make_plan(resolve(load_sweep(file)), Known.nothing())
    work = full_network(plan)
    rows, dev_rows = work.task.train_rows, work.task.dev_rows
    lengths = MeanLengths(timing_columns())
    of_a_layer = 2 * (work.model.layer_parameters or 0) * lengths.of("", 32, work.task.name)

    def layer_rows(spec: Any) -> float:
        """Rows times the layers that they go through."""
        return missing_flop(replace(work, spec=spec), lengths) / of_a_layer

    measures = {item.spec.measure: layer_rows(item.spec) for item in plan.measures[work.id]}
    assert measures == pytest.approx({"teacher": 4 * rows, "similarity": 4 * dev_rows})
    untrained = replace(work.trial, procedure="untrained", kept_layers=(1, 2))
    assert layer_rows(untrained) == pytest.approx(2 * dev_rows)


def test_lengths_are_those_of_records_or_of_a_counted_sample(plan: Plan) -> None:
    work = full_network(plan)
    sampled = {work.task.name: 7.0}
    assert MeanLengths(timing_columns(), sampled).of("", 32, work.task.name) == 7
    counted = MeanLengths(timing_columns([record(work)]), sampled)
    limit = work.trial.recipe.max_length
    assert counted.of(work.task.fingerprint, limit, work.task.name) not in (7, 64)

    # a record without tokens
    without = {"train_tokens": None, "dev_tokens": None, "epochs_per_layer": None}
    records = timing_columns([record(work, **without)])
    lengths = MeanLengths(records)
    assert lengths.of("d", 128, "SST-2") == 13.4
    assert lengths.of("d", 128, "mood") == 64
    assert lengths.of("d", 32, "rte") == 32  # truncated
    assert Rates(records, plan.sweep.recipe).seconds(work) == pytest.approx(60)


def test_only_the_newest_trials_device_counts(plan: Plan) -> None:
    work = full_network(plan)
    later = NOON + dt.timedelta(hours=1)
    gpu = {"device_type": "cuda", "device_name": "H100", "seconds_total": 3.0, "ended_at": later}
    rows = [record(work)] * 5 + [record(work, **gpu)] * 3
    rates = Rates(rows, plan.sweep.recipe)
    assert (rates.trials, rates.device, rates.on_gpu) == (3, "H100", True)
    assert "GPU time" in answer_of(plan, rates).text()


def test_timings_of_the_same_way_to_compute_come_first(plan: Plan) -> None:
    work = full_network(plan)
    rows = [record(work)] * 10 + [record(work, compute="fast", seconds_total=6.0)]
    assert Rates(rows, Recipe(compute="fast")).trials == 1
    assert Rates(rows, Recipe(compute="graphs")).trials == 11


@pytest.mark.parametrize("procedure", ["direct", "iterative"])
def test_a_record_asks_for_what_its_work_asked_for(tmp_path: Path, procedure: str) -> None:
    path = save_world(tmp_path, procedures=[procedure], strategies=[{"name": "top", "k": [2]}])
    plan = make_plan(resolve(load_sweep(path)), Known.nothing())
    [work] = (work for work in plan.trials.values() if len(work.spec.kept_layers) == 2)
    row = record(work, procedure=procedure, epochs_per_layer=2)
    [found] = timing_columns([row]).to_pylist()
    rates = Rates([row], plan.sweep.recipe, gpu=False)
    stated = CPU.seconds(recorded_flop(found, MeanLengths(timing_columns([row]))))
    assert rates.seconds(work) == pytest.approx(rates.ratio.expected * stated)
    assert rates.seconds(work) == pytest.approx(60)


def test_the_answer_says_the_band(plan: Plan) -> None:
    rates = Rates([record(full_network(plan), seconds_total=3600.0)] * 30, plan.sweep.recipe)
    answer = answer_of(plan, rates)
    told = answer.to_dict()["estimate"]
    assert set(told) >= {"hours", "low_hours", "high_hours", "trials", "basis"}
    assert [of_task["expected"] for of_task in told["tasks"].values()] == [told["hours"]]
    assert re.search(r"estimate   about [\d.]+ h \([\d.]+ to [\d.]+\) on", answer.text())
