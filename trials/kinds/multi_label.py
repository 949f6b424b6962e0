"""Several labels for a text, or none: a list of labels in each row, or a column of 0 and 1 for
each label."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lp_sweep.storage.errors import MissingInputError
from lp_sweep.storage.printable import shown
from lp_sweep.trials.data.columns import (
    Items,
    Labels,
    Rows,
    all_whole,
    coded,
    feature_names,
    label_items,
    plain_column,
    refuse_lookalikes,
)
from lp_sweep.trials.kinds.kind import Array, Classification, Kind, Names, ProblemType, functional
from lp_sweep.trials.spec.specs import TaskDefinition, TaskKind

if TYPE_CHECKING:
    from torch import Tensor

_NO_LABEL = -1
_LIKE_MARKS = {"yes", "no", "y", "n", "t", "f", "true", "false", "pos", "neg"}
_MARKS = {"0": 0, "1": 1, "false": 0, "true": 1, "0.0": 0, "1.0": 1}


class MultiLabel(Kind):
    """Labels are marks (n, C) of 0 and 1. A label is predicted where its logit is above 0, a
    probability above 0.5. Answers are the logits: average precision ranks by them."""

    name: TaskKind = "multi_label"
    help = "several labels for each text, or none"
    metrics: Names = ("micro_f1", "macro_f1", "mean_average_precision")
    problem_type: ProblemType = "multi_label_classification"
    called = "labels"
    counts_labels = True

    def problem(self, definition: TaskDefinition) -> str | None:
        for name, given in (
            ("labels", definition.labels),
            ("label", definition.label_columns),
        ):
            if given and (len(set(given)) != len(given) or len(given) == 1):
                return f"`{name}:` must be two or more, all different: {list(given)}."
        if definition.labels and definition.label_columns:
            return "the columns of `label:` are the labels: remove `labels:`."
        return None

    def label_names(self, train: Rows, definition: TaskDefinition) -> Names:
        """The names of the label columns; for lists the definition's, else those of the file's
        ClassLabel, else the sorted labels of the train rows. Raises MissingInputError, also for
        fewer than two."""
        if definition.label_columns:
            return definition.label_columns
        items = _listed(train, definition)
        found = items.items.unique().to_pylist()
        names = definition.labels or feature_names(train, definition.label_column)
        _marks(train, items, len(names))
        if not definition.labels:
            refuse_lookalikes(items, names or found)
        names = names or tuple(sorted(found, key=int if all_whole(found) else str))
        if len(names) < 2:
            raise MissingInputError(
                f"{train.where}: column {definition.label_column!r} has one label in all rows, "
                f"{shown(names[0])}. Set kind: classification and give each row a class, or check "
                "the file."
            )
        return names

    def labels(self, rows: Rows, definition: TaskDefinition, names: Names) -> Labels:
        """(n, labels) marks. Raises MissingInputError for values that are no label, and for an
        empty list where the task does not name its labels."""
        if definition.label_columns:
            return np.stack([_marked(rows, name) for name in definition.label_columns], axis=1)
        found = _listed(rows, definition)
        if (marks := _marks(rows, found, len(names))) is not None:
            return marks
        codes = coded(found, definition, names, "label")
        made = np.zeros((rows.table.num_rows, len(names)), np.int8)
        made[np.repeat(np.arange(len(made)), found.lengths), codes] = 1
        return made

    def first_bias(self, labels: Labels) -> Array:
        """The log-odds of each label. With a bias of 0 the network first learns to reject rare
        labels for every text, which destroys features (the prior of Lin et al. 2017, *Focal loss
        for dense object detection*, section 3.3)."""
        rows = labels[labels[:, 0] != _NO_LABEL]
        has = rows.sum(axis=0, dtype=np.int64)
        return np.asarray(np.log((has + 1) / (len(rows) - has + 1)))

    def no_labels(self, rows: int, outputs: int = 0) -> Labels:
        return np.full((rows, outputs), _NO_LABEL, np.int8)

    def counts(self, labels: Labels, outputs: int) -> Array:
        return np.asarray((labels > 0).sum(axis=0))

    def stored_labels(self, labels: Labels) -> Array:
        """How many labels each row has."""
        return np.asarray((labels > 0).sum(axis=1))

    def mean_loss(self, logits: Tensor, target: Tensor) -> Tensor:
        return functional.binary_cross_entropy_with_logits(logits, target.float())

    def labelled_loss(self, logits: Tensor, target: Tensor) -> Tensor:
        known = (target != _NO_LABEL).float()
        losses = functional.binary_cross_entropy_with_logits(
            logits, target.float() * known, weight=known, reduction="sum"
        )
        return losses / target.numel()

    def imitation_loss(self, logits: Tensor, teacher: Tensor, temperature: float) -> Tensor:
        """Binary cross-entropy with the teacher's probabilities, without a temperature."""
        return functional.binary_cross_entropy_with_logits(logits, teacher.sigmoid())

    def answers(self, logits: Array) -> Array:
        return logits

    def other_labels(self, ours: Array, theirs: Array) -> int:
        return int(((ours > 0) != (theirs > 0)).any(axis=1).sum())

    def tally(self, metric: str, targets: Array, answers: Array, names: Names) -> Array | None:
        """F1 is 2 * true positives / (labels + predictions), summed over a row's labels for
        micro_f1 and kept for each label for macro_f1."""
        if metric not in ("micro_f1", "macro_f1"):
            return None
        given = answers > 0
        part = 2.0 * (given & (targets > 0))
        whole = given + (targets > 0).astype(np.float64)
        if metric == "micro_f1":
            part, whole = (each.sum(axis=1, keepdims=True) for each in (part, whole))
        return np.stack([part, whole], axis=2).reshape(len(targets), -1)

    def stored_answers(self, targets: Array, answers: Array, tally: Array | None) -> Array:
        """How many labels each row is given."""
        return np.asarray((answers > 0).sum(axis=1))

    def guess(self, labels: Array, metric: str, positive: int) -> Array:
        """(C,) logits 1 and -1, the same labels for every row: for macro_f1 all that occur;
        for micro_f1 the most common ones, as many as score best."""
        rows = labels[labels[:, 0] != _NO_LABEL]
        counts = rows.sum(axis=0, dtype=np.int64)
        given = np.where(counts > 0, 1.0, -1.0)
        if metric == "micro_f1":
            order = np.argsort(-counts, kind="stable")
            numbers = np.arange(1, len(counts) + 1)
            f1 = 2 * counts[order].cumsum() / (counts.sum() + len(rows) * numbers)
            given[order[f1.argmax() + 1 :]] = -1
        return given

    def probe(self, train: Array, dev: Array, labels: Array) -> Array:
        """(n, C) decision values of one logistic regression for each label."""
        one = Classification()
        values = np.empty((len(dev), labels.shape[1]))
        for index, has in enumerate(labels.T.astype(np.int64)):
            both = has.min() != has.max()
            values[:, index] = one.probe(train, dev, has)[:, 1] if both else 2.0 * has[0] - 1
        return values


