"""Thousands of trials through the real driver on a local Ray, killed once in the middle."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from lp_sweep.storage.store import Store
from tests.support.faults import Sweep, sweep, wait_for, with_changes
from tests.support.toyworld import save_world

pytestmark = pytest.mark.ray

NOOP = with_changes(LP_SWEEP_TEST_NOOP="1")
MEGABYTE = 2**20


def count(store: Path) -> int:
    return len(list(store.glob("trials/t*.parquet")))


def memory(run: Sweep) -> int:
    return int(psutil.Process(run.process.pid).memory_info().rss)


def run_killed_once(folder: Path, trials: int) -> tuple[list[tuple[int, int]], str]:
    """(records, bytes of the driver) as the run after the kill went on, and what it printed."""
    save_world(folder, seeds=f"0-{trials - 1}", strategies=[{"name": "top", "k": [0]}])
    store = folder / "lp-sweep-store"
    with sweep(folder, "sweep.yaml", **NOOP) as run:
        wait_for(
            lambda: run.process.poll() is not None or count(store) >= trials * 2 // 5,
            "the middle",
            900,
        )
        assert run.process.poll() is None, run.text()[-2000:]
        run.kill()
        wait_for(lambda: not run.relatives(), "its Ray has gone", 60)
    before = {path: path.stat().st_mtime_ns for path in store.glob("trials/t*.parquet")}
    assert 0 < len(before) < trials
    samples = []
    with sweep(folder, "sweep.yaml", **NOOP) as run:
        while run.process.poll() is None:
            done = count(store)
            samples.append((done, memory(run)))
            wait_for(
                lambda done=done: (
                    run.process.poll() is not None or count(store) >= done + trials // 50
                ),
                "progress",
                300,
            )
        assert run.wait() == 0, run.text()[-2000:]
    after = {path: path.stat().st_mtime_ns for path in store.glob("trials/t*.parquet")}
    assert before.items() <= after.items()  # what was done was not done again
    assert f"{trials - len(before)} done in this run" in run.text()
    rows = Store(store).read_all("trials").rows
    assert sorted(rows["seed"].to_pylist()) == list(range(trials))
    return samples, run.text()


@pytest.mark.slow
def test_a_hundred_trials(tmp_path: Path) -> None:
    run_killed_once(tmp_path, 100)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ten_thousand_trials_and_the_drivers_memory_stays_flat(tmp_path: Path) -> None:
    samples, _ = run_killed_once(tmp_path, 10_000)
    print(*(f"{done} records: {size / MEGABYTE:.0f} MB" for done, size in samples), sep="\n")
    settled = [size for done, size in samples if done >= 6500]  # the first Tuner is full by then
    assert max(settled) - min(settled) < 150 * MEGABYTE
