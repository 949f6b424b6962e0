"""One table of a store as it lies there: single files and packs, read as one.

A compactor may be at work. It publishes a pack before it deletes what is in it, so a reader lists
the single files first, then the packs, the packs until two listings agree, and lists anew when a
file that it saw is gone. What is in a pack and in a single file counts once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple, TypeVar

import pyarrow as pa

from lp_sweep.storage import packfile, parquet
from lp_sweep.storage.files import FileInfo, Files, UnreachableError
from lp_sweep.storage.gather import Gathered, Listing, Unreadable
from lp_sweep.storage.parquet import NotARecordError
from lp_sweep.storage.retry import Deadline

SUFFIX = ".parquet"
THREADS = 16
_PART = 256  # single files
_PACKS_AT_ONCE = 4  # each takes its bytes beside its rows
_LISTINGS = 30  # a compactor deletes in one go: a few are plenty

T = TypeVar("T")
Columns = Collection[str] | None  # None: all


class Contents(NamedTuple):
    """The files of a table: single ones by the record's name, packs by their path."""

    singles: dict[str, FileInfo]
    packs: dict[str, FileInfo]


class _Part(NamedTuple):
    """Single files that were read, and what was in them."""

    names: frozenset[str]
    listing: Listing


def record_name(file_name: str) -> str | None:
    """None for a file that is no record: a leading dot is a file that is being written, or another
    program's, such as a file manager's or a synchroniser's."""
    if file_name.endswith(SUFFIX) and file_name[0] != ".":
        return file_name[: -len(SUFFIX)]
    return None