def _listed(rows: Rows, definition: TaskDefinition) -> Items:
    """Raises MissingInputError for an empty list, which may be a row that nobody labelled, unless
    the task lists its labels."""
    instead = (
        " of labels. JSONL and Parquet have lists; for labels in one cell, name what is between "
        "them (`label_separator:`); for columns of 0 and 1, name all: `label: [first, second]`."
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


def _marks(rows: Rows, found: Items, labels: int) -> npt.NDArray[np.int8] | None:
    """(n, labels) if the lists hold 0 or 1 for each label; None if they name labels, which no list
    does twice. Raises MissingInputError for lists that do neither. `labels`: 0 if unknown."""
    sizes = found.lengths
    marks_only = {*found.items.unique().to_pylist()} <= {*_MARKS}
    names = found.items.unique().to_pylist()
    like_marks = all_whole(names) or {name.lower() for name in names} <= _LIKE_MARKS
    if not marks_only and like_marks and (twice := _named_twice(found)) is not None:
        row, label = twice
        raise MissingInputError(
            f"{rows.where}: row {row + 1} has the label {shown(label)} twice. A list names each of "
            "a text's labels once; or it has a mark for each of `labels:`, 0 or 1 only."
        )
    if not marks_only or max(sizes, default=0) < 2:
        return None
    if len({*sizes.tolist()}) == 1 and labels == sizes[0]:
        marks = [_MARKS[mark] for mark in found.items.to_pylist()]
        return np.array(marks, np.int8).reshape(-1, labels)
    if sizes.max() == 2 and (labels or len({*sizes.tolist()}) > 1):
        return None
    row, said = int(sizes.argmax()), "which have no name"
    if labels:
        said = f"and the task has {labels} labels"
    raise MissingInputError(
        f"{rows.where}: row {row + 1} has {sizes[row]} marks of 0 and 1, {said}. Give each row a "
        "mark for each label, and name the labels in that order: `labels: [first, second]`."
    )


def _named_twice(found: Items) -> tuple[int, str] | None:
    """The first row whose list has a number twice, and the number, if all lists have equal length,
    as marks have."""
    if len({*found.lengths.tolist()}) > 1:
        return None
    codes = found.items.dictionary_encode()
    rows = np.repeat(np.arange(len(found.lengths)), found.lengths)
    pairs = rows * (len(codes.dictionary) + 1) + codes.indices.to_numpy()
    order = np.argsort(pairs, kind="stable")
    same = np.flatnonzero(np.diff(pairs[order]) == 0)
    if not len(same):
        return None
    at = int(order[same[0]])
    return int(rows[at]), str(found.items[at])


def _marked(rows: Rows, name: str) -> npt.NDArray[np.int8]:
    """(n,) marks from a column of 0 and 1."""
    column = plain_column(rows, name)
    try:
        texts = pc.utf8_lower(column.cast(pa.string()))
        codes = pc.index_in(texts, value_set=pa.array(_MARKS, pa.string()))
    except pa.ArrowException:
        codes = pa.chunked_array([pa.nulls(len(column), pa.int32())])
    if codes.null_count:
        row = int(np.flatnonzero(codes.is_null().to_numpy())[0])
        raise MissingInputError(
            f"{rows.where}: column {name!r} must hold 0 or 1, and row {row + 1} holds "
            f"{shown(column[row].as_py())}. Fix it, or leave the column out of the task's `label:`."
        )
    found: npt.NDArray[np.int8] = np.array([*_MARKS.values()], np.int8)[codes.to_numpy()]
    return found
