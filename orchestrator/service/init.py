"""Writes a sweep file: for a user's own rows, or for GLUE."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import parquet as pq

from lp_sweep.analysis.statistics.estimates import smallest_loss
from lp_sweep.orchestrator.inputs.data import balance, power_note, rows_scored
from lp_sweep.orchestrator.inputs.folder import read_config
from lp_sweep.orchestrator.options import InitOptions
from lp_sweep.orchestrator.service import initrows
from lp_sweep.orchestrator.service.initfile import (
    QUICK_DEV,
    SCHEMA,
    model_of,
    rendered,
    stem_of,
    sweep_text,
    task_name,
)
from lp_sweep.orchestrator.service.initrows import RowFile
from lp_sweep.orchestrator.sweepfile.axes import WITHIN
from lp_sweep.orchestrator.sweepfile.entries import is_folder
from lp_sweep.orchestrator.sweepfile.load import check
from lp_sweep.orchestrator.sweepfile.spec import SweepSpec
from lp_sweep.orchestrator.sweepfile.yamlfile import parse_yaml
from lp_sweep.storage.errors import MissingInputError, PreflightError, SpecError
from lp_sweep.storage.places import arriving, expanded
from lp_sweep.storage.printable import listed
from lp_sweep.trials.data import delimited
from lp_sweep.trials.data.datasource import doubtful_rows, load_task
from lp_sweep.trials.data.formats import TABLES, file_format
from lp_sweep.trials.data.jsonrows import json_lines
from lp_sweep.trials.data.readers import column_names, conll_text, read_file
from lp_sweep.trials.data.tasks import CORPUS, QRELS, QUERIES, TaskSource
from lp_sweep.trials.kinds import KINDS, Kind
from lp_sweep.trials.kinds.rankmetrics import query_count
from lp_sweep.trials.model.modelfiles import longest_row
from lp_sweep.trials.spec.specs import TaskDefinition

ENOUGH = 5000  # rows, from which on some are set aside for a test: their interval is narrow enough
TEST_SHARE = 0.1
MOST_TEST = 2000  # rows
DEV_SHARE = 0.2
MOST_DEV = 5000  # rows: more make every trial slower and the answer hardly more certain


class WrittenSweep(NamedTuple):
    files: list[Path]
    notes: list[str]


def write_sweep(options: InitOptions) -> WrittenSweep:
    """Writes the sweep file, its schema and, with `data`, its train and dev files.

    Raises SpecError, and PreflightError if the rows can't be used.
    """
    paths: dict[str, Any] = {
        name: expanded(path)
        for name in ("file", "data", "dev", CORPUS, QUERIES, QRELS)
        if (path := getattr(options, name)) is not None
    }
    options, model = replace(options, **paths), options.model
    if model and is_folder(model) and not Path(model).expanduser().is_dir():
        raise SpecError(f"--model {model}: no such folder. Check the path.")
    search = {part: paths.get(part) for part in (CORPUS, QUERIES, QRELS)}
    try:
        if not any(search.values()):
            return _with_rows(options, options.data) if options.data else _of_glue(options)
        if options.data is not None:
            raise SpecError("--data and --corpus are two tasks. Leave one out.")
        return _with_search(options, search)
    except MissingInputError as error:
        raise PreflightError(str(error)) from error


def _of_glue(options: InitOptions) -> WrittenSweep:
    for_data = ("text", "label", "label_separator", "drop_missing", "group", "kind", "dev")
    if names := [f"--{name.replace('_', '-')}" for name in for_data if getattr(options, name)]:
        raise SpecError(
            f"{', '.join(names)} needs --data FILE: a CSV, TSV, JSONL, Parquet or CoNLL file."
        )
    kind = KINDS["classification"]
    config = read_config(Path(model_of(options, kind)).expanduser() / "config.json") or {}
    text = sweep_text(options, kind, length=min(128, longest_row(config) or 128))
    return _written(options, {options.file: text.encode()}, [])


def write_quickstart(folder: Path) -> Path:
    """Copies the built-in sweep with its model and data, unless it is there already. Returns the
    sweep file. Raises SpecError."""
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


def _with_rows(options: InitOptions, data: Path) -> WrittenSweep:
    if options.kind and KINDS[options.kind].searches:
        raise SpecError("search takes --corpus FILE --queries FILE --qrels FILE, not --data.")
    rows, made = initrows.look_at(options, data), dict[Path, bytes]()
    definition, sides = rows.definition, {"train": (data, rows.n)}
    kind = KINDS[definition.kind]
    if options.dev is not None:
        sides["dev"] = (options.dev, rows.n_dev)
    else:
        made, sides = _split_files(options, data, rows)
    task = {
        "name": task_name(data),
        **{side: os.path.relpath(path, options.file.parent) for side, (path, _) in sides.items()},
        "text": [*options.text],
        "label": initrows.label_of(options),
        "labels": [*definition.labels],
        "label_separator": rows.separator,
        "drop_missing": options.drop_missing,
        "group": options.group if kind.ranks else None,
        "kind": definition.kind if definition.kind != "classification" else None,
        "metric": definition.metric,
        "tune_thresholds": definition.kind == "multi_label",
    }
    units = {side: "rows" if side == "train" else kind.scored_by for side in sides}
    text = sweep_text(
        options,
        kind,
        task={key: value for key, value in task.items() if value},
        why={side: f"{n:,} {units[side]}" for side, (_, n) in sides.items()},
        rows=sides["train"][1],
        length=rows.max_length,
    )
    n_dev, counted = sides["dev"][1], sum(rows.counts.values()) if kind.words else rows.n
    classes = balance(kind.called, rows.counts, counted, 10) if rows.counts else ""
    told = {"options": options, "rows": rows, "kind": kind, "classes": classes, "sides": sides}
    notes = rendered("init-notes.txt", **told).splitlines()
    n_dev = min(n_dev, QUICK_DEV) if options.quick else n_dev
    shares = np.array([*rows.counts.values()], float) * n_dev / rows.n
    worth = rows_scored(definition.metric, n_dev, shares, [*rows.counts], 1)
    notes += _power(options, n_dev, kind, worth)
    return _written(options, made | {options.file: text.encode()}, [*filter(None, notes)])


_Sides = dict[str, tuple[Path, int]]  # train, dev, test: the file, and its rows or queries


def _split_files(
    options: InitOptions, data: Path, rows: RowFile
) -> tuple[dict[Path, bytes], _Sides]:
    """A train and a dev file, and a test file of rows enough: their contents by path, and their
    sizes."""
    parts = parted(rows.strata, rows.groups)
    if not all(map(len, parts.values())):
        groups = f", groups: {len({*rows.groups})}" if options.group else ""
        raise SpecError(
            f"{data}: rows: {rows.n:,}, different texts: {rows.n - rows.repeated:,}{groups}. "
            "So no dev set can be split off, since equal texts and rows of a group stay on one "
            "side. Check --text, or give the dev set with --dev FILE."
        )
    kind, ranks = file_format(data), KINDS[rows.definition.kind].ranks
    suffix = "parquet" if kind in TABLES else {"tsv": "csv"}.get(kind, kind)
    content, made, sides = _content_of(data), dict[Path, bytes](), _Sides()
    for side, held in parts.items():
        path = options.file.parent / f"{stem_of(data)}-{side}.{suffix}"
        queries = {rows.groups[row] for row in held.tolist()}  # a score averages over them
        sides[side] = path, len(queries) if ranks and side != "train" else len(held)
        made[path] = content(rows.places[held])
    return made, sides


def parted(strata: npt.ArrayLike, groups: npt.ArrayLike) -> dict[str, np.ndarray[Any, Any]]:
    """The positions of the rows of `train`, `dev` and, of ENOUGH rows, `test`."""
    strata, groups = np.asarray(strata), np.asarray(groups)
    every = np.arange(len(groups))
    aside = split(strata, groups, TEST_SHARE, MOST_TEST) & (len(every) >= ENOUGH)
    rest = every[~aside]
    in_dev = split(strata[rest], groups[rest])
    found = {"train": rest[~in_dev], "dev": rest[in_dev]}
    return found | ({"test": every[aside]} if aside.any() else {})


def split(
    strata: npt.ArrayLike,
    groups: npt.ArrayLike,
    largest: float = DEV_SHARE,
    most: int = MOST_DEV,
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """(n,) whether each row goes to the dev set: the same share of the groups of each stratum, that
    of its first row. The share is `largest`, or less to make about `most` rows. The
    only group of a stratum is left to train. Deterministic."""
    _, first, group = np.unique(groups, return_index=True, return_inverse=True)
    _, stratum = np.unique(np.asarray(strata)[first], return_inverse=True)
    order = np.lexsort((np.random.default_rng(0).permutation(len(first)), stratum))
    share = min(largest, most / len(group))
    in_dev = np.zeros(len(first), bool)
    in_dev[order] = np.diff(np.floor(np.arange(len(first) + 1) * share + 0.5)) > 0
    return (in_dev & (np.bincount(stratum)[stratum] > 1))[group]


def _content_of(data: Path) -> Callable[[np.ndarray[Any, Any]], bytes]:
    """A function that returns the content of a file with some of the rows, and all columns; a TSV
    becomes a CSV."""
    kind, path = file_format(data), str(data)
    if kind == "jsonl":
        lines = [*json_lines(path)]
        return lambda rows: b"".join(lines[row] + b"\n" for row in rows)
    if kind in ("csv", "tsv"):
        header, *cells = delimited.rows(path, kind)
        return lambda rows: delimited.csv_text([header, *(cells[row] for row in rows)])
    table = read_file(path, column_names(path))

    def packed(rows: np.ndarray[Any, Any]) -> bytes:
        sink = pa.BufferOutputStream()
        pq.write_table(table.take(pa.array(rows)), sink)
        return bytes(sink.getvalue())

    return packed if kind in TABLES else lambda rows: conll_text(table.take(pa.array(rows)))


def _with_search(options: InitOptions, search: dict[str, Path | None]) -> WrittenSweep:
    """Leaves out queries without a relevant document, with a note."""
    if missing := [f"--{part}" for part, path in search.items() if path is None]:
        raise SpecError(f"search needs --corpus, --queries and --qrels. Add {listed(missing)}.")
    if options.kind and not KINDS[options.kind].embeds:
        raise SpecError(f"--corpus is for embeddings, not for --kind {options.kind}. Remove one.")
    places, kind = {part: str(path) for part, path in search.items()}, KINDS["retrieval"]
    definition = TaskDefinition(text_columns=(), kind="retrieval", metric=kind.metrics[0])
    source = TaskSource(files=places, skip_unjudged=True)
    loaded = load_task(definition, source)
    [documents], judged = loaded.train.texts, loaded.dev[loaded.main_split].labels
    queries, judgements = query_count(judged), int((judged[:, 2] > 0).sum())
    skipped = read_file(places[QUERIES], column_names(places[QUERIES])[:1]).num_rows - queries
    name = task_name(Path(places[CORPUS]), "search")
    why = {CORPUS: f"{len(documents):,} documents", QUERIES: f"{queries:,} of them scored"}
    task = {"name": name, "kind": "embedding"}
    task |= {part: os.path.relpath(path, options.file.parent) for part, path in places.items()}
    notes = [f"{len(documents):,} documents, {queries:,} queries, {judgements:,} judgements"]
    if skipped:
        task["unjudged"] = "skip"
        notes.append(f"{skipped:,} queries have no relevant document and are left out")
    notes += doubtful_rows(loaded, source)
    worth = rows_scored(definition.metric, queries, np.array([]), (), 1)
    notes += _power(options, queries, kind, worth)
    length = initrows.fitting_length(loaded.train, model_of(options, kind), kind)
    text = sweep_text(options, kind, task=task, why=why, rows=len(documents), length=length)
    return _written(options, {options.file: text.encode()}, notes)


def _power(options: InitOptions, n_dev: int, kind: Kind, worth: float) -> Iterator[str]:
    if not options.quick:
        loss = WITHIN[0] if options.within is None else options.within
        yield from power_note(n_dev, kind.scored_by, worth, 1 if kind.embeds else 3, loss)
    elif worth and (able := smallest_loss(worth, 1)):
        yield f"{n_dev} dev {kind.scored_by}, one seed: losses under {able:.0f} points can be luck"


def _written(options: InitOptions, made: dict[Path, bytes], notes: list[str]) -> WrittenSweep:
    """Each file whole or not at all; the sweep file last, and only if `plan` can read it."""
    check(parse_yaml(made[options.file].decode(), str(options.file)))
    schema = json.dumps(SweepSpec.model_json_schema(), indent=1).encode()
    content = {options.file.parent / SCHEMA: schema, **made}
    try:
        if odd := [path for path in content if path.exists() and not path.is_file()]:
            raise SpecError(f"{listed(odd)}: not a file to overwrite. Name another.")
        files = [path for path in made if path.exists() and path.read_bytes() != made[path]]
        if files and not options.force:
            exist = "exists" if len(files) == 1 else "exist"
            name = "Name another, or overwrite" if options.file in files else "Overwrite"
            raise SpecError(f"{listed(files)} {exist}. {name} with --force.")
        for path, text in content.items():
            with arriving(path) as new:
                new.write_bytes(text)
    except OSError as error:
        step = "Make its folder, or name another file."
        raise SpecError(f"can't write {options.file}: {error.strerror or error}. {step}") from None
    return WrittenSweep([*made], notes)
