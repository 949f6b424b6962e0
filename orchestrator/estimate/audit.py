"""`lp-sweep plan --audit`: estimated hours against those that a sweep's trials took.

No estimate knows the trial that it is of: the trials are cut into two halves by their identifiers,
which are as good as random, and each half is estimated from the other and from the records of other
sweeps, on its own device. The estimate that a run began with is not stored: it would be of another
version's arithmetic, and of the store as it was on that day.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lp_sweep.analysis.tables import Table
from lp_sweep.orchestrator.estimate.costmodel import CostModel, Pair, Total, fit
from lp_sweep.orchestrator.estimate.estimate import rule_of_thumb
from lp_sweep.orchestrator.estimate.timings import MeanLengths, newest_timings, timing, usable
from lp_sweep.orchestrator.estimate.workload import Terms
from lp_sweep.orchestrator.plan.known import read_ledger
from lp_sweep.orchestrator.plan.words import short_model
from lp_sweep.storage.store import Store, Unreadable
from lp_sweep.storage.wording import unknown_sweep

_DEVICE = ["device_type", "device_name", "threads", "compute", "precision"]  # and how it computes
_TOTAL = "all"
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
    """The table, and the files of the store that could not be read."""

    table: Table
    unreadable: list[Unreadable]


class _Network(NamedTuple):
    """The seeds of one network, all of one half: they ask for the same. `half`: of which device,
    and which of its two."""

    model: str
    task: str
    half: int
    terms: Terms
    pair: Pair
    trials: int
    seconds: float


def audit(store: Store, sweep: str) -> Audit:
    """By model and task, and in all. Raises SpecError for an unknown sweep, StoreError."""
    names = sorted(store.names("sweeps"))
    if sweep not in names:
        raise unknown_sweep(sweep, names, store.location)
    cells = store.read_all("sweeps", [sweep], ["trial_id"])
    ledger = read_ledger(store)
    asked = pc.is_in(ledger.timings["trial_id"], cells.rows["trial_id"].unique())
    records = ledger.timings.append_column("ours", asked)
    sound = usable(records)
    left_out = _count(records) - _count(sound)
    rows = _compared(sound, MeanLengths(records))
    return Audit(_table(sweep, rows, left_out), [*cells.unreadable, *ledger.unreadable])


def _count(records: pa.Table) -> int:
    return int(pc.sum(records["ours"]).as_py() or 0)


def _compared(records: pa.Table, lengths: MeanLengths) -> list[dict[str, Any]]:
    """Rows of `_LONG`, the longest first, the total last."""
    costs: list[CostModel] = []
    found: list[_Network] = []
    for half in _halves(records):
        timings = newest_timings(half.others, lengths)
        found += [_network(row, lengths, len(costs)) for row in _by_network(half.asked)]
        costs.append(fit(timings, rule_of_thumb(gpu=half.on_gpu)))
    by_name: dict[tuple[str, str], list[_Network]] = defaultdict(list)
    for network in found:
        by_name[network.model, network.task].append(network)
    rows = [_row(*name, networks, costs) for name, networks in by_name.items()]
    rows.sort(key=lambda row: (-row["actual_hours"], row["model"], row["task"]))
    return [*rows, _row(_TOTAL, _TOTAL, found, costs)] if rows else []


def _network(row: Mapping[str, Any], lengths: MeanLengths, half: int) -> _Network:
    kind = timing(row, lengths)
    return _Network(
        row["model"], row["task"], half, kind.terms, kind.pair, row["trials"], row["seconds"]
    )


def _row(
    model: str, task: str, networks: Sequence[_Network], costs: Sequence[CostModel]
) -> dict[str, Any]:
    """The bands of halves add up, as if they erred alike."""
    pieces: dict[int, Counter[tuple[Terms, Pair]]] = defaultdict(Counter)
    for network in networks:
        pieces[network.half][network.terms, network.pair] += network.trials
    totals = [costs[half].total(counts) for half, counts in pieces.items()]
    told = Total(*(sum(values) / 3600 for values in zip(*totals, strict=True)))
    actual = sum(network.seconds for network in networks) / 3600
    return {
        "model": model,
        "task": task,
        "trials": sum(network.trials for network in networks),
        "estimated_hours": told.seconds,
        "low_hours": told.low,
        "high_hours": told.high,
        "actual_hours": actual,
        "ratio": actual / told.seconds,
        "in_band": told.low <= actual <= told.high,
    }


class _Half(NamedTuple):
    """Trials of one device that are estimated, and all others on it that they are estimated by."""

    asked: pa.Table
    others: pa.Table
    on_gpu: bool


def _halves(records: pa.Table) -> Iterator[_Half]:
    ordered = records.take(pc.sort_indices(records, [("trial_id", "ascending")]))
    ordered = ordered.append_column("odd", pa.array(np.arange(len(ordered)) % 2 == 1))
    ours = ordered.filter(ordered["ours"])
    for device in ours.group_by(_DEVICE).aggregate([]).to_pylist():
        here = _where(ordered, device)
        for odd in (False, True):
            asked = pc.and_(here["ours"], pc.equal(here["odd"], odd))
            others = here.filter(pc.invert(asked))
            yield _Half(here.filter(asked), others, device["device_type"] == "cuda")


def _where(records: pa.Table, device: Mapping[str, Any]) -> pa.Table:
    for name, value in device.items():
        column = records[name]
        records = records.filter(pc.is_null(column) if value is None else pc.equal(column, value))
    return records


def _by_network(records: pa.Table) -> list[dict[str, Any]]:
    """A row for all seeds of a network, with the number of `trials` and their `seconds`."""
    own = {"trial_id", "seconds_total", "ended_at", "odd", "ours"}
    keys = [name for name in records.column_names if name not in own]
    found = records.group_by(keys).aggregate([("seconds_total", "sum"), ("seconds_total", "count")])
    names = {"seconds_total_sum": "seconds", "seconds_total_count": "trials"}
    rows = found.rename_columns([names.get(name, name) for name in found.column_names]).to_pylist()
    return [{**row, "seconds_total": row["seconds"] / row["trials"]} for row in rows]


def _table(sweep: str, rows: list[dict[str, Any]], left_out: int) -> Table:
    notes = [
        "Estimated: each half of the trials from the other half and from other sweeps' records on "
        "the same device. In the band: within the 80% that a plan would have told."
    ]
    if left_out:
        notes.append(
            f"Left out: {left_out:,} trials that went on from a checkpoint, ran out of memory or "
            "have no timing."
        )
    return Table(
        title=f"Estimated against actual hours of sweep {sweep}",
        columns=("model", "task", "n", "estimated", "80%", "actual", "ratio", "in the band"),
        rows=tuple(_shown(row) for row in rows),
        notes=tuple(notes),
        long=pa.Table.from_pylist(rows, _LONG),
    )


def _shown(row: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        short_model(row["model"]),
        row["task"],
        f"{row['trials']:,}",
        f"{row['estimated_hours']:.3g}",
        f"{row['low_hours']:.3g} to {row['high_hours']:.3g}",
        f"{row['actual_hours']:.3g}",
        f"{row['ratio']:.2f}",
        "yes" if row["in_band"] else "no",
    )
