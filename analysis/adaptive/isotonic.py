"""Isotonic regression of many curves at once: the nearest curve that never rises.

By the max-min formula (Barlow et al. 1972, *Statistical Inference under Order Restrictions*,
section 1.4), which gives what pooling adjacent violators gives, for all rows in one go.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def falling(curves: Array, weights: Array) -> Array:
    """(curves, points): of each row the curve that never rises and has the least weighted squared
    distance to it. `weights` (points,) are above zero."""
    points = curves.shape[1]
    total = np.concatenate([[0.0], np.cumsum(weights)])
    sums = np.zeros((len(curves), points + 1))
    np.cumsum(curves * weights, axis=1, out=sums[:, 1:])
    # min over starts up to a point, of max over ends from it on, of the mean in between
    fitted = np.full_like(curves, np.inf)
    for start in range(points):
        means = (sums[:, start + 1 :] - sums[:, start : start + 1]) / (
            total[start + 1 :] - total[start]
        )
        from_here = np.maximum.accumulate(means[:, ::-1], axis=1)[:, ::-1]
        np.minimum(fitted[:, start:], from_here, out=fitted[:, start:])
    return fitted
