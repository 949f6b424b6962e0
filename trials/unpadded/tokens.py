"""A batch without padding: its rows' tokens one after another, and where each belongs.

Inside the batch the longest row comes first: attention alone is padded, group by group.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from lp_sweep.trials.batches import EncodedSplit, group_ends, longest_first
from lp_sweep.trials.device import onto

# What one group more costs, in attention scores of one head: the smaller, the less padding. About
# where a step of a 6-layer MiniLM is fastest on a CPU. A GPU is never short of arithmetic here.
_GROUP = 3000


class Group(NamedTuple):
    """Rows that attend in one call, and follow the rows of the group before."""

    rows: int
    size: int  # tokens
    longest: int  # tokens of a row
    places: (
        torch.Tensor | None
    )  # (size,) int64: where each stands among rows x longest; None: nothing is padded
    mask: torch.Tensor | None  # (rows, 1, 1, longest), 0 or -inf; None likewise


class RealTokens(NamedTuple):
    """B rows of N tokens in all, the longest row first."""

    ids: torch.Tensor  # (N,) int64
    types: torch.Tensor | None  # (N,) int64; None where the tokenizer has none
    positions: torch.Tensor  # (N,) int64, from 0 in each row
    first: torch.Tensor  # (B,) int64: where in the N each row begins, with its sentence token
    last: torch.Tensor  # (B,) int64: where it ends
    groups: tuple[Group, ...]
    asked: torch.Tensor  # (B,) int64: which of these rows is the first, second, ... that was asked


def real_tokens(
    split: EncodedSplit, rows: npt.NDArray[np.integer], device: torch.device
) -> RealTokens:
    """These rows of a split on `device`."""

    def there(array: npt.NDArray[np.generic]) -> torch.Tensor:
        return onto(array, device)

    order = longest_first(split.lengths_of(rows))
    starts = split.offsets[rows[order]]
    lengths = split.lengths_of(rows[order])
    firsts = np.cumsum(lengths) - lengths
    inside = np.arange(int(lengths.sum())) - np.repeat(firsts, lengths)
    source = np.repeat(starts, lengths) + inside
    ends = [len(rows)] if device.type == "cuda" else group_ends(lengths**2, _GROUP)
    groups, begin = [], 0
    for end in ends:
        mask = np.arange(lengths[begin]) < lengths[begin:end, None]
        padded = not mask.all()
        groups.append(
            Group(
                rows=end - begin,
                size=int(lengths[begin:end].sum()),
                longest=int(lengths[begin]),
                places=there(np.flatnonzero(mask)) if padded else None,
                mask=there(np.where(mask, 0, -np.inf).astype(np.float32)[:, None, None])
                if padded
                else None,
            )
        )
        begin = end
    return RealTokens(
        ids=there(split.tokens[source].astype(np.int64)),
        types=None if split.token_types is None else there(split.token_types[source].astype(int)),
        positions=there(inside),
        first=there(firsts),
        last=there(firsts + lengths - 1),
        groups=tuple(groups),
        asked=there(np.argsort(order, kind="stable")),
    )


def even_length(longest: int) -> int:
    """`longest` tokens filled up: to a multiple of 16, above 128 of 32, above 256 of 64. There are
    16 such lengths up to 512, and a batch grows by a quarter at most from 64 tokens on."""
    step = 16 if longest <= 128 else 32 if longest <= 256 else 64
    return -(-longest // step) * step


def even_tokens(ids: torch.Tensor, types: torch.Tensor | None, lengths: torch.Tensor) -> RealTokens:
    """From (B, T) token ids, and types, all on one device; the first `lengths` (B,) of each row are
    its own. Made without a question to the device."""
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
