"""The displays of a run: a live view on a terminal, a line in a notebook, and events for programs.

Events are JSON objects, one a line; `docs/watching.md` describes them. A later version may add
events and keys; it changes none without raising `schema`.
"""

from __future__ import annotations

import datetime as dt
import json
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console, RenderableType
from rich.text import Text

from lp_sweep.orchestrator.engine.progress import (
    NO_FACTS,
    Display,
    Facts,
    PlainReporter,
    Reporter,
    Run,
    first_line,
)
from lp_sweep.orchestrator.engine.workqueue import WorkQueue
from lp_sweep.orchestrator.plan.known import points_of
from lp_sweep.orchestrator.plan.naming import describe
from lp_sweep.orchestrator.plan.plan import Plan, Work
from lp_sweep.orchestrator.watch.painter import Painter, has_screen
from lp_sweep.orchestrator.watch.picture import SCHEMA, Curves, Picture, Slot, Waiting
from lp_sweep.orchestrator.watch.screen import Screen
from lp_sweep.storage.errors import StoreError
from lp_sweep.storage.printable import printable

_RECENT = 6


def make_display(timings: pa.Table | None = None) -> Display:
    """Picks a display for stderr. `timings`: of the store's finished trials (`Ledger.timings`)."""
    console = Console(stderr=True)
    if has_screen(console):
        return LiveReporter(console, timings)
    show = display_of_notebook()
    return NotebookReporter(show) if show else PlainReporter()


def display_of_notebook() -> Callable[..., Any] | None:
    """IPython's `display`, if a notebook kernel runs this program."""
    if "IPython" not in sys.modules:
        return None
    from IPython.core.getipython import get_ipython
    from IPython.display import display

    return display if getattr(get_ipython(), "kernel", None) else None


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
    """A screen that follows the run. The painter's thread goes through the cells once for each
    plan; each score then costs one dictionary lookup."""

    def __init__(self, console: Console, timings: pa.Table | None = None) -> None:
        self.run = Run()
        self.recent: deque[Text] = deque(maxlen=_RECENT)
        self._painter = Painter(console, self._draw)
        self._marks = ("✓", "✗") if console.encoding.startswith("utf") else ("+", "x")
        self._timings = timings
        self._hours_before = 0.0  # slot-hours that the sweep had used when the run began
        self._plan: Plan | None = None
        self._deferred = 0  # cells
        self._drawn: Plan | None = None  # whose cells the curves are of
        self._curves = Curves(())
        self._scores: dict[str, float] = {}  # of this run
        self._fresh: deque[tuple[str, float]] = deque()  # scores that the painter has not seen
        self._elsewhere = Elsewhere()
        self._states: dict[str, str] = {}  # notes that still hold, by subject

    def planned(self, plan: Plan) -> None:
        self._plan = plan
        self._deferred = sum(cell.state == "deferred" for cell in plan.cells)

    def opened(self, queue: WorkQueue, slots: int) -> None:
        self.run.open(queue, slots)
        self._hours_before = hours_of(queue.plan, self._timings)
        self._painter.open()

    def started(self, work: Work) -> None:
        self.run.start(work)

    def ended(self, id_: str, status: str, detail: str, facts: Facts = NO_FACTS) -> None:
        if facts.score is not None:
            self._fresh.append((id_, facts.score))
        work = self.run.end(id_, status)
        if work is None:
            return
        mark, style = (self._marks[0], "green") if status == "done" else (self._marks[1], "red")
        self.recent.append(Text.assemble((mark, style), f" {describe(work)}  {first_line(detail)}"))

    def note(self, text: str, about: str = "", ends: bool = False) -> None:
        """Prints a note above the display; shows one about a state in it, while it holds."""
        if about:
            self._states = {key: said for key, said in self._states.items() if key != about}
            self._states |= {} if ends else {about: text}
        else:
            self._painter.note(Text(f"note: {printable(text)}", style="yellow"))

    def phase(self, text: str) -> None:
        self._painter.note(Text(printable(text), style="dim"))

    def closed(self) -> None:
        self._painter.close()
        for text in self._states.values():
            self.note(text)

    def _draw(self) -> RenderableType:
        """Is called in the painter's thread."""
        queue = self.run.queue
        if queue is None:
            return Text("")
        return Screen(self.picture(queue), [*self.recent])

    def picture(self, queue: WorkQueue) -> Picture:
        """The current picture. Is called in another thread than that of the events."""
        done, failed, left = queue.progress()[:3]
        holding = len(queue.holding)
        return Picture(
            sweep=queue.plan.sweep.name,
            at=dt.datetime.now(dt.UTC),
            done=done,
            failed=failed,
            left=left,
            slots=tuple(self._slots(queue)),
            waiting=tuple(
                Waiting(model=model, task=task, pieces=pieces)
                for (model, task), pieces in queue.waiting_by_task().items()
            ),
            failures=dict(Counter([*queue.failed.values()]).most_common()),
            slot_hours=self._hours_before + self.run.slot_hours(),
            elapsed=self.run.elapsed(),
            eta=self.run.eta(),
            curves=self._scored(queue).curves(),
            counts={"cells_deferred": self._deferred},
            notes=(
                *self._states.values(),
                *([f"{holding} are in the hands of other runs"] if holding else []),
            ),
        )

    def _slots(self, queue: WorkQueue) -> list[Slot]:
        how_far = self.run.underway()
        return [
            Slot(place=f"slot {index}", work="", seconds=None)
            if work is None
            else Slot(
                place=f"slot {index}",
                work=describe(work),
                seconds=queue.pace.elapsed(work.id),
                underway=how_far.get(work.id),
            )
            for index, work in enumerate([*self.run.slots])
        ]

    def _scored(self, queue: WorkQueue) -> Curves:
        """The curves of the newest plan, with the scores of the store and of this run."""
        plan = self._plan or queue.plan
        fresh = dict(self._elsewhere.scores(queue))
        while self._fresh:
            trial, points = self._fresh.popleft()
            fresh[trial] = points
        self._scores |= fresh
        if plan is not self._drawn:
            self._drawn, self._curves = plan, Curves(cell.row() for cell in plan.cells)
            fresh = {**plan.known.points, **self._scores}
        for trial, points in fresh.items():
            self._curves.add(trial, points)
        return self._curves


