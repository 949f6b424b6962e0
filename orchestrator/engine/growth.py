"""How a plan grows while its run goes on: by the cells that a profile has opened, and by those that
a search asks for next.

A plan is made whole, and its cells are written for the views, which takes seconds where there are
100,000 of them; so searches that ended their rounds are planned together, and no more often than
takes a small share of the time, unless nothing else is left to hand out.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

import pyarrow as pa

from lp_sweep.orchestrator.engine.history import History
from lp_sweep.orchestrator.engine.rounds import Rounds, with_scores
from lp_sweep.orchestrator.plan.known import Known, measurements
from lp_sweep.orchestrator.plan.plan import Plan
from lp_sweep.orchestrator.plan.planning import make_plan
from lp_sweep.storage.schema import TABLES
from lp_sweep.storage.store import Store

_REST = 20  # times as long as a plan took: it takes a twentieth of the driver's time


class Growth:
    """Of the plan of one run. `due`: a newer plan would have more, or fewer, cells to run."""

    def __init__(self, plan: Plan, store: Store, on_plan: Callable[[Plan], None]) -> None:
        self.due = False
        self._store = store
        self._on_plan = on_plan
        self._rounds = Rounds(plan)
        self._rests_until = 0.0

    def after(self, id_: str, plan: Plan, history: History) -> None:
        """A piece came to its end, and is in `history` already. Raises StoreError."""
        if self._rounds.ended(id_):
            self.due = True
        if id_ in plan.profiles and id_ in history.done:
            plan.known = self._with_profile(plan.known, id_)
            if any(c.state == "deferred" and c.profile_id == id_ for c in plan.cells):
                self.due, self._rests_until = True, 0.0

    def newer(self, plan: Plan, history: History, *, shared: bool, idle: bool) -> Plan | None:
        """The newer plan, where one is due and it is time; `idle`: nothing is left to hand out;
        `shared`: other runs may have trained what searches ask for. Raises StoreError."""
        began = monotonic()
        if not self.due or (began < self._rests_until and not idle):
            return None
        given_up = history.given_up()
        known = with_scores(plan.known, plan, self._store, history.done, given_up, shared=shared)
        newer = make_plan(plan.sweep, known)
        self._rounds = Rounds(newer, history.done | given_up)
        self.due = False
        self._on_plan(newer)
        ended = monotonic()
        self._rests_until = ended + _REST * (ended - began)
        return newer

    def _with_profile(self, known: Known, profile: str) -> Known:
        rows = pa.Table.from_pylist(self._store.read("profiles", profile), TABLES["profiles"])
        return known._replace(profiles={**known.profiles, **measurements(rows)})
