"""A network's answers over a split."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from lp_sweep.storage.specs import Compute
from lp_sweep.trials.batches import EVALUATION_BATCH, Padding, chunks
from lp_sweep.trials.device import autocast
from lp_sweep.trials.encoded import EncodedSplit
from lp_sweep.trials.forward import forward


def evaluate(
    model: nn.Module,
    split: EncodedSplit,
    padding: Padding,
    *,
    precision: str,
    batch_size: int = EVALUATION_BATCH,
    compute: Compute = "reference",
) -> np.ndarray:
    """Logits (rows, classes) float32 in the split's order; computed sorted by length."""
    model.eval()
    device = next(model.parameters()).device
    order = np.argsort(split.lengths, kind="stable")[::-1]
    parts = []
    with torch.inference_mode(), autocast(precision, device):
        for rows in chunks(order, batch_size):
            parts.append(forward(model, split, rows, padding, device, compute).float())
    values = torch.cat(parts).cpu().numpy()
    result = np.empty_like(values)
    result[order] = values
    return result
