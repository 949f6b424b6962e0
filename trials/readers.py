"""Rows of one split as an Arrow table: parquet, csv, tsv and jsonl files.

Knows columns by name, not what they mean. Whatever can't be read is a MissingInputError that says
how to mend it. Rows of the hub are `hubrows`' matter.
"""

from __future__ import annotations

import csv as plain_csv
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import csv
from pyarrow import parquet as pq

from lp_sweep.storage.errors import MissingInputError
from lp_sweep.storage.printable import listed, short, shown
from lp_sweep.trials.firstbytes import first_bad_line, other_than
from lp_sweep.trials.tasks import file_format

_BLOCK_BYTES = 1 << 24  # one csv row must fit in a block


def require_columns(where: str, present: Sequence[str], wanted: Sequence[str]) -> None:
    """Raises MissingInputError unless each wanted column is there, once."""
    for column in wanted:
        count = present.count(column)
        if count == 1:
            continue
        near = get_close_matches(column, present[:1000], n=1)
        hint = f" Did you mean {shown(near[0])}?" if near and not count else ""
        if len(present) == 1 and set(present[0]) & {";", "\t"}:
            hint = " Fields are kept apart by commas in a .csv file, by tabs in a .tsv file."
        raise MissingInputError(
            f"{where}: {'two columns' if count else 'no column'} {shown(column)}. Columns: "
            f"{listed(present)}. Name the task's columns as the file does, or rename them "
            f"there.{hint}"
        )


def column_names(path: str) -> list[str]:
    """From the file's header only (jsonl: its first row)."""
    with _readable(path) as kind:
        if kind == "parquet":
            return list(pq.read_schema(path).names)
        if kind == "jsonl":
            return list(next(_json_rows(path)).content)
        return _header(path, kind)


def read_file(path: str, columns: Sequence[str]) -> pa.Table:
    """The `columns` of a file. csv and tsv give text in every column.

    A tsv has no quoting (GLUE's own files hold lone quotation marks); a csv has, and a field may
    hold line breaks.
    """
    require_columns(path, column_names(path), columns)
    with _readable(path) as kind:
        if kind == "parquet":
            table = pq.ParquetFile(path).read(columns=list(columns))
            table.validate(full=True)  # that texts are UTF-8, of which a file is not asked
            return table
        if kind == "jsonl":
            rows = list(_json_rows(path))
            return pa.table({name: _json_column(rows, name) for name in columns})
        try:
            return csv.read_csv(path, **_csv_options(kind, columns))
        except pa.ArrowInvalid:  # only in one thread does Arrow say which row it is
            return csv.read_csv(path, **_csv_options(kind, columns, threads=False))


@contextmanager
def _readable(path: str) -> Iterator[str]:
    """The file's format; what its reader raises becomes a MissingInputError."""
    kind = file_format(path)
    try:
        _require_file(Path(path), kind)
        yield kind
    except (pa.ArrowException, OSError, ValueError, plain_csv.Error) as error:
        reason = short(str(error))
        mend = f"Check that it is a whole {kind} file."
        if isinstance(error, UnicodeError) or "UTF8" in reason.upper().replace("-", ""):
            line = first_bad_line(Path(path)) if kind != "parquet" else ""
            reason, mend = f"not UTF-8: {line or reason}", "Save it as UTF-8."
        elif str(error).count('"') % 2 or isinstance(error, plain_csv.Error):
            mend = "A quotation mark that opens and never closes takes in what follows: close it."
        raise MissingInputError(f"{path}: can't be read as {kind}: {reason}. {mend}") from error


def _require_file(path: Path, kind: str) -> None:
    if path.is_dir():
        raise MissingInputError(f"{path}: is a folder. Name a {kind} file.")
    if not path.is_file():
        raise MissingInputError(f"{path}: no such file. Check the task's paths and folders.")
    if path.stat().st_size == 0:
        raise MissingInputError(f"{path}: is an empty file. Give a {kind} file with examples.")
    if other := other_than(path, kind):
        raise MissingInputError(f"{path}: can't be read as {kind}: it {other}.")


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
        raise ValueError("it holds empty lines only")
    return names


def _csv_options(kind: str, columns: Sequence[str], *, threads: bool = True) -> dict[str, Any]:
    parse = (
        csv.ParseOptions(delimiter="\t", quote_char=False)
        if kind == "tsv"
        else csv.ParseOptions(newlines_in_values=True)
    )
    return {
        "parse_options": parse,
        "read_options": csv.ReadOptions(block_size=_BLOCK_BYTES, use_threads=threads),
        "convert_options": csv.ConvertOptions(
            include_columns=list(columns), column_types=dict.fromkeys(columns, pa.string())
        ),
    }


class _JsonRow(NamedTuple):
    line: int  # from 1
    content: dict[str, Any]


def _json_rows(path: str) -> Iterator[_JsonRow]:
    """At least one. Raises ValueError with the line."""
    empty = True
    with Path(path).open(encoding="utf-8-sig", newline="\n") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:  # too many brackets
                raise ValueError(f"line {number} is not JSON: {error}") from error
            if not isinstance(row, dict):
                raise ValueError(f"line {number} is no JSON object, one a line")
            yield _JsonRow(number, row)
            empty = False
    if empty:
        raise ValueError("it holds empty lines only")


def _json_column(rows: Sequence[_JsonRow], name: str) -> pa.Array:
    """Raises ValueError with the first line whose value is not like those before it."""
    values = [row.content.get(name) for row in rows]
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError, UnicodeEncodeError) as error:
        bad = first_failing(len(values), lambda count: pa.array(values[:count]))
        why = "a value of another kind than those before it. Write all as texts, or all as numbers"
        if isinstance(error, UnicodeEncodeError):
            why = "which ends in half a character. Write the whole one"
        elif isinstance(error, OverflowError):
            why = "a number of more than 64 bits. Write it as a text"
        raise ValueError(
            f"line {rows[bad].line}: {shown(name)} is {shown(values[bad])}, {why}"
        ) from None


def first_failing(count: int, try_first: Callable[[int], object]) -> int:
    """The position of the first of `count` values that makes `try_first(n)`, a conversion of the
    first n, fail. By halving: a conversion is quick, and its error rarely says where."""
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
