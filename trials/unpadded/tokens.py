"""A batch without padding: its rows' tokens one after another, and where each belongs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from lp_sweep.trials.encode import EncodedSplit


@dataclass(frozen=True, slots=True, kw_only=True)
class RealTokens:
    """B rows of N tokens in all, the longest of L tokens."""

    ids: torch.Tensor  # (N,) int64
    types: torch.Tensor | None  # (N,) int64; None where the tokenizer has none
    positions: torch.Tensor  # (N,) int64, from 0 in each row
    first: torch.Tensor  # (B,) int64: where in the N each row begins, with its sentence token
    places: (
        torch.Tensor | None
    )  # (N,) int64: where each stands among B x L; None: nothing is padded
    mask: torch.Tensor | None  # (B, 1, 1, L) bool, true on real tokens; None likewise
    rows: int
    longest: int


def real_tokens(
    split: EncodedSplit, rows: npt.NDArray[np.integer], device: torch.device
) -> RealTokens:
    """These rows of a split, in this order, on `device`."""
    starts = split.offsets[rows]
    lengths = split.offsets[rows + 1] - starts
    firsts = np.cumsum(lengths) - lengths
    inside = np.arange(int(lengths.sum())) - np.repeat(firsts, lengths)
    source = np.repeat(starts, lengths) + inside
    longest = int(lengths.max())
    padded = bool((lengths != longest).any())
    mask = np.arange(longest) < lengths[:, None]

    def there(array: npt.NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device, non_blocking=True)

    return RealTokens(
        ids=there(split.tokens[source].astype(np.int64)),
        types=None if split.token_types is None else there(split.token_types[source].astype(int)),
        positions=there(inside),
        first=there(firsts),
        places=there(np.flatnonzero(mask)) if padded else None,
        mask=there(mask[:, None, None, :]) if padded else None,
        rows=len(rows),
        longest=longest,
    )
