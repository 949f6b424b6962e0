"""Which numbers of dropped layers can be the answer of `min_layers`: a 90% confidence set.

The answer is the largest K whose loss is within the limit. K is in the set if

- its own loss may be within the limit: the one-sided bound at 4.5% says so; and
- no larger K is surely within it. With a chance of 95.5% none is called so wrongly, however many
  there are: each of the m that may be is tested at 4% / m, after those that are surely beyond the
  limit are put aside at 0.5% in all (Romano, Shaikh and Wolf 2014, *A practical two-step method for
  testing moment inequalities*).

Each is wrong about the true answer in 4.5% of studies at most. The last 1% is for approximations,
so that the set holds the answer in 90%. A K without a score can be the answer, and is in the set
unless a larger one is surely within.

The loss is paired by seed and row. Its variance over seeds is in part pooled over other networks
(`spread`), so that one or two seeds give a set as well. A search (`until: min_layers`) has a set of
its own: `analysis.adaptive`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from lp_sweep.analysis.adaptive.stored import credible_sets
from lp_sweep.analysis.statistics import networks
from lp_sweep.analysis.statistics.answers import Network, Reader, compare, reader
from lp_sweep.analysis.statistics.estimates import (
    Estimate,
    Scores,
    combined,
    half_width,
    scores_of,
)
from lp_sweep.analysis.statistics.networks import Row
from lp_sweep.analysis.statistics.spread import Spread, Spreads, moderated
from lp_sweep.storage.catalog import Catalog

Unit = Literal["points", "percent"]
_ITSELF = 0.045  # the chance that the answer's own loss is called beyond the limit
_LARGER = 0.045  # the chance that a larger K is called within it, of which ...
_ASIDE = 0.005  # ... this is spent on putting aside what is surely beyond

_ANSWERS = """
FROM min_layers
WHERE unit = $unit
    AND (len($models::VARCHAR[]) = 0 OR list_contains($models::VARCHAR[], model))
    AND (len($strategies::VARCHAR[]) = 0 OR list_contains($strategies::VARCHAR[], strategy))
