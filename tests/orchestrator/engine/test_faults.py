"""Killed drivers, workers and nodes: in the end the records are those of an undisturbed run."""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import time
from pathlib import Path

import pytest

from lp_sweep.storage.store import Store
from tests.support.faults import assert_equal, kill_one, sweep, wait_for, with_changes
from tests.support.program import run as command_line
from tests.support.toyworld import RECIPE, save_world

pytestmark = pytest.mark.ray

SLOW_STEPS = with_changes(LP_SWEEP_TEST_STEP_SECONDS="0.05")  # trials of seconds, of little work
STRATEGIES = [
    {"name": "top", "k": [0, 1, 2, 3]},
    {"name": "bottom", "k": [1, 2]},
    {"name": "contribution", "threshold": [0.2, 0.999]},
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of a few seconds a trial, run once without Ray and without any disturbance."""
    folder = tmp_path_factory.mktemp("faults")
    save_world(folder, seeds=[1, 2], strategies=STRATEGIES, recipe=RECIPE | {"epochs": 4})
    with sweep(folder, "sweep.yaml", "--store", "undisturbed", "--inline") as run:
        assert run.wait() == 0, run.text()
    return folder


def finished(store: Path) -> dict[str, int]:
    """Trial -> when its record was written, in nanoseconds."""
    return {path.stem: path.stat().st_mtime_ns for path in store.glob("trials/t*.parquet")}


def go_on(world: Path, store: Path) -> None:
    with sweep(world, "sweep.yaml", "--store", store) as run:
        assert run.wait() == 0, run.text()


def test_a_killed_driver_loses_nothing(tmp_path: Path) -> None:
    save_world(tmp_path, seeds=[1, 2, 3, 4], recipe=RECIPE | {"epochs": 1})
    store = tmp_path / "store"
    settings = {"LP_SWEEP_TEST_STEP_SECONDS": "0.1"}  # a trial of two seconds, of little work
    with sweep(tmp_path, "sweep.yaml", "--store", store, **with_changes(**settings)) as run:
        wait_for(lambda: len(finished(store)) >= 2, f"two records: {run.text()}")
        run.kill()
        wait_for(lambda: not run.relatives(), "its Ray has gone")
    before = finished(store)
    assert len(before) < 8
    for words in (["--store", store], ["--store", "undisturbed"]):
        with sweep(tmp_path, "sweep.yaml", "--inline", *words) as run:
            assert run.wait() == 0, run.text()
    assert before.items() <= finished(store).items()  # nothing done was lost, or done again
    assert_equal(Store(store), Store(tmp_path / "undisturbed"))


@pytest.mark.slow
def test_a_driver_killed_twenty_times_loses_nothing(world: Path, tmp_path: Path) -> None:
    """At random moments, from the start-up of Ray to the middle of trials."""
    store, draw = tmp_path / "store", random.Random(20)
    for _ in range(20):
        before = finished(store)
        with sweep(world, "sweep.yaml", "--store", store) as run:
            with contextlib.suppress(subprocess.TimeoutExpired):  # else it has ended
                run.process.wait(draw.uniform(1, 12))
            run.kill()
            # killed in the moment in which it starts, Ray can leave processes behind: `sweep` ends
            # those, and any trial that they still do is one more writer of the same record
            with contextlib.suppress(AssertionError):
                wait_for(lambda run=run: not run.relatives(), "its Ray has gone", 20)
        assert before.items() <= finished(store).items()  # nothing done was lost, or done again
    go_on(world, store)
    assert_equal(Store(store), Store(world / "undisturbed"))


@pytest.mark.slow
def test_killed_workers_are_replaced(world: Path, tmp_path: Path) -> None:
    kills = 4
    store, draw = tmp_path / "store", random.Random(kills)
    with sweep(world, "sweep.yaml", "--store", store) as run:
        for _ in range(kills):
            done = len(finished(store))
            wait_for(
                lambda done=done: run.process.poll() is not None or len(finished(store)) > done,
                f"one more record than {done}: {run.text()}",
            )
            if len(finished(store)) > 8:
                break  # of the last few one might be hit four times: it has failed then, rightly
            time.sleep(draw.uniform(0, 0.5))
            kill_one(run.workers(), draw)
        assert run.wait() == 0, run.text()
    assert "worker_lost; it is tried again" in run.text()
    assert_equal(Store(store), Store(world / "undisturbed"))
    attempts = Store(store).read_all("attempts").rows.to_pylist()
    assert attempts
    assert {row["error_type"] for row in attempts} == {"worker_lost"}
    assert not any(row["final"] for row in attempts)


@pytest.mark.slow
def test_a_node_that_goes_and_comes_back(world: Path, tmp_path: Path) -> None:
    """Two (fake) GPUs on two nodes; one is killed in the middle of its trial, then added again."""
    from ray.cluster_utils import Cluster

    store = tmp_path / "store"
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 0})
    try:
        node = {"num_cpus": 1, "num_gpus": 1, "env_vars": SLOW_STEPS}
        _, doomed = cluster.add_node(**node), cluster.add_node(**node)
        with sweep(world, "sweep.yaml", "--store", store, "--address", cluster.address) as run:
            wait_for(lambda: run.text().count(" start ") >= 4, f"a start of two more: {run.text()}")
            time.sleep(1)
            cluster.remove_node(doomed, allow_graceful=False)
            wait_for(lambda: "it is tried again" in run.text(), "the loss is seen")
            cluster.add_node(**node)
            assert run.wait() == 0, run.text()
    finally:
        cluster.shutdown()
    assert "on 2 slots" in run.text()
    assert "node_lost; it is tried again" in run.text(), run.text()
    assert_equal(Store(store), Store(world / "undisturbed"))


@pytest.mark.slow
def test_two_drivers_on_one_store_do_nothing_twice(world: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    with sweep(world, "sweep.yaml", "--store", store, **SLOW_STEPS) as first:
        wait_for(lambda: finished(store), f"a record: {first.text()}")
        status = command_line("status", "--store", store, "--json", cwd=world)
        running = json.loads(status.stdout)[0]["running"]
        assert [run["pid"] for run in running] == [first.process.pid]
        with sweep(world, "sweep.yaml", "--store", store) as second:
            assert second.wait() == 0, second.text()
            assert first.wait() == 0, first.text()
    assert "another run uses this store" in second.text()
    assert f"(pid {first.process.pid})" in second.text()
    assert_equal(Store(store), Store(world / "undisturbed"))
    starts = sum(run.text().count(" start ") for run in (first, second))
    assert starts == len(finished(store)) + len(list((store / "profiles").iterdir()))
    assert not list((store / "runs").iterdir())
