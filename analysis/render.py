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
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from functools import partial
from itertools import count, zip_longest
from typing import Any, NamedTuple

import pyarrow as pa

from lp_sweep.analysis.notes import NOT_ASKED
from lp_sweep.analysis.rows import grouped
from lp_sweep.analysis.tabledef import CONTEXT, Table
from lp_sweep.storage.errors import SpecError
from lp_sweep.storage.printable import broken, printable

_GAP = "  "
_NARROW = 12
_WORDS = re.compile(r"\[[^]]*\]|\([^)]*\)|\S+")  # an interval is one word


class _Grid(NamedTuple):
    """Rows as strings, and which columns are right-aligned. `labels`: how many columns, at the
    start, name a row; each part of a grid that is too wide for a screen has them."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: Sequence[bool]
    labels: int = 1
    once: str = ""  # what all rows have in common


class _Sheet(NamedTuple):
    """A table as strings. Only a screen has more than one grid, and lines before the title."""

    title: str
    grids: Sequence[_Grid]
    notes: Sequence[str] = ()
    lead: Sequence[str] = ()


def render(
    table: Table, format: str = "table", *, terminal: bool | None = None, width: int | None = None
) -> str:
    """A table as text that ends in a newline; CSV and JSON print its long form.

    On a `terminal` (None: if stdout is one), format "table" fits `width` columns; otherwise it is
    as wide as needed. Raises SpecError for an unknown format.
    """

    def sheet(width: int | None) -> _Sheet:
        if format == "table" and table.values and table.rows:
            return _Sheet(table.title, _grids(table, width), table.notes, table.lead)
        lead = table.lead if format == "table" else ()
        return _Sheet(table.title, [condensed(table)], table.notes, lead)

    return _rendered(table.long, sheet, format, terminal, width)


_Line = tuple[str, ...]


def _grids(table: Table, width: int | None) -> list[_Grid]:
    """One for each sweep and model; where they are too wide, for each procedure and task."""
    grids: list[_Grid] = []
    for names in (["sweep", "model"], CONTEXT, [*CONTEXT, "task"]):
        place = [table.columns.index(name) for name in names if name in table.columns]
        groups = grouped(table.rows, partial(_picked, place)).values()
        grids = [_condensed(table, rows) for rows in groups]
        if width is None or all(_total([*map(max, _natural(grid))]) <= width for grid in grids):
            break
    return grids


def _picked(place: Iterable[int], row: _Line) -> _Line:
    return tuple(row[at] for at in place)


def _natural(grid: _Grid) -> list[list[int]]:
    """The widths of the cells of each column, and of its heading, where none breaks."""
    columns = zip(grid.columns, *grid.rows, strict=True)
    return [[_width(printable(cell)) for cell in column] for column in columns]


def _width(text: str) -> int:
    """In columns of a terminal: a CJK character takes two."""
    from rich.cells import cell_len

    return cell_len(text)


def _condensed(table: Table, rows: Sequence[_Line]) -> _Grid:
    """Says a value that all rows share once, and makes rows that differ in one name or loss one
    row. A task that none of them asks for has no column."""
    rows = [*dict.fromkeys(rows)]
    for heading in table.joined:
        at = table.columns.index(heading)
        others = [n for n in range(len(table.columns)) if n != at]
        alike = grouped(rows, partial(_picked, others)).values()
        texts = [", ".join(row[at] for row in same) for same in alike]
        rows = [
            (*row[:at], text, *row[at + 1 :]) for (row, *_), text in zip(alike, texts, strict=True)
        ]
    labels = len(table.columns) - table.values
    found = [{row[at] for row in rows} for at in range(len(table.columns))]
    common = {
        at: values.pop()
        for at, values in enumerate(found)
        if values in ({""}, {NOT_ASKED})
        or (at < labels and len(values) == 1 and (len(rows) > 1 or table.columns[at] in CONTEXT))
    }
    left = [at for at in range(len(table.columns)) if at not in common]
    once = (f"{table.columns[at]} {text}" for at, text in common.items() if text.strip(NOT_ASKED))
    return _Grid(
        [table.columns[at] for at in left],
        [[row[at] for at in left] for row in rows],
        [False] * len(left),
        sum(at < labels for at in left),
        ", ".join(once),
    )


def condensed(table: Table) -> _Grid:
    """Its columns and rows, and `once`: what all rows have in common."""
    if table.values and table.rows:
        return _condensed(table, table.rows)
    return _Grid(table.columns, table.rows, [False] * len(table.columns))


def render_rows(
    rows: pa.Table, format: str = "table", *, terminal: bool | None = None, width: int | None = None
) -> str:
    """A query's result as text; otherwise as `render`."""

    def sheet(_: int | None) -> _Sheet:
        columns = [map(_shown, plain_values(column)) for column in rows.columns]
        numeric = [_is_number(column.type) for column in rows.columns]
        return _Sheet("", [_Grid(rows.column_names, [*zip(*columns, strict=True)], numeric)])

    return _rendered(rows, sheet, format, terminal, width)


