"""Converts columns to texts and labels, and checks their values. Reads no file.

Classes become names first, whatever the file holds (names, numbers, booleans, positions in a
ClassLabel), and then positions in the task's `label_names`. So files that number the same names
differently agree.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lp_sweep.storage.errors import MissingInputError
from lp_sweep.storage.printable import did_you_mean, listed, look, short, shown
from lp_sweep.trials.spec.specs import TaskDefinition

_WHOLE = re.compile(r"-?\d{1,18}", re.ASCII)  # longer ones are names

_NOTHING = ("nan", "<na>", "", "-100", "\\n", "#n/a")
# as pandas and numpy write them into a CSV; not `[MASK]` or `(other)`
_ITEM, _BIT = r"(-?[\d.]+|True|False|None|nan)", r"([01](\.0*)?|True|False)"
_WRITTEN_LIST = re.compile(  # not `[0, 10]`, an interval
    r"\s*(array\()?(\[\s*['\"].*\]|\(\s*['\"].*\)|\{\s*['\"].*\}"
    rf"|\[\s*({_ITEM}([,\s]+{_ITEM}){{2,}}|{_ITEM}|{_BIT}[,\s]+{_BIT})?\s*\])"
    r"(, dtype=\w+)?\)?\s*",
    re.DOTALL,
)

SPANS = (
    "Spans of characters are not read: for kind tokens, write a list of words and a list of as "
    "many tags"
)

Labels = (
    npt.NDArray[np.int64] | npt.NDArray[np.float32] | npt.NDArray[np.float64] | npt.NDArray[np.int8]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """One split, as read."""

    where: str  # for messages
    table: pa.Table
    whole: bool = True  # False: only the first rows


def text_column(rows: Rows, name: str) -> pa.ChunkedArray:
    """Raises MissingInputError for nulls and values that are no text."""
    column = plain_column(rows, name)
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        raise MissingInputError(
            f"{rows.where}: column {name!r} holds {short(str(column.type), 80)}, not text. Name a "
            "column of texts."
        )
    return column


def numbers(rows: Rows, definition: TaskDefinition) -> npt.NDArray[np.float32]:
    """(n,) regression targets, not all equal. Raises MissingInputError as `finite_numbers`."""
    fix = "Fix it, or name another label column."
    if definition.kind == "regression":
        fix = "Fix it, name another label column, or set kind: classification."
    name = definition.label_column
    found = finite_numbers(rows, name, f"must hold numbers for {definition.kind}", fix)
    if len(found) > 1 and np.ptp(found) == 0:
        if len(plain_column(rows, name).cast(pa.float64()).unique()) > 1:
            raise MissingInputError(
                f"{rows.where}: column {name!r} holds numbers too close to each other, or to 0, "
                f"for 32 bits: all become {found[0]:g}. Subtract their mean, or rescale them."
            )
        raise MissingInputError(
            f"{rows.where}: column {name!r} holds {found[0]:g} in every row, and no score can be "
            "correlated with that. Check the column and the file."
        )
    return found


def finite_numbers(
    rows: Rows, name: str, wanted: str = "must hold numbers", fix: str = "Fix the row."
) -> npt.NDArray[np.float32]:
    """(n,). Raises MissingInputError for nulls, infinite values and values that are no number."""
    column = plain_column(rows, name)
    try:
        values = column.cast(pa.float64())
    except pa.ArrowException as error:
        row = first_failing(len(column), lambda count: column.slice(0, count).cast(pa.float64()))
        value = column[row].as_py()
        has = beside_number(value) if isinstance(value, str) else ""
        like = f", which reads like a number with {has}: write it as 1100.5" if has else ""
        raise MissingInputError(
            f"{rows.where}: column {name!r} {wanted}, and row {row + 1} holds {shown(value)}"
            f"{like}. {fix}"
        ) from error
    with np.errstate(over="ignore"):
        targets = np.asarray(values.to_numpy(), np.float32)
    _refuse(rows, name, pa.chunked_array([~np.isfinite(targets)]), "is not a finite number")
    return targets


UNIT = "a unit"
_MONEY = (
    r"[A-Z]{0,3}[$€£¥₩₹₽₺₫฿₴₦₱]|USD|EUR|GBP|JPY|CNY|RMB|INR|CHF|CAD|AUD|SEK|NOK|DKK|PLN"
    r"|kr\.?|zł|Rs\.?"
)
_NUMBER = re.compile(
    rf"\(?[-+\u2212]?(?P<before>{_MONEY})?\s?"
    r"[-+\u2212]?(?P<whole>\d{1,3}([,.'\u2019\s_]\d{2,3})+|\d*)(?P<rest>[.,]\d*)?([eE][-+]?\d+)?"
    rf"\s?((?P<after>{_MONEY})|(?P<percent>[%\u2030])|(?P<of>/\s?\d+)|(?P<unit>[^\W\d_]{{1,5}}))?\)?"
)


def beside_number(text: str) -> str | None:
    """What a text has that numbers in files don't: `a currency`, `separators (',')`; empty for a
    plain number, None for a text that is no number."""
    found = _NUMBER.fullmatch(text.strip())
    digits = found["whole"] + (found["rest"] or "") if found else ""
    if not found or not any(map(str.isdigit, digits)):
        return None
    marks = [mark for mark in dict.fromkeys(digits) if not mark.isdigit()]
    if marks == ["."] and digits.count(".") == 1:
        marks = []
    for part, what in (
        (found["before"] or found["after"], "a currency"),
        (found["percent"], "a percent sign"),
        (found["of"], f"what it is out of ({found['of']})"),
        (found["unit"], UNIT),
        (marks, f"separators ({', '.join(map(ascii, marks))})"),
        ("(" in text, "brackets"),
        (not text.strip().isascii(), "digits that are not 0 to 9"),
    ):
        if part:
            return what
    return ""


def class_names(train: Rows, definition: TaskDefinition) -> tuple[str, ...]:
    """The names of classes 0..n-1: the definition's, else those of the train file's ClassLabel,
    else its sorted values (numbers by value). Raises MissingInputError, also for fewer than two
    classes."""
    column = _class_column(train, definition)
    values = column.unique().to_pylist()
    if len(values) < 2:
        raise MissingInputError(
            f"{train.where}: every row is of class {shown(values[0])}. Training needs two classes "
            f"or more: check the label column {definition.label_column!r} and the file."
        )
    named = feature_names(train, definition.label_column)
    if not definition.labels:
        refuse_lookalikes(train, definition.label_column, named or values, column, row_of)
    names = (
        definition.labels or named or tuple(sorted(values, key=int if all_whole(values) else str))
    )
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
    """(n,) positions in `names`. Raises MissingInputError for nulls and unknown classes.

    If the definition lists names that are no numbers, whole numbers are positions in that list."""
    return coded(rows, definition, names, _class_column(rows, definition), "class", row_of)


def row_of(position: int) -> str:
    return f"row {position + 1}"


def coded(
    rows: Rows,
    definition: TaskDefinition,
    names: Sequence[str],
    values: pa.ChunkedArray,
    what: str,
    place: Callable[[int], str],
) -> npt.NDArray[np.int64]:
    """(n,) positions in `names` of n texts from the label column. Raises MissingInputError for an
    unknown one, which it calls a `what`, in `place(position)`."""
    known = known_values(definition, names, values.unique().to_pylist())
    codes = pc.index_in(values, value_set=pa.array(known, pa.string()))
    if codes.null_count:
        first = int(np.flatnonzero(codes.is_null().to_numpy(zero_copy_only=False))[0])
        got = values[first].as_py()
        raise MissingInputError(
            f"{rows.where}: unknown {what} {shown(got)} in column {definition.label_column!r}, "
            f"{place(first)}. Known: {listed(known)}. These are from the train rows, or "
            f"the task's `labels:`. Fix the rows, or list every {what} there."
            f"{did_you_mean(got[:80], known[:100])}"
        )
    return np.asarray(codes.to_numpy(), np.int64)


def refuse_lookalikes(
    train: Rows,
    name: str,
    names: Sequence[str],
    values: pa.Array | pa.ChunkedArray,
    place: Callable[[int], str],
) -> None:
    """Raises MissingInputError for unlisted names that are probably mistakes: `nan`, blanks, and
    names that only look different, or only look alike. `values`: all of the column, to say in
    `place(position)` where each is."""

    def quoted(value: str) -> str:
        position = pc.index(values, value).as_py()
        return short(ascii(value), 160) + (f" ({place(position)})" if position >= 0 else "")

    seen: dict[str, str] = {}
    for value in names:
        if value.strip().lower() in _NOTHING:
            found, why = quoted(value), "a missing value written as text"
        elif (other := seen.setdefault(look(value), value)) != value:
            found, why = f"{quoted(other)} and {quoted(value)}", "one name in two spellings"
        elif _WRITTEN_LIST.fullmatch(value):
            found, why = quoted(value), "a list written as text. JSONL and Parquet have lists, for "
            why += "kind: multi_label or tokens"
        else:
            continue
        raise MissingInputError(
            f"{train.where}: column {name!r} holds {found}: {why}. Fix the rows, or list every "
            "name in the task's `labels:` if they are correct."
        )


def _class_column(rows: Rows, definition: TaskDefinition) -> pa.ChunkedArray:
    """The classes as non-empty strings."""
    name = definition.label_column
    column = plain_column(rows, name)
    if pa.types.is_floating(column.type):
        column = _whole(rows, name, column)
    features = feature_names(rows, name)
    # a ClassLabel's names count, not its numbers, if they are the task's names
    same = not definition.labels or set(features) == set(definition.labels)
    if features and pa.types.is_integer(column.type) and same:
        outside = pc.or_(pc.less(column, 0), pc.greater_equal(column, len(features)))
        _refuse(rows, name, outside, f"is none of 0 to {len(features) - 1}")
        column = pa.chunked_array([pa.array(features, pa.string()).take(column.combine_chunks())])
    lists = "; lists are for kind: multi_label or tokens" * pa.types.is_list(column.type)
    try:
        column = column.cast(pa.string())
    except pa.ArrowException as error:
        raise MissingInputError(
            f"{rows.where}: column {name!r} holds {short(str(column.type), 80)}, not classes. Name "
            f"a column of names, whole numbers or booleans{lists}."
        ) from error
    _refuse(rows, name, pc.equal(column, ""), "is empty")
    return column


def _whole(rows: Rows, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    try:
        return column.cast(pa.int64())
    except pa.ArrowException as error:
        raise MissingInputError(
            f"{rows.where}: column {name!r} holds fractions, not classes: {short(str(error), 80)}. "
            "Set kind: regression, or name another label column."
        ) from error


def feature_names(rows: Rows, name: str) -> tuple[str, ...]:
    """The names of a ClassLabel, which `datasets` writes into the schema; () if there are none."""
    metadata = rows.table.schema.metadata or {}
    try:
        feature = json.loads(metadata[b"huggingface"])["info"]["features"][name]
        names = feature.get("feature", feature)["names"]  # of a list: those of its items
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        return ()
    texts = isinstance(names, list) and all(isinstance(item, str) and item for item in names)
    return tuple(names) if texts and len(set(names)) == len(names) else ()


def known_values(
    definition: TaskDefinition, names: Sequence[str], values: Sequence[str]
) -> list[str]:
    """How a column with these `values` writes the labels: as names, or as positions if the task
    lists names that are no numbers and the column holds whole numbers."""
    of_words = not any(_WHOLE.fullmatch(name) for name in names)
    if definition.labels and of_words and all_whole(values):
        return [str(position) for position in range(len(names))]
    return list(names)


def all_whole(values: Sequence[str]) -> bool:
    return all(_WHOLE.fullmatch(value) for value in values)


def plain_column(rows: Rows, name: str) -> pa.ChunkedArray:
    """The column, refused if it has nulls."""
    column = rows.table.column(name)
    _refuse(rows, name, pc.is_null(column, nan_is_null=True), "is empty")
    return column


def group_column(rows: Rows, name: str) -> pa.ChunkedArray:
    """What rows share, null for nothing. Raises MissingInputError for lists and objects."""
    column = rows.table.column(name)
    if pa.types.is_nested(column.type):
        raise MissingInputError(
            f"{rows.where}: column {name!r} holds {short(str(column.type), 80)}, and rows are "
            "grouped by a name or a number. Name such a column as the group."
        )
    return column


class Items(NamedTuple):
    """The items of a list column, concatenated."""

    items: pa.Array  # (total,)
    lengths: npt.NDArray[np.int64]  # (n,)
    each: str  # the word for an item's place: word, label

    def place(self, position: int) -> str:
        """`row 3, word 2`."""
        ends = self.lengths.cumsum()
        row = int(np.searchsorted(ends, position, side="right"))
        return f"row {row + 1}, {self.each} {position - ends[row] + self.lengths[row] + 1}"


def list_items(rows: Rows, name: str, instead: str, each: str) -> Items:
    """Raises MissingInputError for a column without lists (`instead` says what to write), and for a
    null in a list."""
    column = plain_column(rows, name)
    if not pa.types.is_list(column.type):
        value = column[0].as_py() if len(column) else None
        written = isinstance(value, str) and _WRITTEN_LIST.fullmatch(value)
        holds = "text that only reads like a list" if written else short(str(column.type), 80)
        raise MissingInputError(f"{rows.where}: column {name!r} holds {holds}, not lists{instead}")
    lists = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    lengths = pc.list_value_length(lists).to_numpy(zero_copy_only=False).astype(np.int64)
    items = pc.list_flatten(lists)
    found = Items(items, lengths, each)
    _refuse_items(rows, name, found, pc.is_null(items, nan_is_null=True), "holds a null")
    return found


def label_items(rows: Rows, name: str, instead: str, each: str, what: str) -> Items:
    """Labels as non-empty texts, called `what` in messages."""
    found = list_items(rows, name, instead, each)
    items, features = found.items, feature_names(rows, name)
    if features and pa.types.is_integer(items.type):
        outside = pc.or_(pc.less(items, 0), pc.greater_equal(items, len(features)))
        numbers = f"holds a number that is none of 0 to {len(features) - 1}"
        _refuse_items(rows, name, found, outside, numbers)
        return found._replace(items=pa.array(features, pa.string()).take(items))
    try:
        items = items.cast(pa.int64()) if pa.types.is_floating(items.type) else items
        items = items.cast(pa.string())
    except pa.ArrowException as error:
        fix = SPANS if pa.types.is_nested(items.type) else "Give names or whole numbers"
        raise MissingInputError(
            f"{rows.where}: column {name!r} holds lists of {short(str(items.type), 80)}, not of "
            f"{what}s. {fix}."
        ) from error
    _refuse_items(rows, name, found, pc.equal(items, ""), f"holds an empty {what}")
    return found._replace(items=items)


def _refuse_items(rows: Rows, name: str, found: Items, bad: pa.Array, problem: str) -> None:
    first = np.flatnonzero(bad.to_numpy(zero_copy_only=False))
    if len(first):
        raise MissingInputError(
            f"{rows.where}: column {name!r} {problem} in {found.place(int(first[0]))}. Fix "
            "it, or remove it from its row."
        )


def _refuse(rows: Rows, name: str, bad: pa.ChunkedArray, what: str) -> None:
    """Raises MissingInputError naming the first row (from 1) where `bad` is true."""
    positions = np.flatnonzero(bad.to_numpy())
    if len(positions):
        raise MissingInputError(
            f"{rows.where}: column {name!r} {what} in {len(positions)} of {len(bad)} rows, first "
            f"in row {positions[0] + 1}. Fill in or remove these rows."
        )


def first_failing(count: int, try_first: Callable[[int], object]) -> int:
    """Position of the first of `count` values that can't be converted. `try_first(n)` converts the
    first n; bisection, since a conversion is fast and its error rarely names the row."""
    good, bad = 0, count  # the first `good` convert, the first `bad` don't
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            try_first(middle)
        except (pa.ArrowException, OverflowError, UnicodeEncodeError):
            bad = middle
        else:
            good = middle
    return bad - 1
