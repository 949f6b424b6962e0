"""One optimiser step: the recipe's batch, in as many forward passes as its micro-batches need.

The gradient is that of the whole batch's mean loss, whatever the micro-batch. The random stream
starts anew at each step from (seed, step), and runs on through the micro-batches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from lp_sweep.storage.specs import Recipe, TaskDefinition
from lp_sweep.trials.batches import BatchSizes, Padding, chunks
from lp_sweep.trials.device import autocast, onto
from lp_sweep.trials.encoded import EncodedSplit
from lp_sweep.trials.forward import forward
from lp_sweep.trials.procedures import Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How one try at a trial trains: the same for all its steps."""

    definition: TaskDefinition
    recipe: Recipe
    seed: int
    device: torch.device
    padding: Padding
    precision: str  # fp32 or bf16
    batches: BatchSizes
    course: tuple[Phase, ...]

    @property
    def epochs(self) -> int:
        """Of all phases."""
        return sum(phase.epochs for phase in self.course)


def train_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    split: EncodedSplit,
    rows: np.ndarray,
    step: int,
    setting: Setting,
) -> torch.Tensor:
    """Learn from `rows`; their mean loss, a scalar that is still on the device."""
    torch.manual_seed(stream(setting.seed, step))
    total = torch.zeros((), device=setting.device)
    for part in chunks(rows, setting.batches.training):
        target = onto(split.labels[part], setting.device)
        with autocast(setting.precision, setting.device):
            logits = forward(
                model, split, part, setting.padding, setting.device, setting.recipe.compute
            )
        loss = _loss(logits.float(), target, setting.definition)
        share = loss * (len(part) / len(rows))  # a whole batch's is times 1.0: the same bits
        share.backward()  # type: ignore[no-untyped-call]
        total += share.detach()
    nn.utils.clip_grad_norm_(model.parameters(), setting.recipe.max_grad_norm)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return total


def stream(seed: int, step: int) -> int:
    """A 63-bit seed for one step's dropout, the same for every depth."""
    return int(np.random.SeedSequence((seed, step)).generate_state(1, np.uint64)[0] >> 1)


def _loss(logits: torch.Tensor, target: torch.Tensor, definition: TaskDefinition) -> torch.Tensor:
    if definition.kind == "regression":
        return nn.functional.mse_loss(logits.squeeze(-1), target.float())
    return nn.functional.cross_entropy(logits, target.long())
