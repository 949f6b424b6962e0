"""The SQL views by name, the type of their rows, and helpers to group and pick rows.

Nothing here loads DuckDB: help lists the views.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any, Literal, NamedTuple, TypeVar

Row = Mapping[str, Any]
TASK = ("sweep", "model", "task")  # columns that name one
Unit = Literal["points", "percent"]  # of a loss
_FOLDER = files("lp_sweep.analysis") / "sql"
VIEWS = tuple(sorted(file.name[:-4] for file in _FOLDER.iterdir() if file.name.endswith(".sql")))
_Item = TypeVar("_Item")
_Key = TypeVar("_Key", bound=Hashable)


class ServingBudget(NamedTuple):
    """The limits of a network where it is served: milliseconds of one text, megabytes on disk.
    Among those that meet it, the fastest is chosen, or the smallest."""

    max_ms: float | None = None
    max_mb: float | None = None
    smallest: bool = False


NO_BUDGET = ServingBudget()


class TableSelection(NamedTuple):
    """The unit, and the models, strategies and deployments to show. No name: all of them."""

    unit: Unit = "points"
    models: Sequence[str] = ()
    strategies: Sequence[str] = ()
    budget: ServingBudget = NO_BUDGET
    deployments: Sequence[str] = ()  # identifiers
    against: str = ""  # the strategy that changes are measured against; "": all layers


def grouped(items: Iterable[_Item], key: Callable[[_Item], _Key]) -> dict[_Key, list[_Item]]:
    """Items grouped by key, in the order in which each key first occurs."""
    groups: dict[_Key, list[_Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def picked(row: Row, names: Iterable[str]) -> tuple[Any, ...]:
    """The values of these columns."""
    return tuple(row[name] for name in names)


def view_sql(name: str) -> str:
    """The text of a view's file."""
    return (_FOLDER / f"{name}.sql").read_text(encoding="utf-8")
