"""Runs the real driver with simulated machines, trials and clock, for scale.py.

The real parts are those of `Driver`. In place of Ray and Tune, `Simulation` calls them as Tune's
controller does, one event after another. The driver does one thing at a time, also on the simulated
clock.
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

from lp_sweep.orchestrator.engine.capacity import Slots
from lp_sweep.orchestrator.engine.course import Budget, Course, Recorder
from lp_sweep.orchestrator.engine.progress import PlainReporter
from lp_sweep.orchestrator.engine.ray_tune import PlanSearcher, WorkCallback
from lp_sweep.orchestrator.engine.runoptions import RunOptions
from lp_sweep.orchestrator.engine.workqueue import WorkQueue
from lp_sweep.orchestrator.estimate import Rates
from lp_sweep.orchestrator.plan.plan import Plan, Work
from lp_sweep.storage.files import Folder
from lp_sweep.storage.runs import Presence
from lp_sweep.storage.store import Store

TAKEN = 0.05  # share of starts in which the machine is lost
LOST_SECONDS = 20.0  # most work that a trial loses: between two checkpoints after a notice
BOOT_SECONDS = 180.0  # until another machine arrives
START_SECONDS = 12.0  # to start a worker
POLL_SECONDS = 0.1  # after which Tune asks for work again where nothing has happened


class Setting(NamedTuple):
    """The number of machines with one GPU each, the mean seconds of a trial, and the time of a
    request to the store and of the driver's work for a trial. `taken`: the share of starts in which
    the machine is lost. `bucket`: the store is there, and requests take the time that they take."""

    slots: int
    seconds: float
    request_ms: float
    driver_ms: float
    taken: float = TAKEN
    bucket: str | None = None


class Counted:
    """The files of a store, with a count of requests."""

    def __init__(self, files: Any) -> None:
        self._files, self.requests = files, 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._files, name)
        if name not in ("list", "read", "write", "delete", "open"):
            return found

        def ask(*arguments: Any) -> Any:
            self.requests += 1
            return found(*arguments)

        return ask


class Driver:
    """A run without Ray and Tune, with a store in a folder that is not synced."""

    def __init__(self, plan: Plan, folder: Path, setting: Setting) -> None:
        store = Store(setting.bucket or folder / "store", create=True)
        local = None if setting.bucket else Folder(folder / "store", durable=False)
        self.files = Counted(local or store.files)
        store.files = self.files  # type: ignore[assignment]
        self.folder, self.setting, self.cpu, self.tuners = folder, setting, 0.0, 0
        self.began, self._asked, self._wall = 0.0, 0, time.perf_counter()
        self.queue = WorkQueue(plan, store, Rates([], gpu=True), lambda plan: None)
        self.presence = Presence(store, plan.sweep.name, self.queue.progress)
        self.queue.claims = self.presence
        recorder = Recorder(store, part=False, command="lp-sweep run sweep.yaml")
        options, reporter = RunOptions(cache_dir=folder / "cache"), PlainReporter()
        reporter.opened(self.queue, setting.slots)
        budget = Budget(10**6, now=lambda: self.began + self._seconds())
        self._course = Course(self.queue, recorder, reporter, options, self.presence, budget)
        self.new_tuner()

    def new_tuner(self) -> None:
        """Start a new Tuner, as `ray_tune.fit` does."""
        self.tuners += 1
        slots = Slots(self.setting.slots, 1.0, 1.0)
        self.searcher = PlanSearcher(self._course, slots, lambda: slots.number)
        self.callback = WorkCallback(self.searcher)

    def does(self, now: float, action: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
        """Runs the action. Returns its result and the simulated seconds of its store requests."""
        self.began, self._asked, self._wall = now, self.files.requests, time.perf_counter()
        begun = time.process_time()
        found = action(*arguments)
        self.cpu += time.process_time() - begun
        return found, self._seconds()

    def _seconds(self) -> float:
        """Since the action began."""
        if self.setting.bucket:
            return time.perf_counter() - self._wall
        return (self.files.requests - self._asked) * self.setting.request_ms / 1000


class Event(NamedTuple):
    """One event of the simulation, ordered by time. `gained`: seconds of work that are not lost."""

    at: float
    number: int
    kind: str  # ended, taken, or joined
    trial: Any = None
    gained: float = 0.0


class Simulation:
    """The simulated run. `publish`: the worker's action at a trial's end. In seconds: `now`;
    `handling`, when the driver was busy; `work_seconds`, all trials without any failure."""

    def __init__(
        self, driver: Driver, publish: Callable[[Work], None], layers: float | None
    ) -> None:
        """`layers`: mean number of kept layers; None: all trials take about the same time."""
        self.driver, self._publish, self._layers = driver, publish, layers
        self.now = self.handling = self.work_seconds = 0.0
        self.taken = 0
        self.spans: list[tuple[float, float]] = []  # when a slot was busy
        self.drained = 0.0  # when nothing was left to begin
        self._free = [False] * driver.setting.slots  # idle machines: whether each has a worker
        self._asked: deque[Any] = deque()  # trials without a machine
        self._events: list[Event] = []
        self._left: dict[str, float] = {}  # work -> seconds left
        self._numbers, self._draw = itertools.count(), np.random.default_rng(2)
        loss = driver.folder / "preempted.pkl"
        loss.write_bytes(cloudpickle.dumps(RayActorError(preempted=True)))
        self._loss = str(loss)

    def run(self) -> None:
        while True:
            self._hand_out()
            queue = self.driver.queue
            if queue.waiting:
                self.drained = self.now
            idle = queue.waiting and len(queue.live) < self.driver.setting.slots
            if idle and self._events and self._events[0].at > self.now + POLL_SECONDS:
                self.now += POLL_SECONDS
            elif self._events:
                self._handle(heapq.heappop(self._events))
            elif queue.open:  # Tune has ended, and its workers with it
                self.driver.new_tuner()
                self._free = [False] * len(self._free)
            else:
                return

    def _does(self, action: Callable[..., Any], *arguments: Any) -> Any:
        found, seconds = self.driver.does(self.now, action, *arguments)
        self._takes(seconds)
        return found

    def _takes(self, seconds: float) -> None:
        self.now += seconds
        self.handling += seconds

    def _hand_out(self) -> None:
        """Start all trials that the searcher suggests."""
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
            if self._draw.random() >= self.driver.setting.taken:
                self._expect(at + left, "ended", trial)
                self.spans.append((at, at + left))
                continue
            worked = self._draw.random() * left
            self.spans.append((at, at + worked))
            gained = max(0.0, worked - self._draw.random() * LOST_SECONDS)
            self._expect(at + worked, "taken", trial, gained)
            self._expect(at + worked + BOOT_SECONDS, "joined")

    def _seconds(self, work: Work) -> float:
        """The seconds that the work still takes. The total is proportional to its kept layers."""
        if work.id not in self._left:
            share = np.exp(self._draw.normal(0, 0.1))
            share *= len(work.spec.kept_layers) / self._layers if self._layers else 1
            self._left[work.id] = float(self.driver.setting.seconds * share)
            self.work_seconds += self._left[work.id]
        return self._left[work.id]

    def busy(self) -> float:
        """The share of busy slots, without the first trials of all slots and the last ones."""
        since, until = START_SECONDS + self.driver.setting.seconds, self.drained
        held = sum(max(0.0, min(end, until) - max(begin, since)) for begin, end in self.spans)
        return held / (self.driver.setting.slots * (until - since)) if until > since else 0.0

    def _expect(self, at: float, kind: str, trial: Any = None, gained: float = 0.0) -> None:
        heapq.heappush(self._events, Event(at, next(self._numbers), kind, trial, gained))

    def _handle(self, event: Event) -> None:
        """Handle an event once the driver has finished the earlier ones."""
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
