"""What is missing, handed out one piece at a time, longest first; profiles before trials, and
speeds at the end: each alone, since what runs beside it would be in its times.

Pure bookkeeping over a plan: no Ray, and no clock but that of its `pace`. When a profile ends, the
cells that waited for it become trials; when a search has all that it asked for, it asks for more,
or ends. What another run on the store holds is left to it, and looked at again at the end.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pyarrow as pa

from lp_sweep.orchestrator.estimate.estimate import Rates, deferred
from lp_sweep.orchestrator.estimate.pace import Pace
from lp_sweep.orchestrator.plan.known import Known, measurements
from lp_sweep.orchestrator.plan.plan import Plan, Work
from lp_sweep.orchestrator.plan.planning import make_plan
from lp_sweep.orchestrator.plan.policy import policy
from lp_sweep.orchestrator.plan.selection import Selection
from lp_sweep.orchestrator.run.blocked import Blocked
from lp_sweep.orchestrator.run.others import Others
from lp_sweep.orchestrator.run.rounds import Rounds, with_scores
from lp_sweep.storage.errors import StoreError
from lp_sweep.storage.networks import keep_while_needed
from lp_sweep.storage.runs import Progress
from lp_sweep.storage.schema import TABLES
from lp_sweep.storage.store import Store
from lp_sweep.trials.select import Measured

_LAST = 3  # the rank of speeds
_BLOCKED = "missing_input"  # how work fails that waits for a network of what failed


class WorkQueue:
    """`take` gives the next piece or None; `live` is what was taken and has not ended."""

    def __init__(
        self,
        plan: Plan,
        store: Store,
        rates: Rates,
        on_plan: Callable[[Plan], None],
        *,
        selection: Selection | None = None,
        on_blocked: Callable[[Work, str], None] = lambda work, need: None,
        on_idle: Callable[[str], None] = lambda need: None,
    ) -> None:
        self.plan, self.store, self.rates = plan, store, rates
        self._selection = selection or Selection()
        self.others = Others(store, self._selection)
        self.pace = Pace(measured=rates.trials > 0)
        self.live: dict[str, Work] = {}
        self.done: set[str] = set()
        self.done_elsewhere: set[str] = set()  # of `done`, by another run
        self.failed: dict[str, str] = {}  # identifier -> error type, of this run
        self.spooled: dict[str, str] = {}  # recorded on a node, and the store did not take it
        self.stopped: str | None = None  # why nothing more is handed out
        self.store_error: str | None = None
        self._tries: Counter[tuple[str, str]] = Counter()
        self._on_plan = on_plan
        self._on_blocked, self._on_idle = on_blocked, on_idle
        self._heap: list[tuple[int, float, str]] = []
        self._heap_seconds = self._deferred_seconds = 0.0
        self._queued: set[str] = set()
        self._measured: set[str] = set()  # of trained networks, and speeds
        self._needed: set[str] = set()  # whose networks other work needs
        self._keeping: set[str] = set()  # begun as needed: their networks come to the store
        self._networks: set[str] = set()  # that came to the store in this run
        self._begun: set[str] = set()  # ever handed out
        self._again: set[str] = set()  # done before, and queued for their networks
        self._blocked = Blocked()
        self._gone: set[str] = set()  # networks that will not come in this run
        self._users: dict[str, set[str]] = {}  # a network -> the work that is still to use it
        self._rounds = Rounds(plan)
        self._fill()

    def _fill(self) -> None:
        self._needed = self.plan.needed_networks()
        self._deferred_seconds = self.rates.total(deferred(self.plan, self.rates)).seconds
        wanted = [
            work.id
            for work in self.plan.missing()
            if self.plan.incomplete(work.id)
            and self._selection.wants(work.id, self.plan.failed_with(work.id))
        ]
        fresh = [id_ for id_ in self._with_needs(wanted) if id_ not in self._queued]
        self._queued |= {*fresh}
        for id_ in fresh:
            for need in self.plan.needs(id_):
                self._users.setdefault(need, set()).add(id_)
            self._put(id_)
        for need in list(self._blocked.needs()):
            if need not in self._queued or need in self.failed:
                self._block(need)
            elif need in self.done and need not in self._again:
                self._once_more(need)

    def _with_needs(self, wanted: list[str]) -> Iterable[str]:
        """And the work whose networks it lacks. A retry takes that along, tried before or not."""
        found, look = dict.fromkeys(wanted), [*wanted]
        while look:
            for need in sorted(self._lacking(look.pop())):
                if need in found:  # `- found.keys()` would go through all of them
                    continue
                if self._selection.retry or self._selection.wants(
                    need, self.plan.known.failed.get(need)
                ):
                    found[need] = None
                    look.append(need)
        return found

    def _lacking(self, id_: str) -> set[str]:
        """Without the network that it is only compared with a trial is worth having all the same:
        that one it does not wait for in vain."""
        start = self._start(id_)
        absent = self.plan.needs(id_) - self.plan.known.networks - self._networks
        return {need for need in absent if need == start or need not in self._gone}

    def _start(self, id_: str) -> str | None:
        return self.plan.trials[id_].start if id_ in self.plan.trials else None

    def job(self, work: Work) -> dict[str, Any]:
        """What a worker gets of it."""
        return self.plan.job(work, network=work.id in self._needed)

    def _once_more(self, need: str) -> None:
        """It was done, or begun, before anything needed its network."""
        self._again.add(need)
        self._push(need)

    def _block(self, need: str) -> None:
        """A network will not come in this run: what needs it has failed too. An earlier run may
        have said so."""
        self._gone.add(need)
        waiting = self._blocked.lost(need)
        hopeless = [id_ for id_ in waiting if self._start(id_) == need]
        for id_ in waiting:
            if self._start(id_) != need:
                self._put(id_)
        for id_ in hopeless:
            self._settle(id_, _BLOCKED)
        for id_ in hopeless:
            if self.plan.known.failed.get(id_) != _BLOCKED:
                self._on_blocked(self.plan.work(id_), need)

    def _put(self, id_: str) -> None:
        """To be handed out, now or when what it lacks is there."""
        if lacking := self._lacking(id_):
            self._blocked.add(id_, lacking, self.rates.seconds(self.plan.work(id_)))
        else:
            self._push(id_)

    def _push(self, id_: str) -> None:
        rank = 0 if id_ in self.plan.profiles else 1 if id_ in self._needed else 2
        rank = _LAST if id_ in self.plan.speeds else rank
        seconds = self.rates.seconds(self.plan.work(id_))
        heapq.heappush(self._heap, (rank, -seconds, id_))
        self._heap_seconds += seconds

    def take(self) -> Work | None:
        """Raises StoreError: to take is to say so in the store."""
        while self._heap and not self.stopped and self._may_begin():
            id_ = self._heap[0][2]
            ours = self.others.claim(id_)
            self._heap_seconds += heapq.heappop(self._heap)[1]
            if not ours:
                continue
            if self._settled_by_now(id_):
                continue
            work = self.live[id_] = self.plan.work(id_)
            self._keeping |= {id_} & self._needed
            return work
        return None

    def _may_begin(self) -> bool:
        """Whether the next piece may run beside what is live, here and as far as is known of other
        runs."""
        if self._heap[0][0] == _LAST:
            return not self.live and not self.others.holding
        return not self.live.keys() & self.plan.speeds.keys()

    def _settled_by_now(self, id_: str) -> bool:
        """Of work that was just claimed: another run may have recorded it, or failed at it, since
        the plan was made. Raises StoreError, with the work back in the queue."""
        failed = kind = None
        try:
            failed = self.recorded(id_) if self.others.seen else None
            if self.others.seen and failed is None and id_ not in self._begun:  # else it is ours
                kind = self.others.failed([id_]).get(id_)
        except StoreError:
            self._push(id_)
            self.others.release(id_)
            raise
        if failed is None and kind is None:
            self._begun.add(id_)
            return False
        self.others.release(id_)
        if failed is not None:
            self._settle_elsewhere(id_, failed)
        else:
            self._settle(id_, kind)
        return True

    def recorded(self, id_: str) -> Mapping[str, str] | None:
        """See `Others.recorded`. Raises StoreError."""
        return self.others.recorded(self.plan, id_, network=id_ in self._needed)

    def ended(
        self, id_: str, error_type: str | None, measures_failed: Mapping[str, str] | None = None
    ) -> None:
        """A piece of work came to its end: a record (error_type None) or a failure for good; of
        its network's measurements some may have failed all the same."""
        self._let_go(id_)
        self.failed |= measures_failed or {}
        self._settle(id_, error_type)

    def lost(self, id_: str, error_type: str) -> bool:
        """A live piece failed in a way that may pass. True: it was put back; False: it has had its
        tries, and has failed."""
        self._tries[id_, error_type] += 1
        self._let_go(id_)
        if self._tries[id_, error_type] > policy(error_type).retries:
            self._settle(id_, error_type)
            return False
        self._push(id_)
        return True

    def not_stored(self, id_: str, why: str, *, spooled: bool) -> None:
        """Trained, and the store did not take the record: hand out nothing more. In the spool of
        its node it waits for the next run; with that refused too it is to be trained again."""
        self._let_go(id_)
        if spooled:
            self.spooled[id_] = why
        self.refused(why)

    def refused(self, why: str) -> None:
        """The store was away for longer than a run waits for it."""
        self.stopped, self.store_error = self.stopped or "store", why

    def again(self, ids: Iterable[str]) -> None:
        """Work that failed for a reason that was not its own, and what failed for want of it."""
        back = {id_ for id_ in ids if self.failed.pop(id_, None) is not None}
        self._gone -= back
        for id_ in back:
            self._push(id_)
        for id_ in [id_ for id_, kind in self.failed.items() if kind == _BLOCKED]:
            if self.plan.needs(id_) & back:
                del self.failed[id_]
                self._put(id_)

    def halvings(self, id_: str) -> int:
        """How often the piece took a whole host's memory: it starts with smaller micro-batches."""
        return self._tries[id_, "out_of_memory"]

    def _let_go(self, id_: str) -> None:
        del self.live[id_]
        self.others.release(id_)

    def _settle(self, id_: str, error_type: str | None) -> None:
        if error_type is not None:
            self.failed[id_] = error_type
            self._block(id_)
        else:
            self._succeeded(id_)
        if self._rounds.ended(id_):
            self._replan(self.plan.known)

    def _succeeded(self, id_: str) -> None:
        self.done.add(id_)
        self._again.discard(id_)
        self._measured |= {item.id for item in self.plan.missing_measures(id_)}
        self._measured |= {id_} & self.plan.speeds.keys()
        if id_ in self._keeping:
            self._networks.add(id_)
            for free in self._blocked.came(id_):
                self._push(free)
        elif id_ in self._blocked.needs():  # begun before anything needed its network
            self._once_more(id_)
        if id_ in self.plan.profiles:
            self._open_deferred(id_)
        else:
            self._tell_idle(id_)

    def _tell_idle(self, id_: str) -> None:
        """Of the networks that it used: those that nothing will use any more."""
        used = [need for need in self.plan.needs(id_) if id_ in self._users.get(need, ())]
        for need in used:
            self._users[need].discard(id_)
        idle = [need for need in used if not self._users[need]]
        if idle and not any(cell.state == "deferred" for cell in self.plan.cells):
            for need in idle:
                self._on_idle(need)

    def _settle_elsewhere(self, id_: str, measures_failed: Mapping[str, str]) -> None:
        """Another run has recorded it, with its network if that is needed."""
        self.done_elsewhere.add(id_)
        self._keeping |= {id_} & self._needed
        self.failed |= measures_failed
        if id_ in self._needed:  # its network may be kept as another run's best
            keep_while_needed(self.store, id_)
        self._settle(id_, None)

    def look_elsewhere(self) -> None:
        """What became of the work that other runs held: done, failed, or ours to do after all.
        Raises StoreError."""
        free = self.others.let_go()
        if not free:
            return
        done = self.store.names("trials", finished=True) | self.store.names("profiles")
        failed = self.others.failed(id_ for id_ in free if id_ not in done)
        for id_ in free:
            measures_failed = self.recorded(id_) if id_ in done else None
            self.others.holding.discard(id_)
            if measures_failed is not None:
                self._settle_elsewhere(id_, measures_failed)
            elif id_ in failed:
                self._settle(id_, failed[id_])
            else:
                self._push(id_)

    def _open_deferred(self, profile: str) -> None:
        rows = pa.Table.from_pylist(self.store.read("profiles", profile), TABLES["profiles"])
        found = measurements(rows)
        known = self.plan.known._replace(profiles={**self.plan.known.profiles, **found})
        if not any(c.state == "deferred" and c.profile_id == profile for c in self.plan.cells):
            self.plan.known = known
            return
        self._replan(known)

    def _replan(self, known: Known) -> None:
        """With the cells that a profile has opened, or that searches ask for next."""
        failed = self.failed.keys() - self.done
        known = with_scores(
            known, self.plan, self.store, self.done, failed, shared=self.others.seen
        )
        self.plan = make_plan(self.plan.sweep, known)
        self._rounds = Rounds(self.plan, self.done | failed)
        self._on_plan(self.plan)
        self._fill()

    def known(self) -> Known:
        """What is known by now."""
        known = self.plan.known
        failed = {**known.failed, **self.failed}
        return known._replace(
            trials=known.trials | self.done,
            profiles={
                **dict.fromkeys(self._measured - failed.keys(), Measured({})),
                **known.profiles,
            },
            failed={id_: kind for id_, kind in failed.items() if id_ not in self.done},
        )

    @property
    def waiting(self) -> int:
        return len(self._heap) + len(self._blocked)

    @property
    def open(self) -> bool:
        """Whether anything is left to hand out, or to wait for in another run."""
        return not self.stopped and bool(self._heap or self.others.holding)

    def progress(self) -> Progress:
        """Called by another thread too."""
        left = len(self._heap) + len(self._blocked) + len(self.live) + len(self.others.holding)
        counts = len(self.done), len(self.failed), left
        return Progress(*counts, self.pace.slots, self.seconds_left())

    def remaining_seconds(self) -> float:
        """Slot-seconds of all that is waiting or live, by the estimate."""
        return self._waiting_seconds() + sum(map(self.rates.seconds, [*self.live.values()]))

    def _waiting_seconds(self) -> float:
        queued = self._heap_seconds if self._heap else 0.0  # without what rounding leaves
        return queued + self._blocked.seconds() + self._deferred_seconds

    def seconds_left(self) -> float | None:
        """Until this run ends, by its pace; None while nobody can say."""
        live = [(work.id, self.rates.seconds(work)) for work in [*self.live.values()]]
        longest = -self._heap[0][1] if self._heap else 0.0
        return self.pace.seconds_left(live, self._waiting_seconds(), longest)
