"""Rows of query, passage and relevance to labels: every check of what they hold. Pure, reads
nothing.

A row is one passage for one query. The rows of a query are its candidates, wherever they are in the
file. A label is (relevance, number of the query).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lp_sweep.storage.errors import MissingInputError
from lp_sweep.storage.printable import shown
from lp_sweep.storage.specs import TaskDefinition
from lp_sweep.trials.data.columns import Rows, finite_numbers, plain_column, text_column

Judged = npt.NDArray[np.float32]  # (n, 2)


def judged(rows: Rows, definition: TaskDefinition) -> Judged:
    """(n, 2) of n rows. Raises MissingInputError for what is no relevance, for a query of two texts
    and for a passage that a query has twice."""
    return np.stack([_relevance(rows, definition), _queries(rows, definition)], axis=1)


def refuse_unlearnable(train: Rows, definition: TaskDefinition) -> None:
    """Raises MissingInputError where the relevance of all rows is alike."""
    relevant = _relevance(train, definition) > 0
    if relevant.all() or not relevant.any():
        what = "every passage is" if relevant.all() else "no passage is"
        raise MissingInputError(
            f"{train.where}: {what} relevant (column {definition.label_column!r}), so there is "
            "nothing to learn. Give each query passages that answer it, with a relevance above 0, "
            "and others with 0."
        )


def refuse_unscorable(dev: Rows, labels: Judged, definition: TaskDefinition) -> None:
    """Raises MissingInputError for dev rows without a ranking, or with a query that nothing can be
    ranked right for."""
    relevance, queries = labels.T
    numbers, first, counts = np.unique(queries, return_index=True, return_counts=True)
    if counts.max() == 1:
        raise MissingInputError(
            f"{dev.where}: every query has a single passage, so there is nothing to rank. Name the "
            "column that the rows of a query share with `group:`, or add candidates."
        )
    best = np.full(len(numbers), -np.inf)
    np.maximum.at(best, np.searchsorted(numbers, queries), relevance)
    if (bad := np.flatnonzero(best <= 0)).size:
        query = _named(dev, definition, int(first[bad[0]]))
        raise MissingInputError(
            f"{dev.where}: {len(bad)} of {len(numbers)} queries have no passage with a relevance "
            f"above 0, first {query} in row {first[bad[0]] + 1}: no ranking of them is right or "
            "wrong. Judge a passage of each, or remove these queries' rows."
        )


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
    """(n,) the number of each row's query, from 0 by their first rows."""
    query, passage = (text_column(rows, name) for name in definition.text_columns)
    names = query if not definition.group else plain_column(rows, definition.group)
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
    """(n,) equal values have one number, from 0 by their first rows."""
    codes = pc.dictionary_encode(column).combine_chunks()
    indices = codes.indices if isinstance(codes, pa.DictionaryArray) else codes.chunk(0).indices
    return np.asarray(indices.to_numpy(zero_copy_only=False), np.int64)


def _named(rows: Rows, definition: TaskDefinition, row: int) -> str:
    name = definition.group or definition.text_columns[0]
    return f"query {shown(rows.table.column(name)[row].as_py())}"
