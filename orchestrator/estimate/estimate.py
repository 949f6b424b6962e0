"""How long the missing work takes: from the store's own timings, else from a stated rule of thumb.

Also the order of the work: longest first, so that no long trial starts last on one slot while the
others idle. `costmodel` says how an estimate is made and how sure it is.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from lp_sweep.orchestrator.estimate.band import spread
from lp_sweep.orchestrator.estimate.costmodel import Pair, Total, fit
from lp_sweep.orchestrator.estimate.timings import MeanLengths, evidence
from lp_sweep.orchestrator.estimate.workload import Lengths, Terms, work_terms
from lp_sweep.orchestrator.inputs.models import ModelInput
from lp_sweep.orchestrator.inputs.resolve import TaskInput
from lp_sweep.orchestrator.plan.known import timing_columns
from lp_sweep.orchestrator.plan.plan import Plan, Work
from lp_sweep.orchestrator.plan.selection import taken_on
from lp_sweep.storage.specs import Recipe, TrialSpec

# Before the store has a timing: seconds for a piece, a FLOP of training, a step of a layer, a FLOP
# of a forward pass. A step of a layer launches its operations, whatever the batch.
_GPU_RULE, _CPU_RULE = Terms(3.0, 1e-13, 1e-3, 1e-13), Terms(3.0, 2e-11, 1e-3, 2e-11)
_OTHER_WAY = 0.5  # what another way to compute may change: up to a factor of 1.9, in 80%

Kind = tuple[Terms, Pair]  # what work asks for, and whose it is


class Estimate(NamedTuple):
    """Hours on one slot; in 80% of all cases from `low_hours` to `high_hours`. While a search may
    ask for more they count all that it can ask for, mostly far too much: there is no band then.
    `basis` says what they stand on: so many `trials` on one `device`, or a rule of thumb (0 and
    None). Of the hours, many slots don't shorten the `longest_hours` of one trial, nor the
    `alone_hours` of what runs while the other slots rest: the speeds."""

    hours: float
    low_hours: float | None
    high_hours: float | None
    trials: int
    device: str | None
    on_gpu: bool
    basis: str
    longest_hours: float = 0.0
    alone_hours: float = 0.0

    @property
    def at_most(self) -> bool:
        return self.high_hours is None

    def wall_hours(self, slots: int) -> float:
        """Until all is done on so many slots that are kept busy."""
        return max((self.hours - self.alone_hours) / slots, self.longest_hours) + self.alone_hours


class Rates:
    """What each piece of work takes, fitted to the trials of the device that the newest one of
    `trials` ran on: `Ledger.timings`, or rows as a store has them."""

    def __init__(
        self,
        trials: pa.Table | Iterable[Mapping[str, Any]] = (),
        recipe: Recipe | None = None,
        *,
        gpu: bool | None = None,
    ) -> None:
        records = trials if isinstance(trials, pa.Table) else timing_columns(trials)
        self._lengths = MeanLengths(records)
        found = evidence(records, self._lengths, recipe or Recipe())
        self.device = found.device
        self.on_gpu = found.on_gpu if found.timings else has_gpu() if gpu is None else gpu
        self._cost = fit(
            found.timings,
            rule_of_thumb(gpu=self.on_gpu),
            doubt=_OTHER_WAY if found.timings and not found.same_way else 0.0,
        )
        self._kinds: dict[tuple[Any, ...], Kind] = {}
        self._seconds: dict[Kind, float] = {}

    @property
    def trials(self) -> int:
        """How many timings the estimates stand on; 0: on the rule of thumb."""
        return self._cost.timings

    @property
    def basis(self) -> str:
        if self.trials:
            return f"from {self.trials:,} trials of this store on {self.device}"
        rule = "a GPU of 10 TFLOP/s" if self.on_gpu else "a CPU core of 50 GFLOP/s"
        return f"rule of thumb, before the first timing: {rule}"

    def kind(self, work: Work) -> Kind:
        """What tells the cost of work apart; seeds share it."""
        key = _cost_key(work)
        if key not in self._kinds:
            pair = (work.model.fingerprint, work.task.fingerprint)
            self._kinds[key] = work_terms(work, self._lengths_of(work)), pair
        return self._kinds[key]

    def _lengths_of(self, work: Work) -> Lengths:
        spec = work.spec
        if spec.kind == "speed":  # its rows are full
            return Lengths(spec.length, spec.length)
        length = (spec.recipe if spec.kind == "trial" else spec).max_length
        return self._lengths.of(
            work.model.fingerprint, work.task.fingerprint, length, work.task.name
        )

    def seconds(self, work: Work) -> float:
        """Of one piece on one slot."""
        kind = self.kind(work)
        if kind not in self._seconds:
            self._seconds[kind] = self._cost.seconds(*kind)
        return self._seconds[kind]

    def total(self, pieces: Mapping[Kind, float]) -> Total:
        """Slot-seconds of many pieces."""
        return self._cost.total(pieces)

    def spread(self, left: Mapping[Kind, float], ended: Mapping[Kind, float]) -> float:
        """See `band.spread`."""
        return spread(self._cost, left, ended)


def _cost_key(work: Work) -> tuple[Any, ...]:
    inputs, spec = (work.model.fingerprint, work.task.fingerprint), work.spec
    if spec.kind == "profile":
        training = (spec.limit_train, spec.rows, spec.recipe)
        return (*inputs, spec.max_length, spec.limit_dev, *training)
    if spec.kind == "speed":
        return (*inputs, spec)
    recipe = spec.recipe
    return (
        *(*inputs, spec.kept_layers, spec.procedure, spec.epochs_per_layer),
        *(len(spec.removed_feed_forwards), recipe.epochs, recipe.batch_size, recipe.max_length),
        *(recipe.limit_train, recipe.limit_dev),
    )


def rule_of_thumb(*, gpu: bool) -> Terms:
    """Seconds for one unit of each term, before the first timing."""
    return _GPU_RULE if gpu else _CPU_RULE


def has_gpu() -> bool:
    """Whether trials are likely to run on a GPU: this machine has one, or a cluster is named."""
    return Path("/proc/driver/nvidia").exists() or bool(os.environ.get("RAY_ADDRESS"))


def deferred(plan: Plan, rates: Rates) -> Counter[Kind]:
    """The cells that wait for a measurement, each as a network of full depth."""
    waiting = Counter(
        (cell.asked.model, cell.asked.task) for cell in plan.cells if cell.state == "deferred"
    )
    models = {model.name: model for model in plan.sweep.models}
    pieces: Counter[Kind] = Counter()
    for (model, task), count in waiting.items():
        pieces[rates.kind(_whole_network(plan, models[model], plan.sweep.tasks[task]))] += count
    return pieces


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


def _measurements(plan: Plan, rates: Rates, missing: Iterable[Work]) -> Counter[Kind]:
    """One kind of measurement takes as long for every network of a model on a task."""
    counts: Counter[tuple[str, str, str]] = Counter()
    works: dict[tuple[str, str, str], Work] = {}
    for work in missing:
        for item in plan.missing_measures(work.id):
            kind = (work.model.name, work.task.name, item.spec.measure)
            counts[kind] += 1
            if kind not in works:
                works[kind] = replace(work, spec=item.spec)
    pieces: Counter[Kind] = Counter()
    for kind, count in counts.items():
        pieces[rates.kind(works[kind])] += count
    return pieces


def longest_trial(plan: Plan, rates: Rates) -> Work | None:
    """Of those that a run trains: none ends before it, on however many slots."""
    missing = taken_on(plan)
    trained = [work for work in missing if work.id in plan.trials and not plan.has_network(work.id)]
    return max(trained, key=rates.seconds, default=None)


def estimate(plan: Plan, rates: Rates) -> Estimate:
    """Slot-hours of what a run takes on: measurements too, and the trials that are trained again
    for them. A deferred cell counts as a network of full depth, one that a search may ask for,
    too."""
    missing = taken_on(plan)
    training = [work for work in missing if not plan.has_network(work.id)]
    pieces = Counter(map(rates.kind, training))
    pieces += _measurements(plan, rates, missing) + deferred(plan, rates)
    total = rates.total(pieces)
    searching = any(cell.search == "waiting" for cell in plan.cells)
    longest = longest_trial(plan, rates)
    alone = sum(rates.seconds(work) for work in missing if work.id in plan.speeds)
    return Estimate(
        total.seconds / 3600,
        None if searching else total.low / 3600,
        None if searching else total.high / 3600,
        rates.trials,
        rates.device,
        rates.on_gpu,
        rates.basis if missing else "nothing is missing",
        longest_hours=rates.seconds(longest) / 3600 if longest else 0.0,
        alone_hours=alone / 3600,
    )
