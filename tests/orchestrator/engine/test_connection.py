"""Which Ray a run joins or starts, and that a run ends soon once its Ray is lost."""

from __future__ import annotations

import logging
import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import psutil
import pytest
import ray

from lp_sweep.orchestrator.engine import connection as joining
from lp_sweep.orchestrator.engine.connection import connection, found_by, watched
from lp_sweep.orchestrator.engine.workqueue import WorkQueue
from lp_sweep.storage.errors import PreflightError
from lp_sweep.storage.store import Store
from tests.support.courses import course_of, new_queue
from tests.support.everyday import few
from tests.support.faults import Sweep, sweep, wait_for, with_changes
from tests.support.program import python
from tests.support.toyworld import save_world

# -- which Ray


@pytest.mark.parametrize(
    ("address", "environment", "how"),
    [
        ("b:1", {"RAY_ADDRESS": "a:1"}, "--address names it"),
        ("a:1", {"RAY_ADDRESS": "a:1"}, "RAY_ADDRESS names it"),
        ("a:1", {"LP_SWEEP_ADDRESS": "a:1"}, "LP_SWEEP_ADDRESS names it"),
        ("auto", {"RAY_ADDRESS": "a:1"}, "RAY_ADDRESS names it"),
        ("auto", {"RAY_ADDRESS": ""}, "it is at work on this machine; --address names another"),
    ],
)
def test_how_a_cluster_was_found(address: str, environment: dict[str, str], how: str) -> None:
    assert found_by(address, environment) == how


def test_a_job_server_is_no_ray_to_join() -> None:
    with pytest.raises(PreflightError, match=r"job server.*ray job submit .* -- lp-sweep run"):
        connection("http://127.0.0.1:8265").__enter__()


def test_a_ray_that_fails_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    late = Exception("The current node timed out during startup.")  # the very type that Ray raises
    monkeypatch.setattr(ray, "init", mock.Mock(side_effect=late))
    with (
        pytest.raises(PreflightError, match=r"timed out during startup.*session_latest") as told,
        connection(None),
    ):
        pass
    assert told.value.exit_code == 4
    with pytest.raises(PreflightError, match=r"at auto: .* timed out"), connection("auto"):
        pass


@pytest.mark.parametrize("address", [None, "127.0.0.1:1"])
def test_a_ray_that_is_the_users_stays(
    monkeypatch: pytest.MonkeyPatch, address: str | None
) -> None:
    """As in a notebook: it is neither joined nor shut down, and nothing is changed for it."""
    before, init, shutdown = dict(os.environ), mock.Mock(), mock.Mock()
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", shutdown)
    with pytest.raises(PreflightError, match=r"ray\.shutdown\(\)"), connection(address):
        pass
    assert not [*init.mock_calls, *shutdown.mock_calls]
    assert before == dict(os.environ)


