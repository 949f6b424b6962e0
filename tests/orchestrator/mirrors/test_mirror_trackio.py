"""Trials in trackio: its local store, read back with its own API."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lp_sweep.storage.store import Store
from tests.support.mirrorworld import SECRET, lp_sweep, mirrored_store, trial_of

pytest.importorskip("trackio", reason="needs trackio: pip install 'lp-sweep[trackio]'")

READ = """
import json, sys, trackio
from trackio.sqlite_storage import SQLiteStorage
found = {
    run.id: {
        "name": run.name,
        "config": run.config,
        "logs": SQLiteStorage.get_logs(sys.argv[1], run.name, run_id=run.id),
    }
    for run in trackio.Api().runs(sys.argv[1])
}
print(json.dumps(found))
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return mirrored_store(tmp_path / "store")


def copied(folder: Path) -> dict[str, Any]:
    """By a process of its own: trackio reads its variables once."""
    words = ("--to", "trackio", "--store", "store", "--json")
    done = lp_sweep("mirror", *words, cwd=folder, TRACKIO_DIR=str(folder / "tracked"))
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def runs(folder: Path, project: str = "demo") -> dict[str, dict[str, Any]]:
    """By key, in trackio's words."""
    done = subprocess.run(
        [sys.executable, "-c", READ, project],
        env={**os.environ, "TRACKIO_DIR": str(folder / "tracked")},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_each_trial_is_a_run_with_its_curves_or_its_failure(store: Store, tmp_path: Path) -> None:
    copied(tmp_path)
    found = runs(tmp_path)
    assert len(found) == 3
    run = found[trial_of(store, strategy="top", k=4)]
    assert run["name"] == "bert layers 1-8 of 12 SST-2 seed 42"
    assert run["config"].items() >= {"model": "bert", "kept_layers": "1-8", "seed": 42}.items()
    assert [row["train/loss"] for row in run["logs"]] == [0.6, 0.4, 0.3]
    assert [row["step"] for row in run["logs"]] == [1, 2, 3]
    assert run["logs"][-1]["last"] == 0.9
    assert run["logs"][-1]["failed"] == 0
    ended = store.read("trials", trial_of(store, strategy="top", k=4))[0]["ended_at"]
    assert run["logs"][-1]["timestamp"] == ended.isoformat()
    (failed,) = (found[key] for key in found if key.startswith(trial_of(store, k=8)))
    assert failed["config"]["failure"].startswith("out_of_memory: the device has no room")
    assert failed["logs"][-1]["failed"] == 1


def test_nothing_is_written_twice_and_nothing_of_a_person(store: Store, tmp_path: Path) -> None:
    copied(tmp_path)
    before = runs(tmp_path)
    copied(tmp_path)
    assert runs(tmp_path) == before
    files = [path for path in (tmp_path / "tracked").rglob("*") if path.is_file()]
    assert files
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []
    assert all("_Username" not in run["config"] for run in before.values())
