"""The 90% sets of `min_layers` answers, and their tables: reads the scores of a store.

`answerset` defines the set. The variance over seeds is pooled over the other networks of the store
(`seed_spread`). A search (`until: min_layers`) has other seeds for other K, so its set comes from
its scores alone: see `credible_sets`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from lp_sweep.analysis.rows import Row, grouped, picked
from lp_sweep.analysis.statistics import networks
from lp_sweep.analysis.statistics.answerset import (
    OWN,
    WEIGHT,
    Pair,
    ScoredCurve,
    SeedSpread,
    Squares,
    credible,
    curve_of_scores,
    left_over,
    near,
    spread_of,
)
from lp_sweep.analysis.statistics.estimates import scores_of
from lp_sweep.analysis.statistics.networks import Network, Reader, compare, reader
from lp_sweep.storage.catalog import Catalog
from lp_sweep.trials.spec.select import askable_k

_CURVE = ("sweep", "model", "procedure", "strategy", "task")
_KS = pa.list_(pa.int64())
_ADDED = pa.schema(
    [
        ("credible", _KS),  # the 90% set of K that can be the answer, ascending
        ("credible_open", pa.bool_()),  # whether a larger K, which nobody tried, can be it as well
        ("n_examples", pa.int64()),
        ("seed_sd", pa.float64()),  # points: pooled sd of one network's score over seeds
        ("seed_sd_from", pa.string()),  # model and task, task, assumed, untrained
        ("reason", pa.string()),  # why there is no set
    ]
)
UNTRAINED = "untrained"  # the procedure of networks that do not depend on a seed
NO_SEED = SeedSpread(0.0, WEIGHT, UNTRAINED)
ASSUMED = SeedSpread(1.0, 2, "assumed")  # points²; if no network of the task has two seeds


def with_sets(catalog: Catalog, answers: pa.Table) -> pa.Table:
    """Rows of `min_layers`, each with the 90% set of its answer in the columns of _ADDED."""
    asked = answers.to_pylist()
    cells = networks.cells(catalog, (), ())
    pools, read = pools_of(cells), reader(catalog)
    whole = (cell for cell in cells if cell["feed_forward"] == "none")  # as in `min_layers`
    listed = grouped((cell for cell in whole if cell["state"] != "impossible"), _key)
    curve = cache(lambda key: curve_of(listed.get(key, ()), pools, read))
    rows = [
        _row(answer, curve(_key(answer))) if of_search is None else with_set(answer, of_search)
        for answer, of_search in zip(asked, credible_sets(catalog, asked), strict=True)
    ]
    return pa.Table.from_pylist(rows, schema=pa.schema([*answers.schema, *_ADDED]))


def with_set(answer: Row, ks: Sequence[int]) -> dict[str, Any]:
    """The row with the columns of its set, `ks`, which is not empty."""
    # The set is of K that were tried or lie between those. If it holds the largest K that was
    # tried, nothing shows that a larger one would lose too much: then the set is open, if the
    # strategy can drop more layers.
    beyond = askable_k(answer["strategy"], answer["depth"])
    end = 0 < max(ks) >= max(answer["tried"] or (), default=0)
    return {**answer, "credible": ks, "credible_open": end and max(ks) < max(beyond, default=0)}


def _row(answer: Row, curve: ScoredCurve | str) -> dict[str, Any]:
    if isinstance(curve, str):
        return {**answer, "reason": curve}
    known = answer["max_dropped"] is not None or answer["untried"]
    low = answer["max_dropped_low"] if known else None  # a score below zero has another rule
    return {
        **with_set(answer, credible(curve, low, answer["delta"], answer["unit"])),
        "n_examples": curve.scores.rows,
        "seed_sd": curve.spread.sd,
        "seed_sd_from": curve.spread.source,
    }


def curve_of(cells: Sequence[Row], pools: Pools, read: Reader) -> ScoredCurve | str:
    """The curve of these cells, or why there is none."""
    if deferred := sum(cell["k"] is None for cell in cells):
        return f"{deferred} deferred"
    found: dict[tuple[int, int], Network] = {}  # by K and seed; K=0 is that of a cell's seed
    for cell in cells:
        whole = networks.full(cell)
        if whole is not None and whole.score is not None:
            found[0, cell["seed"]] = whole
        if cell["state"] == "done" and cell["score"] is not None and not networks.is_full(cell):
            found[cell["k"], cell["seed"]] = networks.own(cell)
    if not any(k == 0 for k, _ in found):
        return "no K=0"
    order = list(dict.fromkeys(found.values()))
    sheet = compare(order, read)
    if isinstance(sheet, str):
        return sheet
    first, asked = cells[0], {cell["k"] for cell in cells}
    metric = next((cell["metric"] for cell in cells if cell["metric"]), order[0].metric)
    untrained = first["procedure"].split()[0] == UNTRAINED
    there = askable_k(first["strategy"], first["depth"])
    return ScoredCurve(
        scores_of(*sheet, np.array([network.score for network in order], float)),
        {at: order.index(network) for at, network in found.items()},
        tuple(sorted({0, *asked, *(k for k in there if k < max(asked))})),
        NO_SEED if untrained else seed_spread(pools, first["model"], first["task"], metric),
    )


Pools = Mapping[tuple[str | None, str, str], Sequence[Squares]]  # of a model, or of all (None)


def pools_of(cells: Sequence[Row]) -> Pools:
    """The squared residuals of a store's scores, by model, task and metric (as cells name it)."""
    pools: dict[tuple[str | None, str, str], list[Squares]] = {}
    for (model, _, task, metric), scores in _scores(cells).items():
        squares = left_over(near(scores))
        for of in (model, None):
            pools.setdefault((of, task, metric), []).append(squares)
    return pools


