"""Attention within each row of a batch without padding.

All other layers take the N tokens of a batch as they are, (N, H). Attention alone needs rows, so
consecutive rows of about equal length form a group (`tokens.real_tokens`), and a group is padded to
its longest row for one call. Few groups are few calls, but more padding, which costs a row's length
squared: the cuts are those of least total cost. A GPU, which arithmetic does not limit,
takes one group. A cell without a token repeats its row's last one,
so that every value is finite; the mask keeps it from being read, and its gradient is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from lp_sweep.trials.device import Gathering, pick
from lp_sweep.trials.fast.tokens import Group, RealTokens


class Grids(NamedTuple):
    """A group of B rows of up to L tokens, split into heads of D; A queries per row: L or 1."""

    group: Group
    query: torch.Tensor  # (B, heads, A, D)
    key: torch.Tensor  # (B, heads, L, D)
    value: torch.Tensor  # (B, heads, L, D)
    one_each: bool

    def flat(self, found: torch.Tensor) -> torch.Tensor:
        """(B, heads, A, D) as (n, heads x D), for the n tokens with a query."""
        heads, size = found.shape[1], found.shape[3]
        tokens = found.transpose(1, 2).reshape(-1, heads * size)
        if self.one_each or self.group.cells is None:
            return tokens
        return pick(tokens, self.group.cells.read)


Bias = Callable[[Grids], torch.Tensor]  # to (B, heads, A, L)
Linear = Callable[[torch.Tensor], torch.Tensor]


def grids(
    tokens: RealTokens, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, heads: int
) -> Iterator[Grids]:
    """One for each group. key, value: (N, H). query: (N, H), or (B, H) for one token per row."""
    one_each = len(query) == len(tokens.first) and len(key) != len(query)
    sizes = [group.size for group in tokens.groups]
    asked = torch.split(query, [group.rows for group in tokens.groups] if one_each else sizes)
    for group, own, keys, values in zip(
        tokens.groups, asked, torch.split(key, sizes), torch.split(value, sizes), strict=True
    ):
        yield Grids(
            group,
            by_heads(own.unsqueeze(1) if one_each else grid(group, own), heads),
            by_heads(grid(group, keys), heads),
            by_heads(grid(group, values), heads),
            one_each,
        )


def grid(group: Group, flat: torch.Tensor) -> torch.Tensor:
    """The group's (n, H) as (B, L, H), padded with each row's last token."""
    if group.cells is not None:
        flat = pick(flat, group.cells.fill)
    return flat.view(group.rows, group.longest, flat.shape[1])


def by_heads(grid: torch.Tensor, heads: int) -> torch.Tensor:
    """(B, L, H) as (B, heads, L, H / heads)."""
    rows, length, hidden = grid.shape
    return grid.view(rows, length, heads, hidden // heads).transpose(1, 2)


_STEPS = 2**16


def dropped_out(values: torch.Tensor, share: float) -> torch.Tensor:
    """Dropout of `share` of the values, of any shape. On a CPU faster than PyTorch's, from 16-bit
    random numbers."""
    gone = round(share * _STEPS)
    if gone == 0:
        return values
    if values.is_cuda or gone == _STEPS:
        return nn.functional.dropout(values, share)
    drawn = torch.empty((values.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    bits = drawn.view(torch.int16)[: values.numel()].view(values.shape)
    # written as numbers at once: several times as fast as a bool tensor and its conversion
    kept = torch.ge(bits, gone - _STEPS // 2, out=torch.empty(values.shape, dtype=values.dtype))
    return values * kept.mul_(_STEPS / (_STEPS - gone))


class _Dropout(nn.Dropout):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return dropped_out(input, self.p) if self.training else input


@contextmanager
def quick_dropout(model: nn.Module) -> Iterator[None]:
    """Inside, the network's own dropout modules use `dropped_out`."""
    _become(model, nn.Dropout, _Dropout)
    try:
        yield
    finally:  # the modules may have changed
        _become(model, _Dropout, nn.Dropout)


def _become(model: nn.Module, before: type[nn.Dropout], after: type[nn.Dropout]) -> None:
    for module in model.modules():
        if type(module) is before:
            module.__class__ = after


def self_attention(
    own: Any,
    linears: tuple[Linear, Linear, Linear],
    heads: int,
    hidden: torch.Tensor,
    tokens: RealTokens,
    only: Gathering | None,
    bias: Bias | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The states of the tokens that attend, (N or B, H), and what they attend to, of that shape.
    linears: of query, key and value."""
    query, key, value = linears
    asking = hidden if only is None else pick(hidden, only)
    asked = query(hidden if tokens.packed else asking)
    dropout = own.dropout.p if own.training else 0.0
    mixed = attend(tokens, asked, key(hidden), value(hidden), heads, dropout, only, bias)
    return asking, mixed


def attend(
    tokens: RealTokens,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    heads: int,
    dropout: float,
    only: Gathering | None,
    bias: Bias | None = None,
) -> torch.Tensor:
    """Softmax attention of each row over its own tokens.

    key, value: (N, H). query and result: (N, H), or (B, H) for one token per row. With `only` the
    result is always (B, H). `bias` is added to the scores.
    """
    parts = grids(tokens, query, key, value, heads)
    mixed = torch.cat([part.flat(_mixed(part, dropout, bias)) for part in parts])
    if only is None or len(mixed) == len(only.taken):
        return mixed
    return pick(mixed, only)


def _mixed(part: Grids, dropout: float, bias: Bias | None) -> torch.Tensor:
    """(B, heads, A, D). On a CPU with dropout PyTorch is slow, since it guards against rows without
    a token, of which there are none here."""
    query, key, value = part.query, part.key, part.value
    mask = part.group.mask
    mask = mask if mask is None else mask[:, :, : query.shape[2]]  # one query: the first token's
    if bias is not None:
        mask = bias(part) if mask is None else bias(part) + mask
    if not dropout or query.is_cuda:
        return scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)
    scores = query * query.shape[-1] ** -0.5 @ key.transpose(2, 3)
    if mask is not None:
        scores = scores + mask
    return dropped_out(scores.softmax(-1), dropout) @ value
