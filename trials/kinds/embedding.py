"""A vector for each text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lp_sweep.storage.errors import MissingInputError
from lp_sweep.storage.specs import TaskDefinition
from lp_sweep.trials.kinds.kind import Array
from lp_sweep.trials.kinds.labelled import Regression

if TYPE_CHECKING:
    import torch

    from lp_sweep.trials.columns import Labels


IMITATE, IMITATE_MSE, IMITATE_SIMILARITIES, COSENT, IN_BATCH = LOSSES = (
    "imitate",
    "imitate_mse",
    "imitate_similarities",
    "cosent",
    "in_batch_negatives",
)


class Embedding(Regression):
    """Two texts of an example are two rows of a split, one after the other, each with the score of
    both. There is no head: `logits` are embeddings (2n, H). A pruned network imitates the
    embeddings of the pre-trained full model, and no label is looked at in training."""

    help = "a vector for each text; scored by the cosines of pairs of texts"
    metrics: tuple[str, ...] = ("spearman", "pearson")
    embeds = True
    rows_each = 2
    learns_from, scored_by = "texts", "pairs"
    losses: tuple[str, ...] = LOSSES

    def __init__(self, *, dot: bool = False) -> None:
        """`dot`: vectors are compared by the dot product, else by the cosine."""
        self.dot = dot

    def rows_together(self, loss: str) -> int:
        return 2 if loss in (COSENT, IN_BATCH) else 1

    def compares_batch(self, loss: str) -> bool:
        return loss in (IMITATE_SIMILARITIES, COSENT, IN_BATCH)

    def named_loss(
        self, loss: str, logits: torch.Tensor, target: torch.Tensor, teacher: torch.Tensor | None
    ) -> torch.Tensor:
        from torch.nn.functional import mse_loss

        from lp_sweep.trials import pairloss

        if loss == COSENT:
            return pairloss.cosent(logits, target[::2], dot=self.dot)
        if loss == IN_BATCH:
            return pairloss.in_batch_negatives(logits, dot=self.dot)
        assert teacher is not None, loss
        if loss == IMITATE_SIMILARITIES:
            own = self.imitation_loss(logits, teacher, 1.0)
            return own + pairloss.similarity_gap(logits, teacher, dot=self.dot)
        return mse_loss(logits, teacher)

    def problem(self, definition: TaskDefinition) -> str | None:
        if len(definition.text_columns) != 2:
            return "kind embedding scores pairs: `text:` names two columns."
        return super().problem(definition)

    def no_labels(self, rows: int, outputs: int = 0) -> Labels:
        return np.zeros(rows, np.float32)

    def imitation_loss(
        self, logits: torch.Tensor, teacher: torch.Tensor, temperature: float
    ) -> torch.Tensor:
        """1 - cosine; where lengths matter, the squared difference."""
        from torch.nn.functional import cosine_similarity, mse_loss

        if self.dot:
            return mse_loss(logits, teacher)
        return 1 - cosine_similarity(logits, teacher, dim=-1).mean()

    def targets(self, labels: Array) -> Array:
        return labels[::2]

    def answers(self, logits: Array) -> Array:
        one, other = logits[::2].astype(np.float64), logits[1::2].astype(np.float64)
        alike = np.asarray((one * other).sum(axis=1))
        if self.dot:
            return alike
        lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
        return np.asarray(alike / np.maximum(lengths, np.finfo(float).tiny))

    def stored(
        self, labels: Labels, logits: Array, metric: str, names: tuple[str, ...]
    ) -> Iterator[dict[str, Any]]:
        for label, answer in zip(self.targets(labels), self.answers(logits), strict=True):
            yield {"label": float(label), "prediction": float(answer), "scores": []}

    def probe(self, train: Array, dev: Array, labels: Array) -> Array:
        raise MissingInputError("an embedding task has no labels to fit a probe to")

    def described(self, names: Sequence[str]) -> str:
        return "an embedding of each text"
