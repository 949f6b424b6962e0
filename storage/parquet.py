"""The Parquet files of a store: encodes rows, decodes bytes and verifies them. Writes no file.

Every page has a checksum, and the footer's metadata has a digest of the whole file, so a file that
was cut or changed is unreadable instead of giving other rows. Page checksums alone leave out page
headers and the footer: with them, flipping one bit in any of 26 of the 16,970 bytes of a record
gave other rows. Any Parquet reader opens these files.

A pack, `<table>/packs/<32 hex digits>.parquet`, holds many records, sorted by identifier.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lp_sweep.storage.errors import lines_of
from lp_sweep.storage.files import Files
from lp_sweep.storage.schema import SCHEMA_VERSION, TABLES

TABLE_KEY, VERSION_KEY = b"lp_sweep.table", b"lp_sweep.schema_version"
_DIGEST_KEY = b"lp_sweep.sha256"  # of the file with zeros in place of these 64 digits
_ZEROS = b"0" * 64
_FEW_ROWS = 20
_MAY_BE_EMPTY = ("predictions", "sweeps", "earlier")
SUFFIX = ".parquet"
PACKS = "packs"  # the folder of a table's packs
_CONTENT_ERRORS = (OSError, pa.ArrowException, KeyError, ValueError)
_LARGE = 2**20  # bytes; smaller files are read faster without threads


class NotARecordError(Exception):
    """The bytes are not a readable file of the table; the message says why, in one line."""

    def __init__(self, reason: str, *, newer: bool = False) -> None:
        super().__init__(reason)
        self.newer = newer  # written by a later version of this program


def id_column(table: str) -> str:
    """The name of the column with the record's identifier."""
    return str(TABLES[table].names[0])


def _schema(table: str) -> pa.Schema:
    return TABLES[table].with_metadata(
        {TABLE_KEY: table.encode(), VERSION_KEY: str(SCHEMA_VERSION).encode()}
    )


def encode(table: str, rows: Iterable[Mapping[str, Any]] | pa.Table) -> bytes:
    """Encodes rows. A few rows are not compressed: that file is smaller, and is read in a third of
    the time, since starting a decompressor for each column takes longest. Raises pa.ArrowException
    for a value that does not fit its column."""
    schema = _schema(table)
    content = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(list(rows), schema)
    compress = len(content) > _FEW_ROWS
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        schema,
        compression="zstd" if compress else "none",
        use_dictionary=compress,
        write_page_checksum=True,
    ) as writer:
        writer.write_table(content.cast(schema))
        writer.add_key_value_metadata({_DIGEST_KEY: _ZEROS})
    return signed(sink.getvalue().to_pybytes())


def signed(content: bytes) -> bytes:
    """Replaces a file's digest, at first zeros, by the right one. Raises ValueError for a file
    without a digest."""
    # Thrift writes the key, a byte for the field, the length (64 in one byte), then the value
    start = content.rindex(_DIGEST_KEY) + len(_DIGEST_KEY) + 2
    before, after = content[:start], content[start + len(_ZEROS) :]
    digest = hashlib.sha256(before + _ZEROS + after).hexdigest().encode()
    return before + digest + after


def schema_of(table: str, columns: Collection[str] | None) -> pa.Schema:
    """The schema of the identifier and these columns (None: all)."""
    if columns is None:
        return TABLES[table]
    kept = {*columns, id_column(table)}
    return pa.schema([field for field in TABLES[table] if field.name in kept])


def decode(content: bytes, table: str, columns: Collection[str] | None = None) -> pa.Table:
    """Decodes rows in the current schema (see `schema_of`). Verifies all bytes, even if only some
    columns are read. Raises NotARecordError."""
    try:
        file = pq.ParquetFile(pa.BufferReader(content))
        _check_ours(file, table)
        if signed(content) != content:
            raise NotARecordError(
                "not a whole Parquet file (its bytes do not have the checksum written with them)"
            )
        schema = schema_of(table, columns)
        rows = file.read(
            None if columns is None else schema.names, use_threads=len(content) > _LARGE
        )
        rows = rows.replace_schema_metadata(None)
        if rows.schema.equals(schema):
            return rows
        # a version that adds columns reads them as null in the files of an earlier one
        both = pa.concat_tables([schema.empty_table(), rows], promote_options="default")
        return both.select(schema.names)
    except _CONTENT_ERRORS as error:
        raise NotARecordError(explain(error)) from error


def decode_record(
    content: bytes, table: str, name: str, columns: Collection[str] | None = None
) -> pa.Table:
    """Decodes a file that must contain the record `name` alone. Raises NotARecordError."""
    rows = decode(content, table, columns)
    ids = rows[id_column(table)].unique().to_pylist()
    if ids == [name] or (not ids and table in _MAY_BE_EMPTY):
        return rows
    if not ids:
        raise NotARecordError("a record without a row")
    others = ", ".join(map(str, ids[:3])) + ("" if len(ids) <= 3 else f" and {len(ids) - 3} more")
    raise NotARecordError(f"its name is not that of its content, {others}")


def explain(error: Exception) -> str:
    return f"not a whole Parquet file ({lines_of(error)[0]})"


def _check_ours(file: pq.ParquetFile, table: str) -> None:
    """Raises NotARecordError for a file of another program, another table or a newer version."""
    metadata = file.schema_arrow.metadata or {}
    version = metadata.get(VERSION_KEY, b"")
    if metadata.get(TABLE_KEY) != table.encode() or not version.isdigit():
        raise NotARecordError(f"not written by lp-sweep as one of its {table}")
    if int(version) > SCHEMA_VERSION:
        raise NotARecordError("written by a newer lp-sweep: update this one", newer=True)


def read_ids(files: Files, path: str, table: str) -> frozenset[str]:
    """Reads the identifiers in a pack, from that column alone; verifies only its pages. Raises
    NotARecordError for a damaged pack, FileNotFoundError and OSError."""
    column = id_column(table)
    try:
        with files.open(path) as stream:
            file = pq.ParquetFile(stream, read_dictionary=[column], page_checksum_verification=True)
            _check_ours(file, table)
            rows = file.read([column])
    except FileNotFoundError:
        raise
    except _CONTENT_ERRORS:  # the file is damaged or the reading failed: all its bytes tell which
        rows = decode(files.read(path), table, ())
    return frozenset(rows[column].unique().to_pylist())
