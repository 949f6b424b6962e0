"""Scores of a ranking, query by query: nDCG, MRR, recall. Pure NumPy.

`ranked` (..., n) is the relevance of each query's passages, best rank first. Above 0 is relevant, a
higher number more so; 0 and below is not, so shorter rankings are padded with 0. `judged` (..., m)
holds all judgements of the query in any order, also of passages that were not retrieved. A query
without a relevant passage scores 0, as in trec_eval: callers refuse such queries or skip them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def by_query(labels: Array) -> list[npt.NDArray[np.intp]]:
    """The rows of each query, ascending, for (n, 2) labels of relevance and query number."""
    order = np.argsort(labels[:, 1], kind="stable")
    return np.split(order, np.flatnonzero(np.diff(labels[order, 1])) + 1)


def in_order(scores: Array, relevance: Array) -> Array:
    """(..., n) relevance by falling score. In a tie the less relevant passage comes first, so a
    network with equal scores gets no credit for the order of the file."""
    order = np.lexsort((relevance, -np.asarray(scores)), axis=-1)
    return np.take_along_axis(np.asarray(relevance), order, axis=-1)


def ndcg(ranked: Array, judged: Array, k: int) -> Array:
    """(...) normalised discounted cumulative gain of the first k (Järvelin and Kekäläinen 2002).

    The gain is the relevance itself and the discount log2(1 + rank), as ndcg_cut of trec_eval.
    """
    best = -np.sort(-np.asarray(judged, np.float64), axis=-1)
    return _share(_dcg(np.asarray(ranked, np.float64), k), _dcg(best, k))


def mrr(ranked: Array, k: int) -> Array:
    """(...) 1 / rank of the first relevant passage; 0 where the first k have none."""
    found = np.asarray(ranked)[..., :k] > 0
    return np.where(found.any(axis=-1), 1 / (1 + found.argmax(axis=-1)), 0.0)


def recall(ranked: Array, judged: Array, k: int) -> Array:
    """(...) share of the relevant passages that are among the first k."""
    found = (np.asarray(ranked)[..., :k] > 0).sum(axis=-1, dtype=np.float64)
    return _share(found, (np.asarray(judged) > 0).sum(axis=-1, dtype=np.float64))


def chance_ndcg(judged: Array, k: int) -> float:
    """The mean `ndcg` over all orders of the (n,) judged passages."""
    gains = np.maximum(np.asarray(judged, np.float64), 0)
    return float(ndcg(np.full_like(gains, gains.mean()), gains, k))


def chance_mrr(judged: Array, k: int) -> float:
    """The mean `mrr` over all orders of the (n,) judged passages. Of the C(n, r) placements of the
    r relevant ones, C(n - i, r - 1) have the first at rank i."""
    n, relevant = len(judged), int((np.asarray(judged) > 0).sum())
    if not relevant:
        return 0.0
    ranks = range(1, min(k, n - relevant + 1) + 1)
    return sum(math.comb(n - i, relevant - 1) / i for i in ranks) / math.comb(n, relevant)


def _dcg(ranked: Array, k: int) -> Array:
    gains = np.maximum(ranked[..., :k], 0)
    return np.asarray((gains / np.log2(2 + np.arange(gains.shape[-1]))).sum(axis=-1))


def _share(part: Array, whole: Array) -> Array:
    return np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)
