"""Mirrors each trial of a run to other tools as it ends, without delaying the run.

Each mirror has its own thread, which reads trials from the store, so only identifiers wait for a
slow one. Failed copies are retried with the next trial and once at the end; `lp-sweep mirror` can
copy later what is still missing.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from threading import Thread

from lp_sweep.orchestrator.engine.progress import NO_FACTS, Facts, Note, Reporter
from lp_sweep.orchestrator.mirrors.copying import copy_trials
from lp_sweep.orchestrator.mirrors.kinds import Mirror, MirrorKind, open_mirror
from lp_sweep.orchestrator.watch.reporters import Relay
from lp_sweep.storage.printable import short
from lp_sweep.storage.store import Store

AT_THE_END = 30.0  # seconds that a run waits for all its mirrors together


class LiveMirror:
    """One mirror of one sweep. The reporting thread takes its `notes`."""

    def __init__(self, kind: MirrorKind, store: str, sweep: str) -> None:
        self.kind, self.notes = kind, SimpleQueue[Note]()
        self._store, self._sweep = store, sweep
        self._ended: SimpleQueue[str | None] = SimpleQueue()
        self._behind: dict[str, None] = {}  # in order; the thread's own while it lives
        self._mirror: Mirror | None = None
        self._told = False
        self._thread = Thread(target=self._follow, name=f"mirror-{kind.value}", daemon=True)
        self._thread.start()

    def ended(self, trial: str) -> None:
        """Is called when the trial's record, or its last attempt, is in the store."""
        self._ended.put(trial)

    def close(self, seconds: float) -> None:
        """Waits at most so many seconds for trials that are not written yet."""
        self._ended.put(None)
        self._thread.join(seconds)
        if self._thread.is_alive() or self._behind:
            where = f"--store {shlex.quote(self._store)} --sweep {shlex.quote(self._sweep)}"
            copy = f"lp-sweep mirror --to {self.kind.value} {where}"
            missing = (
                f"not every trial of this run is in {self.kind.value}. Copy the others: {copy}"
            )
            self.notes.put(Note(missing))

    def _follow(self) -> None:
        going_on = True
        while going_on:
            ended = [self._ended.get()]
            with suppress(Empty):
                while True:
                    ended.append(self._ended.get_nowait())
            going_on = None not in ended
            self._behind |= {trial: None for trial in ended if trial is not None}
            if self._behind:
                self._catch_up()

    def _catch_up(self) -> None:
        try:
            self._mirror = self._mirror or open_mirror(self.kind, self._sweep)
            copy_trials(Store(self._store), self._sweep, self._mirror, self._behind.keys())
            self._behind = {}
            if self._told:
                self._told = False
                again = f"{self.kind.value} takes trials again"
                self.notes.put(Note(again, self.kind.value, ends=True))
        except Exception as error:  # whatever the library raises, the run continues
            if not self._told:
                self._told = True
                said = short(str(error) or type(error).__name__)
                refused = f"{self.kind.value} takes no trials for now; the run continues: {said}"
                self.notes.put(Note(refused, self.kind.value))


class MirroringReporter(Relay):
    """Passes events on to `inner`, and ended trials to the mirrors."""

    def __init__(self, inner: Reporter, mirrors: Sequence[LiveMirror]) -> None:
        super().__init__(inner)
        self._mirrors = mirrors

    def ended(self, id_: str, status: str, detail: str, facts: Facts = NO_FACTS) -> None:
        super().ended(id_, status, detail, facts)
        if status in ("done", "failed") and id_.startswith("t"):  # a profile is no training
            for mirror in self._mirrors:
                mirror.ended(id_)

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
