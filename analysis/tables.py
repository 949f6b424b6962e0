"""The four tables, laid out for people: `lp-sweep table min-layers | tasks | strategies | speed`.

Each function reads one view and pivots it. `Table.rows` is what a person reads, `Table.long` the
view's own rows with raw numbers, which CSV and JSON print. Nothing is computed here that a view
does not say: a number that is missing there is a word here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from lp_sweep.analysis import phrases
from lp_sweep.analysis.adaptive.stored import credible_sets
from lp_sweep.analysis.leftout import left_out
from lp_sweep.analysis.legend import Note, legend
from lp_sweep.analysis.untaught import where_nothing_was_learned
from lp_sweep.storage.catalog import Catalog
from lp_sweep.storage.printable import metric_name, ranges

Row = Mapping[str, Any]
Unit = Literal["points", "percent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table for people, and the rows it was made from."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]
    long: pa.Table


def min_layers(
    catalog: Catalog,
    *,
    unit: Unit = "points",
    models: Sequence[str] = (),
    strategies: Sequence[str] = (),
) -> Table:
    """How many layers each task needs: a row per model, strategy and allowed loss."""
    long = _read(catalog, "min_layers", models, strategies, order="position, delta", unit=unit)
    found = credible_sets(catalog, long.to_pylist())
    if any(found):  # of searches
        long = long.append_column("credible", pa.array(found, pa.list_(pa.int64())))
    return _pivot(
        long,
        title=f"Layers needed to stay within a loss, in {unit}",
        keys={"strategy": _text("strategy"), "loss ≤": phrases.allowed_loss},
        heading=lambda row: row["task"],
        cell=phrases.layers_needed,
        notes=(
            *where_nothing_was_learned(long.to_pylist()),
            *phrases.MIN_LAYERS_NOTES,
            *left_out(catalog, models, strategies),
        ),
    )


def task_scores(
    catalog: Catalog,
    *,
    unit: Unit = "points",
    models: Sequence[str] = (),
    strategies: Sequence[str] = (),
) -> Table:
    """The score on each task: a row per model, strategy and K, a column per task."""
    long = _read(catalog, "task_table", models, strategies, order="position")
    metrics = {
        row["task"]: metric_name(row["metric"], row["positive"])
        for row in long.to_pylist()
        if row["metric"]
    }
    kept = _kept_by_setting(long.to_pylist())
    return _pivot(
        long,
        title="Scores by task, in points",
        keys={
            "strategy": phrases.strategy,
            "K": phrases.setting,
            "kept": lambda row: phrases.kept(kept[_setting_key(row)]),
        },
        heading=lambda row: phrases.heading(row["task"], metrics.get(row["task"])),
        cell=phrases.task_score,
        notes=(*phrases.TASK_NOTES, *phrases.majorities(long.to_pylist())),
    )


def strategy_means(
    catalog: Catalog,
    *,
    unit: Unit = "points",
    models: Sequence[str] = (),
    strategies: Sequence[str] = (),
) -> Table:
    """The mean over tasks: a row per model, K and strategy, all tasks and stable ones apart."""
    order = "procedure, k_mean NULLS LAST, position"
    long = _read(catalog, "strategy_table", models, strategies, order=order)
    rows = _merge_full_depth(long.to_pylist(), by=lambda row: (row["n_tasks"], row["n_seeds_all"]))
    keys = {
        **context(rows),
        "K": phrases.setting,
        "kept": phrases.kept_of_mean,
        "strategy": phrases.strategy,
        "all tasks": lambda row: phrases.mean_over_tasks(row, "all"),
        "stable tasks": lambda row: phrases.mean_over_tasks(row, "stable"),
        "missing": lambda row: row["missing_tasks"] or "",
    }
    return flat(long, rows, "Strategies: mean over tasks, in points", keys, phrases.STRATEGY_NOTES)


def speed(
    catalog: Catalog,
    *,
    unit: Unit = "points",
    models: Sequence[str] = (),
    strategies: Sequence[str] = (),
) -> Table:
    """Parameters and measured speed: a row per network, and device and batch it was timed on."""
    order = "feed_forward, k, kept_layers, device_type, device_name, precision, length, batch"
    long = _read(catalog, "speed_table", models, (), order=order)
    rows = long.to_pylist()
    keys = {
        **context(rows),
        "K": lambda row: str(row["k"]),
        "kept": lambda row: f"{row['n_kept']} of {row['depth']}",
        "layers": lambda row: ranges(row["kept_layers"]),
        "parameters": lambda row: phrases.parameters(row["params_total"]),
        "of full": lambda row: phrases.percent(row["params_percent"]),
        "device": phrases.device,
        "batch": phrases.batch,
        "fine-tuning": lambda row: phrases.speedup(row, "finetune"),
        "inference": lambda row: phrases.speedup(row, "inference"),
    }
    return flat(long, rows, "Size and speed", keys, phrases.SPEED_NOTES)


def setups_table(catalog: Catalog) -> Table:
    """The earlier setups of each sweep: what `--setup` takes."""
    rows = [
        {
            "sweep": setup.sweep,
            "setup": setup.number,
            "differences": list(setup.differences),
            "cells": setup.cells,
            "trials_finished": setup.finished,
        }
        for setup in catalog.earlier_setups()
    ]
    kinds = (pa.string(), pa.int64(), pa.list_(pa.string()), pa.int64(), pa.int64())
    names = ("sweep", "setup", "differences", "cells", "trials_finished")
    long = pa.Table.from_pylist(rows, pa.schema(list(zip(names, kinds, strict=True))))
    keys: dict[str, Callable[[Row], str]] = {
        "sweep": _text("sweep"),
        "setup": _text("setup"),
        "against today's": lambda row: "; ".join(row["differences"]) or "not known",
        "cells": _text("cells"),
        "trials finished": _text("trials_finished"),
    }
    note = "`--setup N` shows one of them in a table, a query or a report. Today's has no number."
    return flat(long, rows, "Earlier setups: another recipe, data or model", keys, (Note(note),))


# the names that the command line uses. It calls all four alike: only min_layers has use for `unit`,
# and speed none for `strategies`, since it knows networks.
TABLES: dict[str, Callable[..., Table]] = {
    "min-layers": min_layers,
    "tasks": task_scores,
    "strategies": strategy_means,
    "speed": speed,
}


def _read(
    catalog: Catalog,
    view: str,
    models: Sequence[str],
    strategies: Sequence[str],
    *,
    order: str,
    unit: Unit | None = None,
) -> pa.Table:
    """A view's rows, those of the models, strategies and unit asked for (none named: all)."""
    wanted: dict[str, Any] = {}
    conditions = ["true"]
    for column, values in (("model", models), ("strategy", strategies)):
        if values:
            conditions.append(f"list_contains(${column}::VARCHAR[], {column})")
            wanted[column] = list(values)
    if unit:
        conditions.append("unit = $unit")
        wanted["unit"] = unit
    where = " AND ".join(conditions)
    return catalog.query(f"FROM {view} WHERE {where} ORDER BY sweep, model, {order}", wanted)


