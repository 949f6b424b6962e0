"""`plan`: what a sweep file asks for, what the store lacks, and an estimate for the rest."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lp_sweep.analysis.phrases import heading
from lp_sweep.orchestrator.cluster.clusterfile import PRICES
from lp_sweep.orchestrator.estimate.estimate import (
    Cost,
    Estimate,
    Rates,
    cost,
    estimate,
    longest_trial,
)
from lp_sweep.orchestrator.estimate.pace import duration, two_digits
from lp_sweep.orchestrator.estimate.timings import Span
from lp_sweep.orchestrator.inputs.data import TaskData
from lp_sweep.orchestrator.inputs.request import Request
from lp_sweep.orchestrator.inputs.resolve import TaskInput
from lp_sweep.orchestrator.plan.naming import ASSUMED, short_model
from lp_sweep.orchestrator.plan.plan import Cell, Plan, Work, state_of
from lp_sweep.orchestrator.plan.planning import collector_paused
from lp_sweep.orchestrator.plan.selection import taken_on
from lp_sweep.orchestrator.service.request import Planned, planned
from lp_sweep.orchestrator.sweepfile.load import is_part
from lp_sweep.storage.errors import SpecError
from lp_sweep.storage.places import BUILT_IN
from lp_sweep.storage.printable import metric_name, page, ranges
from lp_sweep.storage.runs import Observer
from lp_sweep.storage.specs import TEACHER, SpeedSpec
from lp_sweep.storage.store import Store, is_store
from lp_sweep.trials.model.feedforward_rules import NONE
from lp_sweep.trials.train.procedures import DIRECT, UNTAUGHT, bridge_of

if TYPE_CHECKING:
    from lp_sweep.orchestrator.inputs.prefetch import Prefetched

_SHARED_SHOWN = 8


class PlanAnswer(NamedTuple):
    """A plan with its estimate, for people (`text`) and programs (`plain`)."""

    made: Planned
    estimate: Estimate
    rates: Rates
    slots: int  # of the active runs of the sweep
    cost: Cost | None  # on the cluster of the cluster file
    data: Sequence[TaskData]  # for tasks whose rows were read

    def plain(self) -> dict[str, Any]:
        """One JSON object. An estimate has no band while it is `at_most`, because of a search."""
        plan, estimate = self.made.plan, self.estimate
        return {
            "sweep": plan.sweep.name,
            "cells": [cell.row() for cell in plan.cells],
            "totals": {
                **plan.totals(),
                "to_do": len(taken_on(plan)),
                "slot_hours": round(estimate.hours, 3),
            },
            "data": [task.plain() for task in self.data],
            "estimate": {
                **estimate._asdict(),
                "tasks": {task: hours._asdict() for task, hours in estimate.tasks.items()},
                "at_most": estimate.at_most,
                "slots": self.slots or None,
                "wall_hours": estimate.wall(self.slots).expected if self.slots else None,
            },
            "cluster": _cost_json(self.cost) if self.cost else None,
            "profiles": [
                {
                    "profile_id": id_,
                    "model": work.model.name,
                    "task": work.task.name,
                    "state": state_of(id_, plan.known),
                }
                for id_, work in plan.profiles.items()
            ],
            "speeds": [_speed_row(plan, id_, work) for id_, work in plan.speeds.items()],
            "notes": plan.sweep.notes,
        }

    def text(self) -> str:
        plan = self.made.plan
        lines = [f"sweep {plan.sweep.name}", *_counts(plan), *_hours(self.estimate, self.slots)]
        lines += _cost_lines(self.cost) if self.cost else []
        for task in self.data:
            lines += ["", f"data of {task.task}", *(f"  {line}" for line in task.lines())]
        lines += ["", *_matrix(plan), *_shared(plan), *_longest(plan, self.rates)]
        lines += [f"note: {note}" for note in plan.sweep.notes]
        return page(lines)


def plan(request: Request, cluster_file: Path | None = None) -> PlanAnswer:
    """`cluster_file`: the cluster for which wall time and price are estimated. Writes nothing.
    Raises LpSweepError."""
    from lp_sweep.orchestrator.cluster.clusterfile import read_cluster_file
    from lp_sweep.orchestrator.engine.capacity import PerTrial, at_its_largest
    from lp_sweep.orchestrator.inputs.checks import check_small_files

    file = read_cluster_file(cluster_file) if cluster_file else None
    with collector_paused():  # planning allocates only long-lived objects
        made = planned(request)
        notes, data = check_small_files(made.sweep, made.plan.inputs_needed())
        made.sweep.notes.extend(notes)
        largest = at_its_largest(file, PerTrial.of(made.sweep.spec)) if file else None
        gpu = bool(largest.slots.gpus) if largest else None  # the device of the rule of thumb
        tokens = {task.task: task.tokens for task in data if task.tokens}
        rates = Rates(made.ledger.timings, made.sweep.recipe, gpu=gpu, tokens=tokens)
        hours = estimate(made.plan, rates)
    price = None
    if largest:
        price = cost(
            hours,
            largest.file,
            largest.workers,
            slots=largest.slots.number,
            on_gpu=bool(largest.slots.gpus),
        )
    return PlanAnswer(made, hours, rates, _slots_at_work(made), price, data)


def _slots_at_work(made: Planned) -> int:
    if not is_store(made.location):
        return 0
    runs = Observer(Store(made.location)).living()
    return sum(run.slots for run in runs if run.sweep == made.sweep.name)


def prefetch(request: Request) -> Prefetched:
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


def _cost_json(cost: Cost) -> dict[str, Any]:
    """`price` and `price_per_hour` are null if the file lacks a price."""
    return {
        "file": str(cost.file.path),
        "slots": cost.slots,
        "machines": cost.machines,
        "same_device": cost.same_device,
        "wall_hours": cost.hours._asdict(),
        "price_per_hour": cost.per_hour,
        "price": cost.price._asdict() if cost.price else None,
        "unpriced": list(cost.unpriced),
        "idle_timeout_minutes": cost.file.idle_minutes,
    }


def _speed_row(plan: Plan, id_: str, work: Work) -> dict[str, Any]:
    spec = work.spec
    assert isinstance(spec, SpeedSpec)
    return {
        "profile_id": id_,
        "model": work.model.name,
        "kept_layers": list(spec.kept_layers),
        "removed_feed_forwards": list(spec.removed_feed_forwards),
        "device_type": spec.device_type,
        "state": state_of(id_, plan.known),
    }


def _counts(plan: Plan) -> list[str]:
    """Cells, trials and measurements by state; a count of 0 has no line."""
    totals, to_do = plan.totals(), taken_on(plan)
    searched = sum(cell.search == "waiting" for cell in plan.cells)
    taught = sum(work.lesson is not None for work in plan.trials.values())
    totals |= _of_measures(plan)
    measures = f"of trained networks, by layer: {_states(totals, 'layers')}"
    teachers = f"learn from a teacher; its logits, once for all: {_states(totals, 'teachers')}"
    speeds = f"networks to time, one at a time: {_states(totals, 'speeds')}"
    waiting = f"cells waiting for a profile, a measurement ({_states(totals, 'profiles')})"
    counts = (
        ("cells", totals["cells"], "asked for: each is a model, strategy, K, task and seed"),
        ("trials", totals["trials"], f"networks {_kinds(plan)}; cells may share one"),
        ("done", totals["trials_done"], "already in the store"),
        ("failed", totals["trials_failed"], "`lp-sweep retry` retries them"),
        ("to do", len(to_do), _to_do(plan, to_do)),
        ("deferred", totals["cells_deferred"] - searched, waiting),
        ("distilled", taught, teachers),
        ("measures", totals["layers"], measures),
        ("search", searched, "more cells at most for `until: min_layers`"),
        ("spared", totals["cells_not_needed"], f"cells not needed for the answer ({ASSUMED})"),
        ("speeds", totals["speeds"], speeds),
        ("impossible", totals["cells_impossible"], _impossible(plan)),
    )
    return [f"  {name:<10} {count:>9,}   {meaning}" for name, count, meaning in counts if count]


def _of_measures(plan: Plan) -> dict[str, int]:
    """Measurements by state: `layers`, and separately `teachers`, the logits of train rows."""
    items = [(m.id, m.spec.measure) for found in plan.measures.values() for m in found]
    specs = {id_: work.spec for id_, work in plan.profiles.items()}
    items += [(id_, TEACHER) for id_, s in specs.items() if getattr(s, "measure", "") == TEACHER]
    names = [("teachers" if of == TEACHER else "layers", id_) for id_, of in items]
    states = (f"{name}_{state_of(id_, plan.known)}" for name, id_ in names)
    return {"layers": 0, **Counter(states), **Counter(name for name, _ in names)}


def _hours(estimate: Estimate, slots: int) -> list[str]:
    """The estimate, and one for each task if there are several."""
    if not estimate.hours:
        return [f"  estimate   {estimate.basis}"]
    unit = "of GPU time, one trial per GPU" if estimate.on_gpu else "on one slot"
    wall = f", {_about(estimate.wall(slots))} on the {slots} slots at work" if slots else ""
    most = "; a search rarely needs all of it" if estimate.at_most else ""
    tasks = estimate.tasks if len(estimate.tasks) > 1 else {}
    return [
        f"  estimate   {_about(estimate.span)} {unit}{wall}{most}; {estimate.basis}",
        *(f"             {task}: {_about(hours)}" for task, hours in tasks.items()),
    ]


def _about(hours: Span) -> str:
    """`about 3 min (1 to 13)`, or `at most 3 min` without a band."""
    return f"{'at most' if hours.low is None else 'about'} {duration(hours)}"


def _cost_lines(cost: Cost) -> list[str]:
    """The wall time, and the price or how to state it."""
    machines = ", ".join(f"{count} {kind}" for kind, count in cost.machines.items())
    wall = f"{_about(cost.hours)} with all of them at work"
    lines = [f"  cluster    {cost.slots:>9,}   slots on {machines}: {wall}", _price(cost)]
    if not cost.same_device:
        lines.append(
            "  note       the estimate and the cluster differ: one is on CPUs, one on GPUs"
        )
    return lines


def _price(cost: Cost) -> str:
    if cost.price is None:
        example = ", ".join(f"{kind}: 0.35" for kind in cost.unpriced)
        return (
            f"  price        unknown   {cost.file.path} lacks the price of an hour of "
            f"{', '.join(cost.unpriced)}: metadata: {{{PRICES}: {{{example}}}}}"
        )
    band = "(at most)"
    if cost.price.low is not None and cost.price.high is not None:
        band = f"({two_digits(cost.price.low)} to {two_digits(cost.price.high)})"
    return (
        f"  price      {two_digits(cost.price.expected):>9}   {band} at {cost.per_hour:,.2f} an "
        f"hour for all machines from start to end; booting, and {cost.file.idle_minutes:g} idle "
        "minutes before machines stop, are extra"
    )


def _impossible(plan: Plan) -> str:
    cells = [cell for cell in plan.cells if cell.state == "impossible"]
    reasons = {
        (False, False): "no layer would stay",
        (True, False): "no layer would stay whose feed-forward could be removed",
        (False, True): "layer 1 would go, and a bridge needs a layer below it",
    }
    found = {(c.asked.feed_forward != NONE, bool(bridge_of(c.asked.procedure))) for c in cells}
    return ", or ".join(reasons[what] for what in sorted(found))


def _states(totals: Mapping[str, int], name: str) -> str:
    """`3 done, 1 failed, 2 missing`, without zeros."""
    words = {"done": "done", "failed": "failed", "pending": "missing"}
    counts = {word: totals.get(f"{name}_{state}", 0) for state, word in words.items()}
    return ", ".join(f"{count:,} {word}" for word, count in counts.items() if count)


def _kinds(plan: Plan) -> str:
    """`to fine-tune`, or how many networks to fine-tune and how many to score untrained."""
    untrained = _untrained(plan, plan.trials)
    if not untrained:
        return "to fine-tune"
    return f"({len(plan.trials) - untrained:,} to fine-tune, {untrained:,} to score untrained)"


def _untrained(plan: Plan, ids: Iterable[str]) -> int:
    """How many of these trials do not train."""
    specs = (plan.trials[id_].spec for id_ in ids if id_ in plan.trials)
    return sum(getattr(spec, "procedure", "") in UNTAUGHT for spec in specs)


def _to_do(plan: Plan, work: Iterable[Work]) -> str:
    """The kinds of work, if it is more than fine-tuning new networks; and how many failed before
    and are retried, since a worker was lost or an input was missing."""
    ids = {item.id for item in work}
    again = ids & plan.trained_again()
    measured = (ids & plan.known.trials) - again
    profiles, speeds = ids & plan.profiles.keys(), ids & plan.speeds.keys()
    failed = sum(plan.failed_with(id_) is not None for id_ in ids)
    new = ids - again - measured - profiles - speeds
    untrained = _untrained(plan, new)
    parts = {
        "to fine-tune": len(new) - untrained,
        "to score untrained": untrained,
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
    """For each model and strategy its K or thresholds; then procedures, tasks and seeds."""
    points: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
    for cell in plan.cells:
        point = cell.asked.k if cell.asked.threshold is None else cell.asked.threshold
        points[cell.asked.model, cell.asked.strategy][str(point)] = None
    width = max(len(short_model(model)) for model, _ in points)
    return (
        [
            f"  {short_model(model):<{width}}  {strategy:<15} "
            f"{'threshold' if strategy == 'contribution' else 'K'} {', '.join(values)}"
            for (model, strategy), values in points.items()
        ]
        + [
            f"  {name} {', '.join(labels)}"
            for name, labels in (
                ("procedures", plan.sweep.spec.trainings),
                ("feed-forwards that go", plan.sweep.spec.feed_forward),
            )
            if labels not in ([DIRECT], [NONE])
        ]
        + [
            f"  tasks {', '.join(map(_task, plan.sweep.tasks.values()))}",
            f"  seeds {', '.join(map(str, plan.sweep.spec.seeds))}",
            "",
        ]
    )


def _task(task: TaskInput) -> str:
    """`claims (F1 of 'fraud')`: with the metric if it is about one class."""
    definition = task.definition
    metric = metric_name(definition.metric, definition.positive)
    return f"{task.name} ({heading('', metric).strip()})" if definition.positive else task.name


def _shared(plan: Plan) -> list[str]:
    """Names that mean the same network, over all tasks and seeds."""
    by_trial: dict[tuple[str, tuple[int, ...], str], dict[str, None]] = defaultdict(dict)
    for cell in plan.cells:
        if cell.kept and cell.trial_id:
            by_trial[cell.asked.model, cell.kept, cell.trial_id][_point(cell)] = None
    shared = list(
        dict.fromkeys(
            ((model, kept), tuple(names))
            for (model, kept, _), names in by_trial.items()
            if len(names) > 1
        )
    )
    if not shared:
        return []
    lines = ["one network under several names (trained once):"]
    for (model, kept), names in shared[:_SHARED_SHOWN]:
        lines.append(f"  {short_model(model)} layers {ranges(kept)}: {' = '.join(names)}")
    if len(shared) > _SHARED_SHOWN:
        lines.append(f"  and {len(shared) - _SHARED_SHOWN} more")
    return [*lines, ""]


def _point(cell: Cell) -> str:
    asked = cell.asked
    point = f"K={asked.k}" if asked.threshold is None else f">{asked.threshold}"
    words = [asked.strategy, point]
    words += [asked.procedure] if asked.procedure != DIRECT else []
    words += (
        [f"(feed-forwards removed: {asked.feed_forward})"] if asked.feed_forward != NONE else []
    )
    return " ".join(words)


def _longest(plan: Plan, rates: Rates) -> list[str]:
    longest = longest_trial(plan, rates)
    if longest is None:
        return []
    return [
        f"longest trial: {short_model(longest.model.name)} {longest.task.name}, "
        f"about {duration(Span(rates.seconds(longest) / 3600, None, None))}",
        "",
    ]
