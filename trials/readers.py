"""Rows of one split as an Arrow table: parquet, csv, tsv and jsonl files, and hub data sets.

Knows columns by name, not what they mean. Whatever can't be read is a MissingInputError that says
how to mend it; datasets (and the network) are imported only for a hub source.
"""

from __future__ import annotations

import csv as plain_csv
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import csv
from pyarrow import parquet as pq

from lp_sweep.storage.errors import MissingInputError
from lp_sweep.trials.tasks import TaskSource, file_format

_BLOCK_BYTES = 1 << 24  # one csv row must fit in a block


def require_columns(where: str, present: Sequence[str], wanted: Sequence[str]) -> None:
    """Raises MissingInputError unless each wanted column is there, once."""
    for column in wanted:
        count = present.count(column)
        if count == 1:
            continue
        near = get_close_matches(column, present, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise MissingInputError(
            f"{where}: {'two columns' if count else 'no column'} {column!r}. Columns: "
            f"{', '.join(present)}. Name the task's columns as the file does, or rename them "
            f"there.{hint}"
        )


def column_names(path: str) -> list[str]:
    """From the file's header only (jsonl: its first row)."""
    with _readable(path) as kind:
        if kind == "parquet":
            return list(pq.read_schema(path).names)
        if kind == "jsonl":
            return list(next(_json_rows(path), {}))
        return _header(path, kind)


def read_file(path: str, columns: Sequence[str]) -> pa.Table:
    """The `columns` of a file. csv and tsv give text in every column.

    A tsv has no quoting (GLUE's own files hold lone quotation marks); a csv has, and a field may
    hold line breaks.
    """
    require_columns(path, column_names(path), columns)
    with _readable(path) as kind:
        if kind == "parquet":
            return pq.ParquetFile(path).read(columns=list(columns))
        if kind == "jsonl":
            rows = list(_json_rows(path))
            return pa.table({name: [row.get(name) for row in rows] for name in columns})
        convert = csv.ConvertOptions(
            include_columns=list(columns), column_types=dict.fromkeys(columns, pa.string())
        )
        return csv.read_csv(path, convert_options=convert, **_csv_options(kind))


def read_hub(source: TaskSource, split: str, columns: Sequence[str], *, offline: bool) -> pa.Table:
    """The `columns` of a split of a hub data set; from the cache, without asking, if it is there.

    Never another revision than `source.revision`: `datasets` falls back to the latest cached one
    (or a folder of this name) when the hub doesn't answer, and that is refused here.
    """
    where = f"{source.dataset}@{source.revision}"
    try:
        builder = _hub_builder(source, offline)
        if builder.hash == source.revision:
            builder.download_and_prepare()
            table = builder.as_dataset(split=source.splits[split]).with_format("arrow")[:]
    except Exception as error:  # the hub's clients raise dozens of types, from three libraries
        raise MissingInputError(
            f"{where}: can't load {source.config or 'the default configuration'}, split "
            f"{source.splits[split]!r}, {'offline ' if offline else ''}from the Hugging Face hub: "
            f"{type(error).__name__}: {error}. Check the names and the network, load it once on "
            f"this machine, or use local files."
        ) from error
    if builder.hash != source.revision:
        raise MissingInputError(
            f"{where}: the hub wasn't asked or didn't answer, and what the cache or a folder of "
            f"this name holds is revision {builder.hash}. Load the wanted one while online."
        )
    require_columns(where, table.column_names, columns)
    return table.select(list(columns))


def _hub_builder(source: TaskSource, offline: bool) -> Any:
    import datasets

    def find() -> Any:
        return datasets.load_dataset_builder(
            source.dataset, source.config, revision=source.revision
        )

    try:
        with _cache_only():
            cached = find()
    except Exception:  # not cached, in whatever words
        if offline:
            raise
        return find()
    return cached if offline or cached.hash == source.revision else find()


@contextmanager
def _cache_only() -> Iterator[None]:
    """Keeps `datasets` off the network, and from warning that it is."""
    from datasets import config
    from datasets.utils import logging

    before, verbosity = config.HF_HUB_OFFLINE, logging.get_verbosity()
    config.HF_HUB_OFFLINE = True
    logging.set_verbosity_error()
    try:
        yield
    finally:
        config.HF_HUB_OFFLINE = before
        logging.set_verbosity(verbosity)


@contextmanager
def _readable(path: str) -> Iterator[str]:
    """The file's format; what its reader raises becomes a MissingInputError."""
    kind = file_format(path)
    if not Path(path).is_file():
        raise MissingInputError(f"{path}: no such file. Check the task's paths and folders.")
    try:
        yield kind
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = f"not UTF-8: {error}" if isinstance(error, UnicodeError) else str(error)
        encoding = isinstance(error, UnicodeError) or "UTF8" in reason.upper().replace("-", "")
        mend = "Save it as UTF-8." if encoding else f"Check that it is a whole {kind} file."
        raise MissingInputError(f"{path}: can't be read as {kind}: {reason}. {mend}") from error


def _header(path: str, kind: str) -> list[str]:
    """The first record. Not by Arrow's streaming reader: it reads ahead in a thread of its own,
    which a program that ends at once can abort on."""
    with Path(path).open(encoding="utf-8-sig", newline="") as lines:
        if kind == "tsv":
            reader = plain_csv.reader(lines, delimiter="\t", quoting=plain_csv.QUOTE_NONE)
        else:
            reader = plain_csv.reader(lines)
        names = next((row for row in reader if row), None)
    if names is None:
        raise ValueError("Empty file")
    return names


def _csv_options(kind: str) -> dict[str, Any]:
    parse = (
        csv.ParseOptions(delimiter="\t", quote_char=False)
        if kind == "tsv"
        else csv.ParseOptions(newlines_in_values=True)
    )
    return {"parse_options": parse, "read_options": csv.ReadOptions(block_size=_BLOCK_BYTES)}


def _json_rows(path: str) -> Iterator[dict[str, Any]]:
    with Path(path).open(encoding="utf-8-sig", newline="\n") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"line {number} is not JSON: {error}") from error
            if not isinstance(row, dict):
                raise ValueError(f"line {number} is no JSON object, one a line")
            yield row
