"""The records of one table that were not read before: a look lists names, and opens what is new.

A store of 100,000 records is read once, and then costs its listing. Records of packs are read
together; of single files, which are opened one by one, a part at each look, so that the first
picture is soon there.
"""

from __future__ import annotations

from collections.abc import Set

import pyarrow as pa

from lp_sweep.storage.errors import StoreError
from lp_sweep.storage.files import FileInfo
from lp_sweep.storage.parquet import id_column, schema_of
from lp_sweep.storage.store import Store

AT_ONCE = 4096  # single files of a look
_LISTINGS = 30  # a compactor deletes in one go: a few are plenty


class NewRecords:
    """`present`: identifiers as of the last look, without those that can't be read; `taken`: those
    that were read; `version` goes up when `present` changes. Raises StoreError."""

    def __init__(self, store: Store, table: str, columns: tuple[str, ...]) -> None:
        self.present: Set[str] = frozenset()
        self.taken: set[str] = set()
        self.version = 0
        self._store, self._table, self._columns = store, table, columns
        self._singles: dict[str, FileInfo] = {}
        self._packs: dict[str, frozenset[str]] = {}  # by path
        self._refused: dict[str, FileInfo | None] = {}  # as it was when it could not be read
        self._missing: Set[str] = frozenset()  # present, and not taken

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
        for _ in range(_LISTINGS):
            contents = self._store.contents(self._table)
            try:
                packs = self._store.pack_ids(self._table, contents)
            except FileNotFoundError:  # merged into another, which a new listing shows
                continue
            return {name: info for name, info in contents.singles.items() if info.size}, packs
        raise StoreError(f"the {self._table} of {self._store.location} change at every look")

    def unread(self, wanted: Set[str]) -> Set[str]:
        """Those of `wanted` that are there and were not read."""
        return self._missing & wanted

    def read(self, wanted: Set[str] | None = None) -> pa.Table:
        """Rows of records that were not read before; None: of all."""
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
        """What was read and is there no more; it is read again when it is there again."""
        gone = self.taken - self.present
        self.taken -= gone
        return gone
