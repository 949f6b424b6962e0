"""The other axes of a sweep file: strategies, procedures, bridges, distillations, feed-forwards;
and the measurements of the networks.

A procedure, a distillation and a removal of feed-forwards each have a label, a short text that
cells and tables show. The label of a procedure includes its bridge and its distillation. Mappings
in the file become labels here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    AliasChoices,
    BeforeValidator,
    ConfigDict,
    Field,
    PositiveInt,
    create_model,
    field_validator,
    model_validator,
)

from lp_sweep.orchestrator.sweepfile.entries import (
    AllOrInts,
    Cells,
    Entry,
    k_list,
    listed,
    seed_list,
)
from lp_sweep.storage.printable import choose, short, shown
from lp_sweep.trials.measures.registry import MEASURES, Measurement
from lp_sweep.trials.spec import select
from lp_sweep.trials.spec.feedforward import (
    ALLOWED,
    NO_NORM,
    NONE,
    FeedForward,
    canonical_rule,
)
from lp_sweep.trials.spec.procedures import (
    FINETUNE_THEN_DROP,
    HIDDEN_WEIGHT,
    ITERATIVE,
    PROCEDURES,
    Distill,
    Procedure,
)
from lp_sweep.trials.spec.specs import SecondNorm

WITHIN = (1.0, 2.0, 3.0)  # points: the default of `within:`
_LONGEST_RULE = 1000  # characters
_FORMS = "direct, finetune_then_drop, finetune_then_drop frozen, one_shot, iterative 3, untrained"


def _with_layers(schema: dict[str, Any]) -> None:
    """Adds the key of `drop` that becomes part of its name."""
    schema["properties"]["layers"] = {
        "type": "array",
        "items": {"type": "integer", "minimum": 1},
        "description": "for drop: the layers to drop",
    }


Cosines = Annotated[
    list[Annotated[float, Field(ge=-1, le=1)]], Field(min_length=1), BeforeValidator(listed)
]
Losses = Annotated[
    list[Annotated[float, Field(ge=0)]], Field(min_length=1), BeforeValidator(listed)
]


class StrategyEntry(Entry):
    """Which layers to drop: a rule with its own K, or `contribution` with its thresholds."""

    model_config = Entry.model_config | ConfigDict(json_schema_extra=_with_layers)

    name: str = Field(
        description="; ".join(f"{name}: {entry.help}" for name, entry in select.STRATEGIES.items())
    )
    k: Annotated[AllOrInts | None, BeforeValidator(k_list)] = Field(
        None,
        description="numbers of layers to drop, such as `[0, 2]` or `2-4`; 0 is the full model, "
        "which is also added to a file or a part of it that leaves it out",
    )
    threshold: Cosines | None = Field(
        None, description="for contribution: layers with a higher cosine are dropped"
    )
    measured_on: str | None = Field(
        None, description="own: measure on each trial's task; or the name of one task for all"
    )
    draws: (
        Annotated[list[Annotated[int, Field(ge=0, lt=10**9)]], BeforeValidator(seed_list)] | None
    ) = Field(
        None,
        description="for random: numbers; each one draws other layers and is its own strategy",
        min_length=1,
    )
    until: Literal["min_layers"] | None = Field(
        None, description="run only the trials that decide the fewest layers a task needs"
    )
    within: Losses | None = Field(None, description="for until: allowed losses, in points")
    max_seeds: PositiveInt | None = Field(None, description="for until: the most seeds to use")

    @model_validator(mode="before")
    @classmethod
    def _explicit(cls, content: Any) -> Any:
        """Turns `{name: drop, layers: [3, 5]}` into `drop 3+5`, which has one K."""
        if not isinstance(content, Mapping):
            return content
        content = dict(content)
        if content.get("name") == select.DROP:
            layers = listed(content.pop("layers", None)) or []
            if not layers or not all(type(layer) is int and layer > 0 for layer in layers):
                raise ValueError("strategy 'drop' needs `layers:`, a list of numbers from 1")
            content["name"] = select.listed_name(layers)
        if isinstance(content.get("name"), str):
            name = content["name"] = canonical_strategy(content["name"])
            if name.startswith(f"{select.DROP} ") and select.find_rule(name):
                if content.get("k") is not None:
                    raise ValueError(f"strategy {shown(name)} names its layers: remove `k:`")
                content["k"] = [name.count("+") + 1]
        return content

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        return name if select.is_strategy(name) else choose("strategy", name, select.STRATEGIES)

    @model_validator(mode="after")
    def _consistent(self) -> StrategyEntry:
        for mistake in (*self._mistakes(), *self._mistakes_of_search()):
            raise ValueError(f"strategy {self.name!r} {mistake}")
        return self

    def _mistakes(self) -> Iterator[str]:
        own, other, example = ("k", "threshold", "k: all")
        if self.takes == "threshold":
            own, other, example = ("threshold", "k", "threshold: [0.9]")
        if getattr(self, own) is None:
            example = f"{{name: {self.name}, {example}}}"
            yield f"needs `{own}:`, a list of numbers. For example: {example}"
        if getattr(self, other) is not None:
            yield f"takes `{own}:`, not `{other}:`"
        if self.measured_on is not None and not self._found.measure:
            yield "measures nothing: remove `measured_on:`"
        if self.draws is not None and self.name != select.RANDOM:
            yield "draws nothing: remove `draws:`"

    def _mistakes_of_search(self) -> Iterator[str]:
        if self.until and self.takes != "k":
            yield "has no K to choose among: remove `until:`, or use a strategy with `k:`"
        for key in ("within", "max_seeds"):
            if not self.until and getattr(self, key) is not None:
                yield f"has `{key}:`, which needs `until: min_layers`: add that, or remove `{key}:`"

    @property
    def _found(self) -> select.Strategy:
        found = select.find_strategy(self.names[0])
        assert found is not None, self.name
        return found

    @property
    def takes(self) -> str:
        """The key that says how many layers to drop: `k`, `threshold`, or `layers` of `drop`."""
        return self._found.takes

    @property
    def names(self) -> list[str]:
        """The names in cells: `random` is one strategy for each draw."""
        if self.name != select.RANDOM:
            return [self.name]
        return [f"{select.RANDOM} {draw}" for draw in self.draws or [0]]


def searched_losses(strategies: Iterable[StrategyEntry]) -> list[float]:
    """The allowed losses of the sweep's searches, in points, ascending; empty without a search."""
    return sorted({loss for entry in strategies if entry.until for loss in entry.within or WITHIN})


