"""Follows a store: a picture of one of its sweeps at each look, which reads only what is new.

For any process, whether a run is at work or not. Knows nothing that the store does not say.
"""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lp_sweep.orchestrator.estimate.pace import Eta
from lp_sweep.orchestrator.plan.known import points_of
from lp_sweep.orchestrator.watch.counts import state_counts, waiting_trials
from lp_sweep.orchestrator.watch.newrecords import NewRecords
from lp_sweep.orchestrator.watch.picture import Picture, Slot, Waiting
from lp_sweep.orchestrator.watch.sheet import COLUMNS, Scored, Sheet
from lp_sweep.orchestrator.watch.tries import Tries
from lp_sweep.storage.errors import SpecError
from lp_sweep.storage.files import FileInfo
from lp_sweep.storage.runs import Announcement, Observer
from lp_sweep.storage.store import Store
from lp_sweep.storage.tablefiles import record_name

_TRIALS = ("trial_id", "last", "seconds_total")


class _States(NamedTuple):
    """What has come of the cells of a sheet, as of `key`."""

    key: tuple[Sheet, int, int, frozenset[str]]
    counts: dict[str, int]
    waiting: tuple[Waiting, ...]
    failures: dict[str, int]  # by type
    seconds_lost: float  # of failed tries


class Follower:
    """Everything raises StoreError while the store can't be read; the next look goes on."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._observer = Observer(store)
        self._trials = NewRecords(store, "trials", _TRIALS)
        self._tries = Tries(store)
        self._scored: dict[str, Scored] = {}
        self._sheets: dict[str, tuple[FileInfo, Sheet]] = {}  # as its file was when it was read
        self._states: _States | None = None

    def look(self, name: str | None = None) -> Picture | None:
        """Of the sweep `name`, or of the one that was last at work; None: there is no sweep yet.
        Raises SpecError for an unknown name."""
        files = self._files()
        runs = self._observer.living()
        chosen = self._chosen(name, files, runs)
        if chosen is None:
            return None
        self._trials.look()
        self._forget_gone()
        sheet = self._sheet(chosen, files[chosen])
        if sheet is None:
            note = f"sweeps/{chosen}.parquet can't be read: see `lp-sweep doctor`"
            return Picture(
                sweep=chosen,
                at=_now(),
                done=0,
                failed=0,
                left=0,
                notes=(note,),
                sweeps=tuple(files),
            )
        self._read(sheet)
        return self._picture(chosen, sheet, [r for r in runs if r.sweep == chosen], tuple(files))

    def _files(self) -> dict[str, FileInfo]:
        """Of each sweep, by name."""
        named = ((record_name(info.name), info) for info in self._store.listing("sweeps"))
        return {sweep: info for sweep, info in named if sweep is not None}

    def _chosen(
        self, name: str | None, files: Mapping[str, FileInfo], runs: Sequence[Announcement]
    ) -> str | None:
        if name is not None and name not in files:
            have = ", ".join(files) or "none"
            raise SpecError(f"no sweep {name!r} in {self._store.location}. It has: {have}.")
        at_work = [run.sweep for run in runs if run.sweep in files]  # the newest is the last
        newest = max(files, key=lambda sweep: (files[sweep].modified, sweep), default=None)
        return name or (at_work[-1] if at_work else newest)

    def _sheet(self, name: str, info: FileInfo) -> Sheet | None:
        """A sweep's cells, read again when a run has written them anew; None: unreadable."""
        known = self._sheets.get(name)
        if known is not None and known[0] == info:
            return known[1]
        listing = self._store.read_all("sweeps", [name], COLUMNS)
        if listing.unreadable:
            return None
        sheet = Sheet(listing.rows)
        self._sheets[name] = info, sheet
        return sheet

    def _forget_gone(self) -> None:
        """Records that were set aside, or deleted by hand."""
        if gone := self._trials.forget_gone():
            self._sheets.clear()
            for id_ in gone:
                self._scored.pop(id_, None)

    def _read(self, sheet: Sheet) -> None:
        rows = self._trials.read(sheet.trials)
        points = points_of(rows)
        columns = (rows["trial_id"].to_pylist(), rows["seconds_total"].to_pylist())
        for id_, seconds in zip(*columns, strict=True):
            self._scored[id_] = Scored(points.get(id_), seconds or 0.0)
        sheet.add(self._scored)
        self._tries.look()

    def _states_of(self, sheet: Sheet, held: frozenset[str]) -> _States:
        """Counted anew where something has changed."""
        key = (sheet, self._trials.version, self._tries.version, held)
        if self._states is None or self._states.key != key:
            done = sheet.trials & self._trials.present
            failed = self._tries.failed(sheet.owns, done)
            self._states = _States(
                key,
                state_counts(sheet.cells, done, failed.keys()),
                waiting_trials(sheet.cells, done | failed.keys() | held),
                dict(Counter(failed.values()).most_common()),
                self._tries.seconds(sheet.owns),
            )
        return self._states

    def _picture(
        self, name: str, sheet: Sheet, runs: Sequence[Announcement], sweeps: tuple[str, ...]
    ) -> Picture:
        now = _now()
        held = frozenset(id_ for run in runs for id_ in run.held)
        states = self._states_of(sheet, held)
        slots = tuple(slot for run in runs for slot in _slots(run, sheet, now))
        used = sheet.seconds + states.seconds_lost + sum(slot.seconds or 0.0 for slot in slots)
        return Picture(
            sweep=name,
            at=now,
            done=states.counts["trials_done"],
            failed=states.counts["trials_failed"],
            left=states.counts["trials_pending"],
            slots=slots,
            waiting=states.waiting,
            failures=states.failures,
            slot_hours=used / 3600,
            elapsed=max((_since(run.started_at, now) or 0.0 for run in runs), default=None),
            eta=_eta(runs, now),
            curves=sheet.curves.curves(),
            counts=states.counts,
            unread=len(self._trials.unread(sheet.trials)),
            sweeps=sweeps,
        )


def _slots(run: Announcement, sheet: Sheet, now: dt.datetime) -> list[Slot]:
    """What a run holds, then its idle slots."""
    known = len(run.held_since) == len(run.held)  # an older version does not say
    moments = run.held_since if known else ("",) * len(run.held)
    busy = [
        Slot(place=run.host, work=sheet.describe(id_), seconds=_since(moment, now))
        for id_, moment in zip(run.held, moments, strict=True)
    ]
    idle = max(0, run.slots - len(busy))
    return [*busy, *[Slot(place=run.host, work="", seconds=None)] * idle]


def _eta(runs: Sequence[Announcement], now: dt.datetime) -> Eta:
    """Of the run that ends last. Each counts all that waits as its own."""
    etas = [_left(run, now) for run in runs]
    return max(etas, key=lambda eta: eta.seconds or 0.0, default=Eta())


def _left(run: Announcement, now: dt.datetime) -> Eta:
    ends = run.ends_at()
    if ends is None or run.seconds_left is None:
        return Eta()
    left = (ends - now).total_seconds()
    since = run.seconds_left - left  # it said so
    low, high = (
        max(0.0, each - since) if each is not None and math.isfinite(each) else None
        for each in (run.low_seconds, run.high_seconds)
    )
    return Eta(max(0.0, left), low, high)


def _since(moment: str, now: dt.datetime) -> float | None:
    """Seconds; None for what is no moment, which a foreign file may have."""
    try:
        then = dt.datetime.fromisoformat(moment)
    except ValueError:
        return None
    then = then if then.tzinfo else then.replace(tzinfo=dt.UTC)
    return max(0.0, (now - then).total_seconds())


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)
