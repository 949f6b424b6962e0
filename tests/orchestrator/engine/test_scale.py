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


def written(store: Path) -> dict[Path, int]:
    """Record -> when it was written, in nanoseconds."""
    return {path: path.stat().st_mtime_ns for path in store.glob("trials/t*.parquet")}


def memory(run: Sweep) -> int:
    return int(psutil.Process(run.process.pid).memory_info().rss)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ten_thousand_trials_and_the_drivers_memory_stays_flat(tmp_path: Path) -> None:
    trials = 10_000
    save_world(tmp_path, seeds=f"0-{trials - 1}", strategies=[{"name": "top", "k": [0]}])
    store = tmp_path / "lp-sweep-store"
    with sweep(tmp_path, "sweep.yaml", **NOOP) as run:
        ended = run.process.poll
        middle = trials * 2 // 5
        wait_for(lambda: ended() is not None or count(store) >= middle, "the middle", 900)
        assert ended() is None, run.text()[-2000:]
        run.kill()
        wait_for(lambda: not run.relatives(), "its Ray has gone", 60)
    before = written(store)
    assert 0 < len(before) < trials
    samples = []  # records, and bytes of the driver
    with sweep(tmp_path, "sweep.yaml", **NOOP) as run:
        ended = run.process.poll
        while ended() is None:
            samples.append((count(store), memory(run)))
            more = samples[-1][0] + trials // 50
            wait_for(lambda more=more: ended() is not None or count(store) >= more, "progress")
        assert run.wait() == 0, run.text()[-2000:]
    assert before.items() <= written(store).items(), "what was done was not done again"
    assert f"{trials - len(before)} done in this run" in run.text()
    rows = Store(store).read_all("trials").rows
    assert sorted(rows["seed"].to_pylist()) == list(range(trials))
    print(*(f"{done} records: {size / MEGABYTE:.0f} MB" for done, size in samples), sep="\n")
    settled = [size for done, size in samples if done >= 6500]  # the first Tuner is full by then
    assert max(settled) - min(settled) < 150 * MEGABYTE
