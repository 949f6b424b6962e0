"""The records of one table that were not read before: a look lists names, and opens what is new.

A store of 100,000 records is read once, in parts, and then costs its listing.
"""

from __future__ import annotations

from collections.abc import Set

import pyarrow as pa

from lp_sweep.storage.errors import StoreError
from lp_sweep.storage.files import FileInfo
from lp_sweep.storage.parquet import id_column, schema_of
from lp_sweep.storage.store import Store

AT_ONCE = 4096  # records: more wait for the next look, so that the first one is soon there
_LISTINGS = 30  # a compactor deletes in one go: a few are plenty


class NewRecords:
    """`present`: identifiers as of the last look, without those that can't be read; `taken`: those
    that were read. Raises StoreError."""

    def __init__(self, store: Store, table: str, columns: tuple[str, ...]) -> None:
        self.present: Set[str] = frozenset()
        self.taken: set[str] = set()
        self._store, self._table, self._columns = store, table, columns
        self._singles: dict[str, FileInfo] = {}
        self._refused: dict[str, FileInfo | None] = {}  # as it was when it could not be read

    def look(self) -> None:
        self._singles, packed = self._listed()
        self._refused = {
            name: info for name, info in self._refused.items() if self._singles.get(name) == info
        }
        self.present = (self._singles.keys() | packed) - self._refused.keys()

    def _listed(self) -> tuple[dict[str, FileInfo], set[str]]:
        for _ in range(_LISTINGS):
            contents = self._store.contents(self._table)
            try:
                packs = self._store.pack_ids(self._table, contents)
            except FileNotFoundError:  # merged into another, which a new listing shows
                continue
            singles = {name: info for name, info in contents.singles.items() if info.size}
            return singles, set().union(*packs.values())
        raise StoreError(f"the {self._table} of {self._store.location} change at every look")

    def unread(self, wanted: Set[str]) -> Set[str]:
        """Those of `wanted` that are there and were not read."""
        return (wanted & self.present) - self.taken

    def read(self, wanted: Set[str] | None = None) -> pa.Table:
        """Rows of records that were not read before, of AT_ONCE at most; None: of all."""
        names = sorted(self.unread(self.present if wanted is None else wanted))[:AT_ONCE]
        if not names:
            return schema_of(self._table, self._columns).empty_table()
        rows = self._store.read_all(self._table, names, self._columns).rows
        found = set(rows[id_column(self._table)].to_pylist())
        refused = [name for name in names if name not in found]
        self._refused.update({name: self._singles.get(name) for name in refused})
        self.present = self.present - self._refused.keys()
        self.taken |= found
        return rows

    def forget(self, names: Set[str]) -> None:
        """They are read again when they are there again."""
        self.taken -= names
