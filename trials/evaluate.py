"""A network's answers over a split."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from lp_sweep.trials.batches import EVALUATION_BATCH, Padding, chunks, to_device
from lp_sweep.trials.device import autocast
from lp_sweep.trials.encode import EncodedSplit


def evaluate(
    model: nn.Module,
    split: EncodedSplit,
    padding: Padding,
    *,
    precision: str,
    batch_size: int = EVALUATION_BATCH,
) -> np.ndarray:
    """Logits (rows, classes) float32 in the split's order; computed sorted by length."""
    model.eval()
    device = next(model.parameters()).device
    order = np.argsort(split.lengths, kind="stable")[::-1]
    parts = []
    with torch.inference_mode(), autocast(precision, device):
        for rows in chunks(order, batch_size):
            parts.append(model(**to_device(split, rows, padding, device)).logits.float())
    values = torch.cat(parts).cpu().numpy()
    result = np.empty_like(values)
    result[order] = values
    return result
