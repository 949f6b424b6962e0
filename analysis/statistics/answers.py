"""What networks said of each dev example, as arrays that stand beside each other.

Reads the main dev split only: the first, which `score` is of. Answers are matched by the number of
the example, never by the order of rows. Whatever can't be compared is a reason, not a number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lp_sweep.analysis.statistics.resampling import METRICS, patterns_of, scores
from lp_sweep.storage.catalog import Catalog

Array = npt.NDArray[Any]
_KEPT_IN_MEMORY = 128  # networks; 0.8 MB each on QQP
_SAME_SCORE = 1e-4  # points; a score is made of the very same numbers


class Network(NamedTuple):
    """A trial that is done, as far as statistics need it."""

    trial_id: str
    metric: str
    split: str  # the main one
    score: float | None  # points


class Answers(NamedTuple):
    examples: Array  # (n,) ascending
    labels: Array
    predicted: Array
    score: float | None  # points, of these answers; None where there is none


class Compared(NamedTuple):
    """Several networks' answers to the same examples, or the reason why there are none."""

    labels: Array  # (n,)
    predicted: Array  # (n, networks)
    reason: str | None = None


Reader = Callable[[Network], Answers]


def reader(catalog: Catalog) -> Reader:
    """Reads a network's answers once for all its comparisons, as long as memory is kept for it."""
    return lru_cache(maxsize=_KEPT_IN_MEMORY)(partial(_read, catalog))


# grouped: a copied file counts once. The class that f1 scores, where the task names it, becomes 1
_ANSWERS = """
WITH positive AS (SELECT any_value(positive_label) AS p FROM trials WHERE trial_id = $trial)
SELECT
    example,
    min(CASE WHEN p IS NULL THEN label ELSE (label = p)::DOUBLE END) AS label,
    min(CASE WHEN p IS NULL THEN prediction ELSE (prediction = p)::DOUBLE END) AS prediction
FROM predictions CROSS JOIN positive
WHERE trial_id = $trial AND split = $split
GROUP BY example ORDER BY example
"""


def _read(catalog: Catalog, network: Network) -> Answers:
    rows = catalog.query(_ANSWERS, {"trial": network.trial_id, "split": network.split})
    examples, labels, predicted = (
        rows[name].to_numpy() for name in ("example", "label", "prediction")
    )
    return answers_of(network.metric, examples, labels, predicted)


def answers_of(metric: str, examples: Array, labels: Array, predicted: Array) -> Answers:
    """(n,) each, ascending by example."""
    score = None
    finite = len(examples) and np.isfinite(labels).all() and np.isfinite(predicted).all()
    if finite and metric in METRICS:
        alone = patterns_of(metric, labels, predicted[:, None])
        score = 100 * float(scores(metric, alone)[0])
    return Answers(examples, labels, predicted, score)


def compare(networks: Sequence[Network], read: Reader) -> Compared:
    """Their answers side by side, in the order of the examples."""
    answers = [read(network) for network in networks]
    reason = _why_not(networks, answers)
    if reason:
        return Compared(np.empty(0), np.empty((0, len(networks))), reason)
    predicted = np.column_stack([answer.predicted for answer in answers])
    return Compared(answers[0].labels, predicted)


def _why_not(networks: Sequence[Network], answers: Sequence[Answers]) -> str | None:
    first = answers[0]
    if len({network.metric for network in networks}) > 1:
        return "different metrics"
    for network, answer in zip(networks, answers, strict=True):
        reason = _unusable(network, answer)
        if reason:
            return reason
        if not np.array_equal(answer.examples, first.examples):
            return "different examples"
        if not np.array_equal(answer.labels, first.labels):
            return "different labels"
    return None


def _unusable(network: Network, answer: Answers) -> str | None:
    if network.score is None:
        return "a score is no number"
    if not len(answer.examples):
        return "no predictions"
    if answer.score is None:
        return "a prediction is no number"
    if abs(answer.score - network.score) > _SAME_SCORE:
        return "predictions do not give the score"
    return None
