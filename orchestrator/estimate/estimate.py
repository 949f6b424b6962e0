"""How long the missing work takes: its stated seconds (`workload`) times the median ratio of the
store's own timings, with a band from their quantiles.

The seconds also order the work: the longest trial starts first, so that it does not run last while
other slots idle.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from lp_sweep.orchestrator.estimate.span import Span, band
from lp_sweep.orchestrator.estimate.workload import (
    CPU,
    GPU,
    MeanLengths,
    missing_flop,
    recorded_flop,
)
from lp_sweep.orchestrator.inputs.models import ModelInput
from lp_sweep.orchestrator.inputs.resolve import TaskInput
from lp_sweep.orchestrator.plan.known import timing_columns
from lp_sweep.orchestrator.plan.plan import Plan, Work
from lp_sweep.orchestrator.plan.selection import taken_on
from lp_sweep.trials.spec.specs import Recipe, TrialSpec

_SPEEDS = "speeds"  # measurements of speed have no task
_NEWEST = 1000  # trials whose times count
_WITHOUT_TIMINGS = Span(1.0, 0.25, 4.0)  # the stated rates are right within a factor of 4
_NEEDED = ("seconds_total", "train_examples", "epochs", "max_length", "layers")
_DEVICE = ("device_type", "device_name", "threads")


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
        rows = _comparable(records, recipe or Recipe())
        self._lengths = MeanLengths(records, tokens)
        self.trials = len(rows)
        self.device = _device_label(rows[0]) if rows else None
        self.on_gpu = (
            rows[0]["device_type"] == "cuda" if rows else _has_gpu() if gpu is None else gpu
        )
        self._stated = GPU if self.on_gpu else CPU
        stated = [self._stated.seconds(recorded_flop(row, self._lengths)) for row in rows]
        ratios = [row["seconds_total"] / seconds for row, seconds in zip(rows, stated, strict=True)]
        self.ratio = band(ratios) if ratios else _WITHOUT_TIMINGS

    @property
    def basis(self) -> str:
        if self.trials:
            return f"from {self.trials:,} trials of this store on {self.device}"
        return f"no timings yet: stated rate of {self._stated.words}"

    def seconds(self, work: Work) -> float:
        """Expected seconds on one slot."""
        return self.ratio.expected * self._stated.seconds(missing_flop(work, self._lengths))

    def banded(self, seconds: float) -> Span:
        """Expected seconds with their band."""
        return self.ratio.times(seconds / self.ratio.expected)


def _comparable(trials: pa.Table, recipe: Recipe) -> list[dict[str, Any]]:
    """The newest trials on the device of the newest one, with the recipe's `compute` and
    `precision` if there are any. Those that continued from a checkpoint (maybe on another device)
    or ran out of memory (smaller micro-batches) are left out."""
    newest = trials.sort_by([("ended_at", "descending")]).slice(0, _NEWEST)
    rows = [
        row
        for row in newest.to_pylist()
        if all((row[name] or 0) > 0 for name in _NEEDED)
        and not (row["resumed_from_step"] or row["out_of_memory_retries"])
    ]
    here = [row for row in rows if all(row[name] == rows[0][name] for name in _DEVICE)]
    way = (recipe.compute, recipe.precision)
    return [row for row in here if (row["compute"], row["precision"]) == way] or here


def _device_label(row: Mapping[str, Any]) -> str:
    """`NVIDIA H100`, or `AMD EPYC with 2 threads`."""
    name = str(row["device_name"] or row["device_type"] or "an unknown device")
    if row["device_type"] == "cuda" or not row["threads"]:
        return name
    return f"{name} with {row['threads']} thread{'s' if row['threads'] > 1 else ''}"


def _has_gpu() -> bool:
    """Whether trials are likely to run on a GPU: this machine has one, or a cluster is named."""
    named = os.environ.get("LP_SWEEP_ADDRESS") or os.environ.get("RAY_ADDRESS")
    return Path("/proc/driver/nvidia").exists() or bool(named)


class TimeEstimate(NamedTuple):
    """Hours on one slot, in all and by task. While a search may add trials they are an upper limit,
    mostly far too high, and have no band."""

    span: Span
    trials: int  # of the store, whose times count
    on_gpu: bool
    basis: str
    tasks: Mapping[str, Span]

    @property
    def hours(self) -> float:
        return self.span.expected

    @property
    def at_most(self) -> bool:
        return self.span.high is None


def estimate(plan: Plan, rates: Rates) -> TimeEstimate:
    """Slot-hours of a run's work, with measurements and the trials that are trained again for them.
    A deferred cell counts as a full network."""
    to_do = taken_on(plan)
    hours: dict[str, float] = defaultdict(float)
    for work in to_do:
        parts = [replace(work, spec=item.spec) for item in plan.missing_measures(work.id)]
        if not plan.has_network(work.id):  # else it is only measured
            parts.append(work)
        hours[work.task.name or _SPEEDS] += sum(map(rates.seconds, parts)) / 3600
    for work, count in deferred(plan):
        hours[work.task.name] += count * rates.seconds(work) / 3600
    searching = any(cell.search == "waiting" for cell in plan.cells)
    spans = {task: Span(h) if searching else rates.banded(h) for task, h in hours.items()}
    total = sum(hours.values())
    return TimeEstimate(
        Span(total) if searching else rates.banded(total),
        rates.trials,
        rates.on_gpu,
        rates.basis if to_do else "nothing is missing",
        spans,
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
