"""Hours of a plan: which records count, on which device, and how many tokens a task has."""

from __future__ import annotations

import datetime as dt
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lp_sweep.orchestrator.estimate.audit import audit
from lp_sweep.orchestrator.estimate.estimate import Rates, estimate
from lp_sweep.orchestrator.estimate.workload import CPU, MeanLengths, missing, recorded
from lp_sweep.orchestrator.inputs.resolve import resolve
from lp_sweep.orchestrator.plan.known import Known, timing_columns
from lp_sweep.orchestrator.plan.plan import Plan, Work
from lp_sweep.orchestrator.plan.planning import make_plan
from lp_sweep.orchestrator.sweepfile.load import load_sweep
from lp_sweep.storage.specs import Recipe
from tests.support.fake_records import STARTED, FakeSweep
from tests.support.program import sweep
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


def test_passes_that_are_no_training(tmp_path: Path) -> None:
    plan = taught(tmp_path, "none", "logits", "logits+hidden", measure={"similarity": "full"})
    work = full_network(plan)
    rows, dev_rows = work.task.train_rows, work.task.dev_rows
    lengths = MeanLengths(timing_columns())
    of_a_layer = 2 * (work.model.layer_parameters or 0) * lengths.of("", "", 32, work.task.name)

    def layer_rows(spec: Any) -> float:
        """Rows times the layers that they go through."""
        return missing(replace(work, spec=spec), lengths).flop / of_a_layer

    measures = {item.spec.measure: layer_rows(item.spec) for item in plan.measures[work.id]}
    assert measures == pytest.approx({"teacher": 4 * rows, "similarity": 4 * dev_rows})
    untrained = replace(work.trial, procedure="untrained", kept_layers=(1, 2))
    assert layer_rows(untrained) == pytest.approx(2 * dev_rows)
    ways = {item.spec.distill for item in plan.trials.values() if item.lesson}
    logits, hidden = sorted(ways, key=lambda way: way.hidden_weight)
    for kept, watched in (((1, 3), 1), ((2, 3, 4), 3)):
        plain, taught_logits, taught_hidden = (
            layer_rows(replace(work.trial, kept_layers=kept, distill=way))
            for way in (None, logits, hidden)
        )
        assert taught_logits == plain
        assert taught_hidden - plain == pytest.approx(3 * watched * rows)  # in each of 3 epochs


def test_lengths_are_those_of_records_or_of_a_counted_sample(plan: Plan) -> None:
    work = full_network(plan)
    sampled = {work.task.name: 7.0}
    assert MeanLengths(timing_columns(), sampled).of("", "", 32, work.task.name) == 7
    counted = MeanLengths(timing_columns([record(work)]), sampled)
    asked = (work.model.fingerprint, work.task.fingerprint, work.trial.recipe.max_length)
    assert counted.of(*asked, work.task.name) not in (7, 64)

    # an older record says nothing of tokens
    older = {"train_tokens": None, "dev_tokens": None, "epochs_per_layer": None}
    records = timing_columns([record(work, **older)])
    lengths = MeanLengths(records)
    assert lengths.of("m", "d", 128, "SST-2") == 13.4
    assert lengths.of("m", "d", 128, "mood") == 64
    assert lengths.of("m", "d", 32, "rte") == 32  # truncated
    assert Rates(records, plan.sweep.recipe).seconds(work) == pytest.approx(60)


def test_only_the_newest_trials_device_counts(plan: Plan) -> None:
    work = full_network(plan)
    later = NOON + dt.timedelta(hours=1)
    gpu = {"device_type": "cuda", "device_name": "H100", "seconds_total": 3.0, "ended_at": later}
    rows = [record(work)] * 5 + [record(work, **gpu)] * 3
    rates = Rates(rows, plan.sweep.recipe)
    assert (rates.trials, rates.device, rates.on_gpu) == (3, "H100", True)
    assert "GPU time" in answer_of(plan, rates).text()


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


def test_the_answer_says_the_band_and_the_hours_by_the_clock(plan: Plan) -> None:
    rates = Rates([record(full_network(plan), seconds_total=3600.0)] * 30, plan.sweep.recipe)
    answer = answer_of(plan, rates)
    hours, told = answer.estimate, answer.plain()["estimate"]
    assert set(told) >= {"hours", "low_hours", "high_hours", "trials", "device", "basis"}
    assert [of_task["expected"] for of_task in told["tasks"].values()] == [hours.hours]
    assert told["wall_hours"] is None
    assert re.search(r"estimate   about [\d.]+ h \([\d.]+ to [\d.]+\) on", answer.text())
    assert "slots at work" not in answer.text()

    at_work = answer._replace(slots=4)
    quarter = max(hours.hours / 4, hours.longest_hours)
    assert at_work.plain()["estimate"]["wall_hours"] == pytest.approx(quarter)
    assert "on the 4 slots at work" in at_work.text()
    assert hours.wall(4000).expected == pytest.approx(hours.longest_hours)


