"""Cells that a run of a part of a sweep leaves listed, and that were trained in another way.

A sweep file is amended, and then a part of it is run: the tables of the sweep have both, and would
compare two recipes, or the rows of two data sets, as if they were one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from lp_sweep.orchestrator.plan.listing import point
from lp_sweep.orchestrator.plan.plan import Plan
from lp_sweep.storage.plain import trial_spec_from_canonical
from lp_sweep.storage.specs import Recipe, TrialSpec
from lp_sweep.storage.store import Store

_OF_EACH_NETWORK = "freeze_layers"  # a trial's recipe has those that it keeps


def leftover(store: Store, plan: Plan) -> list[dict[str, Any]]:
    """The cells of the plan's sweep that the store lists beside its own: rows of `sweeps`. Raises
    StoreError."""
    own = {point(cell.row()) for cell in plan.cells}
    return [row for row in store.find("sweeps", plan.sweep.name) or () if point(row) not in own]


def trained_otherwise(store: Store, plan: Plan, cells: Iterable[Mapping[str, Any]]) -> list[str]:
    """A note where the trials of the leftover cells are of another recipe, data or model than the
    plan's: of those that are done. Raises StoreError."""
    left = [row for row in cells if row["trial_id"]]
    if not left:
        return []
    trials = store.read_all("trials", {row["trial_id"] for row in left}, ["spec", "model", "task"])
    ways = {
        row["trial_id"]: ways
        for row in trials.rows.to_pylist()
        if (ways := tuple(_ways(plan, row)))
    }
    number = sum(row["trial_id"] in ways for row in left)
    if not number:
        return []
    said = "; ".join(dict.fromkeys(way for found in ways.values() for way in found))
    return [
        f"{number} cell{'s' if number > 1 else ''} of sweep {plan.sweep.name!r} that this run "
        f"leaves as they are were trained in another way ({said}), and its tables compare them "
        "with the cells of this run. Run the whole sweep, or give this one another `name:`."
    ]


def _ways(plan: Plan, record: Mapping[str, Any]) -> Iterator[str]:
    """In which the trial of a record is not of the plan's sweep."""
    spec = _spec(record["spec"])
    if spec is None:
        return
    yield from _settings(spec.recipe, plan.sweep.recipe)
    task = plan.sweep.tasks.get(record["task"])
    if task and (task.fingerprint, task.definition) != (spec.data_fingerprint, spec.task):
        yield f"other data of task {record['task']!r}"
    prints: Iterable[str] = [m.fingerprint for m in plan.sweep.models if m.name == record["model"]]
    if prints and spec.model_fingerprint not in prints:
        yield f"another model {record['model']!r}"


def _settings(was: Recipe, is_now: Recipe) -> Iterator[str]:
    now = asdict(is_now)
    for name, value in asdict(was).items():
        if name != _OF_EACH_NETWORK and value != now[name]:
            yield f"{name} {value}, now {now[name]}"


def _spec(text: str | None) -> TrialSpec | None:
    """None for what another version wrote."""
    try:
        return trial_spec_from_canonical(text) if text else None
    except (KeyError, TypeError, ValueError):
        return None
