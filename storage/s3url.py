"""The location of a store in a bucket, as a user writes it, and the server that is meant.

    s3://BUCKET/PREFIX[?endpoint_override=HOST:PORT&scheme=http&region=REGION]

It is printed, stored and passed between processes, so it never has a credential in it.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit

from lp_sweep.storage.errors import StoreError

_OPTIONS = ("endpoint_override", "region", "scheme")
_FORM = "s3://BUCKET/PREFIX, optionally with ?endpoint_override=HOST:PORT&scheme=http&region=REGION"


class Url(NamedTuple):
    """What a location says, and the location as it is kept."""

    bucket: str
    prefix: str  # without slashes at its ends; may be empty
    options: dict[str, str]
    location: str


def parse_url(text: str) -> Url:
    """Raises StoreError, which never repeats what may be a secret."""
    rest, _, query = text.removeprefix("s3://").partition("?")
    if "@" in rest.split("/")[0]:
        raise StoreError(
            "credentials do not belong in a store's location (it is written into records, logs and "
            "commands): leave out what stands before the @. Set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or use ~/.aws/credentials."
        )
    bucket, _, prefix = rest.partition("/")
    parts = [part for part in prefix.split("/") if part]
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{2,}", bucket) or {".", ".."} & set(parts):
        raise StoreError(f"{text.partition('?')[0]!r} names no bucket and prefix. Write {_FORM}.")
    return _with_options(bucket, "/".join(parts), query)


def _with_options(bucket: str, prefix: str, query: str) -> Url:
    options = dict(parse_qsl(query, keep_blank_values=True))
    unknown = sorted(set(options) - set(_OPTIONS))
    if unknown or (query and not options):
        named = ", ".join(name for name in unknown if re.fullmatch("[a-z_]+", name))
        raise StoreError(  # what stands there may be a secret: no value is shown
            f"the location s3://{bucket}/{prefix} has unknown options{named and f': {named}'}. "
            f"Write {_FORM}; credentials come from the environment or ~/.aws."
        )
    if "@" in options.get("endpoint_override", ""):
        raise StoreError(
            f"the endpoint of s3://{bucket}/{prefix} has credentials in it: leave out what stands "
            "before the @. They come from the environment or ~/.aws."
        )
    place = f"s3://{bucket}/{prefix}".rstrip("/")
    return Url(
        bucket, prefix, options, f"{place}?{urlencode(options, safe=':/')}" if query else place
    )


class Endpoint(NamedTuple):
    """Where the server is: host and port, None for Amazon's own."""

    host: str | None
    scheme: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host}" if self.host else "Amazon S3"


def find_endpoint(options: dict[str, str]) -> Endpoint:
    """The location's own, else what AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL says."""
    told = options.get("endpoint_override")
    if told is None and os.environ.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "") != "true":
        told = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if not told:
        return Endpoint(None, options.get("scheme", "https"))
    if "://" not in told:
        return Endpoint(told.rstrip("/"), options.get("scheme", "https"))
    parts = urlsplit(told)
    host = parts.netloc.rpartition("@")[2] + parts.path.rstrip("/")
    return Endpoint(host, options.get("scheme", parts.scheme))
