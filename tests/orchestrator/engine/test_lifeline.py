"""A Ray that does not start, dies or stops: the run goes on, or ends, within a stated time."""

from __future__ import annotations

import logging
import os
import re
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

from lp_sweep.orchestrator.engine import lifeline
from lp_sweep.orchestrator.engine.connection import connection
from lp_sweep.orchestrator.engine.raycompat import in_thread
from lp_sweep.storage.errors import PreflightError
from lp_sweep.storage.store import Store
from tests.support.courses import Clock
from tests.support.faults import Sweep, sweep, wait_for, with_changes
from tests.support.program import python
from tests.support.toyworld import save_world

DAEMONS = ["gcs_server", "raylet"]
SIGNALS = pytest.mark.parametrize(
    "number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"]
)


def test_a_ray_that_fails_to_start_is_tried_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    late = Exception("The current node timed out during startup.")  # the very type that Ray raises
    init = mock.Mock(side_effect=[late, None])
    monkeypatch.setattr(ray, "init", init)
    with connection(None):
        pass
    assert init.call_count == 2
    init.side_effect = late
    with (
        pytest.raises(PreflightError, match=r"timed out during startup.*session_latest") as told,
        connection(None),
    ):
        pass
    assert (init.call_count, told.value.exit_code) == (4, 4)
    with pytest.raises(PreflightError, match=r"at auto: .* timed out"), connection("auto"):
        pass


@pytest.mark.parametrize("address", [None, "127.0.0.1:1"])
def test_a_ray_that_is_the_users_stays(
    monkeypatch: pytest.MonkeyPatch, address: str | None
) -> None:
    """As in a notebook: it is neither joined nor shut down, and nothing is changed for it."""
    import ray

    before, init, shutdown = dict(os.environ), mock.Mock(), mock.Mock()
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", shutdown)
    with pytest.raises(PreflightError, match=r"ray\.shutdown\(\)"), connection(address):
        pass
    assert not [*init.mock_calls, *shutdown.mock_calls]
    assert before == dict(os.environ)


def test_a_connection_leaves_the_process_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray
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


def bare_lifeline() -> lifeline.Lifeline:
    """One that is connected to nothing."""
    life = object.__new__(lifeline.Lifeline)
    life._own, life._daemons, life._node = None, [], None
    life._why, life._sent, life._end = "gone", False, 0.0
    life._lost, life._over = threading.Event(), threading.Event()
    life._silence = lifeline.Spell()
    return life


def frames(*modules: str) -> Any:
    """A stack of calls, the innermost first."""
    frame = None
    for module in reversed(modules):
        frame = SimpleNamespace(f_globals={"__name__": module}, f_back=frame)
    return frame


def test_bookkeeping_is_not_cut_in_two() -> None:
    """The signal that breaks a call into Ray comes again once the queue is whole. A store that is
    busy may keep it for long: the time to leave begins after that."""
    life = bare_lifeline()
    life._lost.set()
    life._interrupt(0, frames("pathlib", lifeline._BOOKS[0]))
    assert life._end > time.monotonic() + 0.9 * lifeline._LEAVE_SECONDS
    with pytest.raises(lifeline.RayLost, match="gone"):
        life._interrupt(0, frames("ray.tune"))


def test_a_signal_at_the_end_of_the_watch_does_not_outlive_it() -> None:
    """The thread of one Ray must not reach the next."""

    class Over(threading.Event):
        def set(self) -> None:
            if not life._sent:
                life._interrupt(0, frames("ray.tune"))
            super().set()

    life, before = bare_lifeline(), signal.getsignal(signal.SIGURG)
    life._over = Over()
    count = threading.active_count()
    try:
        with pytest.raises(lifeline.RayLost), life.watched():
            life._lost.set()
        assert threading.active_count() == count
        assert signal.getsignal(signal.SIGURG) == before
    finally:
        threading.Event.set(life._over)
        signal.signal(signal.SIGURG, before)


