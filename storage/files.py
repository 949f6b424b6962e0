"""Where a store's files lie: the little that a store needs of a folder or of a bucket.

    Files                a place that holds small files in folders
    ├── folder.Folder    a folder of this machine or of a network mount
    └── bucket.Bucket    a prefix of an S3 bucket

Errors are OSErrors, as the system or the server gave them; `store.Store` makes StoreErrors of them
and decides what is tried again.
"""

from __future__ import annotations

import contextlib
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol, TypeVar

from lp_sweep.storage.errors import StoreError
from lp_sweep.storage.places import expanded, is_file
from lp_sweep.storage.printable import shown

_FIRST_DELAY, _LONGEST_DELAY = 0.2, 10.0  # seconds between tries
_OTHER_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


NOT_A_FILE = -1  # as a size
SET_ASIDE = "set-aside"  # the folder of what is no record, which nothing reads


class FileInfo(NamedTuple):
    """One file of a folder of the store."""

    name: str
    size: int  # bytes, or NOT_A_FILE
    modified: float  # seconds since 1970, by the clock of whoever holds the file
    kind: str = "a file"  # else such as `a directory`


class PermanentError(OSError):
    """Waiting does not help: a wrong name, no such bucket, no right to it."""


class NotAFileError(PermanentError):
    """A directory, a socket, a named pipe or a link to nothing has the name of a file."""


class UnreachableError(OSError):
    """The place itself is away: unmounted, renamed, no connection. It may come back."""


# asking again changes none of these
_LASTING = (
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
    PermanentError,
)

T = TypeVar("T")


@contextlib.contextmanager
def arriving(target: Path) -> Iterator[Path]:
    """A name beside `target` to write to; at the end the file becomes `target`, whole or not at
    all. It starts with a dot and ends otherwise: no listing takes it for a record."""
    temporary = target.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        yield temporary
        temporary.replace(target)
    finally:
        with contextlib.suppress(OSError):  # mostly it is gone: it was renamed
            temporary.unlink()


class Files(Protocol):
    """Folders of files below one place. A path is `folder/name`, with slashes.

    A write is there whole or not at all, whatever happens meanwhile to this process. What is not
    there raises FileNotFoundError; another OSError may pass by itself, save PermanentError.
    """

    @property
    def location(self) -> str:
        """As a user writes it: an absolute folder, or `s3://bucket/prefix`."""

    @property
    def is_folder(self) -> bool:
        """Then a crash of the machine can leave half a file, and a mount can be away."""

    def exists(self) -> bool:
        """Whether the place is there; no statement of what it holds."""

    def create(self, folders: Iterable[str]) -> None:
        """Make the place. Never makes a bucket."""

    def folders(self, below: str = "") -> set[str]:
        """Names of the folders right below the place, or below a folder of it."""

    def list(self, folder: str) -> list[FileInfo]:
        """The files right below a folder, [] where there is no such folder. What has a file's
        name and is none, such as a directory `t1-a.parquet`, is listed with the size NOT_A_FILE."""

    def size(self, path: str) -> int | None:
        """Bytes, NOT_A_FILE, or None where nothing has that name."""

    def read(self, path: str) -> bytes: ...

    def open(self, path: str) -> IO[bytes] | Any:
        """A seekable binary file, for reading parts of it. Raises NotAFileError at once, where
        another program would wait for the other end of a pipe."""

    def write(self, path: str, content: bytes) -> None:
        """A directory that has this name is moved to SET_ASIDE first, with all that it holds."""

    def upload(self, source: Path, path: str) -> None: ...

    def download(self, path: str, target: Path) -> None:
        """The target is also whole or not there."""

    def delete(self, path: str) -> None:
        """Deletes nothing, and raises nothing, where there is no such file."""

    def move(self, path: str, target: str) -> None: ...

    def free_bytes(self) -> int | None:
        """Room left, None where nobody can say."""

    def where(self, path: str) -> str:
        """The file as a user would look for it."""


def is_url(location: str | Path) -> bool:
    """Whether this names an object store, not a folder."""
    return isinstance(location, str) and location.startswith("s3://")


def open_files(location: str | Path) -> Files:
    """Nothing is asked of the place yet. Raises StoreError for a location that can't be one."""
    if is_url(location):
        from lp_sweep.storage.bucket import Bucket  # loading Arrow's S3 client takes a while

        return Bucket(str(location))
    if _OTHER_URL.match(str(location)):  # a folder named `gs:` is nobody's wish
        raise StoreError(
            f"can't use {shown(str(location))} as a store. Name a folder or s3://BUCKET/PREFIX."
        )
    from lp_sweep.storage.folder import Folder

    if is_file(expanded(location)):
        raise StoreError(
            f"can't use {shown(str(location))} as a store: it is a file. Name a folder or "
            "s3://BUCKET/PREFIX with --store or LP_SWEEP_STORE."
        )
    return Folder(location)


class Deadline:
    """One operation's patience: its tries, and those of its parts, end at the same moment."""

    def __init__(self, patience: float) -> None:
        """patience: seconds from the first failure; 0 means one try."""
        self._patience = patience
        self._end: float | None = None

    def persist(self, action: Callable[[], T]) -> T:
        """Tries until the patience ends, and then raises the last OSError; at once one that lasts,
        such as a file that is not there."""
        delay = _FIRST_DELAY
        while True:
            try:
                return action()
            except _LASTING:
                raise
            except OSError:
                self._end = self._end or time.monotonic() + self._patience
                left = self._end - time.monotonic()
                if left <= 0:
                    raise
            time.sleep(min(delay, left))
            delay = min(2 * delay, _LONGEST_DELAY)