class TableFiles:
    """Raises FileNotFoundError, NotARecordError, and OSError when the deadline is over."""

    def __init__(self, files: Files, table: str) -> None:
        self._files, self._table = files, table
        self._ids: dict[tuple[str, int], frozenset[str]] = {}  # by pack and its size

    def contents(self, deadline: Deadline) -> Contents:
        singles = {
            name: info
            for info in deadline.persist(lambda: self._files.list(self._table))
            if (name := record_name(info.name)) is not None
        }
        return Contents(singles, self._packs(deadline))

    def _packs(self, deadline: Deadline) -> dict[str, FileInfo]:
        """A listing is not one moment: it may miss a new pack and an old one that is in it. A pack
        is not merged again at once, so one that was missed stands in the next listing."""
        folder = f"{self._table}/{packfile.FOLDER}"

        def listed() -> dict[str, FileInfo]:
            found = deadline.persist(lambda: self._files.list(folder))
            return {f"{folder}/{i.name}": i for i in sorted(found) if record_name(i.name)}

        before = listed()
        for _ in range(_LISTINGS):
            again = listed()
            if again.keys() == before.keys():
                break
            before = again
        return again

    def pack_ids(self, contents: Contents, deadline: Deadline) -> dict[str, frozenset[str]]:
        """The identifiers in each pack, none for an unreadable one."""

        def ids(item: tuple[str, FileInfo]) -> frozenset[str]:
            path, info = item
            known = self._ids.get((path, info.size))
            return known if known is not None else deadline.persist(lambda: self._read_ids(path))

        with ThreadPoolExecutor(THREADS) as pool:
            found = list(pool.map(ids, contents.packs.items()))
        self._ids = {
            (path, info.size): names
            for (path, info), names in zip(contents.packs.items(), found, strict=True)
        }
        return dict(zip(contents.packs, found, strict=True))

    def _read_ids(self, path: str) -> frozenset[str]:
        try:
            return packfile.read_ids(self._files, path, self._table)
        except NotARecordError:
            return frozenset()

    def _until_still(self, look: Callable[[], T]) -> T:
        """A file that was listed and is gone is in a pack that a new listing shows."""
        for _ in range(_LISTINGS):
            try:
                return look()
            except FileNotFoundError:
                continue
        return look()

    # -- names

    def names(self, deadline: Deadline, *, finished: bool = False) -> set[str]:
        def look() -> set[str]:
            contents = self.contents(deadline)
            packed = self._packed(contents, deadline)
            singles = contents.singles.keys() - packed
            if not finished:
                return packed | singles
            ends = self._ends(contents, singles)
            whole = {name for name, good in ends.items() if good}
            if None in ends.values():  # gone: into a pack that is there by now
                packed |= self._packed(Contents({}, self._packs(deadline)), deadline)
            return packed | whole

        return self._until_still(look)

    def _packed(self, contents: Contents, deadline: Deadline) -> set[str]:
        return set().union(*self.pack_ids(contents, deadline).values())

    def _ends(self, contents: Contents, names: Iterable[str]) -> dict[str, bool | None]:
        """Whether a file is not empty and, where files can tear, ends as a Parquet file does; None
        where it is gone by now."""
        present = [name for name in names if contents.singles[name].size > 0]
        if not self._files.is_folder:
            return dict.fromkeys(present, True)
        with ThreadPoolExecutor(THREADS) as pool:
            return dict(zip(present, pool.map(self._looks_whole, present), strict=True))

    def _looks_whole(self, name: str) -> bool | None:
        try:
            with self._files.open(f"{self._table}/{name}{SUFFIX}") as stream:
                stream.seek(-8, 2)
                return parquet.looks_whole(stream.read(8))
        except FileNotFoundError:
            return None
        except UnreachableError:
            raise
        except OSError:  # shorter than that, or not to be read
            return False

    def has(self, name: str, deadline: Deadline) -> bool:
        path = f"{self._table}/{name}{SUFFIX}"
        return bool(deadline.persist(lambda: self._files.size(path))) or bool(
            self._packs_with(name, deadline)
        )

    def _packs_with(self, name: str, deadline: Deadline) -> list[str]:
        def look() -> list[str]:
            contents = Contents({}, self._packs(deadline))
            return [p for p, ids in self.pack_ids(contents, deadline).items() if name in ids]

        return self._until_still(look)

    # -- rows

    def record(self, name: str, deadline: Deadline) -> pa.Table:
        """One record's rows: of its single file, else of a pack."""
        path = f"{self._table}/{name}{SUFFIX}"
        try:
            return parquet.decode(deadline.persist(lambda: self._fetch(path)), self._table)
        except (FileNotFoundError, NotARecordError):
            rows = self._until_still(lambda: self._from_packs(name, deadline))
            if rows is None:
                raise
            return rows

    def _from_packs(self, name: str, deadline: Deadline) -> pa.Table | None:
        for pack in self._packs_with(name, deadline):
            found = deadline.persist(partial(self._pack_rows, pack, {name}))
            if isinstance(found, packfile.PackRows) and len(found.rows):
                return found.rows
        return None

    def _fetch(self, path: str) -> bytes:
        try:
            return self._files.read(path)
        except (IsADirectoryError, NotADirectoryError) as error:
            raise NotARecordError(parquet.explain(error)) from error

    def _pack_rows(
        self, path: str, wanted: set[str] | None, columns: Columns = None
    ) -> packfile.PackRows | NotARecordError:
        try:
            return packfile.read_rows(self._files, path, self._table, wanted, columns)
        except NotARecordError as error:
            return error

    def read(
        self,
        names: Iterable[str] | None,
        deadline: Deadline,
        columns: Columns = None,
        *,
        in_order: bool = True,
    ) -> Listing:
        wanted = None if names is None else set(names)
        parts: list[_Part] = []  # what was read before a file was gone
        gathered, packed = self._until_still(lambda: self._read(wanted, parts, deadline, columns))
        return gathered.listing(sort=packed and in_order)

    def _read(
        self, wanted: set[str] | None, parts: list[_Part], deadline: Deadline, columns: Columns
    ) -> tuple[Gathered, bool]:
        """The rows, and whether some are from packs: the others are in the order of the names."""
        contents = self.contents(deadline)
        gathered = Gathered(self._table, columns)
        self._gather_packs(contents, wanted, gathered, deadline, columns)
        asked = contents.singles.keys() if wanted is None else wanted & contents.singles.keys()
        left = sorted(asked - gathered.seen) if asked else []
        self._read_singles(left, parts, deadline, columns)
        for part in parts:
            gathered.add(part.listing.rows)
            for problem in part.listing.unreadable:
                gathered.add(problem)
        read = set[str]().union(*(part.names for part in parts))
        if gone := set(left) - read:  # into a pack that is there by now, or set aside
            packs = Contents({}, self._packs(deadline))
            self._gather_packs(packs, gone, gathered, deadline, columns)
            contents.packs.update(packs.packs)
        return gathered, bool(contents.packs)

    def _read_singles(
        self, names: list[str], parts: list[_Part], deadline: Deadline, columns: Columns
    ) -> None:
        """In parts of one table each: a table of one row takes a hundred times its values."""
        read = set[str]().union(*(part.names for part in parts))
        missing = [name for name in names if name not in read]
        with ThreadPoolExecutor(THREADS) as pool:
            for start in range(0, len(missing), _PART):
                part = missing[start : start + _PART]
                found = pool.map(lambda name: self._single(name, deadline, columns), part)
                there = {n: f for n, f in zip(part, found, strict=True) if f is not None}
                together = Gathered(self._table, columns)
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
        deadline: Deadline,
        columns: Columns,
    ) -> None:
        def read(path: str) -> packfile.PackRows | NotARecordError:
            return deadline.persist(lambda: self._pack_rows(path, chosen[path], columns))

        chosen = self._chosen(contents, wanted, deadline)
        with ThreadPoolExecutor(_PACKS_AT_ONCE) as pool:
            for path, found in zip(chosen, pool.map(read, chosen), strict=True):
                problem = str(found) if isinstance(found, NotARecordError) else found.problem
                if problem is not None:
                    gathered.add(Unreadable(self._files.where(path), problem))
                if isinstance(found, packfile.PackRows):
                    gathered.add(found.rows)

    def _chosen(
        self, contents: Contents, wanted: set[str] | None, deadline: Deadline
    ) -> dict[str, set[str] | None]:
        """The packs to read, with the records to take of each: None for all."""
        if wanted is None:
            return dict.fromkeys(contents.packs)
        ids = self.pack_ids(contents, deadline)
        return {path: wanted & own for path, own in ids.items() if wanted & own}

    def _single(
        self, name: str, deadline: Deadline, columns: Columns
    ) -> pa.Table | Unreadable | None:
        """The file's rows, or why there are none; None where the file is gone."""
        path = f"{self._table}/{name}{SUFFIX}"
        try:
            content = deadline.persist(lambda: self._fetch(path))
            return parquet.decode(content, self._table, columns)
        except FileNotFoundError:
            return None
        except UnreachableError:
            raise
        except NotARecordError as error:
            return Unreadable(self._files.where(path), str(error))
        except PermissionError:
            return Unreadable(self._files.where(path), "it can't be read: Permission denied")
        except OSError as error:
            return Unreadable(self._files.where(path), parquet.explain(error))
