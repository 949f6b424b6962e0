"""What is missing, handed out one piece at a time, longest first; profiles before trials.

Pure bookkeeping over a plan: no Ray, no clock. When a profile ends, the cells that waited for it
become trials.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from lp_sweep.orchestrator.estimate import Rates
from lp_sweep.orchestrator.plan import Known, Plan, Work, make_plan
from lp_sweep.storage.store import Store


class WorkQueue:
    """`take` gives the next piece or None; `live` is what was taken and has not ended."""

    def __init__(
        self, plan: Plan, store: Store, rates: Rates, on_plan: Callable[[Plan], None]
    ) -> None:
        self.plan, self.store, self.rates = plan, store, rates
        self.live: dict[str, Work] = {}
        self.done: set[str] = set()
        self.failed: dict[str, str] = {}  # identifier -> error type, of this run
        self._lost: set[str] = set()
        self._on_plan = on_plan
        self._heap: list[tuple[int, float, str]] = []
        self._queued: set[str] = set()
        self._fill()

    def _fill(self) -> None:
        for rank, missing in enumerate((self.plan.missing_profiles(), self.plan.missing_trials())):
            for work in missing:
                if work.id not in self._queued:
                    self._queued.add(work.id)
                    self._push(rank, work)

    def _push(self, rank: int, work: Work) -> None:
        heapq.heappush(self._heap, (rank, -self.rates.seconds(work), work.id))

    def lost(self, id_: str) -> bool:
        """A live piece whose worker was killed goes back, once. False: it was lost before."""
        if id_ in self._lost:
            return False
        self._lost.add(id_)
        self._push(int(id_ in self.plan.trials), self.live.pop(id_))
        return True

    def take(self) -> Work | None:
        if not self._heap:
            return None
        id_ = heapq.heappop(self._heap)[2]
        work = self.live[id_] = self.plan.profiles.get(id_) or self.plan.trials[id_]
        return work

    def ended(self, id_: str, error_type: str | None) -> None:
        """A piece of work came to its end: a record (error_type None) or a failure."""
        del self.live[id_]
        if error_type is not None:
            self.failed[id_] = error_type
            return
        self.done.add(id_)
        if id_ in self.plan.profiles:
            self._open_deferred(id_)

    def _open_deferred(self, profile: str) -> None:
        row = self.store.read("profiles", profile)[0]
        cosines = {item["layer"]: item["value"] for item in row["layers"]}
        known = self.plan.known
        self.plan = make_plan(
            self.plan.sweep,
            Known(known.trials, known.failed, {**known.profiles, profile: cosines}),
        )
        self._on_plan(self.plan)
        self._fill()

    @property
    def waiting(self) -> int:
        return len(self._heap)

    def remaining_seconds(self) -> float:
        """Slot-seconds of all that is waiting or live, by the estimate."""
        waiting = sum(-item[1] for item in self._heap)
        return waiting + sum(self.rates.seconds(work) for work in self.live.values())
