"""Finds what a store has lost: a folder or files that are gone, as after a copy of a part of it.

What is there shows it. A finished trial has predictions, which are written first; a trial belongs
to a sweep; a cell names the measurement that chose its layers. Reads names and a few columns of
cells, so that every command that reads a store can ask.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow.compute as pc

from lp_sweep.storage.runs import Observer
from lp_sweep.storage.store import Store
from lp_sweep.storage.tablefiles import Unreadable

_ID = re.compile(r"[tp][0-9]+-\w+")
_TABLES = ("sweeps", "trials", "predictions", "profiles")
_CELLS = ("kept_layers", "trial_id", "profile_id")
_BACKUP = "Copy it back from a backup, or run the sweep file again: `lp-sweep run`"


def lost(store: Store) -> list[Unreadable]:
    """What is missing, and what to do. Raises StoreError."""
    with ThreadPoolExecutor(len(_TABLES)) as pool:
        listed = pool.map(store.names, _TABLES)
        names = dict(zip(_TABLES, listed, strict=True))
    for table in _TABLES[1:]:  # a copy under another name is no record
        names[table] = {*filter(_ID.fullmatch, names[table])}
    found = [*_sweeps(store, names), *_records(store, names)]
    return [Unreadable(store.files.where(path), reason, lost=True) for path, reason in found]


def _sweeps(store: Store, names: dict[str, set[str]]) -> Iterator[tuple[str, str]]:
    for info in store.listing("sweeps"):
        name, _, ending = info.name.rpartition(".")
        if ending == "yaml" and name not in names["sweeps"]:
            yield f"sweeps/{name}.parquet", f"the cells of this sweep are missing. {_listed()}"
    orphans = names["trials"] | names["profiles"]
    if orphans and not names["sweeps"]:
        records = "trials and measurements"
        yield "sweeps", f"no sweep lists the store's {len(orphans)} {records}. {_listed()}"


def _listed() -> str:
    return f"{_BACKUP} lists its cells, and keeps what is finished"


def _records(store: Store, names: dict[str, set[str]]) -> Iterator[tuple[str, str]]:
    cells = store.read_all("sweeps", columns=_CELLS).rows
    asked = {*cells["trial_id"].to_pylist()} if names["sweeps"] else names["predictions"]
    chosen = cells.filter(pc.is_valid(cells["kept_layers"]))["profile_id"]
    gone = asked & (names["predictions"] - names["trials"])
    if gone:  # not those whose record is being written
        gone -= {id_ for run in Observer(store).living() for id_ in run.held}
    unmeasured = {*chosen.to_pylist()} - names["profiles"] - {None}
    bare = names["trials"] - names["predictions"]
    folders = {*_TABLES}
    if store.files.is_folder and names["sweeps"]:  # made with the store, so one is gone
        folders = store.files.folders()
    if gone:
        yield (
            "trials",
            f"{_some(gone, 'trials')} had a record, and it is gone. {_BACKUP} trains again",
        )
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
    for table, ids in (("trials", gone), ("profiles", unmeasured), ("predictions", bare)):
        if table not in folders and not ids:
            yield table, f"the folder is missing. {_BACKUP} makes what it needs again"


def _some(ids: Collection[str], what: str) -> str:
    few = sorted(ids)[:1]
    return f"{len(ids)} {what}, such as {few[0]}," if len(ids) > 1 else f"{few[0]}"
