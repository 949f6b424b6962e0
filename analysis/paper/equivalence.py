"""Tests whether our mean equals the paper's number: an equivalence test with a margin of one point.

The difference between our number and the paper's has two kinds of noise.

**Rows.** Both scores are measured on a finite dev set. A share p of n rows has the variance
p(1-p)/n, and a correlation r has about (1-r²)²/(n-1). Both sides count as independent samples of
rows. In fact they share GLUE's dev set, so the interval is too wide rather than too narrow. More
seeds do not reduce this noise.

**Seeds.** The paper has one run, ours is a mean of n. The standard deviation over seeds is measured
on our own trials of the task, pooled over all networks with two seeds or more. An assumed value
(`SD_STABLE`, `SD_UNSTABLE`) counts as much as `_ASSUMED_FREEDOM` further seeds. The paper's own
spread is not known; it is assumed to equal ours.

*agrees*: the 90% interval of the difference lies within the margin on both sides. These are two
one-sided tests at 5% (TOST; Schuirmann 1987). *differs*: it does not agree, and the difference is
significant at 5% after Holm's correction over the numbers of a table. Else *cannot tell*. The
intervals use a t distribution, with degrees of freedom by Satterthwaite (1946).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import NamedTuple

from lp_sweep.analysis.paper.numbers import UNSTABLE
from lp_sweep.analysis.statistics.estimates import bounded

MARGIN = 1.0  # points
LEVEL = 0.05
SD_STABLE, SD_UNSTABLE = 0.33, 1.5  # points, over seeds: assumed
_ASSUMED_FREEDOM = 5
# rows of GLUE's dev sets, on which the paper's scores are measured; for MNLI, the matched rows
DEV_ROWS = {
    "sst2": 872,
    "mnli": 9815,
    "qnli": 5463,
    "qqp": 40430,
    "stsb": 1500,
    "rte": 277,
    "mrpc": 408,
}
_CORRELATIONS = ("stsb",)
_MOST_SEEDS = 1000  # nobody would run more


class Spread(NamedTuple):
    """The spread over seeds on one task. `measured`: degrees of freedom from our own trials."""

    variance: float  # points²
    freedom: float
    measured: int


class Evidence(NamedTuple):
    """The noise in the difference between a mean of `n` of our seeds and one number of the paper,
    in points². `rows`: the variance over rows of both; `seeds`: the variance of one run over
    seeds."""

    n: int
    rows: float
    seeds: float
    freedom: float

    def variance(self, n: float) -> float:
        return self.rows + self.seeds * (1 + 1 / n)


class Tested(NamedTuple):
    """`low`, `high`: the 90% interval of the difference. `p`: two-sided, of no difference."""

    low: float
    high: float
    p: float

    @property
    def agrees(self) -> bool:
        return self.low > -MARGIN and self.high < MARGIN


def spread(task: str | None, networks: Iterable[Sequence[float]]) -> Spread:
    """The pooled spread over seeds. `networks`: for each network of the task, its scores."""
    several = [scores for scores in networks if len(scores) > 1]
    measured = sum(len(scores) - 1 for scores in several)
    squares = sum((score - fmean(scores)) ** 2 for scores in several for score in scores)
    assumed = (SD_UNSTABLE if task in UNSTABLE else SD_STABLE) ** 2
    freedom = _ASSUMED_FREEDOM + measured
    return Spread((squares + _ASSUMED_FREEDOM * assumed) / freedom, freedom, measured)


def over_rows(task: str | None, points: float, rows: int) -> float:
    """The variance of a score over other dev rows, in points²."""
    share = min(max(points / 100, 0.0), 1.0)
    if task in _CORRELATIONS:
        return float(100**2 * (1 - share**2) ** 2 / max(rows - 1, 1))
    return 100**2 * share * (1 - share) / max(rows, 1)


def judge(difference: float, evidence: Evidence, task: str | None = None) -> Tested:
    from scipy.stats import t

    variance = evidence.variance(evidence.n)
    of_seeds = evidence.seeds * (1 + 1 / evidence.n)
    freedom = evidence.freedom * (variance / of_seeds) ** 2
    error = math.sqrt(variance)
    half = float(t.ppf(1 - LEVEL, freedom)) * error
    p = 2 * float(t.sf(abs(difference) / error, freedom))
    most = 200.0 if task in _CORRELATIONS else 100.0
    return Tested(*bounded(difference, half, -most, most), p)


def seeds_to_tell(difference: float, evidence: Evidence, tests: int = 1) -> int | None:
    """The fewest of our seeds with which this difference would agree or be significant (with
    Bonferroni's correction for `tests` tests). None if no number is enough: the paper has only one
    run."""
    from scipy.stats import norm

    agree = (MARGIN - abs(difference)) / float(norm.ppf(1 - LEVEL))
    differ = abs(difference) / float(norm.ppf(1 - LEVEL / 2 / tests))
    left = max(agree, differ, 0.0) ** 2 - evidence.rows - evidence.seeds
    if left <= 0 or evidence.seeds / left > _MOST_SEEDS:
        return None
    return max(math.ceil(evidence.seeds / left), evidence.n + 1)
