"""The numbers of the figures, each a SELECT over the views. Draws nothing.

Networks with fewer layers are those of the procedure `direct`. A mean over tasks is null while one
of the tasks is missing: means over different tasks are not comparable.
"""

from __future__ import annotations

# K=0 is one network, whichever strategies list it
FULL = "all layers"
_MERGED = f"CASE WHEN k = 0 AND threshold IS NULL THEN '{FULL}' ELSE strategy END"
_MOST = 4  # networks, or sets of kept layers, in a figure layer by layer

# In points, by strategy and K or threshold. `six`: models of 6 layers, or all others.
STRATEGIES = f"""
SELECT sweep, model, depth, {_MERGED} AS strategy, k, k_mean, threshold, mean_all AS mean,
    sd_all AS sd
FROM strategy_table
WHERE procedure = 'direct' AND feed_forward = 'none' AND (depth = 6) = $six
QUALIFY row_number() OVER (
    PARTITION BY sweep, model, {_MERGED}, k, threshold
    ORDER BY n_tasks DESC, n_seeds_all DESC, position
) = 1
ORDER BY sweep, model, strategy = '{FULL}' DESC,
    min(position) OVER (PARTITION BY sweep, model, {_MERGED}), k_mean, threshold DESC
"""

# A row per task and network with a score, whatever its procedure. `mean` in points; `speedup`
# against all layers, on one device with one batch: those that most networks were measured on.
# `line` merges the draws of `random`. `within`: the allowed losses, of all `losses`, whose answer
# it is; `score_full`: what a loss is against.
NETWORKS = f"""
WITH scored AS (
    SELECT sweep, model, depth, procedure, task, strategy, threshold, k, depth - k AS n_kept,
        metric || coalesce(' of ''' || positive || '''', '') AS metric,
        regexp_replace({_MERGED}, '^random [0-9]+$', 'random') AS line,
        kept_layers, mean, sd, n AS n_seeds, n_asked, change, position
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
    SELECT * RENAME (inference_speedup AS speedup)
    FROM speed_table WHERE feed_forward = 'none' AND inference_speedup IS NOT NULL
),
places AS (
    SELECT sweep, model, device_name, threads, precision, length, batch,
        any_value(profile_id) AS profile_id
    FROM measured
    GROUP BY sweep, model, device_name, threads, precision, length, batch
    QUALIFY row_number() OVER (
        PARTITION BY sweep, model
        ORDER BY count(*) DESC, device_name, batch, threads, precision
    ) = 1
),
sizes AS (
    SELECT sweep, model, kept_layers, any_value(params_total) AS params_total,
        any_value(params_percent) AS params_percent
    FROM speed_table WHERE feed_forward = 'none' GROUP BY ALL
)
SELECT scored.*, places.* EXCLUDE (sweep, model),
    sizes.params_total, sizes.params_percent, sizes.params_total / 1e6 AS params_millions,
    if(scored.k = 0 AND places.profile_id IS NOT NULL, coalesce(speedup, 1), speedup) AS speedup,
    coalesce(within, []) AS within,
    (SELECT list(delta ORDER BY delta) FROM store.deltas) AS losses,
    coalesce(min(score_full) OVER of_task, max(mean) FILTER (WHERE scored.k = 0) OVER of_task)
        AS score_full
FROM scored
LEFT JOIN sizes USING (sweep, model, kept_layers)
LEFT JOIN places USING (sweep, model)
LEFT JOIN answers ON answers.sweep = scored.sweep AND answers.model = scored.model
    AND answers.task = scored.task AND answers.procedure = scored.procedure
    AND answers.k = scored.k AND (scored.k = 0 OR answers.strategy = scored.strategy)
LEFT JOIN measured ON measured.sweep = scored.sweep AND measured.model = scored.model
    AND measured.kept_layers = scored.kept_layers AND measured.device_name = places.device_name
    AND measured.threads IS NOT DISTINCT FROM places.threads
    AND measured.precision = places.precision AND measured.length = places.length
    AND measured.batch = places.batch
WINDOW of_task AS (PARTITION BY scored.sweep, scored.model, scored.task)
ORDER BY scored.sweep, scored.model, min(scored.position) OVER (
        PARTITION BY scored.sweep, scored.model, scored.task
    ), scored.task, scored.position
"""

