"""What a person sees while a sweep runs, on stderr: a live display, or lines without a TTY."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Mapping
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from lp_sweep.orchestrator.estimate.pace import clock
from lp_sweep.orchestrator.plan.naming import describe
from lp_sweep.orchestrator.plan.plan import Plan, Work
from lp_sweep.orchestrator.run.workqueue import WorkQueue
from lp_sweep.storage.printable import printable

_QUIET_SECONDS = 60.0


def told_of_measures(failed: Mapping[str, str]) -> str:
    """Behind a trial that is done: its network's measurements that failed, and how."""
    return "".join(f"; measurement {id_} failed: {kind}" for id_, kind in failed.items())


class Reporter(Protocol):
    """Events of a run, in the order they happen; all are called in one thread."""

    def planned(self, plan: Plan) -> None: ...
    def opened(self, queue: WorkQueue, slots: int) -> None: ...
    def started(self, work: Work) -> None: ...
    def ended(self, id_: str, status: str, detail: str) -> None: ...
    def note(self, text: str) -> None: ...
    def tick(self) -> None: ...
    def closed(self) -> None: ...


def make_reporter() -> Reporter:
    console = Console(stderr=True)
    plain = not console.is_terminal or os.environ.get("TERM") == "dumb"
    return PlainReporter() if plain else LiveReporter(console)


def _first_line(text: str) -> str:
    return printable(text.partition("\n")[0])


class Run:
    """What is true now: shared by both displays."""

    def __init__(self) -> None:
        self.queue: WorkQueue | None = None
        self.slots: list[Work | None] = []
        self.started_at = time.monotonic()
        self.cells_deferred = 0

    def open(self, queue: WorkQueue, slots: int) -> None:
        self.queue, self.slots = queue, [None] * slots
        queue.pace.slots = slots
        self.started_at = time.monotonic()

    def start(self, work: Work) -> int:
        """The slot that the work is on; a work that starts again keeps its slot."""
        for index, occupant in enumerate(self.slots):
            if occupant is not None and occupant.id == work.id:
                return index
        if self.queue:
            self.queue.pace.started(work.id)
        if None not in self.slots:
            self.slots.append(None)
        index = self.slots.index(None)
        self.slots[index] = work
        return index

    def end(self, id_: str, status: str) -> Work | None:
        for index, work in enumerate(self.slots):
            if work is not None and work.id == id_:
                self.slots[index] = None
                if self.queue:
                    estimated = self.queue.rates.seconds(work) if status == "done" else None
                    self.queue.pace.ended(id_, estimated)
                return work
        return None

    def eta_seconds(self) -> float | None:
        """None before there is anything to tell it by."""
        return self.queue.seconds_left() if self.queue else None


class PlainReporter:
    """A line per event, for logs and pipes."""

    def __init__(self) -> None:
        self.run = Run()
        self._told = time.monotonic()

    def planned(self, plan: Plan) -> None:
        self.run.cells_deferred = plan.totals()["cells_deferred"]

    def opened(self, queue: WorkQueue, slots: int) -> None:
        self.run.open(queue, slots)
        self._print(f"{queue.waiting} to do on {slots} slots")

    def started(self, work: Work) -> None:
        slot = self.run.start(work)
        self._print(f"slot {slot}  start   {describe(work)}")

    def ended(self, id_: str, status: str, detail: str) -> None:
        work = self.run.end(id_, status)
        if work is not None and self.run.queue is not None:
            left = self.run.queue.progress().left
            self._print(
                f"{status:<7} {describe(work)}: {_first_line(detail)}"
                f"  [{left} left, ETA {clock(self.run.eta_seconds())}]"
            )

    def note(self, text: str) -> None:
        self._print(f"note    {printable(text)}")

    def tick(self) -> None:
        """Called often; a line a minute, so that a log of long trials shows life."""
        queue = self.run.queue
        if queue is None or time.monotonic() - self._told < _QUIET_SECONDS:
            return
        left = queue.progress().left
        self._print(f"running {len(queue.live)}, {left} left, ETA {clock(self.run.eta_seconds())}")

    def closed(self) -> None:
        pass

    def _print(self, line: str) -> None:
        self._told = time.monotonic()
        print(
            f"[{clock(time.monotonic() - self.run.started_at)}] {line}", file=sys.stderr, flush=True
        )


class LiveReporter:
    """One screen that follows the run: a bar, the slots, and what ended last."""

    def __init__(self, console: Console) -> None:
        self.run = Run()
        self.recent: deque[Text] = deque(maxlen=6)
        self.live = Live(
            console=console, get_renderable=self._render, refresh_per_second=4, transient=True
        )

    def planned(self, plan: Plan) -> None:
        self.run.cells_deferred = plan.totals()["cells_deferred"]

    def opened(self, queue: WorkQueue, slots: int) -> None:
        self.run.open(queue, slots)
        self.live.start()

    def started(self, work: Work) -> None:
        self.run.start(work)

    def ended(self, id_: str, status: str, detail: str) -> None:
        work = self.run.end(id_, status)
        if work is None:
            return
        mark, style = ("✓", "green") if status == "done" else ("✗", "red")
        line = Text(f"{mark} ", style=style)
        line.append(f"{describe(work)}  {_first_line(detail)}", style="default")
        line.truncate(self.live.console.width - 1, overflow="ellipsis")
        self.recent.append(line)

    def note(self, text: str) -> None:
        """Stays above the display."""
        self.live.console.print(Text(f"note: {printable(text)}", style="yellow"))

    def tick(self) -> None:
        """The display refreshes itself."""

    def closed(self) -> None:
        self.live.stop()

    def _render(self) -> RenderableType:
        queue = self.run.queue
        if queue is None:
            return Text("")
        done, failed = len(queue.history.done), len(queue.history.failed)
        total = done + failed + queue.progress().left
        holding = queue.others.holding
        elsewhere = f"  in other runs {len(holding)}" if holding else ""
        head = Table.grid(padding=(0, 2))
        head.add_row(
            Text(queue.plan.sweep.name, style="bold"),
            ProgressBar(total=max(1, total), completed=done + failed, width=24),
            f"{done + failed}/{total}",
            f"[green]done {done}[/]  running {len(queue.live)}"
            f"  [{'red' if failed else 'dim'}]failed {failed}[/]"
            f"  deferred {self.run.cells_deferred}{elsewhere}",
            f"{clock(time.monotonic() - self.run.started_at)} elapsed",
            f"ETA {clock(self.run.eta_seconds())}",
        )
        return Group(head, self._slot_table(), *self.recent)

    def _slot_table(self) -> RenderableType:
        rows = Table.grid(padding=(0, 2))
        for index, work in enumerate(self.run.slots):
            if work is None:
                rows.add_row(f"slot {index}", "[dim]idle[/]", "")
            else:
                elapsed = self.run.queue.pace.elapsed(work.id) if self.run.queue else 0.0
                rows.add_row(f"slot {index}", escape(describe(work)), clock(elapsed))
        return rows
