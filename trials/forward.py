"""A batch through a network: as the network does it by itself, or without most of the padding.

`compute: reference` takes the network's own forward pass, padded to the longest row. `fast` goes
over the real tokens alone where the family has such a forward pass. Where it has none, it is the
network's own, on a CPU for rows of like length at a time. `graphs` is `fast`, but that a GPU learns
by CUDA graphs where the family can be held in one. All give the same numbers but for rounding, and
draw other dropout masks: so `compute` is part of a trial's identity.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from lp_sweep.storage.specs import Compute
from lp_sweep.trials.batches import Padding, to_device
from lp_sweep.trials.device import onto
from lp_sweep.trials.encoded import EncodedSplit
from lp_sweep.trials.groups import group_ends, longest_first
from lp_sweep.trials.unpadded.families import family_of
from lp_sweep.trials.unpadded.families import logits as unpadded_logits
from lp_sweep.trials.unpadded.tokens import real_tokens

UNPADDED, GROUPED, PADDED, GRAPHS = "unpadded", "grouped", "padded", "graphs"
# without the padding's columns, so that no forward pass knows a token by its number
BY_PLACE = (UNPADDED, GRAPHS)
# what one group more costs, in tokens through a small encoder on a CPU
_GROUP = 32


def forward(
    model: nn.Module,
    split: EncodedSplit,
    rows: np.ndarray,
    padding: Padding,
    device: torch.device,
    compute: Compute,
) -> torch.Tensor:
    """Logits (B, C) of B rows, on `device`, where the network is."""
    used = compute_used(model, compute, device)
    if used in BY_PLACE:
        return unpadded_logits(model, real_tokens(split, rows, device))

    def padded(some: np.ndarray) -> torch.Tensor:
        found: torch.Tensor = model(**to_device(split, some, padding, device)).logits
        return found

    return _grouped(padded, split, rows) if used == GROUPED else padded(rows)


def compute_used(model: Any, compute: Compute, device: torch.device) -> str:
    """What a record says: not every family has a forward pass without padding, and a GPU waits for
    launches rather than for padding."""
    if compute == "reference":
        return PADDED
    family = family_of(model)
    if family is not None:
        held = compute == "graphs" and device.type == "cuda" and family.on_device
        return GRAPHS if held else UNPADDED
    return GROUPED if device.type == "cpu" else PADDED


def _grouped(
    padded: Callable[[np.ndarray], torch.Tensor], split: EncodedSplit, rows: np.ndarray
) -> torch.Tensor:
    order = longest_first(split.lengths_of(rows))
    ends = group_ends(split.lengths_of(rows[order]), _GROUP)
    found = torch.cat([padded(group) for group in np.split(rows[order], ends[:-1])])
    return found[onto(np.argsort(order, kind="stable"), found.device)]
