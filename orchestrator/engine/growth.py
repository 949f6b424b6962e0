"""What a newer plan of a run in progress is made from: how its searches have gone so far."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Set

from lp_sweep.orchestrator.plan.cells import Asked
from lp_sweep.orchestrator.plan.known import Known, points_of
from lp_sweep.orchestrator.plan.plan import Plan
from lp_sweep.orchestrator.plan.searching import curve_of
from lp_sweep.storage.store import Store


def rounds_of(plan: Plan) -> Mapping[str, list[list[str]]]:
    """Trial -> the trials of each round that it belongs to: once all of them have ended, the search
    of that curve asks for more, or ends."""
    rounds: dict[Asked, list[str]] = defaultdict(list)
    for cell in plan.cells:
        if cell.search == "asked" and cell.state == "pending" and cell.trial_id:
            rounds[curve_of(cell.asked)].append(cell.trial_id)
    found: dict[str, list[list[str]]] = defaultdict(list)
    for trials in rounds.values():
        for trial in trials:
            found[trial].append(trials)
    return found


def with_scores(
    plan: Plan, store: Store, done: Set[str], failed: Set[str], *, shared: bool
) -> Known:
    """Adds what searches need to know: the scores of finished trials (with `shared` also those of
    other runs), and the trials that this run still waits for. Raises StoreError."""
    known = plan.known
    searched = {cell.trial_id for cell in plan.cells if cell.search and cell.trial_id}
    lacking = searched - known.points.keys()
    here = lacking & (done | store.names("trials") if shared else done)
    rows = store.read_all("trials", sorted(here)).rows if here else None
    points = {**known.points, **(points_of(rows) if rows is not None else {})}
    return known._replace(
        points=points,
        asked=asked_trials(plan) - done - failed,
        given_up=frozenset(failed | (searched & done - points.keys())),
    )


def asked_trials(plan: Plan) -> set[str]:
    """The trials that a plan's searches asked for and that had not ended when it was made."""
    return {
        cell.trial_id
        for cell in plan.cells
        if cell.search == "asked" and cell.state == "pending" and cell.trial_id
    }
