"""A run's real driver over simulated machines, trials and a clock: what scale.py measures.

The real parts are those of `Driver`; in place of Ray and Tune `Simulation` calls them as Tune's
controller does, one event after the other. The driver does one thing at a time, on the simulated
clock too.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from ray import cloudpickle
from ray.exceptions import RayActorError
from ray.tune.search import Searcher

from lp_sweep.orchestrator.engine.budget import Budget, BudgetStop
from lp_sweep.orchestrator.engine.capacity import Slots
from lp_sweep.orchestrator.engine.course import Course
from lp_sweep.orchestrator.engine.progress import PlainReporter
from lp_sweep.orchestrator.engine.ray_tune import PlanSearcher, WorkCallback
from lp_sweep.orchestrator.engine.recorder import Recorder
from lp_sweep.orchestrator.engine.runoptions import RunOptions
from lp_sweep.orchestrator.engine.workqueue import WorkQueue
from lp_sweep.orchestrator.estimate.estimate import Rates
from lp_sweep.orchestrator.plan.plan import Plan, Work
from lp_sweep.storage.folder import Folder
from lp_sweep.storage.runs import Presence
from lp_sweep.storage.store import Store

TAKEN = 0.05  # of all starts end with the machine
LOST_SECONDS = 20.0  # at most, of what a trial did: between two checkpoints after a notice
BOOT_SECONDS = 180.0  # until another machine is there
START_SECONDS = 12.0  # of a worker


class Setting(NamedTuple):
    """Machines of one GPU each; seconds of a trial, on average; what a request to the store and
    the driver's part of a trial take."""

    slots: int
    seconds: float
    request_ms: float
    driver_ms: float


class Counted:
    """The files of a store, and how often they were asked for something."""

    def __init__(self, files: Any) -> None:
        self._files, self.requests = files, 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._files, name)
        if name not in ("list", "read", "write", "delete", "size", "open"):
            return found

        def ask(*arguments: Any) -> Any:
            self.requests += 1
            return found(*arguments)

        return ask


