"""The file operations that a store needs, on a folder or a bucket, by pyarrow.fs.

    Files                the operations
    ├── Folder           a local folder or a network mount
    └── bucket.Bucket    a prefix of an S3 bucket

Both raise OSErrors; `store.Store` turns them into StoreErrors and decides what to retry.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import pyarrow.fs as arrow_fs

from lp_sweep.storage.places import arriving, expanded

CHUNK = 8 * 2**20
SET_ASIDE = "set-aside"  # the folder for files that are not records; nothing reads it


class FileInfo(NamedTuple):
    """One file of a folder of the store."""

    name: str
    size: int  # bytes
    modified: float  # seconds since 1970, by the clock of the file's server


class PermanentError(OSError):
    """Retrying does not help: a wrong name, a missing bucket, no permission."""


class UnreachableError(OSError):
    """The location is unreachable: unmounted, renamed, no connection. It may come back."""


class Files(ABC):
    """Files in folders below one location. A path is `folder/name`, with slashes.

    Writes are atomic, even if this process is killed. A missing file raises FileNotFoundError; any
    other OSError may be temporary, except PermanentError.
    """

    is_folder: bool  # a mount can be missing, and come back
    location: str  # an absolute folder, or `s3://bucket/prefix` with its options
    _root: str  # the same without options
    _fs: arrow_fs.FileSystem  # its paths are relative to the location

    def where(self, path: str) -> str:
        """The file's location, for messages."""
        return f"{self._root}/{path}"

    @abstractmethod
    def exists(self) -> bool:
        """Whether the location exists, whatever it contains."""

    @abstractmethod
    def create(self, folders: Iterable[str]) -> None:
        """Creates the location. Never creates a bucket."""

    @abstractmethod
    def publish(self, path: str, source: IO[bytes], size: int) -> None:
        """Writes what `source` has; `size` in bytes."""

    @abstractmethod
    def _explain(self, error: OSError, folder: str) -> OSError:
        """A better error for one that was raised in this folder, or the same."""

    @contextlib.contextmanager
    def _explained(self, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            better = self._explain(error, path.rpartition("/")[0])
            if better is error:
                raise
            raise better from error

    def folders(self, below: str = "") -> set[str]:
        """The names of the folders directly in the location, or in one of its folders."""
        entries = self._entries(below)
        return {name for name, info in entries if info.type == arrow_fs.FileType.Directory}

    def list(self, folder: str) -> list[FileInfo]:
        """The files directly in a folder; [] if there is no such folder."""
        return [
            FileInfo(name, info.size, (info.mtime_ns or 0) / 1e9)
            for name, info in self._entries(folder)
            if info.type == arrow_fs.FileType.File
        ]

    def _entries(self, folder: str) -> Sequence[tuple[str, Any]]:
        try:
            with self._explained(f"{folder}/"):
                infos = self._fs.get_file_info(arrow_fs.FileSelector(folder))
        except FileNotFoundError:
            return []
        found = []
        for info in infos:
            with contextlib.suppress(UnicodeDecodeError):  # a name that is no text is not ours
                found.append((info.base_name, info))
        return found

    def open(self, path: str) -> Any:
        """Opens a seekable binary file, to read parts of it."""
        with self._explained(path):
            return self._fs.open_input_file(path)

    def read(self, path: str) -> bytes:
        with self._explained(path), self._fs.open_input_file(path) as stream:
            return bytes(stream.read())

    def write(self, path: str, content: bytes) -> None:
        self.publish(path, io.BytesIO(content), len(content))

    def upload(self, source: Path, path: str) -> None:
        with source.open("rb") as stream:
            self.publish(path, stream, source.stat().st_size)

    def download(self, path: str, target: Path) -> None:
        """Copies a file to `target`, atomically."""
        with self._explained(path), arriving(target) as temporary, self.open(path) as reading:
            with temporary.open("wb") as writing:
                shutil.copyfileobj(reading, writing, CHUNK)
            if temporary.stat().st_size != reading.size():
                raise UnreachableError(f"{self.where(path)} was cut off on its way")

    def delete(self, path: str) -> None:
        """Does nothing if there is no such file."""
        with contextlib.suppress(FileNotFoundError), self._explained(path):
            self._fs.delete_file(path)

    def move(self, path: str, target: str) -> None:
        with self._explained(path):
            self._fs.move(path, target)


class Folder(Files):
    """Writes atomically: a file is written under another name, synced, then renamed.

    A folder that has disappeared raises UnreachableError and is never created again: otherwise a
    second store would grow in the mount point while the mount is away.
    """

    is_folder = True

    def __init__(self, location: str | Path, *, durable: bool = True) -> None:
        """durable: files survive a power failure, at a cost of some milliseconds each."""
        self._durable = durable
        self.root = expanded(location).absolute()
        self.location = self._root = str(self.root)
        # in bytes, since the location need not be UTF-8
        self._fs = arrow_fs.SubTreeFileSystem(os.fsencode(self.root), arrow_fs.LocalFileSystem())
        self._seen: set[str] = set()

    def exists(self) -> bool:
        return _is_folder(self.root)

    def create(self, folders: Iterable[str]) -> None:
        for folder in folders:
            try:
                (self.root / folder).mkdir(parents=True, exist_ok=True)
            except OSError as error:
                if os.path.lexists(self.root):
                    raise self._explain(error, folder) from error
                raise
            self._seen.add(folder)

    def _entries(self, folder: str) -> Sequence[tuple[str, Any]]:
        found = super()._entries(folder)
        if found:
            self._seen.add(folder)
        return found

    def _explain(self, error: OSError, folder: str) -> OSError:
        place = self.root / folder
        if folder in self._seen and not place.is_dir():
            return UnreachableError(f"the folder {place} was there and is gone")
        if not _is_folder(self.root):
            return UnreachableError(f"the folder {self.root} is gone")
        _is_folder(place)
        return error

    def publish(self, path: str, source: IO[bytes], size: int) -> None:
        del size
        final = self.root / path
        with self._explained(path):
            self._make_folder(path.rpartition("/")[0])
            with arriving(final) as temporary, temporary.open("wb") as stream:
                shutil.copyfileobj(source, stream, CHUNK)
                if self._durable:
                    stream.flush()
                    os.fsync(stream.fileno())  # before the rename: presence means done
            if self._durable:
                _sync_folder(final.parent)

    def _make_folder(self, folder: str) -> None:
        """Never makes the location, nor a folder that was there: both may be mount points."""
        if folder and folder not in self._seen:
            above, _, _ = folder.rpartition("/")
            self._make_folder(above)
            with self._explained(f"{folder}/"):
                (self.root / folder).mkdir(exist_ok=True)
            self._seen.add(folder)

    def delete(self, path: str) -> None:
        super().delete(path)
        if path.count("/") > 1:  # an empty weights/<trial>/ looks like a network
            with contextlib.suppress(OSError):
                (self.root / path).parent.rmdir()
                self._seen.discard(path.rpartition("/")[0])

    def move(self, path: str, target: str) -> None:
        self._make_folder(target.rpartition("/")[0])
        super().move(path, target)


def _is_folder(place: Path) -> bool:
    """Raises PermanentError if there is something else in the place of a folder."""
    if os.path.lexists(place) and not place.is_dir():
        raise PermanentError(
            f"{place} is not a folder. Mount the disk that it points to, or move it away: "
            "`lp-sweep run` then makes the folder, and does again what was in it"
        )
    return place.is_dir()


def _sync_folder(folder: Path) -> None:
    """Makes the rename survive a power failure, if the file system supports that."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
