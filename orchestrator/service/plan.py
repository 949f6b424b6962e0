"""The plan of a sweep file over its store, for the commands that read both; and `plan`: what the
file asks for, what the store lacks, and an estimate for the rest."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from lp_sweep.orchestrator.estimate.estimate import Rates, TimeEstimate, estimate
from lp_sweep.orchestrator.inputs.data import TaskData
from lp_sweep.orchestrator.inputs.request import Request
from lp_sweep.orchestrator.inputs.resolve import Sweep
from lp_sweep.orchestrator.inputs.room import gpu_notes
from lp_sweep.orchestrator.plan.known import (
    Known,
    Ledger,
    read_ledger,
    timing_columns,
    with_networks,
)
from lp_sweep.orchestrator.plan.listing import hidden_by, mixed_threads, trained_otherwise
from lp_sweep.orchestrator.plan.plan import Plan, Work, state_of
from lp_sweep.orchestrator.plan.planning import make_plan
from lp_sweep.orchestrator.plan.selection import taken_on
from lp_sweep.orchestrator.service.plantext import plan_text
from lp_sweep.orchestrator.service.store import reading_patience
from lp_sweep.orchestrator.service.tables import ResultRows
from lp_sweep.orchestrator.sweepfile.load import SweepFile, is_part
from lp_sweep.storage.errors import SpecError
from lp_sweep.storage.places import BUILT_IN
from lp_sweep.storage.spool import flush
from lp_sweep.storage.store import Store, is_store
from lp_sweep.trials.spec.specs import SpeedSpec

if TYPE_CHECKING:
    from lp_sweep.orchestrator.inputs.prefetch import Prefetched


class Planned(NamedTuple):
    """A plan that knows what the store has. The store at `location` may not exist yet."""

    file: SweepFile
    sweep: Sweep
    location: str
    ledger: Ledger
    plan: Plan


def planned(
    request: Request, *, patience: float | None = None, cache_dir: Path | None = None
) -> Planned:
    """Reads the file, its inputs and its store. With `cache_dir`, also sends records to the store
    that an earlier run on this machine could not send; otherwise writes nothing."""
    file = request.sweep_file()
    sweep = request.resolved(file)
    location = request.location(file)
    ledger = Ledger(Known.nothing(), timing_columns(), [])
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
    return Planned(file, sweep, location, ledger, plan)


class SweepPlan(NamedTuple):
    """A plan that knows what the store has, with its estimate. Prints as `lp-sweep plan` does."""

    made: Planned
    estimate: TimeEstimate
    data: Sequence[TaskData]  # for tasks whose rows were read

    @property
    def totals(self) -> dict[str, int]:
        """Cells, trials and measurements by state."""
        return self.made.plan.totals()

    @property
    def notes(self) -> list[str]:
        return self.made.sweep.notes

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
                "to_do": len(taken_on(plan)),
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
        return plan_text(self.made.plan, self.estimate, self.data)

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
    from lp_sweep.orchestrator.inputs.checks import check_small_files

    made = planned(request)
    notes, data = check_small_files(made.sweep, made.plan.inputs_needed())
    made.sweep.notes.extend([*notes, *gpu_notes(made.sweep.spec)])
    tokens = {task.task: task.tokens for task in data if task.tokens}
    rates = Rates(made.ledger.timings, made.sweep.recipe, tokens=tokens)
    return SweepPlan(made, estimate(made.plan, rates), data)


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
