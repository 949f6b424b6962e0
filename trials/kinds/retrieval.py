"""A vector for each text, scored by search."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from lp_sweep.storage.specs import TaskDefinition
from lp_sweep.trials.kinds.embedding import Embedding
from lp_sweep.trials.kinds.kind import Array

if TYPE_CHECKING:
    from lp_sweep.trials.columns import Labels


class Retrieval(Embedding):
    """An example is a query. The rows of its dev split are the queries, then the documents of the
    corpus, and its labels what is judged: (J, 3), see `trials.search`."""

    help = "as embedding, scored by search: corpus, queries and judgements in files of their own"
    metrics: tuple[str, ...] = ("ndcg@10", "mrr@10", "recall@100")
    searches = True
    rows_each = 1
    learns_from, scored_by = "documents", "queries"

    def problem(self, definition: TaskDefinition) -> str | None:
        if definition.labels:
            return "kind retrieval has relevance, not 'labels'. Remove them."
        return None

    def stored_labels(self, labels: Labels) -> Array:
        """The number of relevant documents."""
        return np.bincount(labels[:, 0].astype(np.int64)).astype(np.float64)

    def targets(self, labels: Array) -> Array:
        return labels

    def answers(self, logits: Array) -> Array:
        return logits

    def tally(
        self, metric: str, targets: Array, answers: Array, names: tuple[str, ...]
    ) -> Array | None:
        from lp_sweep.trials.search import scores

        found = scores(metric, targets, answers, dot=self.dot)
        return np.column_stack([found, np.ones_like(found)])

    def stored(
        self, labels: Labels, logits: Array, metric: str, names: tuple[str, ...]
    ) -> Iterator[dict[str, Any]]:
        """`label`: the number of relevant documents; `prediction`: the query's own score; `scores`:
        its similarity to each relevant document, in the order of the corpus."""
        from lp_sweep.trials.search import similarities

        tally = self.tally(metric, labels, logits, names)
        relevant = self.stored_labels(labels)
        ends = np.cumsum(relevant).astype(np.int64)
        near = np.split(similarities(labels, logits, dot=self.dot), ends[:-1])
        assert tally is not None
        for count, own, similar in zip(relevant.tolist(), tally.tolist(), near, strict=True):
            stored = {"label": count, "prediction": own[0], "scores": similar.tolist()}
            yield stored | {"tally": own}
