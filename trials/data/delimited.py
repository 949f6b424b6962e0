"""Rows of CSV and TSV files, as a file's own quotation marks mean them.

A CSV file has quotation marks around fields (RFC 4180), and fields may hold line breaks. Between
them is a comma, or a semicolon, as spreadsheets write it where a comma is a decimal point. A TSV
file has no marks, since GLUE's texts hold lone ones, unless its header or a doubled mark inside a
field shows that a program quoted it. A mark inside a field may also be written `\\"`.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Generator, Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from lp_sweep.trials.data.formats import open_text

LONGEST_FIELD = 1 << 24
_LONGEST_NAME = 1 << 17  # of a column: beyond it a quotation mark was not closed
_QUOTED = re.compile(r'"(?:[^"]|"")*+"')
_FIELD = re.compile(rf"(?:^|(?<=[,;])){_QUOTED.pattern}")  # in marks, as it should be
_SPACED = re.compile(r'(^|[,;])[ \t]+"')  # a mark after a blank is a part of the text
_FEW = 3  # rows that may all have a quotation by chance
_SHORT = 100  # characters of a field that may be a label
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?")


class Row(NamedTuple):
    cells: list[str]
    line: int  # its first, from 1
    last_line: int


class Quoting(NamedTuple):
    """How a file writes quotation marks. `odd_line`: the first line with text before an opening or
    after a closing mark; 0 if there is none."""

    quoted: bool = True
    backslash: bool = False
    odd_line: int = 0


def rows(path: str, kind: str) -> Generator[Row]:
    """The header, then the rows; empty lines are skipped. Raises ValueError and csv.Error with the
    line, also for a row with more or fewer fields than the header."""
    header: list[str] = []
    for row in _rows(path, kind, quoting_of(path, kind)):
        if header and len(row.cells) != len(header):
            columns = f"{len(row.cells)} column{'s' * (len(row.cells) != 1)}"
            raise ValueError(f"line {row.line} has {columns}, not {len(header)}")
        if header and [row.cells[0].lstrip("\ufeff"), *row.cells[1:]] == header:
            raise ValueError(f"line {row.line} repeats the names of the columns. Remove it")
        header = header or row.cells
        yield row
    if not header:
        raise ValueError("it holds empty lines only")


def csv_text(rows: Iterable[Row]) -> bytes:
    """A CSV file of these rows, whatever their columns are named."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(row.cells for row in rows)
    return text.getvalue().encode()


def _rows(path: str, kind: str, quoting: Quoting, *, strict: bool = False) -> Generator[Row]:
    before = csv.field_size_limit(_LONGEST_NAME)
    options: dict[str, Any] = {"delimiter": delimiter(path, kind), "strict": strict}
    if not quoting.quoted:
        options["quoting"] = csv.QUOTE_NONE
    try:
        with open_text(path) as lines:
            text: Iterable[str] = lines
            if quoting.backslash:
                text = (line.replace('\\"', '""') for line in lines)
            reader, line = csv.reader(text, **options), 1
            for cells in reader:
                if cells:
                    yield Row(cells, line, reader.line_num)
                    csv.field_size_limit(LONGEST_FIELD)
                line = reader.line_num + 1
    except csv.Error as error:
        raise csv.Error(f"line {line}: {error}") from None
    finally:
        csv.field_size_limit(before)  # of the whole process


def delimiter(path: str, kind: str) -> str:
    """The separator of fields, by the first line with text."""
    if kind == "tsv":
        return "\t"
    with open_text(path) as lines:
        header = _QUOTED.sub("", next(filter(str.strip, lines), "")[:_LONGEST_NAME])
    return ";" if ";" in header and "," not in header else ","


def quoting_of(path: str, kind: str) -> Quoting:
    """Raises ValueError for a mark that was not closed and so swallows the rows below it."""
    place = Path(path).stat()
    return _quoting(path, kind, place.st_size, place.st_mtime_ns)


