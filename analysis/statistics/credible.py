"""How sure the answer of `min_layers` is: how often other seeds and examples would give another.

A bootstrap of crossed factors, as in `paired`: each resample draws seeds and, apart from them, dev
examples, the same for K=0 and every K, so that networks stay paired; then it applies the rule of
`min_layers` again: the largest K whose mean loss is within delta. A curve with a hole is not
resampled: its answer is already an interval. Nor is that of a search (`until: min_layers`), whose K
have different seeds: its set is that of `analysis.adaptive`.

Shares are no probabilities that an answer is true. A resample adds its noise to that of the data,
and the largest of many K that may pass is chosen: with several K near the allowed loss the shares
lean towards the larger.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lp_sweep.analysis.adaptive.stored import credible_sets
from lp_sweep.analysis.statistics import networks
from lp_sweep.analysis.statistics.answers import Network, Reader, compare, reader
from lp_sweep.analysis.statistics.networks import Row
from lp_sweep.analysis.statistics.paired import seed_weights
from lp_sweep.analysis.statistics.resampling import patterns_of, resampled_scores
from lp_sweep.storage.catalog import Catalog

Array = npt.NDArray[Any]
Unit = Literal["points", "percent"]
RESAMPLES = 2_000
ENOUGH = 0.9  # of the resamples
_SLACK = 1e-9  # float noise, as in min_layers.sql
_SEED = 0

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
        ("share", pa.float64()),  # of the resamples that give max_dropped
        ("credible", pa.list_(pa.int64())),  # the fewest K with 90% of the resamples, ascending;
        # of a search those that its scores do not rule out: without shares and resamples
        ("shares", pa.list_(pa.struct([("k", pa.int64()), ("share", pa.float64())]))),
        ("untried", pa.list_(pa.int64())),  # as in min_layers
        ("n_seeds", pa.int64()),
        ("n_examples", pa.int64()),
        ("resamples", pa.int64()),
        ("reason", pa.string()),  # why there is no set
    ]
)


class Curve(NamedTuple):
    """Points of every K and seed, in each of the resamples."""

    ks: tuple[int, ...]  # ascending, 0 first
    points: Array  # (resamples, seeds, K)
    weights: Array  # (resamples, seeds), a row adds up to 1
    examples: int


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
    listed = _networks(networks.cells(catalog, models, strategies))
    read = reader(catalog)
    curves: dict[tuple[Any, ...], Curve | str] = {}
    rows = []
    for answer, of_search in zip(asked, credible_sets(catalog, asked), strict=True):
        if of_search is not None:
            rows.append({**_answer(answer), "credible": of_search})
            continue
        key = _curve_key(answer)
        if key not in curves:
            curves[key] = _not_decided(answer) or resampled_curve(listed[key], read)
        rows.append(_row(answer, curves[key]))
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def _networks(cells: Sequence[Row]) -> dict[tuple[Any, ...], dict[tuple[int, int], Network]]:
    """By curve, then by K and seed: each pruned network that is done, and K=0 of its seed."""
    curves: dict[tuple[Any, ...], dict[tuple[int, int], Network]] = {}
    for cell in cells:
        if cell["feed_forward"] != "none":  # as in min_layers
            continue
        curve = curves.setdefault(_curve_key(cell), {})
        whole = networks.full(cell)
        if whole is not None:
            curve[0, cell["seed"]] = whole
        if cell["state"] == "done" and not networks.is_full(cell):
            curve[cell["k"], cell["seed"]] = networks.own(cell)
    return curves


def _curve_key(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in _CURVE)


def _not_decided(answer: Row) -> str | None:
    """A K that is missing might be the answer of a resample, even where it can't be the answer."""
    if answer["n_missing"]:
        return f"{answer['n_missing']} missing"
    return "no K=0" if answer["n_seeds"] == 0 else None


def resampled_curve(
    curve: Mapping[tuple[int, int], Network], read: Reader, resamples: int = RESAMPLES
) -> Curve | str:
    """Of the networks by (K, seed), or why there is none."""
    seeds_of: dict[int, list[int]] = {}
    for k, seed in sorted(curve):
        seeds_of.setdefault(k, []).append(seed)
    if 0 not in seeds_of:
        return "no K=0"
    ks = tuple(seeds_of)
    seeds = seeds_of[ks[-1]]
    if any(seeds_of[k] != seeds for k in ks[1:]):  # K=0 may have more
        return "different seeds for different K"
    ordered = [curve[k, seed] for seed in seeds for k in ks]
    compared = compare(ordered, read)
    if compared.reason:
        return compared.reason
    rng = np.random.default_rng(_SEED)
    metric = ordered[0].metric
    patterns = patterns_of(metric, compared.labels, compared.predicted)
    points = 100 * resampled_scores(metric, patterns, resamples, rng)
    weights = seed_weights(len(seeds), resamples, rng)
    shape = (resamples, len(seeds), len(ks))
    return Curve(ks, points.reshape(shape), weights, len(compared.labels))


def answers(curve: Curve, delta: float, unit: Unit) -> Array:
    """(resamples,) the largest K whose mean loss is within delta: the rule of min_layers.sql."""
    means = (curve.points * curve.weights[:, :, None]).sum(axis=1)  # (resamples, K)
    full = means[:, :1]
    losses = full - means
    if unit == "percent":  # no share of a score of zero: only no loss at all will do
        no_share = np.where(losses <= 0, 0.0, np.inf)
        losses = np.where(full > 0, 100 * losses / np.where(full > 0, full, 1), no_share)
    holds = losses <= delta + _SLACK
    holds[:, 0] = True
    return np.asarray(np.where(holds, np.array(curve.ks), 0).max(axis=1))


def _row(answer: Row, curve: Curve | str) -> dict[str, Any]:
    row = _answer(answer)
    if isinstance(curve, str):
        return {**row, "reason": curve}
    found = answers(curve, answer["delta"], answer["unit"])
    shares = {k: float((found == k).mean()) for k in curve.ks}
    return {
        **row,
        "share": shares[answer["max_dropped"]],
        "credible": credible_set(shares),
        "shares": [{"k": k, "share": share} for k, share in shares.items()],
        "n_seeds": curve.points.shape[1],
        "n_examples": curve.examples,
        "resamples": len(found),
    }


def _answer(answer: Row) -> dict[str, Any]:
    names = (*_CURVE, *_AS_THERE, "delta", "unit", "depth", "n_seeds", "untried")
    return {name: answer[name] for name in names}


def credible_set(shares: Mapping[int, float], enough: float = ENOUGH) -> list[int]:
    """The fewest K that together have `enough`; of equal shares the smaller K, which loses less."""
    chosen: list[int] = []
    total = 0.0
    for k, share in sorted(shares.items(), key=lambda item: (-item[1], item[0])):
        if total >= enough - _SLACK:
            break
        chosen.append(k)
        total += share
    return sorted(chosen)
