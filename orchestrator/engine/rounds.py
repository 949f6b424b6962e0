"""The rounds of searches in a run: when a curve has done all that it asked for, and what is known
of its scores then."""

from __future__ import annotations

from collections.abc import Set

from lp_sweep.orchestrator.plan.known import Known, points_of
from lp_sweep.orchestrator.plan.plan import Plan
from lp_sweep.orchestrator.plan.searching import Curve, curve_of
from lp_sweep.storage.store import Store


class Rounds:
    """Of one plan: which trials each curve waits for. `ended`: those that came to their end in this
    run, which the plan does not know."""

    def __init__(self, plan: Plan, ended: Set[str] = frozenset()) -> None:
        self._curves: dict[str, set[Curve]] = {}  # of a trial
        self._open: dict[Curve, set[str]] = {}
        for cell in plan.cells:
            if cell.search != "asked" or cell.trial_id is None:
                continue
            curve = curve_of(cell.asked)
            self._curves.setdefault(cell.trial_id, set()).add(curve)
            if cell.state == "pending" and cell.trial_id not in ended:
                self._open.setdefault(curve, set()).add(cell.trial_id)

    def ended(self, trial: str) -> bool:
        """A trial is done, or has failed. True where a curve of it waits for no other."""
        curves = self._curves.get(trial, set())
        for curve in curves:
            self._open.get(curve, set()).discard(trial)
        return any(not self._open.get(curve) for curve in curves)


def with_scores(
    known: Known, plan: Plan, store: Store, done: Set[str], failed: Set[str], *, shared: bool
) -> Known:
    """What the next plan has to know of searches: the scores of trials that are done by now, with
    `shared` those of other runs too; and which trials this run still waits for. Raises
    StoreError."""
    searched = {cell.trial_id for cell in plan.cells if cell.search and cell.trial_id}
    lacking = searched - known.points.keys()
    here = lacking & (done | store.names("trials", finished=True) if shared else done)
    rows = store.read_all("trials", sorted(here)).rows if here else None
    points = {**known.points, **(points_of(rows) if rows is not None else {})}
    return known._replace(
        points=points,
        asked=asked_trials(plan) - done - failed,
        given_up=frozenset(failed | (searched & done - points.keys())),
    )


def asked_trials(plan: Plan) -> set[str]:
    """Those that searches of a plan asked for and that had not ended when it was made."""
    return {
        cell.trial_id
        for cell in plan.cells
        if cell.search == "asked" and cell.state == "pending" and cell.trial_id
    }
