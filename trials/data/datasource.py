"""Reads a task's rows as texts and labels, and fingerprints them.

All checks of rows that would otherwise break or silently falsify a training run happen here, once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from lp_sweep.storage.errors import MissingInputError
from lp_sweep.storage.printable import listed
from lp_sweep.trials.data.columns import (
    Labels,
    Rows,
    text_column,
    with_separate_labels,
    without_missing,
)
from lp_sweep.trials.data.delimited import quoting_of
from lp_sweep.trials.data.formats import file_format, parts_of
from lp_sweep.trials.data.hub import read_hub
from lp_sweep.trials.data.readers import column_names, read_file, require_columns
from lp_sweep.trials.data.retrieval import columns_of, read_collection
from lp_sweep.trials.data.tasks import CORPUS, QRELS, QUERIES, UNLABELLED, TaskSource
from lp_sweep.trials.kinds import COSENT, Kind, kind_of
from lp_sweep.trials.kinds.rankmetrics import query_count
from lp_sweep.trials.kinds.tokens import NO_TAG, word_column
from lp_sweep.trials.spec.specs import TaskDefinition


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """n rows: one or two lists of n texts, and n labels.

    Labels are int64 classes, float32 numbers, int8 marks (n, labels), or float32 relevance and
    query (n, 2). For tags (`Kind.words`) a text is a list of words, and labels are (n, W). A
    retrieval task's dev set has the texts of the queries, then of the documents; its labels are
    the judgements.
    """

    texts: tuple[list[Any], ...]
    labels: Labels

    def __len__(self) -> int:
        return len(self.texts[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTask:
    """The rows of a task, and how they were selected. The first dev split is the main one."""

    train: Split
    dev: dict[str, Split]
    label_names: tuple[str, ...]  # () for regression
    definition: TaskDefinition
    limit_train: int | None = None
    limit_dev: int | None = None
    looked_at: int | None = None  # only so many first train rows were read; None: all
    unlabelled: Split | None = None  # only students learn from these
    more_unlabelled: bool = False  # the file has more of them than were read
    strangers: int = 0  # judgements of queries that are not in the file of queries

    @property
    def taught(self) -> Split:
        """The rows a student learns from: train, then the unlabelled ones."""
        if self.unlabelled is None:
            return self.train
        parts = self.train, self.unlabelled
        return Split(
            texts=tuple([*a, *b] for a, b in zip(*(part.texts for part in parts), strict=True)),
            labels=_one_below_other(self.train.labels, self.unlabelled.labels),
        )

    @property
    def num_labels(self) -> int:
        """Outputs of the head: one for regression."""
        return len(self.label_names) or 1

    @property
    def splits(self) -> dict[str, Split]:
        """Train, then dev."""
        return {"train": self.train, **self.dev}

    @property
    def main_split(self) -> str:
        return next(iter(self.dev))


_RULES = ("drop_missing", "label_separator")  # of TaskSource: they decide which rows are read


def data_fingerprint(source: TaskSource, definition: TaskDefinition) -> str:
    """`sha256:<digest>` of the files' bytes, or `hub:<id>@<revision>:<config>:<splits>`; then the
    rules by which rows are read, if any.

    The role of each file and its format count; names and folders don't. Raises MissingInputError
    if a file or a column of `definition` is missing, so that planning reports it.
    """
    rules = {name: value for name in _RULES if (value := getattr(source, name))}
    suffix = f"#{json.dumps(rules)}" if rules else ""
    if source.dataset is not None:
        splits = ",".join(f"{ours}={theirs}" for ours, theirs in source.splits.items())
        return f"hub:{source.dataset}@{source.revision}:{source.config or ''}:{splits}{suffix}"
    digest = hashlib.sha256()
    for split, path in source.files.items():
        if split in (CORPUS, QRELS, QUERIES):
            columns_of(split, path)
        else:
            require_columns(path, column_names(path), _columns(definition, split))
        parts = []
        for part in parts_of(path):
            with part.open("rb") as file:
                parts.append(hashlib.file_digest(file, "sha256").hexdigest())
        content = (
            parts[0] if len(parts) == 1 else hashlib.sha256(" ".join(parts).encode()).hexdigest()
        )
        digest.update(f"{split} {file_format(path)} {content}\n".encode())
    return f"sha256:{digest.hexdigest()}{suffix}"


def rules_of(fingerprint: str) -> dict[str, Any]:
    """The fields of TaskSource that `data_fingerprint` has put at its end."""
    _, mark, rules = fingerprint.partition("#{")
    return dict(json.loads(f"{{{rules}")) if mark else {}


def unlabelled_fingerprint(source: TaskSource, definition: TaskDefinition) -> str:
    """The fingerprint of the unlabelled file; empty if there is none."""
    return data_fingerprint(_unlabelled(source), definition) if source.unlabelled else ""


def _unlabelled(source: TaskSource) -> TaskSource:
    return TaskSource(files={UNLABELLED: source.unlabelled})


def unlabelled_rows(path: str, definition: TaskDefinition) -> Split:
    """All rows of such a file. Raises MissingInputError."""
    rows = _read(TaskSource(files={UNLABELLED: path}), UNLABELLED, definition, offline=True)
    return _split(definition, (), rows, None)


def load_task(
    definition: TaskDefinition,
    source: TaskSource,
    *,
    limit_train: int | None = None,
    limit_dev: int | None = None,
    offline: bool = False,
    most: int | None = None,
    unlabelled: bool = False,
    loss: str = "",
) -> LoadedTask:
    """Reads and checks a task's rows. Raises MissingInputError.

    `limit_train` and `limit_dev` take a random subset in the file's order, the same for every
    seed. `most` reads only so many first rows of train, and of the unlabelled file. `unlabelled`:
    read that file too, if there is one. `loss`: of an embedding, which may need train labels.
    """
    kind = kind_of(definition)
    if kind.searches:
        return _load_search(definition, source, limit_train, limit_dev, most, loss)
    names = list(source.files or source.splits)
    if len(names) < 2 or names[0] != "train":
        raise MissingInputError(
            f"a task needs a 'train' split and then one or more dev splits, got {names}."
        )
    rows = {"train": _read(source, "train", definition, offline, most, loss)}
    rows |= {name: _read(source, name, definition, offline) for name in names[1:]}
    label_names = kind.label_names(rows["train"], definition)
    more = None
    if unlabelled and source.unlabelled:
        more = _read(_unlabelled(source), UNLABELLED, definition, offline, most)
    return LoadedTask(
        train=_split(definition, label_names, rows["train"], limit_train),
        dev={
            name: _split(definition, label_names, rows[name], limit_dev, scored=True)
            for name in names[1:]
        },
        label_names=label_names,
        definition=definition,
        limit_train=limit_train,
        limit_dev=limit_dev,
        looked_at=None if rows["train"].whole else most,
        unlabelled=None if more is None else _split(definition, label_names, more, None),
        more_unlabelled=more is not None and not more.whole,
    )


def _load_search(
    definition: TaskDefinition,
    source: TaskSource,
    limit_train: int | None,
    limit_dev: int | None,
    most: int | None,
    loss: str,
) -> LoadedTask:
    """A task scored by search. Its train texts are those of its train file, or the documents."""
    kind = kind_of(definition)
    found = read_collection(source.files, skip_unjudged=source.skip_unjudged, most=most)
    if "train" in source.files:
        rows = _read(source, "train", definition, True, most, loss)
        train, whole = _split(definition, (), rows, limit_train), rows.whole
    else:
        documents = found.documents[:most]
        none = kind.no_labels(len(documents))
        chosen = _limited(kind, none, limit_train)
        train = Split(texts=([documents[row] for row in chosen],), labels=none[chosen])
        whole = len(documents) == len(found.documents)
    asked = found.only(_limited(kind, kind.no_labels(len(found.queries)), limit_dev))
    return LoadedTask(
        train=train,
        dev={QUERIES: Split(texts=([*asked.queries, *asked.documents],), labels=asked.judged)},
        label_names=(),
        definition=definition,
        limit_train=limit_train,
        limit_dev=limit_dev,
        looked_at=None if whole else most,
        strangers=found.strangers,
    )


class Overlap(NamedTuple):
    """Dev rows whose texts also occur in a train row, over all dev splits."""

    rows: int
    relabelled: int  # those of them with a label that none of these train rows has
    of: int  # all dev rows


def overlap(task: LoadedTask) -> Overlap:
    """Compares texts without surrounding white space. For a search only the queries count. Holds
    the dev rows in memory and streams the train rows."""
    if kind_of(task.definition).searches:
        learned_texts = {text.strip() for texts in task.train.texts for text in texts}
        [queries] = scored_rows(task).texts
        return Overlap(sum(text.strip() in learned_texts for text in queries), 0, len(queries))
    labels: dict[tuple[str, ...], set[bytes]] = {
        key: set() for key in text_keys(*task.dev.values())
    }
    for key, label in zip(text_keys(task.train), _bits(task.train.labels), strict=True):
        if key in labels:
            labels[key].add(label)
    rows = relabelled = 0
    learned = not kind_of(task.definition).embeds  # an embedding ignores train labels
    for split in task.dev.values():
        for key, label in zip(text_keys(split), _bits(split.labels), strict=True):
            rows += bool(labels[key])
            relabelled += learned and bool(labels[key]) and label not in labels[key]
    return Overlap(rows, relabelled, sum(map(len, task.dev.values())))


def scored_rows(task: LoadedTask) -> Split:
    """The rows of the main dev split; of a search its queries."""
    split = task.dev[task.main_split]
    if not kind_of(task.definition).searches:
        return split
    queries = split.texts[0][: query_count(split.labels)]
    return Split(texts=(queries,), labels=split.labels)


def prompted(definition: TaskDefinition, split: Split, *, scored: bool) -> tuple[list[str], ...]:
    """The texts of a split with their prompts in front. `scored`: it is a dev split."""
    query, document = definition.query_prompt, definition.document_prompt
    if not (query or document):
        return split.texts
    if scored and kind_of(definition).searches:
        count = query_count(split.labels)
        [texts] = split.texts
        return ([(query if i < count else document) + text for i, text in enumerate(texts)],)
    prompts = (query, document) if len(split.texts) == 2 else (document,)
    return tuple(
        [prompt + text for text in texts]
        for prompt, texts in zip(prompts, split.texts, strict=True)
    )


def dev_texts(task: LoadedTask) -> int:
    """Number of unlabelled rows whose texts also occur in a dev row."""
    if task.unlabelled is None:
        return 0
    keys = set(text_keys(*task.dev.values()))
    return sum(key in keys for key in text_keys(task.unlabelled))


def text_keys(*splits: Split) -> Iterator[tuple[str, ...]]:
    """Yields each row's texts, as compared to find equal rows."""
    for split in splits:
        yield from zip(*(map(_bare, texts) for texts in split.texts), strict=True)


