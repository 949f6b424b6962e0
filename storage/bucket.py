"""A store's files in a bucket of S3 or of a compatible object store.

Credentials come from the usual places: the environment, ~/.aws, the machine's role. They are never
part of a location, a record or a message. A bucket is never created.

    s3://BUCKET/PREFIX[?endpoint_override=HOST:PORT&scheme=http&region=REGION]
"""

from __future__ import annotations

import contextlib
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl, urlencode

import pyarrow.fs as arrow_fs

from lp_sweep.storage.errors import StoreError
from lp_sweep.storage.files import (
    FileInfo,
    Files,
    PermanentError,
    UnreachableError,
)

_CONNECT_SECONDS, _SILENCE_SECONDS, _TRIES = 5, 30, 2  # the store has its own retries
_ONE_PUT = 5 * 2**20  # bytes; up to this size Arrow sends one atomic request
_CHUNK = 8 * 2**20
_ERROR = re.compile(r"AWS Error ([A-Z_]+)(?: \(HTTP status (\d+)\))?")
_REFUSED = {
    *("ACCESS_DENIED", "INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH", "UNRECOGNIZED_CLIENT"),
    *("MISSING_AUTHENTICATION_TOKEN", "INVALID_CLIENT_TOKEN_ID", "403"),
}

_OPTIONS = ("endpoint_override", "region", "scheme")
_FORM = "s3://BUCKET/PREFIX, optionally with ?endpoint_override=HOST:PORT&scheme=http&region=REGION"

T = TypeVar("T")


class Bucket(Files):
    """Writes atomically: by one PUT; above 5 MiB under another name that the server then copies."""

    is_folder = False

    def __init__(self, location: str) -> None:
        self._url = parse_url(location)
        self._endpoint = find_endpoint(self._url.options)
        self._root = f"{self._url.bucket}/{self._url.prefix}".rstrip("/")

    @property
    def location(self) -> str:
        return self._url.location

    def where(self, path: str) -> str:
        return f"s3://{self._root}/{path}"

    @cached_property
    def _fs(self) -> arrow_fs.S3FileSystem:
        options = self._url.options
        region = (
            options.get("region")
            or os.environ.get("AWS_REGION")
            or os.environ.get("AWS_DEFAULT_REGION")
        )
        if region is None:
            own = self._endpoint.host is not None
            region = "us-east-1" if own else arrow_fs.resolve_s3_region(self._url.bucket)
        return arrow_fs.S3FileSystem(
            region=region,
            scheme=self._endpoint.scheme,
            endpoint_override=self._endpoint.host,
            connect_timeout=_CONNECT_SECONDS,
            request_timeout=_SILENCE_SECONDS,
            retry_strategy=arrow_fs.AwsStandardS3RetryStrategy(max_attempts=_TRIES),
            background_writes=False,
            allow_delayed_open=True,  # so that a small file is one request
        )

    # -- the place

    def exists(self) -> bool:
        with self._explained():
            found: bool = self._type(self._root) != arrow_fs.FileType.NotFound
            if not found:
                self._check_bucket()
            return found

    def create(self, folders: Iterable[str]) -> None:
        """Marks the prefix as a store, unless it is one."""
        wanted = list(folders)
        if not self.folders() & set(wanted):
            with self._explained():
                self._check_bucket()
                self._fs.create_dir(f"{self._root}/{wanted[0]}", recursive=True)

    def folders(self, below: str = "") -> set[str]:
        return {
            info.base_name
            for info in self._children(f"{self._root}/{below}".rstrip("/"))
            if info.type == arrow_fs.FileType.Directory
        }

    def _children(self, path: str) -> list[Any]:
        with self._explained():
            try:
                found: list[Any] = self._fs.get_file_info(arrow_fs.FileSelector(path))
            except FileNotFoundError:  # raised also for a missing bucket
                self._check_bucket()
                return []
            return found

    def _type(self, path: str) -> Any:
        return self._fs.get_file_info(path).type

    def _check_bucket(self) -> None:
        if self._type(self._url.bucket) == arrow_fs.FileType.NotFound:
            raise PermanentError(self._no_bucket())

    def _no_bucket(self) -> str:
        return (
            f"there is no bucket {self._url.bucket!r} at {self._endpoint}. Create it, or name "
            "another: lp-sweep never creates a bucket."
        )

    # -- files

    def list(self, folder: str) -> list[FileInfo]:
        return [
            FileInfo(info.base_name, info.size, (info.mtime_ns or 0) / 1e9)
            for info in self._children(f"{self._root}/{folder}")
            if info.type == arrow_fs.FileType.File
        ]

    def size(self, path: str) -> int | None:
        with self._explained():
            info = self._fs.get_file_info(f"{self._root}/{path}")
            if info.type == arrow_fs.FileType.File:
                return int(info.size)
            self._check_bucket()
            return None

    def open(self, path: str) -> Any:
        with self._explained():
            try:
                return self._fs.open_input_file(f"{self._root}/{path}")
            except FileNotFoundError:
                self._check_bucket()
                raise

    def read(self, path: str) -> bytes:
        with self._explained():
            return super().read(path)

    def publish(self, path: str, source: IO[bytes], size: int) -> None:
        with self._explained():
            if size <= _ONE_PUT:
                content = source.read()
                _uninterrupted(lambda: self._put(f"{self._root}/{path}", content))
            else:
                self._put_large(path, iter(lambda: source.read(_CHUNK), b""))

    def _put(self, key: str, content: bytes) -> None:
        with self._fs.open_output_stream(key) as stream:
            stream.write(content)

    def _put_large(self, path: str, chunks: Iterable[bytes]) -> None:
        """Arrow's stream publishes what it has when it is closed, even after an error. So write
        under another name, and let the server copy the complete file."""
        folder, _, _ = path.rpartition("/")
        temporary = f"{self._root}/{folder}/.{uuid.uuid4().hex}.tmp"
        sent = 0
        try:
            with self._fs.open_output_stream(temporary) as stream:
                for chunk in chunks:
                    stream.write(chunk)
                    sent += len(chunk)
            arrived = self._fs.get_file_info(temporary).size
            if arrived != sent:
                raise OSError(f"of {sent} bytes {arrived} arrived")
            self._fs.copy_file(temporary, f"{self._root}/{path}")
        finally:
            with contextlib.suppress(OSError):
                self._fs.delete_file(temporary)

    def download(self, path: str, target: Path) -> None:
        with self._explained():
            super().download(path, target)

    def delete(self, path: str) -> None:
        with self._explained(), contextlib.suppress(FileNotFoundError):
            self._fs.delete_file(f"{self._root}/{path}")

    def move(self, path: str, target: str) -> None:
        with self._explained():
            self._fs.copy_file(f"{self._root}/{path}", f"{self._root}/{target}")
            self._fs.delete_file(f"{self._root}/{path}")

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Turns Arrow's OSErrors, which quote AWS, into ours, which give a next step."""
        try:
            yield
        except (FileNotFoundError, PermanentError, UnreachableError):
            raise
        except OSError as error:
            raise self._explain(error) from error

    def _explain(self, error: OSError) -> OSError:
        text = re.sub(r"\s*\(Request ID:.*", "", str(error).splitlines()[0] if str(error) else "")
        words = _ERROR.findall(text)  # use the last: a file name may look like an error
        codes = set(words[-1]) if words else set()
        if codes & {"NO_SUCH_KEY", "RESOURCE_NOT_FOUND", "404"}:
            return FileNotFoundError(text)
        if "NO_SUCH_BUCKET" in codes or text.startswith("Bucket '"):
            return PermanentError(f"{self._no_bucket()} ({text})")
        if codes & _REFUSED:
            return PermanentError(
                f"{self._endpoint} denies access to s3://{self._root}. Check the credentials "
                "(AWS_ACCESS_KEY_ID with AWS_SECRET_ACCESS_KEY, ~/.aws, the machine's role) and "
                f"that they may list, read, write and delete there. ({text})"
            )
        if codes & {"301", "PERMANENT_REDIRECT"}:
            return PermanentError(
                f"the bucket {self._url.bucket!r} is in another region. Name it: "
                f"s3://{self._root}?region=REGION, or AWS_REGION. ({text})"
            )
        return UnreachableError(
            f"{self._endpoint} gives no valid answer. Check the network and the endpoint "
            f"(?endpoint_override=HOST:PORT&scheme=http, or AWS_ENDPOINT_URL_S3). ({text})"
        )


