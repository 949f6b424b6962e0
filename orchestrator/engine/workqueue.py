"""Hands out the missing work of a plan, and keeps track of how each piece ended.

Profiles come before trials, and speeds at the end, each alone, since other work would change its
times. When a profile ends, the cells that waited for it become trials; when a search has all that
it asked for, it asks for more, or ends. Work that another run holds is left to that run, and
checked again at the end. Knows no Ray.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from lp_sweep.orchestrator.engine.backlog import Backlog, Rank
from lp_sweep.orchestrator.engine.growth import Growth, asked_trials
from lp_sweep.orchestrator.engine.others import Others, Verdict
from lp_sweep.orchestrator.estimate.estimate import Rates
from lp_sweep.orchestrator.estimate.pace import Eta, Pace
from lp_sweep.orchestrator.plan.known import Known
from lp_sweep.orchestrator.plan.plan import Plan, Work
from lp_sweep.orchestrator.plan.selection import Selection, policy
from lp_sweep.storage.errors import GraphRecordingError, StoreError
from lp_sweep.storage.networks import keep_while_needed
from lp_sweep.storage.runs import Progress
from lp_sweep.storage.store import Store
from lp_sweep.trials.spec.select import Measured
from lp_sweep.trials.worker.job import Job

_BLOCKED = "missing_input"  # the error type of work whose network will not come


class WorkQueue:
    """`take` hands out work; `live` is the work that was taken and has not ended. Work that was
    ever done counts as done, even if it also failed."""

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
        self._on_blocked, self._on_idle = on_blocked, on_idle
        self.others = Others(store, self._selection)
        self.pace = Pace(rates)
        self.live: dict[str, Work] = {}
        self.done: set[str] = set()
        self.done_elsewhere: set[str] = set()  # of `done`, by another run
        self.failed: dict[str, str] = {}  # with the error type; includes measurements
        self.spooled: dict[str, str] = {}  # recorded on a node, and why the store did not take it
        self.unkept: set[str] = set()  # done, but their networks could not be kept
        self._begun: set[str] = set()  # all that this run ever began
        self._measured: set[str] = set()  # of trained networks, and speeds
        self._tries: Counter[tuple[str, str]] = Counter()
        self._without_graphs = set(plan.known.without_graphs)  # models
        self.stopped: str | None = None  # why nothing more is handed out
        self.store_error: str | None = None
        self.ray_error: str | None = None
        self._backlog = Backlog(plan, rates)
        self._growth = Growth(plan, store, on_plan)
        self._fill()

    def take(self) -> Work | None:
        """Returns the next work, claimed in the store; None if there is none now. Raises
        StoreError."""
        work = self._first()
        if work is None and not self.stopped and self._grown(idle=True):
            work = self._first()
        return work

    def _first(self) -> Work | None:
        while (ready := self._backlog.first()) and not self.stopped and self._may_begin(ready.rank):
            ours = self.others.claim(ready.id)
            self._backlog.pop()
            if ours and not self._settled_by_now(ready.id):
                self._backlog.begun(ready.id)
                work = self.live[ready.id] = self.plan.work(ready.id)
                return work
        return None

    def job(self, work: Work) -> Job:
        job = self.plan.job(work, network=self._backlog.needed(work.id))
        graphs = work.model.name not in self._without_graphs
        return replace(job, halvings=self.halvings(work.id), graphs=graphs)

    def halvings(self, id_: str) -> int:
        """How often the work ran out of its host's memory: its micro-batch is halved as often."""
        return self._tries[id_, "out_of_memory"]

    @property
    def settled(self) -> int:
        """How much work has ended."""
        return len(self.done) + len(self.failed)

    def ended(
        self, id_: str, error_type: str | None, measures_failed: Mapping[str, str] | None = None
    ) -> None:
        """Work ended with a record (error_type None) or failed for good. Measurements of a recorded
        network may still have failed."""
        self._let_go(id_)
        self.failed |= measures_failed or {}
        self._settle(id_, error_type)

    def lost(self, id_: str, error_type: str) -> bool:
        """Live work failed in a way that may pass. True: it will be retried; False: it has no
        retries left, and has failed."""
        self._tries[id_, error_type] += 1
        if error_type == GraphRecordingError.kind:
            self._without_graphs.add(self.live[id_].model.name)
        again = self._tries[id_, error_type] <= policy(error_type).retries
        self._let_go(id_)
        if again:
            self._backlog.push(id_)
        else:
            self._settle(id_, error_type)
        return again

    def not_stored(self, id_: str, why: str, *, spooled: bool) -> None:
        """The store refused the record of a finished trial: nothing more is handed out. A `spooled`
        record waits on its node for the next run; without one the trial is trained again."""
        self._let_go(id_)
        if spooled:
            self.spooled[id_] = why
        self.refused(why)

    def stop(self, why: str) -> None:
        """Hands nothing more out. Of several reasons the first counts."""
        self.stopped = self.stopped or why

    def refused(self, why: str) -> None:
        """Stops the run: the store was unreachable for longer than a run waits."""
        self.store_error = why
        self.stop("store")

    def ray_lost(self, why: str) -> None:
        """Stops the run: there is no Ray to hand work out to."""
        self.ray_error = why
        self.stop("ray")

    def again(self, ids: Iterable[str]) -> None:
        """Retries work that failed through no fault of its own, and the work that needed it."""
        back = {id_ for id_ in ids if self.failed.pop(id_, None) is not None}
        if not back:
            return
        self._backlog.may_come(back)
        for id_ in back:
            self._backlog.push(id_)
        blocked = [id_ for id_, kind in self.failed.items() if kind == _BLOCKED]
        for id_ in blocked:
            if self.plan.needs(id_) & back:
                del self.failed[id_]
                self._backlog.put(id_)

    def look_elsewhere(self) -> None:
        """Settles the work that other runs have released. Raises StoreError."""
        for id_, verdict in self.others.verdicts(self.recorded):
            if verdict is None:
                self._backlog.push(id_)
            else:
                self._settle_elsewhere(id_, verdict)

    def recorded(self, id_: str) -> Mapping[str, str] | None:
        """See `Others.recorded`. Raises StoreError."""
        return self.others.recorded(self.plan, id_, network=self._backlog.needed(id_))

    def known(self) -> Known:
        """The `Known` of this moment. Scores of searches are the plan's: newer ones are read when
        it grows."""
        known = self.plan.known
        failed = {**known.failed, **self.failed}
        measured = dict.fromkeys(self._measured - failed.keys(), Measured({}))
        return known._replace(
            trials=known.trials | self.done,
            profiles={**measured, **known.profiles},
            failed={id_: kind for id_, kind in failed.items() if id_ not in self.done},
            asked=asked_trials(self.plan),
        )

    @property
    def waiting(self) -> int:
        return len(self._backlog)

    @property
    def open(self) -> bool:
        """Whether work is left to hand out, or to wait for in another run."""
        left = self._backlog.first() or self.others.holding or self._growth.due
        return not self.stopped and bool(left)

    def progress(self) -> Progress:
        left = self.waiting + len(self.live) + len(self.others.holding)
        counts = len(self.done), len(self.failed), left
        return Progress(*counts, self.pace.slots, *self.eta())

    def eta(self) -> Eta:
        """When the run ends. Other threads call it as well."""
        live = {work.id: self.rates.seconds(work) for work in [*self.live.values()]}
        return self.pace.eta(live, self._backlog.left())

    def waiting_by_task(self) -> Mapping[tuple[str, str], int]:
        """How much ready work there is of each model and task."""
        return self._backlog.tasks()

    def _fill(self) -> None:
        """Adds the plan's new work. The networks that it depends on may have ended already."""
        waited_for = self._backlog.fill(self.plan, self._selection)
        self.pace.follow(self.plan)
        for need in waited_for:
            if need not in self._backlog.taken_in or need in self.failed:
                self._fail_what_needs(need)
            elif need in self.done:
                self._backlog.once_more(need)

    def _may_begin(self, rank: Rank) -> bool:
        """Whether such work may run next to the live work of this run and of others."""
        if rank == Rank.SPEED:
            return not self.live and not self.others.holding
        return not self.live.keys() & self.plan.speeds.keys()

    def _settled_by_now(self, id_: str) -> bool:
        """Whether another run has ended the work, just claimed, since the plan was made. Raises
        StoreError, after it has put the work back."""
        tried = id_ in self._begun
        try:
            verdict = self.others.verdict(id_, self.recorded, tried=tried)
        except StoreError:
            self._backlog.push(id_)
            self.others.release(id_)
            raise
        if verdict is None:
            self._begun.add(id_)
            return False
        self.others.release(id_)
        self._settle_elsewhere(id_, verdict)
        return True

    def _settle_elsewhere(self, id_: str, verdict: Verdict) -> None:
        if verdict.error_type is None:
            self.done_elsewhere.add(id_)
            self._backlog.begun(id_)
            self.failed |= verdict.measures_failed
            if self._backlog.needed(id_):  # the other run may keep it as its best only
                keep_while_needed(self.store, id_)
        self._settle(id_, verdict.error_type)

    def _let_go(self, id_: str) -> None:
        del self.live[id_]
        self.others.release(id_)

    def _settle(self, id_: str, error_type: str | None) -> None:
        if error_type is None:
            self._succeeded(id_)
        else:
            self.failed[id_] = error_type
            self._fail_what_needs(id_)
        self._growth.after(id_, self.plan, done=id_ in self.done)
        self._grown(idle=self._backlog.first() is None)

    def _grown(self, *, idle: bool) -> bool:
        """Replaces the plan by a newer one if one is due; True if it does."""
        if not self._growth.due:
            return False
        shared = self.others.seen
        given_up = self.failed.keys() - self.done
        newer = self._growth.newer(self.plan, self.done, given_up, shared=shared, idle=idle)
        if newer is not None:
            self.plan = newer
            self._fill()
        return newer is not None

    def _succeeded(self, id_: str) -> None:
        self.done.add(id_)
        lasting = ((key, n) for key, n in self._tries.items() if not policy(key[1]).forgiven)
        self._tries = Counter(dict(lasting))
        self._measured |= {item.id for item in self.plan.missing_measures(id_)}
        self._measured |= {id_} & self.plan.speeds.keys()
        self._backlog.succeeded(id_)
        if id_ not in self.plan.profiles:
            for need in self._backlog.idle_after(id_):
                self._on_idle(need)

    def _fail_what_needs(self, need: str) -> None:
        """Fails the work that continues from a network that will not come in this run. Records
        that unless an earlier run has."""
        hopeless = self._backlog.lost(need)
        for id_ in hopeless:
            self._settle(id_, _BLOCKED)
        for id_ in hopeless:
            if self.plan.known.failed.get(id_) != _BLOCKED:
                self._on_blocked(self.plan.work(id_), need)
