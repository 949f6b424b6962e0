"""Runs read-only SQL in DuckDB: checks statements, bounds their memory, and lets Ctrl-C stop them.

Statements of other kinds are refused; the rest runs in a read-only transaction that is rolled
back, on tables in memory; and DuckDB has no access to files, the network, extensions, secrets or
Python's variables, with its configuration locked.

Memory has three bounds: DuckDB takes half of its default, a result has at most 256 MiB, and the
command line bounds the whole process (`bounded_memory`), since DuckDB does not count huge values.
"""

from __future__ import annotations

import contextlib
import re
import resource
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from lp_sweep.storage.errors import QueryError
from lp_sweep.storage.printable import did_you_mean, shown

_CONFINED: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "allow_persistent_secrets": "false",
    "python_enable_replacements": "false",  # `FROM name` must not find a Python variable
    "temp_directory": "",  # no spilling into the working directory
}
_LARGEST_RESULT = 256 * 2**20  # bytes in Arrow; ten times that as text
_BATCH_ROWS = 100_000
_THREAD = "query"
_STOP_SECONDS = 0.5  # most statements stop within a tenth of that
_LEAST_MEMORY = 2 * 2**30  # bytes; Python, Arrow and their threads are a tenth of it
_ROOM = 2**30  # bytes beyond what the process uses when the query begins
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_LONGEST = 200_000  # characters; megabytes of subqueries overflow DuckDB's stack
_READING = {
    duckdb.StatementType.SELECT,
    duckdb.StatementType.EXPLAIN,
    duckdb.StatementType.MULTI,  # a PIVOT without an IN list, also inside of what writes
}
_NO_TABLE = re.compile(r"(Catalog Error: Table with name (.+) does not exist)!", re.DOTALL)
_ALLOWED = "allowed: SELECT, FROM, WITH, PIVOT, EXPLAIN, DESCRIBE, SHOW, SUMMARIZE"


def connect() -> duckdb.DuckDBPyConnection:
    """An empty, confined database in memory. Lock its configuration once it has its tables."""
    connection = duckdb.connect(":memory:", config=_CONFINED)
    connection.execute("SET TimeZone = 'UTC'")
    with contextlib.suppress(duckdb.InvalidInputException):  # a notebook without ipywidgets
        connection.execute("SET enable_progress_bar = false")  # it would print into the data
    connection.execute(f"SET memory_limit = '{_memory_limit(connection) / 2:.0f}B'")
    return connection


