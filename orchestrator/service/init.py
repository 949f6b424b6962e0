"""Writes a sweep file: for a user's own file of rows, for GLUE, or with every key commented.

A user's rows are split into a train and a dev set: the same share of each class goes to the dev
set, and rows of one group or with the same text stay on one side.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import yaml
from pyarrow import csv
from pyarrow import parquet as pq

from lp_sweep.orchestrator.inputs.data import balance, epochs_for
from lp_sweep.orchestrator.sweepfile.spec import SweepSpec
from lp_sweep.storage.errors import MissingInputError, PreflightError, SpecError
from lp_sweep.storage.files import arriving
from lp_sweep.storage.printable import listed, shown
from lp_sweep.storage.specs import TaskDefinition, TaskKind
from lp_sweep.trials.data.columns import Rows, feature_names
from lp_sweep.trials.data.datasource import LoadedTask, doubtful_rows, load_task, text_keys
from lp_sweep.trials.data.readers import CONLL, column_names, conll_text, read_file, require_columns
from lp_sweep.trials.data.tasks import CORPUS, QRELS, QUERIES, TaskSource, file_format, user_task
from lp_sweep.trials.kinds import KINDS
from lp_sweep.trials.kinds.entities import OUTSIDE, is_tag
from lp_sweep.trials.kinds.search import query_count

SCHEMA = "lp-sweep.schema.json"
_SCHEMA_LINE = f"# yaml-language-server: $schema={SCHEMA}\n"
DEV_SHARE = 0.2
MOST_DEV = 5000  # rows: more make every trial slower and the answer hardly surer
MOST_CLASSES = 20  # that numbers stand for; more are measurements
UNBALANCED = 0.75  # the share of the largest class from which accuracy says little
MOST_EPOCHS = 10
BATCH = 16
LENGTHS = (32, 64, 128, 256, 512)  # tokens
_SEARCHED = LENGTHS[:4]  # of documents: their beginnings say most, and every trial reads them all
TOKENS_A_WORD = 1.5
FEW = 500  # dev rows, or queries
_UNTRAINED = "procedures: [untrained, direct]   # as it is, and after imitating all layers"
_ENCODER, _BI_ENCODER = "bert-base-cased", "sentence-transformers/all-MiniLM-L6-v2"
_SIDES = ("train", "data", "rows")  # names of a file that say nothing: its folder's does
_NO_NAME = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class InitOptions:
    """The options of `init`. `text` and `label` name columns of `data`."""

    file: Path = Path("sweep.yaml")
    data: Path | None = None
    dev: Path | None = None  # a dev set that exists: nothing is split
    text: Sequence[str] = ()
    label: Sequence[str] = ()  # several: of 0 and 1
    group: str | None = None  # rows with the same value stay on one side
    kind: TaskKind | None = None  # None: as the labels look
    corpus: Path | None = None  # documents to search, with queries and judgements
    queries: Path | None = None
    qrels: Path | None = None
    model: str | None = None  # None: a usual one of the kind
    full: bool = False
    force: bool = False


class Written(NamedTuple):
    files: list[Path]
    notes: list[str]


def write_sweep(options: InitOptions) -> Written:
    """Writes the sweep file, its schema and, with `data`, its train and dev files.

    Raises SpecError, and PreflightError where the rows can't be used.
    """
    search = {CORPUS: options.corpus, QUERIES: options.queries, QRELS: options.qrels}
    if options.data is None and not any(search.values()):
        _refuse_without_data(options)
        template = files("lp_sweep.orchestrator") / "templates" / "sweep.yaml"
        text = _SCHEMA_LINE + template.read_text(encoding="utf-8")
        if not options.full:
            tasks = ["tasks: [rte]   # GLUE, or your own data"]
            text = _file("my-sweep", _model(options), tasks, 3, 128)
        return _written(options, {options.file: text.encode()}, [])
    try:
        if options.data is None:
            return _with_search(options, search)
        if KINDS[options.kind].searches if options.kind else options.data.is_dir():
            raise SpecError(
                "search reads three files: give --corpus FILE, --queries FILE and --qrels FILE in "
                "place of --data. Rows of anything else are one file."
            )
        if named := [f"--{part}" for part, path in search.items() if path]:
            raise SpecError(f"--data and {named[0]} are two tasks. Leave one out.")
        return _with_rows(options, options.data)
    except MissingInputError as error:
        raise PreflightError(str(error)) from error


def write_quickstart(folder: Path) -> Path:
    """The built-in sweep with its model and data, as files of one's own; where they are already,
    they stay as they are. Gives the sweep file. Raises SpecError."""
    sweep, own = folder / "sweep.yaml", ("model", "data/toy-sentiment", "sweep.yaml")
    try:
        if all((folder / name).exists() for name in own):
            return sweep
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise SpecError(f"{folder} exists. Name another folder with --out.")
        with as_file(files("lp_sweep.quickstart")) as built_in:
            hidden = shutil.ignore_patterns("__*", sweep.name)
            shutil.copytree(built_in, folder, ignore=hidden, dirs_exist_ok=True)
            shutil.copyfile(built_in / sweep.name, sweep)  # last: a folder that has it is whole
    except OSError as error:
        raise SpecError(f"can't write {folder}: {error}. Name another with --out.") from None
    return sweep


def _with_rows(options: InitOptions, data: Path) -> Written:
    rows = _looked_at(options, data)
    made: dict[Path, bytes] = {}
    if options.dev is not None:
        sides = {"train": (data, rows.n), "dev": (options.dev, rows.n_dev)}
        rows = rows._replace(together=0)  # nothing is split, so nothing has to stay on one side
    else:
        in_dev = split(rows.strata, rows.groups)
        if not 0 < in_dev.sum() < rows.n:
            raise SpecError(
                f"{data}: its rows can't be split: too few, or all of one group. Give the dev set "
                "with --dev FILE."
            )
        chosen = {"train": np.flatnonzero(~in_dev), "dev": np.flatnonzero(in_dev)}
        sides = {}
        for (side, rows_of), part in zip(
            chosen.items(), _parts(data, *chosen.values()), strict=True
        ):
            path = options.file.parent / f"{data.stem}-{side}{_suffix(data)}"
            made[path], sides[side] = part, (path, len(rows_of))
        if KINDS[rows.kind].scored_by == "queries":
            sides["dev"] = (path, len({rows.groups[row] for row in chosen["dev"].tolist()}))
    made[options.file] = _sweep(options, rows, sides).encode()
    return _written(options, made, list(_notes(rows, sides["dev"][1])))


def _with_search(options: InitOptions, parts: dict[str, Path | None]) -> Written:
    """Queries without a relevant document are left out, and counted in a note."""
    if missing := [f"--{part}" for part, path in parts.items() if path is None]:
        raise SpecError(f"search needs --corpus, --queries and --qrels. Add {listed(missing)}.")
    if options.kind and not KINDS[options.kind].embeds:
        raise SpecError(f"--corpus is for embeddings, not for --kind {options.kind}. Remove one.")
    files = {part: str(path) for part, path in parts.items()}
    kind: TaskKind = "retrieval"
    definition = TaskDefinition(text_columns=(), kind=kind, metric=KINDS[kind].metrics[0])
    source = TaskSource(files=files, skip_unjudged=True)
    loaded = load_task(definition, source)
    [documents], split = loaded.train.texts, loaded.dev[loaded.main_split]
    queries, asked = (
        query_count(split.labels),
        read_file(files[QUERIES], column_names(files[QUERIES])[:1]).num_rows,
    )
    words = np.quantile([len(text.split()) for text in documents], 0.9)
    length = next((n for n in _SEARCHED if n >= TOKENS_A_WORD * words + 3), _SEARCHED[-1])
    epochs = min(MOST_EPOCHS, epochs_for(len(documents), BATCH))
    name = _NO_NAME.sub("-", Path(files[CORPUS]).parent.absolute().name).strip("-.") or "search"
    why = {CORPUS: f"{len(documents):,} documents", QUERIES: f"{queries:,} of them scored"}
    lines = [f"  - name: {_scalar(name)}", "    kind: embedding"]
    for part, path in files.items():
        place = _scalar(os.path.relpath(path, options.file.parent))
        lines.append(f"    {part}: {place}" + (f"   # {why[part]}" if part in why else ""))
    notes = [f"{len(documents):,} documents, {queries:,} queries, {len(split.labels):,} judgements"]
    if queries < asked:
        lines.append("    unjudged: skip")
        notes.append(f"{asked - queries:,} queries have no relevant document and are left out")
    notes += doubtful_rows(loaded, source)
    if queries < FEW:
        notes.append(f"{queries} queries show only large losses: more make the answer surer")
    tasks = ["tasks:", *lines, _UNTRAINED]
    chosen = replace(options, kind=kind)
    made = {options.file: _file(name, _model(chosen), tasks, epochs, length).encode()}
    return _written(options, made, notes)


class Looked(NamedTuple):
    """A user's rows, seen once."""

    n: int
    n_dev: int  # rows, or queries, of a dev set of one's own; else n
    kind: TaskKind
    metric: str
    counts: dict[str, int]  # rows by class, the largest first; empty for numbers
    strata: Sequence[object]  # one for each row: its class, or its tenth of the numbers
    groups: Sequence[int]  # one for each row: rows of one number stay on one side
    together: int  # rows that share a text with an earlier one
    empty: list[str]  # a sentence for each column of which some texts are empty
    max_length: int
    labels: Sequence[str]  # all, where the task has to name them


