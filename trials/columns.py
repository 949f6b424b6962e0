"""Columns of rows to texts and labels: every check of what they hold. Pure, reads nothing.

Classes become names first, whatever the file holds (names, numbers, booleans, positions in a
ClassLabel), and then positions in the task's `label_names`: files that number the same names
differently agree.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lp_sweep.storage.errors import MissingInputError
from lp_sweep.storage.printable import did_you_mean, listed, short, shown
from lp_sweep.storage.specs import TaskDefinition
from lp_sweep.trials.readers import first_failing

_WHOLE = re.compile(r"-?\d{1,18}", re.ASCII)  # longer ones are names

Labels = (
    npt.NDArray[np.int64] | npt.NDArray[np.float32] | npt.NDArray[np.float64] | npt.NDArray[np.int8]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """One split as it was read."""

    where: str  # for messages
    table: pa.Table
    whole: bool = True  # False: only the first rows


def text_column(rows: Rows, name: str) -> pa.ChunkedArray:
    """Raises MissingInputError on nulls and on what is no text."""
    column = plain_column(rows, name)
    if not _is_text(column.type):
        raise MissingInputError(
            f"{rows.where}: column {name!r} holds {short(str(column.type), 80)}, not text. Name a "
            "column of texts."
        )
    return column


def numbers(rows: Rows, definition: TaskDefinition) -> npt.NDArray[np.float32]:
    """(n,) regression targets. Raises MissingInputError on nulls, NaN and what is no number."""
    fix = "Fix it, name another label column, or set kind: classification."
    return finite_numbers(
        rows, definition.label_column, f"must hold numbers for {definition.kind}", fix
    )


def finite_numbers(
    rows: Rows, name: str, wanted: str = "must hold numbers", fix: str = "Fix the row."
) -> npt.NDArray[np.float32]:
    """(n,). Raises MissingInputError on nulls, NaN and what is no number."""
    column = plain_column(rows, name)
    try:
        values = column.cast(pa.float64())
    except pa.ArrowException as error:
        row = first_failing(len(column), lambda count: column.slice(0, count).cast(pa.float64()))
        raise MissingInputError(
            f"{rows.where}: column {name!r} {wanted}, and row {row + 1} holds "
            f"{shown(column[row].as_py())}. {fix}"
        ) from error
    with np.errstate(over="ignore"):
        targets = np.asarray(values.to_numpy(), np.float32)
    _refuse(rows, name, pa.chunked_array([~np.isfinite(targets)]), "is not a finite number")
    return targets


def class_names(train: Rows, definition: TaskDefinition) -> tuple[str, ...]:
    """The names of classes 0..n-1: the definition's, else those of the train file's ClassLabel,
    else its sorted values (numbers by value). Raises MissingInputError, also if all train rows
    are of one class."""
    values = _class_column(train, definition).unique().to_pylist()
    if len(values) < 2:
        raise MissingInputError(
            f"{train.where}: every row is of class {shown(values[0])}. Training needs two classes "
            f"or more: check the label column {definition.label_column!r} and the file."
        )
    names = definition.labels or feature_names(train, definition.label_column)
    if not names:
        _refuse_lookalikes(train, definition.label_column, values)
        names = tuple(sorted(values, key=int if all_whole(values) else str))
    if "f1" in (definition.metric, *definition.extra_metrics) and len(names) != 2:
        raise MissingInputError(
            f"{train.where}: f1 needs two classes, this task has {len(names)}. Use macro_f1."
        )
    if definition.positive and definition.positive not in names:
        raise MissingInputError(
            f"{train.where}: `positive: {definition.positive}` is no class of column "
            f"{definition.label_column!r}. Its classes are {listed(map(shown, names))}."
            f"{did_you_mean(definition.positive, names)}"
        )
    return names


def class_codes(
    rows: Rows, definition: TaskDefinition, names: tuple[str, ...]
) -> npt.NDArray[np.int64]:
    """(n,) positions in `names`. Raises MissingInputError on nulls and on an unknown class."""
    column = _class_column(rows, definition)
    values = column.unique().to_pylist()
    known = known_values(definition, names, values)
    codes = pc.index_in(column, value_set=pa.array(known, pa.string()))
    if codes.null_count:
        _refuse_class(rows, definition, column, codes, known)
    return np.asarray(codes.to_numpy(), np.int64)


def _refuse_lookalikes(train: Rows, name: str, values: Sequence[str]) -> None:
    """Names that no one would give two classes, or any: nobody has said that they are meant."""
    nothing = [value for value in values if value.strip().lower() in ("nan", "<na>", "")]
    bare = Counter(value.strip() for value in values)
    spaced = [value for value in values if bare[value.strip()] > 1]
    for same, why in (
        (nothing, "a missing value written as text"),
        (spaced, "alike but for spaces"),
    ):
        if same:
            raise MissingInputError(
                f"{train.where}: column {name!r} holds {', '.join(map(shown, same[:2]))}: {why}. "
                "Fix the rows, or list every class in the task's labels if they are correct."
            )


def _refuse_class(
    rows: Rows,
    definition: TaskDefinition,
    column: pa.ChunkedArray,
    codes: pa.ChunkedArray,
    known: list[str],
) -> None:
    row = int(np.flatnonzero(codes.is_null().to_numpy())[0])
    got = column[row].as_py()
    near = get_close_matches(got[:80], known[:100], n=1)
    raise MissingInputError(
        f"{rows.where}: unknown class {shown(got)} in column {definition.label_column!r}, "
        f"row {row + 1}. Known: {listed(known)}. Fix the rows, or list every class in the task's "
        "labels." + (f" Did you mean {shown(near[0])}?" if near else "")
    )


def _class_column(rows: Rows, definition: TaskDefinition) -> pa.ChunkedArray:
    """The classes as strings, none of them empty."""
    name = definition.label_column
    column = plain_column(rows, name)
    if pa.types.is_floating(column.type):
        column = _whole(rows, name, column)
    features = feature_names(rows, name)
    if features and pa.types.is_integer(column.type) and _same_names(features, definition.labels):
        outside = pc.or_(pc.less(column, 0), pc.greater_equal(column, len(features)))
        _refuse(rows, name, outside, f"is none of 0 to {len(features) - 1}")
        column = pa.chunked_array([pa.array(features, pa.string()).take(column.combine_chunks())])
    try:
        column = column.cast(pa.string())
    except pa.ArrowException as error:
        raise MissingInputError(
            f"{rows.where}: column {name!r} holds {short(str(column.type), 80)}, not classes. Name "
            "a column of names, whole numbers or booleans."
        ) from error
    _refuse(rows, name, pc.equal(column, ""), "is empty")
    return column


def _same_names(features: tuple[str, ...], labels: Sequence[str]) -> bool:
    """Whether a ClassLabel's names mean the task's: then they count, not the numbers."""
    return not labels or set(features) == set(labels)


def _whole(rows: Rows, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    try:
        return column.cast(pa.int64())
    except pa.ArrowException as error:
        raise MissingInputError(
            f"{rows.where}: column {name!r} holds fractions, not classes: {short(str(error), 80)}. "
            "Set kind: regression, or name another label column."
        ) from error


def feature_names(rows: Rows, name: str) -> tuple[str, ...]:
    """The names of a ClassLabel, as `datasets` writes them into the schema; () without."""
    metadata = rows.table.schema.metadata or {}
    try:
        feature = json.loads(metadata[b"huggingface"])["info"]["features"][name]
        names = feature.get("feature", feature)["names"]  # of a list: its items
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        return ()
    texts = isinstance(names, list) and all(isinstance(item, str) and item for item in names)
    return tuple(names) if texts and len(set(names)) == len(names) else ()


def known_values(
    definition: TaskDefinition, names: Sequence[str], values: Sequence[str]
) -> list[str]:
    """How a column with these `values` writes the labels: by their names, or by their positions
    where the task lists names and the column holds whole numbers."""
    if definition.labels and not _any_whole(names) and all_whole(values):
        return [str(position) for position in range(len(names))]
    return list(names)


def _any_whole(values: Sequence[str]) -> bool:
    return any(_WHOLE.fullmatch(value) for value in values)


def all_whole(values: Sequence[str]) -> bool:
    return all(_WHOLE.fullmatch(value) for value in values)


def plain_column(rows: Rows, name: str) -> pa.ChunkedArray:
    """The column without nulls, its dictionary decoded; of a kind that Arrow can take rows of."""
    column = rows.table.column(name)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_string_view(column.type):
        column = column.cast(pa.large_string())
    _refuse(rows, name, pc.is_null(column, nan_is_null=True), "is empty")
    return column


def _refuse(rows: Rows, name: str, bad: pa.ChunkedArray, what: str) -> None:
    """Raises MissingInputError naming the first row (from 1) where `bad` is true."""
    positions = np.flatnonzero(bad.to_numpy())
    if len(positions):
        raise MissingInputError(
            f"{rows.where}: column {name!r} {what} in {len(positions)} of {len(bad)} rows, first "
            f"in row {positions[0] + 1}. Fill in or remove these rows."
        )


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
