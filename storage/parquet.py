"""The Parquet files of a store: encodes rows, decodes bytes and verifies them. Writes no file.

Every page has a checksum, and the footer's metadata has a digest of the whole file, so a file that
was cut or changed is unreadable instead of giving other rows. Page checksums alone leave out page
headers and the footer: with them, flipping one bit in any of 26 of the 16,970 bytes of a record
gave other rows. Any Parquet reader opens these files.

A pack, `<table>/packs/<32 hex digits>.parquet`, holds many records, sorted by identifier. All rows
of an identifier are in one row group, so a few records can be read without the others, and a
damaged row group loses only its own records.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lp_sweep.storage.errors import lines_of
from lp_sweep.storage.files import Files, NotAFileError
from lp_sweep.storage.schema import SCHEMA_VERSION, TABLES

TABLE_KEY, VERSION_KEY = b"lp_sweep.table", b"lp_sweep.schema_version"
_DIGEST_KEY = b"lp_sweep.sha256"  # of the file with zeros in place of these 64 digits
_ZEROS = b"0" * 64
_FEW_ROWS = 20
_MAY_BE_EMPTY = ("predictions", "sweeps", "earlier")
SUFFIX = ".parquet"
PACKS = "packs"  # the folder of a table's packs
_RAW_BYTES_KEY = b"lp_sweep.raw_bytes"  # size of a pack's rows in memory
_GROUP_ROWS = 1024  # of a row group, where each record is one row
_MANY_ROWS = 65_536
_CONTENT_ERRORS = (OSError, pa.ArrowException, KeyError, ValueError)
_LARGE = 2**20  # bytes; smaller files are read faster without threads

T = TypeVar("T")


class NotARecordError(Exception):
    """The bytes are not a readable file of the table; the message says why, in one line."""

    def __init__(self, reason: str, *, newer: bool = False) -> None:
        super().__init__(reason)
        self.newer = newer  # written by a later version of this program


class MisnamedError(NotARecordError):
    """A readable file that was copied or renamed: its name is not that of its record."""


def id_column(table: str) -> str:
    """The name of the column with the record's identifier."""
    return str(TABLES[table].names[0])


def _schema(table: str) -> pa.Schema:
    return TABLES[table].with_metadata(
        {TABLE_KEY: table.encode(), VERSION_KEY: str(SCHEMA_VERSION).encode()}
    )


def to_table(table: str, rows: Iterable[Mapping[str, Any]] | pa.Table) -> pa.Table:
    """Raises pa.ArrowException for a value that does not fit its column."""
    schema = _schema(table)
    content = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(list(rows), schema)
    return content if content.schema.equals(schema, check_metadata=True) else content.cast(schema)


def encode(table: str, rows: Iterable[Mapping[str, Any]] | pa.Table) -> bytes:
    """Encodes rows in one row group. A few rows are not compressed: that file is smaller, and is
    read in a third of the time, since starting a decompressor for each column takes longest."""
    content = to_table(table, rows)
    return encode_groups(table, [content], compress=len(content) > _FEW_ROWS)


def encode_groups(
    table: str,
    groups: Iterable[pa.Table],
    metadata: Mapping[bytes, bytes] | None = None,
    *,
    compress: bool = True,
) -> bytes:
    """Encodes each of `groups` as a row group."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        _schema(table),
        compression="zstd" if compress else "none",
        use_dictionary=compress,
        write_page_checksum=True,
    ) as writer:
        for group in groups:
            writer.write_table(to_table(table, group), row_group_size=max(1, len(group)))
        writer.add_key_value_metadata({**(metadata or {}), _DIGEST_KEY: _ZEROS})
    return signed(sink.getvalue().to_pybytes())


def signed(content: bytes) -> bytes:
    """Replaces the zeros of a file's digest by the digest."""
    start = _digest_start(content)
    digest = hashlib.sha256(content).hexdigest().encode()
    return content[:start] + digest + content[start + len(digest) :]


def schema_of(table: str, columns: Collection[str] | None) -> pa.Schema:
    """The current schema of the identifier and these columns (None: all)."""
    if columns is None:
        return TABLES[table]
    kept = {*columns, id_column(table)}
    return pa.schema([field for field in TABLES[table] if field.name in kept])


