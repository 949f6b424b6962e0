"""Copies trials of a store into a mirror that does not have them yet.

A run does so as its trials end, and `lp-sweep mirror` at any time. A mirror gets no command line,
host, checkpoint path or traceback, which may be private: `lp-sweep show` and `logs` have them.
Imports none of the mirrors' libraries: `open_mirror` loads the module of a kind.
"""

from __future__ import annotations

import datetime as dt
import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from importlib import import_module
from importlib.util import find_spec
from typing import Any, ClassVar

from lp_sweep.analysis.views import open_views
from lp_sweep.orchestrator.options import MirrorKind
from lp_sweep.storage.errors import LpSweepError, PreflightError
from lp_sweep.storage.printable import printable, ranges, short, short_model
from lp_sweep.storage.redact import redact_text
from lp_sweep.storage.store import Store
from lp_sweep.trials.spec.specs import Recipe

_AT_A_TIME = 500  # records read at once
_CELLS = """
SELECT trial_id, state = 'done' AS done, depth, strategy, k, threshold
FROM cells WHERE trial_id IS NOT NULL AND state IN ('done', 'failed') ORDER BY cell
"""
_LAST_FAILURES = """
SELECT trial_id, arg_max(attempt_id, ended_at) AS attempt_id
FROM attempts WHERE coalesce(final, true)
    AND trial_id IN (SELECT trial_id FROM cells WHERE state = 'failed')
GROUP BY trial_id ORDER BY trial_id
"""

Row = Mapping[str, Any]
Value = str | int | float | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MirroredRun:
    """A trial as a mirror shows it. `key`: the identifier of the trial, or of a failed attempt.
    `curves`: epoch from 1, ascending -> metric such as validation/accuracy or train/loss -> value.
    Scores are from 0 to 1, correlations from -1."""

    key: str
    name: str
    params: Mapping[str, Value]
    tags: Mapping[str, str]
    curves: Mapping[int, Mapping[str, float]]
    results: Mapping[str, float]  # `last` is the main metric after the last epoch
    failure: str | None  # of a trial that failed: its type and message
    started_at: dt.datetime | None
    ended_at: dt.datetime | None

    @property
    def last_epoch(self) -> int:
        return max(self.curves, default=0)


class Mirror(ABC):
    """One sweep in one tool. A run that was only partly written counts as missing, and is written
    again."""

    kind: ClassVar[MirrorKind]
    refusals: ClassVar[tuple[type[Exception], ...]]  # what the tool raises

    def __init__(self, sweep: str) -> None:
        """Asks the tool for its complete runs. Raises LpSweepError if it refuses."""
        self.sweep = sweep
        with self._answering():
            self._names = self.complete()

    def has(self, key: str) -> bool:
        return self.name_of(key) in self._names

    def write(self, run: MirroredRun) -> None:
        """Raises LpSweepError if the tool refuses."""
        with self._answering():
            self.put(run)
        self._names.add(self.name_of(run.key))

    def name_of(self, key: str) -> str:
        """The tool's name for a run."""
        return key

    @abstractmethod
    def complete(self) -> set[str]:
        """The names of the sweep's runs that are complete."""

    @abstractmethod
    def put(self, run: MirroredRun) -> None:
        """Writes a run."""

    @contextmanager
    def _answering(self) -> Iterator[None]:
        """Raises a tool's error as one sentence without secrets: an address may hold a password."""
        try:
            yield
        except self.refusals as error:
            said = short(redact_text(str(error).strip() or type(error).__name__))
            raise LpSweepError(f"{self.kind}: {said}") from error


def check_installed(kinds: Collection[MirrorKind]) -> None:
    """Raises PreflightError with the command that installs a missing package."""
    for kind in kinds:
        if find_spec(kind) is None:
            raise PreflightError(
                f"the mirror {kind} needs the package {kind}, which is not installed "
                f"here. Install it: pip install 'lp-sweep[{kind}]'"
            )


def open_mirror(kind: MirrorKind, sweep: str) -> Mirror:
    """Opens a mirror at the place that the tool's own settings name (docs/mirrors.md). Raises
    PreflightError without its package, LpSweepError if the tool refuses."""
    check_installed([kind])
    module = import_module(f"lp_sweep.orchestrator.mirrors.to_{kind}")
    opened: Mirror = getattr(module, f"{kind.title()}Mirror")(sweep)
    return opened


