"""Columns of label sets to names and marks: a list of labels in each row, or a column of 0 and 1
for each label. Pure, reads nothing.

As in `columns`, labels become names first, whatever the file holds, and then positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lp_sweep.storage.errors import MissingInputError
from lp_sweep.storage.printable import did_you_mean, listed, short, shown
from lp_sweep.storage.specs import TaskDefinition
from lp_sweep.trials.columns import Rows, all_whole, feature_names, known_values, plain_column

Marks = npt.NDArray[np.int8]  # 1 where a row has the label, 0 where not
_MARKS = {"0": 0, "1": 1, "false": 0, "true": 1, "0.0": 0, "1.0": 1}


class _Listed(NamedTuple):
    """All labels of a list column, one after the other."""

    labels: pa.Array  # (total,) strings
    rows: npt.NDArray[np.int64]  # (total,) the row of each


def set_names(train: Rows, definition: TaskDefinition) -> tuple[str, ...]:
    """The labels: of several columns their names; of lists the definition's, else those of the
    file's ClassLabel, else the sorted ones of the train rows. Raises MissingInputError, also for
    fewer than two."""
    if definition.label_columns:
        return definition.label_columns
    found = _listed(train, definition).labels.unique().to_pylist()
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
    known = known_values(definition, names, found.labels.unique().to_pylist())
    codes = pc.index_in(found.labels, value_set=pa.array(known, pa.string()))
    if codes.null_count:
        _refuse_unknown(rows, definition, found, codes, known)
    made = np.zeros((rows.table.num_rows, len(names)), np.int8)
    made[found.rows, codes.to_numpy()] = 1
    return made


def _listed(rows: Rows, definition: TaskDefinition) -> _Listed:
    name = definition.label_column
    column = plain_column(rows, name)
    if not pa.types.is_list(column.type) and not pa.types.is_large_list(column.type):
        raise MissingInputError(
            f"{rows.where}: column {name!r} holds {short(str(column.type), 80)}, not lists of "
            "labels. JSONL and Parquet have lists; of columns of 0 and 1, one for each label, give "
            "all names: `label: [first, second]`."
        )
    lists = column.combine_chunks()
    if isinstance(lists, pa.ChunkedArray):  # of no chunk, or too large for one
        lists = pa.concat_arrays(lists.chunks) if lists.num_chunks else pa.array([], lists.type)
    _refuse_empty(rows, definition, pc.list_value_length(lists).to_numpy())
    parents = pc.list_parent_indices(lists).to_numpy().astype(np.int64)
    return _Listed(_texts(rows, name, pc.list_flatten(lists), parents), parents)


def _refuse_empty(rows: Rows, definition: TaskDefinition, lengths: npt.NDArray[np.int32]) -> None:
    """An empty list may be a row that nobody labelled, unless the task lists its labels."""
    empty = np.flatnonzero(lengths == 0)
    if len(empty) and not definition.labels:
        raise MissingInputError(
            f"{rows.where}: column {definition.label_column!r} holds an empty list in {len(empty)} "
            f"of {len(lengths)} rows, first in row {empty[0] + 1}. If none of the labels fits "
            "these texts, list all labels in the task: `labels: [first, second]`; an empty list "
            "then means that. Else label or remove these rows."
        )


def _texts(rows: Rows, name: str, values: pa.Array, parents: npt.NDArray[np.int64]) -> pa.Array:
    """The labels as strings, none of them empty."""

    def refuse(bad: npt.NDArray[np.bool_], what: str) -> None:
        if bad.any():
            raise MissingInputError(
                f"{rows.where}: column {name!r} {what} in row {parents[bad.argmax()] + 1}. Fix it, "
                "or remove it from the list."
            )

    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    refuse(pc.is_null(values, nan_is_null=True).to_numpy(zero_copy_only=False), "holds a null")
    features = feature_names(rows, name)
    if features and pa.types.is_integer(values.type):
        places = values.to_numpy()
        outside = (places < 0) | (places >= len(features))
        refuse(outside, f"holds a number that is none of 0 to {len(features) - 1}")
        return pa.array(features, pa.string()).take(values)
    try:
        values = values.cast(pa.int64()) if pa.types.is_floating(values.type) else values
        values = values.cast(pa.string())
    except pa.ArrowException as error:
        raise MissingInputError(
            f"{rows.where}: column {name!r} holds lists of {short(str(values.type), 80)}, not of "
            "labels. Give names or whole numbers."
        ) from error
    refuse(pc.equal(values, "").to_numpy(zero_copy_only=False), "holds an empty label")
    return values


def _refuse_unknown(
    rows: Rows, definition: TaskDefinition, found: _Listed, codes: pa.Array, names: Sequence[str]
) -> None:
    first = int(np.flatnonzero(codes.is_null().to_numpy(zero_copy_only=False))[0])
    got = found.labels[first].as_py()
    raise MissingInputError(
        f"{rows.where}: unknown label {shown(got)} in column {definition.label_column!r}, row "
        f"{found.rows[first] + 1}. Known: {listed(names)}. Fix the rows, or list every label in "
        f"the task's labels.{did_you_mean(got, names)}"
    )


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