def canonical_strategy(name: str) -> str:
    """The normal form of a name: `drop 3+5` for `drop 5+3`, `random 3` for `random 03`."""
    family, _, rest = name.strip().partition(" ")
    if family not in (select.DROP, select.RANDOM) or select.find_rule(f"{family} {rest}") is None:
        return name
    if family == select.RANDOM:
        return f"{select.RANDOM} {int(rest)}"
    return select.listed_name([int(layer) for layer in rest.split("+")])


def procedure_label(value: Any) -> Any:
    """`finetune_then_drop frozen` for `{name: finetune_then_drop, freeze_dropped: true}`,
    `iterative 3` for `{name: iterative, epochs_per_layer: 3}`."""
    if isinstance(value, Mapping):
        settings = ProcedureEntry.model_validate(dict(value))
        return Procedure(**settings.model_dump()).label
    if not isinstance(value, str):
        return value
    try:
        return Procedure.parse(value).label
    except ValueError as error:
        if value.partition(" ")[0] in PROCEDURES:
            raise ValueError(f"{short(str(error))}. Such are: {_FORMS}.") from None
        return choose("procedure", value, PROCEDURES)


class ProcedureEntry(Entry):
    """A procedure with its settings."""

    name: Literal["direct", "finetune_then_drop", "one_shot", "iterative", "untrained"] = Field(
        description="drop layers before fine-tuning, between two, after it, or one at a time "
        "during it; or, for embedding tasks, train nothing"
    )
    freeze_dropped: bool = Field(
        False, description="for finetune_then_drop: freeze the layers to drop in stage one"
    )
    epochs_per_layer: int = Field(
        2, gt=0, lt=10_000, description="for iterative: epochs before each layer is dropped"
    )

    @model_validator(mode="after")
    def _own_settings(self) -> ProcedureEntry:
        for key, owner in (("freeze_dropped", FINETUNE_THEN_DROP), ("epochs_per_layer", ITERATIVE)):
            if key in self.model_fields_set and self.name != owner:
                raise ValueError(f"`{key}:` is for {owner}: remove it from {self.name}")
        return self


