"""Trials, workers and nodes that fail on a real local Ray: what is tried again, what ends a run."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lp_sweep.storage.store import Store
from tests.support.program import command, environment, run
from tests.support.toyworld import RECIPE, save_world

pytestmark = [pytest.mark.ray, pytest.mark.slow]


def run_with(folder: Path, **settings: str) -> tuple[str, list[dict[str, Any]]]:
    """Runs a sweep of one trial that fails: what was printed, and its attempts."""
    save_world(folder, seeds=[1], strategies=[{"name": "top", "k": [0]}])
    done = subprocess.run(
        command("run", "sweep.yaml"),
        cwd=folder,
        capture_output=True,
        text=True,
        env=environment(folder) | settings,
        timeout=300,
    )
    assert done.returncode == 1, done.stderr
    assert "Traceback (most" not in done.stderr
    return done.stderr, Store(folder / "lp-sweep-store").read_all("attempts").rows.to_pylist()


KILLS = """
import os, sys
if "default_worker.py" in " ".join(sys.orig_argv):
    import importlib.abc
    class Killer(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path=None, target=None):
            if name == "lp_sweep.trials.worker.run":
                os._exit(9)
    sys.meta_path.insert(0, Killer())
"""


def test_a_lost_worker_is_a_failed_attempt_and_the_sweep_goes_on(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(KILLS, encoding="utf-8")
    said, attempts = run_with(tmp_path, PYTHONPATH=str(tmp_path))
    assert "worker_lost" in said
    assert {row["error_type"] for row in attempts} == {"worker_lost"}
    assert sorted(row["final"] for row in attempts) == [False, False, False, True]
    assert re.search("died|lost|exit", attempts[0]["traceback"])


BREAKS = """
import importlib.abc, os, sys
class Breaks(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "lp_sweep.trials.train.finetune":
            raise RuntimeError("this node has a broken driver")
if os.environ.get("LP_SWEEP_TEST_BROKEN"):
    sys.meta_path.insert(0, Breaks())
"""


def test_a_node_on_which_trials_fail_in_a_row_is_set_aside(tmp_path: Path) -> None:
    """One of two nodes fails at each trial; the sweep completes on the other."""
    from ray.cluster_utils import Cluster

    # long enough that the bad node fails thrice, each time in a new process, before all is done
    save_world(tmp_path, seeds=[1, 2, 3, 4], recipe=RECIPE | {"epochs": 25})
    (tmp_path / "sitecustomize.py").write_text(BREAKS, encoding="utf-8")
    broken = {"LP_SWEEP_TEST_BROKEN": "1", "PYTHONPATH": str(tmp_path)}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 0})
    try:
        cluster.add_node(num_cpus=1, num_gpus=1)
        cluster.add_node(num_cpus=1, num_gpus=1, env_vars=broken)
        done = run("run", "sweep.yaml", "--address", cluster.address, cwd=tmp_path)
    finally:
        cluster.shutdown()
    assert "is set aside: 3 different trials failed on it in a row" in done.stderr
    assert "8 done in this run" in done.stderr
    store = Store(tmp_path / "lp-sweep-store")
    assert len(store.names("trials")) == 8
    attempts = store.read_all("attempts").rows.to_pylist()
    assert all("broken driver" in row["traceback"] for row in attempts)


def test_a_node_out_of_memory_ends_the_trial_and_not_the_sweep(tmp_path: Path) -> None:
    """Ray's memory monitor kills the workers at once, each time: tried with three smaller
    micro-batches, then failed; `run` leaves it alone then, `retry` does not."""
    pressed = {"RAY_memory_usage_threshold": "0.001", "RAY_memory_monitor_refresh_ms": "50"}
    said, attempts = run_with(tmp_path, **pressed)
    assert "(out_of_memory)" in said
    assert {row["error_type"] for row in attempts} == {"out_of_memory"}
    assert sorted(row["final"] for row in attempts) == [False, False, False, True]
    again = run("run", "sweep.yaml", cwd=tmp_path, code=1)
    assert "0 done in this run; 1 of the sweep's trials failed" in again.stderr
    run("retry", "sweep.yaml", "--type", "out_of_memory", cwd=tmp_path)  # memory is there again
    assert json.loads(run("status", "--json", cwd=tmp_path).stdout)[0]["trials_failed"] == 0
