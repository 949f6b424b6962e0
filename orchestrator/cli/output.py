"""Prints data to stdout and everything else to stderr.

All output passes through here. It may quote foreign text (a name, a path, a message, a stored
value), so control characters never reach the terminal. Text of several lines is made with
`printable.page`, which keeps only its own line ends.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Collection
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from lp_sweep.orchestrator import service
from lp_sweep.storage.errors import LpSweepError, SweepWarning
from lp_sweep.storage.places import DEFAULT_STORE
from lp_sweep.storage.printable import on_terminal, printable
from lp_sweep.storage.printable import say as say

# libraries whose warnings go past Python's logging, or have a handler of their own
_QUIET = {
    "DATASETS_VERBOSITY": "error",
    "HF_HUB_VERBOSITY": "error",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "TRANSFORMERS_VERBOSITY": "error",
}

if TYPE_CHECKING:
    from lp_sweep.storage.store import Store, Unreadable

INTERRUPTED = 130
_STYLES = re.compile(r"(\x1b\[[0-9;]*m)")  # bold, colours, and their end


def stored(location: str | None) -> Store:
    """The store that a command reads, by default the one in this folder."""
    return service.store.existing(location or DEFAULT_STORE)


def emit(text: str, end: str = "\n", form: str = "", to: TextIO | None = None) -> bool:
    """Prints data to stdout. Returns False if the reader has gone (`lp-sweep query ... | head`).

    to: another stream than `sys.stdout`.
    form: the form of a table from `analysis.render`. CSV and JSON in a file or a pipe are printed
    unchanged; a table on a terminal keeps its styles.
    """
    out = to or sys.stdout
    try:
        print(_encodable(_harmless(text, form)), end=end, file=out, flush=True)
        return True
    except OSError as error:
        _reader_gone(out, error)
        return False


def _reader_gone(out: TextIO, error: OSError) -> None:
    """Sends what is still to come nowhere. Raises LpSweepError for any other error of writing."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
    if not isinstance(error, BrokenPipeError):
        raise LpSweepError(f"can't write the answer: {error.strerror}") from None


def emit_bytes(content: bytes) -> None:
    """Writes a file to stdout."""
    try:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    except OSError as error:
        _reader_gone(sys.stdout, error)


def _harmless(text: str, form: str) -> str:
    if form == "table" and sys.stdout.isatty():
        parts = _STYLES.split(text)
        return "".join(p if i % 2 else printable(p, keep="\n\t") for i, p in enumerate(parts))
    if form in ("csv", "json") and not sys.stdout.isatty():
        return text
    return printable(text, keep="\n\t")


def _encodable(text: str) -> str:
    """Spells out characters that the terminal's encoding can't show, as stderr does."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def guard() -> None:
    """Tells our own warnings in our words, and no other library's: neither its warnings and logs
    nor what fails in its own threads and destructors, such as those of a Ray that is lost. Also
    cleans the traceback of a bug, since it may quote foreign text."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    logging.getLogger().addHandler(logging.NullHandler())  # else Python prints warnings itself

    def warned(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        if issubclass(category, SweepWarning):
            say(f"warning: {message}")

    def raised(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        text = printable("".join(traceback.format_exception(kind, error, trace)), keep="\n\t")
        print(text, end="", file=sys.stderr, flush=True)

    def beside(what: Any) -> None:
        if what.exc_value is not None and _is_ours(what.exc_traceback):
            raised(what.exc_type, what.exc_value, what.exc_traceback)

    warnings.showwarning = warned
    sys.excepthook = raised
    sys.unraisablehook = threading.excepthook = beside


def _is_ours(trace: TracebackType | None) -> bool:
    """Whether code of ours is in a traceback."""
    frames = (frame for frame, _ in traceback.walk_tb(trace))
    return any(frame.f_globals.get("__name__", "").startswith("lp_sweep.") for frame in frames)


def complain(message: str) -> None:
    """Prints errors: each line that is not indented begins one."""
    for line in printable(message, keep="\n").splitlines():
        if line.strip():
            told = f"{'      ' if line.startswith(' ') else 'error:'} {line}"
            print(on_terminal(told, sys.stderr), file=sys.stderr)


def end_in_order() -> None:
    """Lets SIGTERM, SIGHUP and SIGUSR1 end the command by its `finally` blocks: the cursor is shown
    again, and unfinished folders are removed."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        if signal.getsignal(number) is signal.SIG_DFL:  # not with `nohup`
            code = 3 if number == signal.SIGUSR1 else 128 + number  # 3: the same command goes on
            signal.signal(number, lambda *_, code=code: sys.exit(code))


def warn_unreadable(files: Collection[Unreadable]) -> None:
    for item in files:
        say(f"warning: {item.sentence}")
    if not all(item.lost for item in files):
        say("warning: `lp-sweep doctor --fix` sets such files aside")
