"""How a plan grows while its run goes on: by the cells that a profile has opened, and by those that
a search asks for next."""

from __future__ import annotations

import pyarrow as pa

from lp_sweep.orchestrator.plan.known import Known, measurements
from lp_sweep.orchestrator.plan.plan import Plan
from lp_sweep.orchestrator.plan.planning import make_plan
from lp_sweep.orchestrator.run.history import History
from lp_sweep.orchestrator.run.rounds import Rounds, with_scores
from lp_sweep.storage.schema import TABLES
from lp_sweep.storage.store import Store


class Growth:
    """Of the plan of one run."""

    def __init__(self, plan: Plan, store: Store) -> None:
        self._store = store
        self._rounds = Rounds(plan)

    def after(self, id_: str, plan: Plan, history: History, *, shared: bool) -> Plan | None:
        """The newer plan, where the end of a piece (in `history` already) asks for one; `shared`:
        other runs may have trained what searches ask for. Raises StoreError."""
        known, opened = plan.known, False
        if id_ in plan.profiles and id_ in history.done:
            known = self._with_profile(known, id_)
            opened = any(c.state == "deferred" and c.profile_id == id_ for c in plan.cells)
        if opened or self._rounds.ended(id_):
            return self._newer(plan, known, history, shared=shared)
        plan.known = known
        return None

    def _with_profile(self, known: Known, profile: str) -> Known:
        rows = pa.Table.from_pylist(self._store.read("profiles", profile), TABLES["profiles"])
        return known._replace(profiles={**known.profiles, **measurements(rows)})

    def _newer(self, plan: Plan, known: Known, history: History, *, shared: bool) -> Plan:
        given_up = history.given_up()
        known = with_scores(known, plan, self._store, history.done, given_up, shared=shared)
        newer = make_plan(plan.sweep, known)
        self._rounds = Rounds(newer, history.done | given_up)
        return newer
