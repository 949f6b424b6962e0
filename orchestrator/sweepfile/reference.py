"""Writes docs/sweep-file.md from the schema: every key of a sweep file, as Markdown."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any

from lp_sweep.orchestrator.sweepfile.entries import CellMatch
from lp_sweep.orchestrator.sweepfile.spec import SECTIONS, SweepSpec

Field = Mapping[str, Any]

_CELLS = "include and exclude"
# a part's name in the schema -> its title: its place in a sweep file
_PARTS = {
    part.__name__: _CELLS if part is CellMatch else place
    for place, part in SECTIONS.items()
    if part is not SweepSpec
}
_TYPES = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
}
_LARGE = 10**9  # bounds from here on are not shown


def reference() -> str:
    """The page. Raises KeyError for a part of the schema that `_PARTS` lacks."""
    schema = SweepSpec.model_json_schema()
    parts = {_PARTS[name]: part for name, part in schema["$defs"].items()}
    introduction = files("lp_sweep.orchestrator") / "templates" / "sweep-file.md"
    sections = [introduction.read_text(encoding="utf-8").strip(), *_table(schema)]
    for title in _PARTS.values():
        sections += [f"## {title}", str(parts[title]["description"]).replace("\n", " ")]
        sections += _table(parts[title])
    return "\n\n".join(sections) + "\n"


def _table(part: Field) -> Iterator[str]:
    lines = ["| key | takes | default | |", "|---|---|---|---|"]
    required = part.get("required", ())
    for name, field in part["properties"].items():
        default = "**needed**" if name in required else _default(field)
        cells = [f"`{name}`", _takes(field), default, field.get("description", "")]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    yield "\n".join(lines)


def _takes(field: Field, plural: str = "") -> str:
    return " or ".join(dict.fromkeys(_kinds(field, plural)))


def _kinds(field: Field, plural: str) -> Iterator[str]:
    if "$ref" in field:
        title = _PARTS[field["$ref"].rpartition("/")[2]]
        yield f"[{title}](#{title.replace('.', '').replace(' ', '-')})"
    elif choices := field.get("anyOf") or field.get("oneOf"):
        for choice in choices:
            yield from _kinds(choice, plural)
    elif values := field.get("enum") or ([field["const"]] if "const" in field else None):
        yield ", ".join(f"`{value}`" for value in values)
    elif field.get("type") == "array":
        yield f"list of {_takes(field['items'], plural='s')}"
    elif field.get("type") != "null":
        yield _TYPES[field["type"]] + plural + _bounds(field)


def _bounds(field: Field) -> str:
    step = 1 if field["type"] == "integer" else 0
    words = {
        "minimum": ("from", 0),
        "exclusiveMinimum": ("from", step) if step else ("above", 0),
        "maximum": ("to", 0),
        "exclusiveMaximum": ("to", -step) if step else ("below", 0),
    }
    return "".join(
        f" {word} {field[name] + more:g}"
        for name, (word, more) in words.items()
        if name in field and field[name] < _LARGE
    )


def _default(field: Field) -> str:
    """Empty for a section, whose keys have their own defaults."""
    value = field.get("default")
    if value is None or isinstance(value, dict) or value == []:
        return ""
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"
