"""How far a training is, between two of its steps: what a checkpoint holds beside the tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch


class EpochMetric(NamedTuple):
    epoch: int  # from 1
    split: str
    metric: str
    value: float  # a fraction, not points


@dataclass(slots=True, kw_only=True)
class Progress:
    """Changes as the training goes on.

    An epoch is finished when it has been evaluated: its mean loss is in `train_losses` then.
    """

    step: int = 0  # optimiser steps done, over all epochs
    train_losses: list[float] = field(default_factory=list)  # mean over each epoch's rows
    epoch_metrics: list[EpochMetric] = field(default_factory=list)
    step_losses: torch.Tensor = field(default_factory=lambda: torch.zeros(0))  # of this epoch
    seconds_train: float = 0.0
    seconds_evaluate: float = 0.0
    seconds_before: float = 0.0  # of earlier tries in all: loading and writing too
    resumed_from_step: int = 0

    @property
    def epoch(self) -> int:
        """The epoch under way, from 0."""
        return len(self.train_losses)
