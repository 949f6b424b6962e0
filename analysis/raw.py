"""Writes a query's result as CSV or JSON: raw values, for machines."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa

from lp_sweep.storage.printable import printable


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
    unique: list[str] = []
    for name in names:
        candidate, number = name, 1
        while candidate in unique:
            number += 1
            candidate = f"{name}_{number}"
        unique.append(candidate)
    return unique


def _escaped(line: str) -> str:
    """The same JSON, its control characters and bidirectional overrides as `\\u` escapes."""
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in line)


def to_json(rows: pa.Table) -> str:
    """A JSON array with one object per row, one per line."""
    names = _unique(rows.column_names)
    columns = [plain_values(column) for column in rows.columns]
    lines = (
        _escaped(json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False))
        for row in zip(*columns, strict=True)
    )
    body = ",\n  ".join(lines)
    return f"[\n  {body}\n]\n" if body else "[]\n"


def to_csv(rows: pa.Table, shown: bool = False) -> str:
    """A header line and a line per row; null is an empty field."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([_csv_field(name, shown) for name in _unique(rows.column_names)])
    columns = [plain_values(column) for column in rows.columns]
    for row in zip(*columns, strict=True):
        writer.writerow([_csv_field(value, shown) for value in row])
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