def decode(content: bytes, table: str, columns: Collection[str] | None = None) -> pa.Table:
    """Decodes rows in the current schema (see `schema_of`). Verifies all bytes, even if only some
    columns are read. Raises NotARecordError."""
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
    raise MisnamedError(f"its name is not that of its content, {others}")


def explain(error: Exception) -> str:
    return f"not a whole Parquet file ({lines_of(error)[0]})"


def check_ours(file: pq.ParquetFile, table: str) -> None:
    """Raises NotARecordError for a file of another program, another table or a newer version."""
    metadata = file.schema_arrow.metadata or {}
    version = metadata.get(VERSION_KEY, b"")
    if metadata.get(TABLE_KEY) != table.encode() or not version.isdigit():
        raise NotARecordError(f"not written by lp-sweep as one of its {table}")
    if int(version) > SCHEMA_VERSION:
        raise NotARecordError("written by a newer lp-sweep: update this one", newer=True)


def _digest_start(content: bytes) -> int:
    # Thrift writes the key, a byte for the field, the length (64 in one byte), then the value
    return content.rindex(_DIGEST_KEY) + len(_DIGEST_KEY) + 2


def _digest_problem(content: bytes, file: pq.ParquetFile) -> str | None:
    told = (file.metadata.metadata or {}).get(_DIGEST_KEY)
    if told is None:
        return "not a whole Parquet file (it has no checksum)"
    start = _digest_start(content)
    if content[start : start + len(_ZEROS)] != told:
        return "not a whole Parquet file (its checksum can't be found)"
    blank = content[:start] + _ZEROS + content[start + len(_ZEROS) :]
    if hashlib.sha256(blank).hexdigest().encode() != told:
        return "not a whole Parquet file (its bytes do not have the checksum written with them)"
    return None


