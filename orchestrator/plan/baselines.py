"""Models whose pruned networks the tables have nothing to compare with: K=0 is not asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from lp_sweep.orchestrator.plan.plan import Plan
from lp_sweep.trials.feedforward_rules import NONE


def missing_baselines(plan: Plan, left: Iterable[Mapping[str, Any]] = ()) -> Iterator[str]:
    """A note for each model and procedure without a K=0 cell: K=0 is one network, but the tables
    look for it in the rows of each procedure. `left`: what the store lists beside the plan's cells
    (leftover.py), as rows of the table `sweeps`."""
    asked = [cell.asked for cell in plan.cells]
    full = {(cell.model, cell.procedure, cell.feed_forward) for cell in asked if cell.k == 0}
    full |= {
        (row["model"], row["procedure"], row["feed_forward"] or NONE)  # null in an older file
        for row in left
        if row["k"] == 0 and row["threshold"] is None
    }
    reduced = {(model, procedure) for model, procedure, removed in full if removed != NONE}
    for model, procedure in dict.fromkeys((cell.model, cell.procedure) for cell in asked):
        if (model, procedure, NONE) in full:
            continue
        by = f" by {procedure}" if len(plan.sweep.spec.procedures) > 1 else ""
        mend = "add none to feed_forward" if (model, procedure) in reduced else "add 0 to its k"
        yield (
            f"{model} has no K=0 cell{by}, so the tables have nothing to compare its pruned "
            f"networks with: {mend}"
        )
