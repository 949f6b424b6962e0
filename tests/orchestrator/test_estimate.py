"""Hours of a plan: which records count, on which device, and how many tokens a task has; how wide
a band is, and when a run ends: before it and after some of it."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lp_sweep.orchestrator.estimate import (
    CPU,
    Eta,
    MeanLengths,
    Pace,
    Rates,
    band,
    estimate,
    missing_flop,
    recorded_flop,
)
from lp_sweep.orchestrator.inputs.resolve import resolve
from lp_sweep.orchestrator.options import Request
from lp_sweep.orchestrator.plan.known import WorkHistory, timing_columns
from lp_sweep.orchestrator.plan.plan import Plan, Work
from lp_sweep.orchestrator.plan.planning import make_plan
from lp_sweep.orchestrator.service.plan import plan as planned
from lp_sweep.orchestrator.sweepfile.load import load_sweep
from lp_sweep.storage.underway import Underway
from lp_sweep.trials.spec.specs import Recipe
from tests.support.courses import Clock
from tests.support.sweepfiles import answer_of
from tests.support.toyworld import save_world

NOON = dt.datetime(2026, 1, 5, 12, tzinfo=dt.UTC)


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """K = 0 and 2 of a model with 4 layers, two seeds."""
    return make_plan(resolve(load_sweep(save_world(tmp_path, seeds=[1, 2]))), WorkHistory.nothing())


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
    plan = make_plan(resolve(load_sweep(file)), WorkHistory.nothing())
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
    plan = make_plan(resolve(load_sweep(path)), WorkHistory.nothing())
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
    assert re.search(r"estimate +about [\d.]+ h \([\d.]+ to [\d.]+\) on", answer.text())


@pytest.mark.parametrize("has", [True, False])
def test_a_plan_names_the_precision_of_this_cpu(
    tmp_path: Path, has: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": has}, raising=False)
    file = load_sweep(save_world(tmp_path), ["recipe.precision=auto"])
    plan = make_plan(resolve(file), WorkHistory.nothing())
    text = answer_of(plan, Rates(gpu=False)).text()
    assert f"  precision    {'bf16' if has else 'fp32'} on this CPU" in text
    assert "precision" not in answer_of(plan, Rates(gpu=True)).text()


@pytest.mark.parametrize("wanted", ["bf16", "auto"])
def test_without_timings_bf16_is_stated_faster(
    tmp_path: Path, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True}, raising=False)
    monkeypatch.setattr("lp_sweep.orchestrator.estimate._has_gpu", lambda: False)
    file, store = str(save_world(tmp_path)), str(tmp_path / "new")
    fp32, bf16 = (
        planned(Request(file, [f"recipe.precision={name}"], store)).estimate
        for name in ("fp32", wanted)
    )
    assert "bf16" in bf16.basis
    assert bf16.hours < fp32.hours


# -- the end of a run, and its band


def pace(*took: float, slots: int = 1, clock: Clock | None = None) -> Pace:
    """After trials that took so many times their estimate."""
    clock = clock or Clock()
    run = Pace(Rates([], gpu=False).ratio, now=clock)
    run.slots = slots
    for factor in took:
        run.started("a")
        clock.seconds += factor * 60
        run.ended("a", 60.0)
    return run


def test_before_a_run_the_band_is_that_of_the_estimate() -> None:
    assert pace().scale(60.0) == (1.0, 0.25, 4.0)
    assert pace().eta({}, 60.0, 60.0) == Eta(60.0, 15.0, 240.0)
    assert pace(slots=0).eta({}, 60.0, 60.0) == Eta()


def test_a_limit_of_the_run_bounds_its_end() -> None:
    run = pace()
    run.most = lambda: 100.0
    assert run.eta({}, 60.0, 60.0) == Eta(60.0, 15.0, 100.0)
    run.searching = True
    assert run.eta({}, 600.0, 60.0).text() == "1:40 (the limit)"


def test_the_pace_of_the_run_replaces_it_and_each_trial_narrows_its_band() -> None:
    found = [pace(*[3.0] * seen).scale(60.0) for seen in (1, 5, 40)]
    assert [span.expected for span in found] == [3.0] * 3
    widths = [span.high / span.low for span in found if span.low and span.high]
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < 1.3
    assert band([1.0] * 20 + [30.0])[::2] == band([1.0] * 20)[::2], "one wild one moves little"
    run = pace()
    run.started("b")
    run.ended("b", None)  # it failed
    assert run.scale(60.0) == pace().scale(60.0)


def test_a_short_measurement_does_not_show_how_long_trainings_take() -> None:
    clock = Clock()
    run = pace(4.0, clock=clock)  # 4 minutes instead of one
    assert run.eta({"b": 3600.0}, 7200.0, 3600.0) == pace().eta({"b": 3600.0}, 7200.0, 3600.0)
    run.started("b")
    clock.seconds += 7200
    run.ended("b", 3600.0)
    assert run.eta({}, 3600.0, 3600.0).seconds == 7200.0
    assert run.eta({}, 60.0, 60.0).seconds == 180.0, "of short work both count"


def test_a_trial_that_tells_how_far_it_is_shows_the_pace_of_the_run() -> None:
    clock = Clock()
    run = pace(clock=clock)
    run.started("b")
    clock.seconds += 100
    run.tell({"b": Underway(50, 200, 0.5, 300.0)})  # 400 s in all, estimated as 800
    found = run.eta({"b": 800.0}, 1600.0, 800.0)
    assert found.seconds == 300 + 800
    assert (found.low or 0) >= 300 + 400
    clock.seconds += 60
    found = run.eta({"b": 800.0}, 0.0, 0.0)
    assert found.seconds == 240.0
    assert (found.low or 0) < 240 < (found.high or 0)
    run.tell({"b": Underway(200, 200, 0.5, 0.0)})  # it scores the dev rows
    assert run.eta({"b": 800.0}, 0.0, 0.0).seconds == 240.0
    run.ended("b", 800.0)
    run.tell({})
    assert run.eta({}, 800.0, 800.0).seconds == 160.0


def test_a_run_waits_for_what_another_run_trains() -> None:
    clock = Clock()
    run = pace(clock=clock)
    assert run.eta({}, 60.0, 60.0, {"b": 600.0}).seconds == 600.0
    run.tell({"b": Underway(50, 200, 0.5, 300.0)})
    clock.seconds += 20
    run.tell({"b": Underway(50, 200, 0.5, 300.0)})  # it has said nothing new
    assert run.eta({}, 60.0, 60.0, {"b": 600.0}).seconds == 280.0
    run.tell({})
    assert run.eta({}, 60.0, 60.0).seconds == 60.0


@pytest.mark.parametrize(("ended", "left"), [(2, 60), (40, 10)])
def test_most_bands_hold(ended: int, left: int) -> None:
    """The remaining trials take a total within the band, on a device without a stated rate."""
    draw = np.random.default_rng(7)

    def held() -> bool:
        took = np.exp(draw.normal(0, 0.8)) * np.exp(draw.normal(0, 0.2, ended + left))
        told = pace(*took[:ended].tolist()).scale(60.0)
        return bool((told.low or 0) <= took[ended:].mean() <= (told.high or 0))

    assert sum(held() for _ in range(200)) / 200 >= 0.8


def test_what_is_left_is_shared_by_the_slots_but_for_the_longest_piece() -> None:
    assert pace(slots=2).eta({}, 600.0, 100.0) == Eta(300.0, 75.0, 1200.0)
    clock = Clock()
    run = pace(*[3.5] * 20, slots=2, clock=clock)
    run.started("c")
    clock.seconds += 5
    left = run.eta({"c": 10.0}, 100.0, 20.0).seconds
    assert left == pytest.approx((10 * 3.5 - 5 + 100 * 3.5) / 2)

    run = pace(slots=10)
    assert run.eta({}, 1000.0, 500.0).seconds == 500.0
    run.started("a")
    assert run.eta({"a": 700.0}, 0.0, 0.0).seconds == 700.0


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=60), st.floats(0.001, 1000))
def test_the_band_holds_the_median_and_scales_with_the_device(
    ratios: list[float], speed: float
) -> None:
    found = band(ratios)
    assert (found.low or 0) <= found.expected <= (found.high or 0)
    assert band([speed * ratio for ratio in ratios]) == pytest.approx(found.times(speed))
