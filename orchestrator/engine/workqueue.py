"""Hands out the missing work one piece at a time, longest first: profiles before trials, and
speeds at the end, each alone, since other work would change its times.

Pure bookkeeping over a plan: no Ray, and no clock but those of its `pace` and its growth. When a
profile ends, the cells that waited for it become trials; when a search has all that it asked for,
it asks for more, or ends. What another run on the store holds is left to it, and looked at again
at the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from lp_sweep.orchestrator.engine.backlog import Backlog, Outlook, Rank
from lp_sweep.orchestrator.engine.growth import Growth, asked_trials
from lp_sweep.orchestrator.engine.others import Others, Verdict
from lp_sweep.orchestrator.estimate.estimate import Rates
from lp_sweep.orchestrator.estimate.pace import Pace
from lp_sweep.orchestrator.plan.known import Known
from lp_sweep.orchestrator.plan.plan import Plan, Work
from lp_sweep.orchestrator.plan.selection import Selection, policy
from lp_sweep.storage.errors import StoreError
from lp_sweep.storage.networks import keep_while_needed
from lp_sweep.storage.runs import Progress
from lp_sweep.storage.select import Measured
from lp_sweep.storage.store import Store
from lp_sweep.trials.worker.job import Job

_BLOCKED = "missing_input"  # how work fails that waits for a network of what failed


class WorkQueue:
    """`take` gives the next piece or None; `live` is the work that was taken and has not ended.
    Work that was ever done is done, even if it also failed."""

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
        self.pace = Pace(measured=rates.trials > 0)
        self.live: dict[str, Work] = {}
        self.done: set[str] = set()
        self.done_elsewhere: set[str] = set()  # of `done`, by another run
        self.failed: dict[str, str] = {}  # with the error type; measurements too
        self.spooled: dict[str, str] = {}  # recorded on a node, and why the store did not take it
        self._begun: set[str] = set()  # ever, by this run
        self._measured: set[str] = set()  # of trained networks, and speeds
        self._tries: Counter[tuple[str, str]] = Counter()
        self.stopped: str | None = None  # why nothing more is handed out
        self.store_error: str | None = None
        self.ray_error: str | None = None
        self._backlog = Backlog(plan, rates)
        self.outlook = Outlook(self._backlog, rates, self.pace, self.live)
        self._growth = Growth(plan, store, on_plan)
        self._fill()

    def take(self) -> Work | None:
        """The next piece, claimed in the store. Raises StoreError."""
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
        """The job for a worker."""
        job = self.plan.job(work, network=self._backlog.needed(work.id))
        return replace(job, halvings=self.halvings(work.id))

    def halvings(self, id_: str) -> int:
        """How often the piece took a whole host's memory: it starts with smaller micro-batches."""
        return self._tries[id_, "out_of_memory"]

    @property
    def settled(self) -> int:
        """How many pieces have come to an end."""
        return len(self.done) + len(self.failed)

    def ended(
        self, id_: str, error_type: str | None, measures_failed: Mapping[str, str] | None = None
    ) -> None:
        """Work ended with a record (error_type None) or failed for good. Measurements of its
        network may have failed even so."""
        self._let_go(id_)
        self.failed |= measures_failed or {}
        self._settle(id_, error_type)

    def lost(self, id_: str, error_type: str) -> bool:
        """A live piece failed in a way that may pass. True: it will be retried; False: it has no
        tries left, and has failed."""
        self._tries[id_, error_type] += 1
        again = self._tries[id_, error_type] <= policy(error_type).retries
        self._let_go(id_)
        if again:
            self._backlog.push(id_)
        else:
            self._settle(id_, error_type)
        return again

    def not_stored(self, id_: str, why: str, *, spooled: bool) -> None:
        """The store refused the record of a trained piece: hands out nothing more. A `spooled`
        record waits on its node for the next run; any other piece is trained again."""
        self._let_go(id_)
        if spooled:
            self.spooled[id_] = why
        self.refused(why)

    def refused(self, why: str) -> None:
        """Stops: the store was unreachable for longer than a run waits."""
        self.stopped, self.store_error = self.stopped or "store", why

    def ray_lost(self, why: str) -> None:
        """Stops: there is no Ray to hand work out to."""
        self.stopped, self.ray_error = self.stopped or "ray", why

    def again(self, ids: Iterable[str]) -> None:
        """Retries work that failed for a reason that was not its own, and work that needed it."""
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
        """Settles the work that other runs held: done, failed, or ours to do. Raises StoreError."""
        for id_, verdict in self.others.verdicts(self.recorded):
            if verdict is None:
                self._backlog.push(id_)
            else:
                self._settle_elsewhere(id_, verdict)

    def recorded(self, id_: str) -> Mapping[str, str] | None:
        """See `Others.recorded`. Raises StoreError."""
        return self.others.recorded(self.plan, id_, network=self._backlog.needed(id_))

    def known(self) -> Known:
        """Everything known now; scores of searches as the plan had them, since they are read when a
        newer plan is made."""
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
        """Whether anything is left to hand out, or to wait for in another run."""
        left = self._backlog.first() or self.others.holding or self._growth.due
        return not self.stopped and bool(left)

    def progress(self) -> Progress:
        """Other threads call it as well."""
        left = self.waiting + len(self.live) + len(self.others.holding)
        counts = len(self.done), len(self.failed), left
        return Progress(*counts, self.pace.slots, *self.outlook.eta())

    def waiting_by_task(self) -> Mapping[tuple[str, str], int]:
        """How many pieces of each model and task can begin. Other threads call it as well."""
        return self._backlog.tasks()

    def _fill(self) -> None:
        """Adds new work of the plan. The networks that it waits for may have ended before."""
        waited_for = self._backlog.fill(self.plan, self._selection)
        self.outlook.follow(self.plan)
        for need in waited_for:
            if need not in self._backlog.taken_in or need in self.failed:
                self._fail_what_needs(need)
            elif need in self.done:
                self._backlog.once_more(need)

    def _may_begin(self, rank: Rank) -> bool:
        """Whether such a piece may run beside the live work of this run and of other runs."""
        if rank == Rank.SPEED:
            return not self.live and not self.others.holding
        return not self.live.keys() & self.plan.speeds.keys()

    def _settled_by_now(self, id_: str) -> bool:
        """Whether another run has ended work that was just claimed since the plan was made. Raises
        StoreError, with the work back in the queue."""
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
        """Settles work that another run has recorded (with its network, if needed) or failed at."""
        if verdict.error_type is None:
            self.done_elsewhere.add(id_)
            self._backlog.begun(id_)
            self.failed |= verdict.measures_failed
            if self._backlog.needed(id_):  # it may be kept as another run's best
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
        """Whether the plan has become a newer one."""
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
        self._measured |= {item.id for item in self.plan.missing_measures(id_)}
        self._measured |= {id_} & self.plan.speeds.keys()
        self._backlog.succeeded(id_)
        if id_ not in self.plan.profiles:
            for need in self._backlog.idle_after(id_):
                self._on_idle(need)

    def _fail_what_needs(self, need: str) -> None:
        """Fails the work that continues from a network that will not come in this run. An earlier
        run may have recorded that."""
        hopeless = self._backlog.lost(need)
        for id_ in hopeless:
            self._settle(id_, _BLOCKED)
        for id_ in hopeless:
            if self.plan.known.failed.get(id_) != _BLOCKED:
                self._on_blocked(self.plan.work(id_), need)