def _uninterrupted(action: Callable[[], T]) -> T:
    """Protects a stream from Ctrl-C: closing it early would publish an incomplete file."""
    with ThreadPoolExecutor(1) as pool:  # signals only reach the main thread
        return pool.submit(action).result()


# -- the location, as a user writes it


class Url(NamedTuple):
    """The parts of a location, and the normalised location."""

    bucket: str
    prefix: str  # without outer slashes; may be empty
    options: dict[str, str]
    location: str


def parse_url(text: str) -> Url:
    """Raises StoreError, whose message never repeats a possible secret."""
    rest, _, query = text.removeprefix("s3://").partition("?")
    bucket, _, prefix = rest.partition("/")
    parts = [part for part in prefix.split("/") if part]
    options = dict(parse_qsl(query, keep_blank_values=True))
    if "@" in bucket + options.get("endpoint_override", ""):
        raise StoreError(
            "credentials do not belong in a store's location (it is written into records, logs and "
            "commands): leave out the part before the @. Set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or use ~/.aws/credentials."
        )
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{2,}", bucket) or {".", ".."} & set(parts):
        raise StoreError(f"{text.partition('?')[0]!r} names no bucket and prefix. Write {_FORM}.")
    place = "/".join([f"s3://{bucket}", *parts])
    if not query:
        return Url(bucket, "/".join(parts), {}, place)
    if not options or options.keys() - set(_OPTIONS):  # shows no name and value: may be secrets
        raise StoreError(
            f"the location {place} has unknown options. Write {_FORM}; credentials come from the "
            "environment or ~/.aws."
        )
    return Url(bucket, "/".join(parts), options, f"{place}?{urlencode(options, safe=':/')}")


class Endpoint(NamedTuple):
    """The server's host and port; None for Amazon S3."""

    host: str | None
    scheme: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host}" if self.host else "Amazon S3"


def find_endpoint(options: dict[str, str]) -> Endpoint:
    """The endpoint of the location, else of AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL."""
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
    told = [options.get("endpoint_override"), *(os.environ.get(name) for name in names)]
    scheme, _, host = next(filter(None, told), "").rpartition("://")
    host = host.rpartition("@")[2].rstrip("/")
    return Endpoint(host or None, options.get("scheme") or scheme or "https")
