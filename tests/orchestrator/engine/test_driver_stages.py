"""Sweeps in stages and searches on a real local Ray: killed between two stages, and run again."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lp_sweep.analysis.tables import TABLES
from lp_sweep.analysis.views import open_views
from lp_sweep.storage.networks import has_network
from lp_sweep.storage.store import Store
from tests.support.faults import sweep, wait_for
from tests.support.program import command
from tests.support.toyworld import RECIPE, save_world

pytestmark = [pytest.mark.ray, pytest.mark.slow]

STAGED = {
    "procedures": ["direct", "finetune_then_drop", "iterative"],
    "feed_forward": ["none", "top 1"],
    "strategies": [{"name": "top", "k": [0, 2]}],
    "measure": {"probes": ["full"], "cka": ["pruned"], "probe_rows": 50},
    "recipe": RECIPE | {"epochs": 1},
    "resources_per_trial": {"cpu": 1},
}


def plan(folder: Path, *overrides: str) -> dict[str, Any]:
    words = command("plan", "sweep.yaml", *overrides, "--json")
    done = subprocess.run(words, cwd=folder, capture_output=True, check=True, timeout=120)
    return dict(json.loads(done.stdout))


def contents(store: Store, table: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(store.location, table).glob("*.parquet")}


def written(store: Store, *tables: str) -> dict[Path, int]:
    """Record -> when it was written, in nanoseconds."""
    paths = [path for table in tables for path in Path(store.location, table).glob("*.parquet")]
    return {path: path.stat().st_mtime_ns for path in paths}


def rows(store: Store, table: str) -> list[dict[str, Any]]:
    return list(store.read_all(table).rows.to_pylist())


def weights(store: Store) -> list[Path]:
    return [path for path in Path(store.location, "weights").rglob("*") if path.is_file()]


def run_to_the_end(folder: Path, *overrides: str) -> str:
    with sweep(folder, "sweep.yaml", *overrides) as run:
        assert run.wait() == 0, run.text()
        return run.text()


def run_killed(folder: Path, when: Callable[[set[str]], bool]) -> Store:
    """The store of a run that was killed once it had such trials."""
    store = Store(folder / "lp-sweep-store", create=True)
    with sweep(folder, "sweep.yaml") as run:
        wait_for(lambda: when(store.names("trials")), "the first records")
        run.kill()
    return store


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
    store = run_killed(tmp_path, lambda done: full in done)
    assert store.names("trials") != trials
    assert has_network(store, full)
    before = written(store, "trials", "predictions")

    run_to_the_end(tmp_path)
    assert store.names("trials") == trials
    assert before.items() <= written(store, "trials", "predictions").items()
    started = {row["trial_id"]: row["started_from"] for row in rows(store, "trials")}
    assert {start for start in started.values() if start} == {full}
    staged = {c["trial_id"] for c in wanted["cells"] if c["procedure"] == "finetune_then_drop"}
    assert {id_ for id_, start in started.items() if start} == staged - {full}
    assert len(store.names("profiles")) == len(trials)
    assert weights(store) == []
    assert plan(tmp_path)["totals"]["measures_done"] == len(trials)

    tables = ("trials", "predictions", "profiles")
    after = written(store, *tables)
    assert "nothing was missing" in run_to_the_end(tmp_path)
    assert written(store, *tables) == after

    bytes_before = {table: contents(store, table) for table in tables}
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


DISTILLED = {
    "distill": ["none", "logits", {"loss": "logits+hidden", "start": "teacher"}],
    "strategies": [{"name": "top", "k": [0, 1, 2]}],
    "recipe": RECIPE | {"epochs": 1},
    "resources_per_trial": {"cpu": 1},
}


def test_students_after_a_kill_learn_from_the_teacher_that_there_was(tmp_path: Path) -> None:
    save_world(tmp_path, **DISTILLED)
    wanted = plan(tmp_path)
    [full] = {cell["trial_id"] for cell in wanted["cells"] if cell["k"] == 0}
    trials = {cell["trial_id"] for cell in wanted["cells"]}
    store = run_killed(tmp_path, lambda done: full in done)
    [logits] = store.names("teacher_logits")
    before = written(store, "trials", "teacher_logits")

    run_to_the_end(tmp_path)
    assert store.names("trials") == trials
    assert before.items() <= written(store, "trials", "teacher_logits").items()
    taught = [row for row in rows(store, "trials") if row["distill"]]
    assert {row["teacher"] for row in taught} == {full}
    assert len(taught) == 4
    assert store.names("teacher_logits") == store.names("profiles") == {logits}
    assert weights(store) == [], "kept for hidden states, then released"
    assert rows(store, "attempts") == []
    assert "nothing was missing" in run_to_the_end(tmp_path)


SEARCHED = {
    "seeds": [1, 2, 3],
    "strategies": [{"name": "top", "k": "all", "until": "min_layers", "within": 5}],
    "recipe": RECIPE | {"epochs": 1},
    "resources_per_trial": {"cpu": 1},
}


def test_a_search_that_is_killed_goes_on_and_ends(tmp_path: Path) -> None:
    save_world(tmp_path, **SEARCHED)
    totals = plan(tmp_path)["totals"]
    assert (totals["cells"], totals["trials"]) == (12, 4)
    store = run_killed(tmp_path, lambda done: len(done) >= 2)
    run_to_the_end(tmp_path)
    ended = plan(tmp_path)["totals"]
    assert ended["cells_done"] + ended["cells_not_needed"] == 12
    assert ended["cells_done"] == len(store.names("trials"))
    with open_views(store, deltas=[5]) as catalog:
        [answer] = TABLES["min-layers"](catalog).long.to_pylist()
    assert answer["max_dropped"] in answer["credible"]
    before = store.names("trials")
    assert "nothing was missing" in run_to_the_end(tmp_path)
    assert store.names("trials") == before
