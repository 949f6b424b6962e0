"""The table of measurements of a network's layers.

An entry holds a measurement's function, its needs, the networks that it applies to, and how it is
shown. Only `greedy` changes the network: it trains it. The sweep file and the plan also read this
table, so torch is imported only inside the functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from lp_sweep.trials.spec.specs import TEACHER, ProfileSpec, Recipe

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from lp_sweep.trials.data.batches import EncodedSplit, EncodedTask, Padding
    from lp_sweep.trials.model.states import Batch, LayerStates, Site

_GREEDY_SEED = 0  # of its own fine-tuning: all seeds of a sweep share the chosen layers


class NamedValue(NamedTuple):
    """One number. `layer` and `other` are 1-based original indices, 0 the embedding output; of
    greedy `other` is the step."""

    name: str
    layer: int
    other: int | None
    value: float | None  # None: not a number


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """`layers`, (1-based layer, value), is what a strategy selects by. `logits` are stored in
    TEACHER_LOGITS."""

    layers: Sequence[tuple[int, float]] = ()
    values: Sequence[NamedValue] = ()
    logits: np.ndarray | None = None  # (n, C), of the rows that students learn from: a teacher's


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A network to measure, with its inputs. `other` loads the network to compare it with, on the
    same device."""

    model: PreTrainedModel
    encoded: EncodedTask
    padding: Padding
    device: torch.device
    halvings: int  # of its batches, for lack of memory
    other: Callable[[], PreTrainedModel] = field(repr=False)

    @property
    def dev(self) -> EncodedSplit:
        """The main dev split."""
        return next(iter(self.encoded.dev.values()))

    def batches(self, split: EncodedSplit, rows: np.ndarray | None = None) -> Iterator[Batch]:
        """The rows (all where None) in their order of length: the same batches each time."""
        from lp_sweep.trials.data.batches import chunks, to_device

        rows = np.arange(len(split)) if rows is None else rows
        order = rows[np.argsort(split.lengths[rows], kind="stable")]
        for part in chunks(order, self.batch_size):
            yield to_device(split, part, self.padding, self.device)

    def dev_batches(self) -> Iterator[Batch]:
        return self.batches(self.dev)

    def states(self, *, only_sentence: bool = False) -> Iterator[LayerStates]:
        """The network's states over the main dev split, batch by batch."""
        from lp_sweep.trials.model.states import layer_states

        return layer_states(self.model, self.dev_batches(), only_sentence=only_sentence)

    @property
    def batch_size(self) -> int:
        from lp_sweep.trials.data.batches import EVALUATION_BATCH, BatchSizes

        return BatchSizes.halved(EVALUATION_BATCH, self.halvings).evaluation


def _cosines(subject: Subject, spec: ProfileSpec, *, only_sentence: bool) -> Found:
    from lp_sweep.trials.measures.influence import cosine_sums, mean_cosines

    values = mean_cosines(map(cosine_sums, subject.states(only_sentence=only_sentence)))
    return Found(layers=list(zip(_original(subject.model.config), values, strict=True)))


def _angular(subject: Subject, spec: ProfileSpec) -> Found:
    """From `layer` to `other`, both in: how far the sentence token turns."""
    from lp_sweep.trials.measures.influence import angular_distances

    distances = angular_distances(subject.states(only_sentence=True))
    numbers = _states(subject.model)
    pairs = combinations(range(len(numbers)), 2)
    return Found(
        values=[
            NamedValue("angular", numbers[i + 1], numbers[j], float(distances[i, j]))
            for i, j in pairs
        ]
    )


def _greedy(subject: Subject, spec: ProfileSpec) -> Found:
    """`layers` holds the step at which each layer went, from 1; the last one stays: 0."""
    from lp_sweep.trials.measures.greedy import greedy_order

    steps = greedy_order(
        subject.model, subject.encoded, subject.padding, subject.device, spec, subject.halvings
    )
    gone = {step.layer: number for number, step in enumerate(steps, start=1)}
    everything = range(1, len(steps) + 2)
    return Found(
        layers=[(layer, float(gone.get(layer, 0))) for layer in everything],
        values=[
            NamedValue("score", step.layer, number, _number(step.score))
            for number, step in enumerate(steps, start=1)
        ],
    )


def _probes(subject: Subject, spec: ProfileSpec) -> Found:
    from lp_sweep.trials.measures.influence import probe_scores, sentence_vectors
    from lp_sweep.trials.model.states import layer_states

    train = subject.encoded.train
    rows = np.random.default_rng(0).permutation(len(train))[: spec.rows]
    chosen = rows[np.argsort(train.lengths[rows], kind="stable")]  # as `batches` has them
    dev = np.argsort(subject.dev.lengths, kind="stable")
    learned = layer_states(subject.model, subject.batches(train, rows), only_sentence=True)
    scores = probe_scores(
        sentence_vectors(learned),
        np.asarray(train.labels)[chosen],
        sentence_vectors(subject.states(only_sentence=True)),
        np.asarray(subject.dev.labels)[dev],
        spec.task,
        subject.encoded.label_names,
    )
    return Found(
        values=[
            NamedValue(metric, layer, None, _number(value))
            for layer, metrics in zip(_states(subject.model), scores, strict=True)
            for metric, value in metrics.items()
        ]
    )


