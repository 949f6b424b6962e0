"""Finds what a store has lost and what can't be read, and sets unreadable files aside.

`lost` and `examine` only read. `set_aside` moves files that are not records to
`set-aside/<table>/`, where nothing reads them, and deletes nothing. A file of a newer lp-sweep is
named and never touched.

What is there shows what is lost, as after a copy of a part of a store. A finished trial has
predictions, which are written first; a trial belongs to a sweep; a cell names the measurement that
chose its layers. That takes names and a few columns of cells, so that every command that reads a
store can ask.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow.compute as pc

from lp_sweep.storage import parquet
from lp_sweep.storage.files import SET_ASIDE
from lp_sweep.storage.parquet import SUFFIX
from lp_sweep.storage.runs import Observer
from lp_sweep.storage.schema import TABLES
from lp_sweep.storage.sense import senseless, without
from lp_sweep.storage.store import Store
from lp_sweep.storage.tablefiles import Unreadable

_ID = re.compile(r"[tp][0-9]+-\w+")
_NAMED = ("sweeps", "trials", "predictions", "profiles")
_CELLS = ("kept_layers", "trial_id", "profile_id")
_BACKUP = "Copy it back from a backup, or run the sweep file again: `lp-sweep run`"
_LISTED = f"{_BACKUP} lists its cells, and keeps what is finished"


def lost(store: Store) -> list[Unreadable]:
    """The missing files, each with the next step. Raises StoreError."""
    with ThreadPoolExecutor(len(_NAMED)) as pool:
        names = dict(zip(_NAMED, pool.map(store.names, _NAMED), strict=True))
    for table in _NAMED[1:]:  # a copy under another name is no record
        names[table] = {*filter(_ID.fullmatch, names[table])}
    found = [*_lost_sweeps(store, names), *_lost_records(store, names)]
    return [Unreadable(store.files.where(path), reason, lost=True) for path, reason in found]


def _lost_sweeps(store: Store, names: dict[str, set[str]]) -> Iterator[tuple[str, str]]:
    for info in store.listing("sweeps"):
        name, _, ending = info.name.rpartition(".")
        if ending == "yaml" and name not in names["sweeps"]:
            yield f"sweeps/{name}.parquet", f"the cells of this sweep are missing. {_LISTED}"
    orphans = names["trials"] | names["profiles"]
    if orphans and not names["sweeps"]:
        records = f"the store's {len(orphans)} trials and measurements"
        yield "sweeps", f"no sweep lists {records}. {_LISTED}"


def _lost_records(store: Store, names: dict[str, set[str]]) -> Iterator[tuple[str, str]]:
    cells = store.read_all("sweeps", columns=_CELLS).rows
    asked = {*cells["trial_id"].to_pylist()} if names["sweeps"] else names["predictions"]
    chosen = cells.filter(pc.is_valid(cells["kept_layers"]))["profile_id"]
    gone = asked & (names["predictions"] - names["trials"])
    if gone:  # not those whose record is being written
        gone -= {id_ for run in Observer(store).living() for id_ in run.held}
    unmeasured = {*chosen.to_pylist()} - names["profiles"] - {None}
    bare = names["trials"] - names["predictions"]
    if gone:
        had = f"{_some(gone, 'trials')} had a record, and it is gone"
        yield "trials", f"{had}. {_BACKUP} trains again"
    if unmeasured:
        missing = f"{_some(unmeasured, 'measurements')} chose layers, and their records are gone"
        yield "profiles", f"{missing}. {_BACKUP} measures again"
    if bare:
        yield (
            "predictions",
            f"{_some(bare, 'finished trials')}: predictions are gone. Scores count "
            "without them, but no comparison of examples does. Copy them back from a backup; or "
            "move these records out of trials/ and run the sweep file again",
        )
    if store.files.is_folder and names["sweeps"]:  # its folders were made with it
        there = store.files.folders()
        for table, ids in (("trials", gone), ("profiles", unmeasured), ("predictions", bare)):
            if table not in there and not ids:
                yield table, f"the folder is missing. {_BACKUP} makes what it needs again"


def _some(ids: Collection[str], what: str) -> str:
    few = min(ids)
    return f"{len(ids)} {what}, such as {few}," if len(ids) > 1 else few


def examine(store: Store) -> list[Unreadable]:
    """Reads every record once. Raises StoreError if the store can't be read."""
    unreadable = [item for table in TABLES for item in store.read_all(table, None, ()).unreadable]
    return [*unreadable, *lost(store)]


def set_aside(store: Store, files: Collection[Unreadable]) -> None:
    """Moves files that can't be read, except those that were repaired or deleted meanwhile, as by
    another run. Of a pack with records that can't be true, the others move to a new pack.

    Raises StoreError if the store can't be written; it can be run again.
    """
    asked = {(item.location, item.record) for item in files if not item.lost}
    for table in TABLES:
        where = store.files.where(table)
        if not any(location.startswith(f"{where}/") for location, _ in asked):
            continue
        bad: dict[str, set[str]] = {}
        for item in store.read_all(table, None, ()).unreadable:
            if (item.location, item.record) in asked and not item.newer:
                path = table + item.location.removeprefix(where)
                bad.setdefault(path, set()).add(item.record)
        for path, records in bad.items():
            _set_aside(store, table, path, records - {""})


def _set_aside(store: Store, table: str, path: str, records: set[str]) -> None:
    packs = f"{table}/{parquet.PACKS}/"
    try:
        if records and path.startswith(packs):
            rows = parquet.decode(store.content(path), table)
            sound = without(rows, {*senseless(table, rows), *records})
            if len(sound):
                new = f"{packs}{uuid.uuid4().hex}{SUFFIX}"
                store.write(new, parquet.encode_pack(table, sound))
        target = f"{SET_ASIDE}/{path}"
        if store.perform(f"look at {target}", lambda: store.files.size(target)) is not None:
            target = f"{target}.{uuid.uuid4().hex[:8]}"
        store.perform(f"move {path}", lambda: store.files.move(path, target))
    except FileNotFoundError:  # another process moved it
        return