def copy_store(
    store: Store, kinds: Iterable[MirrorKind], sweep: str | None = None
) -> Iterator[dict[str, Any]]:
    """Copies each sweep of a store, or one, into each kind of mirror. Yields what was done after
    each: `to`, `sweep` and the numbers of `copy_trials`. Raises what that raises, SpecError for an
    unknown sweep, and PreflightError if a package is missing."""
    once = dict.fromkeys(kinds)
    check_installed(once)
    for name in store.sweeps(sweep):
        for kind in once:
            done = copy_trials(store, name, open_mirror(kind, name))
            yield {"to": str(kind), "sweep": name, **done}


def copy_trials(store: Store, sweep: str, mirror: Mirror) -> dict[str, int]:
    """Copies the trials of a sweep that are done or have failed and that the mirror lacks. Returns
    how many were `written` now, how many `failures` are among these, and how many were `there`
    before. Raises StoreError, and LpSweepError if the mirror refuses one."""
    with open_views(store, sweep=sweep, only=["cells", "attempts"]) as catalog:
        cells: dict[str, list[Row]] = defaultdict(list)
        for row in catalog.query(_CELLS).to_pylist():
            cells[row["trial_id"]].append(row)
        failed = catalog.query(_LAST_FAILURES)["attempt_id"].to_pylist()
    done = [trial for trial, rows in cells.items() if rows[0]["done"]]
    written = {}
    for table, keys in (("trials", done), ("attempts", failed)):
        new = [key for key in keys if not mirror.has(key)]
        written[table] = len(new)
        for start in range(0, len(new), _AT_A_TIME):
            rows = store.read_all(table, new[start : start + _AT_A_TIME]).rows
            for row in rows.to_pylist():
                mirror.write(mirrored_run(sweep, row, cells[row["trial_id"]]))
    now = sum(written.values())
    there = len(done) + len(failed) - now
    return {"written": now, "failures": written["attempts"], "there": there}


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


def mirrored_run(sweep: str, row: Row, cells: Sequence[Row]) -> MirroredRun:
    """The run of a finished trial's record or of an attempt that failed for good, with the trial's
    cells in the sweep."""
    key, error_type, failure = row.get("attempt_id"), None, None
    if key is None:
        key = row["trial_id"]
    else:
        error_type = row["error_type"] or "bug"
        failure = short(f"{error_type}: {row['message'] or ''}")
    tags = {
        "sweep": sweep,
        "key": key,
        "trial_id": row["trial_id"],
        "version": dict(row["versions"] or ()).get("lp_sweep"),
        "device": row["device_name"],
        "error_type": error_type,
    }
    depth = cells[0]["depth"] if cells else row.get("depth")
    layers = ranges(row["kept_layers"] or ()) + (f" of {depth}" if depth else "")
    name = f"{short_model(row['model'])} layers {layers} {row['task']} seed {row['seed']}"
    params: dict[str, Value] = {
        name: row[name] for name in _PARAMETERS if isinstance(row.get(name), Value)
    }
    params |= {name: ranges(row[name]) for name in _LAYERS if row.get(name)}
    params["strategies"] = ", ".join(sorted({_strategy(cell) for cell in cells}))
    return MirroredRun(
        key=key,
        name=printable(name),
        params=params,
        tags={f"lp_sweep.{name}": str(value) for name, value in tags.items() if value},
        curves=_curves(row),
        results={name: float(row[name]) for name in _RESULTS if _finite(row.get(name))},
        failure=failure,
        started_at=row["started_at"],
        ended_at=row["ended_at"],
    )


def _strategy(cell: Row) -> str:
    """`top K=4`, `contribution t=0.95`."""
    if cell["threshold"] is not None:
        return f"{cell['strategy']} t={cell['threshold']:g}"
    named = cell["strategy"]
    return named if cell["k"] is None else f"{named} K={cell['k']}"


def _curves(record: Row) -> dict[int, dict[str, float]]:
    points = [
        (epoch, "train/loss", loss)
        for epoch, loss in enumerate(record.get("train_losses") or (), start=1)
    ]
    for item in record.get("epoch_metrics") or ():
        points.append((item["epoch"], f"{item['split']}/{item['metric']}", item["value"]))
    found: dict[int, dict[str, float]] = defaultdict(dict)
    for epoch, metric, value in sorted(points, key=lambda point: point[0]):
        if _finite(value):
            found[epoch][metric] = value
    return found


def _finite(value: Any) -> bool:
    return value is not None and math.isfinite(value)
