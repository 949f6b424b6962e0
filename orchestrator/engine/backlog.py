"""The work that a run still has to hand out, in its order, or waiting for networks.

Profiles come first, since cells wait for them, then trials whose networks others need, then all
other trials, and speeds at the end; within a rank the longest first. A network is named by the
trial that trains it. Pure bookkeeping over a plan; knows no store.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, KeysView, Mapping
from enum import IntEnum
from time import monotonic
from typing import NamedTuple

from lp_sweep.orchestrator.estimate.estimate import Kind, Rates, deferred
from lp_sweep.orchestrator.estimate.pace import Eta, Pace
from lp_sweep.orchestrator.estimate.timings import Span
from lp_sweep.orchestrator.plan.plan import Plan, Work
from lp_sweep.orchestrator.plan.selection import Selection


class Rank(IntEnum):
    PROFILE = 0
    NEEDED = 1
    TRIAL = 2
    SPEED = 3


class Ready(NamedTuple):
    """Work that can begin. The least comes first: tuples compare field by field."""

    rank: Rank
    minus_seconds: float
    id: str


class Sort(NamedTuple):
    """Work of a model and a task that takes equally long."""

    model: str
    task: str
    kind: Kind


class Blocked:
    """Work that waits for networks, indexed by work and by network, so that 100,000 waiting pieces
    cost nothing while others end."""

    def __init__(self) -> None:
        self._waits: dict[str, set[str]] = {}  # work -> the networks that it still waits for
        self._seconds: dict[str, float] = {}  # that the work will take
        self._waited_for: dict[str, dict[str, None]] = {}  # a network -> the work that waits

    def __len__(self) -> int:
        return len(self._waits)

    def seconds(self) -> float:
        """How long all of it will take."""
        return sum(self._seconds.values())

    def add(self, id_: str, needs: Iterable[str], seconds: float) -> None:
        self._waits[id_], self._seconds[id_] = set(needs), seconds
        for need in self._waits[id_]:
            self._waited_for.setdefault(need, {})[id_] = None

    def needs(self) -> KeysView[str]:
        """The networks that work waits for."""
        return self._waited_for.keys()

    def came(self, need: str) -> list[str]:
        """A network has come: gives the work that waited only for it."""
        free = []
        for id_ in self._waited_for.pop(need, {}):
            self._waits[id_].discard(need)
            if not self._waits[id_]:
                del self._waits[id_], self._seconds[id_]
                free.append(id_)
        return free

    def lost(self, need: str) -> list[str]:
        """A network will not come: gives the work that waited for it, and forgets it."""
        hopeless = list(self._waited_for.pop(need, {}))
        for id_ in hopeless:
            del self._seconds[id_]
            for other in self._waits.pop(id_) - {need}:
                del self._waited_for[other][id_]
                if not self._waited_for[other]:
                    del self._waited_for[other]
        return hopeless


class Backlog:
    """All work that waits, ready or not; `len` counts it."""

    def __init__(self, plan: Plan, rates: Rates) -> None:
        self._plan, self._rates = plan, rates
        self._ready: list[Ready] = []  # a heap
        self._sorts: Counter[Sort] = Counter()  # of these
        self._ready_seconds = self._deferred_seconds = 0.0
        self.alone = 0.0  # seconds of what is handed out with nothing beside it
        self.taken_in: set[str] = set()  # ever, so that a newer plan brings in what is new
        self._blocked = Blocked()
        self._needed: set[str] = set()  # networks
        self._awaited: set[str] = set()  # these, and teachers whose logits are needed
        self._coming: set[str] = set()  # begun as awaited: they come to the store
        self._came: set[str] = set()  # to the store, in this run
        self._gone: set[str] = set()  # will not come in this run
        self._again: set[str] = set()  # done before, and to be done again for their networks
        self._users: dict[str, set[str]] = {}  # a network -> the work that is still to use it

    def fill(self, plan: Plan, selection: Selection) -> list[str]:
        """Adds work of the plan that is new to the run. Gives the networks that work waits for."""
        self._plan, self._needed = plan, plan.needed_networks()
        self._awaited = plan.needed()
        self._deferred_seconds = sum(
            count * self._rates.seconds(work) for work, count in deferred(plan)
        )
        fresh = [id_ for id_ in self._taken_on(selection) if id_ not in self.taken_in]
        self.taken_in.update(fresh)
        for id_ in fresh:
            for need in plan.needs(id_):
                self._users.setdefault(need, set()).add(id_)
            self.put(id_)
        return [*self._blocked.needs()]

    def _taken_on(self, selection: Selection) -> Iterable[str]:
        """The work that the run was asked for, in the plan's order, then the work whose networks
        that lacks: each once. `plan.selection.taken_on` gives the same before a run."""
        plan = self._plan
        wanted = [
            work.id
            for work in plan.missing()
            if plan.incomplete(work.id) and selection.wants(work.id, plan.failed_with(work.id))
        ]
        found, look = dict.fromkeys(wanted), [*wanted]
        while look:
            for need in sorted(self._lacking(look.pop())):
                if need in found:  # `- found.keys()` would go through all of them
                    continue
                # a retry takes along what it needs, tried before or not
                if selection.retry or selection.wants(need, plan.known.failed.get(need)):
                    found[need] = None
                    look.append(need)
        return found

    def _lacking(self, id_: str) -> set[str]:
        """The networks that a piece waits for. A network that is only compared with the trial is
        left out once it is known not to come: the trial is worth training without it."""
        sources = self._sources(id_)
        absent = self._plan.absent(id_) - self._came
        return {need for need in absent if need in sources or need not in self._gone}

    # -- what is handed out

    def put(self, id_: str) -> None:
        """Adds a piece, to be handed out when the networks that it lacks are there."""
        if lacking := self._lacking(id_):
            self._blocked.add(id_, lacking, self._seconds(id_))
        else:
            self.push(id_)

    def push(self, id_: str) -> None:
        """Adds a piece that can be handed out now."""
        seconds, rank = self._seconds(id_), self._rank(id_)
        heapq.heappush(self._ready, Ready(rank, -seconds, id_))
        self._sorts[self._sort(id_)] += 1
        self._ready_seconds += seconds
        self.alone += seconds if rank == Rank.SPEED else 0.0

    def first(self) -> Ready | None:
        return self._ready[0] if self._ready else None

    def pop(self) -> None:
        """Removes the first."""
        piece = heapq.heappop(self._ready)
        self._sorts[self._sort(piece.id)] -= 1
        self._ready_seconds += piece.minus_seconds
        self.alone += piece.minus_seconds if piece.rank == Rank.SPEED else 0.0

    # -- networks

    def needed(self, id_: str) -> bool:
        """Whether other work needs the network of this."""
        return id_ in self._needed

    def begun(self, id_: str) -> None:
        """Work has begun somewhere; it keeps its network if that is needed by now."""
        if id_ in self._awaited:
            self._coming.add(id_)

    def succeeded(self, id_: str) -> None:
        """Frees the work that waited only for its network; or repeats the piece, if it was begun
        before anything needed its network."""
        self._again.discard(id_)
        if id_ in self._coming:
            self._came.add(id_)
            for free in self._blocked.came(id_):
                self.push(free)
        elif id_ in self._blocked.needs():
            self.once_more(id_)

    def once_more(self, id_: str) -> None:
        """Repeats a piece, once, whose network was not needed when it was done."""
        if id_ not in self._again:
            self._again.add(id_)
            self.push(id_)

    def lost(self, id_: str) -> list[str]:
        """The network of a piece will not come: gives the work that continues from it, which has
        failed as well. Work that is only compared with it goes on."""
        self._gone.add(id_)
        hopeless = []
        for other in self._blocked.lost(id_):
            if id_ in self._sources(other):
                hopeless.append(other)
            else:
                self.put(other)
        return hopeless

    def may_come(self, ids: Iterable[str]) -> None:
        """The work is retried, so its networks may come."""
        self._gone.difference_update(ids)

    def idle_after(self, id_: str) -> list[str]:
        """The networks that a piece has used and nothing else will use."""
        used = [need for need in self._plan.needs(id_) if id_ in self._users.get(need, ())]
        for need in used:
            self._users[need].discard(id_)
        idle = [need for need in used if not self._users[need]]
        to_come = idle and any(cell.state == "deferred" for cell in self._plan.cells)
        return [] if to_come else idle

    # -- how much it is; other threads call these as well

    def kinds(self) -> Mapping[Kind, int]:
        """How many pieces of each kind can begin."""
        counts: Counter[Kind] = Counter()
        for sort, count in dict(self._sorts).items():
            counts[sort.kind] += count
        return +counts

    def tasks(self) -> Mapping[tuple[str, str], int]:
        """How many pieces of each model and task can begin."""
        counts: Counter[tuple[str, str]] = Counter()
        for sort, count in dict(self._sorts).items():
            counts[sort.model, sort.task] += count
        return +counts

    def __len__(self) -> int:
        return len(self._ready) + len(self._blocked)

    def seconds(self) -> float:
        """Slot-seconds of all of it, and of the cells that wait for a profile, by the estimate."""
        ready = self._ready_seconds if self._ready else 0.0  # without what rounding leaves
        return ready + self._blocked.seconds() + self._deferred_seconds

    def longest(self) -> float:
        """Seconds of the first of those that can begin, beside others."""
        first = self.first()
        return -first.minus_seconds if first and first.rank != Rank.SPEED else 0.0

    def _sources(self, id_: str) -> set[str]:
        """The trials without which this one can't be trained."""
        work = self._plan.trials.get(id_)
        return {work.start or "", work.lesson.source if work.lesson else ""} if work else set()

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
        return Rank.NEEDED if id_ in self._awaited else Rank.TRIAL


