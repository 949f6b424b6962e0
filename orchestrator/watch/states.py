"""The progress of a store's sweeps, from what the store says alone: the states of their cells, as
the view `cells` has them, and the active runs. It works in any process, with or without a run."""

from __future__ import annotations

import datetime as dt
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from lp_sweep.analysis.views import open_views
from lp_sweep.orchestrator.plan.naming import asked_for_later, layers_of, not_needed
from lp_sweep.storage.catalog import Catalog
from lp_sweep.storage.printable import clock, page, printable, short_model
from lp_sweep.storage.runs import Announcement, Observer
from lp_sweep.storage.setups import Setup, hidden_notes
from lp_sweep.storage.store import Store, Unreadable
from lp_sweep.storage.underway import Looks, Underway
from lp_sweep.trials.spec.feedforward import NONE
from lp_sweep.trials.spec.procedures import DIRECT

_ENDS = ("done", "failed", "pending")  # of trials
_STATES = (*_ENDS, "deferred", "impossible", "not_needed")  # of cells
_COUNTS = """
SELECT sweep, state, error_type, count(*) AS cells, count(DISTINCT trial_id) AS trials,
    count(DISTINCT coalesce(trial_id, profile_id)) AS works
FROM cells GROUP BY ALL ORDER BY sweep, works DESC, error_type
"""
_HOURS = """
SELECT sweep, coalesce(sum(seconds_total), 0) / 3600 AS hours
FROM (SELECT DISTINCT sweep, trial_id, seconds_total FROM cells) GROUP BY sweep
"""
_HELD = """
SELECT model, depth, procedure, feed_forward, strategy, task, seed, kept_layers, trial_id,
    profile_id, state
FROM cells WHERE list_contains($held, trial_id) OR list_contains($held, profile_id)
"""


class States(NamedTuple):
    """The progress of each sweep, and the active runs. Only readable records count."""

    sweeps: list[dict[str, Any]]  # cells and trials by state, failures by type, slot-hours used
    runs: list[Announcement]
    unreadable: list[Unreadable]
    earlier: list[Setup]  # setups of these sweeps whose finished trials no table shows
    location: str  # of the store
    work: dict[str, str]  # what the runs hold and is not done yet, in words
    underway: dict[str, Underway]  # of `work`: the progress of long trials
    hidden: list[str]  # sweeps whose cells can't be read

    def plain(self) -> list[dict[str, Any]]:
        """One object for each sweep. `running` has its active runs, and when each `ends_at`;
        `earlier` has finished trials of another recipe, data or model, which no count includes."""
        return [
            {
                **sweep,
                "running": [self._run(r) for r in self.runs if r.sweep == sweep["sweep"]],
                "earlier": [
                    {
                        "setup": setup.number,
                        "differences": list(setup.differences),
                        "trials_finished": setup.finished,
                    }
                    for setup in self.earlier
                    if setup.sweep == sweep["sweep"]
                ],
            }
            for sweep in self.sweeps
        ]

    def _run(self, run: Announcement) -> dict[str, Any]:
        ends = run.ends_at()
        held = [id_ for id_ in run.held if id_ in self.work]
        return {
            **run._asdict(),
            "ends_at": ends.isoformat(timespec="seconds") if ends else None,
            "work": {id_: self.work[id_] for id_ in held},
            "underway": {id_: self.underway[id_]._asdict() for id_ in held if id_ in self.underway},
        }


def sweep_states(store: Store, only: str | None = None, observer: Observer | None = None) -> States:
    """Raises SpecError for an unknown name. `observer`: of the caller, who looks again and again;
    it sees over time that a run was killed on another machine."""
    names = store.sweeps(only)
    living = (observer or Observer(store)).living()
    runs = [run for run in living if only in (None, run.sweep)]
    with open_views(store, sweep=only, only=["cells"]) as catalog:
        sweeps = _counts(catalog)
        held = {id_ for run in runs for id_ in run.held}
        work = _in_words(catalog, held) if held else {}
        return States(
            sweeps,
            runs,
            catalog.unreadable,
            catalog.earlier_setups(),
            store.location,
            work,
            Looks(store).of(work),
            sorted({*names} - {sweep["sweep"] for sweep in sweeps}),
        )


def _counts(catalog: Catalog) -> list[dict[str, Any]]:
    cells: defaultdict[str, Counter[str]] = defaultdict(Counter)
    trials: defaultdict[str, Counter[str]] = defaultdict(Counter)
    failures: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for row in catalog.query(_COUNTS).to_pylist():
        cells[row["sweep"]][row["state"]] += row["cells"]
        trials[row["sweep"]][row["state"]] += row["trials"]
        if row["state"] == "failed":
            failures[row["sweep"]][row["error_type"] or "bug"] = row["works"]
    hours = {row["sweep"]: row["hours"] for row in catalog.query(_HOURS).to_pylist()}
    return [
        {
            "sweep": sweep,
            "cells": by_state.total(),
            "trials": sum(trials[sweep][state] for state in _ENDS),
            **{f"trials_{state}": trials[sweep][state] for state in _ENDS},
            **{f"cells_{state}": by_state[state] for state in _STATES},
            "failures": failures[sweep],
            "slot_hours": round(hours[sweep], 4),
        }
        for sweep, by_state in cells.items()
    ]


