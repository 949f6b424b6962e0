"""Trials of a store, copied into a mirror: those that it does not have yet.

The one way there: a run copies each trial as it ends, `lp-sweep mirror` what a store has.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lp_sweep.orchestrator.mirrors.kinds import Mirror
from lp_sweep.orchestrator.mirrors.runs import run_of_failure, run_of_record
from lp_sweep.orchestrator.plan.known import attempted_work
from lp_sweep.storage.store import Store

_FEW = 16  # are looked at one by one: a listing of 100,000 records takes longer
_AT_A_TIME = 500  # records read at once

Row = Mapping[str, Any]


class Copied(NamedTuple):
    """How many trials of a sweep are in a mirror: new ones, failures among them, older ones."""

    written: int
    failures: int
    there: int


def copy_trials(
    store: Store, sweep: str, mirror: Mirror, only: Collection[str] | None = None
) -> Copied:
    """The trials of a sweep that are done or have failed, or `only` these of them. Raises
    StoreError, and LpSweepError for what the mirror refuses."""
    cells = _cells(store, sweep, only)
    done = _done(store, cells.keys())
    missing = sorted(id_ for id_ in done if not mirror.has(id_))
    written = 0
    for record in _records(store, missing):
        mirror.write(run_of_record(sweep, record, cells[record["trial_id"]]))
        written += 1
    failures = _failures(store, cells.keys() - done)
    new = [attempt for attempt in failures if not mirror.has(attempt["attempt_id"])]
    for attempt in new:
        mirror.write(run_of_failure(sweep, attempt, cells[attempt["trial_id"]]))
    there = len(done) - len(missing) + len(failures) - len(new)
    return Copied(written + len(new), len(new), there)


def _cells(store: Store, sweep: str, only: Collection[str] | None) -> dict[str, list[Row]]:
    """Of each trial that the sweep asks for."""
    columns = ["trial_id", "depth", "strategy", "k", "threshold"]
    rows = store.read_all("sweeps", [sweep], columns).rows
    if only is not None:
        rows = rows.filter(pc.is_in(rows["trial_id"], pa.array([*only], pa.string())))
    found: dict[str, list[Row]] = {}
    for row in rows.to_pylist():
        if row["trial_id"] is not None:
            found.setdefault(row["trial_id"], []).append(row)
    return found


def _done(store: Store, ids: Collection[str]) -> set[str]:
    if len(ids) <= _FEW:
        return {id_ for id_ in ids if store.find("trials", id_)}
    return store.names("trials", finished=True) & set(ids)


def _records(store: Store, names: Sequence[str]) -> Iterator[Row]:
    if len(names) <= _FEW:
        for name in names:
            yield from store.find("trials", name) or ()
        return
    for start in range(0, len(names), _AT_A_TIME):
        yield from store.read_all("trials", names[start : start + _AT_A_TIME]).rows.to_pylist()


def _failures(store: Store, ids: Collection[str]) -> list[Row]:
    """The last try of each that failed for good."""
    if not ids:
        return []
    names = sorted(name for name in store.names("attempts") if attempted_work(name) in ids)
    attempts = store.read_all("attempts", names).rows.to_pylist() if names else []
    in_order = sorted(attempts, key=lambda row: str(row["ended_at"]))
    # null: a file of before the column
    return [*{row["trial_id"]: row for row in in_order if row["final"] is not False}.values()]