def _refuse_without_data(options: InitOptions) -> None:
    given = {
        "--text": options.text,
        "--label": options.label,
        "--group": options.group,
        "--kind": options.kind,
        "--dev": options.dev,
    }
    if names := [name for name, value in given.items() if value]:
        raise SpecError(
            f"{', '.join(names)} needs --data FILE: a CSV, TSV, JSONL, Parquet or CoNLL file."
        )


def _looked_at(options: InitOptions, data: Path) -> Looked:
    names = column_names(str(data))
    if not options.text or not options.label:
        raise SpecError(_which_columns(options, data, names))
    require_columns(
        str(data), names, [*options.text, *options.label, *filter(None, [options.group])]
    )
    if len({*options.text, *options.label}) <= len(options.text):
        raise SpecError(
            f"{data}: --text and --label must name different columns, got "
            f"{listed(map(shown, [*options.text, *options.label]))}. Its columns are "
            f"{listed(map(shown, names))}."
        )
    labels = read_file(str(data), options.label)
    kind = options.kind or _kind(labels, read_file(str(data), options.text[:1], 1))
    source = TaskSource(files={"train": str(data), "dev": str(options.dev or data)})
    every = _named_labels(str(data), labels) if kind == "multi_label" else ()
    first = _load(options, kind, source, every)
    train, metric = first.train, first.definition.metric
    keys = [*text_keys(train)]
    groups = _groups(keys, _group_column(options, data, kind))
    if not KINDS[kind].counts_labels:
        counts: dict[str, int] = {}
        strata: list[object] = [0] * len(keys)
        if train.labels.ndim == 1:
            order = np.argsort(np.argsort(train.labels, kind="stable"), kind="stable")
            strata = list((order * 10 // len(order)).tolist())
    else:
        found = KINDS[kind].counts(train.labels, len(first.label_names))
        in_order = sorted(zip(first.label_names, found.tolist(), strict=True), key=lambda x: -x[1])
        counts = {name: count for name, count in in_order if count or not KINDS[kind].words}
        tags = _tags(train.labels, len(found)) if KINDS[kind].words else train.labels
        strata = _strata(tags, found)
        _refuse_identifiers(data, " ".join(options.label), counts, names)
        if (
            "macro_f1" in KINDS[kind].metrics
            and metric == "accuracy"
            and max(counts.values()) > UNBALANCED * len(keys)
        ):
            metric = "macro_f1"
    sizes = [[len(text.replace("\0", " ").split()) for text in key] for key in keys]
    alone = KINDS[kind].embeds  # each text is a row of tokens
    words = np.quantile([max(size) if alone else sum(size) for size in sizes], 0.99)
    wanted = TOKENS_A_WORD * float(words) + 3
    length = next((length for length in LENGTHS if length >= wanted), LENGTHS[-1])
    together = len(keys) - len(set(keys))
    n_dev = len(KINDS[kind].stored_labels(first.dev[first.main_split].labels))
    empty = list(dict.fromkeys(doubtful_rows(first, source)))
    return Looked(
        len(keys), n_dev, kind, metric, counts, strata, groups, together, empty, length, every
    )


def _refuse_identifiers(
    data: Path, label: str, counts: dict[str, int], names: Sequence[str]
) -> None:
    """Raises SpecError where most classes have a single row: names, not labels."""
    single = sum(count == 1 for count in counts.values())
    if len(counts) > MOST_CLASSES and single > len(counts) / 2:
        raise SpecError(
            f"{data}: column {label!r} has {len(counts):,} values in "
            f"{sum(counts.values()):,} rows, {single:,} of them in a single row. No class "
            f"can be learned from one row: name the column of labels with --label. Columns: "
            f"{listed(map(shown, names))}."
        )


def _which_columns(options: InitOptions, data: Path, names: Sequence[str]) -> str:
    """Names the columns, and the command with the likely ones."""
    table = read_file(str(data), names).slice(0, 1000)
    if options.kind == "tokens":
        names = [name for name in names if pa.types.is_list(table.schema.field(name).type)] or names
    texts, distinct = {}, {}
    for name in names:
        values = [str(value) for value in table.column(name).to_pylist()]
        texts[name] = sum(character.isalpha() for value in values for character in value)
        distinct[name] = len(set(values))
    labels = list(options.label) or [
        min(
            (name for name in names if name not in options.text and distinct[name] > 1),
            key=lambda name: (distinct[name], texts[name]),
            default=names[-1],
        )
    ]
    others = [name for name in names if name not in labels]
    if {*labels} & {*options.text}:
        return (
            f"{data}: which column holds the labels? Its columns are {listed(map(shown, names))}, "
            "and none is left for them. Add a column of labels."
        )
    ranked = options.kind == "ranking"  # the query is in more rows than the passage
    of_pairs = ranked or options.kind == "embedding"
    longest = sorted(others or names, key=lambda name: -texts[name])[: 1 + of_pairs]
    order = distinct.__getitem__ if ranked else list(names).index
    columns = [*options.text] or sorted(longest, key=order)
    group = options.group
    if ranked and group is None:  # the id of a query is in several rows
        left = (name for name in others if name not in columns)
        group = next((name for name in left if 1 < distinct[name] < len(table)), None)
    words = ["lp-sweep", "init", str(options.file), "--data", str(data)]
    given = [
        ("--kind", options.kind),
        *(("--text", name) for name in columns),
        *(("--label", name) for name in labels),
        ("--group", group),
        ("--dev", options.dev),
        ("--model", options.model),
    ]
    words += [str(word) for pair in given if pair[1] for word in pair]
    command = shlex.join(words)
    return (
        f"{data}: which column holds the texts, and which the labels? Its columns are "
        f"{listed(map(shown, names))}. For example: {command}"
    )


def _strata(labels: np.ndarray[Any, Any], counts: np.ndarray[Any, Any]) -> list[object]:
    """The class of each row, or its rarest label; -1 where it has none."""
    if labels.ndim == 1:
        return list(labels.tolist())
    has = labels > 0
    rarest = np.where(has, counts, counts.max() + 1).argmin(axis=1)
    return list(np.where(has.any(axis=1), rarest, -1).tolist())


def _tags(labels: np.ndarray[Any, Any], tags: int) -> np.ndarray[Any, Any]:
    """(n, tags) of (n, W): 1 where a word of the row has the tag."""
    marks = np.zeros((len(labels), tags), np.int8)
    rows, words = np.nonzero(labels >= 0)
    marks[rows, labels[rows, words]] = 1
    return marks


def _named_labels(where: str, labels: pa.Table) -> tuple[str, ...]:
    """All labels of a column of lists where some list has none: a task then names them."""
    if labels.num_columns > 1 or not pa.types.is_list(labels.schema.types[0]):
        return ()
    lists = labels.column(0).to_pylist()
    if [] not in lists:
        return ()
    named = feature_names(Rows(where=where, table=labels), labels.column_names[0])
    return named or tuple(sorted({str(label) for labels in lists for label in labels or ()}))


def _kind(labels: pa.Table, texts: pa.Table) -> TaskKind:
    """Tags where texts are lists as well; several labels where there are several columns, or lists;
    regression where the labels are numbers with more values than classes have."""
    if pa.types.is_list(texts.schema.types[0]):
        return "tokens"
    if labels.num_columns > 1 or pa.types.is_list(labels.schema.types[0]):
        return "multi_label"
    values = set(labels.column(0).to_pylist())
    try:
        numbers = [float(value) for value in values]
    except (TypeError, ValueError):
        return "classification"
    measured = len(values) > MOST_CLASSES or not all(map(float.is_integer, numbers))
    return "regression" if measured else "classification"


def _load(
    options: InitOptions, kind: TaskKind, source: TaskSource, labels: tuple[str, ...]
) -> LoadedTask:
    """Checks all that a run checks. Raises SpecError, MissingInputError."""
    files = source.files
    definition = user_task(
        name=Path(files["train"]).name,
        text=options.text,
        label=_label(options),
        kind=kind,
        metric="accuracy" if kind == "tokens" and not _entities(files["train"], options) else None,
        labels=labels,
        group=options.group if kind == "ranking" else None,
        train=files["train"],
        dev=files["dev"],
    ).definition
    return load_task(definition, source)


def _entities(file: str, options: InitOptions) -> bool:
    """Whether a tag is that of an entity in BIO or BIOES. Loading then refuses tags outside."""
    rows = read_file(file, options.label[:1]).column(0).to_pylist()
    tags = {str(tag) for row in rows if isinstance(row, list) for tag in row}
    return any(map(is_tag, tags - {OUTSIDE}))


def _label(options: InitOptions) -> str | list[str]:
    return options.label[0] if len(options.label) == 1 else [*options.label]


def _group_column(options: InitOptions, data: Path, kind: TaskKind) -> list[Any] | None:
    """The rows of a query always stay together."""
    name = options.group or (options.text[0] if kind == "ranking" else None)
    return list(read_file(str(data), [name]).column(0).to_pylist()) if name else None


def _groups(keys: Sequence[object], named: Sequence[object] | None) -> list[int]:
    """One number for each row, the same where rows share a key or, through others, a name. A row
    whose name is missing is alone."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    n, hubs = len(keys), dict[object, int]()  # what rows share is a node beside the rows
    shared = [(row, ("key", key)) for row, key in enumerate(keys)]
    shared += [
        (row, ("name", name)) for row, name in enumerate(named or ()) if name not in (None, "")
    ]
    rows = [row for row, _ in shared]
    nodes = [n + hubs.setdefault(hub, len(hubs)) for _, hub in shared]
    edges = coo_array((np.ones(len(rows)), (rows, nodes)), shape=(n + len(hubs),) * 2)
    numbers: list[int] = connected_components(edges, directed=False)[1][:n].tolist()
    return numbers


def split(strata: Sequence[object], groups: Sequence[int]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """(n,) which rows go to the dev set: of each stratum the same share, DEV_SHARE or what makes
    MOST_DEV rows, as near as whole groups allow. The same rows give the same split."""
    n = len(groups)
    share = min(DEV_SHARE, MOST_DEV / n)
    sizes = Counter(strata)
    left = {stratum: round(share * count) for stratum, count in sizes.items()}
    if not any(left.values()):  # classes of a few rows each; of a single row train needs it
        left = {stratum: min(1, count - 1) for stratum, count in sizes.items()}
    members: dict[int, list[int]] = {}
    for row, group in enumerate(groups):
        members.setdefault(group, []).append(row)
    every = list(members.values())
    np.random.default_rng(0).shuffle(every)
    in_dev = np.zeros(n, bool)
    for rows in sorted(every, key=len, reverse=True):  # large ones find no room later
        counts = Counter(strata[row] for row in rows)
        if all(count <= left[stratum] for stratum, count in counts.items()):
            in_dev[rows] = True
            for stratum, count in counts.items():
                left[stratum] -= count
    return in_dev


def _suffix(data: Path) -> str:
    return ".csv" if file_format(data) == "tsv" else data.suffix


def _parts(data: Path, *parts: np.ndarray[Any, Any]) -> Iterator[bytes]:
    """A file for each part's rows, with all their columns; a TSV becomes a CSV."""
    kind = file_format(data)
    if kind == "jsonl":
        lines = [line for line in data.read_bytes().split(b"\n") if line.strip()]
        for rows in parts:
            yield b"".join(lines[row].rstrip(b"\r") + b"\n" for row in rows)
        return
    table = read_file(str(data), column_names(str(data)))
    if kind in CONLL:
        for rows in parts:
            yield conll_text(table.take(pa.array(rows)))
        return
    write = pq.write_table if kind == "parquet" else csv.write_csv
    for rows in parts:
        sink = pa.BufferOutputStream()
        write(table.take(pa.array(rows)), sink)
        yield sink.getvalue().to_pybytes()


def _notes(rows: Looked, n_dev: int) -> Iterator[str]:
    if rows.counts:
        words = sum(rows.counts.values()) if KINDS[rows.kind].words else 0
        shares = balance(KINDS[rows.kind].called, rows.counts, words or rows.n, 10)
        yield f"{rows.n:,} rows, {shares}"
    elif rows.kind == "regression":
        yield f"{rows.n:,} rows; the labels are numbers: regression"
    else:
        yield f"{rows.n:,} rows"
    if rows.metric == "macro_f1":
        yield "one class is much larger than the others: macro_f1 judges, not accuracy"
    if KINDS[rows.kind].words and rows.metric == "accuracy":
        yield "no tag begins with B- or I-: accuracy judges, not entity F1"
    if rows.labels and (bare := rows.strata.count(-1)):
        have = "row has" if bare == 1 else "rows have"
        yield f"{bare:,} {have} no label: none of the labels fits them"
    yield from rows.empty
    if rows.together:
        again = "row repeats" if rows.together == 1 else "rows repeat"
        yield f"{rows.together:,} {again} the text of another: equal texts stay on one side"
    if n_dev < FEW:
        units = KINDS[rows.kind].scored_by
        yield f"{n_dev} dev {units} show only large losses: more make the answer surer"


def _sweep(options: InitOptions, rows: Looked, sides: dict[str, tuple[Path, int]]) -> str:
    """About 15 lines that run as they are."""
    assert options.data is not None
    stem = options.data.absolute().parent.name if options.data.stem in _SIDES else options.data.stem
    name = _NO_NAME.sub("-", stem).strip("-.") or "my-sweep"
    n_train = sides["train"][1]
    epochs = min(MOST_EPOCHS, max(3, epochs_for(n_train, BATCH)))
    task = {
        "name": name,
        **{side: os.path.relpath(path, options.file.parent) for side, (path, _) in sides.items()},
        "text": [*options.text],
        "label": _label(options),
        **({"labels": [*rows.labels]} if rows.labels else {}),
        **({"group": options.group} if rows.kind == "ranking" and options.group else {}),
        **({"kind": rows.kind} if rows.kind != "classification" else {}),
        "metric": rows.metric,
    }
    units = {"train": "rows", "dev": KINDS[rows.kind].scored_by}
    why = {side: f"{count:,} {units[side]}" for side, (_, count) in sides.items()}
    lines = [f"{key}: {_scalar(value)}" for key, value in task.items()]
    lines = [
        f"{line}{f'   # {why[key]}' if key in why else ''}"
        for key, line in zip(task, lines, strict=True)
    ]
    tasks = ["tasks:", f"  - {lines[0]}", *(f"    {line}" for line in lines[1:])]
    if KINDS[rows.kind].embeds:
        tasks.append(_UNTRAINED)
    return _file(name, _model(options), tasks, epochs, rows.max_length)


def _model(options: InitOptions) -> str:
    """A hub id, or the folder as the sweep file sees it: an absolute path stays one."""
    usual = _BI_ENCODER if options.kind and KINDS[options.kind].embeds else _ENCODER
    model = options.model or usual
    folder = Path(model).expanduser()
    if not folder.is_dir():
        return model
    if folder.is_absolute():
        return str(folder)
    path = os.path.relpath(folder, options.file.parent)
    return path if path.startswith(".") else f"./{path}"


def _file(name: str, model: str, tasks: Sequence[str], epochs: int, length: int) -> str:
    recipe = f"learning_rate: 3e-5, batch_size: {BATCH}, epochs: {epochs}, max_length: {length}"
    return _SCHEMA_LINE + "\n".join(
        [
            "schema_version: 1",
            f"name: {_scalar(name)}",
            f"models: [{_scalar(model)}]   # a hub id or a folder",
            *tasks,
            "seeds: [42, 43, 44]",
            "strategies:   # drop the K highest layers; train only what the answer needs",
            "  - {name: top, k: all, until: min_layers}",
            f"recipe: {{{recipe}}}",
            "",
        ]
    )


def _scalar(value: Any) -> str:
    """A value as YAML on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, width=math.inf, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")


def _written(options: InitOptions, made: dict[Path, bytes], notes: list[str]) -> Written:
    """Each file whole or not at all; the sweep file last."""
    there = [path for path, content in made.items() if _differs(path, content)]
    if there and not options.force:
        exist = "exists" if len(there) == 1 else "exist"
        raise SpecError(f"{listed(there)} {exist}. Name another file, or overwrite with --force.")
    folder = options.file.parent
    schema = json.dumps(SweepSpec.model_json_schema(), indent=1).encode()
    try:
        for path, content in ((folder / SCHEMA, schema), *made.items()):
            with arriving(path) as new:
                new.write_bytes(content)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        why = getattr(error, "strerror", None) or error
        raise SpecError(
            f"can't write {options.file}: {why}. Make its folder first, or name another file."
        ) from None
    return Written([*made], notes)


def _differs(path: Path, content: bytes) -> bool:
    """Whether something else is there; what can't be read counts."""
    try:
        return path.read_bytes() != content
    except OSError:
        return os.path.lexists(path)
    except ValueError:  # a NUL in the name
        return False
