"""One reading statement on a DuckDB that can do nothing else: checked before, bounded while it
runs, stoppable at any time.

Three locks, each enough by itself against a careless statement: only statements that read are
accepted, they run in a read-only transaction that is rolled back, and DuckDB has no access to
files, the network, extensions, secrets or Python's variables, with its configuration locked.
Memory is bounded three times: DuckDB's own to half of what it would take, a result's to 256 MiB,
and on the command line that of the whole process (`bounded_memory`), since one huge value is none
of what DuckDB counts.
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
_ROOM = 2**30  # bytes above what the process has when the query begins
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_LONGEST = 200_000  # characters; subqueries of megabytes overflow the stack of DuckDB
_READING = {duckdb.StatementType.SELECT}
# MULTI is how DuckDB types whatever holds a PIVOT without an IN list
_PERHAPS_READING = {duckdb.StatementType.EXPLAIN, duckdb.StatementType.MULTI}
_COMMENTS = re.compile(r"(?:\s|--[^\n]*|/\*.*?\*/)*", re.DOTALL)
_EXPLAIN = re.compile(r"EXPLAIN\b\s*(?:ANALYZE\b)?\s*(?:\([^()]*\))?\s*", re.IGNORECASE)
_READING_WORD = re.compile(r"\(|(?:SELECT|FROM|WITH|PIVOT|PIVOT_WIDER|SUMMARIZE)\b", re.IGNORECASE)
_NO_TABLE = re.compile(r"(Catalog Error: Table with name (.+) does not exist)!", re.DOTALL)
_ALLOWED = "allowed: SELECT, FROM, WITH, PIVOT, EXPLAIN, DESCRIBE, SHOW, SUMMARIZE"


def connect() -> duckdb.DuckDBPyConnection:
    """An empty database in memory, confined. `lock` it when its tables are made."""
    connection = duckdb.connect(":memory:", config=_CONFINED)
    connection.execute("SET TimeZone = 'UTC'")
    with contextlib.suppress(duckdb.InvalidInputException):  # a notebook without ipywidgets
        connection.execute("SET enable_progress_bar = false")  # it would print among the data
    connection.execute(f"SET memory_limit = '{_memory_limit(connection) / 2:.0f}B'")
    return connection


def lock(connection: duckdb.DuckDBPyConnection) -> None:
    connection.execute("SET lock_configuration = true")


def check(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    """Raises QueryError unless it is one statement, and one that reads."""
    try:
        kind = _statement(connection, sql).type
    except ValueError:  # a kind that DuckDB's own Python package doesn't know
        raise QueryError(f"the store is open read-only: this is refused; {_ALLOWED}.") from None
    if kind in _READING:
        return
    text = sql[_COMMENTS.match(sql).end() :]  # type: ignore[union-attr]
    explained = _EXPLAIN.match(text) if kind in _PERHAPS_READING else None
    if explained:  # EXPLAIN ANALYZE does what it explains, a COMMIT too
        check(connection, text[explained.end() :])
    elif kind not in _PERHAPS_READING or not _READING_WORD.match(text):
        raise QueryError(f"the store is open read-only: {kind.name} is refused; {_ALLOWED}.")


def _statement(connection: duckdb.DuckDBPyConnection, sql: str) -> duckdb.Statement:
    if len(sql) > _LONGEST:
        raise QueryError(f"a statement has at most {_LONGEST:,} characters, this has {len(sql):,}")
    try:
        sql.encode()  # bytes that were no text reach us as lone surrogates
        statements = connection.extract_statements(sql)
    except (duckdb.Error, UnicodeError) as error:
        raise QueryError(_indented(str(error))) from error
    if not statements:
        raise QueryError('The query is empty. Example: lp-sweep query "FROM cells"')
    if len(statements) > 1:
        raise QueryError(f"The query has {len(statements)} statements; give one. {_ALLOWED}.")
    return statements[0]


@contextlib.contextmanager
def ctrl_c() -> Iterator[None]:
    """For statements of the main thread: DuckDB turns its KeyboardInterrupt into other errors."""
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
    """The result of a checked statement. Raises QueryError with DuckDB's own message.

    In a thread of its own, since only so Ctrl-C is seen while DuckDB computes. DuckDB does not stop
    amid one value: then the thread is left to itself, and `busy` is true until it ends.
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
        raise QueryError(_indented(said)) from error  # the last four: from amid a result
    finally:
        end = time.monotonic() + _STOP_SECONDS
        while (
            busy() and not future.done() and time.monotonic() < end
        ):  # it may be between two steps
            connection.interrupt()
            time.sleep(0.05)


def _indented(said: str) -> str:
    """DuckDB's message as one: the statement and what else it adds belong to its first line."""
    return "\n  ".join(line for line in said.splitlines() if line.strip())


def _with_views(connection: duckdb.DuckDBPyConnection, said: str) -> str:
    """DuckDB knows names near to an unknown one, but most are its own tables: ours instead."""
    if (unknown := _NO_TABLE.match(said)) is None:
        return _indented(said)
    names = [row[0] for row in connection.execute("SHOW TABLES").fetchall()]
    near = did_you_mean(unknown[2], names)
    return f"{unknown[1]}. Views: {', '.join(names)}.{near}"


def busy() -> bool:
    """Whether a query goes on that Ctrl-C did not stop."""
    return any(thread.name == _THREAD for thread in threading.enumerate())


@contextlib.contextmanager
def bounded_memory(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """Inside, this process takes no more than half of the machine's memory, or 2 GiB where that is
    more: what goes beyond is a QueryError. On other systems than Linux DuckDB's limit is all."""
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
    """Half of the machine's, or of the container's: DuckDB's own share is 80%, ours half of it. On
    a machine with many cores the stacks of DuckDB's threads alone may be more."""
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
