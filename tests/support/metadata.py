"""Fake metadata services of clouds, on loopback. Not a test."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, str] | None  # status (0: no HTTP) and body; None: it never answers


class Metadata(ThreadingHTTPServer):
    """A metadata service: `answers` in turn, the last one again and again. `asked`: the requests
    that it let through."""

    def __init__(self, answers: list[Answer]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers, self.asked = answers, 0
        self.queries: list[str] = []
        self.closing = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    """As EC2 (IMDSv2) and Compute Engine answer; who asks in another way is refused."""

    server: Metadata

    def do_PUT(self) -> None:
        asked = self.headers["X-aws-ec2-metadata-token-ttl-seconds"]
        granted = self.path == "/latest/api/token" and asked
        self._say(200 if granted else 400, "a-token" if granted else "")

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        self.server.queries.append(query)
        allowed = {
            "/latest/meta-data/spot/instance-action": (
                self.headers["X-aws-ec2-metadata-token"] == "a-token"
            ),
            "/computeMetadata/v1/instance/preempted": self.headers["Metadata-Flavor"] == "Google",
        }
        if not allowed.get(path):
            self._say(401, "")
            return
        answers = self.server.answers
        answer = answers[min(self.server.asked, len(answers) - 1)]
        self.server.asked += 1
        if answer is None:
            self.server.closing.wait()
        elif not answer[0]:
            self.wfile.write(answer[1].encode())
        else:
            self._say(*answer)

    def _say(self, status: int, body: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *args: Any) -> None:
        del args


@contextmanager
def serving(*answers: Answer) -> Iterator[Metadata]:
    server = Metadata(list(answers))
    threading.Thread(target=server.serve_forever, args=(0.05,)).start()
    try:
        yield server
    finally:
        server.closing.set()
        server.shutdown()
        server.server_close()


def action(seconds: float) -> str:
    """EC2's notice that it takes the machine in so many seconds."""
    at = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=seconds)
    return f'{{"action": "terminate", "time": "{at:%Y-%m-%dT%H:%M:%SZ}"}}'
