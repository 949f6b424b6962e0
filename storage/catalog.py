"""SQL over a store: loads the records into a read-only, in-memory DuckDB.

The raw tables are `store.trials`, `store.profiles`, `store.attempts`, `store.sweeps`,
`store.earlier`, `store.deployments`, `store.test_scores`, `store.predictions`,
`store.teacher_logits`, `store.deltas` and `store.possible`. The caller passes the views over them
as text. `reading` confines the queries.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any, Self

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from lp_sweep.storage import reading
from lp_sweep.storage.errors import QueryError
from lp_sweep.storage.places import options_of
from lp_sweep.storage.redact import redact_text
from lp_sweep.storage.schema import LARGE, TABLES
from lp_sweep.storage.setups import EARLIER, Setup, cells_of_setup, earlier_setups
from lp_sweep.storage.store import Store, Unreadable
from lp_sweep.storage.upkeep import lost
from lp_sweep.trials.spec.select import askable_k
from lp_sweep.trials.spec.specs import TEACHER

# a large table in a statement, or a table name that the statement computes
_NAMED = {
    table: re.compile(rf"{table}|\bquery(_table)?\b", re.IGNORECASE) for table in sorted(LARGE)
}


class Catalog:
    """A read-only snapshot of a store.

    `unreadable` lists the files that were skipped. Predictions and teachers' logits are large, so
    they are loaded at the first query that names them; until then their tables are empty.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, records: _Records) -> None:
        self._connection = connection
        self._records = records
        self._to_load = dict(_NAMED)

    @property
    def location(self) -> str:
        """The store's location."""
        return self._records.store.location

    def inputs_of(self, sweep: str | None) -> list[str]:
        """The options with which a command finds the model and the data of a sweep."""
        store = self._records.store
        if sweep not in store.names("sweeps"):  # the name inside a file may be any text
            return []
        return [*map(redact_text, options_of(store.read_text("sweeps", f"{sweep}.yaml")))]

    @property
    def unreadable(self) -> list[Unreadable]:
        return sorted({*self._records.unreadable, *self._records.lost})

    @property
    def setup(self) -> int | None:
        """The earlier setup whose cells are shown; None: the current setup."""
        return self._records.setup

    def earlier_setups(self) -> list[Setup]:
        """The stored earlier setups of the shown sweeps."""
        return earlier_setups(self._records.store, self._records.sweep)

    def query(self, sql: str, parameters: Mapping[str, Any] | None = None) -> pa.Table:
        """Runs one reading statement; `$name` is a parameter.

        Raises QueryError with DuckDB's own message, or with what is allowed.
        """
        with reading.ctrl_c():
            reading.check(self._connection, sql)
        for table in [name for name, named in self._to_load.items() if named.search(sql)]:
            with reading.ctrl_c():
                _load(self._connection, table, self._records.read(table))
            del self._to_load[table]
        return reading.run(self._connection, sql, parameters or {})

    def bounded_memory(self) -> AbstractContextManager[None]:
        """Limits the memory of this process; see `reading.bounded_memory`."""
        return reading.bounded_memory(self._connection)

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_catalog(
    store: Store,
    *,
    views: Mapping[str, str],
    columns: Collection[str] | None = None,
    held: Collection[str] = (),
    sweep: str | None = None,
    setup: int | None = None,
    deltas: Sequence[float] = (1, 2, 3),
) -> Catalog:
    """Loads a store's records and defines `views` (name -> SELECT, in the order of dependence).

    columns: those of `store.trials` that the coming queries need, which is faster; None: all. held:
    views that several queries read, which are computed only once. sweep: load only this sweep's
    cells and what they depend on. setup: `store.sweeps` has only the cells of this earlier setup
    (see `setups`). deltas: the losses that `min_layers` answers for.

    Raises SpecError for an unknown sweep or setup, QueryError for a view that DuckDB refuses.
    """
    records = _Records(store, sweep, setup, columns)
    with reading.ctrl_c():
        connection = reading.connect()
    try:
        with reading.ctrl_c():
            connection.execute("CREATE SCHEMA store")
            for table, schema in TABLES.items():
                rows = schema.empty_table() if table in LARGE else records.read(table)
                _load(connection, table, rows)
            unique = pa.array(sorted({float(delta) for delta in deltas}), pa.float64())
            _load(connection, "deltas", pa.table({"delta": unique}))
            _load(connection, "possible", _possible(records.read("sweeps")))
            for name, select in views.items():
                kind = "TABLE" if name in held else "VIEW"
                connection.execute(f'CREATE {kind} "{name}" AS {select}')
            connection.execute("SET lock_configuration = true")
    except duckdb.Error as error:
        connection.close()
        raise QueryError(f"a view can't be made: {error}") from error
    return Catalog(connection, records)


