"""How relevant a passage is to a query.

A row is one passage for one query, and its label is (relevance, number of the query). The rows of a
query are its candidates, wherever they are in the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lp_sweep.storage.errors import MissingInputError
from lp_sweep.storage.printable import shown
from lp_sweep.trials.data.columns import (
    Labels,
    Rows,
    finite_numbers,
    group_column,
    plain_column,
    text_column,
)
from lp_sweep.trials.kinds.kind import Array, Names, Regression, functional, torch
from lp_sweep.trials.kinds.rankmetrics import METRICS, by_query, chance_mrr, chance_ndcg, in_order
from lp_sweep.trials.spec.specs import TaskDefinition, TaskKind

if TYPE_CHECKING:
    from torch import Tensor

_NO_QUERY = -1.0


class Ranking(Regression):
    """A cross-encoder with one logit. An example is a query with all its rows. It learns by binary
    cross-entropy whether the relevance is above 0."""

    name: TaskKind = "ranking"
    help = "how relevant a passage is to a query, scored by the order of each query's passages"
    metrics: Names = ("ndcg@10", "mrr@10")
    losses: Names = ("bce", "listwise")
    ranks = True
    scored_by = "queries"

    def problem(self, definition: TaskDefinition) -> str | None:
        if len(definition.text_columns) != 2:
            return "kind ranking has a query and a passage: name two columns (--text twice)."
        if definition.labels:
            return "the label of kind ranking is a number, not one of `labels:`. Remove them."
        return None

    def label_names(self, train: Rows, definition: TaskDefinition) -> Names:
        """Has none. Raises MissingInputError if all rows or no rows are relevant."""
        relevant = _relevance(train, definition) > 0
        if relevant.all() or not relevant.any():
            what = "every passage is" if relevant.all() else "no passage is"
            raise MissingInputError(
                f"{train.where}: {what} relevant (column {definition.label_column!r}), so there is "
                "nothing to learn. Give each query passages that answer it, with a relevance above "
                "0, and others with 0."
            )
        return ()

    def labels(self, rows: Rows, definition: TaskDefinition, names: Names) -> Labels:
        """(n, 2) float32. Raises MissingInputError for a value that is no relevance, a query with
        two texts, and a passage that a query has twice."""
        return np.stack([_relevance(rows, definition), _queries(rows, definition)], axis=1)

    def refuse_unscorable(self, dev: Rows, labels: Labels, definition: TaskDefinition) -> None:
        """Raises MissingInputError if every query has a single passage, or one has no relevant
        passage."""
        relevance, queries = np.asarray(labels, np.float32).T
        numbers, first, counts = np.unique(queries, return_index=True, return_counts=True)
        if counts.max() == 1:
            raise MissingInputError(
                f"{dev.where}: every query has a single passage, so there is nothing to rank. Name "
                "the column that the rows of a query share with `group:`, or add candidates."
            )
        best = np.full(len(numbers), -np.inf)
        np.maximum.at(best, np.searchsorted(numbers, queries), relevance)
        if (bad := np.flatnonzero(best <= 0)).size:
            query = _named(dev, definition, int(first[bad[0]]))
            raise MissingInputError(
                f"{dev.where}: {len(bad)} of {len(numbers)} queries have no passage with a "
                f"relevance above 0, first {query} in row {first[bad[0]] + 1}: no ranking of them "
                "is right or wrong. Judge a passage of each, or remove these queries' rows."
            )

    def drawn(self, labels: Labels, limit: int) -> Array:
        """Whole queries, at least one."""
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

    def mean_loss(self, logits: Tensor, target: Tensor) -> Tensor:
        return functional.binary_cross_entropy_with_logits(
            logits.squeeze(-1), (target[:, 0] > 0).float()
        )

    def labelled_loss(self, logits: Tensor, target: Tensor) -> Tensor:
        known = (~target[:, 0].isnan()).float()
        relevant = (target[:, 0] > 0).float()  # not a number is not
        return functional.binary_cross_entropy_with_logits(
            logits.squeeze(-1), relevant, weight=known
        )

    def tally(self, metric: str, targets: Array, answers: Array, names: Names) -> Array | None:
        groups = by_query(targets)
        shape = (len(groups), max(map(len, groups)))
        relevance, scores = np.zeros(shape), np.full(shape, -np.inf)
        for query, rows in enumerate(groups):
            relevance[query, : len(rows)] = targets[rows, 0]
            scores[query, : len(rows)] = answers[rows]
        found = METRICS[metric](in_order(scores, relevance), relevance)
        return np.stack([found, np.ones_like(found)], axis=1)

    def stored_answers(self, targets: Array, answers: Array, tally: Array | None) -> Array:
        """The score of each query."""
        assert tally is not None
        return np.asarray(tally[:, 0])

    def stored_scores(self, targets: Array, logits: Array) -> Iterable[list[float]]:
        """The logits of each query's rows; queries in the order of their first rows."""
        answers = self.answers(logits)
        return [answers[rows].tolist() for rows in by_query(targets)]

    def restored(self, labels: Labels, scores: Sequence[Sequence[float]]) -> Array:
        groups = by_query(labels)
        found = np.empty((len(labels), 1), np.float32)
        for rows, each in zip(groups, scores, strict=True):
            found[rows, 0] = each
        return found

    def chance(self, targets: Array, metric: str) -> float | None:
        """The mean score over all orders of each query's passages."""
        of_one = chance_ndcg if metric == "ndcg@10" else chance_mrr
        return float(np.mean([of_one(targets[rows, 0], 10) for rows in by_query(targets)]))

    def probe(self, train: Array, dev: Array, labels: Array) -> Array:
        return super().probe(train, dev, labels[:, 0])


