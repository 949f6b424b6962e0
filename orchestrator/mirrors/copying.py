"""Copies trials of a store into a mirror that does not have them yet.

A run does so as its trials end, and `lp-sweep mirror` at any time. A mirror gets no command line,
host, checkpoint path or traceback, which may be private: `lp-sweep show` and `logs` have them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

from lp_sweep.analysis.views import open_views
from lp_sweep.orchestrator.mirrors.kinds import (
    Mirror,
    MirroredRun,
    MirrorKind,
    Point,
    Value,
    check_installed,
    open_mirror,
)
from lp_sweep.orchestrator.plan.naming import short_model
from lp_sweep.storage.printable import printable, ranges, short
from lp_sweep.storage.store import Store
from lp_sweep.trials.spec.specs import Recipe

_AT_A_TIME = 500  # records read at once
_CELLS = """
SELECT trial_id, state = 'done' AS done, depth, strategy, k, threshold
FROM cells WHERE trial_id IS NOT NULL AND state IN ('done', 'failed') ORDER BY cell
"""
_LAST_FAILURES = """
SELECT trial_id, arg_max(attempt_id, ended_at) AS attempt_id
FROM attempts WHERE coalesce(final, true) GROUP BY trial_id ORDER BY trial_id
"""

Row = Mapping[str, Any]


class MirrorCount(NamedTuple):
    """Numbers of trials in a mirror: `written` now, `failures` among these, `there` before."""

    written: int
    failures: int
    there: int


def copy_store(
    store: Store, kinds: Iterable[MirrorKind], sweep: str | None = None
) -> Iterator[dict[str, Any]]:
    """Copies each sweep of a store, or one, into each kind of mirror. Yields what was done after
    each: `to`, `sweep` and the numbers of `MirrorCount`. Raises what `copy_trials` raises,
    SpecError for an unknown sweep, and PreflightError if a package is missing."""
    once = dict.fromkeys(kinds)
    check_installed(once)
    for name in store.sweeps(sweep):
        for kind in once:
            done = copy_trials(store, name, open_mirror(kind, name))
            yield {"to": kind.value, "sweep": name, **done._asdict()}


def copy_trials(store: Store, sweep: str, mirror: Mirror) -> MirrorCount:
    """Copies the trials of a sweep that are done or have failed and that the mirror lacks. Raises
    StoreError, and LpSweepError if the mirror refuses one."""
    with open_views(store, sweep=sweep, only=["cells", "attempts"]) as catalog:
        cells: dict[str, list[Row]] = {}
        for row in catalog.query(_CELLS).to_pylist():
            cells.setdefault(row["trial_id"], []).append(row)
        last = catalog.query(_LAST_FAILURES).to_pylist()
    done = [trial for trial, rows in cells.items() if rows[0]["done"]]
    failed = [row["attempt_id"] for row in last if row["trial_id"] in cells.keys() - {*done}]
    new_done = [trial for trial in done if not mirror.has(trial)]
    new_failed = [attempt for attempt in failed if not mirror.has(attempt)]
    for record in _records(store, "trials", new_done):
        mirror.write(run_of_record(sweep, record, cells[record["trial_id"]]))
    for attempt in _records(store, "attempts", new_failed):
        mirror.write(run_of_failure(sweep, attempt, cells[attempt["trial_id"]]))
    written = len(new_done) + len(new_failed)
    return MirrorCount(written, len(new_failed), len(done) + len(failed) - written)


def _records(store: Store, table: str, names: Sequence[str]) -> Iterator[Row]:
    for start in range(0, len(names), _AT_A_TIME):
        yield from store.read_all(table, names[start : start + _AT_A_TIME]).rows.to_pylist()


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