def _possible(cells: pa.Table) -> pa.Table:
    """The K that each strategy of these cells can be asked to drop, by depth."""
    pairs = cells.select(["strategy", "depth"]).group_by(["strategy", "depth"]).aggregate([])
    ks = [list(askable_k(**pair)) for pair in pairs.to_pylist()]
    return pairs.append_column("ks", pa.array(ks, pa.list_(pa.int64())))


def _load(connection: duckdb.DuckDBPyConnection, table: str, rows: pa.Table) -> None:
    connection.register("incoming_rows", rows)
    try:
        connection.execute(f"CREATE OR REPLACE TABLE store.{table} AS FROM incoming_rows")
    except duckdb.OutOfMemoryException as error:
        raise QueryError(
            f"the {table} of this store don't fit into memory: {error}. Name one --sweep, or read "
            "the store's Parquet files with a program of your own."
        ) from error
    finally:
        connection.unregister("incoming_rows")


class _Records:
    """Reads a store's tables, in full or only what one sweep's cells depend on."""

    def __init__(
        self, store: Store, sweep: str | None, setup: int | None, columns: Collection[str] | None
    ) -> None:
        """`columns`: of trials."""
        self.store, self.sweep, self.setup, self._columns = store, sweep, setup, columns
        self.unreadable: list[Unreadable] = []
        # first, so that an unknown name is reported before anything is read
        names = None if sweep is None else store.sweeps(sweep)
        if setup is None:
            self._cells = self._read("sweeps", names)
        else:
            self._cells = cells_of_setup(self._read(EARLIER, names), setup, store.location)

    @cached_property
    def lost(self) -> list[Unreadable]:
        return lost(self.store)

    def read(self, table: str) -> pa.Table:
        if table == "sweeps":
            return self._cells
        if self.sweep is None or table == "teacher_logits":  # no cell names those
            return self._read(table, None)
        if table == EARLIER:
            return self._read(table, [self.sweep])
        wanted = _named(self._cells)
        if table in ("attempts", "profiles"):
            return self._ours(table, wanted)
        if table in ("deployments", "test_scores"):
            rows = self._read(table, None)
            return rows.filter(pc.is_in(rows["trial_id"], pa.array(sorted(wanted), pa.string())))
        if table == "predictions":
            wanted = wanted.union(self.read("deployments")["deployment_id"].to_pylist())
        return self._read(table, wanted)

    def _ours(self, table: str, wanted: set[str]) -> pa.Table:
        """No cell names the attempts at measurements, speeds and first stages, nor most profiles:
        of those, the rows with a model and task of the sweep count, and without a task, as a speed,
        by the model; also a teacher that is a folder."""
        rows = self._read(table, None)
        pairs = {*zip(*(self._cells[name].to_pylist() for name in ("model", "task")), strict=True)}
        pairs |= {(model, None) for model, _ in pairs}
        elsewhere: set[str] = set()
        if table == "attempts":
            others = self.store.names("sweeps") - {self.sweep}
            elsewhere = _named(self._read("sweeps", others)) - wanted
        names = {"profile_id", "measure", "trial_id", "model", "task"} & {*rows.column_names}
        kept = []
        for row in rows.select(sorted(names)).to_pylist():
            trial, profile = row["trial_id"], row.get("profile_id")
            unnamed = trial is None if table == "profiles" else trial not in elsewhere
            kept.append(
                not wanted.isdisjoint((trial, profile))
                or (unnamed and (row["model"], row["task"]) in pairs)
                or (trial is None and row.get("measure") == TEACHER)
            )
        return rows.filter(pa.array(kept, pa.bool_()))

    def _read(self, table: str, names: Iterable[str] | None) -> pa.Table:
        columns = self._columns if table == "trials" else None
        wanted = None if names is None else sorted(names)
        listing = self.store.read_all(table, wanted, columns)
        self.unreadable = list(dict.fromkeys([*self.unreadable, *listing.unreadable]))
        return listing.rows


def _named(cells: pa.Table) -> set[str]:
    """The identifiers of trials and profiles that cells name."""
    columns = (cells["trial_id"], cells["profile_id"])
    return {name for column in columns for name in column.to_pylist() if name is not None}
