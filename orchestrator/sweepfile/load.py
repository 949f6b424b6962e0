"""Reads a sweep file with its overrides into a checked SweepSpec. One error lists every mistake.

Overrides look like `task=rte,mrpc`, `seed=42,43` or `recipe.lr=3e-5`. An axis takes a list:
`model`, `task`, `strategy`, `procedure`, `distill`, `bridge`, `feed_forward` and `seed`; `k` and
`threshold` are set in every strategy that has them. Any other key is written with dots. A task or
strategy that the file describes keeps its description.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from pydantic import ValidationError

from lp_sweep.orchestrator.sweepfile.entries import (
    RecipeEntry,
    TaskEntry,
    listed,
    named,
    recipe_of_auto,
)
from lp_sweep.orchestrator.sweepfile.spec import SECTIONS, SweepSpec
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
from lp_sweep.trials import plugins
from lp_sweep.trials.data.tasks import TASKS, canonical_name
from lp_sweep.trials.spec.autorecipe import AUTO, FoundRecipe
from lp_sweep.trials.spec.select import STRATEGIES

_MOST_MISTAKES = 20
# pydantic's type of a mistake, or a key -> the sentence; any other mistake is of a value
_SENTENCES = {
    "schema_version missing": "the key 'schema_version' is missing: write `schema_version: 1`",
    "schema_version": "schema_version is {got}; this lp-sweep reads 1",
    "name": "name {written}: a text of letters, digits, '.', '_' and '-', at most 100. Quote a "
    "number.",
    "missing": "the key {last} is missing{within}",
    "extra_forbidden": "unknown key {last}{within}. Allowed: {allowed}.{near_key}",
    "value_error": "{said}",
    "model_type": "{key} must be {word}a mapping of {allowed}, got {got}",
    "too_short": "{key} must not be empty",
    "string_too_short": "{key} must not be empty",
}
_VALUE = "{key} must be {word}{must}{or_list}, got {got}{near_value}"
_IN_LIST = "{outer}: {got} is not {must}"
_OR_AUTO = ("recipe", *(f"recipe.{name}" for name in ("lr", *FoundRecipe._fields)))
_NOUNS = {  # what a value must be; for any other type pydantic says it
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "a text",
}


class SweepFile(NamedTuple):
    """A checked sweep, the folder its relative paths start from, and the lines of its values."""

    spec: SweepSpec
    folder: Path
    document: Document
    notes: Sequence[str] = ()  # what the user may not have meant
    models: Sequence[str] = ()  # the names in the file, without overrides
    plugins: Mapping[str, str] = MappingProxyType({})  # name -> text


def load_sweep(path: Path, overrides: Sequence[str] = (), *, own: bool = True) -> SweepFile:
    """Read, override and check a sweep file. Raises SpecError with `file:line` for each mistake.
    `own`: the user has named it; only then its plugins are run."""
    document, overrides = read_yaml(path), [*chain(*map(_spelt_out, overrides))]
    written = _expanded(document)
    document = written if overrides else document
    last = {_key(override): override for override in overrides}  # replaces those before it
    # k and threshold after the strategies themselves
    for override in sorted(last.values(), key=_is_for_strategies):
        document = _apply(document, override)
    texts = _run_plugins(document, path.absolute().parent) if own else {}
    spec = check(document)
    replaced = [
        f"override {shown(override)} has no effect: {shown(by)} replaces it"
        for override in overrides
        if override != (by := last[_key(override)])
    ]
    notes = [*replaced, *_unlisted(written, overrides), *_unread(spec, document)]
    models = [*_entries(written, "models")]
    return SweepFile(spec, path.absolute().parent, document, notes, models, texts)


def _run_plugins(document: Document, folder: Path) -> dict[str, str]:
    """Before the check, which knows their strategies and metrics. Returns name -> text."""
    names = listed(document.content.get("plugins")) or []
    if not all(isinstance(name, str) for name in names):
        return {}  # the check reports it
    texts = plugins.read(names, folder)
    for name, text in texts.items():
        plugins.load(name, text)
    return texts


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
    """One mistake, in the words of a sweep file."""
    kind, got, written = item["type"], item["input"], document.written.get(location)
    key, outer = (".".join(map(str, path)) for path in (location, location[:-1]))
    if kind == "string_type" and written is not None and key != "name":
        return _as_read(key, got, written)
    names = (f"{key} missing", kind) if kind == "missing" else (key, kind)
    in_list = kind in _NOUNS and isinstance(location[-1], int)
    sentence = next((_SENTENCES[name] for name in names if name in _SENTENCES), None)
    allowed = _keys_at(location[:-1] if kind == "extra_forbidden" else location)
    expected = str(item.get("ctx", {}).get("expected", ""))
    near = did_you_mean(str(got), re.findall("'([^']*)'", expected))
    return (sentence or (_IN_LIST if in_list else _VALUE)).format(
        key=key,
        outer=outer,
        within=f" in {outer}" if outer else "",
        last=shown(location[-1]) if location else "",
        got=shown(got),
        written=written or shown(got),
        said=item["msg"].removeprefix("Value error, "),
        must=_NOUNS.get(kind) or item["msg"].removeprefix("Input should be ").replace("valid ", ""),
        # `k: all`, of AllOrInts
        or_list=" or a list of whole numbers" * (item["loc"][-1] == "word" or key == "seeds"),
        word="`auto` or " * (key in _OR_AUTO and kind in {"model_type", *_NOUNS}),
        allowed=", ".join(allowed),
        near_key=did_you_mean(str(location[-1]), allowed) if location else "",
        near_value=f".{near}" if near else "",
    )


def _as_read(key: str, got: Any, written: str) -> str:
    """The mistake of a name such as `no` or `1e5`, which YAML reads as another value."""
    kind = {bool: "a truth value", type(None): "nothing"}.get(type(got), "a number")
    return f"{key}: YAML reads {written} as {kind}. Write a text in quotes: {shown(written)}"


def _keys_at(location: Location) -> list[str]:
    """The keys of the section at `location`."""
    section = SECTIONS.get(".".join(part for part in location if isinstance(part, str)))
    return [*section.model_fields] if section else []


# the override's name -> the file's key
_AXES = {
    "model": "models",
    "task": "tasks",
    "strategy": "strategies",
    "procedure": "procedures",
    "distill": "distill",
    "bridge": "bridge",
    "feed_forward": "feed_forward",
    "seed": "seeds",
}
_SINGULAR = {axis: name for name, axis in _AXES.items()}
_AXES |= {axis: axis for axis in _SINGULAR}
_NAMED = {"models": "id", "tasks": "name", "strategies": "name"}  # the key that names an entry
_DEEPEST = 5  # dots in a key


def _expanded(document: Document) -> Document:
    """The document with lists of mappings where it has a name, or an entry without its list, and
    with the keys of `recipe: auto`."""
    content = dict(document.content)
    for axis, key in _NAMED.items():
        if content.get(axis) is not None:
            content[axis] = [named(key)(entry) for entry in listed(content[axis])]
    content |= {"recipe": recipe_of_auto(content["recipe"])} if "recipe" in content else {}
    return replace(document, content=content)


def _spelt_out(override: str) -> list[str]:
    """`recipe=auto` as its keys, so that the file's other ones stay."""
    if override.replace(" ", "") == f"recipe={AUTO}":
        return [f"recipe.{name}={AUTO}" for name in FoundRecipe._fields]
    return [override]


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
        axis, origin = _AXES.get(_key(override), ""), f"override {shown(override)}"
        if not (own := _entries(document, axis)):
            continue
        values = _values(override.partition("=")[2], origin, of_names=True)
        names = [name for name in values if isinstance(name, str)]  # else it is described in full
        known = {canonical_name(name) or name for name in own}
        others = [name for name in names if (canonical_name(name) or name) not in known]
        if others:
            planned = "planned instead" if others == names else "added"
            yield (
                f"{_SINGULAR[axis]} {listed_names(map(shown, others))}: not in the file "
                f"({listed_names(own)}), {planned}{' from GLUE' if axis == 'tasks' else ''}"
            )


