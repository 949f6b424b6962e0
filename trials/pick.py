"""One-to-one gathers whose forward and backward are both `index_select`.

Autograd's backward of `index_select` and `index_copy` sums into each place, which on CUDA needs a
sort to be deterministic. Here no two places take the same vector, so the backward is a gather.
"""

# mypy: disable-error-code="no-any-return, no-untyped-call"

from __future__ import annotations

from typing import Any, NamedTuple

import torch


class Picked(NamedTuple):
    """m places that take some of n vectors."""

    taken: torch.Tensor  # (m,) int64: the vector that each place takes
    back: torch.Tensor  # (n,) int64: the place that took each vector; any place if none did
    left: torch.Tensor | None = None  # (n, 1) bool: vectors that no place took; None: all taken


def pick(vectors: torch.Tensor, picked: Picked) -> torch.Tensor:
    """(n, H) gives (m, H). If several places take one vector, only the gradient of the place in
    `back` counts, and that of the others must be 0."""
    return _Pick.apply(vectors, *picked)


class _Pick(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        vectors: torch.Tensor,
        index: torch.Tensor,
        back: torch.Tensor,
        left: torch.Tensor | None,
    ) -> torch.Tensor:
        ctx.save_for_backward(back, left)
        return vectors.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        back, left = ctx.saved_tensors
        found = grad.index_select(0, back)
        if left is not None:
            found.masked_fill_(left, 0)
        return found, None, None, None
