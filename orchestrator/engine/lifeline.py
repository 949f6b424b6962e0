"""Notices that the Ray of a run is lost, and gets the run out of it within a bounded time.

Ray itself leaves a driver waiting without end if its raylet is gone or its head is stopped.
docs/reliability.md lists the bounds that follow from the constants below.
"""

from __future__ import annotations

import gc
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

from lp_sweep.orchestrator.engine.raycompat import in_thread, keep_references
from lp_sweep.storage.errors import LpSweepError

STOPPED_SECONDS = 15.0  # a process of our own Ray that is stopped for this long counts as dead
SILENT_SECONDS = 40.0  # without an answer from the head; Ray aborts the driver after 60
_ANSWER_SECONDS = 5.0
_LOOK_SECONDS = 1.0
_LEAVE_SECONDS = 25.0  # for the main thread to leave its call into Ray
_SHUTDOWN_SECONDS = 8.0  # 5 with a dead head, 1 with a live one
_STOPPED_EXIT = 3

_rays: list[OwnRay | None] = []  # what this process is connected to; None: to one that it joined

_MARK = "LP_SWEEP_RAY"  # in the environment of all processes of a Ray that we started
_DAEMONS = ("gcs_server", "raylet")
# their bookkeeping is never interrupted, since the next Ray continues with the same queue
_BOOKS = tuple(f"lp_sweep.orchestrator.engine.{name}" for name in ("course", "workqueue"))


def connected(own: OwnRay | None) -> None:
    """Is told of each Ray that this process is connected to, until `leave_ray`."""
    _rays.append(own)


class RayLost(KeyboardInterrupt):
    """Ends the fit like Ctrl-C; Tune would swallow an ordinary exception."""


class OwnRay:
    """The processes of a Ray that this process starts. They are found by a mark in their
    environment, since the children of a dead raylet are no longer ours."""

    def __init__(self) -> None:
        self.mark = uuid.uuid4().hex

    @contextmanager
    def starting(self) -> Iterator[None]:
        """All processes that start inside belong to this Ray."""
        os.environ[_MARK] = self.mark
        try:
            yield
        finally:
            del os.environ[_MARK]

    def daemons(self) -> list[Any]:
        """The live processes that it can't do without."""
        import psutil

        children = self._alive(psutil.Process().children())
        return [child for child in children if child.name() in _DAEMONS]

    def kill(self) -> None:
        """Kills all of it: nothing trains any more once this returns."""
        import psutil

        for _ in range(50):  # a raylet may start a worker between the look and its death
            if not (found := self._alive(psutil.process_iter())):
                return
            for process in found:
                with suppress(Exception):  # it has ended by itself
                    process.kill()
            time.sleep(0.1)

    def _alive(self, processes: Iterable[Any]) -> list[Any]:
        import psutil

        found = []
        for process in processes:
            with suppress(psutil.Error, OSError):
                ours = process.environ().get(_MARK) == self.mark and process.pid != os.getpid()
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found


