"""`task=rte,mrpc seed=42,43 recipe.lr=3e-5`: values of a sweep file replaced on the command line.

An axis takes a list (`model`, `task`, `strategy`, `procedure`, `seed`, and `k` or `threshold` for
every strategy that has one); any other key of the file is named with dots. A task or strategy that
the file describes keeps its description.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lp_sweep.orchestrator.spec import SweepSpec
from lp_sweep.orchestrator.wording import did_you_mean
from lp_sweep.orchestrator.yamlfile import Document, parse_value, with_override
from lp_sweep.storage.errors import SpecError
from lp_sweep.trials.select import CONTRIBUTION

# the override's name -> the file's key, and the key that names an entry of it
_AXES = {
    "model": ("models", "id"),
    "task": ("tasks", "name"),
    "strategy": ("strategies", "name"),
    "procedure": ("procedures", None),
    "seed": ("seeds", None),
}
_AXES |= {key: (key, entry) for key, entry in _AXES.values()}


def apply_overrides(document: Document, overrides: Sequence[str]) -> Document:
    """The document with each `key=value` applied in order. Raises SpecError for an unknown key."""
    for override in overrides:
        document = _apply(document, override)
    return document


def _apply(document: Document, override: str) -> Document:
    key, equals, text = override.partition("=")
    key, origin = key.strip(), f"override {override!r}"
    if not equals or not key:
        raise SpecError(f"{origin}: an override is key=value, such as task=rte,mrpc")
    if key in _AXES:
        name, entry_key = _AXES[key]
        value = [_entry(document, name, entry_key, item) for item in _values(text)]
        return with_override(document, (name,), value, origin)
    if key in ("k", "threshold"):
        return _for_each_strategy(document, key, text, origin)
    location = tuple(key.split("."))
    if location[0] not in SweepSpec.model_fields:
        allowed = [*_AXES, "k", "threshold", *SweepSpec.model_fields, "recipe.learning_rate"]
        raise SpecError(
            f"{origin}: unknown key {key!r}. Allowed: "
            f"{', '.join(dict.fromkeys(allowed))}.{did_you_mean(key, allowed)}"
        )
    if location[:1] == ("recipe",) and location[1:] == ("lr",):
        location = ("recipe", "learning_rate")
    return with_override(document, location, parse_value(text), origin)


def _values(text: str) -> list[Any]:
    stripped = text.strip()
    value = parse_value(stripped if stripped.startswith(("[", "{")) else f"[{stripped}]")
    return list(value) if isinstance(value, list) else [value]


def _entry(document: Document, name: str, entry_key: str | None, item: Any) -> Any:
    """The file's own description of the named entry, or the bare name."""
    entries = document.content.get(name)
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, Mapping) and entry_key and entry.get(entry_key) == item:
            return entry
    return item


def _for_each_strategy(document: Document, key: str, text: str, origin: str) -> Document:
    """`k=0,2` for every strategy with K; a model's own list of K gives way too."""
    value = text.strip() if text.strip() == "all" else _values(text)
    for name in ("strategies", "models") if key == "k" else ("strategies",):
        entries = document.content.get(name)
        if not isinstance(entries, list):
            continue
        changed = [_changed(entry, key, name, value) for entry in entries]
        if changed != entries:
            document = with_override(document, (name,), changed, origin)
    return document


def _changed(entry: Any, key: str, name: str, value: Any) -> Any:
    if not isinstance(entry, Mapping):
        return entry
    if name == "models":  # without its own K a model takes the strategies'
        return {other: entry[other] for other in entry if other != "k"}
    takes = (entry.get("name") == CONTRIBUTION) == (key == "threshold")
    return {**entry, key: value} if takes else entry
