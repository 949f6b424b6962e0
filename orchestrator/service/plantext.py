"""The text of `plan`: counts, estimate, data, and the cells by model and strategy."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from lp_sweep.analysis.phrases import heading
from lp_sweep.orchestrator.estimate.estimate import Estimate
from lp_sweep.orchestrator.estimate.pace import duration
from lp_sweep.orchestrator.estimate.timings import Span
from lp_sweep.orchestrator.inputs.data import TaskData
from lp_sweep.orchestrator.inputs.resolve import TaskInput
from lp_sweep.orchestrator.plan.naming import ASSUMED, short_model
from lp_sweep.orchestrator.plan.plan import Cell, Plan, Work, state_of
from lp_sweep.orchestrator.plan.selection import taken_on
from lp_sweep.storage.printable import metric_name, page, ranges
from lp_sweep.storage.specs import TEACHER
from lp_sweep.trials.model.feedforward_rules import NONE
from lp_sweep.trials.train.procedures import DIRECT, UNTAUGHT, bridge_of

_SHARED_SHOWN = 8


def plan_text(plan: Plan, estimate: Estimate, slots: int, data: Sequence[TaskData]) -> str:
    """Arguments as in `SweepPlan`."""
    lines = [f"sweep {plan.sweep.name}", *_counts(plan), *_hours(estimate, slots)]
    for task in data:
        lines += ["", f"data of {task.task}", *(f"  {line}" for line in task.lines())]
    lines += ["", *_matrix(plan), *_shared(plan), *_longest(estimate)]
    lines += [f"note: {note}" for note in plan.sweep.notes]
    return page(lines)


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
    at_work = f"{slots} slot{'s' * (slots > 1)} at work"
    wall = f", {_about(estimate.wall(slots))} on the {at_work}" if slots else ""
    most = "; a search rarely needs all of it" if estimate.at_most else ""
    tasks = estimate.tasks if len(estimate.tasks) > 1 else {}
    return [
        f"  estimate   {_about(estimate.span)} {unit}{wall}{most}; {estimate.basis}",
        *(f"             {task}: {_about(hours)}" for task, hours in tasks.items()),
    ]


def _about(hours: Span) -> str:
    """`about 3 min (1 to 13)`, or `at most 3 min` without a band."""
    return f"{'at most' if hours.low is None else 'about'} {duration(hours)}"


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
    """`to fine-tune`, or how many networks to fine-tune and how many to score without training."""
    untrained = _untrained(plan, plan.trials)
    if not untrained:
        return "to fine-tune"
    return (
        f"({len(plan.trials) - untrained:,} to fine-tune, {untrained:,} to score without training)"
    )


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
    """For each model and strategy its K or thresholds; then procedures, tasks and seeds."""
    points: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
    for cell in plan.cells:
        point = cell.asked.k if cell.asked.threshold is None else cell.asked.threshold
        points[cell.asked.model, cell.asked.strategy][str(point)] = None
    width = max(len(short_model(model)) for model, _ in points)
    lines = [
        f"  {short_model(model):<{width}}  {strategy:<15} "
        f"{'threshold' if strategy == 'contribution' else 'K'} {', '.join(values)}"
        for (model, strategy), values in points.items()
    ]
    spec = plan.sweep.spec
    if spec.trainings != [DIRECT]:
        lines.append(f"  procedures {', '.join(spec.trainings)}")
    if spec.feed_forward != [NONE]:
        lines.append(f"  feed-forwards that go {', '.join(spec.feed_forward)}")
    lines.append(f"  tasks {', '.join(map(_task, plan.sweep.tasks.values()))}")
    return [*lines, f"  seeds {', '.join(map(str, spec.seeds))}", ""]


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
    words = [asked.strategy, f"K={asked.k}" if asked.threshold is None else f">{asked.threshold}"]
    if asked.procedure != DIRECT:
        words.append(asked.procedure)
    if asked.feed_forward != NONE:
        words.append(f"(feed-forwards removed: {asked.feed_forward})")
    return " ".join(words)


def _longest(estimate: Estimate) -> list[str]:
    work = estimate.longest
    if work is None:
        return []
    return [
        f"longest trial: {short_model(work.model.name)} {work.task.name}, "
        f"about {duration(Span(estimate.longest_hours, None, None))}",
        "",
    ]
