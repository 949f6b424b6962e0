"""Other runs on the store: what they hold, and what they have brought to an end meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from lp_sweep.orchestrator.plan.known import attempted_work, failures
from lp_sweep.orchestrator.plan.plan import Plan
from lp_sweep.orchestrator.plan.selection import Selection
from lp_sweep.storage.networks import has_network
from lp_sweep.storage.runs import Announcement
from lp_sweep.storage.store import Store


class Claims(Protocol):
    """How work is kept apart from that of other runs: `storage.runs.Presence`, or nothing.
    `shared`: others have been seen, so what the plan says is missing may be done by now."""

    shared: bool

    def claim(self, work_id: str) -> Announcement | None: ...
    def release(self, work_id: str) -> None: ...
    def others(self) -> list[Announcement]: ...


class Others:
    """All that reads the store raises StoreError."""

    def __init__(self, store: Store, selection: Selection) -> None:
        self.store = store
        self.claims: Claims | None = None
        self.holding: set[str] = set()  # work that was met in the hands of another
        self._selection = selection

    def claim(self, id_: str) -> bool:
        """Whether it is ours now; what another run holds is kept in `holding`."""
        holder = self.claims.claim(id_) if self.claims else None
        if holder is not None:
            self.holding.add(id_)
        return holder is None

    def release(self, id_: str) -> None:
        if self.claims:
            self.claims.release(id_)

    def let_go(self) -> list[str]:
        """Of what others held, the work that none of them holds any more: to be taken out of
        `holding` when it is settled."""
        if not self.holding or not self.claims:
            return []
        held = {id_ for run in self.claims.others() for id_ in run.held}
        return sorted(self.holding - held)

    @property
    def seen(self) -> bool:
        """Whether there are any, or were: else nothing has been done but by this run."""
        return self.claims is not None and self.claims.shared

    def recorded(self, plan: Plan, id_: str, *, network: bool) -> Mapping[str, str] | None:
        """None while the store lacks its record, or what is wanted beside it: its network, its
        measurements. Else those measurements that failed for good, with their types of failure."""
        if plan.is_measurement(id_):
            return None if self.store.find("profiles", id_) is None else {}
        if self.store.find("trials", id_) is None or (network and not has_network(self.store, id_)):
            return None
        wanted = [item.id for item in plan.missing_measures(id_)]
        lacking = {item for item in wanted if self.store.find("profiles", item) is None}
        # a retry names the trial, whose worker takes the measurements
        failed = {
            item: kind
            for item, kind in self._failures(lacking).items()
            if not self._selection.wants(id_, kind)
        }
        return failed if failed.keys() == lacking else None

    def failed(self, ids: Iterable[str]) -> dict[str, str]:
        """Those that failed for good in another run, as this run would leave them alone."""
        found = self._failures(set(ids))
        return {id_: kind for id_, kind in found.items() if not self._selection.wants(id_, kind)}

    def _failures(self, wanted: set[str]) -> dict[str, str]:
        if not wanted:
            return {}
        names = [n for n in self.store.names("attempts") if attempted_work(n) in wanted]
        return failures(self.store.read_all("attempts", names).rows, set()) if names else {}
