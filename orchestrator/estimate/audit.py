"""`lp-sweep plan --audit`: estimated against actual time of a sweep's trials.

No trial is estimated from itself: the trials of a device are split into halves, at random by their
identifiers, and each half is estimated from the other half and from other sweeps' records.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lp_sweep.analysis.tabledef import Table
from lp_sweep.orchestrator.estimate.pace import duration
from lp_sweep.orchestrator.estimate.timings import (
    DEVICE,
    Span,
    added,
    newest,
    pair_of,
    ratios_of,
    usable,
    where,
)
from lp_sweep.orchestrator.estimate.workload import CPU, GPU, MeanLengths, recorded
from lp_sweep.orchestrator.plan.known import read_ledger
from lp_sweep.orchestrator.plan.naming import short_model
from lp_sweep.storage.store import Store, Unreadable

_TOTAL = ("all", "all")
_LONG = pa.schema(
    [
        ("model", pa.string()),
        ("task", pa.string()),
        ("trials", pa.int64()),
        ("estimated_hours", pa.float64()),
        ("low_hours", pa.float64()),
        ("high_hours", pa.float64()),
        ("actual_hours", pa.float64()),
        ("ratio", pa.float64()),  # actual over estimated
        ("in_band", pa.bool_()),
    ]
)


class Audit(NamedTuple):
    """The table, and the unreadable files of the store."""

    table: Table
    unreadable: list[Unreadable]


class _Trial(NamedTuple):
    """A finished trial; seconds."""

    name: tuple[str, str]  # model and task
    estimated: Span
    actual: float


def audit(store: Store, sweep: str) -> Audit:
    """Estimated and actual time by model and task, and in total. Raises SpecError for an unknown
    sweep, StoreError."""
    cells = store.read_all("sweeps", store.sweeps(sweep), ["trial_id"])
    ledger = read_ledger(store)
    ours = pc.is_in(ledger.timings["trial_id"], cells.rows["trial_id"].unique())
    records = ledger.timings.append_column("ours", ours)
    by_name: dict[tuple[str, str], list[_Trial]] = defaultdict(list)
    for trial in _estimated(usable(records), MeanLengths(records)):
        by_name[trial.name].append(trial)
    rows = [_row(name, trials) for name, trials in by_name.items()]
    rows.sort(key=lambda row: (-row["actual_hours"], row["model"], row["task"]))
    every = [trial for trials in by_name.values() for trial in trials]
    rows += [_row(_TOTAL, every)] if every else []
    left_out = (pc.sum(ours).as_py() or 0) - len(every)
    return Audit(_table(sweep, rows, left_out), [*cells.unreadable, *ledger.unreadable])


def _estimated(records: pa.Table, lengths: MeanLengths) -> Iterator[_Trial]:
    ordered = records.take(pc.sort_indices(records, [("trial_id", "ascending")]))
    ordered = ordered.append_column("odd", pa.array(np.arange(len(ordered)) % 2 == 1))
    device_keys = [*DEVICE, "compute", "precision"]
    for device in where(ordered, {"ours": True}).group_by(device_keys).aggregate([]).to_pylist():
        here = where(ordered, device)
        on_gpu = device["device_type"] == "cuda"
        for odd in (False, True):
            asked = pc.and_(here["ours"], pc.equal(here["odd"], odd))
            ratios = ratios_of(newest(here.filter(pc.invert(asked))), lengths, on_gpu=on_gpu)
            for row in here.filter(asked).to_pylist():
                stated = recorded(row, lengths).seconds(GPU if on_gpu else CPU)
                estimated = ratios.of(pair_of(row)).of(stated)
                yield _Trial((row["model"], row["task"]), estimated, row["seconds_total"])


def _row(name: tuple[str, str], trials: list[_Trial]) -> dict[str, Any]:
    estimated = added(trial.estimated for trial in trials).times(1 / 3600)
    actual = sum(trial.actual for trial in trials) / 3600
    values = (*name, len(trials), *estimated, actual, actual / estimated.expected)
    assert estimated.low is not None
    assert estimated.high is not None
    in_band = estimated.low <= actual <= estimated.high
    return dict(zip(_LONG.names, (*values, in_band), strict=True))


def _table(sweep: str, rows: list[dict[str, Any]], left_out: int) -> Table:
    notes = [
        "Estimated: each half of the trials from the other half and from other sweeps' records on "
        "the same device."
    ]
    if left_out:
        notes.append(
            f"Left out: {left_out:,} trials that went on from a checkpoint, ran out of memory, "
            "learned hidden states or have no timing."
        )
    return Table(
        title=f"Estimated against actual time of sweep {sweep}, on one slot",
        columns=("model", "task", "n", "estimated", "actual", "ratio", "in the band"),
        rows=tuple(_shown(row) for row in rows),
        notes=tuple(notes),
        long=pa.Table.from_pylist(rows, _LONG),
    )


def _shown(row: Mapping[str, Any]) -> tuple[str, ...]:
    estimated = Span(row["estimated_hours"], row["low_hours"], row["high_hours"])
    return (
        short_model(row["model"]),
        row["task"],
        f"{row['trials']:,}",
        duration(estimated),
        duration(Span(row["actual_hours"], None, None)),
        f"{row['ratio']:.2f}",
        "yes" if row["in_band"] else "no",
    )
