"""The answers of every kind of task; the defaults are for a row that is an example with a label."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from lp_sweep.storage.specs import TaskDefinition

if TYPE_CHECKING:
    import torch

    from lp_sweep.trials.data.columns import Labels, Rows

Array = npt.NDArray[Any]
# the head: as transformers names one of sequences, and `token_classification`
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
    counts_labels: bool  # whether two answers are the same or not, rather than near or far
    embeds = False  # whether it maps each text to a vector, and learns from the full model alone
    searches = False  # whether it is scored by the documents that it finds for queries
    rows_each = 1  # of a split, for an example
    losses: tuple[str, ...] = ()  # that a task may name; () where it has one of its own
    learns_from = "rows"  # in words, what a train row is: rows, texts, documents
    scored_by = "rows"  # in words, what a score is a mean over: rows, pairs, queries
    called = "classes"  # in words, what the outputs of the head are: classes, labels, tags
    guessing = "always guessing one label"  # whose score `guess` or `chance` is, in words
    whole_queries = False  # whether batches take the rows of one query after those of another
    words = False  # whether an example is a list of words, each with a label of its own

    @abstractmethod
    def problem(self, definition: TaskDefinition) -> str | None:
        """Why a definition is none of this kind."""

    @abstractmethod
    def label_names(self, train: Rows, definition: TaskDefinition) -> tuple[str, ...]:
        """One name for each output of the head; () for a single number."""

    @abstractmethod
    def labels(self, rows: Rows, definition: TaskDefinition, names: tuple[str, ...]) -> Labels:
        """(n,) of n rows. Raises MissingInputError for what is no label."""

    def refuse_unscorable(self, dev: Rows, labels: Labels, definition: TaskDefinition) -> None:
        """Raises MissingInputError for dev rows that are no matter of a score."""
        return

    def drawn(self, labels: Labels, limit: int) -> Array:
        """About so many of n rows, drawn at random, always the same: ascending places."""
        return np.sort(np.random.default_rng(0).permutation(len(labels))[:limit])

    @abstractmethod
    def mean_loss(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The loss of (B, C) float32 logits and (B,) labels: a scalar."""

    def first_bias(self, labels: Labels) -> Array | None:
        """(C,) the bias of the head's output before training, from the train labels; None: as the
        model draws it."""
        return None

    @abstractmethod
    def no_labels(self, rows: int, outputs: int = 0) -> Labels:
        """(rows,), or (rows, outputs), of what stands for a label where there is none."""

    def counts(self, labels: Labels, outputs: int) -> Array:
        """(outputs,) rows that have each label."""
        return np.bincount(labels, minlength=outputs)

    @abstractmethod
    def labelled_loss(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """As `mean_loss`, over all B rows; those of `no_labels` add 0 to the sum."""

    @abstractmethod
    def imitation_loss(
        self, logits: torch.Tensor, teacher: torch.Tensor, temperature: float
    ) -> torch.Tensor:
        """The loss of (B, C) float32 logits against the teacher's: a scalar (train/distill.py)."""

    def rows_together(self, loss: str) -> int:
        """Rows of a split that share a batch, one after the other: 2 where it learns from pairs."""
        return 1

    def compares_batch(self, loss: str) -> bool:
        """Whether the rows of a batch are compared with each other: then it is not cut in parts."""
        return False

    def named_loss(
        self, loss: str, logits: torch.Tensor, target: torch.Tensor, teacher: torch.Tensor | None
    ) -> torch.Tensor:
        """One of `losses`, of (B, C) float32 logits, (B,) labels and the teacher's logits: a
        scalar."""
        raise ValueError(f"{type(self).__name__} has no loss {loss!r}")

    def stored_labels(self, labels: Labels) -> Array:
        """(n,) the label of each of n examples as the table of predictions has it, from the labels
        of a split as they were read."""
        return labels

    def targets(self, labels: Array) -> Array:
        """(n,) what n answers should be, from the labels of the rows of a split."""
        return labels

    @abstractmethod
    def answers(self, logits: Array) -> Array:
        """(n,) answers for (n, C) finite logits."""

    def other_labels(self, ours: Array, theirs: Array) -> int:
        """Examples to which two networks' (n, C) logits give different labels."""
        return int((self.answers(ours) != self.answers(theirs)).sum())

    @abstractmethod
    def guess(self, train_labels: Array, metric: str, positive: int) -> Array | int | None:
        """The answer that guessing gives for every row; None where that scores 0.0."""

    @abstractmethod
    def probe(self, train: Array, dev: Array, labels: Array) -> Array:
        """Logits of a linear model for the dev rows: (n, C) or (n,)."""

    def tally(
        self, metric: str, targets: Array, answers: Array, names: tuple[str, ...]
    ) -> Array | None:
        """(n, 2m): what each of n examples adds to the m pairs of sums that a metric is the mean
        ratio of (see `metrics.of_tally`); None where it is not of that sort. `names`: as of
        `label_names`."""
        return None

    def stored(
        self, labels: Labels, logits: Array, metric: str, names: tuple[str, ...]
    ) -> Iterator[dict[str, Any]]:
        """A row of the table of predictions for each example of a split: `label`, `prediction`,
        `scores` and `tally` of the main metric. A missing key is null."""
        answers = self.answers(logits)
        for label, answer, scores in zip(labels, answers, logits, strict=True):
            yield {"label": float(label), "prediction": float(answer), "scores": scores.tolist()}

    def restored(self, labels: Labels, scores: Sequence[Sequence[float]]) -> Array:
        """(n, C) logits of a split's rows, from the `scores` that are stored; of rows of unequal
        length one after the other."""
        rows = [np.asarray(row, np.float32) for row in scores]
        return np.stack(rows) if len({len(row) for row in rows}) == 1 else np.concatenate(rows)

    def chance(self, targets: Array, metric: str) -> float | None:
        """The score of a random answer; None where `guess` has a better one."""
        return None

    @abstractmethod
    def described(self, names: Sequence[str]) -> str:
        """The network's output, for a model card; `names` are safe to print."""
