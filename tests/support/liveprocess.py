"""Commands that go on until they are told to end, as processes whose output is read as it comes.
Not a test."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.program import command


def _hear_ctrl_c() -> None:
    """A shell's background job inherits an ignored SIGINT; a terminal's job does not."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def piped(*words: str | Path) -> Iterator[subprocess.Popen[str]]:
    """With pipes; it is killed at the end if it still lives."""
    process = subprocess.Popen(
        [str(word) for word in words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_hear_ctrl_c,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


class Terminal:
    """A process on a real pseudo-terminal; `text` is all that it has written."""

    def __init__(self, *arguments: str | Path, size: tuple[int, int], **settings: str) -> None:
        self._ours, theirs = pty.openpty()
        self.resize(*size)
        unset = {"COLUMNS", "LINES", "NO_COLOR"}
        environment = {key: value for key, value in os.environ.items() if key not in unset}
        self.process = subprocess.Popen(
            command(*arguments),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment | {"TERM": "xterm-256color"} | settings,
            preexec_fn=_hear_ctrl_c,
        )
        os.close(theirs)
        self.text = ""

    def resize(self, width: int, height: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def wait_for(self, text: str, *, after: int = 0, seconds: float = 60) -> None:
        """Until it stands in what was written, behind so many characters."""
        end = time.monotonic() + seconds
        while text not in self.text[after:]:
            assert time.monotonic() < end, f"no {text!r} in {self.text[after:]!r}"
            if not self._read(1.0):
                assert self.process.poll() is None, self.text

    def _read(self, seconds: float) -> bool:
        ready, _, _ = select.select([self._ours], [], [], seconds)
        with suppress(OSError):  # the terminal ends with the process
            self.text += os.read(self._ours, 65536).decode(errors="replace") if ready else ""
            return bool(ready)
        return False

    def ended(self) -> int:
        """The exit code; all that was written is in `text` then."""
        while self.process.poll() is None:
            self._read(0.1)
        while self._read(0.1):
            pass
        return self.process.returncode

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)
