"""Sweeps in stages and searches on a real local Ray: killed between two stages, and run again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lp_sweep.analysis.tables import TABLES
from lp_sweep.analysis.views import open_views
from lp_sweep.storage.networks import has_network
from lp_sweep.storage.store import Store
from tests.support.faults import sweep, wait_for
from tests.support.program import run
from tests.support.toyworld import RECIPE, save_world

pytestmark = [pytest.mark.ray, pytest.mark.slow]

KINDS = ("trials", "predictions", "profiles", "teacher_logits")


class World:
    """A sweep of one epoch a trial, its plan and its store."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        recipe = RECIPE | {"epochs": 1}
        save_world(folder, recipe=recipe, resources_per_trial={"cpu": 1}, **settings)
        self.store = Store(folder / "lp-sweep-store", create=True)
        self.wanted = self.plan()
        self.trials = {cell["trial_id"] for cell in self.wanted["cells"] if cell["trial_id"]}

    def plan(self, *overrides: str) -> dict[str, Any]:
        done = run("plan", "sweep.yaml", *overrides, "--json", cwd=self.folder)
        return dict(json.loads(done.stdout))

    @property
    def full(self) -> str:
        """The full network that others go on from, or learn from."""
        cells = self.wanted["cells"]
        [id_] = {c["trial_id"] for c in cells if c["k"] == 0 and c["feed_forward"] == "none"}
        return str(id_)

    def run(self, *overrides: str) -> str:
        """To the end, without a failed try and with no network left behind."""
        with sweep(self.folder, "sweep.yaml", *overrides) as process:
            assert process.wait() == 0, process.text()
        assert self.rows("attempts") == []
        weights = Path(self.store.location, "weights")
        assert [path for path in weights.rglob("*") if path.is_file()] == []
        return process.text()

    def run_killed(self, when: Callable[[set[str]], bool]) -> None:
        """Once it has such trials."""
        with sweep(self.folder, "sweep.yaml") as process:
            wait_for(lambda: when(self.store.names("trials")), "the first records")
            process.kill()

    def run_again(self) -> str:
        """After a kill: nothing that was recorded is written again, and then nothing is missing."""
        before = self.written()
        text = self.run()
        after = self.written()
        assert before.items() <= after.items()
        assert "nothing was missing" in self.run()
        assert self.written() == after
        return text

    def written(self) -> dict[Path, int]:
        """Record -> when it was written, in nanoseconds."""
        paths = [p for kind in KINDS for p in Path(self.store.location, kind).glob("*.parquet")]
        return {path: path.stat().st_mtime_ns for path in paths}

    def rows(self, table: str) -> list[dict[str, Any]]:
        return list(self.store.read_all(table).rows.to_pylist())


def test_stages_measurements_and_a_kill_between_them(tmp_path: Path) -> None:
    world = World(
        tmp_path,
        procedures=["direct", "finetune_then_drop", "iterative"],
        feed_forward=["none", "top 1"],
        strategies=[{"name": "top", "k": [0, 2]}],
        measure={"probes": ["full"], "cka": ["pruned"], "probe_rows": 50},
    )
    store, trials, full = world.store, world.trials, world.full
    assert world.wanted["totals"]["measures"] == len(trials)  # one of each network
    world.run_killed(lambda done: full in done)
    assert store.names("trials") != trials
    assert has_network(store, full)
    world.run_again()
    assert store.names("trials") == trials
    started = {row["trial_id"]: row["started_from"] for row in world.rows("trials")}
    cells = world.wanted["cells"]
    staged = {c["trial_id"] for c in cells if c["procedure"] == "finetune_then_drop"} - {full}
    assert {id_: start for id_, start in started.items() if start} == dict.fromkeys(staged, full)
    assert len(store.names("profiles")) == len(trials)
    assert world.plan()["totals"]["measures_done"] == len(trials)

    before = world.written()
    more = world.plan("measure.similarity=pruned")
    assert {cell["state"] for cell in more["cells"]} == {"done"}
    # the pruned networks, and the full one that some of them go on from: none was kept
    text = world.run("measure.similarity=pruned")
    assert f"{len(trials)} done in this run" in text
    new = world.written().keys() - before.keys()
    assert before.items() <= world.written().items()
    assert [path.parent.name for path in new] == ["profiles"] * (len(trials) - 1)


def test_students_after_a_kill_learn_from_the_teacher_that_there_was(tmp_path: Path) -> None:
    world = World(
        tmp_path,
        distill=["none", "logits", {"loss": "logits+hidden", "start": "teacher"}],
        strategies=[{"name": "top", "k": [0, 1, 2]}],
    )
    world.run_killed(lambda done: world.full in done)
    [logits] = world.store.names("teacher_logits")
    world.run_again()
    assert world.store.names("trials") == world.trials
    taught = [row for row in world.rows("trials") if row["distill"]]
    assert [row["teacher"] for row in taught] == [world.full] * 4
    assert world.store.names("teacher_logits") == world.store.names("profiles") == {logits}


def test_a_search_that_is_killed_goes_on_and_ends(tmp_path: Path) -> None:
    top = {"name": "top", "k": "all", "until": "min_layers", "within": 5}
    world = World(tmp_path, seeds=[1, 2, 3], strategies=[top])
    assert (world.wanted["totals"]["cells"], world.wanted["totals"]["trials"]) == (12, 4)
    world.run_killed(lambda done: len(done) >= 2)
    world.run_again()
    ended = world.plan()["totals"]
    assert ended["cells_done"] + ended["cells_not_needed"] == 12
    assert ended["cells_done"] == len(world.store.names("trials"))
    with open_views(world.store, deltas=[5]) as catalog:
        [answer] = TABLES["min-layers"](catalog).long.to_pylist()
    assert answer["max_dropped"] in answer["credible"]
