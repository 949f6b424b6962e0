"""The 90% sets of `min_layers` answers, and their tables: reads the scores of a store.

`answerset` defines the set. The variance over seeds is pooled over the other networks of the store
(`Spreads`). A search (`until: min_layers`) has other seeds for other K, so its set comes from its
scores alone: see `credible_sets`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
    answer_set,
    credible,
    curve_of_scores,
    excess,
    left_over,
    near,
)
from lp_sweep.analysis.statistics.estimates import scores_of
from lp_sweep.analysis.statistics.networks import Network, Reader, compare, reader
from lp_sweep.storage.catalog import Catalog
from lp_sweep.trials.spec.select import askable_k

_CURVE = ("sweep", "model", "procedure", "strategy", "task")
_ADDED = pa.schema(
    [
        ("credible", pa.list_(pa.int64())),  # the 90% set of K that can be the answer, ascending
        ("credible_open", pa.bool_()),  # whether a larger K, which nobody tried, can be it as well
        ("n_examples", pa.int64()),
        ("seed_sd", pa.float64()),  # points: pooled sd of one network's score over seeds
        ("seed_sd_from", pa.string()),  # model and task, task, assumed, untrained
        ("reason", pa.string()),  # why there is no set
    ]
)


def with_sets(catalog: Catalog, answers: pa.Table) -> pa.Table:
    """Rows of `min_layers`, each with the 90% set of its answer in the columns of _ADDED."""
    asked = answers.to_pylist()
    cells = networks.cells(catalog, (), ())
    spreads, read = Spreads(cells), reader(catalog)
    whole = (cell for cell in cells if cell["feed_forward"] == "none")  # as in `min_layers`
    listed = grouped((cell for cell in whole if cell["state"] != "impossible"), _key)
    curve = cache(lambda key: curve_of(listed.get(key, ()), spreads, read))
    rows = [
        _row(answer, curve(_key(answer))) if of_search is None else with_set(answer, of_search)
        for answer, of_search in zip(asked, credible_sets(catalog, asked), strict=True)
    ]
    return pa.Table.from_pylist(rows, schema=pa.schema([*answers.schema, *_ADDED]))


def with_set(answer: Row, ks: Sequence[int]) -> dict[str, Any]:
    beyond = askable_k(answer["strategy"], answer["depth"])
    end = 0 < max(ks) >= max(answer["tried"] or (), default=0)
    return {**answer, "credible": ks, "credible_open": end and max(ks) < max(beyond, default=0)}


def curve_of(cells: Sequence[Row], spreads: Spreads, read: Reader) -> ScoredCurve | str:
    """The curve of these cells, or why there is none."""
    if any(cell["k"] is None for cell in cells):
        return f"{sum(cell['k'] is None for cell in cells)} deferred"
    found = _networks(cells)
    if not any(k == 0 for k, _ in found):
        return "no K=0"
    order = list(dict.fromkeys(found.values()))
    sheet = compare(order, read)
    if isinstance(sheet, str):
        return sheet
    scores = scores_of(*sheet, np.array([network.score for network in order], float))
    named = next((cell["metric"] for cell in cells if cell["metric"]), order[0].metric)
    spread = spreads.of(cells[0]["model"], cells[0]["task"], named)
    if cells[0]["procedure"].split()[0] == UNTRAINED:
        spread = NO_SEED
    asked = {cell["k"] for cell in cells}
    there = askable_k(cells[0]["strategy"], cells[0]["depth"])
    ks = tuple(sorted({0, *asked, *(k for k in there if k < max(asked))}))
    return ScoredCurve(
        scores, {at: order.index(network) for at, network in found.items()}, ks, spread
    )


def _networks(cells: Sequence[Row]) -> dict[tuple[int, int], Network]:
    """By K and seed: each pruned network that is done, and the K=0 of its seed."""
    found: dict[tuple[int, int], Network] = {}
    for cell in cells:
        whole = networks.full(cell)
        if whole is not None and whole.score is not None:
            found[0, cell["seed"]] = whole
        if cell["state"] == "done" and cell["score"] is not None and not networks.is_full(cell):
            found[cell["k"], cell["seed"]] = networks.own(cell)
    return found


def _row(answer: Row, curve: ScoredCurve | str) -> dict[str, Any]:
    if isinstance(curve, str):
        return {**answer, "reason": curve}
    can_be = {*answer_set(excess(curve, answer["delta"], answer["unit"]))}
    if answer["max_dropped"] is not None or answer["untried"]:
        can_be.add(answer["max_dropped_low"])  # the rules differ for a score below zero, in percent
    return {
        **with_set(answer, sorted(can_be)),
        "n_examples": curve.scores.rows,
        "seed_sd": curve.spread.sd,
        "seed_sd_from": curve.spread.source,
    }


ASSUMED_SD, _ASSUMED_FREEDOM = 1.0, 2  # points; if no network of the task has two seeds
_ROUNDING = 1e-9  # points²
UNTRAINED = "untrained"  # the procedure of networks that do not depend on a seed
NO_SEED = SeedSpread(0.0, WEIGHT, UNTRAINED)
ASSUMED = SeedSpread(ASSUMED_SD**2, _ASSUMED_FREEDOM, "assumed")


class Spreads:
    """The pooled spreads of a store's cells, by model and task."""

    def __init__(self, cells: Sequence[Row]) -> None:
        self._by_model: dict[tuple[Any, ...], list[Squares]] = {}
        self._by_task: dict[tuple[Any, ...], list[Squares]] = {}
        for (model, _, task, metric), scores in _scores(cells).items():
            squares = left_over(near(scores))
            self._by_model.setdefault((model, task, metric), []).append(squares)
            self._by_task.setdefault((task, metric), []).append(squares)

    def of(self, model: str, task: str, metric: str) -> SeedSpread:
        """The pool for a model, task and metric (as cells name it), or the assumed spread."""
        places = (
            (OWN, self._by_model.get((model, task, metric), ())),
            ("task", self._by_task.get((task, metric), ())),
        )
        for source, found in places:
            spread = spread_of(found, source)
            if spread is not None:
                return spread
        return ASSUMED


