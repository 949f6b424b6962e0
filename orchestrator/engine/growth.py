"""Grows a plan during its run: by cells that a profile opens, and by cells that a search asks for.

Each newer plan is made whole, and its cells are written for the views, which takes seconds for
100,000 cells. So searches that end their rounds are planned together, and planning takes a small
share of the driver's time, unless nothing else is left to hand out.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from time import monotonic

import pyarrow as pa

from lp_sweep.orchestrator.plan.cells import Asked
from lp_sweep.orchestrator.plan.known import Known, measurements, points_of
from lp_sweep.orchestrator.plan.plan import Plan
from lp_sweep.orchestrator.plan.planning import make_plan
from lp_sweep.orchestrator.plan.searching import curve_of
from lp_sweep.storage.schema import TABLES
from lp_sweep.storage.store import Store

_REST = 20  # times as long as making a plan took: a twentieth of the driver's time


class Rounds:
    """The trials that each curve of a plan's searches waits for. `ended`: those that ended in this
    run, which the plan does not know."""

    def __init__(self, plan: Plan, ended: Set[str] = frozenset()) -> None:
        self._curves: dict[str, set[Asked]] = {}  # of a trial
        self._open: dict[Asked, set[str]] = {}
        for cell in plan.cells:
            if cell.search != "asked" or cell.trial_id is None:
                continue
            curve = curve_of(cell.asked)
            self._curves.setdefault(cell.trial_id, set()).add(curve)
            if cell.state == "pending" and cell.trial_id not in ended:
                self._open.setdefault(curve, set()).add(cell.trial_id)

    def ended(self, trial: str) -> bool:
        """A trial is done, or has failed. True if one of its curves waits for no other."""
        curves = self._curves.get(trial, set())
        for curve in curves:
            self._open.get(curve, set()).discard(trial)
        return any(not self._open.get(curve) for curve in curves)


class Growth:
    """Makes the newer plans of one run. `due`: a newer plan would have other cells to run."""

    def __init__(self, plan: Plan, store: Store, on_plan: Callable[[Plan], None]) -> None:
        self.due = False
        self._store = store
        self._on_plan = on_plan
        self._rounds = Rounds(plan)
        self._rests_until = 0.0

    def after(self, id_: str, plan: Plan, *, done: bool) -> None:
        """Work is done, or has failed. Raises StoreError."""
        if self._rounds.ended(id_):
            self.due = True
        if id_ in plan.profiles and done:
            rows = pa.Table.from_pylist(self._store.read("profiles", id_), TABLES["profiles"])
            profiles = {**plan.known.profiles, **measurements(rows)}
            plan.known = plan.known._replace(profiles=profiles)
            if any(c.state == "deferred" and c.profile_id == id_ for c in plan.cells):
                self.due, self._rests_until = True, 0.0

    def newer(
        self, plan: Plan, done: Set[str], given_up: Set[str], *, shared: bool, idle: bool
    ) -> Plan | None:
        """Returns the newer plan, if it is time for it. `idle`: nothing is left to hand out;
        `shared`: other runs may have trained what searches ask for. Raises StoreError."""
        began = monotonic()
        if began < self._rests_until and not idle:
            return None
        known = with_scores(plan.known, plan, self._store, done, given_up, shared=shared)
        newer = make_plan(plan.sweep, known)
        self._rounds = Rounds(newer, done | given_up)
        self.due = False
        self._on_plan(newer)
        ended = monotonic()
        self._rests_until = ended + _REST * (ended - began)
        return newer


def with_scores(
    known: Known, plan: Plan, store: Store, done: Set[str], failed: Set[str], *, shared: bool
) -> Known:
    """Adds what searches need to know: the scores of finished trials (with `shared` also those of
    other runs), and the trials that this run still waits for. Raises StoreError."""
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
