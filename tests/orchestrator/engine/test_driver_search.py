"""`until: min_layers` on a real local Ray: killed after its first answers, gone on, run again."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lp_sweep.analysis.tables import TABLES
from lp_sweep.analysis.views import open_views
from lp_sweep.storage.store import Store
from tests.support.faults import sweep, wait_for
from tests.support.program import command
from tests.support.toyworld import RECIPE, save_world

pytestmark = pytest.mark.ray

SEARCHED = {
    "seeds": [1, 2, 3],
    "strategies": [{"name": "top", "k": "all", "until": "min_layers", "within": 5}],
    "recipe": RECIPE | {"epochs": 1},
    "resources_per_trial": {"cpu": 1},
}


def totals(folder: Path) -> dict[str, Any]:
    done = subprocess.run(
        command("plan", "sweep.yaml", "--json"),
        cwd=folder,
        capture_output=True,
        check=True,
        timeout=120,
    )
    return dict(json.loads(done.stdout)["totals"])


def run_to_the_end(folder: Path) -> str:
    with sweep(folder, "sweep.yaml") as run:
        assert run.wait() == 0, run.text()
        return run.text()


@pytest.mark.slow
def test_a_search_that_is_killed_goes_on_and_ends(tmp_path: Path) -> None:
    save_world(tmp_path, **SEARCHED)
    assert (totals(tmp_path)["cells"], totals(tmp_path)["trials"]) == (12, 4)
    store = Store(tmp_path / "lp-sweep-store", create=True)
    with sweep(tmp_path, "sweep.yaml") as run:
        wait_for(lambda: len(store.names("trials")) >= 2, "the first answers are there")
        run.kill()
    run_to_the_end(tmp_path)
    ended = totals(tmp_path)
    assert ended["cells_done"] + ended["cells_not_needed"] == 12
    assert ended["cells_done"] == len(store.names("trials"))
    with open_views(store, deltas=[5]) as catalog:
        [answer] = TABLES["min-layers"](catalog).long.to_pylist()
    assert answer["max_dropped"] in answer["credible"]
    before = store.names("trials")
    assert "nothing was missing" in run_to_the_end(tmp_path)
    assert store.names("trials") == before
