"""The plan of a sweep file over its store, for the commands that read both; and `plan`: what the
file asks for, what the store lacks, and an estimate for the rest."""

from __future__ import annotations

import html
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from lp_sweep.analysis.phrases import heading
from lp_sweep.orchestrator.estimate import (
    CPU_BF16,
    Rates,
    Span,
    TimeEstimate,
    deferred_work,
    duration,
    estimate,
)
from lp_sweep.orchestrator.inputs.checks import check_small_files, gpu_notes
from lp_sweep.orchestrator.inputs.data import TaskData
from lp_sweep.orchestrator.inputs.resolve import SweepInputs, TaskInput
from lp_sweep.orchestrator.options import Request
from lp_sweep.orchestrator.plan.known import (
    Ledger,
    WorkHistory,
    read_ledger,
    timing_columns,
    with_networks,
)
from lp_sweep.orchestrator.plan.listing import hidden_by, mixed_threads, trained_otherwise
from lp_sweep.orchestrator.plan.naming import asked_for_later, not_needed
from lp_sweep.orchestrator.plan.plan import Cell, Plan, Work, state_of
from lp_sweep.orchestrator.plan.planning import make_plan
from lp_sweep.orchestrator.service.store import reading_patience
from lp_sweep.orchestrator.service.tables import ResultRows
from lp_sweep.orchestrator.sweepfile.load import SweepFile, is_part
from lp_sweep.storage.errors import SpecError
from lp_sweep.storage.places import BUILT_IN
from lp_sweep.storage.printable import layers, metric_name, page, ranges, short_model
from lp_sweep.storage.spool import flush
from lp_sweep.storage.store import Store, is_store
from lp_sweep.trials.spec.feedforward import NONE
from lp_sweep.trials.spec.procedures import DIRECT, NOT_RETRAINED
from lp_sweep.trials.spec.specs import SpeedSpec

if TYPE_CHECKING:
    from lp_sweep.orchestrator.inputs.prefetch import PrefetchResult

_ARTEFACT_SECONDS = 30  # to write a graph, answer the dev set, and take turns
_SHARED_SHOWN = 8
_MEASUREMENTS = {  # in the plan's totals
    "profiles": "of pre-trained networks",
    "measures": "of trained networks",
    "speeds": "of speed",
}
_IMPOSSIBLE = "no layer would stay, or none that a removed feed-forward or a bridge needs"


class PreparedPlan(NamedTuple):
    """A plan that knows what the store has. The store at `location` may not exist yet."""

    file: SweepFile
    sweep: SweepInputs
    location: str
    ledger: Ledger
    plan: Plan


def planned(
    request: Request, *, patience: float | None = None, cache_dir: Path | None = None
) -> PreparedPlan:
    """Reads the file, its inputs and its store. With `cache_dir`, also sends records to the store
    that an earlier run on this machine could not send; otherwise writes nothing."""
    file = request.sweep_file()
    sweep = request.resolved(file)
    location = request.location(file)
    ledger = Ledger(WorkHistory.nothing(), timing_columns(), [])
    store = None
    patience = reading_patience(location) if patience is None else patience
    if is_store(location, patience):
        store = Store(location, patience=patience)
        if cache_dir is not None:
            flush(store, cache_dir)
        ledger = read_ledger(store)
    plan = make_plan(sweep, ledger.known)
    part = is_part(request.overrides)
    sweep.notes.extend(mixed_threads(plan, ledger.timings))
    if store is not None:
        sweep.notes.extend(trained_otherwise(store, plan) if part else [])
        sweep.notes.extend(hidden_by(store, plan, part=part))
        wanted = plan.needed_networks() | plan.trained_again()
        plan.known = with_networks(plan.known, store, wanted)
    return PreparedPlan(file, sweep, location, ledger, plan)


