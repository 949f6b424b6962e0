"""The file operations that a store needs, on a folder or a bucket.

    Files                the operations
    ├── folder.Folder    a local folder or a network mount
    └── bucket.Bucket    a prefix of an S3 bucket

Both raise OSErrors; `store.Store` turns them into StoreErrors and decides what to retry.
"""

from __future__ import annotations

import contextlib
import errno
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol, TypeVar

_FIRST_DELAY, _LONGEST_DELAY = 0.2, 10.0  # seconds between tries


NOT_A_FILE = -1  # as a size
SET_ASIDE = "set-aside"  # the folder for files that are not records; nothing reads it


class FileInfo(NamedTuple):
    """One file of a folder of the store."""

    name: str
    size: int  # bytes, or NOT_A_FILE
    modified: float  # seconds since 1970, by the clock of the file's server
    kind: str = "a file"  # else such as `a directory`


class PermanentError(OSError):
    """Retrying does not help: a wrong name, a missing bucket, no permission."""


class NotAFileError(PermanentError):
    """A directory, socket, named pipe or dangling link is in the place of a file."""


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

    @property
    def location(self) -> str:
        """An absolute folder, or `s3://bucket/prefix`."""

    @property
    def is_folder(self) -> bool:
        """In a folder a crash can leave half a file, and the mount can be missing."""

    def exists(self) -> bool:
        """Whether the location exists, whatever it contains."""

    def create(self, folders: Iterable[str]) -> None:
        """Creates the location. Never creates a bucket."""

    def folders(self, below: str = "") -> set[str]:
        """The names of the folders directly in the location, or in one of its folders."""

    def list(self, folder: str) -> list[FileInfo]:
        """The files directly in a folder; [] if there is no such folder. Anything else with a
        file's name, such as a directory `t1-a.parquet`, is listed with the size NOT_A_FILE."""

    def size(self, path: str) -> int | None:
        """Bytes, NOT_A_FILE, or None if nothing has that name."""

    def read(self, path: str) -> bytes: ...

    def open(self, path: str) -> IO[bytes] | Any:
        """Opens a seekable binary file, to read parts of it. Raises NotAFileError, instead of
        blocking on a named pipe."""

    def write(self, path: str, content: bytes) -> None:
        """A directory of this name is first moved to SET_ASIDE, with its content."""

    def upload(self, source: Path, path: str) -> None: ...

    def download(self, path: str, target: Path) -> None:
        """Copies a file to `target`, atomically."""

    def delete(self, path: str) -> None:
        """Does nothing if there is no such file."""

    def move(self, path: str, target: str) -> None: ...

    def free_bytes(self) -> int | None:
        """The free space; None if unknown."""

    def where(self, path: str) -> str:
        """The file's location, for messages."""


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
