"""Names of models, layers and work for one line of output, and a sentence on searches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lp_sweep.storage.printable import layers, printable, ranges, short_model
from lp_sweep.trials.spec.autorecipe import FIND_RECIPE
from lp_sweep.trials.spec.procedures import DIRECT, Procedure, distill_label
from lp_sweep.trials.spec.specs import SpeedSpec, TrialSpec

if TYPE_CHECKING:
    from lp_sweep.orchestrator.plan.plan import Work

MOST_RANGES = 4  # in a line


def not_needed(trainings: int) -> str:
    """A sentence about what a search (`until: min_layers`) never trains."""
    return (
        f"the search found its answer without {trainings} of the trainings. Where the answer "
        "depends on one, a footnote of `lp-sweep table min-layers` names it."
    )


def asked_for_later(trainings: int) -> str:
    return f"more trainings ({trainings} at most): a measurement or a search asks for them first"


def describe(work: Work) -> str:
    """`bert-base-cased, layers 1-8 of 12, rte, seed 42`; a profile's model and task; or the network
    whose speed is measured."""
    model, task = short_model(work.model.name), printable(work.task.name)
    if work.spec.kind == "profile" and work.spec.measure == FIND_RECIPE:
        return f"{model}, a learning rate for {task}"
    if work.spec.kind == "profile":
        return f"{model}, {work.spec.measure.replace('_', '-')} measurement, {task}"
    layers = layers_of(work.spec.kept_layers, work.model.depth)
    if work.spec.kind == "speed":
        speed = f"speed on {work.spec.device_type}"
        return ", ".join([model, layers, *_removed(work.spec), speed])
    return ", ".join([model, layers, *_manner(work.spec), task, f"seed {work.spec.seed}"])


def _manner(spec: TrialSpec) -> list[str]:
    """How a trial differs from the plain one: its training, and what else is removed."""
    label = Procedure(
        spec.procedure, spec.freeze_dropped, spec.epochs_per_layer, bridge=spec.bridge
    ).label
    words = [] if label == DIRECT else [label]
    if distill := distill_label(spec):
        words.append(f"distill {distill}")
    if frozen := spec.recipe.freeze_layers:
        words.append(f"with {ranges(frozen, MOST_RANGES)} frozen")
    return words + _removed(spec)


def _removed(spec: TrialSpec | SpeedSpec) -> list[str]:
    gone = spec.removed_feed_forwards
    if not gone:
        return []
    norm = " no norm" if spec.second_norm == "drop" else ""
    return [f"without feed-forward{'s' * (len(gone) > 1)} {ranges(gone, MOST_RANGES)}{norm}"]


def layers_of(kept: Sequence[int], depth: int) -> str:
    """`all 12 layers`, `layers 1-8 of 12`."""
    if len(kept) == depth:
        return f"all {depth} layers"
    return f"{layers(kept, MOST_RANGES)} of {depth}"
