"""The displays of a run: a live view on a terminal, a line in a notebook, and events for programs.

Events are JSON objects, one a line; `docs/watching.md` describes them. A later version may add
events and keys; it changes none without raising `schema`.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from lp_sweep.orchestrator.engine.progress import (
    NO_FACTS,
    Display,
    Facts,
    PlainReporter,
    Reporter,
    first_line,
)
from lp_sweep.orchestrator.engine.workqueue import WorkQueue
from lp_sweep.orchestrator.plan.naming import asked_for_later, describe
from lp_sweep.orchestrator.plan.plan import Plan, Work
from lp_sweep.storage.printable import clock, printable
from lp_sweep.storage.underway import Underway

SCHEMA = 1  # of the events
_RECENT = 6
_WIDEST_BAR = 40
_A_SECOND = 2  # drawings; not too many for a slow ssh connection


def make_display() -> Display:
    """Picks a display for stderr: in a notebook's kernel, a line of IPython's."""
    console = Console(stderr=True)
    if has_screen(console):
        return LiveReporter(console)
    if "IPython" in sys.modules:
        from IPython.core.getipython import get_ipython
        from IPython.display import display

        if getattr(get_ipython(), "kernel", None):
            return NotebookReporter(display)
    return PlainReporter()


class NotebookReporter(PlainReporter):
    """One changing line in a notebook's cell; notes and failures stay. `show`: IPython's
    `display`."""

    def __init__(self, show: Callable[..., Any]) -> None:
        super().__init__()
        self._display = show
        self._line: Any = None  # IPython's handle

    def _show(self, line: str, stays: bool) -> None:
        if stays:
            super()._show(line, stays)
        elif self._line is None:
            self._line = self._display({"text/plain": line}, raw=True, display_id=True)
        else:
            self._line.update({"text/plain": line}, raw=True)


class LiveReporter(Display):
    """A screen that follows the run: how far it is, the latest ends, and what runs in each slot.
    Rich draws it in a thread of its own, and leaves out what a small terminal has no room for."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._live = Live(
            console=console,
            get_renderable=self._draw,
            refresh_per_second=_A_SECOND,
            transient=True,
            redirect_stdout=sys.stdout.isatty(),  # else it is data for a file
        )
        self._marks = ("✓", "✗") if console.encoding.startswith("utf") else ("+", "x")
        self._recent: deque[Text] = deque(maxlen=_RECENT)
        self._states: dict[str, str] = {}  # notes that still hold, by subject

    def opened(self, queue: WorkQueue, slots: int) -> None:
        super().opened(queue, slots)
        self._live.start()

    def ended(self, id_: str, status: str, detail: str, facts: Facts = NO_FACTS) -> None:
        work = self._ended(id_, status)
        if work is None:
            return
        mark, style = (self._marks[0], "green") if status == "done" else (self._marks[1], "red")
        ended = line(f"{mark} {describe(work)}  {first_line(detail)}")
        ended.stylize(style, 0, len(mark))
        self._recent.append(ended)

    def note(self, text: str, about: str = "", ends: bool = False) -> None:
        """Prints a note above the display; shows one about a state in it, while it holds."""
        if about:
            self._states = {key: said for key, said in self._states.items() if key != about}
            self._states |= {} if ends else {about: text}
        else:
            self._live.console.print(Text(f"note: {printable(text)}", style="yellow"))

    def phase(self, text: str) -> None:
        self._live.console.print(Text(printable(text), style="dim"))

    def closed(self) -> None:
        self._live.stop()
        for text in self._states.values():
            self.note(text)

    def _draw(self) -> RenderableType:
        """Is called in Rich's thread."""
        return Group(*self._parts(self.queue)) if self.queue else Text("")

    def _parts(self, queue: WorkQueue) -> Iterator[RenderableType]:
        how_far = self._underway(queue)
        progress, failures = queue.progress(), Counter([*queue.failed.values()])
        done, failed, left = progress.done, progress.failed, progress.left
        busy, others = len(queue.live), len(queue.holding)
        deferred = len(queue.plan.deferred())
        yield bar(queue.plan.sweep.name, done + failed, done + failed + left)
        yield line(f"done {done}  running {busy}  failed {failed}  waiting {max(0, left - busy)}")
        if deferred:
            yield line(asked_for_later(deferred))
        eta = f"ETA {queue.eta().text()}" if left or deferred else "reading the results"
        yield line(f"{self.elapsed()} elapsed  {eta}")
        if failures:
            told = "  ".join(f"{kind} {count}" for kind, count in failures.most_common())
            yield line(f"failures: {told}", "red")
        if others:
            yield line(f"{others} are trained by other runs", "yellow")
        yield from (Text(printable(text), style="yellow") for text in self._states.values())
        yield from [*self._recent]
        yield self._slots(queue, how_far)

    def _slots(self, queue: WorkQueue, how_far: Mapping[str, Underway]) -> Table:
        """`slot 0  4:05  step 310 of 1,200, 9:05 left  bert, layers 1-8 of 12, rte, seed 42`"""
        table = Table.grid(padding=(0, 2))
        for id_, (slot, _) in sorted(queue.pace.running.items(), key=lambda item: item[1]):
            since = clock(queue.pace.elapsed(id_))
            long = f"{how_far[id_].text}  " if id_ in how_far else ""
            work = f"{long}{describe(queue.plan.work(id_))}"
            table.add_row(line(f"slot {slot}"), line(since), line(work))
        return table


