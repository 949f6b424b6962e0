"""Announcements of the runs on one store, so that no two runs do the same work.

Each run keeps one small JSON file, `runs/<run id>.json`: who it is, its progress, and the work that
it holds. To claim trials, a run first writes that it holds them and then reads the other files: of
two runs that want the same trial, at least one sees the other and gives way. This needs no lock and
no common clock, works on object storage, and costs as much for a thousand trials as for one.
Listings may be late: before it claims anything, a run waits until it is listed itself.

A killed run no longer counts: at once on its own machine, elsewhere after its file has not changed
for a minute. Two runs that can't see each other would repeat work, but never damage records.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import json
import math
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from lp_sweep.storage.errors import StoreError
from lp_sweep.storage.store import Store

FOLDER = "runs"
BEAT_SECONDS = 15.0
_STALE_SECONDS = 60.0  # without a change, as seen by the reader's own clock
_LONGEST_GAP = BEAT_SECONDS  # between two looks; of a longer gap only this much counts
_FORGOTTEN_SECONDS = 3600.0  # longer than any ordinary difference between two clocks
_LISTED_SECONDS = 30.0  # the longest wait for a late listing
_MOST = 2**40  # of any count: larger ones are not from us


class Announcement(NamedTuple):
    """A run's announcement. `machine` and `process` show, on its machine, whether it is alive."""

    run_id: str
    sweep: str
    host: str
    machine: str
    pid: int
    process: str
    started_at: str  # ISO 8601, UTC
    updated_at: str
    beat: int
    held: dict[str, str]  # identifiers of work, and since when
    done: int = 0
    failed: int = 0
    left: int = 0  # waiting or held
    slots: int = 0  # trials at a time; 0 before there is a cluster
    seconds_left: float | None = None  # as of updated_at; None: not known yet
    low_seconds: float | None = None  # lower end of the estimate
    high_seconds: float | None = None  # upper end

    def sentence(self) -> str:
        """`sweep 'glue' on node-3 (pid 71) since 2026-11-21 10:02 UTC: 5 done, 12 left, ...`"""
        since = self.started_at[:16].replace("T", " ")
        failed = f", {self.failed} failed" if self.failed else ""
        counts = f"{self.done} done{failed}, {self.left} left, {len(self.held)} running"
        return (
            f"sweep {self.sweep!r} on {self.host} (pid {self.pid}) since {since} UTC: "
            f"{counts} (trainings and measurements)"
        )

    def ends_at(self) -> dt.datetime | None:
        """The run's own estimate of its end; None if not known."""
        try:
            left = dt.timedelta(seconds=self.seconds_left)  # type: ignore[arg-type]
            ends = dt.datetime.fromisoformat(self.updated_at) + left
        except (TypeError, ValueError, OverflowError):
            return None
        return ends if ends.tzinfo else ends.replace(tzinfo=dt.UTC)


class _Sight(NamedTuple):
    """The last look at another run, and the seconds since its last change."""

    beat: int
    unchanged: float  # infinite if it was very old when first seen
    looked: float


class Progress(NamedTuple):
    """A run's progress, in pieces of work; `slots` and the rest as in `Announcement`."""

    done: int
    failed: int
    left: int
    slots: int = 0
    seconds_left: float | None = None
    low_seconds: float | None = None
    high_seconds: float | None = None


class Observer:
    """Finds out which announced runs are alive, by looking at their files over time."""

    def __init__(self, store: Store) -> None:
        self._store, self._lock = store, threading.Lock()
        self._seen: dict[str, _Sight] = {}
        self.killed: set[str] = set()  # names of the files that killed runs left, at the last look

    def living(self, *, besides: str | None = None, once: bool = False) -> list[Announcement]:
        """The runs that are alive, oldest first. Raises StoreError, `once` without retries."""
        store = self._store.asked_once() if once else self._store
        texts = store.texts(FOLDER, f"{besides}.json")
        alive, killed = [], set()
        with self._lock:
            for name, text in texts.items():
                if (run := _parse(text)) is None:
                    continue
                if self._lives(run, besides):
                    alive.append(run)
                else:
                    killed.add(name)
            self.killed = killed
        return sorted(alive, key=lambda run: (run.started_at, run.run_id))

    def _lives(self, run: Announcement, besides: str | None) -> bool:
        here = run.machine and run.machine == _machine()
        if here and (process := _process(run.pid)) is not None:
            return process == run.process
        now, before = time.monotonic(), self._seen.get(run.run_id)
        if before is None:
            unchanged = math.inf if self._is_forgotten(run, besides) else 0.0
        elif before.beat != run.beat:  # it changes only while the run is alive
            unchanged = 0.0
        else:  # a long gap means that the store was unreachable, and no file could change
            unchanged = before.unchanged + min(now - before.looked, _LONGEST_GAP)
        self._seen[run.run_id] = _Sight(run.beat, unchanged, now)
        return unchanged < _STALE_SECONDS

    def _is_forgotten(self, run: Announcement, besides: str | None) -> bool:
        """Whether the file is very old: by the store's clock, by which the file of `besides` was
        written just now, else by ours."""
        written = {info.name: info.modified for info in self._store.listing(FOLDER)}
        now = written.get(f"{besides}.json", time.time())
        return now - written.get(f"{run.run_id}.json", now) >= _FORGOTTEN_SECONDS


