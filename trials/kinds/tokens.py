"""A tag for each word of a sentence. A row is a list of words and a list of as many tags.

A strict F1 counts entities. BIO: an entity begins with B-x and continues with I-x. BIOES: it is
S-x, or B-x, any I-x, then E-x. Tags that break the scheme are no entity (an I-x after O; in BIOES a
B-x without its E-x). An entity is right if its type, first word and last word are those of a
labelled one. This is seqeval's `mode="strict"` with IOB2 and IOBES (Nakayama 2018): see
tests/trials/kinds/test_tokens.py. conlleval (CoNLL 2000) counts a lone I-x as an entity.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lp_sweep.storage.errors import MissingInputError
from lp_sweep.storage.printable import short, shown
from lp_sweep.trials.data.columns import (
    Items,
    Labels,
    Rows,
    coded,
    feature_names,
    label_items,
    list_items,
    plain_column,
    refuse_lookalikes,
)
from lp_sweep.trials.kinds.kind import Array, Classification, Names, ProblemType, functional, torch
from lp_sweep.trials.spec.specs import TaskDefinition, TaskKind

if TYPE_CHECKING:
    from torch import Tensor

NO_TAG = -100  # in (n, W) tags: no word, or one without a tag
NO_ANSWER = -1
# the logits of a word without a token: cut off at max_length, or made of unknown characters
SILENT = float(np.finfo(np.float32).min)

OUTSIDE = "O"
_TAG = re.compile(r"([BIES])-(.+)", re.DOTALL)
_BIO, _BIOES = "BI", "BIES"

_USE_ACCURACY = "If they are no entities, set `metric: accuracy`."
_INSTEAD = (
    ", one for each sentence. Parquet and JSONL have lists; a .conll file has a word per line and "
    "an empty line after each sentence."
)


class Tokens(Classification):
    """Labels are (n, W) tags of n sentences of at most W words, `NO_TAG` after the last. Logits are
    (n, W, C), `SILENT` for a word without an answer, which counts as wrong, or as `O` for
    entities. A word is answered at its first token. The table of predictions has each sentence's
    number of words, and of words with the right tag."""

    name: TaskKind = "tokens"
    help = "a tag for each word (`text:` and `label:` name columns of lists)"
    metrics: Names = ("entity_f1", "accuracy")
    problem_type: ProblemType = "token_classification"
    words = True
    learns_from, scored_by = "sentences", "sentences"
    called = "tags"

    def problem(self, definition: TaskDefinition) -> str | None:
        if len(definition.text_columns) != 1:
            return "kind tokens tags the words of one column: `text:` names one."
        return super().problem(definition)

    def label_names(self, train: Rows, definition: TaskDefinition) -> Names:
        """The definition's, else those of the file's ClassLabel, else the sorted tags of the train
        rows, for entities completed to all tags of each type. Raises MissingInputError, also for
        tags outside the scheme if the metric is of entities."""
        word_column(train, definition.text_columns[0])  # a wrong column of words is reported first
        found = _tags(train, definition)
        names = definition.labels or feature_names(train, definition.label_column)
        values = found.items.unique().to_pylist()
        if not names and len(values) < 2:
            raise MissingInputError(
                f"{train.where}: every word has the tag {shown(values[0])}. Training needs two "
                f"tags or more: check the column {definition.label_column!r} and the file."
            )
        if not definition.labels:
            refuse_lookalikes(found, names or values)
        if "entity_f1" not in (definition.metric, *definition.extra_metrics):
            return names or tuple(sorted(values))
        if outside := [name for name in names or values if not is_tag(name)]:
            where = "" if names else f", {found.place(found.items.index(outside[0]).as_py())},"
            raise MissingInputError(
                f"{train.where}: tag {shown(outside[0])} in column {definition.label_column!r}"
                f"{where} is outside the schemes BIO and BIOES: O, B-x, I-x, E-x, S-x. "
                f"{'' if names else 'Fix it. '}{_USE_ACCURACY}"
            )
        return names or closure(values)

    def labels(self, rows: Rows, definition: TaskDefinition, names: Names) -> Labels:
        """(n, W) positions in `names`. Raises MissingInputError for an unknown tag, for one that
        breaks the scheme, and for a row with unequal numbers of words and tags."""
        found = _tags(rows, definition)
        words = _words(rows, definition.text_columns[0]).lengths
        if (other := np.flatnonzero(words != found.lengths)).size:
            row = int(other[0])
            raise MissingInputError(
                f"{rows.where}: row {row + 1} has {words[row]} words in column "
                f"{definition.text_columns[0]!r} and {found.lengths[row]} tags in column "
                f"{definition.label_column!r}. {len(other)} of {len(words)} rows have unequal "
                "numbers. Give each word one tag, or remove these rows."
            )
        codes = coded(found, definition, names, "tag")
        made = np.full((len(words), int(words.max())), NO_TAG, np.int64)
        made[np.arange(made.shape[1]) < words[:, None]] = codes
        if "entity_f1" in (definition.metric, *definition.extra_metrics):
            _refuse_stray(rows, definition, made, names)
        return made

    def no_labels(self, rows: int, outputs: int = 1) -> Labels:
        return np.empty((rows, 0), np.int64)

    def counts(self, labels: Labels, outputs: int) -> Array:
        """Words."""
        return np.bincount(labels[labels >= 0], minlength=outputs)

    def stored_labels(self, labels: Labels) -> Array:
        return np.asarray((labels >= 0).sum(axis=1))

    def mean_loss(self, logits: Tensor, target: Tensor) -> Tensor:
        """Mean over the words that have an answer and a tag. (B, V, C) and (B, V)."""
        return self._sum(logits, target) / (target >= 0).sum().clamp(min=1)

    def labelled_loss(self, logits: Tensor, target: Tensor) -> Tensor:
        """The same sum, divided by the number of words that have an answer."""
        return self._sum(logits, target) / (target != NO_TAG).sum().clamp(min=1)

    @staticmethod
    def _sum(logits: Tensor, target: Tensor) -> Tensor:
        tags = target.long().clamp(min=NO_ANSWER).flatten()
        return functional.cross_entropy(
            logits.flatten(0, 1), tags, ignore_index=NO_ANSWER, reduction="sum"
        )

    def imitation_loss(self, logits: Tensor, teacher: Tensor, temperature: float) -> Tensor:
        """Mean over the words that the teacher answers. (B, V, C), and (B, V or more, C)."""
        taught = teacher[:, : logits.shape[1]]
        answered = taught[..., :1] > SILENT
        taught = torch.where(answered, taught, 0.0)
        own, other = (functional.log_softmax(of / temperature, dim=-1) for of in (logits, taught))
        each = functional.kl_div(own, other, reduction="none", log_target=True).sum(
            -1, keepdim=True
        )
        total = torch.where(answered, each, 0.0).sum()
        return total / answered.sum().clamp(min=1) * temperature**2

    def answers(self, logits: Array) -> Array:
        return np.where(logits[..., 0] > SILENT, logits.argmax(axis=-1), NO_ANSWER)

    def guess(self, labels: Array, metric: str, positive: int) -> int | None:
        """The most common tag; None for entity F1, where the same tag for every word scores 0."""
        if metric == "entity_f1":
            return None
        return int(np.bincount(labels[labels >= 0]).argmax())

    def tally(self, metric: str, targets: Array, answers: Array, names: Names) -> Array | None:
        if metric == "entity_f1":
            answers = np.where(targets >= 0, answers, NO_ANSWER)
            return f1_tally(targets, answers, scheme_of(names))
        words = targets >= 0
        right = (targets == answers) & words
        return np.stack([right.sum(axis=1), words.sum(axis=1)], axis=1).astype(np.float64)

    def stored_answers(self, targets: Array, answers: Array, tally: Array | None) -> Array:
        """The number of words with the right tag."""
        return np.asarray((targets == answers).sum(axis=1, where=targets >= 0))

    def stored_scores(self, targets: Array, logits: Array) -> Iterable[list[float]]:
        """The logits of all words, one word after the other."""
        words = self.stored_labels(targets)
        return [row[:count].ravel().tolist() for row, count in zip(logits, words, strict=True)]

    def restored(self, labels: Labels, scores: Sequence[Sequence[float]]) -> Array:
        classes = sum(map(len, scores)) // int((labels >= 0).sum())
        return unflat(scores, labels.shape[1], classes)

    def probe(self, train: Array, dev: Array, labels: Array) -> Array:
        raise MissingInputError(
            "probes use the sentence token, and a task of kind tokens has a label for each word"
        )


def flat(logits: Array) -> Iterator[list[float]]:
    """(n, W, C) logits as n lists, word after word, up to the last word with an answer."""
    answered = logits[..., 0] > SILENT
    ends = np.where(answered.any(axis=1), answered.shape[1] - answered[:, ::-1].argmax(axis=1), 0)
    for row, end in zip(logits, ends, strict=True):
        yield row[:end].ravel().tolist()


def unflat(rows: Sequence[Sequence[float]], words: int, classes: int) -> Array:
    """The inverse of `flat`: (n, words, classes) float32. Raises ValueError for rows of another
    number of classes, or of more words."""
    found = np.full((len(rows), words, classes), SILENT, np.float32)
    for row, scores in zip(found, rows, strict=True):
        each = np.asarray(scores, np.float32).reshape(-1, classes)
        if len(each) > words:
            raise ValueError(f"{len(each)} words, not {words}")
        row[: len(each)] = each
    return found


def word_column(rows: Rows, name: str) -> pa.ChunkedArray:
    """Lists of words. Raises MissingInputError for others, and for a list without a word."""
    found = _words(rows, name)
    if not pa.types.is_string(found.items.type):
        raise MissingInputError(
            f"{rows.where}: column {name!r} holds lists of {short(str(found.items.type), 80)}, not "
            "of words. Name a column of words."
        )
    return plain_column(rows, name)


def _refuse_stray(
    rows: Rows,
    definition: TaskDefinition,
    codes: npt.NDArray[np.int64],
    names: Names,
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


def _tags(rows: Rows, definition: TaskDefinition) -> Items:
    name = definition.label_column
    found = _filled(rows, name, label_items(rows, name, _INSTEAD, "word", "tag"))
    if not definition.labels:
        below = pc.match_substring_regex(found.items, r"^-\d+$")
        if (place := pc.index(below, True).as_py()) >= 0:
            raise MissingInputError(
                f"{rows.where}: column {name!r} holds {found.items[place]} in {found.place(place)}:"
                " libraries mark words without a tag so, such as [CLS]. Give the words of the text "
                "alone, each with its tag."
            )
    return found


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


# -- entities


class Scheme(NamedTuple):
    """The parts of each tag, indexed by its number; -1 (no tag) is outside."""

    prefixes: Array  # (C + 1,) one letter each, the last O
    types: Array  # (C + 1,) int64, 0 outside
    closed: bool  # BIOES: the end of an entity is tagged


def is_tag(name: str) -> bool:
    return name == OUTSIDE or _TAG.fullmatch(name) is not None


def closure(names: Sequence[str]) -> tuple[str, ...]:
    """Completes tags (see `is_tag`) to all tags of each type in their scheme, O last, so that a
    network can tag entities of any length."""
    found = [match for name in names if (match := _TAG.fullmatch(name))]
    letters = _BIOES if {match[1] for match in found} & {"E", "S"} else _BIO
    types = sorted({match[2] for match in found})
    return (*(f"{letter}-{each}" for each in types for letter in letters), OUTSIDE)


@functools.lru_cache(maxsize=64)
def scheme_of(names: tuple[str, ...]) -> Scheme:
    """The scheme of these tags (see `is_tag`)."""
    parts = [_TAG.fullmatch(name) for name in names]
    types = sorted({match[2] for match in parts if match})
    return Scheme(
        np.array([*(match[1] if match else OUTSIDE for match in parts), OUTSIDE]),
        np.array([*(1 + types.index(match[2]) if match else 0 for match in parts), 0]),
        any(match and match[1] in "ES" for match in parts),
    )


class Entities(NamedTuple):
    """m entities, in the order of their rows and words."""

    rows: Array  # (m,)
    first: Array  # (m,) words, from 0
    last: Array  # (m,)
    types: Array  # (m,) as in the scheme


def entities(tags: Array, scheme: Scheme) -> Entities:
    """Entities in (n, W) numbers of tags; negative: no word, or no tag."""
    width = tags.shape[1]
    apart = np.pad(np.maximum(tags, -1), ((0, 0), (0, 1)), constant_values=-1).ravel()
    prefix, types = scheme.prefixes[apart], scheme.types[apart]  # -1: the last
    goes_on = np.isin(prefix[1:], ["I", "E"]) & np.isin(prefix[:-1], ["B", "I"])
    goes_on &= types[1:] == types[:-1]
    breaks = np.flatnonzero(~np.append(False, goes_on))
    begins = np.flatnonzero(np.isin(prefix, ["B", "S"]))
    ends = breaks[np.searchsorted(breaks, begins, side="right")] - 1
    if scheme.closed:
        whole = np.isin(prefix[ends], ["E", "S"])
        begins, ends = begins[whole], ends[whole]
    found = begins // (width + 1)
    return Entities(found, begins % (width + 1), ends % (width + 1), types[begins])


def first_stray(tags: Array, scheme: Scheme) -> tuple[int, int] | None:
    """Row and word, from 0, of the first tag other than O outside any entity."""
    found = entities(tags, scheme)
    steps = np.zeros((len(tags), tags.shape[1] + 1), np.int64)
    steps[found.rows, found.first] += 1
    np.add.at(steps, (found.rows, found.last + 1), -1)
    covered = steps.cumsum(axis=1)[:, :-1] > 0
    stray = np.argwhere(~covered & (scheme.prefixes[np.maximum(tags, -1)] != OUTSIDE))
    return (int(stray[0, 0]), int(stray[0, 1])) if len(stray) else None


def f1_tally(targets: Array, answers: Array, scheme: Scheme) -> Array:
    """(n, 2) for two (n, W) arrays of tags: twice each row's right entities, and its labelled plus
    answered entities. F1 is the ratio of their sums."""
    n, width = targets.shape
    labelled, answered = entities(targets, scheme), entities(answers, scheme)

    def keys(found: Entities) -> Array:
        place = (found.rows * width + found.first) * width + found.last
        return np.asarray(place * len(scheme.types) + found.types)

    found = labelled.rows[np.isin(keys(labelled), keys(answered))]
    right, labels, others = (
        np.bincount(rows, minlength=n) for rows in (found, labelled.rows, answered.rows)
    )
    return np.stack([2 * right, labels + others], axis=1).astype(np.float64)
