"""What a run has left to hand out: in its order, or kept back for the networks that it needs.

Profiles come first, since cells wait for them, then trials whose networks others need, then all
other trials, and speeds at the end; within a rank the longest first. Knows no store.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

from lp_sweep.orchestrator.engine.intake import taken_in
from lp_sweep.orchestrator.engine.networks import Networks
from lp_sweep.orchestrator.estimate.estimate import Kind, Rates, deferred
from lp_sweep.orchestrator.plan.plan import Plan
from lp_sweep.orchestrator.plan.selection import Selection


class Rank(IntEnum):
    PROFILE = 0
    NEEDED = 1
    TRIAL = 2
    SPEED = 3


class Ready(NamedTuple):
    """A piece that can begin. The least comes first: a tuple's order is that of its fields."""

    rank: Rank
    minus_seconds: float
    id: str


class Sort(NamedTuple):
    """Pieces of a model and a task that take equally long."""

    model: str
    task: str
    kind: Kind


class Backlog:
    """Its `len` is all that waits, ready or not. `networks`: what is kept back, and for what."""

    def __init__(self, plan: Plan, rates: Rates) -> None:
        self.networks = Networks(plan)
        self._plan, self._rates = plan, rates
        self._ready: list[Ready] = []  # a heap
        self._sorts: Counter[Sort] = Counter()  # of these
        self._ready_seconds = self._deferred_seconds = 0.0
        self.alone = 0.0  # seconds of what is handed out with nothing beside it
        self._taken_in: set[str] = set()  # ever, so that a newer plan brings in what is new

    def fill(self, plan: Plan, selection: Selection) -> None:
        """With what the run takes on of a plan, and has not before."""
        self._plan = plan
        self._deferred_seconds = sum(
            count * self._rates.seconds(work) for work, count in deferred(plan)
        )
        self.networks.follow(plan)
        found = taken_in(plan, selection, self.networks)
        fresh = [id_ for id_ in found if id_ not in self._taken_in]
        self._taken_in.update(fresh)
        for id_ in fresh:
            self.networks.add_user(id_)
            self.put(id_)

    def took_in(self, id_: str) -> bool:
        """Whether it was ever among this, handed out or not."""
        return id_ in self._taken_in

    def put(self, id_: str) -> None:
        """To be handed out, now or when what it lacks is there."""
        if not self.networks.keep_back(id_, self._seconds(id_)):
            self.push(id_)

    def push(self, id_: str) -> None:
        """To be handed out now."""
        seconds, rank = self._seconds(id_), self._rank(id_)
        heapq.heappush(self._ready, Ready(rank, -seconds, id_))
        self._sorts[self._sort(id_)] += 1
        self._ready_seconds += seconds
        self.alone += seconds if rank == Rank.SPEED else 0.0

    def first(self) -> Ready | None:
        return self._ready[0] if self._ready else None

    def pop(self) -> None:
        """The first goes."""
        piece = heapq.heappop(self._ready)
        self._sorts[self._sort(piece.id)] -= 1
        self._ready_seconds += piece.minus_seconds
        self.alone += piece.minus_seconds if piece.rank == Rank.SPEED else 0.0

    def succeeded(self, id_: str) -> None:
        """What waited for its network alone can begin; or itself, once more for its network."""
        for free in self.networks.succeeded(id_):
            self.push(free)

    def once_more(self, id_: str) -> None:
        """A piece was done before anything needed its network."""
        for again in self.networks.once_more(id_):
            self.push(again)

    def lost(self, id_: str) -> list[str]:
        """The network of a piece will not come: what goes on from it, and so has failed too."""
        waited = self.networks.lost(id_)
        for other in waited.compared:
            self.put(other)
        return waited.hopeless

    def kinds(self) -> Mapping[Kind, int]:
        """How many pieces that can begin there are of each kind. Called by another thread too."""
        counts: Counter[Kind] = Counter()
        for sort, count in dict(self._sorts).items():
            counts[sort.kind] += count
        return +counts

    def tasks(self) -> Mapping[tuple[str, str], int]:
        """The same of each model and task."""
        counts: Counter[tuple[str, str]] = Counter()
        for sort, count in dict(self._sorts).items():
            counts[sort.model, sort.task] += count
        return +counts

    def __len__(self) -> int:
        return len(self._ready) + len(self.networks.blocked)

    def seconds(self) -> float:
        """Slot-seconds of all of it, and of the cells that wait for a profile, by the estimate."""
        ready = self._ready_seconds if self._ready else 0.0  # without what rounding leaves
        return ready + self.networks.blocked.seconds() + self._deferred_seconds

    def longest(self) -> float:
        """Seconds of the first of those that can begin, beside others."""
        first = self.first()
        return -first.minus_seconds if first and first.rank != Rank.SPEED else 0.0

    def _sort(self, id_: str) -> Sort:
        work = self._plan.work(id_)
        return Sort(work.model.name, work.task.name, self._rates.kind(work))

    def _seconds(self, id_: str) -> float:
        return self._rates.seconds(self._plan.work(id_))

    def _rank(self, id_: str) -> Rank:
        if id_ in self._plan.profiles:
            return Rank.PROFILE
        if id_ in self._plan.speeds:
            return Rank.SPEED
        return Rank.NEEDED if self.networks.needed(id_) else Rank.TRIAL
