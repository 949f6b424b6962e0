"""Is a pruned network's change against K=0 more than chance? Both answered the same dev rows.

One seed: over the dev rows; accuracy by McNemar's exact test (statsmodels). Several seeds: over
seeds and rows, paired in both (`estimates`). Reads no store.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lp_sweep.analysis.statistics.estimates import combined, interval, scores_of, two_sided_p
from lp_sweep.analysis.statistics.resampling import patterns_of, scores

Array = npt.NDArray[Any]


class PairedTest(NamedTuple):
    """A change in points (negative is a loss), its 95% interval and a two-sided p."""

    change: float
    low: float
    high: float
    p: float
    test: str  # mcnemar, rows, seeds and rows
    b: int | None = None  # examples that only K=0 answers rightly
    c: int | None = None  # that only the pruned network does


def paired_test(metric: str, labels: Array, full: Array, pruned: Array) -> PairedTest:
    """`full` and `pruned` are (rows, seeds) answers, a column of each per seed."""
    seeds = full.shape[1]
    predicted = np.column_stack([full, pruned])
    points = 100 * scores(metric, patterns_of(metric, labels, predicted))
    change = combined(
        scores_of(metric, labels, predicted, points), np.hstack([-np.eye(seeds), np.eye(seeds)])
    )
    found = (change.mean, *interval(change))
    if seeds > 1:
        return PairedTest(*found, two_sided_p(change), "seeds and rows")
    if metric == "accuracy":
        p, b, c = _mcnemar(labels, full[:, 0], pruned[:, 0])
        return PairedTest(*found, p, "mcnemar", b, c)
    return PairedTest(*found, two_sided_p(change), "rows")


def _mcnemar(labels: Array, full: Array, pruned: Array) -> tuple[float, int, int]:
    from statsmodels.stats.contingency_tables import mcnemar

    full_right, pruned_right = full == labels, pruned == labels
    b = int((full_right & ~pruned_right).sum())
    c = int((~full_right & pruned_right).sum())
    both, neither = int((full_right & pruned_right).sum()), int((~full_right & ~pruned_right).sum())
    return float(mcnemar([[both, b], [c, neither]], exact=True).pvalue), b, c


def holm(ps: Sequence[float]) -> list[float]:
    """p adjusted for the whole family, in the same order."""
    from statsmodels.stats.multitest import multipletests

    return [float(p) for p in multipletests(ps, method="holm")[1]] if ps else []
