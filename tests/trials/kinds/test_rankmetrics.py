"""Scores of rankings against values worked out by hand, as trec_eval counts them; exact search."""

from __future__ import annotations

import math
from itertools import permutations

import numpy as np
import pytest

from lp_sweep.trials.kinds import rankmetrics
from lp_sweep.trials.kinds.rankmetrics import (
    METRICS,
    chance_mrr,
    chance_ndcg,
    in_order,
    mrr,
    ndcg,
    nearest,
    recall,
    scores,
    similarities,
)

# log2(1 + rank) of ranks 1, 2, 3, 4
D = [1.0, math.log2(3), 2.0, math.log2(5)]


@pytest.mark.parametrize(
    ("metric", "ranked", "judged", "k", "expected"),
    [
        pytest.param(ndcg, [0, 1], [1, 0], 10, 1 / D[1], id="one relevant, second"),
        pytest.param(ndcg, [1, 0, 3], [3, 1], 10, (1 + 3 / D[2]) / (3 + 1 / D[1]), id="graded"),
        pytest.param(ndcg, [0, 0, 1], [1], 2, 0.0, id="after k"),
        pytest.param(ndcg, [1, 0], [1, 1, 1], 2, 1 / (1 + 1 / D[1]), id="ideal of k alone"),
        pytest.param(ndcg, [1], [1, 2], 10, 1 / (2 + 1 / D[1]), id="a judgement not found"),
        pytest.param(ndcg, [-1, 1], [-1, 1], 10, 1 / D[1], id="negative is not relevant"),
        pytest.param(ndcg, [0, 0], [0], 10, 0.0, id="nothing relevant"),
        pytest.param(recall, [0, 2, 1, 1], [1, 2, 1, 1], 2, 1 / 4, id="one of four"),
        pytest.param(recall, [0], [0], 1, 0.0, id="nothing to recall"),
    ],
)
def test_ndcg_and_recall(metric, ranked, judged, k, expected):
    assert metric(ranked, judged, k) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("ranked", "k", "expected"),
    [([0, 2, 1], 10, 1 / 2), ([0, 1], 1, 0.0), ([0, 0], 10, 0.0)],
)
def test_mrr(ranked, k, expected):
    assert mrr(ranked, k) == expected


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


# -- exact search, against all similarities at once


QUERIES, DOCUMENTS, WIDTH = 7, 230, 8


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    """Vectors of unequal length: a dot product sees that, a cosine does not."""
    draw = np.random.default_rng(1)
    sizes = draw.uniform(0.5, 3, (QUERIES + DOCUMENTS, 1))
    return (draw.normal(size=(QUERIES + DOCUMENTS, WIDTH)) * sizes).astype(np.float32)


@pytest.fixture(scope="module")
def relevance() -> np.ndarray:
    """(Q, D): each query has some, one of them many."""
    draw = np.random.default_rng(2)
    found = draw.integers(1, 5, (QUERIES, DOCUMENTS)) * (draw.random((QUERIES, DOCUMENTS)) < 0.05)
    found[0] = 1
    found[:, 3] = 2
    return found.astype(float)


def all_at_once(vectors: np.ndarray, *, dot: bool) -> np.ndarray:
    one, other = vectors[:QUERIES].astype(float), vectors[QUERIES:].astype(float)
    lengths = [np.linalg.norm(each, axis=1) for each in (one, other)]
    return one @ other.T / (1 if dot else np.outer(*lengths))


@pytest.mark.parametrize("dot", [False, True])
@pytest.mark.parametrize("blocks", [(3, 40), (2, 1)])
def test_the_nearest_are_those_of_all_similarities(
    vectors: np.ndarray, dot: bool, blocks: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rankmetrics, "_QUERIES", blocks[0])
    monkeypatch.setattr(rankmetrics, "_BLOCK", blocks[1])
    similar, rows = nearest(vectors[:QUERIES], vectors[QUERIES:], 10, dot=dot)
    expected = all_at_once(vectors, dot=dot)
    for query in range(QUERIES):
        best = np.argsort(-expected[query])[:10]
        assert set(rows[query]) == set(best)
        np.testing.assert_allclose(similar[query], expected[query][rows[query]], rtol=1e-5)


@pytest.mark.parametrize("dot", [False, True])
@pytest.mark.parametrize("metric", METRICS)
def test_a_score_is_that_of_the_whole_ranking(
    vectors: np.ndarray, relevance: np.ndarray, metric: str, dot: bool
) -> None:
    similar = all_at_once(vectors, dot=dot)
    ranked = np.take_along_axis(relevance, np.argsort(-similar, axis=1), axis=1)
    expected = {
        "ndcg@10": rankmetrics.ndcg(ranked, relevance, 10),
        "mrr@10": rankmetrics.mrr(ranked, 10),
        "recall@100": rankmetrics.recall(ranked, relevance, 100),
    }[metric]
    assert len(set(expected)) > 1
    pairs = np.column_stack([np.argwhere(relevance > 0), relevance[relevance > 0]])
    np.testing.assert_allclose(scores(metric, pairs, vectors, dot=dot), expected)
    own = similarities(pairs, vectors, dot=dot)
    np.testing.assert_allclose(own, similar[relevance > 0], rtol=1e-6)


def test_equal_texts_tie_whatever_their_batches_rounded() -> None:
    """A document that nobody judged has the vector of a relevant one, but for rounding."""
    near = 1 + 4 * np.finfo(np.float32).eps
    vectors = np.array([[1, 0], [1, 1], [1, near], [0, 1]], np.float32)
    for relevant in (0, 1):
        found = scores("mrr@10", np.array([[0.0, relevant, 1.0]]), vectors)
        assert found == [0.5], relevant


@pytest.mark.parametrize("metric", METRICS)
def test_ties_across_the_last_rank_do_not_follow_the_order_of_the_file(metric: str) -> None:
    """All documents but the first 97 are alike, and 5 of these are relevant: none of them counts
    until all others are ranked."""
    vectors = np.ones((1 + DOCUMENTS, 2), np.float32)
    vectors[0] = vectors[1:98] = [1, 0]
    vectors[1:4] = [1, 0.5]  # relevant, behind 94
    draw = np.random.default_rng(0)
    found = set()
    for _ in range(20):
        relevant = np.array([0, 1, 2, 97, 120, 150, 200, 229])
        order = draw.permutation(DOCUMENTS)
        shuffled = np.vstack([vectors[:1], vectors[1:][order]])
        at = np.flatnonzero(np.isin(order, relevant))
        judged = np.column_stack([np.zeros(8), at, np.ones(8)])
        found.add(float(scores(metric, judged, shuffled)[0]))
    assert found == {3 / 8 if metric == "recall@100" else 0}


def test_fewer_documents_than_a_ranking_is_deep() -> None:
    vectors = np.eye(4, dtype=np.float32)[[0, 1, 0, 1, 2]]  # two queries, three documents
    pairs = np.array([[0, 0, 1], [1, 2, 1]], float)
    assert list(scores("mrr@10", pairs, vectors)) == [1, pytest.approx(1 / 3)]
    assert list(scores("recall@100", pairs, vectors)) == [1, 1]
