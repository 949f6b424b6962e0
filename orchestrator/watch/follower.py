"""Follows a store: each look makes a picture of a sweep and reads only what is new.

It works in any process, with or without an active run, from what the store says alone.
"""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lp_sweep.orchestrator.estimate.pace import Eta
from lp_sweep.orchestrator.plan.known import failures, points_of
from lp_sweep.orchestrator.plan.naming import layers_of, short_model
from lp_sweep.orchestrator.watch.picture import (
    Curves,
    Picture,
    Slot,
    Waiting,
    line_name,
    state_counts,
    waiting_trials,
)
from lp_sweep.storage.files import FileInfo
from lp_sweep.storage.parquet import id_column, schema_of
from lp_sweep.storage.printable import printable, unknown_sweep
from lp_sweep.storage.runs import Announcement, Observer
from lp_sweep.storage.store import Store
from lp_sweep.storage.tablefiles import record_name
from lp_sweep.storage.underway import Looks, Underway

_TRIALS = ("trial_id", "last", "seconds_total")


class _States(NamedTuple):
    """The states of a sheet's cells; `key` says of which moment."""

    key: tuple[Sheet, int, int, frozenset[str]]
    counts: dict[str, int]
    waiting: tuple[Waiting, ...]
    failures: dict[str, int]  # by type
    seconds_lost: float  # of failed tries


class Follower:
    """Makes pictures of a store's sweeps. Every method raises StoreError while the store can't be
    read; the next look continues."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._observer = Observer(store)
        self._trials = NewRecords(store, "trials", _TRIALS)
        self._tries = Tries(store)
        self._looks = Looks(store)
        self._scored: dict[str, Scored] = {}
        # by sweep, with the file that was read
        self._sheets: dict[str, tuple[FileInfo, Sheet]] = {}
        self._states: _States | None = None

    def look(self, name: str | None = None) -> Picture | None:
        """The picture of sweep `name`, or of the latest one; None if there is no sweep yet.
        Raises SpecError for an unknown name."""
        files = self._files()
        runs = self._observer.living()
        chosen = self._chosen(name, files, runs)
        if chosen is None:
            return None
        self._trials.look()
        if gone := self._trials.forget_gone():  # set aside, or deleted by hand
            self._sheets.clear()
            for id_ in gone:
                self._scored.pop(id_, None)
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
        """The file of each sweep's cells, by name."""
        named = ((record_name(info.name), info) for info in self._store.listing("sweeps"))
        return {sweep: info for sweep, info in named if sweep is not None}

    def _chosen(
        self, name: str | None, files: Mapping[str, FileInfo], runs: Sequence[Announcement]
    ) -> str | None:
        if name is not None and name not in files:
            raise unknown_sweep(name, files, self._store.location)
        at_work = [run.sweep for run in runs if run.sweep in files]  # the newest is the last
        newest = max(files, key=lambda sweep: (files[sweep].modified, sweep), default=None)
        return name or (at_work[-1] if at_work else newest)

    def _sheet(self, name: str, info: FileInfo) -> Sheet | None:
        """A sweep's cells, read again if the file has changed; None if unreadable."""
        known = self._sheets.get(name)
        if known is not None and known[0] == info:
            return known[1]
        listing = self._store.read_all("sweeps", [name], SHEET_COLUMNS)
        if listing.unreadable:
            return None
        sheet = Sheet(listing.rows)
        self._sheets[name] = info, sheet
        return sheet

    def _read(self, sheet: Sheet) -> None:
        rows = self._trials.read(sheet.trials)
        points = points_of(rows)
        columns = (rows["trial_id"].to_pylist(), rows["seconds_total"].to_pylist())
        for id_, seconds in zip(*columns, strict=True):
            self._scored[id_] = Scored(points.get(id_), seconds or 0.0)
        sheet.add(self._scored)
        self._tries.look()

    def _states_of(self, sheet: Sheet, held: frozenset[str]) -> _States:
        """Counts again only if something has changed."""
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
        done = self._trials.present  # an old announcement may still hold some of these
        held = frozenset(id_ for run in runs for id_ in run.held) - done
        states = self._states_of(sheet, held)
        how_far = self._looks.of(held)
        slots = tuple(slot for run in runs for slot in _slots(run, held, sheet, now, how_far))
        counts = states.counts
        is_open = counts["trials_pending"] + counts["cells_deferred"]
        # use the latest end: each run counts all pending trials as its own
        etas = [_left(run, now) for run in runs] if is_open else []
        used = sheet.seconds + states.seconds_lost + sum(slot.seconds or 0.0 for slot in slots)
        return Picture(
            sweep=name,
            at=now,
            done=counts["trials_done"],
            failed=counts["trials_failed"],
            left=counts["trials_pending"],
            slots=slots,
            waiting=states.waiting,
            failures=states.failures,
            slot_hours=used / 3600,
            elapsed=max((_since(run.started_at, now) or 0.0 for run in runs), default=None),
            eta=max(etas, key=lambda eta: eta.seconds or 0.0, default=Eta()),
            curves=sheet.curves.curves(),
            counts=counts,
            unread=len(self._trials.unread(sheet.trials)),
            sweeps=sweeps,
        )


