"""Columns of words and their tags: every check of what they hold. Pure, reads nothing.

A row is a sentence: a list of words, and a list of as many tags. As in `columns`, tags become names
first, whatever the file holds, and then positions in the task's `label_names`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lp_sweep.storage.errors import MissingInputError
from lp_sweep.storage.printable import short, shown
from lp_sweep.storage.specs import TaskDefinition
from lp_sweep.trials.data.columns import (
    Items,
    Rows,
    coded,
    feature_names,
    label_items,
    list_items,
    plain_column,
)
from lp_sweep.trials.kinds.entities import closure, first_stray, is_tag, scheme_of
from lp_sweep.trials.kinds.tokens import NO_TAG

_USE_ACCURACY = "If they are no entities, set `metric: accuracy`."


def word_column(rows: Rows, name: str) -> pa.ChunkedArray:
    """Lists of words. Raises MissingInputError for others, and for a list without a word."""
    found = _words(rows, name)
    if not pa.types.is_string(found.items.type):
        raise MissingInputError(
            f"{rows.where}: column {name!r} holds lists of {short(str(found.items.type), 80)}, not "
            "of words. Name a column of words."
        )
    return plain_column(rows, name)


def tag_names(train: Rows, definition: TaskDefinition) -> tuple[str, ...]:
    """The definition's, else those of the train file's ClassLabel, else the sorted ones of the
    train rows, and for entities all tags of each of their types. Raises MissingInputError, also
    for tags outside the scheme where the metric is of entities."""
    word_column(train, definition.text_columns[0])  # before all that is said of tags
    found = _tags(train, definition)
    names = definition.labels or feature_names(train, definition.label_column)
    values = found.items.unique().to_pylist()
    if not names and len(values) < 2:
        raise MissingInputError(
            f"{train.where}: every word has the tag {shown(values[0])}. Training needs two tags or "
            f"more: check the column {definition.label_column!r} and the file."
        )
    if "entity_f1" not in (definition.metric, *definition.extra_metrics):
        return names or tuple(sorted(values))
    if outside := [name for name in names if not is_tag(name)]:
        raise MissingInputError(
            f"{train.where}: tag {shown(outside[0])} of column {definition.label_column!r} is "
            f"outside the schemes BIO and BIOES: O, B-x, I-x, E-x, S-x. {_USE_ACCURACY}"
        )
    if not names:
        _refuse_outside(train, definition, found)
    return names or closure(values)


def tag_codes(
    rows: Rows, definition: TaskDefinition, names: tuple[str, ...]
) -> npt.NDArray[np.int64]:
    """(n, W) positions in `names`, `NO_TAG` after the last of the W words. Raises
    MissingInputError for an unknown tag, for one that breaks the scheme, and for a row with more
    or fewer tags than words."""
    found = _tags(rows, definition)
    words = _words(rows, definition.text_columns[0]).lengths
    if (other := np.flatnonzero(words != found.lengths)).size:
        row = int(other[0])
        raise MissingInputError(
            f"{rows.where}: row {row + 1} has {words[row]} words in column "
            f"{definition.text_columns[0]!r} and {found.lengths[row]} tags in column "
            f"{definition.label_column!r}. {len(other)} of {len(words)} rows have unequal numbers. "
            "Give each word one tag, or remove these rows."
        )
    codes = coded(rows, definition, names, found.items, "tag", found.place)
    made = np.full((len(words), int(words.max())), NO_TAG, np.int64)
    made[np.arange(made.shape[1]) < words[:, None]] = codes
    if "entity_f1" in (definition.metric, *definition.extra_metrics):
        _refuse_stray(rows, definition, made, names)
    return made


def _refuse_outside(rows: Rows, definition: TaskDefinition, found: Items) -> None:
    values = found.items.unique().to_pylist()
    if bad := [value for value in values if not is_tag(value)]:
        place = found.place(found.items.index(bad[0]).as_py())
        raise MissingInputError(
            f"{rows.where}: tag {shown(bad[0])} in column {definition.label_column!r}, {place}, is "
            f"outside the schemes BIO and BIOES: O, B-x, I-x, E-x, S-x. Fix it. "
            f"{_USE_ACCURACY}"
        )


def _refuse_stray(
    rows: Rows,
    definition: TaskDefinition,
    codes: npt.NDArray[np.int64],
    names: tuple[str, ...],
) -> None:
    scheme = scheme_of(names)
    stray = first_stray(codes, scheme)
    if stray is None:
        return
    rule = "begin each entity with B-x and go on with I-x"
    if scheme.closed:
        rule = "write S-x for a single word, else B-x, I-x and E-x at the end"
    raise MissingInputError(
        f"{rows.where}: tag {shown(names[codes[stray]])} in column {definition.label_column!r}, "
        f"row {stray[0] + 1}, word {stray[1] + 1}, is part of no entity, and would not be scored. "
        f"{rule[0].upper()}{rule[1:]}. {_USE_ACCURACY}"
    )


_INSTEAD = (
    ", one for each sentence. Parquet and JSONL have lists; a .conll file has a word a line and an "
    "empty line after each sentence."
)


def _tags(rows: Rows, definition: TaskDefinition) -> Items:
    name = definition.label_column
    return _filled(rows, name, label_items(rows, name, _INSTEAD, "word", "tag"))


def _words(rows: Rows, name: str) -> Items:
    return _filled(rows, name, list_items(rows, name, _INSTEAD, "word"))


def _filled(rows: Rows, name: str, found: Items) -> Items:
    if (empty := np.flatnonzero(found.lengths == 0)).size:
        raise MissingInputError(
            f"{rows.where}: column {name!r} holds an empty list in {len(empty)} of "
            f"{len(found.lengths)} rows, first in row {empty[0] + 1}. Remove these rows, or write "
            "their words and tags."
        )
    return found
