"""Reads Parquet, CSV, TSV, JSONL and CoNLL files as Arrow tables.

Knows columns by name only, not what they mean. A file that can't be read raises a
MissingInputError that says how to fix it.
"""

from __future__ import annotations

import csv as plain_csv
import json
import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from difflib import get_close_matches
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import csv
from pyarrow import parquet as pq

from lp_sweep.storage.errors import MissingInputError
from lp_sweep.storage.printable import listed, short, shown
from lp_sweep.trials.data.columns import first_failing
from lp_sweep.trials.data.tasks import file_format

_TEXTS = ("csv", "tsv", "jsonl", "conll", "conllu")
_MAGIC = {
    b"\x1f\x8b": "is compressed by gzip: unpack it",
    b"BZh": "is compressed by bzip2: unpack it",
    b"\xfd7zXZ": "is compressed by xz: unpack it",
    b"\x28\xb5\x2f\xfd": "is compressed by zstd: unpack it",
    b"PK\x03\x04": "is a zip archive or a spreadsheet: unpack it, or export its table as CSV",
    b"\xd0\xcf\x11\xe0": "is a spreadsheet: export its table as CSV",
    b"ARROW1": "is an Arrow file: write it as Parquet",
}
_WIDE = {
    b"\xff\xfe\x00\x00": "UTF-32",
    b"\x00\x00\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}


def _other_format(path: Path, kind: str) -> str | None:
    """Names the real type of a file that is no `kind` (`is compressed by gzip: unpack it`), by its
    first bytes; None if they fit."""
    with path.open("rb") as stream:
        first = stream.read(64)
    for magic, what in _MAGIC.items():
        if first.startswith(magic):
            return what
    if kind not in _TEXTS:
        return None
    if first.startswith(b"PAR1"):
        return "is a Parquet file: give it the suffix .parquet"
    encoding = next((name for bom, name in _WIDE.items() if first.startswith(bom)), None)
    if encoding is None and len(first) > 3 and not (any(first[::2]) and any(first[1::2])):
        encoding = "UTF-16"  # no mark, but each second byte of the first words is zero
    return encoding and f"is {encoding}, not UTF-8: save it as UTF-8"


def _first_bad_line(path: Path) -> str:
    """The first line that is not UTF-8, as `line 3 (b'caf\\xe9')`; empty if there is none."""
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                return f"line {number} ({line[max(0, error.start - 20) : error.start + 10]!r})"
    return ""


_BLOCK_BYTES = 1 << 24  # one csv row must fit in a block
_LONGEST_NAME = 1 << 17  # of a column: beyond it a quotation mark was not closed


def require_columns(where: str, present: Sequence[str], wanted: Sequence[str]) -> None:
    """Raises MissingInputError unless each wanted column is there, once."""
    for column in wanted:
        count = present.count(column)
        if count == 1:
            continue
        near = get_close_matches(column, present[:1000], n=1)
        hint = f" Did you mean {shown(near[0])}?" if near and not count else ""
        hint = field_hint(present) or hint
        raise MissingInputError(
            f"{where}: {'two columns' if count else 'no column'} {shown(column)}. Columns: "
            f"{listed(present)}. Name the task's columns as the file does, or rename them "
            f"there.{hint}"
        )


def field_hint(present: Sequence[str]) -> str:
    """A hint for a file whose only column looks like several; empty for others."""
    if len(present) != 1 or not set(present[0]) & {",", ";", "\t"}:
        return ""
    return " Fields are separated by commas in a .csv file, by tabs in a .tsv file."


def column_names(path: str) -> list[str]:
    """The columns that the file's header names (jsonl: its first row)."""
    with _readable(path) as kind:
        if kind == "parquet":
            return list(pq.read_schema(path).names)
        if kind == "jsonl":
            return list(next(_json_rows(path)).content)
        if kind in CONLL:
            return _conll_names(kind, next(_sentences(path, kind)))
        with closing(_csv_rows(path, kind)) as rows:
            return next(rows)


def read_file(path: str, columns: Sequence[str], most: int | None = None) -> pa.Table:
    """Reads these columns of the first `most` rows, or of all. Columns of csv and tsv are text.

    A row of a CoNLL file is a sentence, and each of its columns is a list. A csv file has quoting
    and fields may hold line breaks; a tsv file has none (GLUE's hold lone quotation marks).
    """
    require_columns(path, column_names(path), columns)
    with _readable(path) as kind:
        if kind == "parquet":
            file = pq.ParquetFile(path)
            groups = range(file.num_row_groups)
            if most is not None:
                before = accumulate(
                    (file.metadata.row_group(i).num_rows for i in groups), initial=0
                )
                groups = range(sum(rows < most for rows in [*before][:-1]))
            table = file.read_row_groups(groups, columns=list(columns)).slice(0, most)
            table.validate(full=True)  # reading does not check that texts are UTF-8
            return table
        if kind == "jsonl":
            rows = list(islice(_json_rows(path), most))
            return pa.table({name: _json_column(rows, name) for name in columns})
        if kind in CONLL:
            return _conll_table(list(islice(_sentences(path, kind), most)), kind, columns)
        if most is not None:
            return _first_rows(path, kind, columns, most)
        try:
            return csv.read_csv(path, **_csv_options(kind, columns))
        except pa.ArrowInvalid:  # with a single thread, Arrow's error names the row
            return csv.read_csv(path, **_csv_options(kind, columns, threads=False))


@contextmanager
def _readable(path: str) -> Iterator[str]:
    """Yields the file's format. Turns errors of its reader into MissingInputError."""
    kind = file_format(path)
    try:
        _require_file(Path(path), kind)
        yield kind
    except (pa.ArrowException, OSError, ValueError, plain_csv.Error) as error:
        reason = short(str(error))
        fix = f"Check that it is a whole {kind} file."
        if isinstance(error, UnicodeError) or "UTF8" in reason.upper().replace("-", ""):
            line = _first_bad_line(Path(path)) if kind != "parquet" else ""
            reason, fix = f"not UTF-8: {line or reason}", "Save it as UTF-8."
        elif str(error).count('"') % 2 or isinstance(error, plain_csv.Error):
            fix = "Close every quotation mark: an open one includes the lines below it."
        raise MissingInputError(f"{path}: can't be read as {kind}: {reason}. {fix}") from error


def _require_file(path: Path, kind: str) -> None:
    if path.is_dir():
        raise MissingInputError(f"{path}: is a folder. Name a {kind} file.")
    if not path.is_file():
        raise MissingInputError(
            f"{path}: no such file. Check its path in the sweep file or in --data."
        )
    if path.stat().st_size == 0:
        raise MissingInputError(f"{path}: is an empty file. Give a {kind} file with examples.")
    if other := _other_format(path, kind):
        raise MissingInputError(f"{path}: can't be read as {kind}: it {other}.")


def _first_rows(path: str, kind: str, columns: Sequence[str], most: int) -> pa.Table:
    with closing(_csv_rows(path, kind)) as rows:
        names, *first = islice(rows, most + 1)
    for number, row in enumerate(first, start=2):  # as Arrow says it
        if len(row) != len(names):
            raise ValueError(f"Row #{number}: Expected {len(names)} columns, got {len(row)}")
    places = {name: names.index(name) for name in columns}
    return pa.table(
        {name: pa.array([row[i] for row in first], pa.string()) for name, i in places.items()}
    )


def _csv_rows(path: str, kind: str) -> Generator[list[str]]:
    """The header, then the rows. Not with Arrow's streaming reader: it reads ahead in a thread of
    its own, which can abort a program that exits right away."""
    empty, before = True, plain_csv.field_size_limit(_LONGEST_NAME)
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as lines:
            if kind == "tsv":
                reader = plain_csv.reader(lines, delimiter="\t", quoting=plain_csv.QUOTE_NONE)
            else:
                reader = plain_csv.reader(lines)
            for row in reader:
                if row:
                    yield row
                    if empty:
                        plain_csv.field_size_limit(_BLOCK_BYTES)
                        empty = False
    finally:
        plain_csv.field_size_limit(before)  # of the whole process
    if empty:
        raise ValueError("it holds empty lines only")


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
    """Yields one row or more. Raises ValueError with the line."""
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
                raise ValueError(
                    f"line {number} is no JSON object. Write one object per line, not an array"
                )
            yield _JsonRow(number, row)
            empty = False
    if empty:
        raise ValueError("it holds empty lines only")


def _json_column(rows: Sequence[_JsonRow], name: str) -> pa.Array:
    """Raises ValueError with the first line whose value has another type than those before."""
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


CONLL = ("conll", "conllu")
# https://universaldependencies.org/format.html
_CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
_NO_WORD = re.compile(r"\d+[-.]\d+")  # CoNLL-U: a range of words, or a node not in the text
_DOCUMENT = "-DOCSTART-"

Sentence = list[list[str]]  # words, each with its columns


def _conll_names(kind: str, first: Sentence) -> list[str]:
    """A .conll file has `tokens` first, `tags` last, and numbered columns in between."""
    if kind == "conllu":
        return [*_CONLLU]
    width = len(first[0])
    between = [str(number) for number in range(2, width)]
    return ["tokens", *between, "tags"] if width > 1 else ["tokens"]


def _conll_table(sentences: list[Sentence], kind: str, columns: Sequence[str]) -> pa.Table:
    place = {name: index for index, name in enumerate(_conll_names(kind, sentences[0]))}
    return pa.table(
        {
            name: pa.array(
                [[word[place[name]] for word in words] for words in sentences],
                pa.list_(pa.string()),
            )
            for name in columns
        }
    )


def conll_text(table: pa.Table) -> bytes:
    """Writes rows as a CoNLL file; the lists of a row have equal length."""
    sentences = zip(*table.to_pydict().values(), strict=True)
    lines = (
        "".join("\t".join(word) + "\n" for word in zip(*row, strict=True)) for row in sentences
    )
    return "".join(f"{sentence}\n" for sentence in lines).encode()


def _sentences(path: str, kind: str) -> Iterator[Sentence]:
    """Yields one sentence or more: a word per line, columns separated by tabs or spaces, an empty
    line after each sentence. Raises ValueError with the line."""
    words: Sentence = []
    empty, width = True, len(_CONLLU) if kind == "conllu" else 0
    for number, word in _conll_lines(path, kind):
        if not word:
            if words:
                yield words
            words = []
            continue
        width = width or len(word)
        if len(word) != width:
            raise ValueError(f"line {number} has {len(word)} columns, not {width}")
        words.append(word)
        empty = False
    if words:
        yield words
    if empty:
        raise ValueError("it holds no word")


def _conll_lines(path: str, kind: str) -> Iterator[tuple[int, list[str]]]:
    """Yields each line's number (from 1) and columns, none at the end of a sentence. Skips
    `-DOCSTART-` lines, and in CoNLL-U comments, word ranges and empty nodes."""
    with Path(path).open(encoding="utf-8-sig", newline="\n") as lines:
        for number, line in enumerate(lines, start=1):
            bare = line.rstrip("\r\n")
            if not bare.strip():
                yield number, []
                continue
            word = bare.split("\t") if "\t" in bare else re.split(" +", bare.strip(" "))
            conllu = kind == "conllu" and (bare[0] == "#" or _NO_WORD.fullmatch(word[0]))
            if not conllu and word[0] != _DOCUMENT:
                yield number, word
