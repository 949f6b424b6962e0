"""Reports a run's progress: the interface of all reporters, and lines on stderr for logs and pipes.
`watch.reporters` has the display of a terminal and the stream for programs."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from lp_sweep.orchestrator.engine.workqueue import WorkQueue
from lp_sweep.orchestrator.plan.naming import describe
from lp_sweep.orchestrator.plan.plan import Plan, Work
from lp_sweep.storage.printable import clock, printable
from lp_sweep.storage.underway import Looks, Underway

_QUIET_SECONDS = 60.0


Facts = Mapping[str, Any]  # about work that has ended: score in points, metric and seconds; or type
NO_FACTS: Facts = MappingProxyType({})


class Note(NamedTuple):
    """`about`: the state that the note reports. It holds until the next note about it; a live view
    drops it once a note `ends` it."""

    text: str
    about: str = ""
    ends: bool = False


class Reporter:
    """The events of a run, in their order, all in one thread. A reporter may ignore any of them."""

    def planned(self, plan: Plan) -> None: ...
    def opened(self, queue: WorkQueue, slots: int) -> None: ...
    def started(self, work: Work) -> None: ...
    def ended(self, id_: str, status: str, detail: str, facts: Facts = NO_FACTS) -> None: ...
    def note(self, text: str, about: str = "", ends: bool = False) -> None: ...  # as `Note`
    def phase(self, text: str) -> None: ...
    def tick(self) -> None: ...
    def closed(self) -> None: ...


class Display(Reporter):
    """A reporter for people, which also keeps the pace of the run. Other threads look at it."""

    def __init__(self) -> None:
        self.queue: WorkQueue | None = None  # of a run that has opened
        self._began = time.monotonic()

    def opened(self, queue: WorkQueue, slots: int) -> None:
        self.queue, self._looks = queue, Looks(queue.store)
        queue.pace.slots = slots

    def started(self, work: Work) -> None:
        if self.queue:
            self.queue.pace.started(work.id)

    def _ended(self, id_: str, status: str) -> Work | None:
        """Ends the work in its slot; None if it had not started."""
        if self.queue is None:
            return None
        work = self.queue.plan.work(id_)
        seconds = self.queue.rates.seconds(work) if status == "done" else None
        return work if self.queue.pace.ended(id_, seconds) else None

    def _underway(self, queue: WorkQueue) -> dict[str, Underway]:
        """How far long trials are; the estimate of the run's end goes by it."""
        running = [*queue.pace.running]
        found = self._looks.of([*running, *queue.holding])
        queue.pace.tell(found)
        return {id_: found[id_] for id_ in running if id_ in found}

    def elapsed(self) -> str:
        """The time since the run began."""
        return clock(time.monotonic() - self._began)


class PlainReporter(Display):
    """A line per event, for logs and pipes."""

    def __init__(self) -> None:
        super().__init__()
        self._told = self._looked = time.monotonic()

    def opened(self, queue: WorkQueue, slots: int) -> None:
        super().opened(queue, slots)
        measured = ""
        if queue.plan.profiles or queue.plan.speeds:
            measured = " (trainings and measurements)"
        to_do = f"{queue.waiting} to do{measured}{_more(queue)}"
        self._print(f"{to_do} on {slots} slot{'s' * (slots != 1)}")

    def started(self, work: Work) -> None:
        if self.queue:
            slot = self.queue.pace.started(work.id)
            self._print(f"slot {slot}  start   {describe(work)}")

    def ended(self, id_: str, status: str, detail: str, facts: Facts = NO_FACTS) -> None:
        work = self._ended(id_, status)
        if work is not None and self.queue is not None:
            told = f"{status:<7} {describe(work)}: {first_line(detail)}"
            self._print(f"{told}  [{_left(self.queue)}]", stays=status != "done")

    def note(self, text: str, about: str = "", ends: bool = False) -> None:
        self._print(f"note    {printable(text)}", stays=True)

    def phase(self, text: str) -> None:
        """A step before the first trial that may take a while."""
        self._print(printable(text))

    def tick(self) -> None:
        """Prints a line a minute, so that a log of long trials shows life."""
        queue, now = self.queue, time.monotonic()
        if queue is None:
            return
        if now - self._looked >= _QUIET_SECONDS / 2:  # for the end, which others read in the store
            self._looked = now
            self._underway(queue)
        if now - self._told < _QUIET_SECONDS:
            return
        underway = self._underway(queue)
        self._print(f"running {len(queue.live)}, {_left(queue)}")
        for id_, how_far in underway.items():
            self._print(f"  {describe(queue.live[id_])}: {how_far.text}")

    def _print(self, line: str, *, stays: bool = False) -> None:
        self._told = time.monotonic()
        self._show(f"[{self.elapsed()}] {line}", stays)

    def _show(self, line: str, stays: bool) -> None:
        """`stays`: a note or a failure, which a display of one line must not overwrite."""
        del stays  # here all lines do
        print(line, file=sys.stderr, flush=True)


def _left(queue: WorkQueue) -> str:
    return f"{queue.progress().left} left{_more(queue)}, ETA {queue.eta().text()}"


def _more(queue: WorkQueue) -> str:
    """` and at most 17 more`: the trainings for which a measurement or a search may ask."""
    more = len(queue.plan.deferred())
    return f" and at most {more} more" if more else ""


def first_line(text: str) -> str:
    return printable(text.partition("\n")[0])
