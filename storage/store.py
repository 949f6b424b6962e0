"""A store: Parquet files in a folder or a bucket. Every write is atomic.

    <location>/trials/<trial_id>.parquet          one row: the result of a trial
    <location>/predictions/<trial_id>.parquet     one row per dev example
    <location>/profiles/<profile_id>.parquet      one row: the contribution of every layer
    <location>/attempts/<attempt_id>.parquet      one row: a failed try
    <location>/sweeps/<name>.parquet              the cells that a sweep asked for
    <location>/sweeps/<name>.yaml                 the sweep file as it was run
    <location>/<table>/packs/*.parquet            many records in one file (upkeep.py)

A trial is done when its record is there and readable. Writing a record twice is harmless: its name
is the identifier of its content, and the last complete file wins. A file that is torn, foreign or
of a newer schema is listed in `Records.unreadable` and never breaks a query.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from lp_sweep.storage import parquet
from lp_sweep.storage.bucket import Bucket
from lp_sweep.storage.errors import SpecError, StoreError
from lp_sweep.storage.files import FileInfo, Files, Folder, UnreachableError
from lp_sweep.storage.parquet import SUFFIX, NotARecordError
from lp_sweep.storage.places import expanded, is_bucket, is_file
from lp_sweep.storage.printable import did_you_mean, shown
from lp_sweep.storage.schema import TABLES
from lp_sweep.storage.tablefiles import THREADS, Deadline, Records, TableFiles, Unreadable

__all__ = ["Records", "Store", "Unreadable", "is_store"]

_LATE_SECONDS = 60.0  # for which NFS, as it is mounted by default, may not show a new file
_OTHER_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")

T = TypeVar("T")


def open_files(location: str | Path) -> Files:
    """A Folder, or a Bucket for `s3://`. Touches nothing at the location yet. Raises StoreError for
    an impossible location."""
    if is_bucket(location):
        return Bucket(str(location))
    if _OTHER_URL.match(str(location)):  # a folder named `gs:` is nobody's wish
        raise StoreError(
            f"can't use {shown(str(location))} as a store. Name a folder or s3://BUCKET/PREFIX."
        )
    if is_file(expanded(location)):
        raise StoreError(
            f"can't use {shown(str(location))} as a store: it is a file. Name a folder or "
            "s3://BUCKET/PREFIX with --store or LP_SWEEP_STORE."
        )
    return Folder(location)


def is_store(location: str | Path, patience: float = 0.0) -> bool:
    """Whether the location has a store's folders. Raises StoreError if that can't be checked."""
    files = open_files(location)

    def look() -> bool:
        return files.exists() and bool(files.folders() & set(TABLES))

    try:
        return Deadline(patience).persist(look)
    except OSError as error:
        raise StoreError(f"can't read the store {files.location}: {error}") from error


class Store:
    """Reads and writes the records of one location. Cheap to create; holds no open file.

    patience: seconds during which a failed operation is retried, first after 0.2 s, then at
    doubling intervals of up to 10 s. Missing and unreadable files are not retried.
    Every method raises StoreError if the location can't be read or written.
    """

    def __init__(
        self, location: str | Path, *, create: bool = False, patience: float = 0.0
    ) -> None:
        self.patience = patience
        self.files = open_files(location)
        self._pack_ids: dict[str, dict[str, frozenset[str]]] = {}
        if create:
            self._write("make a store at", self.location, lambda: self.files.create(TABLES))
        elif not self._is_there():
            raise StoreError(
                f"no store at {self.location}. `lp-sweep run FILE --store "
                f"{shlex.quote(str(location))}` makes one; "
                "or name another with --store or LP_SWEEP_STORE."
            )

    @property
    def location(self) -> str:
        """An absolute folder or s3://bucket/prefix, as --store takes it."""
        return self.files.location

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Store, patience=self.patience), (self.location,)

    def asked_once(self) -> Store:
        """The same store without retries, for callers that try again later themselves."""
        other = Store.__new__(Store)  # copy.copy would look for the location, with all patience
        vars(other).update(vars(self), patience=0.0)
        return other

    def _is_there(self) -> bool:
        def look() -> bool:
            there = self.files.exists()
            if not there and self.files.is_folder:  # a bucket does not come and go
                raise UnreachableError("it may come back: an unmounted folder")
            return there

        try:
            return self._perform("read the store", self.location, look)
        except StoreError as error:
            if self.files.is_folder and isinstance(error.__cause__, UnreachableError):
                return False
            raise

    def _perform(self, what: str, where: str, action: Callable[[], T]) -> T:
        """Returns the action's result, after retries if need be. Raises FileNotFoundError, and
        StoreError for any other OSError. `what` completes "can't ..."."""
        try:
            return Deadline(self.patience).persist(action)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StoreError(f"can't {what} {where}: {error}") from error

    def _write(self, what: str, where: str, action: Callable[[], None]) -> None:
        try:
            self._perform(what, where, action)
        except FileNotFoundError as error:  # as in /proc, which has no room for folders
            raise StoreError(f"can't {what} {where}: {error}") from error

    # -- one record

    def put(self, table: str, name: str, rows: Iterable[Mapping[str, Any]] | pa.Table) -> None:
        """Writes one record. On an error the previous record stays. Raises pa.ArrowException for a
        value that does not fit its column."""
        self.write(_path(table, name + SUFFIX), parquet.encode(table, rows))

    def find(self, table: str, name: str) -> list[dict[str, Any]] | None:
        """Returns the rows of a record; None if it is missing or unreadable."""
        try:
            return self._rows(table, name)
        except (FileNotFoundError, NotARecordError):
            return None

    def read(self, table: str, name: str) -> list[dict[str, Any]]:
        """Returns the rows of a record that was written. Raises StoreError, also if it is missing
        or unreadable."""
        path = f"{table}/{name}{SUFFIX}"
        try:
            return self.awaited(path, lambda: self._rows(table, name))
        except NotARecordError as error:
            raise StoreError(f"can't read {self.files.where(path)}: {error}") from error

    def awaited(self, path: str, look: Callable[[], T]) -> T:
        """Returns what `look` does. It raises FileNotFoundError while it misses something that was
        written: a network mount may show that late. Raises StoreError if it stays missing."""

        def again() -> T:
            try:
                return look()
            except FileNotFoundError as error:
                raise UnreachableError("No such file") from error

        try:
            return Deadline(min(self.patience, _LATE_SECONDS)).persist(again)
        except UnreachableError as error:
            raise StoreError(f"can't read {self.files.where(path)}: {error}") from error

    def _rows(self, table: str, name: str) -> list[dict[str, Any]]:
        _path(table, name)
        return list(self._of_table(table, lambda files: files.record(name)).to_pylist())

    # -- a whole table

    def _of_table(self, table: str, action: Callable[[TableFiles], T]) -> T:
        """Each read is retried by itself; all reads together share one patience."""
        pack_ids = self._pack_ids.setdefault(table, {})
        try:
            return action(TableFiles(self.files, table, self.patience, pack_ids))
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StoreError(f"can't read {self.files.where(table)}: {error}") from error

    def names(self, table: str) -> set[str]:
        """The identifiers of all records of a table. An empty file is no record."""
        return self._of_table(table, lambda files: files.names())

    def singles(self, table: str) -> dict[str, FileInfo]:
        """The files of one record each, by its name, without packs."""
        return self._of_table(table, lambda files: files.singles())

    def packs(self, table: str) -> list[str]:
        """The paths of the files of many records."""
        return self._of_table(table, lambda files: files.packs())

    def sweeps(self, only: str | None = None) -> list[str]:
        """The names of all sweeps, or `only` this one. Raises SpecError if it is unknown."""
        names = sorted(self.names("sweeps"))
        if only is not None and only not in names:
            have, meant = ", ".join(names) or "none", did_you_mean(only, names)
            raise SpecError(f"no sweep named {only!r} in {self.location}. It has: {have}.{meant}")
        return names if only is None else [only]

    def read_all(
        self,
        table: str,
        names: Iterable[str] | None = None,
        columns: Collection[str] | None = None,
    ) -> Records:
        """All rows of a table, or those of the records `names` that exist. No record counts twice.

        Rows are in the order of the names; predictions are in the order of the files. `columns`:
        read only these and the identifier, which is much faster.
        """
        return self._of_table(table, lambda files: files.read(names, columns))

    # -- other files; a path is below the store's location

    def write(self, path: str, content: bytes) -> None:
        self._write("write", self.files.where(path), lambda: self.files.write(path, content))

    def content(self, path: str) -> bytes:
        """Reads a file. Raises FileNotFoundError."""
        return self._perform("read", self.files.where(path), lambda: self.files.read(path))

    def move(self, path: str, target: str) -> None:
        """Raises FileNotFoundError if another process has moved it."""
        self._perform("move", self.files.where(path), lambda: self.files.move(path, target))

    def put_text(self, folder: str, name: str, text: str) -> None:
        self.write(_path(folder, name), text.encode())

    def read_text(self, folder: str, name: str) -> str | None:
        """Returns a text as put_text wrote it; None if there is none."""
        try:
            return self.content(_path(folder, name)).decode(errors="replace")
        except FileNotFoundError:
            return None

    def texts(self, folder: str, besides: str = "") -> dict[str, str]:
        """The texts of all .json files of a folder but this one, by file name."""
        found = {info.name for info in self.listing(folder)} - {besides}
        names = sorted(name for name in found if name.endswith(".json"))
        with ThreadPoolExecutor(THREADS) as pool:
            texts = pool.map(lambda name: self.read_text(folder, name), names)
            return {name: text for name, text in zip(names, texts, strict=True) if text is not None}

    def listing(self, folder: str) -> list[FileInfo]:
        """The files of a folder, by name, without those being written."""
        where = self.files.where(_folder(folder))
        infos = self._perform("list", where, lambda: self.files.list(folder))
        return sorted(info for info in infos if info.name[0] != ".")

    def folders(self, below: str = "") -> set[str]:
        """The names of the folders in the store, or in one of its folders."""
        where = self.files.where(below)
        return self._perform("list", where, lambda: self.files.folders(below))

    def put_file(self, folder: str, name: str, source: Path) -> None:
        """Copies a local file into the store."""
        path = _path(folder, name)
        self._write("write", self.files.where(path), lambda: self.files.upload(source, path))

    def fetch_file(self, folder: str, name: str, target: Path) -> bool:
        """Copies a file of the store to `target`. Returns False if it does not exist."""
        path = _path(folder, name)
        where = self.files.where(path)
        try:
            self._perform("read", where, lambda: self.files.download(path, target))
        except FileNotFoundError:
            return False
        return True

    def delete(self, folder: str, name: str) -> None:
        """Deletes a file, if it exists."""
        path = _path(folder, name)
        self._perform("delete", self.files.where(path), lambda: self.files.delete(path))


def _path(folder: str, file_name: str) -> str:
    """Raises StoreError for a name that would be a path or a hidden file."""
    if not file_name or file_name[0] == "." or set(file_name) & set("/\\\0"):
        raise StoreError(
            f"{file_name!r} can't be the name of a file in {folder}: it starts with a dot or has "
            "a slash or a backslash. Choose a plain name."
        )
    return f"{_folder(folder)}/{file_name}"


def _folder(folder: str) -> str:
    """Raises StoreError for a folder outside the store, which a foreign record may name."""
    for part in folder.split("/"):
        if part in ("", ".", "..") or set(part) & set("\\\0"):
            raise StoreError(f"{folder!r} can't be a folder of a store: it has the part {part!r}.")
    return folder
