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
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import IO, NamedTuple
from urllib.parse import parse_qsl, urlencode

import pyarrow.fs as arrow_fs

from lp_sweep.storage.errors import StoreError
from lp_sweep.storage.files import CHUNK, Files, PermanentError, UnreachableError

_CONNECT_SECONDS, _SILENCE_SECONDS, _TRIES = 5, 30, 2  # the store has its own retries
_ONE_PUT = 5 * 2**20  # bytes; up to this size Arrow sends one atomic request
_ERROR = re.compile(r"AWS Error ([A-Z_]+)(?: \(HTTP status (\d+)\))?")
_REFUSED = {
    *("ACCESS_DENIED", "INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH", "UNRECOGNIZED_CLIENT"),
    *("MISSING_AUTHENTICATION_TOKEN", "INVALID_CLIENT_TOKEN_ID", "403"),
}
_OPTIONS = ("endpoint_override", "region", "scheme")
_FORM = "s3://BUCKET/PREFIX, optionally with ?endpoint_override=HOST:PORT&scheme=http&region=REGION"


class Bucket(Files):
    """Writes atomically: by one PUT; above 5 MiB under another name that the server then copies."""

    is_folder = False

    def __init__(self, location: str) -> None:
        self._url = parse_url(location)
        self.location = self._url.location
        self._prefix = f"{self._url.bucket}/{self._url.prefix}".rstrip("/")
        self._root = f"s3://{self._prefix}"

    @cached_property
    def _s3(self) -> arrow_fs.S3FileSystem:
        url = self._url
        region = (
            url.options.get("region")
            or os.environ.get("AWS_REGION")
            or os.environ.get("AWS_DEFAULT_REGION")
            or ("us-east-1" if url.host else arrow_fs.resolve_s3_region(url.bucket))
        )
        return arrow_fs.S3FileSystem(
            region=region,
            scheme=url.scheme,
            endpoint_override=url.host,
            connect_timeout=_CONNECT_SECONDS,
            request_timeout=_SILENCE_SECONDS,
            retry_strategy=arrow_fs.AwsStandardS3RetryStrategy(max_attempts=_TRIES),
            background_writes=False,
            allow_delayed_open=True,  # so that a small file is one request
        )

    @cached_property
    def _fs(self) -> arrow_fs.FileSystem:
        return arrow_fs.SubTreeFileSystem(self._prefix, self._s3)

    def exists(self) -> bool:
        with self._explained(""):
            found = self._s3.get_file_info(self._prefix).type != arrow_fs.FileType.NotFound
            if not found:
                self._check_bucket()
            return bool(found)

    def create(self, folders: Iterable[str]) -> None:
        """Marks the prefix as a store, unless it is one."""
        wanted = list(folders)
        if not self.folders() & set(wanted):
            with self._explained(""):
                self._check_bucket()
                self._fs.create_dir(wanted[0], recursive=True)

    def _check_bucket(self) -> None:
        if self._s3.get_file_info(self._url.bucket).type == arrow_fs.FileType.NotFound:
            raise PermanentError(self._no_bucket())

    def _no_bucket(self) -> str:
        return (
            f"there is no bucket {self._url.bucket!r} at {self._url.server}. Create it, or name "
            "another: lp-sweep never creates a bucket."
        )

    def publish(self, path: str, source: IO[bytes], size: int) -> None:
        with self._explained(path):
            if size > _ONE_PUT:
                self._put_large(path, iter(lambda: source.read(CHUNK), b""))
            else:
                # Ctrl-C would close the stream early, which publishes an incomplete file. Signals
                # only reach the main thread.
                with ThreadPoolExecutor(1) as pool:
                    pool.submit(self._put, path, source.read()).result()

    def _put(self, path: str, content: bytes) -> None:
        with self._fs.open_output_stream(path) as stream:
            stream.write(content)

    def _put_large(self, path: str, chunks: Iterable[bytes]) -> None:
        """Arrow's stream publishes what it has when it is closed, even after an error. So write
        under another name, and let the server copy the complete file."""
        temporary = f"{path.rpartition('/')[0]}/.{uuid.uuid4().hex}.tmp"
        sent = 0
        try:
            with self._fs.open_output_stream(temporary) as stream:
                for chunk in chunks:
                    stream.write(chunk)
                    sent += len(chunk)
            arrived = self._fs.get_file_info(temporary).size
            if arrived != sent:
                raise OSError(f"of {sent} bytes {arrived} arrived")
            self._fs.copy_file(temporary, path)
        finally:
            with contextlib.suppress(OSError):
                self._fs.delete_file(temporary)

    def _explain(self, error: OSError, folder: str) -> OSError:
        """Turns Arrow's OSErrors, which quote AWS, into ours, which give a next step."""
        if isinstance(error, FileNotFoundError):  # raised also for a missing bucket
            with self._explained(""):
                self._check_bucket()
            return error
        if isinstance(error, PermanentError | UnreachableError):
            return error
        text = re.sub(r"\s*\(Request ID:.*", "", str(error).splitlines()[0] if str(error) else "")
        words = _ERROR.findall(text)  # use the last: a file name may look like an error
        codes = set(words[-1]) if words else set()
        if codes & {"NO_SUCH_KEY", "RESOURCE_NOT_FOUND", "404"}:
            return FileNotFoundError(text)
        if "NO_SUCH_BUCKET" in codes or text.startswith("Bucket '"):
            return PermanentError(f"{self._no_bucket()} ({text})")
        if codes & _REFUSED:
            return PermanentError(
                f"{self._url.server} denies access to {self._root}. Check the credentials "
                "(AWS_ACCESS_KEY_ID with AWS_SECRET_ACCESS_KEY, ~/.aws, the machine's role) and "
                f"that they may list, read, write and delete there. ({text})"
            )
        if codes & {"301", "PERMANENT_REDIRECT"}:
            return PermanentError(
                f"the bucket {self._url.bucket!r} is in another region. Name it: "
                f"{self._root}?region=REGION, or AWS_REGION. ({text})"
            )
        return UnreachableError(
            f"{self._url.server} gives no valid answer. Check the network and the endpoint "
            f"(?endpoint_override=HOST:PORT&scheme=http, or AWS_ENDPOINT_URL_S3). ({text})"
        )


