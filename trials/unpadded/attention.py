"""Attention within each row of a batch without padding."""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention

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
    one_each = len(query) == tokens.rows and len(key) != tokens.rows
    kept, hidden = query.shape
    asked = query.view(tokens.rows, 1, hidden) if one_each else _grid(tokens, query)
    mixed = scaled_dot_product_attention(
        _heads(asked, heads),
        _heads(_grid(tokens, key), heads),
        _heads(_grid(tokens, value), heads),
        attn_mask=tokens.mask,
        dropout_p=dropout,
    )
    flat = mixed.transpose(1, 2).reshape(-1, hidden)
    if one_each or tokens.places is None:
        return flat.view(kept, hidden)
    return flat.index_select(0, tokens.places)


def _grid(tokens: RealTokens, flat: torch.Tensor) -> torch.Tensor:
    """(N, H) as (B, L, H), zero where there is no token."""
    size = tokens.rows * tokens.longest
    if tokens.places is not None:
        flat = flat.new_zeros(size, flat.shape[1]).index_copy(0, tokens.places, flat)
    return flat.view(tokens.rows, tokens.longest, flat.shape[1])


def _heads(grid: torch.Tensor, heads: int) -> torch.Tensor:
    """(B, L, H) as (B, heads, L, H / heads)."""
    rows, length, hidden = grid.shape
    return grid.view(rows, length, heads, hidden // heads).transpose(1, 2)