def _bare(text: str | list[str]) -> str:
    return text.strip() if isinstance(text, str) else "\0".join(text)


def _bits(labels: Labels) -> Iterator[bytes]:
    """Yields each row's label as bytes, without the padding of tags, which differs by split."""
    for label in labels:
        tags = np.atleast_1d(label)
        yield tags[tags != NO_TAG].tobytes()


def _one_below_other(one: Labels, other: Labels) -> Labels:
    if one.ndim == 1:
        return np.concatenate([one, other])
    width = max(one.shape[1], other.shape[1])
    wide = [
        np.pad(part, ((0, 0), (0, width - part.shape[1])), constant_values=NO_TAG)
        for part in (one, other)
    ]
    return np.concatenate(wide)


def doubtful_rows(task: LoadedTask, source: TaskSource) -> Iterator[str]:
    """Yields notes on empty texts, on names alike but for case, on queries that any order ranks
    right, and on judgements of queries that are not in the file of queries. Such rows are used
    nevertheless."""
    files = source.files | {UNLABELLED: source.unlabelled}
    more = {} if task.unlabelled is None else {UNLABELLED: task.unlabelled}
    for split, rows in (task.splits | more).items():
        if split == QUERIES:
            continue
        where = files.get(split) or f"{source.dataset} {source.config or ''} {split}"
        for name, texts in zip(task.definition.text_columns, rows.texts, strict=False):
            if empty := [row for row, of in enumerate(texts, 1) if not _bare(of).strip("\0 ")]:
                among = f"{len(empty)} of {len(texts)} rows, first in row {empty[0]}"
                yield f"{where}: column {name!r} is empty in {among}"
    yield from _odd_quotes(filter(None, files.values()))
    if not (task.definition.labels or task.definition.label_columns):
        first: dict[str, str] = {}
        pairs = [(first.setdefault(name.casefold(), name), name) for name in task.label_names]
        if differ := [f"{a!r} and {b!r}" for a, b in pairs if a != b]:
            yield (
                f"{files.get('train') or source.dataset}: {kind_of(task.definition).called} that "
                f"differ only in case: {listed(differ, 3)}. If they are one, write them alike"
            )
    if kind_of(task.definition).scored_by == "queries":
        yield from _doubtful_queries(task, source.files)


