"""The file operations that a store needs, on a folder or a bucket.

    Files                the operations
    ├── Folder           a local folder or a network mount
    └── bucket.Bucket    a prefix of an S3 bucket

Both raise OSErrors; `store.Store` turns them into StoreErrors and decides what to retry.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol, TypeVar

from lp_sweep.storage.places import expanded

_FIRST_DELAY, _LONGEST_DELAY = 0.2, 10.0  # seconds between tries
_CHUNK = 8 * 2**20
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


_NOT_RETRIED = (
    *(FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError),
    PermanentError,
)
_LASTING = {errno.ELOOP, errno.ENAMETOOLONG}

T = TypeVar("T")


@contextlib.contextmanager
def arriving(target: Path) -> Iterator[Path]:
    """Yields a temporary path next to `target`, which is renamed to `target` at the end. Its name
    starts with a dot and ends in .tmp, so no listing takes it for a record."""
    temporary = target.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        yield temporary
        temporary.replace(target)
    finally:
        with contextlib.suppress(OSError):  # usually it was renamed
            temporary.unlink()


class Files(Protocol):
    """Files in folders below one location. A path is `folder/name`, with slashes.

    Writes are atomic, even if this process is killed. A missing file raises FileNotFoundError; any
    other OSError may be temporary, except PermanentError.
    """

    is_folder: bool  # a mount can be missing, and come back

    @property
    def location(self) -> str:
        """An absolute folder, or `s3://bucket/prefix`."""

    def where(self, path: str) -> str:
        """The file's location, for messages."""

    def exists(self) -> bool:
        """Whether the location exists, whatever it contains."""

    def create(self, folders: Iterable[str]) -> None:
        """Creates the location. Never creates a bucket."""

    def folders(self, below: str = "") -> set[str]:
        """The names of the folders directly in the location, or in one of its folders."""

    def list(self, folder: str) -> list[FileInfo]:
        """The files directly in a folder; [] if there is no such folder."""

    def size(self, path: str) -> int | None:
        """Bytes; None if there is no such file."""

    def open(self, path: str) -> IO[bytes] | Any:
        """Opens a seekable binary file, to read parts of it."""

    def read(self, path: str) -> bytes:
        with self.open(path) as stream:
            return bytes(stream.read())

    def write(self, path: str, content: bytes) -> None:
        self.publish(path, io.BytesIO(content), len(content))

    def upload(self, source: Path, path: str) -> None:
        with source.open("rb") as stream:
            self.publish(path, stream, source.stat().st_size)

    def publish(self, path: str, source: IO[bytes], size: int) -> None:
        """Writes what `source` has; `size` in bytes."""

    def download(self, path: str, target: Path) -> None:
        """Copies a file to `target`, atomically."""
        with arriving(target) as temporary:
            with self.open(path) as reading, temporary.open("wb") as writing:
                shutil.copyfileobj(reading, writing, _CHUNK)
            if temporary.stat().st_size != self.size(path):
                raise UnreachableError(f"{self.where(path)} was cut off on its way")

    def delete(self, path: str) -> None:
        """Does nothing if there is no such file."""

    def move(self, path: str, target: str) -> None: ...


def is_bucket(location: str | Path) -> bool:
    """Whether the location is a bucket, not a folder."""
    return isinstance(location, str) and location.startswith("s3://")


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
        self._seen: set[str] = set()

    @property
    def location(self) -> str:
        return str(self.root)

    def where(self, path: str) -> str:
        return str(self.root / path)

    def exists(self) -> bool:
        _check_folder(self.root)
        return self.root.is_dir()

    def create(self, folders: Iterable[str]) -> None:
        for folder in folders:
            self._mkdir(folder)
            self._seen.add(folder)

    def folders(self, below: str = "") -> set[str]:
        return {entry.name for entry in self._entries(below) if entry.is_dir()}

    def list(self, folder: str) -> list[FileInfo]:
        found = []
        for entry in self._entries(folder):
            with contextlib.suppress(FileNotFoundError):  # deleted during the listing
                if entry.is_file():
                    status = entry.stat()
                    found.append(FileInfo(entry.name, status.st_size, status.st_mtime))
        return found

    def _entries(self, folder: str) -> Sequence[os.DirEntry[str]]:
        try:
            with os.scandir(self.root / folder) as entries:
                found = [*entries]
        except OSError as error:
            self._check_absent(folder, error)
            return []
        self._seen.add(folder)
        return found

    def _check_absent(self, folder: str, error: OSError | None = None) -> None:
        """Returns only if the folder is not there because nothing was written to it yet. `error`:
        what the system said; raised unless it is explained by this."""
        place = self.root / folder
        if folder in self._seen and not place.is_dir():
            raise UnreachableError(f"the folder {place} was there and is gone")
        _check_folder(self.root)
        _check_folder(place)
        is_missing = error is None or isinstance(error, FileNotFoundError)
        if is_missing and not folder:
            return
        if not self.root.is_dir():
            raise UnreachableError(f"the folder {self.root} is gone")
        if error is not None and not is_missing:
            raise error

    def size(self, path: str) -> int | None:
        try:
            return (self.root / path).stat().st_size
        except OSError as error:
            self._check_absent(path.rpartition("/")[0], error)
            return None

    def open(self, path: str) -> IO[bytes]:
        try:
            return (self.root / path).open("rb")
        except (FileNotFoundError, NotADirectoryError):
            self._check_absent(path.rpartition("/")[0])
            raise

    def publish(self, path: str, source: IO[bytes], size: int) -> None:
        del size
        final = self.root / path
        self._make_folder(path.rpartition("/")[0])
        try:
            with arriving(final) as temporary, temporary.open("wb") as stream:
                shutil.copyfileobj(source, stream, _CHUNK)
                if self._durable:
                    stream.flush()
                    os.fsync(stream.fileno())  # before the rename: presence means done
            if self._durable:
                _sync_folder(final.parent)
        except FileNotFoundError as error:  # the folder disappeared between two steps
            raise UnreachableError(f"the folder {final.parent} is gone") from error

    def _make_folder(self, folder: str) -> None:
        if not (self.root / folder).is_dir():
            self._check_absent(folder)
            self._mkdir(folder)
        self._seen.add(folder)

    def _mkdir(self, folder: str) -> None:
        try:
            (self.root / folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if os.path.lexists(self.root):
                self._check_absent(folder, error)
            raise

    def delete(self, path: str) -> None:
        (self.root / path).unlink(missing_ok=True)
        if path.count("/") > 1:  # an empty weights/<trial>/ looks like a network
            with contextlib.suppress(OSError):
                (self.root / path).parent.rmdir()
                self._seen.discard(path.rpartition("/")[0])

    def move(self, path: str, target: str) -> None:
        self._make_folder(target.rpartition("/")[0])
        (self.root / path).replace(self.root / target)


def _check_folder(place: Path) -> None:
    """Raises PermanentError if there is something else in the place of a folder."""
    if os.path.lexists(place) and not place.is_dir():
        raise PermanentError(
            f"{place} is not a folder. Mount the disk that it points to, or move it away: "
            "`lp-sweep run` then makes the folder, and does again what was in it"
        )


def _sync_folder(folder: Path) -> None:
    """Makes the rename survive a power failure, if the file system supports that."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
