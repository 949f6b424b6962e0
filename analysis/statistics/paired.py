"""Is a pruned network's change against K=0 more than chance? Both answered the same dev examples.

Accuracy, one seed: McNemar's exact test (statsmodels). All else: a paired bootstrap, and over
several seeds one that draws the seeds and, apart from them, the examples: one draw of examples
serves all seeds, since all seeds are measured on one dev set. (Drawn anew within each seed, the dev
set's own luck would seem to average out over seeds. It does not.) This is the bootstrap of crossed
factors of Owen, "The pigeonhole bootstrap", Annals of Applied Statistics 1 (2007).

Limits: a bootstrap p is never below 2 / (resamples + 1); a bootstrap of two or three seeds takes
the spread between seeds for smaller than it is, by a factor of sqrt((n - 1) / n), so that its p is
too small rather than too large. Reads no store.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lp_sweep.analysis.statistics.resampling import patterns_of, resampled_scores, scores

Array = npt.NDArray[Any]
RESAMPLES = 10_000
LEVEL = 0.95
_SEED = 0  # of every test anew: what else is asked for changes no number


class PairedTest(NamedTuple):
    """A change in points (negative is a loss), its 95% interval and a two-sided p."""

    change: float
    low: float
    high: float
    p: float
    test: str  # mcnemar, bootstrap, bootstrap over seeds
    b: int | None = None  # examples that only K=0 answers rightly
    c: int | None = None  # that only the pruned network does


def paired_test(
    metric: str, labels: Array, full: Array, pruned: Array, *, resamples: int = RESAMPLES
) -> PairedTest:
    """`full` and `pruned` are (examples, seeds) answers, a column of each per seed."""
    seeds = full.shape[1]
    patterns = patterns_of(metric, labels, np.column_stack([full, pruned]))
    change = _changes(scores(metric, patterns)[None], seeds).mean()
    rng = np.random.default_rng(_SEED)
    by_seed = _changes(resampled_scores(metric, patterns, resamples, rng), seeds)
    changes = (by_seed * seed_weights(seeds, resamples, rng)).sum(axis=1)
    low, high = percentile_interval(changes)
    found = (float(change), low, high)
    if seeds > 1:
        return PairedTest(*found, two_sided_p(changes), "bootstrap over seeds")
    if metric == "accuracy":
        p, test, b, c = _mcnemar(labels, full[:, 0], pruned[:, 0])
        return PairedTest(*found, p, test, b, c)
    return PairedTest(*found, two_sided_p(changes), "bootstrap")


def _changes(shares: Array, seeds: int) -> Array:
    """(resamples, 2 * seeds) shares, K=0 first -> (resamples, seeds) points."""
    return 100 * (shares[:, seeds:] - shares[:, :seeds])


def seed_weights(seeds: int, resamples: int, rng: np.random.Generator) -> Array:
    """(resamples, seeds): each seed's part in the mean over seeds drawn with replacement."""
    drawn: Array = rng.multinomial(seeds, np.full(seeds, 1 / seeds), size=resamples)
    return drawn / seeds


def percentile_interval(values: Array) -> tuple[float, float]:
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def two_sided_p(changes: Array) -> float:
    """Twice the share of the resamples on the far side of no change, counting one more in both
    (Davison & Hinkley, Bootstrap Methods, 1997, section 4.2)."""
    noise = 1e-9  # points; a change of nothing must count for both sides
    below, above = (changes <= noise).sum(), (changes >= -noise).sum()
    return float(min(1, 2 * (min(below, above) + 1) / (len(changes) + 1)))


def _mcnemar(labels: Array, full: Array, pruned: Array) -> tuple[float, str, int, int]:
    from statsmodels.stats.contingency_tables import mcnemar

    full_right, pruned_right = full == labels, pruned == labels
    b = int((full_right & ~pruned_right).sum())
    c = int((~full_right & pruned_right).sum())
    both, neither = int((full_right & pruned_right).sum()), int((~full_right & ~pruned_right).sum())
    return float(mcnemar([[both, b], [c, neither]], exact=True).pvalue), "mcnemar", b, c


def holm(ps: Sequence[float]) -> list[float]:
    """p adjusted for the whole family, in the same order."""
    from statsmodels.stats.multitest import multipletests

    return [float(p) for p in multipletests(ps, method="holm")[1]] if ps else []
