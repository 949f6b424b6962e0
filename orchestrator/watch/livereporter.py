"""The display of a run on a terminal: the live view, drawn from the run's queue and from the scores
that it gets to see."""

from __future__ import annotations

import datetime as dt
from collections import Counter, deque

import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console, RenderableType
from rich.text import Text

from lp_sweep.orchestrator.engine.progress import (
    NO_FACTS,
    Display,
    Facts,
    PlainReporter,
    Run,
    first_line,
)
from lp_sweep.orchestrator.engine.workqueue import WorkQueue
from lp_sweep.orchestrator.plan.naming import describe
from lp_sweep.orchestrator.plan.plan import Plan, Work
from lp_sweep.orchestrator.watch.curves import Curves
from lp_sweep.orchestrator.watch.elsewhere import Elsewhere
from lp_sweep.orchestrator.watch.painter import Painter, has_screen
from lp_sweep.orchestrator.watch.picture import Picture, Slot, Waiting
from lp_sweep.orchestrator.watch.screen import Screen
from lp_sweep.storage.printable import printable

_RECENT = 6


def make_display(timings: pa.Table | None = None) -> Display:
    """`timings`: of the store's finished trials (`Ledger.timings`)."""
    console = Console(stderr=True)
    return LiveReporter(console, timings) if has_screen(console) else PlainReporter()


class LiveReporter:
    """One screen that follows the run. The cells of a plan are gone through by the painter's
    thread, once a plan; a score that comes in costs a look into a dictionary."""

    def __init__(self, console: Console, timings: pa.Table | None = None) -> None:
        self.run = Run()
        self.recent: deque[Text] = deque(maxlen=_RECENT)
        self._painter = Painter(console, self._draw)
        self._marks = ("✓", "✗") if console.encoding.startswith("utf") else ("+", "x")
        self._timings = timings
        self._hours_before = 0.0  # that the sweep's trials had taken when the run began
        self._plan: Plan | None = None
        self._drawn: Plan | None = None  # whose cells the curves are of
        self._curves = Curves(())
        self._scores: dict[str, float] = {}  # of this run
        self._fresh: deque[tuple[str, float]] = deque()  # that the painter has not seen
        self._elsewhere = Elsewhere()

    def planned(self, plan: Plan) -> None:
        self.run.cells_deferred = plan.totals()["cells_deferred"]
        self._plan = plan

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

    def note(self, text: str) -> None:
        """Stays above the display."""
        self._painter.note(Text(f"note: {printable(text)}", style="yellow"))

    def tick(self) -> None:
        """The display refreshes itself."""

    def closed(self) -> None:
        self._painter.close()

    def _draw(self) -> RenderableType:
        """In the painter's thread."""
        queue = self.run.queue
        if queue is None:
            return Text("")
        return Screen(self.picture(queue), [*self.recent])

    def picture(self, queue: WorkQueue) -> Picture:
        """What is true now. Called by another thread than the events are."""
        done, failed, left = queue.progress()[:3]
        holding = len(queue.others.holding)
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
            failures=dict(Counter([*queue.history.failed.values()]).most_common()),
            slot_hours=self._hours_before + self.run.slot_hours(),
            elapsed=self.run.elapsed(),
            eta=self.run.eta(),
            curves=self._scored(queue).curves(),
            counts={"cells_deferred": self.run.cells_deferred},
            notes=(f"{holding} are in the hands of other runs",) if holding else (),
        )

    def _slots(self, queue: WorkQueue) -> list[Slot]:
        return [
            Slot(place=f"slot {index}", work="", seconds=None)
            if work is None
            else Slot(
                place=f"slot {index}", work=describe(work), seconds=queue.pace.elapsed(work.id)
            )
            for index, work in enumerate([*self.run.slots])
        ]

    def _scored(self, queue: WorkQueue) -> Curves:
        """The curves of the newest plan, with what the store had and what this run has added."""
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
    """Slot-hours that the plan's finished trials took."""
    if timings is None or not len(timings):
        return 0.0
    own = pc.is_in(
        timings["trial_id"], pa.array(plan.trials.keys() & plan.known.trials, pa.string())
    )
    return float(pc.sum(timings.filter(own)["seconds_total"]).as_py() or 0.0) / 3600
