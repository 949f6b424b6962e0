"""Hours and money of a run: what it has used, by a clock and machines that the test moves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lp_sweep.orchestrator.cluster.clusterfile import ClusterFile, read_cluster_file
from lp_sweep.orchestrator.engine.budget import Budget, BudgetStop, kind_of
from lp_sweep.orchestrator.engine.ray_tune import EndOfFit, PlanSearcher
from lp_sweep.orchestrator.engine.workqueue import WorkQueue
from lp_sweep.storage.errors import SpecError
from lp_sweep.storage.store import Store
from lp_sweep.trials.worker.job import announce
from tests.support.clusterfiles import PRICES, cluster_file
from tests.support.courses import ON_CPU, Clock, course_of, queue_of
from tests.support.program import sweep
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


@pytest.mark.parametrize(
    ("prices", "on_the_head", "told"),
    [
        pytest.param(None, False, "no cluster file", id="no file"),
        pytest.param(
            {"big": 4.0}, False, "cluster.yaml lacks the price of head, small", id="prices missing"
        ),
        pytest.param(
            {}, True, "ray_bootstrap_config.yaml lacks the price of head", id="on the head"
        ),
    ],
)
def test_a_limit_of_cost_needs_prices(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    prices: dict[str, float] | None,
    on_the_head: bool,
    told: str,
) -> None:
    """Before anything is planned, or started."""
    make_inputs(tmp_path)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    named = [] if prices is None or on_the_head else ["--cluster", "cluster.yaml"]
    if prices is not None:
        file = cluster_file(tmp_path, prices)
        if on_the_head:  # Ray puts the file there
            file.rename(home / "ray_bootstrap_config.yaml")
    done = sweep("run", "--max-cost", "20", *named, "--data-dir", "glue", cwd=tmp_path)
    assert done.returncode == 2
    assert f"--max-cost needs prices, but {told}" in done.stderr.replace(f"{home}/", "")
    assert "`metadata: {price_per_hour: {head: 0.19, gpu: 0.60}}`" in done.stderr


def test_a_price_of_nothing_is_a_price(clock: Clock, tmp_path: Path) -> None:
    """On one's own machines."""
    free = read_cluster_file(cluster_file(tmp_path, {**PRICES, "head": 0.0, "cpu": 0.0}))
    assert Budget(max_cost=1.0, file=free, now=clock).reached() is None
    with pytest.raises(SpecError, match="lacks the price of cpu"):
        Budget(max_cost=1.0, file=read_cluster_file(cluster_file(tmp_path, PRICES)))
