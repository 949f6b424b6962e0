"""The kinds of tasks, one object each: all that differs between classes and numbers.

A kind knows its metrics, how a label column becomes numbers, what the head is, the loss, how logits
become answers, the score of always guessing, the probe of a layer, and what a model card says of
its answers. `KINDS` is the table; nobody else asks for a kind by its name. Planning imports this
module, so torch, pyarrow and scikit-learn are imported where they are used.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from lp_sweep.storage.errors import MissingInputError
from lp_sweep.storage.specs import TaskDefinition, TaskKind

if TYPE_CHECKING:
    import torch

    from lp_sweep.trials.columns import Labels, Rows

Array = npt.NDArray[Any]
ProblemType = Literal["single_label_classification", "regression"]  # as transformers names a head
PROBE_ITERATIONS = 1000
_NO_CLASS = -100


class Kind(Protocol):
    help: str
    metrics: tuple[str, ...]  # the first is the default
    problem_type: ProblemType
    counts_labels: bool  # whether two answers are the same or not, rather than near or far
    embeds: bool  # whether it maps each text to a vector, and learns from the full model alone
    rows_each: int  # of a split, for an example

    def problem(self, definition: TaskDefinition) -> str | None:
        """Why a definition is none of this kind."""

    def label_names(self, train: Rows, definition: TaskDefinition) -> tuple[str, ...]:
        """One name for each output of the head; () for a single number."""

    def labels(self, rows: Rows, definition: TaskDefinition, names: tuple[str, ...]) -> Labels:
        """(n,) of n rows. Raises MissingInputError for what is no label."""

    def mean_loss(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The loss of (B, C) float32 logits and (B,) labels: a scalar."""

    def no_labels(self, rows: int) -> Labels:
        """(rows,) of what stands for a label where there is none."""

    def labelled_loss(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """As `mean_loss`, over all B rows; those of `no_labels` add 0 to the sum."""

    def imitation_loss(
        self, logits: torch.Tensor, teacher: torch.Tensor, temperature: float
    ) -> torch.Tensor:
        """How far (B, C) float32 logits are from the teacher's: a scalar. See trials/distill.py."""

    def targets(self, labels: Array) -> Array:
        """(n,) what n answers should be, from the labels of the rows of a split."""

    def answers(self, logits: Array) -> Array:
        """(n,) answers for (n, C) finite logits."""

    def guess(self, train_labels: Array, metric: str, positive: int) -> int | None:
        """The answer that guessing gives for every row; None where that scores 0.0."""

    def probe(self, train: Array, dev: Array, labels: Array) -> Array:
        """Logits of a linear model for the dev rows: (n, C) or (n,)."""

    def described(self, names: Sequence[str]) -> str:
        """The network's output, for a model card; `names` are safe to print."""


class _Labelled:
    """A row is an example and has a label."""

    embeds = False
    rows_each = 1

    def targets(self, labels: Array) -> Array:
        return labels


class Classification(_Labelled):
    help = "one of several classes"
    metrics: tuple[str, ...] = ("accuracy", "f1", "macro_f1", "mcc")
    problem_type: ProblemType = "single_label_classification"
    counts_labels = True

    def problem(self, definition: TaskDefinition) -> str | None:
        labels = definition.labels
        if len(set(labels)) != len(labels) or len(labels) == 1:
            return f"'labels' must be two or more, all different: {labels}."
        return None

    def label_names(self, train: Rows, definition: TaskDefinition) -> tuple[str, ...]:
        from lp_sweep.trials.columns import class_names

        return class_names(train, definition)

    def labels(self, rows: Rows, definition: TaskDefinition, names: tuple[str, ...]) -> Labels:
        from lp_sweep.trials.columns import class_codes

        return class_codes(rows, definition, names)

    def mean_loss(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        from torch.nn.functional import cross_entropy

        return cross_entropy(logits, target.long())

    def no_labels(self, rows: int) -> Labels:
        return np.full(rows, _NO_CLASS, np.int64)

    def labelled_loss(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        from torch.nn.functional import cross_entropy

        losses = cross_entropy(logits, target.long(), ignore_index=_NO_CLASS, reduction="sum")
        return losses / len(target)

    def imitation_loss(
        self, logits: torch.Tensor, teacher: torch.Tensor, temperature: float
    ) -> torch.Tensor:
        from torch.nn.functional import kl_div, log_softmax

        own, other = (log_softmax(of / temperature, dim=-1) for of in (logits, teacher))
        divergence = kl_div(own, other, reduction="batchmean", log_target=True)
        return divergence * temperature**2

    def answers(self, logits: Array) -> Array:
        return np.asarray(logits.argmax(axis=1), np.int64)

    def guess(self, train_labels: Array, metric: str, positive: int) -> int | None:
        """The most common class of the train rows (the lowest of equals); with f1 the positive
        class, since any other scores 0."""
        labels = train_labels[train_labels != _NO_CLASS]
        return positive if metric == "f1" else int(np.bincount(labels).argmax())

    def probe(self, train: Array, dev: Array, labels: Array) -> Array:
        """Decision values of a logistic regression, in the columns of the classes' own numbers."""
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import LogisticRegression

        present = np.unique(labels)
        lowest = np.finfo(np.float64).min  # not -inf: a score refuses what is not finite
        values = np.full((len(dev), int(present[-1]) + 1), lowest)
        if len(present) == 1:  # nothing to fit, and scikit-learn refuses
            values[:, present] = 0.0
            return values
        probe = LogisticRegression(solver="lbfgs", C=1.0, max_iter=PROBE_ITERATIONS)
        with warnings.catch_warnings():
            # The problem is convex and standardised: after so many steps the scores no longer move.
            warnings.simplefilter("ignore", ConvergenceWarning)
            probe.fit(train, labels)
        decision = probe.decision_function(dev)
        if len(present) == 2:  # (N,): how far the second is ahead of the first
            decision = np.stack([np.zeros_like(decision), decision], axis=1)
        values[:, present] = decision
        return values

    def described(self, names: Sequence[str]) -> str:
        between = "; " if any("," in name for name in names) else ", "
        return f"one of {between.join(names)}"


class Regression(_Labelled):
    help = "a number"
    metrics: tuple[str, ...] = ("pearson", "spearman")
    problem_type: ProblemType = "regression"
    counts_labels = False

    def problem(self, definition: TaskDefinition) -> str | None:
        return "regression has numbers, not 'labels'. Remove one." if definition.labels else None

    def label_names(self, train: Rows, definition: TaskDefinition) -> tuple[str, ...]:
        return ()

    def labels(self, rows: Rows, definition: TaskDefinition, names: tuple[str, ...]) -> Labels:
        from lp_sweep.trials.columns import numbers

        return numbers(rows, definition)

    def mean_loss(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        from torch.nn.functional import mse_loss

        return mse_loss(logits.squeeze(-1), target.float())

    def no_labels(self, rows: int) -> Labels:
        return np.full(rows, np.nan, np.float32)

    def labelled_loss(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        import torch

        own = logits.squeeze(-1).detach()  # not a mask on the loss: its gradient would be NaN
        return self.mean_loss(logits, torch.where(target.isnan(), own, target.float()))

    def imitation_loss(
        self, logits: torch.Tensor, teacher: torch.Tensor, temperature: float
    ) -> torch.Tensor:
        from torch.nn.functional import mse_loss

        return mse_loss(logits, teacher)

    def answers(self, logits: Array) -> Array:
        return np.asarray(logits, np.float64).reshape(len(logits))

    def guess(self, train_labels: Array, metric: str, positive: int) -> int | None:
        return None

    def probe(self, train: Array, dev: Array, labels: Array) -> Array:
        from sklearn.linear_model import Ridge

        return np.asarray(Ridge(alpha=1.0).fit(train, labels).predict(dev))

    def described(self, names: Sequence[str]) -> str:
        return (
            "one number, a regression's: the logit itself. In a pipeline take "
            '`function_to_apply="none"`'
        )


class Embedding(Regression):
    """Two texts of an example are two rows of a split, one after the other, each with the score of
    both. There is no head: `logits` are embeddings (2n, H). A pruned network imitates the
    embeddings of the pre-trained full model, and no label is looked at in training."""

    help = "a vector for each text; scored by the cosines of pairs of texts"
    metrics: tuple[str, ...] = ("spearman", "pearson")
    embeds = True
    rows_each = 2

    def problem(self, definition: TaskDefinition) -> str | None:
        if len(definition.text_columns) != 2:
            return "kind embedding scores pairs: `text:` names two columns."
        return super().problem(definition)

    def no_labels(self, rows: int) -> Labels:
        return np.zeros(rows, np.float32)

    def imitation_loss(
        self, logits: torch.Tensor, teacher: torch.Tensor, temperature: float
    ) -> torch.Tensor:
        """1 - cosine."""
        from torch.nn.functional import cosine_similarity

        return 1 - cosine_similarity(logits, teacher, dim=-1).mean()

    def targets(self, labels: Array) -> Array:
        return labels[::2]

    def answers(self, logits: Array) -> Array:
        one, other = logits[::2].astype(np.float64), logits[1::2].astype(np.float64)
        lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
        return np.asarray((one * other).sum(axis=1) / np.maximum(lengths, np.finfo(float).tiny))

    def probe(self, train: Array, dev: Array, labels: Array) -> Array:
        raise MissingInputError("an embedding task has no labels to fit a probe to")

    def described(self, names: Sequence[str]) -> str:
        return "an embedding of each text"


KINDS: dict[TaskKind, Kind] = {
    "classification": Classification(),
    "regression": Regression(),
    "embedding": Embedding(),
}


def kind_of(definition: TaskDefinition) -> Kind:
    return KINDS[definition.kind]