# -- `lp-sweep plan --audit`: estimated against actual hours

TASKS = {"sst2": 13.0, "rte": 66.0}  # tokens of an example
SEEDS = range(6)


def done(fake: FakeSweep, task: str, k: int, seed: int, **changes: Any) -> None:
    """A trial whose seconds are as a device of one price would have them, more or less."""
    layers, tokens = 12 - k, 3000 * TASKS[task]
    chance = float(np.random.default_rng((len(task), k, seed)).normal(0, 0.1))
    seconds = (10 + 6e-14 * 3 * 6 * tokens * 7_000_000 * layers) * np.exp(chance)
    record = {
        "model_fingerprint": "m", "data_fingerprint": task, "max_length": 128,
        "train_tokens": round(tokens), "dev_tokens": round(872 * TASKS[task]),
        "seconds_total": float(seconds), "ended_at": STARTED + dt.timedelta(minutes=seed),
    }  # fmt: skip
    fake.cell(k=k, score=90.0, task=task, seed=seed, **record | changes)


@pytest.fixture
def fake(tmp_path: Path) -> FakeSweep:
    fake = FakeSweep(tmp_path / "store")
    for task in TASKS:
        for k in (0, 4, 8):
            for seed in SEEDS:
                done(fake, task, k, seed)
    fake.publish()
    return fake


def test_a_row_for_each_model_and_task_and_the_total(fake: FakeSweep) -> None:
    rows = audit(fake.store, "demo").table.long.to_pylist()
    assert [(row["model"], row["task"], row["trials"]) for row in rows] == [
        ("bert", "rte", 18),
        ("bert", "sst2", 18),
        ("all", "all", 36),
    ]
    records = fake.store.read_all("trials").rows
    assert rows[-1]["actual_hours"] == pytest.approx(
        sum(records["seconds_total"].to_pylist()) / 3600
    )
    for row in rows:
        assert row["ratio"] == pytest.approx(row["actual_hours"] / row["estimated_hours"])
        assert 0.8 < row["ratio"] < 1.25
        assert row["in_band"] is True
        assert row["low_hours"] < row["estimated_hours"] < row["high_hours"]


def test_no_trial_is_estimated_from_itself(tmp_path: Path) -> None:
    fake = FakeSweep(tmp_path / "store")
    done(fake, "rte", 0, 1, seconds_total=1e6)
    fake.publish()
    [alone, _] = audit(fake.store, "demo").table.long.to_pylist()
    assert alone["ratio"] > 100  # the rule of thumb knows nothing of it
    assert alone["in_band"] is False


def test_a_slow_night_is_out_of_the_band(fake: FakeSweep) -> None:
    night = FakeSweep(fake.store.location, "night")
    done(night, "sst2", 0, 100, seconds_total=5000.0)
    night.publish()
    rows = audit(fake.store, "night").table.long.to_pylist()
    assert rows[0]["ratio"] > 2
    assert [row["in_band"] for row in rows] == [False, False]
    assert rows[0]["trials"] == 1  # of the asked sweep alone


def test_what_says_nothing_is_left_out_and_counted(fake: FakeSweep) -> None:
    done(fake, "rte", 2, 50, resumed_from_step=10)
    done(fake, "rte", 2, 51, out_of_memory_retries=1)
    fake.publish()
    found = audit(fake.store, "demo").table
    assert found.long.to_pylist()[-1]["trials"] == 36
    assert any(note.startswith("Left out: 2 trials") for note in found.notes)


def test_as_a_command(fake: FakeSweep, tmp_path: Path) -> None:
    words = ("plan", "--audit", "demo", "--store", "store")
    shown = sweep(*words, cwd=tmp_path).stdout
    assert shown.startswith("Estimated against actual time of sweep demo")
    rows = json.loads(sweep(*words, "--json", cwd=tmp_path).stdout)
    assert [(row["task"], row["trials"]) for row in rows] == [
        ("rte", 18),
        ("sst2", 18),
        ("all", 36),
    ]
