"""Which speeds a sweep asks for, and when they are measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lp_sweep.orchestrator.engine.workqueue import WorkQueue
from lp_sweep.orchestrator.estimate import estimate
from lp_sweep.orchestrator.plan.known import WorkHistory
from lp_sweep.orchestrator.plan.plan import Plan
from lp_sweep.orchestrator.plan.planning import make_plan
from lp_sweep.orchestrator.plan.selection import Selection, retry_selection
from lp_sweep.storage.store import Store
from lp_sweep.trials.spec.select import LayerScores
from lp_sweep.trials.spec.specs import SpeedSpec
from tests.support.courses import presence_of, queue_of, taken
from tests.support.sweepfiles import CPU, PLAIN, answer_of, make_inputs, planned

TIMED = PLAIN + "measure: {speed: cpu}\n"


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """Two tasks, two seeds, K=0 and 2: eight trials of two networks."""
    return planned(make_inputs(tmp_path, TIMED))


def specs(plan: Plan) -> list[SpeedSpec]:
    return [work.spec for work in plan.speeds.values() if isinstance(work.spec, SpeedSpec)]


def with_known(plan: Plan, *, trials: bool = False, speeds: int = 0) -> WorkHistory:
    done = dict.fromkeys(list(plan.speeds)[:speeds], LayerScores({}))
    return WorkHistory(frozenset(plan.trials) if trials else frozenset(), {}, done)


# -- what is asked for


def test_a_network_is_measured_once_and_that_changes_no_trial(plan: Plan, tmp_path: Path) -> None:
    assert len(plan.trials) == 8
    assert [spec.kept_layers for spec in specs(plan)] == [tuple(range(1, 13)), tuple(range(1, 11))]
    assert all((s.device_type, s.length, s.batches) == ("cpu", 128, (32,)) for s in specs(plan))

    plain = planned(make_inputs(tmp_path, PLAIN))
    assert plain.speeds == {}
    assert list(plain.trials) == list(plan.trials)


def test_which_networks_and_devices_are_measured(tmp_path: Path) -> None:
    text = TIMED.replace("{name: top, k: [0, 2]}", "{name: top, k: 1}\n  - {name: drop 12}")
    assert len(planned(make_inputs(tmp_path, text)).speeds) == 2  # and the full network's

    # only the networks of some cells
    text = TIMED.replace("speed: cpu", "speed: cpu, speed_of: [{strategy: 't*', k: 2}]")
    [spec] = specs(planned(make_inputs(tmp_path, text)))
    assert spec.kept_layers == tuple(range(1, 11))

    # each type of device is its own, and a GPU has a second batch
    plan = planned(make_inputs(tmp_path, TIMED.replace("cpu", "[cpu, cuda]")))
    found = [(spec.device_type, spec.batches) for spec in specs(plan)]
    assert found == [("cpu", (32,))] * 2 + [("cuda", (32, 256))] * 2


def test_feed_forwards_that_go_are_part_of_it(tmp_path: Path) -> None:
    text = TIMED + "feed_forward: [none, top 3, {remove: top 3, second_norm: drop}]\n"
    plan = planned(make_inputs(tmp_path, text), "k=2")
    found = [(spec.removed_feed_forwards, spec.second_norm) for spec in specs(plan)]
    assert found == [((), "keep"), ((8, 9, 10), "keep"), ((8, 9, 10), "drop"), ((), "keep")]


def test_length_and_precision_are_the_files_and_no_longer_than_a_model_takes(
    tmp_path: Path,
) -> None:
    text = TIMED.replace("cpu", "cpu, speed_length: 64") + "recipe: {precision: bf16}\n"
    plan = planned(make_inputs(tmp_path, text))
    assert {(spec.length, spec.precision) for spec in specs(plan)} == {(64, "bf16")}
    file = make_inputs(tmp_path, TIMED + "recipe: {max_length: 64}\n")
    config = tmp_path / "folder/of/a/model/config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": 96}))
    assert {spec.length for spec in specs(planned(file))} == {96}


def test_deferred_cells_have_a_speed_when_their_layers_are_known(tmp_path: Path) -> None:
    text = TIMED.replace("name: top, k: [0, 2]", "name: contribution, threshold: [0.9]")
    plan = planned(make_inputs(tmp_path, text), "task=rte")
    assert len(plan.speeds) == 1  # the full network's
    cosines = LayerScores({layer: 0.95 if layer == 5 else 0.5 for layer in range(1, 13)})
    known = WorkHistory(frozenset(), {}, dict.fromkeys(plan.profiles, cosines))
    spec, full = specs(make_plan(plan.sweep, known))
    assert spec.kept_layers == (1, 2, 3, 4, *range(6, 13))
    assert full.kept_layers == tuple(range(1, 13))


# -- how a plan tells of them


def test_a_plan_says_how_many_are_missing_and_what_they_need(plan: Plan) -> None:
    plan.known = with_known(plan, speeds=1)
    told = json.loads(json.dumps(answer_of(plan).to_dict()))
    assert [told["totals"][f"speeds{end}"] for end in ("", "_done", "_pending")] == [2, 1, 1]
    assert [speed["state"] for speed in told["speeds"]] == ["done", "pending"]
    assert told["speeds"][1]["kept_layers"] == list(range(1, 11))
    assert told["totals"]["profiles"] == 0
    text = answer_of(plan).text()
    assert "measurements       2   1 done, 1 missing of speed" in text
    assert "8 to fine-tune, 1 to time" in text

    with_them = estimate(plan, CPU).hours
    plan.known = with_known(plan, speeds=2)
    assert estimate(plan, CPU).hours < with_them
    full, pruned = plan.speeds.values()
    assert CPU.seconds(full) > CPU.seconds(pruned) > 0
    plan.known = with_known(plan, trials=True)
    wanted = plan.inputs_needed()
    assert [model.name for model in wanted.models] == ["./folder/of/a/model"]
    assert wanted.tasks == []


# -- when they are measured


@pytest.fixture
def queue(tmp_path: Path, store: Store) -> WorkQueue:
    """Where two trials share a GPU."""
    return queue_of(planned(make_inputs(tmp_path, TIMED + "trials_per_gpu: 2\n")), store)


def test_speeds_come_last_and_run_beside_all_else(plan: Plan, store: Store) -> None:
    queue = queue_of(plan, store)
    work = [taken(queue).id for _ in range(10)]
    assert {*work[:8]} == plan.trials.keys()
    assert {*work[8:]} == plan.speeds.keys()


def test_on_a_shared_gpu_one_runs_alone(queue: WorkQueue) -> None:
    trials = [taken(queue) for _ in range(8)]
    assert queue.take() is None
    assert queue.open
    for work in trials:
        assert queue.take() is None, "while a trial is live"
        queue.ended(work.id, None)
    first = taken(queue)
    assert first.id in queue.plan.speeds
    assert queue.take() is None, "never two at once"
    queue.lost(first.id, "worker_lost")
    assert queue.take() == first, "it is tried again"
    queue.ended(first.id, None)
    second = taken(queue)
    queue.ended(second.id, None)
    assert not queue.open
    assert make_plan(queue.plan.sweep, queue.known()).totals()["speeds_done"] == 2


def test_it_waits_for_what_another_run_holds(queue: WorkQueue, store: Store) -> None:
    with presence_of(store).announced() as one, presence_of(store).announced() as other:
        held = next(iter(queue.plan.trials))
        other.claim([held])
        queue.claims = one
        for work in [taken(queue) for _ in range(7)]:
            assert work.id != held
            queue.ended(work.id, None)
        assert queue.take() is None
        assert queue.open
    queue.holding.clear()
    assert queue.take() is not None


def test_one_that_failed_is_tried_again_by_retry(plan: Plan) -> None:
    id_ = next(iter(plan.speeds))
    plan.known = with_known(plan, trials=True)._replace(failed={id_: "bug"})
    assert plan.totals()["speeds_failed"] == 1
    assert not Selection().wants(id_, plan.failed_with(id_))
    assert retry_selection(None, [id_[:8]], plan).ids == {id_}
