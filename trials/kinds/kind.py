"""The base of every kind of task. The defaults suit a row that is one example with one label."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from lp_sweep.trials.data.columns import Labels, Rows
from lp_sweep.trials.spec.specs import TaskDefinition

if TYPE_CHECKING:
    import torch

Array = npt.NDArray[Any]
# the head: a problem type of transformers, or `token_classification`
ProblemType = Literal[
    "single_label_classification",
    "multi_label_classification",
    "regression",
    "token_classification",
]


class Kind(ABC):
    help: str
    metrics: tuple[str, ...]  # the first is the default
    problem_type: ProblemType
    counts_labels: bool  # two answers are equal or not, rather than near or far
    embeds = False  # maps each text to a vector, and learns from the full model alone
    searches = False  # is scored by the documents that it finds for queries
    ranks = False  # a row is a query and a passage, and `group:` may name what a query's rows share
    rows_each = 1  # rows of a split for each example
    losses: tuple[str, ...] = ()  # that `loss:` may name; () if there is no choice
    learns_from = "rows"  # the word for train rows: rows, texts, documents
    scored_by = "rows"  # the word for what a score averages over: rows, pairs, queries
    called = "classes"  # the word for outputs of the head: classes, labels, tags
    whole_queries = False  # batches take all rows of a query, then those of the next
    words = False  # an example is a list of words, each with its own label

    @abstractmethod
    def problem(self, definition: TaskDefinition) -> str | None:
        """Why a definition does not fit this kind; None if it does."""

    @abstractmethod
    def label_names(self, train: Rows, definition: TaskDefinition) -> tuple[str, ...]:
        """One name for each output of the head; () for a single number."""

    @abstractmethod
    def labels(self, rows: Rows, definition: TaskDefinition, names: tuple[str, ...]) -> Labels:
        """(n,) labels. Raises MissingInputError for a value that is no label."""

    def refuse_unscorable(self, dev: Rows, labels: Labels, definition: TaskDefinition) -> None:
        """Raises MissingInputError for dev rows that can't be scored."""
        return

    def drawn(self, labels: Labels, limit: int) -> Array:
        """Ascending positions of about `limit` rows: a random subset, always the same."""
        return np.sort(np.random.default_rng(0).permutation(len(labels))[:limit])

    @abstractmethod
    def mean_loss(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
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
    def labelled_loss(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """As `mean_loss`, but rows of `no_labels` add 0 to the sum and count in the mean."""

    @abstractmethod
    def imitation_loss(
        self, logits: torch.Tensor, teacher: torch.Tensor, temperature: float
    ) -> torch.Tensor:
        """The loss of (B, C) float32 logits against the teacher's: a scalar (train/distill.py)."""

    def rows_together(self, loss: str) -> int:
        """Consecutive rows that must share a batch: 2 for a loss over pairs."""
        return 1

    def compares_batch(self, loss: str) -> bool:
        """Whether the loss compares rows of a batch with each other, so it can't be split."""
        return False

    def named_loss(
        self, loss: str, logits: torch.Tensor, target: torch.Tensor, teacher: torch.Tensor | None
    ) -> torch.Tensor:
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

    def tally(
        self, metric: str, targets: Array, answers: Array, names: tuple[str, ...]
    ) -> Array | None:
        """(n, 2m) what each of n examples adds to m pairs of sums; the metric is the mean of their
        ratios (see `metrics.of_tally`). None for other metrics. `names`: from `label_names`."""
        return None

    def stored(
        self, labels: Labels, logits: Array, metric: str, names: tuple[str, ...]
    ) -> Iterator[dict[str, Any]]:
        """Yields each example's row of the table of predictions: `label`, `prediction`, `scores`,
        and the main metric's `tally`. A missing key is null."""
        answers = self.answers(logits)
        for label, answer, scores in zip(labels, answers, logits, strict=True):
            yield {"label": float(label), "prediction": float(answer), "scores": scores.tolist()}

    def restored(self, labels: Labels, scores: Sequence[Sequence[float]]) -> Array:
        """(n, C) logits of a split's rows from the stored `scores`; rows of unequal length are
        concatenated."""
        rows = [np.asarray(row, np.float32) for row in scores]
        return np.stack(rows) if len({len(row) for row in rows}) == 1 else np.concatenate(rows)

    def chance(self, targets: Array, metric: str) -> float | None:
        """The expected score of a random answer; None where `guess` scores better."""
        return None
