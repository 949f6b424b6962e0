"""A vector for each text, scored on pairs of texts or by search."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from lp_sweep.storage.errors import MissingInputError
from lp_sweep.trials.data.columns import Labels
from lp_sweep.trials.kinds.kind import Array, Names, Regression, functional, torch
from lp_sweep.trials.kinds.rankmetrics import scores, similarities
from lp_sweep.trials.spec.specs import TaskDefinition, TaskKind

if TYPE_CHECKING:
    from torch import Tensor

IMITATE, IMITATE_MSE, IMITATE_SIMILARITIES, COSENT, IN_BATCH = LOSSES = (
    "imitate",
    "imitate_mse",
    "imitate_similarities",
    "cosent",
    "in_batch_negatives",
)
_SCALE = 20.0  # for cosines, as in Sentence Transformers; dot products are not scaled


class Embedding(Regression):
    """The two texts of a pair are consecutive rows of a split, each with the pair's score. There is
    no head: `logits` are embeddings (2n, H). By default a pruned network imitates the embeddings
    of the pre-trained full model, without looking at labels."""

    name: TaskKind = "embedding"
    help = "a vector for each text, scored by the cosines of pairs of texts"
    metrics: Names = ("spearman", "pearson")
    rows_each = 2
    learns_from, scored_by = "texts", "pairs"
    losses: Names = LOSSES

    def __init__(self, *, dot: bool = False) -> None:
        """`dot`: compare vectors by the dot product instead of the cosine."""
        self.dot = dot

    def rows_together(self, loss: str) -> int:
        return 2 if loss in (COSENT, IN_BATCH) else 1

    def compares_batch(self, loss: str) -> bool:
        return loss in (IMITATE_SIMILARITIES, COSENT, IN_BATCH)

    def named_loss(
        self, loss: str, logits: Tensor, target: Tensor, teacher: Tensor | None
    ) -> Tensor:
        if loss == COSENT:
            return self._cosent(logits, target[::2])
        if loss == IN_BATCH:
            return self._in_batch_negatives(logits)
        assert teacher is not None, loss
        if loss == IMITATE_SIMILARITIES:
            return self.imitation_loss(logits, teacher, 1.0) + self._gap(logits, teacher)
        return functional.mse_loss(logits, teacher)

    def _cosent(self, vectors: Tensor, scores: Tensor) -> Tensor:
        """CoSENT (Su 2022, https://kexue.fm/archives/8847): log(1 + sum of exp(s_i - s_j)) over all
        text pairs i and j of the batch where i has the lower score. (2B, H) vectors, (B,) scores;
        0 if all scores are equal."""
        one, other = vectors[::2], vectors[1::2]
        alike = (one * other).sum(-1)
        if not self.dot:
            alike = functional.cosine_similarity(one, other) * _SCALE
        less = scores[:, None] < scores[None, :]  # (B, B)
        gaps = (alike[:, None] - alike[None, :]).masked_fill(~less, -torch.inf)
        return torch.cat([alike.new_zeros(1), gaps.flatten()]).logsumexp(0)

    def _in_batch_negatives(self, vectors: Tensor) -> Tensor:
        """Cross-entropy of finding each first text's partner among all second texts of the batch:
        multiple negatives ranking (Henderson et al. 2017, arXiv 1705.00652, section 4.4)."""
        one, other = vectors[::2], vectors[1::2]
        alike = one @ other.T
        if not self.dot:
            alike = functional.normalize(one) @ functional.normalize(other).T * _SCALE
        return functional.cross_entropy(alike, torch.arange(len(alike), device=alike.device))

    def _gap(self, vectors: Tensor, teacher: Tensor) -> Tensor:
        """Mean squared difference between the student's and the teacher's similarities of all texts
        of a batch (Tung and Mori 2019, arXiv 1907.09682, with cosines). (B, H) each."""
        own, other = (of if self.dot else functional.normalize(of) for of in (vectors, teacher))
        return functional.mse_loss(own @ own.T, other @ other.T)

    def problem(self, definition: TaskDefinition) -> str | None:
        if len(definition.text_columns) != 2:
            return "kind embedding scores pairs: name two columns (--text twice)."
        return super().problem(definition)

    def no_labels(self, rows: int, outputs: int = 0) -> Labels:
        return np.zeros(rows, np.float32)

    def imitation_loss(self, logits: Tensor, teacher: Tensor, temperature: float) -> Tensor:
        """1 - cosine; for dot products, where lengths matter, the squared difference."""
        if self.dot:
            return functional.mse_loss(logits, teacher)
        return 1 - functional.cosine_similarity(logits, teacher, dim=-1).mean()

    def targets(self, labels: Array) -> Array:
        return labels[::2]

    def answers(self, logits: Array) -> Array:
        one, other = logits[::2].astype(np.float64), logits[1::2].astype(np.float64)
        alike = np.asarray((one * other).sum(axis=1))
        if self.dot:
            return alike
        lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
        return np.asarray(alike / np.maximum(lengths, np.finfo(float).tiny))

    def stored_scores(self, targets: Array, logits: Array) -> Iterable[list[float]]:
        return [[]] * len(targets)

    def probe(self, train: Array, dev: Array, labels: Array) -> Array:
        raise MissingInputError("an embedding task has no labels to fit a probe to")


class Retrieval(Embedding):
    """An example is a query. The rows of a dev split are the queries, then the documents of the
    corpus; its labels are the judgements, (J, 3) as in `search`."""

    name: TaskKind = "retrieval"
    help = "set for you when `kind: embedding` has a `corpus:`"
    metrics: Names = ("ndcg@10", "mrr@10", "recall@100")
    searches = True
    rows_each = 1
    learns_from, scored_by = "documents", "queries"

    def problem(self, definition: TaskDefinition) -> str | None:
        if definition.labels:
            return "kind retrieval has relevance, not 'labels'. Remove them."
        return None

    def stored_labels(self, labels: Labels) -> Array:
        """The number of relevant documents."""
        relevant = labels[labels[:, 2] > 0, 0]
        return np.bincount(relevant.astype(np.int64)).astype(np.float64)

    def targets(self, labels: Array) -> Array:
        return labels

    def answers(self, logits: Array) -> Array:
        return logits

    def tally(self, metric: str, targets: Array, answers: Array, names: Names) -> Array | None:
        found = scores(metric, targets, answers, dot=self.dot)
        return np.column_stack([found, np.ones_like(found)])

    def stored_answers(self, targets: Array, answers: Array, tally: Array | None) -> Array:
        """The score of each query."""
        assert tally is not None
        return np.asarray(tally[:, 0])

    def stored_scores(self, targets: Array, logits: Array) -> Iterable[list[float]]:
        """The similarities of a query to each relevant document, in the order of the corpus."""
        ends = np.cumsum(self.stored_labels(targets)).astype(np.int64)
        near = np.split(similarities(targets, logits, dot=self.dot), ends[:-1])
        return [each.tolist() for each in near]
