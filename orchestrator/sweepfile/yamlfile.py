"""Reads YAML into plain data that knows the origin of each value (its line, or an override), and
writes data so that it is read as it was.

Numbers follow YAML 1.2: `2e-5` is a number, which PyYAML alone reads as text; `042` is not 34 and
`1:30` not 90. A key that is listed twice is a mistake. The length of a text, its depth and the
number of its values, with aliases written out, are limited.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from lp_sweep.storage.errors import SpecError
from lp_sweep.storage.printable import did_you_mean, short, shown

Location = tuple[str | int, ...]

_LARGEST = 128 * 1024  # bytes: a second of parsing; a long sweep file has ten thousand
_DEEPEST = 20  # a sweep file has five levels
_TOO_DEEP = f"nested {_DEEPEST} deep. Flatten it; an alias `*name` may not hold itself."
_MOST_VALUES = 20_000  # ten aliases of ten aliases of ten... make a few lines explode
_LARGEST_INTEGER = 2**63  # what a column of the store can hold
_COLLECTIONS = {"tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"}
_FLOAT = re.compile(
    r"^[-+]?(?:(?:[0-9][0-9_]*)?\.[0-9_]+(?:[eE][-+]?[0-9]+)?|[0-9][0-9_]*\.?[eE][-+]?[0-9]+"
    r"|[0-9][0-9_]*\.|\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
)
# `042` and `1:30`, which YAML 1.1 reads as other numbers, stay texts and are refused as numbers
_INT = re.compile(r"^[-+]?(?:0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """Plain data, and the origins of its values, such as `sweep.yaml:12` or `override 'seed=1'`.

    written: how the file spells each value that is no text, such as `no` or `1_000`.
    """

    name: str
    content: dict[str, Any]
    origins: dict[Location, str] = field(default_factory=dict)
    written: dict[Location, str] = field(default_factory=dict)

    def where(self, location: Location) -> str:
        """The origin of the value at `location`, or of the nearest value that encloses it."""
        for length in range(len(location), -1, -1):
            if location[:length] in self.origins:
                return self.origins[location[:length]]
        return self.name


def parse_value(text: str, origin: str, *, of_names: bool = False) -> Any:
    """Parses one value as in a file: `3e-5` is a number, `true` a truth value. `of_names`: the
    items of a list are names, whatever they look like. Raises SpecError, whose message starts with
    the origin."""
    try:
        if len(text) > _LARGEST:
            raise YamlMistake(1, "it is too long")
        found = read_text(text)
        if of_names and isinstance(found.value, list):
            return [found.written.get((i,), item) for i, item in enumerate(found.value)]
        return found.value
    except YamlMistake as error:
        raise SpecError(f"{origin}: can't read {shown(text)} as a YAML value: {error}") from error


def read_yaml(path: Path) -> Document:
    """Parses a sweep file. Raises SpecError naming file and line."""
    try:
        with path.open("rb") as stream:  # not all of it: a wrong path may be a model's weights
            content = stream.read(_LARGEST + 1)
    except FileNotFoundError:
        if "=" in path.name:
            raise SpecError(
                f"{shown(str(path))} looks like an override. Name the sweep file before it: "
                f"sweep.yaml {shlex.quote(str(path))}"
            ) from None
        hint = did_you_mean(str(path), ["quickstart"])
        hint = hint or f" `lp-sweep init {path}` writes one."
        raise SpecError(f"no sweep file at {path}.{hint}") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise SpecError(f"can't read {path}: {error}. Name a sweep file.") from error
    if len(content) > _LARGEST:
        raise SpecError(
            f"{path}:1: has more than {_LARGEST // 1024} KiB. Name another file, or split it."
        )
    try:
        return parse_yaml(content.decode("utf-8-sig"), str(path))
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise SpecError(f"{path}:{line}: can't read it: {error}. Save it as UTF-8.") from error


def parse_yaml(text: str, name: str) -> Document:
    """Raises SpecError."""
    try:
        content, lines, written = read_text(text)
    except YamlMistake as error:
        raise SpecError(f"{name}:{error.line}: {error}") from error
    if not isinstance(content, dict):
        raise SpecError(f"{name}:1: a sweep file is a mapping of keys such as `models:`, `tasks:`")
    origins = {location: f"{name}:{line}" for location, line in lines.items()}
    return Document(name=name, content=content, origins=origins, written=written)


def yaml_text(content: Any, *, in_line: bool = False) -> str:
    """Data as YAML that `parse_yaml` reads as the same data; `in_line`: on a single line."""
    return str(
        yaml.dump(
            content,
            Dumper=_Dumper,
            sort_keys=False,
            allow_unicode=True,
            default_flow_style=in_line,
            width=math.inf,
        )
    )


def with_override(document: Document, location: Location, value: Any, origin: str) -> Document:
    """Replaces one value; missing mappings on the way are created. A list's entry is named by its
    number, from 0. Raises SpecError for a number that the list does not have."""
    content, location = _replaced(document.content, location, value, origin)
    origins, written = (
        {at: text for at, text in texts.items() if at[: len(location)] != location}
        for texts in (document.origins, document.written)
    )
    origins[location] = origin
    return Document(name=document.name, content=content, origins=origins, written=written)


def _replaced(
    content: Any, path: Location, value: Any, origin: str, at: Location = ()
) -> tuple[Any, Location]:
    """The content with the value, and its location: `("models", 0, "k")` for the path
    `("models", "0", "k")` where the file has a list of models."""
    if not path:
        return value, at
    key, rest = str(path[0]), path[1:]
    if not isinstance(content, list):
        mapping = content if isinstance(content, Mapping) else {}
        inner, location = _replaced(mapping.get(key), rest, value, origin, (*at, key))
        return {**mapping, key: inner}, location
    entries = {str(index): index for index in range(len(content))}
    if key not in entries:
        raise SpecError(
            f"{origin}: {'.'.join(map(str, at))} is a list of {len(content)}, counted from 0, and "
            f"has no {shown(key)}"
        )
    index = entries[key]
    inner, location = _replaced(content[index], rest, value, origin, (*at, index))
    return [*content[:index], inner, *content[index + 1 :]], location


class YamlMistake(Exception):
    """A mistake, and its line (from 1)."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.line = line


