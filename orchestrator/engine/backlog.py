"""The pending work of a run: ready in order of priority, or blocked until networks come.

Profiles come first, since cells depend on them, then trials whose networks others need, then other
trials, and speeds at the end; within a rank the longest first. A network has the identifier of the
trial that trains it. Pure bookkeeping over a plan; knows no store.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, KeysView, Mapping
from enum import IntEnum
from typing import NamedTuple

from lp_sweep.orchestrator.estimate.estimate import Rates, deferred
from lp_sweep.orchestrator.estimate.pace import Pending
from lp_sweep.orchestrator.plan.plan import Plan
from lp_sweep.orchestrator.plan.selection import Selection, selected


class Rank(IntEnum):
    PROFILE = 0
    NEEDED = 1
    TRIAL = 2
    SPEED = 3


class Ready(NamedTuple):
    """Work that can begin. Tuples compare field by field, and the smallest comes first."""

    rank: Rank
    minus_seconds: float
    id: str


class Blocked:
    """Work that waits for networks, indexed by work and by network, so that 100,000 waiting trials
    cost nothing while others end."""

    def __init__(self) -> None:
        self._waits: dict[str, set[str]] = {}  # work -> the networks that it still waits for
        self._seconds: dict[str, float] = {}  # that the work will take
        self._waited_for: dict[str, dict[str, None]] = {}  # network -> the work that waits, ordered

    def __len__(self) -> int:
        return len(self._waits)

    def seconds(self) -> float:
        return sum(self._seconds.values())

    def add(self, id_: str, needs: Iterable[str], seconds: float) -> None:
        self._waits[id_], self._seconds[id_] = set(needs), seconds
        for need in self._waits[id_]:
            self._waited_for.setdefault(need, {})[id_] = None

    def needs(self) -> KeysView[str]:
        return self._waited_for.keys()

    def came(self, need: str) -> list[str]:
        """Handles a network that has come. Returns the work that waited only for it."""
        free = []
        for id_ in self._waited_for.pop(need, {}):
            self._waits[id_].discard(need)
            if not self._waits[id_]:
                del self._waits[id_], self._seconds[id_]
                free.append(id_)
        return free

    def lost(self, need: str) -> list[str]:
        """Handles a network that will not come. Removes and returns the work that waited for it."""
        hopeless = list(self._waited_for.pop(need, {}))
        for id_ in hopeless:
            del self._seconds[id_]
            for other in self._waits.pop(id_) - {need}:
                del self._waited_for[other][id_]
                if not self._waited_for[other]:
                    del self._waited_for[other]
        return hopeless


class Backlog:
    """All pending work, ready or blocked; `len` counts it."""

    def __init__(self, plan: Plan, rates: Rates) -> None:
        self._plan, self._rates = plan, rates
        self._ready: list[Ready] = []  # a heap
        self._tasks: Counter[tuple[str, str]] = Counter()  # models and tasks of these
        self._ready_seconds = self._deferred_seconds = 0.0
        self._alone = 0.0  # seconds of ready work that must run alone
        self.taken_in: set[str] = set()  # all work that was ever added
        self._blocked = Blocked()
        self._needed: set[str] = set()  # networks that other work needs
        self._awaited: set[str] = set()  # these, and teachers whose logits are needed
        self._coming: set[str] = set()  # awaited when they began, so that they keep their network
        self._came: set[str] = set()  # networks that have come to the store in this run
        self._gone: set[str] = set()  # networks that will not come in this run
        self._again: set[str] = set()  # done, and repeated for their networks
        self._users: dict[str, set[str]] = {}  # network -> the pending work that uses it

    def fill(self, plan: Plan, selection: Selection) -> list[str]:
        """Adds the plan's new work. Returns the networks that blocked work depends on."""
        self._plan, self._needed = plan, plan.needed_networks()
        self._awaited = plan.needed()
        self._deferred_seconds = sum(
            count * self._rates.seconds(work) for work, count in deferred(plan)
        )
        taken = selected(plan, selection, self._lacking)
        fresh = [id_ for id_ in taken if id_ not in self.taken_in]
        self.taken_in.update(fresh)
        for id_ in fresh:
            for need in plan.needs(id_):
                self._users.setdefault(need, set()).add(id_)
            self.put(id_)
        return [*self._blocked.needs()]

    def _lacking(self, id_: str) -> set[str]:
        """The networks that the work waits for, without those that are only compared with it and
        will not come: the trial is worth training without them."""
        sources = self._sources(id_)
        absent = self._plan.absent(id_) - self._came
        return {need for need in absent if need in sources or need not in self._gone}

    # -- what is handed out

    def put(self, id_: str) -> None:
        """Adds work, to be handed out once the networks that it depends on have come."""
        if lacking := self._lacking(id_):
            self._blocked.add(id_, lacking, self._seconds(id_))
        else:
            self.push(id_)

    def push(self, id_: str) -> None:
        """Adds work that can be handed out now."""
        seconds, rank = self._seconds(id_), self._rank(id_)
        heapq.heappush(self._ready, Ready(rank, -seconds, id_))
        self._tasks[self._task(id_)] += 1
        self._ready_seconds += seconds
        self._alone += seconds if rank == Rank.SPEED else 0.0

    def first(self) -> Ready | None:
        return self._ready[0] if self._ready else None

    def pop(self) -> None:
        """Removes the first ready work."""
        piece = heapq.heappop(self._ready)
        self._tasks[self._task(piece.id)] -= 1
        self._ready_seconds += piece.minus_seconds
        self._alone += piece.minus_seconds if piece.rank == Rank.SPEED else 0.0

    # -- networks

    def needed(self, id_: str) -> bool:
        """Whether other work needs its network."""
        return id_ in self._needed

    def begun(self, id_: str) -> None:
        """The work has begun, here or in another run; it keeps its network if needed by now."""
        if id_ in self._awaited:
            self._coming.add(id_)

    def succeeded(self, id_: str) -> None:
        """Frees the work that waited only for its network; or repeats it, if it began before
        anything needed its network."""
        self._again.discard(id_)
        if id_ in self._coming:
            self._came.add(id_)
            for free in self._blocked.came(id_):
                self.push(free)
        elif id_ in self._blocked.needs():
            self.once_more(id_)

    def once_more(self, id_: str) -> None:
        """Repeats work, once, whose network was not needed when it was done."""
        if id_ not in self._again:
            self._again.add(id_)
            self.push(id_)

    def lost(self, id_: str) -> list[str]:
        """Handles a network that will not come. Returns the work that continues from it, which
        fails as well; work that is only compared with it goes on."""
        self._gone.add(id_)
        hopeless = []
        for other in self._blocked.lost(id_):
            if id_ in self._sources(other):
                hopeless.append(other)
            else:
                self.put(other)
        return hopeless

    def may_come(self, ids: Iterable[str]) -> None:
        """The work is retried, so that its networks may come."""
        self._gone.difference_update(ids)

    def idle_after(self, id_: str) -> list[str]:
        """The networks that this work has used and no other work will use."""
        used = [need for need in self._plan.needs(id_) if id_ in self._users.get(need, ())]
        for need in used:
            self._users[need].discard(id_)
        idle = [need for need in used if not self._users[need]]
        to_come = idle and any(cell.state == "deferred" for cell in self._plan.cells)
        return [] if to_come else idle

    # -- how much is left; other threads call these as well

    def tasks(self) -> Mapping[tuple[str, str], int]:
        """How much ready work there is of each model and task."""
        return +Counter(dict(self._tasks))

    def __len__(self) -> int:
        return len(self._ready) + len(self._blocked)

    def left(self) -> Pending:
        """All pending work, and the cells that wait for a profile."""
        ready = self._ready_seconds if self._ready else 0.0  # drops what rounding left
        first = self.first()
        return Pending(
            ready + self._blocked.seconds() + self._deferred_seconds - self._alone,
            -first.minus_seconds if first and first.rank != Rank.SPEED else 0.0,
            self._alone,
        )

    def _sources(self, id_: str) -> set[str]:
        """The trials that this one can't be trained without."""
        work = self._plan.trials.get(id_)
        return {work.start or "", work.lesson.source if work.lesson else ""} if work else set()

    def _task(self, id_: str) -> tuple[str, str]:
        work = self._plan.work(id_)
        return work.model.name, work.task.name

    def _seconds(self, id_: str) -> float:
        return self._rates.seconds(self._plan.work(id_))

    def _rank(self, id_: str) -> Rank:
        if id_ in self._plan.profiles:
            return Rank.PROFILE
        if id_ in self._plan.speeds:
            return Rank.SPEED
        return Rank.NEEDED if id_ in self._awaited else Rank.TRIAL
