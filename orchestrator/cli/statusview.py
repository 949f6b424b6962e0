"""How far each sweep of a store is, and who works on it. Only records that can be read count."""

from __future__ import annotations

import datetime as dt
from typing import Any, NamedTuple

from lp_sweep.orchestrator.estimate.pace import clock
from lp_sweep.orchestrator.plan.known import failures
from lp_sweep.orchestrator.sweepfile.until import ASSUMED
from lp_sweep.orchestrator.watch.counts import COLUMNS, state_counts
from lp_sweep.storage.hidden import hidden_notes
from lp_sweep.storage.printable import page
from lp_sweep.storage.runs import Announcement, Observer
from lp_sweep.storage.setups import Setup, earlier_setups
from lp_sweep.storage.store import Store, Unreadable
from lp_sweep.storage.wording import unknown_sweep


class States(NamedTuple):
    """One object a sweep: its cells and trials by state. The runs at work on the store, and the
    files that tell of none."""

    sweeps: list[dict[str, Any]]
    runs: list[Announcement]
    unreadable: list[Unreadable]
    earlier: list[Setup]  # of these sweeps: finished trials that no table shows
    location: str  # of the store


def sweep_states(store: Store, only: str | None = None) -> States:
    """Raises SpecError for an unknown name."""
    names = sorted(store.names("sweeps"))
    if only is not None and only not in names:
        raise unknown_sweep(only, names, store.location)
    trials = store.read_all("trials", columns=["trial_id"], in_order=False)  # all bytes are checked
    done = set(trials.rows["trial_id"].to_pylist())
    attempts = store.read_all("attempts")
    failed = set(failures(attempts.rows, done))
    runs = [run for run in Observer(store).living() if only in (None, run.sweep)]
    earlier = earlier_setups(store, only, done)
    states = States([], runs, [*trials.unreadable, *attempts.unreadable], earlier, store.location)
    for name in names if only is None else [only]:
        listing = store.read_all("sweeps", [name], COLUMNS)
        states.unreadable.extend(listing.unreadable)
        if not listing.unreadable:
            counts = state_counts(listing.rows, done, failed)
            states.sweeps.append({"sweep": name, **counts})
    return states


def states_json(states: States) -> list[dict[str, Any]]:
    """A list of sweeps; `running` are the runs at work on it, with when each `ends_at`; `earlier`
    its finished trials of another recipe, data or model, which are in no other count."""
    return [
        {
            **sweep,
            "running": [_run_json(r) for r in states.runs if r.sweep == sweep["sweep"]],
            "earlier": [_setup_json(e) for e in states.earlier if e.sweep == sweep["sweep"]],
        }
        for sweep in states.sweeps
    ]


def _setup_json(setup: Setup) -> dict[str, Any]:
    return {
        "setup": setup.number,
        "differences": list(setup.differences),
        "trials_finished": setup.finished,
    }


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
    lines += [f"{s['sweep']}: {ASSUMED}." for s in states.sweeps if s["cells_not_needed"]]
    now = dt.datetime.now(dt.UTC)
    lines += [f"running: {run.sentence()}{_ending(run, now)}" for run in states.runs]
    lines += [f"note: {note}" for note in hidden_notes(states.earlier, states.location)]
    return page(lines)
