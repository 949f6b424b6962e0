"""Loads the SQL views: `sql/<name>.sql` is one SELECT, with a comment that says what a row is.

Users may read and copy a view, change it, and run it with `lp-sweep query`. DuckDB's parser finds
what each view reads: which other views, and which columns of the records.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from graphlib import TopologicalSorter
from typing import Any, NamedTuple

import duckdb

from lp_sweep.analysis.rows import VIEWS, view_sql
from lp_sweep.storage.catalog import Catalog, open_catalog
from lp_sweep.storage.errors import SpecError
from lp_sweep.storage.reading import ctrl_c
from lp_sweep.storage.schema import TRIALS
from lp_sweep.storage.store import Store

_SHARED = ("cells", "task_table", "strategy_table")  # read by other views, by some twice


class _Read(NamedTuple):
    """The names in a view's SQL: other views, and columns, as (table, column) or (column,)."""

    views: frozenset[str]
    columns: frozenset[tuple[str, ...]]


@cache
def _parser() -> duckdb.DuckDBPyConnection:
    return duckdb.connect()


@cache
def _read(name: str) -> _Read:
    """The names in a view, as DuckDB parses it."""
    text = view_sql(name)
    tables = _parser().get_table_names(text, qualified=True)
    parsed = _parser().execute("SELECT json_serialize_sql(?::VARCHAR)", [text]).fetchone()
    return _Read(frozenset(tables) & {*VIEWS}, frozenset(_columns(json.loads((parsed or "{}")[0]))))


def _columns(node: Any) -> Iterator[tuple[str, ...]]:
    if isinstance(node, dict):
        if node.get("class") == "COLUMN_REF":
            yield tuple(node["column_names"])
        node = [*node.values()]
    for part in node if isinstance(node, list) else ():
        yield from _columns(part)


def resting(names: Collection[str]) -> dict[str, str]:
    """The SQL of these views and of the views they read, by name; a view comes after those it
    reads."""
    reads: dict[str, frozenset[str]] = {}
    to_do = [*names]
    while to_do:
        name = to_do.pop()
        reads[name] = _read(name).views
        to_do += reads[name] - reads.keys()
    return {name: view_sql(name) for name in TopologicalSorter(reads).static_order()}


def _columns_of_trials(views: Collection[str]) -> set[str]:
    """The columns of trials that these views read: not `epochs`, which no table reads."""
    own = {column[-1] for column in _read("trials").columns}
    named = {column for name in views for column in _read(name).columns}
    of_others = {column[1] for column in named if column[0] == "trials" and column[1:]}
    return (own | of_others) & {*TRIALS.names}


def open_views(
    store: Store,
    *,
    sweep: str | None = None,
    setup: int | None = None,
    deltas: Sequence[float] = (1, 2, 3),
    only: Collection[str] = (),
    once: bool = False,
) -> Catalog:
    """A read-only SQL catalog of the store with every view.

    sweep: leave out everything that belongs only to other sweeps. setup: show the cells of an
    earlier recipe, data or model in place of today's (see `storage.setups`). deltas: the losses
    that `min_layers` answers for, in points and in percent. only: the views that the queries will
    name, if known. Then the catalog has only these and the views they read, and it reads only the
    columns of trials that they name, unless `trials` is one of them. once: there will be a single
    query; else views that several others read are computed here, once for all queries. Raises
    SpecError for an unknown sweep or setup, or a loss below zero.
    """
    if not deltas:
        raise SpecError("no allowed loss: name one, such as 1")
    for delta in deltas:
        if not (isinstance(delta, int | float) and math.isfinite(delta) and delta >= 0):
            raise SpecError(f"an allowed loss of {delta!r}: it is a number of 0 or more, such as 1")
    with ctrl_c():  # DuckDB parses the views
        views = resting(only or VIEWS)
        columns = _columns_of_trials(views) if only and "trials" not in only else None
    return open_catalog(
        store,
        views=views,
        columns=columns,
        held=() if once else _SHARED,
        sweep=sweep,
        setup=setup,
        deltas=deltas,
    )
