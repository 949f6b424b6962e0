"""Reads the files of one table, single files and packs, as one list of records.

A compactor may be running. It publishes a pack before it deletes the files that are in it, so a
reader first lists the single files, then the packs, and looks for new packs if a file has
disappeared. A record in a pack and in a single file counts once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lp_sweep.storage import parquet
from lp_sweep.storage.files import Deadline, FileInfo, Files, UnreachableError
from lp_sweep.storage.parquet import PACKS, SUFFIX, NotARecordError
from lp_sweep.storage.schema import LARGE
from lp_sweep.storage.sense import checked_columns, senseless, without

THREADS = 16
_PART = 256  # single files
_PACKS_AT_ONCE = 4  # each needs memory for its bytes and its rows

Columns = Collection[str] | None  # None: all
PackIds = dict[tuple[str, int], frozenset[str]]  # by pack and its size


class Unreadable(NamedTuple):
    """A file of the store that is not a readable record, and why."""

    location: str
    reason: str
    record: str = ""  # which record of the file, if not the file as a whole
    lost: bool = False  # it is no file: what should be there is missing (doctor.lost)
    newer: bool = False  # a later version wrote it

    @property
    def sentence(self) -> str:
        return f"{self.location}{'' if self.lost else ' is left out'}: {self.reason}"


class Records(NamedTuple):
    """Rows of a table, and the files that could not be read."""

    rows: pa.Table
    unreadable: list[Unreadable]


class TableContents(NamedTuple):
    """The files of a table: single files by the record's name, packs by their path."""

    singles: dict[str, FileInfo]
    packs: dict[str, FileInfo]


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
        self._names = parquet.schema_of(table, columns).names
        # a large table keeps no column for a later check: its rows would not fit into memory
        kept = columns if table in LARGE else checked_columns(table, columns)
        self._kept = parquet.schema_of(table, kept)
        self._rows: list[pa.Table] = []
        self._ids: list[pa.Array] = []  # of each of these, without repeats
        self._places: list[Callable[[str], str]] = []  # of a record of each of these
        self.unreadable: list[Unreadable] = []

    def add(self, rows: pa.Table, where: Callable[[str], str]) -> None:
        """Adds the rows of records that can be true, and names the others. `where`: the location
        of the file with a record, by its identifier."""
        bad = senseless(self._table, rows)
        for id_, why in bad.items():
            place = where(str(id_))
            said = why if str(id_) in place else f"{id_}: {why}"
            self.unreadable.append(Unreadable(place, said, str(id_)))
        sound = without(rows, bad).select(self._kept.names)
        self._rows.append(sound)
        self._ids.append(sound[self._column].unique())
        self._places.append(where)

    @property
    def seen(self) -> set[Any]:
        return {item for ids in self._ids for item in ids.to_pylist()}

    def listing(self, *, sort: bool) -> Records:
        """The rows in the order in which they were added, or sorted by name."""
        rows = pa.concat_tables([self._kept.empty_table(), *self._once()]).select(self._names)
        if sort and self._table not in LARGE:  # too many rows to sort
            rows = rows.take(pc.sort_indices(rows, sort_keys=[(self._column, "ascending")]))
        return Records(rows, list(dict.fromkeys(self.unreadable)))

    def _once(self) -> Iterator[pa.Table]:
        """The rows of each file without records that an earlier file has, or that files contradict
        each other on. There are rarely any, which Arrow finds out in a tenth of the time of
        Python's sets."""
        ids = pa.chunked_array(self._ids, pa.string())
        if len(ids.unique()) == len(ids):
            yield from self._rows
            return
        seen: set[Any] = self._contradicted()
        for rows, own in zip(self._rows, self._ids, strict=True):
            names = set(own.to_pylist())
            yield without(rows, names & seen)
            seen |= names

    def _contradicted(self) -> set[Any]:
        """The trials of which files have different scores, which are named: nobody knows which is
        right."""
        if self._table != "trials":
            return set()
        scores = pa.concat_tables([rows.select([self._column, "last"]) for rows in self._rows])
        ends = scores.group_by(self._column).aggregate([("last", "min"), ("last", "max")])
        found = {
            *ends.filter(pc.not_equal(ends["last_min"], ends["last_max"]))[self._column].to_pylist()
        }
        for own, where in zip(self._ids, self._places, strict=True):
            for id_ in found.intersection(own.to_pylist()):
                why = f"{id_}: files of this store have different scores of it"
                self.unreadable.append(Unreadable(where(id_), why, id_))
        return found


