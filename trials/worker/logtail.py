"""The end of what a try prints, without secrets."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

from lp_sweep.storage.redact import redact_text

LOG_BYTES = 16 * 1024
_OWN_HANDLERS = ("transformers", "datasets", "huggingface_hub")  # not the root logger's
_KEPT = 2 * LOG_BYTES  # characters; removing secrets shortens them


class Tail:
    """The end of the text that was added, without secrets."""

    def __init__(self) -> None:
        self._end, self._cut = "", False

    def add(self, text: str) -> None:
        self._cut |= len(self._end) + len(text) > _KEPT
        self._end = (self._end + text)[-_KEPT:]

    def text(self) -> str:
        """At most 16 kB of UTF-8."""
        whole = self._end
        if self._cut:  # half a line may begin with half a secret
            whole = whole.partition("\n")[2] or whole[LOG_BYTES:]
        content = redact_text(whole).encode("utf-8", "replace")
        return content[-LOG_BYTES:].decode("utf-8", "ignore")


class _Tee:
    """A stream that also feeds a tail. It prints no secrets: Ray stores what a worker prints."""

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
    """Copies everything that is printed inside into a tail."""
    tail = Tail()
    out, err = sys.stdout, sys.stderr
    tees = cast(TextIO, _Tee(out, tail)), cast(TextIO, _Tee(err, tail))
    sys.stdout, sys.stderr = tees
    # a handler that was made earlier writes to the stderr of that moment
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