def _slots(
    run: Announcement,
    held: Set[str],
    sheet: Sheet,
    now: dt.datetime,
    how_far: Mapping[str, Underway],
) -> list[Slot]:
    """The slots of a run: those of its trials among `held`, then the idle ones."""
    busy = [
        Slot(
            place=run.host,
            work=sheet.describe(id_),
            seconds=_since(moment, now),
            underway=how_far.get(id_),
        )
        for id_, moment in zip(run.held, run.held_since, strict=True)
        if id_ in held
    ]
    idle = max(0, run.slots - len(busy))
    return [*busy, *[Slot(place=run.host, work="", seconds=None)] * idle]


def _left(run: Announcement, now: dt.datetime) -> Eta:
    ends = run.ends_at()
    if ends is None or run.seconds_left is None:
        return Eta()
    left = (ends - now).total_seconds()
    since = run.seconds_left - left  # the announcement
    low, high = (
        max(0.0, each - since) if each is not None and math.isfinite(each) else None
        for each in (run.low_seconds, run.high_seconds)
    )
    return Eta(max(0.0, left), low, high)


def _since(moment: str, now: dt.datetime) -> float | None:
    """Seconds since a moment; None if a foreign file has something else in its place."""
    try:
        then = dt.datetime.fromisoformat(moment)
    except ValueError:
        return None
    then = then if then.tzinfo else then.replace(tzinfo=dt.UTC)
    return max(0.0, (now - then).total_seconds())


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


SHEET_COLUMNS = (
    *("model", "depth", "procedure", "feed_forward", "strategy", "task", "seed"),
    *("kept_layers", "trial_id", "profile_id", "search"),
)


class Scored(NamedTuple):
    """A record's points after the last epoch (None: no number) and its seconds."""

    points: float | None
    seconds: float


class Sheet:
    """A sweep's cells with the scores read so far. `cells`: rows of `sweeps` with SHEET_COLUMNS."""

    def __init__(self, cells: pa.Table) -> None:
        self.cells = cells
        rows = cells.to_pylist()
        self.trials = frozenset(row["trial_id"] for row in rows) - {None}
        self.curves = Curves(rows)
        self.seconds = 0.0  # of all added trials
        self._rows: dict[str, int] = {}
        for number, row in enumerate(rows):
            for name in filter(None, (row["trial_id"], row["profile_id"])):
                self._rows.setdefault(name, number)
        self._open = set(self.trials)  # not added yet

    def owns(self, id_: str) -> bool:
        """Whether the sweep has this trial, or cells that wait for this profile."""
        return id_ in self._rows

    def add(self, scored: Mapping[str, Scored]) -> None:
        """Adds the records of this sweep that were not added before."""
        for trial in self._open & scored.keys():
            self._open.discard(trial)
            self.curves.add(trial, scored[trial].points)
            self.seconds += scored[trial].seconds

    def describe(self, id_: str) -> str:
        """`bert-base-cased, layers 1-8 of 12, rte, seed 42`; the id itself if no cell names it."""
        number = self._rows.get(id_)
        if number is None:
            return id_
        [row] = self.cells.slice(number, 1).to_pylist()
        model, task = short_model(row["model"]), printable(row["task"])
        if id_ != row["trial_id"]:
            return f"{model}, profile for {printable(line_name(row))}, {task}"
        layers = layers_of(row["kept_layers"], row["depth"])
        manner = line_name(row).split(", ")[1:]
        return ", ".join([model, layers, *map(printable, manner), task, f"seed {row['seed']}"])


