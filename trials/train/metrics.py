"""Scores of predictions, as fractions: 1.0 is perfect (0 to 1; mcc and correlations -1 to 1).

One answer for every row has no defined mcc or correlation. It counts as 0.0, the score of guessing,
so that a network that did not learn still has a score. Imports scikit-learn and scipy when used.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lp_sweep.storage.errors import DivergedError
from lp_sweep.trials.kinds import kind_of
from lp_sweep.trials.spec.specs import TaskDefinition

Array = npt.NDArray[Any]


def _of_classes(name: str, **settings: Any) -> Callable[[Array, Array], float]:
    """scikit-learn's metric of labels and predicted classes."""

    def metric(labels: Array, predicted: Array) -> float:
        from sklearn import metrics

        return float(getattr(metrics, name)(labels, predicted, **settings))

    return metric


def mcc(labels: Array, predicted: Array) -> float:
    """Matthews correlation of classes; 0.0 if either side is constant."""
    if _constant(labels) or _constant(predicted):
        return 0.0
    return _of_classes("matthews_corrcoef")(labels, predicted)


def _of_numbers(name: str) -> Callable[[Array, Array], float]:
    """scipy's correlation; 0.0 if either side is constant."""

    def metric(labels: Array, predicted: Array) -> float:
        from scipy import stats

        if _constant(labels) or _constant(predicted):
            return 0.0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # for nearly constant predictions the value is valid
            both = (np.asarray(each, np.float64) for each in (labels, predicted))
            value = float(getattr(stats, name)(*both)[0])
        return value if np.isfinite(value) else 0.0

    return metric


def mean_average_precision(labels: Array, logits: Array) -> float:
    """Mean over labels of the average precision of the rows by their logit; (n, C) marks and
    logits. Labels without a row are left out; 0.0 if no label is left."""
    from sklearn.metrics import average_precision_score

    there = (labels > 0).any(axis=0)
    if not there.any():
        return 0.0
    return float(average_precision_score(labels[:, there] > 0, logits[:, there], average="macro"))


METRICS: dict[str, Callable[[Array, Array], float]] = {
    "accuracy": lambda labels, predicted: float(np.mean(labels == predicted)),
    # of class 1, to which `score` maps the task's positive class; 0.0 if no row has it
    "f1": _of_classes("f1_score", zero_division=0.0),
    # the mean over the classes among labels or predictions
    "macro_f1": _of_classes("f1_score", average="macro", zero_division=0.0),
    "mcc": mcc,
    "pearson": _of_numbers("pearsonr"),
    "spearman": _of_numbers("spearmanr"),  # ties have their mean rank
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
    """The index of the class that f1 scores."""
    return list(label_names).index(definition.positive) if definition.positive else 1


def score(
    definition: TaskDefinition, labels: Array, logits: Array, names: Sequence[str] = ()
) -> dict[str, float]:
    """The main metric, then the extra ones. `names`: of the labels. Raises DivergedError."""
    answers, targets = predictions(definition, logits), kind_of(definition).targets(labels)
    metrics = (definition.metric, *definition.extra_metrics)
    return {metric: _scored(definition, metric, targets, answers, names) for metric in metrics}


def of_tally(tally: Array) -> float:
    """The mean of part / whole over m pairs of sums whose whole is not 0; 0.0 without any.
    tally: (n, 2m), what each of n examples adds to each pair."""
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
    definition: TaskDefinition, dev_labels: Array, names: Sequence[str] = ()
) -> float | None:
    """Main metric on dev of always giving the one answer that scores best there (see `Kind.guess`):
    what a network has to beat to have learned anything. The best one by the train rows may score
    less than a network that gives another one. None without rows, and for embeddings."""
    kind = kind_of(definition)
    if not len(dev_labels) or kind.embeds:
        return None
    if (chance := kind.chance(dev_labels, definition.metric)) is not None:
        return chance
    one = kind.guess(dev_labels, definition.metric, positive_label(definition, names))
    if one is None:
        return 0.0
    targets = kind.targets(dev_labels)
    return _scored(definition, definition.metric, targets, np.full_like(targets, one), names)


def _constant(values: Array) -> bool:
    return bool(np.all(values == values[:1]))
