"""Reports a run's progress: the interface of all reporters, and lines on stderr for logs and pipes.
`watch.reporters` has the display of a terminal and the stream for programs."""

from __future__ import annotations

import sys
import time
from itertools import count
from typing import NamedTuple

from lp_sweep.orchestrator.engine.workqueue import WorkQueue
from lp_sweep.orchestrator.estimate.pace import Eta
from lp_sweep.orchestrator.plan.naming import describe
from lp_sweep.orchestrator.plan.plan import Plan, Work
from lp_sweep.storage.printable import clock, printable
from lp_sweep.storage.underway import Looks, Underway

_QUIET_SECONDS = 60.0


class Facts(NamedTuple):
    """Numbers of work that has ended. `score`: in points of `metric`."""

    metric: str | None = None
    score: float | None = None
    seconds: float | None = None  # by its worker's clock
    error_type: str | None = None


NO_FACTS = Facts()


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
    """A reporter for people, which keeps the state of the run."""

    run: Run


def first_line(text: str) -> str:
    return printable(text.partition("\n")[0])


class Run:
    """The state of a run now, shared by all displays."""

    def __init__(self) -> None:
        self.queue: WorkQueue | None = None
        self.slots: dict[int, Work] = {}  # those at work
        self.started_at = time.monotonic()
        self.seconds_used = 0.0  # slot-seconds of ended work
        self._looks: Looks | None = None

    def open(self, queue: WorkQueue, slots: int) -> None:
        self.queue = queue
        self._looks = Looks(queue.store)
        queue.pace.slots = slots

    def start(self, work: Work) -> int:
        """Returns the slot of the work; work that starts again keeps its slot."""
        slot = self._slot(work.id)
        if slot is None:
            slot = next(number for number in count() if number not in self.slots)
            self.slots[slot] = work
            if self.queue:
                self.queue.pace.started(work.id)
        return slot

    def end(self, id_: str, status: str) -> Work | None:
        """Returns the work, if it had started."""
        slot = self._slot(id_)
        if slot is None or self.queue is None:
            return None
        work = self.slots.pop(slot)
        seconds = self.queue.rates.seconds(work) if status == "done" else None
        self.seconds_used += self.queue.pace.ended(id_, seconds)
        return work

    def _slot(self, id_: str) -> int | None:
        return next((slot for slot, work in self.slots.items() if work.id == id_), None)

    def eta(self) -> Eta:
        return self.queue.eta() if self.queue else Eta()

    def underway(self) -> dict[str, Underway]:
        """How far long trials are."""
        live = [work.id for work in [*self.slots.values()]]  # a copy: other threads look
        return self._looks.of(live) if self._looks else {}

    def slot_hours(self) -> float:
        """Used by this run, including live work."""
        pace = self.queue.pace if self.queue else None
        live = [pace.elapsed(work.id) for work in [*self.slots.values()]] if pace else []
        return (self.seconds_used + sum(live)) / 3600

    def elapsed(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self.started_at


class PlainReporter(Display):
    """A line per event, for logs and pipes."""

    def __init__(self) -> None:
        self.run = Run()
        self._told = time.monotonic()

    def opened(self, queue: WorkQueue, slots: int) -> None:
        self.run.open(queue, slots)
        measured = ""
        if any(cell.state == "deferred" for cell in queue.plan.cells):
            measured = " (trials, and measurements that add trials)"
        elif queue.plan.profiles or queue.plan.speeds:
            measured = " (trials and measurements)"
        self._print(f"{queue.waiting} to do{measured} on {slots} slot{'s' * (slots != 1)}")

    def started(self, work: Work) -> None:
        slot = self.run.start(work)
        self._print(f"slot {slot}  start   {describe(work)}")

    def ended(self, id_: str, status: str, detail: str, facts: Facts = NO_FACTS) -> None:
        work = self.run.end(id_, status)
        if work is not None and self.run.queue is not None:
            left = self.run.queue.progress().left
            self._print(
                f"{status:<7} {describe(work)}: {first_line(detail)}"
                f"  [{left} left, ETA {self.run.eta().text()}]",
                stays=status != "done",
            )

    def note(self, text: str, about: str = "", ends: bool = False) -> None:
        self._print(f"note    {printable(text)}", stays=True)

    def phase(self, text: str) -> None:
        """A step before the first trial that may take a while."""
        self._print(printable(text))

    def tick(self) -> None:
        """Prints a line a minute, so that a log of long trials shows life."""
        queue = self.run.queue
        if queue is None or time.monotonic() - self._told < _QUIET_SECONDS:
            return
        left, eta = queue.progress().left, self.run.eta().text()
        used = f"{self.run.slot_hours():.2f} slot-hours used"
        self._print(f"running {len(queue.live)}, {left} left, ETA {eta}, {used}")
        for id_, how_far in self.run.underway().items():
            self._print(f"  {describe(queue.live[id_])}: {how_far.text}")

    def _print(self, line: str, *, stays: bool = False) -> None:
        self._told = time.monotonic()
        self._show(f"[{clock(self.run.elapsed())}] {line}", stays)

    def _show(self, line: str, stays: bool) -> None:
        """`stays`: a note or a failure, which a display of one line must not overwrite."""
        del stays  # here all lines do
        print(line, file=sys.stderr, flush=True)
