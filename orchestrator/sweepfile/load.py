"""Reads a sweep file with its overrides into a checked SweepSpec. One error lists every mistake.

Overrides look like `task=rte,mrpc`, `seed=42,43` or `recipe.lr=3e-5`. An axis takes a list:
`model`, `task`, `strategy`, `procedure`, `distill`, `bridge`, `feed_forward` and `seed`; `k` and
`threshold` are set in every strategy that has them. Any other key is written with dots. A task or
strategy that the file describes keeps its description.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, NamedTuple, get_args, get_origin

from pydantic import BaseModel, ValidationError

from lp_sweep.orchestrator.sweepfile.axes import DistillEntry, FeedForwardEntry, ProcedureEntry
from lp_sweep.orchestrator.sweepfile.entries import RecipeEntry, TaskEntry
from lp_sweep.orchestrator.sweepfile.spec import SweepSpec
from lp_sweep.orchestrator.sweepfile.yamlfile import (
    Document,
    Location,
    parse_value,
    read_yaml,
    with_override,
)
from lp_sweep.storage.errors import SpecError
from lp_sweep.storage.printable import did_you_mean, nearest, shown
from lp_sweep.storage.printable import listed as listed_names
from lp_sweep.storage.select import STRATEGIES
from lp_sweep.trials.data.tasks import TASKS, canonical_name

_MOST_MISTAKES = 20
# sections that become a label, so that no annotation names them
_WIDENED: dict[str, type[BaseModel]] = {
    "procedures": ProcedureEntry,
    "distill": DistillEntry,
    "feed_forward": FeedForwardEntry,
}


class SweepFile(NamedTuple):
    """A checked sweep, the folder its relative paths start from, and the lines of its values."""

    spec: SweepSpec
    folder: Path
    document: Document
    notes: Sequence[str] = ()  # what the user may not have meant
    models: Sequence[str] = ()  # the names in the file, without overrides


def load_sweep(path: Path, overrides: Sequence[str] = ()) -> SweepFile:
    """Read, override and check a sweep file. Raises SpecError with `file:line` for each mistake."""
    written = document = read_yaml(path)
    last = {_key(override): override for override in overrides}  # replaces those before it
    # k and threshold after the strategies themselves
    for override in sorted(last.values(), key=_is_for_strategies):
        document = _apply(document, override)
    spec = check(document)
    replaced = [
        f"override {shown(override)} has no effect: {shown(by)} replaces it"
        for override in overrides
        if override != (by := last[_key(override)])
    ]
    notes = [*replaced, *_unlisted(written, overrides), *_unread(spec, document)]
    return SweepFile(spec, path.absolute().parent, document, notes, _own_names(written, "models"))


def check(document: Document) -> SweepSpec:
    """Raises SpecError with a line for each mistake."""
    try:
        return SweepSpec.model_validate(document.content)
    except ValidationError as error:
        lines = []
        for item in error.errors(include_url=False)[:_MOST_MISTAKES]:
            location = _in_file(item["loc"], document)
            lines.append(f"{document.where(location)}: {_message(item, location, document)}")
        lines = [*dict.fromkeys(lines)]  # unions repeat themselves
        if (more := error.error_count() - _MOST_MISTAKES) > 0:
            lines.append(f"{document.where(())}: and {more} more. Fix these first.")
        raise SpecError("\n".join(lines)) from None


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


def _message(item: Any, location: Location, document: Document) -> str:
    key = ".".join(map(str, location))
    within = f" in {'.'.join(map(str, location[:-1]))}" if location[:-1] else ""
    kind = item["type"]
    if kind == "extra_forbidden":
        allowed = _allowed_keys(location[:-1])
        return (
            f"unknown key {shown(location[-1])}{within}. "
            f"Allowed: {', '.join(allowed)}.{did_you_mean(str(location[-1]), allowed)}"
        )
    if kind == "missing" and location == ("schema_version",):
        return "the key 'schema_version' is missing: write `schema_version: 1`"
    if kind == "missing":
        return f"the key {location[-1]!r} is missing{within}"
    if kind == "value_error":
        return str(item["msg"]).removeprefix("Value error, ")
    if location == ("schema_version",):
        return f"schema_version is {shown(item['input'])}; this lp-sweep reads 1"
    if location == ("name",):
        return (
            f"name {document.written.get(location) or shown(item['input'])}: a text of letters, "
            "digits, '.', '_' and '-', at most 100. Quote a number."
        )
    return _as_read(item, document.written.get(location), key) or _wrong_value(item, location, key)


def _wrong_value(item: Any, location: Location, key: str) -> str:
    must, got = _must(item, location), shown(item["input"])
    in_list = location and isinstance(location[-1], int)
    if in_list and must in ("must be a whole number", "must be a number", "must be a text"):
        return f"{key.rpartition('.')[0]}: {got} is not {must.removeprefix('must be ')}"
    return f"{key} {must}, got {got}{_near(item)}"


def _as_read(item: Any, written: str | None, key: str) -> str | None:
    """A name such as `no` or `1e5`, which YAML reads as another value."""
    if item["type"] != "string_type" or written is None:
        return None
    kinds = {bool: "a truth value", type(None): "nothing"}
    return (
        f"{key}: YAML reads {written} as {kinds.get(type(item['input']), 'a number')}. If it is "
        f"meant as a text, write it in quotes: {shown(written)}"
    )


def _must(item: Any, location: Location) -> str:
    """The allowed values, in the words of a sweep file."""
    if item["type"] == "model_type":
        return f"must be a mapping of {', '.join(_allowed_keys(location))}"
    if item["type"] in ("too_short", "string_too_short"):
        return "must not be empty"
    must = str(item["msg"]).replace("Input should be", "must be").replace("a valid ", "a ")
    must = must.replace("an integer", "a whole number").replace("a integer", "a whole number")
    if item["loc"][-1] == "word" or location == ("seeds",):  # `k: all`, of AllOrInts
        must += " or a list of whole numbers"
    return must.replace("a string", "a text")


def _near(item: Any) -> str:
    """A hint at the nearest allowed word."""
    words = re.findall("'([^']*)'", item.get("ctx", {}).get("expected", ""))
    return f".{near}" if (near := did_you_mean(str(item["input"]), words)) else ""


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


# the override's name -> the file's key, and the key that names an entry of it
_AXES = {
    "model": ("models", "id"),
    "task": ("tasks", "name"),
    "strategy": ("strategies", "name"),
    "procedure": ("procedures", None),
    "distill": ("distill", None),
    "bridge": ("bridge", None),
    "feed_forward": ("feed_forward", None),
    "seed": ("seeds", None),
}
_SINGULAR = {axis: name for name, (axis, _) in _AXES.items()}
_DEEPEST = 5  # dots in a key
_AXES |= {key: (key, entry) for key, entry in _AXES.values()}


def _key(override: str) -> str:
    return override.partition("=")[0].strip()


def _is_for_strategies(override: str) -> bool:
    return _key(override) in ("k", "threshold")


def is_part(overrides: Sequence[str]) -> bool:
    """Whether the overrides only select a part of the sweep, so that the rest stays listed."""
    keys = set(map(_key, overrides))
    return bool(keys) and keys <= {*_AXES, "k", "threshold"}


def _unlisted(document: Document, overrides: Sequence[str]) -> Iterator[str]:
    """Notes on overrides that name a model, task or strategy that is not in the file: it may be
    misspelt."""
    for override in overrides:
        axis, entry_key = _AXES.get(_key(override), ("", None))
        if entry_key is None:
            continue
        own = _own_names(document, axis)
        known = {_one_name(axis, name) for name in own}
        named = _values(override.partition("=")[2], f"override {shown(override)}", of_names=True)
        named = [name for name in named if isinstance(name, str)]  # else it is described in full
        others = [name for name in named if _one_name(axis, name) not in known]
        if own and others:
            yield _replaced_by(_SINGULAR[axis], others, own, only_others=others == named)


def _unread(spec: SweepSpec, document: Document) -> Iterator[str]:
    """Notes on texts without labels that no network learns from."""
    for index, task in enumerate(spec.tasks):
        if task.unlabelled and not spec.has_students:
            where = document.where(("tasks", index, "unlabelled"))
            yield (
                f"{where}: `unlabelled:` of task {shown(task.name)} is not read: only networks "
                "that learn from a teacher use it. Write `distill: [none, logits]`."
            )


def _own_names(document: Document, axis: str) -> list[str]:
    """The document's names on an axis whose entries have names. An entry may still be wrong."""
    key, listed = _AXES[axis][1], _listed(document.content.get(axis))
    names = (one.get(key) if isinstance(one, Mapping) else one for one in listed)
    return [name for name in names if isinstance(name, str)]


