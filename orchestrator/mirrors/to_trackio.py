"""trackio: a project per sweep, a run per trial, in the local store at TRACKIO_DIR. `trackio sync`
sends a project to a Space.

Not by `trackio.init`: that prints on stdout, asks the hub for the user's name, and only warns where
a value is lost. A run is one transaction, as in trackio's own importers.
"""

from __future__ import annotations

import datetime as dt
import sqlite3
from typing import Any

from trackio.sqlite_storage import SQLiteStorage

from lp_sweep.orchestrator.mirrors.copying import MirroredRun
from lp_sweep.orchestrator.mirrors.kinds import Mirror, MirrorKind, answering

_REFUSALS = (sqlite3.Error, OSError, RuntimeError, ValueError)


def opened(sweep: str) -> Mirror:
    with answering(MirrorKind.trackio, *_REFUSALS):
        return TrackioMirror(sweep)


class TrackioMirror:
    """One sweep's project. The constructor raises one of `_REFUSALS`."""

    def __init__(self, sweep: str) -> None:
        SQLiteStorage.validate_project_name(sweep)
        self._project = sweep
        self._keys = {str(record["id"]) for record in SQLiteStorage.get_run_records(sweep)}

    def has(self, key: str) -> bool:
        return key in self._keys

    def write(self, run: MirroredRun) -> None:
        points = _by_step(run)
        ended = run.ended_at or dt.datetime.now(dt.UTC)
        with answering(MirrorKind.trackio, *_REFUSALS):
            SQLiteStorage.bulk_log(
                project=self._project,
                run=run.name,
                run_id=run.key,
                metrics_list=[*points.values()],
                steps=[*points],
                timestamps=[ended.isoformat()] * len(points),
                config=_config(run),
            )
        self._keys.add(run.key)


def _by_step(run: MirroredRun) -> dict[int, dict[str, float]]:
    """Curves by epoch; what is known at the end stands at the last. A run without a number would
    not be there."""
    last = max((point.epoch for point in run.curves), default=0)
    found: dict[int, dict[str, float]] = {}
    for point in sorted(run.curves, key=lambda point: point.epoch):
        found.setdefault(point.epoch, {})[point.metric] = point.value
    found.setdefault(last, {}).update({**run.results, "failed": float(run.failure is not None)})
    return found


def _config(run: MirroredRun) -> dict[str, Any]:
    failure = {"failure": run.failure} if run.failure else {}
    return {**run.params, **run.tags, **failure}
