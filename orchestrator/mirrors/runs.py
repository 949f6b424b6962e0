"""One trial as the tools of experiments know it: a run with a name, parameters, tags and curves.

Pure. No command line, host, path of a checkpoint or traceback goes along: those may be anyone's,
and `lp-sweep show` and `logs` have them.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from lp_sweep.orchestrator.plan.words import short_model
from lp_sweep.storage.printable import printable, ranges, short
from lp_sweep.storage.specs import Recipe

Row = Mapping[str, Any]
Value = str | int | float | bool

# of a record, beside its curves
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


class Point(NamedTuple):
    """Of a curve. `epoch` counts from 1; a score is a share (0..1), or -1..1 of a correlation."""

    metric: str  # validation/accuracy, train/loss
    epoch: int
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MirroredRun:
    """`key` names it for ever: the trial's identifier, or that of the attempt that failed."""

    key: str
    name: str
    params: Mapping[str, Value]
    tags: Mapping[str, str]
    curves: tuple[Point, ...] = ()
    results: Mapping[str, float]  # `last` is the main metric after the last epoch
    failure: str | None = None  # of a trial that failed: its type and message
    started_at: dt.datetime | None
    ended_at: dt.datetime | None


def run_of_record(sweep: str, record: Row, cells: Sequence[Row]) -> MirroredRun:
    """Of a trial that is done; `cells` are those of the sweep that it answers."""
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
    """Of an attempt that failed for good."""
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
    """`bert-base-cased layers 1-8 of 12 rte seed 42`: as a run's display has it."""
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