class Driver:
    """All of a run but Ray and Tune, on a store in a folder that is not synced."""

    def __init__(self, plan: Plan, folder: Path, setting: Setting) -> None:
        store = Store(folder / "store", create=True)
        store.files = self.files = Counted(Folder(folder / "store", durable=False))
        self.setting, self.cpu, self.tuners = setting, 0.0, 0
        self.queue = WorkQueue(plan, store, Rates([], gpu=True), lambda plan: None)
        self.presence = Presence(store, plan.sweep.name, self.queue.progress)
        self.queue.others.claims = self.presence
        recorder = Recorder(store, part=False, command="lp-sweep run sweep.yaml")
        options, reporter = RunOptions(cache_dir=folder / "cache"), PlainReporter()
        reporter.opened(self.queue, setting.slots)
        self._course = Course(self.queue, recorder, reporter, options, self.presence)
        budget = Budget(max_hours=10**6)
        self._course.stop = BudgetStop(self.queue, budget, folder / "cache", lambda *_: {})
        self.new_tuner()

    def new_tuner(self) -> None:
        """As `ray_tune.fit` does it."""
        self.tuners += 1
        slots = Slots(self.setting.slots, 1.0, 1.0)
        self.searcher = PlanSearcher(self._course, slots, lambda: slots.number)
        self.callback = WorkCallback(self.searcher)

    def does(self, action: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
        """Runs the action: its result, and the simulated seconds of its requests to the store."""
        asked, begun = self.files.requests, time.process_time()
        found = action(*arguments)
        self.cpu += time.process_time() - begun
        return found, (self.files.requests - asked) * self.setting.request_ms / 1000


class Event(NamedTuple):
    """One event of the simulation, ordered by time. `gained`: seconds of work that are kept."""

    at: float
    number: int
    kind: str  # ended, taken, or joined
    trial: Any = None
    gained: float = 0.0


class Simulation:
    """`publish`: what a worker does at a trial's end. `now` is in seconds; `handling` those in
    which the driver was busy; `work_seconds` what all trials take without any trouble."""

    def __init__(self, driver: Driver, publish: Callable[[Work], None], layers: float) -> None:
        """`layers`: that are kept, on average."""
        self.driver, self._publish, self._layers = driver, publish, layers
        self.now = self.handling = self.work_seconds = 0.0
        self.taken = 0
        self._free = [False] * driver.setting.slots  # machines at rest: has each a worker?
        self._asked: deque[Any] = deque()  # trials that no machine is there for
        self._events: list[Event] = []
        self._left: dict[str, float] = {}  # work -> seconds that it still takes
        self._numbers, self._draw = itertools.count(), np.random.default_rng(2)
        loss = driver.files.root / "preempted.pkl"
        loss.write_bytes(cloudpickle.dumps(RayActorError(preempted=True)))
        self._loss = str(loss)

    def run(self) -> None:
        while True:
            self._hand_out()
            if self._events:
                self._handle(heapq.heappop(self._events))
            elif self.driver.queue.open:  # Tune has ended, and its workers with it
                self.driver.new_tuner()
                self._free = [False] * len(self._free)
            else:
                return

    def _does(self, action: Callable[..., Any], *arguments: Any) -> Any:
        found, seconds = self.driver.does(action, *arguments)
        self._takes(seconds)
        return found

    def _takes(self, seconds: float) -> None:
        self.now += seconds
        self.handling += seconds

    def _hand_out(self) -> None:
        """All that the searcher gives."""
        for number in self._numbers:
            given = self._does(self.driver.searcher.suggest, str(number))
            if given is None or given == Searcher.FINISHED:
                return
            self._takes(self.driver.setting.driver_ms / 1000)
            self._asked.append(SimpleNamespace(trial_id=str(number), pickled_error_file=self._loss))
            self._begin()

    def _begin(self) -> None:
        while self._free and self._asked:
            trial, worker = self._asked.popleft(), self._free.pop()
            self._does(self.driver.callback.on_trial_start, 0, [], trial)
            left = self._seconds(self.driver.searcher.works[trial.trial_id])
            at = self.now + (0.0 if worker else START_SECONDS)
            if self._draw.random() >= TAKEN:
                self._expect(at + left, "ended", trial)
                continue
            worked = self._draw.random() * left
            gained = max(0.0, worked - self._draw.random() * LOST_SECONDS)
            self._expect(at + worked, "taken", trial, gained)
            self._expect(at + worked + BOOT_SECONDS, "joined")

    def _seconds(self, work: Work) -> float:
        """That it still takes: in all, in proportion to the layers that it keeps."""
        if work.id not in self._left:
            share = len(work.spec.kept_layers) / self._layers * np.exp(self._draw.normal(0, 0.1))
            self._left[work.id] = float(self.driver.setting.seconds * share)
            self.work_seconds += self._left[work.id]
        return self._left[work.id]

    def _expect(self, at: float, kind: str, trial: Any = None, gained: float = 0.0) -> None:
        heapq.heappush(self._events, Event(at, next(self._numbers), kind, trial, gained))

    def _handle(self, event: Event) -> None:
        """When the driver is done with what came before."""
        self.now = max(self.now, event.at)
        callback, works = self.driver.callback, self.driver.searcher.works
        if event.kind == "joined":
            self._free.append(False)
        elif event.kind == "taken":
            self.taken += 1
            self._left[works[event.trial.trial_id].id] -= event.gained
            self._does(callback.on_trial_error, 0, [], event.trial)
        else:
            self._publish(works[event.trial.trial_id])
            told = {"status": "done", "metric": "accuracy", "last": 0.9, "seconds": 60.0}
            self._does(callback.on_trial_result, 0, [], event.trial, told)
            self._free.append(True)
        self._begin()
        self._does(callback.on_step_end, 0, [])
