"""Reads Parquet, Arrow, CSV, TSV, JSON, CoNLL and TREC files as Arrow tables.

Knows columns by name only, not what they mean. A file that can't be read raises a
MissingInputError that says how to fix it.
"""

from __future__ import annotations

import csv as plain_csv
import re
import shlex
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lp_sweep.storage.errors import MissingInputError
from lp_sweep.storage.printable import did_you_mean, listed, short, shown
from lp_sweep.trials.data import delimited
from lp_sweep.trials.data.formats import (
    LFS_POINTER,
    TABLES,
    UNPACKING,
    file_format,
    is_packed,
    open_binary,
    open_text,
    parts_of,
)
from lp_sweep.trials.data.jsonrows import json_column, json_names, json_rows
from lp_sweep.trials.kinds.tokens import is_tag

if TYPE_CHECKING:
    from pyarrow.dataset import Dataset

_CHUNK = 1 << 16  # rows of text at a time
_MAGIC = {
    b"\x1f\x8b": "is compressed by gzip: add .gz to its name",
    b"BZh": "is compressed by bzip2: add .bz2 to its name",
    b"\xfd7zXZ": "is compressed by xz: add .xz to its name",
    b"\x28\xb5\x2f\xfd": "is compressed by zstd: add .zst to its name",
    b"PK\x03\x04": "is a zip archive or a spreadsheet: unpack it, or export its table as CSV",
    b"\xd0\xcf\x11\xe0": "is a spreadsheet: export its table as CSV",
    b"ARROW1": "is an Arrow file: give it the suffix .arrow",
    b"\xff\xff\xff\xff": "is an Arrow file: give it the suffix .arrow",
    b"PAR1": "is a Parquet file: give it the suffix .parquet",
    LFS_POINTER: "is a pointer of Git LFS, not the file itself: run `git lfs pull`",
    b"<!doctype html": "is a web page: fetch the file itself, by its link for raw content",
    b"<html": "is a web page: fetch the file itself, by its link for raw content",
}
_WIDE = {
    b"\xff\xfe\x00\x00": "UTF-32",
    b"\x00\x00\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}


def _other_format(path: Path, kind: str) -> str | None:
    """Names the real type of a file that is no `kind` (`is compressed by gzip: add .gz to its
    name`), by its first bytes; None if they fit."""
    with open_binary(path) as stream:
        first = stream.read(64)
    own = {"parquet": (b"PAR1",), "arrow": (b"ARROW1", b"\xff\xff\xff\xff")}.get(kind, ())
    for magic, what in _MAGIC.items():
        if magic not in own and (first.startswith(magic) or first.lower().startswith(magic)):
            return what
    if own:
        return None
    encoding = next((name for bom, name in _WIDE.items() if first.startswith(bom)), None)
    if encoding is None and len(first) > 3 and not (any(first[::2]) and any(first[1::2])):
        encoding = "UTF-16"  # no mark, but each second byte of the first words is zero
    return encoding and f"is {encoding}, not UTF-8: save it as UTF-8"


def _first_bad_line(path: str) -> str:
    """The first line that is not UTF-8, as `line 3 (b'caf\\xe9')`; empty if there is none."""
    with open_binary(path) as lines:
        for number, line in enumerate(lines, start=1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                return f"line {number} ({line[max(0, error.start - 20) : error.start + 10]!r})"
    return ""


_SAVE = "Save it as UTF-8."


def _to_utf8(path: str) -> str:
    """How to convert a text file, which on Windows is often cp1252."""
    if is_packed(path):
        return _SAVE
    with open_binary(path) as stream:
        try:
            stream.read().decode("cp1252")
        except UnicodeDecodeError:
            return _SAVE
    name = Path(path)
    made = name.with_name(f"{name.stem}-utf8{name.suffix}")
    command = shlex.join(["iconv", "-f", "CP1252", "-t", "UTF-8", path])
    return f"{_SAVE} If it is cp1252, of Windows: {command} > {shlex.quote(str(made))}"


_OF_WORDS = "A file with a word on each line has no header: name it .conll."
_NO_NAME = re.compile(r"[-+]?\d+(\.\d+)?")
_NAME_BLANKS = 3


def require_columns(where: str, present: Sequence[str], wanted: Sequence[str]) -> None:
    """Raises MissingInputError unless each wanted column is there, once."""
    for column in wanted:
        count = present.count(column)
        if count == 1:
            continue
        hint = "" if count or len(present) < 2 else did_you_mean(column, present[:1000])
        hint = hint or field_hint(where, present)
        raise MissingInputError(
            f"{where}: {'two columns' if count else 'no column'} {shown(column)}. Columns: "
            f"{listed(present)}. Name the task's columns as the file does, or rename them "
            f"there.{hint}"
        )


def field_hint(where: str, present: Sequence[str]) -> str:
    """A hint for a CSV or TSV file whose only column looks like several, or whose columns are named
    like a row of a file without a header; empty for others."""
    if not re.search(r"\.[ct]sv\b", where, re.IGNORECASE):
        return ""
    if len(present) == 1 and set(present[0]) & {",", ";", "\t"}:
        return " Fields are separated by commas or semicolons in a .csv file, by tabs in a .tsv."
    if present and (_COMMENT.match(present[0]) or is_tag(present[-1])):
        return f" {_OF_WORDS}"
    # a question of a form is a name
    texts = [name.count(" ") > _NAME_BLANKS and not name.endswith("?") for name in present]
    if any(map(_NO_NAME.fullmatch, present)) or 2 * sum(texts) >= len(texts) > 0:
        return (
            " The first line is read as names of columns, and it looks like a row: put a line with "
            "names above it."
        )
    return ""


def headerless(path: str, present: Sequence[str]) -> str:
    """As `field_hint`, also for words without entities: no blanks within fields, but empty lines
    between rows."""
    if file_format(path) not in ("csv", "tsv") or any(" " in name for name in present):
        return field_hint(path, present)
    with open_text(path) as lines:
        first = [line.strip() for line in islice(lines, 200)]
    between = "" in first[: len(first) - 1] and len(present) > 1
    return f" {_OF_WORDS}" if between and " " not in "".join(first) else field_hint(path, present)


def column_names(path: str) -> list[str]:
    """The columns that the file's header names; of JSON, those of all rows."""
    with _readable(path) as kind:
        if kind in TABLES:
            return list(_tables(path, kind).schema.names)
        if kind == "jsonl":
            return list(json_names(path))
        with closing(_text_rows(path, kind)) as rows:
            names = next(rows)
            if kind == "trec":
                next(rows, None)  # a file of other texts is refused
            return names


def read_file(path: str, columns: Sequence[str], most: int | None = None) -> pa.Table:
    """Reads these columns of the first `most` rows, or of all. Columns of csv and tsv are text.

    A row of a CoNLL file is a sentence, and each of its columns is a list.
    """
    require_columns(path, column_names(path), columns)
    with _readable(path) as kind:
        if kind in TABLES:
            rows = _tables(path, kind)
            names = list(columns)
            every = rows.to_table(names) if most is None else rows.head(most, columns=names)
            return plain_table(every)
        if kind == "jsonl":
            objects = list(islice(json_rows(path), most))
            return pa.table({name: json_column(objects, name) for name in columns})
        type_ = pa.list_(pa.string()) if kind in CONLL else pa.string()
        with closing(_text_rows(path, kind)) as lines:
            names = next(lines)
            places, rest = [names.index(name) for name in columns], islice(lines, most)
            chunks: list[list[pa.Array]] = [[] for _ in columns]
            while some := list(islice(rest, _CHUNK)):
                for chunk, place in zip(chunks, places, strict=True):
                    chunk.append(pa.array([row[place] for row in some], type_))
        return pa.table([pa.chunked_array(chunk, type_) for chunk in chunks], names=list(columns))


def _text_rows(path: str, kind: str) -> Generator[list[Any]]:
    """The names of the columns, then the cells of each row; of CoNLL each cell is a list."""
    if kind == "trec":
        yield from _trec_rows(path)
    elif kind in CONLL:
        yield from _sentences(path, kind)
    else:
        with closing(delimited.rows(path, kind)) as rows:
            yield from (row.cells for row in rows)


def _tables(path: str, kind: str) -> Dataset:
    """The parts of a file or folder of Parquet or Arrow as one data set; reads no rows."""
    from pyarrow import dataset  # imports pandas

    parts = parts_of(path)
    if kind == "parquet":
        return dataset.dataset([str(part) for part in parts], format="parquet")
    tables = [_arrow(part) for part in parts]
    return dataset.dataset(pa.concat_tables(tables, promote_options="permissive"))


def _arrow(path: Path) -> pa.Table:
    """A file or a stream of Arrow, in memory as far as it is looked at. `datasets` writes streams,
    which pyarrow's data sets do not read."""
    with pa.memory_map(str(path)) as source:
        whole = source.read(6) == b"ARROW1"
        source.seek(0)
        return (pa.ipc.open_file if whole else pa.ipc.open_stream)(source).read_all()


def plain_table(table: pa.Table) -> pa.Table:
    """The table without dictionaries and views, for which pyarrow lacks functions, and with one
    kind of text and of list. Raises ArrowException for texts that are not UTF-8."""
    for index, field in enumerate(table.schema):
        if (plain := _plain(field.type)) != field.type:
            column = table.column(index).cast(plain)
            table = table.set_column(index, field.with_type(plain), column)
    table.validate(full=True)  # reading does not check that texts are UTF-8
    return table


def _plain(type_: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_dictionary(type_):
        return _plain(type_.value_type)
    if types.is_string_view(type_):
        return pa.large_string()
    if types.is_binary_view(type_):
        return pa.binary()
    if any(is_(type_) for is_ in (types.is_list, types.is_large_list, types.is_fixed_size_list)):
        inner = _plain(type_.value_type)
        return pa.list_(pa.string() if types.is_large_string(inner) else inner)
    return type_


@contextmanager
def _readable(path: str) -> Iterator[str]:
    """Yields the file's format. Turns errors of its reader into MissingInputError."""
    kind, parts = file_format(path), parts_of(path)
    if not parts:
        raise MissingInputError(f"{path}: no file has such a name. Check the pattern.")
    if kind not in TABLES and [Path(path)] != parts:
        join = f"Join its {len(parts)} files into one"
        fix = join if len(parts) > 1 else f"Name the file: {parts[0]}"
        raise MissingInputError(f"{path}: a pattern is for Parquet and Arrow files. {fix}.")
    try:
        for part in parts:
            _require_file(part, kind)
        if kind in ("csv", "tsv"):
            with open_text(path) as lines:
                kind = "trec" if _JUDGEMENT.fullmatch(lines.readline()) else kind
        yield kind
    except (*UNPACKING, pa.ArrowException, OSError, ValueError, plain_csv.Error) as error:
        reason = short(str(error))
        advised = ". " in reason and not isinstance(error, pa.ArrowException)
        fix = "" if advised else f"Check that it is a whole {kind} file."
        if isinstance(error, UnicodeError) or "UTF8" in reason.upper().replace("-", ""):
            line = _first_bad_line(path) if kind not in TABLES else ""
            reason, fix = f"not UTF-8: {line or reason}", _to_utf8(path) if line else _SAVE
        elif "quotation mark" in reason or isinstance(error, plain_csv.Error):
            fix = 'Close every quotation mark, and double one inside a text (""): an open one '
            fix += "includes the lines below it."
        raise MissingInputError(
            f"{path}: can't be read as {kind}: {reason}. {fix}".strip()
        ) from error


def _require_file(path: Path, kind: str) -> None:
    if not path.is_file():
        raise MissingInputError(
            f"{path}: no such file. Check its path in the sweep file or in --data."
        )
    if path.stat().st_size == 0:
        raise MissingInputError(f"{path}: is an empty file. Give a {kind} file with examples.")
    if other := _other_format(path, kind):
        raise MissingInputError(f"{path}: can't be read as {kind}: it {other}.")


CONLL = ("conll", "conllu")
# https://universaldependencies.org/format.html
_CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
_NO_WORD = re.compile(r"\d+[-.]\d+")  # CoNLL-U: a range of words, or a node not in the text
_DOCUMENT = "-DOCSTART-"
_COMMENT = re.compile(r"#(\s|begin |end |[\w.]+ *=)")  # `# sent_id = 3`, `#begin document (x)`

_LONGEST_SENTENCE = 1000  # words, of a file with one sentence
_WORD_NAMES = {"word", "words", "token", "tokens", "form", "text"}
_TAG_NAMES = {"tag", "tags", "label", "labels", "pos", "pos_tags", "upos", "ner", "ner_tags"}


def conll_text(table: pa.Table) -> bytes:
    """Writes rows as a CoNLL file; the lists of a row have equal length."""
    sentences = zip(*table.to_pydict().values(), strict=True)
    lines = (
        "".join("\t".join(word) + "\n" for word in zip(*row, strict=True)) for row in sentences
    )
    return "".join(f"{sentence}\n" for sentence in lines).encode()


def _sentences(path: str, kind: str) -> Generator[list[Any]]:
    """The names of the columns, then each sentence as a list for each column. There is a word per
    line, columns are separated by tabs or spaces, and an empty line ends a sentence. A .conll file
    has `tokens` first, `tags` last, and numbered columns between. Raises ValueError with the line.
    """
    lines = _conll_lines(path, kind)
    first = next((line for line in lines if line[1]), None)
    if first is None:
        raise ValueError("it holds no word")
    number, word = first
    if word[0].lower() in _WORD_NAMES and word[-1].lower() in _TAG_NAMES:
        raise ValueError(f"line {number} names columns. Remove it: they are tokens and tags")
    plain = ["tokens", *map(str, range(2, len(word))), *["tags"] * (len(word) > 1)]
    names = [*_CONLLU] if kind == "conllu" else plain
    yield names
    words, alone = list[list[str]](), True
    for number, word in chain([first], lines, [(0, [])]):
        if len(word) not in (0, len(names)):
            comment = "; a comment (#) is skipped before a sentence only" * word[0].startswith("#")
            raise ValueError(f"line {number} has {len(word)} columns, not {len(names)}{comment}")
        if word:
            words.append(word)
        elif words:
            if alone and not number and len(words) > _LONGEST_SENTENCE:
                raise ValueError(
                    f"its {len(words):,} words are one sentence. Put an empty line after each one"
                )
            yield [list(column) for column in zip(*words, strict=True)]
            words, alone = [], False


def _conll_lines(path: str, kind: str) -> Iterator[tuple[int, list[str]]]:
    """Yields each line's number (from 1) and columns, none at the end of a sentence. Skips
    `-DOCSTART-` lines, comments, and in CoNLL-U word ranges and empty nodes."""
    comments = set() if kind == "conllu" else comment_lines(path)
    for number, line, word in _lines_of_words(path):
        conllu = kind == "conllu" and word and (line[0] == "#" or _NO_WORD.fullmatch(word[0]))
        if not conllu and number not in comments and word[:1] != [_DOCUMENT]:
            yield number, word


def _lines_of_words(path: str) -> Iterator[tuple[int, str, list[str]]]:
    with open_text(path, "\n") as text:
        lines = (line for some in text for line in some.rstrip("\r\n").split("\r"))
        for number, line in enumerate(lines, start=1):
            word = line.split("\t") if "\t" in line else re.split(" +", line.strip(" "))
            yield number, line, word if line.strip() else []


def comment_lines(path: str) -> set[int]:
    """The numbers of a .conll file's comments: lines with `#` before a sentence that are no word,
    since they have other columns, or a last one that is no tag of another line."""
    width, tags = 0, set[str]()
    doubtful: list[tuple[int, list[str]]] = []
    within = False
    for number, line, word in _lines_of_words(path):
        if not within and _COMMENT.match(line):
            doubtful.append((number, word))
            continue
        within = bool(word)
        if word and word[0] != _DOCUMENT:
            width = width or len(word)
            tags.add(word[-1])
    return {
        number
        for number, word in doubtful
        if len(word) != width or (width > 1 and word[-1] not in tags)
    }


TREC = ("query-id", "iteration", "corpus-id", "score")
_RELEVANCE = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
_JUDGEMENT = re.compile(r"\S+\s+(0|Q0)\s+\S+\s+-?\d+\s*")  # a header never looks like that


def _trec_rows(path: str) -> Iterator[list[str]]:
    """The names of the columns, then judgements as trec_eval reads them: four fields between
    blanks or tabs (https://trec.nist.gov/data/qrels_eng/). Raises ValueError with the line."""
    yield [*TREC]
    with open_text(path) as lines:
        for number, line in enumerate(lines, start=1):
            fields = line.split()
            if fields and (len(fields) != len(TREC) or not _RELEVANCE.fullmatch(fields[-1])):
                raise ValueError(
                    f"line {number} is {shown(' '.join(fields))}, not query, 0, document and "
                    "relevance. A file of words is named .conll, one of texts .csv"
                )
            if fields:
                yield fields