def _similarity(subject: Subject, spec: ProfileSpec) -> Found:
    from lp_sweep.trials.measures.influence import similarity_profile
    from lp_sweep.trials.model.states import layer_states

    pretrained = layer_states(subject.other(), subject.dev_batches())
    rows = similarity_profile(pretrained, subject.states(), _original(subject.model.config))
    return Found(
        values=[
            NamedValue(name, row.layer, row.layer, _number(getattr(row, name)))
            for row in rows
            for name in ("sentence", "tokens")
        ]
    )


def _cka(subject: Subject, spec: ProfileSpec) -> Found:
    """`layer` of this network with `other` of the one that it is compared with."""
    from lp_sweep.trials.measures.cka import network_cka

    other = subject.other()
    here, there = _states(subject.model), _states(other)
    values = []
    sites: tuple[tuple[Site, int], ...] = (("layer", 0), ("attention", 1))
    for site, first in sites:  # attention has no embedding output
        matrix = network_cka(subject.model, other, subject.dev_batches, site=site)
        for i, layer in enumerate(here[first:]):
            for j, opposite in enumerate(there[first:]):
                values.append(NamedValue(site, layer, opposite, _number(float(matrix[i, j]))))
    return Found(values=values)


def _teacher(subject: Subject, spec: ProfileSpec) -> Found:
    from lp_sweep.trials.train.steps import evaluate
    from lp_sweep.trials.train.thresholds import unfolded

    model, train = subject.model, subject.encoded.train
    with unfolded(model):
        found = evaluate(
            model,
            train,
            subject.padding,
            precision="fp32",
            batch_size=subject.batch_size,
            pooling=spec.task.pooling,
        )
    return Found(logits=found)


def _original(config: Any) -> list[int]:
    from lp_sweep.trials.model.reduced import original_layers

    return original_layers(config)


def _states(model: PreTrainedModel) -> list[int]:
    """The original indices of a network's states, the embedding output first."""
    return [0, *_original(model.config)]


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _own_training(recipe: Recipe, rows: int) -> dict[str, Any]:
    """Sees no dev row."""
    own = replace(recipe, limit_dev=None)
    train = {"limit_train": recipe.limit_train, "limit_dev": None}
    return {"recipe": own, "seed": _GREEDY_SEED, **train}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One entry of MEASURES.

    `networks`: those that a sweep file may measure under `measure:`; () if only a strategy uses it.
    `needs(recipe, rows)`: more fields of its ProfileSpec. `compares`: whether it compares with the
    pre-trained network; with `to_full` a pruned network is compared with the full one. `blocks`:
    whether values are of runs of layers, from `layer` to `other`. `shown` and `column`: headings of
    `lp-sweep show`, of the measurement and of `Found.layers`.
    """

    run: Callable[[Subject, ProfileSpec], Found]
    help: str
    networks: tuple[Literal["pretrained", "full", "pruned"], ...] = ()
    needs: Callable[[Recipe, int], dict[str, Any]] = lambda recipe, rows: {}
    compares: bool = False
    to_full: bool = False
    blocks: bool = False
    shown: str = "{measure} of {network}, on {rows}"
    column: str = ""


# A new measurement is one entry here: see docs/extending.md
MEASURES: dict[str, Measurement] = {
    "contribution": Measurement(
        run=partial(_cosines, only_sentence=True),
        help="how little each layer changes the sentence token",
    ),
    "block_influence": Measurement(
        run=partial(_cosines, only_sentence=False),
        help="how little each layer changes all tokens",
    ),
    "angular": Measurement(
        run=_angular, help="how far each run of layers turns the sentence token", blocks=True
    ),
    "greedy": Measurement(
        run=_greedy,
        help="the order in which layers are dropped, each time the one that hurts the score least",
        needs=_own_training,
        shown="{measure} of {network}, after fine-tuning, on held-out train rows of {task}",
        column="step",
    ),
    TEACHER: Measurement(
        run=_teacher,
        help="the logits of the train rows, and of unlabelled ones, for the networks that learn "
        "from this one",
        needs=lambda recipe, rows: {"limit_train": recipe.limit_train, "limit_dev": None},
        shown="{measure} of other networks: {network}, on the train rows of {task}",
    ),
    "probes": Measurement(
        run=_probes,
        help="a linear classifier on each layer's sentence token",
        networks=("pretrained", "full", "pruned"),
        needs=lambda recipe, rows: {"limit_train": recipe.limit_train, "rows": rows},
    ),
    "similarity": Measurement(
        run=_similarity,
        help="cosine with the pre-trained network: sentence token, and per-text token mean",
        networks=("full", "pruned"),
        compares=True,
        shown="{measure} of {network} with {beside}, on {rows}",
    ),
    "cka": Measurement(
        run=_cka,
        help="linear CKA: full with pre-trained, pruned with full, of one seed",
        networks=("full", "pruned"),
        compares=True,
        to_full=True,
        # a matrix has the layers of the first network below each other
        shown="{measure} of {network} (rows) with {beside} (columns), on {rows}",
    ),
}
