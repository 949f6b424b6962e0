"""A time with its band: how sure an estimate is, and how it is written."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_UNITS = (("h", 3600.0), ("min", 60.0), ("s", 1.0))
_BAND = (0.1, 0.9)  # quantiles
_STATED = (0.5, 2.0)  # two more ratios, times the median, so that few timings give a wide band
_LEAST = 1.1  # the band is at least this factor on either side


class Span(NamedTuple):
    """An expected value and its band. Without a band it is an upper limit."""

    expected: float
    low: float | None = None
    high: float | None = None

    def times(self, factor: float) -> Span:
        return Span(*(None if end is None else factor * end for end in self))  # type: ignore[arg-type]


def band(ratios: Sequence[float]) -> Span:
    """The median of ratios of actual to expected seconds, and its band."""
    median = float(np.median(ratios))
    low, high = np.quantile([*ratios, *(median * stated for stated in _STATED)], _BAND)
    return Span(median, min(float(low), median / _LEAST), max(float(high), median * _LEAST))


def duration(hours: Span) -> str:
    """`3 min (1 to 13)`, or `3 min` without a band."""
    seconds = hours.times(3600)
    unit, size = next((unit for unit in _UNITS if seconds.expected >= 1.5 * unit[1]), _UNITS[-1])
    expected, *ends = (None if end is None else _two_digits(end / size) for end in seconds)
    return f"{expected} {unit}" + ("" if None in ends else " ({} to {})".format(*ends))


def _two_digits(value: float) -> str:
    """`0.034`, `1.2`, `340`: an estimate is no better."""
    if not value:
        return "0"
    return f"{value:,.{max(0, 1 - math.floor(math.log10(value)))}f}"
