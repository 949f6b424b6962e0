"""SQL over a store: an in-memory DuckDB that holds the records and can do nothing but read.

The raw tables are `store.trials`, `store.profiles`, `store.attempts`, `store.sweeps`,
`store.predictions` and `store.deltas`; the views over them are handed in as text, so that this
module knows nothing of what they say. Three locks, each enough by itself against a careless
statement: only statements that read are accepted, they run in a read-only transaction that is
rolled back, and DuckDB has no access to files, the network, extensions or Python's variables, with
its configuration locked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from lp_sweep.storage.errors import QueryError, SpecError
from lp_sweep.storage.schema import TABLES
from lp_sweep.storage.store import Store, Unreadable

_CONFINED: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "python_enable_replacements": "false",  # `FROM name` must not find a Python variable
    "temp_directory": "",  # no spilling into the working directory
}
# MULTI is how DuckDB types a PIVOT without an IN list: the read-only transaction guards it
_READING = {
    duckdb.StatementType.SELECT,
    duckdb.StatementType.EXPLAIN,
    duckdb.StatementType.MULTI,
}
_ALLOWED = "allowed: SELECT, FROM, WITH, PIVOT, EXPLAIN, DESCRIBE, SHOW, SUMMARIZE"
_PREDICTIONS = re.compile(r"\bpredictions\b", re.IGNORECASE)


class Catalog:
    """An open, read-only view of a store as it was when this was made.

    `unreadable` names the files that were set aside. Predictions are many, so they are loaded at
    the first query that names them; until then `store.predictions` is empty.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, records: _Records) -> None:
        self._connection = connection
        self._records = records
        self._predictions_loaded = False

    @property
    def unreadable(self) -> list[Unreadable]:
        return list(self._records.unreadable)

    def query(self, sql: str, parameters: Mapping[str, Any] | None = None) -> pa.Table:
        """The result of one reading statement; `$name` stands for a parameter.

        Raises QueryError with DuckDB's own message, or one that says what is allowed.
        """
        self._check(sql)
        if not self._predictions_loaded and _PREDICTIONS.search(sql):
            _load(self._connection, "predictions", self._records.read("predictions"))
            self._predictions_loaded = True
        self._connection.execute("BEGIN TRANSACTION READ ONLY")
        try:
            return self._connection.sql(sql, params=dict(parameters or {})).to_arrow_table()
        except duckdb.TransactionException as error:
            raise QueryError(f"the store is open read-only: {error}") from error
        except duckdb.PermissionException as error:
            raise QueryError(
                f"the store is open read-only and files are out of reach: {error}"
            ) from error
        except duckdb.Error as error:
            raise QueryError(str(error)) from error
        finally:
            self._connection.execute("ROLLBACK")

    def _check(self, sql: str) -> None:
        try:
            sql.encode()  # bytes that were no text reach us as lone surrogates
            statements = self._connection.extract_statements(sql)
        except (duckdb.Error, UnicodeError) as error:
            raise QueryError(str(error)) from error
        if len(statements) != 1:
            raise QueryError(f"one statement at a time, this is {len(statements)}. {_ALLOWED}.")
        kind = statements[0].type
        if kind not in _READING:
            raise QueryError(f"the store is open read-only: {kind.name} is refused; {_ALLOWED}.")

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def open_catalog(
    store: Store,
    *,
    views: Mapping[str, str],
    sweep: str | None = None,
    deltas: Sequence[float] = (1, 2, 3),
) -> Catalog:
    """Load a store's records and define `views` (name to SELECT, in the order of dependence).

    With `sweep`, everything but that sweep's cells and what they hang on is left out. `deltas`
    become `store.deltas`: the losses that `min_layers` answers for. Raises SpecError for a sweep
    that the store does not have, QueryError for a view that DuckDB refuses.
    """
    records = _Records(store, sweep)
    connection = duckdb.connect(":memory:", config=_CONFINED)
    try:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("CREATE SCHEMA store")
        for table in TABLES:
            rows = TABLES[table].empty_table() if table == "predictions" else records.read(table)
            _load(connection, table, rows, create=True)
        unique = sorted({float(delta) for delta in deltas})
        _load(
            connection, "deltas", pa.table({"delta": pa.array(unique, pa.float64())}), create=True
        )
        for name, select in views.items():
            connection.execute(f'CREATE VIEW "{name}" AS {select}')
        connection.execute("SET lock_configuration = true")
    except duckdb.Error as error:
        connection.close()
        raise QueryError(f"a view can't be made: {error}") from error
    return Catalog(connection, records)


def _load(
    connection: duckdb.DuckDBPyConnection, table: str, rows: pa.Table, *, create: bool = False
) -> None:
    connection.register("incoming_rows", rows)
    try:
        verb = f"CREATE TABLE store.{table} AS" if create else f"INSERT INTO store.{table}"
        connection.execute(f"{verb} FROM incoming_rows")
    finally:
        connection.unregister("incoming_rows")


class _Records:
    """Reads a store's tables, all of them or what one sweep's cells hang on."""

    def __init__(self, store: Store, sweep: str | None) -> None:
        self._store = store
        self._sweep = sweep
        self.unreadable: list[Unreadable] = []
        self._cells = self._read_cells()

    def _read_cells(self) -> pa.Table:
        if self._sweep is None:
            return self._read("sweeps", None)
        known = self._store.names("sweeps")
        if self._sweep not in known:
            have = ", ".join(sorted(known)) or "none"
            raise SpecError(
                f"no sweep named {self._sweep!r} in {self._store.root}. It has: {have}."
            )
        return self._read("sweeps", [self._sweep])

    def read(self, table: str) -> pa.Table:
        if table == "sweeps":
            return self._cells
        if self._sweep is None:
            return self._read(table, None)
        if table == "attempts":  # named by the attempt, not by the trial
            rows = self._read(table, None)
            return rows.filter(
                pc.is_in(rows["trial_id"], pa.array(sorted(self._wanted()), pa.string()))
            )
        return self._read(table, self._wanted() & self._store.names(table))

    def _wanted(self) -> set[str]:
        """The trials and profiles that the sweep's cells name."""
        columns = (self._cells["trial_id"], self._cells["profile_id"])
        return {name for column in columns for name in column.to_pylist() if name is not None}

    def _read(self, table: str, names: Iterable[str] | None) -> pa.Table:
        listing = self._store.read_all(table, None if names is None else sorted(names))
        self.unreadable.extend(listing.unreadable)
        return listing.rows