def _odd_quotes(paths: Iterable[str]) -> Iterator[str]:
    for path in paths:
        whole = Path(path).is_file() and file_format(path) == "csv"
        if whole and (line := quoting_of(path, "csv").odd_line):
            yield (
                f"{path}: line {line} has a quotation mark within a field, so its text may have "
                'marks too many or too few. Write "..." around a field, and "" for a mark in it'
            )


def _doubtful_queries(task: LoadedTask, files: Mapping[str, str]) -> Iterator[str]:
    dev = task.dev[task.main_split]
    if kind_of(task.definition).searches:
        if task.strangers:
            judge = "judgement is" if task.strangers == 1 else "judgements are"
            yield (
                f"{files[QRELS]}: {task.strangers:,} {judge} skipped: {files[QUERIES]} does not "
                "have their queries"
            )
        count, [every] = query_count(dev.labels), dev.texts
        if own := int((dev.labels[:, 2] == 0).sum()):
            have = "query has" if own == 1 else "queries have"
            yield (
                f"{files[QUERIES]}: {own:,} {have} the id of a document in {files[CORPUS]}. It is "
                "left out of that query's results, as in BEIR: a query does not find itself. If "
                "both files are only numbered alike, give the queries other ids"
            )
        for part, texts in ((QUERIES, every[:count]), (CORPUS, every[count:])):
            if empty := sum(not text.strip() for text in texts):
                yield f"{files[part]}: {empty} of {len(texts)} texts are empty"
        return
    candidates = np.unique(dev.labels[:, 1], return_counts=True)[1]
    if single := int((candidates == 1).sum()):
        yield (
            f"{files.get(task.main_split) or task.main_split}: {single} of {len(candidates)} "
            "queries have a single passage, which every network ranks right. Remove them, or add "
            "candidates"
        )


