"""How a piece of work is named in a line: its model, layers, procedure, task and seed."""

from __future__ import annotations

from lp_sweep.orchestrator.plan.plan import Work
from lp_sweep.orchestrator.plan.words import MOST_RANGES, layers_of, short_model
from lp_sweep.storage.printable import printable, ranges
from lp_sweep.storage.specs import SpeedSpec, TrialSpec
from lp_sweep.trials.procedures import DIRECT, Procedure


def describe(work: Work) -> str:
    """`bert-base-cased layers 1-8 of 12 rte seed 42`, or a profile's model and task, or whose speed
    it is."""
    model, task = short_model(work.model.name), printable(work.task.name)
    if work.spec.kind == "profile":
        return f"{model} {work.spec.measure.replace('_', '-')} profile {task}"
    layers = layers_of(work.spec.kept_layers, work.model.depth)
    if work.spec.kind == "speed":
        return " ".join([model, layers, *_removed(work.spec), "speed on", work.spec.device_type])
    return " ".join([model, layers, *_manner(work.spec), task, f"seed {work.spec.seed}"])


def _manner(spec: TrialSpec) -> list[str]:
    """How it is trained, and what else of it goes: nothing for the most usual."""
    label = Procedure(spec.procedure, spec.freeze_dropped, spec.epochs_per_layer).label
    words = [] if label == DIRECT else [label]
    if frozen := spec.recipe.freeze_layers:
        words.append(f"with {ranges(frozen, MOST_RANGES)} frozen")
    return words + _removed(spec)


def _removed(spec: TrialSpec | SpeedSpec) -> list[str]:
    gone = spec.removed_feed_forwards
    if not gone:
        return []
    norm = " no norm" if spec.second_norm == "drop" else ""
    return [f"without feed-forward{'s' * (len(gone) > 1)} {ranges(gone, MOST_RANGES)}{norm}"]
