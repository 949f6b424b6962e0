"""A store with trials for a mirror; and each kind of mirror with a place to write to, and what it
holds afterwards in the same words. Not a test."""

from __future__ import annotations

import datetime as dt
import json
import os
import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from lp_sweep.orchestrator.mirrors.copying import copy_trials, open_mirror
from lp_sweep.orchestrator.options import MirrorKind
from lp_sweep.storage.store import Store
from tests.support.fake_records import FakeSweep
from tests.support.program import python, run

SECRET = "Zq-hunter2-hunter2"


def mirrored_store(folder: Path, name: str = "demo") -> Store:
    """Two trials that are done, one of them of two cells; one that has failed; one to do."""
    fake = FakeSweep(folder, name)
    fake.cell(k=0, score=92.5)
    fake.cell(k=0, score=92.5, strategy="bottom")
    private = {"command": f"lp-sweep run --token {SECRET}", "host": SECRET}
    fake.cell(k=4, score=90.0, learning_rate=3e-5, **private)
    fake.cell(k=8, state="failed")
    fake.cell(k=10, state="pending")
    return fake.publish()


def trial_of(store: Store, sweep: str = "demo", **cell: Any) -> str:
    """The identifier of the trial of the cell."""
    rows = store.read("sweeps", sweep)
    (found,) = {row["trial_id"] for row in rows if cell.items() <= row.items()}
    return str(found)


class Seen(NamedTuple):
    """A run in a mirror."""

    id: str  # another one if the run is written again
    name: str
    settings: dict[str, str]
    losses: list[tuple[int, float]]  # step and train/loss
    last: float | None
    failure: str  # "" if the trial is done
    ended_ms: int | None = None  # a timestamp, where the mirror takes it


class FakeWandb:
    """Our writer of W&B over a small stand-in for its package, which needs no installation."""

    name = "wandb"
    path = Path(__file__).parent / "fakewandb"

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        offline(folder, monkeypatch)
        monkeypatch.setenv("PYTHONPATH", str(self.path))  # of processes
        _load(monkeypatch, "wandb", self.path / "wandb.py")
        _load(monkeypatch, to_wandb := "lp_sweep.orchestrator.mirrors.to_wandb", _file_of(to_wandb))

    def copy(self, store: Store, sweep: str = "demo") -> tuple[int, ...]:
        return tuple(copy_trials(store, sweep, open_mirror(MirrorKind(self.name), sweep)).values())

    def runs(self) -> dict[str, Seen]:
        """By key."""
        made = [self._run(path) for path in (self.folder / "wandb").glob("offline-run-*")]
        return {seen.id.rpartition("-")[0]: seen for seen in made}

    def _run(self, folder: Path) -> Seen:
        told = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        assert told["exit_code"] == int(bool(told["notes"]))
        return Seen(
            told["id"],
            told["name"],
            {key: str(value) for key, value in told["config"].items()},
            [(row["_step"], row["train/loss"]) for row in told["history"] if "train/loss" in row],
            told["summary"].get("last"),
            told["notes"] or "",
        )

    def content(self) -> bytes:
        """All that it keeps."""
        files = (path for path in (self.folder / self.name).rglob("*") if path.is_file())
        return b"".join(path.read_bytes() for path in files)


def offline(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_PROJECT", "WANDB_API_KEY", "WANDB_ENTITY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(folder))


def _file_of(module: str) -> Path:
    spec = find_spec(module)
    assert spec
    assert spec.origin
    return Path(spec.origin)


def _load(monkeypatch: pytest.MonkeyPatch, name: str, file: Path) -> None:
    """Loads a module in place of what has its name, until the test ends."""
    spec = spec_from_file_location(name, file)
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)


class MLflow(FakeWandb):
    """In a folder, whose store has the limits of a server."""

    name = "mlflow"

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        monkeypatch.setenv("MLFLOW_TRACKING_URI", (folder / "mlruns").as_uri())
        monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", folder.name)

    def found(self) -> dict[str, Any]:
        experiment = client().get_experiment_by_name(os.environ["MLFLOW_EXPERIMENT_NAME"])
        found = client().search_runs([experiment.experiment_id])
        return {run.data.tags["lp_sweep.key"]: run for run in found}

    def runs(self) -> dict[str, Seen]:
        return {key: self._seen(run) for key, run in self.found().items()}

    def _seen(self, run: Any) -> Seen:
        points = client().get_metric_history(run.info.run_id, "train/loss")
        failure = run.data.tags.get("mlflow.note.content", "")
        assert run.info.status == ("FAILED" if failure else "FINISHED")
        return Seen(
            run.info.run_id,
            run.info.run_name,
            run.data.params | run.data.tags,
            [(point.step, point.value) for point in points],
            run.data.metrics.get("last"),
            failure,
            run.info.end_time,
        )

    def content(self) -> bytes:
        return str([run.to_dictionary() for run in self.found().values()]).encode()


def client() -> Any:
    from mlflow.tracking import MlflowClient

    return MlflowClient()


class Trackio(FakeWandb):
    """By processes of its own: trackio reads its variables once."""

    name = "trackio"
    _READ = """
import json, sys, trackio
from trackio.sqlite_storage import SQLiteStorage
found = {
    run.id: (run.name, run.config, SQLiteStorage.get_logs("demo", run.name, run_id=run.id))
    for run in trackio.Api().runs("demo")
}
print(json.dumps(found))
"""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        monkeypatch.setenv("TRACKIO_DIR", str(folder / "trackio"))

    def copy(self, store: Store, sweep: str = "demo") -> tuple[int, ...]:
        words = ("mirror", "--to", "trackio", "--store", store.location, "--json", "--sweep", sweep)
        (told,) = json.loads(run(*words, cwd=self.folder).stdout)
        return told["written"], told["failures"], told["there"]

    def runs(self) -> dict[str, Seen]:
        found = json.loads(python(self._READ, cwd=self.folder).stdout.splitlines()[-1])
        return {key: self._seen(key, *told) for key, told in found.items()}

    def _seen(self, key: str, name: str, config: dict[str, Any], logs: list[Any]) -> Seen:
        failure = config.pop("failure", "")
        assert logs[-1]["failed"] == bool(failure)
        assert "_Username" not in config
        losses = [(row["step"], row["train/loss"]) for row in logs if "train/loss" in row]
        settings = {name: str(value) for name, value in config.items()}
        ended = int(1000 * dt.datetime.fromisoformat(logs[-1]["timestamp"]).timestamp())
        return Seen(key, name, settings, losses, logs[-1].get("last"), failure, ended)
