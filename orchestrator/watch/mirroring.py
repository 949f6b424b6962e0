"""Mirrors the trials of a run to other tools as they end, without delaying the run.

Each mirror has a thread of its own, which copies what its tool lacks of the sweep: after a trial
has ended, not too often, and once at the end. What a tool refuses is tried again with the next
trial; `lp-sweep mirror` can copy later what is still missing.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Event, Thread

from lp_sweep.orchestrator.engine.progress import NO_FACTS, Facts, Reporter
from lp_sweep.orchestrator.mirrors.copying import copy_trials, open_mirror
from lp_sweep.orchestrator.options import MirrorKind
from lp_sweep.orchestrator.watch.reporters import Relay
from lp_sweep.storage.printable import short
from lp_sweep.storage.store import Store

AT_THE_END = 30.0  # seconds that a run waits for all its mirrors together
_PAUSE = 5.0  # seconds between two copies, at least
_SHARE = 10  # copying takes at most a tenth of the time


class _LiveMirror(Thread):
    """One mirror of one sweep. `trouble`: what the tool refused the last time; "": nothing."""

    def __init__(self, kind: MirrorKind, store: str, sweep: str) -> None:
        super().__init__(name=f"mirror-{kind}", daemon=True)
        self.kind, self.trouble, self.noted = kind, "", False
        self._store, self._sweep = store, sweep
        self._behind = False  # whether a trial has ended that is not copied yet
        self._wake, self._closing = Event(), Event()

    def ended(self) -> None:
        """Is called when a trial's record, or its last attempt, is in the store."""
        self._behind = True
        self._wake.set()

    def close(self, seconds: float) -> bool:
        """Waits at most so many seconds. Returns whether the tool has all trials."""
        self._closing.set()
        self._wake.set()
        self.join(seconds)
        return not (self.is_alive() or self._behind)

    def run(self) -> None:
        mirror, last = None, False
        while not last:
            self._wake.wait()
            self._wake.clear()
            last, began = self._closing.is_set(), time.monotonic()
            if self._behind:
                self._behind = False
                try:
                    mirror = mirror or open_mirror(self.kind, self._sweep)
                    copy_trials(Store(self._store), self._sweep, mirror)
                    self.trouble = ""
                except Exception as error:  # whatever the library raises, the run continues
                    self._behind = True
                    self.trouble = short(str(error) or type(error).__name__)
            self._closing.wait(max(_PAUSE, _SHARE * (time.monotonic() - began)))


class _MirroringReporter(Relay):
    """Tells the mirrors that a trial has ended, and notes their troubles."""

    def __init__(self, inner: Reporter, mirrors: Sequence[_LiveMirror]) -> None:
        super().__init__(inner)
        self._mirrors = mirrors

    def ended(self, id_: str, status: str, detail: str, facts: Facts = NO_FACTS) -> None:
        super().ended(id_, status, detail, facts)
        for mirror in self._mirrors if status in ("done", "failed") else ():
            mirror.ended()

    def tick(self) -> None:
        super().tick()
        self.tell()

    def tell(self) -> None:
        for mirror in self._mirrors:
            kind, trouble = mirror.kind, mirror.trouble
            if trouble and not mirror.noted:
                self.note(f"{kind} takes no trials for now; the run continues: {trouble}", kind)
            elif mirror.noted and not trouble:
                self.note(f"{kind} takes trials again", kind, ends=True)
            mirror.noted = bool(trouble)


@contextmanager
def mirrored(
    inner: Reporter, kinds: Sequence[MirrorKind], store: str, sweep: str
) -> Iterator[Reporter]:
    """A reporter for one run; at the end it gives the mirrors time to catch up."""
    mirrors = [_LiveMirror(kind, store, sweep) for kind in dict.fromkeys(kinds)]
    reporter = _MirroringReporter(inner, mirrors)
    for mirror in mirrors:
        mirror.start()
    try:
        yield reporter
    finally:
        until = time.monotonic() + AT_THE_END
        behind = [m.kind for m in mirrors if not m.close(max(0.0, until - time.monotonic()))]
        reporter.tell()
        for kind in behind:
            where = f"--store {shlex.quote(store)} --sweep {shlex.quote(sweep)}"
            copy = f"lp-sweep mirror --to {kind} {where}"
            reporter.note(f"not every trial is in {kind}. Copy the others: {copy}")
