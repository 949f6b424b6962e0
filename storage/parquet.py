"""One Parquet file of a store, in memory: rows to bytes and back, and whether the bytes are ours.

Every page has a checksum, and the file carries a digest of all its bytes, so that a file that was
cut, flipped or written over is found to be unreadable instead of giving other rows. Any Parquet
reader opens these files; the digest is an entry of the footer's metadata. Knows of no store.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lp_sweep.storage.schema import SCHEMA_VERSION, TABLES

TABLE_KEY, VERSION_KEY = b"lp_sweep.table", b"lp_sweep.schema_version"
_DIGEST_KEY = b"lp_sweep.sha256"  # of the file, these 64 digits as zeros
_ZEROS = b"0" * 64
_FEW_ROWS = 20
_MAY_BE_EMPTY = ("predictions", "sweeps", "earlier")
_LARGE = 2**20  # bytes; below, handing columns to threads takes longer than reading them


class NotARecordError(Exception):
    """These bytes are no readable file of the table: the message says why, in one line."""

    def __init__(self, reason: str, *, newer: bool = False) -> None:
        super().__init__(reason)
        self.newer = newer  # written by a later version of this program


class MisnamedError(NotARecordError):
    """A readable file whose name is not that of its record: after a copy or a renaming by hand."""


def id_column(table: str) -> str:
    """The column that names what a row is of: records are told apart by it."""
    return str(TABLES[table].names[0])


def to_table(table: str, rows: Iterable[Mapping[str, Any]] | pa.Table) -> pa.Table:
    """Raises pa.ArrowException for a value that does not fit its column."""
    schema = TABLES[table].with_metadata(
        {TABLE_KEY: table.encode(), VERSION_KEY: str(SCHEMA_VERSION).encode()}
    )
    content = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(list(rows), schema)
    return content.cast(schema)


def encode(table: str, rows: Iterable[Mapping[str, Any]] | pa.Table) -> bytes:
    """One row group. A few rows are not compressed: their file is smaller so, and read in a third
    of the time, which is mostly spent on starting a decompressor for each column."""
    content = to_table(table, rows)
    return encode_groups(table, [content], compress=len(content) > _FEW_ROWS)


def encode_groups(
    table: str,
    groups: Iterable[pa.Table],
    metadata: Mapping[bytes, bytes] | None = None,
    *,
    compress: bool = True,
) -> bytes:
    """One row group for each of `groups`."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        to_table(table, []).schema,
        compression="zstd" if compress else "none",
        use_dictionary=compress,
        write_page_checksum=True,
    ) as writer:
        for group in groups:
            writer.write_table(to_table(table, group), row_group_size=max(1, len(group)))
        writer.add_key_value_metadata({**(metadata or {}), _DIGEST_KEY: _ZEROS})
    content: bytes = sink.getvalue().to_pybytes()
    start = _digest_start(content)
    digest = hashlib.sha256(content).hexdigest().encode()
    return content[:start] + digest + content[start + len(digest) :]


def schema_of(table: str, columns: Collection[str] | None) -> pa.Schema:
    """Today's, of these columns (None: all) and the one that names the record, in its order."""
    if columns is None:
        return TABLES[table]
    kept = {*columns, id_column(table)}
    return pa.schema([field for field in TABLES[table] if field.name in kept])


def decode(content: bytes, table: str, columns: Collection[str] | None = None) -> pa.Table:
    """The rows in today's schema (see `schema_of`). All bytes are checked, whatever is read of
    them. Raises NotARecordError."""
    try:
        file = pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True)
        check_ours(file, table)
        if (problem := _digest_problem(content, file)) is not None:
            raise NotARecordError(problem)
        schema = schema_of(table, columns)
        names = (
            None if columns is None else [n for n in schema.names if n in file.schema_arrow.names]
        )
        return conform(file.read(names, use_threads=len(content) > _LARGE), schema)
    except (OSError, pa.ArrowException, KeyError, ValueError) as error:
        raise NotARecordError(explain(error)) from error


def has_checksum(content: bytes) -> bool:
    """Whether damage to these bytes could be found: the earliest versions wrote no digest. Raises
    NotARecordError."""
    try:
        metadata = pq.ParquetFile(pa.BufferReader(content)).metadata.metadata
    except (OSError, pa.ArrowException) as error:
        raise NotARecordError(explain(error)) from error
    return _DIGEST_KEY in (metadata or {})


def decode_record(
    content: bytes, table: str, name: str, columns: Collection[str] | None = None
) -> pa.Table:
    """`decode` of a file with one record, that of `name`. Raises NotARecordError."""
    rows = decode(content, table, columns)
    ids = rows[id_column(table)].unique().to_pylist()
    if ids == [name] or (not ids and table in _MAY_BE_EMPTY):
        return rows
    if not ids:
        raise NotARecordError("a record without a row")
    others = ", ".join(map(str, ids[:3])) + ("" if len(ids) <= 3 else f" and {len(ids) - 3} more")
    raise MisnamedError(f"its name is not that of its content, {others}")


def explain(error: Exception) -> str:
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return f"not a whole Parquet file ({reason})"


def check_ours(file: pq.ParquetFile, table: str) -> None:
    """Raises NotARecordError for a file of another program, table or of a newer version."""
    metadata = file.schema_arrow.metadata or {}
    version = metadata.get(VERSION_KEY, b"")
    if metadata.get(TABLE_KEY) != table.encode() or not version.isdigit():
        raise NotARecordError(f"not written by lp-sweep as one of its {table}")
    if int(version) > SCHEMA_VERSION:
        raise NotARecordError("written by a newer lp-sweep: update this one", newer=True)


def looks_whole(tail: bytes) -> bool:
    """Whether a file that ends so can be a whole Parquet file: a cheap look, no proof."""
    return len(tail) >= 8 and tail.endswith(b"PAR1")


def _digest_start(content: bytes) -> int:
    # Thrift writes the key, a byte for the field, the length (64 in one byte), then the value
    return content.rindex(_DIGEST_KEY) + len(_DIGEST_KEY) + 2


def _digest_problem(content: bytes, file: pq.ParquetFile) -> str | None:
    told = (file.metadata.metadata or {}).get(_DIGEST_KEY)
    if told is None:
        return None  # written before files had one
    start = _digest_start(content)
    if content[start : start + len(_ZEROS)] != told:
        return "not a whole Parquet file (its checksum can't be found)"
    blank = content[:start] + _ZEROS + content[start + len(_ZEROS) :]
    if hashlib.sha256(blank).hexdigest().encode() != told:
        return "not a whole Parquet file (its bytes do not have the checksum written with them)"
    return None


def conform(rows: pa.Table, schema: pa.Schema) -> pa.Table:
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