def _one_name(axis: str, name: str) -> str:
    return (canonical_name(name) or name) if axis == "tasks" else name


def _replaced_by(what: str, others: list[str], own: list[str], *, only_others: bool) -> str:
    """`task 'rte' is not in the file (a, b): GLUE's rte is planned instead`"""
    names, verb = listed_names(map(shown, others)), "are" if len(others) > 1 else "is"
    planned = f"GLUE's {listed_names(others)} {verb} " if what == "task" else ""
    return (
        f"{what} {names} {verb} not in the file ({listed_names(own)}): "
        f"{planned}{'planned instead' if only_others else 'added'}"
    )


def _apply(document: Document, override: str) -> Document:
    key, (_, equals, text) = _key(override), override.partition("=")
    origin = f"override {shown(override)}"
    if not equals or not key:
        raise SpecError(f"{origin}: an override is key=value, such as task=rte,mrpc")
    if key in _AXES:
        name, entry_key = _AXES[key]
        values = _values(text, origin, of_names=entry_key is not None)
        if name == "tasks":
            for item in values:
                _check_task(document, item, origin)
        entries = [_entry(document, name, entry_key, item) for item in values]
        return with_override(document, (name,), entries, origin)
    if _is_for_strategies(override):
        return _for_each_strategy(document, key, text, origin)
    location = tuple(key.split(".", _DEEPEST))
    if location[0] not in SweepSpec.model_fields:
        allowed = [*_AXES, "k", "threshold", *SweepSpec.model_fields, "recipe.learning_rate"]
        raise SpecError(
            f"{origin}: unknown key {shown(key)}. Allowed: "
            f"{', '.join(dict.fromkeys(allowed))}.{_meant(key, allowed)}"
        )
    if location in (("recipe", "lr"), ("recipe", "learning_rate")):  # whichever the file has
        recipe = document.content.get("recipe")
        by_lr = isinstance(recipe, Mapping) and "lr" in recipe
        location = ("recipe", "lr" if by_lr else "learning_rate")
    return with_override(document, location, parse_value(text, origin), origin)


