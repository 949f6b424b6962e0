"""The numbers of the figures, each a SELECT over the views. Draws nothing.

Networks with fewer layers are those of the procedure `direct`. A mean over tasks is null while one
of the tasks is missing: means over different tasks are not comparable.
"""

from __future__ import annotations

import pyarrow as pa

from lp_sweep.storage.catalog import Catalog

# K=0 is one network, whichever strategies list it
FULL = "all layers"
TASK = ("sweep", "model", "task")
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

_NETWORKS = f"""
WITH scored AS (
    SELECT sweep, model, depth, procedure, task, kind, strategy, threshold, k, depth - k AS n_kept,
        metric || coalesce(' of ''' || positive || '''', '') AS metric,
        regexp_replace({_MERGED}, '^random [0-9]+$', 'random') AS line,
        kept_layers, mean, sd, n AS n_seeds, n_asked, change, majority, position
    FROM task_table
    WHERE feed_forward = 'none' AND mean IS NOT NULL AND k IS NOT NULL
    QUALIFY row_number() OVER (
        PARTITION BY sweep, model, procedure, task, {_MERGED}, kept_layers ORDER BY n DESC, position
    ) = 1
),
answers AS (
    SELECT sweep, model, task, procedure, strategy, max_dropped_low AS k,
        list(delta ORDER BY delta) AS within, any_value(score_full) AS score_full
    FROM min_layers
    WHERE rank = 1 AND n_learned_nothing = 0
    GROUP BY ALL
),
measured AS (
    SELECT * RENAME (inference_speedup AS speedup, inference_q25 AS low, inference_q75 AS high)
    FROM speed_table WHERE feed_forward = 'none' AND inference_speedup IS NOT NULL
),
counted AS (
    SELECT sweep, model, device_type, device_name, threads, precision, length, batch,
        any_value(profile_id) AS profile_id, count(*) AS n
    FROM measured GROUP BY ALL
),
places AS (  -- the first has the speeds of most networks
    SELECT *, row_number() OVER (
        PARTITION BY sweep, model ORDER BY n DESC, device_name, batch, threads, precision
    ) AS place
    FROM counted
),
sizes AS (
    SELECT sweep, model, kept_layers, any_value(params_total) AS params_total,
        any_value(params_percent) AS params_percent
    FROM speed_table WHERE feed_forward = 'none' GROUP BY ALL
)
SELECT scored.*, sizes.params_total, sizes.params_percent, coalesce(place, 1) AS place,
    places.device_type, places.device_name, places.threads, places.precision, places.length,
    places.batch, places.profile_id,
    if(scored.k = 0 AND places.profile_id IS NOT NULL, coalesce(speedup, 1), speedup) AS speedup,
    low, high, coalesce(within, []) AS within,
    (SELECT list(delta ORDER BY delta) FROM store.deltas) AS losses,
    min(score_full) OVER (PARTITION BY scored.sweep, scored.model, scored.task) AS score_full
FROM scored
LEFT JOIN answers ON answers.sweep = scored.sweep AND answers.model = scored.model
    AND answers.task = scored.task AND answers.procedure = scored.procedure
    AND answers.k = scored.k AND (scored.k = 0 OR answers.strategy = scored.strategy)
LEFT JOIN sizes ON sizes.sweep = scored.sweep AND sizes.model = scored.model
    AND sizes.kept_layers = scored.kept_layers
LEFT JOIN places ON places.sweep = scored.sweep AND places.model = scored.model
LEFT JOIN measured ON measured.sweep = scored.sweep AND measured.model = scored.model
    AND measured.kept_layers = scored.kept_layers AND measured.device_name = places.device_name
    AND measured.threads IS NOT DISTINCT FROM places.threads
    AND measured.precision = places.precision AND measured.length = places.length
    AND measured.batch = places.batch
ORDER BY scored.sweep, scored.model, min(scored.position) OVER (
        PARTITION BY scored.sweep, scored.model, scored.task
    ), scored.task, place, scored.position
"""

_EPOCHS = """
WITH shown AS (
    SELECT DISTINCT cells.sweep, cells.model, cells.task, cells.trial_id, cells.seed,
        answers.k AS dropped, cells.depth
    FROM cells
    JOIN min_layers AS best ON best.sweep = cells.sweep AND best.model = cells.model
        AND best.task = cells.task AND best.procedure = cells.procedure AND best.rank = 1
    CROSS JOIN (SELECT unnest([0, 1]) AS is_answer) AS sides
    CROSS JOIN LATERAL (SELECT if(is_answer = 1, best.max_dropped_low, 0) AS k) AS answers
    WHERE cells.feed_forward = 'none' AND cells.k = answers.k AND cells.state = 'done'
        AND (answers.k = 0 OR cells.strategy = best.strategy)
        AND best.delta = (SELECT min(delta) FROM min_layers)
)
SELECT shown.sweep, shown.model, shown.task, shown.trial_id, shown.seed, epoch,
    if(
        dropped = 0, 'all layers', shown.depth - dropped || ' of ' || shown.depth || ' layers'
    ) AS network,
    100 * value AS score, epochs.metric AS metric
FROM shown
JOIN trials ON trials.trial_id = shown.trial_id
JOIN epochs ON epochs.trial_id = shown.trial_id AND epochs.metric = trials.metric
    AND epochs.split = trials.epoch_metrics[1].split
ORDER BY shown.sweep, shown.model, shown.task, dropped, shown.seed, epoch
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


def networks(catalog: Catalog) -> pa.Table:
    """A row per task and network with a score, whatever its procedure, and per device and batch
    that speeds were measured on (`place`, from 1; 1 also where none was). `mean` in points;
    `speedup` against all layers, never of another device. `line` merges the draws of `random`.
    `within`: the allowed losses, of all `losses`, whose answer it is; `score_full`: what a loss is
    against."""
    return catalog.query(_NETWORKS)


def epochs(catalog: Catalog) -> pa.Table:
    """The score after each epoch of the full model and of the answer within the smallest loss."""
    return catalog.query(_EPOCHS)