# The score after each epoch of the full model and of the answer within the smallest loss.
EPOCHS = f"""
WITH shown AS (
    SELECT DISTINCT cells.sweep, cells.model, cells.task, cells.trial_id, cells.seed,
        cells.k AS dropped, cells.depth
    FROM cells
    JOIN min_layers AS best ON best.sweep = cells.sweep AND best.model = cells.model
        AND best.task = cells.task AND best.procedure = cells.procedure AND best.rank = 1
    WHERE cells.feed_forward = 'none' AND cells.state = 'done'
        AND (cells.k = 0 OR cells.k = best.max_dropped_low AND cells.strategy = best.strategy)
        AND best.delta = (SELECT min(delta) FROM min_layers)
)
SELECT shown.sweep, shown.model, shown.task, shown.trial_id, shown.seed, epoch,
    if(
        dropped = 0, '{FULL}', shown.depth - dropped || ' of ' || shown.depth || ' layers'
    ) AS network,
    100 * value AS score, epochs.metric
FROM shown
JOIN trials ON trials.trial_id = shown.trial_id
JOIN epochs ON epochs.trial_id = shown.trial_id AND epochs.metric = trials.metric
    AND epochs.split = trials.epoch_metrics[1].split
ORDER BY shown.sweep, shown.model, shown.task, dropped, shown.seed, epoch
"""

# -- layer by layer

# A row per profile, layer and threshold of the cells that depend on the profile (null: none does).
CONTRIBUTION = """
WITH swept AS (
    SELECT DISTINCT profile_id, threshold FROM cells
    WHERE strategy = 'contribution' AND threshold IS NOT NULL
)
SELECT model, task, profile_id, layer, value, threshold
FROM layers LEFT JOIN swept USING (profile_id)
WHERE measure = 'contribution'
ORDER BY model, task, profile_id, threshold DESC, layer
"""

# Networks that a cell asked for, without the first stages of other procedures. K=0 is the same
# trial in each procedure.
_ASKED = """
networks AS (
    SELECT DISTINCT trial_id, n_kept = depth AS whole
    FROM cells
    WHERE feed_forward = 'none' AND trial_id IS NOT NULL
        AND (n_kept = depth OR procedure = 'direct')
)"""

# points: network, part, model, depth, task, seed, kept_layers, layer, value -> means over tasks and
# the seeds that have every task. `n_tasks`: tasks on which a model's networks of that kind are
# measured; `n_tasks_asked`: tasks in the cells.
_LAYER_MEANS = """,
expected AS (
    SELECT network, part, model, count(DISTINCT task) AS n_tasks FROM points GROUP BY ALL
),
asked AS (SELECT model, count(DISTINCT lower(task)) AS n_tasks_asked FROM cells GROUP BY ALL),
by_seed AS (
    SELECT network, part, model, depth, kept_layers, layer, seed, n_tasks,
        CASE WHEN count(DISTINCT task) FILTER (WHERE value IS NOT NULL) = any_value(n_tasks)
            THEN avg(value) END AS mean
    FROM points JOIN expected USING (network, part, model)
    GROUP BY ALL
)
SELECT network, part, model, depth, kept_layers, layer, n_tasks, n_tasks_asked,
    avg(mean) AS mean, min(mean) AS low, max(mean) AS high
FROM by_seed LEFT JOIN asked USING (model)
GROUP BY network, part, model, depth, kept_layers, layer, n_tasks, n_tasks_asked
ORDER BY model, network, len(kept_layers) DESC, kept_layers, part, layer
"""