def _rendered(
    rows: pa.Table,
    sheet: Callable[[int | None], _Sheet],
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
        width = width or shutil.get_terminal_size().columns
        return _on_screen(sheet(width), width) + "\n"
    return _FOR_PEOPLE[format](sheet(None)) + "\n"


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


def _lines(grid: _Grid, width: int | None = None) -> list[str]:
    """The lines of a grid. One that is too wide breaks its cells between words, and then falls into
    parts below one another."""
    rows = [[printable(cell) for cell in line] for line in (grid.columns, *grid.rows)]
    columns = _natural(grid)
    wide = [*map(max, columns)]
    once = printable(grid.once)
    above = [*_broken(once, len(once) if width is None else width), ""] if once else []
    if width is None or _total(wide) <= width:
        return above + _part(rows, wide, grid.numeric)
    longest = max(_NARROW, width // 3)  # a longer word is cut
    words = [
        [_width(word) for row in rows for word in _WORDS.findall(row[at])]
        for at in range(len(wide))
    ]
    least = [min(longest, max(lengths, default=0)) for lengths in words]
    for number, at in enumerate(_parts(least, grid.labels, width)):
        room = _shrunk([columns[i] for i in at], [least[i] for i in at], width)
        part = [[row[i] for i in at] for row in rows]
        above += [""] * bool(number) + _part(part, room, [grid.numeric[i] for i in at])
    return above


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _parts(least: Sequence[int], labels: int, width: int) -> Iterator[list[int]]:
    """The columns of each part, by number."""
    part = first = [*range(labels)]
    for at in range(labels, len(least)):
        if part != first and _total([least[i] for i in [*part, at]]) > width:
            yield part
            part = first
        part = [*part, at]
    yield part


def _shrunk(columns: Sequence[Sequence[int]], least: Sequence[int], width: int) -> list[int]:
    """The widths of columns that fit together, from the widths of their cells. Those give way first
    in which the fewest cells break."""
    widths = [*map(max, columns)]
    while _total(widths) > width:
        breaking = [at for at, own in enumerate(widths) if own > least[at]]
        if not breaking:
            break
        at = min(breaking, key=lambda at: (columns[at].count(widths[at]), -widths[at]))
        widths[at] -= 1
    return widths


def _part(
    rows: Sequence[Sequence[str]], widths: Sequence[int], numeric: Sequence[bool]
) -> list[str]:
    def pad(cell: str, width: int, right: bool) -> str:
        space = " " * (width - _width(cell))
        return space + cell if right else cell + space

    lines: list[str] = []
    for row in rows:
        for line in zip_longest(*map(_broken, row, widths), fillvalue=""):
            lines.append(_GAP.join(map(pad, line, widths, numeric)).rstrip())
        if row is rows[0]:
            lines.append(_GAP.join("-" * width for width in widths))
    return lines


def _broken(cell: str, width: int) -> list[str]:
    """A cell's lines: broken between words, and a long word anywhere."""
    from rich.cells import chop_cells

    if _width(cell) <= width:
        return [cell]
    lines: list[str] = []
    for word in _WORDS.findall(cell):
        if lines and _width(lines[-1]) + 1 + _width(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines += chop_cells(word, max(2, width))
    return lines


def _text(sheet: _Sheet) -> str:
    return "\n".join(line for lines in _parts_of(sheet, None) for line in lines)


def _parts_of(sheet: _Sheet, width: int | None) -> tuple[list[str], list[str], list[str]]:
    """The lines before the rows, of the rows, and after them."""
    lead = [*map(printable, sheet.lead), ""] if sheet.lead else []
    title = [printable(sheet.title), *([] if sheet.grids[0].once else [""])] if sheet.title else []
    rows: list[str] = []
    for grid in sheet.grids:
        rows += [""] * bool(rows) + _lines(grid, width)
    empty = [] if any(grid.rows for grid in sheet.grids) else ["(no rows)"]
    notes = ["", *map(printable, sheet.notes)] if sheet.notes else []
    return [*lead, *title], rows, [*empty, *notes]


def _on_screen(sheet: _Sheet, width: int) -> str:
    from rich.console import Console
    from rich.text import Text

    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=width)
    for style, lines in zip(("bold", "", "dim"), _parts_of(sheet, width), strict=True):
        for line in lines:
            text = broken(line, width) if style else line
            console.print(Text(text, style=style), soft_wrap=True)
    return out.getvalue().rstrip("\n")


_MARKDOWN = re.compile(r"([\\`*|<>\[\]&~#])|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")


def markdown_escape(text: str) -> str:
    """Escape text from anyone, so that Markdown shows it literally: no link, tag, emphasis or
    cell."""
    return _MARKDOWN.sub(lambda match: f"\\{match.group()}", text)


def _markdown(sheet: _Sheet) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(markdown_escape(printable(cell)) for cell in cells) + " |"

    (grid,) = sheet.grids
    rule = "|" + "|".join("---:" if right else "---" for right in grid.numeric) + "|"
    lines = [line(grid.columns), rule, *(line(row) for row in grid.rows)]
    title = [f"**{markdown_escape(printable(sheet.title))}**", ""] if sheet.title else []
    title += [markdown_escape(printable(grid.once)), ""] if grid.once else []
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

    (grid,) = sheet.grids
    kinds = "".join("r" if right else "l" for right in grid.numeric)
    texts = (sheet.title, grid.once, *sheet.notes)
    comments = [f"% {printable(text)}" for text in texts if text]
    body = [r"\toprule", line(grid.columns), r"\midrule", *map(line, grid.rows), r"\bottomrule"]
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