def _meant(key: str, allowed: Iterable[str]) -> str:
    """A hint, also for a key of the recipe or of a task that lacks its section."""
    inner = {name: f"recipe.{name}" for name in RecipeEntry.model_fields}
    inner |= {"lr": "recipe.learning_rate"}
    inner |= {name: f"tasks.0.{name}" for name in TaskEntry.model_fields if name != "name"}
    last = key.rpartition(".")[2]
    near = inner.get(last) or nearest(key, allowed) or inner.get(nearest(last, inner) or "")
    return f" Did you mean {near!r}?" if near else ""


def _check_task(document: Document, name: Any, origin: str) -> None:
    """Raises SpecError for a task that is neither in the file nor of GLUE: it has no rows."""
    names = _own_names(document, "tasks")
    if not isinstance(name, str) or name in names or canonical_name(name):
        return
    known = dict.fromkeys([*names, *TASKS])
    raise SpecError(
        f"{origin}: unknown task {shown(name)}. Choose one of: {listed_names(known)}."
        f"{did_you_mean(name, known)}"
    )


def _values(text: str, origin: str, *, of_names: bool = False) -> list[Any]:
    text = text.strip()
    text = text if text.startswith(("[", "{")) else f"[{text}]"
    return _listed(parse_value(text, origin, of_names=of_names))


def _entry(document: Document, name: str, entry_key: str | None, item: Any) -> Any:
    """The file's own description of the named entry, or the bare name."""
    for entry in _listed(document.content.get(name)):
        if isinstance(entry, Mapping) and entry_key and entry.get(entry_key) == item:
            return entry
    return item


def _for_each_strategy(document: Document, key: str, text: str, origin: str) -> Document:
    """Sets `k=0,2` in every strategy with K, and removes the models' own lists of K."""
    value = "all" if text.strip() == "all" else _values(text, origin)
    taken = False
    for index, entry in enumerate(_listed(document.content.get("strategies"))):
        name = entry.get("name") if isinstance(entry, Mapping) else entry
        takes = _takes(name)
        if takes == "layers":  # `drop 3+5` has one K, its own
            continue
        if (takes == "threshold") == (key == "threshold"):
            document = _with_key(document, ("strategies", index), entry, key, value, origin)
            taken = True
    if not taken:
        raise SpecError(f"{origin}: no strategy of {document.name} takes `{key}:`")
    if key == "k":
        for index, entry in enumerate(_listed(document.content.get("models"))):
            if isinstance(entry, Mapping) and "k" in entry:
                document = _with_key(document, ("models", index), entry, "k", None, origin)
    return document


def _takes(name: Any) -> str | None:
    """As `StrategyEntry.takes`; None for an unknown strategy."""
    found = STRATEGIES.get(name.strip().partition(" ")[0]) if isinstance(name, str) else None
    return found.takes if found else None


def _with_key(
    document: Document, location: Location, entry: Any, key: str, value: Any, origin: str
) -> Document:
    """Replaces one key of a list's entry. The entry may be only a name, and a single one may lack
    its list."""
    if not isinstance(document.content[str(location[0])], list):
        location = location[:1]
    if not isinstance(entry, Mapping):
        return with_override(document, location, {"name": entry, key: value}, origin)
    return with_override(document, (*location, key), value, origin)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]