def _columns(definition: TaskDefinition, split: str, *, scored_train: bool = False) -> list[str]:
    """Train rows of an embedding need no label unless `scored_train`."""
    kind = kind_of(definition)
    if split == UNLABELLED or (kind.embeds and split == "train" and not scored_train):
        return [*definition.text_columns]
    columns = [*definition.text_columns, *definition.all_label_columns, definition.group]
    return [*dict.fromkeys(filter(None, columns))]


def _read(
    source: TaskSource,
    split: str,
    definition: TaskDefinition,
    offline: bool,
    most: int | None = None,
    loss: str = "",
) -> Rows:
    columns = _columns(definition, split, scored_train=loss == COSENT)
    one_more = None if most is None else most + 1
    if source.dataset is None:
        where = source.files[split]
        table = read_file(where, columns, one_more)
    else:
        where = f"{source.dataset} {source.config or ''} {split}"
        table = read_hub(source, split, columns, offline=offline, most=one_more)
    if not table.num_rows:
        raise MissingInputError(f"{where}: has no rows. Give a file with examples.")
    whole = most is None or table.num_rows <= most
    rows = Rows(where=where, table=table.slice(0, most), whole=whole)
    if source.label_separator and definition.label_column in columns:
        rows = with_separate_labels(rows, definition.label_column, source.label_separator)
    return without_missing(rows) if source.drop_missing else rows


def _split(
    definition: TaskDefinition,
    label_names: tuple[str, ...],
    rows: Rows,
    limit: int | None,
    *,
    scored: bool = False,
) -> Split:
    kind, total = kind_of(definition), rows.table.num_rows
    column = word_column if kind.words else text_column
    texts = [column(rows, name) for name in definition.text_columns]
    labels = kind.no_labels(total, len(label_names))
    if {*definition.all_label_columns} <= {*rows.table.column_names}:
        labels = kind.labels(rows, definition, label_names)
        if scored:
            kind.refuse_unscorable(rows, labels, definition)
    chosen = _limited(kind, labels, limit)
    try:
        lists = tuple(each.take(pa.array(chosen)).to_pylist() for each in texts)
    except UnicodeDecodeError as error:
        raise MissingInputError(f"{rows.where}: {error}. Save it as UTF-8.") from error
    return Split(texts=lists, labels=labels[chosen])


def _limited(kind: Kind, labels: Labels, limit: int | None) -> np.ndarray:
    """Ascending positions of the rows within a limit."""
    if limit is None or limit >= len(labels):
        return np.arange(len(labels))
    return kind.drawn(labels, limit)
