"""Scores of predictions, as fractions: 1.0 is perfect (0 to 1; mcc and correlations -1 to 1). And
what a dev set can't tell, whatever a network has learned.

One answer for every row has no defined mcc or correlation. It counts as 0.0, the score of guessing,
so that a network that did not learn still has a score.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lp_sweep.storage.errors import DivergedError, SpecError
from lp_sweep.storage.printable import listed, shown
from lp_sweep.trials.data.columns import Labels
from lp_sweep.trials.data.datasource import LoadedTask
from lp_sweep.trials.kinds import kind_of
from lp_sweep.trials.kinds.kind import Later
from lp_sweep.trials.kinds.rankmetrics import by_query
from lp_sweep.trials.spec.scoring import PRECISIONS, facts_of
from lp_sweep.trials.spec.specs import TaskDefinition

Array = npt.NDArray[Any]
sklearn_metrics: Any = Later("sklearn.metrics")
stats: Any = Later("scipy.stats")


def _of_classes(name: str, **settings: Any) -> Callable[[Array, Array], float]:
    """scikit-learn's metric of labels and predicted classes."""

    def metric(labels: Array, predicted: Array) -> float:
        return float(getattr(sklearn_metrics, name)(labels, predicted, **settings))

    return metric


def balanced_accuracy(labels: Array, predicted: Array) -> float:
    """The mean recall of the classes among the labels."""
    there = np.unique(labels)
    return _of_classes("recall_score", average="macro", zero_division=0.0, labels=there)(
        labels, predicted
    )


def mcc(labels: Array, predicted: Array) -> float:
    """Matthews correlation of classes; 0.0 if either side is constant."""
    if _constant(labels) or _constant(predicted):
        return 0.0
    return _of_classes("matthews_corrcoef")(labels, predicted)


def _of_numbers(name: str) -> Callable[[Array, Array], float]:
    """scipy's correlation; 0.0 if either side is constant."""

    def metric(labels: Array, predicted: Array) -> float:
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
    there = (labels > 0).any(axis=0)
    if not there.any():
        return 0.0
    marks, ranked = labels[:, there] > 0, logits[:, there]
    return float(sklearn_metrics.average_precision_score(marks, ranked, average="macro"))


def roc_auc(labels: Array, margins: Array) -> float:
    """The share of pairs of a row of each class that the (n,) margins order rightly, a tie half;
    0.5, as of guessing, without such a pair."""
    return 0.5 if _constant(labels) else float(sklearn_metrics.roc_auc_score(labels, margins))


def average_precision(labels: Array, margins: Array) -> float:
    """0.0 if no row has the class."""
    found = labels.any() and sklearn_metrics.average_precision_score(labels, margins)
    return float(found)


def _recall_at(percent: int) -> Callable[[Array, Array], float]:
    """The largest recall whose precision is at least `percent`; 0.0 if there is none."""

    def metric(labels: Array, margins: Array) -> float:
        if not labels.any():
            return 0.0
        precision, recall, _ = sklearn_metrics.precision_recall_curve(labels, margins)
        return float(recall[precision >= percent / 100].max())

    return metric