class SweepPlan(NamedTuple):
    """A plan that knows what the store has, with its estimate. Prints as `lp-sweep plan` does."""

    made: PreparedPlan
    estimate: TimeEstimate
    data: Sequence[TaskData]  # for tasks whose rows were read
    rates: Rates

    @property
    def totals(self) -> dict[str, int]:
        """Cells, trials and measurements by state."""
        return self.made.plan.totals()

    @property
    def notes(self) -> list[str]:
        return self.made.sweep.notes

    def training_hours(self) -> float:
        """Slot-hours of its longest training, whether that is done or not."""
        plan = self.made.plan
        every = [*plan.trials.values(), *(work for work, _ in deferred_work(plan))]
        return max(map(self.rates.seconds, every)) / 3600

    def cells(self) -> ResultRows:
        """A row for each cell: model, strategy, K, task, seed, its trial and its state."""
        return ResultRows(pa.Table.from_pylist([cell.row() for cell in self.made.plan.cells]))

    def to_dict(self) -> dict[str, Any]:
        """The object that `lp-sweep plan --json` prints. An estimate has no band while it is
        `at_most`, because of a search."""
        plan, estimate = self.made.plan, self.estimate
        return {
            "sweep": plan.sweep.name,
            "cells": [cell.row() for cell in plan.cells],
            "totals": {
                **plan.totals(),
                "to_do": len(estimate.work),
                "slot_hours": round(estimate.hours, 3),
            },
            "data": [task.plain() for task in self.data],
            "estimate": {
                "hours": estimate.hours,
                "low_hours": estimate.span.low,
                "high_hours": estimate.span.high,
                "at_most": estimate.at_most,
                "trials": estimate.trials,
                "basis": estimate.basis,
                "tasks": {task: hours._asdict() for task, hours in estimate.tasks.items()},
            },
            "profiles": [
                _measured(plan, work, task=work.task.name) for work in plan.profiles.values()
            ],
            "speeds": [
                _measured(
                    plan,
                    work,
                    kept_layers=list(work.spec.kept_layers),
                    removed_feed_forwards=list(work.spec.removed_feed_forwards),
                    device_type=work.spec.device_type,
                )
                for work in plan.speeds.values()
                if isinstance(work.spec, SpeedSpec)
            ],
            "notes": plan.sweep.notes,
        }

    def text(self) -> str:
        plan = self.made.plan
        counts = _counts(plan, self.estimate.work)
        lines = [f"sweep {plan.sweep.name}", *counts, *_hours(self.estimate)]
        lines += _precision(plan.sweep.recipe.precision, self.estimate)
        for task in self.data:
            lines += ["", f"data of {task.task}", *(f"  {line}" for line in task.lines())]
        lines += ["", *_matrix(plan), *_shared(plan)]
        lines += [f"note: {note}" for note in plan.sweep.notes]
        return page(lines)

    def __repr__(self) -> str:
        return self.text().rstrip("\n")

    def _repr_html_(self) -> str:
        cells = self.cells()
        return (
            f"<pre>{html.escape(repr(self))}</pre><details><summary>{len(cells)} cells</summary>"
            f"{cells._repr_html_()}</details>"
        )


def plan(request: Request) -> SweepPlan:
    """Writes nothing. Raises LpSweepError."""
    made = planned(request)
    notes, data = check_small_files(made.sweep, made.plan.inputs_needed())
    made.sweep.notes.extend([*notes, *gpu_notes(made.sweep.spec)])
    rates = rates_of(made, data)
    if not (rates.trials or rates.on_gpu) and _on_this_cpu(made.sweep.recipe.precision) == "bf16":
        rates.stated = CPU_BF16
    return SweepPlan(made, estimate(made.plan, rates), data, rates)


def rates_of(made: PreparedPlan, data: Iterable[TaskData]) -> Rates:
    tokens = {task.task: task.tokens for task in data if task.tokens}
    return Rates(made.ledger.timings, made.sweep.recipe, tokens=tokens)


def prefetch(request: Request) -> PrefetchResult:
    """Downloads models and data sets at pinned revisions. Raises LpSweepError."""
    from lp_sweep.orchestrator.inputs.prefetch import prefetch as fetch

    if request.is_built_in:
        raise SpecError(f"{BUILT_IN} needs no prefetch: its model and data are built in.")
    return fetch(
        request.sweep_file(),
        data_dir=request.data_dir,
        manifest=request.manifest,
        part=is_part(request.overrides),
    )


def _measured(plan: Plan, work: Work, **facts: Any) -> dict[str, Any]:
    state = state_of(work.id, plan.known)
    return {"profile_id": work.id, "model": work.model.name, **facts, "state": state}


# -- the text: counts, estimate, and the cells by model and strategy


def _counts(plan: Plan, to_do: Sequence[Work]) -> list[str]:
    """Trainings and measurements by state; a count of 0 has no line."""
    totals = plan.totals()
    searched = sum(cell.search == "waiting" for cell in plan.cells)
    taught = sum(work.lesson is not None for work in plan.trials.values())
    as_is = sum(work.trial.procedure in NOT_RETRAINED for work in plan.trials.values())
    measured = sum(totals[kind] for kind in _MEASUREMENTS)
    kinds = (
        f"{_states(totals, kind)} {what}" for kind, what in _MEASUREMENTS.items() if totals[kind]
    )
    asked = f"for {totals['cells']:,} combinations of model, strategy, layers, task and seed"
    waiting = totals["cells_deferred"] - searched
    searches = set(plan.finders.values()) - plan.known.recipes.keys()
    finds = "measurement finds the learning rate and the epochs"
    if len(searches) > 1:
        finds = "measurements find learning rates and epochs, each for a model and a task"
    counts = (
        ("trainings", totals["trials"], asked),
        ("done", totals["trials_done"], "already in the store"),
        ("failed", totals["trials_failed"], "`lp-sweep retry` retries them"),
        ("to do", len(to_do), _to_do(plan, to_do)),
        ("measurements", measured, "; ".join(kinds)),
        ("waiting", waiting, asked_for_later(waiting)),
        ("first", len(searches), finds),
        ("distilled", taught, "learn from a teacher"),
        ("untrained", as_is, "are scored as they are, without a training"),
        ("search", searched, "more trainings at most for `until: min_layers`"),
        ("not needed", totals["cells_not_needed"], not_needed(totals["cells_not_needed"])),
        ("impossible", totals["cells_impossible"], _IMPOSSIBLE),
    )
    return [f"  {name:<12} {count:>7,}   {meaning}" for name, count, meaning in counts if count]


