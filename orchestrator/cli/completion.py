"""Completes names of a store, and strategies, when a user presses TAB in a shell.

Lists local stores only and ignores every error: TAB must neither wait for a network nor print a
traceback into a prompt. typer drops the names that do not match the typed beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from lp_sweep.storage.store import Store


def sweeps(ctx: typer.Context) -> list[str]:
    """Sweeps of the store on the command line, in LP_SWEEP_STORE or in this folder."""
    return _names(ctx, lambda store: store.names("sweeps"))


def records(ctx: typer.Context) -> list[str]:
    """Trials and profiles."""
    return _names(ctx, lambda store: store.names("trials") | store.names("profiles"))


def failures(ctx: typer.Context, incomplete: str) -> list[str]:
    """Failed work, once its first letter is typed; before that the shell offers sweep files."""
    from lp_sweep.orchestrator.plan.known import attempted_work

    if not incomplete.startswith(("t", "p")):
        return []
    return _names(ctx, lambda store: set(map(attempted_work, store.names("attempts"))))


def strategies() -> list[tuple[str, str]]:
    """Each strategy with its line of help, which most shells show."""
    from lp_sweep.storage.select import STRATEGIES

    return [(name, strategy.help) for name, strategy in STRATEGIES.items()]


def tasks(ctx: typer.Context) -> list[str]:
    """The tasks of the store's sweeps."""

    def listed(store: Store) -> set[str]:
        return set(store.read_all("sweeps", columns=["task"]).rows["task"].to_pylist())

    return _names(ctx, listed)


def _names(ctx: typer.Context, listing: Callable[[Store], Collection[str]]) -> list[str]:
    from lp_sweep.storage.places import DEFAULT_STORE

    location = ctx.params.get("store") or DEFAULT_STORE
    if "://" in location:
        return []
    with suppress(Exception):  # the command itself will report it
        from lp_sweep.storage.store import Store

        return sorted(filter(str.isprintable, listing(Store(location))))
    return []
