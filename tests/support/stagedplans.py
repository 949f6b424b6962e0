"""Plans of sweeps with procedures in stages, and what a test asks of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lp_sweep.orchestrator.plan.known import WorkHistory
from lp_sweep.orchestrator.plan.plan import Plan, Work
from lp_sweep.trials.spec.procedures import full_layers
from lp_sweep.trials.spec.select import LayerScores
from lp_sweep.trials.spec.specs import TrialSpec
from tests.support.sweepfiles import PLAIN, make_inputs, planned

ONE = ("task=rte", "seed=42")
FULL = full_layers(12)
STAGED = "procedures: [direct, finetune_then_drop]"


def plan_of(folder: Path, lines: str, *overrides: str, known: WorkHistory | None = None) -> Plan:
    """PLAIN with more lines, of one task and one seed."""
    file = make_inputs(folder, PLAIN + lines + "\n")
    return planned(file, *ONE, *overrides, known=known)


def spec(work: Work) -> TrialSpec:
    assert isinstance(work.spec, TrialSpec)
    return work.spec


def the_full(plan: Plan) -> str:
    [full] = [
        id_
        for id_, work in plan.trials.items()
        if spec(work).kept_layers == FULL
        and not spec(work).removed_feed_forwards
        and not spec(work).recipe.freeze_layers
    ]
    return full


def cell_trial(plan: Plan, **asked: Any) -> str:
    [id_] = {
        cell.trial_id
        for cell in plan.cells
        if asked.items() <= {**cell.row(), "k": cell.asked.k}.items()
    }
    assert id_ is not None
    return id_


def all_done(plan: Plan) -> WorkHistory:
    """All trials and measurements of the plan; no network is kept."""
    measures = (item.id for found in plan.measures.values() for item in found)
    done = dict.fromkeys([*measures, *plan.profiles], LayerScores({}))
    return WorkHistory(frozenset(plan.trials), {}, done)


def failed_measurement(folder: Path, kind: str = "bug") -> tuple[Plan, str, str]:
    """A finished sweep, one of whose measurements has failed: of which trial, and which."""
    plan = plan_of(folder, "measure: {cka: pruned}", "k=2")
    pruned = plan.cells[0].trial_id or ""
    [item] = plan.measures[pruned]
    plan.known = WorkHistory(frozenset(plan.trials), {item.id: kind}, {})
    return plan, pruned, item.id
