"""`status` and `status --watch`: the progress of a store's sweeps in words, once or repeatedly.

A watch runs until Ctrl-C, and then exits with code 0: a screen on a terminal, elsewhere
what `status` prints, for each change. A store that is unreachable, or not there yet, is reported
and retried.
"""

from __future__ import annotations

import datetime as dt
import json
import select
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from lp_sweep.orchestrator.cli.output import emit, end_in_order, say, stored
from lp_sweep.orchestrator.plan.naming import ASSUMED
from lp_sweep.orchestrator.watch.screen import bar, has_screen, line
from lp_sweep.storage.errors import SpecError, StoreError
from lp_sweep.storage.printable import clock, page, printable
from lp_sweep.storage.runs import Announcement, Observer
from lp_sweep.storage.setups import hidden_notes

if TYPE_CHECKING:
    from lp_sweep.orchestrator.watch.states import States

_SHARE = 10  # looking takes at most a tenth of the time
_NOTHING = "no sweep in this store yet"


def states_text(states: States) -> str:
    """A line for each sweep, the active runs with what they do, and notes."""
    return page([*_sweep_lines(states), *_run_lines(states), *_note_lines(states)])


def _sweep_lines(states: States) -> Iterator[str]:
    if not states.sweeps:
        lost = states.hidden or any(item.lost for item in states.unreadable)
        yield (
            "no sweep of this store can be read. Run its sweep file again: `lp-sweep run` writes "
            "its cells, and keeps finished trials"
            if lost
            else _NOTHING
        )
        return
    width = max(len(state["sweep"]) for state in states.sweeps)
    yield (
        f"{'sweep':<{width}}  {'cells':>6} {'done':>6}   {'trials':>6} {'done':>6} {'failed':>6} "
        f"{'pending':>7}   {'deferred cells':>14}"
    )
    for s in states.sweeps:
        yield (
            f"{s['sweep']:<{width}}  {s['cells']:>6} {s['cells_done']:>6}   {s['trials']:>6} "
            f"{s['trials_done']:>6} {s['trials_failed']:>6} {s['trials_pending']:>7}   "
            f"{s['cells_deferred']:>14}"
        )


def _run_lines(states: States) -> Iterator[str]:
    now = dt.datetime.now(dt.UTC)
    for run in states.runs:
        yield f"running: {run.sentence()}{_ending(run, now)}"
        for id_, since in zip(run.held, run.held_since, strict=True):
            if id_ in states.work:
                long = f", {states.underway[id_].text}" if id_ in states.underway else ""
                yield f"  {states.work[id_]}: {clock(_seconds_since(since, now))}{long}"


def _note_lines(states: States) -> Iterator[str]:
    for sweep in states.sweeps:
        if sweep["failures"]:
            kinds = ", ".join(f"{kind} {count}" for kind, count in sweep["failures"].items())
            yield f"{sweep['sweep']}: failed: {kinds}. `lp-sweep retry` tries them again"
        if spared := sweep["cells_not_needed"]:
            yield f"{sweep['sweep']}: {spared} cells were not needed for the answer: {ASSUMED}."
    yield from (f"note: {note}" for note in hidden_notes(states.earlier, states.location))


def _ending(run: Announcement, now: dt.datetime) -> str:
    """` on 4 slots, ends about 2026-11-21 14:32 UTC (in 1:05:03)`, without unknown parts."""
    slots = f" on {run.slots} slot{'s' if run.slots > 1 else ''}" if run.slots > 0 else ""
    ends = run.ends_at()
    if ends is None:
        return slots
    left = max(0.0, (ends - now).total_seconds())
    return f"{slots}, ends about {ends:%Y-%m-%d %H:%M} UTC (in {clock(left)})"


def _seconds_since(moment: str, now: dt.datetime) -> float | None:
    """None if a foreign file has something else in its place."""
    try:
        then = dt.datetime.fromisoformat(moment)
    except ValueError:
        return None
    return max(0.0, (now - (then if then.tzinfo else then.replace(tzinfo=dt.UTC))).total_seconds())


# -- again and again


def watch(location: str | None, sweep: str | None, every: str, as_json: bool) -> None:
    """Raises SpecError for a wrong `every`, and for a sweep that the store does not have."""
    seconds, console = _seconds(every), Console()
    with suppress(KeyboardInterrupt):
        if as_json or not has_screen(console):
            _follow(location, sweep, seconds, _Changes(as_json))
        else:
            end_in_order()  # the display hides the cursor
            with Live(console=console, auto_refresh=False) as live:
                _follow(location, sweep, seconds, _Screen(live))


def _seconds(every: str) -> float:
    from lp_sweep.orchestrator.sweepfile.entries import duration

    try:
        seconds = duration(every)
    except ValueError:
        seconds = None
    if seconds is None:
        raise SpecError(f"--every {every!r}: a time such as 5s, 0.5s or 1m.")
    return float(seconds)


def _follow(
    location: str | None, sweep: str | None, seconds: float, face: _Changes | _Screen
) -> None:
    from lp_sweep.orchestrator.watch.states import sweep_states

    store = observer = None
    while True:
        began = time.monotonic()
        try:
            store = store or stored(location)
            observer = observer or Observer(store)
            if not face.show(sweep_states(store, sweep, observer)):
                return
        except StoreError as error:
            face.trouble(str(error))
        took = time.monotonic() - began
        if not _waited(max(seconds, _SHARE * took)):
            return


def _waited(seconds: float) -> bool:
    """Waits. Returns False if the reader of our lines (`| head`) has gone."""
    poller = select.poll()
    poller.register(sys.stdout.fileno(), 0)  # errors alone
    return not poller.poll(1000 * seconds)


class _Screen:
    """The screen of a terminal: a bar for each sweep at work, what runs where, and all sweeps."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._drawn: RenderableType = Text("")

    def show(self, states: States) -> bool:
        at_work = {run.sweep for run in states.runs} or {s["sweep"] for s in states.sweeps[:1]}
        bars = [
            bar(s["sweep"], s["trials_done"] + s["trials_failed"], s["trials"])
            for s in states.sweeps
            if s["sweep"] in at_work
        ]
        self._drawn = Group(
            *bars,
            *map(Text, map(printable, _run_lines(states))),
            *map(line, _sweep_lines(states)),
            *map(Text, map(printable, _note_lines(states))),
        )
        self._live.update(self._drawn, refresh=True)
        return True

    def trouble(self, message: str) -> None:
        """Below what was seen last."""
        told = f"the store can't be read, and is tried again: {printable(message)}"
        self._live.update(Group(self._drawn, Text(told, style="yellow")), refresh=True)


class _Changes:
    """Prints what `status` prints, once for each change."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._seen: Any = None
        self._trouble = ""

    def show(self, states: States) -> bool:
        if self._trouble:
            say("the store can be read")
            self._trouble = ""
        before, self._seen = self._seen, _essence(states)
        if self._seen == before:
            return True
        if self._as_json:
            return emit(json.dumps(states.plain()))
        now = dt.datetime.now(dt.UTC)
        return emit(f"{now:%Y-%m-%d %H:%M:%S} UTC\n{states_text(states)}")

    def trouble(self, message: str) -> None:
        if message != self._trouble:
            self._trouble = message
            say(f"warning: the store can't be read, and is tried again: {message}")


def _essence(states: States) -> Any:
    """What counts as a change: everything but the clock."""
    far = {id_: 10 * found.step // max(1, found.steps) for id_, found in states.underway.items()}
    return states.sweeps, [[(id_, far.get(id_)) for id_ in run.held] for run in states.runs]
