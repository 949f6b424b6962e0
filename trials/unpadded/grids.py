"""A batch without padding as grids, one for each group of rows of like length, and back: inside a
grid alone can each token of a row look at all of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from lp_sweep.trials.unpadded.tokens import Group, RealTokens


class Grids(NamedTuple):
    """A group of B rows, the longest of L tokens, by heads of D numbers; zero where there is no
    token. A of the tokens of a row ask: all L, or one."""

    group: Group
    query: torch.Tensor  # (B, heads, A, D)
    key: torch.Tensor  # (B, heads, L, D)
    value: torch.Tensor  # (B, heads, L, D)
    one_each: bool

    def flat(self, found: torch.Tensor) -> torch.Tensor:
        """(B, heads, A, D) as (n, heads x D), of the n tokens that asked."""
        heads, size = found.shape[1], found.shape[3]
        tokens = found.transpose(1, 2).reshape(-1, heads * size)
        if self.one_each or self.group.places is None:
            return tokens
        return tokens.index_select(0, self.group.places)


def grids(
    tokens: RealTokens, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, heads: int
) -> Iterator[Grids]:
    """For each group. key, value: (N, H). query: (N, H), or (B, H) for one token a row."""
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
    """The group's (n, H) as (B, L, H), zero where there is no token."""
    if group.places is not None:
        size = group.rows * group.longest
        flat = flat.new_zeros(size, flat.shape[1]).index_copy(0, group.places, flat)
    return flat.view(group.rows, group.longest, flat.shape[1])


def by_heads(grid: torch.Tensor, heads: int) -> torch.Tensor:
    """(B, L, H) as (B, heads, L, H / heads)."""
    rows, length, hidden = grid.shape
    return grid.view(rows, length, heads, hidden // heads).transpose(1, 2)
