"""A batch without padding: the tokens of its rows one after another, and their places.

`real_tokens`: only the real tokens, the longest row first; attention is padded group by group.
`Bins`: rows packed into bins of one length, for a CUDA graph, which has a fixed shape.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from lp_sweep.trials.data.batches import EncodedSplit, group_ends, longest_first
from lp_sweep.trials.device import Gathering, all_onto, bound_by_launches, compute_dtype

# The cost of one more group, in attention scores of one head: about where a step of a 6-layer
# MiniLM is fastest on a CPU. A GPU gets one group, since arithmetic does not limit it.
_GROUP = 3000
_EVERY_NUMBER = 8  # bins: up to here any number is used
_ALIGNED = 8  # tokens: attention kernels of a GPU are fast at multiples of it

Ints = npt.NDArray[np.int64]


class Cells(NamedTuple):
    """The places of a group's n tokens in its grid of rows x longest cells."""

    fill: Gathering  # the token of each cell; the row's last in a cell without one
    read: Gathering  # the cell of each token


class Group(NamedTuple):
    """Consecutive rows whose attention is one call."""

    rows: int
    size: int  # tokens
    longest: int  # tokens of a row
    cells: Cells | None  # None: nothing is padded
    # (rows or 1, heads or 1, 1 or longest, longest), added to scores; None: all attend to all
    mask: torch.Tensor | None

    def biased(self, bias: torch.Tensor) -> Group:
        """With a bias in the mask, of one of its shapes."""
        return self._replace(mask=bias if self.mask is None else bias + self.mask)


class WordTokens(NamedTuple):
    """V words of each of B rows, in the requested order."""

    picked: Gathering  # the token of each word; the row's first for a word without one
    shape: tuple[int, int]  # (B, V)


class RealTokens(NamedTuple):
    """B rows of N tokens in all, in the order of the groups."""

    ids: torch.Tensor  # (N,) int64
    types: torch.Tensor | None  # (N,) int64; None where the tokenizer has none
    positions: torch.Tensor  # (N,) int64, from 0 in each row
    row: torch.Tensor  # (N,) int64: each token's row; in bins 0 for a filler
    first: torch.Tensor  # (B,) int64: each row's first token
    last: torch.Tensor  # (B,) int64: each row's last token
    groups: tuple[Group, ...]
    asked: Gathering | None  # puts these rows into the requested order; None: they are in it
    packed: bool = False  # a group's rows are bins with several rows and fillers
    words: WordTokens | None = None  # for a task with a label per word

    def one_each(self, index: torch.Tensor) -> Gathering:
        """One token of each row. index: (B,), `first` or `last`."""
        here = torch.arange(len(self.row), device=index.device)
        return Gathering(index, self.row, (index.index_select(0, self.row) != here)[:, None])


def real_tokens(
    split: EncodedSplit, rows: npt.NDArray[np.integer], device: torch.device
) -> RealTokens:
    """These rows of a split on `device`."""
    gpu = bound_by_launches(device)
    order = longest_first(split.lengths_of(rows))
    lengths = split.lengths_of(rows[order])
    firsts = np.cumsum(lengths) - lengths
    inside = np.arange(int(lengths.sum())) - np.repeat(firsts, lengths)
    source = np.repeat(split.offsets[rows[order]], lengths) + inside
    ends = [len(rows)] if gpu else group_ends(lengths**2, _GROUP)
    begins = [0, *ends[:-1]]
    grids = [
        _Grid(lengths[begin:end], aligned if gpu else int)
        for begin, end in zip(begins, ends, strict=True)
    ]
    padded = [grid for grid in grids if grid.padded]
    ids, types, positions, row, first, last, asked, back, *cells = all_onto(
        [
            split.tokens[source].astype(np.int64),
            np.zeros(0, np.int64)
            if split.token_types is None
            else split.token_types[source].astype(np.int64),
            inside,
            np.repeat(np.arange(len(rows)), lengths),
            firsts,
            firsts + lengths - 1,
            np.argsort(order, kind="stable"),
            order,
            *(array for grid in padded for array in grid.arrays()),
        ],
        device,
    )
    parts = iter(cells)
    return RealTokens(
        ids=ids,
        types=None if split.token_types is None else types,
        positions=positions,
        row=row,
        first=first,
        last=last,
        groups=tuple(
            grid.group(next(parts), next(parts), next(parts)) if grid.padded else grid.full()
            for grid in grids
        ),
        asked=Gathering(asked, back),
        words=_words(split, rows, firsts[np.argsort(order, kind="stable")], device),
    )


def _words(
    split: EncodedSplit, rows: npt.NDArray[np.integer], firsts: Ints, device: torch.device
) -> WordTokens | None:
    """firsts: (B,) where each of `rows` begins in the N tokens."""
    if split.words is None:
        return None
    own = split.words[rows, : split.most_words(rows)]
    taken = (firsts[:, None] + np.maximum(own, 0)).ravel()
    there = np.flatnonzero(own.ravel() >= 0)
    back = np.full(int(split.lengths_of(rows).sum()), -1, np.int64)
    back[taken[there]] = there
    place, token = all_onto([taken, back], device)
    left = (token < 0)[:, None]
    return WordTokens(Gathering(place, token.clamp(min=0), left), own.shape)


