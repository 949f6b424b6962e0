"""From a path and overrides to a checked SweepSpec, or to one error that lists every mistake."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from types import UnionType
from typing import Any, NamedTuple, get_args, get_origin

from pydantic import BaseModel, ValidationError

from lp_sweep.orchestrator.sweepfile.axes import FeedForwardEntry, ProcedureEntry
from lp_sweep.orchestrator.sweepfile.overrides import apply_overrides, own_names, unlisted
from lp_sweep.orchestrator.sweepfile.spec import SweepSpec
from lp_sweep.orchestrator.sweepfile.wording import did_you_mean
from lp_sweep.orchestrator.sweepfile.yamldata import Location
from lp_sweep.orchestrator.sweepfile.yamlfile import Document, read_yaml
from lp_sweep.storage.errors import SpecError
from lp_sweep.storage.printable import shown

_MOST_MISTAKES = 20
# sections that become a text, so that no annotation names them
_WIDENED: dict[str, type[BaseModel]] = {
    "procedures": ProcedureEntry,
    "feed_forward": FeedForwardEntry,
}


class SweepFile(NamedTuple):
    """A checked sweep, the folder its relative paths start from, and where its values stand."""

    spec: SweepSpec
    folder: Path
    document: Document
    notes: Sequence[str] = ()  # of what may not be meant
    models: Sequence[str] = ()  # as the file names them, without its overrides


def load_sweep(path: Path, overrides: Sequence[str] = ()) -> SweepFile:
    """Read, override and check a sweep file. Raises SpecError with `file:line` for each mistake."""
    written = read_yaml(path)
    document = apply_overrides(written, overrides)
    spec = check(document)
    notes, models = [*unlisted(written, overrides)], own_names(written, "models")
    return SweepFile(spec, path.absolute().parent, document, notes, models)


def check(document: Document) -> SweepSpec:
    try:
        return SweepSpec.model_validate(document.content)
    except ValidationError as error:
        messages = islice(_messages(error, document), _MOST_MISTAKES)
        lines = [*dict.fromkeys(messages)]  # unions repeat themselves
        if (more := error.error_count() - _MOST_MISTAKES) > 0:
            lines.append(f"{document.where(())}: and {more} more. Mend these first.")
        raise SpecError("\n".join(lines)) from None


def _messages(error: ValidationError, document: Document) -> Iterator[str]:
    for item in error.errors(include_url=False):
        location = _in_file(item["loc"], document)
        yield f"{document.where(location)}: {_message(item, location)}"


def _in_file(loc: tuple[str | int, ...], document: Document) -> Location:
    """pydantic's location without the parts that only name a union's branch."""
    location: list[str | int] = []
    content: Any = document.content
    for part in loc:
        if isinstance(content, dict) and part in content:
            content = content[str(part)]
        elif isinstance(content, list) and isinstance(part, int) and part < len(content):
            content = content[part]
        elif not isinstance(content, dict):
            continue
        location.append(part)
    return tuple(location)


def _message(item: Any, location: Location) -> str:
    key = ".".join(str(part) for part in location)
    kind, message = item["type"], item["msg"]
    if kind == "extra_forbidden":
        allowed = _allowed_keys(location[:-1])
        return (
            f"unknown key {shown(location[-1])}{_inside(location[:-1])}. "
            f"Allowed: {', '.join(allowed)}.{did_you_mean(str(location[-1]), allowed)}"
        )
    if kind == "missing" and location == ("schema_version",):
        return "the key 'schema_version' is missing: write `schema_version: 1`"
    if kind == "missing":
        return f"the key {location[-1]!r} is missing{_inside(location[:-1])}"
    if kind == "value_error":
        return str(message).removeprefix("Value error, ")
    if location == ("schema_version",):
        return f"schema_version is {shown(item['input'])}; this lp-sweep reads 1"
    if location == ("name",):
        return (
            f"name {shown(item['input'])}: a text of letters, digits, '.', '_' and '-', at most "
            "100. Quote a number."
        )
    return f"{key} {_must(item, location)}, got {shown(item['input'])}{_near(item)}"


def _must(item: Any, location: Location) -> str:
    """What should stand there, in the words of a sweep file."""
    if item["type"] == "model_type":
        return f"must be a mapping of {', '.join(_allowed_keys(location))}"
    if item["type"] in ("too_short", "string_too_short"):
        return "must not be empty"
    must = str(item["msg"]).replace("Input should be", "must be").replace("a valid ", "a ")
    must = must.replace("an integer", "a whole number").replace("a integer", "a whole number")
    if item["loc"][-1] == "word":  # `k: all`, of AllOrInts
        must += " or a list of whole numbers"
    return must.replace("a string", "a text")


def _near(item: Any) -> str:
    """The nearest of the words that are allowed."""
    words = re.findall("'([^']*)'", item.get("ctx", {}).get("expected", ""))
    return f".{near}" if (near := did_you_mean(str(item["input"]), words)) else ""


def _inside(location: Location) -> str:
    return f" in {'.'.join(map(str, location))}" if location else ""


def _allowed_keys(location: Location) -> list[str]:
    """The keys of the section at `location`."""
    section: type[BaseModel] = SweepSpec
    if len(location) > 1 and location[0] in _WIDENED:
        return list(_WIDENED[str(location[0])].model_fields)
    for part in location:
        if isinstance(part, str) and part in section.model_fields:
            section = next(_sections(section.model_fields[part].annotation), section)
    return list(section.model_fields)


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) is not None or isinstance(annotation, UnionType):
        for argument in get_args(annotation):
            yield from _sections(argument)
