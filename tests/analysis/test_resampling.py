"""Resampled metrics are the metrics of the resamples, and the tests made of them are honest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import proportion_confint

from lp_sweep.analysis.statistics.estimates import (
    Estimate,
    bounded,
    combined,
    limits,
    scores_of,
    smallest_loss,
    two_sided_p,
)
from lp_sweep.analysis.statistics.intervals import holm, paired_test
from lp_sweep.analysis.statistics.resampling import (
    METRICS,
    TALLY,
    resampled_scores,
    scores,
)
from lp_sweep.trials.spec.scoring import facts_of
from lp_sweep.trials.train import metrics

Array = np.ndarray[Any, Any]
CLASSES = {
    "accuracy": 3,
    "f1": 2,
    "macro_f1": 3,
    "weighted_f1": 3,
    "balanced_accuracy": 3,
    "mcc": 3,
}
SEED = st.integers(0, 2**32 - 1)


def random_answers(metric: str, n: int, networks: int, rng: np.random.Generator) -> Any:
    """Few values: ties, and constants in a resample, are common."""
    if metric in CLASSES:
        return rng.integers(CLASSES[metric], size=(n, networks))
    return rng.choice([0.0, 0.1, 0.3, 2.5, 5], size=(n, networks)) * rng.choice([1, 1e-6, 1e6])


def test_every_metric_is_there() -> None:
    """But the mean of average precisions: its intervals are over seeds alone."""
    assert METRICS.keys() - {TALLY} == metrics.METRICS.keys() - {"mean_average_precision"}


@pytest.mark.parametrize("metric", [name for name in METRICS if name != TALLY])
@given(n=st.integers(1, 40), seed=SEED)
def test_a_metric_is_that_of_the_drawn_examples(metric: str, n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels = random_answers("f1" if facts_of(metric).by_margin else metric, n, 1, rng)[:, 0]
    predicted = random_answers(metric, n, 2, rng)
    weights = rng.multinomial(n, np.full(n, 1 / n), size=3)
    found = METRICS[metric](weights.astype(float), labels, predicted)
    real = metrics.METRICS[metric]
    expected = [
        [real(labels.repeat(w), column.repeat(w)) for column in predicted.T] for w in weights
    ]
    np.testing.assert_allclose(found, expected, atol=1e-9)
    whole = [real(labels, column) for column in predicted.T]
    np.testing.assert_allclose(scores(metric, labels, predicted), whole, atol=1e-9)


@given(n=st.integers(1, 12), pairs=st.integers(1, 3), seed=SEED)
def test_a_tallied_metric_is_that_of_the_drawn_examples(n: int, pairs: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    tallies = rng.integers(3, size=(n, 2, 2 * pairs)).astype(float)
    weights = rng.multinomial(n, np.full(n, 1 / n), size=3)
    found = METRICS[TALLY](weights.astype(float), np.zeros(n), tallies)
    expected = [[metrics.of_tally(tallies[:, i].repeat(w, 0)) for i in range(2)] for w in weights]
    np.testing.assert_allclose(found, expected, atol=1e-9)


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
    assert limits(found, p / 2).low == pytest.approx(0, abs=1e-6)
    assert two_sided_p(found._replace(mean=-1.5)) == pytest.approx(p)
    assert two_sided_p(found._replace(mean=0.0)) == 1
    assert two_sided_p(found._replace(mean=99.0, seeds=0.0)) == pytest.approx(0, abs=1e-11)


@pytest.mark.parametrize("metric", ["accuracy", "macro_f1", "pearson"])
def test_the_covariance_over_rows_is_that_of_resampled_scores(metric: str) -> None:
    rng = np.random.default_rng(2)
    labels = rng.integers(2, size=200).astype(float)
    wrong = rng.random((200, 3)) < [0.1, 0.15, 0.3]
    predicted = np.where(wrong, 1 - labels[:, None], labels[:, None])
    drawn = resampled_scores(metric, labels, predicted, 20_000, rng)
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


@pytest.mark.parametrize("seeds", [1, 2, 3])
@pytest.mark.parametrize("metric", ["accuracy", "f1", "macro_f1", "mcc", "spearman"])
def test_limits_lie_within_what_a_score_or_a_change_can_be(metric: str, seeds: int) -> None:
    """Few rows and seeds that differ by tens of points."""
    least = -100 if metric in ("mcc", "spearman") else 0
    rng = np.random.default_rng(3)
    for _ in range(20):
        labels = rng.permutation(np.arange(12) % 2).astype(float)
        wrong = rng.random((12, 2 * seeds)) < rng.random(2 * seeds)
        predicted = np.where(wrong, 1 - labels[:, None], labels[:, None])
        points = 100 * scores(metric, labels, predicted)
        of = scores_of(metric, labels, predicted, points)
        low, high = limits(combined(of, np.eye(2 * seeds)[:seeds]))
        assert least <= low <= points[:seeds].mean() + 1e-9
        assert points[:seeds].mean() - 1e-9 <= high <= 100
        change = paired_test(metric, labels, predicted[:, :seeds], predicted[:, seeds:])
        assert least - 100 <= change.low <= change.change <= change.high <= 100 - least


@given(st.floats(-99.9, 99.9), st.integers(-12, 3))
def test_each_bound_is_one_error_of_its_own_from_the_mean(mean: float, digits: int) -> None:
    """Of any size: a difference of two near numbers would leave nothing of a small one."""
    error = 10.0**digits
    for bound in bounded(mean, error, -100, 100):
        assert -100 <= bound <= 100
        own = error * max(0.0, (100**2 - bound**2) / (100**2 - mean**2)) ** 0.5
        assert abs(bound - mean) == pytest.approx(own, rel=1e-4, abs=1e-11)


@pytest.mark.parametrize("right", [0, 3, 37, 40])
def test_the_limits_of_one_accuracy_are_wilsons(right: int) -> None:
    labels, answers = np.ones(40), (np.arange(40) < right).astype(float)
    of = scores_of("accuracy", labels, answers[:, None], np.array([right / 0.4]))
    theirs = proportion_confint(right, 40, method="wilson")
    assert limits(combined(of, np.eye(1))) == pytest.approx(100 * np.array(theirs), abs=1.5)


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
        low, high = limits(seen)
        held.append(low <= 0 <= high)
    assert 0.93 <= np.mean(held) <= 0.985


def study(
    metric: str, rows: int, seeds: int, loss: float, rng: np.random.Generator
) -> tuple[Array, Array, Array]:
    """Labels, and the answers of the full and the pruned networks, as `smallest_loss` assumes: on
    10% of the rows only one is right; the loss, which varies over seeds, comes on top."""
    spread = loss / 100 + 0.007 * rng.standard_normal(seeds)
    if metric == TALLY:  # queries whose change varies by 20 points
        part = rng.random((rows, 1)) < 0.2  # changes alike with all seeds
        alike, own = rng.normal(0, 0.2, (rows, 1)), rng.normal(0, 0.2, (rows, seeds))
        full = np.full((rows, seeds), 0.5)
        pruned = full - spread + np.where(part, alike, own)
        one = np.ones((rows, seeds))
        return np.zeros(rows), np.stack([full, one], -1), np.stack([pruned, one], -1)
    alike, own = rng.random((rows, 1)), rng.random((rows, seeds))
    drawn = np.where(rng.random((rows, 1)) < 0.2, alike, own)
    change = np.where(drawn < 0.05 + spread, -1, np.where(drawn > 0.95, 1, 0))
    labels = np.ones(rows) if metric == "accuracy" else np.arange(rows) % 2.0
    full, pruned = (
        np.where(wrong, 1 - labels[:, None], labels[:, None]) for wrong in (change > 0, change < 0)
    )
    return labels, full, pruned


@pytest.mark.parametrize(
    ("metric", "rows", "worth"),
    [("accuracy", 277, 277), ("f1", 200, 100), ("mcc", 200, 50), (TALLY, 40, 100)],
)
@pytest.mark.parametrize("seeds", [1, 3])
def test_the_smallest_loss_is_found_in_four_of_five_studies(
    metric: str, rows: int, worth: float, seeds: int
) -> None:
    """`worth`: as `inputs.data` counts the rows."""
    loss = smallest_loss(worth, seeds)
    assert loss is not None
    of_rows = loss / 2 if metric == "mcc" else loss  # a row that is lost moves MCC by two
    rng, found = np.random.default_rng(8), []
    for _ in range(40):
        test = paired_test(metric, *study(metric, rows, seeds, of_rows, rng))
        found.append(test.p < 0.05 and test.change < 0)
    assert np.mean(found) >= 0.68  # of 40 studies: 0.8, and two standard errors


def test_a_few_rows_show_no_loss() -> None:
    assert smallest_loss(2, 1) is smallest_loss(2, 3) is None
