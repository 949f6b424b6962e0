"""One forward and backward pass over some rows of a batch: their part of its gradient."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import nn

from lp_sweep.storage.specs import TaskDefinition
from lp_sweep.trials.device import autocast, onto
from lp_sweep.trials.encoded import EncodedSplit
from lp_sweep.trials.forward import forward
from lp_sweep.trials.setting import Setting


class Pass(Protocol):
    """Adds `share` times the gradient of the rows' mean loss to the parameters' `.grad`, and gives
    that part of the loss: a scalar on the device, the caller's until the next pass."""

    model: nn.Module
    setting: Setting
    keeps_gradients: bool  # whether they have to stay where they are, set to zero, after a step

    def __call__(self, split: EncodedSplit, rows: np.ndarray, share: float) -> torch.Tensor: ...


class EagerPass:
    """Operation by operation, in a shape of the rows' own."""

    keeps_gradients = False

    def __init__(self, model: nn.Module, setting: Setting) -> None:
        self.model, self.setting = model, setting

    def __call__(self, split: EncodedSplit, rows: np.ndarray, share: float) -> torch.Tensor:
        setting = self.setting
        target = onto(split.labels[rows], setting.device)
        with autocast(setting.precision, setting.device):
            logits = forward(
                self.model, split, rows, setting.padding, setting.device, setting.recipe.compute
            )
        loss = mean_loss(logits, target, setting.definition)
        part = loss * share  # a whole batch's is times 1.0: the same bits
        part.backward()  # type: ignore[no-untyped-call]
        return part.detach()


def mean_loss(
    logits: torch.Tensor, target: torch.Tensor, definition: TaskDefinition
) -> torch.Tensor:
    """Of (B, C) logits, in fp32: squared error of numbers, cross-entropy of classes."""
    logits = logits.float()
    if definition.kind == "regression":
        return nn.functional.mse_loss(logits.squeeze(-1), target.float())
    return nn.functional.cross_entropy(logits, target.long())
