"""The times of a speed's record, as a small table for a person."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lp_sweep.storage.printable import printable, ranges

_COLUMNS = ("batch", "full ms", "ms", "speed-up", "quartiles", "pairs")


def timings_text(speed: Mapping[str, Any]) -> list[str]:
    """Of which network, where, and a line for each quantity and batch."""
    kept = ranges(speed["kept_layers"])
    gone = speed["removed_feed_forwards"]
    without = f" without feed-forwards {ranges(gone)}" if gone else ""
    first = (
        f"speed of {speed['model']}, layers {kept}{without}, beside all {speed['depth']}: batches "
        f"of rows of {speed['max_length']} tokens, on {speed['device_name']}"
    )
    head = f"{'':<9}  " + "  ".join(f"{name:>9}" for name in _COLUMNS)
    return [printable(first), "", head, *map(_line, speed["timings"] or ())]


def _line(timing: Mapping[str, Any]) -> str:
    cells = (
        f"{timing['batch']}",
        f"{timing['full_ms']:.2f}",
        f"{timing['pruned_ms']:.2f}",
        f"{timing['speedup']:.3f}",
        f"{timing['speedup_q25']:.2f}-{timing['speedup_q75']:.2f}",
        f"{timing['pairs']}",
    )
    return f"{printable(timing['quantity']):<9}  " + "  ".join(f"{cell:>9}" for cell in cells)