ORDER BY sweep, model, position, delta
"""
_CURVE = ("sweep", "model", "procedure", "strategy", "task")
_AS_THERE = (  # as in min_layers
    *("max_dropped", "max_dropped_low", "max_dropped_high"),
    *("n_not_searched", "n_full", "n_learned_nothing", "n_seeds_asked"),
)
SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in _CURVE),
        ("delta", pa.float64()),
        ("unit", pa.string()),
        ("depth", pa.int64()),
        *((name, pa.int64()) for name in _AS_THERE),
        ("credible", pa.list_(pa.int64())),  # K that can be the answer, in 90%; ascending
        ("untried", pa.list_(pa.int64())),  # as in min_layers
        ("n_seeds", pa.int64()),
        ("n_examples", pa.int64()),
        ("seed_sd", pa.float64()),  # points: of one network's score over seeds, as it is pooled
        ("seed_sd_from", pa.string()),  # model and task, task, assumed
        ("reason", pa.string()),  # why there is no set
    ]
)


class Curve(NamedTuple):
    """The scores of one curve, and which network is of which K and seed."""

    scores: Scores
    places: Mapping[tuple[int, int], int]  # (K, seed) -> its place in `scores`
    ks: tuple[int, ...]  # ascending, 0 first; also those without a score
    spread: Spread


def min_layers_rows(
    catalog: Catalog,
    *,
    unit: Unit = "points",
    models: Sequence[str] = (),
    strategies: Sequence[str] = (),
) -> pa.Table:
    """Rows of SCHEMA: those of `min_layers`, with the set of answers that holds in 90%."""
    wanted = {"unit": unit, "models": list(models), "strategies": list(strategies)}
    asked = catalog.query(_ANSWERS, wanted).to_pylist()
    cells = networks.cells(catalog, (), ())
    listed, spreads, read = _by_curve(cells), Spreads(cells), reader(catalog)
    curves: dict[tuple[Any, ...], Curve | str] = {}
    rows = []
    for answer, of_search in zip(asked, credible_sets(catalog, asked), strict=True):
        key = tuple(answer[name] for name in _CURVE)
        if of_search is not None:
            rows.append({**_answer(answer), "credible": of_search})
            continue
        if key not in curves:
            curves[key] = curve_of(listed.get(key, ()), spreads, read)
        rows.append(_row(answer, curves[key]))
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def _by_curve(cells: Sequence[Row]) -> dict[tuple[Any, ...], list[Row]]:
    curves: dict[tuple[Any, ...], list[Row]] = {}
    for cell in cells:
        if cell["feed_forward"] == "none" and cell["state"] != "impossible":  # as in min_layers
            curves.setdefault(tuple(cell[name] for name in _CURVE), []).append(cell)
    return curves


def curve_of(cells: Sequence[Row], spreads: Spreads, read: Reader) -> Curve | str:
    """The curve made of these cells, or why there is none."""
    if any(cell["k"] is None for cell in cells):
        return f"{sum(cell['k'] is None for cell in cells)} deferred"
    found = _networks(cells)
    if not any(k == 0 for k, _ in found):
        return "no K=0"
    order = list(dict.fromkeys(found.values()))
    compared = compare(order, read)
    if compared.reason:
        return compared.reason
    metric = order[0].metric
    points = np.array([network.score for network in order], float)
    scores = scores_of(metric, compared.labels, compared.predicted, points)
    named = next(cell["metric"] for cell in cells if cell["metric"])
    spread = spreads.of(cells[0]["model"], cells[0]["task"], named)
    ks = tuple(sorted({0, *(cell["k"] for cell in cells)}))
    return Curve(scores, {at: order.index(network) for at, network in found.items()}, ks, spread)


def _networks(cells: Sequence[Row]) -> dict[tuple[int, int], Network]:
    """By K and seed: each pruned network that is done, and K=0 of its seed."""
    found: dict[tuple[int, int], Network] = {}
    for cell in cells:
        whole = networks.full(cell)
        if whole is not None and whole.score is not None:
            found[0, cell["seed"]] = whole
        if cell["state"] == "done" and cell["score"] is not None and not networks.is_full(cell):
            found[cell["k"], cell["seed"]] = networks.own(cell)
    return found


def excess(curve: Curve, delta: float, unit: Unit) -> dict[int, Estimate | None]:
    """By K above 0: how far its loss lies beyond the limit, in points; None without a pair. A loss
    in percent of the full model's mean is within delta where (1 - delta/100) of that mean is no
    more than the score."""
    factor = 1 - delta / 100 if unit == "percent" else 1.0
    limit = 0.0 if unit == "percent" else delta
    found: dict[int, Estimate | None] = {}
    for k in curve.ks[1:]:
        pairs = [
            (curve.places[0, seed], place)
            for (of, seed), place in curve.places.items()
            if of == k and (0, seed) in curve.places
        ]
        if not pairs:
            found[k] = None
            continue
        weights = np.zeros((len(pairs), len(curve.scores.points)))
        for row, (full, pruned) in enumerate(pairs):
            weights[row, full] += factor
            weights[row, pruned] -= 1
        loss = moderated(combined(curve.scores, weights), len(pairs), curve.spread)
        found[k] = loss._replace(mean=loss.mean - limit)
    return found


def answer_set(beyond: Mapping[int, Estimate | None]) -> list[int]:
    """The K that can be the largest within the limit, ascending; 0 is always within."""
    known = {k: loss for k, loss in beyond.items() if loss is not None}
    each = _ASIDE / max(1, len(known))
    aside = {k for k, loss in known.items() if loss.mean > half_width(loss, each)}
    can_be = []
    for k in sorted({0, *beyond}):
        own = beyond.get(k)
        if own is not None and own.mean > half_width(own, _ITSELF):
            continue
        larger = [loss for other, loss in known.items() if other > k and other not in aside]
        tail = (_LARGER - _ASIDE) / max(1, len(larger))
        if not any(loss.mean + half_width(loss, tail) <= 0 for loss in larger):
            can_be.append(k)
    return can_be


def _row(answer: Row, curve: Curve | str) -> dict[str, Any]:
    row = _answer(answer)
    if isinstance(curve, str):
        return {**row, "reason": curve}
    can_be = {*answer_set(excess(curve, answer["delta"], answer["unit"]))}
    if answer["max_dropped"] is not None:  # percent of a score below zero: only no loss will do
        can_be.add(answer["max_dropped"])
    return {
        **row,
        "credible": sorted(can_be),
        "n_examples": curve.scores.rows,
        "seed_sd": curve.spread.sd,
        "seed_sd_from": curve.spread.source,
    }


def _answer(answer: Row) -> dict[str, Any]:
    names = (*_CURVE, *_AS_THERE, "delta", "unit", "depth", "n_seeds", "untried")
    return {name: answer[name] for name in names}
