"""Hours and money of a run: what it has used, by a clock and machines that the test moves; and what
a plan says it will cost at stated prices."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from lp_sweep.orchestrator.cluster.clusterfile import ClusterFile, read_cluster_file
from lp_sweep.orchestrator.engine.budget import Budget, BudgetStop, kind_of
from lp_sweep.orchestrator.engine.ray_tune import EndOfFit, PlanSearcher
from lp_sweep.orchestrator.engine.workqueue import WorkQueue
from lp_sweep.orchestrator.estimate.estimate import Cost, Estimate, cost
from lp_sweep.orchestrator.estimate.timings import Span
from lp_sweep.storage.errors import SpecError
from lp_sweep.storage.store import Store
from lp_sweep.trials.worker.job import announce
from tests.support.clusterfiles import PRICES, cluster_file
from tests.support.courses import ON_CPU, Clock, course_of, queue_of
from tests.support.program import Done, sweep
from tests.support.sweepfiles import make_inputs, planned


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def file(tmp_path: Path) -> ClusterFile:
    return read_cluster_file(cluster_file(tmp_path, PRICES | {"cpu": 0.1}))


def machine(cpus: float, gpus: float = 0.0, **more: Any) -> dict[str, Any]:
    """As `ray.nodes` gives it."""
    return {"Alive": True, "Resources": {"CPU": cpus, "GPU": gpus}, "Labels": {}} | more


def head() -> dict[str, Any]:
    return machine(4) | {"Resources": {"CPU": 4.0, "node:__internal_head__": 1.0}}


def test_hours_are_those_of_the_clock(clock: Clock) -> None:
    budget = Budget(max_hours=2.0, now=clock)
    clock.after(1.9)
    assert budget.reached() is None
    clock.after(0.1)
    assert budget.reached() == "max-hours"
    assert budget.used() == (pytest.approx(2.0), {}, None)
    assert budget.used().sentence() == "2.00 hours"


def test_money_is_machines_times_hours_times_price(clock: Clock, file: ClusterFile) -> None:
    there = [head(), machine(32, 4)]
    budget = Budget(max_cost=12.0, file=file, now=clock)
    clock.after(1)  # of planning: nothing was connected yet
    budget.watch(lambda: there)
    clock.after(1)
    assert budget.reached() is None
    there.append(machine(8, 1))  # it joins
    there[1] = machine(32, 4, Alive=False)  # and this one is lost; the last look was before both
    clock.after(1)
    assert budget.reached() is None
    clock.after(2)
    assert budget.reached() == "max-cost"
    used = budget.used()
    assert used.machine_hours == pytest.approx({"head": 4.0, "big": 2.0, "small": 2.0})
    assert used.cost == pytest.approx(4 * 0.5 + 2 * 4.0 + 2 * 1.0)
    assert used.sentence() == "5.00 hours, 12.00 for 4.0 h of head, 2.0 h of big, 2.0 h of small"


@pytest.mark.parametrize(
    ("node", "kind"),
    [
        pytest.param(head(), "head", id="head"),
        pytest.param(machine(8, 1), "small", id="by size"),
        pytest.param(
            machine(8, 1, Labels={"ray.io/node-group": "cpu"}), "cpu", id="labelled by its kind"
        ),
        pytest.param(machine(9, 9, Labels=None), "big", id="of no kind: the dearest"),
    ],
)
def test_the_kind_of_a_machine(file: ClusterFile, node: dict[str, Any], kind: str) -> None:
    assert kind_of(node, file.kinds).name == kind


# -- what a run does with it


@pytest.fixture
def queue(tmp_path: Path) -> WorkQueue:
    store = Store(tmp_path / "store", create=True)
    plan = planned(make_inputs(tmp_path), "task=rte")
    return queue_of(plan, store)


def test_what_runs_has_half_a_minute(queue: WorkQueue, clock: Clock, tmp_path: Path) -> None:
    """To write a checkpoint, or to end; nothing more is handed out."""
    told: list[Any] = []
    course = course_of(queue)
    course.stop = BudgetStop(
        queue,
        Budget(max_hours=1.0, now=clock),
        tmp_path,
        lambda *arguments: told.append(arguments),
        now=clock,
    )
    searcher = PlanSearcher(course, ON_CPU, lambda: 9)
    assert "job" in searcher.suggest("1")
    clock.after(1)
    for _ in range(3):
        assert searcher.suggest("2") is None
    assert told == [(announce, tmp_path, 30.0)]  # once
    assert (queue.stopped, len(queue.live), queue.open) == ("max-hours", 1, False)
    clock.seconds += 30
    with pytest.raises(EndOfFit):
        searcher.suggest("2")


# -- on the command line


def test_on_the_head_its_own_file_has_the_prices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is planned, or started."""
    make_inputs(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    cluster_file(tmp_path, {}).rename(tmp_path / "home" / "ray_bootstrap_config.yaml")
    done = sweep("run", "--max-cost", "20", "--data-dir", "glue", cwd=tmp_path)
    assert done.returncode == 2
    assert re.search(r"needs prices, but .*ray_bootstrap_config.yaml lacks.* of head", done.stderr)


def test_a_price_of_nothing_is_a_price(clock: Clock, tmp_path: Path) -> None:
    """On one's own machines."""
    free = read_cluster_file(cluster_file(tmp_path, {**PRICES, "head": 0.0, "cpu": 0.0}))
    assert Budget(max_cost=1.0, file=free, now=clock).reached() is None
    with pytest.raises(SpecError, match="lacks the price of cpu"):
        Budget(max_cost=1.0, file=read_cluster_file(cluster_file(tmp_path, PRICES)))


# -- hours and price of a sweep on a cluster, before it is run


def costs(folder: Path, hours: float, longest: float, alone: float = 0.0) -> Cost:
    file = read_cluster_file(cluster_file(folder, PRICES))
    told = Estimate(hours, hours / 2, 2 * hours, 9, "A10G", True, "from 9", longest, alone)
    return cost(told, file, file.largest(), slots=10, on_gpu=True)


def test_all_machines_are_paid_until_the_longest_trial_has_ended(tmp_path: Path) -> None:
    found = costs(tmp_path, 40.0, 1.0)
    assert found.machines == {"head": 1, "big": 2, "small": 3}
    assert found.hours == Span(4.0, 2.0, 8.0)
    assert found.per_hour == 0.5 + 2 * 4.0 + 3 * 1.0
    assert found.price == Span(46.0, 23.0, 92.0)

    assert costs(tmp_path, 40.0, 6.0).hours == Span(6.0, 3.0, 12.0)
    assert costs(tmp_path, 47.0, 1.0, alone=7.0).hours == Span(11.0, 5.5, 22.0)
    assert costs(tmp_path, 0.0, 0.0).price == Span(0.0, 0.0, 0.0)


# -- on the command line


@pytest.fixture
def world(tmp_path: Path) -> Path:
    make_inputs(tmp_path)
    return tmp_path


def plan(world: Path, *arguments: str) -> Done:
    return sweep(
        "plan", "--data-dir", "glue", "--cluster", "cluster.yaml", *arguments, cwd=world, env={}
    )


def test_plan_says_hours_and_price_or_how_to_state_it(world: Path) -> None:
    cluster_file(world, PRICES)
    done = plan(world, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    hours, found = told["estimate"], told["cluster"]
    assert (hours["on_gpu"], found["same_device"]) == (True, True)  # by the rule for GPUs
    assert (found["slots"], found["machines"]) == (11, {"head": 1, "big": 2, "small": 3})
    wall = found["wall_hours"]
    assert wall["expected"] >= hours["hours"] / 8  # of 8 trials no cluster makes more parts
    assert wall["high"] / wall["low"] == pytest.approx(hours["high_hours"] / hours["low_hours"])
    assert found["price"]["expected"] == pytest.approx(11.5 * wall["expected"])
    text = plan(world).stdout
    assert "       11   slots on 1 head, 2 big, 3 small: " in text
    assert "at 11.50 an hour for all machines from start to end; booting, and 12 idle" in text

    cluster_file(world, {"big": 4.0})
    done = plan(world)
    assert done.returncode == 0
    assert (
        "unknown   cluster.yaml lacks the price of an hour of head, small: "
        "metadata: {price_per_hour: {head: 0.35, small: 0.35}}"
    ) in done.stdout


def test_only_machines_that_hold_trials_are_paid(world: Path) -> None:
    """A CPU kind takes no trial of a GPU sweep; and one kind of GPU may be asked for."""
    cluster_file(world, PRICES, max_workers=20)
    assert json.loads(plan(world, "--json").stdout)["cluster"]["machines"] == {
        "head": 1,
        "big": 2,
        "small": 9,
    }
    with (world / "sweep.yaml").open("a") as stream:
        stream.write("resources_per_trial: {accelerator_type: A10G}\n")
    found = json.loads(plan(world, "--json").stdout)["cluster"]
    assert (found["machines"], found["slots"]) == ({"head": 1, "big": 2}, 8)


def test_a_cluster_of_cpus(world: Path) -> None:
    kinds = {
        "head": {"resources": {"CPU": 0}},
        "cpu": {"resources": {"CPU": 16}, "max_workers": 3},
    }
    cluster_file(world, {"head": 0.1, "cpu": 0.2}, available_node_types=kinds)
    told = json.loads(plan(world, "--json").stdout)
    assert (told["estimate"]["on_gpu"], told["cluster"]["same_device"]) == (False, True)
    assert (told["cluster"]["slots"], told["cluster"]["price_per_hour"]) == (24, pytest.approx(0.7))