class _Grid:
    """The cells of a group's rows, of descending `lengths` (B,)."""

    def __init__(self, lengths: Ints, filled: Callable[[int], int]) -> None:
        self.lengths = lengths
        self.longest = filled(int(lengths[0]))
        self.padded = bool((lengths < self.longest).any())

    def arrays(self) -> tuple[Ints, Ints, Ints]:
        """The token of each cell, the cell of each token, and each row's length."""
        column = np.arange(self.longest)
        firsts = np.cumsum(self.lengths) - self.lengths
        token = firsts[:, None] + np.minimum(column, self.lengths[:, None] - 1)
        cell = np.flatnonzero(column < self.lengths[:, None])
        return token.ravel(), cell, self.lengths

    def group(self, token: torch.Tensor, cell: torch.Tensor, lengths: torch.Tensor) -> Group:
        beyond = torch.arange(self.longest, device=lengths.device) >= lengths[:, None]
        cells = Cells(Gathering(token, cell), Gathering(cell, token, beyond.view(-1, 1)))
        return self.full()._replace(cells=cells, mask=barred(beyond)[:, None, None])

    def full(self) -> Group:
        return Group(len(self.lengths), int(self.lengths.sum()), self.longest, None, None)


def aligned(length: int) -> int:
    """`length` rounded up to a multiple that is fast on a GPU."""
    return -(-length // _ALIGNED) * _ALIGNED


def barred(where: torch.Tensor) -> torch.Tensor:
    """-inf where attention must not look, else 0; in the dtype of matrix products."""
    zeros = torch.zeros(where.shape, dtype=compute_dtype(where.device), device=where.device)
    return zeros.masked_fill(where, -torch.inf)


class Bins(NamedTuple):
    """Rows packed into bins of `length` tokens, on the host."""

    number: int
    length: int
    ids: Ints  # (number x length,)
    types: Ints  # (number x length,), or (0,)
    positions: Ints  # (number x length,), from 0 in each row
    owner: Ints  # (number x length,): each token's row; -1: a filler
    first: Ints  # (B,)
    last: Ints  # (B,)

    @classmethod
    def packed(
        cls,
        split: EncodedSplit,
        rows: npt.NDArray[np.integer],
        length: int,
        filler: int,
        type_filler: int,
    ) -> Bins:
        """By first fit, in the order of the rows. `length`: at least that of the longest row.
        Above 8 bins the number is even, with a bin of fillers: half as many graphs to record. It
        does not depend on earlier batches, since dropout's masks depend on it."""
        lengths = split.lengths_of(rows)
        room: list[int] = []
        firsts = np.empty(len(rows), np.int64)
        for index, needed in enumerate(lengths.tolist()):
            bin_ = next((b for b, left in enumerate(room) if left >= needed), len(room))
            if bin_ == len(room):
                room.append(length)
            firsts[index] = (bin_ + 1) * length - room[bin_]
            room[bin_] -= needed
        number = len(room) + (len(room) % 2 if len(room) > _EVERY_NUMBER else 0)
        inside = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        source = np.repeat(split.offsets[rows], lengths) + inside
        place = np.repeat(firsts, lengths) + inside

        def spread(values: npt.NDArray[np.integer], filler: int) -> Ints:
            found = np.full(number * length, filler, np.int64)
            found[place] = values
            return found

        types = split.token_types
        return cls(
            number,
            length,
            spread(split.tokens[source], filler),
            np.zeros(0, np.int64) if types is None else spread(types[source], type_filler),
            spread(inside, 0),
            spread(np.repeat(np.arange(len(rows)), lengths), -1),
            firsts,
            firsts + lengths - 1,
        )

    def arrays(self) -> tuple[Ints, ...]:
        return self[2:]

    def at_words(
        self,
        split: EncodedSplit,
        rows: npt.NDArray[np.integer],
        values: npt.NDArray[Any],
        filler: float,
    ) -> npt.NDArray[Any]:
        """(number, length, ...): the value of each word of (B, W, ...) at its first token;
        elsewhere `filler`."""
        assert split.words is not None
        words = split.words[rows]
        there = words >= 0
        found = np.full((self.number * self.length, *values.shape[2:]), filler, values.dtype)
        found[(self.first[:, None] + words)[there]] = values[:, : words.shape[1]][there]
        return found.reshape(self.number, self.length, *values.shape[2:])


def packed_tokens(count: int, length: int, *arrays: torch.Tensor) -> RealTokens:
    """From `Bins.arrays()` on a device, without waiting for it. Fillers attend to each other."""
    ids, types, positions, owner, first, last = arrays
    owners = owner.view(count, 1, length)
    mask = barred(owners.transpose(1, 2) != owners)
    return RealTokens(
        ids=ids,
        types=types if len(types) else None,
        positions=positions,
        row=owner.clamp(min=0),
        first=first,
        last=last,
        groups=(Group(count, count * length, length, None, mask[:, None]),),
        asked=None,
        packed=True,
    )
