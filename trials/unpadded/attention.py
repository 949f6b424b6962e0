"""Attention within each row of a batch without padding."""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention

from lp_sweep.trials.unpadded.dropout import dropped_out
from lp_sweep.trials.unpadded.grids import Grids, grids
from lp_sweep.trials.unpadded.tokens import RealTokens


def attend(
    tokens: RealTokens,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    heads: int,
    dropout: float,
) -> torch.Tensor:
    """Softmax attention of each row over its own tokens.

    key, value: (N, H). query: (N, H), or (B, H) for one token a row, the result likewise.
    """
    parts = grids(tokens, query, key, value, heads)
    return torch.cat([part.flat(_mixed(part, dropout)) for part in parts])


def _mixed(part: Grids, dropout: float) -> torch.Tensor:
    """(B, heads, A, D). On a CPU with dropout the library takes a slow way, that guards against
    rows without a token: there are none here."""
    query, key, value = part.query, part.key, part.value
    mask = None if part.group.mask is None else part.group.mask.to(query.dtype)
    if not dropout or query.is_cuda:
        return scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)
    scores = query * query.shape[-1] ** -0.5 @ key.transpose(2, 3)
    if mask is not None:
        scores = scores + mask
    return dropped_out(scores.softmax(-1), dropout) @ value