class Content(NamedTuple):
    """Plain data, the line (from 1) of each value, and the spelling of each that is no text."""

    value: Any
    lines: dict[Location, int]
    written: dict[Location, str]


class _Loader(yaml.SafeLoader):
    """SafeLoader with YAML 1.2 numbers and without dates, which stay text."""


# PyYAML keeps resolvers by first character, in a table that subclasses share unless copied
_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, regexp)
        for tag, regexp in resolvers
        if not tag.endswith((":float", ":int", ":timestamp"))
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", _INT, list("-+0123456789"))


class _Dumper(yaml.SafeDumper):
    """Quotes each text that `_Loader`, or a reader of YAML 1.1, reads as something else."""


_Dumper.yaml_implicit_resolvers = {
    first: resolvers + _Loader.yaml_implicit_resolvers.get(first, [])
    for first, resolvers in yaml.SafeDumper.yaml_implicit_resolvers.items()
}


def _quoted(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    """Double quotes keep a text with a line break on one line."""
    style = None if text.isprintable() else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _quoted)


def read_text(text: str) -> Content:
    """Parses one document; the value of an empty one is None. Raises YamlMistake."""
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        mark, problem = error.problem_mark, error.problem or ""
        what = short(": ".join(part for part in (error.context, problem) if part))
        step = "Fix this line or the one before"
        if "end of stream" in problem and error.context_mark:
            mark, what, step = error.context_mark, "a quote that is never closed", "Close it"
        elif "'\\t'" in problem:
            what, step = "a tab", "YAML is indented with spaces: replace the tabs"
        line = mark.line + 1 if mark else 1
        raise YamlMistake(line, f"not valid YAML: {what}. {step}.") from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        what = str(error).splitlines()[0]
        raise YamlMistake(line, f"not valid YAML: {what}. Remove the character.") from error
    except RecursionError as error:
        raise YamlMistake(1, _TOO_DEEP) from error
    except ValueError as error:  # an escape that is no character, a version of 5000 digits
        raise YamlMistake(1, f"not valid YAML: {error}. Write plain text.") from error
    found = Content(None, {}, {})
    return found._replace(value=_value(loader, node, (), found)) if node else found


def _line(node: Any) -> int:
    return int(node.start_mark.line) + 1


def _value(loader: _Loader, node: yaml.Node, at: Location, found: Content) -> Any:
    """Adds the lines and the spellings to `found`."""
    line = found.lines.setdefault(at, _line(node))
    if len(at) > _DEEPEST:
        raise YamlMistake(line, _TOO_DEEP)
    if len(found.lines) > _MOST_VALUES:
        raise YamlMistake(line, f"more than {_MOST_VALUES} values, with aliases. Split the sweep.")
    if isinstance(node, yaml.ScalarNode):
        value = _scalar(loader, node)
        if not isinstance(value, str):
            found.written[at] = node.value
        return value
    if node.tag not in _COLLECTIONS:
        raise _unknown_tag(node)
    if isinstance(node, yaml.SequenceNode):
        return [_value(loader, item, (*at, i), found) for i, item in enumerate(node.value)]
    return _mapping(loader, node, at, found)


def _mapping(loader: _Loader, node: yaml.Node, at: Location, found: Content) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for key_node, value_node in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            raise YamlMistake(_line(key_node), "a key must be plain text, not a list or a mapping")
        key, line = str(_scalar(loader, key_node)), _line(key_node)
        if key in content:
            raise YamlMistake(line, f"the key {shown(key)} is listed twice. Keep one of them.")
        found.lines[(*at, key)] = line
        content[key] = _value(loader, value_node, (*at, key), found)
    return content


def _scalar(loader: _Loader, node: yaml.ScalarNode) -> Any:
    try:
        value = loader.construct_object(node)
        if isinstance(value, int) and abs(value) >= _LARGEST_INTEGER:
            raise OverflowError("too large: at most 18 digits")
    except yaml.MarkedYAMLError:  # a tag, `<<`
        raise _unknown_tag(node) from None
    except Exception as error:  # `!!int x`, `!!bool x`: PyYAML raises errors of many types
        kind = node.tag.rpartition(":")[2]
        text = f"{shown(node.value)} is no {kind} ({shown(str(error))})"
        raise YamlMistake(_line(node), text) from error
    if isinstance(value, str) and not value.isascii():
        try:  # JSON writes a smile as two halves, `"\ud83d\ude42"`
            value = value.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
        except UnicodeDecodeError:  # one half, which no file and no record can hold
            text = f"{shown(value)} has half a character: write it whole"
            raise YamlMistake(_line(node), text) from None
    return value


def _unknown_tag(node: yaml.Node) -> YamlMistake:
    text = f"{shown(node.tag)} is not known here: write plain keys, texts and numbers"
    return YamlMistake(_line(node), text)
