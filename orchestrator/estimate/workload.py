"""The stated seconds of a trial or a measurement: its FLOP at the stated rate of a device.

Missing work and finished records are counted alike, so that the ratio of actual to stated seconds
of the latter holds for the former. It covers what is not counted: optimiser steps, attention over
pairs of tokens, frozen layers, padding, bridges, a teacher's hidden states.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lp_sweep.trials.data.tasks import canonical_name
from lp_sweep.trials.kinds import kind_of
from lp_sweep.trials.measures.pairs import RULE
from lp_sweep.trials.spec.procedures import ITERATIVE, UNTAUGHT
from lp_sweep.trials.spec.select import held_out_rows
from lp_sweep.trials.spec.specs import TEACHER, ProfileSpec, SpeedSpec

if TYPE_CHECKING:  # `status` imports this package, and must not load YAML
    from lp_sweep.orchestrator.plan.plan import Work

_LAYER_PARAMETERS = 7_077_888  # bert-base
_FEED_FORWARD = 2 / 3  # of a layer's parameters
# FLOP per parameter and token: Kaplan et al. 2020, "Scaling Laws", section 2.1
_TRAINING, _SCORING = 6, 2

# Mean tokens of a train row for bert-base-uncased, of up to 5,000 random rows, cut at 128 tokens;
# used until the task has a record or a sample.
_GLUE_TOKENS = {
    "sst2": 13.4, "mnli": 39.8, "qnli": 48.9, "qqp": 30.3, "stsb": 27.8, "rte": 66.6,
    "mrpc": 53.2, "cola": 11.3, "wnli": 37.1,
}  # fmt: skip
_TOKENS = 64.0  # any other task


class StatedRate(NamedTuple):
    words: str
    start: float  # seconds to start, load and store one piece of work
    flop: float  # a second

    def seconds(self, flop: float) -> float:
        return self.start + flop / self.flop


GPU = StatedRate("a GPU of 10 TFLOP/s", 3.0, 10e12)
CPU = StatedRate("a CPU core of 50 GFLOP/s", 3.0, 50e9)


class MeanLengths:
    """Tokens per example after truncation: counted by records of the same rows, else by a `sample`
    of rows (task name -> mean), else stated."""

    def __init__(self, trials: pa.Table, sample: Mapping[str, float] | None = None) -> None:
        self._sample = sample or {}
        keys = ["data_fingerprint", "max_length"]
        counted = trials.filter(pc.greater(trials["train_tokens"], 0)).group_by(keys)
        sums = counted.aggregate([("train_tokens", "sum"), ("train_examples", "sum")])
        self._counted = {
            tuple(row[key] for key in keys): row["train_tokens_sum"] / row["train_examples_sum"]
            for row in sums.to_pylist()
        }

    def of(self, data: str, max_length: int, task: str) -> float:
        stated = min(_GLUE_TOKENS.get(canonical_name(task) or "", _TOKENS), max_length)
        return self._counted.get((data, max_length)) or self._sample.get(task) or stated


def recorded_flop(row: Mapping[str, Any], lengths: MeanLengths) -> float:
    """The FLOP of a finished trial, a row of `known.timing_columns`."""
    tokens = lengths.of(row["data_fingerprint"], row["max_length"], row["task"])
    return _trial_flop(
        row["procedure"],
        parameters=(row["params_encoder"] or _LAYER_PARAMETERS * row["layers"]) / row["layers"],
        layers=row["layers"],
        depth=row["depth"],
        epochs=row["epochs"],
        epochs_per_layer=row["epochs_per_layer"] or 0,
        train_tokens=row["train_tokens"] or tokens * row["train_examples"],
        dev_tokens=row["dev_tokens"] or tokens * (row["dev_examples"] or 0),
    )


def missing_flop(work: Work, lengths: MeanLengths) -> float:
    """The FLOP of a trial or a measurement that is not done yet."""
    spec, model, task = work.spec, work.model, work.task
    parameters = model.layer_parameters or _LAYER_PARAMETERS
    if spec.kind == "speed":
        return _speed_flop(spec, parameters, model.depth)
    limits = spec.recipe if spec.kind == "trial" else spec
    tokens = lengths.of(task.fingerprint, limits.max_length, task.name)
    each = kind_of(spec.task).rows_each
    train = each * min(task.train_rows, limits.limit_train or task.train_rows)
    dev = each * min(task.dev_rows, limits.limit_dev or task.dev_rows)
    taught = train + (task.unlabelled_rows if spec.unlabelled else 0)
    if spec.kind == "profile":
        read = taught if spec.measure == TEACHER else dev + min(train, spec.rows or 0)
        return tokens * parameters * _profile_flop(spec, model.depth, train, read)
    layers = len(spec.kept_layers)
    return _trial_flop(
        spec.procedure,
        parameters=parameters * (1 - _FEED_FORWARD * len(spec.removed_feed_forwards) / layers),
        layers=layers,
        depth=model.depth,
        epochs=spec.recipe.epochs,
        epochs_per_layer=spec.epochs_per_layer,
        train_tokens=tokens * taught,
        dev_tokens=tokens * dev,
    )


def _trial_flop(
    procedure: str,
    *,
    parameters: float,
    layers: int,
    depth: int,
    epochs: int,
    epochs_per_layer: int,
    train_tokens: float,
    dev_tokens: float,
) -> float:
    """`parameters`: of one of the kept `layers`."""
    if procedure in UNTAUGHT:
        return _SCORING * parameters * layers * dev_tokens
    layer_epochs = epochs * layers
    if procedure == ITERATIVE:  # starts with all layers and drops one at a time
        layer_epochs += epochs_per_layer * sum(range(layers + 1, depth + 1))
    return parameters * layer_epochs * (_TRAINING * train_tokens + _SCORING * dev_tokens)


def _profile_flop(spec: ProfileSpec, depth: int, train: int, read: int) -> float:
    """FLOP per token and layer parameter of a pass over the rows that are `read`. Greedy selection
    trains the full network, and scores it for each layer that it tries."""
    if spec.recipe is None:
        return _SCORING * read * depth
    held_out = held_out_rows(train)
    tried = sum(left * (left - 1) for left in range(2, depth + 1))
    return _TRAINING * (train - held_out) * depth * spec.recipe.epochs + _SCORING * held_out * tried


def _speed_flop(spec: SpeedSpec, parameters: float, depth: int) -> float:
    """One round of fine-tuning steps and inference of both networks, on rows without padding."""
    tokens = (RULE.warm_ups + RULE.pairs) * sum(spec.batches) * spec.length
    return (_TRAINING + _SCORING) * tokens * parameters * (depth + len(spec.kept_layers))
