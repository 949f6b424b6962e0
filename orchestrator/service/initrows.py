"""A user's file of rows, as `init` sees it: the task that it makes."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from lp_sweep.orchestrator.inputs import hub
from lp_sweep.orchestrator.inputs.data import encoded, sample
from lp_sweep.orchestrator.inputs.folder import ModelFault, open_tokenizer, read_config
from lp_sweep.orchestrator.options import InitOptions
from lp_sweep.orchestrator.service.initfile import model_of
from lp_sweep.storage.errors import SpecError
from lp_sweep.storage.printable import listed, shown
from lp_sweep.trials.data.columns import (
    Rows,
    complete_rows,
    feature_names,
    group_column,
    with_separate_labels,
    without_missing,
)
from lp_sweep.trials.data.datasource import LoadedTask, Split, doubtful_rows, load_task, text_keys
from lp_sweep.trials.data.readers import column_names, headerless, read_file, require_columns
from lp_sweep.trials.data.tasks import TaskSource, user_definition
from lp_sweep.trials.kinds import KINDS, Kind
from lp_sweep.trials.kinds.tokens import OUTSIDE, is_tag
from lp_sweep.trials.model.modelfiles import longest_row
from lp_sweep.trials.model.sentencefolder import read_sentence_folder
from lp_sweep.trials.spec.specs import TaskDefinition, TaskKind

MOST_CLASSES = 20  # with numbers as names; more distinct numbers are measurements
_BETWEEN_LABELS = ",;|"
UNBALANCED = 0.75  # the share of the largest class from which accuracy says little
LENGTHS = (32, 64, 128, 256, 512)  # tokens


class RowFile(NamedTuple):
    """Facts about a user's rows."""

    n: int
    places: np.ndarray[Any, Any]  # (n,) of the rows in the file, from 0
    n_dev: int  # rows, or queries, of a dev set of the user's own; else n
    definition: TaskDefinition
    counts: dict[str, int]  # rows by class, the largest first; empty for numbers
    strata: Sequence[int]  # one for each row: its class, or its tenth of the numbers
    groups: Sequence[int]  # one for each row: rows with the same number stay on one side
    repeated: int  # rows that share a text with an earlier one
    disputed: int  # texts with another label, if labels are classes
    empty: list[str]  # a sentence for each column with empty texts
    max_length: int
    separator: str  # of the labels in a cell; empty: there is one


def look_at(options: InitOptions, data: Path) -> RowFile:
    """Reads the rows as a run would. Raises SpecError, MissingInputError."""
    names = _check_columns(options, data)
    asked = dict.fromkeys([*options.text, *options.label, *filter(None, [options.group])])
    rows = Rows(where=str(data), table=read_file(str(data), [*asked]))
    separator = options.label_separator or _separator(options, rows.table.select(options.label))
    if separator:  # a list of labels in place of each text of several
        rows = with_separate_labels(rows, options.label[0], separator)
    labels = _columns(rows, options.label)
    kind = options.kind or ("multi_label" if separator else _kind(options, rows, labels))
    rules, files = KINDS[kind], {"train": str(data), "dev": str(options.dev or data)}
    source = TaskSource(files=files, drop_missing=options.drop_missing, label_separator=separator)
    definition = user_definition(
        data.name,
        text=options.text,
        label=label_of(options),
        kind=kind,
        metric="accuracy" if rules.words and not _entities(rows, options.label[0]) else None,
        labels=_named_labels(labels) if kind == "multi_label" else (),
        group=options.group if rules.ranks else None,
    )
    loaded = load_task(definition, source)
    keys = [*text_keys(loaded.train)]
    counts, strata = _strata(loaded)
    _refuse_identifiers(data, " ".join(options.label), counts, names)
    is_unbalanced = max(counts.values(), default=0) > UNBALANCED * len(keys)
    if definition.metric == "accuracy" and "macro_f1" in rules.metrics and is_unbalanced:
        definition = replace(definition, metric="macro_f1")
    places = np.arange(len(keys))
    if options.drop_missing:  # by the columns that a run reads of train rows
        columns = [*options.text, *([] if rules.embeds else options.label)]
        columns += [options.group] if rules.ranks and options.group else []
        places = complete_rows(_columns(rows, columns))
    by = options.group or (options.text[0] if rules.ranks else None)
    stay = group_column(rows, by).take(pa.array(places)).to_pylist() if by else ()
    return RowFile(
        n=len(keys),
        places=places,
        n_dev=len(rules.stored_labels(loaded.dev[loaded.main_split].labels)),
        definition=definition,
        counts=counts,
        strata=strata,
        groups=_groups(keys, stay),
        repeated=len(keys) - len(set(keys)),
        disputed=len({*zip(keys, strata, strict=True)}) - len(set(keys)),
        empty=list(dict.fromkeys(doubtful_rows(loaded, source))),
        max_length=fitting_length(loaded.train, model_of(options, rules), rules),
        separator=separator,
    )


