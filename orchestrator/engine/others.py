"""Looks at other runs on the store: the work that they hold, and the work that they have ended."""

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
    """The end of work in another run: it failed for good, or it is recorded, and these
    of its measurements failed, each with its type of failure."""

    error_type: str | None
    measures_failed: Mapping[str, str] = MappingProxyType({})


Recorded = Callable[[str], Mapping[str, str] | None]  # `Others.recorded` under the plan of now


class Others:
    """Claims work, and finds its end in other runs. Whatever reads the store raises StoreError."""

    def __init__(self, store: Store, selection: Selection) -> None:
        self.store = store
        self.claims: Presence | None = None
        self.holding: set[str] = set()  # work that was met in the hands of another
        self._selection = selection

    def claim(self, id_: str) -> bool:
        """Whether the work is ours now. `holding` keeps work that another run holds."""
        holder = self.claims.claim(id_) if self.claims else None
        if holder is not None:
            self.holding.add(id_)
        return holder is None

    def release(self, id_: str) -> None:
        if self.claims:
            self.claims.release(id_)

    def verdict(self, id_: str, recorded: Recorded, *, tried: bool) -> Verdict | None:
        """How another run ended work that was just claimed; None: it is ours to do. `tried`: by
        this run, so that its failures are our own."""
        if not self.seen:
            return None
        if (measures_failed := recorded(id_)) is not None:
            return Verdict(None, measures_failed)
        error_type = None if tried else self._failed([id_]).get(id_)
        return None if error_type is None else Verdict(error_type)

    def verdicts(self, recorded: Recorded) -> Iterator[tuple[str, Verdict | None]]:
        """Work that other runs have released, and how it ended (None: it is ours to do). It is then
        forgotten here."""
        free = self._let_go()
        if not free:
            return
        done = self.store.names("trials", finished=True) | self.store.names("profiles")
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
        """Whether other runs were ever seen: else this run has done everything."""
        return self.claims is not None and self.claims.shared

    def recorded(self, plan: Plan, id_: str, *, network: bool) -> Mapping[str, str] | None:
        """The measurements of the work that failed for good, with their types of failure. None
        while the store lacks its record, its network (if wanted) or another measurement."""
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

    def _failed(self, ids: Iterable[str]) -> dict[str, str]:
        """Work that failed for good in another run and that this run would not retry."""
        found = self._failures(set(ids))
        return {id_: kind for id_, kind in found.items() if not self._selection.wants(id_, kind)}

    def _let_go(self) -> list[str]:
        if not self.holding or not self.claims:
            return []
        held = {id_ for run in self.claims.others() for id_ in run.held}
        return sorted(self.holding - held)

    def _failures(self, wanted: set[str]) -> dict[str, str]:
        if not wanted:
            return {}
        names = [n for n in self.store.names("attempts") if attempted_work(n) in wanted]
        return failures(self.store.read_all("attempts", names).rows, set()) if names else {}
