"""How the command line prints: data to stdout, all else to stderr."""

from __future__ import annotations

import math
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lp_sweep.storage.errors import LpSweepError
from lp_sweep.storage.printable import printable


def emit(text: str, end: str = "\n") -> bool:
    """Data, to stdout. A reader that has gone (`lp-sweep query ... | head`) is no error: False."""
    try:
        print(_encodable(text), end=end, flush=True)
        return True
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise LpSweepError(f"can't write the answer: {error.strerror}") from None


def _encodable(text: str) -> str:
    """What a terminal of another encoding can't show is spelt out, as it is on stderr."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def two_digits(value: float) -> str:
    """`0.034`, `1.2`, `340`: an estimate is no better."""
    if not value:
        return "0"
    return f"{value:,.{max(0, 1 - math.floor(math.log10(value)))}f}"


def complain(message: str) -> None:
    """An error, line by line. What it quotes may be anyone's, escape sequences too."""
    for line in printable(message, keep="\n").splitlines():
        print(f"error: {line}", file=sys.stderr)


@contextmanager
def doing(what: str) -> Iterator[Callable[[str], None]]:
    """A line on the terminal that says how far a long command is, and is gone after it; nothing
    where stderr is no terminal."""
    from rich.console import Console

    from lp_sweep.orchestrator.live.painter import has_screen

    console = Console(stderr=True)
    if not has_screen(console):
        yield lambda step: None
        return
    # else the cursor that the line hides would stay away
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with console.status(what) as status:
        yield lambda step: status.update(printable(f"{what}: {step}"))


def say(text: str) -> None:
    """A note or a warning, to stderr."""
    print(printable(text, keep="\n"), file=sys.stderr, flush=True)
