"""A server between lp-sweep and the S3 server of the tests, which breaks what passes. No test."""

from __future__ import annotations

import contextlib
import http.client
import io
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SLOW_SECONDS = 0.1


@contextlib.contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """An HTTP server on loopback; gives host:port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    wait = {"poll_interval": 0.05}
    threading.Thread(target=server.serve_forever, kwargs=wait, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def answering(reply: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[str]:
    """A server that answers everything with `reply`."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None: ...

        def handle_any(self) -> None:
            with contextlib.suppress(ConnectionError):
                reply(self)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_any

    with serving(Handler) as host:
        yield host


def body_of(handler: BaseHTTPRequestHandler) -> bytes:
    if "Transfer-Encoding" not in handler.headers:
        return handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
    parts = []
    while size := int(handler.rfile.readline(), 16):
        parts.append(handler.rfile.read(size))
        handler.rfile.readline()
    handler.rfile.readline()
    return b"".join(parts)


def say(handler: BaseHTTPRequestHandler, status: int, body: bytes = b"") -> None:
    body_of(handler)
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(body)


def pass_on(handler: BaseHTTPRequestHandler, target: str, share: float = 1.0) -> None:
    """The answer of another server, or a share of its bytes; hangs up where that is dead."""
    content = body_of(handler)
    chunked = "Transfer-Encoding" in handler.headers
    headers = {k: v for k, v in handler.headers.items() if k.lower() != "expect"}
    try:
        connection = http.client.HTTPConnection(target, timeout=30)
        connection.request(
            *(handler.command, handler.path),
            body=iter([content]) if chunked else content,
            headers=headers,
            encode_chunked=chunked,
        )
        answer = connection.getresponse()
        body = answer.read()
    except OSError:
        handler.close_connection = True
        return
    handler.send_response(answer.status)
    for name, value in answer.getheaders():
        if name.lower() not in ("transfer-encoding", "connection", "content-length"):
            handler.send_header(name, value)
    length = answer.getheader("Content-Length") if handler.command == "HEAD" else None
    handler.send_header("Content-Length", length or str(len(body)))
    handler.end_headers()
    handler.wfile.write(body[: int(share * len(body))])
    connection.close()
    handler.close_connection |= share < 1


@contextlib.contextmanager
def failing_proxy(endpoint: str, fails: Callable[[str, str], bool]) -> Iterator[str]:
    """Passes requests on, but for those (method, path) that fail: it hangs up on them."""
    target = endpoint.removeprefix("http://")

    def reply(handler: BaseHTTPRequestHandler) -> None:
        if fails(handler.command, handler.path):
            handler.close_connection = True
        else:
            pass_on(handler, target)

    with answering(reply) as host:
        yield host


class Breaking:
    """Breaks a share of the requests, each in one of these ways; counts them."""

    WAYS = ("unheard", "unanswered", "500", "503", "cut off", "slow")

    def __init__(self, endpoint: str, share: float) -> None:
        self._target, self._share = endpoint.removeprefix("http://"), share
        self._draw, self._lock = random.Random(5), threading.Lock()
        self.counts: Counter[str] = Counter()

    def __call__(self, handler: BaseHTTPRequestHandler) -> None:
        with self._lock:
            broken = self._draw.random() < self._share
            way = self._draw.choice(self.WAYS) if broken else "passed"
            self.counts[way] += 1
        if way == "unheard":
            handler.close_connection = True
        elif way == "unanswered":  # the server has done what it was asked
            handler.wfile, wfile = io.BytesIO(), handler.wfile
            pass_on(handler, self._target)
            handler.wfile, handler.close_connection = wfile, True
        elif way in ("500", "503"):
            code = "InternalError" if way == "500" else "SlowDown"
            say(handler, int(way), f"<Error><Code>{code}</Code></Error>".encode())
        else:
            time.sleep(SLOW_SECONDS if way == "slow" else 0)
            pass_on(handler, self._target, 0.5 if way == "cut off" else 1.0)


@contextlib.contextmanager
def breaking_proxy(endpoint: str, share: float = 0.2) -> Iterator[tuple[str, Breaking]]:
    """Its host:port, and what it has broken."""
    breaking = Breaking(endpoint, share)
    with answering(breaking) as host:
        yield host, breaking
