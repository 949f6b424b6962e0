"""The rows of one table of a store as they lie there: in single files and packs, read as one."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import pyarrow as pa

from lp_sweep.storage import packfile, parquet
from lp_sweep.storage.files import Files, UnreachableError
from lp_sweep.storage.gather import Gathered, Listing, Unreadable
from lp_sweep.storage.parquet import NotARecordError
from lp_sweep.storage.retry import Deadline
from lp_sweep.storage.tablelist import SUFFIX, THREADS, Contents, TableList

_PART = 256  # single files
_PACKS_AT_ONCE = 4  # each takes its bytes beside its rows

Columns = Collection[str] | None  # None: all


class _Part(NamedTuple):
    """Single files that were read, and what was in them."""

    names: frozenset[str]
    listing: Listing


class TableFiles:
    """Raises FileNotFoundError, NotARecordError, and OSError when the deadline is over."""

    def __init__(self, files: Files, table: str) -> None:
        self._files, self._table = files, table
        self.listed = TableList(files, table)

    def record(self, name: str, deadline: Deadline) -> pa.Table:
        """One record's rows: of its single file, else of a pack."""
        path = f"{self._table}/{name}{SUFFIX}"
        try:
            content = deadline.persist(lambda: packfile.fetch(self._files, path))
            return parquet.decode_record(content, self._table, name)
        except (FileNotFoundError, NotARecordError):
            rows = self.listed.until_still(lambda: self._from_packs(name, deadline))
            if rows is None:
                raise
            return rows

    def _from_packs(self, name: str, deadline: Deadline) -> pa.Table | None:
        for pack in self.listed.packs_with(name, deadline):
            found = deadline.persist(partial(self._pack_rows, pack, {name}))
            if isinstance(found, packfile.PackRows) and len(found.rows):
                return found.rows
        return None

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
        gathered, packed = self.listed.until_still(
            lambda: self._read(wanted, parts, deadline, columns)
        )
        return gathered.listing(sort=packed and in_order)

    def _read(
        self, wanted: set[str] | None, parts: list[_Part], deadline: Deadline, columns: Columns
    ) -> tuple[Gathered, bool]:
        """The rows, and whether some are from packs: the others are in the order of the names."""
        contents = self.listed.contents(deadline)
        gathered = Gathered(self._table, columns)
        self._gather_packs(contents, wanted, gathered, deadline, columns)
        asked = contents.singles.keys() if wanted is None else wanted & contents.singles.keys()
        left = sorted(asked - gathered.seen) if asked else []
        for name, info in contents.others.items():
            if wanted is None or name in wanted:
                where = self._files.where(f"{self._table}/{info.name}")
                gathered.add(Unreadable(where, f"{info.kind}, not a file"))
        self._read_singles(left, parts, deadline, columns)
        for part in parts:
            gathered.add(part.listing.rows)
            for problem in part.listing.unreadable:
                gathered.add(problem)
        read = set[str]().union(*(part.names for part in parts))
        if gone := set(left) - read:  # into a pack that is there by now, or set aside
            packs = Contents({}, self.listed.packs(deadline))
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
        ids = self.listed.pack_ids(contents, deadline)
        return {path: wanted & own for path, own in ids.items() if wanted & own}

    def _single(
        self, name: str, deadline: Deadline, columns: Columns
    ) -> pa.Table | Unreadable | None:
        """The file's rows, or why there are none; None where the file is gone."""
        path = f"{self._table}/{name}{SUFFIX}"
        try:
            content = deadline.persist(lambda: packfile.fetch(self._files, path))
            return parquet.decode_record(content, self._table, name, columns)
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
