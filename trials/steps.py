"""One optimiser step: the recipe's batch, in as many passes as its micro-batches need.

The gradient is that of the whole batch's mean loss, whatever the micro-batch. The random stream
starts anew at each step from (seed, step), and runs on through the micro-batches.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from lp_sweep.trials.batches import chunks
from lp_sweep.trials.encoded import EncodedSplit
from lp_sweep.trials.passes import Pass


def train_step(
    learn: Pass,
    optimizer: torch.optim.Optimizer,
    split: EncodedSplit,
    rows: np.ndarray,
    step: int,
) -> torch.Tensor:
    """Learn from `rows`; their mean loss, a scalar that is still on the device."""
    setting = learn.setting
    torch.manual_seed(stream(setting.seed, step))
    total = torch.zeros((), device=setting.device)
    for part in chunks(rows, setting.batches.training):
        total += learn(split, part, len(part) / len(rows))
    nn.utils.clip_grad_norm_(learn.model.parameters(), setting.recipe.max_grad_norm)
    optimizer.step()
    optimizer.zero_grad(set_to_none=not learn.keeps_gradients)
    return total


def stream(seed: int, step: int) -> int:
    """A 63-bit seed for one step's dropout, the same for every depth."""
    return int(np.random.SeedSequence((seed, step)).generate_state(1, np.uint64)[0] >> 1)
