"""The procedures: when layers are dropped and when the network is fine-tuned. Imports no torch.

`direct`              drop, then fine-tune.
`untrained`           drop and don't train: for embeddings, which exist without training.
`finetune_then_drop`  fine-tune the full network (stage one: a trial of its own, shared by every K
                      unless the layers to drop are frozen in it), drop, fine-tune again.
`one_shot`            fine-tune the full network, drop, and don't train again: the cost of dropping
                      layers from a network in use.
`iterative`           drop one layer, from the highest down, after every `epochs_per_layer` epochs,
                      then train the recipe's epochs; one run of the optimiser and its schedule.

Poor Man's BERT, section 5 ("Layer-Dropping using Fine-tuned Models", "Iterative Dropping"). If
nothing is dropped, all are `direct` (for embeddings `untrained`), so that there is one full network
to compare with.

A linear map can replace each dropped block of layers before the rest is trained (`bridge.py`):
`direct bridge linear`. A network can learn from a teacher (`distill.py`): `direct distill logits`.
The teacher is usually the full network of the same model, task, seed and recipe, another trial.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

from lp_sweep.trials.spec.specs import Distillation, TrialSpec

DIRECT, FINETUNE_THEN_DROP, ITERATIVE = "direct", "finetune_then_drop", "iterative"
UNTRAINED, ONE_SHOT = "untrained", "one_shot"
PROCEDURES = (DIRECT, FINETUNE_THEN_DROP, ONE_SHOT, ITERATIVE, UNTRAINED)
NOT_RETRAINED = (ONE_SHOT, UNTRAINED)  # not trained after dropping
STAGED = (FINETUNE_THEN_DROP, ONE_SHOT)  # these start from a fine-tuned full network

_EPOCHS_PER_LAYER = 2  # the paper's
_LABEL = re.compile(r"^(?P<name>[a-z_]+)(?: (?P<frozen>frozen)| (?P<epochs>[1-9]\d{0,3}))?$")
BRIDGE, LINEAR = " bridge ", "linear"
BRIDGE_ROWS = 2000  # the most train rows that a bridge is fitted on, the same for every seed
DISTILL = " distill "
HIDDEN_WEIGHT = 1.0  # the default weight of the loss of hidden states
_NUMBER = r"\d+(?:\.\d+)?(?:e-?\d+)?"
_DISTILL = re.compile(
    rf"^logits(?P<hidden>\+hidden(?:=(?P<weight>{_NUMBER}))?)?(?: T=(?P<temperature>{_NUMBER}))?"
    rf"(?: alpha=(?P<alpha>{_NUMBER}))?(?: of (?P<teacher>\S.*))?$"
)


class Distill(NamedTuple):
    """A distillation as a sweep names it. The fields are those of `Distillation`."""

    teacher: str = ""  # another model's name or a folder; empty: the model's own full network
    temperature: float = 2.0
    alpha: float = 0.5
    hidden_weight: float = 0.0

    @property
    def label(self) -> str:
        """`logits`, `logits+hidden T=4 alpha=0.9 of bert-large-cased`."""
        usual, weight, label = Distill(), self.hidden_weight, "logits"
        if weight:
            label += "+hidden" if weight == HIDDEN_WEIGHT else f"+hidden={_text(weight)}"
        if self.temperature != usual.temperature:
            label += f" T={_text(self.temperature)}"
        if self.alpha != usual.alpha:
            label += f" alpha={_text(self.alpha)}"
        return f"{label} of {self.teacher}" if self.teacher else label

    @classmethod
    def parse(cls, label: str) -> Distill:
        """The inverse of `label`. Raises ValueError."""
        found = _DISTILL.match(label)
        if found is None:
            raise ValueError(f"unknown distillation {label!r}")
        usual = cls()
        return cls(
            found["teacher"] or "",
            float(found["temperature"] or usual.temperature),
            float(found["alpha"] or usual.alpha),
            float(found["weight"] or HIDDEN_WEIGHT) if found["hidden"] else 0.0,
        )

    def with_teacher(
        self, fingerprint: str, *, fine_tuned: bool = False, unlabelled: str = ""
    ) -> Distillation:
        named = {"teacher": fingerprint, "fine_tuned": fine_tuned, "unlabelled": unlabelled}
        return Distillation(**self._asdict() | named)


def _text(number: float) -> str:
    return repr(float(number)).removesuffix(".0")


class Procedure(NamedTuple):
    """A procedure with its settings; `label` is its name in sweeps and tables."""

    name: str
    freeze_dropped: bool = False
    epochs_per_layer: int = _EPOCHS_PER_LAYER
    distill: Distill | None = None
    bridge: str = ""

    @property
    def label(self) -> str:
        """`direct`, `finetune_then_drop frozen`, `iterative 3`, `direct bridge linear`, `direct
        distill logits`."""
        label = self.name
        if self.name == FINETUNE_THEN_DROP and self.freeze_dropped:
            label += " frozen"
        if self.name == ITERATIVE and self.epochs_per_layer != _EPOCHS_PER_LAYER:
            label += f" {self.epochs_per_layer}"
        label += f"{BRIDGE}{self.bridge}" if self.bridge else ""
        return label + (f"{DISTILL}{self.distill.label}" if self.distill else "")

    @property
    def teacher(self) -> str:
        """Another model's name or a folder, if that teaches; else empty."""
        return self.distill.teacher if self.distill else ""

    @property
    def axes(self) -> dict[str, str | None]:
        """The columns of a cell: the label, and its parts."""
        return {
            "procedure": self.label,
            "bridge": self.bridge or None,
            "distill": self.distill.label if self.distill else None,
            "teacher": self.teacher or None,
        }

    @classmethod
    def parse(cls, label: str) -> Procedure:
        """The inverse of `label`. Raises ValueError."""
        own, _, distill = label.partition(DISTILL)
        own, _, bridge = own.partition(BRIDGE)
        found = _LABEL.match(own)
        if found is None or found["name"] not in PROCEDURES:
            raise ValueError(f"unknown procedure {label!r}")
        if found["frozen"] and found["name"] != FINETUNE_THEN_DROP:
            raise ValueError(f"{own}: only the layers of {FINETUNE_THEN_DROP} can be frozen")
        if found["epochs"] and found["name"] != ITERATIVE:
            raise ValueError(f"{own}: only {ITERATIVE} has a number, of epochs for each layer")
        taught = Distill.parse(distill) if distill else None
        epochs = int(found["epochs"] or _EPOCHS_PER_LAYER)
        return cls(found["name"], bool(found["frozen"]), epochs, taught, bridge).checked()

    def checked(self) -> Procedure:
        """Itself. Raises ValueError where its bridge or its distillation does not fit it."""
        if self.bridge not in ("", LINEAR):
            raise ValueError(f"unknown bridge {self.bridge!r}")
        if self.bridge and self.name == ITERATIVE:
            raise ValueError(f"{self.name} drops one layer at a time: there is no block to bridge")
        if self.distill and self.name == ONE_SHOT:
            raise ValueError(
                f"{self.name} trains no pruned network: there is no student to distil to"
            )
        return self


