"""Trials in MLflow: in its file store, and at a real server of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from lp_sweep.orchestrator.mirrors.copying import copy_trials
from lp_sweep.orchestrator.mirrors.kinds import MirrorKind, open_mirror
from lp_sweep.storage.errors import LpSweepError
from lp_sweep.storage.store import Store
from tests.support.mirrorworld import SECRET, mirrored_store, trial_of

pytest.importorskip("mlflow", reason="needs MLflow: pip install 'lp-sweep[mlflow]'")
SERVES = find_spec("sqlalchemy") and find_spec("uvicorn")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An MLflow server over SQLite on loopback, in a process of its own."""
    if not SERVES:
        pytest.skip("needs all of MLflow for its server: pip install mlflow")
    folder = tmp_path_factory.mktemp("server")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [
                sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1",
                "--port", str(port), "--workers", "1",
                "--backend-store-uri", f"sqlite:///{folder}/mlflow.db",
                "--default-artifact-root", str(folder / "artifacts"),
            ],
            cwd=folder, stdout=log, stderr=log,
        )  # fmt: skip
        try:
            _await(address, process, folder / "log")
            yield address
        finally:
            process.terminate()
            process.wait(30)


def _await(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(600):
        assert process.poll() is None, log.read_text(encoding="utf-8")
        try:
            urlopen(f"{address}/health", timeout=1).close()
        except (URLError, OSError):
            time.sleep(0.2)
        else:
            return
    raise AssertionError(log.read_text(encoding="utf-8"))


@pytest.fixture(params=["file", pytest.param("server", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Address of an MLflow to write to."""
    if request.param == "file":
        address = (tmp_path / "mlruns").as_uri()
        monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    else:
        address = str(request.getfixturevalue("server"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", request.node.name)
    return address


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return mirrored_store(tmp_path / "store")


def copied(store: Store, sweep: str = "demo") -> tuple[int, ...]:
    return copy_trials(store, sweep, open_mirror(MirrorKind.mlflow, sweep))


def client() -> Any:
    from mlflow.tracking import MlflowClient

    return MlflowClient()


def runs() -> dict[str, Any]:
    """By trial."""
    experiment = client().get_experiment_by_name(os.environ["MLFLOW_EXPERIMENT_NAME"])
    found = client().search_runs([experiment.experiment_id])
    return {run.data.tags["lp_sweep.trial_id"]: run for run in found}


def test_each_trial_is_a_run(place: str, store: Store) -> None:
    assert copied(store) == (3, 1, 0)
    made = runs()
    id_ = trial_of(store, strategy="top", k=4)
    run = made[id_]
    record = store.read("trials", id_)[0]
    assert run.info.run_name == "bert layers 1-8 of 12 SST-2 seed 42"
    assert run.info.status == "FINISHED"
    assert run.info.start_time == int(record["started_at"].timestamp() * 1000)
    assert run.info.end_time == int(record["ended_at"].timestamp() * 1000)
    assert run.data.params.items() >= {
        "model": "bert", "task": "SST-2", "seed": "42", "k": "4", "kept_layers": "1-8",
        "dropped_layers": "9-12", "strategies": "top K=4", "learning_rate": "3e-05",
    }.items()  # fmt: skip
    assert run.data.metrics["last"] == 0.9
    assert run.data.metrics["seconds_total"] == record["seconds_total"]
    assert run.data.tags["lp_sweep.sweep"] == "demo"
    curve = client().get_metric_history(run.info.run_id, "train/loss")
    assert [(point.step, point.value) for point in curve] == [(1, 0.6), (2, 0.4), (3, 0.3)]


def test_a_failure_is_told_nothing_is_written_twice_and_no_secret(place: str, store: Store) -> None:
    copied(store)
    failed = runs()[trial_of(store, k=8)]
    assert failed.info.status == "FAILED"
    assert failed.data.tags["lp_sweep.error_type"] == "out_of_memory"
    assert failed.data.tags["mlflow.note.content"].startswith("out_of_memory: the device has no")
    before = {id_: run.info.run_id for id_, run in runs().items()}
    assert copied(store) == (0, 0, 3)
    assert {id_: run.info.run_id for id_, run in runs().items()} == before
    assert SECRET not in str([run.to_dictionary() for run in runs().values()])


def test_a_run_that_was_broken_off_is_written_anew(
    place: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    def away(*_: object, **__: object) -> None:
        raise MlflowException("the server has gone")

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "set_terminated", away)
        with pytest.raises(LpSweepError, match="mlflow: the server has gone"):
            copied(store)
    (half,) = runs().values()
    assert half.info.status == "RUNNING"
    assert copied(store) == (3, 1, 0)
    assert {run.info.status for run in runs().values()} == {"FINISHED", "FAILED"}
    assert half.info.run_id not in [run.info.run_id for run in runs().values()]


def test_a_server_that_is_not_there_is_one_sentence_without_its_password(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:{SECRET}@127.0.0.1:1")
    with pytest.raises(LpSweepError, match=r"^mlflow: .*127\.0\.0\.1") as told:
        copied(store)
    assert SECRET not in str(told.value)
    assert "\n" not in str(told.value)
