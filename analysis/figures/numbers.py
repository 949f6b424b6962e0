"""The numbers of the figures, each a SELECT over the views. Draws nothing.

Networks with fewer layers are those of the procedure `direct`. A mean over tasks is null while one
of the tasks is missing: means over different tasks are not comparable.
"""

from __future__ import annotations

import pyarrow as pa

from lp_sweep.storage.catalog import Catalog

# K=0 is one network, whichever strategies list it
FULL = "all layers"
PANEL = ("sweep", "model", "task", "device_name", "threads", "precision", "length", "batch")
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


# task null: over all tasks, if a panel for each task would be too many
_PER_TASK = """
SELECT sweep, model, depth, task, metric || coalesce(' of ''' || positive || '''', '') AS metric,
    strategy, k, k AS k_mean, threshold, mean, sd, majority, kind,
    n AS n_seeds, position
FROM task_table
WHERE procedure = 'direct' AND feed_forward = 'none'
"""
_OVER_TASKS = """
SELECT sweep, model, depth, NULL::VARCHAR AS task, NULL::VARCHAR AS metric, strategy, k, k_mean,
    threshold, mean_all AS mean, sd_all AS sd, NULL::DOUBLE AS majority,
    NULL::VARCHAR AS kind, n_seeds_all AS n_seeds,
    position
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
        arg_min(strategy, cell) AS strategy, min(cell) AS cell,
        any_value(metric || coalesce(' of ''' || positive || '''', '')) AS metric
    FROM cells
    WHERE procedure = 'direct' AND feed_forward = 'none' AND n_kept > 0 AND state <> 'not_needed'
    GROUP BY ALL
),
by_task AS (
    SELECT sweep, model, depth, kept_layers, task, any_value(metric) AS metric,
        arg_min(strategy, cell) AS strategy, min(cell) AS cell,
        CASE WHEN count(score) = count(*) THEN avg(score) END AS mean
    FROM networks GROUP BY ALL
),
compared AS (
    SELECT *, mean - max(mean) FILTER (WHERE len(kept_layers) = depth)
        OVER (PARTITION BY sweep, model, task) AS change
    FROM by_task
),
scored AS (
    FROM compared WHERE mean IS NOT NULL AND NOT $over_tasks
    UNION ALL BY NAME
    SELECT sweep, model, depth, kept_layers, avg(change) AS mean,
        arg_min(strategy, cell) AS strategy, min(cell) AS cell
    FROM compared WHERE $over_tasks
    GROUP BY ALL
    HAVING count(change) = count(*)
),
measured AS (  -- of a model without a measured speed: a row per network, with its size alone
    SELECT sweep, model, depth, profile_id, device_type, device_name, threads, precision, length,
        batch, kept_layers, k, inference_speedup AS speedup, inference_q25 AS low,
        inference_q75 AS high, params_percent AS size
    FROM speed_table
    WHERE feed_forward = 'none'
    QUALIFY inference_speedup IS NOT NULL OR (
        params_percent IS NOT NULL  -- the full model has a record
        AND count(inference_speedup) OVER (PARTITION BY sweep, model) = 0
        AND row_number() OVER (PARTITION BY sweep, model, kept_layers) = 1
    )
),
speeds AS (  -- the full model is timed with each network: 1 where it has no measurement of its own
    FROM measured
    UNION ALL BY NAME
    SELECT * EXCLUDE (kept_layers, k, speedup, low, high, size, profile_id),
        min(profile_id) AS profile_id, range(1, depth + 1) AS kept_layers, 0 AS k, 1 AS speedup,
        1 AS low, 1 AS high, 100 AS size
    FROM measured
    GROUP BY ALL
    HAVING min(k) > 0 AND count(speedup) > 0
)
SELECT sweep, model, task, metric, depth, profile_id, device_type, device_name, threads, precision,
    length, batch, kept_layers, k, CASE WHEN k = 0 THEN '{FULL}' ELSE strategy END AS strategy,
    mean, speedup, low, high, size,
    mean > coalesce(max(mean) OVER (
        PARTITION BY sweep, model, task, device_name, threads, precision, length, batch
        ORDER BY speedup DESC, if(speedup IS NULL, size, 0), mean DESC
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ), '-infinity'::DOUBLE) AS front
FROM speeds JOIN scored USING (sweep, model, depth, kept_layers)
ORDER BY sweep, model, min(cell) OVER (PARTITION BY sweep, model, task), device_name, threads,
    precision, length, batch, speedup, size, mean DESC
"""


def strategies(catalog: Catalog, *, six: bool) -> pa.Table:
    """Figures 2 and 3: a row per bar, in points; `role` is pruned, full (K=0) or reference.

    six: only models of 6 layers (True), or all others. A reference is another whole model on the
    same tasks, as deep as one of the pruned networks.
    """
    return catalog.query(_BARS, {"six": six})


def feed_forwards(catalog: Catalog) -> pa.Table:
    """Mean score and parameters by feed_forward setting, at each model's smallest K with several
    settings."""
    return catalog.query(_FEED_FORWARD)


def curves(catalog: Catalog, most: int = 12) -> pa.Table:
    """Mean and sd in points by strategy and layers dropped (`k_mean`). There is a panel per sweep,
    model and task; if these are more than `most`, a panel per model, over its tasks (`task` null).
    The draws of `random` count as one strategy.
    """
    per_task = catalog.query(_CURVES.format(points=_PER_TASK))
    panels = per_task.group_by(["sweep", "model", "task"]).aggregate([])
    return per_task if len(panels) <= most else catalog.query(_CURVES.format(points=_OVER_TASKS))


def pareto(catalog: Catalog, most: int = 12) -> pa.Table:
    """A row per task, network, and device and batch that its inference was measured on. `mean` is
    in points, `speedup` is against all layers with its quartiles (null: no speed of its model was
    measured), `size` is in percent of the parameters. `front`: no other network of that task,
    device and batch is at least as good in both. If there would be more than `most` panels, `task`
    is null, and `mean` is over tasks, in points against all layers.
    """
    per_task = catalog.query(_PARETO, {"over_tasks": False})
    found = per_task.group_by([*PANEL]).aggregate([])
    return per_task if len(found) <= most else catalog.query(_PARETO, {"over_tasks": True})


_EMBEDDINGS = """
WITH rates AS (
    UNPIVOT (
        SELECT sweep, model, task, metric, procedure, strategy, k, depth, kept_layers, mean,
            device_name, device_type, threads, precision, length, profile_id, position,
            texts_per_second_1 AS "1", texts_per_second_64 AS "64"
        FROM embedding_table
        WHERE feed_forward = 'none' AND mean IS NOT NULL
    )
    ON "1", "64" INTO NAME batch VALUE texts_per_second
)
SELECT * EXCLUDE (position) REPLACE (batch::INTEGER AS batch)
FROM rates
QUALIFY row_number() OVER (  -- a network counts once, whichever strategies chose it
    PARTITION BY sweep, model, task, device_name, threads, precision, length, batch, kept_layers,
        CASE WHEN k > 0 THEN procedure END
    ORDER BY position
) = 1
ORDER BY sweep, model, task, device_name, batch, k, position
"""


def embeddings(catalog: Catalog) -> pa.Table:
    """A row per embedding task, network, procedure, and device and batch that its speed was
    measured on: `mean` in points, `texts_per_second`."""
    return catalog.query(_EMBEDDINGS)
