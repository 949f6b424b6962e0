"""How long the missing work takes: from the store's own timings, else from a stated rule of thumb.

Also the order of the work: longest first, so that no long trial starts last on one slot while the
others idle.
"""

from __future__ import annotations

import os
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from lp_sweep.orchestrator.models import ModelInput
from lp_sweep.orchestrator.plan import Plan, Work
from lp_sweep.orchestrator.resolve import TaskInput
from lp_sweep.orchestrator.selection import taken_on
from lp_sweep.storage.identity import ProfileSpec, SpeedSpec, TrialSpec
from lp_sweep.trials.measures.heldout import held_out_rows
from lp_sweep.trials.measures.pairs import RULE
from lp_sweep.trials.procedures import ITERATIVE, phases

# FLOP/s that one slot sustains; used only before the store has a timing
_GPU_FLOPS, _CPU_FLOPS = 1e13, 5e10
_TOKENS = 64  # mean length after dynamic padding, likewise
_LAYER_PARAMETERS = 7_077_888  # of bert-base
_OVERHEAD_LAYERS = 1  # embeddings, head and optimiser, in layers
_FORWARD_SHARE = 1 / 3  # a forward pass is a third of a training step


class Estimate(NamedTuple):
    """Hours on one slot. `basis` says what the figure stands on."""

    hours: float
    basis: str


def work_size(work: Work) -> float:
    """Example-layers, a forward pass counting a third of a training step."""
    if isinstance(work.spec, SpeedSpec):
        return _speed_size(work.spec, work.model.depth)
    dev = work.task.dev_rows
    if isinstance(work.spec, ProfileSpec):
        return _profile_size(work, work.spec)
    recipe = work.spec.recipe
    train = work.task.train_rows
    rows = min(train, recipe.limit_train or train)
    scored = min(dev, recipe.limit_dev or dev)
    layer_epochs = sum(
        phase.epochs * (len(phase.kept_layers) + _OVERHEAD_LAYERS)
        for phase in phases(work.spec, work.model.depth)
    )
    return (rows + scored * _FORWARD_SHARE) * layer_epochs


def _speed_size(spec: SpeedSpec, depth: int) -> float:
    """Both networks, a step and an inference each time, without the rounds that noise may add;
    their rows are full of tokens."""
    layers = depth + len(spec.kept_layers) + 2 * _OVERHEAD_LAYERS
    rows = sum(spec.batches) * spec.length / _TOKENS
    return (RULE.warm_ups + RULE.pairs) * rows * layers * (1 + _FORWARD_SHARE)


def _profile_size(work: Work, spec: ProfileSpec) -> float:
    """A pass over the dev rows; of probes one over their train rows too; of a greedy selection a
    training of the full network, and as many passes as it tries layers."""
    depth, dev, train = work.model.depth, work.task.dev_rows, work.task.train_rows
    rows = min(dev, spec.limit_dev or dev)
    learned = min(train, spec.limit_train or train)
    if spec.recipe is not None:
        held_out = held_out_rows(learned)
        tried = sum(left * (left - 1 + _OVERHEAD_LAYERS) for left in range(2, depth + 1))
        trained = (learned - held_out) * spec.recipe.epochs * (depth + _OVERHEAD_LAYERS)
        return trained + held_out * tried * _FORWARD_SHARE
    if spec.rows is not None:
        rows += min(learned, spec.rows)
    return rows * depth * _FORWARD_SHARE


class Rates:
    """Seconds per example-layer, by model; measured where the store has trials of the model."""

    def __init__(self, trials: Iterable[Mapping[str, Any]], *, gpu: bool | None = None) -> None:
        gpu = has_gpu() if gpu is None else gpu
        self._flops, self.rule = (
            (_GPU_FLOPS, "a GPU of 10 TFLOP/s") if gpu else (_CPU_FLOPS, "a CPU core of 50 GFLOP/s")
        )
        measured: dict[str, list[float]] = defaultdict(list)
        for row in trials:
            size = _recorded_size(row)
            if size and row["seconds_total"]:
                measured[row["model_fingerprint"]].append(row["seconds_total"] / size)
        self._measured = {model: statistics.median(values) for model, values in measured.items()}

    def seconds(self, work: Work) -> float:
        rate = self._measured.get(work.model.fingerprint)
        if rate is None:
            parameters = work.model.layer_parameters or _LAYER_PARAMETERS
            rate = 6 * parameters * _TOKENS / self._flops
        return work_size(work) * rate

    def knows(self, work: Work) -> bool:
        return work.model.fingerprint in self._measured


def has_gpu() -> bool:
    """Whether trials are likely to run on a GPU: this machine has one, or a cluster is named."""
    return Path("/proc/driver/nvidia").exists() or bool(os.environ.get("RAY_ADDRESS"))


def _recorded_size(row: Mapping[str, Any]) -> float:
    if not row["train_examples"] or row["procedure"] == ITERATIVE:
        return 0.0
    layers = len(row["kept_layers"]) + _OVERHEAD_LAYERS
    examples = row["train_examples"] + row["dev_examples"] * _FORWARD_SHARE
    return float(examples * row["epochs"] * layers)


def _deferred_seconds(plan: Plan, rates: Rates) -> float:
    waiting = Counter(
        (cell.asked.model, cell.asked.task) for cell in plan.cells if cell.state == "deferred"
    )
    models = {model.name: model for model in plan.sweep.models}
    return sum(
        count * rates.seconds(_whole_network(plan, models[model], plan.sweep.tasks[task]))
        for (model, task), count in waiting.items()
    )


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


def _measure_seconds(plan: Plan, rates: Rates, missing: Iterable[Work]) -> float:
    """One kind of measurement takes as long for every network of a model on a task."""
    counts: Counter[tuple[str, str, str]] = Counter()
    works: dict[tuple[str, str, str], Work] = {}
    for work in missing:
        for item in plan.missing_measures(work.id):
            kind = (work.model.name, work.task.name, item.spec.measure)
            counts[kind] += 1
            if kind not in works:
                works[kind] = replace(work, spec=item.spec)
    return sum(count * rates.seconds(works[kind]) for kind, count in counts.items())


def estimate(plan: Plan, rates: Rates) -> Estimate:
    """Slot-hours of what a run takes on: measurements too, and the trials that are trained again
    for them. A deferred cell counts as a network of full depth."""
    missing = taken_on(plan)
    seconds = sum(rates.seconds(work) for work in missing if not plan.has_network(work.id))
    seconds += _measure_seconds(plan, rates, missing) + _deferred_seconds(plan, rates)
    unknown = sum(not rates.knows(work) for work in missing)
    if not missing:
        basis = "nothing is missing"
    elif unknown:
        basis = f"rule of thumb, before the first timing: {rates.rule}"
    else:
        basis = "this store's own timings"
    return Estimate(seconds / 3600, basis)
