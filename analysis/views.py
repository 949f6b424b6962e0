"""The views: `sql/<name>.sql` holds one SELECT with a comment that says what a row is.

A user may read them, copy them and run them changed with `lp-sweep query`. This module only loads
them; what they say is theirs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from importlib.resources import files

from lp_sweep.storage.catalog import Catalog, Foreseen, open_catalog
from lp_sweep.storage.errors import SpecError
from lp_sweep.storage.schema import TRIALS
from lp_sweep.storage.store import Store

# in the order of dependence: a view may use those before it
VIEWS = (
    "trials",
    "attempts",
    "epochs",
    "layers",
    "predictions",
    "unstable_tasks",
    "cells",
    "task_table",
    "strategy_table",
    "random_control",
    "min_layers",
    "speed_table",
    "recipe_differences",
)

_SHARED = ("cells", "task_table", "strategy_table")  # what others read, some of them twice


def view_sql(name: str) -> str:
    """The text of a view's file."""
    return (files("lp_sweep.analysis") / "sql" / f"{name}.sql").read_text(encoding="utf-8")


def resting(names: Collection[str]) -> dict[str, str]:
    """The text of these views and of those that they read, by name, in the order of VIEWS."""
    texts: dict[str, str] = {}
    wanted = set(names)
    for name in reversed(VIEWS):
        if name in wanted:
            texts[name] = view_sql(name)
            wanted |= set(re.findall(r"(?<![\w.])\w+", _bare(texts[name])))  # not `trials.epochs`
    return dict(reversed(texts.items()))


def named_columns(views: Mapping[str, str]) -> set[str]:
    """The columns of trials' records that views name, `trials` itself with any word, the others as
    `trials.score`: all that decides what stands in those. (Not so `epochs`: no table reads it.)"""
    of_trials = re.findall(r"\w+", _bare(views.get("trials", "")))
    others = [
        name for text in views.values() for name in re.findall(r"\btrials\.(\w+)", _bare(text))
    ]
    return {*of_trials, *others} & set(TRIALS.names)


def _foreseen(views: Mapping[str, str], asked: Collection[str]) -> Foreseen:
    columns = None if "trials" in asked else named_columns(views)
    return Foreseen(columns, _held(views, asked))


def _held(views: Mapping[str, str], asked: Collection[str]) -> dict[str, set[str] | None]:
    """Of the shared ones what the others name of them; all of what is asked for itself."""
    return {
        name: None
        if name in asked
        else {
            word
            for other, text in views.items()
            if other != name
            for word in re.findall(r"\w+", _bare(text))
        }
        for name in _SHARED
    }


def _bare(text: str) -> str:
    return re.sub(r"--.*", "", text)


def open_views(
    store: Store,
    *,
    sweep: str | None = None,
    setup: int | None = None,
    deltas: Sequence[float] = (1, 2, 3),
    only: Collection[str] = (),
) -> Catalog:
    """A read-only SQL catalog of the store with every view.

    `sweep` leaves out all that belongs to other sweeps only; `setup` shows the cells of an earlier
    recipe, data or model in place of today's (see `storage.setups`); `deltas` are the losses that
    `min_layers` answers for, in points and in percent. `only`: the views that the questions to come
    name, where that is known. They and what they rest on are there and no other; what several
    read is computed once, here; and of the trials no column is read that they don't name, unless
    `trials` is one of them. Raises SpecError for an unknown sweep or setup, or a loss below zero.
    """
    for delta in deltas:
        if not (math.isfinite(delta) and delta >= 0):
            raise SpecError(f"an allowed loss of {delta}: it is a number of 0 or more, such as 1")
    views = resting(only or VIEWS)
    foreseen = _foreseen(views, only) if only else None
    return open_catalog(
        store, views=views, foreseen=foreseen, sweep=sweep, setup=setup, deltas=deltas
    )
