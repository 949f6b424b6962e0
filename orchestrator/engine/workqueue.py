"""Hands out the missing work of a plan, and keeps track of how each piece ended.

Profiles come first, since cells depend on them, then trials whose networks others need, then other
trials, and speeds at the end, each alone where trials share a GPU, which would change its times;
within a rank full models and networks that nobody trains come first, then the longest. When a
profile ends, the cells that waited for it become trials; when a search has all that it asked for,
it asks for more, or ends. A network has the identifier of the trial that trains it. Trials of a
model on a task that its full model did not learn are left out. Knows no Ray.

Runs share a store. A run claims work only for its idle slots, for all of them in one write, and
begins it at once: so no run keeps work from another that it has no slot for. What it does not begin
after all, since a machine was lost or the run is stopping, it gives back with its next write. Work
that another run holds is left to that run, and looked at again when that run has released it.
"""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from enum import IntEnum
from heapq import heappop, heappush
from time import monotonic
from typing import Literal

import pyarrow as pa

from lp_sweep.orchestrator.engine.capacity import PerTrial
from lp_sweep.orchestrator.estimate import Eta, Pace, Rates, deferred_work
from lp_sweep.orchestrator.plan.cells import CellAxes
from lp_sweep.orchestrator.plan.known import (
    WorkHistory,
    ends_of,
    found_recipes,
    measurements,
    points_of,
)
from lp_sweep.orchestrator.plan.plan import ModelTask, Plan, Work
from lp_sweep.orchestrator.plan.planning import make_plan
from lp_sweep.orchestrator.plan.searching import curve_of
from lp_sweep.orchestrator.plan.selection import Selection, policy, selected
from lp_sweep.storage.errors import GraphRecordingError, StoreError
from lp_sweep.storage.networks import keep_while_needed
from lp_sweep.storage.runs import Presence, Progress
from lp_sweep.storage.schema import TABLES, TRIALS
from lp_sweep.storage.store import Store
from lp_sweep.trials.spec.procedures import NOT_RETRAINED
from lp_sweep.trials.spec.select import LayerScores
from lp_sweep.trials.worker.job import Job

State = Literal["pending", "live", "done", "failed"]

_BLOCKED = "missing_input"  # the error type of work whose network will not come
_REST = 20  # times as long as making a plan took: a twentieth of the driver's time
_DRAWN_FROM = 4  # times as much work as is claimed, for each other run


class Rank(IntEnum):
    PROFILE = 0
    NEEDED = 1
    TRIAL = 2
    SPEED = 3


