"""One label for each example: a class or a number."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np

from lp_sweep.trials.data.columns import Labels, Rows, class_codes, class_names, numbers
from lp_sweep.trials.kinds.kind import Array, Kind, ProblemType
from lp_sweep.trials.spec.specs import TaskDefinition

if TYPE_CHECKING:
    import torch

PROBE_ITERATIONS = 1000
_NO_CLASS = -100


class Classification(Kind):
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
        return class_names(train, definition)

    def labels(self, rows: Rows, definition: TaskDefinition, names: tuple[str, ...]) -> Labels:
        return class_codes(rows, definition, names)

    def mean_loss(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        from torch.nn.functional import cross_entropy

        return cross_entropy(logits, target.long())

    def no_labels(self, rows: int, outputs: int = 0) -> Labels:
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

    def guess(self, labels: Array, metric: str, positive: int) -> int | None:
        """The most common class (the lowest in a tie); for f1 the positive class, since any other
        scores 0."""
        there = labels[labels != _NO_CLASS]
        return positive if metric == "f1" else int(np.bincount(there).argmax())

    def probe(self, train: Array, dev: Array, labels: Array) -> Array:
        """Decision values of a logistic regression, (n, C): column c is class c."""
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
            # convex and standardised: after this many iterations the scores no longer change
            warnings.simplefilter("ignore", ConvergenceWarning)
            probe.fit(train, labels)
        decision = probe.decision_function(dev)
        if len(present) == 2:  # (n,): the margin of the second class over the first
            decision = np.stack([np.zeros_like(decision), decision], axis=1)
        values[:, present] = decision
        return values


class Regression(Kind):
    help = "a number"
    metrics: tuple[str, ...] = ("pearson", "spearman")
    problem_type: ProblemType = "regression"
    counts_labels = False

    def problem(self, definition: TaskDefinition) -> str | None:
        return "regression has numbers, not 'labels'. Remove one." if definition.labels else None

    def label_names(self, train: Rows, definition: TaskDefinition) -> tuple[str, ...]:
        return ()

    def labels(self, rows: Rows, definition: TaskDefinition, names: tuple[str, ...]) -> Labels:
        return numbers(rows, definition)

    def mean_loss(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        from torch.nn.functional import mse_loss

        return mse_loss(logits.squeeze(-1), target.float())

    def no_labels(self, rows: int, outputs: int = 0) -> Labels:
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

    def guess(self, labels: Array, metric: str, positive: int) -> int | None:
        return None

    def probe(self, train: Array, dev: Array, labels: Array) -> Array:
        from sklearn.linear_model import Ridge

        return np.asarray(Ridge(alpha=1.0).fit(train, labels).predict(dev))
