"""How long the missing work takes, and on a cluster what it costs.

The seconds of a piece are its workload at stated rates (`workload`) times the ratio that the
store's own timings show (`timings`). They also give the order of the work: longest first, so that
no long trial starts last on one slot while the others idle.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pyarrow as pa

from lp_sweep.orchestrator.cluster.clusterfile import ClusterFile
from lp_sweep.orchestrator.cluster.clusterfile import Kind as Machine
from lp_sweep.orchestrator.estimate.timings import Pair, Span, added, evidence
from lp_sweep.orchestrator.estimate.workload import CPU, GPU, MeanLengths, missing
from lp_sweep.orchestrator.inputs.models import ModelInput
from lp_sweep.orchestrator.inputs.resolve import TaskInput
from lp_sweep.orchestrator.plan.known import timing_columns
from lp_sweep.orchestrator.plan.plan import Plan, Work
from lp_sweep.orchestrator.plan.selection import taken_on
from lp_sweep.storage.specs import TEACHER, Recipe, TrialSpec
from lp_sweep.trials.train.procedures import imitated_layers

_SPEEDS = "speeds"  # they belong to no task
_OTHER_WAY = 2.0  # timings of another way to compute are right within this factor


class Kind(NamedTuple):
    """Work that takes equally long: seconds at stated rates, and the ratio that corrects them."""

    stated: float
    pair: Pair


class Rates:
    """How long each piece of work takes, by the trials of the device that the newest one of
    `trials` ran on: `Ledger.timings`, or rows as a store has them. `gpu`: whether the work runs on
    GPUs, where there are no timings to show it. `tokens`: mean length of a sample of a task's rows,
    by its name."""

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
        self._kinds: dict[tuple[Any, ...], Kind] = {}

    @property
    def basis(self) -> str:
        if self.trials:
            return f"from {self.trials:,} trials of this store on {self.device}"
        return f"no timings yet: stated rate of {self._stated.words}"

    def kind(self, work: Work) -> Kind:
        """Seeds share it."""
        key = _cost_key(work)
        if (found := self._kinds.get(key)) is None:
            stated = missing(work, self._lengths).seconds(self._stated)
            found = Kind(stated, (work.model.fingerprint, work.task.fingerprint))
            self._kinds[key] = found
        return found

    def seconds(self, work: Work) -> float:
        """Expected seconds of one piece on one slot."""
        kind = self.kind(work)
        return kind.stated * self._ratios.of(kind.pair).median

    def total(self, pieces: Mapping[Kind, float]) -> Span:
        """Slot-seconds of so many pieces of each kind."""
        return added(self.by_pair(pieces).values())

    def by_pair(self, pieces: Mapping[Kind, float]) -> dict[Pair, Span]:
        """The same by model and task."""
        stated: dict[Pair, float] = defaultdict(float)
        for kind, count in pieces.items():
            stated[kind.pair] += count * kind.stated
        return {
            pair: self._ratios.of(pair).of(seconds, self._doubt) for pair, seconds in stated.items()
        }


def _cost_key(work: Work) -> tuple[Any, ...]:
    inputs, spec = (work.model.fingerprint, work.task.fingerprint), work.spec
    if spec.kind == "profile":
        training = (spec.limit_train, spec.rows, spec.recipe, spec.measure == TEACHER)
        return (*inputs, spec.max_length, spec.limit_dev, *training)
    if spec.kind == "speed":
        return (*inputs, spec)
    recipe = spec.recipe  # its own hash is slow, and this is asked for each cell
    length = (recipe.epochs, recipe.batch_size, recipe.max_length)
    limits = (recipe.limit_train, recipe.limit_dev)
    network = (spec.kept_layers, len(spec.removed_feed_forwards), spec.epochs_per_layer)
    watched = len(imitated_layers(spec, work.model.depth))
    taught = (watched, spec.unlabelled, spec.bridge)
    return (*inputs, *network, *taught, spec.procedure, *length, *limits)


def _has_gpu() -> bool:
    """Whether trials are likely to run on a GPU: this machine has one, or a cluster is named."""
    return Path("/proc/driver/nvidia").exists() or bool(os.environ.get("RAY_ADDRESS"))


class Estimate(NamedTuple):
    """Hours on one slot. While a search may ask for more they count all that it can ask for,
    mostly far too much, and have no band. `tasks`: the same hours of each task. `longest_hours`
    is one trial, which more slots don't shorten; `alone_hours` is work that runs while the other
    slots idle: the speeds."""

    hours: float
    low_hours: float | None
    high_hours: float | None
    trials: int
    device: str | None
    on_gpu: bool
    basis: str
    longest_hours: float = 0.0
    alone_hours: float = 0.0
    tasks: Mapping[str, Span] = MappingProxyType({})

    @property
    def at_most(self) -> bool:
        return self.high_hours is None

    @property
    def span(self) -> Span:
        """Hours on one slot."""
        return Span(self.hours, self.low_hours, self.high_hours)

    def wall(self, slots: int) -> Span:
        """Hours until all is done on so many slots that are kept busy."""
        if not self.hours:
            return Span(0.0, 0.0, 0.0)
        shared = max((self.hours - self.alone_hours) / slots, self.longest_hours)
        return self.span.times((shared + self.alone_hours) / self.hours)


def estimate(plan: Plan, rates: Rates) -> Estimate:
    """Slot-hours of what a run takes on: also measurements, and trials that are trained again for
    them. A deferred cell counts as a network of full depth."""
    to_do = taken_on(plan)
    by_task: dict[str, Counter[Kind]] = defaultdict(Counter)
    training = ((work, 1) for work in to_do if not plan.has_network(work.id))
    for work, count in (*training, *_measurements(plan, to_do), *deferred(plan)):
        by_task[work.task.name or _SPEEDS][rates.kind(work)] += count
    tasks = {task: rates.total(pieces).times(1 / 3600) for task, pieces in by_task.items()}
    if any(cell.search == "waiting" for cell in plan.cells):
        tasks = {task: Span(hours.expected, None, None) for task, hours in tasks.items()}
    longest = longest_trial(plan, rates)
    alone = sum(rates.seconds(work) for work in to_do if work.id in plan.speeds)
    return Estimate(
        *added(tasks.values()),
        rates.trials,
        rates.device,
        rates.on_gpu,
        rates.basis if to_do else "nothing is missing",
        longest_hours=rates.seconds(longest) / 3600 if longest else 0.0,
        alone_hours=alone / 3600,
        tasks=tasks,
    )


def longest_trial(plan: Plan, rates: Rates) -> Work | None:
    """The longest one that a run trains: the run takes at least as long, on any number of
    slots."""
    trained = [
        work for work in taken_on(plan) if work.id in plan.trials and not plan.has_network(work.id)
    ]
    return max(trained, key=rates.seconds, default=None)


def deferred(plan: Plan) -> Iterator[tuple[Work, int]]:
    """The cells that wait for a profile, each as a network of full depth."""
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
    """One kind of measurement takes equally long for every network of a model on a task."""
    counts: Counter[tuple[str, str, str]] = Counter()
    works: dict[tuple[str, str, str], Work] = {}
    for work in to_do:
        for item in plan.missing_measures(work.id):
            kind = (work.model.name, work.task.name, item.spec.measure)
            counts[kind] += 1
            if kind not in works:
                works[kind] = replace(work, spec=item.spec)
    return ((works[kind], count) for kind, count in counts.items())


class Cost(NamedTuple):
    """The missing work on a cluster at its largest. `machines`: kind -> how many, with the head;
    `hours` of wall time; `per_hour`: what all machines cost, in the currency of the file; None, as
    is `price`, where the file lacks the prices of the kinds in `unpriced`."""

    file: ClusterFile
    slots: int
    machines: dict[str, int]
    same_device: bool  # the estimate and the cluster are both on GPUs, or both on CPUs
    hours: Span
    per_hour: float | None
    unpriced: tuple[str, ...]

    @property
    def price(self) -> Span | None:
        return None if self.per_hour is None else self.hours.times(self.per_hour)


def cost(
    estimate: Estimate, file: ClusterFile, workers: Sequence[Machine], *, slots: int, on_gpu: bool
) -> Cost:
    """Every worker counts from the start of the run to its end; no boot and no idle time is
    included. `workers`: a kind for each machine, as often as there are such; `slots`: the trials
    that they and the head run at a time, on GPUs or not."""
    machines = [*(kind for kind in file.kinds if kind.head), *workers]
    prices = [kind.price for kind in machines if kind.price is not None]
    unpriced = tuple(dict.fromkeys(kind.name for kind in machines if kind.price is None))
    return Cost(
        file,
        slots,
        dict(Counter(kind.name for kind in machines)),
        on_gpu == estimate.on_gpu,
        estimate.wall(slots),
        None if unpriced else sum(prices),
        unpriced,
    )
