"""Dropout that draws sixteen bits for each number: the library's draws take a tenth of a step on a
CPU, where it asks its generator once for each.

A share p of the numbers goes, to the nearest 1/65536: 0.1 is 0.100006, and what stays is scaled by
exactly that. The bits come from PyTorch's own generator, and so from the seed of the step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

_STEPS = 2**16


def dropped_out(values: torch.Tensor, share: float) -> torch.Tensor:
    """`values` with a share of them zero and the others scaled to the same mean; any shape."""
    gone = round(share * _STEPS)
    if gone == 0:
        return values
    if values.is_cuda or gone == _STEPS:
        return nn.functional.dropout(values, share)
    drawn = torch.empty((values.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    bits = drawn.view(torch.int16)[: values.numel()].view(values.shape)
    kept = (bits >= gone - _STEPS // 2).to(values.dtype)
    return values * kept.mul_(_STEPS / (_STEPS - gone))


class _Dropout(nn.Dropout):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return dropped_out(input, self.p) if self.training else input


@contextmanager
def quick_dropout(model: nn.Module) -> Iterator[None]:
    """While inside, the network's own dropout modules draw like this."""
    _become(model, nn.Dropout, _Dropout)
    try:
        yield
    finally:  # of the modules that it has by then
        _become(model, _Dropout, nn.Dropout)


def _become(model: nn.Module, before: type[nn.Dropout], after: type[nn.Dropout]) -> None:
    for module in model.modules():
        if type(module) is before:
            module.__class__ = after
