"""A network to measure, and what is found. A teacher's logits are the plainest measurement."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from transformers import PreTrainedModel

from lp_sweep.trials.data.batches import (
    EVALUATION_BATCH,
    BatchSizes,
    EncodedSplit,
    EncodedTask,
    Padding,
    chunks,
    to_device,
)
from lp_sweep.trials.model.families import original_layers
from lp_sweep.trials.model.states import Batch, LayerStates, layer_states
from lp_sweep.trials.spec.specs import ProfileSpec
from lp_sweep.trials.train.steps import evaluate
from lp_sweep.trials.train.thresholds import unfolded


class NamedValue(NamedTuple):
    """One number. `layer` and `other` are 1-based original indices, 0 the embedding output; of
    greedy `other` is the step."""

    name: str
    layer: int
    other: int | None
    value: float | None  # None: not a number


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerValues:
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
    graphs: bool = True  # whether a training of it may record CUDA graphs

    @property
    def dev(self) -> EncodedSplit:
        """The main dev split."""
        return next(iter(self.encoded.dev.values()))

    @property
    def layers(self) -> list[int]:
        """The original indices of its layers."""
        return original_layers(self.model.config)

    def batches(self, split: EncodedSplit, rows: np.ndarray | None = None) -> Iterator[Batch]:
        """The rows (all where None) in their order of length: the same batches each time."""
        rows = np.arange(len(split)) if rows is None else rows
        order = rows[np.argsort(split.lengths[rows], kind="stable")]
        for part in chunks(order, self.batch_size):
            yield to_device(split, part, self.padding, self.device)

    def dev_batches(self) -> Iterator[Batch]:
        return self.batches(self.dev)

    def states(self, *, only_sentence: bool = False) -> Iterator[LayerStates]:
        """The network's states over the main dev split, batch by batch."""
        return layer_states(self.model, self.dev_batches(), only_sentence=only_sentence)

    @property
    def batch_size(self) -> int:
        return BatchSizes.halved(EVALUATION_BATCH, self.halvings).evaluation


def finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def teacher(subject: Subject, spec: ProfileSpec) -> LayerValues:
    with unfolded(subject.model):
        logits = evaluate(
            subject.model,
            subject.encoded.train,
            subject.padding,
            precision="fp32",
            batch_size=subject.batch_size,
            pooling=spec.task.pooling,
        )
    return LayerValues(logits=logits)