def _hours(estimate: TimeEstimate) -> list[str]:
    """The estimate, and one for each task if there are several."""
    if not estimate.hours:
        return [f"  estimate     {estimate.basis}"]
    unit = "of GPU time, one trial per GPU" if estimate.on_gpu else "on one slot"
    most = "; a search rarely needs all of it" if estimate.at_most else ""
    tasks = estimate.tasks if len(estimate.tasks) > 1 else {}
    return [
        f"  estimate     {_about(estimate.span)} {unit}{most}; {estimate.basis}",
        *(f"             {task}: {_about(hours)}" for task, hours in tasks.items()),
    ]


def _precision(wanted: str, estimate: TimeEstimate) -> list[str]:
    """What `auto` is on the CPU of this machine."""
    if wanted != "auto" or estimate.on_gpu:
        return []
    used = _on_this_cpu(wanted)
    other = "in fp32" if used == "bf16" else "with bf16 instructions in bf16"
    return [f"  precision    {used} on this CPU; another CPU may train {other}, not comparable"]


def _on_this_cpu(wanted: str) -> str:
    """bf16 or fp32."""
    if wanted != "auto":
        return wanted
    from lp_sweep.trials.device import pick_device, precision_used  # torch

    return precision_used(wanted, pick_device("cpu"))


def _about(hours: Span) -> str:
    """`about 3 min (1 to 13)`, or `at most 3 min` without a band."""
    return f"{'at most' if hours.low is None else 'about'} {duration(hours)}"


def _states(totals: Mapping[str, int], name: str) -> str:
    """`3 done, 1 failed, 2 missing`, without zeros."""
    words = {"done": "done", "failed": "failed", "pending": "missing"}
    counts = {word: totals.get(f"{name}_{state}", 0) for state, word in words.items()}
    return ", ".join(f"{count:,} {word}" for word, count in counts.items() if count)


def _to_do(plan: Plan, work: Iterable[Work]) -> str:
    """The kinds of work, if it is more than fine-tuning new networks; and how many failed before
    and are retried, since a worker was lost or an input was missing."""
    ids = {item.id for item in work}
    again = ids & plan.trained_again()
    measured = (ids & plan.known.trials) - again
    profiles, speeds = ids & plan.profiles.keys(), ids & plan.speeds.keys()
    failed = sum(plan.failed_with(id_) is not None for id_ in ids)
    new = ids - again - measured - profiles - speeds
    untrained = sum(plan.trials[id_].trial.procedure in NOT_RETRAINED for id_ in new)
    parts = {
        "to fine-tune": len(new) - untrained,
        "to score without training": untrained,
        "done but to train again, since their network is needed and was not kept": len(again),
        "done but to measure": len(measured),
        "pre-trained to measure": len(profiles),
        "to time": len(speeds),
    }
    told = [f"{count:,} {what}" for what, count in parts.items() if count]
    words = f": {', '.join(told)}" if len(told) > 1 or len(new) == untrained else ""
    retried = f"; {failed} failed before and may work now" if failed else ""
    return f"by `lp-sweep run`{words}{retried}"


