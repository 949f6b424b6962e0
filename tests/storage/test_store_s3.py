"""A store in a bucket: its location, its credentials, and a server that fails or hangs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lp_sweep.storage import bucket
from lp_sweep.storage.bucket import parse_url
from lp_sweep.storage.errors import StoreError
from lp_sweep.storage.places import is_bucket
from lp_sweep.storage.store import Store, is_store, open_files
from tests.support.program import sweep
from tests.support.s3proxy import answering, failing_proxy, say
from tests.support.s3server import BUCKET, OWN_SERVER, UNUSED, client, free_port
from tests.support.stores import trial

own_server = pytest.mark.skipif(OWN_SERVER in os.environ, reason="needs a server on loopback")
LARGE = 12 * 2**20  # bytes: several requests


# -- locations


LOCATIONS = {
    "s3://my-bucket/": ("", "s3://my-bucket"),
    "s3://my.bucket//a//b/": ("a/b", "s3://my.bucket/a/b"),
    "s3://my-bucket/it's ü 100%": ("it's ü 100%", "s3://my-bucket/it's ü 100%"),
    "s3://my-bucket/a?scheme=http&endpoint_override=127.0.0.1:9000": (
        "a",
        "s3://my-bucket/a?scheme=http&endpoint_override=127.0.0.1:9000",
    ),
}


@pytest.mark.parametrize("text", LOCATIONS)
def test_a_location(text: str) -> None:
    url = parse_url(text)
    assert (url.prefix, url.location) == LOCATIONS[text]
    assert parse_url(url.location) == url
    assert is_bucket(text)
    assert open_files(text).location == url.location


NO_LOCATIONS = {
    "s3://AKIAX:HUSH@bucket/p": r"leave out the part before the @.*AWS_ACCESS_KEY_ID",
    "s3://bucket/p?access_key=HUSH&secret_key=HUSH": "unknown options. Write s3:",
    "s3://bucket/p?HUSH": "unknown options. Write s3:",
    "s3://bucket/p?endpoint_override=http://u:HUSH@host": r"leave out the part before the @",
    "s3:///p": "names no bucket",
    "s3://bucket/../p": "names no bucket",
}


@pytest.mark.parametrize("text", NO_LOCATIONS)
def test_a_location_that_can_not_be(text: str) -> None:
    with pytest.raises(StoreError, match=NO_LOCATIONS[text]) as raised:
        Store(text)
    assert "HUSH" not in str(raised.value)


OURS = "?endpoint_override=h:1"
E2 = {"AWS_ENDPOINT_URL": "http://e:2"}


@pytest.mark.parametrize(
    ("options", "environment", "told"),
    [
        ("", {}, "Amazon S3"),
        (f"{OURS}&scheme=http", {}, "http://h:1"),
        (OURS, {}, "https://h:1"),
        ("?endpoint_override=http://h:1/", {}, "http://h:1"),
        ("", E2 | {"AWS_ENDPOINT_URL_S3": "http://s:3"}, "http://s:3"),
        (OURS, E2, "https://h:1"),
        ("", {"AWS_ENDPOINT_URL": "http://user:HUSH@e:2"}, "http://e:2"),
    ],
)
def test_the_endpoint(
    options: str, environment: dict[str, str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert parse_url(f"s3://bucket/p{options}").server == told


# -- what a server refuses


def test_the_endpoint_of_the_environment_is_used(
    s3_location: str, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Store(s3_location, create=True)
    plain = s3_location.partition("?")[0]
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
    assert Store(plain).location == plain


def test_there_is_no_such_bucket_and_none_is_made(s3_location: str, s3_endpoint: str) -> None:
    there = Store(s3_location, create=True)
    options = s3_location.partition("?")[2]
    location = f"s3://{UNUSED}/p?{options}"
    begun = time.monotonic()
    with pytest.raises(StoreError, match="no store at"):
        Store(f"{there.location.partition('?')[0]}-other?{options}", patience=60)
    attempts: list[Callable[[], Any]] = [
        lambda: Store(location, patience=60),
        lambda: Store(location, create=True, patience=60),
        lambda: is_store(location),
    ]
    for attempt in attempts:
        with pytest.raises(StoreError, match=f"no bucket '{UNUSED}' at http.*Create it"):
            attempt()
    there.files = open_files(location)  # as if the bucket were deleted meanwhile
    attempts = [
        lambda: there.names("trials"),
        lambda: there.find("trials", "t1-a"),
        lambda: there.read_all("trials"),
        lambda: there.read_text("runs", "x.json"),
    ]
    for attempt in attempts:
        with pytest.raises(StoreError, match=f"no bucket '{UNUSED}'"):
            attempt()
    for content in (b"small", b"x" * LARGE):  # here some servers only say that they failed
        with pytest.raises(StoreError, match=rf"can't write s3://{UNUSED}/p/trials/x: "):
            there.write("trials/x", content)
    assert time.monotonic() - begun < 30, "waiting does not mend it"
    assert UNUSED not in [item["Name"] for item in client(s3_endpoint).list_buckets()["Buckets"]]


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (403, "InvalidAccessKeyId", "denies access to .*Check the credentials"),
        (301, "PermanentRedirect", "in another region.*region=REGION"),
    ],
)
def test_a_refusal_of_a_server_has_a_next_step(status: int, code: str, message: str) -> None:
    body = f"<Error><Code>{code}</Code><Message>No.</Message></Error>".encode()
    with answering(lambda handler: say(handler, status, body)) as host:
        location = f"s3://{BUCKET}/p?endpoint_override={host}&scheme=http"
        for attempt in (lambda: Store(location), lambda: Store(location, create=True)):
            with pytest.raises(StoreError, match=message) as raised:
                attempt()
            assert "testing" not in str(raised.value)


def test_a_server_that_is_not_there_is_waited_for_within_the_patience() -> None:
    location = f"s3://{BUCKET}/p?endpoint_override=127.0.0.1:{free_port()}&scheme=http"
    for patience in (0, 2):
        begun = time.monotonic()
        with pytest.raises(
            StoreError, match=r"http://127\.0\.0\.1:\d+ gives no valid answer.*Check the net"
        ):
            Store(location, patience=patience)
        assert patience <= time.monotonic() - begun < patience + 10


def test_a_server_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket, "_SILENCE_SECONDS", 1)
    with answering(lambda handler: time.sleep(30)) as host:
        begun = time.monotonic()
        with pytest.raises(StoreError, match="gives no valid answer"):
            Store(f"s3://{BUCKET}/p?endpoint_override={host}&scheme=http")
        assert time.monotonic() - begun < 15


# -- a write is whole or not at all


FAULTS = {
    "the-start-of-an-upload": lambda method, path: "uploads" in path,
    "the-second-part": lambda method, path: "partNumber=2&" in path,
    "the-end-of-an-upload": lambda method, path: (
        method == "POST" and "uploadId=" in path and "uploads" not in path
    ),
}
EVERY_DAY = "the-second-part"


@own_server
@pytest.mark.parametrize(
    "fails",
    [
        pytest.param(fault, id=name, marks=[pytest.mark.slow] * (name != EVERY_DAY))
        for name, fault in FAULTS.items()
    ],
)
def test_a_large_write_that_is_cut_off_leaves_what_was_there(
    s3_location: str, s3_endpoint: str, tmp_path: Path, fails: Callable[[str, str], bool]
) -> None:
    direct = Store(s3_location, create=True)
    source = tmp_path / "source"
    source.write_bytes(b"new" * (LARGE // 3))
    direct.put_text("checkpoints", "old", "what was there")
    with failing_proxy(s3_endpoint, fails) as host:
        options = f"endpoint_override={host}&scheme=http"
        store = Store(f"{s3_location.partition('?')[0]}?{options}")
        for name in ("old", "new"):
            with pytest.raises(StoreError, match=rf"can't write s3://.*/checkpoints/{name}: "):
                store.put_file("checkpoints", name, source)
        del store
    assert direct.read_text("checkpoints", "old") == "what was there"
    assert [info.name for info in direct.listing("checkpoints")] == ["old"]
    direct.put_file("checkpoints", "old", source)
    assert direct.listing("checkpoints")[0].size == LARGE


@own_server
def test_a_cut_download_leaves_nothing(s3_location: str, s3_endpoint: str, tmp_path: Path) -> None:
    direct = Store(s3_location, create=True)
    (tmp_path / "source").write_bytes(b"x" * LARGE)
    direct.put_file("checkpoints", "c", tmp_path / "source")
    with failing_proxy(s3_endpoint, lambda m, path: m == "GET" and "/c" in path) as host:
        store = Store(f"{s3_location.partition('?')[0]}?endpoint_override={host}&scheme=http")
        with pytest.raises(StoreError, match="can't read"):
            store.fetch_file("checkpoints", "c", tmp_path / "target")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


def test_no_credential_is_anywhere_in_a_store(s3_location: str, s3_endpoint: str) -> None:
    store = Store(s3_location, create=True)
    store.put("trials", "t1-a", [trial("t1-a")])
    store.put_text("runs", "a.json", store.location)
    prefix = parse_url(s3_location).prefix
    s3 = client(s3_endpoint)
    keys = [i["Key"] for i in s3.list_objects_v2(Bucket=BUCKET, Prefix=prefix)["Contents"]]
    assert len(keys) >= 2
    secret = os.environ["AWS_SECRET_ACCESS_KEY"].encode()
    for key in keys:
        assert secret not in s3.get_object(Bucket=BUCKET, Key=key)["Body"].read()
    assert secret.decode() not in store.location + repr(vars(store)) + repr(vars(store.files))


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["status", "doctor", "query FROM trials", "table tasks"])
def test_commands_that_read_wait_for_a_server_that_is_away(
    s3_location: str, s3_endpoint: str, tmp_path: Path, verb: str
) -> None:
    Store(s3_location, create=True).put("trials", "t1-a", [trial("t1-a")])
    arguments = verb.split(" ", 1)
    back = time.monotonic() + 10  # an S3 client gives up after about 4 s
    with failing_proxy(s3_endpoint, lambda *_: time.monotonic() < back) as host:
        location = f"{s3_location.partition('?')[0]}?endpoint_override={host}&scheme=http"
        done = sweep(*arguments, "--store", location, cwd=tmp_path)
    assert time.monotonic() > back
    assert "does not answer yet" in done.stderr
    assert done.returncode == (1 if verb == "doctor" else 0)  # of no sweep
