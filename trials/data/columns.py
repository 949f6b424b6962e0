"""Converts columns to texts and labels, and checks their values. Reads no file.

Classes become names first, whatever the file holds (names, numbers, booleans, positions in a
ClassLabel), and then positions in the task's `label_names`. So files that number the same names
differently agree.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lp_sweep.storage.errors import MissingInputError
from lp_sweep.storage.printable import did_you_mean, listed, look, short, shown
from lp_sweep.trials.spec.scoring import facts_of
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


class Items(NamedTuple):
    """The values of a column, or of a column of lists the items of all of them, in a row."""

    where: str  # `rows.csv: column 'label'`
    items: pa.Array | pa.ChunkedArray  # (total,)
    lengths: npt.NDArray[np.int64] = np.array([], np.int64)  # (n,) of the lists
    each: str = ""  # what an item of a list is called in its place: word, label

    def place(self, position: int) -> str:
        """`row 3`, or `row 3, word 2`."""
        if not self.each:
            return f"row {position + 1}"
        ends = self.lengths.cumsum()
        row = int(np.searchsorted(ends, position, side="right"))
        return f"row {row + 1}, {self.each} {position - ends[row] + self.lengths[row] + 1}"

    def refuse(self, bad: pa.Array | pa.ChunkedArray, problem: str) -> None:
        """Raises MissingInputError that names the first item that is `bad`."""
        first = np.flatnonzero(np.asarray(bad))
        if not len(first):
            return
        place = self.place(int(first[0]))
        found = f"{problem} in {place}. Fix it, or remove it from its row."
        if not self.each:
            found = f"{problem} in {len(first)} of {len(bad)} rows, first in {place}. Fill in or "
            found += (
                "remove these rows; `drop_missing: true` of the task, or `--drop-missing` beside "
                "`--data`, leaves out those without a label."
            )
        raise MissingInputError(f"{self.where} {found}")


def _items(rows: Rows, name: str) -> Items:
    """The values of a column, refused if it has nulls."""
    found = Items(f"{rows.where}: column {name!r}", rows.table.column(name))
    found.refuse(pc.is_null(found.items, nan_is_null=True), "is empty")
    return found


def with_separate_labels(rows: Rows, name: str, separator: str) -> Rows:
    """The rows with a list of labels in place of each text, such as `delivery,damage`. Raises
    MissingInputError for a column that holds no texts."""
    cells = rows.table.column(name)
    if not (pa.types.is_string(cells.type) or pa.types.is_large_string(cells.type)):
        raise MissingInputError(
            f"{rows.where}: column {name!r} holds {short(str(cells.type), 80)}, not text that "
            "`label_separator:` could divide. Remove that key."
        )
    parts = ([part.strip() for part in (cell or "").split(separator)] for cell in cells.to_pylist())
    lists = [[part for part in cell if part] for cell in parts]
    place = rows.table.column_names.index(name)
    divided = pa.array(lists, pa.list_(pa.string()))
    return replace(rows, table=rows.table.set_column(place, name, divided))


def complete_rows(rows: Rows) -> npt.NDArray[np.int64]:
    """The positions of the rows that have a value in every column. Raises MissingInputError if none
    has."""
    kept = np.ones(rows.table.num_rows, bool)
    for column in rows.table.columns:
        missing = pc.is_null(column, nan_is_null=True)
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            written = pc.utf8_lower(pc.utf8_trim_whitespace(column))
            missing = pc.or_(missing, pc.fill_null(pc.is_in(written, pa.array(_NOTHING)), True))
        kept &= ~np.asarray(missing)
    if not kept.any():
        raise MissingInputError(
            f"{rows.where}: no row has a value in each of {listed(rows.table.column_names)}, and "
            "`drop_missing:` leaves out all others. Check the columns."
        )
    return np.flatnonzero(kept)


def without_missing(rows: Rows) -> Rows:
    """The complete rows. Raises MissingInputError if there are none."""
    return replace(rows, table=rows.table.take(pa.array(complete_rows(rows))))


def plain_column(rows: Rows, name: str) -> pa.ChunkedArray:
    """The column, refused if it has nulls."""
    return _items(rows, name).items


def text_column(rows: Rows, name: str) -> pa.ChunkedArray:
    """Raises MissingInputError for nulls and values that are no text."""
    where, column, *_ = _items(rows, name)
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        held = short(str(column.type), 80)
        raise MissingInputError(f"{where} holds {held}, not text. Name a column of texts.")
    return column


def group_column(rows: Rows, name: str) -> pa.ChunkedArray:
    """The value that the rows of a group share, null for none. Raises MissingInputError for lists
    and objects."""
    column = rows.table.column(name)
    if pa.types.is_nested(column.type):
        raise MissingInputError(
            f"{rows.where}: column {name!r} holds {short(str(column.type), 80)}, and rows are "
            "grouped by a name or a number. Name such a column as the group."
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
    found = _items(rows, name)
    column = found.items
    try:
        values = column.cast(pa.float64())
    except pa.ArrowException as error:
        row = first_failing(len(column), lambda count: column.slice(0, count).cast(pa.float64()))
        value = column[row].as_py()
        has = beside_number(value) if isinstance(value, str) else ""
        like = f", which reads like a number with {has}: write it as 1100.5" if has else ""
        raise MissingInputError(
            f"{found.where} {wanted}, and {found.place(row)} holds {shown(value)}{like}. {fix}"
        ) from error
    with np.errstate(over="ignore"):
        targets = np.asarray(values.to_numpy(), np.float32)
    found.refuse(pa.array(~np.isfinite(targets)), "is not a finite number")
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
    """The part of a text that numbers in files don't have: `a currency`, `separators (',')`;
    empty for a plain number, None for a text that is no number."""
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
    found = _classes(train, definition)
    values = found.items.unique().to_pylist()
    if len(values) < 2:
        raise MissingInputError(
            f"{train.where}: every row is of class {shown(values[0])}. Training needs two classes "
            f"or more: check the label column {definition.label_column!r} and the file."
        )
    named = feature_names(train, definition.label_column)
    if not definition.labels:
        refuse_lookalikes(found, named or values)
    names = (
        definition.labels or named or tuple(sorted(values, key=int if all_whole(values) else str))
    )
    metrics = (definition.metric, *definition.extra_metrics)
    of_two = next((name for name in metrics if facts_of(name).of_two_classes), None)
    if of_two and len(names) != 2:
        raise MissingInputError(
            f"{train.where}: {of_two} needs two classes, this task has {len(names)}. Use macro_f1."
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
    return coded(_classes(rows, definition), definition, names, "class")


def coded(
    found: Items, definition: TaskDefinition, names: Sequence[str], what: str
) -> npt.NDArray[np.int64]:
    """(n,) positions in `names` of n texts from the label column. Raises MissingInputError for an
    unknown one, which it calls a `what`."""
    values = found.items
    known = known_values(definition, names, values.unique().to_pylist())
    codes = pc.index_in(values, value_set=pa.array(known, pa.string()))
    if codes.null_count:
        first = int(np.flatnonzero(np.asarray(codes.is_null()))[0])
        got = values[first].as_py()
        raise MissingInputError(
            f"{found.where} holds the unknown {what} {shown(got)} in {found.place(first)}. "
            f"Known: {listed(known)}. These are from the train rows, or the task's `labels:`. Fix "
            f"the rows, or list every {what} there.{did_you_mean(got[:80], known[:100])}"
        )
    return np.asarray(codes.to_numpy(), np.int64)


def refuse_lookalikes(found: Items, names: Sequence[str]) -> None:
    """Raises MissingInputError for unlisted names that are probably mistakes: `nan`, blanks, and
    names that only look different, or only look alike."""

    def quoted(value: str) -> str:
        position = pc.index(found.items, value).as_py()
        return short(ascii(value), 160) + (f" ({found.place(position)})" if position >= 0 else "")

    seen: dict[str, str] = {}
    for value in names:
        held = quoted(value)
        if value.strip().lower() in _NOTHING:
            why = "a missing value written as text"
        elif (other := seen.setdefault(look(value), value)) != value:
            held, why = f"{quoted(other)} and {held}", "one name in two spellings"
        elif _WRITTEN_LIST.fullmatch(value):
            why = "a list written as text. JSONL and Parquet have lists (multi_label, tokens)"
        else:
            continue
        raise MissingInputError(
            f"{found.where} holds {held}: {why}. Fix the rows, or list every name in the task's "
            "`labels:` if they are correct."
        )


def _classes(rows: Rows, definition: TaskDefinition) -> Items:
    """The classes as non-empty strings."""
    found = _items(rows, definition.label_column)
    features = feature_names(rows, definition.label_column)
    # a ClassLabel's names count, not its numbers, if they are the task's names
    if definition.labels and set(features) != set(definition.labels):
        features = ()
    fix = "Name a column of names, whole numbers or booleans"
    if pa.types.is_floating(found.items.type):
        fix = "Set kind: regression, or name another label column"
    elif pa.types.is_list(found.items.type):
        fix += "; lists are for kind: multi_label or tokens"
    return _named(found, features, "classes", fix)


def _named(found: Items, features: tuple[str, ...], of: str, fix: str) -> Items:
    """The items as non-empty texts; numbers of a ClassLabel as its names, `features`."""
    items, types = found.items, pa.types
    if features and types.is_integer(items.type):
        outside = pc.or_(pc.less(items, 0), pc.greater_equal(items, len(features)))
        found.refuse(outside, f"holds a number that is none of 0 to {len(features) - 1}")
        return found._replace(items=pc.take(pa.array(features, pa.string()), items))
    try:
        texts = (items.cast(pa.int64()) if types.is_floating(items.type) else items).cast("string")
    except pa.ArrowException as error:
        held = short(str(items.type), 80)
        if found.each:
            held = f"lists of {held}"
        elif types.is_floating(items.type):
            held = "fractions"
        raise MissingInputError(f"{found.where} holds {held}, not {of}. {fix}.") from error
    found.refuse(
        pc.equal(texts, ""), f"holds an empty {of.removesuffix('s')}" if found.each else "is empty"
    )
    return found._replace(items=texts)


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


def list_items(rows: Rows, name: str, instead: str, each: str) -> Items:
    """Raises MissingInputError for a column without lists (`instead` says what to write), and for a
    null in a list."""
    where, column, *_ = _items(rows, name)
    if not pa.types.is_list(column.type):
        value = column[0].as_py() if len(column) else None
        written = isinstance(value, str) and _WRITTEN_LIST.fullmatch(value)
        holds = "text that only reads like a list" if written else short(str(column.type), 80)
        raise MissingInputError(f"{where} holds {holds}, not lists{instead}")
    lists = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    lengths = pc.list_value_length(lists).to_numpy(zero_copy_only=False).astype(np.int64)
    found = Items(where, pc.list_flatten(lists), lengths, each)
    found.refuse(pc.is_null(found.items, nan_is_null=True), "holds a null")
    return found


def label_items(rows: Rows, name: str, instead: str, each: str, what: str) -> Items:
    """Labels as non-empty texts, called `what` in messages."""
    found = list_items(rows, name, instead, each)
    fix = SPANS if pa.types.is_nested(found.items.type) else "Give names or whole numbers"
    return _named(found, feature_names(rows, name), f"{what}s", fix)


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
