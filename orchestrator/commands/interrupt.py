"""Ctrl-C while a run looks its inputs up: it is told as one during the run is, by `farewell`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from lp_sweep.orchestrator.commands.output import say
from lp_sweep.storage.redact import redact_command

INTERRUPTED = 130


class AfterTheStart(KeyboardInterrupt):
    """A Ctrl-C of which nobody can say that nothing was trained before it."""


@contextmanager
def told_if_interrupted() -> Iterator[None]:
    """The command that was typed is the one that goes on: nothing was begun."""
    try:
        yield
    except AfterTheStart:
        raise
    except KeyboardInterrupt:
        again = redact_command(["lp-sweep", *sys.argv[1:]])
        say(f"stopped by SIGINT: nothing was trained yet. Go on: {again}")
        raise typer.Exit(INTERRUPTED) from None


@contextmanager
def after_the_start() -> Iterator[None]:
    """Inside, trials may have run."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        raise AfterTheStart from interrupt