class Presence:
    """This run's announcement: kept up to date by a thread, deleted when the run ends."""

    def __init__(self, store: Store, sweep: str, progress: Callable[[], Progress]) -> None:
        self._store, self._progress = store, progress
        self._once = store.asked_once()
        self._observer = Observer(store)
        self.shared = False  # whether another run has been seen
        self.alive: frozenset[str] = frozenset()  # of other runs, when they were last looked at
        self._held: dict[str, str] = {}  # since when
        self._beat = 0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep_fresh, daemon=True)
        self._me = Announcement(
            run_id=uuid.uuid4().hex,
            sweep=sweep,
            host=socket.gethostname(),
            machine=_machine(),
            pid=os.getpid(),
            process=_process(os.getpid()) or "",
            started_at=_now(),
            updated_at=_now(),
            beat=0,
            held={},
        )
        self._file = f"{self._me.run_id}.json"

    @contextlib.contextmanager
    def announced(self) -> Iterator[Presence]:
        """Announces this run to the others until the context ends."""
        try:
            self._write()
            self._wait_until_listed()
            self.others()
            self.tidy()
            self._thread.start()
            yield self
        finally:
            self._ended.set()
            if self._thread.is_alive():
                self._thread.join(BEAT_SECONDS)
            with contextlib.suppress(StoreError):  # the others soon see that it has ended
                self._once.delete(FOLDER, self._file)
            self.tidy()

    def tidy(self) -> None:
        """Deletes what killed runs left, if the store lets it: those that were seen by now."""
        with contextlib.suppress(StoreError):
            for name in self._observer.killed:
                self._once.delete(FOLDER, name)

    def _wait_until_listed(self) -> None:
        """With late listings, two runs that start together would not see each other. A run that is
        listed sees all that were announced before it."""
        end = time.monotonic() + _LISTED_SECONDS
        while time.monotonic() < end:
            if any(info.name == self._file for info in self._store.listing(FOLDER)):
                return
            time.sleep(0.1)

    def others(self, *, once: bool = False) -> list[Announcement]:
        """The other runs on this store that are alive. Raises StoreError, `once` without
        retries."""
        found = self._observer.living(besides=self._me.run_id, once=once)
        self.shared = self.shared or bool(found)
        self.alive = frozenset(run.run_id for run in found)
        return found

    def beside(self) -> list[Announcement]:
        """The other runs on this machine that are alive. Raises StoreError."""
        return [run for run in self.others() if run.machine and run.machine == self._me.machine]

    def claim(self, ids: Collection[str]) -> set[str]:
        """Claims trials and profiles, but for those that other runs hold. Returns all that other
        runs hold. Raises StoreError."""
        self._held = self._held | dict.fromkeys(ids, _now())
        self._write()  # before reading the others, so that of two claims one is seen
        taken = {id_ for run in self.others() for id_ in run.held}
        if not taken.isdisjoint(ids):
            self.release(taken.intersection(ids))
            self._write()
        return taken

    def release(self, ids: Collection[str]) -> None:
        """Gives up claims, from the next announcement on."""
        self._held = {id_: since for id_, since in self._held.items() if id_ not in ids}

    def _write(self, store: Store | None = None) -> None:
        with self._lock:
            self._beat += 1
            mine = self._me._replace(
                beat=self._beat,
                updated_at=_now(),
                held=dict(sorted(self._held.items())),
                **self._progress()._asdict(),
            )
            (store or self._store).put_text(FOLDER, self._file, json.dumps(mine._asdict()))

    def _keep_fresh(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            with contextlib.suppress(StoreError):  # the main thread reports the same error
                self._write(self._once)
                self.others(once=True)  # during a long trial nothing else looks


_TYPES: dict[str, str] = {
    name: kind.__forward_arg__ for name, kind in Announcement.__annotations__.items()
}
_SOUND: dict[str, Callable[[Any], bool]] = {  # by the type of a field
    "str": lambda value: isinstance(value, str),
    "int": lambda value: type(value) is int and 0 <= value < _MOST,
    "float | None": lambda value: value is None or type(value) in (int, float),
    "dict[str, str]": lambda value: all(isinstance(since, str) for since in value.values()),
}


def _parse(text: str) -> Announcement | None:
    """None for a file that is not ours. Fields of a later version are ignored."""
    try:
        plain: dict[str, Any] = json.loads(text)
        found = Announcement(**{name: plain[name] for name in _TYPES if name in plain})
        sound = all(_SOUND[kind](getattr(found, name)) for name, kind in _TYPES.items())
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
    return found if sound else None


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")


def machine_key() -> str:
    """A hash of `_machine`, for a file name; "" if it is not known."""
    machine = _machine()
    return hashlib.sha256(machine.encode()).hexdigest()[:16] if machine else ""


def _machine() -> str:
    """This boot and process namespace, in which a process id is unique; "" if not known, as where
    /proc belongs to another namespace: it would show a stranger under this process's id."""
    try:
        if Path("/proc/self").readlink() != Path(str(os.getpid())):
            return ""
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _process(pid: int) -> str | None:
    """The start time, which tells it from a later process of the same id; "" if it has ended; None
    if /proc hides it, as another user's process (hidepid)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None if _is_there(pid) else ""
    state, *rest = text.rpartition(")")[2].split()
    return "" if state in "ZX" else rest[18]


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)  # sends nothing
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True