# probes in points of the task's main metric; if no trial names it, accuracy, else pearson
_MEASURED_PROBES = """
metrics AS (
    SELECT lower(task) AS task, min(metric) AS metric FROM trials GROUP BY ALL
),
named AS (
    SELECT *, CASE
        WHEN bool_or(name = 'accuracy') OVER (PARTITION BY profile_id) THEN 'accuracy'
        ELSE 'pearson' END AS usual
    FROM layers WHERE measure = 'probes'
),
measured AS (
    SELECT named.* REPLACE (lower(named.task) AS task, 100 * value AS value)
    FROM named LEFT JOIN metrics ON metrics.task = lower(named.task)
    WHERE name = coalesce(metric, usual)
)"""

# Points by `network` (full, pretrained, pruned), kept layers and layer.
PROBES = f"""
WITH {_ASKED},
{_MEASURED_PROBES},
points AS (
    SELECT
        CASE WHEN measured.trial_id IS NULL THEN 'pretrained' WHEN whole THEN 'full'
            ELSE 'pruned' END AS network,
        'score' AS part,
        model, depth, task, seed, kept_layers, layer, value
    FROM measured LEFT JOIN networks USING (trial_id)
    WHERE measured.trial_id IS NULL OR whole IS NOT NULL
)
{_LAYER_MEANS}"""

# Cosine by layer; `part` is sentence or tokens.
SIMILARITY = f"""
WITH {_ASKED},
points AS (
    SELECT 'full' AS network, name AS part, model, depth, lower(task) AS task, seed, kept_layers,
        layer, value
    FROM layers JOIN networks USING (trial_id)
    WHERE measure = 'similarity' AND whole
)
{_LAYER_MEANS}"""

# By `part` (layer, attention), layer and other layer: means over profiles, of whole fine-tuned
# networks, or, if there are none, of the deepest pruned ones.
CKA = f"""
WITH {_ASKED},
points AS (
    SELECT model, depth, kept_layers, against IS NULL AS with_pretrained, name AS part, layer,
        other, value, profile_id, task, coalesce(whole, false) AS whole,
        bool_or(coalesce(whole, false)) OVER () AS any_whole
    FROM layers LEFT JOIN networks USING (trial_id)
    WHERE measure = 'cka' AND whole IS NOT NULL
        AND (against IS NULL OR against IN (SELECT trial_id FROM networks WHERE networks.whole))
)
FROM (
    SELECT model, depth, kept_layers, with_pretrained, part, layer, other,
        CASE WHEN count(value) = count(*) THEN avg(value) END AS value
    FROM points
    WHERE whole = any_whole
    GROUP BY ALL
)
QUALIFY dense_rank() OVER (ORDER BY len(kept_layers) DESC, model, kept_layers, with_pretrained)
    <= {_MOST}
ORDER BY model, len(kept_layers) DESC, kept_layers, with_pretrained, part DESC, layer, other
"""

# By feed-forward setting (`network`), of networks with the same layers. `part` is probes, in
# points, or attention, the CKA of attention outputs with the same layer of the full network. The
# largest sets of kept layers of the first model come first.
FEED_FORWARD_LAYERS = f"""
FROM (
WITH {_MEASURED_PROBES},
settings AS (
    SELECT DISTINCT trial_id, feed_forward, n_kept = depth AND feed_forward = 'none' AS whole
    FROM cells
    WHERE procedure = 'direct' AND trial_id IS NOT NULL
),
numbers AS (
    SELECT trial_id, 'probes' AS part, model, depth, task, seed, kept_layers, layer, value
    FROM measured
    UNION ALL
    SELECT trial_id, 'attention', model, depth, lower(task), seed, kept_layers, layer, value
    FROM layers
    WHERE measure = 'cka' AND name = 'attention' AND layer = other
        AND against IN (SELECT trial_id FROM settings WHERE whole)
),
points AS (
    SELECT feed_forward AS network, numbers.* EXCLUDE (trial_id)
    FROM numbers JOIN settings USING (trial_id)
    QUALIFY bool_or(feed_forward <> 'none') OVER (PARTITION BY model, kept_layers)
)
{_LAYER_MEANS})
QUALIFY dense_rank() OVER (ORDER BY model, len(kept_layers) DESC, kept_layers) <= {_MOST}
ORDER BY model, len(kept_layers) DESC, kept_layers, network <> 'none', network, part, layer
"""
