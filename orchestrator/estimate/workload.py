"""What a piece of work asks of a device, as amounts of the terms that its seconds are a sum of.

The same arithmetic for work to be done and for a record of work that was: only so the timings of
the one price the other. Attention over pairs of tokens is no term: it is 3% of BERT-base's layers
at 128 tokens, and the factor of a model and task takes up what there is of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from lp_sweep.orchestrator.plan.plan import Work
from lp_sweep.storage.specs import ProfileSpec, SpeedSpec, TrialSpec
from lp_sweep.trials.measures.heldout import held_out_rows
from lp_sweep.trials.measures.pairs import RULE
from lp_sweep.trials.procedures import ITERATIVE, phases

_LAYER_PARAMETERS = 7_077_888  # of bert-base
# FLOP of one parameter for one token: Kaplan et al. 2020, "Scaling Laws", section 2.1
_FORWARD, _BACKWARD = 2, 4


class Terms(NamedTuple):
    """Amounts of one piece of work; or, of a device, seconds for one unit of each."""

    pieces: float  # starting, loading, storing
    training: float  # FLOP, forward and backward, through the layers
    steps: float  # optimiser steps x (layers + 1): launches, and the update itself
    scoring: float  # FLOP of forward passes


class Lengths(NamedTuple):
    """Mean tokens of an example, after truncation."""

    train: float
    dev: float


class Course(NamedTuple):
    """Epochs of a training, and the same times the layers that each goes through."""

    epochs: float
    layer_epochs: float


def training_terms(
    *, layer_parameters: float, course: Course, train_tokens: float, dev_tokens: float, steps: float
) -> Terms:
    """Of one training. `train_tokens`, `dev_tokens` and `steps` are of one epoch."""
    passed = layer_parameters * course.layer_epochs
    return Terms(
        1.0,
        (_FORWARD + _BACKWARD) * train_tokens * passed,
        steps * (course.layer_epochs + course.epochs),
        _FORWARD * dev_tokens * passed,
    )


def recorded_terms(row: Mapping[str, Any], lengths: Lengths) -> Terms:
    """Of a trial's record, as `known.timing_columns` has it. Its own count of tokens comes before
    `lengths`: an older record has none."""
    layers = row["layers"]
    parameters = (row["params_encoder"] or _LAYER_PARAMETERS * layers) / layers
    train, dev = row["train_examples"], row["dev_examples"] or 0
    return training_terms(
        layer_parameters=parameters,
        course=_recorded_course(row, layers),
        train_tokens=row["train_tokens"] or train * lengths.train,
        dev_tokens=row["dev_tokens"] or dev * lengths.dev,
        steps=math.ceil(train / (row["batch_size"] or 32)),
    )


def _recorded_course(row: Mapping[str, Any], layers: int) -> Course:
    epochs = row["epochs"]
    dropped = row["depth"] - layers if row["procedure"] == ITERATIVE else 0
    each = row["epochs_per_layer"] or 0
    on_the_way = each * sum(row["depth"] - gone for gone in range(dropped))
    return Course(epochs + each * dropped, epochs * layers + on_the_way)


def work_terms(work: Work, lengths: Lengths) -> Terms:
    """Of a trial or a measurement that is to be done."""
    if work.spec.kind == "profile":
        return _profile_terms(work, work.spec, lengths)
    if work.spec.kind == "speed":
        return _speed_terms(work, work.spec)
    recipe, course = work.spec.recipe, phases(work.spec, work.model.depth)
    train = _limited(work.task.train_rows, recipe.limit_train)
    layers = len(work.spec.kept_layers)
    return training_terms(
        layer_parameters=_parameters(work, work.spec) / layers,
        course=Course(
            sum(phase.epochs for phase in course),
            sum(phase.epochs * len(phase.kept_layers) for phase in course),
        ),
        train_tokens=train * lengths.train,
        dev_tokens=_limited(work.task.dev_rows, recipe.limit_dev) * lengths.dev,
        steps=math.ceil(train / recipe.batch_size),
    )


def _parameters(work: Work, spec: TrialSpec) -> float:
    """Of the kept layers, without the feed-forwards that go."""
    layer = work.model.layer_parameters or _LAYER_PARAMETERS
    attention = 4 * work.model.hidden**2 if work.model.hidden else layer / 3
    gone = len(spec.removed_feed_forwards) * (layer - attention)
    return len(spec.kept_layers) * layer - gone


def _profile_terms(work: Work, spec: ProfileSpec, lengths: Lengths) -> Terms:
    """A pass over the dev rows; of probes one over their train rows too; of a greedy selection a
    training of the full network, and as many passes as it tries layers."""
    depth = work.model.depth
    layer = work.model.layer_parameters or _LAYER_PARAMETERS
    learned = _limited(work.task.train_rows, spec.limit_train)
    if spec.recipe is not None:
        held_out = held_out_rows(learned)
        training = training_terms(
            layer_parameters=layer,
            course=Course(spec.recipe.epochs, spec.recipe.epochs * depth),
            train_tokens=(learned - held_out) * lengths.train,
            dev_tokens=0.0,
            steps=math.ceil((learned - held_out) / spec.recipe.batch_size),
        )
        tried = sum(left * (left - 1) for left in range(2, depth + 1))
        return training._replace(scoring=_FORWARD * held_out * lengths.train * layer * tried)
    tokens = _limited(work.task.dev_rows, spec.limit_dev) * lengths.dev
    if spec.rows is not None:
        tokens += min(learned, spec.rows) * lengths.train
    return Terms(1.0, 0.0, 0.0, _FORWARD * tokens * layer * depth)


def _speed_terms(work: Work, spec: SpeedSpec) -> Terms:
    """Of both networks, steps of fine-tuning and inferences, without the rounds that noise may
    add."""
    layer = work.model.layer_parameters or _LAYER_PARAMETERS
    layers, times = work.model.depth + len(spec.kept_layers), RULE.warm_ups + RULE.pairs
    once = training_terms(
        layer_parameters=layer,
        course=Course(1, layers),
        train_tokens=sum(spec.batches) * spec.length,
        dev_tokens=sum(spec.batches) * spec.length,
        steps=len(spec.batches),
    )
    return Terms(1.0, *(times * amount for amount in once[1:]))


def _limited(rows: int, limit: int | None) -> int:
    return min(rows, limit or rows)
