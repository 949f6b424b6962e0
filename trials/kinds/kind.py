"""The base of every kind of task, and the two plain ones: an example has a class, or a number."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from lp_sweep.trials.data.columns import Labels, Rows, class_codes, class_names, numbers
from lp_sweep.trials.spec.scoring import PRECISIONS
from lp_sweep.trials.spec.specs import EMBEDDING_KINDS, TaskDefinition, TaskKind


class Later:
    """A module, imported when it is first used: planning imports the kinds, and needs no torch."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._module), name)


if TYPE_CHECKING:
    import torch as torch
    from torch import Tensor
    from torch.nn import functional as functional
else:
    torch, functional = Later("torch"), Later("torch.nn.functional")
exceptions: Any = Later("sklearn.exceptions")
linear_model: Any = Later("sklearn.linear_model")

Array = npt.NDArray[Any]
Names = tuple[str, ...]
# the head: a problem type of transformers, or `token_classification`
ProblemType = Literal[
    "single_label_classification",
    "multi_label_classification",
    "regression",
    "token_classification",
]


class Kind(ABC):
    """The defaults suit a row that is one example with one label."""

    name: TaskKind
    help: str
    metrics: Names  # the first is the default
    problem_type: ProblemType
    counts_labels: bool  # two answers are equal or not, rather than near or far
    searches = False  # is scored by the documents that it finds for queries
    ranks = False  # a row is a query and a passage, and `group:` may name what a query's rows share
    rows_each = 1  # rows of a split for each example
    losses: Names = ()  # that `loss:` may name; () if there is no choice
    learns_from = "rows"  # the word for train rows: rows, texts, documents
    scored_by = "rows"  # the word for what a score averages over: rows, pairs, queries
    called = "classes"  # the word for outputs of the head: classes, labels, tags
    whole_queries = False  # batches take all rows of a query, then those of the next
    words = False  # an example is a list of words, each with its own label

    @property
    def embeds(self) -> bool:
        return self.name in EMBEDDING_KINDS

    @abstractmethod
    def problem(self, definition: TaskDefinition) -> str | None:
        """Why a definition does not fit this kind; None if it does."""

    @abstractmethod
    def label_names(self, train: Rows, definition: TaskDefinition) -> Names:
        """One name for each output of the head; () for a single number."""

    @abstractmethod
    def labels(self, rows: Rows, definition: TaskDefinition, names: Names) -> Labels:
        """(n,) labels. Raises MissingInputError for a value that is no label."""

    def refuse_unscorable(self, dev: Rows, labels: Labels, definition: TaskDefinition) -> None:
        """Raises MissingInputError for dev rows that can't be scored."""
        return

    def drawn(self, labels: Labels, limit: int) -> Array:
        """Ascending positions of about `limit` rows: a random subset, always the same."""
        return np.sort(np.random.default_rng(0).permutation(len(labels))[:limit])

    @abstractmethod
    def mean_loss(self, logits: Tensor, target: Tensor) -> Tensor:
        """The loss of (B, C) float32 logits and (B,) labels: a scalar."""

    def first_bias(self, labels: Labels) -> Array | None:
        """(C,) the head's output bias before training, from the train labels; None: the model's
        own initialisation."""
        return None

    @abstractmethod
    def no_labels(self, rows: int, outputs: int = 0) -> Labels:
        """(rows,) or (rows, outputs) placeholders for rows without a label."""

    def counts(self, labels: Labels, outputs: int) -> Array:
        """(outputs,) rows that have each label."""
        return np.bincount(labels, minlength=outputs)

    @abstractmethod
    def labelled_loss(self, logits: Tensor, target: Tensor) -> Tensor:
        """As `mean_loss`, but rows of `no_labels` add 0 to the sum and count in the mean."""

    @abstractmethod
    def imitation_loss(self, logits: Tensor, teacher: Tensor, temperature: float) -> Tensor:
        """The loss of (B, C) float32 logits against the teacher's: a scalar (train/distill.py)."""

    def rows_together(self, loss: str) -> int:
        """Consecutive rows that must share a batch: 2 for a loss over pairs."""
        return 1

    def compares_batch(self, loss: str) -> bool:
        """Whether the loss compares rows of a batch with each other, so it can't be split."""
        return False

    def named_loss(
        self, loss: str, logits: Tensor, target: Tensor, teacher: Tensor | None
    ) -> Tensor:
        """One of `losses`: a scalar from (B, C) float32 logits, (B,) labels, the teacher's
        logits."""
        raise ValueError(f"{type(self).__name__} has no loss {loss!r}")

    def stored_labels(self, labels: Labels) -> Array:
        """(n,) the labels of n examples in the table of predictions, from those of a split's
        rows."""
        return labels

    def targets(self, labels: Array) -> Array:
        """(n,) the right answers, from the labels of a split's rows."""
        return labels

    @abstractmethod
    def answers(self, logits: Array) -> Array:
        """(n,) answers for (n, C) finite logits."""

    def other_labels(self, ours: Array, theirs: Array) -> int:
        """Number of examples with different labels by two networks' (n, C) logits."""
        return int((self.answers(ours) != self.answers(theirs)).sum())

    @abstractmethod
    def guess(self, labels: Array, metric: str, positive: int) -> Array | int | None:
        """The answer that scores best if given for every row; None where each scores 0.0."""

    @abstractmethod
    def probe(self, train: Array, dev: Array, labels: Array) -> Array:
        """Logits for the dev rows, (n, C) or (n,), of a linear model fitted to the train rows."""

    def tally(self, metric: str, targets: Array, answers: Array, names: Names) -> Array | None:
        """(n, 2m) what each of n examples adds to m pairs of sums; the metric is the mean of their
        ratios (see `metrics.of_tally`). None for other metrics. `names`: from `label_names`."""
        return None

    def stored(
        self, labels: Labels, logits: Array, metric: str, names: Names
    ) -> Iterator[dict[str, Any]]:
        """Yields each example's row of the table of predictions: `label`, `prediction`, `scores`,
        and the main metric's `tally`, or None."""
        targets, answers = self.targets(labels), self.answers(logits)
        tally = self.tally(metric, targets, answers, names)
        columns = (
            self.stored_labels(targets).tolist(),
            self.stored_answers(targets, answers, tally).tolist(),
            self.stored_scores(targets, logits),
        )
        tallies = [None] * len(columns[0]) if tally is None else tally.tolist()
        for label, answer, scores, each in zip(*columns, tallies, strict=True):
            numbers = {"label": float(label), "prediction": float(answer)}
            yield {**numbers, "scores": scores, "tally": each}

    def stored_answers(self, targets: Array, answers: Array, tally: Array | None) -> Array:
        """(n,) the predictions of n examples."""
        return answers

    def stored_scores(self, targets: Array, logits: Array) -> Iterable[list[float]]:
        """The scores of each of n examples, from which `restored` makes the logits."""
        scores: list[list[float]] = logits.tolist()
        return scores

    def restored(self, labels: Labels, scores: Sequence[Sequence[float]]) -> Array:
        """(n, C) logits of a split's rows from the stored `scores`; rows of unequal length are
        concatenated."""
        rows = [np.asarray(row, np.float32) for row in scores]
        return np.stack(rows) if len({len(row) for row in rows}) == 1 else np.concatenate(rows)

    def chance(self, targets: Array, metric: str) -> float | None:
        """The expected score of a random answer; None where `guess` scores better."""
        return None