def own_label(label: str, *, bridge: str = "", distill: str = "") -> str:
    """A procedure's label without these parts of it."""
    return label.removesuffix(f"{DISTILL}{distill}").removesuffix(f"{BRIDGE}{bridge}")


class Phase(NamedTuple):
    """A part of a training in which the layers stay the same."""

    kept_layers: tuple[int, ...]
    epochs: int


def full_layers(depth: int) -> tuple[int, ...]:
    return tuple(range(1, depth + 1))


def settled(spec: TrialSpec, depth: int) -> TrialSpec:
    """The one spelling of trials that are the same: without dropped layers, most settings of the
    procedure have no effect."""
    dropped = set(full_layers(depth)) - set(spec.kept_layers)
    whole = not dropped and not spec.removed_feed_forwards
    if spec.bridge and not dropped:
        spec = replace(spec, bridge="")
    if spec.task.embeds:
        return replace(spec, procedure=UNTRAINED, distill=None, loss="") if whole else spec
    if whole and spec.distill is not None and not spec.distill.teacher:
        spec = replace(spec, distill=None)  # it is the teacher
    staged = dropped or (spec.procedure in STAGED and spec.removed_feed_forwards)
    if not staged:
        return replace(spec, procedure=DIRECT)
    return spec if dropped else replace(spec, freeze_dropped=False)


