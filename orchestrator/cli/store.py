"""The commands on a store that need no sweep file: its progress, a trial's record, maintenance."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from lp_sweep.orchestrator.cli.output import emit, stored, warn_unreadable
from lp_sweep.orchestrator.options import (
    JsonOption,
    MirrorKind,
    StoreOption,
    SweepOption,
    names_in_store,
)
from lp_sweep.storage.errors import SpecError
from lp_sweep.storage.printable import page

if TYPE_CHECKING:
    from lp_sweep.storage.store import Store, Unreadable

app = typer.Typer()


@app.command()
def status(
    store: StoreOption = None,
    sweep: SweepOption = None,
    as_json: JsonOption = False,
    watch: Annotated[bool, Option("--watch", help="Follow one sweep until Ctrl-C.")] = False,
    every: Annotated[
        str | None,
        Option("--every", envvar="LP_SWEEP_EVERY", help="With --watch: time between updates. [5s]"),
    ] = None,
) -> None:
    """Show the progress of a store's sweeps, and the active runs.

    Example: lp-sweep status --store lp-sweep-store --watch
    """
    if every is not None and not watch:
        raise SpecError("--every needs --watch.")
    if watch:
        from lp_sweep.orchestrator.cli import watching

        watching.watch(store, sweep, every or "5s", as_json)
        return
    from lp_sweep.orchestrator.watch.states import states_text, sweep_states

    states = sweep_states(stored(store), sweep)
    warn_unreadable(states.unreadable)
    emit(json.dumps(states.plain()) if as_json else states_text(states))


def _records(ctx: typer.Context) -> Collection[str]:
    return names_in_store(ctx, lambda store: store.names("trials") | store.names("profiles"))


TrialArgument = Annotated[
    str,
    Argument(
        autocompletion=_records, help="A trial's or profile's identifier, or the beginning of one."
    ),
]


@app.command()
def show(trial: TrialArgument, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Print a trial's whole record: scores, recipe, data, model, versions, machine, command.

    Example: lp-sweep show t1-0c1f --store lp-sweep-store
    """
    from lp_sweep.orchestrator.service.store import history, show_text

    found = history(stored(store), trial)
    emit(json.dumps(found.plain(), indent=2) if as_json else show_text(found))


@app.command()
def logs(trial: TrialArgument, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Print each failed attempt of a trial with its traceback, then its epochs.

    Example: lp-sweep logs t1-0c1f
    """
    from lp_sweep.orchestrator.service.store import history, logs_text

    found = history(stored(store), trial)
    emit(json.dumps(found.plain(), indent=2) if as_json else logs_text(found))


@app.command()
def compact(store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Merge small records into large files, for faster queries. Safe while a sweep runs.

    Example: lp-sweep compact --store lp-sweep-store
    """
    from lp_sweep.storage import packs

    done = packs.compact(stored(store))
    text = f"{done.records} records: {done.files_before} files before, {done.files_after} now"
    emit(json.dumps(done._asdict()) if as_json else text)


@app.command()
def doctor(
    store: StoreOption = None,
    fix: Annotated[
        bool, Option("--fix", help="Move damaged files to the store's set-aside/.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List what a store can't read or has lost; exit 1 if there is anything.

    Example: lp-sweep doctor --fix
    """
    from lp_sweep.storage import doctor

    found = stored(store)
    findings = doctor.examine(found)
    if fix:
        doctor.set_aside(found, findings)
    if as_json:
        emit(json.dumps([item._asdict() for item in findings]))
    else:
        emit(_findings_text(found, findings, fixed=fix))
    raise typer.Exit(int(any(not fix or item.lost for item in findings if not item.newer)))


def _findings_text(store: Store, findings: list[Unreadable], *, fixed: bool) -> str:
    damaged = [item for item in findings if not item.lost and not item.newer]
    lines = [f"{item.location}: {item.reason}" for item in findings]
    if not findings:
        lines = [f"{store.location} is in order"]
    elif damaged and fixed:
        lines.append("the unreadable files are in set-aside/; the next run does their work again")
        if any("/predictions/" in item.location for item in damaged):
            lines.append("a trial whose own record is whole is not done again for its predictions")
    elif damaged:
        where = shlex.quote(store.location)
        lines.append(f"to move unreadable files away: lp-sweep doctor --fix --store {where}")
    return page(lines)


_MIRRORED = (
    "{to}  {sweep}: {written} trials written, {failures} of them failures; {there} were there"
)


@app.command()
def mirror(
    to: Annotated[
        list[MirrorKind],
        Option("--to", envvar="LP_SWEEP_MIRROR", help="Where to copy. May be repeated."),
    ],
    store: StoreOption = None,
    sweep: SweepOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy the trials of a store into MLflow, W&B or trackio. Trials that are already there
    stay as they are.

    Example: lp-sweep mirror --to mlflow --store lp-sweep-store
    """
    from lp_sweep.orchestrator.mirrors.copying import copy_store

    told = []
    for done in copy_store(stored(store), to, sweep):
        told.append(done)
        if not as_json:  # before the next, which may fail
            emit(page([_MIRRORED.format_map(done)]))
    if as_json:
        emit(json.dumps(told))
