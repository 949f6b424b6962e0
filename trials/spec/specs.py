"""Specifications of trials and measurements: everything that determines a result.

`identity` makes identifiers from these fields, including the names of classes and fields. A field
that is added later needs a default that means what was done before.

A fix that changes a score gives the trials it affects, and only these, a new identifier: the plan
writes its name into their `corrections`, so that no store takes the wrong score for the new one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, TypeVar

Precision = Literal["fp32", "bf16", "auto"]
Schedule = Literal["linear", "constant"]
Compute = Literal["reference", "fast", "graphs"]
SecondNorm = Literal["keep", "drop"]
TaskKind = Literal[
    "classification", "regression", "embedding", "retrieval", "multi_label", "ranking", "tokens"
]
# map each text to a vector, and learn from the full model alone
EMBEDDING_KINDS: tuple[TaskKind, ...] = ("embedding", "retrieval")
WorkKind = Literal["trial", "profile", "speed"]
# the form in which a network is shipped
ArtefactFormat = Literal["torch", "onnx", "onnx-int8", "onnx-int4"]
Vocabulary = Literal["full", "task"]
TEACHER = "teacher"  # the measurement with the logits that students learn from
MAX_HALVINGS = 3  # of a micro-batch, after running out of memory


def _key(default: Any, description: str, **bounds: float) -> Any:
    """A key of `recipe:`. The sweep file, its page and the columns of a record follow from it."""
    return field(default=default, metadata={"description": description, **bounds})


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a network is fine-tuned. The defaults are the paper's "GLUE recipe": AdamW at 2e-5,
    batch 32, 3 epochs, no weight decay, clipping at 1.0, linear decay without warm-up."""

    learning_rate: float = _key(2e-5, "the highest learning rate; `lr` is the same key", gt=0)
    batch_size: int = _key(32, "rows per optimiser step", gt=0, lt=2**31)
    epochs: int = _key(3, "passes over the train set", gt=0, lt=2**31)
    max_length: int = _key(128, "tokens per row; longer rows are cut", ge=4, le=8192)
    weight_decay: float = _key(0.0, "for AdamW; not used for biases and norms", ge=0)
    adam_beta1: float = _key(0.9, "for AdamW", ge=0, lt=1)
    adam_beta2: float = _key(0.999, "for AdamW", ge=0, lt=1)
    adam_epsilon: float = _key(1e-8, "for AdamW", gt=0)
    max_grad_norm: float = _key(1.0, "gradients are clipped to this norm", gt=0)
    warmup_ratio: float = _key(
        0.0, "share of the steps in which the learning rate rises from 0", ge=0, le=1
    )
    schedule: Schedule = _key(  # noqa: RUF009
        "linear", "the learning rate after the warm-up: falls to 0, or stays"
    )
    precision: Precision = _key(  # noqa: RUF009
        "fp32", "number format of training; auto: bf16 on a GPU or CPU with instructions for it"
    )
    compute: Compute = _key(  # noqa: RUF009
        "reference",  # others draw other dropout masks
        "fast: skips padding, and records CUDA graphs on an NVIDIA GPU; graphs: also with a "
        "max_length over 512; or reference: the library's own forward pass, padded",
    )
    group_by_length: bool = _key(False, "batches of rows of similar length; changes the results")
    limit_train: int | None = _key(
        None, "the most train rows to use; the same random ones for each network", gt=0
    )
    limit_dev: int | None = _key(
        None, "the most dev rows to use; the same random ones for each network", gt=0
    )
    freeze_embeddings: bool = False  # in the file: keys of `freeze:`
    freeze_layers: tuple[int, ...] = ()  # 1-based original indices; dropped layers are ignored

    def __post_init__(self) -> None:
        object.__setattr__(self, "freeze_layers", _ascending(self.freeze_layers))


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDefinition:
    """How the rows of a data set become examples, and how predictions are scored."""

    text_columns: tuple[str, ...]
    label_column: str = "label"
    kind: TaskKind = "classification"
    metric: str = "accuracy"  # the main one; others are stored beside it
    extra_metrics: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()  # class names; empty: the sorted classes of the train rows
    positive: str = ""  # the class that f1 scores; empty: class 1
    pooling: str = ""  # of an embedding: mean, cls or last
    similarity: str = ""  # of embeddings: dot; empty: cosine
    query_prompt: str = ""  # before a query, and the first text of a pair
    document_prompt: str = ""  # before a document, the second text of a pair, any other text
    label_columns: tuple[str, ...] = ()  # of 0 and 1, one for each label; then no label_column
    group: str = ""  # the column that the rows of a query share; empty: the query's text
    loss: str = ""  # of a ranking: listwise; empty: binary cross-entropy
    tune_thresholds: bool = False  # of several labels: see trials/train/thresholds.py
    metric_source: str = ""  # the digest of the source of a metric of the user's own

    def __post_init__(self) -> None:
        for name in ("text_columns", "extra_metrics", "labels", "label_columns"):
            object.__setattr__(self, name, tuple(getattr(self, name)))

    @property
    def embeds(self) -> bool:
        return self.kind in EMBEDDING_KINDS

    @property
    def all_label_columns(self) -> tuple[str, ...]:
        return self.label_columns or (self.label_column,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Distillation:
    """How a pruned network (the student) learns from a trained one (the teacher).

    The loss is `(1 - alpha) * loss of the labels + alpha * loss of the teacher's logits
    + hidden_weight * loss of the hidden states`: see trials/train/distill.py. The teacher has the
    trial's task, seed and recipe.
    """

    teacher: str = ""  # the fingerprint of another model; empty: the trial's own, with all layers
    fine_tuned: bool = False  # the other model is fine-tuned already, and is used as it is
    temperature: float = 2.0  # for classes
    alpha: float = 0.5  # 1: labels are not used
    hidden_weight: float = 0.0
    unlabelled: str = ""  # the fingerprint of texts that only the teacher labels; empty: none

    @property
    def needs_network(self) -> bool:
        """Whether the student needs the teacher's network, for its hidden states. Logits come from
        the store."""
        return self.hidden_weight > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSpec:
    """One network trained once.

    kept_layers and removed_feed_forwards are 1-based original indices, ascending.
    model_fingerprint and data_fingerprint are `hub:<id>@<revision>` or `sha256:<content>`.
    Fields that have no effect are reset to their defaults, so that they make no second identifier.
    """

    kind: ClassVar[Literal["trial"]] = "trial"  # no field: not part of an identifier

    model_fingerprint: str
    kept_layers: tuple[int, ...]
    task: TaskDefinition
    data_fingerprint: str
    seed: int
    recipe: Recipe = field(default_factory=Recipe)
    procedure: str = (
        "direct"  # or finetune_then_drop, one_shot, iterative: see trials/spec/procedures.py
    )
    freeze_dropped: bool = False  # in the first stage of finetune_then_drop
    epochs_per_layer: int = 2  # of iterative
    removed_feed_forwards: tuple[int, ...] = ()
    second_norm: SecondNorm = "keep"  # the LayerNorm after a removed feed-forward
    distill: Distillation | None = None
    loss: str = ""  # of an embedding; empty: it imitates the full model by the cosine
    bridge: str = ""  # what takes the place of dropped layers: "linear", see trials/train/bridge.py
    corrections: tuple[str, ...] = ()  # fixes since then that change the score of such a trial
    modules: str = ""  # the digest of what changes vectors after the pooling, such as Dense

    def __post_init__(self) -> None:
        kept = _ascending(self.kept_layers)
        removed = tuple(i for i in _ascending(self.removed_feed_forwards) if i in kept)
        object.__setattr__(self, "kept_layers", kept)
        object.__setattr__(self, "removed_feed_forwards", removed)
        object.__setattr__(self, "corrections", tuple(sorted(set(self.corrections))))
        if not removed:
            object.__setattr__(self, "second_norm", "keep")
        if self.procedure != "finetune_then_drop":
            object.__setattr__(self, "freeze_dropped", False)
        if (self.procedure == "direct" or self.freeze_dropped) and self.distill is None:
            # else a layer may learn before it is dropped, or in the teacher
            frozen = tuple(i for i in self.recipe.freeze_layers if i in kept)
            if frozen != self.recipe.freeze_layers:
                object.__setattr__(self, "recipe", replace(self.recipe, freeze_layers=frozen))
        if self.procedure != "iterative":
            object.__setattr__(self, "epochs_per_layer", 2)
        if self.distill is not None:
            object.__setattr__(self, "distill", self._used(self.distill))

    def _used(self, distill: Distillation) -> Distillation:
        """Resets settings without effect: a regression has no temperature, and a student's last
        layer does not imitate hidden states."""
        if self.task.kind not in ("classification", "tokens"):
            distill = replace(distill, temperature=2.0)
        alone = len(self.kept_layers) == 1 and self.procedure != "iterative"
        return replace(distill, hidden_weight=0.0) if alone else distill

    @property
    def unlabelled(self) -> str:
        """The fingerprint of the unlabelled rows; empty: none."""
        return self.distill.unlabelled if self.distill else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSpec:
    """One measurement of every layer of a network on one task.

    The network is that of `trial`, or else the pre-trained one. It is compared with the network of
    the trial `against`, or else the pre-trained one.
    """

    kind: ClassVar[Literal["profile"]] = "profile"  # no field: not part of an identifier

    model_fingerprint: str
    task: TaskDefinition
    data_fingerprint: str
    max_length: int = 128
    limit_dev: int | None = None
    measure: str = "contribution"
    trial: str = ""  # a trial_id
    against: str = ""  # a trial_id
    limit_train: int | None = None  # for probes and greedy, which learn from train rows
    rows: int | None = None  # train rows of a probe
    recipe: Recipe | None = None  # for greedy, which trains networks
    seed: int | None = None
    unlabelled: str = ""  # as in Distillation; for a teacher's logits
    corrections: tuple[str, ...] = ()  # as in TrialSpec
    modules: str = ""  # as in TrialSpec

    def __post_init__(self) -> None:
        object.__setattr__(self, "corrections", tuple(sorted(set(self.corrections))))


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedSpec:
    """One measurement of a network's speed relative to the full model.

    Speed does not depend on task, data or seed, so all trials of a network share one measurement.
    Layers are as in TrialSpec; batches: numbers of examples of `length` tokens each.
    """

    kind: ClassVar[Literal["speed"]] = "speed"  # no field: not part of an identifier
    unlabelled: ClassVar[str] = ""  # as the others have it: speed depends on no rows

    model_fingerprint: str
    kept_layers: tuple[int, ...]
    device_type: str  # cpu, cuda
    removed_feed_forwards: tuple[int, ...] = ()
    second_norm: SecondNorm = "keep"
    precision: Precision = "fp32"
    length: int = 128
    batches: tuple[int, ...] = (32,)

    def __post_init__(self) -> None:
        for name in ("kept_layers", "removed_feed_forwards", "batches"):
            object.__setattr__(self, name, _ascending(getattr(self, name)))
        if not self.removed_feed_forwards:
            object.__setattr__(self, "second_norm", "keep")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentSpec:
    """One measurement of a trial's network as it is shipped, on one type of machine.

    The trial's identifier stands for the network, the rows that score it and their longest text,
    since it is a hash of them. A device's name stands for the machine: two with the same processor
    share a measurement. `extra_texts`: the fingerprint of texts beyond the train rows that the
    vocabulary was cut on.
    """

    kind: ClassVar[Literal["deployment"]] = "deployment"  # no field: not part of an identifier

    trial: str  # a trial_id
    device_type: str  # cpu, cuda
    device_name: str
    threads: int
    format: ArtefactFormat = "torch"
    vocabulary: Vocabulary = "full"
    extra_texts: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutSpec:
    """One network as it is shipped, scored on the rows that its task set aside. Devices and threads
    are not part of it: these rows are looked at once."""

    trial: str  # a trial_id
    test_fingerprint: str
    format: ArtefactFormat = "torch"
    vocabulary: Vocabulary = "full"
    extra_texts: str = ""


def _ascending(layers: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(set(layers)))


# -- from plain data: the inverse of `dataclasses.asdict`, and of the canonical text of a record

S = TypeVar("S", TrialSpec, ProfileSpec, SpeedSpec)
_NESTED: dict[str, type] = {"task": TaskDefinition, "recipe": Recipe, "distill": Distillation}


def spec_from_plain(kind: type[S], plain: Mapping[str, Any]) -> S:
    """Missing fields get their defaults; lists become tuples. Raises KeyError, TypeError or
    ValueError for other data."""
    made = {
        name: nested(**plain[name])
        for name, nested in _NESTED.items()
        if name in plain and plain[name] is not None
    }
    return kind(**{**plain, **made})


def trial_spec_from_canonical(text: str) -> TrialSpec:
    """The inverse of `canonical_json`. Raises KeyError, TypeError or ValueError for other text."""
    return spec_from_plain(TrialSpec, json.loads(text))