def _in_words(catalog: Catalog, held: Iterable[str]) -> dict[str, str]:
    """`bert-base-cased, layers 1-8 of 12, rte, seed 42` of each that is not done, or the identifier
    itself if no cell names it. An announcement may be a little older than a record."""
    words = {id_: f"measurement {id_}" if id_[:1] == "p" else id_ for id_ in sorted(held)}
    for row in catalog.query(_HELD, {"held": [*words]}).to_pylist():
        if row["state"] == "done":
            words.pop(row["trial_id"], None)
        elif row["trial_id"] in words:
            words[row["trial_id"]] = _trial(row)
        elif row["trial_id"] is None and row["profile_id"] in words:
            model, task = short_model(row["model"]), printable(row["task"])
            words[row["profile_id"]] = (
                f"{model}, measurement for {printable(row['strategy'])}, {task}"
            )
    return words


def _trial(row: Mapping[str, Any]) -> str:
    manner = [] if row["procedure"] in (None, DIRECT) else [printable(row["procedure"])]
    if row["feed_forward"] != NONE:
        manner.append(f"feed-forward {printable(row['feed_forward'])}")
    layers = layers_of(row["kept_layers"], row["depth"])
    task, seed = printable(row["task"]), f"seed {row['seed']}"
    return ", ".join([short_model(row["model"]), layers, *manner, task, seed])


# -- in words


def states_text(states: States) -> str:
    """A line for each sweep, the active runs with what they do, and notes."""
    return page([*sweep_lines(states), *run_lines(states), *note_lines(states)])


def sweep_lines(states: States) -> Iterator[str]:
    if not states.sweeps:
        lost = states.hidden or any(item.lost for item in states.unreadable)
        yield (
            "no sweep of this store can be read. Run its sweep file again: `lp-sweep run` writes "
            "its cells, and keeps finished trials"
            if lost
            else "no sweep in this store yet"
        )
        return
    width = max(len(state["sweep"]) for state in states.sweeps)
    yield f"{'sweep':<{width}}  trainings    done  failed  pending"
    for s in states.sweeps:
        yield (
            f"{s['sweep']:<{width}}  {s['trials']:>9}  {s['trials_done']:>6}  "
            f"{s['trials_failed']:>6}  {s['trials_pending']:>7}"
        )


def run_lines(states: States) -> Iterator[str]:
    now = dt.datetime.now(dt.UTC)
    for run in states.runs:
        yield f"running: {run.sentence()}{_ending(run, now)}"
        for id_, since in run.held.items():
            if id_ in states.work:
                long = f", {states.underway[id_].text}" if id_ in states.underway else ""
                yield f"  {states.work[id_]}: {clock(_seconds_since(since, now))}{long}"


def note_lines(states: States) -> Iterator[str]:
    for sweep in states.sweeps:
        if sweep["failures"]:
            kinds = ", ".join(f"{kind} {count}" for kind, count in sweep["failures"].items())
            yield f"{sweep['sweep']}: failed: {kinds}. `lp-sweep retry` tries them again"
        if waiting := sweep["cells_deferred"]:
            yield f"{sweep['sweep']}: {asked_for_later(waiting)}"
        if skipped := sweep["cells_not_needed"]:
            yield f"{sweep['sweep']}: {not_needed(skipped)}"
    yield from (f"note: {note}" for note in hidden_notes(states.earlier, states.location))


def _ending(run: Announcement, now: dt.datetime) -> str:
    """` on 4 slots, ends about 2026-11-21 14:32 UTC (in 1:05:03)`, without unknown parts; of a
    search, which may end earlier, `(in at most 1:05:03)`."""
    slots = f" on {run.slots} slot{'s' if run.slots > 1 else ''}" if run.slots > 0 else ""
    ends = run.ends_at()
    if ends is None:
        return slots
    left = max(0.0, (ends - now).total_seconds())
    most = "at most " if run.low_seconds is None and run.high_seconds is not None else ""
    return f"{slots}, ends about {ends:%Y-%m-%d %H:%M} UTC (in {most}{clock(left)})"


def _seconds_since(moment: str, now: dt.datetime) -> float | None:
    """None if a foreign file has something else in its place."""
    try:
        then = dt.datetime.fromisoformat(moment)
    except ValueError:
        return None
    return max(0.0, (now - (then if then.tzinfo else then.replace(tzinfo=dt.UTC))).total_seconds())
