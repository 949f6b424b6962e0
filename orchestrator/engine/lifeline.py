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
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from lp_sweep.orchestrator.engine.raycompat import in_thread
from lp_sweep.storage.errors import LpSweepError

STOPPED_SECONDS = 15.0  # a process of our own Ray that is stopped for this long counts as dead
SILENT_SECONDS = 40.0  # without an answer from the head; Ray aborts the driver after 60
_ANSWER_SECONDS = 5.0
_LOOK_SECONDS = 1.0
_LEAVE_SECONDS = 25.0  # for the main thread to leave its call into Ray
_SHUTDOWN_SECONDS = 8.0  # 5 with a dead head, 1 with a live one
_STOPPED_EXIT = 3

_keeps_process = False  # a head that is stopped

_MARK = "LP_SWEEP_RAY"  # in the environment of all processes of a Ray that we started
_DAEMONS = ("gcs_server", "raylet")
# Their bookkeeping must not be cut in two: the next Ray goes on with the same queue
_BOOKS = tuple(f"lp_sweep.orchestrator.engine.{name}" for name in ("course", "workqueue"))


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
        """The live processes without which it is dead."""
        import psutil

        children = self._alive(psutil.Process().children())
        return [child for child in children if child.name() in _DAEMONS]

    def kill(self) -> None:
        """All of it: nothing goes on training once this returns."""
        import psutil

        for _ in range(50):  # a raylet may start a worker between the look and its death
            if not (found := self._alive(psutil.process_iter())):
                return
            for process in found:
                with suppress(Exception):  # it has ended by itself
                    process.kill()
            time.sleep(0.1)

    def _alive(self, processes: Iterable[Any]) -> list[Any]:
        """Those of them that belong to this Ray."""
        import psutil

        found = []
        for process in processes:
            with suppress(psutil.Error, OSError):
                ours = process.environ().get(_MARK) == self.mark and process.pid != os.getpid()
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found


class Spell:
    """Measures how long something lasts, by looking at it again and again. Time without a look does
    not count: this process may have been suspended."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._looked = time.monotonic()

    def look(self, lasts: bool) -> float:
        """Seconds up to now; 0 where it does not last."""
        now, before = time.monotonic(), self._looked
        passed = min(now - before, _ANSWER_SECONDS + _LOOK_SECONDS)
        self._seconds = self._seconds + passed if lasts else 0.0
        self._looked = now
        return self._seconds


class Lifeline:
    """Watches the Ray that this process is connected to, in a thread. `own`: None where it is a
    cluster that was joined."""

    def __init__(self, own: OwnRay | None) -> None:
        import ray
        from ray._raylet import GcsClient  # type: ignore[attr-defined]

        context = ray.get_runtime_context()
        self._own = own
        self._daemons = [(process, Spell()) for process in (own.daemons() if own else [])]
        self._head: Any = GcsClient(address=context.gcs_address)
        self._node = ray.NodeID.from_hex(context.get_node_id())
        self._silence = Spell()
        self._end = 0.0  # when the main thread must be out
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
            try:
                self._over.set()
            finally:  # where our own signal came before that
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
        self._end = time.monotonic() + _LEAVE_SECONDS
        main = threading.main_thread().ident
        while not self._over.wait(0.5) and main:
            if time.monotonic() > self._end:
                _give_up(self._why)
            signal.pthread_kill(main, signal.SIGURG)

    def _dead(self) -> str:
        """Which process of our own Ray is gone; "" where all live."""
        import psutil

        for process, stop in self._daemons:
            state = _state(process)
            if state in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                return f"its {process.name() or 'process'} has died"
            if stop.look(state == psutil.STATUS_STOPPED) > STOPPED_SECONDS:
                return f"its {process.name()} has been stopped for {STOPPED_SECONDS:.0f} s"
        return ""

    def _silent(self) -> str:
        """Why the head counts as lost; "" where it answers, or did a moment ago."""
        try:
            # in a thread: with a head that is stopped, a second call outlasts its own timeout
            [alive] = in_thread(
                lambda: self._head.check_alive([self._node], timeout=_ANSWER_SECONDS),
                _ANSWER_SECONDS,
            )
        except Exception:  # whatever a head on its way down can do
            silent = self._silence.look(True)
            return f"its head has not answered for {silent:.0f} s" * (silent > SILENT_SECONDS)
        self._silence.look(False)
        return "" if alive else "the raylet of this machine has died"

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        """In the main thread. Sent again and again until it is out."""
        del number
        if self._over.is_set() or not self._lost.is_set():  # it was sent for an earlier Ray
            return
        while frame is not None:
            if frame.f_globals.get("__name__") in _BOOKS:  # as long as a busy store keeps it
                self._end = time.monotonic() + _LEAVE_SECONDS
                return
            frame = frame.f_back
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

    global _keeps_process
    thread = threading.Thread(target=ray.shutdown, daemon=True)
    thread.start()
    try:
        thread.join(_SHUTDOWN_SECONDS)
    finally:
        if own:
            own.kill()
            thread.join(_SHUTDOWN_SECONDS)
        _keeps_process = thread.is_alive()
        if _keeps_process:  # a program of the user's own ends by itself
            atexit.unregister(ray.shutdown)


def leave_process(code: int) -> None:
    """End the process where a stopped head would keep it: Ray and Tune ask the head once more when
    Python ends, a minute each. Elsewhere it does nothing."""
    if _keeps_process:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
