"""A sweep file as plain data that knows where each value stands: its line, or an override."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lp_sweep.orchestrator.sweepfile.yamldata import Location, YamlMistake, read_text
from lp_sweep.storage.errors import SpecError
from lp_sweep.storage.printable import shown

_LARGEST = 256 * 1024  # bytes: two seconds of parsing; a long sweep file has ten thousand


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """Plain data and the origin of its values: `sweep.yaml:12`, or the override that set it."""

    name: str
    content: dict[str, Any]
    origins: dict[Location, str] = field(default_factory=dict)

    def where(self, location: Location) -> str:
        """The origin of the value at `location`, or of the nearest thing that encloses it."""
        for length in range(len(location), -1, -1):
            if location[:length] in self.origins:
                return self.origins[location[:length]]
        return self.name


def parse_value(text: str, origin: str) -> Any:
    """One value as it would stand in the file: `3e-5` is a number, `true` a truth value. Raises
    SpecError that starts with the origin."""
    try:
        if len(text) > _LARGEST:
            raise YamlMistake(1, "it is too long")
        return read_text(text).value
    except YamlMistake as error:
        raise SpecError(f"{origin}: can't read {shown(text)} as a YAML value: {error}") from error


def read_yaml(path: Path) -> Document:
    """Parse a sweep file. Raises SpecError naming file and line."""
    try:
        with path.open("rb") as stream:  # not all of it: a wrong name may be a model's weights
            content = stream.read(_LARGEST + 1)
    except FileNotFoundError:
        if "=" in path.name:
            raise SpecError(
                f"{shown(str(path))} looks like an override, and the sweep file comes before it: "
                f"sweep.yaml {shlex.quote(str(path))}"
            ) from None
        raise SpecError(
            f"no sweep file at {path}. `lp-sweep init {path}` writes a commented one."
        ) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise SpecError(f"can't read {path}: {error}. Name a sweep file.") from error
    if len(content) > _LARGEST:
        raise SpecError(
            f"{path}:1: has more than {_LARGEST // 1024} KiB, the most a sweep file may have. "
            "Name another file, or split the sweep: sweeps over one store share their trials."
        )
    try:
        return parse_yaml(content.decode("utf-8-sig"), str(path))
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise SpecError(f"{path}:{line}: can't read it: {error}. Save it as UTF-8.") from error


def parse_yaml(text: str, name: str) -> Document:
    """Raises SpecError."""
    try:
        content, lines = read_text(text)
    except YamlMistake as error:
        raise SpecError(f"{name}:{error.line}: {error}") from error
    if not isinstance(content, dict):
        raise SpecError(f"{name}:1: a sweep file is a mapping of keys such as `models:`, `tasks:`")
    origins = {location: f"{name}:{line}" for location, line in lines.items()}
    return Document(name=name, content=content, origins=origins)


def with_override(document: Document, location: Location, value: Any, origin: str) -> Document:
    """The document with one value replaced; mappings on the way are made where missing. A list's
    entry is named by its number, from 0. Raises SpecError for a number that it does not have."""
    location = _numbered(document.content, location, origin)
    origins = {
        at: where for at, where in document.origins.items() if at[: len(location)] != location
    }
    origins[location] = origin
    content = _replaced(document.content, location, value)
    return Document(name=document.name, content=content, origins=origins)


def _numbered(content: Any, location: Location, origin: str) -> Location:
    """`("models", "0", "k")` as `("models", 0, "k")` where the file has a list of models."""
    numbered: list[str | int] = []
    for part in location:
        if isinstance(content, list):
            entries = {str(index): index for index in range(len(content))}
            if str(part) not in entries:
                raise SpecError(
                    f"{origin}: {'.'.join(map(str, numbered))} is a list of {len(content)}, "
                    f"counted from 0, and has no {shown(part)}"
                )
            part = entries[str(part)]
            content = content[part]
        else:
            content = content.get(part) if isinstance(content, Mapping) else None
        numbered.append(part)
    return tuple(numbered)


def _replaced(content: Any, location: Location, value: Any) -> Any:
    if not location:
        return value
    key, rest = location[0], location[1:]
    if isinstance(content, list) and isinstance(key, int):
        return [*content[:key], _replaced(content[key], rest, value), *content[key + 1 :]]
    mapping = content if isinstance(content, Mapping) else {}
    return {**mapping, str(key): _replaced(mapping.get(str(key)), rest, value)}
