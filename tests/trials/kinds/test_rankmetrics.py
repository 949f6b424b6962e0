"""Scores of rankings against values worked out by hand, as trec_eval counts them."""

import math
from itertools import permutations

import numpy as np
import pytest

from lp_sweep.trials.kinds.rankmetrics import chance_mrr, chance_ndcg, in_order, mrr, ndcg, recall

# log2(1 + rank) of ranks 1, 2, 3, 4
D = [1.0, math.log2(3), 2.0, math.log2(5)]


@pytest.mark.parametrize(
    ("ranked", "judged", "k", "expected"),
    [
        pytest.param([0, 1], [1, 0], 10, 1 / D[1], id="one relevant, second"),
        pytest.param([1, 0, 3], [3, 1], 10, (1 + 3 / D[2]) / (3 + 1 / D[1]), id="graded"),
        pytest.param([0, 0, 1], [1], 2, 0.0, id="after k"),
        pytest.param([1, 0], [1, 1, 1], 2, 1 / (1 + 1 / D[1]), id="ideal of k alone"),
        pytest.param([1], [1, 2], 10, 1 / (2 + 1 / D[1]), id="a judgement that was not found"),
        pytest.param([-1, 1], [-1, 1], 10, 1 / D[1], id="negative is not relevant"),
        pytest.param([0, 0], [0], 10, 0.0, id="nothing relevant"),
    ],
)
def test_ndcg(ranked, judged, k, expected):
    assert ndcg(ranked, judged, k) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("ranked", "k", "expected"),
    [([0, 2, 1], 10, 1 / 2), ([0, 1], 1, 0.0), ([0, 0], 10, 0.0)],
)
def test_mrr(ranked, k, expected):
    assert mrr(ranked, k) == expected


@pytest.mark.parametrize(
    ("ranked", "judged", "k", "expected"),
    [([0, 2, 1, 1], [1, 2, 1, 1], 2, 1 / 4), ([0], [0], 1, 0.0)],
)
def test_recall(ranked, judged, k, expected):
    assert recall(ranked, judged, k) == expected


def test_several_queries_at_once():
    """Padded with 0 to the longest: the values are those of each query alone."""
    ranked, judged = np.array([[0, 1, 0], [2, 0, 1]]), np.array([[1, 0, 0, 0], [1, 2, 3, 0]])
    for score in (
        lambda r, j: ndcg(r, j, 10),
        lambda r, j: mrr(r, 10),
        lambda r, j: recall(r, j, 2),
    ):
        alone = [score(r, j) for r, j in zip(ranked, judged, strict=True)]
        assert score(ranked, judged).tolist() == alone


def test_equal_scores_rank_the_less_relevant_first():
    assert in_order(np.array([0.1, 0.9, 0.9, 0.5]), np.array([3, 2, 0, 1])).tolist() == [0, 2, 1, 3]
    assert in_order(np.zeros((2, 2)), np.eye(2)).tolist() == [[0, 1], [0, 1]]


@pytest.mark.parametrize("judged", [[1, 0, 0], [3, 0, 1, 0, 0], [1, 1], [0, 0]])
@pytest.mark.parametrize("k", [2, 10])
def test_chance_is_the_mean_of_all_orders(judged, k):
    every = np.array([*permutations(judged)])
    assert chance_ndcg(judged, k) == pytest.approx(ndcg(every, judged, k).mean())
    assert chance_mrr(judged, k) == pytest.approx(mrr(every, k).mean())
