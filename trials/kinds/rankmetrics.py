"""Scores of a ranking, query by query (nDCG, MRR, recall), and the exact search that makes one.

`ranked` (..., n) is the relevance of each query's passages, best rank first. Above 0 is relevant, a
higher number more so; 0 and below is not, so shorter rankings are padded with 0. `judged` (..., m)
holds all judgements of the query in any order, also of passages that were not retrieved. A query
without a relevant passage scores 0, as in trec_eval: callers refuse such queries or skip them.

A search compares every query with every document, block by block, so memory never holds queries x
documents. Its judgements are (J, 3) float64: the query's row, the document's row (from 0, among the
documents) and the relevance, above 0; ascending by query. With relevance 0 the document is the
query itself, and is left out of its ranking. `vectors` are (Q + D, H): the queries', then the
documents'. Pure NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
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


_QUERIES = 1024  # per block
_BLOCK = 1 << 24  # similarities per block: 64 MiB
DEPTH = 100  # of a ranking: no metric looks further
_DIGITS = 6  # equal texts in different batches differ by rounding, and should tie

METRICS: dict[str, Callable[[Array, Array], Array]] = {
    "ndcg@10": lambda ranked, judged: ndcg(ranked, judged, 10),
    "mrr@10": lambda ranked, judged: mrr(ranked, 10),
    "recall@100": lambda ranked, judged: recall(ranked, judged, 100),
}


def query_count(judged: Array) -> int:
    """Q: each query has a judged document."""
    return int(judged[-1, 0]) + 1


def scores(metric: str, judged: Array, vectors: Array, *, dot: bool = False) -> Array:
    """(Q,) each query's score, from 0 to 1, by one of METRICS. `dot`: rank by the dot product
    instead of the cosine."""
    count, relevant = query_count(judged), judged[judged[:, 2] > 0]
    every = _padded(relevant, count)
    # of a tie across the last rank, this many documents include enough that are not relevant to
    # fill the ranking, whichever are found: the score does not depend on the order of the file
    depth = DEPTH + every.shape[1] + 1
    similar, found = nearest(vectors[:count], vectors[count:], depth, dot=dot)
    gains = _relevance(relevant, found, len(vectors) - count)
    themselves = _themselves(judged, found)
    similar[themselves], gains[themselves] = -np.inf, 0.0
    best = -np.sort(-similar, axis=1)[:, :DEPTH]
    largest = np.abs(np.where(np.isneginf(best), 0, best)).max(axis=1, keepdims=True)
    similar = np.round(similar / np.maximum(largest, np.finfo(np.float32).tiny), _DIGITS)
    return METRICS[metric](in_order(similar, gains), every)


def nearest(queries: Array, documents: Array, k: int, *, dot: bool = False) -> tuple[Array, Array]:
    """(Q, k) float32 similarities and (Q, k) document rows: the k most similar to each query,
    unordered; fewer if there are fewer documents."""
    k = min(k, len(documents))
    queries = queries if dot else queries / _lengths(queries)[:, None]
    sizes = None if dot else _lengths(documents)
    parts = [
        _nearest(queries[first : first + _QUERIES], documents, sizes, k)
        for first in range(0, len(queries), _QUERIES)
    ]
    similar, rows = zip(*parts, strict=True)
    return np.concatenate(similar), np.concatenate(rows)


def _nearest(queries: Array, documents: Array, sizes: Array | None, k: int) -> tuple[Array, Array]:
    best: Array = np.empty((len(queries), 0), np.float32)
    rows: Array = np.empty((len(queries), 0), np.int64)
    block = max(k, _BLOCK // len(queries))
    for first in range(0, len(documents), block):
        part = slice(first, first + block)
        found = queries @ documents[part].T  # (Q, block)
        if sizes is not None:
            found /= sizes[part]
        numbers = np.broadcast_to(np.arange(first, first + found.shape[1]), found.shape)
        best, rows = np.hstack([best, found]), np.hstack([rows, numbers])
        if best.shape[1] > k:
            kept = np.argpartition(best, -k, axis=1)[:, -k:]
            best, rows = (np.take_along_axis(each, kept, axis=1) for each in (best, rows))
    return best, rows


def similarities(judged: Array, vectors: Array, *, dot: bool = False) -> Array:
    """(J,) float64 similarity of each relevant document to its query."""
    count = query_count(judged)
    pairs = judged[judged[:, 2] > 0, :2].astype(np.int64) + np.array([0, count])
    one, other = (vectors[pairs[:, side]].astype(np.float64) for side in (0, 1))
    found = (one * other).sum(axis=1)
    return np.asarray(found if dot else found / (_lengths(one) * _lengths(other)))


def _lengths(vectors: Array) -> Array:
    """(n,) norms, never 0."""
    lengths = np.linalg.norm(vectors, axis=1)
    return np.asarray(np.maximum(lengths, np.finfo(vectors.dtype).tiny))


def _themselves(judged: Array, found: Array) -> Array:
    """(Q, k) whether a found document is the query itself."""
    own = np.full(len(found), -1)
    queries, documents, _ = judged[judged[:, 2] == 0].astype(np.int64).T
    own[queries] = documents
    return np.asarray(found == own[:, None])


def _relevance(judged: Array, found: Array, documents: int) -> Array:
    """(Q, k) relevance of the found documents; 0 for unjudged ones."""
    keys = judged[:, 0] * documents + judged[:, 1]
    order = np.argsort(keys)
    asked = np.arange(len(found))[:, None] * documents + found
    place = np.minimum(np.searchsorted(keys[order], asked), len(keys) - 1)
    return np.where(keys[order][place] == asked, judged[order, 2][place], 0.0)


def _padded(judged: Array, count: int) -> Array:
    """(Q, m) all judgements of each query, padded with 0."""
    queries = judged[:, 0].astype(np.int64)
    sizes = np.bincount(queries, minlength=count)
    place = np.arange(len(judged)) - (np.cumsum(sizes) - sizes)[queries]
    filled = np.zeros((count, sizes.max()))
    filled[queries, place] = judged[:, 2]
    return filled
