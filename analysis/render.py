"""Prints a table or a query's result as text: table, CSV, JSON, Markdown, LaTeX.

CSV and JSON carry raw values, for machines; the others are for people. Any value may be text from a
user: it is escaped for its format, and no control character reaches a terminal.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from itertools import count
from typing import Any, NamedTuple

import pyarrow as pa

from lp_sweep.analysis.tabledef import Table
from lp_sweep.storage.errors import SpecError
from lp_sweep.storage.printable import printable


class _Sheet(NamedTuple):
    """A table as strings, and which columns are right-aligned."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str]
    numeric: Sequence[bool]
    lead: Sequence[str] = ()


def render(
    table: Table, format: str = "table", *, terminal: bool | None = None, width: int | None = None
) -> str:
    """A table as text that ends in a newline; CSV and JSON print its long form.

    On a `terminal` (None: if stdout is one), rich draws format "table" for `width` columns;
    otherwise it is plain and as wide as needed. Raises SpecError for an unknown format.
    """
    lead = table.lead if format == "table" else ()
    numeric = [False] * len(table.columns)
    sheet = _Sheet(table.title, table.columns, table.rows, table.notes, numeric, lead)
    return _rendered(table.long, lambda: sheet, format, terminal, width)


def render_rows(
    rows: pa.Table, format: str = "table", *, terminal: bool | None = None, width: int | None = None
) -> str:
    """A query's result as text; otherwise as `render`."""

    def sheet() -> _Sheet:
        columns = [map(_shown, plain_values(column)) for column in rows.columns]
        numeric = [_is_number(column.type) for column in rows.columns]
        return _Sheet("", rows.column_names, [*zip(*columns, strict=True)], (), numeric)

    return _rendered(rows, sheet, format, terminal, width)


def _rendered(
    rows: pa.Table,
    sheet: Callable[[], _Sheet],
    format: str,
    terminal: bool | None,
    width: int | None,
) -> str:
    if format not in FORMATS:
        raise SpecError(f"unknown format {format!r}. Choose one of: {', '.join(FORMATS)}.")
    terminal = sys.stdout.isatty() if terminal is None else terminal
    if format in RAW:
        return RAW[format](rows, terminal)
    if format == "table" and terminal:
        return _rich(sheet(), width or shutil.get_terminal_size().columns) + "\n"
    return _FOR_PEOPLE[format](sheet()) + "\n"


def _is_number(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))


def _shown(value: Any) -> str:
    """A raw value for people: numbers with four decimals, null as `NULL`."""
    if value is None:
        return "NULL"
    if isinstance(value, float):
        plain = value == 0 or 1e-3 <= abs(value) < 1e15
        return str(round(value, 4)) if plain else f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _text(sheet: _Sheet) -> str:
    from rich.cells import cell_len  # cell_len: a CJK character is two columns wide

    grid = [[printable(cell) for cell in line] for line in (sheet.columns, *sheet.rows)]
    widths = [max(cell_len(cell) for cell in column) for column in zip(*grid, strict=True)]

    def pad(cell: str, width: int, right: bool) -> str:
        space = " " * (width - cell_len(cell))
        return space + cell if right else cell + space

    lines = ["  ".join(map(pad, line, widths, sheet.numeric)).rstrip() for line in grid]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(_framed(sheet, lines, str))


def _framed(sheet: _Sheet, lines: Sequence[str], escape: Callable[[str], str]) -> list[str]:
    title = [*(escape(printable(line)) for line in sheet.lead), ""] if sheet.lead else []
    title += [escape(printable(sheet.title)), ""] if sheet.title else []
    empty = [] if sheet.rows else ["(no rows)"]
    notes = ["", *(escape(printable(note)) for note in sheet.notes)] if sheet.notes else []
    return [*title, *lines, *empty, *notes]


def _rich(sheet: _Sheet, width: int) -> str:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    drawn = RichTable(box=SIMPLE_HEAD, title=Text(printable(sheet.title)), title_justify="left")
    for name, right in zip(sheet.columns, sheet.numeric, strict=True):
        drawn.add_column(Text(printable(name)), justify="right" if right else "left")
    for row in sheet.rows:
        drawn.add_row(*(Text(printable(cell)) for cell in row))  # as Text: `[red]` is not markup
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=width)
    for line in sheet.lead:
        console.print(Text(printable(line), style="bold"))
    console.print(drawn)
    for note in (*(() if sheet.rows else ("(no rows)",)), *sheet.notes):
        console.print(Text(printable(note), style="dim"))
    return out.getvalue().rstrip("\n")


_MARKDOWN = re.compile(r"([\\`*|<>\[\]&~#])|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")


def markdown_escape(text: str) -> str:
    """Escape text from anyone, so that Markdown shows it literally: no link, tag, emphasis or
    cell."""
    return _MARKDOWN.sub(lambda match: f"\\{match.group()}", text)


