"""Words for a model and for layers, for whoever names a piece of work: in a line of a run, or from
what a store says of it."""

from __future__ import annotations

from collections.abc import Sequence

from lp_sweep.storage.printable import printable, ranges

MOST_RANGES = 4  # in a line


def short_model(name: str) -> str:
    """A hub id as it is; of a folder its last two parts."""
    parts = printable(name).rstrip("/").split("/")
    return "/".join(parts if len(parts) <= 2 else parts[-2:])


def layers_of(kept: Sequence[int], depth: int) -> str:
    """`all 12 layers`, `layers 1-8 of 12`."""
    if len(kept) == depth:
        return f"all {depth} layers"
    return f"layer{'s' * (len(kept) > 1)} {ranges(kept, MOST_RANGES)} of {depth}"
