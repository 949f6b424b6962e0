"""Resampled metrics are the metrics of the resamples, and the tests made of them are honest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests

from lp_sweep.analysis.statistics.estimates import (
    RESAMPLES,
    Estimate,
    combined,
    interval,
    scores_of,
    two_sided_p,
)
from lp_sweep.analysis.statistics.intervals import holm, paired_test
from lp_sweep.analysis.statistics.resampling import (
    METRICS,
    TALLY,
    metric_of,
    patterns_of,
    resampled_scores,
    scores,
)
from lp_sweep.trials.train import metrics

CLASSES = {"accuracy": 3, "f1": 2, "macro_f1": 3, "mcc": 3}
SEED = st.integers(0, 2**32 - 1)


def random_answers(metric: str, n: int, networks: int, rng: np.random.Generator) -> Any:
    """Few values: ties, and constants in a resample, are common."""
    if metric in CLASSES:
        return rng.integers(CLASSES[metric], size=(n, networks))
    return rng.choice([0.0, 0.1, 0.3, 2.5, 5], size=(n, networks)) * rng.choice([1, 1e-6, 1e6])


def test_every_metric_is_there() -> None:
    """But the mean of average precisions: its intervals are over seeds alone."""
    assert METRICS.keys() == metrics.METRICS.keys() - {"mean_average_precision"}


@pytest.mark.parametrize("metric", METRICS)
@given(n=st.integers(1, 40), seed=SEED)
def test_a_metric_is_that_of_the_drawn_examples(metric: str, n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels = random_answers(metric, n, 1, rng)[:, 0]
    predicted = random_answers(metric, n, 2, rng)
    weights = rng.multinomial(n, np.full(n, 1 / n), size=3)
    found = METRICS[metric](weights.astype(float), labels, predicted)
    real = metrics.METRICS[metric]
    expected = [
        [real(labels.repeat(w), column.repeat(w)) for column in predicted.T] for w in weights
    ]
    np.testing.assert_allclose(found, expected, atol=1e-9)
    patterns = patterns_of(metric, labels, predicted)  # equal examples are merged
    assert patterns.counts.sum() == n
    whole = [real(labels, column) for column in predicted.T]
    np.testing.assert_allclose(scores(metric, patterns), whole, atol=1e-9)


@given(n=st.integers(1, 12), pairs=st.integers(1, 3), seed=SEED)
def test_a_tallied_metric_is_that_of_the_drawn_examples(n: int, pairs: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    tallies = rng.integers(3, size=(n, 2, 2 * pairs)).astype(float)
    weights = rng.multinomial(n, np.full(n, 1 / n), size=3)
    found = metric_of(TALLY)(weights.astype(float), np.zeros(n), tallies)
    expected = [[metrics.of_tally(tallies[:, i].repeat(w, 0)) for i in range(2)] for w in weights]
    np.testing.assert_allclose(found, expected, atol=1e-9)


@pytest.mark.parametrize("metric", ["pearson", "spearman", TALLY])
def test_a_network_is_drawn_the_same_alone_and_beside_others(metric: str) -> None:
    """A second comparison may take the scores that were drawn for the first."""
    rng = np.random.default_rng(0)
    labels = rng.random(30)
    predicted = rng.random((30, 3, 2) if metric == TALLY else (30, 3))
    points = np.zeros(3)
    one = scores_of(metric, labels, predicted[:, :2], points[:2]).covariance
    three = scores_of(metric, labels, predicted, points).covariance
    np.testing.assert_array_equal(one, three[:2, :2])
    drawn = resampled_scores(
        metric, patterns_of(metric, labels, predicted), RESAMPLES, np.random.default_rng(0)
    )
    np.testing.assert_allclose(three, np.cov(100 * drawn, rowvar=False), rtol=1e-9)


@pytest.mark.parametrize("merged", [True, False])
def test_drawn_scores_spread_as_a_binomial(merged: bool) -> None:
    labels = np.zeros(400)
    predicted = (np.arange(400) < 100).astype(float)[:, None]
    patterns = patterns_of("accuracy" if merged else "pearson", labels, predicted)
    assert len(patterns.counts) == (2 if merged else 400)
    drawn = resampled_scores("accuracy", patterns, 20_000, np.random.default_rng(1))[:, 0]
    assert drawn.mean() == pytest.approx(0.75, abs=0.001)
    assert drawn.std() == pytest.approx((0.75 * 0.25 / 400) ** 0.5, rel=0.03)


def answers_of(both: int, b: int, c: int, neither: int) -> tuple[Any, Any, Any]:
    """Labels, K=0 and the pruned network: how many examples each answers rightly."""
    full = np.repeat([1, 1, 0, 0], [both, b, c, neither])
    pruned = np.repeat([1, 0, 1, 0], [both, b, c, neither])
    return np.ones(len(full)), full[:, None], pruned[:, None]


@pytest.mark.parametrize("table", [(80, 10, 2, 8), (90, 0, 0, 10)])
def test_accuracy_of_one_seed_is_tested_by_mcnemar(table: tuple[int, int, int, int]) -> None:
    both, b, c, neither = table
    found = paired_test("accuracy", *answers_of(*table))
    assert (found.test, found.b, found.c) == ("mcnemar", b, c)
    assert found.p == pytest.approx(mcnemar([[both, b], [c, neither]], exact=True).pvalue)
    assert found.change == pytest.approx(100 * (c - b) / sum(table))
    assert found.low <= found.change <= found.high


@pytest.mark.parametrize("metric", ["accuracy", "mcc", "spearman"])
def test_the_order_of_the_examples_does_not_matter_but_their_pairs_do(metric: str) -> None:
    rng = np.random.default_rng(3)
    labels = rng.integers(2, size=300).astype(float)
    wrong = rng.random(300) < 0.3
    noise = 0 if metric in CLASSES else rng.normal(0, 0.01, 300)
    full = (np.where(wrong, 1 - labels, labels) + noise)[:, None]
    pruned = full.copy()
    pruned[:3] = 1 - pruned[:3]
    order = rng.permutation(300)
    paired = paired_test(metric, labels, full, pruned)
    shuffled = paired_test(metric, labels[order], full[order], pruned[order])
    near = 1e-9 if metric in CLASSES else 0.6  # unmerged examples are drawn in their order
    assert shuffled[:4] == pytest.approx(paired[:4], abs=near)
    own = resampled_scores(metric, patterns_of(metric, labels, full), 2000, rng)[:, 0]
    assert paired.high - paired.low < 100 * 2 * own.std(), "unpaired it would be five times that"


def test_no_change_and_constant_answers() -> None:
    labels = np.arange(20.0)
    constant = np.ones((20, 1))
    found = paired_test("pearson", labels, constant, constant)
    assert found[:4] == (0, 0, 0, 1)


@pytest.mark.parametrize("seeds", [1, 3])
def test_p_is_where_the_interval_reaches_zero(seeds: int) -> None:
    found = Estimate(1.5, 0.3 if seeds > 1 else 0.0, seeds - 1, 0.2)
    p = two_sided_p(found)
    assert 0 < p < 0.5
    assert interval(found, 1 - p)[0] == pytest.approx(0, abs=1e-6)
    assert two_sided_p(found._replace(mean=-1.5)) == pytest.approx(p)
    assert two_sided_p(found._replace(mean=0.0)) == 1
    assert two_sided_p(found._replace(mean=1e6, seeds=0.0)) == pytest.approx(0, abs=1e-11)


@pytest.mark.parametrize("metric", ["accuracy", "macro_f1", "pearson"])
def test_the_covariance_over_rows_is_that_of_resampled_scores(metric: str) -> None:
    rng = np.random.default_rng(2)
    labels = rng.integers(2, size=200).astype(float)
    wrong = rng.random((200, 3)) < [0.1, 0.15, 0.3]
    predicted = np.where(wrong, 1 - labels[:, None], labels[:, None])
    drawn = resampled_scores(metric, patterns_of(metric, labels, predicted), 20_000, rng)
    found = scores_of(metric, labels, predicted, np.zeros(3)).covariance
    assert found == pytest.approx(np.cov(100 * drawn, rowvar=False), rel=0.15, abs=1.5)


def test_what_all_seeds_share_is_not_averaged_out() -> None:
    """A hundred seeds on one dev set are as unsure of other texts as that set is small."""
    labels = np.ones(400)
    same = np.repeat((np.arange(400) < 320)[:, None], 100, axis=1)
    found = combined(scores_of("accuracy", labels, same, np.full(100, 80.0)), np.eye(100))
    assert found.rows**0.5 == pytest.approx(2.0, rel=0.02)
    assert (found.seeds, found.mean) == (0, 80)
    apart = np.random.default_rng(0).random((400, 100)) < 0.8  # each seed errs on texts of its own
    rows = combined(scores_of("accuracy", labels, apart, np.full(100, 80.0)), np.eye(100)).rows
    assert rows**0.5 < 0.6


def test_answers_without_an_error_are_not_known_to_go_on_so() -> None:
    labels = np.ones(300)
    scores = scores_of("accuracy", labels, labels[:, None], np.array([100.0]))
    low, _ = interval(combined(scores, np.eye(1)))
    assert 98.5 < low < 99.5  # the exact binomial bound is 98.8


def test_seeds_that_disagree_widen_the_interval() -> None:
    """One seed loses 10 points, the other nothing."""
    labels, full, worse = answers_of(700, 200, 100, 0)
    pruned = np.column_stack([worse, full[:, 0]])
    alike = paired_test("accuracy", labels, full.repeat(2, axis=1), worse.repeat(2, axis=1))
    apart = paired_test("accuracy", labels, full.repeat(2, axis=1), pruned)
    assert (alike.change, apart.change) == (pytest.approx(-10), pytest.approx(-5))
    assert alike.p < 0.001
    assert apart.p > 0.1
    assert apart.high - apart.low > 1.5 * (alike.high - alike.low)


def test_holm_is_that_of_statsmodels() -> None:
    assert holm([]) == []
    for n in (1, 2, 30):
        ps = np.random.default_rng(n).random(n).round(1) ** 4  # some are equal, some 0
        assert holm([*ps]) == pytest.approx(multipletests(ps, method="holm")[1])


@pytest.mark.parametrize("seeds", [2, 5])
@pytest.mark.parametrize("share", [0.0, 0.4, 1.0], ids=["rows", "both", "seeds"])
def test_an_interval_over_seeds_and_rows_covers_what_it_says(seeds: int, share: float) -> None:
    """A percentile bootstrap over seeds covered .51, .75, .79 and .91."""
    rng = np.random.default_rng(7)
    held = []
    for _ in range(1500):
        points = rng.normal(0, share**0.5, seeds)
        seen = Estimate(
            points.mean() + rng.normal(0, ((1 - share) / seeds) ** 0.5),
            points.var(ddof=1) / seeds,
            seeds - 1,
            (1 - share) / seeds,
        )
        low, high = interval(seen)
        held.append(low <= 0 <= high)
    assert 0.93 <= np.mean(held) <= 0.985