def test_time_in_which_nobody_looked_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver was suspended for an hour, and its head answers once it is asked again."""
    now = Clock()
    monkeypatch.setattr(lifeline, "time", SimpleNamespace(monotonic=now))
    life = bare_lifeline()
    silent = SimpleNamespace(check_alive=lambda nodes, timeout: 1 // 0)
    life._head = silent
    now.after(1)
    assert not life._silent()
    looks = 1
    while not (why := life._silent()):
        now.seconds, looks = now.seconds + 6, looks + 1
    assert "not answered" in why
    assert lifeline.SILENT_SECONDS < 6 * looks < lifeline.SILENT_SECONDS + 20
    life._head = SimpleNamespace(check_alive=lambda nodes, timeout: [True])
    assert not life._silent()
    life._head = silent
    now.seconds += 6
    assert not life._silent()


def test_daemons_are_alive_and_of_this_ray(tmp_path: Path) -> None:
    """Another Ray's may be children of the same process, and what is left of an earlier one."""
    script = tmp_path / "raylet"
    script.write_text("#!/bin/sh\nread line\n")
    script.chmod(0o755)
    own, other = lifeline.OwnRay(), lifeline.OwnRay()

    def started() -> subprocess.Popen[bytes]:
        return subprocess.Popen([script], stdin=subprocess.PIPE)

    with other.starting():
        theirs = started()
    with own.starting():
        dead, living = started(), started()
    family = {child.pid: child for child in psutil.Process().children()}
    try:
        raylets = [family[process.pid] for process in (theirs, living)]
        wait_for(lambda: {process.name() for process in raylets} == {"raylet"}, "their names", 5)
        dead.kill()
        wait_for(lambda: family[dead.pid].status() == psutil.STATUS_ZOMBIE, "its end", 5)
        assert [process.pid for process in own.daemons()] == [living.pid]
    finally:
        for process in (theirs, dead, living):
            process.communicate()


