"""Attention within each row of a batch without padding."""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention

from lp_sweep.trials.unpadded.dropout import dropped_out
from lp_sweep.trials.unpadded.tokens import Group, RealTokens


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
    one_each = len(query) == len(tokens.first) and len(key) != len(query)
    sizes = [group.size for group in tokens.groups]
    asked = torch.split(query, [group.rows for group in tokens.groups] if one_each else sizes)
    mixed = []
    for group, own, keys, values in zip(
        tokens.groups, asked, torch.split(key, sizes), torch.split(value, sizes), strict=True
    ):
        found = _mixed(
            heads_of(own.unsqueeze(1) if one_each else grid(group, own), heads),
            heads_of(grid(group, keys), heads),
            heads_of(grid(group, values), heads),
            group.mask,
            dropout,
        )
        flat = found.transpose(1, 2).reshape(-1, query.shape[1])
        if not one_each and group.places is not None:
            flat = flat.index_select(0, group.places)
        mixed.append(flat)
    return torch.cat(mixed)


def _mixed(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout: float,
) -> torch.Tensor:
    """(B, heads, L, D) of such. On a CPU with dropout the library takes a slow way, that guards
    against rows without a token: there are none here."""
    if mask is not None:
        mask = mask.to(query.dtype)
    if not dropout or query.is_cuda:
        return scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)
    scores = query * query.shape[-1] ** -0.5 @ key.transpose(2, 3)
    if mask is not None:
        scores = scores + mask
    return dropped_out(scores.softmax(-1), dropout) @ value


def grid(group: Group, flat: torch.Tensor) -> torch.Tensor:
    """The group's (n, H) as (B, L, H), zero where there is no token."""
    if group.places is not None:
        size = group.rows * group.longest
        flat = flat.new_zeros(size, flat.shape[1]).index_copy(0, group.places, flat)
    return flat.view(group.rows, group.longest, flat.shape[1])


def heads_of(grid: torch.Tensor, heads: int) -> torch.Tensor:
    """(B, L, H) as (B, heads, L, H / heads)."""
    rows, length, hidden = grid.shape
    return grid.view(rows, length, heads, hidden // heads).transpose(1, 2)
