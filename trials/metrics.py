"""Scores of predictions, as fractions: 1.0 is perfect (0 to 1; mcc and correlations -1 to 1).

A constant answer has no defined mcc or correlation; it counts as 0.0, what guessing scores, so that
a network that learnt nothing still has a number. Imports scikit-learn and scipy when used.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lp_sweep.storage.errors import DivergedError
from lp_sweep.storage.specs import TaskDefinition
from lp_sweep.trials.kinds import kind_of

Array = npt.NDArray[Any]


def accuracy(labels: Array, predicted: Array) -> float:
    return float(np.mean(labels == predicted))


def f1(labels: Array, predicted: Array) -> float:
    """F1 of class 1. 0.0 where no row is of class 1 or predicted so. `score` makes class 1 of the
    task's positive class."""
    from sklearn.metrics import f1_score

    return float(f1_score(labels, predicted, pos_label=1, average="binary", zero_division=0.0))


def macro_f1(labels: Array, predicted: Array) -> float:
    """Mean of the F1 of each class that occurs among labels or predictions."""
    from sklearn.metrics import f1_score

    return float(f1_score(labels, predicted, average="macro", zero_division=0.0))


def mcc(labels: Array, predicted: Array) -> float:
    """Matthews correlation of classes; 0.0 where either side is constant."""
    from sklearn.metrics import matthews_corrcoef

    if _constant(labels) or _constant(predicted):
        return 0.0
    return float(matthews_corrcoef(labels, predicted))


def pearson(labels: Array, predicted: Array) -> float:
    """Linear correlation; 0.0 where either side is constant."""
    from scipy.stats import pearsonr

    return _correlation(pearsonr, labels, predicted)


def spearman(labels: Array, predicted: Array) -> float:
    """Rank correlation, ties at their mean rank; 0.0 where either side is constant."""
    from scipy.stats import spearmanr

    return _correlation(spearmanr, labels, predicted)


def mean_average_precision(labels: Array, logits: Array) -> float:
    """Mean over labels of the average precision of the rows by their logit: (n, C) marks and
    logits. A label that no row has is left out; 0.0 where there is no other."""
    from sklearn.metrics import average_precision_score

    there = (labels > 0).any(axis=0)
    if not there.any():
        return 0.0
    return float(average_precision_score(labels[:, there] > 0, logits[:, there], average="macro"))


METRICS: dict[str, Callable[[Array, Array], float]] = {
    "accuracy": accuracy,
    "f1": f1,
    "macro_f1": macro_f1,
    "mcc": mcc,
    "pearson": pearson,
    "spearman": spearman,
    "mean_average_precision": mean_average_precision,
}


def predictions(definition: TaskDefinition, logits: Array) -> Array:
    """(n, num_labels) logits -> (n,) int64 classes; (n, 1) or (n,) -> (n,) float64 numbers.

    Raises DivergedError if a logit is not finite.
    """
    if not np.isfinite(logits).all():
        raise DivergedError(
            "the model's outputs on the dev set are NaN or infinite. Lower the learning rate, or "
            "train with precision fp32."
        )
    return kind_of(definition).answers(logits)


def positive_label(definition: TaskDefinition, label_names: Sequence[str]) -> int:
    """The number of the class that f1 scores."""
    return list(label_names).index(definition.positive) if definition.positive else 1


def score(
    definition: TaskDefinition, labels: Array, logits: Array, names: Sequence[str] = ()
) -> dict[str, float]:
    """The main metric, then the extra ones, over the labels of a split's rows; `names` are those of
    the labels. Raises DivergedError."""
    answers, targets = predictions(definition, logits), kind_of(definition).targets(labels)
    metrics = (definition.metric, *definition.extra_metrics)
    return {metric: _scored(definition, metric, targets, answers, names) for metric in metrics}


def of_tally(tally: Array) -> float:
    """The mean of part / whole over m pairs of sums, those whose whole is 0 left out; 0.0 where
    there is no other. (n, 2m): what each of n examples adds, pair by pair."""
    part, whole = tally.sum(axis=0).reshape(-1, 2).T
    return float((part[whole > 0] / whole[whole > 0]).mean()) if (whole > 0).any() else 0.0


def _scored(
    definition: TaskDefinition, metric: str, targets: Array, answers: Array, names: Sequence[str]
) -> float:
    tally = kind_of(definition).tally(metric, targets, answers, tuple(names))
    if tally is not None:
        return of_tally(tally)
    if metric == "f1":
        positive = positive_label(definition, names)
        targets, answers = ((each == positive).astype(np.int64) for each in (targets, answers))
    return METRICS[metric](targets, answers)


def majority_score(
    definition: TaskDefinition,
    train_labels: Array,
    dev_labels: Array,
    names: Sequence[str] = (),
) -> float | None:
    """Main metric on dev of always guessing one answer, the best that the train rows suggest (see
    `Kind.guess`). None without rows, and where there is no such answer: of vectors."""
    if not len(train_labels) or not len(dev_labels) or kind_of(definition).embeds:
        return None
    kind, positive = kind_of(definition), positive_label(definition, names)
    if (chance := kind.chance(dev_labels, definition.metric)) is not None:
        return chance
    one = kind.guess(train_labels, definition.metric, positive)
    if one is None:
        return 0.0
    targets = kind.targets(dev_labels)
    return _scored(definition, definition.metric, targets, np.full_like(targets, one), names)


def _correlation(of: Callable[[Array, Array], Any], labels: Array, predicted: Array) -> float:
    if _constant(labels) or _constant(predicted):
        return 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # predictions nearly constant: the value still stands
        value = float(of(np.asarray(labels, np.float64), np.asarray(predicted, np.float64))[0])
    return value if np.isfinite(value) else 0.0


def _constant(values: Array) -> bool:
    return bool(np.all(values == values[:1]))
