"""Several labels for a text, or none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lp_sweep.storage.specs import TaskDefinition
from lp_sweep.trials.kinds.kind import Array, Kind, ProblemType
from lp_sweep.trials.kinds.labelled import Classification

if TYPE_CHECKING:
    import torch

    from lp_sweep.trials.data.columns import Labels, Rows

_NO_LABEL = -1


class MultiLabel(Kind):
    """Labels are marks (n, C) of 0 and 1. A label is given where its logit is above 0, which is a
    probability above 0.5. Answers are the logits: average precision ranks by them."""

    help = "several labels for each text, or none"
    metrics: tuple[str, ...] = ("micro_f1", "macro_f1", "mean_average_precision")
    problem_type: ProblemType = "multi_label_classification"
    called = "labels"
    counts_labels = True

    def problem(self, definition: TaskDefinition) -> str | None:
        for name, given in (
            ("labels", definition.labels),
            ("label", definition.label_columns),
        ):
            if given and (len(set(given)) != len(given) or len(given) == 1):
                return f"`{name}:` must be two or more, all different: {list(given)}."
        if definition.labels and definition.label_columns:
            return "the columns of `label:` are the labels: remove `labels:`."
        return None

    def label_names(self, train: Rows, definition: TaskDefinition) -> tuple[str, ...]:
        from lp_sweep.trials.kinds.labelsets import set_names

        return set_names(train, definition)

    def labels(self, rows: Rows, definition: TaskDefinition, names: tuple[str, ...]) -> Labels:
        from lp_sweep.trials.kinds.labelsets import marks

        return marks(rows, definition, names)

    def first_bias(self, labels: Labels) -> Array:
        """The log-odds of each label. From 0 the network first learns to say no to rare labels,
        the same for every text, and few of its features outlive that (the prior of Lin et al. 2017,
        *Focal loss for dense object detection*, section 3.3)."""
        rows = labels[labels[:, 0] != _NO_LABEL]
        has = rows.sum(axis=0, dtype=np.int64)
        return np.asarray(np.log((has + 1) / (len(rows) - has + 1)))

    def no_labels(self, rows: int, outputs: int = 0) -> Labels:
        return np.full((rows, outputs), _NO_LABEL, np.int8)

    def counts(self, labels: Labels, outputs: int) -> Array:
        return np.asarray((labels > 0).sum(axis=0))

    def stored_labels(self, labels: Labels) -> Array:
        """How many labels each row has."""
        return np.asarray((labels > 0).sum(axis=1))

    def mean_loss(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        from torch.nn.functional import binary_cross_entropy_with_logits

        return binary_cross_entropy_with_logits(logits, target.float())

    def labelled_loss(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        from torch.nn.functional import binary_cross_entropy_with_logits

        known = (target != _NO_LABEL).float()
        losses = binary_cross_entropy_with_logits(
            logits, target.float() * known, weight=known, reduction="sum"
        )
        return losses / target.numel()

    def imitation_loss(
        self, logits: torch.Tensor, teacher: torch.Tensor, temperature: float
    ) -> torch.Tensor:
        """Binary cross-entropy to the teacher's probabilities; they have no temperature."""
        from torch.nn.functional import binary_cross_entropy_with_logits

        return binary_cross_entropy_with_logits(logits, teacher.sigmoid())

    def answers(self, logits: Array) -> Array:
        return logits

    def other_labels(self, ours: Array, theirs: Array) -> int:
        return int(((ours > 0) != (theirs > 0)).any(axis=1).sum())

    def tally(
        self, metric: str, targets: Array, answers: Array, names: tuple[str, ...]
    ) -> Array | None:
        """F1 is 2 * true positives / (labels + predictions): for micro_f1 of a row in all, for
        macro_f1 of each label by itself."""
        if metric not in ("micro_f1", "macro_f1"):
            return None
        given = answers > 0
        part = 2.0 * (given & (targets > 0))
        whole = given + (targets > 0).astype(np.float64)
        if metric == "micro_f1":
            part, whole = (each.sum(axis=1, keepdims=True) for each in (part, whole))
        return np.stack([part, whole], axis=2).reshape(len(targets), -1)

    def stored(
        self, labels: Labels, logits: Array, metric: str, names: tuple[str, ...]
    ) -> Iterator[dict[str, Any]]:
        tally = self.tally(metric, labels, logits, names)
        tallies = [None] * len(labels) if tally is None else tally.tolist()
        for has, scores, each in zip(self.stored_labels(labels), logits, tallies, strict=True):
            numbers = {"label": float(has), "prediction": float((scores > 0).sum())}
            yield {**numbers, "scores": scores.tolist(), "tally": each}

    def guess(self, train_labels: Array, metric: str, positive: int) -> Array:
        """(C,) of logits 1 and -1, the same labels for every row. For macro_f1 all labels: none
        scores more for being left out. For micro_f1 the most common ones, as many as score best on
        the train rows."""
        rows = train_labels[train_labels[:, 0] != _NO_LABEL]
        counts = rows.sum(axis=0, dtype=np.int64)
        given = np.ones(len(counts))
        if metric == "micro_f1":
            order = np.argsort(-counts, kind="stable")
            numbers = np.arange(1, len(counts) + 1)
            f1 = 2 * counts[order].cumsum() / (counts.sum() + len(rows) * numbers)
            given[order[f1.argmax() + 1 :]] = -1
        return given

    def probe(self, train: Array, dev: Array, labels: Array) -> Array:
        """(n, C) decision values of one logistic regression for each label."""
        one = Classification()
        values = np.empty((len(dev), labels.shape[1]))
        for index, has in enumerate(labels.T.astype(np.int64)):
            both = has.min() != has.max()
            values[:, index] = one.probe(train, dev, has)[:, 1] if both else 2.0 * has[0] - 1
        return values

    def described(self, names: Sequence[str]) -> str:
        between = "; " if any("," in name for name in names) else ", "
        return (
            f"a probability (sigmoid) for each of {between.join(names)}; a label is given above 0.5"
        )
