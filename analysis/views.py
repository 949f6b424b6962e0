"""The views: `sql/<name>.sql` holds one SELECT with a comment that says what a row is.

A user may read them, copy them and run them changed with `lp-sweep query`. This module only loads
them; what they say is theirs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from importlib.resources import files

from lp_sweep.storage.catalog import Catalog, open_catalog
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
)

_OF_QUERIES = ("epochs", "layers", "predictions")  # no table reads them


def view_sql(name: str) -> str:
    """The text of a view's file."""
    return (files("lp_sweep.analysis") / "sql" / f"{name}.sql").read_text(encoding="utf-8")


def named_columns() -> set[str]:
    """The columns of trials' records that the views of tables name: all that decides what stands
    in those. Some of them are no column, but a word of another meaning."""
    text = " ".join(view_sql(name) for name in VIEWS if name not in _OF_QUERIES)
    return set(re.findall(r"\w+", re.sub(r"--.*", "", text))) & set(TRIALS.names)


def open_views(
    store: Store,
    *,
    sweep: str | None = None,
    deltas: Sequence[float] = (1, 2, 3),
    columns: Collection[str] | None = None,
) -> Catalog:
    """A read-only SQL catalog of the store with every view; `columns` as for `open_catalog`.

    `sweep` leaves out all that belongs to other sweeps only; `deltas` are the losses that
    `min_layers` answers for, in points and in percent. Raises SpecError for an unknown sweep or a
    loss below zero.
    """
    for delta in deltas:
        if not (math.isfinite(delta) and delta >= 0):
            raise SpecError(f"an allowed loss of {delta}: it is a number of 0 or more, such as 1")
    views = {name: view_sql(name) for name in VIEWS}
    return open_catalog(store, views=views, sweep=sweep, deltas=deltas, columns=columns)
