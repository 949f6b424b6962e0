"""Reads the files of one table, single files and packs, as one list of records.

A compactor may be running. It publishes a pack before it deletes the files that are in it, so a
reader first lists the single files, then the packs until two listings agree, and lists again if a
file has disappeared. A record in a pack and in a single file counts once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from lp_sweep.storage import parquet
from lp_sweep.storage.files import NOT_A_FILE, Deadline, FileInfo, Files, UnreachableError
from lp_sweep.storage.parquet import PACKS, SUFFIX, NotARecordError, PackRows
from lp_sweep.storage.schema import LARGE
from lp_sweep.storage.sense import checked_columns, senseless, without

THREADS = 16
LISTINGS = 30  # at most; a few are enough, since a compactor deletes in one go
_PART = 256  # single files
_PACKS_AT_ONCE = 4  # each needs memory for its bytes and its rows

Columns = Collection[str] | None  # None: all
PackIds = dict[tuple[str, int], frozenset[str]]  # by pack and its size
T = TypeVar("T")


class Unreadable(NamedTuple):
    """A file of the store that is not a readable record, and why."""

    location: str
    reason: str
    record: str = ""  # which record of the file, if not the file as a whole
    lost: bool = False  # it is no file: what should be there is missing (lost.py)

    @property
    def sentence(self) -> str:
        return f"{self.location}{'' if self.lost else ' is left out'}: {self.reason}"


class Listing(NamedTuple):
    """Rows of a table, and the files that could not be read."""

    rows: pa.Table
    unreadable: list[Unreadable]


class Contents(NamedTuple):
    """The files of a table: single files by the record's name, packs by their path."""

    singles: dict[str, FileInfo]
    packs: dict[str, FileInfo]
    others: Mapping[str, FileInfo] = {}  # directories and the like, by name


class _Part(NamedTuple):
    """The names of single files that were read, and their content."""

    names: frozenset[str]
    listing: Listing


def record_name(file_name: str) -> str | None:
    """The record's name; None for other files. A leading dot marks a file that is being written,
    or belongs to a file manager or a synchroniser."""
    if file_name.endswith(SUFFIX) and file_name[0] != ".":
        return file_name[: -len(SUFFIX)]
    return None


def _place(pack: str, record: str) -> str:
    """Where a record is, for `Gathered`: all of a pack are in its file."""
    del record
    return pack


class Gathered:
    """Collects rows from many files; each identifier counts in one file only."""

    def __init__(self, table: str, columns: Columns = None) -> None:
        self._table, self._column = table, parquet.id_column(table)
        self._empty = parquet.schema_of(table, checked_columns(table, columns)).empty_table()
        self._names = parquet.schema_of(table, columns).names
        self._rows: list[pa.Table] = []
        self._ids: list[pa.Array] = []  # of each of these, without repeats
        self._places: list[Callable[[str], str]] = []  # of a record of each of these
        self._unreadable: dict[Unreadable, None] = {}

    def add(self, found: pa.Table | Unreadable, where: Callable[[str], str] = str) -> None:
        """`where`: the location of the file with a record of these rows, by its identifier."""
        if isinstance(found, Unreadable):
            self._unreadable[found] = None
            return
        self._rows.append(found)
        self._ids.append(found[self._column].unique())
        self._places.append(where)

    def add_sound(self, rows: pa.Table, where: Callable[[str], str]) -> None:
        """Adds the rows of records that can be true, and names the others."""
        bad = senseless(self._table, rows)
        for id_, why in bad.items():
            place = where(str(id_))
            self.add(Unreadable(place, why if str(id_) in place else f"{id_}: {why}"))
        self.add(without(rows, bad), where)

    @property
    def seen(self) -> set[Any]:
        return {item for ids in self._ids for item in ids.to_pylist()}

    def listing(self, *, sort: bool) -> Listing:
        """The rows in the order in which they were added, or sorted by name."""
        rows = pa.concat_tables([self._empty, *self._once()]).select(self._names)
        if sort and self._table not in LARGE:  # too many rows to sort
            rows = rows.take(pc.sort_indices(rows, sort_keys=[(self._column, "ascending")]))
        return Listing(rows, list(self._unreadable))

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
                self.add(Unreadable(where(id_), why, id_))
        return found


