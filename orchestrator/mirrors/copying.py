"""Copies trials of a store into a mirror that does not have them yet.

A run copies each trial as it ends, and `lp-sweep mirror` copies all trials of a sweep. A mirror
gets no command line, host, checkpoint path or traceback, which may be private: `lp-sweep show` and
`logs` have them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lp_sweep.orchestrator.mirrors.kinds import (
    Mirror,
    MirroredRun,
    MirrorKind,
    Point,
    Value,
    check_installed,
    open_mirror,
)
from lp_sweep.orchestrator.plan.known import attempted_work
from lp_sweep.orchestrator.plan.naming import short_model
from lp_sweep.storage.printable import printable, ranges, short
from lp_sweep.storage.specs import Recipe
from lp_sweep.storage.store import Store

_FEW = 16  # are looked up one by one: listing 100,000 records takes longer
_AT_A_TIME = 500  # records read at once

Row = Mapping[str, Any]


class Copied(NamedTuple):
    """Numbers of trials in a mirror: `written` now, `failures` among these, `there` before."""

    written: int
    failures: int
    there: int


def copy_store(
    store: Store, kinds: Iterable[MirrorKind], sweep: str | None = None
) -> Iterator[dict[str, Any]]:
    """Copies each sweep of a store, or one, into each kind of mirror. Yields what was done after
    each: `to`, `sweep` and the numbers of `Copied`. Raises what `copy_trials` raises, SpecError for
    an unknown sweep, and PreflightError if a package is missing."""
    once = dict.fromkeys(kinds)
    check_installed(once)
    for name in store.sweeps(sweep):
        for kind in once:
            done = copy_trials(store, name, open_mirror(kind, name))
            yield {"to": kind.value, "sweep": name, **done._asdict()}


def copy_trials(
    store: Store, sweep: str, mirror: Mirror, only: Collection[str] | None = None
) -> Copied:
    """Copies the trials of a sweep that are done or have failed, or `only` some of them. Raises
    StoreError, and LpSweepError if the mirror refuses one."""
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
    """Trial -> its cells in the sweep."""
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
    return store.names("trials") & set(ids)


def _records(store: Store, names: Sequence[str]) -> Iterator[Row]:
    if len(names) <= _FEW:
        for name in names:
            yield from store.find("trials", name) or ()
        return
    for start in range(0, len(names), _AT_A_TIME):
        yield from store.read_all("trials", names[start : start + _AT_A_TIME]).rows.to_pylist()


def _failures(store: Store, ids: Collection[str]) -> list[Row]:
    """The last attempt of each trial that failed for good."""
    if not ids:
        return []
    names = sorted(name for name in store.names("attempts") if attempted_work(name) in ids)
    attempts = store.read_all("attempts", names).rows.to_pylist() if names else []
    in_order = sorted(attempts, key=lambda row: str(row["ended_at"]))
    # null: an older file without the column
    return [*{row["trial_id"]: row for row in in_order if row["final"] is not False}.values()]


# numbers of a record, besides its curves
_RESULTS = (
    "last", "best", "best_epoch", "majority", "steps", "params_total", "params_encoder",
    "params_embedding", "seconds_load", "seconds_tokenise", "seconds_train", "seconds_evaluate",
    "seconds_total", "train_examples_per_second", "dev_examples_per_second", "peak_memory_bytes",
)  # fmt: skip
_PARAMETERS = (
    "model", "model_revision", "depth", "task", "seed", "k", "procedure", "freeze_dropped",
    "epochs_per_layer", "second_norm", *(field.name for field in fields(Recipe)),
    "precision_used", "compute_used",
)  # fmt: skip
_LAYERS = ("kept_layers", "dropped_layers", "removed_feed_forwards", "freeze_layers")


def run_of_record(sweep: str, record: Row, cells: Sequence[Row]) -> MirroredRun:
    """The run of a finished trial, with its cells in the sweep."""
    return MirroredRun(
        key=record["trial_id"],
        name=_name(record, record["depth"]),
        params=_parameters(record, cells),
        tags=_tags(sweep, record, record["trial_id"]),
        curves=tuple(_curves(record)),
        results={name: float(record[name]) for name in _RESULTS if _finite(record.get(name))},
        started_at=record["started_at"],
        ended_at=record["ended_at"],
    )


def run_of_failure(sweep: str, attempt: Row, cells: Sequence[Row]) -> MirroredRun:
    """The run of an attempt that failed for good."""
    error_type = attempt["error_type"] or "bug"
    depth = cells[0]["depth"] if cells else None
    return MirroredRun(
        key=attempt["attempt_id"],
        name=_name(attempt, depth),
        params=_parameters(attempt, cells),
        tags=_tags(sweep, attempt, attempt["attempt_id"]) | {"lp_sweep.error_type": error_type},
        results={},
        failure=short(f"{error_type}: {attempt['message'] or ''}"),
        started_at=attempt["started_at"],
        ended_at=attempt["ended_at"],
    )


def _name(row: Row, depth: int | None) -> str:
    """`bert-base-cased layers 1-8 of 12 rte seed 42`, as a run displays it."""
    layers = f"layers {ranges(row['kept_layers'] or ())}" + (f" of {depth}" if depth else "")
    return printable(f"{short_model(row['model'])} {layers} {row['task']} seed {row['seed']}")


def _parameters(row: Row, cells: Sequence[Row]) -> dict[str, Value]:
    found: dict[str, Value] = {
        name: row[name] for name in _PARAMETERS if isinstance(row.get(name), Value)
    }
    found |= {name: ranges(row[name]) for name in _LAYERS if row.get(name)}
    return found | {"strategies": ", ".join(sorted({_asked(cell) for cell in cells}))}


def _asked(cell: Row) -> str:
    """`top K=4`, `contribution t=0.95`."""
    if cell["threshold"] is not None:
        return f"{cell['strategy']} t={cell['threshold']:g}"
    named = cell["strategy"]
    return named if cell["k"] is None else f"{named} K={cell['k']}"


def _tags(sweep: str, row: Row, key: str) -> dict[str, str]:
    versions = dict(row["versions"] or ())
    found = {
        "sweep": sweep,
        "key": key,
        "trial_id": row["trial_id"],
        "version": versions.get("lp_sweep"),
        "device": row["device_name"],
    }
    return {f"lp_sweep.{name}": str(value) for name, value in found.items() if value}


def _curves(record: Row) -> Iterable[Point]:
    for epoch, loss in enumerate(record["train_losses"] or (), start=1):
        if _finite(loss):
            yield Point("train/loss", epoch, loss)
    for item in record["epoch_metrics"] or ():
        if _finite(item["value"]):
            yield Point(f"{item['split']}/{item['metric']}", item["epoch"], item["value"])


def _finite(value: Any) -> bool:
    return value is not None and math.isfinite(value)
