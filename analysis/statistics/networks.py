"""The cells that statistics are made of: each with its network and that of K=0. Reads the views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lp_sweep.analysis.statistics.answers import Network
from lp_sweep.storage.catalog import Catalog

Row = Mapping[str, Any]

# a cell that is listed twice counts once, as in task_table; K=0 is shared by all strategies. What
# a search did not need is none of them.
_CELLS = """
WITH networks AS (
    SELECT trial_id, metric, score, coalesce(epoch_metrics[1].split, 'validation') AS split
    FROM trials
),
full_depth AS (
    SELECT sweep, model, procedure, task, seed, any_value(trial_id) AS full_trial_id
    FROM cells
    WHERE n_kept = depth AND feed_forward = 'none' AND state = 'done'
    GROUP BY ALL
)
SELECT
    cells.sweep, cells.model, cells.procedure, cells.feed_forward, cells.strategy, cells.k,
    cells.threshold, cells.task, cells.seed, cells.cell, cells.depth, cells.n_kept, cells.state,
    cells.score, cells.score_full, cells.change, cells.trial_id, full_depth.full_trial_id,
    cells.metric || coalesce(' of ''' || cells.positive || '''', '') AS metric,
    own.metric AS own_metric, own.split, whole.metric AS full_metric,
    whole.split AS full_split
FROM cells
LEFT JOIN full_depth USING (sweep, model, procedure, task, seed)
LEFT JOIN networks AS own ON own.trial_id = cells.trial_id
LEFT JOIN networks AS whole ON whole.trial_id = full_depth.full_trial_id
WHERE cells.state <> 'not_needed'
    AND (len($models::VARCHAR[]) = 0 OR list_contains($models::VARCHAR[], cells.model))
    AND (
        len($strategies::VARCHAR[]) = 0
        OR list_contains($strategies::VARCHAR[], cells.strategy)
    )
QUALIFY row_number() OVER (
    PARTITION BY cells.sweep, cells.model, cells.procedure, cells.feed_forward, cells.strategy,
        cells.k, cells.threshold, cells.task, cells.seed
    ORDER BY cells.cell
) = 1
ORDER BY sweep, cell
"""


def cells(catalog: Catalog, models: Sequence[str], strategies: Sequence[str]) -> list[Row]:
    """One row per cell, in the order of the plan; none named: all models, all strategies."""
    wanted = {"models": list(models), "strategies": list(strategies)}
    rows: list[Row] = catalog.query(_CELLS, wanted).to_pylist()
    return rows


def is_full(cell: Row) -> bool:
    """Is it K=0: the cell of a network with all its layers, and their feed-forwards?"""
    return bool(cell["n_kept"] == cell["depth"] and cell["feed_forward"] == "none")


def own(cell: Row) -> Network:
    """The network of a cell that is done."""
    return Network(cell["trial_id"], cell["own_metric"], cell["split"], cell["score"])


def full(cell: Row) -> Network | None:
    """That of K=0 of the same seed, if it is done."""
    if cell["full_trial_id"] is None:
        return None
    place = (cell["full_trial_id"], cell["full_metric"], cell["full_split"])
    return Network(*place, cell["score_full"])


def setting(cell: Row) -> tuple[Any, ...]:
    """All that makes a cell but its seed; the k of a threshold is a result, not a setting."""
    fixed = cell["k"] if cell["threshold"] is None else None
    place = (cell["sweep"], cell["model"], cell["procedure"], cell["feed_forward"])
    return (*place, cell["strategy"], fixed, cell["threshold"], cell["task"])


def by_setting(rows: Sequence[Row]) -> list[list[Row]]:
    """The cells of each setting, one per seed."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(setting(row), []).append(row)
    return list(groups.values())