class Spell:
    """Measures how long a state lasts, by repeated looks. Long gaps between looks do not count,
    since this process may have been suspended."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._looked = time.monotonic()

    def look(self, lasts: bool) -> float:
        """Seconds that it has lasted until now; 0 if it does not."""
        now, before = time.monotonic(), self._looked
        passed = min(now - before, _ANSWER_SECONDS + _LOOK_SECONDS)
        self._seconds = self._seconds + passed if lasts else 0.0
        self._looked = now
        return self._seconds


class Lifeline:
    """Watches the Ray that this process is connected to, in a thread. `own`: None for a cluster
    that was joined."""

    def __init__(self, own: OwnRay | None) -> None:
        import ray
        from ray._raylet import GcsClient  # type: ignore[attr-defined]

        context = ray.get_runtime_context()
        self._own = own
        self._daemons = [(process, Spell()) for process in (own.daemons() if own else [])]
        self._head: Any = GcsClient(address=context.gcs_address)
        self._node = ray.NodeID.from_hex(context.get_node_id())
        self._silence = Spell()
        self._end = 0.0  # when the main thread must have left Ray
        self._lost = threading.Event()
        self._over = threading.Event()
        self._why = ""
        self._sent = False  # whether the main thread took our signal

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
            finally:  # if our own signal came first
                self._over.set()
                thread.join(2 * _ANSWER_SECONDS)
                signal.signal(signal.SIGURG, before)

    def _loss(self, error: BaseException) -> str:
        """Why Ray is lost, if this error comes from that; else "". Ray's errors have many types,
        and often come before its loss is noticed here. A call into Ray turns our signal into a
        plain KeyboardInterrupt."""
        from ray.exceptions import RayError, RayTaskError

        if isinstance(error, KeyboardInterrupt):
            return self._why if self._sent and type(error) is KeyboardInterrupt else ""
        if self._lost.wait(3 * _LOOK_SECONDS):
            return self._why
        of_ray = isinstance(error, RayError) and not isinstance(error, RayTaskError)
        return f"a call into it failed ({error})" if of_ray else ""

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
                _give_up(f"Ray was lost ({self._why}) and hangs")
            signal.pthread_kill(main, signal.SIGURG)

    def _dead(self) -> str:
        """Which process of our own Ray is gone; "" if all live."""
        import psutil

        for process, stop in self._daemons:
            state = _state(process)
            if state in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                return f"its {process.name() or 'process'} has died"
            if stop.look(state == psutil.STATUS_STOPPED) > STOPPED_SECONDS:
                return f"its {process.name()} has been stopped for {STOPPED_SECONDS:.0f} s"
        return ""

    def _silent(self) -> str:
        """Why the head counts as lost; "" if it answers, or did a moment ago."""
        try:
            # in a thread: if the head is stopped, a second call outlasts its own timeout
            [alive] = in_thread(
                lambda: self._head.check_alive([self._node], timeout=_ANSWER_SECONDS),
                _ANSWER_SECONDS,
            )
        except Exception:  # of any type, while a head goes down
            silent = self._silence.look(True)
            why = f"its head has not answered for {silent:.0f} s"
            return why if silent > SILENT_SECONDS else ""
        self._silence.look(False)
        return "" if alive else "the raylet of this machine has died"

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        """Handles the signal in the main thread. It is repeated until this thread has left Ray."""
        del number
        if self._over.is_set() or not self._lost.is_set():  # sent for an earlier Ray
            return
        while frame is not None:
            if frame.f_globals.get("__name__") in _BOOKS:  # wait, however slow the store is
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


def _give_up(what: str) -> None:
    """Ends the process, since the main thread does not return from its call into Ray."""
    again = "Finished trials are in the store. Go on: the same command again."
    print(f"\nstopped: {what}. {again}", file=sys.stderr, flush=True)
    os._exit(_STOPPED_EXIT)


def leave_ray(own: OwnRay | None) -> None:
    """`ray.shutdown()`, which does not return while a stopped head keeps its connection: then it
    ends the process. Main thread only, once our own threads have ended."""
    import ray

    gc.collect()  # what Tune leaves are cycles, and they hold references
    lates = [threading.Timer(2 * _SHUTDOWN_SECONDS, _give_up, ["Ray does not let this process go"])]
    lates += [threading.Timer(_SHUTDOWN_SECONDS, own.kill)] if own else []
    for late in lates:
        late.daemon = True
        late.start()
    try:
        keep_references()
        with suppress(Exception):  # of many types; there is nothing left to do with it
            ray.shutdown()
    finally:
        for late in lates:
            late.cancel()
        if own:
            own.kill()
        _rays.clear()


def end_process(code: int) -> None:
    """Ends the process if it is connected to a Ray. For a command that has told its result: Ray's
    own way out may change the exit code, or print."""
    if not _rays:
        return
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with suppress(OSError, ValueError):  # nobody reads it any more
        sys.stdout.flush()
        sys.stderr.flush()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    try:
        for own in _rays:
            if own:
                own.kill()
    finally:
        os._exit(code)