class TableFiles:
    """One operation's view of a table's files. Raises FileNotFoundError, NotARecordError, and
    OSError after the deadline."""

    def __init__(self, files: Files, table: str, deadline: Deadline, pack_ids: PackIds) -> None:
        """`pack_ids`: a cache that outlives the operation."""
        self._files, self._table, self._persist = files, table, deadline.persist
        self._ids = pack_ids

    def _until_still(self, look: Callable[[], T]) -> T:
        """Repeats `look` if a listed file has disappeared: a new listing shows its pack."""
        for _ in range(LISTINGS):
            try:
                return look()
            except FileNotFoundError:
                continue
        return look()

    # -- what there is

    def contents(self) -> Contents:
        named = {
            name: info
            for info in self._persist(lambda: self._files.list(self._table))
            if (name := record_name(info.name)) is not None
        }
        others = {name: info for name, info in named.items() if info.size == NOT_A_FILE}
        singles = {name: named[name] for name in named.keys() - others} if others else named
        return Contents(singles, self._packs(), others)

    def _packs(self) -> dict[str, FileInfo]:
        """A listing takes time, so it may miss both a new pack and an old one merged into it. New
        packs are not merged again at once, so the next listing shows what was missed."""
        folder = f"{self._table}/{PACKS}"

        def listed() -> dict[str, FileInfo]:
            found = self._persist(lambda: self._files.list(folder))
            return {f"{folder}/{i.name}": i for i in sorted(found) if record_name(i.name)}

        before = listed()
        for _ in range(LISTINGS):
            again = listed()
            if again.keys() == before.keys():
                break
            before = again
        return again

    def pack_ids(self, contents: Contents) -> dict[str, frozenset[str]]:
        """The identifiers in each pack; none for an unreadable pack."""

        def ids(item: tuple[str, FileInfo]) -> frozenset[str]:
            path, info = item
            known = self._ids.get((path, info.size))
            return known if known is not None else self._persist(lambda: self._read_ids(path))

        with ThreadPoolExecutor(THREADS) as pool:
            found = list(pool.map(ids, contents.packs.items()))
        sizes = [(path, info.size) for path, info in contents.packs.items()]
        self._ids.clear()
        self._ids.update(zip(sizes, found, strict=True))
        return dict(zip(contents.packs, found, strict=True))

    def _read_ids(self, path: str) -> frozenset[str]:
        try:
            return parquet.read_ids(self._files, path, self._table)
        except NotARecordError:
            return frozenset()

    def names(self, *, finished: bool = False) -> set[str]:
        def look() -> set[str]:
            contents = self.contents()
            packed = self._packed(contents)
            singles = contents.singles.keys() - packed
            if not finished:
                return packed | singles
            ends = self._ends(contents, singles)
            whole = {name for name, good in ends.items() if good}
            if None in ends.values():  # moved into a new pack
                packed |= self._packed(Contents({}, self._packs()))
            return packed | whole

        return self._until_still(look)

    def _packed(self, contents: Contents) -> set[str]:
        return set().union(*self.pack_ids(contents).values())

    def _ends(self, contents: Contents, names: Iterable[str]) -> dict[str, bool | None]:
        """Whether each file is not empty and, in a folder, ends as a Parquet file does; None if it
        has disappeared."""
        present = [name for name in names if contents.singles[name].size > 0]
        if not self._files.is_folder:
            return dict.fromkeys(present, True)
        with ThreadPoolExecutor(THREADS) as pool:
            return dict(zip(present, pool.map(self._looks_whole, present), strict=True))

    def _looks_whole(self, name: str) -> bool | None:
        try:
            with self._files.open(self._path(name)) as stream:
                stream.seek(-8, 2)
                return bool(stream.read(8).endswith(b"PAR1"))
        except FileNotFoundError:
            return None
        except UnreachableError:
            raise
        except OSError:  # too short, or unreadable
            return False

    def has(self, name: str) -> bool:
        size = self._persist(lambda: self._files.size(self._path(name))) or 0
        return size > 0 or bool(self._packs_with(name))

    def _packs_with(self, name: str) -> list[str]:
        def look() -> list[str]:
            contents = Contents({}, self._packs())
            return [p for p, ids in self.pack_ids(contents).items() if name in ids]

        return self._until_still(look)

    def _path(self, name: str) -> str:
        return f"{self._table}/{name}{SUFFIX}"

    def _where(self, name: str | None) -> str:
        return self._files.where(self._path(str(name)))

    # -- rows

    def record(self, name: str) -> pa.Table:
        """A record's rows, from its single file or else from a pack."""
        try:
            return self._sound(name)
        except (FileNotFoundError, NotARecordError):
            rows = self._until_still(lambda: self._from_packs(name))
            if rows is None:
                raise
            return rows

    def _one(self, name: str, columns: Columns = None) -> pa.Table:
        content = self._persist(lambda: parquet.fetch(self._files, self._path(name)))
        return parquet.decode_record(content, self._table, name, columns)

    def _sound(self, name: str) -> pa.Table:
        rows = self._one(name)
        if bad := senseless(self._table, rows):
            raise NotARecordError(*bad.values())
        return rows

    def _from_packs(self, name: str) -> pa.Table | None:
        for pack in self._packs_with(name):
            found = self._persist(partial(self._pack_rows, pack, {name}))
            if (
                isinstance(found, PackRows)
                and len(found.rows)
                and not senseless(self._table, found.rows)
            ):
                return found.rows
        return None

    def _pack_rows(
        self, path: str, wanted: set[str] | None, columns: Columns = None
    ) -> PackRows | NotARecordError:
        try:
            return parquet.read_rows(self._files, path, self._table, wanted, columns)
        except NotARecordError as error:
            return error

    def read(
        self,
        names: Iterable[str] | None,
        columns: Columns = None,
        *,
        in_order: bool = True,
    ) -> Listing:
        wanted = None if names is None else set(names)
        parts: list[_Part] = []  # are not read again after a file has disappeared
        gathered, packed = self._until_still(lambda: self._read(wanted, parts, columns))
        return gathered.listing(sort=packed and in_order)

    def _read(
        self, wanted: set[str] | None, parts: list[_Part], columns: Columns
    ) -> tuple[Gathered, bool]:
        """The rows, and whether some are from packs: otherwise they are sorted already."""
        contents = self.contents()
        gathered = Gathered(self._table, columns)
        self._gather_packs(contents, wanted, gathered, columns)
        asked = contents.singles.keys() if wanted is None else wanted & contents.singles.keys()
        left = sorted(asked)
        for name, info in contents.others.items():
            if wanted is None or name in wanted:
                where = self._files.where(f"{self._table}/{info.name}")
                gathered.add(Unreadable(where, f"{info.kind}, not a file"))
        self._read_singles(left, parts, columns)
        for part in parts:
            for item in part.listing.unreadable:
                gathered.add(item)
            gathered.add_sound(part.listing.rows, self._where)
        gone = set(left).difference(*(part.names for part in parts))
        if gone and (gone := gone - gathered.seen):  # moved into a new pack, or set aside
            packs = Contents({}, self._packs())
            self._gather_packs(packs, gone, gathered, columns)
            contents.packs.update(packs.packs)
        return gathered, bool(contents.packs)

    def _read_singles(self, names: list[str], parts: list[_Part], columns: Columns) -> None:
        """Combines the rows of each part: a table of one row takes 100 times its values' memory."""
        missing = sorted(set(names).difference(*(part.names for part in parts)))
        read = checked_columns(self._table, columns)
        with ThreadPoolExecutor(THREADS) as pool:
            for start in range(0, len(missing), _PART):
                part = missing[start : start + _PART]
                found = pool.map(lambda name: self._single(name, read), part)
                there = {n: f for n, f in zip(part, found, strict=True) if f is not None}
                together = Gathered(self._table, checked_columns(self._table, columns))
                for one in there.values():
                    together.add(one)
                listing = together.listing(sort=False)
                if len(there) > 1:
                    listing = listing._replace(rows=listing.rows.combine_chunks())
                parts.append(_Part(frozenset(there), listing))

    def _gather_packs(
        self,
        contents: Contents,
        wanted: set[str] | None,
        gathered: Gathered,
        columns: Columns,
    ) -> None:
        def read(path: str) -> PackRows | NotARecordError:
            return self._persist(lambda: self._pack_rows(path, chosen[path], wider))

        wider = checked_columns(self._table, columns)
        chosen = self._chosen(contents, wanted)
        with ThreadPoolExecutor(_PACKS_AT_ONCE) as pool:
            for path, found in zip(chosen, pool.map(read, chosen), strict=True):
                problem = str(found) if isinstance(found, NotARecordError) else found.problem
                if problem is not None:
                    gathered.add(Unreadable(self._files.where(path), problem))
                if isinstance(found, PackRows):
                    gathered.add_sound(found.rows, partial(_place, self._files.where(path)))

    def _chosen(self, contents: Contents, wanted: set[str] | None) -> dict[str, set[str] | None]:
        """The packs to read, and the records to take from each (None: all)."""
        if wanted is None:
            return dict.fromkeys(contents.packs)
        ids = self.pack_ids(contents)
        return {path: wanted & own for path, own in ids.items() if wanted & own}

    def _single(self, name: str, columns: Columns) -> pa.Table | Unreadable | None:
        """The file's rows, or why there are none; None if the file has disappeared."""
        try:
            return self._one(name, columns)
        except FileNotFoundError:
            return None
        except UnreachableError:
            raise
        except NotARecordError as error:
            reason = str(error)
        except PermissionError:
            reason = "it can't be read: Permission denied"
        except OSError as error:
            reason = parquet.explain(error)
        return Unreadable(self._files.where(self._path(name)), reason)