PROBE_ITERATIONS = 1000
_NO_CLASS = -100


class Classification(Kind):
    name: TaskKind = "classification"
    help = "one of several classes"
    metrics: Names = (
        *("accuracy", "f1", "macro_f1", "mcc", "weighted_f1", "balanced_accuracy"),
        *("roc_auc", "average_precision", *PRECISIONS),
    )
    problem_type: ProblemType = "single_label_classification"
    counts_labels = True

    def problem(self, definition: TaskDefinition) -> str | None:
        labels = definition.labels
        if len(set(labels)) != len(labels) or len(labels) == 1:
            return f"'labels' must be two or more, all different: {labels}."
        return None

    def label_names(self, train: Rows, definition: TaskDefinition) -> Names:
        return class_names(train, definition)

    def labels(self, rows: Rows, definition: TaskDefinition, names: Names) -> Labels:
        return class_codes(rows, definition, names)

    def mean_loss(self, logits: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(logits, target.long())

    def no_labels(self, rows: int, outputs: int = 0) -> Labels:
        return np.full(rows, _NO_CLASS, np.int64)

    def labelled_loss(self, logits: Tensor, target: Tensor) -> Tensor:
        losses = functional.cross_entropy(
            logits, target.long(), ignore_index=_NO_CLASS, reduction="sum"
        )
        return losses / len(target)

    def imitation_loss(self, logits: Tensor, teacher: Tensor, temperature: float) -> Tensor:
        own, other = (functional.log_softmax(of / temperature, dim=-1) for of in (logits, teacher))
        divergence = functional.kl_div(own, other, reduction="batchmean", log_target=True)
        return divergence * temperature**2

    def answers(self, logits: Array) -> Array:
        return np.asarray(logits.argmax(axis=1), np.int64)

    def guess(self, labels: Array, metric: str, positive: int) -> int | None:
        """The most common class (the lowest in a tie); for f1 the positive class, since any other
        scores 0."""
        there = labels[labels != _NO_CLASS]
        return positive if metric == "f1" else int(np.bincount(there).argmax())

    def probe(self, train: Array, dev: Array, labels: Array) -> Array:
        """Decision values of a logistic regression, (n, C): column c is class c."""
        present = np.unique(labels)
        lowest = np.finfo(np.float64).min  # not -inf: a score refuses what is not finite
        values = np.full((len(dev), int(present[-1]) + 1), lowest)
        if len(present) == 1:  # nothing to fit, and scikit-learn refuses
            values[:, present] = 0.0
            return values
        probe = linear_model.LogisticRegression(solver="lbfgs", C=1.0, max_iter=PROBE_ITERATIONS)
        with warnings.catch_warnings():
            # convex and standardised: after this many iterations the scores no longer change
            warnings.simplefilter("ignore", exceptions.ConvergenceWarning)
            probe.fit(train, labels)
        decision = probe.decision_function(dev)
        if len(present) == 2:  # (n,): the margin of the second class over the first
            decision = np.stack([np.zeros_like(decision), decision], axis=1)
        values[:, present] = decision
        return values


class Regression(Kind):
    name: TaskKind = "regression"
    help = "a number"
    metrics: Names = ("pearson", "spearman")
    problem_type: ProblemType = "regression"
    counts_labels = False

    def problem(self, definition: TaskDefinition) -> str | None:
        return "regression has numbers, not 'labels'. Remove one." if definition.labels else None

    def label_names(self, train: Rows, definition: TaskDefinition) -> Names:
        return ()

    def labels(self, rows: Rows, definition: TaskDefinition, names: Names) -> Labels:
        return numbers(rows, definition)

    def mean_loss(self, logits: Tensor, target: Tensor) -> Tensor:
        return functional.mse_loss(logits.squeeze(-1), target.float())

    def no_labels(self, rows: int, outputs: int = 0) -> Labels:
        return np.full(rows, np.nan, np.float32)

    def labelled_loss(self, logits: Tensor, target: Tensor) -> Tensor:
        own = logits.squeeze(-1).detach()  # not a mask on the loss: its gradient would be NaN
        return self.mean_loss(logits, torch.where(target.isnan(), own, target.float()))

    def imitation_loss(self, logits: Tensor, teacher: Tensor, temperature: float) -> Tensor:
        return functional.mse_loss(logits, teacher)

    def answers(self, logits: Array) -> Array:
        return np.asarray(logits, np.float64).reshape(len(logits))

    def guess(self, labels: Array, metric: str, positive: int) -> int | None:
        return None

    def probe(self, train: Array, dev: Array, labels: Array) -> Array:
        return np.asarray(linear_model.Ridge(alpha=1.0).fit(train, labels).predict(dev))
