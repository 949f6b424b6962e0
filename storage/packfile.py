"""A pack: one Parquet file that holds many records of a table, sorted by their identifier.

    <location>/<table>/packs/<32 hex digits>.parquet

No identifier's rows are in two row groups, so that a few records are read without the others, and a
damaged row group loses only its own. Every row of a pack was published before its single file
was deleted; nothing here writes or deletes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lp_sweep.storage import parquet
from lp_sweep.storage.files import Files, NotAFileError
from lp_sweep.storage.parquet import NotARecordError
from lp_sweep.storage.schema import TABLES

FOLDER = "packs"
RAW_BYTES_KEY = b"lp_sweep.raw_bytes"  # of the rows in memory: how full the pack is
_GROUP_ROWS = 1024  # identifiers are cut apart no finer; predictions have more rows each
_MANY_ROWS = 65_536
_CONTENT_ERRORS = (OSError, pa.ArrowException, KeyError, ValueError)

T = TypeVar("T")


class PackRows(NamedTuple):
    """What could be read of a pack, and what is wrong with the rest."""

    rows: pa.Table
    problem: str | None


def encode_pack(table: str, rows: pa.Table) -> bytes:
    """rows: in any order, every identifier's rows complete."""
    column = parquet.id_column(table)
    ordered = rows.take(pc.sort_indices(rows, sort_keys=[(column, "ascending")]))  # stable
    size = str(rows.nbytes).encode()
    return parquet.encode_groups(table, _row_groups(ordered, column), {RAW_BYTES_KEY: size})


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
        column = parquet.id_column(table)
        groups = _read_groups(file, range(file.num_row_groups), [column]).groups
        return frozenset(name for group in groups for name in group[column].unique().to_pylist())

    return _of_file(files, path, table, ids)


def raw_bytes(files: Files, path: str, table: str) -> int:
    """How much memory the pack's rows take. Raises NotARecordError, and OSError."""
    return _of_file(
        files, path, table, lambda file: int(file.metadata.metadata.get(RAW_BYTES_KEY, b"0"))
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
        raise NotARecordError(parquet.explain(error)) from error


def fetch(files: Files, path: str) -> bytes:
    """All of a file. Raises NotARecordError for what is no file, and OSError."""
    try:
        return files.read(path)
    except (NotAFileError, NotADirectoryError) as error:
        raise NotARecordError(str(error)) from error


def _open(stream: Any, table: str) -> pq.ParquetFile:
    file = pq.ParquetFile(stream, page_checksum_verification=True)
    parquet.check_ours(file, table)
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
        whole = PackRows(parquet.decode(content, table, columns), None)
    except NotARecordError as error:
        found = _salvage(content, table, error)
        whole = found._replace(rows=_narrow(found.rows, table, columns))
    return whole if wanted is None else PackRows(only(whole.rows, table, wanted), whole.problem)


def _narrow(rows: pa.Table, table: str, columns: Collection[str] | None) -> pa.Table:
    return rows.select(parquet.schema_of(table, columns).names)


def _few_groups(file: pq.ParquetFile, table: str, wanted: Collection[str]) -> pa.Table | None:
    """Those row groups that may have a wanted identifier; None when all are to be read."""
    chosen = [i for i in range(file.num_row_groups) if _may_have(file, i, wanted)]
    if 2 * len(chosen) > file.num_row_groups:
        return None
    read = _read_groups(file, chosen, None)
    if read.lost_rows:
        return None
    return pa.concat_tables(
        [TABLES[table].empty_table(), *(parquet.conform(g, TABLES[table]) for g in read.groups)]
    )


def _may_have(file: pq.ParquetFile, group: int, wanted: Collection[str]) -> bool:
    bounds = file.metadata.row_group(group).column(0).statistics
    if bounds is None or not bounds.has_min_max:
        return True
    return any(bounds.min <= name <= bounds.max for name in wanted)


def only(rows: pa.Table, table: str, wanted: Collection[str]) -> pa.Table:
    names = pa.array(sorted(wanted), pa.string())
    return rows.filter(pc.is_in(rows[parquet.id_column(table)], names))


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