def seed_spread(pools: Pools, model: str, task: str, metric: str) -> SeedSpread:
    """The spread of the model on this task, else that of all models on it, else the assumed one."""
    own = spread_of(pools.get((model, task, metric), ()), OWN)
    return own or spread_of(pools.get((None, task, metric), ()), "task") or ASSUMED


def _scores(cells: Sequence[Row]) -> dict[tuple[Any, ...], dict[tuple[int, int], float]]:
    """Scores by model, procedure, task and metric. Settings that share a trial are one network:
    settings that keep the same layers, and sweeps that share trials, count once."""
    tables: dict[tuple[Any, ...], dict[tuple[int, int], float]] = {}
    network_of: dict[str, int] = {}  # by trial
    for group in networks.by_setting(cells):
        done = [cell for cell in group if cell["state"] == "done" and cell["score"] is not None]
        for trial, score in (("trial_id", "score"), ("full_trial_id", "score_full")):
            scored = [cell for cell in done if None not in (cell[trial], cell[score])]
            known = (network_of[cell[trial]] for cell in scored if cell[trial] in network_of)
            network = next(known, len(network_of))
            for cell in scored:
                network_of[cell[trial]] = network
                place = picked(done[0], ("model", "procedure", "task", "metric"))
                tables.setdefault(place, {})[network, cell["seed"]] = cell[score]
    return tables


# -- searches


_CELLS = """
SELECT sweep, model, procedure, strategy, task, k, seed,
    any_value(CASE WHEN k = 0 THEN score_full ELSE score END) AS score
FROM cells
WHERE search IS NOT NULL AND feed_forward = 'none' AND k IS NOT NULL AND state <> 'impossible'
GROUP BY ALL
ORDER BY ALL
"""


def with_sets_of_searches(catalog: Catalog, answers: pa.Table) -> pa.Table:
    """Rows of `min_layers`, with a column `credible`: see `credible_sets`."""
    found = pa.array(credible_sets(catalog, answers.to_pylist()), _KS)
    return answers.append_column("credible", found)


def credible_sets(catalog: Catalog, answers: Iterable[Row]) -> list[list[int] | None]:
    """For each row of `min_layers`, the 90% set of K that can be the answer, ascending; None if the
    row belongs to no search, or if the search has no run to compare."""
    cells = grouped(catalog.query(_CELLS).to_pylist(), _key)
    curves = {key: _curve_of_search(rows) for key, rows in cells.items()}
    found = ((answer, curves.get(_key(answer))) for answer in answers)
    return [
        curve and credible(curve, row["max_dropped_low"], row["delta"], row["unit"])
        for row, curve in found
    ]


def _curve_of_search(rows: Sequence[Row]) -> ScoredCurve | None:
    points = {Pair(row["k"], row["seed"]): row["score"] for row in rows if row["score"] is not None}
    if not any(pair.k == 0 for pair in points):
        return None
    return curve_of_scores(tuple(sorted({row["k"] for row in rows})), points)


def _key(row: Row) -> tuple[Any, ...]:
    return picked(row, _CURVE)