class ListwiseRanking(Ranking):
    """Learns the order of a query's passages in a batch: cross-entropy between the softmax of their
    logits and their shares of the relevance (ListNet, Cao et al. 2007, with the relevance itself
    in place of its exponential). Batches take one query after the other."""

    whole_queries = True

    def mean_loss(self, logits: Tensor, target: Tensor) -> Tensor:
        """The sum over the lists with something relevant, divided by B rows."""
        same = target[:, None, 1] == target[None, :, 1]  # (B, B)
        scores = logits.squeeze(-1)
        others = torch.where(same, scores[None, :], -torch.inf).logsumexp(dim=1)  # (B,)
        relevance = target[:, 0].nan_to_num().clamp(min=0)
        total = (same * relevance[None, :]).sum(dim=1)  # (B,) of the row's list
        share = relevance / torch.where(total > 0, total, 1)
        return ((others - scores) * share).sum() / len(target)

    def labelled_loss(self, logits: Tensor, target: Tensor) -> Tensor:
        return self.mean_loss(logits, target)


def _relevance(rows: Rows, definition: TaskDefinition) -> npt.NDArray[np.float32]:
    name = definition.label_column
    column = rows.table.column(name)
    if column.null_count:
        row = int(np.flatnonzero(column.is_null().to_numpy())[0])
        raise MissingInputError(
            f"{rows.where}: column {name!r} is empty in {column.null_count} of {len(column)} rows, "
            f"first in row {row + 1}. Write 0 for a passage that nobody judged relevant."
        )
    return finite_numbers(
        rows,
        name,
        "must hold the relevance as a number",
        "Write 0 for a passage that is not relevant, and a higher number for a more relevant one.",
    )


def _queries(rows: Rows, definition: TaskDefinition) -> npt.NDArray[np.float32]:
    """(n,) the number of each row's query, counted from 0 in the order of their first rows."""
    query, passage = (text_column(rows, name) for name in definition.text_columns)
    names = query
    if definition.group:
        group_column(rows, definition.group)
        names = plain_column(rows, definition.group)
    numbers = _numbered(names)
    if definition.group:
        texts = _numbered(query)
        first = np.unique(numbers, return_index=True)[1]
        if (bad := np.flatnonzero(texts != texts[first][numbers])).size:
            row = int(bad[0])
            raise MissingInputError(
                f"{rows.where}: {_named(rows, definition, row)} has two texts in column "
                f"{definition.text_columns[0]!r}, in rows {first[numbers[row]] + 1} and {row + 1}. "
                "Rows of one query need one text: correct it, or name another column in `group:`."
            )
    pairs = np.stack([numbers, _numbered(passage)], axis=1)
    _, at, inverse = np.unique(pairs, axis=0, return_index=True, return_inverse=True)
    if (twice := np.flatnonzero(at[inverse.ravel()] != np.arange(len(pairs)))).size:
        row = int(twice[0])
        raise MissingInputError(
            f"{rows.where}: {_named(rows, definition, row)} has the same passage in rows "
            f"{at[inverse.ravel()[row]] + 1} and {row + 1}. Remove one of them."
        )
    return numbers.astype(np.float32)


def _numbered(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """(n,) the same number for equal values, counted from 0 in the order of their first rows."""
    codes = pc.dictionary_encode(column).combine_chunks()
    indices = codes.indices if isinstance(codes, pa.DictionaryArray) else codes.chunk(0).indices
    return np.asarray(indices.to_numpy(zero_copy_only=False), np.int64)


def _named(rows: Rows, definition: TaskDefinition, row: int) -> str:
    name = definition.group or definition.text_columns[0]
    return f"query {shown(rows.table.column(name)[row].as_py())}"
