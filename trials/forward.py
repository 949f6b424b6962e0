"""A batch through a network: as the network does it by itself, or over its real tokens alone.

`compute: fast` takes the second way where the family has one, and `reference` never. Both give the
same numbers but for rounding, and draw other dropout masks: so it is part of a trial's identity.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from lp_sweep.storage.identity import Compute
from lp_sweep.trials.batches import Padding, to_device
from lp_sweep.trials.encode import EncodedSplit
from lp_sweep.trials.unpadded.families import family_of
from lp_sweep.trials.unpadded.families import logits as unpadded_logits
from lp_sweep.trials.unpadded.tokens import real_tokens

UNPADDED, PADDED = "unpadded", "padded"


def forward(
    model: nn.Module,
    split: EncodedSplit,
    rows: np.ndarray,
    padding: Padding,
    device: torch.device,
    compute: Compute,
) -> torch.Tensor:
    """Logits (B, C) of B rows, on `device`, where the network is."""
    if compute_used(model, compute) == UNPADDED:
        return unpadded_logits(model, real_tokens(split, rows, device))
    found: torch.Tensor = model(**to_device(split, rows, padding, device)).logits
    return found


def compute_used(model: Any, compute: Compute) -> str:
    """What a record says: a family may have no forward pass without padding."""
    return UNPADDED if compute == "fast" and family_of(model) is not None else PADDED
