"""Rows of nearly one length together: a batch in groups, each padded to its own longest row only.

The batch is the same, and so is its gradient but for rounding: no row looks at another.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def longest_first(lengths: npt.NDArray[np.integer]) -> npt.NDArray[np.intp]:
    """The order in which groups are cut: by falling length, equal ones as they come."""
    return np.argsort(-lengths, kind="stable")


def group_ends(costs: npt.NDArray[np.integer], overhead: int) -> list[int]:
    """Where each group ends, of rows sorted by falling length, at the least cost in all.

    costs: (B,) what a row costs when padded to the length of each, falling. A group costs its
    number of rows times the cost of its first, and `overhead`.
    """
    count = len(costs)
    least = np.zeros(count + 1, np.int64)  # of the first n rows
    begun = np.zeros(count + 1, np.int64)  # where the last group of those begins
    for end in range(1, count + 1):
        total = least[:end] + costs[:end].astype(np.int64) * (end - np.arange(end))
        begun[end] = total.argmin()
        least[end] = total[begun[end]] + overhead
    ends = [count]
    while begun[ends[-1]]:
        ends.append(int(begun[ends[-1]]))
    return ends[::-1]
