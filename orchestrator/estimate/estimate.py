"""How long the missing work takes.

A trial's seconds are its workload at stated rates (`workload`) times the median ratio of the
store's own timings (`timings`). They also order the work: the longest trial starts first, so that
it does not run last while other slots idle.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pyarrow as pa

from lp_sweep.orchestrator.estimate.timings import Pair, Span, added, evidence
from lp_sweep.orchestrator.estimate.workload import CPU, GPU, MeanLengths, missing
from lp_sweep.orchestrator.inputs.models import ModelInput
from lp_sweep.orchestrator.inputs.resolve import TaskInput
from lp_sweep.orchestrator.plan.known import timing_columns
from lp_sweep.orchestrator.plan.plan import Plan, Work
from lp_sweep.orchestrator.plan.selection import taken_on
from lp_sweep.storage.specs import Recipe, TrialSpec

_SPEEDS = "speeds"  # measurements of speed have no task
_OTHER_WAY = 2.0  # widens the band if all timings have another `compute` or `precision`


class Kind(NamedTuple):
    """Work that takes equally long: seconds at stated rates, and the ratio that corrects them."""

    stated: float
    pair: Pair


class Rates:
    """How long work takes, from the trials on the device of the newest one. `trials`:
    `Ledger.timings`, or records. `gpu`: whether work runs on GPUs, used without timings. `tokens`:
    task name -> mean length of a sample of its rows."""

    def __init__(
        self,
        trials: pa.Table | Iterable[Mapping[str, Any]] = (),
        recipe: Recipe | None = None,
        *,
        gpu: bool | None = None,
        tokens: Mapping[str, float] | None = None,
    ) -> None:
        records = trials if isinstance(trials, pa.Table) else timing_columns(trials)
        self._lengths = MeanLengths(records, tokens)
        found = evidence(records, self._lengths, recipe or Recipe())
        self.trials, self.device = found.number, found.device
        self.on_gpu = found.on_gpu if found.number else _has_gpu() if gpu is None else gpu
        self._stated = GPU if self.on_gpu else CPU
        self._ratios, self._doubt = found.ratios, 1.0 if found.same_way else _OTHER_WAY

    @property
    def basis(self) -> str:
        if self.trials:
            return f"from {self.trials:,} trials of this store on {self.device}"
        return f"no timings yet: stated rate of {self._stated.words}"

    def kind(self, work: Work) -> Kind:
        """The same for all seeds."""
        stated = missing(work, self._lengths).seconds(self._stated)
        return Kind(stated, (work.model.fingerprint, work.task.fingerprint))

    def seconds(self, work: Work) -> float:
        """Expected seconds on one slot."""
        return self.seconds_of(self.kind(work))

    def seconds_of(self, kind: Kind) -> float:
        return kind.stated * self._ratios.of(kind.pair).median

    def total(self, pieces: Mapping[Kind, float]) -> Span:
        """Slot-seconds of that many trials of each kind."""
        return added(self.by_pair(pieces).values())

    def by_pair(self, pieces: Mapping[Kind, float]) -> dict[Pair, Span]:
        """The same by model and task."""
        stated: dict[Pair, float] = defaultdict(float)
        for kind, count in pieces.items():
            stated[kind.pair] += count * kind.stated
        return {
            pair: self._ratios.of(pair).of(seconds, self._doubt) for pair, seconds in stated.items()
        }


def _has_gpu() -> bool:
    """Whether trials are likely to run on a GPU: this machine has one, or a cluster is named."""
    named = os.environ.get("LP_SWEEP_ADDRESS") or os.environ.get("RAY_ADDRESS")
    return Path("/proc/driver/nvidia").exists() or bool(named)


class Estimate(NamedTuple):
    """Hours on one slot, in all and by task. While a search may add trials they are an upper limit,
    mostly far too high, and have no band. `longest`: the longest trial; a run takes at least its
    `longest_hours`, on any number of slots. `alone_hours`: of the speeds, which run while the other
    slots idle."""

    hours: float
    low_hours: float | None
    high_hours: float | None
    trials: int
    device: str | None
    on_gpu: bool
    basis: str
    longest_hours: float = 0.0
    alone_hours: float = 0.0
    longest: Work | None = None
    tasks: Mapping[str, Span] = MappingProxyType({})

    @property
    def at_most(self) -> bool:
        return self.high_hours is None

    @property
    def span(self) -> Span:
        """Hours on one slot."""
        return Span(self.hours, self.low_hours, self.high_hours)

    def wall(self, slots: int) -> Span:
        """Hours by the clock on this many busy slots."""
        if not self.hours:
            return Span(0.0, 0.0, 0.0)
        shared = max((self.hours - self.alone_hours) / slots, self.longest_hours)
        return self.span.times((shared + self.alone_hours) / self.hours)


def estimate(plan: Plan, rates: Rates) -> Estimate:
    """Slot-hours of a run's work, with measurements and the trials that are trained again for them.
    A deferred cell counts as a full network."""
    to_do = taken_on(plan)
    by_task: dict[str, Counter[Kind]] = defaultdict(Counter)
    longest, most, alone = None, 0.0, 0.0
    for work in to_do:
        if plan.has_network(work.id):
            continue  # only measured
        kind = rates.kind(work)
        by_task[work.task.name or _SPEEDS][kind] += 1
        seconds = rates.seconds_of(kind)
        if work.id in plan.trials and seconds > most:
            longest, most = work, seconds
        alone += seconds if work.id in plan.speeds else 0.0
    for work, count in (*_measurements(plan, to_do), *deferred(plan)):
        by_task[work.task.name or _SPEEDS][rates.kind(work)] += count
    tasks = {task: rates.total(pieces).times(1 / 3600) for task, pieces in by_task.items()}
    if any(cell.search == "waiting" for cell in plan.cells):
        tasks = {task: Span(hours.expected, None, None) for task, hours in tasks.items()}
    return Estimate(
        *added(tasks.values()),
        rates.trials,
        rates.device,
        rates.on_gpu,
        rates.basis if to_do else "nothing is missing",
        longest=longest,
        longest_hours=most / 3600,
        alone_hours=alone / 3600,
        tasks=tasks,
    )


def deferred(plan: Plan) -> Iterator[tuple[Work, int]]:
    """The cells that wait for a profile, each counted as a full network."""
    waiting = Counter(
        (cell.asked.model, cell.asked.task) for cell in plan.cells if cell.state == "deferred"
    )
    models = {model.name: model for model in plan.sweep.models}
    for (model, task), count in waiting.items():
        yield _whole_network(plan, models[model], plan.sweep.tasks[task]), count


def _whole_network(plan: Plan, model: ModelInput, task: TaskInput) -> Work:
    spec = TrialSpec(
        model_fingerprint=model.fingerprint,
        kept_layers=tuple(range(1, model.depth + 1)),
        task=task.definition,
        data_fingerprint=task.fingerprint,
        seed=0,
        recipe=plan.sweep.recipe,
    )
    return Work(id="", spec=spec, model=model, task=task)


def _measurements(plan: Plan, to_do: Iterable[Work]) -> Iterator[tuple[Work, int]]:
    """Counts each measurement as equally long for every network of a model on a task."""
    counts: Counter[tuple[str, str, str]] = Counter()
    works: dict[tuple[str, str, str], Work] = {}
    for work in to_do:
        for item in plan.missing_measures(work.id):
            kind = (work.model.name, work.task.name, item.spec.measure)
            counts[kind] += 1
            if kind not in works:
                works[kind] = replace(work, spec=item.spec)
    return ((works[kind], count) for kind, count in counts.items())
