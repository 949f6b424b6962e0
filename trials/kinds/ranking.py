"""How relevant a passage is to a query."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lp_sweep.storage.specs import TaskDefinition
from lp_sweep.trials.kinds.kind import Array
from lp_sweep.trials.kinds.labelled import Regression
from lp_sweep.trials.kinds.rankmetrics import by_query, chance_mrr, chance_ndcg, in_order, mrr, ndcg

if TYPE_CHECKING:
    import torch

    from lp_sweep.trials.data.columns import Labels, Rows

_DEPTH = 10
_NO_QUERY = -1.0


class Ranking(Regression):
    """A cross-encoder: a row is a query with one passage, and its label (relevance, number of the
    query). An example is a query with all its rows. There is one logit. It learns by binary
    cross-entropy whether the relevance is above 0."""

    help = "how relevant a passage is to a query; scored by the order of each query's passages"
    metrics: tuple[str, ...] = ("ndcg@10", "mrr@10")
    losses: tuple[str, ...] = ("bce", "listwise")
    scored_by = "queries"
    guessing = "a random order"

    def problem(self, definition: TaskDefinition) -> str | None:
        if len(definition.text_columns) != 2:
            return "kind ranking has a query and a passage: `text:` names two columns."
        if definition.labels:
            return "the label of kind ranking is a number, not one of `labels:`. Remove them."
        return None

    def label_names(self, train: Rows, definition: TaskDefinition) -> tuple[str, ...]:
        from lp_sweep.trials.kinds.queries import refuse_unlearnable

        refuse_unlearnable(train, definition)
        return ()

    def labels(self, rows: Rows, definition: TaskDefinition, names: tuple[str, ...]) -> Labels:
        from lp_sweep.trials.kinds.queries import judged

        return judged(rows, definition)

    def refuse_unscorable(self, dev: Rows, labels: Labels, definition: TaskDefinition) -> None:
        from lp_sweep.trials.kinds.queries import refuse_unscorable

        refuse_unscorable(dev, np.asarray(labels, np.float32), definition)

    def drawn(self, labels: Labels, limit: int) -> Array:
        """Each query whole; at least one."""
        groups = by_query(labels)
        drawn = np.random.default_rng(0).permutation(len(groups))
        ends = np.cumsum([len(groups[index]) for index in drawn])
        count = max(1, int(np.searchsorted(ends, limit, side="right")))
        return np.sort(np.concatenate([groups[index] for index in drawn[:count]]))

    def stored_labels(self, labels: Labels) -> Array:
        """The number of relevant passages of each query."""
        return np.array([(labels[rows, 0] > 0).sum() for rows in by_query(labels)], float)

    def no_labels(self, rows: int, outputs: int = 0) -> Labels:
        return np.tile(np.array([np.nan, _NO_QUERY], np.float32), (rows, 1))

    def mean_loss(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        from torch.nn.functional import binary_cross_entropy_with_logits

        return binary_cross_entropy_with_logits(logits.squeeze(-1), (target[:, 0] > 0).float())

    def labelled_loss(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        from torch.nn.functional import binary_cross_entropy_with_logits

        known = (~target[:, 0].isnan()).float()
        relevant = (target[:, 0] > 0).float()  # not a number is not
        return binary_cross_entropy_with_logits(logits.squeeze(-1), relevant, weight=known)

    def tally(
        self, metric: str, targets: Array, answers: Array, names: tuple[str, ...]
    ) -> Array | None:
        groups = by_query(targets)
        shape = (len(groups), max(map(len, groups)))
        relevance, scores = np.zeros(shape), np.full(shape, -np.inf)
        for query, rows in enumerate(groups):
            relevance[query, : len(rows)] = targets[rows, 0]
            scores[query, : len(rows)] = answers[rows]
        ranked = in_order(scores, relevance)
        found = ndcg(ranked, relevance, _DEPTH) if metric == "ndcg@10" else mrr(ranked, _DEPTH)
        return np.stack([found, np.ones_like(found)], axis=1)

    def stored(
        self, labels: Labels, logits: Array, metric: str, names: tuple[str, ...]
    ) -> Iterator[dict[str, Any]]:
        """`label`: the number of relevant passages; `prediction`: the query's own score; `scores`:
        the logits of its rows in their order. Queries by their first rows."""
        answers = self.answers(logits)
        tally = self.tally(metric, labels, answers, names)
        assert tally is not None
        relevant = self.stored_labels(labels).tolist()
        for rows, count, own in zip(by_query(labels), relevant, tally.tolist(), strict=True):
            numbers = {"label": count, "prediction": own[0]}
            yield {**numbers, "scores": answers[rows].tolist(), "tally": own}

    def restored(self, labels: Labels, scores: Sequence[Sequence[float]]) -> Array:
        groups = by_query(labels)
        found = np.empty((len(labels), 1), np.float32)
        for rows, each in zip(groups, scores, strict=True):
            found[rows, 0] = each
        return found

    def chance(self, targets: Array, metric: str) -> float | None:
        """The mean score of all orders."""
        of_one = chance_ndcg if metric == "ndcg@10" else chance_mrr
        return float(np.mean([of_one(targets[rows, 0], _DEPTH) for rows in by_query(targets)]))

    def probe(self, train: Array, dev: Array, labels: Array) -> Array:
        return super().probe(train, dev, labels[:, 0])

    def described(self, names: Sequence[str]) -> str:
        return "one number, the logit: the higher, the more relevant is the passage to the query"


class ListwiseRanking(Ranking):
    """Learns the order of the passages that a batch has of a query: the cross-entropy of the
    softmax over their logits to the shares of their relevance (ListNet, Cao et al. 2007, with the
    relevance itself in place of its exponential). Batches take one query after the other."""

    whole_queries = True

    def mean_loss(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The sum over the lists with something relevant, divided by B rows."""
        import torch

        same = target[:, None, 1] == target[None, :, 1]  # (B, B)
        scores = logits.squeeze(-1)
        others = torch.where(same, scores[None, :], -torch.inf).logsumexp(dim=1)  # (B,)
        relevance = target[:, 0].nan_to_num().clamp(min=0)
        total = (same * relevance[None, :]).sum(dim=1)  # (B,) of the row's list
        share = relevance / torch.where(total > 0, total, 1)
        return ((others - scores) * share).sum() / len(target)

    def labelled_loss(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return self.mean_loss(logits, target)
