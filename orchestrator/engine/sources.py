"""The networks of a store that work goes on from: held while it is missing, released after.

While another run works on the store nothing is released: it may need the same. The last one does.
"""

from __future__ import annotations

from collections.abc import Iterable

from lp_sweep.orchestrator.plan.plan import Plan
from lp_sweep.storage.networks import WEIGHTS, keep_while_needed, release
from lp_sweep.storage.runs import Presence
from lp_sweep.storage.store import Store


class Sources:
    """Of one run. `keep_best`: what a `best` would keep stays. All of it raises StoreError."""

    def __init__(self, store: Store, presence: Presence, *, keep_best: bool) -> None:
        self.store, self.presence, self.keep_best = store, presence, keep_best

    def hold(self, plan: Plan) -> None:
        """What is there already, from a `best` that would delete it for a better seed."""
        for id_ in sorted(plan.needed_networks() & plan.known.networks):
            keep_while_needed(self.store, id_)

    def release(self, ids: Iterable[str]) -> None:
        """What was kept for others alone."""
        if self.presence.others():
            return
        for id_ in sorted(ids):
            if row := self.store.find("trials", id_):
                release(self.store, row[0], keep_best=self.keep_best)

    def release_idle(self, plan: Plan) -> None:
        """All that no work of the plan needs any more."""
        if idle := plan.sources() - plan.needed_networks():
            self.release(idle & self.store.folders(WEIGHTS))
