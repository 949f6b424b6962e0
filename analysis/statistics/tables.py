"""The three tables that say how sure a number is, laid out for people.

`lp-sweep table significance | intervals | min-layers-interval`. `Table.long` has the raw numbers;
how they are made is said in `significance`, `intervals` and `credible`. Computes nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from lp_sweep.analysis import phrases
from lp_sweep.analysis.statistics.credible import min_layers_rows
from lp_sweep.analysis.statistics.intervals import interval_rows
from lp_sweep.analysis.statistics.significance import significance_rows
from lp_sweep.analysis.tables import Table, Unit, context
from lp_sweep.storage.catalog import Catalog

Row = Mapping[str, Any]
Columns = Mapping[str, Callable[[Row], str]]

SIGNIFICANCE_NOTES = (
    "Read −2.18 [−3.10, −1.26] as: change in points against K=0, 95% interval. A row is one seed, "
    "which says nothing of other seeds; `all 3` is the network over its seeds.",
    "mcnemar 31/11: exact, on the examples that only K=0 / only the pruned network answers "
    "rightly. bootstrap: 10,000 draws of examples, and of seeds where there are several; its p is "
    "never below 0.0002, and too small with two or three seeds.",
    "p Holm: corrected for all the different tests of these rows together. To test less, ask for "
    "less (--sweep), before looking.",
)
INTERVAL_NOTES = (
    "Over seeds: where the mean of other seeds would lie, on this dev set. Over examples (one "
    "seed): where this network's score on other examples would lie, blind to the seed.",
    "Over few seeds it is rough, and too narrow: of 2 seeds it holds the true mean half of the "
    "time, of 3 in 3 of 4 cases, whatever the 95% says.",
)
MIN_LAYERS_NOTES = (
    "Each resample draws other seeds and other dev examples and asks again. agree: how often it "
    "gives the same answer. 90%: the fewest answers that together have 90% of the resamples.",
    "No probability that an answer is true: one seed says nothing of others, two or three say too "
    "little, and of several K near the allowed loss the larger is favoured.",
)


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
    return _flat("Change against K=0, in points", long, columns, SIGNIFICANCE_NOTES)


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
    return _flat("Scores and their 95% intervals, in points", long, columns, INTERVAL_NOTES)


def min_layers_interval(
    catalog: Catalog,
    *,
    unit: Unit = "points",
    models: Sequence[str] = (),
    strategies: Sequence[str] = (),
) -> Table:
    """How many layers each task needs, and how often a resample says the same."""
    columns: Columns = {
        "strategy": lambda row: str(row["strategy"]),
        "loss ≤": phrases.allowed_loss,
        "task": lambda row: str(row["task"]),
        "layers": _layers,
        "agree": lambda row: "" if row["share"] is None else f"{row['share']:.0%}",
        "90%": _credible,
        "seeds": lambda row: str(row["n_seeds"]),
    }
    long = min_layers_rows(catalog, unit=unit, models=models, strategies=strategies)
    title = f"Layers needed to stay within a loss, in {unit}, and how sure that is"
    return _flat(title, long, columns, MIN_LAYERS_NOTES)


# the names that the command line uses, beside those of `tables.TABLES`
STATISTICS: dict[str, Callable[..., Table]] = {
    "significance": significance,
    "intervals": intervals,
    "min-layers-interval": min_layers_interval,
}


def _flat(title: str, long: pa.Table, columns: Columns, notes: tuple[str, ...]) -> Table:
    """A line per row; K=0 is one network, whichever strategies list it, and so one line."""
    rows = long.to_pylist()
    every: Columns = {
        **context(rows),
        **columns,
    }
    shown = dict.fromkeys(tuple(show(row) for show in every.values()) for row in rows)
    return Table(title=title, columns=tuple(every), rows=tuple(shown), notes=notes, long=long)


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
    return f"{fewest if fewest == most else f'{fewest}–{most}'} of {row['depth']}"


def _credible(row: Row) -> str:
    """The answers in layers that stay, fewest first."""
    if row["reason"]:
        return f"not asked: {row['reason']}"
    return " or ".join(str(row["depth"] - k) for k in reversed(row["credible"]))