# -- the location, as a user writes it


class Url(NamedTuple):
    """A location and its parts; `host` of the server is None for Amazon S3."""

    location: str  # normalised
    bucket: str
    prefix: str  # without outer slashes; may be empty
    options: dict[str, str]
    host: str | None
    scheme: str

    @property
    def server(self) -> str:
        return f"{self.scheme}://{self.host}" if self.host else "Amazon S3"


def parse_url(text: str) -> Url:
    """The server is that of the location, else of AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL. Raises
    StoreError, whose message never repeats a possible secret."""
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
    location = "/".join([f"s3://{bucket}", *parts])
    if query and (not options or options.keys() - set(_OPTIONS)):  # not shown: may be secrets
        raise StoreError(
            f"the location {location} has unknown options. Write {_FORM}; credentials come from "
            "the environment or ~/.aws."
        )
    if options:
        location += f"?{urlencode(options, safe=':/')}"
    return Url(location, bucket, "/".join(parts), options, *_endpoint(options))


def _endpoint(options: dict[str, str]) -> tuple[str | None, str]:
    """The server's host and port, and the scheme."""
    named = (
        options.get("endpoint_override")
        or os.environ.get("AWS_ENDPOINT_URL_S3")
        or os.environ.get("AWS_ENDPOINT_URL")
        or ""
    )
    scheme, _, host = named.rpartition("://")
    host = host.rpartition("@")[2].rstrip("/")
    return host or None, options.get("scheme") or scheme or "https"