def test_ctrl_c_ends_a_wait_for_the_head() -> None:
    """In the main thread, as Tune waits; also the result and the error come through."""
    assert in_thread(lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        in_thread(lambda: 1 // 0)
    began, silent = time.monotonic(), threading.Event()
    main = threading.main_thread().ident
    assert main
    threading.Timer(0.2, signal.pthread_kill, (main, signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        in_thread(lambda: silent.wait(30))
    silent.set()
    assert time.monotonic() - began < 5


def test_a_ray_that_does_not_let_go(tmp_path: Path) -> None:
    """It was joined, so that there is nothing to kill."""
    hangs = (
        "import time, ray; from lp_sweep.orchestrator.engine import lifeline;"
        "ray.shutdown, lifeline._SHUTDOWN_SECONDS = lambda: time.sleep(60), 0.1;"
        "lifeline.leave_ray(None)"
    )
    assert "again" in python(hangs, cwd=tmp_path, code=3).stderr


FREED_MEANWHILE = """
import sys, threading, time, ray
from lp_sweep.orchestrator.engine.lifeline import leave_ray

own = {"num_cpus": 1, "object_store_memory": 2**27}
ray.init("local", include_dashboard=False, log_to_driver=False, **own)
refs = [ray.put(i) for i in range(20000)]


class Ring:
    pass


def drop():
    while refs:
        ring = Ring()
        ring.ref = refs.pop()
        if cycles:
            ring.itself = ring


cycles = sys.argv[1] == "in cycles"
thread = threading.Thread(target=drop)
thread.start()
leave_ray(None)
thread.join()
print("left", ray.is_initialized())
"""


@pytest.mark.ray
@pytest.mark.parametrize("how", ["in cycles", "one by one"])
def test_references_that_are_freed_while_ray_is_left(tmp_path: Path, how: str) -> None:
    """By another thread, which is a user's, or Ray's own."""
    done = python(FREED_MEANWHILE, how, cwd=tmp_path)
    assert (done.stdout, "core worker" in done.stderr) == ("left False\n", False)


def test_ray_keeps_its_files_below_a_short_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch system's TMPDIR is too long for the paths of Ray's sockets."""
    import ray

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


@pytest.mark.ray
def test_ray_starts_where_the_folder_for_temporary_files_has_a_long_path(tmp_path: Path) -> None:
    long = tmp_path / ("job" * 30)
    long.mkdir()
    start = (
        "import ray; from lp_sweep.orchestrator.engine.connection import connection\n"
        "with connection(None): print(ray.get(ray.put(1)))"
    )
    assert python(start, cwd=tmp_path, TMPDIR=str(long)).stdout == "1\n"


@pytest.mark.ray
@pytest.mark.slow
def test_ray_is_left_twenty_times_beside_other_work(tmp_path: Path) -> None:
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    leave = (
        "import ray; from lp_sweep.orchestrator.engine.connection import connection\n"
        "for i in range(20):\n"
        "    with connection(None): refs = [ray.put(i) for i in range(1000)]; refs.append(refs)\n"
        "print(ray.is_initialized())"
    )
    try:
        done = python(leave, cwd=tmp_path)
    finally:
        for process in busy:
            process.kill()
            process.wait(30)
    assert (done.stdout, done.stderr) == ("False\n", "")


@pytest.mark.ray
@pytest.mark.parametrize("end", ["os._exit(1)", "time.sleep(600)"])
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


@pytest.mark.ray
@pytest.mark.slow
def test_a_raylet_that_ends_at_once(tmp_path: Path) -> None:
    """For real: Ray waits 30 s for it, twice."""
    save_world(tmp_path)
    broken = "import ray._private.services as s; s.RAYLET_EXECUTABLE = '/bin/false'; "
    main = "from lp_sweep.orchestrator.cli.__main__ import main; main()"
    done = python(broken + main, "run", "sweep.yaml", cwd=tmp_path, code=4)
    assert "no Ray on this machine" in done.stderr
    assert "Traceback" not in done.stderr


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


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize("name", DAEMONS)
@SIGNALS
def test_a_lost_local_ray_is_followed_by_another(
    tmp_path: Path, name: str, number: signal.Signals
) -> None:
    """Within 60 s the run trains on another Ray, or has ended with 3 and goes on when repeated."""
    with on_its_way(tmp_path) as run:
        old = run.relatives()
        daemon(run, name).send_signal(number)
        ended, text = run.process.poll, run.text
        trains = "Ray was lost.* start "
        wait_for(lambda: ended() is not None or re.search(trains, text(), re.DOTALL), text(), 60)
        assert "Ray was lost" in run.text()
        assert not [process for process in old if alive(process)]
        code = run.wait()
        assert code in (0, 3), run.text()
        assert "Traceback" not in run.text()
    if code == 3:
        with sweep(tmp_path, "sweep.yaml", **with_changes(LP_SWEEP_TEST_NOOP="1")) as again:
            assert again.wait() == 0, again.text()
    assert len(Store(tmp_path / "lp-sweep-store").names("trials")) == 12
    assert not list((tmp_path / "lp-sweep-store" / "runs").iterdir())


def alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize("name", DAEMONS)
@SIGNALS
def test_ctrl_c_while_ray_is_lost(tmp_path: Path, name: str, number: signal.Signals) -> None:
    with on_its_way(tmp_path) as run:
        daemon(run, name).send_signal(number)
        time.sleep(0.5)
        run.process.send_signal(signal.SIGINT)
        assert run.wait(30) in (130, 3), run.text()
        assert "Go on: " in run.text()
        assert not run.relatives()


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
@pytest.mark.parametrize("interrupted", [False, True], ids=["left alone", "ctrl-c"])
@SIGNALS
def test_a_lost_head_ends_the_run(
    tmp_path: Path, number: signal.Signals, interrupted: bool
) -> None:
    """A cluster is not ours to start again: the run ends within 90 s, after Ctrl-C within 60."""
    with head() as (address, gcs), on_its_way(tmp_path, "--address", address) as run:
        gcs.send_signal(number)
        if interrupted:
            time.sleep(0.5)
            run.process.send_signal(signal.SIGINT)
        code = run.wait(60 if interrupted else 90)
        assert code in ((130, 3) if interrupted else (3,)), run.text()
        assert "Go on: " in run.text()
