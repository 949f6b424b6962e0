"""The queue and the recorder during a run, the same for every engine: here `--inline`, in this
process. `test_driver.py` and its neighbours run on Ray."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from lp_sweep.storage.store import Store
from tests.support.program import Done, cells, record_path, sweep
from tests.support.toyworld import RECIPE, save_world


def run(*arguments: str, cwd: Path, code: int = 0) -> Done:
    settings = {"LP_SWEEP_INLINE": "1", "LP_SWEEP_CACHE_DIR": str(cwd / "cache")}
    done = sweep(*arguments, cwd=cwd, env=settings)
    assert done.returncode == code, done.stderr
    return done


def test_an_amended_sweep_trains_the_difference(tmp_path: Path) -> None:
    save_world(tmp_path, seeds=[1, 2])
    run("run", "sweep.yaml", cwd=tmp_path)
    store = Store(tmp_path / "lp-sweep-store")
    before = store.names("trials")
    done = run("run", "sweep.yaml", "seed=1,2,3", cwd=tmp_path)
    assert "2 done in this run" in done.stderr
    added = store.names("trials") - before
    assert {store.read("trials", name)[0]["seed"] for name in added} == {3}


@pytest.mark.slow
def test_a_part_of_a_sweep_leaves_the_other_cells_listed(tmp_path: Path) -> None:
    save_world(tmp_path, seeds=[1, 2])
    run("run", "sweep.yaml", "seed=1", "k=0", cwd=tmp_path)
    run("run", "sweep.yaml", "seed=2", "k=0", cwd=tmp_path)
    status = json.loads(run("status", "--json", cwd=tmp_path).stdout)
    assert (status[0]["cells"], status[0]["cells_done"]) == (2, 2)
    run("run", "sweep.yaml", cwd=tmp_path)
    status = json.loads(run("status", "--json", cwd=tmp_path).stdout)
    assert (status[0]["cells"], status[0]["cells_done"]) == (4, 4)


@pytest.mark.slow
def test_a_record_that_a_crash_emptied_is_made_again(tmp_path: Path) -> None:
    save_world(tmp_path, strategies=[{"name": "top", "k": [0]}])
    run("run", "sweep.yaml", cwd=tmp_path)
    store = Store(tmp_path / "lp-sweep-store")
    path = record_path(store, next(iter(store.names("trials"))))
    path.write_bytes(b"")
    assert "1 done in this run" in run("run", "sweep.yaml", cwd=tmp_path).stderr
    assert path.stat().st_size > 0


def test_a_limit_of_hours_stops_the_run(tmp_path: Path) -> None:
    save_world(tmp_path)
    done = run("run", "sweep.yaml", "--max-hours", "0", "--json", cwd=tmp_path, code=3)
    assert re.search(
        r"this run has used 0\.\d\d hours; the next one starts counting at 0", done.stderr
    )
    assert "stopped by max-hours: 0 done in this run. Go on: lp-sweep run sweep.yaml" in done.stderr
    assert done.stderr.splitlines()[-1].endswith(" --max-hours 0.0 --offline --inline")
    told = json.loads(done.stdout)
    assert told["stopped_by"] == "max-hours"
    assert told["used"]["hours"] > 0
    assert "2 done in this run" in run("run", "sweep.yaml", "--max-hours", "9", cwd=tmp_path).stderr


def diverging(folder: Path) -> None:
    """Six trials, of which each diverges."""
    recipe = RECIPE | {"learning_rate": 1e30, "epochs": 1}
    save_world(folder, seeds=[1, 2, 3], recipe=recipe)


@pytest.mark.parametrize(
    ("options", "fewest", "most"),
    [
        pytest.param(["--fail-fast"], 1, 1, id="fail-fast"),
        pytest.param(["--max-failures", "2"], 2, 3, id="max-failures"),
    ],
)
def test_a_limit_of_failures_stops_the_run(
    tmp_path: Path, options: list[str], fewest: int, most: int
) -> None:
    diverging(tmp_path)
    done = run("run", "sweep.yaml", *options, cwd=tmp_path, code=1)
    assert re.search(
        f"stopped after [{fewest}-{most}] failures. Go on with the rest: lp-sweep run", done.stderr
    )
    attempts = Store(tmp_path / "lp-sweep-store").read_all("attempts").rows
    assert fewest <= len(set(attempts["trial_id"].to_pylist())) <= most + 1


def test_failed_trials_do_not_stop_the_sweep_and_are_tried_again(tmp_path: Path) -> None:
    diverging(tmp_path)
    first = run("run", "sweep.yaml", cwd=tmp_path, code=1)
    assert first.stderr.count("(diverged)") == 6
    assert "Retry them: lp-sweep retry sweep.yaml --store " in first.stderr
    assert "Traceback (most" not in first.stderr
    store = Store(tmp_path / "lp-sweep-store")
    assert len(store.names("attempts")) == 6
    assert {cell["state"] for cell in cells(tmp_path)} == {"failed"}
    status = json.loads(run("status", "--json", cwd=tmp_path).stdout)
    assert status[0]["trials_failed"] == 6
    assert "failed" in run("table", "tasks", cwd=tmp_path).stdout
    again = run("run", "sweep.yaml", cwd=tmp_path, code=1)  # it would only diverge again
    assert "0 done in this run; 6 of the sweep's trials failed" in again.stderr
    assert len(store.names("attempts")) == 6
    trial = sorted(row["trial_id"] for row in store.read_all("attempts").rows.to_pylist())[0]
    run("retry", "sweep.yaml", trial[:12], cwd=tmp_path, code=1)
    assert len(store.names("attempts")) == 7
    run("retry", "sweep.yaml", "--type", "bug", cwd=tmp_path, code=1)
    assert len(store.names("attempts")) == 7
    logs = run("logs", trial, cwd=tmp_path).stdout
    assert logs.count("  diverged on ") == 2
    assert logs.count("DivergedError: ") == 2
    shown = json.loads(run("show", trial[:12], "--json", cwd=tmp_path).stdout)
    assert shown["id"] == trial
    assert shown["record"] is None
    assert len(shown["attempts"]) == 2
    command = shown["attempts"][-1]["command"]
    assert command == f"lp-sweep retry sweep.yaml {trial[:12]}"
