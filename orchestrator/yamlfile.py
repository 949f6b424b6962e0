"""YAML with line numbers: plain data, and where each value stands in the file.

Floats follow YAML 1.2 (`2e-5` is a number, which PyYAML alone reads as text), and a key that stands
twice is an error, not a silent overwrite.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from lp_sweep.storage.errors import SpecError

Location = tuple[str | int, ...]

_DEEPEST = 20  # a sweep file has five levels

_FLOAT = re.compile(
    r"^[-+]?(?:(?:[0-9][0-9_]*)?\.[0-9_]+(?:[eE][-+]?[0-9]+)?|[0-9][0-9_]*\.?[eE][-+]?[0-9]+"
    r"|[0-9][0-9_]*\.|\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
)


class _Loader(yaml.SafeLoader):
    """SafeLoader with YAML 1.2 floats and without dates (a date is text here)."""


# PyYAML keeps resolvers by first character, in a table that subclasses share unless copied
_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, regexp) for tag, regexp in resolvers if not tag.endswith((":float", ":timestamp"))
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))


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


def parse_value(text: str) -> Any:
    """One value as it would stand in the file: `3e-5` is a number, `true` a truth value."""
    try:
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError) as error:
        raise SpecError(f"can't read {text!r} as a YAML value: {_first_line(error)}") from error


def read_yaml(path: Path) -> Document:
    """Parse a sweep file. Raises SpecError naming file and line."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise SpecError(
            f"no sweep file at {path}. `lp-sweep init {path}` writes a commented one."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"can't read {path}: {error}") from error
    return parse_yaml(text, str(path))


def parse_yaml(text: str, name: str) -> Document:
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise SpecError(f"{name}{line}: not valid YAML: {error.problem}") from error
    except yaml.reader.ReaderError as error:
        number = text.count("\n", 0, error.position) + 1
        raise SpecError(f"{name}:{number}: not valid YAML: {_first_line(error)}") from error
    if not isinstance(node, yaml.MappingNode):
        raise SpecError(f"{name}:1: a sweep file is a mapping of keys such as `models:`, `tasks:`")
    origins: dict[Location, str] = {}
    content = _construct(loader, node, (), name, origins)
    return Document(name=name, content=content, origins=origins)


def _construct(
    loader: _Loader, node: yaml.Node, location: Location, name: str, origins: dict[Location, str]
) -> Any:
    origin = f"{name}:{node.start_mark.line + 1}"
    origins.setdefault(location, origin)
    if len(location) > _DEEPEST:
        raise SpecError(f"{origin}: nested {_DEEPEST} deep. An alias `*name` may not hold itself.")
    if isinstance(node, yaml.SequenceNode):
        return [
            _construct(loader, item, (*location, index), name, origins)
            for index, item in enumerate(node.value)
        ]
    if not isinstance(node, yaml.MappingNode):
        return _scalar(loader, node, origin)
    content: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key_origin = f"{name}:{key_node.start_mark.line + 1}"
        key = str(_scalar(loader, key_node, key_origin))
        if key in content:
            raise SpecError(f"{key_origin}: the key {key!r} stands twice. Keep one of them.")
        origins[(*location, key)] = key_origin
        content[key] = _construct(loader, value_node, (*location, key), name, origins)
    return content


def _scalar(loader: _Loader, node: yaml.Node, origin: str) -> Any:
    try:
        return loader.construct_object(node)
    except yaml.MarkedYAMLError:  # a tag, `<<`, a mapping as a key
        raise SpecError(
            f"{origin}: {node.tag!r} is not known here: write plain keys, texts and numbers"
        ) from None
    except ValueError as error:
        raise SpecError(f"{origin}: {error}") from None


def with_override(document: Document, location: Location, value: Any, origin: str) -> Document:
    """The document with one value replaced; mappings on the way are made where missing. A list's
    entry is named by its number, from 0."""
    location = _numbered(document.content, location)
    origins = {
        at: where for at, where in document.origins.items() if at[: len(location)] != location
    }
    origins[location] = origin
    content = _replaced(document.content, location, value)
    return Document(name=document.name, content=content, origins=origins)


def _numbered(content: Any, location: Location) -> Location:
    """`("models", "0", "k")` as `("models", 0, "k")` where the file has a list of models."""
    numbered: list[str | int] = []
    for part in location:
        if isinstance(content, list) and str(part).isdecimal() and int(part) < len(content):
            numbered.append(int(part))
            content = content[int(part)]
        else:
            numbered.append(part)
            content = content.get(part) if isinstance(content, Mapping) else None
    return tuple(numbered)


def _replaced(content: Any, location: Location, value: Any) -> Any:
    if not location:
        return value
    key, rest = location[0], location[1:]
    if isinstance(content, list) and isinstance(key, int):
        return [*content[:key], _replaced(content[key], rest, value), *content[key + 1 :]]
    mapping = content if isinstance(content, Mapping) else {}
    return {**mapping, str(key): _replaced(mapping.get(str(key)), rest, value)}


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
