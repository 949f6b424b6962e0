"""Rows of one table from many files, every record once. Opens no file."""

from __future__ import annotations

from collections.abc import Collection, Iterator
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
        self._empty = parquet.schema_of(table, columns).empty_table()
        self._rows: list[pa.Table] = []
        self._ids: list[pa.Array] = []  # of each of these, without repeats
        self._unreadable: dict[Unreadable, None] = {}

    def add(self, found: pa.Table | Unreadable) -> None:
        if isinstance(found, Unreadable):
            self._unreadable[found] = None
            return
        self._rows.append(found)
        self._ids.append(found[self._column].unique())

    @property
    def seen(self) -> set[Any]:
        return {item for ids in self._ids for item in ids.to_pylist()}

    def listing(self, *, sort: bool) -> Listing:
        """In the order of the files, those added first before the others; or `sort`, by name."""
        rows = pa.concat_tables([self._empty, *self._once()])
        if sort and self._table != "predictions":  # these are too many to be sorted
            rows = rows.take(pc.sort_indices(rows, sort_keys=[(self._column, "ascending")]))
        return Listing(rows, list(self._unreadable))

    def _once(self) -> Iterator[pa.Table]:
        """The rows of each file without those of records that one before it has. Nearly always
        there are none, and Arrow knows in a tenth of the time that Python's sets take."""
        ids = pa.chunked_array(self._ids, pa.string())
        if len(ids.unique()) == len(ids):
            yield from self._rows
            return
        seen: set[Any] = set()
        for rows, own in zip(self._rows, self._ids, strict=True):
            names = set(own.to_pylist())
            again = pa.array([item for item in names & seen if item is not None], pa.string())
            yield rows.filter(pc.invert(pc.is_in(rows[self._column], again)))
            seen |= names
