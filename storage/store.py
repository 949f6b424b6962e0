"""A store: a folder of Parquet files, one per record, each written whole or not at all.

    <root>/trials/<trial_id>.parquet          one row: what came of a trial
    <root>/predictions/<trial_id>.parquet     one row per dev example
    <root>/profiles/<profile_id>.parquet      one row: the contribution of every layer
    <root>/attempts/<attempt_id>.parquet      one row: a try that ended in a failure
    <root>/sweeps/<name>.parquet              the cells that a sweep asked for
    <root>/sweeps/<name>.yaml                 the sweep file as it was run

Presence of a trial's file means done. Writing one twice is harmless: the name follows from the
content's identity, and the last complete file wins. A file that is torn, foreign or of a newer
schema is named in `Listing.unreadable` and never breaks a query.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from lp_sweep.storage.errors import StoreError
from lp_sweep.storage.schema import SCHEMA_VERSION, TABLES

_TABLE_KEY, _VERSION_KEY = b"lp_sweep.table", b"lp_sweep.schema_version"


class Unreadable(NamedTuple):
    """A file in the store that is not one of its records, and why."""

    path: Path
    reason: str


class Listing(NamedTuple):
    """All rows of one of the store's tables."""

    rows: pa.Table
    unreadable: list[Unreadable]


def is_store(root: Path) -> bool:
    """Whether a folder has at least one of a store's own folders."""
    return any((root / table).is_dir() for table in TABLES)


class Store:
    """Read and write records below one folder. Cheap to make; holds no open file."""

    def __init__(self, root: Path | str, *, create: bool = False) -> None:
        self.root = Path(root).expanduser().absolute()
        if create:
            self._create()
        elif not self.root.is_dir():
            raise StoreError(
                f"no store at {self.root}. `lp-sweep run FILE --store {root}` makes one; "
                "or name another with --store or LP_SWEEP_STORE."
            )

    def _create(self) -> None:
        try:
            for table in TABLES:
                (self.root / table).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"can't make a store at {self.root}: {error}") from error

    def path(self, table: str, name: str) -> Path:
        return self.root / table / f"{name}.parquet"

    def has(self, table: str, name: str) -> bool:
        """Whether the record is there. An empty file is what a crash of the machine leaves."""
        try:
            return self.path(table, name).stat().st_size > 0
        except OSError:
            return False

    def names(self, table: str, *, finished: bool = False) -> set[str]:
        """The identifiers of every record of a table: a listing, no file is opened. `finished`
        leaves out empty files, whose work is to be done again."""
        folder = self.root / table
        if not folder.is_dir():
            return set()
        with os.scandir(folder) as entries:
            names = [e.name for e in entries if not finished or e.stat().st_size > 0]
        # a leading dot is another program's: a file manager's, a synchroniser's
        return {n[: -len(".parquet")] for n in names if n.endswith(".parquet") and n[0] != "."}

    def put(self, table: str, name: str, rows: Iterable[Mapping[str, Any]] | pa.Table) -> Path:
        """Write one file atomically. Raises StoreError; what was there before stays then."""
        schema = TABLES[table].with_metadata(
            {_TABLE_KEY: table.encode(), _VERSION_KEY: str(SCHEMA_VERSION).encode()}
        )
        content = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(list(rows), schema)
        return self._publish(
            self.path(table, name),
            lambda temporary: _write_file(content.cast(schema), temporary),
        )

    def put_text(self, table: str, file_name: str, text: str) -> Path:
        return self._publish(
            self.root / table / file_name, lambda path: path.write_text(text, encoding="utf-8")
        )

    def _publish(self, path: Path, write: Any) -> Path:
        # the temporary name starts with a dot and ends otherwise: no listing takes it for a record
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write(temporary)
            temporary.replace(path)
        except OSError as error:
            raise StoreError(f"can't write {path}: {error}") from error
        finally:
            with contextlib.suppress(OSError):  # mostly it is gone: it was renamed
                temporary.unlink()
        return path

    def read(self, table: str, name: str) -> list[dict[str, Any]]:
        """The rows of one file. Raises StoreError when it is missing or not readable."""
        result = _read_file(self.path(table, name), table)
        if isinstance(result, Unreadable):
            raise StoreError(f"can't read {result.path}: {result.reason}")
        rows: list[dict[str, Any]] = result.to_pylist()
        return rows

    def read_all(self, table: str, names: Sequence[str] | None = None) -> Listing:
        """All rows of a table, or those of the files `names`, in the order of the names."""
        paths = [self.path(table, n) for n in sorted(self.names(table) if names is None else names)]
        with ThreadPoolExecutor(max_workers=16) as pool:
            results = list(pool.map(lambda path: _read_file(path, table), paths))
        tables = [result for result in results if isinstance(result, pa.Table)]
        unreadable = [result for result in results if isinstance(result, Unreadable)]
        empty = TABLES[table].empty_table()
        return Listing(pa.concat_tables([empty, *tables]), unreadable)


def _write_file(rows: pa.Table, path: Path) -> None:
    with path.open("wb") as stream:  # Arrow alone can't open every name that the system can
        pq.write_table(rows, stream, compression="zstd")
        stream.flush()
        os.fsync(stream.fileno())  # before the rename: presence means done


def _read_file(path: Path, table: str) -> pa.Table | Unreadable:
    """The file's rows in today's schema, or why it isn't one of ours."""
    try:
        with path.open("rb") as stream:
            file = pq.ParquetFile(stream)
            metadata = file.schema_arrow.metadata or {}
            problem = _foreign(metadata, table)
            return Unreadable(path, problem) if problem else _conform(file.read(), TABLES[table])
    except (OSError, pa.ArrowException, KeyError) as error:  # KeyError: a column that stands twice
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        return Unreadable(path, f"not a whole Parquet file ({reason})")


def _foreign(metadata: Mapping[bytes, bytes], table: str) -> str | None:
    version = metadata.get(_VERSION_KEY, b"")
    if metadata.get(_TABLE_KEY) != table.encode() or not version.isdigit():
        return f"not written by lp-sweep as one of its {table}"
    if int(version) > SCHEMA_VERSION:
        return "written by a newer lp-sweep: update this one"
    return None


def _conform(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Columns that an older version did not write become null; the order is the schema's."""
    if rows.schema.equals(schema):  # nearly always, and casting is a third of reading
        return rows.replace_schema_metadata(None)
    columns = [
        rows[item.name].cast(item.type)
        if item.name in rows.column_names
        else pa.nulls(len(rows), item.type)
        for item in schema
    ]
    return pa.table(columns, schema=schema)