class WorkQueue:
    """`take` hands out work. `state`: of the work that the run has taken on, and of the work that
    it needs, which may have failed before. Methods that look at other runs raise StoreError.

    `done` is what was ever done, even if it also failed, or is repeated for its network; `failed`
    has the error types, also those of measurements."""

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
        self.store, self.rates = store, rates
        self._selection = selection or Selection()
        self._on_plan, self._on_blocked, self._on_idle = on_plan, on_blocked, on_idle
        self.pace = Pace(rates.ratio)
        self.state: dict[str, State] = {}
        self.live: dict[str, Work] = {}
        self.done: set[str] = set()
        self.done_elsewhere: set[str] = set()  # of `done`, by another run
        self.failed: dict[str, str] = {}
        self.spooled: dict[str, str] = {}  # recorded on a node, and why the store did not take it
        self.unkept: set[str] = set()  # done, but their networks could not be kept
        self.claims: Presence | None = None
        self.claimed: list[str] = []  # pending work that idle slots are about to begin
        self.holding: set[str] = set()  # pending work that another run held at our last look
        self._ahead: set[str] = set()  # full models taken on before a search asked for them
        self._left_out: set[ModelTask] = set()  # what the full model did not learn
        self.stopped: str | None = None  # why nothing more is handed out
        self.stop_detail = ""  # the store's answer, or how Ray was lost
        self._waiting: dict[str, float] = {}  # pending work that no other run holds -> its seconds
        self._order: list[tuple[Rank, float, str]] = []  # a heap: all that is ready, and more
        self._begun: dict[str, bool] = {}  # all that this run began -> whether its network is kept
        self._tries: Counter[tuple[str, str]] = Counter()
        self._without_graphs = set(plan.known.without_graphs)  # models
        self._plan_due = False  # a newer plan would have other cells to run
        self._rests_until = 0.0  # before the next plan is made
        self._follow(plan)

    # -- what is handed out

    def take(self, slots: int = 1) -> Work | None:
        """Returns the next work, claimed in the store; None if there is none now. `slots` are idle:
        what they begin next is claimed together."""
        work = self._next(slots)
        if work is None and not self.stopped and (self._grown() or self._looked_ahead()):
            work = self._next(slots)
        return work

    def _next(self, slots: int) -> Work | None:
        while not self.stopped:
            if not self.claimed:
                if not (ids := self._first(slots)):
                    return None
                self._claim(ids)
                continue
            id_ = self.claimed.pop(0)
            if id_ in self._waiting and not self._lacking(id_) and self._may_begin(id_):
                self._begun[id_] = id_ in self._needed
                self._set(id_, "live")
                work = self.live[id_] = self.plan.work(id_)
                return work
            self._release([id_])
        return None

    def _looked_ahead(self) -> bool:
        """Takes on the full model of one more seed, where a slot would be idle while a search waits
        for other trials: most searches ask for it later. True if there is one. In simulations with
        four slots a search ends after 0.87 of the time, with a hundredth more trainings."""
        if not self.live or self._ahead & self.live.keys():
            return False
        left = (id_ for id_ in self.plan.ahead if id_ not in self.state)
        if (id_ := next((id_ for id_ in left if not self._is_left_out(id_)), None)) is None:
            return False
        work = self.plan.trials[id_] = self.plan.ahead[id_]
        self._ahead.add(id_)
        self._seconds[id_] = self.rates.seconds(work)
        self._set(id_, "pending")
        return True

    def _first(self, slots: int) -> list[str]:
        """The work to begin next in so many slots, all of one rank. Several runs would want the
        same work in the same order, so that each draws from more than it needs."""
        first = self.ready()
        if first is None or not self._may_begin(first):
            return []
        rank, drawn = self._rank(first), 1
        if self.claims is not None and self.claims.shared:
            drawn = _DRAWN_FROM * max(1, len(self.claims.alive))
        entries: list[tuple[Rank, float, str]] = []
        while len(entries) < slots * drawn and self.ready() and self._order[0][0] == rank:
            entries.append(heappop(self._order))
        for entry in entries:
            heappush(self._order, entry)
        ids = [*dict.fromkeys(id_ for _, _, id_ in entries)]
        if drawn > 1:
            random.shuffle(ids)
        return ids[:slots]

    def ready(self) -> str | None:
        """The pending work to begin next. Work that still waits for a network leaves the order: the
        end of what it waits for brings it back."""
        while self._order:
            id_ = self._order[0][-1]
            if id_ in self._waiting and not self._lacking(id_):
                return id_
            heappop(self._order)
        return None

    def _set(self, id_: str, state: State) -> None:
        """Changes the state of work, and its place in the order."""
        self.state[id_] = state
        self._waiting.pop(id_, None)
        if state == "pending" and id_ not in self.holding and not self._is_left_out(id_):
            self._waiting[id_] = self._seconds[id_]
            heappush(self._order, (self._rank(id_), self._turn(id_), id_))

    def _lacking(self, id_: str) -> set[str]:
        """The networks that the work waits for. One that it is only compared with may fail."""
        absent = self._absent.get(id_)
        if not absent:
            return set()
        work = self.plan.trials[id_]
        sources = {work.start, work.lesson.source if work.lesson else None}
        there = {n for n in absent if self._begun.get(n) and self.state.get(n) == "done"}
        return {
            need for need in absent - there if need in sources or self.state.get(need) != "failed"
        }

    def _may_begin(self, id_: str) -> bool:
        """Whether the work may run next to the live work of this run and of others. Two networks
        that take turns see the same load, but for one that comes and goes on their GPU."""
        alone = self.plan.speeds if PerTrial.of(self.plan.sweep.spec).share_gpus else {}
        return not (self.live or self.holding if id_ in alone else self.live.keys() & alone.keys())

    def job(self, work: Work) -> Job:
        job = self.plan.job(work, network=work.id in self._networks)
        graphs = work.model.name not in self._without_graphs
        halvings = self._tries[work.id, "out_of_memory"]  # of its host's memory
        return replace(job, halvings=halvings, graphs=graphs)

    # -- how it ended

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
        if not again:
            self._settle(id_, error_type)
        return again

    def not_stored(self, id_: str, why: str, *, spooled: bool) -> None:
        """The store refused the record of a finished trial: nothing more is handed out. A `spooled`
        record waits on its node for the next run; without one the trial is trained again."""
        self._let_go(id_)
        if spooled:
            self.spooled[id_] = why
        self.stop("store", why)

    def stop(self, why: str, detail: str = "") -> None:
        """Hands nothing more out. Of several reasons the first counts."""
        if not self.stopped:
            self.stopped, self.stop_detail = why, detail
        self.give_back()

    def leave_out(self, pair: ModelTask, *, out: bool = True) -> None:
        """Begins no more work of a model on a task; with `out` false it may begin again."""
        (self._left_out.add if out else self._left_out.discard)(pair)
        pending = [id_ for id_, state in self.state.items() if state == "pending"]
        for id_ in (id_ for id_ in pending if self.plan.work(id_).pair == pair):
            self._set(id_, "pending")

    def left_out(self) -> int:
        """How much pending work is left out."""
        pending = (id_ for id_, state in self.state.items() if state == "pending")
        return sum(map(self._is_left_out, pending))

    def _is_left_out(self, id_: str) -> bool:
        return bool(self._left_out) and self.plan.work(id_).pair in self._left_out

    def give_back(self) -> None:
        """Releases what was claimed for slots that are not idle any more."""
        self._release(self.claimed)
        self.claimed = []

    def _release(self, ids: Collection[str]) -> None:
        if self.claims:
            self.claims.release(ids)

    def _let_go(self, id_: str) -> None:
        del self.live[id_]
        self._set(id_, "pending")
        self._release([id_])

    def _settle(self, id_: str, error_type: str | None) -> None:
        if error_type is None:
            self._succeeded(id_)
        else:
            self._set(id_, "failed")
            self.failed[id_] = error_type
        self._look(self._users[id_])
        self._notice_growth(id_)
        self._grown()

    def _succeeded(self, id_: str) -> None:
        self._set(id_, "done")
        self.done.add(id_)
        lasting = ((key, n) for key, n in self._tries.items() if not policy(key[1]).forgiven)
        self._tries = Counter(dict(lasting))
        needs = self.plan.needs(id_)
        idle = [n for n in needs if all(self.state[user] == "done" for user in self._users[n])]
        if idle and not self.plan.deferred():
            for need in idle:
                self._on_idle(need)

    def _look(self, ids: Collection[str]) -> None:
        """Looks again at pending work that needs networks. Fails it, and records that unless an
        earlier run has, if it continues from a network that will not come in this run. Repeats work
        whose network was not needed when it was done."""
        for id_ in ids:
            if self.state[id_] != "pending":
                continue
            lacking = self._lacking(id_)
            gone = next((need for need in lacking if self.state[need] == "failed"), None)
            if gone is not None:
                self._settle(id_, _BLOCKED)
                if self.plan.known.failed.get(id_) != _BLOCKED:
                    self._on_blocked(self.plan.work(id_), gone)
                continue
            for need in lacking:
                if self.state[need] == "done":
                    self._set(need, "pending")
            if not lacking:
                self._set(id_, "pending")

    # -- newer plans

    def _follow(self, plan: Plan) -> None:
        """Takes on the plan's new work."""
        self._keep_ahead(plan)
        self.plan = plan
        self.pace.searching = any(cell.search == "waiting" for cell in plan.cells)
        self._needed, self._networks = plan.needed(), plan.needed_networks()
        self._absent = {id_: absent for id_ in plan.trials if (absent := plan.absent(id_))}
        for id_ in selected(plan, self._selection, self._lacking):
            self.state.setdefault(id_, "pending")
        for id_ in self._absent.keys() & self.state.keys():
            for need in self._absent[id_]:  # what was not selected will not come
                self.state.setdefault(need, "failed")
        self._users: dict[str, list[str]] = defaultdict(list)  # network -> work that uses it
        for id_ in plan.trials:
            for need in plan.needs(id_) if id_ in self.state else ():
                self._users[need].append(id_)
        self._rounds = _rounds(plan)
        self._deferred_seconds = sum(
            count * self.rates.seconds(work) for work, count in deferred_work(plan)
        )
        self._seconds = {id_: self.rates.seconds(plan.work(id_)) for id_ in self.state}
        self._order.clear()
        for id_, state in self.state.items():
            self._set(id_, state)
        self._look(self._absent.keys() & self.state.keys())

    def _keep_ahead(self, plan: Plan) -> None:
        """Adds the full models that began ahead to a newer plan; drops those that did not begin
        before their search ended."""
        for id_ in self._ahead & self.state.keys() - plan.trials.keys():
            if id_ in self.live:
                plan.trials[id_] = self.live[id_]
            else:
                del self.state[id_]
                self._waiting.pop(id_, None)
        self.holding &= self.state.keys()

    def _rank(self, id_: str) -> Rank:
        if id_ in self.plan.profiles:
            return Rank.PROFILE
        if id_ in self.plan.speeds:
            return Rank.SPEED
        return Rank.NEEDED if id_ in self._needed else Rank.TRIAL

    def _turn(self, id_: str) -> float:
        """Its place within its rank. What is early gives an answer to a run that is cut short."""
        work = self.plan.trials.get(id_)
        early = work and (work.is_full_model or work.trial.procedure in NOT_RETRAINED)
        return -math.inf if early else -self._seconds[id_]

    def _notice_growth(self, id_: str) -> None:
        """Notices whether the end of work brings other cells."""
        for trials in self._rounds.get(id_, ()):
            if all(trial in self.done or trial in self.failed for trial in trials):
                self._plan_due = True
        plan = self.plan
        if id_ in plan.profiles and id_ in self.done:
            rows = pa.Table.from_pylist(self.store.read("profiles", id_), TABLES["profiles"])
            profiles = {**plan.known.profiles, **measurements(rows)}
            recipes = {**plan.known.recipes, **found_recipes(rows)}
            plan.known = plan.known._replace(profiles=profiles, recipes=recipes)
            waiting = any(cell.profile_id == id_ for cell in plan.deferred())
            if waiting or id_ in recipes:
                self._plan_due, self._rests_until = True, 0.0

    def _grown(self) -> bool:
        """Replaces the plan by a newer one if one is due; True if it does. That takes seconds in a
        large sweep, so searches that end their rounds are planned together, unless nothing else is
        left to hand out."""
        began = monotonic()
        if not self._plan_due or (began < self._rests_until and self.ready()):
            return False
        newer = make_plan(self.plan.sweep, self._with_scores())
        self._plan_due = False
        self._on_plan(newer)
        self._rests_until = monotonic() + _REST * (monotonic() - began)
        self._follow(newer)
        return True

    def known(self) -> WorkHistory:
        """That of this moment. Scores of searches are the plan's: newer ones are read when
        it grows."""
        known = self.plan.known
        failed = {**known.failed, **self.failed}
        measured = {item.id for id_ in self.done for item in self.plan.missing_measures(id_)}
        measured |= self.done & self.plan.speeds.keys()
        return known._replace(
            trials=known.trials | self.done,
            profiles={**dict.fromkeys(measured - failed.keys(), LayerScores({})), **known.profiles},
            failed={id_: kind for id_, kind in failed.items() if id_ not in self.done},
            asked={*self._rounds},
        )

    def _with_scores(self) -> WorkHistory:
        """That for a newer plan: with the scores of finished trials, those of other runs
        too, and the trials that this run still waits for."""
        known, failed = self.plan.known, self.failed.keys() - self.done
        searched = {cell.trial_id for cell in self.plan.cells if cell.search and cell.trial_id}
        shared = self.claims is not None and self.claims.shared
        there = self.done | self.store.names("trials") if shared else self.done
        scored = sorted((searched - known.points.keys()) & there)
        rows = self.store.read_all("trials", scored).rows if scored else TRIALS.empty_table()
        for id_ in self.done.intersection(scored).difference(rows["trial_id"].to_pylist()):
            with suppress(StoreError):  # deleted; a listing may also be late
                one = pa.Table.from_pylist(self.store.read("trials", id_), TRIALS)
                rows = pa.concat_tables([rows, one])
        points = {**known.points, **points_of(rows)}
        return known._replace(
            points=points,
            asked=self._rounds.keys() - self.done - failed,
            given_up=frozenset(failed | (searched & self.done - points.keys())),
        )

    # -- other runs on the store

    def look_elsewhere(self) -> None:
        """Settles the work that other runs have released."""
        if self.holding and self.claims:
            self._follow_others({id_ for run in self.claims.others() for id_ in run.held})

    def _follow_others(self, held: Collection[str]) -> None:
        """Leaves to other runs what they hold, and settles what they held before."""
        before = self.holding
        self.holding = {id_ for id_ in held if self.state.get(id_) == "pending"}
        for id_ in before ^ self.holding:
            self._set(id_, self.state[id_])
        self._settle_elsewhere(sorted((before - self.holding) & self._waiting.keys()))

    def _claim(self, ids: list[str]) -> None:
        """Claims what no other run holds, or has ended since the plan was made."""
        if self.claims is None:
            self.claimed = ids
            return
        try:
            self._follow_others(self.claims.claim(ids))
            if self.claims.shared:  # otherwise this run has done everything
                self._settle_elsewhere([id_ for id_ in ids if id_ in self._waiting])
            self.claimed = [id_ for id_ in ids if id_ in self._waiting]
        finally:
            self._release({*ids}.difference(self.claimed))

    def _settle_elsewhere(self, ids: Collection[str]) -> None:
        """Settles those that another run has ended, with all their measurements."""
        lacking = {id_: [m.id for m in self.plan.missing_measures(id_)] for id_ in ids}
        done, failed = ends_of(self.store, {*ids}.union(*lacking.values()), self._networks)
        for id_, measures in lacking.items():
            # a retry names the trial, whose worker repeats the measurements
            final = {
                item: kind
                for item in (id_, *measures)
                if (kind := failed.get(item)) and not self._selection.wants(id_, kind)
            }
            if id_ in done and all(item in done or item in final for item in measures):
                self.done_elsewhere.add(id_)
                self._begun[id_] = id_ in self._needed
                self.failed |= final
                if id_ in self._networks:  # the other run may keep it as its best only
                    keep_while_needed(self.store, id_)
                self._settle(id_, None)
            # what this run tried itself may have failed before, which is no reason to leave it
            elif id_ in final and id_ not in self._begun and self.state[id_] == "pending":
                self._settle(id_, final[id_])

    # -- how much is left; other threads call these as well

    @property
    def waiting(self) -> int:
        """How much work is pending here."""
        return len(self._waiting)

    @property
    def open(self) -> bool:
        """Whether work is left to hand out, or to wait for in another run."""
        return not self.stopped and bool(self.ready() or self.holding or self._plan_due)

    def progress(self) -> Progress:
        left = self.waiting + len(self.live) + len(self.holding)
        counts = len(self.done), len(self.failed), left
        return Progress(*counts, self.pace.slots, *self.eta()[:3])

    def eta(self) -> Eta:
        """When the run ends. Cells that wait for a profile count as well."""
        waiting = [*self._waiting.copy().values()]
        live, held = (
            {id_: self._seconds[id_] for id_ in [*of]} for of in (self.live, self.holding)
        )
        seconds = sum(waiting) + self._deferred_seconds
        return self.pace.eta(live, seconds, max(waiting, default=0.0), held)


def _rounds(plan: Plan) -> Mapping[str, list[list[str]]]:
    """Trial that a search asked for and that had not ended when the plan was made -> the trials of
    each round that it belongs to: once all of them have ended, the search of that curve asks for
    more, or ends."""
    of_curve: dict[CellAxes, list[str]] = defaultdict(list)
    rounds: dict[str, list[list[str]]] = defaultdict(list)
    for cell in plan.cells:
        if cell.search == "asked" and cell.state == "pending" and cell.trial_id:
            round_ = of_curve[curve_of(cell.asked)]
            round_.append(cell.trial_id)
            rounds[cell.trial_id].append(round_)
    return rounds
