"""A machine that its cloud takes, on a real Ray of three nodes: its trial goes on elsewhere."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lp_sweep.orchestrator.engine.raycompat import drain_nodes
from lp_sweep.storage.store import Store
from tests.support.faults import assert_equal, sweep, wait_for, with_changes
from tests.support.metadata import action, serving
from tests.support.program import command
from tests.support.toyworld import RECIPE, save_world

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(1800)]

TAKEN = "127.0.0.2"  # the address of the machine that goes
SLOWLY = with_changes(LP_SWEEP_TEST_STEP_SECONDS="0.15")  # without work for the machine


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of two trials of 320 steps, run once without any disturbance."""
    folder = tmp_path_factory.mktemp("preempted")
    recipe = RECIPE | {"epochs": 20}
    top = {"name": "top", "k": [0, 1]}
    save_world(folder, checkpoint_every="2s", strategies=[top], recipe=recipe)
    with sweep(folder, "sweep.yaml", "--store", "undisturbed") as run:
        assert run.wait() == 0, run.text()
    return folder


@contextmanager
def two_machines() -> Iterator[tuple[Any, Any]]:
    """A cluster of a head without slots and two nodes with a (fake) GPU each, on which a trial
    takes some time; and the one of them that will be taken."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 0})
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in SLOWLY.items():  # what a node starts has its environment
                patch.setenv(name, value)
            cluster.add_node(num_cpus=1, num_gpus=1)
            doomed = cluster.add_node(num_cpus=1, num_gpus=1, node_ip_address=TAKEN)
        yield cluster, doomed
    finally:
        cluster.shutdown()


def checkpoints(store: Path) -> int:
    return len([*store.glob("checkpoints/*.safetensors")])


def assert_one_went_on(store: Path, undisturbed: Path) -> None:
    """One of the two was preempted, and went on from its checkpoint."""
    attempts = Store(store).read_all("attempts").rows.to_pylist()
    assert [(row["error_type"], row["final"]) for row in attempts] == [("preempted", False)]
    [record] = Store(store).read("trials", attempts[0]["trial_id"])
    assert record["resumed_from_step"] > 0
    assert_equal(Store(store), Store(undisturbed))


@pytest.mark.parametrize("gracefully", [True, False], ids=["shut down", "cut off"])
def test_a_preempted_trial_comes_back_to_our_queue(
    world: Path, tmp_path: Path, gracefully: bool
) -> None:
    """Ray reports a node that shuts down after its time, and Tune by itself would silently start
    the trial again. Ray does not report a node that is cut off: then the announcement counts."""
    store = tmp_path / "store"
    with (
        two_machines() as (cluster, doomed),
        sweep(world, "sweep.yaml", "--store", store, "--address", cluster.address) as run,
    ):
        wait_for(lambda: checkpoints(store) == 2, f"both have a checkpoint: {run.text()}")
        drain_nodes(cluster.address, TAKEN, "spot", 1.0)
        time.sleep(2)  # its time is over
        cluster.remove_node(doomed, allow_graceful=gracefully)
        wait_for(lambda: "preempted; it continues elsewhere" in run.text(), run.text())
        assert run.wait(900) == 0, run.text()
    assert_one_went_on(store, world / "undisturbed")


def test_from_a_notice_to_a_trial_that_goes_on_elsewhere(world: Path, tmp_path: Path) -> None:
    """The whole way: a metadata service, the watcher as a process, Ray that drains the node, a
    checkpoint that only the notice can have made, and the machine's end before its time."""
    store, cache, log = tmp_path / "store", tmp_path / "cache", tmp_path / "watcher.txt"
    with (
        two_machines() as (cluster, doomed),
        serving((404, "")) as service,
        watcher(cluster.address, service.url, cache, log),
        sweep(
            *(world, "sweep.yaml", "checkpoint_every=1h", "--store", store),
            *("--address", cluster.address),
            LP_SWEEP_CACHE_DIR=str(cache),
        ) as run,
    ):
        wait_for(lambda: run.text().count(" start ") == 2, f"two trials: {run.text()}")
        assert checkpoints(store) == 0
        service.answers = [(200, action(60))]
        wait_for(lambda: f"Ray drains the node at {TAKEN}" in log.read_text(), "the notice")
        wait_for(lambda: checkpoints(store) == 2, "checkpoints")  # one machine has one notice
        cluster.remove_node(doomed, allow_graceful=False)
        assert run.wait(900) == 0, run.text()
    assert_one_went_on(store, world / "undisturbed")


@contextmanager
def watcher(address: str, url: str, cache: Path, log: Path) -> Iterator[None]:
    """`lp-sweep cluster watch-spot`, as it runs beside Ray on the machine that will be taken."""
    where = ["--address", address, "--node-ip", TAKEN, "--cache-dir", cache]
    told = ["--metadata-url", url, "--every", "0.2"]
    with log.open("w") as stream:
        process = subprocess.Popen(
            [
                "env",
                f"TMPDIR={log.parent}",
                *command("cluster", "watch-spot", "aws", *where, *told),
            ],
            stdout=stream,
            stderr=stream,
        )
        try:
            yield
        finally:
            process.kill()
            process.wait()
