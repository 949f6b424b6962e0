"""The Parquet files of a store: rows to bytes and back, and whether the bytes are ours.

Every page has a checksum, and the file carries a digest of all its bytes, so that a file that was
cut, flipped or written over is found to be unreadable instead of giving other rows. Any Parquet
reader opens these files; the digest is an entry of the footer's metadata. Page checksums alone
leave out page headers and the footer: with them, 26 of the 16,970 bytes of a record gave other rows
after one bit was flipped. A sidecar would be a second file for each record, and stores written so
far carry this digest, so another way would be one more to read.

A pack, `<table>/packs/<32 hex digits>.parquet`, holds many records, sorted by their identifier. No
identifier's rows are in two row groups, so that a few records are read without the others, and a
damaged row group loses only its own. Nothing here writes or deletes a file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lp_sweep.storage.files import Files, NotAFileError
from lp_sweep.storage.schema import SCHEMA_VERSION, TABLES

TABLE_KEY, VERSION_KEY = b"lp_sweep.table", b"lp_sweep.schema_version"
_DIGEST_KEY = b"lp_sweep.sha256"  # of the file, these 64 digits as zeros
_ZEROS = b"0" * 64
_FEW_ROWS = 20
_MAY_BE_EMPTY = ("predictions", "sweeps", "earlier")
SUFFIX = ".parquet"
PACKS = "packs"  # the folder of a table's packs
_RAW_BYTES_KEY = b"lp_sweep.raw_bytes"  # of a pack's rows in memory: how full the pack is
_GROUP_ROWS = 1024  # identifiers are cut apart no finer; predictions have more rows each
_MANY_ROWS = 65_536
_CONTENT_ERRORS = (OSError, pa.ArrowException, KeyError, ValueError)
_LARGE = 2**20  # bytes; below, handing columns to threads takes longer than reading them

T = TypeVar("T")


class NotARecordError(Exception):
    """These bytes are no readable file of the table: the message says why, in one line."""

    def __init__(self, reason: str, *, newer: bool = False) -> None:
        super().__init__(reason)
        self.newer = newer  # written by a later version of this program


class MisnamedError(NotARecordError):
    """A readable file whose name is not that of its record: after a copy or a renaming by hand."""


def id_column(table: str) -> str:
    """The column with the record's identifier."""
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
    """A file whose digest is zeros, with its digest."""
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
    except _CONTENT_ERRORS as error:
        raise NotARecordError(explain(error)) from error


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


# -- packs


class PackRows(NamedTuple):
    """The readable rows of a pack, and the problem with the rest."""

    rows: pa.Table
    problem: str | None


def encode_pack(table: str, rows: pa.Table) -> bytes:
    """rows: in any order, every identifier's rows complete."""
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
    """The identifiers in a pack; opens the one column. Raises NotARecordError, and OSError."""

    def ids(file: pq.ParquetFile) -> frozenset[str]:
        column = id_column(table)
        groups = _read_groups(file, range(file.num_row_groups), [column]).groups
        return frozenset(name for group in groups for name in group[column].unique().to_pylist())

    return _of_file(files, path, table, ids)


def raw_bytes(files: Files, path: str, table: str) -> int:
    """How much memory the pack's rows take. Raises NotARecordError, and OSError."""
    return _of_file(
        files, path, table, lambda file: int(file.metadata.metadata.get(_RAW_BYTES_KEY, b"0"))
    )


def _of_file(files: Files, path: str, table: str, action: Callable[[pq.ParquetFile], T]) -> T:
    """Reads no more of the file than `action` asks for. An error tells nothing of whether the file
    is bad or could not be read: the second look is at all its bytes."""
    try:
        with files.open(path) as stream:
            return action(_open(stream, table))
    except FileNotFoundError:
        raise
    except _CONTENT_ERRORS:
        content = fetch(files, path)
    try:
        return action(_open(pa.BufferReader(content), table))
    except _CONTENT_ERRORS as error:
        raise NotARecordError(explain(error)) from error


def fetch(files: Files, path: str) -> bytes:
    """All of a file. Raises NotARecordError for what is no file, and OSError."""
    try:
        return files.read(path)
    except (NotAFileError, NotADirectoryError) as error:
        raise NotARecordError(str(error)) from error


def _open(stream: Any, table: str) -> pq.ParquetFile:
    file = pq.ParquetFile(stream, page_checksum_verification=True)
    check_ours(file, table)
    return file


def read_rows(
    files: Files,
    path: str,
    table: str,
    wanted: Collection[str] | None = None,
    columns: Collection[str] | None = None,
) -> PackRows:
    """A pack's rows, of `wanted` identifiers only, and their `columns` (see `schema_of`); those
    that can be read.

    Raises NotARecordError for a file that is no pack at all, FileNotFoundError, and OSError.
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
    """The row groups that may have a wanted identifier; None when all are to be read."""
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
    """The row groups of a damaged pack whose pages have their checksums."""
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
