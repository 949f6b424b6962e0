"""The numbers of the figures of scores, each a SELECT over the views. Draws nothing.

A mean over tasks is null while one of the tasks is missing: a mean over fewer compares nothing.
"""

from __future__ import annotations

import pyarrow as pa

from lp_sweep.storage.catalog import Catalog

# K=0 is one network, whichever strategies list it
FULL = "all layers"
_MERGED = f"CASE WHEN k = 0 AND threshold IS NULL THEN '{FULL}' ELSE strategy END"

_BARS = f"""
WITH bars AS (
    SELECT sweep, model, depth, {_MERGED} AS strategy, k, k_mean, threshold, mean_all AS mean,
        sd_all AS sd, n_seeds_all AS n_seeds, change_all AS change, n_tasks, n_tasks_expected,
        missing_tasks, position
    FROM strategy_table
    WHERE procedure = 'direct' AND feed_forward = 'none'
    QUALIFY row_number() OVER (
        PARTITION BY sweep, model, {_MERGED}, k, threshold
        ORDER BY n_tasks DESC, n_seeds_all DESC, position
    ) = 1
),
task_sets AS (
    SELECT sweep, model, list(DISTINCT lower(task) ORDER BY lower(task)) AS tasks
    FROM task_table GROUP BY ALL
),
whole AS (SELECT * FROM bars JOIN task_sets USING (sweep, model) WHERE strategy = '{FULL}'),
panels AS (
    SELECT DISTINCT sweep, model, depth, tasks FROM bars JOIN task_sets USING (sweep, model)
),
beside AS (  -- whole models that are as deep as a pruned one of the panel, on the same tasks
    SELECT panels.sweep, panels.model, panels.depth, whole.* EXCLUDE (sweep, model, depth),
        whole.model AS reference
    FROM panels JOIN whole
        ON whole.tasks = panels.tasks AND whole.model <> panels.model AND whole.mean IS NOT NULL
    WHERE whole.depth < panels.depth AND EXISTS (
        FROM bars
        WHERE bars.sweep = panels.sweep AND bars.model = panels.model
            AND bars.k = panels.depth - whole.depth
    )
    QUALIFY row_number() OVER (
        PARTITION BY panels.sweep, panels.model, whole.model
        ORDER BY whole.sweep = panels.sweep DESC, whole.sweep
    ) = 1
)
SELECT * EXCLUDE (position)
FROM (
    SELECT if(strategy = '{FULL}', 'full', 'pruned') AS role, NULL::VARCHAR AS reference, *
    FROM bars
    UNION ALL BY NAME
    SELECT 'reference' AS role, * EXCLUDE (k, k_mean, tasks), depth - depth AS k FROM beside
)
WHERE (depth = 6) = $six
ORDER BY sweep, model, role, reference, strategy = '{FULL}' DESC,
    min(position) OVER (PARTITION BY sweep, model, role, strategy), k_mean, threshold DESC
"""

_CONTRIBUTION = """
WITH swept AS (
    SELECT DISTINCT profile_id, threshold FROM cells
    WHERE strategy = 'contribution' AND threshold IS NOT NULL
)
SELECT model, task, profile_id, layer, value, threshold,
    CASE WHEN threshold IS NOT NULL THEN NOT coalesce(value > threshold, false) END AS kept
FROM layers LEFT JOIN swept USING (profile_id)
WHERE measure = 'contribution'
ORDER BY model, task, profile_id, threshold DESC, layer
"""

_FEED_FORWARD = f"""
WITH settings AS (
    SELECT sweep, model, depth, feed_forward, {_MERGED} AS strategy, k, mean_all AS mean,
        sd_all AS sd, n_seeds_all AS n_seeds, n_tasks, n_tasks_expected, missing_tasks, position
    FROM strategy_table
    WHERE procedure = 'direct' AND threshold IS NULL AND k IS NOT NULL
    QUALIFY row_number() OVER (
        PARTITION BY sweep, model, feed_forward, {_MERGED}, k ORDER BY n_tasks DESC, position
    ) = 1
),
sizes AS (
    SELECT sweep, model, feed_forward, {_MERGED} AS strategy, k, avg(params_total) AS parameters
    FROM cells WHERE procedure = 'direct' AND threshold IS NULL GROUP BY ALL
),
depths AS (  -- the deepest network of each model that has several settings
    SELECT sweep, model, strategy, k, min(position) AS first
    FROM settings GROUP BY ALL HAVING count(DISTINCT feed_forward) > 1
),
chosen AS (
    FROM depths
    QUALIFY row_number() OVER (PARTITION BY sweep, model ORDER BY k, first) = 1
)
SELECT settings.* EXCLUDE (position), parameters
FROM settings
SEMI JOIN chosen USING (sweep, model, strategy, k)
LEFT JOIN sizes USING (sweep, model, feed_forward, strategy, k)
ORDER BY sweep, model, feed_forward = 'none' DESC, position
"""


def strategies(catalog: Catalog, *, six: bool) -> pa.Table:
    """Figures 2 and 3: a row per bar, points; `role` is pruned, full (K=0) or reference.

    six: models of 6 layers, or all others. A reference is another whole model, as deep as one of
    the pruned networks, on the same tasks.
    """
    return catalog.query(_BARS, {"six": six})


def contribution(catalog: Catalog) -> pa.Table:
    """A row per profile, layer and threshold of the cells that hang on it (null: none do)."""
    return catalog.query(_CONTRIBUTION)


def feed_forwards(catalog: Catalog) -> pa.Table:
    """Mean score and parameters by feed_forward setting, at each model's smallest K that has
    several."""
    return catalog.query(_FEED_FORWARD)
