"""Mirrors the trials of a run to other tools as they end, without delaying the run.

Each mirror has a thread of its own, which copies what its tool lacks of the sweep: after a trial
has ended, not too often, and once at the end. What a tool refuses is tried again with the next
trial; `lp-sweep mirror` can copy later what is still missing.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from threading import Event, Thread

from lp_sweep.orchestrator.engine.progress import NO_FACTS, Facts, Note, Reporter
from lp_sweep.orchestrator.mirrors.copying import copy_trials
from lp_sweep.orchestrator.mirrors.kinds import Mirror, MirrorKind, open_mirror
from lp_sweep.orchestrator.watch.reporters import Relay
from lp_sweep.storage.printable import short
from lp_sweep.storage.store import Store

AT_THE_END = 30.0  # seconds that a run waits for all its mirrors together
_PAUSE = 5.0  # seconds between two copies, at least
_SHARE = 10  # copying takes at most a tenth of the time


class LiveMirror:
    """One mirror of one sweep. The reporting thread takes its `notes`."""

    def __init__(self, kind: MirrorKind, store: str, sweep: str) -> None:
        self.kind, self.notes = kind, SimpleQueue[Note]()
        self._store, self._sweep = store, sweep
        self._wake, self._closing = Event(), Event()
        self._behind = False  # whether a trial has ended that is not copied yet
        self._mirror: Mirror | None = None
        self._told = False
        self._thread = Thread(target=self._follow, name=f"mirror-{kind.value}", daemon=True)
        self._thread.start()

    def ended(self) -> None:
        """Is called when a trial's record, or its last attempt, is in the store."""
        self._behind = True
        self._wake.set()

    def close(self, seconds: float) -> None:
        """Waits at most so many seconds for trials that are not copied yet."""
        self._closing.set()
        self._wake.set()
        self._thread.join(seconds)
        if self._thread.is_alive() or self._behind:
            where = f"--store {shlex.quote(self._store)} --sweep {shlex.quote(self._sweep)}"
            copy = f"lp-sweep mirror --to {self.kind.value} {where}"
            missing = f"not every trial is in {self.kind.value}. Copy the others: {copy}"
            self.notes.put(Note(missing))

    def _follow(self) -> None:
        last = False
        while not last:
            self._wake.wait()
            self._wake.clear()
            last = self._closing.is_set()  # before the last copy
            began = time.monotonic()
            if self._behind:
                self._catch_up()
            took = time.monotonic() - began
            self._closing.wait(max(_PAUSE, _SHARE * took))

    def _catch_up(self) -> None:
        self._behind = False
        try:
            self._mirror = self._mirror or open_mirror(self.kind, self._sweep)
            copy_trials(Store(self._store), self._sweep, self._mirror)
            if self._told:
                self._told = False
                again = f"{self.kind.value} takes trials again"
                self.notes.put(Note(again, self.kind.value, ends=True))
        except Exception as error:  # whatever the library raises, the run continues
            self._behind = True
            if not self._told:
                self._told = True
                said = short(str(error) or type(error).__name__)
                refused = f"{self.kind.value} takes no trials for now; the run continues: {said}"
                self.notes.put(Note(refused, self.kind.value))


class MirroringReporter(Relay):
    """Passes events on to `inner`, and tells the mirrors that a trial has ended."""

    def __init__(self, inner: Reporter, mirrors: Sequence[LiveMirror]) -> None:
        super().__init__(inner)
        self._mirrors = mirrors

    def ended(self, id_: str, status: str, detail: str, facts: Facts = NO_FACTS) -> None:
        super().ended(id_, status, detail, facts)
        if status in ("done", "failed"):
            for mirror in self._mirrors:
                mirror.ended()

    def tick(self) -> None:
        super().tick()
        self.tell()

    def tell(self) -> None:
        """Reports the mirrors' notes, in the reporting thread."""
        for mirror in self._mirrors:
            with suppress(Empty):
                while True:
                    self.note(*mirror.notes.get_nowait())


@contextmanager
def mirrored(
    inner: Reporter, kinds: Sequence[MirrorKind], store: str, sweep: str
) -> Iterator[Reporter]:
    """A reporter for one run; at the end it gives the mirrors time to catch up."""
    if not kinds:
        yield inner
        return
    mirrors = [LiveMirror(kind, store, sweep) for kind in dict.fromkeys(kinds)]
    reporter = MirroringReporter(inner, mirrors)
    try:
        yield reporter
    finally:
        until = time.monotonic() + AT_THE_END
        for mirror in mirrors:
            mirror.close(max(0.0, until - time.monotonic()))
        reporter.tell()
