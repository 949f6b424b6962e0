"""What determines a trial's result, and the identifier made from exactly that.

`trial_id` is a versioned hash of canonical JSON. Fields at their default are left out, so a field
that a later version adds (with a default that means what was done before) changes no identifier.
Order, spelt-out defaults, names the user gave to a folder or a task, GPUs, concurrency and folders
never change it. A golden test pins it: a change of any default here is a new `IDENTITY_VERSION`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from functools import cache
from typing import Any, Literal

IDENTITY_VERSION = 1

Precision = Literal["fp32", "bf16", "auto"]
Schedule = Literal["linear", "constant"]
Compute = Literal["reference", "fast"]
SecondNorm = Literal["keep", "drop"]
TaskKind = Literal["classification", "regression"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a network is fine-tuned. The defaults are the paper's "GLUE recipe": AdamW at 2e-5,
    batch 32, 3 epochs, no weight decay, clipping at 1.0, linear decay without warm-up."""

    learning_rate: float = 2e-5
    batch_size: int = 32
    epochs: int = 3
    max_length: int = 128  # tokens, special ones included; longer texts are truncated
    weight_decay: float = 0.0  # not on biases and LayerNorms
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-8
    max_grad_norm: float = 1.0
    warmup_ratio: float = 0.0  # share of all steps
    schedule: Schedule = "linear"
    precision: Precision = "fp32"
    compute: Compute = "reference"  # fast: over real tokens alone, with other dropout masks
    group_by_length: bool = False  # rows of like length share a batch
    limit_train: int | None = None  # a random subset of the rows, the same for every seed
    limit_dev: int | None = None
    freeze_embeddings: bool = False
    freeze_layers: tuple[int, ...] = ()  # 1-based original indices; those not kept don't matter

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


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSpec:
    """One network trained once.

    kept_layers and removed_feed_forwards are 1-based original indices, ascending.
    model_fingerprint and data_fingerprint are `hub:<id>@<revision>` or `sha256:<content>`.
    What a procedure has no use for is at its default, so that it makes no second identifier.
    """

    model_fingerprint: str
    kept_layers: tuple[int, ...]
    task: TaskDefinition
    data_fingerprint: str
    seed: int
    recipe: Recipe = field(default_factory=Recipe)
    procedure: str = "direct"  # or finetune_then_drop, iterative: see trials/procedures.py
    freeze_dropped: bool = False  # in the first stage of finetune_then_drop
    epochs_per_layer: int = 2  # of iterative
    removed_feed_forwards: tuple[int, ...] = ()
    second_norm: SecondNorm = "keep"  # the LayerNorm after a removed feed-forward

    def __post_init__(self) -> None:
        kept = _ascending(self.kept_layers)
        removed = tuple(i for i in _ascending(self.removed_feed_forwards) if i in kept)
        if kept != self.kept_layers:  # else the object is shared, and so is its text
            object.__setattr__(self, "kept_layers", kept)
        object.__setattr__(self, "removed_feed_forwards", removed)
        if not removed:
            object.__setattr__(self, "second_norm", "keep")
        if self.procedure != "finetune_then_drop":
            object.__setattr__(self, "freeze_dropped", False)
        if self.procedure == "direct" or self.freeze_dropped:
            # else a layer may learn before it is dropped
            frozen = tuple(i for i in self.recipe.freeze_layers if i in kept)
            if frozen != self.recipe.freeze_layers:
                object.__setattr__(self, "recipe", replace(self.recipe, freeze_layers=frozen))
        if self.procedure != "iterative":
            object.__setattr__(self, "epochs_per_layer", 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSpec:
    """One measurement of every layer of a network over one task.

    The network is the pre-trained one, or that of `trial`; `against` is the trial whose network
    it is compared with, where it is not the pre-trained one.
    """

    model_fingerprint: str
    task: TaskDefinition
    data_fingerprint: str
    max_length: int = 128
    limit_dev: int | None = None
    measure: str = "contribution"
    trial: str = ""  # a trial_id
    against: str = ""  # a trial_id
    limit_train: int | None = None  # of what learns from the train rows: probes, greedy
    rows: int | None = None  # train rows of a probe
    recipe: Recipe | None = None  # of what trains a network of its own: greedy
    seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedSpec:
    """One measurement of how fast a network is beside all layers of its model.

    No task, no data and no seed: time depends on none of them, so one measurement is that of every
    trial of the network. Layers are as in TrialSpec; batches of examples, each of `length` tokens.
    """

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


def _ascending(layers: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(set(layers)))


def canonical(value: Any) -> Any:
    """Plain data with defaults left out: what is hashed."""
    if is_dataclass(value):
        return {name: canonical(held) for name, held in _stated(value)}
    if isinstance(value, tuple | list):
        return [canonical(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)  # 1 and 1.0 in a sweep file mean the same
    return value


def _stated(value: Any) -> Iterator[tuple[str, Any]]:
    """The fields that are not at their default, by name."""
    for name, default in _defaults(type(value)):  # type: ignore[arg-type]  # a class is hashable
        held = getattr(value, name)
        if held != default:
            yield name, held


@cache
def _defaults(kind: type) -> list[tuple[str, Any]]:
    return sorted(
        (item.name, item.default if item.default_factory is MISSING else item.default_factory())
        for item in fields(kind)
    )


def canonical_json(value: Any) -> str:
    """`canonical` as text: sorted, without blanks, ASCII. What a record keeps as its `spec`."""
    if not is_dataclass(value):
        return _encode(canonical(value))
    parts = (f'"{name}":{_part_json(held)}' for name, held in _stated(value))
    return f"{{{','.join(parts)}}}"


def _part_json(value: Any) -> str:
    """Of one field. What thousands of specs share (a task, a recipe, layers) is written once."""
    if isinstance(value, str | int):
        return _encode(value)
    known = _shared.get(id(value))
    if known is None:
        if len(_shared) >= _MOST_SHARED:
            _shared.clear()
        known = _shared[id(value)] = (value, canonical_json(value))  # held: no other has its id
    return known[1]


_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode
_shared: dict[int, tuple[Any, str]] = {}
_MOST_SHARED = 1000


def content_hash(payload: Any) -> str:
    return _hash(_encode(payload))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _identifier(prefix: str, spec: TrialSpec | ProfileSpec | SpeedSpec) -> str:
    return f"{prefix}{IDENTITY_VERSION}-{_hash(_payload(spec))[:20]}"


def _payload(spec: TrialSpec | ProfileSpec | SpeedSpec) -> str:
    kind, text = type(spec).__name__, canonical_json(spec)
    return f'{{"identity":{IDENTITY_VERSION},"kind":"{kind}","spec":{text}}}'


def trial_id(spec: TrialSpec) -> str:
    """`t1-` and 20 hex digits."""
    return _identifier("t", spec)


def trial_ids(spec: TrialSpec) -> Callable[[int], str]:
    """Seed -> `trial_id` of the trial with that seed: what seeds share is written and hashed once,
    which of 100,000 trials saves seconds."""
    mark = '"seed":'  # a key of no part, and in a string its quotes are escaped
    head, _, rest = _payload(spec).partition(mark)
    tail = rest.removeprefix(str(spec.seed))
    shared = hashlib.sha256(f"{head}{mark}".encode())

    def of_seed(seed: int) -> str:
        whole = shared.copy()
        whole.update(f"{seed}{tail}".encode())
        return f"t{IDENTITY_VERSION}-{whole.hexdigest()[:20]}"

    return of_seed


def profile_id(spec: ProfileSpec | SpeedSpec) -> str:
    """`p1-` and 20 hex digits. For a contribution profile only the dev rows count, so a train
    subset must not be in `spec`."""
    return _identifier("p", spec)


def trial_spec_from_plain(plain: Mapping[str, Any]) -> TrialSpec:
    """The inverse of `dataclasses.asdict`, and of `canonical`: what is left out is at its default.

    Raises KeyError, TypeError or ValueError for other data.
    """
    return TrialSpec(
        **{
            **plain,
            "kept_layers": tuple(plain["kept_layers"]),
            "removed_feed_forwards": tuple(plain.get("removed_feed_forwards", ())),
            "task": task_from_plain(plain["task"]),
            "recipe": recipe_from_plain(plain.get("recipe", {})),
        }
    )


def trial_spec_from_canonical(text: str) -> TrialSpec:
    """The inverse of `canonical_json`: `trial_id` of it is the identifier that the text is of.

    Raises KeyError, TypeError or ValueError for other text.
    """
    return trial_spec_from_plain(json.loads(text))


def profile_spec_from_plain(plain: Mapping[str, Any]) -> ProfileSpec:
    """The inverse of `dataclasses.asdict`."""
    recipe = plain.get("recipe")
    return ProfileSpec(
        **{
            **plain,
            "task": task_from_plain(plain["task"]),
            "recipe": None if recipe is None else recipe_from_plain(recipe),
        }
    )


def speed_spec_from_plain(plain: Mapping[str, Any]) -> SpeedSpec:
    """The inverse of `dataclasses.asdict`."""
    return SpeedSpec(**plain)  # which makes tuples of lists


def recipe_from_plain(plain: Mapping[str, Any]) -> Recipe:
    """The inverse of `dataclasses.asdict`."""
    return Recipe(**{**plain, "freeze_layers": tuple(plain.get("freeze_layers", ()))})


def task_from_plain(plain: Mapping[str, Any]) -> TaskDefinition:
    """The inverse of `dataclasses.asdict`."""
    task = TaskDefinition(**plain)
    return replace(
        task,
        text_columns=tuple(task.text_columns),
        extra_metrics=tuple(task.extra_metrics),
        labels=tuple(task.labels),
    )