def hours_of(plan: Plan, timings: pa.Table | None) -> float:
    """The slot-hours of the plan's finished trials."""
    if timings is None or not len(timings):
        return 0.0
    own = pc.is_in(
        timings["trial_id"], pa.array(plan.trials.keys() & plan.known.trials, pa.string())
    )
    return float(pc.sum(timings.filter(own)["seconds_total"]).as_py() or 0.0) / 3600


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
        self._run, self._write = display.run, write
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
        said: dict[str, Any] = {
            "score": facts.score,
            "metric": facts.metric,
            "seconds": facts.seconds,
        }
        if status != "done":
            said = {"type": facts.error_type, "message": detail}
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
        queue = self._run.queue
        if queue is None or time.monotonic() - self._progressed < _PROGRESS_SECONDS:
            return
        self._progressed = time.monotonic()
        self.event(
            "progress",
            running=len(queue.live),
            slot_hours=round(self._run.slot_hours(), 6),
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


_LOOK_SECONDS = 5.0  # between two looks


class Elsewhere:
    """Reads the scores of other runs' trials for the painter, without blocking on the store."""

    def __init__(self) -> None:
        self._read: set[str] = set()
        self._looked = 0.0

    def scores(self, queue: WorkQueue) -> Mapping[str, float]:
        """New scores, in points, by trial."""
        new = queue.done_elsewhere - self._read
        if not new or time.monotonic() - self._looked < _LOOK_SECONDS:
            return {}
        self._looked = time.monotonic()
        try:
            rows = queue.store.asked_once().read_all("trials", new, ("trial_id", "last")).rows
        except StoreError:
            return {}
        self._read |= new
        return points_of(rows)