class TableFiles:
    """One operation's view of a table's files. Raises FileNotFoundError, NotARecordError, and
    OSError after the deadline."""

    def __init__(self, files: Files, table: str, deadline: Deadline, pack_ids: PackIds) -> None:
        """`pack_ids`: a cache that outlives the operation."""
        self._files, self._table, self._persist = files, table, deadline.persist
        self._ids = pack_ids

    # -- what there is

    def contents(self) -> TableContents:
        found = self._persist(lambda: self._files.list(self._table))
        singles = {name: i for i in found if (name := record_name(i.name)) is not None}
        return TableContents(singles, self._packs())

    def _packs(self) -> dict[str, FileInfo]:
        folder = f"{self._table}/{PACKS}"
        found = self._persist(lambda: self._files.list(folder))
        return {f"{folder}/{i.name}": i for i in sorted(found) if record_name(i.name)}

    def pack_ids(self, packs: Mapping[str, FileInfo]) -> dict[str, frozenset[str]]:
        """The identifiers in each pack; none for an unreadable pack."""

        def ids(item: tuple[str, FileInfo]) -> frozenset[str]:
            path, info = item
            known = self._ids.get((path, info.size))
            return known if known is not None else self._persist(lambda: self._read_ids(path))

        with ThreadPoolExecutor(THREADS) as pool:
            found = dict(zip(packs, pool.map(ids, packs.items()), strict=True))
        self._ids.clear()
        self._ids.update({(path, info.size): found[path] for path, info in packs.items()})
        return found

    def _read_ids(self, path: str) -> frozenset[str]:
        try:
            return parquet.read_ids(self._files, path, self._table)
        except (NotARecordError, FileNotFoundError):  # the latter: set aside meanwhile
            return frozenset()

    def names(self) -> set[str]:
        """Without empty files, which a crash leaves."""
        contents = self.contents()
        singles = {name for name, info in contents.singles.items() if info.size}
        return singles.union(*self.pack_ids(contents.packs).values())

    def _with(self, wanted: set[str], packs: Mapping[str, FileInfo]) -> dict[str, set[str]]:
        """The packs that have wanted records, and which."""
        ids = self.pack_ids(packs)
        return {path: wanted & own for path, own in ids.items() if wanted & own}

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
            self._add_packs(self._with({name}, self._packs()), gathered, None)
            found = gathered.listing(sort=False).rows
            if not len(found):
                raise
            return found

    def _fetch(self, path: str) -> bytes:
        return self._persist(lambda: self._files.read(path))

    def read(self, names: Iterable[str] | None, columns: Columns = None) -> Records:
        wanted = None if names is None else set(names)
        contents = self.contents()
        gathered = _Gathered(self._table, columns)
        packs: Mapping[str, set[str] | None] = dict.fromkeys(contents.packs)
        if wanted is not None:
            packs = self._with(wanted, contents.packs)
        self._add_packs(packs, gathered, columns)
        singles = contents.singles.keys() if wanted is None else wanted & contents.singles.keys()
        gone = self._add_singles(sorted(singles), gathered, columns)
        if gone and (gone := gone - gathered.seen):  # moved into a new pack, or set aside
            self._add_packs(self._with(gone, self._packs()), gathered, columns)
        # single files alone are sorted already
        return gathered.listing(sort=bool(packs or gone))

    def _add_singles(self, names: list[str], gathered: _Gathered, columns: Columns) -> set[str]:
        """Returns the names of files that have disappeared."""
        gone = set()
        wide = self._read_columns(columns)
        with ThreadPoolExecutor(THREADS) as pool:
            for start in range(0, len(names), _PART):
                part, tables = names[start : start + _PART], []
                found = pool.map(lambda name: self._single(name, wide), part)
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

    def _read_columns(self, columns: Columns) -> Columns:
        """`columns`, and those that show whether a record can be true."""
        return None if self._table in LARGE else checked_columns(self._table, columns)

    def _single(self, name: str, columns: Columns) -> pa.Table | Unreadable | None:
        """The file's rows, or why there are none; None if the file has disappeared."""
        newer = False
        try:
            content = self._fetch(self._path(name))
            return parquet.decode_record(content, self._table, name, columns)
        except FileNotFoundError:
            return None
        except UnreachableError:
            raise
        except NotARecordError as error:
            reason, newer = str(error), error.newer
        except PermissionError:
            reason = "it can't be read: Permission denied"
        except OSError as error:
            reason = parquet.explain(error)
        return Unreadable(self._where(name), reason, newer=newer)

    def _add_packs(
        self, packs: Mapping[str, set[str] | None], gathered: _Gathered, columns: Columns
    ) -> None:
        """`packs`: the records to take from each (None: all)."""

        def read(path: str) -> pa.Table | NotARecordError | None:
            try:
                return parquet.decode(self._fetch(path), self._table, self._read_columns(columns))
            except NotARecordError as error:
                return error
            except FileNotFoundError:  # set aside meanwhile
                return None

        with ThreadPoolExecutor(_PACKS_AT_ONCE) as pool:
            for path, rows in zip(packs, pool.map(read, packs), strict=True):
                where, wanted = self._files.where(path), packs[path]
                if isinstance(rows, NotARecordError):
                    gathered.unreadable.append(Unreadable(where, str(rows), newer=rows.newer))
                elif rows is not None:
                    own = rows if wanted is None else parquet.only(rows, self._table, wanted)
                    gathered.add(own, partial(_same, where))


def _same(pack: str, record: str) -> str:
    """Where a record of a pack is."""
    del record
    return pack
