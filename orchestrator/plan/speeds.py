"""Which speeds a sweep wants measured: each of its networks once, whatever its tasks and seeds."""

from __future__ import annotations

from lp_sweep.orchestrator.inputs.models import ModelInput
from lp_sweep.orchestrator.inputs.resolve import TaskInput
from lp_sweep.orchestrator.plan.plan import Plan, Work
from lp_sweep.storage.identity import profile_id
from lp_sweep.storage.specs import SpeedSpec, TaskDefinition, TrialSpec
from lp_sweep.trials.tasks import TaskSource

# 32 examples, as in the paper's Table 3. At that size a fast GPU waits for its host, and layers
# cost less than in a batch that fills it: so a second one.
BATCHES = {"cpu": (32,), "cuda": (32, 256)}
# what stands for the task of work that has none
NO_TASK = TaskInput("", TaskDefinition(text_columns=()), TaskSource(), "", 0, 0)


def wanted_speeds(plan: Plan) -> dict[str, Work]:
    """By identifier: of each network that answers a cell, on each type of device asked for."""
    measure = plan.sweep.spec.measure
    found: dict[str, Work] = {}
    for device_type in measure.speed or ():
        specs: dict[SpeedSpec, ModelInput] = {}
        for cell in plan.cells:
            work = plan.trials.get(cell.trial_id or "")
            if work is not None:
                specs[_speed(work.trial, device_type, measure.speed_length)] = work.model
        for spec, model in specs.items():
            id_ = profile_id(spec)
            found[id_] = Work(id=id_, spec=spec, model=model, task=NO_TASK)
    return found


def _speed(trial: TrialSpec, device_type: str, length: int) -> SpeedSpec:
    """That of the network that a trial ends with."""
    return SpeedSpec(
        model_fingerprint=trial.model_fingerprint,
        kept_layers=trial.kept_layers,
        removed_feed_forwards=trial.removed_feed_forwards,
        second_norm=trial.second_norm,
        precision=trial.recipe.precision,
        device_type=device_type,
        length=length,
        batches=BATCHES[device_type],
    )