def _unread(spec: SweepSpec, document: Document) -> Iterator[str]:
    """Notes on texts without labels that no network learns from."""
    for index, task in enumerate(spec.tasks):
        if task.unlabelled and not spec.has_students:
            where = document.where(("tasks", index, "unlabelled"))
            yield (
                f"{where}: `unlabelled:` of task {shown(task.name)} is not read: only networks "
                "that learn from a teacher use it. Write `distill: [none, logits]`."
            )


def _entries(document: Document, axis: str) -> dict[str, Any]:
    """Name -> entry, on an axis of an expanded document. An entry may still be wrong."""
    found: dict[str, Any] = {}
    for entry in (document.content.get(axis) or ()) if axis in _NAMED else ():
        name = entry.get(_NAMED[axis]) if isinstance(entry, Mapping) else None
        if isinstance(name, str):
            found.setdefault(name, entry)
    return found


def _apply(document: Document, override: str) -> Document:
    key, (_, equals, text) = _key(override), override.partition("=")
    origin = f"override {shown(override)}"
    if not equals or not key:
        raise SpecError(f"{origin}: an override is key=value, such as task=rte,mrpc")
    if key in _AXES:
        axis = _AXES[key]
        values = _values(text, origin, of_names=axis in _NAMED)
        if axis in _NAMED:  # an entry of the file, or another name
            own, widened = _entries(document, axis), named(_NAMED[axis])
            for name in values if axis == "tasks" else ():
                _check_task(name, own, origin)
            values = [own.get(str(item)) or widened(item) for item in values]
        return with_override(document, (axis,), values, origin)
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


