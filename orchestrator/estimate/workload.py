"""The workload of a trial or a measurement: its seconds at stated rates of a device.

Missing work and finished records are counted alike, so that the ratio of actual to stated seconds
of the latter holds for the former. It covers what is not counted: attention over pairs of tokens,
frozen layers, padding, bridges.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lp_sweep.storage.select import held_out_rows
from lp_sweep.storage.specs import TEACHER, ProfileSpec, SpeedSpec, TrialSpec
from lp_sweep.trials.data.tasks import canonical_name
from lp_sweep.trials.kinds import kind_of
from lp_sweep.trials.measures.pairs import RULE
from lp_sweep.trials.train.procedures import ITERATIVE, UNTAUGHT, imitated_layers, phases

if TYPE_CHECKING:  # `status` imports this package, and must not load YAML
    from lp_sweep.orchestrator.plan.plan import Work

_LAYER_PARAMETERS = 7_077_888  # bert-base
# FLOP per parameter and token: Kaplan et al. 2020, "Scaling Laws", section 2.1
_TRAINING, _SCORING = 6, 2

# Mean tokens of a train row for bert-base-uncased, of up to 5,000 random rows, cut at 128 tokens;
# used until the task has a record or a sample.
_GLUE_TOKENS = {
    "sst2": 13.4, "mnli": 39.8, "qnli": 48.9, "qqp": 30.3, "stsb": 27.8, "rte": 66.6,
    "mrpc": 53.2, "cola": 11.3, "wnli": 37.1,
}  # fmt: skip
_TOKENS = 64.0  # any other task


class Device(NamedTuple):
    """Stated rates."""

    words: str
    start: float  # seconds to start, load and store one piece
    flop: float  # seconds of one FLOP
    step: float  # seconds of an optimiser step of one layer: launches, and the update


GPU = Device("a GPU of 10 TFLOP/s", 3.0, 1e-13, 1e-3)
CPU = Device("a CPU core of 50 GFLOP/s", 3.0, 2e-11, 1e-3)


class Workload(NamedTuple):
    """`steps`: optimiser steps x (layers + 1)."""

    flop: float
    steps: float

    def seconds(self, device: Device) -> float:
        return device.start + device.flop * self.flop + device.step * self.steps


class MeanLengths:
    """Tokens per example after truncation: counted by records of the model and task, else of the
    task with another model, else by a `sample` of rows (task name -> mean), else stated."""

    def __init__(self, trials: pa.Table, sample: Mapping[str, float] | None = None) -> None:
        self._sample = sample or {}
        self._counted: dict[tuple[Any, ...], float] = {}
        keys = ["model_fingerprint", "data_fingerprint", "max_length"]
        counted = trials.filter(pc.greater(trials["train_tokens"], 0)).group_by(keys)
        for row in counted.aggregate(
            [("train_tokens", "sum"), ("train_examples", "sum")]
        ).to_pylist():
            model, *task = (row[name] for name in keys)
            mean = row["train_tokens_sum"] / row["train_examples_sum"]
            self._counted[model, *task] = self._counted[None, *task] = mean

    def of(self, model: str | None, data: str | None, max_length: int | None, task: str) -> float:
        for name in (model, None):
            if found := self._counted.get((name, data, max_length)):
                return found
        if found := self._sample.get(task):
            return found
        stated = _GLUE_TOKENS.get(canonical_name(task) or "", _TOKENS)
        return min(stated, max_length or stated)


def training(
    *,
    layer: float,
    epochs: float,
    layer_epochs: float,
    train: float,
    dev: float,
    tokens: float,
    batch: int,
    untaught: int = 0,
) -> Workload:
    """`layer`: parameters of one; `layer_epochs`: the sum over epochs of the layers in each;
    `untaught`: layers that are scored without training; `train` and `dev`: rows of so many
    `tokens`."""
    scored = _SCORING * dev * (layer_epochs + untaught)
    flop = layer * tokens * (_TRAINING * train * layer_epochs + scored)
    return Workload(flop, math.ceil(train / batch) * (layer_epochs + epochs))


def recorded(row: Mapping[str, Any], lengths: MeanLengths) -> Workload:
    """The workload of a finished trial, a row of `known.timing_columns`."""
    layers, epochs, depth = row["layers"], row["epochs"], row["depth"]
    dropped = depth - layers if row["procedure"] == ITERATIVE else 0
    each = row["epochs_per_layer"] or 0
    untaught = row["procedure"] in UNTAUGHT
    epochs = 0 if untaught else epochs
    tokens = lengths.of(
        row["model_fingerprint"], row["data_fingerprint"], row["max_length"], row["task"]
    )
    return training(
        layer=(row["params_encoder"] or _LAYER_PARAMETERS * layers) / layers,
        epochs=epochs + each * dropped,
        layer_epochs=epochs * layers + each * sum(depth - gone for gone in range(dropped)),
        train=row["train_examples"],
        # an example may be more than one text: a pair, a corpus
        dev=(row["dev_tokens"] or 0) / tokens or row["dev_examples"] or 0,
        tokens=tokens,
        batch=row["batch_size"] or 32,
        untaught=layers * untaught,
    )


def missing(work: Work, lengths: MeanLengths) -> Workload:
    """The workload of a trial or a measurement that is not done yet."""
    spec = work.spec
    if spec.kind == "speed":
        return _speed(work, spec)
    length = (spec.recipe if spec.kind == "trial" else spec).max_length
    tokens = lengths.of(work.model.fingerprint, work.task.fingerprint, length, work.task.name)
    if spec.kind == "profile":
        return _profile(work, spec, tokens)
    recipe, course = spec.recipe, phases(spec, work.model.depth)
    epochs = sum(phase.epochs for phase in course)
    each = kind_of(spec.task).rows_each
    train = each * _limited(work.task.train_rows, recipe.limit_train) + _unlabelled(work)
    trained = training(
        layer=_kept_parameters(work, spec) / len(spec.kept_layers),
        epochs=epochs,
        layer_epochs=sum(phase.epochs * len(phase.kept_layers) for phase in course),
        train=train,
        dev=each * _limited(work.task.dev_rows, recipe.limit_dev),
        tokens=tokens,
        batch=recipe.batch_size,
        untaught=len(spec.kept_layers) if spec.procedure in UNTAUGHT else 0,
    )
    watched = len(imitated_layers(spec, work.model.depth))  # of the teacher, in each step
    flop = _SCORING * _layer(work) * watched * epochs * tokens * train
    return trained._replace(flop=trained.flop + flop)


def _kept_parameters(work: Work, spec: TrialSpec) -> float:
    """The kept layers without the feed-forwards that are removed."""
    layer = _layer(work)
    attention = 4 * work.model.hidden**2 if work.model.hidden else layer / 3
    return len(spec.kept_layers) * layer - len(spec.removed_feed_forwards) * (layer - attention)


def _profile(work: Work, spec: ProfileSpec, tokens: float) -> Workload:
    """A pass over the dev rows. Probes also read train rows; a teacher reads train rows only.
    Greedy selection trains the full network and scores it for each layer that it tries."""
    depth, layer = work.model.depth, _layer(work)
    each = kind_of(spec.task).rows_each
    train = each * _limited(work.task.train_rows, spec.limit_train)
    if spec.recipe is None:
        if spec.measure == TEACHER:
            rows = train + _unlabelled(work)
        else:
            rows = each * _limited(work.task.dev_rows, spec.limit_dev) + min(train, spec.rows or 0)
        return Workload(_SCORING * rows * tokens * layer * depth, 0.0)
    held_out, epochs = held_out_rows(train), spec.recipe.epochs
    trained = training(
        layer=layer,
        epochs=epochs,
        layer_epochs=epochs * depth,
        train=train - held_out,
        dev=0,
        tokens=tokens,
        batch=spec.recipe.batch_size,
    )
    tried = sum(left * (left - 1) for left in range(2, depth + 1))
    scored = _SCORING * held_out * tokens * layer * tried
    return trained._replace(flop=trained.flop + scored)


def _speed(work: Work, spec: SpeedSpec) -> Workload:
    """One round of fine-tuning steps and inference of both networks, on rows without padding."""
    times, layers = RULE.warm_ups + RULE.pairs, work.model.depth + len(spec.kept_layers)
    once = (_TRAINING + _SCORING) * sum(spec.batches) * spec.length * _layer(work) * layers
    return Workload(times * once, times * len(spec.batches) * (layers + 1))


def _layer(work: Work) -> int:
    return work.model.layer_parameters or _LAYER_PARAMETERS


def _unlabelled(work: Work) -> int:
    """Rows that a student or a teacher reads in addition to the train rows."""
    return work.task.unlabelled_rows if work.spec.unlabelled else 0


def _limited(rows: int, limit: int | None) -> int:
    return min(rows, limit or rows)
