"""Hours and price of a sweep on a cluster that a file describes, at stated prices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lp_sweep.orchestrator.cluster.clusterfile import read_cluster_file
from lp_sweep.orchestrator.estimate.estimate import Cost, Estimate, cost
from lp_sweep.orchestrator.estimate.timings import Span
from tests.support.clusterfiles import KINDS, PRICES, cluster_file
from tests.support.program import Done, sweep
from tests.support.sweepfiles import make_inputs


def costs(folder: Path, hours: float, longest: float, alone: float = 0.0) -> Cost:
    file = read_cluster_file(cluster_file(folder, PRICES))
    told = Estimate(hours, hours / 2, 2 * hours, 9, "A10G", True, "from 9", longest, alone)
    return cost(told, file, file.largest(), slots=10, on_gpu=True)


def test_all_machines_are_paid_for_the_whole_time(tmp_path: Path) -> None:
    found = costs(tmp_path, 40.0, 1.0)
    assert found.machines == {"head": 1, "big": 2, "small": 3}
    assert found.hours == Span(4.0, 2.0, 8.0)
    assert found.per_hour == 0.5 + 2 * 4.0 + 3 * 1.0
    assert found.price == Span(46.0, 23.0, 92.0)


def test_no_cluster_ends_before_the_longest_trial(tmp_path: Path) -> None:
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


def test_plan_says_hours_and_price(world: Path) -> None:
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


def test_a_kind_of_gpu_that_the_file_does_not_state(world: Path) -> None:
    cluster_file(world, PRICES)
    done = plan(world, "sweep.yaml", "resources_per_trial.accelerator_type=L4")
    assert done.returncode == 4
    assert "the nodes have A10G, T4." in done.stderr
    assert "cluster.yaml" in done.stderr
    assert '"accelerator_type:L4": 1' in done.stderr


def test_plan_says_how_to_state_a_price(world: Path) -> None:
    cluster_file(world, {"big": 4.0})
    done = plan(world)
    assert done.returncode == 0
    assert (
        "unknown   cluster.yaml lacks the price of an hour of head, small: "
        "metadata: {price_per_hour: {head: 0.35, small: 0.35}}"
    ) in done.stdout


@pytest.mark.parametrize(
    ("kinds", "told"),
    [
        pytest.param({}, "declares no worker resources", id="none"),
        pytest.param(
            {"head": KINDS["head"], "gpu": {"max_workers": 4}},
            "`resources: {CPU: 8, GPU: 1}` and `max_workers: 4`",
            id="unknown sizes",
        ),
    ],
)
def test_a_cluster_whose_slots_nobody_knows(world: Path, kinds: dict[str, Any], told: str) -> None:
    cluster_file(world, None, available_node_types=kinds)
    done = plan(world)
    assert done.returncode == 2
    assert told in done.stderr


def test_a_cluster_of_cpus(world: Path) -> None:
    kinds = {
        "head": {"resources": {"CPU": 0}},
        "cpu": {"resources": {"CPU": 16}, "max_workers": 3},
    }
    cluster_file(world, {"head": 0.1, "cpu": 0.2}, available_node_types=kinds)
    told = json.loads(plan(world, "--json").stdout)
    assert (told["estimate"]["on_gpu"], told["cluster"]["same_device"]) == (False, True)
    assert (told["cluster"]["slots"], told["cluster"]["price_per_hour"]) == (24, pytest.approx(0.7))