_COLUMNS = ("trial_id", "error_type", "final", "started_at", "ended_at")

Owns = Callable[[str], bool]  # whether the sweep has this work


class Tries:
    """The failed tries of a store. `version` increases with each change. Raises StoreError."""

    def __init__(self, store: Store) -> None:
        self.version = 0
        self._store = store
        self._records = NewRecords(store, "attempts", _COLUMNS)
        self._rows = self._records.read()  # empty before the first look
        self._measured: Set[str] = frozenset()  # stored profiles

    def look(self) -> None:
        self._records.look()
        fresh = self._records.read()
        measured = self._store.names("profiles") if len(self._rows) + len(fresh) else frozenset()
        if len(fresh) or measured != self._measured:
            self._rows = pa.concat_tables([self._rows, fresh])
            self._measured = measured
            self.version += 1

    def failed(self, owns: Owns, done: Set[str]) -> dict[str, str]:
        """The sweep's work that failed for good -> error type. `done`: finished trials."""
        return failures(self._of(owns), done | self._measured)

    def seconds(self, owns: Owns) -> float:
        """The time that the sweep's tries took; 0 for a lost worker's, which is not known."""
        rows = self._of(owns)
        lasted = pc.subtract(rows["ended_at"], rows["started_at"]).cast(pa.int64())
        return float(pc.sum(lasted).as_py() or 0) / 1e6

    def _of(self, owns: Owns) -> pa.Table:
        ours = [owns(id_) for id_ in self._rows["trial_id"].to_pylist()]
        return self._rows.filter(pa.array(ours, pa.bool_()))


AT_ONCE = 4096  # single files read in one look


class NewRecords:
    """Reads each record of a table once. Raises StoreError."""

    def __init__(self, store: Store, table: str, columns: tuple[str, ...]) -> None:
        self.present: Set[str] = frozenset()  # identifiers as of the last look, if readable
        self.taken: set[str] = set()  # those that were read
        self.version = 0  # increases when `present` changes
        self._store, self._table, self._columns = store, table, columns
        self._singles: dict[str, FileInfo] = {}
        self._packs: dict[str, frozenset[str]] = {}  # by path
        self._refused: dict[str, FileInfo | None] = {}  # unreadable files, as they were then
        self._missing: Set[str] = frozenset()  # present and not taken

    def look(self) -> None:
        singles, packs = self._listed()
        if (singles, packs.keys()) == (self._singles, self._packs.keys()):
            return
        self._singles, self._packs = singles, packs
        self._refused = {
            name: info for name, info in self._refused.items() if singles.get(name) == info
        }
        self._settle(set(singles).union(*packs.values()) - self._refused.keys())

    def _settle(self, present: Set[str]) -> None:
        if present != self.present:
            self.present = present
            self.version += 1
        self._missing = present - self.taken

    def _listed(self) -> tuple[dict[str, FileInfo], dict[str, frozenset[str]]]:
        contents = self._store.contents(self._table)
        packs = self._store.pack_ids(self._table, contents)
        return {name: info for name, info in contents.singles.items() if info.size}, packs

    def unread(self, wanted: Set[str]) -> Set[str]:
        """Those of `wanted` that exist and were not read yet."""
        return self._missing & wanted

    def read(self, wanted: Set[str] | None = None) -> pa.Table:
        """The rows of records that were not read before, of `wanted` (None: all)."""
        unread = self._missing if wanted is None else self.unread(wanted)
        singles = sorted(unread & self._singles.keys())
        names = [*singles[:AT_ONCE], *(unread - self._singles.keys())]
        if not names:
            return schema_of(self._table, self._columns).empty_table()
        rows = self._store.read_all(self._table, names, self._columns).rows
        found = set(rows[id_column(self._table)].to_pylist())
        refused = [name for name in names if name not in found]
        self._refused.update({name: self._singles.get(name) for name in refused})
        self.taken |= found
        self._settle(self.present - set(refused))
        return rows

    def forget_gone(self) -> Set[str]:
        """Forgets and returns deleted records; they are read again if they return."""
        gone = self.taken - self.present
        self.taken -= gone
        return gone