_FULL = "full"
_START = " start=teacher"


class DistillEntry(Entry):
    """How pruned networks learn from a teacher: a trained network, usually the full one."""

    teacher: str = Field(
        _FULL,
        validation_alias=AliasChoices("teacher", "from"),
        description="full: the model's own full network; the id of another model of the sweep, "
        "whose full network teaches; or the folder of a classifier that has learned the task, such "
        "as `./teacher`. `from` is another name of this key",
    )
    loss: Literal["logits", "logits+hidden"] = Field(
        "logits",
        description="imitate the teacher's logits; with hidden, also the sentence token after each "
        "kept layer but the last",
    )
    temperature: float = Field(
        2.0, gt=0, le=100, description="softmax temperature of both networks, for classes"
    )
    alpha: float = Field(
        0.5, gt=0, le=1, description="weight of the teacher; 1 - alpha is that of the labels"
    )
    hidden_weight: float = Field(
        HIDDEN_WEIGHT, gt=0, lt=1e6, description="for logits+hidden: weight of the hidden states"
    )
    start: Literal["pretrained", "teacher"] = Field(
        "pretrained",
        description="the layers to start from: the pre-trained ones, or the teacher's, as in the "
        "procedure `finetune_then_drop`",
    )

    @model_validator(mode="after")
    def _consistent(self) -> DistillEntry:
        if "hidden_weight" in self.model_fields_set and self.loss == "logits":
            raise ValueError("`hidden_weight:` is for logits+hidden: remove it, or change `loss:`")
        if self.teacher != _FULL and self.loss != "logits":
            raise ValueError("`loss: logits+hidden` needs `teacher: full`: use `loss: logits`")
        return self


def distill_label(value: Any) -> Any:
    """`none`, `logits`, `logits+hidden T=4 alpha=0.9`, `logits start=teacher`."""
    if isinstance(value, Mapping):
        entry = DistillEntry.model_validate(dict(value))
        teacher = "" if entry.teacher == _FULL else entry.teacher
        weight = entry.hidden_weight if entry.loss != "logits" else 0.0
        label = Distill(teacher, entry.temperature, entry.alpha, weight).label
        return label + (_START if entry.start == "teacher" else "")
    if not isinstance(value, str) or value == NONE:
        return value
    try:
        start = _START if value.endswith(_START) else ""
        return Distill.parse(value.removesuffix(_START)).label + start
    except ValueError:
        return choose("distillation", value, [NONE, "logits", "logits+hidden"])


def training(procedure: str, distill: str = NONE, bridge: str = NONE) -> Procedure:
    """The procedure with a bridge and a distillation, from their labels. Raises ValueError where
    they do not go together."""
    own, label = Procedure.parse(procedure), distill.removesuffix(_START)
    if bridge != NONE:
        own = own._replace(bridge=bridge).checked()
    if distill == NONE:
        return own
    if label != distill:
        if own.name == ITERATIVE or own.freeze_dropped:
            raise ValueError(f"`start: teacher` and {procedure} exclude each other: remove one")
        own = own._replace(name=FINETUNE_THEN_DROP)
    return own._replace(distill=Distill.parse(label)).checked()


class FeedForwardEntry(Entry):
    """Which kept layers lose their feed-forward: `{remove: top 3, second_norm: drop}`."""

    remove: str | list[int] = Field(
        description="`none`, `all`, `top 3`, `bottom 3`, `every 2nd`, or layers by their numbers"
    )
    second_norm: SecondNorm = Field(
        "keep", description="whether to keep the LayerNorm behind the feed-forward"
    )