METRICS: dict[str, Callable[[Array, Array], float]] = {
    "accuracy": lambda labels, predicted: float(np.mean(labels == predicted)),
    # of class 1, to which `score` maps the task's positive class; 0.0 if no row has it
    "f1": _of_classes("f1_score", zero_division=0.0),
    # the mean over the classes among labels or predictions
    "macro_f1": _of_classes("f1_score", average="macro", zero_division=0.0),
    "weighted_f1": _of_classes("f1_score", average="weighted", zero_division=0.0),
    "balanced_accuracy": balanced_accuracy,
    "mcc": mcc,
    "roc_auc": roc_auc,
    "average_precision": average_precision,
    **{name: _recall_at(percent) for name, percent in PRECISIONS.items()},
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
    """The index of the class that f1, or another metric of one class, scores."""
    return list(label_names).index(definition.positive) if definition.positive else 1


def score(
    definition: TaskDefinition, labels: Array, logits: Array, names: Sequence[str] = ()
) -> dict[str, float]:
    """The main metric, then the extra ones. `names`: of the labels. Raises DivergedError."""
    answers, targets = predictions(definition, logits), kind_of(definition).targets(labels)
    found = {}
    for metric in (definition.metric, *definition.extra_metrics):
        by_margin = facts_of(metric).by_margin
        own = margins(logits, positive_label(definition, names)) if by_margin else answers
        found[metric] = _scored(definition, metric, targets, own, names)
    return found


def margins(logits: Array, positive: int) -> Array:
    """(n,) float64: the logit of class `positive` less that of the other, from (n, 2)."""
    if logits.shape[1] < 2:  # of a probe that has seen one class
        return np.zeros(len(logits))
    both = logits.astype(np.float64)
    return np.asarray(both[:, positive] - both[:, 1 - positive])


def of_tally(tally: Array) -> float:
    """The mean of part / whole over m pairs of sums whose whole is not 0; 0.0 without any.
    tally: (n, 2m), what each of n examples adds to each pair."""
    part, whole = tally.sum(axis=0).reshape(-1, 2).T
    return float((part[whole > 0] / whole[whole > 0]).mean()) if (whole > 0).any() else 0.0


def _scored(
    definition: TaskDefinition, metric: str, targets: Array, answers: Array, names: Sequence[str]
) -> float:
    facts = facts_of(metric)
    if definition.metric_source and metric == definition.metric:
        if facts.own is None or facts.source != definition.metric_source:
            raise SpecError(
                f"metric {metric!r} is a plugin's, and that is not loaded here or has changed. "
                "Name the sweep file that names the plugin."
            )
        return facts.own(targets, answers)
    tally = kind_of(definition).tally(metric, targets, answers, tuple(names))
    if tally is not None:
        return of_tally(tally)
    positive = positive_label(definition, names)
    if facts.of_two_classes:
        targets = (targets == positive).astype(np.int64)
        answers = answers if facts.by_margin else (answers == positive).astype(np.int64)
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


_FEWEST = 3  # rows: with fewer, a score is all, nothing or half
_NAMED = 5


def blindness(definition: TaskDefinition, labels: Labels, names: Sequence[str] = ()) -> str | None:
    """Why scores on dev rows with these labels can't show what a network learned; None if they
    can."""
    kind = kind_of(definition)
    rows = len(kind.stored_labels(labels))
    found = None
    if names:
        found = _lacking_classes(definition, kind.counts(labels, len(names)), names)
    elif kind.ranks:
        if not _in_order(labels):
            found = "in each dev query any order of the passages is right"
    elif not kind.searches and rows > 1 and np.ptp(labels) == 0:
        found = f"all {rows:,} dev {kind.scored_by} have the number {float(labels[0]):g}"
    if found is None and rows < _FEWEST:
        unit = _ONE[kind.scored_by] if rows == 1 else kind.scored_by
        return f"the dev set has only {rows} {unit}"
    return found


def _lacking_classes(
    definition: TaskDefinition, counts: npt.NDArray[np.intp], names: Sequence[str]
) -> str | None:
    kind = kind_of(definition)
    there = [name for name, count in zip(names, counts, strict=True) if count]
    if not there:
        return f"no dev row has one of the {kind.called}"
    if definition.metric == "entity_f1" and there == ["O"]:
        return "the dev sentences have no entity: every tag is 'O'"
    of_a_class = facts_of(definition.metric).of_a_class
    if of_a_class and not counts[positive := positive_label(definition, names)]:
        return (
            f"no dev row has the label {shown(names[positive])}, which {definition.metric} scores"
        )
    if len(there) == 1 and len(names) > 1 and kind.called != "labels":  # a text may have none
        return f"all {counts.sum():,} dev {'words' if kind.words else 'rows'} are {shown(there[0])}"
    return None


_ONE = {"rows": "row", "pairs": "pair", "queries": "query", "sentences": "sentence"}


def _in_order(labels: Labels) -> int:
    """Queries whose passages differ in relevance. (n, 2) relevance and query."""
    return sum(bool(np.ptp(labels[rows, 0])) for rows in by_query(labels))


def gaps(task: LoadedTask) -> Iterator[str]:
    """Yields notes on a dev set: why it is blind, or else what its scores leave out."""
    definition, names = task.definition, task.label_names
    kind, train, dev = kind_of(definition), task.train.labels, task.dev[task.main_split].labels
    if why := blindness(definition, dev, names):
        yield f"{why}, so scores can't show what a network learned. Give other or more dev rows"
        return
    if kind.ranks and (alike := len(by_query(dev)) - _in_order(dev)):
        yield f"in {alike:,} dev queries all passages are equally relevant: any order is right"
    if not names:
        return
    learned, scored = (kind.counts(part, len(names)) for part in (train, dev))
    for chosen, said in (
        ((learned == 0) & (scored > 0), "only in dev: no network can learn it"),
        ((learned > 0) & (scored == 0), "only in train: the score says nothing about it"),
        ((learned == 1) & (scored > 0), "in a single train row: hardly any network can learn it"),
        ((scored == 1) & (learned > 1), "in a single dev row: its score is all or nothing"),
    ):
        if found := [names[at] for at in np.flatnonzero(chosen)]:
            yield f"of the {kind.called} used, {listed(map(shown, found), _NAMED)}: {said}"