def check(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    """Raises QueryError unless the SQL is one statement of a kind that mostly reads. What EXPLAIN
    ANALYZE and a PIVOT write, the read-only transaction refuses."""
    if len(sql) > _LONGEST:
        raise QueryError(f"a statement has at most {_LONGEST:,} characters, this has {len(sql):,}")
    try:
        sql.encode()  # raises for lone surrogates, which stand for bytes that are not UTF-8
        statements = connection.extract_statements(sql)
    except (duckdb.Error, UnicodeError) as error:
        raise QueryError(_indented(str(error))) from error
    if not statements:
        raise QueryError('The query is empty. Example: lp-sweep query "FROM cells"')
    if len(statements) > 1:
        raise QueryError(f"The query has {len(statements)} statements; give one. {_ALLOWED}.")
    try:
        kind = statements[0].type
    except ValueError:  # a kind that DuckDB's Python package does not know
        raise QueryError(f"the store is open read-only: this is refused; {_ALLOWED}.") from None
    if kind not in _READING:
        raise QueryError(f"the store is open read-only: {kind.name} is refused; {_ALLOWED}.")


@contextlib.contextmanager
def ctrl_c() -> Iterator[None]:
    """Raises KeyboardInterrupt in place of the errors that DuckDB makes of Ctrl-C."""
    try:
        yield
    except duckdb.InterruptException as error:
        raise KeyboardInterrupt from error
    except (RuntimeError, duckdb.Error) as error:
        said = "interrupted" if isinstance(error, RuntimeError) else "KeyboardInterrupt"
        if said not in str(error):
            raise
        raise KeyboardInterrupt from error


def run(connection: duckdb.DuckDBPyConnection, sql: str, parameters: Mapping[str, Any]) -> pa.Table:
    """Runs a checked statement. Raises QueryError with DuckDB's own message.

    It runs in a thread of its own, so that the main thread sees Ctrl-C. DuckDB can't be stopped
    within one value: then the thread is left alone, and `busy` is true until it ends.
    """
    future: Future[pa.Table] = Future()

    def answer() -> None:
        try:
            future.set_result(_read(connection, sql, dict(parameters)))
        except BaseException as error:
            future.set_exception(error)

    try:
        threading.Thread(target=answer, name=_THREAD, daemon=True).start()
        return future.result()
    except (duckdb.PermissionException, duckdb.TransactionException) as error:
        raise QueryError(
            f"the store is open read-only and files are out of reach: {error}"
        ) from error
    except duckdb.CatalogException as error:
        raise QueryError(_with_views(connection, str(error))) from error
    except (duckdb.Error, pa.ArrowException, OSError, RuntimeError, MemoryError) as error:
        said = str(error) or "not enough memory. Ask for less: LIMIT, an aggregate, fewer columns."
        raise QueryError(_indented(said)) from error  # the last four: while reading a result
    finally:
        end = time.monotonic() + _STOP_SECONDS
        while busy() and not future.done() and time.monotonic() < end:
            connection.interrupt()  # has no effect between two steps, so repeat it
            time.sleep(0.05)


def _indented(said: str) -> str:
    """DuckDB's message with all further lines indented below the first."""
    return "\n  ".join(line for line in said.splitlines() if line.strip())


def _with_views(connection: duckdb.DuckDBPyConnection, said: str) -> str:
    """The message with our views in place of DuckDB's suggestions, mostly internal tables."""
    if (unknown := _NO_TABLE.match(said)) is None:
        return _indented(said)
    names = [row[0] for row in connection.execute("SHOW TABLES").fetchall()]
    near = did_you_mean(unknown[2], names)
    return f"{unknown[1]}. Views: {', '.join(names)}.{near}"


def busy() -> bool:
    """Whether a query is still running that Ctrl-C did not stop."""
    return any(thread.name == _THREAD for thread in threading.enumerate())


@contextlib.contextmanager
def bounded_memory(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """Limits this process to half of the machine's memory, at least 2 GiB; a query that needs more
    raises QueryError. Does nothing on other systems than Linux."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    if sys.platform != "linux" or before[0] != resource.RLIM_INFINITY:
        yield
        return
    most = _most_memory(connection)
    resource.setrlimit(resource.RLIMIT_DATA, (most, before[1]))
    try:
        yield
    except MemoryError as error:
        raise QueryError(
            f"the query takes more than {most / 2**30:.1f} GiB of memory. Ask for less: LIMIT, an "
            "aggregate, fewer columns."
        ) from error
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _most_memory(connection: duckdb.DuckDBPyConnection) -> int:
    """Half of the machine's or container's memory, in bytes: our limit is half of DuckDB's 80%. On
    a machine with many cores the stacks of DuckDB's threads alone may take more."""
    in_use = int(Path("/proc/self/status").read_text().split("VmData:")[1].split()[0]) * 1024
    return max(int(_memory_limit(connection) / 0.8), _LEAST_MEMORY, in_use + _ROOM)


def _memory_limit(connection: duckdb.DuckDBPyConnection) -> float:
    """Bytes."""
    told = connection.sql("SELECT current_setting('memory_limit')").fetchall()[0][0].split()
    return float(told[0]) * _UNITS[told[1]]


def _read(connection: duckdb.DuckDBPyConnection, sql: str, parameters: dict[str, Any]) -> pa.Table:
    connection.execute("BEGIN TRANSACTION READ ONLY")
    try:
        relation = connection.sql(sql, params=parameters)
        if relation is None:
            raise QueryError(f"{shown(sql)} gives no rows; {_ALLOWED}.")
        with relation.to_arrow_reader(_BATCH_ROWS) as reader:
            return _bounded(reader)
    finally:
        with contextlib.suppress(duckdb.Error):  # a statement that ended it has changed nothing
            connection.execute("ROLLBACK")


def _bounded(reader: pa.RecordBatchReader) -> pa.Table:
    batches, size = [], 0
    for batch in reader:
        batches.append(batch)
        size += batch.nbytes
        if size > _LARGEST_RESULT:
            raise QueryError(
                f"the result has more than {_LARGEST_RESULT // 2**20} MiB. Ask for less (LIMIT, "
                "an aggregate), or read the store's Parquet files with your own DuckDB."
            )
    return pa.Table.from_batches(batches, schema=reader.schema)
