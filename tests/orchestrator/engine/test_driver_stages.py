"""Procedures, feed-forwards and measurements on a real local Ray: killed between two stages, run
again, and with a measurement added to what was finished."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lp_sweep.storage.networks import has_network
from lp_sweep.storage.store import Store
from tests.support.faults import sweep, wait_for
from tests.support.program import command
from tests.support.toyworld import RECIPE, save_world

pytestmark = pytest.mark.ray

STAGED = {
    "procedures": ["direct", "finetune_then_drop", "iterative"],
    "feed_forward": ["none", "top 1"],
    "strategies": [{"name": "top", "k": [0, 2]}],
    "measure": {"probes": ["full"], "cka": ["pruned"], "probe_rows": 50},
    "recipe": RECIPE | {"epochs": 1},
    "resources_per_trial": {"cpu": 1},
}


def plan(folder: Path, *overrides: str) -> dict[str, Any]:
    done = subprocess.run(
        command("plan", "sweep.yaml", *overrides, "--json"),
        cwd=folder,
        capture_output=True,
        check=True,
        timeout=120,
    )
    return dict(json.loads(done.stdout))


def files(store: Store, table: str) -> dict[str, tuple[bytes, int]]:
    """Content and time of writing."""
    folder = Path(store.location, table)
    return {
        path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.glob("*.parquet")
    }


def contents(store: Store, table: str) -> dict[str, bytes]:
    return {name: content for name, (content, _) in files(store, table).items()}


def weights(store: Store) -> list[Path]:
    return [path for path in Path(store.location, "weights").rglob("*") if path.is_file()]


def run_to_the_end(folder: Path, *overrides: str) -> str:
    with sweep(folder, "sweep.yaml", *overrides) as run:
        code = run.wait()
        assert code == 0, run.text()
        return run.text()


@pytest.mark.slow
def test_stages_measurements_and_a_kill_between_them(tmp_path: Path) -> None:
    save_world(tmp_path, **STAGED)
    wanted = plan(tmp_path)
    [full] = {
        cell["trial_id"]
        for cell in wanted["cells"]
        if cell["k"] == 0 and cell["feed_forward"] == "none"
    }
    trials = {cell["trial_id"] for cell in wanted["cells"]}
    assert wanted["totals"]["measures"] == len(trials)  # one of each network
    store = Store(tmp_path / "lp-sweep-store", create=True)

    with sweep(tmp_path, "sweep.yaml") as run:
        wait_for(lambda: full in store.names("trials"), "stage one is recorded")
        run.kill()
    early = store.names("trials")
    assert full in early
    assert early != trials
    assert has_network(store, full)
    before = {table: files(store, table) for table in ("trials", "predictions")}

    run_to_the_end(tmp_path)
    assert store.names("trials") == trials
    for table, found in before.items():
        assert {name: files(store, table)[name] for name in found} == found
    started = {row["trial_id"]: row["started_from"] for row in rows(store, "trials")}
    assert {start for start in started.values() if start} == {full}
    staged = {c["trial_id"] for c in wanted["cells"] if c["procedure"] == "finetune_then_drop"}
    assert {id_ for id_, start in started.items() if start} == staged - {full}
    assert len(store.names("profiles")) == len(trials)
    assert weights(store) == []
    assert plan(tmp_path)["totals"]["measures_done"] == len(trials)

    after = {table: files(store, table) for table in ("trials", "predictions", "profiles")}
    assert "nothing was missing" in run_to_the_end(tmp_path)
    assert {table: files(store, table) for table in after} == after

    bytes_before = {table: contents(store, table) for table in after}
    more = plan(tmp_path, "measure.similarity=pruned")
    assert {cell["state"] for cell in more["cells"]} == {"done"}
    # the pruned networks, and the full one that some of them go on from: none was kept
    text = run_to_the_end(tmp_path, "measure.similarity=pruned")
    assert f"{len(trials)} done in this run" in text
    for table in ("trials", "predictions"):
        assert contents(store, table) == bytes_before[table]
    profiles = contents(store, "profiles")
    assert bytes_before["profiles"].items() <= profiles.items()
    assert len(profiles) == 2 * len(trials) - 1
    assert weights(store) == []
    assert rows(store, "attempts") == []


def rows(store: Store, table: str) -> list[dict[str, Any]]:
    return list(store.read_all(table).rows.to_pylist())


DISTILLED = {
    "distill": ["none", "logits", {"loss": "logits+hidden", "start": "teacher"}],
    "strategies": [{"name": "top", "k": [0, 1, 2]}],
    "recipe": RECIPE | {"epochs": 1},
    "resources_per_trial": {"cpu": 1},
}


@pytest.mark.slow
def test_students_after_a_kill_learn_from_the_teacher_that_there_was(tmp_path: Path) -> None:
    save_world(tmp_path, **DISTILLED)
    wanted = plan(tmp_path)
    [full] = {cell["trial_id"] for cell in wanted["cells"] if cell["k"] == 0}
    trials = {cell["trial_id"] for cell in wanted["cells"]}
    store = Store(tmp_path / "lp-sweep-store", create=True)
    with sweep(tmp_path, "sweep.yaml") as run:
        wait_for(lambda: full in store.names("trials"), "the teacher is recorded")
        run.kill()
    [logits] = store.names("teacher_logits")
    before = {table: files(store, table) for table in ("trials", "teacher_logits")}

    run_to_the_end(tmp_path)
    assert store.names("trials") == trials
    for table, found in before.items():
        assert {name: files(store, table)[name] for name in found} == found
    taught = [row for row in rows(store, "trials") if row["distill"]]
    assert {row["teacher"] for row in taught} == {full}
    assert len(taught) == 4
    assert store.names("teacher_logits") == store.names("profiles") == {logits}
    assert weights(store) == []  # kept for hidden states, and let go of
    assert rows(store, "attempts") == []
    assert "nothing was missing" in run_to_the_end(tmp_path)
