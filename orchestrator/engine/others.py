"""Shares the work with other runs on the store: what they hold, and what they have finished."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from lp_sweep.orchestrator.plan.known import attempted_work, failures
from lp_sweep.orchestrator.plan.plan import Plan
from lp_sweep.orchestrator.plan.selection import Selection
from lp_sweep.storage.networks import has_network
from lp_sweep.storage.runs import Presence
from lp_sweep.storage.store import Store


class Verdict(NamedTuple):
    """How another run ended a piece of work: it failed for good, or (error_type None) it is
    recorded, and these of its measurements failed, each with its error type."""

    error_type: str | None
    measures_failed: Mapping[str, str] = MappingProxyType({})


Recorded = Callable[[str], Mapping[str, str] | None]  # `Others.recorded` with the current plan


class Others:
    """Claims work, and finds out how other runs ended it. All that read the store raise
    StoreError."""

    def __init__(self, store: Store, selection: Selection) -> None:
        self.store = store
        self.claims: Presence | None = None
        self.holding: set[str] = set()  # work that another run holds, or held at our last look
        self._selection = selection

    def claim(self, id_: str) -> bool:
        """Whether the work is ours now; if not, it is added to `holding`."""
        holder = self.claims.claim(id_) if self.claims else None
        if holder is not None:
            self.holding.add(id_)
        return holder is None

    def release(self, id_: str) -> None:
        if self.claims:
            self.claims.release(id_)

    def verdict(self, id_: str, recorded: Recorded, *, tried: bool) -> Verdict | None:
        """How another run ended work that we just claimed; None: we must do it. `tried`: this run
        has tried it before, so its failures are our own."""
        if not self.seen:
            return None
        if (measures_failed := recorded(id_)) is not None:
            return Verdict(None, measures_failed)
        error_type = None if tried else self._failed([id_]).get(id_)
        return None if error_type is None else Verdict(error_type)

    def verdicts(self, recorded: Recorded) -> Iterator[tuple[str, Verdict | None]]:
        """Takes the work that other runs have released out of `holding`, with how it ended (None:
        we must do it)."""
        if not self.holding or not self.claims:
            return
        held = {id_ for run in self.claims.others() for id_ in run.held}
        free = sorted(self.holding - held)
        if not free:
            return
        done = self.store.names("trials") | self.store.names("profiles")
        failed = self._failed(id_ for id_ in free if id_ not in done)
        for id_ in free:
            measures_failed = recorded(id_) if id_ in done else None
            self.holding.discard(id_)
            if measures_failed is not None:
                yield id_, Verdict(None, measures_failed)
            else:
                yield id_, Verdict(failed[id_]) if id_ in failed else None

    @property
    def seen(self) -> bool:
        """Whether other runs were ever seen; if not, this run has done everything."""
        return self.claims is not None and self.claims.shared

    def recorded(self, plan: Plan, id_: str, *, network: bool) -> Mapping[str, str] | None:
        """The work's measurements that failed for good, with their error types. None while the
        store lacks its record, its network (if wanted) or another measurement."""
        if plan.is_measurement(id_):
            return None if self.store.find("profiles", id_) is None else {}
        if self.store.find("trials", id_) is None or (network and not has_network(self.store, id_)):
            return None
        wanted = [item.id for item in plan.missing_measures(id_)]
        lacking = {item for item in wanted if self.store.find("profiles", item) is None}
        # a retry names the trial, whose worker repeats the measurements
        failed = {
            item: kind
            for item, kind in self._failures(lacking).items()
            if not self._selection.wants(id_, kind)
        }
        return failed if failed.keys() == lacking else None

    def _failed(self, ids: Iterable[str]) -> dict[str, str]:
        """Work that failed for good in another run and that this run would not retry."""
        found = self._failures(set(ids))
        return {id_: kind for id_, kind in found.items() if not self._selection.wants(id_, kind)}

    def _failures(self, wanted: set[str]) -> dict[str, str]:
        if not wanted:
            return {}
        names = [n for n in self.store.names("attempts") if attempted_work(n) in wanted]
        return failures(self.store.read_all("attempts", names).rows, set()) if names else {}
