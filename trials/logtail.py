"""The end of what a trial prints, kept beside being printed: for the attempt that it may become.

Python's own output: stdout, stderr, warnings and logging. What a C library writes past Python isn't
in it.
"""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

from lp_sweep.storage.redact import redact_text

LOG_BYTES = 16 * 1024
_OWN_HANDLERS = ("transformers", "datasets", "huggingface_hub")  # they don't pass on to the root's
_KEPT = 2 * LOG_BYTES  # characters before secrets are taken out, which shortens


class Tail:
    """The last of the text that was added, without secrets."""

    def __init__(self) -> None:
        self._parts: deque[str] = deque()
        self._length = 0
        self._cut = False

    def add(self, text: str) -> None:
        self._parts.append(text[-_KEPT:])
        self._cut |= len(text) > _KEPT
        self._length += len(self._parts[-1])
        while self._length - len(self._parts[0]) >= _KEPT:
            self._length -= len(self._parts.popleft())
            self._cut = True

    def text(self) -> str:
        """At most 16 kB of UTF-8."""
        whole = "".join(self._parts)
        if self._cut:  # half a line may begin with half a secret
            whole = whole.partition("\n")[2] or whole[LOG_BYTES:]
        content = redact_text(whole).encode("utf-8", "replace")
        return content[-LOG_BYTES:].decode("utf-8", "ignore")


class _Tee:
    """A stream that also feeds a tail, and prints no secret: Ray keeps what a worker prints in a
    file. Everything else is the stream's own."""

    def __init__(self, stream: TextIO, tail: Tail) -> None:
        self._stream, self._tail = stream, tail

    def write(self, text: str) -> int:
        self._tail.add(text)
        self._stream.write(redact_text(text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def recorded() -> Iterator[Tail]:
    """Inside, what is printed also goes to the tail."""
    tail = Tail()
    out, err = sys.stdout, sys.stderr
    tees = cast(TextIO, _Tee(out, tail)), cast(TextIO, _Tee(err, tail))
    sys.stdout, sys.stderr = tees
    # a handler made before holds the stream that was stderr then
    handlers = [
        handler
        for logger in (logging.getLogger(), *map(logging.getLogger, _OWN_HANDLERS))
        for handler in logger.handlers
        if isinstance(handler, logging.StreamHandler) and handler.stream in (out, err)
    ]
    streams = [handler.stream for handler in handlers]
    for handler in handlers:
        handler.setStream(tees[1])
    try:
        yield tail
    finally:
        for handler, stream in zip(handlers, streams, strict=True):
            handler.setStream(stream)
        if sys.stdout is tees[0]:
            sys.stdout = out
        if sys.stderr is tees[1]:
            sys.stderr = err