@lru_cache(maxsize=64)
def _quoting(path: str, kind: str, _size: int, _changed: int) -> Quoting:
    with open_text(path) as lines:
        if not any('"' in line for line in lines):
            return Quoting(quoted=kind != "tsv")
    if kind == "tsv":
        plain, quoted = Quoting(quoted=False), Quoting()
        meant = _is_quoted_tsv(path) and _odd_line(path, kind, quoted) == 0
        return quoted if meant else plain
    usual = Quoting()
    odd = _odd_line(path, kind, usual)
    if odd and _odd_line(path, kind, Quoting(backslash=True)) == 0:
        return Quoting(backslash=True)
    _refuse_swallowed(path, usual)
    return usual._replace(odd_line=odd or _spaced_line(path))


def _spaced_line(path: str) -> int:
    """The first line of a file with a single line for each row that has a blank before a mark; 0 if
    there is none."""
    with open_text(path) as lines:
        for number, line in enumerate(lines, start=1):
            if line.count('"') % 2:
                return 0  # a field of several lines
            if _SPACED.search(_FIELD.sub("", line)) and '""' not in line:
                return number
    return 0


def _odd_line(path: str, kind: str, quoting: Quoting) -> int:
    """The first line that breaks the rules of quoting; 0 if all rows have as many fields as the
    header."""
    line = width = 0
    try:
        for row in _rows(path, kind, quoting, strict=True):
            width = width or len(row.cells)
            if len(row.cells) != width:
                return row.line
            line = row.last_line
    except csv.Error:
        return line + 1
    return 0


def _is_quoted_tsv(path: str) -> bool:
    """Whether a name in the header has marks around it, a field has doubled marks inside its own,
    a field holds a tab or a line break, or all fields of a column have marks around them."""
    marked: list[bool] = []
    count = 0
    with open_text(path) as lines:
        for line in filter(str.strip, lines):
            fields = line.rstrip("\r\n").split("\t")
            quoted = [field for field in fields if _QUOTED.fullmatch(field)]
            if not count and quoted:
                return True
            marked = marked or [True] * len(fields)
            if len(fields) != len(marked) or any('"' in field[1:-1] for field in quoted):
                return True
            if count:
                marked = [
                    had and field in quoted for had, field in zip(marked, fields, strict=True)
                ]
            count += 1
    return count > _FEW and any(marked)


def _refuse_swallowed(path: str, quoting: Quoting) -> None:
    """Raises ValueError for a field of several lines of which the first two are rows by themselves:
    they have as many fields as the header, and one of these holds what other rows have there, or a
    number where all have one."""
    long: list[tuple[int, Row]] = []
    known: list[set[str]] = []
    for number, row in enumerate(_rows(path, "csv", quoting)):
        known = known or [set() for _ in row.cells]
        if row.last_line > row.line:
            long.append((number, row))
        elif number:
            for values, cell in zip(known, row.cells, strict=False):
                values |= {cell} if 0 < len(cell) < _SHORT else set()
    numeric = [bool(values) and all(map(_NUMBER.fullmatch, values)) for values in known]

    mark = delimiter(path, "csv")

    def fits(line: str) -> bool:
        fields = line.rstrip("\r\n").split(mark)
        return len(fields) == len(known) and any(
            field in values or (is_number and _NUMBER.fullmatch(field))
            for field, values, is_number in zip(fields, known, numeric, strict=True)
        )

    wanted = {row.line + more for _, row in long for more in (0, 1)}
    with open_text(path) as lines:
        numbered = enumerate(lines if wanted else (), start=1)
        alone = {number for number, line in numbered if number in wanted and fits(line)}
    for number, row in long:
        if {row.line, row.line + 1} <= alone:
            raise ValueError(
                f"row {number} takes lines {row.line} to {row.last_line}: a quotation mark in line "
                f"{row.line} is closed in line {row.last_line} only"
            )