def _columns(rows: Rows, names: Sequence[str]) -> Rows:
    return replace(rows, table=rows.table.select([*dict.fromkeys(names)]))


def _check_columns(options: InitOptions, data: Path) -> list[str]:
    """The columns that can be chosen. Raises SpecError if others are chosen, or none."""
    present = column_names(str(data))
    names = [name for name in present if name and present.count(name) == 1]
    if not options.text or not options.label:
        missing = [f"--{name} COLUMN" for name in ("text", "label") if not getattr(options, name)]
        known = f" Its columns are {listed(map(shown, names))}. Add {' '.join(missing)}."
        hint = headerless(str(data), names) or known
        raise SpecError(f"{data}: which column holds the texts, and which the labels?{hint}")
    wanted = [*options.text, *options.label, *filter(None, [options.group])]
    for column in (*options.text, *options.label):
        parts = [part.strip() for part in column.split(",")]
        if column not in present and len(parts) > 1 and {*parts} <= {*present}:
            option = "--text" if column in options.text else "--label"
            each = shlex.join(word for part in parts for word in (option, part))
            raise SpecError(f"{data}: no column {column!r}. For several columns: {each}")
    require_columns(str(data), present, wanted)
    return names


def _strata(loaded: LoadedTask) -> tuple[dict[str, int], list[int]]:
    """Rows by class, the largest first, none for numbers; and what each row counts as: its class,
    its rarest label or tag (-1: none), or its tenth of the numbers."""
    rules, labels = KINDS[loaded.definition.kind], loaded.train.labels
    if not rules.counts_labels:
        if labels.ndim > 1:  # no single numbers
            return {}, [0] * len(labels)
        ranks = np.argsort(np.argsort(labels, kind="stable"), kind="stable")
        return {}, [*(ranks * 10 // len(ranks)).tolist()]
    found = rules.counts(labels, len(loaded.label_names))
    in_order = sorted(zip(loaded.label_names, found.tolist(), strict=True), key=lambda x: -x[1])
    counts = {name: count for name, count in in_order if count or not rules.words}
    if rules.words:  # (n, W) tags -> (n, tags): whether a word has the tag
        rows, words = np.nonzero(labels >= 0)
        tags = labels[rows, words]
        labels = np.zeros((len(labels), len(found)), np.int8)
        labels[rows, tags] = 1
    if labels.ndim == 1:
        return counts, [*labels.tolist()]
    has = labels > 0
    rarest = np.where(has, found, found.max() + 1).argmin(axis=1)
    return counts, [*np.where(has.any(axis=1), rarest, -1).tolist()]


def fitting_length(rows: Split, model: str, kind: Kind) -> int:
    """The smallest length, in tokens, that holds nearly all rows, or the largest that the model
    takes. Each text of an embedding is a row; every trial reads all documents of a search."""
    lengths, share = (LENGTHS[:4], 0.9) if kind.searches else (LENGTHS, 0.99)
    folder = Path(model).expanduser()
    if not folder.is_dir() and (commit := hub.cached_commit("model", model, "main")):
        folder = hub.snapshot("model", model, commit)
    texts = sample(rows, kind)
    try:
        tokens = encoded(open_tokenizer(folder), texts, words=kind.words)
        sizes = [float(len(text)) for text in tokens]
    except ModelFault:
        sizes = [3 + sum(map(_tokens_about, row)) for row in texts]
    wanted = float(np.quantile(sizes, share))
    most = longest_row(read_config(folder / "config.json")) or lengths[-1]
    allowed = [length for length in lengths if length <= most] or [most]
    return next((length for length in allowed if length >= wanted), allowed[-1])


def _tokens_about(text: str | list[str]) -> float:
    """The tokens of a text, for tokenizers as they commonly are: one for four letters of English,
    for three bytes of another alphabet, which are one character of a script without blanks."""
    whole = text if isinstance(text, str) else " ".join(text)
    return len(whole.encode()) / (4 if whole.isascii() else 3)


def _refuse_identifiers(
    data: Path, label: str, counts: dict[str, int], names: Sequence[str]
) -> None:
    """Raises SpecError if most classes have a single row: they are names, not labels."""
    single = sum(count == 1 for count in counts.values())
    if len(counts) > MOST_CLASSES and single > len(counts) / 2:
        raise SpecError(
            f"{data}: column {label!r} has {len(counts):,} values in {sum(counts.values()):,} rows,"
            f" {single:,} of them in a single row: these are no classes. Name the column of labels "
            f"with --label. Columns: {listed(map(shown, names))}."
        )


def _separator(options: InitOptions, labels: pa.Table) -> str:
    """The separator of labels in one cell, if the file has no lists and other cells have the same
    labels alone, or the kind says that there are several; else empty."""
    if options.kind not in (None, "multi_label") or labels.num_columns > 1:
        return ""
    if not pa.types.is_string(labels.schema.types[0]):
        return ""
    cells = {cell.strip() for cell in labels.column(0).to_pylist() if cell}
    for mark in _BETWEEN_LABELS:
        parts = [[part.strip() for part in cell.split(mark)] for cell in cells if mark in cell]
        known = cells if options.kind is None else {part for cell in parts for part in cell}
        if parts and all(part in known for cell in parts for part in cell):
            return mark
    return ""


def _named_labels(rows: Rows) -> tuple[str, ...]:
    """All labels of a column of lists if some list is empty: the task then has to name them."""
    labels = rows.table
    if labels.num_columns > 1 or not pa.types.is_list(labels.schema.types[0]):
        return ()
    lists = labels.column(0).to_pylist()
    if [] not in lists:
        return ()
    named = feature_names(rows, labels.column_names[0])
    return named or tuple(sorted({str(label) for labels in lists for label in labels or ()}))


def _kind(options: InitOptions, rows: Rows, of_labels: Rows) -> TaskKind:
    """Tags if the texts are lists; several labels if the labels are lists or several columns;
    regression if they are fractions, or numbers with more values than classes have, of two texts
    with a model that makes vectors (modules.json) an embedding."""
    if pa.types.is_list(rows.table.schema.types[0]):
        return "tokens"
    labels = (without_missing(of_labels) if options.drop_missing else of_labels).table
    if labels.num_columns > 1 or pa.types.is_list(labels.schema.types[0]):
        return "multi_label"
    if pa.types.is_nested(labels.schema.types[0]):
        return "classification"  # which says that they are no classes
    values = set(labels.column(0).to_pylist())
    try:
        numbers = [float(value) for value in values]
    except (TypeError, ValueError):
        return "classification"
    if len(values) <= MOST_CLASSES and all(map(float.is_integer, numbers)):
        return "classification"
    vectors = read_sentence_folder(Path(options.model or "").expanduser()).modules
    return "embedding" if len(options.text) == 2 and vectors else "regression"


def _entities(rows: Rows, label: str) -> bool:
    """Whether some tag is an entity's in BIO or BIOES. Loading then refuses any other tag."""
    tags = {*feature_names(rows, label)}
    for row in () if tags else rows.table.column(label).to_pylist():
        tags |= {str(tag) for tag in row} if isinstance(row, list) else set()
    return any(map(is_tag, tags - {OUTSIDE}))


def label_of(options: InitOptions) -> str | list[str]:
    return options.label[0] if len(options.label) == 1 else [*options.label]


def _groups(keys: Sequence[object], named: Sequence[object]) -> list[int]:
    """One number for each row: the same for rows that share a key or a name, directly or through
    other rows. A missing name is shared with nobody."""
    first = dict[object, int]()  # a key or a name -> the first row that has it
    links = [(row, first.setdefault(("key", key), row)) for row, key in enumerate(keys)]
    for row, name in enumerate(named):
        if name not in (None, ""):
            links.append((row, first.setdefault(("name", name), row)))
    graph = coo_array((np.ones(len(links)), np.transpose(links)), (len(keys), len(keys)))
    return [*connected_components(graph, directed=False)[1].tolist()]
