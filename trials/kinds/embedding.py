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

    def stored(
        self, labels: Labels, logits: Array, metric: str, names: tuple[str, ...]
    ) -> Iterator[dict[str, Any]]:
        for label, answer in zip(self.targets(labels), self.answers(logits), strict=True):
            yield {"label": float(label), "prediction": float(answer), "scores": []}

    def probe(self, train: Array, dev: Array, labels: Array) -> Array:
        raise MissingInputError("an embedding task has no labels to fit a probe to")

    def described(self, names: Sequence[str]) -> str:
        return "an embedding of each text"