def _check_task(name: Any, own: Iterable[str], origin: str) -> None:
    """Raises SpecError for a task that is neither in the file nor of GLUE: it has no rows."""
    if isinstance(name, str) and name not in own and not canonical_name(name):
        known = dict.fromkeys([*own, *TASKS])
        raise SpecError(
            f"{origin}: unknown task {shown(name)}. Choose one of: {listed_names(known)}."
            f"{did_you_mean(name, known)}"
        )


def _meant(key: str, allowed: Iterable[str]) -> str:
    """A hint, also for a key of the recipe or of a task that lacks its section."""
    inner = {name: f"recipe.{name}" for name in RecipeEntry.model_fields}
    inner |= {"lr": "recipe.learning_rate"}
    inner |= {name: f"tasks.0.{name}" for name in TaskEntry.model_fields if name != "name"}
    last = key.rpartition(".")[2]
    near = inner.get(last) or nearest(key, allowed) or inner.get(nearest(last, inner) or "")
    return f" Did you mean {near!r}?" if near else ""


def _values(text: str, origin: str, *, of_names: bool = False) -> list[Any]:
    text = text.strip()
    text = text if text.startswith(("[", "{")) else f"[{text}]"
    return list(listed(parse_value(text, origin, of_names=of_names)) or ())


def _for_each_strategy(document: Document, key: str, text: str, origin: str) -> Document:
    """Sets `k=0,2` in every strategy with K, and removes the models' own lists of K."""
    value = "all" if text.strip() == "all" else _values(text, origin)
    entries = enumerate(document.content.get("strategies") or ())
    takers = [index for index, entry in entries if _takes(entry) == key]
    if not takers:
        raise SpecError(f"{origin}: no strategy of {document.name} takes `{key}:`")
    for index in takers:
        document = with_override(document, ("strategies", index, key), value, origin)
    for index, entry in enumerate(document.content.get("models") or ()):
        if key == "k" and isinstance(entry, Mapping) and "k" in entry:
            document = with_override(document, ("models", index, "k"), None, origin)
    return document


def _takes(entry: Any) -> str | None:
    """As `StrategyEntry.takes`, also of an entry that is still to be checked."""
    name = entry.get("name") if isinstance(entry, Mapping) else None
    found = STRATEGIES.get(name.strip().partition(" ")[0]) if isinstance(name, str) else None
    return found.takes if found else "k"
