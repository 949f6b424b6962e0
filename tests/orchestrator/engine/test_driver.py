"""The driver on a real local Ray: run, ask and run again; told to stop; with trials, workers and
nodes that fail."""

from __future__ import annotations

import json
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from lp_sweep.storage.store import Store
from tests.support.faults import sweep, wait_for
from tests.support.liveprocess import Terminal
from tests.support.program import record_path, run
from tests.support.toyworld import RECIPE, save_world

pytestmark = pytest.mark.ray

CONTRIBUTION = {"name": "contribution", "threshold": [0.2, 0.21, 0.999]}
SCORED = "SELECT strategy, k, count(*) AS n FROM cells WHERE score IS NOT NULL GROUP BY ALL"
OFF = """
SELECT t.trial_id, max(abs(t.last - p.right)) AS off FROM trials t
JOIN (SELECT trial_id, avg((label = prediction)::int) AS right FROM predictions GROUP BY 1) p
USING (trial_id) GROUP BY 1
"""


def answer(folder: Path, *words: str) -> Any:
    return json.loads(run(*words, "--json", cwd=folder).stdout)


def test_a_sweep_is_run_asked_and_run_again(tmp_path: Path) -> None:
    """Two seeds, two rules and a strategy that waits for a profile."""
    folder = tmp_path / "a 'sweep' with  spaces"
    folder.mkdir()
    strategies = [{"name": "top", "k": [0, 2]}, {"name": "bottom", "k": [0, 1]}, CONTRIBUTION]
    save_world(folder, seeds=[1, 2], strategies=strategies, recipe=RECIPE | {"epochs": 1})
    run("run", "sweep.yaml", cwd=folder)
    cells = answer(folder, "plan", "sweep.yaml")["cells"]
    assert len(cells) == 2 * (2 + 2 + 3)
    assert {cell["state"] for cell in cells} <= {"done", "impossible"}
    store = Store(folder / "lp-sweep-store")
    wanted = {cell["trial_id"] for cell in cells if cell["trial_id"]}
    assert store.names("trials") == store.names("predictions") == wanted
    assert len(store.names("profiles")) == 1

    rows = answer(folder, "query", SCORED)
    assert {(row["strategy"], row["k"]): row["n"] for row in rows}["top", 2] == 2
    assert "of 4" in run("table", "min-layers", cwd=folder).stdout
    assert all(row["off"] < 1e-9 for row in answer(folder, "query", OFF))

    before = {name: record_path(store, name).stat().st_mtime for name in wanted}
    assert "nothing was missing" in run("resume", "sweep.yaml", cwd=folder).stderr
    assert before == {name: record_path(store, name).stat().st_mtime for name in wanted}


@pytest.mark.slow
def test_a_terminal_gets_the_live_display(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_world(tmp_path)
    monkeypatch.chdir(tmp_path)
    terminal = Terminal("run", "sweep.yaml", size=(120, 30), LP_SWEEP_CACHE_DIR="cache")
    try:
        assert terminal.ended() == 0, terminal.text
    finally:
        terminal.close()
    for text in ("slot 0", "ETA", "running", "2 done in this run"):
        assert text in terminal.text, text


# -- told to stop


def written(store: Path) -> dict[Path, int]:
    """Record -> when it was written, in nanoseconds."""
    return {path: path.stat().st_mtime_ns for path in store.glob("trials/t*.parquet")}


@pytest.mark.parametrize(
    ("number", "code", "by"),
    [
        pytest.param(signal.SIGINT, 130, "Ctrl-C", id="ctrl-c"),
        pytest.param(signal.SIGTERM, 3, "SIGTERM", id="terminated", marks=pytest.mark.slow),
        pytest.param(signal.SIGUSR1, 3, "SIGUSR1", id="warned", marks=pytest.mark.slow),
    ],
)
def test_an_interrupted_sweep_goes_on(
    tmp_path: Path, number: signal.Signals, code: int, by: str
) -> None:
    save_world(tmp_path, seeds=list(range(4)), name="broken-off")
    store = tmp_path / "lp-sweep-store"
    with sweep(tmp_path, "sweep.yaml") as process:
        wait_for(lambda: process.text().count("] done ") >= 2, f"two trials: {process.text()}")
        process.process.send_signal(number)
        assert process.wait(60) == code, process.text()
    assert f"stopped by {by}" in process.text()
    assert "Traceback (most" not in process.text()
    before = written(store)
    assert 2 <= len(before) < 8
    done = run("run", "sweep.yaml", cwd=tmp_path)
    told = re.search(r"(\d+) done in this run", done.stderr)
    assert told
    # a worker may record its trial after the driver has ended
    assert int(told[1]) <= 8 - len(before)
    assert len(Store(store).names("trials")) == 8
    assert before.items() <= written(store).items()


@pytest.mark.parametrize("seconds", [0.0, 1.5], ids=["at once", "while Ray starts"])
@pytest.mark.slow
def test_a_signal_while_ray_starts(tmp_path: Path, seconds: float) -> None:
    """Ray's own handler would end the process at once, with the number of the signal."""
    save_world(tmp_path)
    announced = tmp_path / "lp-sweep-store" / "runs"
    with sweep(tmp_path, "sweep.yaml") as process:
        wait_for(lambda: list(announced.glob("*.json")), "the announcement")
        time.sleep(seconds)
        process.process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 3, process.text()
    assert "stopped by SIGTERM" in process.text()


# -- trials, workers and nodes that fail


def run_with(folder: Path, **settings: str) -> tuple[str, list[dict[str, Any]]]:
    """Runs a sweep of one trial that fails: what was printed, and its attempts."""
    save_world(folder, seeds=[1], strategies=[{"name": "top", "k": [0]}])
    done = run("run", "sweep.yaml", cwd=folder, code=1, **settings)
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


@pytest.mark.slow
def test_a_lost_worker_is_a_failed_attempt_and_the_sweep_goes_on(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(KILLS, encoding="utf-8")
    said, attempts = run_with(tmp_path, PYTHONPATH=str(tmp_path))
    assert "worker_lost" in said
    assert {row["error_type"] for row in attempts} == {"worker_lost"}
    assert sorted(row["final"] for row in attempts) == [False, False, False, True]
    assert re.search("died|lost|exit", attempts[0]["traceback"])


@pytest.mark.slow
def test_a_node_out_of_memory_ends_the_trial_and_not_the_sweep(tmp_path: Path) -> None:
    """Ray's memory monitor kills the workers at once, each time: tried with three smaller
    micro-batches, then failed; `run` leaves it alone then, `retry` does not."""
    pressed = {"RAY_memory_usage_threshold": "0.001", "RAY_memory_monitor_refresh_ms": "50"}
    said, attempts = run_with(tmp_path, **pressed)
    assert "(out_of_memory)" in said
    assert {row["error_type"] for row in attempts} == {"out_of_memory"}
    assert sorted(row["final"] for row in attempts) == [False, False, False, True]
    again = run("run", "sweep.yaml", cwd=tmp_path, code=1)
    assert "0 done in this run; 1 of the sweep's trials and measurements failed" in again.stderr
    run("retry", "sweep.yaml", "--type", "out_of_memory", cwd=tmp_path)  # memory is there again
    assert json.loads(run("status", "--json", cwd=tmp_path).stdout)[0]["trials_failed"] == 0
