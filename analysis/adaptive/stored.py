"""The searches of a store: which K can be the answer, by the scores that are there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lp_sweep.analysis.adaptive.posterior import Draws, Pair, draw
from lp_sweep.analysis.adaptive.verdict import credible
from lp_sweep.storage.catalog import Catalog

Row = Mapping[str, Any]

_AXES = ("sweep", "model", "procedure", "strategy", "task")
_CELLS = """
SELECT sweep, model, procedure, strategy, task, k, seed, any_value(score) AS score
FROM cells
WHERE search IS NOT NULL AND feed_forward = 'none' AND k IS NOT NULL AND state <> 'impossible'
GROUP BY ALL
ORDER BY ALL
"""


def credible_sets(catalog: Catalog, answers: Iterable[Row]) -> list[list[int] | None]:
    """For each row of `min_layers` the K that can be the answer in 90%, ascending; None where it is
    of no search, or nothing was run of it that could be compared."""
    curves = _curves(catalog)
    return [_credible(curves.get(_key(answer)), answer) for answer in answers]


def _curves(catalog: Catalog) -> dict[tuple[Any, ...], Draws]:
    cells: dict[tuple[Any, ...], list[Row]] = {}
    for row in catalog.query(_CELLS).to_pylist():
        cells.setdefault(_key(row), []).append(row)
    return {key: draws for key, rows in cells.items() if (draws := _draws(rows)) is not None}


def _draws(rows: Sequence[Row]) -> Draws | None:
    points = {Pair(row["k"], row["seed"]): row["score"] for row in rows if row["score"] is not None}
    if not any(pair.k == 0 for pair in points):
        return None
    return draw(tuple(sorted({row["k"] for row in rows})), points)


def _credible(draws: Draws | None, answer: Row) -> list[int] | None:
    if draws is None:
        return None
    share = draws.full / 100 if answer["unit"] == "percent" else 1.0
    return list(credible(draws, answer["max_dropped_low"], answer["delta"] * share))


def _key(row: Row) -> tuple[Any, ...]:
    return tuple(row[axis] for axis in _AXES)
