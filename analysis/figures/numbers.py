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


# task null: over all tasks, where panels for each would be too many
_PER_TASK = """
SELECT sweep, model, depth, task, metric || coalesce(' of ''' || positive || '''', '') AS metric,
    strategy, k, k AS k_mean, threshold, mean, sd,
    n AS n_seeds, position
FROM task_table
WHERE procedure = 'direct' AND feed_forward = 'none'
"""
_OVER_TASKS = """
SELECT sweep, model, depth, NULL::VARCHAR AS task, NULL::VARCHAR AS metric, strategy, k, k_mean,
    threshold, mean_all AS mean, sd_all AS sd, n_seeds_all AS n_seeds, position
FROM strategy_table
WHERE procedure = 'direct' AND feed_forward = 'none'
"""
_CURVES = f"""
WITH points AS ({{points}}),
known AS (
    FROM points
    WHERE mean IS NOT NULL AND k_mean IS NOT NULL
    QUALIFY row_number() OVER (
        PARTITION BY sweep, model, task, {_MERGED}, k_mean, threshold
        ORDER BY n_seeds DESC, position
    ) = 1
),
named AS (
    SELECT * EXCLUDE (k, strategy),
        regexp_replace({_MERGED}, '^random [0-9]+$', 'random') AS strategy
    FROM known
)
SELECT * EXCLUDE (position)
FROM named
ORDER BY sweep, model, min(position) OVER (PARTITION BY sweep, model, task), task,
    strategy = '{FULL}' DESC, min(position) OVER (PARTITION BY sweep, model, strategy), strategy,
    k_mean, threshold DESC, position
"""

_PARETO = f"""
WITH networks AS (
    SELECT sweep, model, depth, kept_layers, task, seed, any_value(score) AS score,
        arg_min(strategy, cell) AS strategy, min(cell) AS cell
    FROM cells
    WHERE procedure = 'direct' AND feed_forward = 'none' AND n_kept > 0 AND state <> 'not_needed'
    GROUP BY ALL
),
by_task AS (
    SELECT sweep, model, depth, kept_layers, task, arg_min(strategy, cell) AS strategy,
        min(cell) AS cell, CASE WHEN count(score) = count(*) THEN avg(score) END AS mean
    FROM networks GROUP BY ALL
),
asked AS (SELECT sweep, model, count(DISTINCT task) AS n_tasks FROM networks GROUP BY ALL),
scored AS (
    SELECT sweep, model, depth, kept_layers, n_tasks, avg(mean) AS mean,
        arg_min(strategy, cell) AS strategy
    FROM by_task JOIN asked USING (sweep, model)
    GROUP BY ALL
    HAVING count(mean) = n_tasks
)
SELECT sweep, model, depth, profile_id, device_type, device_name, threads, precision, length, batch,
    kept_layers, k, CASE WHEN k = 0 THEN '{FULL}' ELSE strategy END AS strategy, mean, n_tasks,
    inference_speedup AS speedup, inference_q25 AS low, inference_q75 AS high,
    mean > coalesce(max(mean) OVER (
        PARTITION BY sweep, model, device_name, threads, precision, length, batch
        ORDER BY inference_speedup DESC, mean DESC
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ), '-infinity'::DOUBLE) AS front
FROM speed_table JOIN scored USING (sweep, model, depth, kept_layers)
WHERE feed_forward = 'none' AND inference_speedup IS NOT NULL
ORDER BY sweep, model, device_name, threads, precision, length, batch, speedup, mean DESC
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


def curves(catalog: Catalog, most: int = 12) -> pa.Table:
    """Mean and sd in points by strategy and layers dropped (`k_mean`): a panel per sweep, model and
    task, or over the tasks of each model (`task` null) where these are more than `most`. The draws
    of `random` are one strategy.
    """
    per_task = catalog.query(_CURVES.format(points=_PER_TASK))
    panels = per_task.group_by(["sweep", "model", "task"]).aggregate([])
    return per_task if len(panels) <= most else catalog.query(_CURVES.format(points=_OVER_TASKS))


def pareto(catalog: Catalog) -> pa.Table:
    """A row per network, and device and batch that its inference was measured on: `mean` over all
    tasks in points, `speedup` against all layers with its quartiles. `front`: no other network of
    that device and batch is at least as good in both."""
    return catalog.query(_PARETO)