def _matrix(plan: Plan) -> list[str]:
    """For each model and strategy its layers or thresholds; then procedures, tasks and seeds."""
    depths = {model.name: model.depth for model in plan.sweep.models}
    points: dict[tuple[str, str], dict[Any, None]] = defaultdict(dict)
    for asked in (cell.asked for cell in plan.cells):
        kept = depths[asked.model] - (asked.k or 0)
        point = kept if asked.threshold is None else asked.threshold
        points[asked.model, asked.strategy][point] = None
    width = max(len(short_model(model)) for model, _ in points)
    lines = []
    for (model, strategy), values in points.items():
        said = f"threshold {', '.join(map(str, values))}"
        if strategy != "contribution":
            said = f"{ranges(sorted(values))} of {depths[model]} layers"
        lines.append(f"  {short_model(model):<{width}}  {strategy:<15} {said}")
    spec = plan.sweep.spec
    labels = [*dict.fromkeys(cell.asked.procedure.label for cell in plan.cells)]
    lines += [f"  procedures {', '.join(labels)}"] * (labels != [DIRECT])
    removed = ", ".join(spec.feed_forward)
    lines += [f"  feed-forwards that go {removed}"] * (removed != NONE)
    lines.append(f"  tasks {', '.join(map(_task, plan.sweep.tasks.values()))}")
    included = sorted({cell.asked.seed for cell in plan.cells} - {*spec.seeds})
    some = f"; {', '.join(map(str, included))} for those of `include:`" if included else ""
    lines.append(f"  seeds {', '.join(map(str, spec.seeds))}{some}")
    for model, task in plan.finders:
        if recipe := plan.recipe((model, task)):
            found = f"learning_rate {recipe.learning_rate:g}, epochs {recipe.epochs}"
            lines.append(f"  recipe: auto found {found} for {short_model(model)} on {task}")
    return [*lines, *_as_shipped(plan), ""]


def _as_shipped(plan: Plan) -> list[str]:
    """What `deploy:` adds at the end of a run, and the rows of `test:`."""
    spec = plan.sweep.spec
    tested = [task.name for task in plan.sweep.tasks.values() if task.test]
    lines = [f"  test rows, scored once, for what is shipped: {', '.join(tested)}"] * bool(tested)
    if not spec.deploy:
        return lines
    cells = (cell for cell in plan.cells if cell.kept)
    depths = {(cell.asked.model, cell.asked.task, len(cell.kept or ())) for cell in cells}
    artefacts = len(depths) * len(spec.deploy) * len(spec.vocabulary)
    minutes = artefacts * _ARTEFACT_SECONDS / 60
    forms = ", ".join(spec.deploy) + " with a cut vocabulary" * ("task" in spec.vocabulary)
    return [
        *lines,
        f"  measured as shipped at the end: at most {artefacts} ({forms}), about {minutes:.0f} min",
        f"  weights that are kept for it: {_kept_space(plan)} (keep: {spec.keep})",
    ]


def _kept_space(plan: Plan) -> str:
    """`about 1.2 GB`: the weights that `keep` keeps, from the files of their models."""
    models = {model.name: model for model in plan.sweep.models}
    networks = dict[tuple[Any, ...], float]()
    for cell in plan.cells:
        asked, model = cell.asked, models[cell.asked.model]
        if cell.kept and cell.trial_id:
            seed = asked.seed if plan.sweep.spec.keep == "all" else None
            alike = model.name, cell.kept, asked.task, asked.procedure, asked.feed_forward, seed
            whole = sum(
                path.stat().st_size for path in model.folder.glob("*.safetensors") if path.is_file()
            )
            left_out = 4 * (model.depth - len(cell.kept)) * (model.layer_parameters or 0)
            networks[alike] = whole - left_out if whole else math.nan
    total = sum(networks.values())
    if math.isnan(total):
        return f"those of {len(networks)} networks"
    return f"about {total / 1e9:.1f} GB" if total >= 1e9 else f"about {total / 1e6:.0f} MB"


def _task(task: TaskInput) -> str:
    """`claims (F1 of 'fraud')`: with the metric if it is about one class."""
    definition = task.definition
    metric = metric_name(definition.metric, definition.positive)
    return f"{task.name} ({heading('', metric).strip()})" if definition.positive else task.name


def _shared(plan: Plan) -> list[str]:
    """Names that mean the same network, over all tasks and seeds."""
    names: dict[tuple[str, tuple[int, ...], str], dict[str, None]] = defaultdict(dict)
    for cell in plan.cells:
        if cell.kept and cell.trial_id:
            names[cell.asked.model, cell.kept, cell.trial_id][_point(cell)] = None
    shared = dict.fromkeys(
        f"  {short_model(model)} {layers(kept)}: {' = '.join(alike)}"
        for (model, kept, _), alike in names.items()
        if len(alike) > 1
    )
    if not shared:
        return []
    more = [f"  and {len(shared) - _SHARED_SHOWN} more"] if len(shared) > _SHARED_SHOWN else []
    head = "one network under several names (trained once):"
    return [head, *[*shared][:_SHARED_SHOWN], *more, ""]


def _point(cell: Cell) -> str:
    asked = cell.asked
    words = [asked.strategy, *([] if asked.threshold is None else [f">{asked.threshold}"])]
    if asked.procedure.label != DIRECT:
        words.append(asked.procedure.label)
    if asked.feed_forward.label != NONE:
        words.append(f"(feed-forwards removed: {asked.feed_forward.label})")
    return " ".join(words)
