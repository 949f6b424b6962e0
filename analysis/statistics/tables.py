"""The four tables that say how sure a number is, laid out for people.

`lp-sweep table significance | intervals | min-layers-interval | random-control`. `Table.long` has
the raw numbers, which `significance`, `intervals`, `minimum` and `control` make. Computes nothing
itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from lp_sweep.analysis import phrases
from lp_sweep.analysis.leftout import left_out
from lp_sweep.analysis.legend import Note, legend
from lp_sweep.analysis.statistics import notes
from lp_sweep.analysis.statistics.control import control_rows
from lp_sweep.analysis.statistics.intervals import interval_rows
from lp_sweep.analysis.statistics.minimum import min_layers_rows
from lp_sweep.analysis.statistics.significance import significance_rows
from lp_sweep.analysis.tables import Table, Unit, context
from lp_sweep.analysis.untaught import LEARNED_NOTHING, where_nothing_was_learned
from lp_sweep.storage.catalog import Catalog

Row = Mapping[str, Any]
Columns = Mapping[str, Callable[[Row], str]]


def significance(
    catalog: Catalog,
    *,
    unit: Unit = "points",
    models: Sequence[str] = (),
    strategies: Sequence[str] = (),
) -> Table:
    """Each pruned network against K=0 of the same seed: a row per seed, and one over seeds."""
    columns: Columns = {
        "strategy": phrases.strategy,
        "K": phrases.setting,
        "task": lambda row: phrases.heading(row["task"], row["metric"]),
        "seed": lambda row: f"all {row['n_seeds']}" if row["seed"] is None else str(row["seed"]),
        "change": _change,
        "test": _test,
        "p": lambda row: _p(row["p"]),
        "p Holm": lambda row: _p(row["p_holm"]),
    }
    long = significance_rows(catalog, models=models, strategies=strategies)
    return _flat("Change against K=0, in points", long, columns, notes.SIGNIFICANCE)


def intervals(
    catalog: Catalog,
    *,
    unit: Unit = "points",
    models: Sequence[str] = (),
    strategies: Sequence[str] = (),
) -> Table:
    """The mean score of each setting and task, and its 95% interval."""
    columns: Columns = {
        "strategy": phrases.strategy,
        "K": phrases.setting,
        "task": lambda row: phrases.heading(row["task"], row["metric"]),
        "mean": lambda row: _points(row["mean"]),
        "sd": lambda row: _points(row["sd"]),
        "95%": lambda row: row["reason"] or f"{row['low']:.2f}–{row['high']:.2f}",
        "over": lambda row: row["over"],
        "n": lambda row: phrases.share(row["n"], row["n_expected"]),
    }
    long = interval_rows(catalog, models=models, strategies=strategies)
    return _flat("Scores and their 95% intervals, in points", long, columns, notes.INTERVAL)


def min_layers_interval(
    catalog: Catalog,
    *,
    unit: Unit = "points",
    models: Sequence[str] = (),
    strategies: Sequence[str] = (),
) -> Table:
    """How many layers each task needs, and the 90% set of answers."""
    columns: Columns = {
        "strategy": lambda row: str(row["strategy"]),
        "loss ≤": phrases.allowed_loss,
        "task": lambda row: str(row["task"]),
        "layers": _layers,
        "90%": _credible,
        "seeds": lambda row: phrases.share(row["n_seeds"], row["n_seeds_asked"]),
        "seed sd": _seed_spread,
    }
    long = min_layers_rows(catalog, unit=unit, models=models, strategies=strategies)
    title = f"Layers needed to stay within a loss, in {unit}, and how sure that is"
    said = (
        *where_nothing_was_learned(long.to_pylist()),
        *notes.MIN_LAYERS,
        phrases.SEARCHED_FOR,
        phrases.UNTRIED,
        *left_out(catalog, models, strategies),
    )
    return _flat(title, long, columns, said)


def random_control(
    catalog: Catalog,
    *,
    unit: Unit = "points",
    models: Sequence[str] = (),
    strategies: Sequence[str] = (),
) -> Table:
    """Each strategy against as many layers dropped at random: a row per K, strategy and tasks."""
    columns: Columns = {
        "K": lambda row: str(row["k"]),
        "kept": lambda row: f"{row['depth'] - row['k']} of {row['depth']}",
        "tasks": lambda row: str(row["tasks"]),
        "random": _draws,
        "strategy": _beside,
        "mean": lambda row: _points(row["mean"]) or ("missing" if row["strategy"] else ""),
        "difference": lambda row: _signed(row["difference"]),
        "above": _above,
    }
    long = control_rows(catalog, models=models, strategies=strategies)
    title = "Strategies against layers dropped at random, in points"
    return _flat(title, long, columns, notes.CONTROL)


# the names that the command line uses, beside those of `tables.TABLES`
STATISTICS: dict[str, Callable[..., Table]] = {
    "significance": significance,
    "intervals": intervals,
    "min-layers-interval": min_layers_interval,
    "random-control": random_control,
}


def _flat(title: str, long: pa.Table, columns: Columns, said: Sequence[Note]) -> Table:
    """A line per row; K=0 is one network, whichever strategies list it, and so one line."""
    rows = long.to_pylist()
    every: Columns = {
        **context(rows),
        **columns,
    }
    shown = dict.fromkeys(tuple(show(row) for show in every.values()) for row in rows)
    needed = legend(said, shown)
    return Table(title=title, columns=tuple(every), rows=tuple(shown), notes=needed, long=long)


def _text(column: str) -> Callable[[Row], str]:
    return lambda row: str(row[column])


def _points(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _change(row: Row) -> str:
    if row["reason"]:
        return str(row["reason"])
    signed = phrases.signed
    return f"{signed(row['change'])} [{signed(row['low'])}, {signed(row['high'])}]"


def _test(row: Row) -> str:
    if row["test"] is None:
        return ""
    counts = "" if row["b"] is None else f" {row['b']}/{row['c']}"
    return f"{row['test']}{counts}"


def _p(value: float | None) -> str:
    if value is None:
        return ""
    return "<0.0001" if value < 0.0001 else f"{value:.4f}" if value < 0.1 else f"{value:.2f}"


def _layers(row: Row) -> str:
    fewest, most = row["depth"] - row["max_dropped_high"], row["depth"] - row["max_dropped_low"]
    span = f"{fewest if fewest == most else f'{fewest}–{most}'} of {row['depth']}"
    span += LEARNED_NOTHING if row["n_learned_nothing"] else ""
    return f"{span} ({phrases.NOT_SEARCHED})" if row["n_not_searched"] else span


def _credible(row: Row) -> str:
    """The answers in layers that stay, fewest first."""
    if row["reason"]:
        return f"no set: {row['reason']}"
    return phrases.layers_left(row["depth"], row["credible"]) + phrases.unless(row)


def _seed_spread(row: Row) -> str:
    """`0.42`, `1.00 assumed`."""
    if row["seed_sd"] is None:
        return "search" if row["credible"] else ""
    mark = {"model and task": "", "task": " other models"}.get(row["seed_sd_from"], " assumed")
    return f"{row['seed_sd']:.2f}{mark}"


def _draws(row: Row) -> str:
    """`78.20 ±1.10 n=5`, or `missing (0/5)`."""
    if row["random_mean"] is None:
        return f"missing (0/{row['n_draws_expected']})"
    spread = "" if row["random_sd"] is None else f" ±{row['random_sd']:.2f}"
    count = phrases.share(row["n_draws"], row["n_draws_expected"])
    return f"{row['random_mean']:.2f}{spread} n={count}"


def _beside(row: Row) -> str:
    if row["strategy"] is None:
        return phrases.NOT_ASKED
    return (
        row["strategy"] if row["threshold"] is None else f"{row['strategy']} t={row['threshold']:g}"
    )


def _signed(value: float | None) -> str:
    return "" if value is None else phrases.signed(value)


def _above(row: Row) -> str:
    return "" if row["difference"] is None else f"{row['n_below']}/{row['n_draws']}"
