"""Rows of one table from many files, every record once. Opens no file."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lp_sweep.storage import parquet


class Unreadable(NamedTuple):
    """A file in the store that is not one of its records, and why."""

    location: str
    reason: str


class Listing(NamedTuple):
    """All rows of one of the store's tables."""

    rows: pa.Table
    unreadable: list[Unreadable]


class Gathered:
    """Rows from many files, each identifier from one of them only."""

    def __init__(self, table: str, columns: Collection[str] | None = None) -> None:
        self._table, self._column = table, parquet.id_column(table)
        self._rows = [parquet.schema_of(table, columns).empty_table()]
        self._unreadable: list[Unreadable] = []
        self.seen: set[Any] = set()

    def add(self, found: pa.Table | Unreadable) -> None:
        if isinstance(found, Unreadable):
            if found not in self._unreadable:
                self._unreadable.append(found)
            return
        ids = set(found[self._column].unique().to_pylist())
        if known := ids & self.seen:
            again = pa.array([item for item in known if item is not None], pa.string())
            found = found.filter(pc.invert(pc.is_in(found[self._column], again)))
        self.seen |= ids
        self._rows.append(found)

    def listing(self, *, in_order: bool) -> Listing:
        rows = pa.concat_tables(self._rows)
        if not in_order and self._table != "predictions":  # these are too many to be sorted
            rows = rows.take(pc.sort_indices(rows, sort_keys=[(self._column, "ascending")]))
        return Listing(rows, self._unreadable)
