"""The live view of a store: `status --watch`.

It runs until Ctrl-C, and then exits with code 0: a screen on a terminal, elsewhere a line (with
--json an object) for each change. An unreachable store is reported and retried.
"""

from __future__ import annotations

import json
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console, RenderableType
from rich.text import Text

from lp_sweep.orchestrator.cli.output import emit, end_in_order, say, stored
from lp_sweep.orchestrator.watch.follower import Follower
from lp_sweep.orchestrator.watch.painter import Painter, has_screen
from lp_sweep.orchestrator.watch.picture import Picture, picture_json
from lp_sweep.orchestrator.watch.screen import Screen
from lp_sweep.storage.errors import SpecError, StoreError
from lp_sweep.storage.places import DEFAULT_STORE
from lp_sweep.storage.printable import printable
from lp_sweep.storage.redact import redact_text
from lp_sweep.storage.store import is_store
from lp_sweep.storage.underway import Underway

_SHARE = 10  # looking takes at most a tenth of the time
_NOTHING = "no sweep in this store yet"


class Face(Protocol):
    """How a watch shows what it sees."""

    def show(self, picture: Picture | None) -> bool:
        """Returns False if nobody reads any more."""

    def trouble(self, message: str) -> None: ...


def watch(location: str | None, sweep: str | None, every: str, as_json: bool) -> None:
    """Waits for the store if there is none yet. Raises SpecError for a wrong `every`, and for a
    sweep that the store does not have."""
    from lp_sweep.orchestrator.service.store import reading_patience

    seconds, place = _seconds(every), location or str(DEFAULT_STORE)
    with suppress(KeyboardInterrupt), _face(as_json) as face:
        while not is_store(place, reading_patience(place)):
            where = redact_text(place) if "://" in place else Path(place).absolute()
            face.trouble(f"no store at {where} yet: waiting for a run to make one")
            if not _waited(seconds):
                return
        _follow(Follower(stored(location)), sweep, seconds, face)


def _seconds(every: str) -> float:
    from lp_sweep.orchestrator.sweepfile.entries import duration

    try:
        seconds = duration(every)
    except ValueError:
        seconds = None
    if seconds is None:
        raise SpecError(f"--every {every!r}: a time such as 5s, 0.5s or 1m.")
    return float(seconds)


def _follow(follower: Follower, sweep: str | None, seconds: float, face: Face) -> None:
    first = True
    while True:
        began, unread = time.monotonic(), 0
        try:
            picture = follower.look(sweep)
            unread = picture.unread if picture else 0
            if not face.show(picture):
                return
        except StoreError as error:
            if first:
                raise
            face.trouble(f"the store can't be read, and is tried again: {error}")
        first = False
        took = time.monotonic() - began
        if not _waited(0.0 if unread else max(seconds, _SHARE * took)):
            return


def _waited(seconds: float) -> bool:
    """Waits. Returns False if the reader of our lines (`| head`) has gone."""
    poller = select.poll()
    poller.register(sys.stdout.fileno(), 0)  # errors alone
    return not poller.poll(1000 * seconds)


@contextmanager
def _face(as_json: bool) -> Iterator[Face]:
    console = Console()
    if as_json:
        yield _Changes(_json_line)
    elif not has_screen(console):
        yield _Changes(_text_line)
    else:
        end_in_order()  # the display hides the cursor
        with closing(_Display(console)) as face:
            yield face


class _Display:
    """The screen of a terminal."""

    def __init__(self, console: Console) -> None:
        self._drawn: RenderableType = Text("")
        self._painter = Painter(console, self._draw, leave=True)
        self._picture: Picture | None = None

    def close(self) -> None:
        self._painter.close()

    def show(self, picture: Picture | None) -> bool:
        self._picture = picture
        self._drawn = Screen(picture) if picture else Text(_NOTHING)
        self._painter.open()
        return True

    def trouble(self, message: str) -> None:
        if self._picture:
            self._drawn = Screen(replace(self._picture, notes=(*self._picture.notes, message)))
        else:
            self._drawn = Text(printable(message))
            self._painter.open()

    def _draw(self) -> RenderableType:
        return self._drawn


class _Changes:
    """Prints a line for each change."""

    def __init__(self, line: Callable[[Picture | None], str]) -> None:
        self._line = line
        self._told: Any = ()  # what was shown last, or a warning's text
        self._shown = False

    def show(self, picture: Picture | None) -> bool:
        now = _essence(picture)
        if now == self._told:
            return True
        if isinstance(self._told, str):
            say("the store can be read again" if self._shown else "the store is there")
        self._told, self._shown = now, True
        return emit(self._line(picture))

    def trouble(self, message: str) -> None:
        if message != self._told:
            self._told = message
            say(f"warning: {message}")


def _json_line(picture: Picture | None) -> str:
    return json.dumps(picture_json(picture) if picture else None)


def _essence(picture: Picture | None) -> Any:
    """Changes of these print a new line: everything but the clock."""
    if picture is None:
        return None
    works = sorted((slot.work, _tenths(slot.underway)) for slot in picture.running)
    counts = (picture.done, picture.failed, picture.left, picture.unread)
    return picture.sweep, counts, works, {**picture.counts}, {**picture.failures}, picture.notes


def _tenths(how_far: Underway | None) -> int:
    return 10 * how_far.step // max(1, how_far.steps) if how_far else 0


def _text_line(picture: Picture | None) -> str:
    """`2026-11-22 10:31:05 UTC  glue: 24 of 66 trials done, 2 running, ETA 12:00`."""
    if picture is None:
        return _NOTHING
    failures = ", ".join(f"{kind} {count}" for kind, count in picture.failures.items())
    parts = [f"{picture.done} of {picture.total} trials done"]
    if picture.failed:
        parts.append(f"{picture.failed} failed ({failures})")
    if picture.elapsed is None:
        parts.append("no run is at work")
    else:
        parts += [f"{len(picture.running)} running", f"ETA {picture.eta.text()}"]
    parts.append(f"{picture.slot_hours:.2f} slot-hours used")
    parts += [f"{slot.work} at {slot.underway.text}" for slot in picture.running if slot.underway]
    return printable(f"{picture.at:%Y-%m-%d %H:%M:%S} UTC  {picture.sweep}: {', '.join(parts)}")
