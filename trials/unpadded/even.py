"""A batch whose rows all have one number of tokens, for a forward pass of a fixed shape.

It goes through the same forward pass as one without padding: what a row has too much is masked in
the attention, and nobody reads it. Rows are filled up to the next of a few lengths, so that a
training meets few shapes.
"""

from __future__ import annotations

import torch

from lp_sweep.trials.unpadded.tokens import Group, RealTokens


def even_length(longest: int) -> int:
    """`longest` tokens filled up: to a multiple of 16, above 128 of 32, above 256 of 64. There are
    16 such lengths up to 512, and a batch grows by a quarter at most from 64 tokens on."""
    step = 16 if longest <= 128 else 32 if longest <= 256 else 64
    return -(-longest // step) * step


def even_tokens(ids: torch.Tensor, types: torch.Tensor | None, lengths: torch.Tensor) -> RealTokens:
    """Of (B, T) token ids, and types, that are all on one device; the first `lengths` (B,) of each
    row are its own. Made without a question to the device."""
    rows, longest = ids.shape
    column = torch.arange(longest, device=ids.device)
    begins = torch.arange(rows, device=ids.device)
    beyond = column >= lengths[:, None]
    mask = torch.zeros(rows, longest, device=ids.device).masked_fill(beyond, -torch.inf)
    return RealTokens(
        ids=ids.flatten(),
        types=None if types is None else types.flatten(),
        positions=column.repeat(rows),
        first=begins * longest,
        last=begins * longest + lengths - 1,
        groups=(Group(rows, rows * longest, longest, None, mask[:, None, None]),),
        asked=begins,
    )
