"""A run as a stream of events for programs: one JSON object a line, beside a display for people.

`docs/watching.md` has the events and their keys. A later version adds events and keys, and changes
none without raising `schema`; whoever reads them leaves out what it does not know.
"""

from __future__ import annotations

import datetime as dt
import json
import time
from collections.abc import Callable
from typing import Any

from lp_sweep.orchestrator.engine.progress import NO_FACTS, Display, Facts
from lp_sweep.orchestrator.engine.workqueue import WorkQueue
from lp_sweep.orchestrator.plan.naming import describe
from lp_sweep.orchestrator.plan.plan import Plan, Work
from lp_sweep.orchestrator.watch.picture import SCHEMA

_PROGRESS_SECONDS = 10.0  # between two events of progress
# how a piece ended -> the event
_NAMES = {"done": "done", "failed": "failed", "lost": "lost", "spooled": "spooled"}


class EventReporter:
    """`write` takes a line without its end; `display` keeps the state and shows it to people."""

    def __init__(self, display: Display, write: Callable[[str], object]) -> None:
        self._display, self._write = display, write
        self._progressed = time.monotonic()

    def planned(self, plan: Plan) -> None:
        self._display.planned(plan)
        self.event("planned", sweep=plan.sweep.name, totals=plan.totals())

    def opened(self, queue: WorkQueue, slots: int) -> None:
        self._display.opened(queue, slots)
        self.event("opened", slots=slots, left=queue.waiting)

    def started(self, work: Work) -> None:
        self._display.started(work)
        self.event("started", **_named(work))

    def ended(self, id_: str, status: str, detail: str, facts: Facts = NO_FACTS) -> None:
        self._display.ended(id_, status, detail, facts)
        said: dict[str, Any] = {
            "score": facts.score,
            "metric": facts.metric,
            "seconds": facts.seconds,
        }
        if status != "done":
            said = {"type": facts.error_type, "message": detail}
        self.event(_NAMES.get(status, "not_stored"), id=id_, **said)

    def note(self, text: str) -> None:
        self._display.note(text)
        self.event("note", message=text)

    def tick(self) -> None:
        self._display.tick()
        run = self._display.run
        if run.queue is None or time.monotonic() - self._progressed < _PROGRESS_SECONDS:
            return
        self._progressed = time.monotonic()
        progress = run.queue.progress()
        self.event(
            "progress",
            running=len(run.queue.live),
            slot_hours=round(run.slot_hours(), 6),
            **progress._asdict(),
        )

    def closed(self) -> None:
        self._display.closed()

    def event(self, name: str, **said: Any) -> None:
        at = dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")
        self._write(json.dumps({"schema": SCHEMA, "event": name, "at": at, **said}))


def _named(work: Work) -> dict[str, Any]:
    """What a piece of work is of, for a program and in words."""
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