def stage_one(spec: TrialSpec, depth: int) -> TrialSpec | None:
    """The trial whose network this one starts from; None if that is the pre-trained one."""
    if spec.procedure not in STAGED:
        return None
    frozen = set(full_layers(depth)) - set(spec.kept_layers) if spec.freeze_dropped else set()
    frozen |= set(spec.recipe.freeze_layers)
    recipe = replace(spec.recipe, freeze_layers=tuple(sorted(frozen)))
    return _full_network(spec, depth, recipe=recipe)


def teacher_of(spec: TrialSpec, depth: int) -> TrialSpec:
    """The trial that a student learns from: the full network, with `depth` layers, of its own model
    or of the one in its `distill`."""
    assert spec.distill is not None
    model = spec.distill.teacher or spec.model_fingerprint
    return _full_network(spec, depth, model_fingerprint=model)


def _full_network(spec: TrialSpec, depth: int, **changes: Any) -> TrialSpec:
    # at once: a spec drops settings that have no effect on its own layers
    return replace(
        spec,
        **changes,
        kept_layers=full_layers(depth),
        procedure=DIRECT,
        removed_feed_forwards=(),
        distill=None,
        bridge="",
    )


def distill_label(spec: TrialSpec) -> str | None:
    """The trial's distillation without the teacher's name: `logits T=4`, `logits unlabelled`. None
    without a teacher, and for embeddings, which have only one way to learn."""
    if spec.distill is None or spec.task.embeds:
        return None
    found = spec.distill
    label = Distill("", found.temperature, found.alpha, found.hidden_weight).label
    return f"{label} unlabelled" if found.unlabelled else label


def imitated_layers(spec: TrialSpec, depth: int) -> range:
    """The teacher's layers up to the last whose states a student imitates. 1-based."""
    if spec.distill is None or not spec.distill.needs_network:
        return range(0)
    one_by_one = spec.procedure == ITERATIVE  # starts with all layers
    return range(1, depth if one_by_one else max(spec.kept_layers[:-1], default=0) + 1)


def bridged_blocks(kept_layers: Sequence[int], depth: int) -> list[tuple[int, ...]]:
    """The runs of dropped layers, from the lowest up. The bridge of each is merged into the layer
    below it. Raises ValueError if layer 1 is dropped."""
    ends = [*sorted(kept_layers), depth + 1]
    if ends[0] != 1:
        raise ValueError("a bridge is merged into the layer below it, so layer 1 has to stay")
    runs = (tuple(range(one + 1, other)) for one, other in pairwise(ends))
    return [run for run in runs if run]


def first_layers(spec: TrialSpec, depth: int) -> tuple[int, ...]:
    """The layers that a trial's network is loaded with; a bridge needs all of them."""
    return full_layers(depth) if spec.bridge else phases(spec, depth)[0].kept_layers


def phases(spec: TrialSpec, depth: int) -> tuple[Phase, ...]:
    """The phases of a trial's own training; the network of the last is scored."""
    last = Phase(spec.kept_layers, 0 if spec.procedure in NOT_RETRAINED else spec.recipe.epochs)
    if spec.procedure != ITERATIVE:
        return (last,)
    full = full_layers(depth)
    dropped = sorted(set(full) - set(spec.kept_layers), reverse=True)
    return (
        *(
            Phase(tuple(i for i in full if i not in dropped[:count]), spec.epochs_per_layer)
            for count in range(len(dropped))
        ),
        last,
    )


def phase_at(phases: Sequence[Phase], epoch: int) -> int:
    """The index of an epoch's phase (both from 0); the last phase after the end."""
    for position, phase in enumerate(phases):
        epoch -= phase.epochs
        if epoch < 0:
            return position
    return len(phases) - 1
