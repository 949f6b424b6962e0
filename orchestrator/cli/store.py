"""The commands on a store that need no sweep file: its progress, a trial's record, maintenance."""

from __future__ import annotations

import datetime as dt
import json
import shlex
from collections.abc import Collection
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from lp_sweep.orchestrator.cli.output import emit, stored, warn_unreadable
from lp_sweep.orchestrator.mirrors.kinds import MirrorKind
from lp_sweep.orchestrator.options import JsonOption, StoreOption, SweepOption, names_in_store
from lp_sweep.storage.errors import SpecError
from lp_sweep.storage.printable import page

if TYPE_CHECKING:
    from lp_sweep.orchestrator.service.store import States
    from lp_sweep.storage.doctor import Finding
    from lp_sweep.storage.runs import Announcement
    from lp_sweep.storage.store import Store

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
    from lp_sweep.orchestrator.service.store import sweep_states

    states = sweep_states(stored(store), sweep)
    warn_unreadable(states.unreadable)
    emit(json.dumps(states.plain()) if as_json else states_text(states))


def states_text(states: States) -> str:
    from lp_sweep.orchestrator.plan.naming import ASSUMED
    from lp_sweep.storage.setups import hidden_notes

    if not states.sweeps and (states.hidden or any(item.lost for item in states.unreadable)):
        return (
            "no sweep of this store can be read. Run its sweep file again: `lp-sweep run` writes "
            "its cells, and keeps finished trials"
        )
    if not states.sweeps:
        return "no sweep in this store yet"
    width = max(len(state["sweep"]) for state in states.sweeps)
    lines = [
        f"{'sweep':<{width}}  {'cells':>6} {'done':>6}   {'trials':>6} {'done':>6} {'failed':>6} "
        f"{'pending':>7}   {'deferred cells':>14}"
    ]
    lines += [
        f"{s['sweep']:<{width}}  {s['cells']:>6} {s['cells_done']:>6}   {s['trials']:>6} "
        f"{s['trials_done']:>6} {s['trials_failed']:>6} {s['trials_pending']:>7}   "
        f"{s['cells_deferred']:>14}"
        for s in states.sweeps
    ]
    lines += [
        f"{s['sweep']}: {s['cells_not_needed']} cells were not needed for the answer: {ASSUMED}."
        for s in states.sweeps
        if s["cells_not_needed"]
    ]
    now = dt.datetime.now(dt.UTC)
    for run in states.runs:
        lines.append(f"running: {run.sentence()}{_ending(run, now)}")
        known = (states.underway[id_] for id_ in run.held if id_ in states.underway)
        lines += [f"  {work}: {how_far.text}" for work, how_far in known]
    lines += [f"note: {note}" for note in hidden_notes(states.earlier, states.location)]
    return page(lines)


def _ending(run: Announcement, now: dt.datetime) -> str:
    """` on 4 slots, ends about 2026-11-21 14:32 UTC (in 1:05:03)`, without unknown parts."""
    from lp_sweep.storage.printable import clock

    slots = f" on {run.slots} slot{'s' if run.slots > 1 else ''}" if run.slots > 0 else ""
    ends = run.ends_at()
    if ends is None:
        return slots
    left = max(0.0, (ends - now).total_seconds())
    return f"{slots}, ends about {ends:%Y-%m-%d %H:%M} UTC (in {clock(left)})"


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
    from lp_sweep.orchestrator.cli.showing import show_text
    from lp_sweep.orchestrator.service.store import history

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
    """List damaged, foreign and leftover files of a store; exit 1 if there are any.

    Example: lp-sweep doctor --fix
    """
    from lp_sweep.storage import doctor

    found = stored(store)
    findings = doctor.examine(found)
    if fix:
        doctor.fix(found, findings)
    if as_json:
        emit(json.dumps([item._asdict() for item in findings]))
    else:
        emit(_findings_text(found, findings, fixed=fix))
    left = [item for item in findings if item.action != "leave"]
    raise typer.Exit(int(any(not fix or item.action == "restore" for item in left)))


def _findings_text(store: Store, findings: list[Finding], *, fixed: bool) -> str:
    to_fix = [item for item in findings if item.action not in ("leave", "restore")]
    lines = [f"{item.location}: {item.reason}; {item.remedy}" for item in findings]
    if not findings:
        lines = [f"{store.location} is in order"]
    elif fixed and to_fix:
        lines.append(f"files dealt with: {len(to_fix)}; the next run does torn trials again")
        if any(item.path.startswith("predictions/") for item in to_fix):
            lines.append("a trial whose own record is whole is not done again for its predictions")
    elif to_fix:
        where = shlex.quote(store.location)
        lines.append(f"to deal with {len(to_fix)} of them: lp-sweep doctor --fix --store {where}")
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
    """Copy the trials of a store into MLflow, W&B, TensorBoard or trackio. Trials that are
    already there stay as they are.

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
