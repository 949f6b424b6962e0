"""How many train rows a greedy selection holds out. Imports no torch, so that a plan may ask."""

from __future__ import annotations

_SHARE, _MOST = 0.1, 2000


def held_out_rows(train_rows: int) -> int:
    """A tenth of them, at least one and at most 2,000."""
    return min(_MOST, train_rows, max(1, int(train_rows * _SHARE)))