def _markdown(sheet: _Sheet) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(markdown_escape(printable(cell)) for cell in cells) + " |"

    rule = "|" + "|".join("---:" if right else "---" for right in sheet.numeric) + "|"
    lines = [line(sheet.columns), rule, *(line(row) for row in sheet.rows)]
    title = [f"**{markdown_escape(printable(sheet.title))}**", ""] if sheet.title else []
    notes = [f"- {markdown_escape(printable(note))}" for note in sheet.notes]
    return "\n".join([*title, *lines, *([""] if notes else []), *notes])


_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "{": r"\{",
        "}": r"\}",
        "$": r"\$",
        "&": r"\&",
        "#": r"\#",
        "%": r"\%",
        "_": r"\_",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        '"': r"\textquotedbl{}",
        "[": "{[}",  # a `[` after \\ would be its argument
        "]": "{]}",
        "±": r"$\pm$",
        "−": "$-$",
        "×": r"$\times$",
        "≤": r"$\leq$",
        "–": "--",
        "†": r"$\dagger$",
    }
)


def _latex(sheet: _Sheet) -> str:
    """A LaTeX tabular for the booktabs package; title and notes are comments."""

    def line(cells: Sequence[str]) -> str:
        return " & ".join(printable(cell).translate(_LATEX) for cell in cells) + r" \\"

    kinds = "".join("r" if right else "l" for right in sheet.numeric)
    comments = [f"% {printable(text)}" for text in (sheet.title, *sheet.notes) if text]
    body = [r"\toprule", line(sheet.columns), r"\midrule", *map(line, sheet.rows), r"\bottomrule"]
    return "\n".join([*comments, f"\\begin{{tabular}}{{{kinds}}}", *body, r"\end{tabular}"])


# -- raw values, for machines


def plain_values(column: Any) -> list[Any]:
    """A column's values in a form that JSON allows: numbers that are not finite become null."""
    try:
        values = column.to_pylist(maps_as_pydicts="lossy")
    except (OverflowError, ValueError):  # SQL has dates that Python lacks: infinity, 44 BC
        values = column.cast(_with_times_as_text(column.type)).to_pylist(maps_as_pydicts="lossy")
    return [finite(value) for value in values]


def finite(value: Any) -> Any:
    """The same value as JSON has it, with null for NaN and infinity."""
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Decimal):  # DuckDB's sum of integers is a Decimal
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    return value if isinstance(value, str | int | bool | None) else str(value)


def _with_times_as_text(kind: Any) -> Any:
    """The type with each date and time in it replaced by text."""
    if pa.types.is_temporal(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _with_times_as_text(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_with_times_as_text(kind.key_type), _with_times_as_text(kind.item_type))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_with_times_as_text(kind.value_type), kind.list_size)
    if pa.types.is_list(kind):
        return pa.list_(_with_times_as_text(kind.value_type))
    return kind


def _unique(names: Sequence[str]) -> list[str]:
    """`a, a` becomes `a, a_2`: SQL allows a name twice, a JSON object does not."""
    unique: dict[str, None] = {}
    for name in names:
        candidates = (name if n == 1 else f"{name}_{n}" for n in count(1))
        unique[next(candidate for candidate in candidates if candidate not in unique)] = None
    return [*unique]


def _escaped(line: str) -> str:
    """The same JSON, its control characters and bidirectional overrides as `\\u` escapes."""
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in line)


def to_json(rows: pa.Table) -> str:
    """A JSON array with one object per row, one per line."""
    names, columns = _unique(rows.column_names), map(plain_values, rows.columns)
    lines = [
        _escaped(json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False))
        for row in zip(*columns, strict=True)
    ]
    return "[\n  {}\n]\n".format(",\n  ".join(lines)) if lines else "[]\n"


def to_csv(rows: pa.Table, shown: bool = False) -> str:
    """A header line and a line per row; null is an empty field."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    lines = zip(*map(plain_values, rows.columns), strict=True)
    for line in (_unique(rows.column_names), *lines):
        writer.writerow([_csv_field(value, shown) for value in line])
    return out.getvalue()


def _csv_field(value: Any, shown: bool) -> Any:
    """Numbers in full, null as an empty field, lists and objects as JSON."""
    if isinstance(value, list | dict | bool):
        value = json.dumps(value, ensure_ascii=False)
    return printable(value) if shown and isinstance(value, str) else value


# take the rows, and whether a terminal shows them: it would obey an escape sequence in a value
RAW: dict[str, Callable[[pa.Table, bool], str]] = {
    "csv": to_csv,
    "json": lambda rows, shown: to_json(rows),
}
_FOR_PEOPLE: dict[str, Callable[[_Sheet], str]] = {
    "table": _text,
    "markdown": _markdown,
    "latex": _latex,
}
FORMATS = (*_FOR_PEOPLE, *RAW)
