"""A store with trials for a mirror. Not a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lp_sweep.storage.store import Store
from tests.support.fake_records import FakeSweep

SECRET = "Zq-hunter2-hunter2"


def mirrored_store(folder: Path, name: str = "demo") -> Store:
    """Two trials that are done, one of them of two cells; one that has failed; one to do."""
    fake = FakeSweep(folder, name)
    fake.cell(k=0, score=92.5)
    fake.cell(k=0, score=92.5, strategy="bottom")
    private = {"command": f"lp-sweep run --token {SECRET}", "host": SECRET}
    fake.cell(k=4, score=90.0, learning_rate=3e-5, **private)
    fake.cell(k=8, state="failed")
    fake.cell(k=10, state="pending")
    return fake.publish()


def trial_of(store: Store, sweep: str = "demo", **cell: Any) -> str:
    """The identifier of the trial of the cell."""
    rows = store.read("sweeps", sweep)
    (found,) = {row["trial_id"] for row in rows if cell.items() <= row.items()}
    return str(found)