def feed_forward_label(value: Any) -> Any:
    """`top 3`, `every 2nd no norm`, `9,10,11`, `all`, `none`."""
    rule: Any = value
    second_norm: SecondNorm = "keep"
    if isinstance(value, Mapping):
        entry = FeedForwardEntry.model_validate(dict(value))
        rule, second_norm = entry.remove, entry.second_norm
    elif isinstance(value, str):
        text = " ".join(value.split())
        rule = text.removesuffix(NO_NORM)
        second_norm = "keep" if rule == text else "drop"
    elif not isinstance(value, list):
        raise ValueError(f"write a removal as `top 3` or {{remove: every 2nd}}, got {shown(value)}")
    if len(rule) > _LONGEST_RULE:
        raise ValueError(f"feed-forwards: {shown(rule)} is not a rule. {ALLOWED}.")
    try:
        return FeedForward(canonical_rule(rule), second_norm).label
    except ValueError as error:
        raise ValueError(short(str(error))) from None


def feed_forward_list(value: Any) -> Any:
    """A list of removals. A list of numbers is one removal."""
    numbers = isinstance(value, list) and bool(value) and all(type(item) is int for item in value)
    return [value] if numbers else listed(value)


Procedures = Annotated[
    list[
        Annotated[
            str, BeforeValidator(procedure_label, json_schema_input_type=str | ProcedureEntry)
        ]
    ],
    BeforeValidator(listed),
]
Distills = Annotated[
    list[Annotated[str, BeforeValidator(distill_label, json_schema_input_type=str | DistillEntry)]],
    BeforeValidator(listed),
]
Bridges = Annotated[list[Literal["none", "linear"]], BeforeValidator(listed)]
FeedForwards = Annotated[
    list[
        Annotated[
            str,
            BeforeValidator(
                feed_forward_label, json_schema_input_type=str | list[int] | FeedForwardEntry
            ),
        ]
    ],
    BeforeValidator(feed_forward_list),
]
Devices = Annotated[list[Literal["cpu", "cuda"]], Field(min_length=1), BeforeValidator(listed)]


def _networks(item: Measurement) -> Any:
    """A key of `measure:`, which lists the networks to measure."""
    choice: Any = Literal.__getitem__(item.networks)
    several: Any = list.__class_getitem__(choice)
    chosen: Any = Annotated[several, Field(min_length=1), BeforeValidator(listed)]
    return (chosen | None, Field(None, description=item.help))


if TYPE_CHECKING:
    _ByLayer = Entry
else:
    _ByLayer = create_model(
        "_ByLayer",
        __base__=Entry,
        __module__=__name__,
        **{name: _networks(item) for name, item in MEASURES.items() if item.networks},
    )


class MeasureEntry(_ByLayer):
    """Measurements of networks, layer by layer, and of their speed. A full network keeps all its
    layers."""

    probe_rows: PositiveInt = Field(10_000, description="for probes: the most train rows to use")
    speed: Devices | None = Field(
        None, description="measure the speed compared with the full model: on cpu, cuda or both"
    )
    speed_length: PositiveInt | None = Field(
        None,
        description="for speed: tokens in each timed row; default 128, or fewer if the model "
        "takes fewer",
    )
    speed_batches: Annotated[list[PositiveInt] | None, BeforeValidator(listed)] = Field(
        None,
        min_length=1,
        description="for speed: texts in each timed batch; default 32, on cuda 32 and 256",
    )
    speed_of: Cells = Field(
        default=[], description="for speed: only the networks of these cells; default all"
    )

    def length(self, longest_row: int | None) -> int:
        """Tokens in each timed row, for a model with this limit."""
        return self.speed_length or min(128, longest_row or 128)

    def asked_of(self, network: str) -> list[str]:
        """The names of the measurements to take of `pretrained`, `full` or `pruned` networks."""
        return [name for name in MEASURES if network in (getattr(self, name, None) or ())]