def conform(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Orders columns as in the schema; columns that an older version did not write are null."""
    if rows.schema.equals(schema):  # nearly always; casting takes a third of the reading time
        return rows.replace_schema_metadata(None)
    columns = [
        rows[item.name].cast(item.type)
        if item.name in rows.column_names
        else pa.nulls(len(rows), item.type)
        for item in schema
    ]
    return pa.table(columns, schema=schema)


# -- packs


class PackRows(NamedTuple):
    """The readable rows of a pack, and what is wrong with the rest."""

    rows: pa.Table
    problem: str | None


def encode_pack(table: str, rows: pa.Table) -> bytes:
    """Encodes records; `rows` in any order, with all rows of each identifier."""
    column = id_column(table)
    ordered = rows.take(pc.sort_indices(rows, sort_keys=[(column, "ascending")]))  # stable
    size = str(rows.nbytes).encode()
    return encode_groups(table, _row_groups(ordered, column), {_RAW_BYTES_KEY: size})


def _row_groups(ordered: pa.Table, column: str) -> Iterator[pa.Table]:
    runs = pc.run_end_encode(ordered[column].combine_chunks()).run_ends.to_pylist()
    limit = _GROUP_ROWS if len(runs) == len(ordered) else _MANY_ROWS
    start = 0
    for end, following in zip(runs, [*runs[1:], None], strict=True):
        if following is None or following - start > limit:
            yield ordered.slice(start, end - start)
            start = end


def read_ids(files: Files, path: str, table: str) -> frozenset[str]:
    """Reads the identifiers in a pack, from that column alone. Raises NotARecordError, OSError."""

    def ids(file: pq.ParquetFile) -> frozenset[str]:
        column = id_column(table)
        groups = _read_groups(file, range(file.num_row_groups), [column]).groups
        return frozenset(name for group in groups for name in group[column].unique().to_pylist())

    return _of_file(files, path, table, ids, dictionary=[id_column(table)])


def raw_bytes(files: Files, path: str, table: str) -> int:
    """The size of the pack's rows in memory. Raises NotARecordError, OSError."""
    return _of_file(
        files, path, table, lambda file: int(file.metadata.metadata.get(_RAW_BYTES_KEY, b"0"))
    )


def _of_file(
    files: Files,
    path: str,
    table: str,
    action: Callable[[pq.ParquetFile], T],
    dictionary: Collection[str] = (),
) -> T:
    """Reads only what `action` asks for. If that fails, the file is damaged or the reading failed:
    a second try on all its bytes tells which. `dictionary`: columns that repeat few values."""
    try:
        with files.open(path) as stream:
            return action(_open(stream, table, dictionary))
    except FileNotFoundError:
        raise
    except _CONTENT_ERRORS:
        content = fetch(files, path)
    try:
        return action(_open(pa.BufferReader(content), table, dictionary))
    except _CONTENT_ERRORS as error:
        raise NotARecordError(explain(error)) from error


def fetch(files: Files, path: str) -> bytes:
    """Reads a whole file. Raises NotARecordError for what is not a file, OSError."""
    try:
        return files.read(path)
    except (NotAFileError, NotADirectoryError) as error:
        raise NotARecordError(str(error)) from error


def _open(stream: Any, table: str, dictionary: Collection[str] = ()) -> pq.ParquetFile:
    file = pq.ParquetFile(stream, read_dictionary=[*dictionary], page_checksum_verification=True)
    check_ours(file, table)
    return file


def read_rows(
    files: Files,
    path: str,
    table: str,
    wanted: Collection[str] | None = None,
    columns: Collection[str] | None = None,
) -> PackRows:
    """Reads a pack's readable rows, of `wanted` identifiers and `columns` (see `schema_of`) only.

    Raises NotARecordError for a file that is not a pack, FileNotFoundError and OSError.
    """
    if wanted is not None:
        some = _of_file(files, path, table, lambda file: _few_groups(file, table, wanted))
        if some is not None:
            return PackRows(_narrow(only(some, table, wanted), table, columns), None)
    content = fetch(files, path)
    try:
        whole = PackRows(decode(content, table, columns), None)
    except NotARecordError as error:
        found = _salvage(content, table, error)
        whole = found._replace(rows=_narrow(found.rows, table, columns))
    return whole if wanted is None else PackRows(only(whole.rows, table, wanted), whole.problem)


def _narrow(rows: pa.Table, table: str, columns: Collection[str] | None) -> pa.Table:
    return rows.select(schema_of(table, columns).names)


def _few_groups(file: pq.ParquetFile, table: str, wanted: Collection[str]) -> pa.Table | None:
    """The rows of the row groups that may have a wanted identifier; None if most groups do, or
    some are damaged: then the whole file is to be read."""
    chosen = [i for i in range(file.num_row_groups) if _may_have(file, i, wanted)]
    if 2 * len(chosen) > file.num_row_groups:
        return None
    read = _read_groups(file, chosen, None)
    if read.lost_rows:
        return None
    return pa.concat_tables(
        [TABLES[table].empty_table(), *(conform(g, TABLES[table]) for g in read.groups)]
    )


def _may_have(file: pq.ParquetFile, group: int, wanted: Collection[str]) -> bool:
    bounds = file.metadata.row_group(group).column(0).statistics
    if bounds is None or not bounds.has_min_max:
        return True
    return any(bounds.min <= name <= bounds.max for name in wanted)


def only(rows: pa.Table, table: str, wanted: Collection[str]) -> pa.Table:
    names = pa.array(sorted(wanted), pa.string())
    return rows.filter(pc.is_in(rows[id_column(table)], names))


class _Groups(NamedTuple):
    groups: list[pa.Table]
    lost_rows: int


def _read_groups(
    file: pq.ParquetFile, numbers: Collection[int], columns: list[str] | None
) -> _Groups:
    groups, lost = [], 0
    for number in numbers:
        try:
            groups.append(file.read_row_group(number, columns=columns))
        except _CONTENT_ERRORS:
            lost += file.metadata.row_group(number).num_rows
    return _Groups(groups, lost)


def _salvage(content: bytes, table: str, problem: NotARecordError) -> PackRows:
    """The rows of a damaged pack's row groups whose checksums are right."""
    try:
        file = _open(pa.BufferReader(content), table)
        if not file.schema_arrow.remove_metadata().equals(TABLES[table]):
            raise problem  # the description of the columns may be what is damaged
        read = _read_groups(file, range(file.num_row_groups), None)
        rows = pa.concat_tables(
            [TABLES[table].empty_table(), *(g.replace_schema_metadata(None) for g in read.groups)]
        )
        total = file.metadata.num_rows
    except _CONTENT_ERRORS:
        raise problem from None
    return PackRows(rows, f"{read.lost_rows} of its {total} rows can't be read: {problem}")
