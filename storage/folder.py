"""A store's files in a folder, local or on a network mount; `open_files` also opens a bucket."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import uuid
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any

from lp_sweep.storage.errors import StoreError, SweepWarning
from lp_sweep.storage.files import (
    NOT_A_FILE,
    SET_ASIDE,
    FileInfo,
    Files,
    NotAFileError,
    PermanentError,
    UnreachableError,
    arriving,
    is_bucket,
)
from lp_sweep.storage.places import expanded, is_file
from lp_sweep.storage.printable import shown

_CHUNK = 8 * 2**20
_OTHER_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
_KINDS = {
    stat.S_IFREG: "a file",
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFLNK: "a link to nothing",
    stat.S_IFSOCK: "a socket",
}


def open_files(location: str | Path) -> Files:
    """A Folder, or a Bucket for `s3://`. Touches nothing at the location yet. Raises StoreError for
    an impossible location."""
    if is_bucket(location):
        from lp_sweep.storage.bucket import Bucket  # loading Arrow's S3 client takes a while

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


class Folder:
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
        if self.root.is_dir():
            return True
        self._check_there("")  # names a link to nothing
        return False

    def create(self, folders: Iterable[str]) -> None:
        for folder in folders:
            self._mkdir(folder)

    def folders(self, below: str = "") -> set[str]:
        try:
            with os.scandir(self.root / below) as entries:
                return {entry.name for entry in entries if Path(entry).is_dir()}
        except OSError as error:
            self._check_there(below, error)
            return set()

    def list(self, folder: str) -> list[FileInfo]:
        found = []
        try:
            with os.scandir(self.root / folder) as entries:
                self._seen.add(folder)
                for entry in entries:
                    with contextlib.suppress(FileNotFoundError):  # deleted during the listing
                        info = _info(entry)
                        if info.size != NOT_A_FILE or "." in info.name:  # else a plain folder
                            found.append(info)
        except OSError as error:
            self._check_there(folder, error)
        return found

    def _check_there(self, folder: str, error: OSError | None = None) -> None:
        """Returns only if the folder is not there because nothing was written to it yet. A folder
        that was there may come back; what is in the place of a folder stays. `error`: what the
        system said; raised unless it is explained by this."""
        place = self.root / folder
        if folder and not os.path.lexists(self.root):
            raise UnreachableError(f"the folder {self.root} is gone")
        if folder in self._seen and not place.is_dir():
            raise UnreachableError(f"the folder {place} was there and is gone")
        for part in (*reversed(place.relative_to(self.root).parents), Path(folder)):
            found = self.root / part
            if os.path.lexists(found) and not found.is_dir():
                kind = _look(found).kind
                move = "Mount the disk that it points to, or move" if "link" in kind else "Move"
                raise PermanentError(
                    f"{found} is {kind}, not a folder. {move} it away: `lp-sweep run` then makes "
                    "the folder, and does again what was in it"
                )
        if error is not None and not isinstance(error, FileNotFoundError):
            raise error

    def size(self, path: str) -> int | None:
        try:
            return _look(self.root / path).size
        except OSError as error:
            self._check_there(path.rpartition("/")[0], error)
            return None

    def read(self, path: str) -> bytes:
        with self.open(path) as stream:
            return stream.read()

    def open(self, path: str) -> IO[bytes]:
        place = self.root / path
        try:
            # does not block on a pipe
            opened = os.open(place, os.O_RDONLY | os.O_NONBLOCK)
        except OSError as error:
            if isinstance(error, FileNotFoundError | NotADirectoryError):
                self._check_there(path.rpartition("/")[0])
            if isinstance(error, FileNotFoundError) and not place.is_symlink():
                raise
            _check_a_file(place)
            raise
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            os.close(opened)
            _check_a_file(place)
        return os.fdopen(opened, "rb")

    def write(self, path: str, content: bytes) -> None:
        self._publish(path, lambda stream: stream.write(content))

    def upload(self, source: Path, path: str) -> None:
        with source.open("rb") as reading:
            self._publish(path, lambda stream: shutil.copyfileobj(reading, stream, _CHUNK))

    def _publish(self, path: str, fill: Callable[[IO[bytes]], Any]) -> None:
        final = self.root / path
        self._make_folder(path.rpartition("/")[0])
        try:
            with arriving(final) as temporary:
                with temporary.open("wb") as stream:
                    fill(stream)
                    if self._durable:
                        stream.flush()
                        os.fsync(stream.fileno())  # before the rename: presence means done
                if final.is_dir() and not final.is_symlink():
                    self._clear(path)
            if self._durable:
                _sync_folder(final.parent)
        except FileNotFoundError as error:  # the folder disappeared between two steps
            raise UnreachableError(f"the folder {final.parent} is gone") from error

    def _clear(self, path: str) -> None:
        """Moves a directory with a record's name away: it must not stop a sweep."""
        target = f"{SET_ASIDE}/{path}"
        if self.size(target) is not None:
            target = f"{target}.{uuid.uuid4().hex[:8]}"
        with contextlib.suppress(FileNotFoundError):  # another writer moved it
            self.move(path, target)
            warnings.warn(
                f"{self.where(path)} was a directory: moved to {target}", SweepWarning, stacklevel=4
            )

    def _make_folder(self, folder: str) -> None:
        if (self.root / folder).is_dir():
            self._seen.add(folder)
            return
        self._check_there(folder)
        self._mkdir(folder)

    def _mkdir(self, folder: str) -> None:
        try:
            (self.root / folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if os.path.lexists(self.root):
                self._check_there(folder, error)
            raise
        self._seen.add(folder)

    def download(self, path: str, target: Path) -> None:
        with (
            self.open(path) as reading,
            arriving(target) as temporary,
            temporary.open("wb") as stream,
        ):
            shutil.copyfileobj(reading, stream, _CHUNK)

    def delete(self, path: str) -> None:
        try:
            (self.root / path).unlink(missing_ok=True)
        except NotADirectoryError:
            return
        if path.count("/") > 1:  # an empty weights/<trial>/ looks like a network
            with contextlib.suppress(OSError):
                (self.root / path).parent.rmdir()
                self._seen.discard(path.rpartition("/")[0])

    def move(self, path: str, target: str) -> None:
        self._make_folder(target.rpartition("/")[0])
        (self.root / path).replace(self.root / target)

    def free_bytes(self) -> int | None:
        return shutil.disk_usage(self.root).free


def _info(entry: os.DirEntry[str]) -> FileInfo:
    try:
        if entry.is_file():
            status = entry.stat()
            return FileInfo(entry.name, status.st_size, status.st_mtime)
    except FileNotFoundError:
        raise
    except OSError:  # links in a circle
        pass
    return _look(Path(entry.path))


def _look(place: Path) -> FileInfo:
    """Describes whatever has this name. Raises FileNotFoundError."""
    try:
        status = place.stat()
    except OSError:
        status = place.lstat()
    if stat.S_ISREG(status.st_mode):
        return FileInfo(place.name, status.st_size, status.st_mtime)
    kind = _KINDS.get(stat.S_IFMT(status.st_mode), "a device")
    return FileInfo(place.name, NOT_A_FILE, status.st_mtime, kind)


def _check_a_file(place: Path) -> None:
    """Raises NotAFileError, and FileNotFoundError."""
    found = _look(place)
    if found.size == NOT_A_FILE:
        raise NotAFileError(f"{found.kind}, not a file")


def _sync_folder(folder: Path) -> None:
    """Makes the rename survive a power failure, if the file system supports that."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
