"""The type of a query's row, and helpers to group and pick rows."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, TypeVar

Row = Mapping[str, Any]
_Item = TypeVar("_Item")
_Key = TypeVar("_Key", bound=Hashable)


def grouped(items: Iterable[_Item], key: Callable[[_Item], _Key]) -> dict[_Key, list[_Item]]:
    """Items grouped by key, in the order in which each key first occurs."""
    groups: dict[_Key, list[_Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def picked(row: Row, names: Iterable[str]) -> tuple[Any, ...]:
    """The values of these columns."""
    return tuple(row[name] for name in names)