_BAND_SECONDS = 5.0  # between two looks at all that is left


class Outlook:
    """Tells when a run ends: seconds, and their band. `live`: the work that was handed out and has
    not ended. Each announcement of the run asks for it; the band sums over all kinds of work that
    are left, so it is computed every few seconds at most. Other threads call it as well."""

    def __init__(
        self,
        backlog: Backlog,
        rates: Rates,
        pace: Pace,
        live: Mapping[str, Work],
        *,
        now: Callable[[], float] = monotonic,
    ) -> None:
        self._backlog, self._rates, self._pace, self._live = backlog, rates, pace, live
        self._now = now
        self._searching = False
        self._scale: Span | None = None
        self._looked = -_BAND_SECONDS

    def follow(self, plan: Plan) -> None:
        """Follows a newer plan. While a search may ask for more, its end is the latest one."""
        self._searching = any(cell.search == "waiting" for cell in plan.cells)
        self._looked = -_BAND_SECONDS

    def started(self, work: Work) -> None:
        """A piece starts, or starts again."""
        self._pace.started(work.id)

    def ended(self, work: Work, *, done: bool) -> float:
        """Seconds since the piece started. A failure does not show how long work takes."""
        elapsed = self._pace.elapsed(work.id)
        estimated = self._rates.seconds(work) if done else None
        self._pace.ended(work.id, self._rates.kind(work), estimated)
        return elapsed

    def eta(self) -> Eta:
        """With its band, unless the run is later than that. Work that waits for a network or a
        profile counts as sure as work that can begin."""
        scale = self._scale_now()
        if scale is None:
            return Eta()
        expected, low, high = (self._ends(factor) for factor in scale)
        if self._searching:
            return Eta(expected, high=expected)
        return Eta(expected, low, high) if high else Eta(expected)

    def _ends(self, scale: float | None) -> float | None:
        live = [(work.id, self._rates.seconds(work)) for work in [*self._live.values()]]
        backlog = self._backlog
        waiting = backlog.seconds() - backlog.alone
        return self._pace.seconds_left(
            live, waiting, backlog.longest(), backlog.alone, 1.0 if scale is None else scale
        )

    def _scale_now(self) -> Span | None:
        now = self._now()
        if self._scale is None or now - self._looked >= _BAND_SECONDS:
            self._looked = now
            left = Counter(self._backlog.kinds())
            left.update(map(self._rates.kind, [*self._live.values()]))
            self._scale = self._pace.scale(self._rates, left)
        return self._scale
