"""Ctrl-C: before the first trial, a run prints the command that continues it; a command that only
reads ends within a second."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from lp_sweep.orchestrator.cli.output import say
from lp_sweep.storage.redact import redact_command

INTERRUPTED = 130
_SECONDS = 1.0  # after which the process is ended


@contextmanager
def ends_promptly() -> Iterator[None]:
    """For commands that only read: there is nothing to clean up, so the process ends if it still
    computes a second after Ctrl-C (one huge value, many files on a slow disk)."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:  # ignored, or another program's
        yield
        return
    late = threading.Timer(_SECONDS, os._exit, [INTERRUPTED])
    late.daemon = True

    def interrupted(*_: object) -> None:
        if late.ident is None:
            late.start()
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        late.cancel()
        reading = sys.modules.get("lp_sweep.storage.reading")  # loading it takes a while
        if reading is not None and reading.busy():
            os._exit(INTERRUPTED)


@contextmanager
def told_if_interrupted() -> Iterator[None]:
    """Nothing was trained yet, so the typed command is the one that continues."""
    try:
        yield
    except KeyboardInterrupt:
        again = redact_command(["lp-sweep", *sys.argv[1:]])
        say(f"stopped by Ctrl-C: nothing was trained yet. Go on: {again}")
        raise typer.Exit(INTERRUPTED) from None
