"""How a pruned network comes about: in which stages it is fine-tuned. Pure; imports no torch.

`direct`              drop, then fine-tune.
`finetune_then_drop`  fine-tune the full network (stage one, a trial of its own that every K shares
                      unless the layers to drop are frozen in it), drop, fine-tune again.
`iterative`           drop one layer, from the highest down, after every `epochs_per_layer` epochs,
                      then the recipe's own epochs; one run of the optimiser and of its schedule.

Poor Man's BERT, section 5 ("Layer-Dropping using Fine-tuned Models", "Iterative Dropping"). Where
nothing is dropped all three are `direct`: there is one full network to compare with.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from lp_sweep.storage.specs import TrialSpec

DIRECT, FINETUNE_THEN_DROP, ITERATIVE = "direct", "finetune_then_drop", "iterative"
PROCEDURES = (DIRECT, FINETUNE_THEN_DROP, ITERATIVE)

_EPOCHS_PER_LAYER = 2  # the paper's
_LABEL = re.compile(r"^(?P<name>[a-z_]+)(?: (?P<frozen>frozen)| (?P<epochs>[1-9]\d{0,3}))?$")


class Procedure(NamedTuple):
    """A procedure with its settings; `label` is how it is named in a sweep and in tables."""

    name: str
    freeze_dropped: bool = False
    epochs_per_layer: int = _EPOCHS_PER_LAYER

    @property
    def label(self) -> str:
        """`direct`, `finetune_then_drop frozen`, `iterative`, `iterative 3`."""
        if self.name == FINETUNE_THEN_DROP and self.freeze_dropped:
            return f"{self.name} frozen"
        if self.name == ITERATIVE and self.epochs_per_layer != _EPOCHS_PER_LAYER:
            return f"{self.name} {self.epochs_per_layer}"
        return self.name

    @classmethod
    def parse(cls, label: str) -> Procedure:
        """The inverse of `label`. Raises ValueError."""
        found = _LABEL.match(label)
        name = found["name"] if found else None
        if found is None or name not in PROCEDURES:
            raise ValueError(f"unknown procedure {label!r}")
        if found["frozen"] and name != FINETUNE_THEN_DROP:
            raise ValueError(f"{name} has no frozen layers: that is for {FINETUNE_THEN_DROP}")
        if found["epochs"] and name != ITERATIVE:
            raise ValueError(f"{name} drops all layers at once: a number is for {ITERATIVE}")
        return cls(name, bool(found["frozen"]), int(found["epochs"] or _EPOCHS_PER_LAYER))


class Phase(NamedTuple):
    """Epochs of a training in which the network keeps its layers."""

    kept_layers: tuple[int, ...]
    epochs: int


def full_layers(depth: int) -> tuple[int, ...]:
    return tuple(range(1, depth + 1))


def settled(spec: TrialSpec, depth: int) -> TrialSpec:
    """The same trial under the one name that it has: nothing dropped, so nothing to drop later."""
    dropped = set(full_layers(depth)) - set(spec.kept_layers)
    staged = dropped or (spec.procedure == FINETUNE_THEN_DROP and spec.removed_feed_forwards)
    if not staged:
        return replace(spec, procedure=DIRECT)
    return spec if dropped else replace(spec, freeze_dropped=False)


def stage_one(spec: TrialSpec, depth: int) -> TrialSpec | None:
    """The trial whose network this one goes on from; None where it starts from the pre-trained."""
    if spec.procedure != FINETUNE_THEN_DROP:
        return None
    full = full_layers(depth)
    frozen = set(full) - set(spec.kept_layers) if spec.freeze_dropped else set()
    recipe = replace(
        spec.recipe, freeze_layers=tuple(sorted(frozen | set(spec.recipe.freeze_layers)))
    )
    return replace(
        spec, kept_layers=full, procedure=DIRECT, removed_feed_forwards=(), recipe=recipe
    )


def phases(spec: TrialSpec, depth: int) -> tuple[Phase, ...]:
    """The stages of a trial's own training; the last is the network that is scored."""
    last = Phase(spec.kept_layers, spec.recipe.epochs)
    if spec.procedure != ITERATIVE:
        return (last,)
    full = full_layers(depth)
    dropped = sorted(set(full) - set(spec.kept_layers), reverse=True)
    return (
        *(
            Phase(_without(full, dropped[:count]), spec.epochs_per_layer)
            for count in range(len(dropped))
        ),
        last,
    )


def phase_at(course: Sequence[Phase], epoch: int) -> int:
    """The position of the phase that an epoch (from 0) belongs to; the last one after the end."""
    for position, phase in enumerate(course):
        epoch -= phase.epochs
        if epoch < 0:
            return position
    return len(course) - 1


def _without(layers: Sequence[int], gone: Sequence[int]) -> tuple[int, ...]:
    return tuple(layer for layer in layers if layer not in gone)
