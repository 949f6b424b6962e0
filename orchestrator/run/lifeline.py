"""Notices that the Ray of a run is lost, and gets the run out of it within a stated time.

Ray itself leaves a driver waiting: without end where its raylet is gone or its head is stopped. The
bounds that follow from the constants below are listed in docs/reliability.md.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from lp_sweep.storage.errors import LpSweepError

STOPPED_SECONDS = 15.0  # a process of our own Ray that is stopped for this long counts as dead
SILENT_SECONDS = 40.0  # without an answer from the head; Ray aborts the driver after 60
_ANSWER_SECONDS = 5.0
_LOOK_SECONDS = 1.0
_LEAVE_SECONDS = 25.0  # for the main thread to leave its call into Ray
_SHUTDOWN_SECONDS = 8.0  # 5 with a dead head, 1 with a live one
_STOPPED_EXIT = 3

_MARK = "LP_SWEEP_RAY"  # in the environment of all processes of a Ray that we started
_DAEMONS = ("gcs_server", "raylet")
# Their bookkeeping must not be cut in two: the next Ray goes on with the same queue
_BOOKS = tuple(f"lp_sweep.orchestrator.run.{name}" for name in ("tunecallback", "workqueue"))


class RayLost(KeyboardInterrupt):
    """Ends the fit as Ctrl-C does; Tune would swallow an ordinary exception."""


class OwnRay:
    """The processes of a Ray that this process starts. They are found by a mark in their
    environment, since what a dead raylet leaves behind is no longer a child of ours."""

    def __init__(self) -> None:
        self.mark = uuid.uuid4().hex

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Every process that is started inside belongs to this Ray."""
        os.environ[_MARK] = self.mark
        try:
            yield
        finally:
            del os.environ[_MARK]

    def daemons(self) -> list[Any]:
        """The processes without which it is dead."""
        import psutil

        return [child for child in psutil.Process().children() if child.name() in _DAEMONS]

    def kill(self) -> None:
        """All of it: nothing goes on training once this returns."""
        for _ in range(50):  # a raylet may start a worker between the look and its death
            if not (found := self._processes()):
                return
            for process in found:
                with suppress(Exception):  # it has ended by itself
                    process.kill()
            time.sleep(0.1)

    def _processes(self) -> list[Any]:
        import psutil

        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                ours = process.environ().get(_MARK) == self.mark and process.pid != os.getpid()
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found


class Lifeline:
    """Watches the Ray that this process is connected to, in a thread. `own`: None where it is a
    cluster that was joined."""

    def __init__(self, own: OwnRay | None) -> None:
        import ray
        from ray._raylet import GcsClient  # type: ignore[attr-defined]

        context = ray.get_runtime_context()
        self._own = own
        self._daemons = own.daemons() if own else []
        self._stopped: dict[int, float] = {}  # since when
        self._head: Any = GcsClient(address=context.gcs_address)
        self._node = ray.NodeID.from_hex(context.get_node_id())
        self._answered = time.monotonic()
        self._lost = threading.Event()
        self._over = threading.Event()
        self._why = ""
        self._sent = False  # the signal, and the main thread took it

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Raises RayLost, with the reason as its text. Main thread only."""
        before = signal.signal(signal.SIGURG, self._interrupt)
        thread = threading.Thread(target=self._watch, daemon=True)
        thread.start()
        try:
            yield
        except LpSweepError:
            raise
        except (Exception, KeyboardInterrupt) as error:
            if why := self._loss(error):
                raise RayLost(why) from error
            raise
        finally:
            self._over.set()
            thread.join(2 * _ANSWER_SECONDS)
            signal.signal(signal.SIGURG, before)

    def _loss(self, error: BaseException) -> str:
        """Why Ray is lost, where this error comes from that. Ray's errors are of many types, and
        often come before its loss is seen here. Out of a call into it our signal comes as a plain
        KeyboardInterrupt."""
        from ray.exceptions import RayError, RayTaskError

        if isinstance(error, KeyboardInterrupt):
            return self._why * (self._sent and type(error) is KeyboardInterrupt)
        if self._lost.wait(3 * _LOOK_SECONDS):
            return self._why
        of_ray = isinstance(error, RayError) and not isinstance(error, RayTaskError)
        return f"a call into it failed ({error})" * of_ray

    def _watch(self) -> None:
        while not self._over.wait(_LOOK_SECONDS):
            self._why = self._dead() or self._silent()
            if self._why:
                break
        else:
            return
        self._lost.set()
        if self._own:
            self._own.kill()
        end = time.monotonic() + _LEAVE_SECONDS
        main = threading.main_thread().ident
        while not self._over.wait(0.5) and main:
            if time.monotonic() > end:
                _give_up(self._why)
            signal.pthread_kill(main, signal.SIGURG)

    def _dead(self) -> str:
        """Which process of our own Ray is gone; "" where all live."""
        import psutil

        for process in self._daemons:
            state = _state(process)
            if state in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                return f"its {process.name() or 'process'} has died"
            if state != psutil.STATUS_STOPPED:
                self._stopped.pop(process.pid, None)
                continue
            since = self._stopped.setdefault(process.pid, time.monotonic())
            if time.monotonic() - since > STOPPED_SECONDS:
                return f"its {process.name()} has been stopped for {STOPPED_SECONDS:.0f} s"
        return ""

    def _silent(self) -> str:
        """Why the head counts as lost; "" where it answers, or did a moment ago."""
        try:
            [alive] = self._head.check_alive([self._node], timeout=_ANSWER_SECONDS)
        except Exception:  # whatever a head on its way down can do
            silent = time.monotonic() - self._answered
            return f"its head has not answered for {silent:.0f} s" * (silent > SILENT_SECONDS)
        self._answered = time.monotonic()
        return "" if alive else "the raylet of this machine has died"

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        """In the main thread. Sent again and again until it is out."""
        del number
        while frame is not None:
            if frame.f_globals.get("__name__") in _BOOKS:
                return
            frame = frame.f_back
        if not self._over.is_set():
            self._sent = True
            raise RayLost(self._why)


def _state(process: Any) -> str:
    import psutil

    try:
        return str(process.status())
    except psutil.Error:
        return str(psutil.STATUS_DEAD)


def _give_up(why: str) -> None:
    """The main thread does not come out of its call into Ray."""
    again = "What was finished is in the store. Go on: the same command again."
    print(
        f"\nstopped: Ray was lost ({why}), and does not end. {again}", file=sys.stderr, flush=True
    )
    os._exit(_STOPPED_EXIT)


def leave_ray(own: OwnRay | None) -> None:
    """`ray.shutdown()`, which does not return while a head that is stopped keeps its connection."""
    import ray

    thread = threading.Thread(target=ray.shutdown, daemon=True)
    thread.start()
    try:
        thread.join(_SHUTDOWN_SECONDS)
    finally:
        if own:
            own.kill()
            thread.join(_SHUTDOWN_SECONDS)
        if thread.is_alive():
            atexit.unregister(ray.shutdown)
