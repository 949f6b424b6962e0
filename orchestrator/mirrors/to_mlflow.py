"""MLflow: an experiment per sweep, a run per trial. MLFLOW_TRACKING_URI names the server, database
or folder; MLFLOW_EXPERIMENT_NAME or the sweep's name is the experiment.

The tag `lp_sweep.key` identifies a run. A run that is still RUNNING was only partly written.
"""

from __future__ import annotations

import datetime as dt
import os

import mlflow
from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from lp_sweep.orchestrator.mirrors.copying import Mirror, MirroredRun
from lp_sweep.orchestrator.options import MirrorKind

_MOST_METRICS = 800  # of one request: a server takes 1000 values in all
_LONGEST = 500  # characters of a parameter that every server takes


class MlflowMirror(Mirror):
    kind, refusals = MirrorKind.mlflow, (MlflowException, OSError)

    def complete(self) -> set[str]:
        self._client, self._broken = MlflowClient(), dict[str, str]()  # key -> run_id
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or self.sweep
        known = self._client.get_experiment_by_name(name)
        self._experiment = known.experiment_id if known else self._client.create_experiment(name)
        whole = set()
        for run in mlflow.search_runs([self._experiment], output_format="list"):
            tags = run.data.tags
            if tags.get("lp_sweep.sweep") != self.sweep or "lp_sweep.key" not in tags:
                continue
            if run.info.status == "RUNNING":
                self._broken[tags["lp_sweep.key"]] = run.info.run_id
            else:
                whole.add(tags["lp_sweep.key"])
        return whole

    def put(self, run: MirroredRun) -> None:
        client, ended = self._client, _milliseconds(run.ended_at)
        if run.key in self._broken:
            client.delete_run(self._broken.pop(run.key))
        note = {"mlflow.note.content": run.failure} if run.failure else {}
        id_ = client.create_run(
            self._experiment,
            start_time=_milliseconds(run.started_at),
            tags={**run.tags, "mlflow.source.name": "lp-sweep", **note},
            run_name=run.name,
        ).info.run_id
        self._broken[run.key] = id_
        params = [Param(name, str(value)[:_LONGEST]) for name, value in run.params.items()]
        client.log_batch(id_, params=params)
        metrics = [
            Metric(name, value, ended, epoch)
            for epoch, values in [*run.curves.items(), (run.last_epoch, run.results)]
            for name, value in values.items()
        ]
        for start in range(0, len(metrics), _MOST_METRICS):
            client.log_batch(id_, metrics=metrics[start : start + _MOST_METRICS])
        client.set_terminated(id_, "FAILED" if run.failure else "FINISHED", ended)
        del self._broken[run.key]


def _milliseconds(moment: dt.datetime | None) -> int:
    return int((moment or dt.datetime.now(dt.UTC)).timestamp() * 1000)
