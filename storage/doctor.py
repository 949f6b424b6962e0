"""Finds what a store has lost and what can't be read, and sets unreadable files aside.

`examine` only reads. `set_aside` moves files that are not records to `set-aside/<table>/`, where
nothing reads them, and deletes nothing. A file of a newer lp-sweep is named and never touched.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection

from lp_sweep.storage import parquet
from lp_sweep.storage.files import SET_ASIDE
from lp_sweep.storage.lost import lost
from lp_sweep.storage.parquet import SUFFIX
from lp_sweep.storage.schema import TABLES
from lp_sweep.storage.sense import senseless, without
from lp_sweep.storage.store import Store
from lp_sweep.storage.tablefiles import Unreadable


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
