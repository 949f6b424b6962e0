"""What a table of a store has: its single files and packs, and the identifiers in them.

A compactor may be at work. It publishes a pack before it deletes what is in it, so a reader lists
the single files first, then the packs, the packs until two listings agree, and lists anew when a
file that it saw is gone. What is in a pack and in a single file counts once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

from lp_sweep.storage import packfile, parquet
from lp_sweep.storage.files import NOT_A_FILE, FileInfo, Files, UnreachableError
from lp_sweep.storage.parquet import NotARecordError
from lp_sweep.storage.retry import Deadline

SUFFIX = ".parquet"
THREADS = 16
_LISTINGS = 30  # a compactor deletes in one go: a few are plenty

T = TypeVar("T")


class Contents(NamedTuple):
    """The files of a table: single ones by the record's name, packs by their path."""

    singles: dict[str, FileInfo]
    packs: dict[str, FileInfo]
    others: Mapping[str, FileInfo] = {}  # no files, named like a single one's record


def record_name(file_name: str) -> str | None:
    """None for a file that is no record: a leading dot is a file that is being written, or another
    program's, such as a file manager's or a synchroniser's."""
    if file_name.endswith(SUFFIX) and file_name[0] != ".":
        return file_name[: -len(SUFFIX)]
    return None


class TableList:
    """Raises FileNotFoundError, and OSError when the deadline is over."""

    def __init__(self, files: Files, table: str) -> None:
        self._files, self._table = files, table
        self._ids: dict[tuple[str, int], frozenset[str]] = {}  # by pack and its size

    def contents(self, deadline: Deadline) -> Contents:
        named = {
            name: info
            for info in deadline.persist(lambda: self._files.list(self._table))
            if (name := record_name(info.name)) is not None
        }
        others = {name: info for name, info in named.items() if info.size == NOT_A_FILE}
        singles = {name: named[name] for name in named.keys() - others} if others else named
        return Contents(singles, self.packs(deadline), others)

    def packs(self, deadline: Deadline) -> dict[str, FileInfo]:
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

    def until_still(self, look: Callable[[], T]) -> T:
        """Looks again: a file that was listed and is gone is in a pack that a new listing shows."""
        for _ in range(_LISTINGS):
            try:
                return look()
            except FileNotFoundError:
                continue
        return look()

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
                packed |= self._packed(Contents({}, self.packs(deadline)), deadline)
            return packed | whole

        return self.until_still(look)

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
        size = deadline.persist(lambda: self._files.size(path)) or 0
        return size > 0 or bool(self.packs_with(name, deadline))

    def packs_with(self, name: str, deadline: Deadline) -> list[str]:
        def look() -> list[str]:
            contents = Contents({}, self.packs(deadline))
            return [p for p, ids in self.pack_ids(contents, deadline).items() if name in ids]

        return self.until_still(look)
