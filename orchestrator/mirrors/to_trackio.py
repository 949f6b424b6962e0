"""trackio: a project per sweep, a run per trial, in the local store at TRACKIO_DIR. `trackio sync`
sends a project to a Space.

Does not use `trackio.init`, which prints on stdout, asks the hub for the user's name, and loses
values with a mere warning. A run is one transaction, as in trackio's own importers.
"""

from __future__ import annotations

import datetime as dt
import sqlite3

from trackio.sqlite_storage import SQLiteStorage

from lp_sweep.orchestrator.mirrors.copying import Mirror, MirroredRun
from lp_sweep.orchestrator.options import MirrorKind


class TrackioMirror(Mirror):
    kind = MirrorKind.trackio
    refusals = (sqlite3.Error, OSError, RuntimeError, ValueError)

    def complete(self) -> set[str]:
        SQLiteStorage.validate_project_name(self.sweep)
        return {str(record["id"]) for record in SQLiteStorage.get_run_records(self.sweep)}

    def put(self, run: MirroredRun) -> None:
        points = {epoch: dict(values) for epoch, values in run.curves.items()}
        # trackio drops a run without any number
        points.setdefault(run.last_epoch, {}).update(
            {**run.results, "failed": float(run.failure is not None)}
        )
        ended = run.ended_at or dt.datetime.now(dt.UTC)
        failure = {"failure": run.failure} if run.failure else {}
        SQLiteStorage.bulk_log(
            project=self.sweep,
            run=run.name,
            run_id=run.key,
            metrics_list=[*points.values()],
            steps=[*points],
            timestamps=[ended.isoformat()] * len(points),
            config={**run.params, **run.tags, **failure},
        )
