"""Columns of label sets to names and marks: a list of labels in each row, or a column of 0 and 1
for each label. Pure, reads nothing.

As in `columns`, labels become names first, whatever the file holds, and then positions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lp_sweep.storage.errors import MissingInputError
from lp_sweep.storage.printable import shown
from lp_sweep.storage.specs import TaskDefinition
from lp_sweep.trials.data.columns import (
    Items,
    Rows,
    all_whole,
    coded,
    feature_names,
    label_items,
    plain_column,
)

Marks = npt.NDArray[np.int8]  # 1 where a row has the label, 0 where not
_MARKS = {"0": 0, "1": 1, "false": 0, "true": 1, "0.0": 0, "1.0": 1}


def set_names(train: Rows, definition: TaskDefinition) -> tuple[str, ...]:
    """The labels: of several columns their names; of lists the definition's, else those of the
    file's ClassLabel, else the sorted ones of the train rows. Raises MissingInputError, also for
    fewer than two."""
    if definition.label_columns:
        return definition.label_columns
    found = _listed(train, definition).items.unique().to_pylist()
    names = definition.labels or feature_names(train, definition.label_column)
    names = names or tuple(sorted(found, key=int if all_whole(found) else str))
    if len(names) < 2:
        raise MissingInputError(
            f"{train.where}: column {definition.label_column!r} has one label in all rows, "
            f"{shown(names[0])}. Set kind: classification and give each row a class, or check the "
            "file."
        )
    return names


def marks(rows: Rows, definition: TaskDefinition, names: Sequence[str]) -> Marks:
    """(n, labels) of n rows. Raises MissingInputError for what is no label, and for a list without
    any where the task does not name its labels."""
    if definition.label_columns:
        columns = [_marked(rows, name) for name in definition.label_columns]
        return np.stack(columns, axis=1)
    found = _listed(rows, definition)
    codes = coded(rows, definition, names, found.items, "label", found.place)
    made = np.zeros((rows.table.num_rows, len(names)), np.int8)
    made[np.repeat(np.arange(len(made)), found.lengths), codes] = 1
    return made


def _listed(rows: Rows, definition: TaskDefinition) -> Items:
    """An empty list may be a row that nobody labelled, unless the task lists its labels."""
    instead = (
        " of labels. JSONL and Parquet have lists; of columns of 0 and 1, one for each label, give "
        "all names: `label: [first, second]`. One column of 0 and 1 is for kind: classification."
    )
    found = label_items(rows, definition.label_column, instead, "label", "label")
    empty = np.flatnonzero(found.lengths == 0)
    if len(empty) and not definition.labels:
        raise MissingInputError(
            f"{rows.where}: column {definition.label_column!r} holds an empty list in {len(empty)} "
            f"of {len(found.lengths)} rows, first in row {empty[0] + 1}. If no label fits these "
            "texts, list all labels in the task: `labels: [first, second]`; an empty list "
            "then means that. Else label or remove these rows."
        )
    return found


def _marked(rows: Rows, name: str) -> Marks:
    """(n,) of a column of 0 and 1."""
    column = plain_column(rows, name)
    try:
        texts = pc.utf8_lower(column.cast(pa.string()))
        codes = pc.index_in(texts, value_set=pa.array(_MARKS, pa.string()))
    except pa.ArrowException:
        codes = pa.nulls(len(column), pa.int32())
    if codes.null_count:
        row = int(np.flatnonzero(codes.is_null().to_numpy())[0])
        raise MissingInputError(
            f"{rows.where}: column {name!r} must hold 0 or 1, and row {row + 1} holds "
            f"{shown(column[row].as_py())}. Fix it, or leave the column out of the task's `label:`."
        )
    found: Marks = np.array([*_MARKS.values()], np.int8)[codes.to_numpy()]
    return found
