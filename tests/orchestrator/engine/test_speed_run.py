"""Speeds in a real run: on Ray, after the trials, and answered in a table."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from lp_sweep.storage.store import Store
from tests.support.program import run
from tests.support.toyworld import RECIPE, save_world

pytestmark = pytest.mark.ray


@pytest.mark.slow
def test_a_run_trains_and_then_measures_each_network_once(tmp_path: Path) -> None:
    save_world(
        tmp_path,
        seeds=[1, 2],
        strategies=[{"name": "top", "k": 3}],
        recipe=RECIPE | {"epochs": 1},
        measure={"speed": "cpu", "speed_length": 8},
    )
    done = run("run", "sweep.yaml", cwd=tmp_path)
    events = re.findall(r"(start|done) +\./model, layer 1 of 4, (\w+)", done.stderr)
    assert sorted(events[:4]) == [("done", "mood")] * 2 + [("start", "mood")] * 2
    assert events[4:] == [("start", "speed"), ("done", "speed")]
    store = Store(tmp_path / "lp-sweep-store")
    (name,) = store.names("profiles")
    (row,) = json.loads(run("table", "speed", "--json", cwd=tmp_path).stdout)
    assert (row["profile_id"], row["kept_layers"], row["batch"]) == (name, [1], 32)
    assert row["finetune_speedup"] > 0 < row["inference_speedup"]
    shown = run("show", name, cwd=tmp_path).stdout
    assert "speed of ./model, layers 1, beside all 4" in shown
    assert "finetune" in shown
    again = run("run", "sweep.yaml", cwd=tmp_path)
    assert "nothing was missing" in again.stderr