def test_a_connection_leaves_the_process_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray._private import worker

    def seen() -> tuple[Any, ...]:
        return dict(os.environ), worker.listen_error_messages, logging.getLogger("ray.tune").level

    monkeypatch.setattr(ray, "init", lambda **options: None)
    for name in ("TUNE_GLOBAL_CHECKPOINT_S", "RAY_worker_niceness", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    before = seen()
    with connection(None):
        assert all(now != then for now, then in zip(seen(), before, strict=True))
        assert "TUNE_GLOBAL_CHECKPOINT_S" in os.environ
        assert os.environ.items() >= {("RAY_worker_niceness", "0")}
        assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"
    assert seen() == before


def test_ray_keeps_its_files_below_a_short_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch system's TMPDIR is too long for the paths of Ray's sockets."""
    init, short = mock.Mock(), Path(f"/tmp/lp-sweep-{os.getuid()}")
    monkeypatch.setattr(ray, "init", init)

    def used(variable: str, folder: Path) -> Path:
        for name in ("RAY_TMPDIR", "TMPDIR"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv(variable, str(folder))
        monkeypatch.setattr(tempfile, "tempdir", None)
        with connection(None):
            return Path(init.call_args.kwargs["_temp_dir"]).parent

    long = tmp_path / ("job" * 12)
    long.mkdir()
    assert used("TMPDIR", long) == used("RAY_TMPDIR", long) == short
    assert stat.S_IMODE(short.stat().st_mode) == 0o700
    assert used("TMPDIR", Path("/dev/shm")) == used("RAY_TMPDIR", Path("/dev/shm"))
    assert used("TMPDIR", Path("/missing/job")) == Path("/tmp")
    with pytest.raises(PreflightError, match=r"/dev/null/a.*RAY_TMPDIR"):
        used("RAY_TMPDIR", Path("/dev/null/a"))


REFERENCES_FREED_MEANWHILE = """
import threading, ray
from lp_sweep.orchestrator.engine.connection import connection


class Ring:
    pass


def drop():
    while refs:
        ring = Ring()
        ring.ref, ring.itself = refs.pop(), ring


thread = threading.Thread(target=drop)
with connection(None):
    refs = [ray.put(i) for i in range(20000)]
    thread.start()
thread.join()
print("left", ray.is_initialized())
"""


@pytest.mark.ray
def test_a_ray_of_our_own_starts_and_is_left(tmp_path: Path) -> None:
    """Also where the folder for temporary files has a long path, and while another thread, which is
    a user's or Ray's own, frees references in cycles."""
    long = tmp_path / ("job" * 30)
    long.mkdir()
    done = python(REFERENCES_FREED_MEANWHILE, cwd=tmp_path, TMPDIR=str(long))
    assert (done.stdout, "core worker" in done.stderr) == ("left False\n", False)


# -- a Ray that is lost


HERE = {"NodeID": "here", "Alive": True}


@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        pytest.param([HERE | {"Alive": False}], "raylet of this machine", id="raylet"),
        pytest.param(1, "head has not answered for", id="head"),
        pytest.param([HERE], None, id="nothing is wrong"),
    ],
)
def test_why_a_ray_counts_as_lost(
    monkeypatch: pytest.MonkeyPatch, nodes: Any, why: str | None
) -> None:
    for name, seconds in {"LOOK": 0.01, "SILENT": 0.5}.items():
        monkeypatch.setattr(joining, f"_{name}_SECONDS", seconds)
    here = SimpleNamespace(get_node_id=lambda: "here")
    monkeypatch.setattr(ray, "get_runtime_context", lambda: here)
    monkeypatch.setattr(ray, "nodes", lambda: [*nodes])
    lost, told = threading.Event(), list[str]()
    with watched(lambda why: (told.append(why), lost.set())):
        assert lost.wait(5 if why else 1) is (why is not None)
    assert not why or why in told[0]


@pytest.mark.parametrize(("left", "code"), [(0, 0), (1, 3)], ids=["complete", "not complete"])
def test_how_a_process_ends_whose_ray_is_lost(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    left: int,
    code: int,
) -> None:
    queue, ends = new_queue(tmp_path), mock.Mock()
    queue.plan.known = queue.plan.known._replace(
        trials={*list(queue.plan.trials)[left:]}, profiles=dict.fromkeys(queue.plan.profiles)
    )
    monkeypatch.setattr(os, "_exit", ends)
    monkeypatch.setattr(WorkQueue, "known", lambda queue: queue.plan.known)
    monkeypatch.setattr(joining, "make_plan", lambda sweep, known: queue.plan)
    joining._end_lost(course_of(queue), "its raylet has died")
    assert ends.mock_calls == [mock.call(code)]
    told = capsys.readouterr().err
    assert "Ray was lost: its raylet has died. Finished work is safe" in told
    assert ("Go on: the same command" in told) is (code == 3)


def test_a_ray_that_does_not_let_go(tmp_path: Path) -> None:
    hangs = (
        "import time, ray; from lp_sweep.orchestrator.engine import connection as joining;"
        "ray.shutdown, joining._SHUTDOWN_SECONDS = lambda: time.sleep(60), 0.1;"
        "joining._leave()"
    )
    assert "Go on: the same command" in python(hangs, cwd=tmp_path, code=3).stderr


@pytest.mark.ray
@pytest.mark.parametrize("end", few(["os._exit(1)", "time.sleep(600)"], 1))
def test_a_complete_run_ends_well_whatever_ray_does_then(tmp_path: Path, end: str) -> None:
    save_world(tmp_path)
    raw = "The core worker has already been shutdown"
    program = (
        f"import os, time, ray; ray.shutdown = lambda *_: [os.write(2, b'{raw}'), {end}];"
        "from lp_sweep.orchestrator.cli.__main__ import main; main()"
    )
    settings = with_changes(LP_SWEEP_TEST_NOOP="1")
    done = python(program, "run", "sweep.yaml", cwd=tmp_path, **settings)
    assert raw not in done.stderr
    assert "next: " in done.stderr.splitlines()[-1]


@contextmanager
def on_its_way(folder: Path, *arguments: str | Path) -> Iterator[Sweep]:
    """A run of 12 trials of four seconds, after the second of them."""
    save_world(folder, seeds=list(range(6)))
    settings = with_changes(LP_SWEEP_TEST_NOOP="1", LP_SWEEP_TEST_SECONDS="4")
    with sweep(folder, "sweep.yaml", *arguments, **settings) as run:
        wait_for(lambda: run.text().count("] done ") >= 2, f"two trials: {run.text()}")
        yield run


def daemon(run: Sweep, name: str) -> psutil.Process:
    children = psutil.Process(run.process.pid).children()
    return next(child for child in children if child.name() == name)


def assert_ended(run: Sweep, interrupted: bool) -> None:
    """A run whose Ray is lost, and which the user may interrupt meanwhile."""
    if interrupted:
        time.sleep(0.5)
        run.process.send_signal(signal.SIGINT)
    assert run.wait(60) in ((130, 3) if interrupted else (3,)), run.text()
    assert interrupted or "Ray was lost" in run.text()
    assert "Go on: " in run.text()


INTERRUPTED = pytest.mark.parametrize("interrupted", [False, True], ids=["left alone", "ctrl-c"])


@pytest.mark.ray
@pytest.mark.slow
@INTERRUPTED
@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("gcs_server", signal.SIGKILL),
        ("gcs_server", signal.SIGSTOP),
        ("raylet", signal.SIGKILL),  # one that is stopped is lost once the head gives it up
    ],
)
def test_a_lost_local_ray_ends_the_run(
    tmp_path: Path, name: str, number: signal.Signals, interrupted: bool
) -> None:
    """Within 60 s, with all its processes; the same command goes on."""
    with on_its_way(tmp_path) as run:
        daemon(run, name).send_signal(number)
        assert_ended(run, interrupted)
        assert "Traceback" not in run.text()
        wait_for(lambda: not run.relatives(), "its Ray has gone", 60)
    with sweep(tmp_path, "sweep.yaml", **with_changes(LP_SWEEP_TEST_NOOP="1")) as again:
        assert again.wait() == 0, again.text()
    assert len(Store(tmp_path / "lp-sweep-store").names("trials")) == 12
    assert not list((tmp_path / "lp-sweep-store" / "runs").iterdir())


HEAD = """
import sys
from ray.cluster_utils import Cluster

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "num_gpus": 0})
print(cluster.address, flush=True)
sys.stdin.read()
"""


@contextmanager
def head() -> Iterator[tuple[str, psutil.Process]]:
    """A cluster of one machine in a process of its own: its address, and its GCS."""
    process = subprocess.Popen(
        [sys.executable, "-c", HEAD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout
    try:
        address = process.stdout.readline().strip()
        family = psutil.Process(process.pid).children(recursive=True)
        yield address, next(child for child in family if child.name() == "gcs_server")
    finally:
        for child in psutil.Process(process.pid).children(recursive=True):
            child.kill()
        process.kill()
        process.wait(30)


@pytest.mark.ray
@pytest.mark.slow
@INTERRUPTED
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_lost_head_ends_the_run(
    tmp_path: Path, number: signal.Signals, interrupted: bool
) -> None:
    with head() as (address, gcs), on_its_way(tmp_path, "--address", address) as run:
        gcs.send_signal(number)
        assert_ended(run, interrupted)
