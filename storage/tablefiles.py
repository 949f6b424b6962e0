"""Reads the files of one table, single files and packs, as one list of records.

A compactor may be running. It publishes a pack before it deletes the files that are in it, so a
reader first lists the single files, then the packs, and looks for new packs if a file has
disappeared. A record in a pack and in a single file counts once.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from lp_sweep.storage import parquet
from lp_sweep.storage.files import FileInfo, Files, PermanentError, UnreachableError
from lp_sweep.storage.parquet import PACKS, SUFFIX, NotARecordError
from lp_sweep.storage.schema import LARGE
from lp_sweep.storage.sense import checked_columns, senseless, without

THREADS = 16
_PART = 256  # single files
_PACKS_AT_ONCE = 4  # each needs memory for its bytes and its rows
_FIRST_DELAY, _LONGEST_DELAY = 0.2, 10.0  # seconds between tries
_NOT_RETRIED = (
    *(FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError),
    PermanentError,
)

_LASTING = {errno.ELOOP, errno.ENAMETOOLONG}

Columns = Collection[str] | None  # None: all
T = TypeVar("T")


class Deadline:
    """The retries of one operation and all its parts, which end at the same moment."""

    def __init__(self, patience: float) -> None:
        """patience: seconds from the first failure; 0: no retry."""
        self._patience = patience
        self._end: float | None = None

    def persist(self, action: Callable[[], T]) -> T:
        """Retries until the patience ends, then raises the last OSError. Permanent errors, such as
        a missing file, are raised at once."""
        delay = _FIRST_DELAY
        while True:
            try:
                return action()
            except OSError as error:
                if isinstance(error, _NOT_RETRIED) or error.errno in _LASTING:
                    raise
                self._end = self._end or time.monotonic() + self._patience
                left = self._end - time.monotonic()
                if left <= 0:
                    raise
            time.sleep(min(delay, left))
            delay = min(2 * delay, _LONGEST_DELAY)


class Unreadable(NamedTuple):
    """A file of the store that is not a readable record, and why."""

    location: str
    reason: str
    record: str = ""  # which record of the file, if not the file as a whole
    lost: bool = False  # it is no file: what should be there is missing (upkeep.lost)
    newer: bool = False  # a later version wrote it

    @property
    def sentence(self) -> str:
        return f"{self.location}{'' if self.lost else ' is left out'}: {self.reason}"


class Records(NamedTuple):
    """Rows of a table, and the files that could not be read."""

    rows: pa.Table
    unreadable: list[Unreadable]


def record_name(file_name: str) -> str | None:
    """The record's name; None for other files. A leading dot marks a file that is being written,
    or belongs to a file manager or a synchroniser."""
    if file_name.endswith(SUFFIX) and file_name[0] != ".":
        return file_name[: -len(SUFFIX)]
    return None


class _Gathered:
    """Collects rows from many files; each identifier counts in one file only."""

    def __init__(self, table: str, columns: Columns = None) -> None:
        self._table, self._column = table, parquet.id_column(table)
        self._asked = parquet.schema_of(table, columns)
        large = table in LARGE
        self.columns = None if large else checked_columns(table, columns)  # to read
        # a large table keeps no column for a later check: its rows would not fit into memory
        self._kept = self._asked if large else parquet.schema_of(table, self.columns)
        self._parts: list[pa.Table] = []
        self._places: list[Callable[[str], str]] = []  # of a record of each part
        self.unreadable: list[Unreadable] = []

    def add(self, rows: pa.Table, where: Callable[[str], str]) -> None:
        """Adds the rows of records that can be true, and names the others. `where`: the location
        of the file with a record, by its identifier."""
        bad = senseless(self._table, rows)
        for id_, why in bad.items():
            place = where(str(id_))
            said = why if str(id_) in place else f"{id_}: {why}"
            self.unreadable.append(Unreadable(place, said, str(id_)))
        self._parts.append(without(rows, bad).select(self._kept.names))
        self._places.append(where)

    def records(self, *, sort: bool) -> Records:
        """The rows in the order in which they were added, or sorted by name."""
        rows = pa.concat_tables([self._kept.empty_table(), *self._once()])
        rows = rows.select(self._asked.names)
        if sort and self._table not in LARGE:  # too many rows to sort
            rows = rows.sort_by(self._column)
        return Records(rows, list(dict.fromkeys(self.unreadable)))

    def _once(self) -> Iterator[pa.Table]:
        """Each part without records that a later one has (`measure --again` writes no pack) or that
        files contradict each other on: rarely any, which Arrow tells ten times as fast as sets."""
        ids = [rows[self._column].unique() for rows in self._parts]
        together = pa.chunked_array(ids, pa.string())
        if len(together.unique()) == len(together):
            yield from self._parts
            return
        seen = self._contradicted() if self._table == "trials" else set()
        for rows, own in zip(self._parts[::-1], ids[::-1], strict=True):
            names = {*own.to_pylist()}
            yield without(rows, names & seen)
            seen |= names

    def _contradicted(self) -> set[str]:
        """The trials of which files have different scores, which are named: nobody knows which is
        right."""
        scores = pa.concat_tables([rows.select([self._column, "last"]) for rows in self._parts])
        ends = scores.group_by(self._column).aggregate([("last", "min"), ("last", "max")])
        differ = ends.filter(pc.not_equal(ends["last_min"], ends["last_max"]))
        found = {*differ[self._column].to_pylist()}
        for rows, where in zip(self._parts, self._places, strict=True):
            for id_ in found.intersection(rows[self._column].to_pylist()):
                why = f"{id_}: files of this store have different scores of it"
                self.unreadable.append(Unreadable(where(id_), why, id_))
        return found


class TableFiles:
    """One operation's view of a table's files. Raises FileNotFoundError, NotARecordError, and
    OSError after the patience (see `Deadline`)."""

    def __init__(
        self, files: Files, table: str, patience: float, ids: dict[str, frozenset[str]]
    ) -> None:
        """`ids`: the identifiers in each pack; a cache that outlives the operation."""
        self._files, self._table, self._ids = files, table, ids
        self._persist = Deadline(patience).persist

    # -- what there is

    def singles(self) -> dict[str, FileInfo]:
        """The files of one record each, by its name."""
        found = self._persist(lambda: self._files.list(self._table))
        return {name: info for info in found if (name := record_name(info.name)) is not None}

    def packs(self) -> list[str]:
        """The paths of the packs."""
        folder = f"{self._table}/{PACKS}"
        found = self._persist(lambda: self._files.list(folder))
        return sorted(f"{folder}/{info.name}" for info in found if record_name(info.name))

    def names(self) -> set[str]:
        """Without empty files, which a crash leaves."""
        singles = {name for name, info in self.singles().items() if info.size}
        return singles.union(*self._in_packs(self.packs()))

    def _in_packs(self, packs: Collection[str]) -> list[frozenset[str]]:
        """The identifiers in each pack; none for an unreadable pack."""
        with ThreadPoolExecutor(THREADS) as pool:
            return list(pool.map(self._ids_of, packs))

    def _ids_of(self, pack: str) -> frozenset[str]:
        if pack not in self._ids:
            try:
                found = self._persist(lambda: parquet.read_ids(self._files, pack, self._table))
            except (NotARecordError, FileNotFoundError):  # the latter: set aside meanwhile
                return frozenset()
            self._ids[pack] = found
        return self._ids[pack]

    def _path(self, name: str) -> str:
        return f"{self._table}/{name}{SUFFIX}"

    def _where(self, name: str) -> str:
        return self._files.where(self._path(name))

    # -- rows

    def record(self, name: str) -> pa.Table:
        """A record's rows, from its single file or else from a pack."""
        try:
            rows = parquet.decode_record(self._fetch(self._path(name)), self._table, name)
            bad = senseless(self._table, rows)
            if not bad:
                return rows
            raise NotARecordError(*bad.values())
        except (FileNotFoundError, NotARecordError):
            gathered = _Gathered(self._table)
            self._add_packs(gathered, self.packs(), {name})
            found = gathered.records(sort=False).rows
            if not len(found):
                raise
            return found

    def _fetch(self, path: str) -> bytes:
        return self._persist(lambda: self._files.read(path))

    def read(self, names: Iterable[str] | None, columns: Columns = None) -> Records:
        wanted = None if names is None else set(names)
        gathered = _Gathered(self._table, columns)
        there = sorted(name for name in self.singles() if wanted is None or name in wanted)
        packed = self._add_packs(gathered, self.packs(), wanted)
        gone = self._add_singles(gathered, there)
        if gone:  # moved into a new pack, or set aside
            packed = self._add_packs(gathered, self.packs(), gone) or packed
        return gathered.records(sort=packed)  # single files alone are sorted already

    def _add_singles(self, gathered: _Gathered, names: list[str]) -> set[str]:
        """Returns the names of files that have disappeared."""
        gone = set()
        with ThreadPoolExecutor(THREADS) as pool:
            for start in range(0, len(names), _PART):
                part, tables = names[start : start + _PART], []
                found = pool.map(lambda name: self._single(name, gathered.columns), part)
                for name, rows in zip(part, found, strict=True):
                    if isinstance(rows, Unreadable):
                        gathered.unreadable.append(rows)
                    elif rows is None:
                        gone.add(name)
                    else:
                        tables.append(rows)
                if tables:  # combined: a table of one row takes 100 times its values' memory
                    gathered.add(pa.concat_tables(tables).combine_chunks(), self._where)
        return gone

    def _single(self, name: str, columns: Columns) -> pa.Table | Unreadable | None:
        """The file's rows, or why there are none; None if the file has disappeared."""
        try:
            content = self._fetch(self._path(name))
            return parquet.decode_record(content, self._table, name, columns)
        except FileNotFoundError:
            return None
        except UnreachableError:
            raise
        except NotARecordError as error:
            return Unreadable(self._where(name), str(error), newer=error.newer)
        except OSError as error:
            refused = isinstance(error, PermissionError)
            why = "it can't be read: Permission denied" if refused else parquet.explain(error)
            return Unreadable(self._where(name), why)

    def _add_packs(
        self, gathered: _Gathered, packs: Collection[str], wanted: Collection[str] | None
    ) -> bool:
        """Adds the wanted records of these packs (None: all). Returns whether one was read."""
        if wanted is not None:
            inside = zip(packs, self._in_packs(packs), strict=True)
            packs = [path for path, ids in inside if not ids.isdisjoint(wanted)]
        with ThreadPoolExecutor(_PACKS_AT_ONCE) as pool:
            found = pool.map(lambda path: self._pack(path, gathered.columns, wanted), packs)
            for path, rows in zip(packs, found, strict=True):
                if isinstance(rows, Unreadable):
                    gathered.unreadable.append(rows)
                elif rows is not None:
                    gathered.add(rows, _always(self._files.where(path)))
        return bool(packs)

    def _pack(
        self, path: str, columns: Columns, wanted: Collection[str] | None
    ) -> pa.Table | Unreadable | None:
        """The wanted rows, or why there are none; None if the pack was set aside meanwhile."""
        try:
            rows = parquet.decode(self._fetch(path), self._table, columns)
        except FileNotFoundError:
            return None
        except NotARecordError as error:
            return Unreadable(self._files.where(path), str(error), newer=error.newer)
        self._ids[path] = frozenset(rows.column(0).unique().to_pylist())
        if wanted is None:
            return rows
        return rows.filter(pc.is_in(rows.column(0), pa.array([*wanted], pa.string())))


def _always(place: str) -> Callable[[str], str]:
    return lambda record: place
