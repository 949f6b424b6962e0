"""Prints a table or a query's result as text: table, CSV, JSON, Markdown, LaTeX.

CSV and JSON carry raw values, for machines; the others are for people. Any value may be text from a
user: it is escaped for its format, and no control character reaches a terminal.
"""

from __future__ import annotations

import io
import json
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from lp_sweep.analysis.raw import RAW, plain_values
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
    if _known(format) in RAW:
        return _raw(table.long, format, terminal)
    numeric = [False] * len(table.columns)
    lead = table.lead if format == "table" else ()
    sheet = _Sheet(table.title, table.columns, table.rows, table.notes, numeric, lead)
    return _laid_out(sheet, format, terminal, width)


def render_rows(
    rows: pa.Table, format: str = "table", *, terminal: bool | None = None, width: int | None = None
) -> str:
    """A query's result as text; otherwise as `render`."""
    if _known(format) in RAW:
        return _raw(rows, format, terminal)
    columns = [plain_values(column) for column in rows.columns]
    lines = [[_shown(value) for value in line] for line in zip(*columns, strict=True)]
    numeric = [_is_number(column.type) for column in rows.columns]
    return _laid_out(_Sheet("", rows.column_names, lines, (), numeric), format, terminal, width)


def _raw(rows: pa.Table, format: str, terminal: bool | None) -> str:
    """CSV or JSON, unchanged for a file or a pipe, escaped for a terminal: it would obey an escape
    sequence in a value."""
    shown = sys.stdout.isatty() if terminal is None else terminal
    return RAW[format](rows, shown)


def _known(format: str) -> str:
    if format not in FORMATS:
        raise SpecError(f"unknown format {format!r}. Choose one of: {', '.join(FORMATS)}.")
    return format


def _laid_out(sheet: _Sheet, format: str, terminal: bool | None, width: int | None) -> str:
    if format == "table" and (sys.stdout.isatty() if terminal is None else terminal):
        return _rich(sheet, width or shutil.get_terminal_size().columns) + "\n"
    return _FOR_PEOPLE[format](sheet) + "\n"


def _is_number(kind: Any) -> bool:
    checks = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    return any(check(kind) for check in checks)


def _shown(value: Any) -> str:
    """A raw value for people: numbers with four decimals, null as `NULL`."""
    if value is None:
        return "NULL"
    if isinstance(value, float):
        return _short_number(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _short_number(value: float) -> str:
    if value == 0 or 1e-3 <= abs(value) < 1e15:
        text = f"{value:.4f}".rstrip("0")
        return text + "0" if text.endswith(".") else text
    return f"{value:.4g}"


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


_LATEX = {
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


def _latex_escape(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in printable(text))


def _latex(sheet: _Sheet) -> str:
    """A LaTeX tabular for the booktabs package; title and notes are comments."""

    def line(cells: Sequence[str]) -> str:
        return " & ".join(_latex_escape(cell) for cell in cells) + r" \\"

    kinds = "".join("r" if right else "l" for right in sheet.numeric)
    comments = [f"% {printable(text)}" for text in (sheet.title, *sheet.notes) if text]
    body = [r"\toprule", line(sheet.columns), r"\midrule", *map(line, sheet.rows), r"\bottomrule"]
    return "\n".join([*comments, f"\\begin{{tabular}}{{{kinds}}}", *body, r"\end{tabular}"])


_FOR_PEOPLE: dict[str, Callable[[_Sheet], str]] = {
    "table": _text,
    "markdown": _markdown,
    "latex": _latex,
}
FORMATS = (*_FOR_PEOPLE, *RAW)
