"""Writes docs/sweep-file.md from the schema: every key of a sweep file, as Markdown."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from lp_sweep.orchestrator.sweepfile.entries import CellMatch
from lp_sweep.orchestrator.sweepfile.spec import SECTIONS, SweepSpec

Field = Mapping[str, Any]

_INTRODUCTION = """# The sweep file

```yaml
schema_version: 1
name: demo
models: [bert-base-cased, {id: distilbert-base-cased, k: [0, 1, 2, 3]}, ./folder/of/a/model]
tasks: [rte, mrpc]
seeds: [42, 43]
strategies:
  - {name: top, k: [0, 2, 4, 6]}
  - {name: contribution, threshold: [0.95, 0.925, 0.9]}
recipe: {learning_rate: 2e-5, batch_size: 32, epochs: 3, max_length: 128}
```

This page lists every key. `lp-sweep init` writes a short file, `lp-sweep init --full` one with
every key, commented. `lp-sweep init --data rows.csv --text COLUMN --label COLUMN` writes one for
your own rows. `lp-sweep schema` prints a JSON Schema, with which editors complete keys, and
`lp-sweep schema --markdown` prints this page.

- You can write a single entry without its list, and a name instead of an entry
  (`models: bert-base-cased`, `strategies: [{name: top, k: 2}, drop 3+5]`).
- Paths are relative to the sweep file. A model may be a network that another sweep kept (`keep`);
  it gets a new classification head.
- `key=value` on the command line replaces a key (`seed=42,43`, `recipe.learning_rate=3e-5`).
  `task=`, `model=`, `strategy=` and `seed=` replace a list and keep each entry's settings from the
  file. A name that is not in the file is planned in their place, with a note; a strategy that is
  not in the file also needs `k=all` or other numbers.
- The full model (K=0) of each model, procedure, task and seed is part of every plan, since losses
  are counted from it: also where the list of K, `exclude:` or a `key=value` leaves it out.
- Unknown keys are errors; the message suggests the nearest key."""

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
    sections = [_INTRODUCTION, *_table(schema)]
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