def has_screen(console: Console) -> bool:
    """Whether the console is a terminal to draw on. Rich also says so if FORCE_COLOR is set, as
    builds do for their logs."""
    return console.is_terminal and console.file.isatty() and os.environ.get("TERM") != "dumb"


def bar(sweep: str, ended: int, total: int) -> Table:
    """`glue  ━━━━━━━━━━━━───────  27/66  40%`"""
    share = f"{ended}/{total}  {100 * ended // total if total else 100}%"
    drawn = ProgressBar(
        total=max(1, total),
        completed=ended if total else 1,
        width=_WIDEST_BAR,
        complete_style="cyan",
        finished_style="cyan",
    )
    row = Table.grid(padding=(0, 2))
    row.add_row(line(sweep, "bold"), drawn, Text(share, no_wrap=True))
    return row


def line(text: str, style: str = "") -> Text:
    """One line, cut where the screen ends."""
    return Text(printable(text), style=style, no_wrap=True, overflow="ellipsis")


_PROGRESS_SECONDS = 10.0  # between two events of progress


class Relay(Reporter):
    """A reporter that passes each event on to another."""

    def __init__(self, inner: Reporter) -> None:
        self.inner = inner

    def planned(self, plan: Plan) -> None:
        self.inner.planned(plan)

    def opened(self, queue: WorkQueue, slots: int) -> None:
        self.inner.opened(queue, slots)

    def started(self, work: Work) -> None:
        self.inner.started(work)

    def ended(self, id_: str, status: str, detail: str, facts: Facts = NO_FACTS) -> None:
        self.inner.ended(id_, status, detail, facts)

    def note(self, text: str, about: str = "", ends: bool = False) -> None:
        self.inner.note(text, about, ends)

    def phase(self, text: str) -> None:
        self.inner.phase(text)

    def tick(self) -> None:
        self.inner.tick()

    def closed(self) -> None:
        self.inner.closed()


class EventReporter(Relay):
    """Writes events, and passes them on to `display` for people. `write` gets a line without its
    end."""

    def __init__(self, display: Display, write: Callable[[str], object]) -> None:
        super().__init__(display)
        self._display, self._write = display, write
        self._progressed = time.monotonic()

    def planned(self, plan: Plan) -> None:
        super().planned(plan)
        self.event("planned", sweep=plan.sweep.name, totals=plan.totals())

    def opened(self, queue: WorkQueue, slots: int) -> None:
        super().opened(queue, slots)
        self.event("opened", slots=slots, left=queue.waiting)

    def started(self, work: Work) -> None:
        super().started(work)
        self.event("started", **_named(work))

    def ended(self, id_: str, status: str, detail: str, facts: Facts = NO_FACTS) -> None:
        super().ended(id_, status, detail, facts)
        said = facts if status == "done" else {"type": facts.get("type"), "message": detail}
        known = status in ("done", "failed", "lost", "spooled")
        self.event(status if known else "not_stored", id=id_, **said)

    def note(self, text: str, about: str = "", ends: bool = False) -> None:
        super().note(text, about, ends)
        self.event("note", message=text, **({"about": about, "ends": ends} if about else {}))

    def phase(self, text: str) -> None:
        super().phase(text)
        self.event("phase", message=text)

    def tick(self) -> None:
        super().tick()
        queue = self._display.queue
        if queue is None or time.monotonic() - self._progressed < _PROGRESS_SECONDS:
            return
        self._progressed = time.monotonic()
        self.event(
            "progress",
            running=len(queue.live),
            slot_hours=round(queue.pace.slot_hours(), 6),
            **queue.progress()._asdict(),
        )

    def event(self, name: str, **said: Any) -> None:
        at = dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")
        self._write(json.dumps({"schema": SCHEMA, "event": name, "at": at, **said}))


def _named(work: Work) -> dict[str, Any]:
    """Describes a trial or measurement, in fields and in words."""
    of_trial: dict[str, Any] = {}
    if work.spec.kind == "trial":
        of_trial = {"kept_layers": list(work.spec.kept_layers), "seed": work.spec.seed}
    return {
        "id": work.id,
        "model": work.model.name,
        "task": work.task.name or None,
        **of_trial,
        "work": describe(work),
    }
