"""How far each sweep of a store is, and who works on it. No trial's record is opened."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from typing import Any, NamedTuple

from lp_sweep.orchestrator.known import failures
from lp_sweep.orchestrator.pace import clock
from lp_sweep.storage.errors import SpecError
from lp_sweep.storage.printable import printable
from lp_sweep.storage.runs import Announcement, Observer
from lp_sweep.storage.store import Store, Unreadable


class States(NamedTuple):
    """One object a sweep: its cells and trials by state. The runs at work on the store, and the
    files that tell of none."""

    sweeps: list[dict[str, Any]]
    runs: list[Announcement]
    unreadable: list[Unreadable]


STATES = ("done", "failed", "pending", "deferred", "impossible")


def sweep_states(store: Store, only: str | None = None) -> States:
    """Raises SpecError for an unknown name."""
    names = sorted(store.names("sweeps"))
    if only is not None and only not in names:
        raise SpecError(
            f"no sweep {only!r} in {store.location}. It has: {', '.join(names) or 'none'}."
        )
    done = store.names("trials", finished=True)
    attempts = store.read_all("attempts")
    failed = set(failures(attempts.rows, done))
    runs = [run for run in Observer(store).living() if only in (None, run.sweep)]
    states = States([], runs, list(attempts.unreadable))
    for name in names if only is None else [only]:
        listing = store.read_all("sweeps", [name])
        states.unreadable.extend(listing.unreadable)
        if not listing.unreadable:
            states.sweeps.append(_state(name, listing.rows.to_pylist(), done, failed))
    return states


def _state(
    name: str, cells: list[dict[str, Any]], done: set[str], failed: set[str]
) -> dict[str, Any]:
    def of_trial(trial: str) -> str:
        return "done" if trial in done else "failed" if trial in failed else "pending"

    def of_cell(cell: dict[str, Any]) -> str:
        if cell["trial_id"] is not None:
            return of_trial(cell["trial_id"])
        return "impossible" if cell["kept_layers"] == [] else "deferred"

    trials = {cell["trial_id"] for cell in cells if cell["trial_id"] is not None}
    by_cell, by_trial = Counter(map(of_cell, cells)), Counter(map(of_trial, trials))
    return {
        "sweep": name,
        "cells": len(cells),
        "trials": len(trials),
        **{f"trials_{key}": by_trial[key] for key in ("done", "failed", "pending")},
        **{f"cells_{key}": by_cell[key] for key in STATES},
    }


def states_json(states: States) -> list[dict[str, Any]]:
    """A list of sweeps; `running` are the runs at work on it, with when each `ends_at`."""
    return [
        {**sweep, "running": [_run_json(r) for r in states.runs if r.sweep == sweep["sweep"]]}
        for sweep in states.sweeps
    ]


def _run_json(run: Announcement) -> dict[str, Any]:
    ends = run.ends_at()
    return {**run._asdict(), "ends_at": ends.isoformat(timespec="seconds") if ends else None}


def _ending(run: Announcement, now: dt.datetime) -> str:
    """` on 4 slots, ends about 2026-11-21 14:32 UTC (in 1:05:03)`, as far as it is known."""
    slots = f" on {run.slots} slot{'s' if run.slots > 1 else ''}" if run.slots > 0 else ""
    ends = run.ends_at()
    if ends is None:
        return slots
    left = max(0.0, (ends - now).total_seconds())
    return f"{slots}, ends about {ends:%Y-%m-%d %H:%M} UTC (in {clock(left)})"


def states_text(states: States) -> str:
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
    now = dt.datetime.now(dt.UTC)
    lines += [f"running: {run.sentence()}{_ending(run, now)}" for run in states.runs]
    return "\n".join(map(printable, lines))
