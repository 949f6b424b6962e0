"""Computes metrics of thousands of resamples at once. Takes and returns arrays; reads no store.

Drawing n examples with replacement means drawing how often each occurs: a multinomial. Examples
that are equal to the metric for every network form one *pattern*. Only patterns are drawn: a few
thousand instead of the 40,430 examples of QQP, with the same distribution. Each metric here
equals that of scikit-learn or scipy on the drawn examples, as `tests/analysis/test_resampling.py`
checks. Calling f1_score 10,000 times would take a minute and a half for one network on QQP.

A metric that is a ratio of sums over the examples needs no function of its own: each example has a
*tally*, which is what it adds to the sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lp_sweep.trials.spec.scoring import PRECISIONS, facts_of

Array = npt.NDArray[Any]
_CHUNK_BYTES = 2 * 2**20  # weights in memory at a time: a processor caches them
TALLY = "tally"  # the metric of networks whose predictions are tallies
_UNMERGED = ("pearson", "spearman", TALLY)  # each example is its own pattern
_NO_SPREAD = 1e-10  # share of the square sum: a smaller spread is rounding of a constant


def scores(metric: str, labels: Array, predicted: Array) -> Array:
    """(networks,) shares: the metric on (examples,) labels and (examples, networks) predictions, or
    (examples, networks, 2m) tallies."""
    shares: Array = METRICS[metric](np.ones((1, len(labels))), labels, predicted)[0]
    return shares


def resampled_scores(
    metric: str, labels: Array, predicted: Array, resamples: int, rng: np.random.Generator
) -> Array:
    """(resamples, networks) shares: the metric on examples drawn with replacement, the same draw
    for all networks."""
    counts = np.ones(len(labels), np.int64)
    if (
        metric not in _UNMERGED and not facts_of(metric).by_margin
    ):  # one row for all examples of a pattern
        rows = np.column_stack([labels, predicted]).astype(np.int32)
        unique, counts = np.unique(rows, axis=0, return_counts=True)
        labels, predicted = unique[:, 0], unique[:, 1:]
    parts = [
        METRICS[metric](weights, labels, predicted) for weights in _weights(counts, resamples, rng)
    ]
    return np.concatenate(parts)


def _weights(counts: Array, resamples: int, rng: np.random.Generator) -> Iterator[Array]:
    """Chunks of (up to `resamples`, patterns): how often each pattern occurs. Chunks bound the
    memory."""
    chunk = max(1, _CHUNK_BYTES // (8 * len(counts)))
    for start in range(0, resamples, chunk):
        yield _draw(counts, min(chunk, resamples - start), rng).astype(np.float64)


def _draw(counts: Array, resamples: int, rng: np.random.Generator) -> Array:
    n = int(counts.sum())
    if len(counts) < n:
        return rng.multinomial(n, counts / n, size=resamples)
    drawn = rng.integers(n, size=(resamples, n))  # nothing was merged: three times as fast
    drawn += n * np.arange(resamples)[:, None]
    return np.bincount(drawn.ravel(), minlength=resamples * n).reshape(resamples, n)


# Each takes (resamples, patterns) weights, (patterns,) labels and (patterns, networks) predictions,
# and returns (resamples, networks).
Metric = Callable[[Array, Array, Array], Array]


def _tallied(weights: Array, labels: Array, tallies: Array) -> Array:
    """The mean of part / whole over m pairs of sums, without pairs whose whole is 0. `tallies`
    (patterns, networks, 2m)."""
    sums = np.tensordot(weights, tallies, axes=1)  # (resamples, networks, 2m)
    part, whole = sums[..., ::2], sums[..., 1::2]
    return _share(_share(part, whole).sum(axis=-1), (whole > 0).sum(axis=-1))


def _accuracy(weights: Array, labels: Array, predicted: Array) -> Array:
    right: Array = weights @ (predicted == labels[:, None]).astype(np.float64)
    return np.asarray(right / weights.sum(axis=1, keepdims=True))


class _ClassCounts(NamedTuple):
    both: Array  # (resamples, networks) label and prediction
    label: Array  # (resamples, 1)
    prediction: Array  # (resamples, networks)


def _count(weights: Array, labels: Array, predicted: Array, label: float) -> _ClassCounts:
    is_label, is_predicted = labels[:, None] == label, predicted == label
    marks = (is_label & is_predicted, is_label, is_predicted)
    return _ClassCounts(*(weights @ mark.astype(np.float64) for mark in marks))


def _share(part: Array, whole: Array) -> Array:
    """part / whole; 0 where whole is 0."""
    return np.divide(part, whole, out=np.zeros(np.shape(part)), where=whole > 0)


def _f1(weights: Array, labels: Array, predicted: Array) -> Array:
    count = _count(weights, labels, predicted, 1)
    return _share(2 * count.both, count.label + count.prediction)


def _macro_f1(weights: Array, labels: Array, predicted: Array) -> Array:
    """The mean F1 over the classes that occur in the resample, as labels or predictions."""
    total = np.zeros((len(weights), predicted.shape[1]))
    classes = np.zeros_like(total)
    for label in np.unique([*labels, *predicted.ravel()]):
        count = _count(weights, labels, predicted, label)
        occurs = count.label + count.prediction
        total += _share(2 * count.both, occurs)
        classes += occurs > 0
    return _share(total, classes)


def _weighted_f1(weights: Array, labels: Array, predicted: Array) -> Array:
    """The mean F1 over the classes, each as often as it is a label."""
    total = np.zeros((len(weights), predicted.shape[1]))
    for label in np.unique(labels):
        count = _count(weights, labels, predicted, label)
        total += count.label * _share(2 * count.both, count.label + count.prediction)
    return np.asarray(total / weights.sum(axis=1, keepdims=True))


def _balanced_accuracy(weights: Array, labels: Array, predicted: Array) -> Array:
    """The mean recall over the classes that occur in the resample as labels."""
    total, classes = np.zeros((len(weights), predicted.shape[1])), np.zeros((len(weights), 1))
    for label in np.unique(labels):
        count = _count(weights, labels, predicted, label)
        total += np.where(count.label > 0, count.both / np.maximum(count.label, 1), 0)
        classes += count.label > 0
    return np.asarray(total / classes)


# Each takes how many rows of the scored class, and how many others, have a margin of each threshold
# or more, both (resamples, thresholds) from the highest down, and returns (resamples,).


def _roc_auc(right: Array, wrong: Array) -> Array:
    """The area below the curve, half of it where margins are equal; 0.5 without one of the
    classes."""
    pairs = right[:, -1] * wrong[:, -1]
    middle = right - np.diff(right, axis=1, prepend=0) / 2
    area = (np.diff(wrong, axis=1, prepend=0) * middle).sum(axis=1)
    return np.where(pairs > 0, area / np.maximum(pairs, 1), 0.5)


def _average_precision(right: Array, wrong: Array) -> Array:
    found = np.diff(right, axis=1, prepend=0) * _share(right, right + wrong)
    return _share(found.sum(axis=1), right[:, -1])


def _recall_at(percent: int, right: Array, wrong: Array) -> Array:
    precise = _share(right, right + wrong) >= percent / 100
    return _share(np.where(precise, right, 0).max(axis=1), right[:, -1])


_OF_MARGINS: dict[str, Callable[[Array, Array], Array]] = {
    "roc_auc": _roc_auc,
    "average_precision": _average_precision,
    **{name: partial(_recall_at, percent) for name, percent in PRECISIONS.items()},
}


def _of_margins(metric: str, weights: Array, labels: Array, margins: Array) -> Array:
    columns = []
    for values in margins.T:
        order = np.argsort(-values, kind="stable")
        ends = np.flatnonzero(np.diff(values[order], append=np.nan) != 0)  # of equal margins
        sides = (weights * (labels == 1), weights * (labels != 1))
        right, wrong = (np.cumsum(side[:, order], axis=1)[:, ends] for side in sides)
        columns.append(_OF_MARGINS[metric](right, wrong))
    return np.stack(columns, axis=1)


def _mcc(weights: Array, labels: Array, predicted: Array) -> Array:
    n = weights.sum(axis=1, keepdims=True)
    right = np.zeros((len(weights), predicted.shape[1]))
    chance, label_squares, squares = np.zeros_like(right), np.zeros_like(n), np.zeros_like(right)
    for label in np.unique([*labels, *predicted.ravel()]):
        count = _count(weights, labels, predicted, label)
        right += count.both
        chance += count.label * count.prediction
        label_squares += count.label**2
        squares += count.prediction**2
    return _share(right * n - chance, np.sqrt((n**2 - label_squares) * (n**2 - squares)))


def _pearson(weights: Array, labels: Array, predicted: Array) -> Array:
    x, y = predicted - predicted.mean(axis=0), (labels - labels.mean())[:, None]
    n = weights.sum(axis=1, keepdims=True)
    return _correlation(n, *(weights @ part for part in (x, y, x**2, y**2, x * y)))


def _spearman(weights: Array, labels: Array, predicted: Array) -> Array:
    """Pearson correlation of the ranks, which differ in every resample."""
    n = weights.sum(axis=1, keepdims=True)
    y = _ranks(weights, labels)
    weighted = weights * y
    yy = np.einsum("rn,rn->r", weighted, y)[:, None]
    columns = []
    for network in range(predicted.shape[1]):
        x = _ranks(weights, predicted[:, network])
        xx = np.einsum("rn,rn,rn->r", weights, x, x)[:, None]
        xy = np.einsum("rn,rn->r", weighted, x)[:, None]
        columns.append(_correlation(n, 0, 0, xx, yy, xy))
    return np.concatenate(columns, axis=1)


def _ranks(weights: Array, values: Array) -> Array:
    """(resamples, examples): the rank of each value in each resample, less their mean; ties get
    their mean rank."""
    order = np.argsort(values, kind="stable")
    starts = np.flatnonzero(np.diff(values[order], prepend=np.nan) != 0)
    occurs = np.add.reduceat(weights[:, order], starts, axis=1)
    middles = np.cumsum(occurs, axis=1) - (occurs + weights.sum(axis=1, keepdims=True)) / 2
    _, group = np.unique(values, return_inverse=True)
    ranks: Array = middles[:, group]
    return ranks


def _correlation(n: Array, x: Any, y: Any, xx: Array, yy: Array, xy: Array) -> Array:
    """The correlation from the number of examples and the sums over them; 0 if either side is
    constant, as in `trials.train.metrics`."""
    spread_x, spread_y = xx - x**2 / n, yy - y**2 / n
    varies = (spread_x > _NO_SPREAD * xx) & (spread_y > _NO_SPREAD * yy)
    scale = np.sqrt(np.where(varies, spread_x * spread_y, 1))
    return np.where(varies, (xy - x * y / n) / scale, 0.0)


METRICS: dict[str, Metric] = {
    "accuracy": _accuracy,
    "f1": _f1,
    "macro_f1": _macro_f1,
    "weighted_f1": _weighted_f1,
    "balanced_accuracy": _balanced_accuracy,
    "mcc": _mcc,
    **{name: partial(_of_margins, name) for name in _OF_MARGINS},
    "pearson": _pearson,
    "spearman": _spearman,
    TALLY: _tallied,
}