def _pivot(
    long: pa.Table,
    *,
    title: str,
    keys: Mapping[str, Callable[[Row], str]],
    heading: Callable[[Row], str],
    cell: Callable[[Row], str],
    notes: Sequence[Note],
) -> Table:
    """Rows by `keys`, a column per task in the order of the plan."""
    rows = long.to_pylist()
    tasks = {row["task"]: heading(row) for row in sorted(rows, key=lambda row: row["position"])}
    every_key = {**context(rows), **keys}
    lines: dict[tuple[str, ...], dict[str, Row]] = {}
    for row in rows:
        line = lines.setdefault(tuple(show(row) for show in every_key.values()), {})
        best = line.get(row["task"])
        if best is None or _completeness(row) > _completeness(best):
            line[row["task"]] = row  # K=0 is one network, whichever strategies list it
    shown = tuple(
        (*key, *(cell(line[task]) if task in line else phrases.NOT_ASKED for task in tasks))
        for key, line in lines.items()
    )
    columns = (*every_key, *tasks.values())
    said = legend(notes, shown)
    return Table(title=title, columns=columns, rows=shown, notes=said, long=long)


def _completeness(row: Row) -> tuple[int, int]:
    return row.get("n", 0), row.get("n_expected", 0)


def flat(
    long: pa.Table,
    rows: Sequence[Row],
    title: str,
    keys: Mapping[str, Callable[[Row], str]],
    notes: Sequence[Note],
) -> Table:
    """A line per row and a column per key, and of the notes those that a cell needs."""
    shown = tuple(tuple(show(row) for show in keys.values()) for row in rows)
    said = legend(notes, shown)
    return Table(title=title, columns=tuple(keys), rows=shown, notes=said, long=long)


def context(rows: Sequence[Row]) -> dict[str, Callable[[Row], str]]:
    """The leading columns: the model always, the others only where there are several."""
    return {
        name.replace("_", "-"): _text(name)
        for name in ("sweep", "model", "procedure", "feed_forward")
        if name == "model" or len({row.get(name) for row in rows}) > 1
    }


def _text(column: str) -> Callable[[Row], str]:
    return lambda row: str(row[column])


def _merge_full_depth(rows: Sequence[Row], *, by: Callable[[Row], Any]) -> list[Row]:
    """K=0 is one network, whichever strategies list it: its most complete row stands for all."""
    merged: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        key = _setting_key(row)
        if key not in merged or by(row) > by(merged[key]):
            merged[key] = row
    return list(merged.values())


def _setting_key(row: Row) -> tuple[Any, ...]:
    fixed = row["k"] if row["threshold"] is None else None
    return (*_place(row), phrases.strategy(row), fixed, row["threshold"])


def _place(row: Row) -> tuple[Any, ...]:
    return (row["sweep"], row["model"], row["procedure"], row["feed_forward"])


def _kept_by_setting(rows: Sequence[Row]) -> dict[tuple[Any, ...], list[Row]]:
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(_setting_key(row), []).append(row)
    return groups
