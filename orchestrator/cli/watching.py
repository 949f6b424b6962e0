"""`status --watch`: the progress of a store's sweeps, again and again.

It runs until Ctrl-C, and then exits with code 0: a screen on a terminal, elsewhere
what `status` prints, for each change. A store that is unreachable, or not there yet, is reported
and retried.
"""

from __future__ import annotations

import datetime as dt
import json
import select
import sys
import time
from contextlib import suppress
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from lp_sweep.orchestrator.cli.output import emit, end_in_order, say, stored
from lp_sweep.orchestrator.sweepfile.entries import duration
from lp_sweep.orchestrator.watch.reporters import bar, has_screen, line
from lp_sweep.orchestrator.watch.states import (
    States,
    note_lines,
    run_lines,
    states_text,
    sweep_lines,
    sweep_states,
)
from lp_sweep.storage.errors import SpecError, StoreError
from lp_sweep.storage.printable import printable
from lp_sweep.storage.runs import Observer

_SHARE = 10  # looking takes at most a tenth of the time


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
            *map(Text, map(printable, run_lines(states))),
            *map(line, sweep_lines(states)),
            *map(Text, map(printable, note_lines(states))),
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
    """The part of `states` whose change is printed: all of it except times."""
    far = {id_: found.tenth for id_, found in states.underway.items()}
    return states.sweeps, [[(id_, far.get(id_)) for id_ in run.held] for run in states.runs]
