"""Announcements of the runs on one store, so that no two runs do the same work.

Each run keeps one small JSON file, `runs/<run id>.json`: who it is, its progress, and the work that
it holds. To claim a trial, a run first writes that it holds it and then reads the other files: of
two runs that want the same trial, at least one sees the other and gives way. This needs no lock and
no common clock, and works on object storage. Listings may be late: before it claims anything, a run
waits until it is listed itself.

A killed run no longer counts: at once on its own machine, elsewhere after its file has not changed
for a minute. Two runs that can't see each other would repeat work, but never damage records.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from lp_sweep.storage.errors import StoreError
from lp_sweep.storage.store import Store

FOLDER = "runs"
BEAT_SECONDS = 15.0
_STALE_SECONDS = 60.0  # without a change, as seen by the reader's own clock
_LONGEST_GAP = 5.0  # between two looks; of a longer gap only this much counts
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
    held: tuple[str, ...] = ()  # identifiers of work
    held_since: tuple[str, ...] = ()  # one for each of `held`
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
            f"{counts} (trials and measurements)"
        )

    def ends_at(self) -> dt.datetime | None:
        """The run's own estimate of its end; None if not known."""
        if self.seconds_left is None:
            return None
        try:
            updated = dt.datetime.fromisoformat(self.updated_at)
            ends = updated + dt.timedelta(seconds=self.seconds_left)
        except (ValueError, OverflowError):
            return None
        return ends if ends.tzinfo else ends.replace(tzinfo=dt.UTC)


class _Sight(NamedTuple):
    """The last look at another run, and the seconds since its last change."""

    beat: int
    unchanged: float
    looked: float
    forgotten: bool = False  # old when first seen, and unchanged since


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
        self._store = store
        self._seen: dict[str, _Sight] = {}
        self.killed: set[str] = set()  # names of the files that killed runs left, at the last look

    def living(self, *, besides: str | None = None) -> list[Announcement]:
        """The runs that are alive, oldest first. Raises StoreError."""
        alive, self.killed = [], set()
        for name, text in self._store.texts(FOLDER).items():
            run = _parse(text)
            if run is None or run.run_id == besides:
                continue
            if self._lives(run, besides):
                alive.append(run)
            else:
                self.killed.add(name)
        return sorted(alive, key=lambda run: (run.started_at, run.run_id))

    def _lives(self, run: Announcement, besides: str | None) -> bool:
        if run.machine and run.machine == _machine():
            return _process(run.pid) == run.process
        now, before = time.monotonic(), self._seen.get(run.run_id)
        if before is None or before.beat != run.beat:  # it changes only while the run is alive
            forgotten = before is None and self._is_forgotten(run, besides)
            self._seen[run.run_id] = _Sight(run.beat, 0.0, now, forgotten)
            return not forgotten
        # a long gap means that the store was unreachable, and no file could change
        unchanged = before.unchanged + min(now - before.looked, _LONGEST_GAP)
        self._seen[run.run_id] = before._replace(unchanged=unchanged, looked=now)
        return not before.forgotten and unchanged < _STALE_SECONDS

    def _is_forgotten(self, run: Announcement, besides: str | None) -> bool:
        """Whether the file is very old: by its clock and ours, one of which may be wrong, and by
        the store's clock, by which the file of `besides` was written just now."""
        if _age(run.updated_at) < _FORGOTTEN_SECONDS:
            return False
        written = {info.name: info.modified for info in self._store.listing(FOLDER)}
        mine, theirs = written.get(f"{besides}.json"), written.get(f"{run.run_id}.json")
        return mine is None or theirs is None or mine - theirs >= _FORGOTTEN_SECONDS


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
            process=_process(os.getpid()),
            started_at=_now(),
            updated_at=_now(),
            beat=0,
        )

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
                self._once.delete(FOLDER, f"{self._me.run_id}.json")
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
            if any(i.name == f"{self._me.run_id}.json" for i in self._store.listing(FOLDER)):
                return
            time.sleep(0.1)

    def others(self) -> list[Announcement]:
        """The other runs on this store that are alive. Raises StoreError."""
        found = self._observer.living(besides=self._me.run_id)
        self.shared = self.shared or bool(found)
        self.alive = frozenset(run.run_id for run in found)
        return found

    def beside(self) -> list[Announcement]:
        """The other runs on this machine that are alive. Raises StoreError."""
        return [run for run in self.others() if run.machine and run.machine == self._me.machine]

    def claim(self, work_id: str) -> Announcement | None:
        """Claims a trial or profile. Returns None, or the run that holds it. Raises StoreError."""
        self._held[work_id] = _now()
        self._write()  # before reading the others, so that of two claims one is seen
        holder = next((run for run in self.others() if work_id in run.held), None)
        if holder is not None:
            self._held.pop(work_id, None)
            self._write()
        return holder

    def release(self, work_id: str) -> None:
        """Gives up a claim, from the next announcement on."""
        self._held.pop(work_id, None)

    def _write(self, store: Store | None = None) -> None:
        with self._lock:
            self._beat += 1
            progress, held = self._progress(), sorted(self._held.items())
            mine = self._me._replace(
                beat=self._beat,
                updated_at=_now(),
                held=tuple(work_id for work_id, _ in held),
                held_since=tuple(since for _, since in held),
                **progress._asdict(),
            )
            text = json.dumps(mine._asdict())
            (store or self._store).put_text(FOLDER, f"{self._me.run_id}.json", text)

    def _keep_fresh(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            with contextlib.suppress(StoreError):  # the main thread reports the same error
                self._write(self._once)


def _parse(text: str) -> Announcement | None:
    """None for a file that is not ours. Fields of a later version are ignored."""
    try:
        plain: dict[str, Any] = json.loads(text)
        known = {name: plain[name] for name in Announcement._fields if name in plain}
        lists = {name: tuple(plain[name]) for name in ("held", "held_since")}
        found = Announcement(**{**known, **lists})
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    texts = (found.run_id, found.sweep, found.host, found.machine, found.process, *found.held)
    moments = (found.started_at, found.updated_at, *found.held_since)
    numbers = (found.pid, found.beat, found.done, found.failed, found.left, found.slots)
    sound = all(isinstance(text, str) for text in (*texts, *moments))
    seconds = (found.seconds_left, found.low_seconds, found.high_seconds)
    told = all(each is None or type(each) in (int, float) for each in seconds)
    told = told and len(found.held) == len(found.held_since)
    counted = all(type(number) is int and 0 <= number < _MOST for number in numbers)
    return found if sound and told and counted else None


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")


def _age(moment: str) -> float:
    try:
        then = dt.datetime.fromisoformat(moment)
        return abs((dt.datetime.now(dt.UTC) - then).total_seconds())
    except (ValueError, TypeError):
        return _FORGOTTEN_SECONDS


def machine_key() -> str:
    """A hash of `_machine`, for a file name; "" if it is not known."""
    machine = _machine()
    return hashlib.sha256(machine.encode()).hexdigest()[:16] if machine else ""


def _machine() -> str:
    """This boot and process namespace, in which a process id is unique; "" if not known."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _process(pid: int) -> str:
    """The start time, which tells it from a later process of the same id; "" if it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    state, *rest = text.rpartition(")")[2].split()
    return "" if state in "ZX" else rest[18]