def spread_of(found: Iterable[Squares], source: str) -> SeedSpread | None:
    """The pooled spread. None if it would be zero: equal scores are a coincidence of few rows."""
    total, freedom = (sum(part) for part in zip((0.0, 0), *found, strict=True))
    if not freedom or total <= _ROUNDING:
        return None
    return SeedSpread(float(total / freedom), int(freedom), source)


def _scores(cells: Sequence[Row]) -> dict[tuple[Any, ...], dict[tuple[int, int], float]]:
    """Scores by model, procedure, task and metric. Settings that share a trial are one network:
    settings that keep the same layers, and sweeps that share trials, count once."""
    tables: dict[tuple[Any, ...], dict[tuple[int, int], float]] = {}
    network_of: dict[str, int] = {}  # by trial
    for group in networks.by_setting(cells):
        done = [cell for cell in group if cell["state"] == "done" and cell["score"] is not None]
        if not done:
            continue
        place = tuple(done[0][name] for name in ("model", "procedure", "task", "metric"))
        own = {cell["seed"]: (cell["trial_id"], cell["score"]) for cell in done}
        full = {
            cell["seed"]: (cell["full_trial_id"], cell["score_full"])
            for cell in done
            if cell["full_trial_id"] is not None and cell["score_full"] is not None
        }
        for seeds in (own, full):
            known = (network_of[trial] for trial, _ in seeds.values() if trial in network_of)
            network = next(known, len(network_of))
            network_of |= {trial: network for trial, _ in seeds.values()}
            scores = tables.setdefault(place, {})
            scores.update({(network, seed): score for seed, (_, score) in seeds.items()})
    return tables


_CELLS = """
SELECT sweep, model, procedure, strategy, task, k, seed,
    any_value(CASE WHEN k = 0 THEN score_full ELSE score END) AS score
FROM cells
WHERE search IS NOT NULL AND feed_forward = 'none' AND k IS NOT NULL AND state <> 'impossible'
GROUP BY ALL
ORDER BY ALL
"""


def credible_sets(catalog: Catalog, answers: Iterable[Row]) -> list[list[int] | None]:
    """For each row of `min_layers`, the 90% set of K that can be the answer, ascending; None if the
    row belongs to no search, or if the search has no run to compare."""
    cells = grouped(catalog.query(_CELLS).to_pylist(), _key)
    curves = {key: _curve_of_search(rows) for key, rows in cells.items()}
    found = ((answer, curves.get(_key(answer))) for answer in answers)
    return [
        curve and [*credible(curve, row["max_dropped_low"], row["delta"], row["unit"])]
        for row, curve in found
    ]


def _curve_of_search(rows: Sequence[Row]) -> ScoredCurve | None:
    points = {Pair(row["k"], row["seed"]): row["score"] for row in rows if row["score"] is not None}
    if not any(pair.k == 0 for pair in points):
        return None
    return curve_of_scores(tuple(sorted({row["k"] for row in rows})), points)


def _key(row: Row) -> tuple[Any, ...]:
    return picked(row, _CURVE)
